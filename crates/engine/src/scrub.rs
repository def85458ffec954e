//! Reading tables to see whether they are still what was written.
//!
//! Two checks: every block against its own checksum, and whole files against the checksum that
//! the MANIFEST keeps. Both pin the versions they look at and read past the block cache, as slowly
//! as they are asked to.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::checksum::crc32c_extend;
use orogen_base::{Error, ErrorKind, FileNo, Result, memory};
use orogen_blob::Extent;
use orogen_env::{Access, FileSystem, RateLimiter};

use crate::context::Context;
use crate::filename;
use crate::holes;
use crate::quarantine;
use crate::tables::FamilyTables;
use crate::version::file_meta::FileMeta;
use crate::version::{BlobFileMeta, Version};

/// Bytes read at a time.
const READ_LEN: usize = 1 << 20;

/// How tables are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VerifyOptions {
    /// Bytes read in a second at most; 0, the default: no limit.
    pub bytes_per_second: u64,
}

/// What was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct FilesVerified {
    /// Files whose checksum is right.
    pub verified: u64,
    /// Files that the MANIFEST has no checksum of that is known here.
    pub without_checksum: u64,
}

/// What [`crate::Db::scrub`] found.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Tables that were read.
    pub tables: u64,
    /// Blocks whose checksum is right.
    pub blocks: u64,
    /// Tables with damage; see [`crate::Db::damaged_tables`].
    pub damaged: Vec<FileNo>,
    /// Blob files that were read.
    pub blob_files: u64,
    /// Records of them whose checksums are right.
    pub blob_records: u64,
    /// Blob files with damage.
    pub damaged_blob_files: Vec<FileNo>,
    /// Blob files of which not all was verified: where their values are is not known, for a table that may point there is damaged.
    pub unverified_blob_files: Vec<FileNo>,
}

/// Called with bytes done and bytes in all.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// The limiter of `options`.
pub(crate) fn limiter(context: &Context, options: &VerifyOptions) -> RateLimiter {
    RateLimiter::new(options.bytes_per_second, context.clock.clone())
}

/// The CRC32C over a whole file. `advance` is told of the bytes read each time.
///
/// # Errors
/// `Io`, `Corruption` if the file shrinks meanwhile.
pub(crate) fn file_crc32c(
    fs: &dyn FileSystem,
    path: &std::path::Path,
    limiter: &RateLimiter,
    advance: &mut dyn FnMut(u64),
) -> Result<(u64, u32)> {
    let file = fs.open(path, Access::Sequential)?;
    let size = file.size()?;
    let mut chunk = memory::zeroed(READ_LEN, "read buffer")?;
    let (mut at, mut crc) = (0, 0);
    while at < size {
        let n = (size - at).min(READ_LEN as u64) as usize;
        limiter.request(n as u64);
        file.read_exact_at(at, &mut chunk[..n])?;
        crc = crc32c_extend(crc, &chunk[..n]);
        at += n as u64;
        advance(n as u64);
    }
    Ok((size, crc))
}

/// Reads and checks blob files of a version, one after the other.
///
/// Of a file of which space was given up every record is read that a table points to. For that all tables are read that point
/// there, so the places are found for many files at once. That space was given up is not known any more where RocksDB has written
/// the MANIFEST since, nor seen in a copy whose holes were filled with zeros. So where damage is met in a file with garbage only what
/// tables point to counts.
pub(crate) struct BlobVerifier<'a> {
    tables: &'a FamilyTables,
    version: &'a Version,
    /// Asked before each table.
    goes_on: &'a dyn Fn() -> Result<()>,
    /// Where the values stand that tables point to, of files that come; None where they are not those of the MANIFEST.
    marked: BTreeMap<FileNo, Option<Vec<Extent>>>,
    /// A table that some of them need is damaged.
    is_each_alone: bool,
}

impl<'a> BlobVerifier<'a> {
    pub(crate) fn new(
        tables: &'a FamilyTables,
        version: &'a Version,
        goes_on: &'a dyn Fn() -> Result<()>,
    ) -> Self {
        Self {
            tables,
            version,
            goes_on,
            marked: BTreeMap::new(),
            is_each_alone: false,
        }
    }

    /// Checks a file; `advance` is told of the bytes of each record.
    ///
    /// # Errors
    /// The first damage, with file and offset; `Io`; those of `goes_on`.
    pub(crate) fn verify(&mut self, number: FileNo, advance: &mut dyn FnMut(u64)) -> Result<()> {
        self.verify_records(number, advance)?;
        let reader = self.tables.blob_reader(self.version, number)?;
        let blob = self.version.blob_files().get(&number);
        reader.check_meta(blob.map_or(0, |blob| blob.addition().overhead_bytes))
    }

    fn verify_records(&mut self, number: FileNo, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let reader = self.tables.blob_reader(self.version, number)?;
        let blob = self.version.blob_files().get(&number);
        let mut records = reader.records();
        let has_garbage = blob.is_some_and(|b| b.garbage_blob_count > 0);
        if blob.is_none_or(|b| b.given_up_bytes.is_none()) {
            let all = loop {
                match records.next() {
                    Ok(Some(record)) => advance(record.record_len()),
                    Ok(None) => break Ok(()),
                    Err(e) => break Err(e),
                }
            };
            match all {
                Err(e) if e.kind() == ErrorKind::Corruption && has_garbage => {}
                read => return read,
            }
        }
        for place in self.live_places(number)? {
            records.seek(place.offset);
            let found = records.next()?.map(|r| (r.offset, r.record_len()));
            if found != Some((place.offset, place.size)) {
                let error = Error::corruption("blob record is not where tables point to");
                return Err(reader.locate(error, place.offset));
            }
            advance(place.size);
        }
        Ok(())
    }

    /// Where the values of a file stand that tables of the version point to, in the order of the file.
    ///
    /// # Errors
    /// What a reader of the tables meets; `Corruption` if they are not as many as the MANIFEST says.
    fn live_places(&mut self, number: FileNo) -> Result<Vec<Extent>> {
        if !self.marked.contains_key(&number) {
            let mut values = 0u64;
            let files = self.version.blob_files().range(number..);
            let files = files.filter(|(n, b)| **n == number || b.given_up_bytes.is_some());
            let together: Vec<FileNo> = files
                .take_while(|(n, b)| {
                    values = values.saturating_add(b.live_count());
                    **n == number || !self.is_each_alone && values <= holes::MARKED_MAX
                })
                .map(|(&n, _)| n)
                .collect();
            let goes_on = self.goes_on;
            let mark =
                |files: &[FileNo]| holes::mark(self.tables, self.version, files, &mut || goes_on());
            let (mut found, together) = match mark(&together) {
                // A damaged table may point to others of them only.
                Err(e) if e.kind() == ErrorKind::Corruption && together.len() > 1 => {
                    self.is_each_alone = true;
                    (mark(&[number])?, vec![number])
                }
                found => (found?, together),
            };
            let found = together.into_iter().map(|n| (n, found.remove(&n)));
            self.marked.extend(found);
        }
        let mut live = self.marked.remove(&number).flatten().ok_or_else(|| {
            Error::corruption("tables point to other values than the MANIFEST says")
                .with("blob_file", number)
        })?;
        live.sort_unstable();
        Ok(live)
    }
}

/// Bytes of the blob files of a version, about: those of their records.
pub(crate) fn blob_bytes(version: &Version) -> u64 {
    let blobs = version.blob_files().values();
    blobs.map(|b| b.addition().total_blob_bytes).sum()
}

/// Reads and checks every block of every table and every record of every blob file, and goes on
/// behind damage.
///
/// # Errors
/// `Io`. Damage is in the answer.
pub(crate) fn scrub(
    context: &Context,
    options: &VerifyOptions,
    progress: Progress<'_>,
) -> Result<Scrubbed> {
    let pinned: Vec<_> = context
        .set
        .families()
        .into_iter()
        .map(|f| (f.pin(), f.tables.clone()))
        .collect();
    let total = pinned
        .iter()
        .map(|(p, _)| p.version.total_bytes() + blob_bytes(&p.version))
        .sum();
    let limiter = limiter(context, options);
    let goes_on = || match context.is_closing() {
        false => Ok(()),
        true => Err(Error::aborted("database closes")),
    };
    let (mut done, mut found) = (0, Scrubbed::default());
    for (super_version, tables) in &pinned {
        for (_, file) in super_version.version.iter_files() {
            goes_on()?;
            let before = done;
            let verified = tables.reader(file).and_then(|table| {
                for block in table.blocks() {
                    let bytes = block?.handle.size;
                    limiter.request(bytes);
                    found.blocks += 1;
                    done += bytes;
                    progress(done, total);
                }
                Ok(())
            });
            found.tables += 1;
            match verified {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    quarantine::note(context, &e);
                    found.damaged.push(file.number);
                }
                Err(e) => return Err(e),
            }
            done = before + file.size;
            progress(done, total);
        }
        let mut blobs = BlobVerifier::new(tables, &super_version.version, &goes_on);
        for (&number, blob) in super_version.version.blob_files() {
            goes_on()?;
            let before = done;
            let verified = blobs.verify(number, &mut |bytes| {
                limiter.request(bytes);
                found.blob_records += 1;
                done += bytes;
                progress(done, total);
            });
            found.blob_files += 1;
            match verified {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    quarantine::note(context, &e);
                    match quarantine::damaged_table(context, &e) {
                        None => found.damaged_blob_files.push(number),
                        Some(table) => {
                            found.unverified_blob_files.push(number);
                            if !found.damaged.contains(&table) {
                                found.damaged.push(table);
                            }
                        }
                    }
                }
                Err(e) => return Err(e),
            }
            done = before + blob.addition().total_blob_bytes;
            progress(done, total);
        }
    }
    Ok(found)
}

/// Compares every table and every blob file with the checksum that the MANIFEST has of it.
///
/// # Errors
/// `Corruption` of the first file that differs; `Io`.
pub(crate) fn verify_file_checksums(
    context: &Context,
    options: &VerifyOptions,
    progress: Progress<'_>,
) -> Result<FilesVerified> {
    let pinned: Vec<_> = context.set.families().iter().map(|f| f.pin()).collect();
    let files: Vec<&Arc<FileMeta>> = pinned
        .iter()
        .flat_map(|p| p.version.iter_files().map(|(_, f)| f))
        .collect();
    let blobs: Vec<&Arc<BlobFileMeta>> = pinned
        .iter()
        .flat_map(|p| p.version.blob_files().values())
        .collect();
    let total = files.iter().map(|f| f.size).sum::<u64>()
        + blobs
            .iter()
            .map(|b| b.addition().total_blob_bytes)
            .sum::<u64>();
    let limiter = limiter(context, options);
    let (mut done, mut found) = (0, FilesVerified::default());
    for file in files {
        let Some(wanted) = file.file_checksum.as_ref().and_then(|c| c.crc32c()) else {
            found.without_checksum += 1;
            done += file.size;
            progress(done, total);
            continue;
        };
        let path = filename::find_table(&*context.fs, &context.dir, file.number)?;
        let (size, crc) = file_crc32c(&*context.fs, &path, &limiter, &mut |n| {
            done += n;
            progress(done, total);
        })?;
        if (size, crc) != (file.size, wanted) {
            let error = Error::corruption("table is not what was written: its checksum differs")
                .with("file", path.display())
                .with("size", size)
                .with("size_wanted", file.size)
                .with("crc32c", format_args!("{crc:08x}"))
                .with("crc32c_wanted", format_args!("{wanted:08x}"));
            quarantine::note(context, &error);
            return Err(error);
        }
        found.verified += 1;
    }
    for blob in blobs {
        let before = done;
        match blob.checksum().and_then(|c| c.crc32c()) {
            None => found.without_checksum += 1,
            Some(wanted) => {
                let path = filename::blob_path(&context.dir, blob.addition().number);
                let (_, crc) = file_crc32c(&*context.fs, &path, &limiter, &mut |n| {
                    done += n;
                    progress(done, total);
                })?;
                if crc != wanted {
                    let error = Error::corruption(
                        "blob file is not what was written: its checksum differs",
                    )
                    .with("file", path.display())
                    .with("crc32c", format_args!("{crc:08x}"))
                    .with("crc32c_wanted", format_args!("{wanted:08x}"));
                    quarantine::note(context, &error);
                    return Err(error);
                }
                found.verified += 1;
            }
        }
        done = before + blob.addition().total_blob_bytes;
        progress(done, total);
    }
    Ok(found)
}
