//! Which files are compacted next: leveled compaction.
//!
//! Pure: a version, settings, scores and what runs already go in, a [`Plan`] comes out.
//!
//! ```text
//! level with the highest score -> file with the least overlap below, per byte
//!   -> clean cut -> files it meets in the output level, clean cut
//!   -> more of the start level, if that adds nothing to the output level
//! ```
//! Invariants of a plan:
//! 1. No version of a user key outside the inputs is between two inputs: a file of the start or
//!    the output level that shares a user key with an input is an input. From level 0 all files
//!    that overlap, one by way of another, go together.
//! 2. No input is in another compaction, and none that runs writes to the same level over the
//!    same keys. One compaction at most takes files from level 0 down; beside it one merges
//!    newer files of level 0 among themselves.
//! 3. A trivial move meets nothing in the output level.
//! 4. What stays in level 0 were neighbours in time, and its output takes their place.
//!
//! Source: RocksDB `db/compaction/compaction_picker_level.cc`, `compaction_picker.cc`.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::FileNo;
use orogen_base::key::InternalKeyComparator;
use orogen_sst::CompressionType;

use super::marks::{self, Moment};
use super::plan::{
    Plan, Reason, Running, compression_at, first_overlap_below, range_of, ranges_meet,
};
use super::score::{LevelTargets, Scores, compensated_size};
use crate::options::ColumnFamilyOptions;
use crate::version::level::compare_ends;
use crate::version::{FileMeta, KeyRange, Version};

/// Files that one trivial move takes at most, so as not to press the next level.
const MOVED_FILES_MAX: usize = 4;
/// Files that are worth merging within level 0.
const INTRA_LEVEL0_FILES_MIN: usize = 4;

type Files = Vec<Arc<FileMeta>>;

/// The compaction that is needed most and can run now.
#[must_use]
pub fn pick(
    version: &Version,
    options: &ColumnFamilyOptions,
    scores: &Scores,
    running: &[Running],
    moment: Moment,
) -> Option<Plan> {
    let picker = Picker {
        version,
        options,
        targets: &scores.targets,
        running,
    };
    let base_level = scores.targets.base_level;
    let mut level0_waits = false;
    for &(level, score) in &scores.levels {
        if score < 1.0 {
            break;
        }
        if level0_waits && level == base_level {
            // It would take from under level 0 what level 0 is to be merged with.
            continue;
        }
        if let Some(plan) = picker.pick_in_level(level, score) {
            return Some(plan);
        }
        if level == 0 {
            level0_waits = true;
            if let Some(plan) = picker.plan_intra_level0() {
                return Some(plan);
            }
        }
    }
    marks::due(version, options, base_level, moment).find_map(|due| {
        let inputs = std::slice::from_ref(due.file);
        let mut plan = picker.plan(due.level, due.output_level, inputs, due.reason, 0.0)?;
        // These go on to the last level, and need not be written on each on the way.
        let is_on_its_way = matches!(due.reason, Reason::Ttl | Reason::SizeAmplification)
            && plan.output_level + 1 < version.num_non_empty_levels();
        if plan.bottommost && !is_on_its_way || due.reason == Reason::ForcedBlobGC {
            // What it is rewritten for would lie there for good.
            plan.trivial_move = false;
        }
        Some(plan)
    })
}

/// A user's wish to compact a stretch of one level.
#[derive(Clone, Copy, Debug)]
pub struct RangeRequest<'a> {
    /// The level to take files from.
    pub level: usize,
    /// The level to write to: below, or the same to rewrite.
    pub output_level: usize,
    /// First user key; `None` from the start.
    pub begin: Option<&'a [u8]>,
    /// Last user key; `None` to the end.
    pub end: Option<&'a [u8]>,
    /// Tables that need no rewriting: those that this request wrote.
    pub made: Option<&'a HashSet<FileNo>>,
    /// False where each value has to pass a compaction filter.
    pub allow_trivial_move: bool,
}

/// What there is to do for a [`RangeRequest`].
#[derive(Clone, Debug)]
pub enum RangePick {
    /// Nothing.
    Nothing,
    /// Something, but another compaction is in the way: ask again when one has ended.
    Conflict,
    /// Something, but this file would have to be read, and it is damaged.
    Damaged(FileNo),
    /// A compaction, and where to begin the next request if it does not cover the range.
    Plan(Box<Plan>, Option<Vec<u8>>),
}

/// The next step of a manual compaction, level by level.
///
/// Below level 0 a step takes about [`ColumnFamilyOptions::max_compaction_bytes`].
///
/// # Panics
/// If the version has no such levels.
#[must_use]
pub fn pick_range(
    version: &Version,
    options: &ColumnFamilyOptions,
    running: &[Running],
    request: &RangeRequest<'_>,
) -> RangePick {
    let targets = LevelTargets::compute(version, options);
    let picker = Picker {
        version,
        options,
        targets: &targets,
        running,
    };
    let level = request.level;
    let mut inputs = version.overlapping_inputs(level, request.begin, request.end);
    let is_old = |f: &Arc<FileMeta>| request.made.is_none_or(|made| !made.contains(&f.number));
    inputs.drain(..inputs.iter().position(is_old).unwrap_or(inputs.len()));
    let mut count = inputs.iter().take_while(|f| is_old(f)).count();
    if inputs.is_empty() {
        return RangePick::Nothing;
    }
    if level == 0 && picker.level0_is_taken() {
        return RangePick::Conflict;
    }
    if level > 0 {
        count = picker.count_within_limit(level, request.output_level, &inputs[..count]);
    }
    inputs.truncate(count);
    let reason = Reason::ManualCompaction;
    let Some(mut plan) = picker.plan(level, request.output_level, &inputs, reason, 0.0) else {
        let damaged = picker.damaged_in_the_way(level, request.output_level, &inputs);
        return damaged.map_or(RangePick::Conflict, RangePick::Damaged);
    };
    plan.trivial_move &= request.allow_trivial_move;
    if level == 0 {
        return RangePick::Plan(Box::new(plan), None);
    }
    // Counted from what was taken: a clean cut may have reached further than was asked.
    let user = &version.icmp().user;
    let last = plan.inputs[0].1.last().expect("a plan has inputs").number;
    let after = version.level(level).position(last).map_or(0, |i| i + 1);
    let rest = version.files(level)[after..]
        .iter()
        .take_while(|f| {
            request
                .end
                .is_none_or(|e| !user.less(e, f.smallest_user_key()))
        })
        .find(|f| is_old(f))
        .map(|f| f.smallest_user_key().to_vec());
    RangePick::Plan(Box::new(plan), rest)
}

/// A plan that rewrites a file where it is, with those that share a user key with it; in level 0, where it
/// keeps its place among the others, it alone. `None` if another compaction is in the way.
#[must_use]
pub fn pick_in_place(
    version: &Version,
    options: &ColumnFamilyOptions,
    running: &[Running],
    (level, file): (usize, &Arc<FileMeta>),
    reason: Reason,
) -> Option<Plan> {
    let targets = LevelTargets::compute(version, options);
    let picker = Picker {
        version,
        options,
        targets: &targets,
        running,
    };
    if level == 0 {
        let files = vec![file.clone()];
        let is_free = !picker.level0_is_taken() && picker.is_free(&files, 0);
        return is_free.then(|| picker.finish(0, 0, files, Vec::new(), reason, 0.0));
    }
    picker.plan(level, level, std::slice::from_ref(file), reason, 0.0)
}

struct Picker<'a> {
    version: &'a Version,
    options: &'a ColumnFamilyOptions,
    targets: &'a LevelTargets,
    running: &'a [Running],
}

impl Picker<'_> {
    fn icmp(&self) -> &InternalKeyComparator {
        self.version.icmp()
    }

    /// A damaged file that a plan around `inputs` would have to read.
    fn damaged_in_the_way(
        &self,
        start_level: usize,
        output_level: usize,
        inputs: &[Arc<FileMeta>],
    ) -> Option<FileNo> {
        let inputs = self.version.clean_cut(start_level, inputs);
        let outputs = if output_level == start_level {
            Vec::new()
        } else {
            self.overlapping(output_level, &inputs)
        };
        let mut all = inputs.iter().chain(&outputs);
        all.find(|f| f.damaged.get()).map(|f| f.number)
    }

    fn level0_is_taken(&self) -> bool {
        self.running
            .iter()
            .any(|r| r.start_level == 0 || r.output_level == 0)
    }

    fn pick_in_level(&self, level: usize, score: f64) -> Option<Plan> {
        if level == 0 {
            if self.level0_is_taken() {
                return None;
            }
            let (reason, base) = (Reason::LevelL0FilesNum, self.targets.base_level);
            if let Some(plan) = self.plan_level0_move(score) {
                return Some(plan);
            }
            // The oldest first: what it overlaps comes along.
            let mut files = self.version.files(0).iter().rev();
            return files.find_map(|f| self.plan(0, base, std::slice::from_ref(f), reason, score));
        }
        self.by_overlapping_ratio(level).iter().find_map(|f| {
            self.plan(
                level,
                level + 1,
                std::slice::from_ref(f),
                Reason::LevelMaxLevelSize,
                score,
            )
        })
    }

    /// The idle files of a level, those first that drag the fewest bytes of the next level along
    /// for each byte of their own; marked ones before all.
    fn by_overlapping_ratio(&self, level: usize) -> Files {
        let mut ranked: Vec<(bool, u64, &Arc<FileMeta>)> = self
            .version
            .files(level)
            .iter()
            .filter(|f| !f.is_busy())
            .map(|f| {
                let below = self.overlapping_bytes(level + 1, f);
                let ratio = below.saturating_mul(1024) / compensated_size(f).max(1);
                (!f.marked_for_compaction, ratio, f)
            })
            .collect();
        // The files are in key order, which a stable sort keeps among equals.
        ranked.sort_by_key(|&(unmarked, ratio, _)| (unmarked, ratio));
        ranked.into_iter().map(|(_, _, f)| Arc::clone(f)).collect()
    }

    fn overlapping_bytes(&self, level: usize, file: &FileMeta) -> u64 {
        let range = KeyRange {
            smallest: file.smallest.clone(),
            largest: file.largest.clone(),
        };
        total_bytes(self.version.overlapping_range(level, &range))
    }

    /// The newest files of level 0, merged into one where level 0 cannot go down because what
    /// goes down already or the level below is busy: readers then have fewer files to look into.
    fn plan_intra_level0(&self) -> Option<Plan> {
        let files = self.version.files(0);
        let trigger = self.options.level0_file_num_compaction_trigger;
        if files.len() < trigger.saturating_add(2)
            || self.running.iter().any(|r| r.output_level == 0)
        {
            return None;
        }
        // Each file more must not raise the bytes that are written to lose one file.
        let limit = self.options.max_compaction_bytes();
        let mut bytes = 0u64;
        let mut bytes_per_lost = u64::MAX;
        let mut count = 0;
        for file in files.iter().take_while(|f| !f.is_busy()) {
            bytes = bytes.saturating_add(file.size);
            let per_lost = bytes.checked_div(count as u64).unwrap_or(u64::MAX);
            if per_lost > bytes_per_lost || bytes > limit {
                break;
            }
            bytes_per_lost = per_lost;
            count += 1;
        }
        if count < INTRA_LEVEL0_FILES_MIN {
            return None;
        }
        let inputs = files[..count].to_vec();
        Some(self.finish(0, 0, inputs, Vec::new(), Reason::IntraL0, 0.0))
    }

    /// From the oldest file of level 0 on, those that touch neither each other nor the output
    /// level: they can be moved while the others stay.
    fn plan_level0_move(&self, score: f64) -> Option<Plan> {
        let base = self.targets.base_level;
        if !self.options.compression_per_level.is_empty() || self.version.num_files(base) == 0 {
            return None;
        }
        let mut files: Files = Vec::new();
        let mut range: Option<KeyRange> = None;
        for f in self.version.files(0).iter().rev() {
            let own = KeyRange {
                smallest: f.smallest.clone(),
                largest: f.largest.clone(),
            };
            if files.iter().any(|g| files_meet(self.icmp(), f, g)) {
                break;
            }
            let all = match range.take() {
                Some(r) => r.union(self.icmp(), own),
                None => own,
            };
            if !self.version.overlapping_range(base, &all).is_empty() {
                break;
            }
            range = Some(all);
            files.push(Arc::clone(f));
        }
        files.sort_by(|a, b| self.icmp().compare(&a.smallest, &b.smallest));
        if files.is_empty() || !self.is_free(&files, base) {
            return None;
        }
        let plan = self.finish(0, base, files, Vec::new(), Reason::LevelL0FilesNum, score);
        plan.trivial_move.then_some(plan)
    }

    /// True if nobody compacts these files, nor writes to `output_level` over their keys.
    fn is_free(&self, files: &[Arc<FileMeta>], output_level: usize) -> bool {
        let Some(range) = KeyRange::of(self.icmp(), files) else {
            return true;
        };
        !is_busy(files)
            && !self.running.iter().any(|r| {
                r.output_level == output_level && ranges_meet(&self.icmp().user, &r.range, &range)
            })
    }

    /// A plan around `inputs`, files of `start_level`; `None` if another compaction is in the
    /// way.
    fn plan(
        &self,
        start_level: usize,
        output_level: usize,
        inputs: &[Arc<FileMeta>],
        reason: Reason,
        score: f64,
    ) -> Option<Plan> {
        if start_level == 0 && self.level0_is_taken() {
            return None;
        }
        let mut inputs = self.version.clean_cut(start_level, inputs);
        if !self.is_free(&inputs, output_level) {
            return None;
        }
        let mut outputs = Vec::new();
        if output_level != start_level {
            outputs = self.overlapping(output_level, &inputs);
            if !outputs.is_empty() {
                self.expand(start_level, output_level, &mut inputs, &outputs);
            } else if start_level > 0 && reason != Reason::ManualCompaction {
                self.expand_move(start_level, output_level, &mut inputs);
            }
        }
        let all: Files = inputs.iter().chain(&outputs).cloned().collect();
        if !self.is_free(&all, output_level) {
            return None;
        }
        Some(self.finish(start_level, output_level, inputs, outputs, reason, score))
    }

    /// The files of a level that meet `files`, as a clean cut.
    fn overlapping(&self, level: usize, files: &[Arc<FileMeta>]) -> Files {
        let Some(range) = KeyRange::of(self.icmp(), files) else {
            return Vec::new();
        };
        self.version
            .clean_cut(level, self.version.overlapping_range(level, &range))
    }

    /// Takes more of the start level where that adds nothing to the output level.
    fn expand(&self, start: usize, output: usize, inputs: &mut Files, outputs: &[Arc<FileMeta>]) {
        let icmp = self.icmp();
        let Some(all) = range_of(icmp, [inputs.as_slice(), outputs].into_iter()) else {
            return;
        };
        let limit = self.options.max_compaction_bytes().saturating_mul(2);
        let outputs_bytes = total_bytes(outputs);
        let worth = |more: &Files| {
            more.len() > inputs.len()
                && !is_busy(more)
                && outputs_bytes.saturating_add(total_bytes(more)) < limit
        };
        let more = if start == 0 {
            let (begin, end) = (all.smallest_user_key(), all.largest_user_key());
            self.version.overlapping_inputs(0, Some(begin), Some(end))
        } else {
            self.version
                .clean_cut(start, self.version.overlapping_range(start, &all))
        };
        if worth(&more) && self.overlapping(output, &more).len() == outputs.len() {
            *inputs = more;
            return;
        }
        if start == 0 {
            return;
        }
        // Those that lie wholly inside, without the ones that share a key with one outside.
        let inside = |f: &&Arc<FileMeta>| {
            icmp.compare(&f.smallest, &all.smallest).is_ge()
                && icmp.compare(&f.largest, &all.largest).is_le()
        };
        let mut more: Files = self
            .version
            .overlapping_range(start, &all)
            .iter()
            .filter(inside)
            .cloned()
            .collect();
        let leaks = |edge: &Arc<FileMeta>, within: &Files| {
            let cut = self.version.clean_cut(start, std::slice::from_ref(edge));
            cut.iter()
                .any(|f| !within.iter().any(|w| w.number == f.number))
        };
        while more.first().is_some_and(|f| leaks(f, &more)) {
            more.remove(0);
        }
        while more.last().is_some_and(|f| leaks(f, &more)) {
            more.pop();
        }
        if worth(&more) {
            *inputs = more;
        }
    }

    /// Takes neighbours along that can be moved too.
    fn expand_move(&self, start: usize, output: usize, inputs: &mut Files) {
        if inputs.len() != 1 || !self.options.compression_per_level.is_empty() {
            return;
        }
        let files = self.version.files(start);
        let Some(at) = self.version.level(start).position(inputs[0].number) else {
            return;
        };
        let mut bytes = inputs[0].size;
        let mut take = |inputs: &mut Files, file: &Arc<FileMeta>, in_front: bool| -> bool {
            bytes = bytes.saturating_add(file.size);
            let mut more = inputs.clone();
            more.insert(if in_front { 0 } else { inputs.len() }, Arc::clone(file));
            let taken = more.len() <= MOVED_FILES_MAX
                && bytes <= self.options.max_compaction_bytes()
                && !file.is_busy()
                && self.version.clean_cut(start, &more).len() == more.len()
                && self.overlapping(output, &more).is_empty();
            if taken {
                *inputs = more;
            }
            taken
        };
        let _ = files[at + 1..]
            .iter()
            .take_while(|f| take(inputs, f, false))
            .count();
        let _ = files[..at]
            .iter()
            .rev()
            .take_while(|f| take(inputs, f, true))
            .count();
    }

    /// How many of the files, from the first on, make a compaction of moderate size.
    fn count_within_limit(
        &self,
        level: usize,
        output_level: usize,
        files: &[Arc<FileMeta>],
    ) -> usize {
        let limit = self.options.max_compaction_bytes();
        let within = |count: usize| {
            let bytes = total_bytes(&files[..count]);
            if level == output_level {
                return bytes <= limit;
            }
            let range = KeyRange::of(self.icmp(), &files[..count]).expect("one file at least");
            let below = self.version.overlapping_range(output_level, &range);
            bytes.saturating_add(total_bytes(below)) <= limit
        };
        // Bytes only grow with the count: the first one is always taken.
        let (mut taken, mut too_many) = (1, files.len() + 1);
        while too_many - taken > 1 {
            let middle = taken.midpoint(too_many);
            if within(middle) {
                taken = middle;
            } else {
                too_many = middle;
            }
        }
        taken
    }

    /// Fills in what follows from the files.
    fn finish(
        &self,
        start_level: usize,
        output_level: usize,
        inputs: Files,
        outputs: Files,
        reason: Reason,
        score: f64,
    ) -> Plan {
        let range = range_of(self.icmp(), [inputs.as_slice(), &outputs].into_iter())
            .expect("a plan has inputs");
        let grandparents = first_overlap_below(self.version, output_level, &range);
        // In level 0 older files lie beside the output.
        let bottommost = grandparents.is_empty() && output_level > 0;
        let trivial_move = start_level != output_level
            && outputs.is_empty()
            && self.may_move(start_level, output_level, &inputs);
        let target_file_size = match output_level {
            0 => u64::MAX,
            level => self.target_file_size(level),
        };
        let compression = self.compression(output_level);
        let is_last = output_level + 1 >= self.version.num_non_empty_levels();
        let compression_options = match &self.options.bottommost_compression_opts {
            Some(o) if is_last => *o,
            _ => self.options.compression_opts,
        };
        let mut all = vec![(start_level, inputs)];
        if !outputs.is_empty() {
            all.push((output_level, outputs));
        }
        let input_count: usize = all.iter().map(|(_, files)| files.len()).sum();
        Plan {
            start_level,
            output_level,
            inputs: all,
            reason,
            score,
            trivial_move,
            bottommost,
            is_full: input_count == self.version.total_files(),
            target_file_size,
            // Where borders below are good ends, a file may wait for one.
            max_output_file_size: if bottommost {
                target_file_size
            } else {
                target_file_size.saturating_mul(2)
            },
            max_compaction_bytes: self.options.max_compaction_bytes(),
            grandparents,
            // At the bottom tombstones stay only for snapshots.
            compact_on_deletion: self.options.compact_on_deletion.filter(|_| !bottommost),
            compression,
            compression_options,
        }
    }

    /// Whether files that meet nothing in the output level may go there as they are.
    fn may_move(&self, start_level: usize, output_level: usize, files: &[Arc<FileMeta>]) -> bool {
        if self.compression(start_level) != self.compression(output_level) {
            return false;
        }
        let overlap_each_other = start_level == 0
            && files
                .iter()
                .enumerate()
                .any(|(i, f)| files[..i].iter().any(|g| files_meet(self.icmp(), f, g)));
        // A file that meets very much below would be dear to compact from there.
        let limit = self.options.max_compaction_bytes();
        let is_light = |f: &Arc<FileMeta>| {
            output_level + 1 >= self.version.num_levels()
                || f.size
                    .saturating_add(self.overlapping_bytes(output_level + 1, f))
                    <= limit
        };
        !overlap_each_other && files.iter().all(is_light)
    }

    /// Levels count from the base level where sizes are dynamic.
    fn target_file_size(&self, level: usize) -> u64 {
        let base = self.targets.base_level;
        let dynamic = self.options.level_compaction_dynamic_level_bytes;
        let level = if dynamic && level >= base {
            level - base
        } else {
            level
        };
        self.options.target_file_size(level)
    }

    fn compression(&self, level: usize) -> CompressionType {
        compression_at(self.version, self.options, self.targets.base_level, level)
    }
}

fn is_busy(files: &[Arc<FileMeta>]) -> bool {
    files.iter().any(|f| f.is_busy())
}

fn files_meet(icmp: &InternalKeyComparator, a: &FileMeta, b: &FileMeta) -> bool {
    compare_ends(&icmp.user, &a.largest, &b.smallest).is_ge()
        && compare_ends(&icmp.user, &b.largest, &a.smallest).is_ge()
}

fn total_bytes(files: &[Arc<FileMeta>]) -> u64 {
    files.iter().fold(0, |sum, f| sum.saturating_add(f.size))
}

#[cfg(test)]
mod tests;
