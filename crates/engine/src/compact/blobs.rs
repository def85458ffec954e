//! Which blob files a compaction empties, and when one runs for that alone. Source: RocksDB
//! `db/version_set.cc` (`ComputeFilesMarkedForForcedBlobGC`), `db/compaction/compaction_iterator.cc`.

use std::collections::HashSet;

use orogen_base::FileNo;

use super::collect::{self, Lull, Rules};
use super::plan::Plan;
use crate::options::{BlobRunMode, ColumnFamilyOptions};
use crate::version::Version;
use crate::version::blob_counts::BlobCounts;

/// Files of level 0 from which on a compaction of them has fallen behind, for each file that begins one, and the least.
const BEHIND_FACTOR: f64 = 1.75;
const BEHIND_FILES_MIN: usize = 7;
/// Records of fewer bytes, on average, are short. Of longer ones a memtable has so few that a compaction takes no time for its pointers.
const SHORT_BYTES: u64 = 4096;

/// The oldest blob file, if so much of it is garbage that the tables which point into it are
/// compacted to empty it. The files behind it that no table's pointers begin with are counted with
/// it, as far as the cutoff reaches: they go with the same tables.
#[must_use]
pub fn forced(version: &Version, options: &ColumnFamilyOptions) -> Option<FileNo> {
    let threshold = options.blob_garbage_collection_force_threshold;
    if !options.enable_blob_garbage_collection || threshold >= 1.0 {
        return None;
    }
    let reach = cutoff_count(version, options);
    let linked: HashSet<FileNo> = version
        .iter_files()
        .map(|(_, f)| f.oldest_blob_file_number)
        .collect();
    let blobs = version.blob_files().iter().take(reach);
    // What is damaged stays in its file, however often that is tried.
    let mut files = blobs.filter(|(_, blob)| !blob.file.damaged.get());
    let (&oldest, first) = files.next()?;
    let batch = files.take_while(|(number, _)| !linked.contains(number));
    let (mut total, mut garbage) = (0u64, 0u64);
    for blob in std::iter::once(first).chain(batch.map(|(_, blob)| blob)) {
        total = total.saturating_add(blob.addition().total_blob_bytes);
        garbage = garbage.saturating_add(blob.garbage_blob_bytes);
    }
    // Without any, a threshold of 0 would have them written anew for ever.
    (garbage > 0 && garbage as f64 >= threshold * total as f64).then_some(oldest)
}

fn cutoff_count(version: &Version, options: &ColumnFamilyOptions) -> usize {
    let cutoff = options.blob_garbage_collection_age_cutoff;
    (cutoff * version.blob_files().len() as f64) as usize
}

/// The oldest blob files, as many as the settings say, but for damaged ones: values in them that a compaction meets are
/// written anew.
#[must_use]
pub fn oldest(version: &Version, options: &ColumnFamilyOptions) -> HashSet<FileNo> {
    if !options.enable_blob_garbage_collection {
        return HashSet::new();
    }
    let count = cutoff_count(version, options);
    let files = version.blob_files().iter().take(count);
    let whole = files.filter(|(_, blob)| !blob.file.damaged.get());
    whole.map(|(&number, _)| number).collect()
}

/// What a compaction's inputs point to.
#[derive(Clone, Debug, Default)]
pub struct Pointed {
    /// All of them.
    pub all: BlobCounts,
    /// Those that come down: of the level that it begins with.
    pub down: BlobCounts,
}

/// True if a compaction of level 0 has fallen behind, and brings down `from` bytes or more of values that are so short
/// that it takes long for its pointers: two threads are to do it. What its tables have written over is garbage that
/// nobody knows of yet, and the longer it takes the more of such tables there are at its end.
#[must_use]
pub fn is_behind(plan: &Plan, options: &ColumnFamilyOptions, pointed: &Pointed, from: u64) -> bool {
    let level0 = plan.input_files().filter(|(level, _)| *level == 0);
    let trigger = options.level0_file_num_compaction_trigger;
    let behind_files = (trigger as f64 * BEHIND_FACTOR) as usize;
    let (values, bytes) = (pointed.down.values(), pointed.down.bytes());
    let are_short = bytes < values.saturating_mul(SHORT_BYTES);
    are_short && bytes >= from && level0.count() >= behind_files.max(BEHIND_FILES_MIN)
}

/// The blob files whose values a compaction writes anew where it meets them: the [`oldest`], and
/// those of which [`collect::discardable`] is garbage, so that a collection has less to do. All, damaged
/// ones too, where values come back into tables: what can be read of them does. Fewer where flushes wait for what it
/// writes. With `pointed`, and while others write, it moves no more for garbage than comes down: level 0 hides what
/// becomes garbage meanwhile, and grows while it is at it. Nothing is moved for a ceiling but where it `is_held`.
#[must_use]
pub fn emptied(
    version: &Version,
    options: &ColumnFamilyOptions,
    is_held: bool,
    lull: Lull,
    pointed: Option<&Pointed>,
) -> HashSet<FileNo> {
    if options.blob_run_mode == BlobRunMode::Fallback {
        return version.blob_files().keys().copied().collect();
    }
    let mut files = oldest(version, options);
    let rules = match is_held {
        true => Rules::of(version, options),
        false => Rules::without_ceiling(options),
    };
    let rules = rules.in_lull(lull);
    let bound = pointed.filter(|_| lull < Lull::Long && !rules.at_any_cost);
    files.extend(match bound {
        Some(p) => collect::discardable_within(version, &rules, &p.all, p.down.bytes()),
        None => collect::discardable(version, &rules),
    });
    files
}
