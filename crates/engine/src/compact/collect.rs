//! Which blob files are emptied for the garbage in them, and which tables are rewritten for that.
//!
//! Pure: a version, settings, and what each table points to in; a step out. Three rounds:
//!
//! ```text
//! choose   files by their share of garbage, and small ones to be merged        from the MANIFEST
//! select   the idle tables below level 0 that point to them, those first that
//!          bring most values along for each byte of their own                  from their properties
//! judge    is what goes worth what is written? Else the files behind are chosen
//! ```
//! A step rewrites each of its tables where it is: the values of the chosen files go to new ones,
//! everything else passes as it is, sequence numbers stay. So snapshots, tombstones and what is in
//! memory have no part in it, and a file's garbage is exact after each step.
//!
//! 1. Every step takes values out of the files that it is made for, and what it writes has no garbage:
//!    whatever the settings, steps come to an end.
//! 2. Files that are taken only because they are small are emptied whole by one step, and no step writes as many as it empties:
//!    what counts as small is at most half of what a new file gets.
//! 3. A step by itself holds its tables for some seconds, also where a limiter leaves compactions little, and none
//!    begins while level 0 waits for a compaction: that tells of garbage, and the step may have the tables below.
//! 4. Level 0 is left alone: writers wait for who takes tables from there. What it points to comes
//!    down by itself, and [`super::blobs::emptied`] moves values of the chosen files on the way. While it is fed, the
//!    level below it is left alone, too: a step would hold the tables that the next compaction needs, and that one
//!    takes along what the step would.
//!
//! Source of the choice: Titan `blob_gc_picker.cc`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use orogen_base::{FileNo, Result};

use crate::options::ColumnFamilyOptions;
use crate::version::blob_counts::BlobCounts;
use crate::version::{FileMeta, Version};

/// Bytes of tables that may be rewritten for each byte that comes free.
const TABLE_BYTES_PER_FREED: u64 = 4;
/// The ratio where nobody has said one: as much is written as comes free.
const AUTO_RATIO: f64 = 0.5;
/// The same while flushes wait for what a limiter lets through: a quarter is written of what comes free. The rest can
/// wait until they do not.
const AUTO_RATIO_BESIDE_FLUSHES: f64 = 0.8;
/// The share of garbage in all files from which on the worst of them are emptied where nobody has said a ratio. Files that
/// were written one after the other have less on average while each goes at half; those of a load
/// come to half all at once, and would take twice what lives in them.
const AUTO_SHARE: f64 = 0.25;
/// Small files that are no harm where nobody has said a ratio: merging them writes all of them once more and frees
/// nothing, and where values are updated they empty themselves.
const AUTO_SMALL_FILES: usize = 256;
/// Where blob files have so many times the bytes that live in them, steps wait for no compaction.
const SPARED_UP_TO: u64 = 2;
/// The same of so many small files, which no compaction merges.
const SPARED_SMALL_FILES: usize = 4 * AUTO_SMALL_FILES;
/// Seconds that a step may take for what it writes.
const STEP_SECS: u64 = 2;
/// Tables of a step.
const TABLES_MAX: usize = 256;
/// Batches of files that are tried until one can be emptied.
const CHOICES_MAX: usize = 8;

/// How much else there is to do: the less, the more is worth collecting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lull {
    /// Flushes wait for what the rate limiter lets through.
    None,
    /// They do not.
    Short,
    /// Nothing was flushed for a while, or somebody waits for all that is ever done.
    Long,
}

/// What is to be collected, and in which portions.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The share of garbage from which on a file is emptied; 1.0 and more: none is, nor merged.
    pub discardable_ratio: f64,
    /// The share of garbage in all files beyond which those with as much are emptied, too, the worst first; 1.0: never.
    pub garbage_share_max: f64,
    /// Bytes of files that are worth a step, unless what lives in them fills a new file.
    pub min_batch_bytes: u64,
    /// Bytes of files beyond which no more are chosen.
    pub max_batch_bytes: u64,
    /// Files of fewer bytes are merged.
    pub small_file_bytes: u64,
    /// But not while there are so many at most.
    pub small_files_max: usize,
    /// Bytes of padding that a value of a new file has at most.
    pub padding_max: u64,
    /// Bytes of a new file; a step takes no more tables when it moves as many.
    pub output_bytes: u64,
    /// Bytes of tables that a step rewrites, about.
    pub table_bytes_max: u64,
    /// Whatever it costs.
    pub at_any_cost: bool,
    /// Nobody has said a ratio.
    pub by_cost: bool,
    /// Only files with lower numbers.
    pub made_before: FileNo,
    /// No files that wait until dead places were looked for in them.
    pub after_holes: bool,
    /// Those count as looked through whose holes wait until no flushes come.
    pub flushes_come: bool,
    /// Tables of this level are left alone, for compactions that come by.
    pub spared_level: Option<usize>,
}

/// What the blob files of a family take, and what they may.
///
/// Padding counts as what it is, bytes on disk. But that of live values comes back in no way: where it takes
/// more than half of what `max_space_amp` leaves for garbage, or more than all, garbage is still
/// given that half. Else values would be moved, and writers slowed, for a bound that cannot be held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    /// Bytes that the files take, padding included.
    pub disk_bytes: f64,
    /// The most that they should.
    pub most_bytes: f64,
    /// The part of the records that is garbage where they take as much.
    pub garbage_share: f64,
}

impl Ceiling {
    /// `None` without a bound, and without blob files.
    #[must_use]
    pub fn of(version: &Version, max_space_amp: f64) -> Option<Self> {
        let (records, live) = version.blob_space();
        if max_space_amp <= 0.0 || records == 0 {
            return None;
        }
        let padding = version.blob_padding() as f64;
        let with_padding = 1.0 + padding / records as f64;
        let least = with_padding * (1.0 + (max_space_amp - 1.0) / 2.0);
        let amp = max_space_amp.max(least);
        Some(Self {
            disk_bytes: records as f64 + padding,
            most_bytes: live as f64 * amp,
            garbage_share: 1.0 - with_padding / amp,
        })
    }
}

impl Rules {
    /// Those of a family's settings, for this version of it.
    #[must_use]
    pub fn of(version: &Version, options: &ColumnFamilyOptions) -> Self {
        let rules = Self::without_ceiling(options);
        let ceiling = Ceiling::of(version, options.max_space_amp);
        let Some(ceiling) = ceiling.filter(|c| c.disk_bytes > c.most_bytes) else {
            return rules;
        };
        // Beyond the ceiling some file has more garbage than the ceiling allows on average.
        Self {
            discardable_ratio: rules.discardable_ratio.min(ceiling.garbage_share),
            min_batch_bytes: 0,
            at_any_cost: true,
            after_holes: false,
            ..rules
        }
    }

    /// Those of a family's settings where its ceiling is not held.
    #[must_use]
    pub fn without_ceiling(options: &ColumnFamilyOptions) -> Self {
        let is_auto = options.chooses_gc_by_cost();
        Self {
            discardable_ratio: match is_auto {
                true => AUTO_RATIO,
                false => options.blob_file_discardable_ratio,
            },
            garbage_share_max: match is_auto {
                true => AUTO_SHARE,
                false => 1.0,
            },
            after_holes: is_auto && options.punches_holes(),
            flushes_come: true,
            min_batch_bytes: options.min_gc_batch_size,
            max_batch_bytes: options.max_gc_batch_size,
            small_file_bytes: options
                .merge_small_file_threshold
                .min(options.blob_file_size / 2),
            small_files_max: match is_auto {
                true => AUTO_SMALL_FILES,
                false => 0,
            },
            padding_max: u64::from(options.blob_record_alignment.saturating_sub(1)),
            output_bytes: options.blob_file_size,
            table_bytes_max: options.max_compaction_bytes(),
            at_any_cost: false,
            by_cost: is_auto,
            made_before: FileNo::MAX,
            spared_level: None,
        }
    }

    /// The same for steps that hold tables no longer than some seconds, where jobs may write so many bytes in a
    /// second.
    #[must_use]
    pub fn paced(self, write_rate: u64) -> Self {
        let bytes = write_rate
            .saturating_mul(STEP_SECS)
            .max(self.min_batch_bytes);
        Self {
            max_batch_bytes: self.max_batch_bytes.min(bytes),
            ..self
        }
    }

    /// The same in a lull: less where flushes wait for what such steps write, and holes first where none come.
    #[must_use]
    pub fn in_lull(self, lull: Lull) -> Self {
        let rules = Self {
            flushes_come: lull < Lull::Long,
            ..self
        };
        match lull == Lull::None && self.by_cost && !self.at_any_cost {
            true => Self {
                discardable_ratio: self.discardable_ratio.max(AUTO_RATIO_BESIDE_FLUSHES),
                garbage_share_max: 1.0,
                ..rules
            },
            false => rules,
        }
    }

    /// The same beside flushes of the family: the tables that level 0 comes down to are left to compactions, which
    /// take values along and would wait for a step. But not beyond a ceiling, nor where there is so much garbage that
    /// compactions do not come by it, nor where there are very many small files.
    #[must_use]
    pub fn beside_flushes(self, version: &Version, base_level: usize) -> Self {
        let (records, live) = version.blob_space();
        let small = version.blob_files().values();
        let small = small.filter(|b| b.disk_bytes() < self.small_file_bytes);
        let is_spared = !self.at_any_cost
            && records <= live.saturating_mul(SPARED_UP_TO)
            && small.count() <= SPARED_SMALL_FILES;
        Self {
            spared_level: is_spared.then_some(base_level),
            ..self
        }
    }

    /// True if a step may rewrite a table of this level.
    fn may_take(&self, level: usize) -> bool {
        level != 0 && self.spared_level != Some(level)
    }

    fn is_off(&self) -> bool {
        self.discardable_ratio >= 1.0
    }
}

/// A file that was chosen.
#[derive(Clone, Copy, Debug)]
struct Victim {
    live_bytes: u64,
    garbage_bytes: u64,
    /// It has not the garbage, but is small.
    is_merged: bool,
}

impl Victim {
    fn bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.garbage_bytes)
    }
}

/// Files that are to be emptied.
#[derive(Clone, Debug, Default)]
pub struct Victims(BTreeMap<FileNo, Victim>);

impl Victims {
    fn sum(&self, of: impl Fn(&Victim) -> u64) -> u64 {
        self.0.values().map(of).fold(0, u64::saturating_add)
    }

    /// True if they are worth a step.
    fn are_enough(&self, rules: &Rules) -> bool {
        let merges_one = self.0.len() == 1 && self.0.values().all(|v| v.is_merged);
        let many = self.sum(Victim::bytes) >= rules.min_batch_bytes
            || self.sum(|v| v.live_bytes) >= rules.output_bytes;
        !self.0.is_empty() && !merges_one && many
    }

    /// Their numbers.
    #[must_use]
    pub fn numbers(&self) -> HashSet<FileNo> {
        self.0.keys().copied().collect()
    }
}

/// Files of which so much is garbage that they are emptied. Damaged ones are left alone.
#[must_use]
pub fn discardable(version: &Version, rules: &Rules) -> HashSet<FileNo> {
    let all = ranked(version, rules, &HashSet::new()).into_iter();
    all.filter(|(_, v)| !v.is_merged).map(|(n, _)| n).collect()
}

/// The same, the worst first, as many as have no more bytes in `inputs` than `bytes`, and one at least. So a
/// compaction, for which writers may wait, takes no longer than twice what it would.
#[must_use]
pub fn discardable_within(
    version: &Version,
    rules: &Rules,
    inputs: &BlobCounts,
    bytes: u64,
) -> HashSet<FileNo> {
    let mut left = bytes;
    let mut chosen = HashSet::new();
    for (number, victim) in ranked(version, rules, &HashSet::new()) {
        let moved = inputs.of(number).bytes;
        if victim.is_merged || moved == 0 || (moved > left && !chosen.is_empty()) {
            continue;
        }
        left = left.saturating_sub(moved);
        chosen.insert(number);
    }
    chosen
}

/// All files that may be chosen but for some that are left, those with the most garbage first, those to be merged last.
fn ranked(version: &Version, rules: &Rules, left: &HashSet<FileNo>) -> Vec<(FileNo, Victim)> {
    if rules.is_off() {
        return Vec::new();
    }
    let mut found: Vec<(FileNo, Victim)> = Vec::new();
    for (&number, blob) in version.blob_files() {
        // What is damaged stays in its file, however often that is tried.
        let is_left = left.contains(&number) || blob.file.damaged.get();
        if is_left || number >= rules.made_before {
            continue;
        }
        if rules.after_holes && blob.waits_for_holes(rules.flushes_come) {
            continue;
        }
        // What was given up as holes has come free already.
        let holes = blob.holes();
        let garbage = blob.garbage_blob_bytes - holes;
        let total = blob.disk_bytes();
        // Without any, a ratio of 0 would have them written anew for ever.
        let ratio = rules.discardable_ratio.min(rules.garbage_share_max);
        let has_much = garbage > 0 && garbage as f64 >= ratio * total as f64;
        // Its padding is not told, but new files will have as much: else files that are full of it would be
        // merged for ever.
        let padding = blob.addition().total_blob_count;
        let padding = padding.saturating_mul(rules.padding_max);
        if has_much || total.saturating_add(padding) < rules.small_file_bytes {
            let victim = Victim {
                live_bytes: blob.live_bytes(),
                garbage_bytes: garbage,
                is_merged: !has_much,
            };
            found.push((number, victim));
        }
    }
    let small = found.iter().filter(|(_, v)| v.is_merged).count();
    if small <= rules.small_files_max {
        found.retain(|(_, v)| !v.is_merged);
    }
    let share = |v: &Victim| v.garbage_bytes as f64 / v.bytes().max(1) as f64;
    found.sort_by(|(_, a), (_, b)| {
        let by_share = share(b).total_cmp(&share(a));
        a.is_merged.cmp(&b.is_merged).then(by_share)
    });
    let (records, live) = version.blob_space();
    let (mut records, live) = (records as f64, live as f64);
    found.retain(|(_, v)| {
        let is_for_itself = v.is_merged || share(v) >= rules.discardable_ratio;
        let is_chosen = is_for_itself || records - live > rules.garbage_share_max * records;
        if is_chosen && !v.is_merged {
            records -= v.garbage_bytes as f64;
        }
        is_chosen
    });
    found
}

/// The files to empty next, but for some that are left; `None` if it is not worth it yet.
#[must_use]
pub fn choose(version: &Version, rules: &Rules, left: &HashSet<FileNo>) -> Option<Victims> {
    let mut chosen = Victims::default();
    let mut bytes = 0u64;
    for (number, victim) in ranked(version, rules, left) {
        if bytes >= rules.max_batch_bytes && !chosen.0.is_empty() {
            break;
        }
        bytes = bytes.saturating_add(victim.bytes());
        chosen.0.insert(number, victim);
    }
    chosen.are_enough(rules).then_some(chosen)
}

/// True if there are tables with pointers that a step may rewrite.
#[must_use]
pub fn may_rewrite(version: &Version, rules: &Rules) -> bool {
    let mut files = version.iter_files();
    files.any(|(level, file)| rules.may_take(level) && file.oldest_blob_file_number != 0)
}

/// True if level 0 has as many idle tables as a compaction waits for.
#[must_use]
pub fn level0_waits(version: &Version, options: &ColumnFamilyOptions) -> bool {
    let idle = version.files(0).iter().filter(|f| !f.is_busy());
    idle.count() >= options.level0_file_num_compaction_trigger
}

/// Tables that are rewritten together.
#[derive(Clone, Debug)]
pub struct Step {
    /// The files whose values are moved.
    pub victims: HashSet<FileNo>,
    /// So many of them only because they are small.
    pub merged: usize,
    /// The tables, by level and in key order.
    pub tables: Vec<(usize, Arc<FileMeta>)>,
    /// Bytes of values that they bring along, with their padding in a new file.
    pub moved_bytes: u64,
    /// Bytes of all tables that point to the files, as far as they are idle.
    pub bytes_ahead: u64,
}

/// What there is to do.
#[derive(Clone, Debug)]
pub enum Selected {
    /// Nothing that is worth it.
    Nothing,
    /// Nothing now: jobs have the tables.
    Busy,
    /// This.
    Step(Step),
}

/// A table that points to blob files.
#[derive(Clone, Copy)]
struct Pointing<'v> {
    level: usize,
    file: &'v Arc<FileMeta>,
    counts: &'v BlobCounts,
    /// Of the files that are chosen.
    moved_bytes: u64,
}

impl Pointing<'_> {
    /// Bytes of padding that what it brings along has in a new file, at most.
    fn padding_max(&self, victims: &Victims, rules: &Rules) -> u64 {
        let chosen = self.counts.iter();
        let chosen = chosen.filter(|(n, _)| victims.0.contains_key(n));
        let values: u64 = chosen.map(|(_, c)| c.values).sum();
        values.saturating_mul(rules.padding_max)
    }

    fn density(&self) -> f64 {
        self.moved_bytes as f64 / self.file.size.max(1) as f64
    }
}

/// The files to empty, and the tables to rewrite for that, or some of the way. `references` tells what a table
/// points to. Where the worst files cannot be emptied, or are not worth it, those behind them have their turn.
///
/// # Errors
/// Those of `references`.
pub fn select(
    version: &Version,
    rules: &Rules,
    references: &mut dyn FnMut(&FileMeta) -> Result<BlobCounts>,
) -> Result<Selected> {
    let mut left = HashSet::new();
    if choose(version, rules, &left).is_none() {
        return Ok(Selected::Nothing);
    }
    let mut tables = Vec::new();
    for (level, file) in version.iter_files() {
        let has_pointers = file.oldest_blob_file_number != 0;
        if !rules.may_take(level) || !has_pointers || file.damaged.get() {
            continue;
        }
        tables.push((level, file, references(file)?));
    }
    let all = tables.iter().map(|(level, file, counts)| Pointing {
        level: *level,
        file,
        counts,
        moved_bytes: 0,
    });
    let all: Vec<Pointing<'_>> = all.collect();
    let of_all = all.iter().flat_map(|t| t.counts.iter());
    let reached: HashSet<FileNo> = of_all.map(|(number, _)| number).collect();
    let blobs = version.blob_files().keys();
    left.extend(blobs.filter(|number| !reached.contains(number)));
    let mut is_busy = false;
    for _ in 0..CHOICES_MAX {
        let Some(victims) = choose(version, rules, &left) else {
            break;
        };
        let numbers = victims.numbers();
        match step_for(version, rules, victims, &all) {
            Selected::Nothing => {}
            Selected::Busy => is_busy = true,
            step @ Selected::Step(_) => return Ok(step),
        }
        left.extend(numbers);
    }
    Ok(match is_busy {
        true => Selected::Busy,
        false => Selected::Nothing,
    })
}

/// The idle ones of `tables` to rewrite so that `victims` are emptied, or some of the way.
fn step_for(
    version: &Version,
    rules: &Rules,
    mut victims: Victims,
    tables: &[Pointing<'_>],
) -> Selected {
    let points = |t: &&Pointing<'_>| t.counts.iter().any(|(n, _)| victims.0.contains_key(&n));
    let (busy, mut tables): (Vec<_>, Vec<_>) = tables
        .iter()
        .filter(points)
        .copied()
        .partition(|t| t.file.is_busy());
    let none = match busy.is_empty() {
        true => Selected::Nothing,
        false => Selected::Busy,
    };
    let bytes_ahead = tables.iter().map(|t| t.file.size).sum();
    loop {
        if !victims.are_enough(rules) {
            return none;
        }
        let taken = densest(&mut tables, &victims, rules);
        let covered = covered_bytes(&tables[..taken], &victims);
        let before = victims.0.len();
        victims.0.retain(|number, victim| {
            let all = covered.get(number).copied().unwrap_or(0) >= victim.live_bytes;
            all || !victim.is_merged
        });
        if victims.0.len() < before {
            continue;
        }
        tables.truncate(taken);
        let makes_progress = {
            let (merged, emptied): (Vec<_>, Vec<_>) = victims
                .0
                .iter()
                .filter(|(number, _)| covered.contains_key(number))
                .partition(|(_, v)| v.is_merged);
            !emptied.is_empty() || merged.len() > 1
        };
        if !makes_progress || !(rules.at_any_cost || is_worth(&tables, &victims, &covered)) {
            return none;
        }
        break;
    }
    tables.sort_by(|a, b| {
        let order = version.icmp();
        let by_key = || order.compare(&a.file.smallest, &b.file.smallest);
        a.level.cmp(&b.level).then_with(by_key)
    });
    Selected::Step(Step {
        victims: victims.numbers(),
        merged: victims.0.values().filter(|v| v.is_merged).count(),
        moved_bytes: tables
            .iter()
            .map(|t| t.moved_bytes.saturating_add(t.padding_max(&victims, rules)))
            .fold(0, u64::saturating_add),
        tables: tables.iter().map(|t| (t.level, t.file.clone())).collect(),
        bytes_ahead,
    })
}

/// Sorts the tables that bring most along for their size to the front; how many make a step.
fn densest(tables: &mut [Pointing<'_>], victims: &Victims, rules: &Rules) -> usize {
    for table in tables.iter_mut() {
        let chosen = table.counts.iter();
        let chosen = chosen.filter(|(n, _)| victims.0.contains_key(n));
        // What a table tells need not be true.
        let bytes = chosen.map(|(_, c)| c.bytes);
        table.moved_bytes = bytes.fold(0, u64::saturating_add);
    }
    tables.sort_by(|a, b| b.density().total_cmp(&a.density()));
    let (mut moved, mut rewritten) = (0u64, 0u64);
    let mut taken = 0;
    for table in tables.iter().take(TABLES_MAX) {
        let is_full = moved >= rules.output_bytes || rewritten >= rules.table_bytes_max;
        if table.moved_bytes == 0 || (is_full && taken > 0) {
            break;
        }
        moved = moved.saturating_add(table.moved_bytes);
        rewritten = rewritten.saturating_add(table.file.size);
        taken += 1;
    }
    taken
}

/// Bytes of each file that the tables point to.
fn covered_bytes(tables: &[Pointing<'_>], victims: &Victims) -> BTreeMap<FileNo, u64> {
    let mut covered = BTreeMap::new();
    for (number, count) in tables.iter().flat_map(|t| t.counts.iter()) {
        if victims.0.contains_key(&number) {
            let bytes: &mut u64 = covered.entry(number).or_default();
            *bytes = bytes.saturating_add(count.bytes);
        }
    }
    covered
}

/// True if what comes free is worth the tables that are rewritten. What is moved out of a file
/// frees its share of the garbage there; files that are merged free nothing, and are worth what is in them.
fn is_worth(tables: &[Pointing<'_>], victims: &Victims, covered: &BTreeMap<FileNo, u64>) -> bool {
    let mut freed = 0u64;
    for (number, victim) in &victims.0 {
        let moved = covered
            .get(number)
            .copied()
            .unwrap_or(0)
            .min(victim.live_bytes);
        let share = u128::from(victim.garbage_bytes) * u128::from(moved)
            / u128::from(victim.live_bytes.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        freed = freed.saturating_add(if victim.is_merged { moved } else { share });
    }
    let rewritten: u64 = tables.iter().map(|t| t.file.size).sum();
    rewritten <= freed.saturating_mul(TABLE_BYTES_PER_FREED)
}

#[cfg(test)]
mod tests;
