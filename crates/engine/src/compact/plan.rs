//! A compaction that was decided, as plain data.
//!
//! Made by [`super::leveled`], owned by the job while it runs.

use std::sync::Arc;

use orogen_base::UserComparator;
use orogen_base::key::InternalKeyComparator;
use orogen_sst::{CompressionOptions, CompressionType};

use crate::options::{ColumnFamilyOptions, CompactOnDeletion};
use crate::version::level::compare_ends;
use crate::version::{FileMeta, KeyRange, Version};

/// Why a compaction runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Level 0 has too many files or bytes.
    LevelL0FilesNum,
    /// A level is larger than its target.
    LevelMaxLevelSize,
    /// Level 0 has too many files, and what is below it is busy.
    IntraL0,
    /// Somebody marked a file.
    FilesMarkedForCompaction,
    /// Tombstones on a file that has nothing below it need not wait for a snapshot any more.
    BottommostFiles,
    /// The oldest data of a file is older than the family's `ttl`.
    Ttl,
    /// A file is older than the family's `periodic_compaction_seconds`.
    PeriodicCompaction,
    /// Levels above the last hold more than the family's `max_size_amplification_percent` of it.
    SizeAmplification,
    /// A file of the last level has another codec than is asked for.
    BottommostRecompression,
    /// Much of the oldest blob file is garbage, and this table points into it.
    ForcedBlobGC,
    /// Blob files that have much garbage or are small are emptied, and this table points to them.
    BlobCollection,
    /// Values go from tables to blob files, or back, because a user asked for it.
    BlobConversion,
    /// This table reads from more blob files by turns than the family's `max_sorted_runs`.
    RangeMerge,
    /// A user asked for it.
    ManualCompaction,
}

impl Reason {
    /// The name in logs and events.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LevelL0FilesNum => "LevelL0FilesNum",
            Self::LevelMaxLevelSize => "LevelMaxLevelSize",
            Self::IntraL0 => "IntraL0",
            Self::FilesMarkedForCompaction => "FilesMarkedForCompaction",
            Self::BottommostFiles => "BottommostFiles",
            Self::Ttl => "Ttl",
            Self::PeriodicCompaction => "PeriodicCompaction",
            Self::SizeAmplification => "SizeAmplification",
            Self::BottommostRecompression => "BottommostRecompression",
            Self::ForcedBlobGC => "ForcedBlobGC",
            Self::BlobCollection => "BlobCollection",
            Self::BlobConversion => "BlobConversion",
            Self::RangeMerge => "RangeMerge",
            Self::ManualCompaction => "ManualCompaction",
        }
    }
}

/// What another compaction has taken, so that the next pick keeps out of its way.
#[derive(Clone, Debug)]
pub struct Running {
    /// Where its first inputs are.
    pub start_level: usize,
    /// Where it writes.
    pub output_level: usize,
    /// The keys between which it writes.
    pub range: KeyRange,
}

/// A compaction that was decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where the first inputs are.
    pub start_level: usize,
    /// Where the outputs go.
    pub output_level: usize,
    /// The inputs by level, the start level first; each in its level's order.
    pub inputs: Vec<(usize, Vec<Arc<FileMeta>>)>,
    /// The files of the next level below the output that meet it, in key order.
    pub grandparents: Vec<Arc<FileMeta>>,
    /// Why.
    pub reason: Reason,
    /// The start level's score; 0 if that was not the reason.
    pub score: f64,
    /// The files may be moved as they are.
    pub trivial_move: bool,
    /// Nothing of the inputs' key range lies below the output.
    pub bottommost: bool,
    /// All files of the family are inputs.
    pub is_full: bool,
    /// Bytes that an output should have.
    pub target_file_size: u64,
    /// Bytes that an output has at most, but for a single user key.
    pub max_output_file_size: u64,
    /// Bytes that an output and the files below it may have together.
    pub max_compaction_bytes: u64,
    /// When an output is marked because of its tombstones.
    pub compact_on_deletion: Option<CompactOnDeletion>,
    /// The outputs' codec.
    pub compression: CompressionType,
    /// The codec's options.
    pub compression_options: CompressionOptions,
}

impl Plan {
    /// All inputs with their levels.
    pub fn input_files(&self) -> impl Iterator<Item = (usize, &Arc<FileMeta>)> {
        self.inputs
            .iter()
            .flat_map(|(level, files)| files.iter().map(move |f| (*level, f)))
    }

    /// Bytes of the inputs.
    #[must_use]
    pub fn input_bytes(&self) -> u64 {
        self.input_files()
            .fold(0, |sum, (_, f)| sum.saturating_add(f.size))
    }

    /// The lowest epoch number of the inputs, which the outputs carry.
    #[must_use]
    pub fn min_epoch_number(&self) -> u64 {
        self.input_files()
            .map(|(_, f)| f.epoch_number)
            .min()
            .unwrap_or(0)
    }

    /// When the oldest input data was written, in seconds since 1970; 0 if no input knows.
    #[must_use]
    pub fn oldest_ancester_time(&self) -> u64 {
        let times = self.input_files().map(|(_, f)| f.oldest_ancester_time);
        times.filter(|&t| t != 0).min().unwrap_or(0)
    }

    /// The keys that the inputs cover.
    ///
    /// # Panics
    /// If there are no inputs.
    #[must_use]
    pub fn range(&self, icmp: &InternalKeyComparator) -> KeyRange {
        range_of(icmp, self.inputs.iter().map(|(_, files)| files.as_slice()))
            .expect("a plan has inputs")
    }

    /// What other picks must know while this runs.
    ///
    /// # Panics
    /// If there are no inputs.
    #[must_use]
    pub fn running(&self, icmp: &InternalKeyComparator) -> Running {
        Running {
            start_level: self.start_level,
            output_level: self.output_level,
            range: self.range(icmp),
        }
    }

    /// Marks the inputs as being compacted, or frees them.
    pub fn mark_inputs(&self, being_compacted: bool) {
        for (_, f) in self.input_files() {
            f.being_compacted.set(being_compacted);
        }
    }

    /// True if the work may be parted between threads by key.
    ///
    /// As in RocksDB for level 0 and manual compactions, which are the large ones that nothing
    /// else runs beside.
    #[must_use]
    pub fn may_part(&self) -> bool {
        self.output_level > 0
            && !self.trivial_move
            && (self.start_level == 0 || self.reason == Reason::ManualCompaction)
    }
}

/// The codec that a file written to `level` gets; `base_level` is where level 0 goes.
pub(super) fn compression_at(
    version: &Version,
    options: &ColumnFamilyOptions,
    base_level: usize,
    level: usize,
) -> CompressionType {
    let is_last = level + 1 >= version.num_non_empty_levels();
    let step = if level == 0 {
        0
    } else {
        (level + 1).saturating_sub(base_level.max(1))
    };
    options.compression_of(step, is_last)
}

/// The keys that all these files cover.
pub(super) fn range_of<'a>(
    icmp: &InternalKeyComparator,
    groups: impl Iterator<Item = &'a [Arc<FileMeta>]>,
) -> Option<KeyRange> {
    groups
        .filter_map(|files| KeyRange::of(icmp, files))
        .reduce(|a, b| a.union(icmp, b))
}

/// True if two ranges share a user key.
pub(super) fn ranges_meet(user: &UserComparator, a: &KeyRange, b: &KeyRange) -> bool {
    compare_ends(user, &a.largest, &b.smallest).is_ge()
        && compare_ends(user, &b.largest, &a.smallest).is_ge()
}

/// The first level below `level` with files that meet `range`, and those files.
pub(super) fn first_overlap_below(
    version: &Version,
    level: usize,
    range: &KeyRange,
) -> Vec<Arc<FileMeta>> {
    (level + 1..version.num_levels())
        .map(|l| version.overlapping_range(l, range))
        .find(|files| !files.is_empty())
        .map_or_else(Vec::new, <[_]>::to_vec)
}
