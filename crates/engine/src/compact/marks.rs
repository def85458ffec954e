//! Files that are due for a compaction of their own, whatever the sizes of levels are.
//!
//! Pure: a version, settings and a moment in. In this order:
//!
//! | Reason | Which files | Where to |
//! |---|---|---|
//! | marked | RocksDB or [`crate::options::CompactOnDeletion`] marked them | one level down |
//! | bottommost | nothing lies below, tombstones are in them, and no snapshot needs these any more | the same level |
//! | size amplification | the largest of the level with most bytes above the last one, while those levels hold more than `max_size_amplification_percent` of the last | one level down |
//! | TTL | their oldest data is older than `ttl` | one level down |
//! | periodic | they were made longer ago than `periodic_compaction_seconds` | one level down, or the same level if nothing lies below |
//! | blob garbage | they point into the oldest blob file, of which [`super::blobs::forced`] is garbage | the same level, level 0 down |
//! | recompression | `recompress_bottommost_files`, on the last level, and their codec is none of those that it may be asked to have | the same level |
//!
//! A file on the last level with data goes nowhere but to its own level. A rewritten file is no
//! longer due: its tombstones are gone, it is new, and its codec is one that was asked for.
//! Source: RocksDB `db/version_set.cc` (`ComputeBottommostFilesMarkedForCompaction`,
//! `ComputeExpiredTtlFiles`, `ComputeFilesMarkedForPeriodicCompaction`).

use std::sync::Arc;

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{FileNo, SeqNo};

use super::blobs;
use super::plan::{Reason, compression_at, first_overlap_below};
use crate::options::ColumnFamilyOptions;
use crate::version::{FileMeta, KeyRange, Version};

/// A bottommost file is rewritten if at least one entry in so many is a tombstone.
const TOMBSTONES_WORTH_A_REWRITE: u64 = 10;

/// What a decision depends on besides the version.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Seconds since 1970.
    pub unix_secs: u64,
    /// The oldest live snapshot; [`SEQNO_MAX`] if there is none.
    pub oldest_snapshot: SeqNo,
    /// Whether a compaction finds space for values that it moves.
    pub moves_values: bool,
}

impl Default for Moment {
    fn default() -> Self {
        Self {
            unix_secs: 0,
            oldest_snapshot: SEQNO_MAX,
            moves_values: true,
        }
    }
}

/// A file that is due.
pub struct Due<'a> {
    /// Where it is.
    pub level: usize,
    /// Where it goes.
    pub output_level: usize,
    /// The file.
    pub file: &'a Arc<FileMeta>,
    /// Why.
    pub reason: Reason,
}

/// The idle files that are due, the most urgent first. `base_level` is where level 0 goes.
pub fn due<'a>(
    version: &'a Version,
    options: &'a ColumnFamilyOptions,
    base_level: usize,
    moment: Moment,
) -> impl Iterator<Item = Due<'a>> {
    const ORDER: [Reason; 7] = [
        Reason::FilesMarkedForCompaction,
        Reason::BottommostFiles,
        Reason::SizeAmplification,
        Reason::Ttl,
        Reason::PeriodicCompaction,
        Reason::ForcedBlobGC,
        Reason::BottommostRecompression,
    ];
    let last = last_of(version);
    let codecs = last_level_codecs(version, options, base_level, last);
    let emptied = blobs::forced(version, options);
    let too_much = amplifying(version, last, options.max_size_amplification_percent);
    ORDER.into_iter().flat_map(move |reason| {
        let asked = match reason {
            Reason::Ttl => options.ttl > 0,
            Reason::SizeAmplification => too_much.is_some(),
            Reason::PeriodicCompaction => options.periodic_compaction_seconds > 0,
            Reason::BottommostRecompression => options.recompress_bottommost_files,
            // It has nothing else to do.
            Reason::ForcedBlobGC => emptied.is_some() && moment.moves_values,
            _ => true,
        };
        let codecs = codecs.clone();
        let files = asked.then(|| version.iter_files()).into_iter().flatten();
        files
            .filter(|(_, f)| !f.is_busy())
            .filter_map(move |(level, file)| {
                let down = if level == 0 { base_level } else { level + 1 };
                let output_level = match reason {
                    Reason::FilesMarkedForCompaction => {
                        (file.marked_for_compaction && level < last).then_some(down)
                    }
                    Reason::BottommostFiles => {
                        let due = has_droppable_tombstones(file, moment)
                            && level > 0
                            && is_bottommost(version, level, file);
                        due.then_some(level)
                    }
                    Reason::SizeAmplification => too_much
                        .is_some_and(|number| number == file.number)
                        .then_some(down),
                    Reason::Ttl => {
                        let old = is_older(file.oldest_ancester_time, options.ttl, moment);
                        (old && level < last).then_some(down)
                    }
                    Reason::ForcedBlobGC => (emptied == Some(file.oldest_blob_file_number))
                        .then_some(if level == 0 { down } else { level }),
                    Reason::BottommostRecompression => {
                        let is_asked = |stored: &str| codecs.contains(&stored);
                        let differs = file.codec.get().is_some_and(|c| !is_asked(c));
                        (differs && level == last).then_some(level)
                    }
                    _ => {
                        let period = options.periodic_compaction_seconds;
                        let old = is_older(file.file_creation_time, period, moment);
                        let stays =
                            level > 0 && (level >= last || is_bottommost(version, level, file));
                        old.then_some(if stays { level } else { down })
                    }
                }?;
                Some(Due {
                    level,
                    output_level,
                    file,
                    reason,
                })
            })
    })
}

/// The level below which there is nothing to go to.
fn last_of(version: &Version) -> usize {
    version.num_non_empty_levels().saturating_sub(1).max(1)
}

/// The codecs that files of the last level may be asked to have. With dynamic levels the base
/// level, and with it the codec, follows from sizes: what is rewritten may be asked to have
/// another one by its own new size, and again, for ever. So any of them will do.
fn last_level_codecs(
    version: &Version,
    options: &ColumnFamilyOptions,
    base_level: usize,
    last: usize,
) -> Vec<&'static str> {
    let bases = match options.level_compaction_dynamic_level_bytes {
        true => 1..=last,
        false => base_level..=base_level,
    };
    let at = |base| compression_at(version, options, base, last).property_name();
    bases.map(at).collect()
}

/// The idle file whose way down helps most, if the levels above `last` hold more than `percent` of
/// it. Data that a running compaction takes there already is on its way and does not count.
fn amplifying(version: &Version, last: usize, percent: u64) -> Option<FileNo> {
    if percent == 0 {
        return None;
    }
    let bottom = u128::from(version.level_bytes(last));
    let idle = |level: usize| version.files(level).iter().filter(|f| !f.is_busy());
    let bytes = |level: usize| idle(level).map(|f| u128::from(f.size)).sum::<u128>();
    let above: u128 = (0..last).map(bytes).sum();
    // Where the last level is empty there is nothing to amplify.
    if bottom == 0 || above * 100 <= bottom * u128::from(percent) {
        return None;
    }
    let level = (0..last).max_by_key(|&level| bytes(level))?;
    idle(level).max_by_key(|f| f.size).map(|f| f.number)
}

/// When the next file is due by its age, in seconds since 1970; `None` if none ever is.
#[must_use]
pub fn next_due_secs(version: &Version, options: &ColumnFamilyOptions) -> Option<u64> {
    let after = |since: u64, secs: u64| {
        (since > 0 && secs > 0).then(|| since.saturating_add(secs).saturating_add(1))
    };
    let last = last_of(version);
    let files = version.iter_files().filter(|(_, f)| !f.damaged.get());
    files
        .flat_map(|(level, f)| {
            let aged = after(f.oldest_ancester_time, options.ttl);
            [
                aged.filter(|_| level < last),
                after(f.file_creation_time, options.periodic_compaction_seconds),
            ]
        })
        .flatten()
        .min()
}

/// The least sequence number that the oldest snapshot must pass for a bottommost file to be due;
/// [`SEQNO_MAX`] if no file waits for that.
#[must_use]
pub fn waited_for_snapshot(version: &Version) -> SeqNo {
    version
        .iter_files()
        .filter(|(level, f)| *level > 0 && is_worth_a_rewrite(f))
        .filter(|(level, f)| is_bottommost(version, *level, f))
        .map(|(_, f)| f.largest_seqno)
        .min()
        .unwrap_or(SEQNO_MAX)
}

/// Files whose codec has to be known to tell which are to be recompressed, and is not.
pub fn of_unknown_codec<'a>(
    version: &'a Version,
    options: &ColumnFamilyOptions,
) -> impl Iterator<Item = &'a Arc<FileMeta>> {
    let last = version.num_non_empty_levels().saturating_sub(1);
    let asked = options.recompress_bottommost_files && last > 0;
    let files = if asked {
        version.files(last)
    } else {
        Default::default()
    };
    let unknown = |f: &&Arc<FileMeta>| !f.is_busy() && f.codec.get().is_none();
    files.iter().filter(unknown)
}

/// `since` is 0 if it is not known.
fn is_older(since: u64, secs: u64, moment: Moment) -> bool {
    since > 0 && since.saturating_add(secs) < moment.unix_secs
}

/// As far as is known: of a file that nobody has opened yet nothing is.
fn is_worth_a_rewrite(file: &FileMeta) -> bool {
    file.counts.get().is_some_and(|&(entries, deletions)| {
        deletions > 0 && deletions.saturating_mul(TOMBSTONES_WORTH_A_REWRITE) >= entries
    })
}

/// True if a rewrite drops all tombstones.
fn has_droppable_tombstones(file: &FileMeta, moment: Moment) -> bool {
    is_worth_a_rewrite(file) && file.largest_seqno < moment.oldest_snapshot
}

fn is_bottommost(version: &Version, level: usize, file: &FileMeta) -> bool {
    let range = KeyRange {
        smallest: file.smallest.clone(),
        largest: file.largest.clone(),
    };
    first_overlap_below(version, level, &range).is_empty()
}

#[cfg(test)]
mod tests;
