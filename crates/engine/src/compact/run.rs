//! What a compaction does: cursors over the inputs in, tables out.
//!
//! Pure: it knows no version and installs nothing. The job opens the inputs, calls [`run`] for
//! each stretch of keys, on as many threads as it likes, and installs the files or removes them.
//!
//! A table's range tombstones may reach beyond the table, where its neighbours tell what holds:
//! RocksDB writes them so. [`clip_tombstones`] cuts them to what the table answers for before
//! they go into a compaction. Source: RocksDB `db/compaction/compaction_job.cc`,
//! `db/compaction/compaction.cc` (`PopulateWithAtomicBoundaries`).

use std::ops::RangeInclusive;
use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{InternalIterator, SeqNo, UserComparator};
use orogen_sst::{Anchor, TableBuilderOptions};

use super::plan::Plan;
use crate::compaction_iter::{CompactionIterOptions, KeyNotExistsBeyond, RangeNotExistsBeyond};
use crate::output::{self, BlobOutputOptions, Failed, NewFile, OutputOptions, Written};
use crate::version::level::{compare_ends, ends_before};
use crate::version::{FileMeta, Version};

/// What the family's settings say of the outputs.
#[derive(Default)]
pub struct Outputs {
    /// How tables are built; the plan has the codec.
    pub table: TableBuilderOptions,
    /// See [`OutputOptions::paranoid_file_checks`].
    pub paranoid_file_checks: bool,
    /// Where large values go.
    pub blobs: BlobOutputOptions,
}

/// Runs one stretch of a compaction, from `rules.start` to `rules.end`.
///
/// `tombstones` are those of all inputs, clipped; they may reach beyond the stretch.
///
/// # Errors
/// Those of the inputs, of writing, and of the watch in `rules`; the files made
/// so far are named.
pub fn run<I: InternalIterator>(
    plan: &Plan,
    input: I,
    tombstones: Arc<FragmentedRangeTombstones>,
    rules: CompactionIterOptions,
    outputs: Outputs,
    new_file: NewFile<'_>,
) -> Result<Written, Failed> {
    let options = OutputOptions {
        table: TableBuilderOptions {
            compression: plan.compression,
            compression_options: plan.compression_options,
            ..outputs.table
        },
        output_level: plan.output_level,
        target_file_size: plan.target_file_size,
        max_file_size: plan.max_output_file_size,
        max_compaction_bytes: plan.max_compaction_bytes,
        grandparents: plan.grandparents.clone(),
        compact_on_deletion: plan.compact_on_deletion,
        paranoid_file_checks: outputs.paranoid_file_checks,
        epoch_number: plan.min_epoch_number(),
        blobs: outputs.blobs,
    };
    output::write(input, tombstones, rules, options, new_file)
}

/// The rules of a plan without snapshots, merge operator, filter, bounds and watch.
#[must_use]
pub fn rules_of(plan: &Plan, version: &Arc<Version>) -> CompactionIterOptions {
    let level = plan.output_level;
    CompactionIterOptions {
        comparator: version.icmp().user.clone(),
        snapshots: Vec::new(),
        earliest_write_conflict_snapshot: SEQNO_MAX,
        merge_operator: None,
        filter: None,
        counts_pointers: plan
            .input_files()
            .any(|(_, f)| f.oldest_blob_file_number != 0),
        bottommost: plan.bottommost,
        // Older files of level 0 lie beside an output there.
        key_not_exists_beyond_output_level: (level > 0)
            .then(|| key_not_exists_beyond(version, level)),
        range_not_exists_beyond_output_level: (level > 0)
            .then(|| range_not_exists_beyond(version, level)),
        start: None,
        end: None,
        watch: None,
        blobs: None,
    }
}

/// Tells of user keys, asked in rising order, whether no file below `output_level` may hold
/// them.
#[must_use]
pub fn key_not_exists_beyond(version: &Arc<Version>, output_level: usize) -> KeyNotExistsBeyond {
    let version = Arc::clone(version);
    let below = (output_level + 1).min(version.num_levels())..version.num_levels();
    // The first file of each level that does not end before the last key asked for.
    let mut at = vec![0; below.len()];
    Box::new(move |key| {
        let user = &version.icmp().user;
        below.clone().zip(&mut at).all(|(level, at)| {
            let files = version.files(level);
            while files
                .get(*at)
                .is_some_and(|f| ends_before(user, &f.largest, key))
            {
                *at += 1;
            }
            files
                .get(*at)
                .is_none_or(|f| user.less(key, f.smallest_user_key()))
        })
    })
}

/// Tells of user keys from the first up to but not including the second whether no file below
/// `output_level` may hold any of them.
#[must_use]
pub fn range_not_exists_beyond(
    version: &Arc<Version>,
    output_level: usize,
) -> RangeNotExistsBeyond {
    let version = Arc::clone(version);
    Box::new(move |start, end| {
        let user = &version.icmp().user;
        (output_level + 1..version.num_levels()).all(|level| {
            let files = version.files(level);
            let at = files.partition_point(|f| ends_before(user, &f.largest, start));
            files
                .get(at)
                .is_none_or(|f| !user.less(f.smallest_user_key(), end))
        })
    })
}

/// The range tombstones of one level's inputs, each clipped to the stretch that its table
/// answers for. `files` are in the level's order.
///
/// Below level 0, neighbours that share a user key answer together, as RocksDB parts the
/// versions of one user key.
#[must_use]
pub fn clip_tombstones(
    icmp: &InternalKeyComparator,
    level: usize,
    files: &[(Arc<FileMeta>, Arc<FragmentedRangeTombstones>)],
) -> Vec<RangeTombstone> {
    let shares_key = |a: &FileMeta, b: &FileMeta| {
        level > 0 && compare_ends(&icmp.user, &a.largest, &b.smallest).is_eq()
    };
    let mut clipped = Vec::new();
    for unit in files.chunk_by(|a, b| shares_key(&a.0, &b.0)) {
        let (Some((first, _)), Some((last, _))) = (unit.first(), unit.last()) else {
            continue;
        };
        let (lower, upper) = (first.smallest_user_key(), last.largest_user_key());
        for (start, end, seqno) in unit.iter().flat_map(|(_, t)| t.iter()) {
            let start = if icmp.user.less(start, lower) {
                lower
            } else {
                start
            };
            let end = if icmp.user.less(upper, end) {
                upper
            } else {
                end
            };
            if icmp.user.less(start, end) {
                clipped.push(RangeTombstone {
                    start: start.to_vec(),
                    end: end.to_vec(),
                    seqno,
                });
            }
        }
    }
    clipped
}

/// True if range tombstones of the same compaction delete all that a file holds, at every
/// snapshot: it need not be read. `snapshots` rise.
#[must_use]
pub fn is_deleted_whole(
    order: &UserComparator,
    tombstones: &FragmentedRangeTombstones,
    file: &FileMeta,
    snapshots: &[SeqNo],
) -> bool {
    let deletes = |seqno: SeqNo| {
        seqno > file.largest_seqno
            && snapshots
                .get(snapshots.partition_point(|&s| s < file.smallest_seqno))
                .is_none_or(|&s| s >= seqno)
    };
    let mut from = file.smallest_user_key();
    let first = tombstones.first_ending_after(order, from);
    for fragment in &tombstones.fragments()[first..] {
        let reaches_back = !order.less(from, &fragment.start);
        if !reaches_back || !fragment.seqnos.iter().any(|&seqno| deletes(seqno)) {
            return false;
        }
        if ends_before(order, &file.largest, &fragment.end) {
            return true;
        }
        from = &fragment.end;
    }
    false
}

/// User keys that part a plan's work into `parts` stretches of about the same size: as many of these as are worth
/// a whole output file each.
///
/// `anchors` divide the inputs; those of all inputs together, in any order.
#[must_use]
pub fn subcompaction_bounds(
    order: &UserComparator,
    plan: &Plan,
    mut anchors: Vec<Anchor>,
    parts: RangeInclusive<usize>,
) -> Vec<Vec<u8>> {
    if *parts.end() < 2 || !plan.may_part() {
        return Vec::new();
    }
    anchors.sort_by(|a, b| order.compare(&a.user_key, &b.user_key));
    let total: u64 = anchors.iter().map(|a| a.weight_bytes).sum();
    // A file is rarely cut when it is just full.
    let files = (total as f64 / 0.8 / plan.target_file_size.max(1) as f64).ceil() as usize;
    let parts = files.clamp(*parts.start(), *parts.end());
    let mut bounds: Vec<Vec<u8>> = Vec::new();
    let mut passed = 0;
    let last = anchors.last().map(|a| a.user_key.clone());
    for anchor in anchors {
        passed += anchor.weight_bytes;
        if bounds.len() + 1 >= parts {
            break;
        }
        let goal = total / parts as u64 * (bounds.len() as u64 + 1);
        let rises = bounds
            .last()
            .is_none_or(|b| order.less(b, &anchor.user_key));
        // What is after the last anchor is nothing, or next to nothing.
        let is_inside = last
            .as_ref()
            .is_some_and(|l| order.less(&anchor.user_key, l));
        if passed >= goal && rises && is_inside {
            bounds.push(anchor.user_key);
        }
    }
    bounds
}

#[cfg(test)]
mod tests;
