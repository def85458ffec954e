//! What every job writes its tables through: files are cut here, and told of.
//!
//! Stands between [`crate::compaction_iter`] and `orogen_sst`. The job gives a closure that makes
//! files; this gives back the metadata of the tables it made.
//!
//! ```text
//! key range of the job   [start ............................ end)
//! coverage of the files  [start ... k1) [k1 ........ k2) [k2 ... end)
//! ```
//! Invariants:
//! 1. Each user key of the job's range belongs to exactly one file: two versions of a user key
//!    are never parted, and range tombstones are clipped to their file's stretch. So together
//!    the files cover what the tombstones covered, and a file's range tombstones never reach
//!    beyond its `smallest` and `largest`.
//! 2. A file may hold range tombstones only; an empty file is never made.
//! 3. A `largest` that a tombstone's end gave is `end @ MAX : RangeDeletion`, which is before
//!    every version of `end`: the next file may start with that user key.
//!
//! Hot path: one comparison a key against the next border of the level below. Source: RocksDB
//! `db/compaction/compaction_outputs.cc`, `db/version_edit.h`.

mod dictionary;
mod blobs;
mod breaks;
mod grandparents;
mod halves;

use std::sync::Arc;

use orogen_base::coding::put_varint64;
use orogen_base::key::{ValueKind, trailer, user_key};
use orogen_base::protection::Protection;
use orogen_base::range_del::{Fragment, FragmentedRangeTombstones};
use orogen_base::{Error, FileNo, InternalIterator, Result, UserComparator};
use orogen_env::WritableFile;
use orogen_sst::{TableBuilder, TableBuilderOptions};

use crate::compaction_iter::{
    CompactionIter, CompactionIterOptions, CompactionIterStats, surviving_tombstones,
};
use crate::filename::{DataFile, DataFileKind};
use crate::options::CompactOnDeletion;
use crate::version::blob_counts::{
    BLOB_REFERENCES, BlobCount, BlobCounts, INLINE_VALUE_SIZE_BOUND,
};
use crate::version::blob_reach::{BLOB_STRETCHES, BlobReach};
use crate::version::file_meta::{BlobDepth, Known};
use crate::version::{BlobFileAddition, FileChecksum, FileMeta, VersionEdit};
use blobs::BlobWriter;
pub use blobs::{BlobCarry, BlobOutputOptions};
pub use breaks::Breaks;
use grandparents::Grandparents;
pub use halves::{Half, write_halves};

/// How tables are written and where they end.
#[derive(Clone, Default)]
pub struct OutputOptions {
    /// How each table is built; its file number is set for each file.
    pub table: TableBuilderOptions,
    /// The level of the files. Level 0 is never cut.
    pub output_level: usize,
    /// Bytes that a file should have.
    pub target_file_size: u64,
    /// Bytes at which a file is cut wherever it stands.
    pub max_file_size: u64,
    /// Bytes that a file and what it meets in the level below may have together.
    pub max_compaction_bytes: u64,
    /// The files below the output that meet it, in key order.
    pub grandparents: Vec<Arc<FileMeta>>,
    /// When a file is marked because of its tombstones.
    pub compact_on_deletion: Option<CompactOnDeletion>,
    /// Keeps a checksum of the point entries of each file, to compare them with what is read back.
    pub paranoid_file_checks: bool,
    /// Orders the files in level 0: a flush's next, or the lowest of a compaction's inputs.
    pub epoch_number: u64,
    /// Where large values go.
    pub blobs: BlobOutputOptions,
}

/// Makes a new file of a kind.
pub type NewFile<'a> =
    Box<dyn FnMut(DataFileKind) -> Result<(FileNo, Box<dyn WritableFile>)> + Send + 'a>;

/// What a job wrote.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// The tables in key order.
    pub files: Vec<FileMeta>,
    /// The checksum of each table's point entries, where they are to be compared.
    pub entries: Vec<Option<EntriesHash>>,
    /// The blob files that values of theirs are in.
    pub blob_files: Vec<BlobFileAddition>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of the blob files alone.
    pub blob_bytes: u64,
    /// Values that were taken out of older blob files, and their bytes as they were stored.
    pub relocated: BlobCount,
    /// The same, of those that were taken out only to lie in key order.
    pub ordered: BlobCount,
    /// Values that came back into tables, and their bytes.
    pub returned: BlobCount,
    /// Blob files that have a dictionary, as far as they were begun here.
    pub dictionary_files: u64,
    /// What was read and dropped.
    pub stats: CompactionIterStats,
    /// Range tombstones that need not go on.
    pub dropped_range_tombstones: u64,
    /// Pointers to older blob files that were read.
    pub pointers_read: BlobCounts,
    /// Those of them that the tables have.
    pub pointers_kept: BlobCounts,
}

impl Written {
    /// The files that were made.
    #[must_use]
    pub fn created(&self) -> Vec<DataFile> {
        let tables = self.files.iter().map(|f| DataFile::table(f.number));
        let blobs = self.blob_files.iter().map(|b| DataFile::blob(b.number));
        tables.chain(blobs).collect()
    }

    /// Has `edit` add the files, the tables to `level`. What became garbage is for the job to
    /// tell.
    pub fn add_to(self, level: usize, edit: &mut VersionEdit) {
        for file in self.files {
            edit.add_file(level, Arc::new(file));
        }
        edit.blob_file_additions.extend(self.blob_files);
    }
}

/// A checksum of entries in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntriesHash(u64);

impl EntriesHash {
    /// Adds an entry.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let entry = u64::from_le_bytes(Protection::of(key, 0, value).to_bytes());
        self.0 = self.0.rotate_left(7).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ entry;
    }
}

/// A job that failed.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The files it made, whole or not: nobody will use them.
    pub created: Vec<DataFile>,
}

/// Writes what stays of `input` and `tombstones` to tables; a flush or one stretch of a
/// compaction.
///
/// # Errors
/// Those of [`CompactionIter::status`] and of writing; the files made so far are named.
pub fn write<I: InternalIterator>(
    input: I,
    tombstones: Arc<FragmentedRangeTombstones>,
    rules: CompactionIterOptions,
    options: OutputOptions,
    new_file: NewFile<'_>,
) -> Result<Written, Failed> {
    let (surviving, dropped_range_tombstones) = surviving_tombstones(&tombstones, &rules);
    let bounds = (rules.start.clone(), rules.end.clone());
    let mut writer = OutputWriter::new(options, surviving, bounds, new_file);
    let mut iter = CompactionIter::new(input, tombstones, rules);
    let mut run = || -> Result<Written> {
        iter.seek_to_first();
        while iter.valid() {
            writer.add(iter.key(), iter.value())?;
            iter.next();
        }
        iter.status()?;
        writer.finish()
    };
    match run() {
        Ok(written) => Ok(Written {
            stats: *iter.stats(),
            dropped_range_tombstones,
            pointers_read: iter.pointers_read(),
            ..written
        }),
        Err(error) => Err(Failed {
            error,
            created: writer.into_created(),
        }),
    }
}

/// Cuts a stream of entries into tables.
pub struct OutputWriter<'a> {
    options: OutputOptions,
    order: UserComparator,
    new_file: NewFile<'a>,
    tombstones: Vec<Fragment>,
    /// The first fragment that may reach into the file at hand or later ones.
    fragment: usize,
    /// First user key that the file at hand answers for; `None` from the start.
    lower: Option<Vec<u8>>,
    /// First user key after the job.
    end: Option<Vec<u8>>,
    builder: Option<(FileNo, TableBuilder)>,
    grandparents: Grandparents,
    last_user_key: Vec<u8>,
    deletions: DeletionWindow,
    files: Vec<FileMeta>,
    blobs: BlobWriter,
    created: Vec<DataFile>,
    /// Of the file at hand.
    hash: EntriesHash,
    entries: Vec<Option<EntriesHash>>,
}

impl<'a> OutputWriter<'a> {
    /// A writer for the user keys of `bounds`, from the first up to but not including the
    /// second; `tombstones` are those that survive, over all of the job.
    #[must_use]
    pub fn new(
        mut options: OutputOptions,
        tombstones: Vec<Fragment>,
        bounds: (Option<Vec<u8>>, Option<Vec<u8>>),
        new_file: NewFile<'a>,
    ) -> Self {
        let (lower, end) = bounds;
        let order = options.table.comparator.clone();
        let files = std::mem::take(&mut options.grandparents);
        let blobs = BlobWriter::new(std::mem::take(&mut options.blobs));
        Self {
            grandparents: Grandparents::new(order.clone(), files),
            options,
            order,
            new_file,
            tombstones,
            fragment: 0,
            lower,
            end,
            builder: None,
            last_user_key: Vec::new(),
            deletions: DeletionWindow::default(),
            files: Vec::new(),
            blobs,
            created: Vec::new(),
            hash: EntriesHash::default(),
            entries: Vec::new(),
        }
    }

    /// Adds an entry that is after all entries so far.
    ///
    /// # Errors
    /// Those of the file and of [`TableBuilder::add`]; the writer is then of no further use.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.blobs.hold(key, value)? {
            return self.add_now(key, value);
        }
        if self.blobs.holds_enough() {
            self.add_held(false)?;
        }
        Ok(())
    }

    /// Adds the entries that waited for a dictionary. `is_all`: none follows.
    fn add_held(&mut self, is_all: bool) -> Result<()> {
        if let Some(decided) = self.blobs.decide(is_all)? {
            for entry in decided.entries {
                self.add_now(&entry.key, &entry.value)?;
            }
        }
        Ok(())
    }

    fn add_now(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.add_entry::<false>(key, value)
    }

    /// The same of an entry whose value is where it is to be.
    fn add_placed(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.add_entry::<true>(key, value)
    }

    #[inline]
    fn add_entry<const PLACED: bool>(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let user = user_key(key);
        if self.wants_cut(user) {
            self.finish_file(Some(user))?;
            self.lower = Some(user.to_vec());
            self.grandparents.restart(user);
        }
        let builder = match &mut self.builder {
            Some((_, builder)) => builder,
            none => {
                let opened = open_file(&self.options, &mut self.new_file, &mut self.created)?;
                &mut none.insert(opened).1
            }
        };
        let (key, value) = match PLACED {
            true => {
                self.blobs.note_placed(key, value)?;
                (key, value)
            }
            false => self
                .blobs
                .place(key, value, &mut self.new_file, &mut self.created)?,
        };
        if self.options.paranoid_file_checks {
            self.hash.add(key, value);
        }
        builder.add(key, value)?;
        if let Some(asked) = &self.options.compact_on_deletion {
            self.deletions.note(key, asked.sliding_window_size);
        }
        self.last_user_key.clear();
        self.last_user_key.extend_from_slice(user);
        Ok(())
    }

    /// Ends the last files, and tells what was written; of what was read it knows nothing.
    ///
    /// # Errors
    /// Those of the files; the writer is then of no further use.
    pub fn finish(&mut self) -> Result<Written> {
        self.add_held(true)?;
        let end = self.end.take();
        self.finish_file(end.as_deref())?;
        let blobs = self.blobs.finish()?;
        let files = std::mem::take(&mut self.files);
        Ok(Written {
            bytes: files.iter().map(|f| f.size).sum::<u64>() + blobs.bytes,
            blob_bytes: blobs.bytes,
            relocated: blobs.relocated,
            ordered: blobs.ordered,
            returned: blobs.returned,
            dictionary_files: blobs.dictionary_files,
            files,
            entries: std::mem::take(&mut self.entries),
            blob_files: blobs.additions,
            pointers_kept: blobs.kept,
            ..Written::default()
        })
    }

    /// Every file that was made so far, whole or not.
    #[must_use]
    pub fn into_created(self) -> Vec<DataFile> {
        self.created
    }

    /// True if the file at hand should end before this user key.
    fn wants_cut(&mut self, user: &[u8]) -> bool {
        if self.options.output_level == 0 {
            return false;
        }
        let before = self.grandparents.overlapped_bytes();
        let crossed = self.grandparents.advance(user);
        let Some((_, builder)) = &self.builder else {
            return false;
        };
        let size = builder.estimated_file_size();
        let cut = size >= self.options.max_file_size
            || (crossed > 0 && self.wants_cut_at_border(size, crossed, before));
        cut && self.last_user_key != user
    }

    /// Whether a border of the level below is a good end for a file of `size` bytes.
    fn wants_cut_at_border(&self, size: u64, crossed: usize, overlapped_before: u64) -> bool {
        let g = &self.grandparents;
        let overlapped = g.overlapped_bytes();
        if overlapped.saturating_add(size) > self.options.max_compaction_bytes {
            return true;
        }
        // A file below that the next compaction can then leave out, if it is worth it.
        let target = self.options.target_file_size;
        let jumped_over = crossed >= if g.is_in_gap() { 2 } else { 3 };
        if jumped_over && overlapped - overlapped_before > target / 8 {
            return true;
        }
        // Large enough: the more borders were seen, the likelier a better one follows.
        let percent = 50 + (g.borders_seen() * 5).min(40) as u64;
        size >= target.div_ceil(100).saturating_mul(percent)
    }

    /// Ends the file at hand, which answers for all user keys before `upper`.
    fn finish_file(&mut self, upper: Option<&[u8]>) -> Result<()> {
        let deleted_bytes = self.add_tombstones(upper)?;
        let Some((number, builder)) = self.builder.take() else {
            return Ok(());
        };
        let (references, stretches, inline_bound) = self.blobs.end_table();
        let blob_depth = BlobDepth::default();
        blob_depth.set(BlobReach::new(&references, Some(&stretches))?.depth());
        let mut bound = Vec::new();
        put_varint64(&mut bound, inline_bound as u64);
        let mut properties = vec![(INLINE_VALUE_SIZE_BOUND.to_owned(), bound)];
        if !references.is_empty() {
            properties.push((BLOB_REFERENCES.to_owned(), references.encode()));
        }
        if let Some(stretches) = stretches.encode() {
            properties.push((BLOB_STRETCHES.to_owned(), stretches));
        }
        let summary = builder.finish(properties)?;
        let hash = std::mem::take(&mut self.hash);
        let is_asked = self.options.paranoid_file_checks;
        self.entries.push(is_asked.then_some(hash));
        let (Some(smallest), Some(largest)) = (summary.smallest, summary.largest) else {
            return Err(Error::corruption("table without entries").with("file_number", number));
        };
        let table = &self.options.table;
        let properties = &summary.properties;
        let counts = Known::default();
        counts.set((properties.num_entries, properties.num_deletions));
        let codec = Known::default();
        codec.set(properties.compression.as_str().into());
        let deletions = std::mem::take(&mut self.deletions);
        self.files.push(FileMeta {
            marked_for_compaction: self.options.compact_on_deletion.is_some_and(|asked| {
                asked.is_reached(
                    deletions.most,
                    properties.num_entries,
                    properties.num_deletions,
                )
            }),
            counts,
            codec,
            blob_depth,
            number,
            size: summary.file_size,
            smallest,
            largest,
            smallest_seqno: summary.smallest_seqno,
            largest_seqno: summary.largest_seqno,
            oldest_ancester_time: table.creation_time,
            file_creation_time: table.file_creation_time,
            epoch_number: self.options.epoch_number,
            oldest_blob_file_number: references.oldest_file(),
            tail_size: summary.tail_size,
            compensated_range_deletion_size: deleted_bytes,
            file_checksum: summary.file_checksum.map(FileChecksum::of_crc32c),
            ..FileMeta::default()
        });
        Ok(())
    }

    /// Adds the range tombstones of `[self.lower, upper)`; opens a file if there are any.
    /// Returns the bytes below that they delete, about.
    fn add_tombstones(&mut self, upper: Option<&[u8]>) -> Result<u64> {
        let mut deleted_bytes = 0;
        while let Some(f) = self.tombstones.get(self.fragment) {
            if upper.is_some_and(|u| !self.order.less(&f.start, u)) {
                break;
            }
            let start = match &self.lower {
                Some(lower) if self.order.less(&f.start, lower) => lower,
                _ => &f.start,
            };
            let reaches_beyond = upper.is_some_and(|u| self.order.less(u, &f.end));
            let end = match upper {
                Some(u) if reaches_beyond => u,
                _ => &f.end,
            };
            if self.order.less(start, end) {
                let builder = match &mut self.builder {
                    Some((_, builder)) => builder,
                    none => {
                        let created = &mut self.created;
                        let opened = open_file(&self.options, &mut self.new_file, created)?;
                        &mut none.insert(opened).1
                    }
                };
                for &seqno in &f.seqnos {
                    builder.add_range_tombstone(start, end, seqno)?;
                }
                deleted_bytes += self.grandparents.bytes_between(start, end);
            }
            if reaches_beyond {
                break;
            }
            self.fragment += 1;
        }
        Ok(deleted_bytes)
    }
}

/// Counts point tombstones among the last entries of a file: exact at whole steps of a window's
/// 64th.
#[derive(Default)]
struct DeletionWindow {
    /// Tombstones in each step of the window, as a ring.
    steps: Vec<u32>,
    at: usize,
    entries_in_step: usize,
    sum: u64,
    /// The largest sum so far.
    most: u64,
}

/// Steps that a window is counted in.
const WINDOW_STEPS: usize = 64;

impl DeletionWindow {
    #[inline]
    fn note(&mut self, key: &[u8], window: usize) {
        if window == 0 {
            return;
        }
        let steps = WINDOW_STEPS.min(window);
        if self.steps.is_empty() {
            self.steps.resize(steps, 0);
        }
        if self.entries_in_step >= window / steps {
            self.entries_in_step = 0;
            self.at = (self.at + 1) % steps;
            self.sum -= u64::from(std::mem::take(&mut self.steps[self.at]));
        }
        self.entries_in_step += 1;
        if is_tombstone(key) {
            self.steps[self.at] += 1;
            self.sum += 1;
            self.most = self.most.max(self.sum);
        }
    }
}

fn is_tombstone(key: &[u8]) -> bool {
    matches!(
        ValueKind::from_u8(trailer(key) as u8),
        Some(ValueKind::Deletion | ValueKind::SingleDeletion)
    )
}

fn open_file(
    options: &OutputOptions,
    new_file: &mut NewFile<'_>,
    created: &mut Vec<DataFile>,
) -> Result<(FileNo, TableBuilder)> {
    let (number, file) = new_file(DataFileKind::Table)?;
    created.push(DataFile::table(number));
    let options = TableBuilderOptions {
        file_number: number,
        ..options.table.clone()
    };
    Ok((number, TableBuilder::new(file, options)?))
}

#[cfg(test)]
pub(crate) mod tests;
