//! Which level needs a compaction most, and how much work waits.
//!
//! Pure: a version and settings in, figures out. With dynamic level sizes the targets come from
//! the largest level upwards, so that the levels above the last hold about a tenth of it however
//! large it is, and level 0 goes straight to the *base level*, the first one in use.
//!
//! A score of 1 or more asks for a compaction. Source: RocksDB `db/version_set.cc`
//! (`CalculateBaseBytes`, `ComputeCompactionScore`, `EstimateCompactionBytesNeeded`).

use std::sync::Arc;

use crate::options::ColumnFamilyOptions;
use crate::version::{FileMeta, Version};

/// Scores above 1 are raised so far, to leave room for weighing them against each other.
const SCORE_SCALE: f64 = 10.0;

/// How large each level should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelTargets {
    /// Where level 0 is compacted to.
    pub base_level: usize,
    /// Bytes that each level should have at most.
    pub max_bytes: Vec<u64>,
    /// Levels from 1 to this one hold so little that they should be emptied.
    pub lowest_unnecessary_level: Option<usize>,
}

impl LevelTargets {
    /// The targets for a version.
    #[must_use]
    pub fn compute(version: &Version, options: &ColumnFamilyOptions) -> Self {
        if version.num_levels() < 2 {
            let max_bytes = vec![u64::MAX; version.num_levels()];
            return Self {
                base_level: 0,
                max_bytes,
                lowest_unnecessary_level: None,
            };
        }
        if options.level_compaction_dynamic_level_bytes {
            Self::dynamic(version, options)
        } else {
            Self::fixed(version.num_levels(), options)
        }
    }

    fn fixed(num_levels: usize, options: &ColumnFamilyOptions) -> Self {
        let base = options.max_bytes_for_level_base;
        let mut max_bytes = vec![base; num_levels];
        for level in 2..num_levels {
            max_bytes[level] = times(max_bytes[level - 1], options.max_bytes_for_level_multiplier);
        }
        Self {
            base_level: 1,
            max_bytes,
            lowest_unnecessary_level: None,
        }
    }

    fn dynamic(version: &Version, options: &ColumnFamilyOptions) -> Self {
        let num_levels = version.num_levels();
        let multiplier = options.max_bytes_for_level_multiplier;
        let mut max_bytes = vec![u64::MAX; num_levels];
        let sizes: Vec<u64> = (0..num_levels).map(|l| version.level_bytes(l)).collect();
        let Some(first_non_empty) = (1..num_levels).find(|&l| sizes[l] > 0) else {
            // Level 0 goes to the last level, and nothing else moves.
            let base_level = num_levels - 1;
            return Self {
                base_level,
                max_bytes,
                lowest_unnecessary_level: None,
            };
        };
        let base_max = options.max_bytes_for_level_base;
        let base_min = (base_max as f64 / multiplier) as u64;

        // The last level's target is the size of the largest level.
        let mut size = sizes[1..].iter().copied().max().unwrap_or(0);
        let mut lowest_unnecessary_level = None;
        for level in (first_non_empty..num_levels - 1).rev() {
            size = (size as f64 / multiplier) as u64;
            if lowest_unnecessary_level.is_none() && size <= base_min {
                lowest_unnecessary_level = Some(level);
            }
        }
        let mut base_level = first_non_empty;
        let base_size = if size <= base_min {
            base_min + 1
        } else {
            while base_level > 1 && size > base_max {
                base_level -= 1;
                size = (size as f64 / multiplier) as u64;
            }
            size.clamp(1, base_max)
        };
        let mut size = base_size;
        for max in &mut max_bytes[base_level..] {
            // Never less than level 0 may have, or level 0 would fill up behind the others.
            *max = size.max(base_max);
            size = times(size, multiplier);
        }
        Self {
            base_level,
            max_bytes,
            lowest_unnecessary_level,
        }
    }
}

/// A product that stops at the largest number.
fn times(a: u64, factor: f64) -> u64 {
    (a as f64 * factor) as u64
}

/// A file's bytes and those below that its range tombstones delete: it is worth more to move.
#[must_use]
pub fn compensated_size(file: &FileMeta) -> u64 {
    file.size
        .saturating_add(file.compensated_range_deletion_size)
}

fn idle(files: &[Arc<FileMeta>]) -> impl Iterator<Item = &Arc<FileMeta>> {
    files.iter().filter(|f| !f.is_busy())
}

/// How much each level asks for a compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The targets that the scores measure against.
    pub targets: LevelTargets,
    /// Level and score, the highest score first; the last level never asks.
    pub levels: Vec<(usize, f64)>,
    /// Bytes that compactions must rewrite until every level is within its target, about.
    pub pending_compaction_bytes: u64,
}

impl Scores {
    /// The scores of a version, without the files that are being compacted.
    #[must_use]
    pub fn compute(version: &Version, options: &ColumnFamilyOptions) -> Self {
        let targets = LevelTargets::compute(version, options);
        let mut levels = Vec::new();
        let mut incoming = 0.0;
        for level in 0..version.num_levels().saturating_sub(1) {
            let score = if level == 0 {
                level0_score(version, options, &targets)
            } else if options.level_compaction_dynamic_level_bytes {
                dynamic_score(version, level, &targets, incoming)
            } else {
                idle_bytes(version, level) as f64 / targets.max_bytes[level] as f64
            };
            let bytes = version.level_bytes(level);
            incoming += if level == 0 || targets.lowest_unnecessary_level >= Some(level) {
                bytes as f64
            } else {
                bytes.saturating_sub(targets.max_bytes[level]) as f64
            };
            levels.push((level, score));
        }
        levels.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self {
            levels,
            pending_compaction_bytes: pending_bytes(version, options, &targets),
            targets,
        }
    }

    /// True if a level asks for a compaction; files may be due beside it, see
    /// [`super::marks::due`].
    #[must_use]
    pub fn needs_compaction(&self) -> bool {
        self.levels.first().is_some_and(|&(_, score)| score >= 1.0)
    }
}

fn idle_bytes(version: &Version, level: usize) -> u64 {
    idle(version.files(level)).fold(0, |sum, f| sum.saturating_add(compensated_size(f)))
}

fn level0_score(version: &Version, options: &ColumnFamilyOptions, targets: &LevelTargets) -> f64 {
    let count = idle(version.files(0)).count();
    let bytes = idle_bytes(version, 0);
    let mut score = count as f64 / options.level0_file_num_compaction_trigger.max(1) as f64;
    if !options.level_compaction_dynamic_level_bytes {
        return score.max(bytes as f64 / options.max_bytes_for_level_base as f64);
    }
    if bytes >= options.max_bytes_for_level_base {
        score = score.max(1.01);
    }
    let base_target = targets.max_bytes[targets.base_level];
    if bytes > base_target {
        // Larger than the base level: level 0 goes first.
        let base_files = version.files(targets.base_level);
        let base_bytes = base_files.iter().map(|f| compensated_size(f)).sum::<u64>();
        score = score.max(bytes as f64 / base_bytes.max(base_target) as f64);
    }
    if score > 1.0 {
        score * SCORE_SCALE
    } else {
        score
    }
}

fn dynamic_score(version: &Version, level: usize, targets: &LevelTargets, incoming: f64) -> f64 {
    let bytes = idle_bytes(version, level);
    let target = targets.max_bytes[level];
    let mut score = bytes as f64 / target as f64;
    if bytes >= target {
        // What comes from above anyway makes this level less urgent.
        score = bytes as f64 / (target as f64 + incoming) * SCORE_SCALE;
    }
    match targets.lowest_unnecessary_level {
        Some(lowest) if bytes > 0 && level <= lowest => {
            score.max(SCORE_SCALE * (1.001 + 0.001 * (lowest - level) as f64))
        }
        _ => score,
    }
}

/// Follows the bytes that are too many from level to level.
fn pending_bytes(version: &Version, options: &ColumnFamilyOptions, targets: &LevelTargets) -> u64 {
    let num_levels = version.num_levels();
    if num_levels < 2 {
        return 0;
    }
    let level0 = version.level_bytes(0);
    let triggered = version.num_files(0) >= options.level0_file_num_compaction_trigger
        || level0 >= options.max_bytes_for_level_base;
    let mut moving = if triggered { level0 } else { 0 };
    let mut pending = moving;
    for level in targets.base_level..num_levels - 1 {
        let own = version.level_bytes(level);
        if level == targets.base_level && triggered {
            pending = pending.saturating_add(own);
        }
        let size = own.saturating_add(moving);
        moving = size.saturating_sub(targets.max_bytes[level]);
        let next = version.level_bytes(level + 1);
        if moving > 0 && next > 0 {
            let fan_out = next as f64 / size as f64;
            pending = pending.saturating_add((moving as f64 * (fan_out + 1.0)) as u64);
        }
    }
    pending
}

#[cfg(test)]
mod tests;
