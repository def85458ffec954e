//! The blob files of a damaged directory: which values can be read, and what becomes of the files.
//!
//! ```text
//! whole, and all values that tables point to are there     linked into the new directory
//! damaged                                                  the values that verify are written anew
//! ```
//! Invariants: (1) a pointer stays only if the record that it leads to verifies; (2) what is lost is
//! told by key; (3) a file that goes into the new directory opens there, and what the MANIFEST says
//! of its values is what stands in it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::checksum::hash_xxh3;
use orogen_base::key::{ParsedInternalKey, ValueKind};
use orogen_base::{Error, ErrorKind, FileNo, PinnedValue, Result};
use orogen_blob::format::{FOOTER_LEN, HEADER_LEN};
use orogen_blob::{BlobFileReader, BlobFileReaderOptions, BlobPointer, BlobReadahead, HOLE_BLOCK};
use orogen_env::{Access, FileSystem};

use super::{BlobFileDamage, LostValue, RepairReport};
use crate::filename;
use crate::read::BlobSource;
use crate::version::BlobFileAddition;
use crate::version::blob_counts::{BlobCount, BlobCounts};

struct File {
    path: PathBuf,
    /// The family that lists it, or that its head tells.
    family: Option<u32>,
    reader: Result<Arc<BlobFileReader>>,
    /// What is wrong with it besides values that are pointed to.
    end_error: Option<Error>,
    /// As the MANIFEST has it; without one, as it was counted.
    addition: Option<BlobFileAddition>,
    is_listed: bool,
    /// Space of records that nobody points to was given up in it.
    has_holes: bool,
    /// Why the first value of it was lost.
    value_error: Option<Error>,
}

/// Where a record is, and the hash of the key that leads there: keys may be long, and lost values many.
type LostRecord = (FileNo, u64, u64);

fn lost_record(pointer: &BlobPointer, user_key: &[u8]) -> LostRecord {
    (pointer.file, pointer.offset, hash_xxh3(user_key))
}

/// The blob files of the old directory.
#[derive(Default)]
pub(super) struct Blobs {
    files: BTreeMap<FileNo, File>,
    /// Values in files that open which cannot be read all the same.
    lost: HashSet<LostRecord>,
    /// Files whose values are written anew.
    relocate: HashSet<FileNo>,
    /// Bytes of the records that were looked at.
    followed: u64,
}

impl Blobs {
    /// Bytes of the files that open.
    pub(super) fn total_bytes(&self) -> u64 {
        let open = self.files.values().filter_map(|f| f.reader.as_ref().ok());
        open.map(|reader| reader.file_size()).sum()
    }

    /// Bytes of the records that were looked at so far.
    pub(super) fn followed_bytes(&self) -> u64 {
        self.followed
    }

    /// Takes up a file, which may be missing or damaged.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn take_up(
        &mut self,
        fs: &dyn FileSystem,
        dir: &Path,
        number: FileNo,
        listed: Option<(u32, BlobFileAddition)>,
    ) -> Result<()> {
        let path = filename::blob_path(dir, number);
        let (reader, end_error) = match open(fs, &path, number) {
            Ok((reader, end_error)) => (Ok(Arc::new(reader)), end_error),
            // A head has no checksum: damage may look like what is not known yet.
            Err(e) if e.is_file_not_found() || is_damage(&e) => (Err(e), None),
            Err(e) => return Err(e),
        };
        let (family, addition) = listed.unzip();
        let told = reader.as_ref().ok().map(|r| r.header().column_family_id);
        let file = File {
            path,
            family: family.or(told),
            reader,
            end_error,
            is_listed: addition.is_some(),
            addition,
            has_holes: false,
            value_error: None,
        };
        self.files.insert(number, file);
        Ok(())
    }

    /// Follows the pointer of an entry of a table, and counts it if it leads to the value.
    ///
    /// # Errors
    /// `Io`, `NotSupported`.
    pub(super) fn follow(
        &mut self,
        family: (u32, &str),
        table: FileNo,
        key: &[u8],
        value: &[u8],
        points_to: &mut BlobCounts,
    ) -> Result<Option<LostValue>> {
        let key = ParsedInternalKey::parse(key)?;
        if key.kind != ValueKind::BlobIndex {
            return Ok(None);
        }
        let lost = |blob_file, error| {
            Ok(Some(LostValue {
                column_family: family.1.to_owned(),
                table,
                key: key.user_key.to_vec(),
                blob_file,
                error,
            }))
        };
        let pointer = match BlobPointer::decode(value) {
            Ok(pointer) => pointer,
            Err(e) if e.kind() == ErrorKind::Corruption => return lost(None, e),
            Err(e) => return Err(e),
        };
        self.files.entry(pointer.file).or_insert_with(|| File {
            path: filename::blob_path(Path::new(""), pointer.file),
            family: Some(family.0),
            reader: Err(Error::corruption("blob file is missing").with("blob_file", pointer.file)),
            end_error: None,
            addition: None,
            is_listed: false,
            has_holes: false,
            value_error: None,
        });
        self.followed += pointer.record_len(key.user_key.len());
        match self.read(family.0, &pointer, key.user_key) {
            Ok(_) => {
                points_to.add(&pointer, key.user_key.len());
                Ok(None)
            }
            Err(e) if e.kind() == ErrorKind::Corruption => {
                if let Some(file) = self.files.get_mut(&pointer.file) {
                    if file.reader.is_ok() {
                        self.lost.insert(lost_record(&pointer, key.user_key));
                    }
                    file.value_error.get_or_insert_with(|| e.clone());
                }
                lost(Some(pointer.file), e)
            }
            Err(e) => Err(e),
        }
    }

    fn read(&self, family: u32, pointer: &BlobPointer, user_key: &[u8]) -> Result<PinnedValue> {
        self.reader(family, pointer)?.get(*pointer, user_key, true)
    }

    fn reader(&self, family: u32, pointer: &BlobPointer) -> Result<&Arc<BlobFileReader>> {
        let Some(file) = self.files.get(&pointer.file) else {
            return Err(Error::corruption("blob file is missing").with("blob_file", pointer.file));
        };
        let reader = match &file.reader {
            Ok(reader) => reader,
            Err(e) => {
                return Err(Error::corruption("blob file cannot be used")
                    .with("file", file.path.display())
                    .caused_by(e.clone()));
            }
        };
        if reader.header().column_family_id != family {
            return Err(
                Error::corruption("blob file belongs to another column family")
                    .with("file", file.path.display()),
            );
        }
        Ok(reader)
    }

    /// True for an entry that is no pointer, or one to a value that can be read.
    ///
    /// # Errors
    /// `Corruption` if the key is none.
    pub(super) fn holds(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        let key = ParsedInternalKey::parse(key)?;
        if key.kind != ValueKind::BlobIndex {
            return Ok(true);
        }
        let Ok(pointer) = BlobPointer::decode(value) else {
            return Ok(false);
        };
        let opens = self
            .files
            .get(&pointer.file)
            .is_some_and(|f| f.reader.is_ok());
        let is_lost = || self.lost.contains(&lost_record(&pointer, key.user_key));
        Ok(opens && (self.lost.is_empty() || !is_lost()))
    }

    /// Decides what becomes of each file, once all tables were read; `points_to` is what they point
    /// to and can be read.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn judge(
        &mut self,
        points_to: &BlobCounts,
        families: &BTreeMap<u32, String>,
        report: &mut RepairReport,
    ) -> Result<()> {
        let counts: BTreeMap<FileNo, BlobCount> = points_to.iter().collect();
        for (&number, file) in &mut self.files {
            let count = counts.get(&number);
            if count.is_none() && !file.is_listed && file.value_error.is_none() {
                continue;
            }
            let error = match &file.reader {
                Err(e) => Some(e.clone()),
                Ok(reader) => {
                    // What nobody points to is looked at, too: files are taken whole.
                    if file.end_error.is_none() && file.value_error.is_none() {
                        match counted(reader, number, file.addition.as_ref()) {
                            Ok((addition, has_holes)) => {
                                (file.addition, file.has_holes) = (Some(addition), has_holes);
                            }
                            Err(e) if e.kind() == ErrorKind::Corruption => {
                                file.end_error = Some(e);
                            }
                            Err(e) => return Err(e),
                        }
                    }
                    file.end_error.clone().or_else(|| file.value_error.clone())
                }
            };
            report.blob_files_whole += u64::from(error.is_none());
            let Some(error) = error else {
                continue;
            };
            if file.reader.is_ok() {
                self.relocate.insert(number);
            }
            let name = file.family.and_then(|id| families.get(&id));
            report.blob_files_damaged.push(BlobFileDamage {
                number,
                column_family: name.cloned().unwrap_or_default(),
                values: count.map_or(0, |c| c.values),
                error,
            });
        }
        Ok(())
    }

    /// Files whose values are written anew.
    pub(super) fn relocate(&self) -> &HashSet<FileNo> {
        &self.relocate
    }

    /// Where a file is that is taken as it is, what a MANIFEST says of it, and whether it has
    /// holes.
    pub(super) fn taken(&self, number: FileNo) -> Result<(&Path, &BlobFileAddition, bool)> {
        let file = self.files.get(&number);
        let taken = file.and_then(|f| Some((&*f.path, f.addition.as_ref()?, f.has_holes)));
        taken
            .filter(|_| !self.relocate.contains(&number))
            .ok_or_else(|| {
                Error::corruption("pointer leads to a blob file that is not taken")
                    .with("blob_file", number)
            })
    }
}

/// Values that were read before: damage is an error now.
impl BlobSource for Blobs {
    fn value(&self, pointer: &BlobPointer, user_key: &[u8]) -> Result<Option<PinnedValue>> {
        let family = self.files.get(&pointer.file).and_then(|f| f.family);
        self.read(family.unwrap_or_default(), pointer, user_key)
            .map(Some)
    }

    fn stored(
        &self,
        pointer: &BlobPointer,
        user_key: &[u8],
    ) -> Result<Option<(PinnedValue, Arc<BlobFileReader>)>> {
        let family = self.files.get(&pointer.file).and_then(|f| f.family);
        let reader = self.reader(family.unwrap_or_default(), pointer)?;
        let stored = reader.read_stored(&mut BlobReadahead::new(0), *pointer, user_key)?;
        Ok(Some((stored.into(), reader.clone())))
    }
}

fn is_damage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corruption | ErrorKind::NotSupported
    )
}

/// Opens a file; one whose end cannot be used tells why.
fn open(
    fs: &dyn FileSystem,
    path: &Path,
    number: FileNo,
) -> Result<(BlobFileReader, Option<Error>)> {
    let file = fs.open(path, Access::Random)?;
    let size = file.size()?;
    let options = BlobFileReaderOptions {
        file_number: number,
        ..BlobFileReaderOptions::default()
    };
    match BlobFileReader::open(file.clone(), size, options.clone()) {
        Ok(reader) => Ok((reader, None)),
        Err(e) if e.kind() == ErrorKind::Corruption => Ok((
            BlobFileReader::open_unfinished(file, size, options)?,
            Some(e),
        )),
        Err(e) => Err(e),
    }
}

/// What a MANIFEST says of a file, which is read and verified for it, and whether it has holes: records
/// of which blocks were given up. Those that are pointed to are known to be whole.
fn counted(
    reader: &BlobFileReader,
    number: FileNo,
    listed: Option<&BlobFileAddition>,
) -> Result<(BlobFileAddition, bool)> {
    reader.meta_index()?;
    let mut addition = listed.cloned().unwrap_or_else(|| BlobFileAddition {
        number,
        ..BlobFileAddition::default()
    });
    let (mut count, mut bytes, mut has_holes) = (0, 0, false);
    let mut records = reader.records();
    loop {
        let next = records.next().map(|r| r.map(|r| r.record_len()));
        match next {
            Ok(None) => break,
            Ok(Some(len)) => {
                count += 1;
                bytes += len;
            }
            Err(e) if e.kind() == ErrorKind::Corruption && records.is_at_hole()? => {
                has_holes = true;
                records.skip_damage()?;
            }
            Err(e) => return Err(e),
        }
    }
    let told = reader.record_count();
    let has_less = told.is_some_and(|told| count < told);
    if has_less && (has_holes || records.zeros() >= HOLE_BLOCK) {
        has_holes = true;
        (addition.checksum_method, addition.checksum_value) = Default::default();
        if let Some(all) = by_index(reader)? {
            (count, bytes) = all;
        } else if listed.is_some() {
            (count, bytes) = (addition.total_blob_count, addition.total_blob_bytes);
        }
    }
    let is_other = listed.is_some_and(|l| !l.tells_of(count, Some(bytes), reader.file_size()));
    if told != Some(count) || is_other {
        return Err(Error::corruption(
            "blob file has other records than its footer or the MANIFEST says",
        )
        .with("file", reader.file().path().display())
        .with("records", count)
        .with("bytes", bytes));
    }
    (addition.total_blob_count, addition.total_blob_bytes) = (count, bytes);
    let ends = (HEADER_LEN + FOOTER_LEN) as u64;
    addition.overhead_bytes = reader.file_size().saturating_sub(ends + bytes);
    Ok((addition, has_holes))
}

/// Records and their bytes by the record index, if the file has one.
fn by_index(reader: &BlobFileReader) -> Result<Option<(u64, u64)>> {
    let Some(mut places) = reader.places()? else {
        return Ok(None);
    };
    let (mut count, mut bytes) = (0, 0u64);
    while let Some(place) = places.next()? {
        count += 1;
        bytes = bytes.saturating_add(place.record_len().unwrap_or(0));
    }
    Ok(Some((count, bytes)))
}

/// Passes each pointer of a user key once.
///
/// Without a MANIFEST a table may be read that a compaction has replaced. In the last level that
/// compaction may have taken the number of an entry away, so that it looks like another, older one.
#[derive(Default)]
pub(super) struct Once {
    user_key: Vec<u8>,
    pointers: Vec<Vec<u8>>,
}

impl Once {
    /// True for a pointer that came before, under a higher sequence number.
    pub(super) fn is_again(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        let key = ParsedInternalKey::parse(key)?;
        if key.kind != ValueKind::BlobIndex {
            return Ok(false);
        }
        if self.user_key != key.user_key {
            self.user_key.clear();
            self.user_key.extend_from_slice(key.user_key);
            self.pointers.clear();
        }
        if self.pointers.iter().any(|p| p == value) {
            return Ok(true);
        }
        self.pointers.push(value.to_vec());
        Ok(false)
    }
}
