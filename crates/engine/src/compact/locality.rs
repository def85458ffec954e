//! Which values are written anew so that neighbours in key order are neighbours in blob files.
//!
//! Pure: a version, settings, and how far each table reaches into blob files; files out, whose
//! values a compaction moves, or tables that are rewritten where they are.
//!
//! A compaction passes pointers on, so values of neighbouring keys lie in as many blob files as there were times at
//! which they were written, and a scan reads from all of these by turns. Two settings change that:
//!
//! - **`level_merge`**: what comes down into one of the last two levels is written anew: values of the files that the inputs above
//!   the output level point to. A file belongs to the level of the tables that point to it; nothing has to be noted, for
//!   only moves of whole tables make two levels share a file.
//! - **`range_merge`**: no table of the last level gets deeper ([`BlobReach::depth`]) than `max_sorted_runs`. Where the outputs
//!   of a compaction might, it keeps the files with most of the values, as many as fit below
//!   the limit beside the new one, and moves the values of the others. Levels above hold a tenth of the values and are left to
//!   `level_merge`.
//!
//! ```text
//! last level      |----------- 3 -----------|      kept: most of what is here lies there
//! (one line)      |--- 9 ---||----- 12 -----|      kept: one run, two files
//!                 |-20-|         |-- 21 --|        moved with what comes down: 2 runs are kept if max_sorted_runs is 3
//! from above      30 31 30 33 32 30 33 31 30       moved
//!                 |---------- new ----------|
//! ```
//! # Cost
//!
//! Let the last level be T times the one above (10), and updates uniform. What comes down in a compaction is 1/(T+1) of what it meets,
//! and each run of the last level loses as large a part of its values. R runs are left; at the next one the smallest, R rounds old, goes
//! with what comes down. So values rewritten for each byte put are
//!
//! ```text
//! 1 / (1 - (T/(T+1))^R)           R:   1     2     3     5    10    20    40
//!                            T = 10:  11   5.8   4.0   2.6   1.6   1.2   1.02
//! ```
//! of which 1 is what comes down in disorder: if `level_merge` has put it into order above, it stays
//! as long as it fits, and the 1 is `level_merge`'s. `level_merge` alone writes 1 for each of the two levels. To write all of the range
//! anew (as Pebble does once a depth is reached) costs 11 each time.
//!
//! # Invariants
//!
//! 1. A file counts in a run of the inputs from its first pointer to its last, over the ends of tables: those that are cut otherwise are not
//!    deeper. Depths of runs are added, for theirs may meet, and a file that is in several counts as if it were
//!    everywhere. One file is added for what a job writes. So no output is deeper than the limit.
//! 2. Damaged files are neither moved nor counted: what cannot be read stays where it is.
//! 3. A table is rewritten in place at most once for a limit, whatever comes of it ([`BlobDepth::note_tried`]), and so is
//!    what was made of it in place. Only what compactions write from other levels is looked at anew: without writes this ends.
//! 4. In place nothing is done while a level is due for a compaction, which may come by, or for fewer bytes of
//!    values than a fourth of the tables: few values that lie elsewhere do not slow a scan.
//! 5. Where nobody has asked for an order, only short values are put in order, in place, and only where there is
//!    nothing else to do ([`in_place`]): who writes pays nothing for it.
//! 6. Pointers alone are chosen by file; that nobody follows one that is dropped, and garbage, are matters of who moves.
//!
//! Source: Titan's settings of these names; of the depth of a table Pebble's blob reference depth
//! (`compaction.go`, `compactionBlobReferenceDepth`), which it adds up from its inputs' the same way.
//!
//! [`BlobDepth::note_tried`]: crate::version::file_meta::BlobDepth::note_tried

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use orogen_base::{FileNo, Result};

use super::collect::{Lull, Selected, Step};
use super::plan::{Plan, Reason};
use crate::options::ColumnFamilyOptions;
use crate::version::blob_reach::{BlobReach, Stretch, depth};
use crate::version::{FileMeta, Version};

/// Bytes of tables that may be rewritten in place for each byte of values that is moved.
const TABLE_BYTES_PER_MOVED: u64 = 4;
/// Tables of a step.
const TABLES_MAX: usize = 256;
/// Where nobody has said a depth: so many places are asked for at once while one of them is waited for.
const AUTO_DEPTH: u64 = 8;
/// Where nobody has said a depth: longer values are read about as fast wherever they lie.
const AUTO_VALUE_BYTES: u64 = 8192;

/// The depth that compactions may give to tables of the last level, which is `last`; `None`: any.
#[must_use]
pub fn limit(options: &ColumnFamilyOptions, last: usize) -> Option<u64> {
    let is_on = options.keeps_apart(last) && options.range_merge && options.max_sorted_runs > 0;
    is_on.then_some(options.max_sorted_runs)
}

/// How deep tables may be that are not written for another reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The depth that tables of the last level may have.
    pub depth_max: u64,
    /// Those whose values have so many bytes on average may be deeper.
    pub value_bytes: u64,
}

impl InPlace {
    /// True if somebody has set it.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.value_bytes == u64::MAX
    }

    fn is_exceeded(&self, file: &FileMeta) -> bool {
        file.blob_depth.is_above(self.depth_max, self.is_asked())
    }
}

/// What is rewritten in place; `None`: nothing is.
#[must_use]
pub fn in_place(version: &Version, options: &ColumnFamilyOptions, lull: Lull) -> Option<InPlace> {
    let last = last_level(version)?;
    if let Some(depth_max) = limit(options, last) {
        return Some(InPlace {
            depth_max,
            value_bytes: u64::MAX,
        });
    }
    let is_asked = options.range_merge || options.level_merge;
    // What moves takes its space twice for a while.
    let is_bounded = options.max_space_amp > 0.0;
    let depth_max = options.max_sorted_runs.min(AUTO_DEPTH);
    let is_on = lull == Lull::Long
        && options.keeps_apart(last)
        && options.chooses_gc_by_cost()
        && !is_asked
        && !is_bounded
        && depth_max > 0;
    is_on.then_some(InPlace {
        depth_max,
        value_bytes: AUTO_VALUE_BYTES,
    })
}

/// Tables in key order that do not overlap: a level's inputs, or one table of level 0.
#[derive(Default)]
struct Run {
    is_above: bool,
    pointers: u64,
    files: BTreeMap<FileNo, Part>,
}

/// What a run has in a file.
#[derive(Clone, Copy)]
struct Part {
    /// Of the pointers of all tables together.
    stretch: Stretch,
    bytes: u64,
}

impl Run {
    fn add(&mut self, reach: &BlobReach) {
        for file in &reach.files {
            let stretch = Stretch {
                first: self.pointers + file.stretch.first,
                last: self.pointers + file.stretch.last,
            };
            let part = self.files.entry(file.file);
            let part = part.or_insert(Part { stretch, bytes: 0 });
            part.stretch.last = stretch.last;
            part.bytes = part.bytes.saturating_add(file.bytes);
        }
        self.pointers += reach.pointers;
    }
}

/// Files of a run that may stay.
struct Choice {
    /// Those that were not taken yet, by the ends of their stretches.
    left: Vec<(FileNo, Part)>,
    /// The next ones to take, and their bytes.
    next: (u64, Vec<FileNo>),
}

impl Choice {
    fn new(mut left: Vec<(FileNo, Part)>) -> Self {
        left.sort_by_key(|(_, part)| part.stretch.last);
        let mut choice = Self {
            left,
            next: Default::default(),
        };
        choice.look();
        choice
    }

    /// Of the files that are left, those that follow one another and have the most bytes together.
    fn look(&mut self) {
        let left = &self.left;
        // The most bytes among the first so many files, and whether the last of these is one of them.
        let mut best: Vec<(u64, bool)> = vec![(0, false)];
        let before =
            |part: &Part| left.partition_point(|(_, p)| p.stretch.last < part.stretch.first);
        for (i, (_, part)) in left.iter().enumerate() {
            let with = best[before(part)].0.saturating_add(part.bytes);
            let without = best[i].0;
            best.push((with.max(without), with > without));
        }
        let bytes = best[left.len()].0;
        let mut taken = Vec::new();
        let mut i = left.len();
        while i > 0 {
            let (number, part) = &left[i - 1];
            if best[i].1 {
                taken.push(*number);
                i = before(part);
            } else {
                i -= 1;
            }
        }
        self.next = (bytes, taken);
    }

    fn take(&mut self) -> Vec<FileNo> {
        let taken: HashSet<FileNo> = self.next.1.iter().copied().collect();
        self.left.retain(|(number, _)| !taken.contains(number));
        let files = std::mem::take(&mut self.next.1);
        self.look();
        files
    }
}

/// The files to leave so that what `runs` merge to is no deeper than `max`, a new file included. Those in
/// `gone` are left anyway; `writes` if there is a new file whatever is chosen.
///
/// The rest stays: of all files that follow one another in a run those with the most bytes, and again
/// as often as there is place. So little is moved, if not always the least.
fn over_limit(
    runs: &[Run],
    max: u64,
    gone: &dyn Fn(FileNo) -> bool,
    writes: bool,
) -> HashSet<FileNo> {
    let mut writes = writes;
    // In which run each file is, and its bytes; one that is in several is in a run of its own.
    let mut files: BTreeMap<FileNo, ((usize, FileNo), Part)> = BTreeMap::new();
    for (at, run) in runs.iter().enumerate() {
        for (&number, &part) in &run.files {
            if gone(number) {
                writes = true;
            } else if let Some((within, all)) = files.get_mut(&number) {
                *within = (runs.len(), number);
                all.bytes = all.bytes.saturating_add(part.bytes);
            } else {
                files.insert(number, ((at, 0), part));
            }
        }
    }
    let mut apart: BTreeMap<(usize, FileNo), Vec<(FileNo, Part)>> = BTreeMap::new();
    for (&number, &(within, part)) in &files {
        apart.entry(within).or_default().push((number, part));
    }
    let depths = apart
        .values()
        .map(|f| depth(f.iter().map(|(_, p)| p.stretch)));
    if depths.sum::<u64>() + u64::from(writes) <= max {
        return HashSet::new();
    }
    let mut choices: Vec<Choice> = apart.into_values().map(Choice::new).collect();
    let mut moved: HashSet<FileNo> = files.into_keys().collect();
    for _ in 1..max {
        let heaviest = choices.iter_mut().max_by_key(|choice| choice.next.0);
        let Some(choice) = heaviest.filter(|choice| choice.next.0 > 0) else {
            break;
        };
        for number in choice.take() {
            moved.remove(&number);
        }
    }
    moved
}

fn is_damaged(version: &Version, number: FileNo) -> bool {
    let blob = version.blob_files().get(&number);
    blob.is_none_or(|blob| blob.file.damaged.get())
}

/// The files whose values a compaction writes anew where it meets them, only to have them in key order.
/// `inputs` are those of `plan` that are read, by level; values of `emptied` are written anew anyway.
///
/// # Errors
/// Those of `reach`, which tells how far a table reaches into blob files.
pub fn moved_by_compaction(
    version: &Version,
    options: &ColumnFamilyOptions,
    plan: &Plan,
    inputs: &[(usize, Vec<Arc<FileMeta>>)],
    emptied: &HashSet<FileNo>,
    reach: &mut dyn FnMut(&FileMeta) -> Result<BlobReach>,
) -> Result<HashSet<FileNo>> {
    let output_level = plan.output_level;
    let last = version.num_non_empty_levels().saturating_sub(1);
    let last = last.max(output_level);
    let merges =
        options.keeps_apart(output_level) && options.level_merge && output_level + 1 >= last;
    let max = limit(options, output_level).filter(|_| output_level == last);
    let is_off = !merges && max.is_none();
    if is_off || output_level == 0 || version.blob_files().is_empty() {
        return Ok(HashSet::new());
    }
    let mut runs: Vec<Run> = Vec::new();
    for (level, files) in inputs {
        let is_above = *level < output_level;
        let mut run = Run {
            is_above,
            ..Run::default()
        };
        for file in files {
            run.add(&reach(file)?);
            if *level == 0 {
                let alone = Run {
                    is_above,
                    ..Run::default()
                };
                runs.push(std::mem::replace(&mut run, alone));
            }
        }
        runs.push(run);
    }
    let mut moved = HashSet::new();
    if merges {
        // Whoever has a level rewritten within itself asks for the best order that there is.
        let is_asked = plan.reason == Reason::ManualCompaction && plan.start_level == output_level;
        let coming = runs.iter().filter(|r| r.is_above || is_asked);
        let files = coming.flat_map(|r| r.files.keys().copied());
        moved.extend(files.filter(|n| !emptied.contains(n) && !is_damaged(version, *n)));
    }
    if let Some(max) = max {
        for run in &mut runs {
            run.files.retain(|&number, _| !is_damaged(version, number));
        }
        // What a filter or a merge makes goes to a new file too.
        let writes =
            options.merge_operator.is_some() || options.compaction_filter_factory.is_some();
        let gone = |number| emptied.contains(&number) || moved.contains(&number);
        let over = over_limit(&runs, max, &gone, writes);
        moved.extend(over);
    }
    Ok(moved)
}

/// The same for a table that is rewritten in place, and its neighbours that share user keys with it.
///
/// # Errors
/// Those of `reach`.
pub fn moved_in_place(
    version: &Version,
    max: u64,
    tables: &mut dyn Iterator<Item = &Arc<FileMeta>>,
    reach: &mut dyn FnMut(&FileMeta) -> Result<BlobReach>,
) -> Result<HashSet<FileNo>> {
    let mut run = Run::default();
    for table in tables {
        run.add(&reach(table)?);
    }
    run.files.retain(|&number, _| !is_damaged(version, number));
    Ok(over_limit(&[run], max, &|_| false, false))
}

/// The level whose tables are kept below the limit; `None` while there is only level 0.
fn last_level(version: &Version) -> Option<usize> {
    let last = version.num_non_empty_levels().saturating_sub(1);
    (last > 0 && !version.blob_files().is_empty()).then_some(last)
}

/// Idle tables of the last level that point to blob files.
fn tables_with_blobs(version: &Version) -> impl Iterator<Item = &Arc<FileMeta>> {
    let files = last_level(version).map(|last| version.files(last).iter());
    let files = files.into_iter().flatten();
    files.filter(|f| f.oldest_blob_file_number != 0 && !f.is_busy())
}

/// True if there may be tables to rewrite in place: one is too deep, or not known.
#[must_use]
pub fn may_be_due(version: &Version, limit: InPlace) -> bool {
    let may_be = |f: &FileMeta| f.blob_depth.get().is_none() || limit.is_exceeded(f);
    tables_with_blobs(version).any(|f| may_be(f))
}

/// Tables that have to be opened to know how deep they are.
pub fn of_unknown_depth(version: &Version) -> impl Iterator<Item = &Arc<FileMeta>> {
    tables_with_blobs(version).filter(|f| f.blob_depth.get().is_none())
}

/// The next tables to rewrite in place, in key order, until their values fill a new file or the tables come to
/// a compaction's bytes.
///
/// # Errors
/// Those of `reach`.
pub fn select(
    version: &Version,
    options: &ColumnFamilyOptions,
    limit: InPlace,
    reach: &mut dyn FnMut(&FileMeta) -> Result<BlobReach>,
) -> Result<Selected> {
    let max = limit.depth_max;
    let mut step = Step {
        victims: HashSet::new(),
        merged: 0,
        tables: Vec::new(),
        moved_bytes: 0,
        bytes_ahead: 0,
    };
    let Some(last) = last_level(version) else {
        return Ok(Selected::Nothing);
    };
    for file in tables_with_blobs(version).filter(|f| limit.is_exceeded(f)) {
        let is_full = step.moved_bytes >= options.blob_file_size
            || step.bytes_ahead >= options.max_compaction_bytes()
            || step.tables.len() >= TABLES_MAX;
        if is_full {
            break;
        }
        let reached = reach(file)?;
        let (values, all_bytes) = (reached.pointers, reached.files.iter().map(|f| f.bytes));
        let all_bytes: u64 = all_bytes.fold(0, u64::saturating_add);
        if all_bytes >= values.saturating_mul(limit.value_bytes) {
            // Most of them are long enough.
            file.blob_depth.note_left();
            continue;
        }
        let told = reached.clone();
        let mut once = std::iter::once(file);
        let moved = moved_in_place(version, max, &mut once, &mut |_| Ok(told.clone()))?;
        let files = reached.files.iter().filter(|f| moved.contains(&f.file));
        let bytes = files.map(|f| f.bytes).fold(0, u64::saturating_add);
        if bytes.saturating_mul(TABLE_BYTES_PER_MOVED) < file.size {
            // The table is what it is: another look would find the same.
            file.blob_depth.note_tried(max);
            continue;
        }
        step.victims.extend(moved);
        step.tables.push((last, file.clone()));
        step.moved_bytes = step.moved_bytes.saturating_add(bytes);
        step.bytes_ahead = step.bytes_ahead.saturating_add(file.size);
    }
    Ok(match step.tables.is_empty() {
        true => Selected::Nothing,
        false => Selected::Step(step),
    })
}

#[cfg(test)]
mod tests;
