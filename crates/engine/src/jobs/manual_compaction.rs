//! A compaction that a user asked for: level by level down to the last one with data.

use std::sync::Arc;

use orogen_base::{Error, Result};

use crate::column_family::ColumnFamilyData;
use crate::compact::leveled::RangeRequest;
use crate::compact::{self, LevelTargets, RangePick, Running, Scores};
use crate::context::Context;
use crate::jobs::compaction::CompactionJob;
use crate::obsolete;
use crate::options::{BottommostLevelCompaction, CompactRangeOptions};

/// Compacts the keys from `begin` to `end` of a family. Automatic compactions of the family wait
/// meanwhile.
///
/// # Errors
/// `ReadOnly`, `Closed`, or what a compaction met; steps done so far stay.
pub(crate) fn compact_range(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    options: &CompactRangeOptions,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
) -> Result<()> {
    let _job = context.enter_job()?;
    family.state().manual_compactions += 1;
    let result = run(context, family, options, begin, end);
    family.state().manual_compactions -= 1;
    obsolete::purge(context);
    context.work.raise();
    context.progress.raise();
    result.inspect_err(|e| {
        if e.kind() != orogen_base::ErrorKind::Aborted && !context.is_closing() {
            context.fail(e);
        }
    })
}

fn run(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    options: &CompactRangeOptions,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
) -> Result<()> {
    let version = family.state().version.clone();
    let last = (0..version.num_levels())
        .rev()
        .find(|&l| version.has_overlap(l, begin, end));
    let Some(mut last) = last else { return Ok(()) };
    let made_from = context.set.new_file_number();
    let rewrite_last = match options.bottommost_level_compaction {
        BottommostLevelCompaction::Skip => false,
        BottommostLevelCompaction::IfHaveCompactionFilter => {
            family.options.compaction_filter_factory.is_some()
        }
        BottommostLevelCompaction::Force => true,
    };
    let may_move = family.options.compaction_filter_factory.is_none();
    let mut level = 0;
    while level <= last {
        let output_level = if level == 0 {
            let version = family.state().version.clone();
            let base = LevelTargets::compute(&version, &family.options).base_level;
            last = last.max(base);
            base
        } else if level == last {
            if !rewrite_last {
                break;
            }
            level
        } else {
            level + 1
        };
        let request = RangeRequest {
            level,
            output_level,
            begin,
            end,
            made_from: (output_level == level).then_some(made_from),
            allow_trivial_move: may_move,
        };
        compact_level(context, family, options, &request)?;
        level = if level == 0 {
            output_level.max(1)
        } else {
            level + 1
        };
    }
    Ok(())
}

/// Compacts the range of one level, step by step.
fn compact_level(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    options: &CompactRangeOptions,
    request: &RangeRequest<'_>,
) -> Result<()> {
    let mut from: Option<Vec<u8>> = request.begin.map(<[u8]>::to_vec);
    loop {
        let seen = context.progress.count();
        context.check_writable()?;
        if family.is_dropped() {
            return Err(Error::aborted("column family was dropped"));
        }
        let step = {
            let mut state = family.state();
            let running: Vec<Running> = state.running.iter().map(|r| r.1.clone()).collect();
            let request = RangeRequest {
                begin: from.as_deref(),
                ..*request
            };
            let version = state.version.clone();
            match compact::pick_range(&version, &family.options, &running, &request) {
                RangePick::Nothing => return Ok(()),
                RangePick::Conflict => None,
                RangePick::Plan(plan, next) => {
                    let id = context.new_job_id();
                    plan.mark_inputs(true);
                    state.running.push((id, plan.running(&family.icmp)));
                    let parts = options.max_subcompactions;
                    Some((
                        CompactionJob::of_plan(family, version, *plan, id, parts),
                        next,
                    ))
                }
            }
        };
        let Some((job, next)) = step else {
            context.progress.wait_after(seen);
            continue;
        };
        job.run(context)?;
        context.progress.raise();
        match next {
            Some(key) => from = Some(key),
            None => return Ok(()),
        }
    }
}

/// Waits until no flush and no compaction is due or running.
///
/// # Errors
/// What background work met; `Closed`.
pub(crate) fn wait_until_idle(context: &Context) -> Result<()> {
    loop {
        let seen = context.progress.count();
        context.check_writable()?;
        context.work.raise();
        let busy = context.set.families().iter().any(|family| {
            let state = family.state();
            let flushes = state.flushing
                || state.imm.len() >= family.options.min_write_buffer_number_to_merge.max(1)
                || (!state.imm.is_empty()
                    && state.imm.len() + 1 >= family.options.max_write_buffer_number)
                || state
                    .imm
                    .first()
                    .is_some_and(|m| m.id <= state.flush_requested_up_to);
            if flushes || !state.running.is_empty() || state.manual_compactions > 0 {
                return true;
            }
            let scores = Scores::compute(&state.version, &family.options);
            !family.options.disable_auto_compactions
                && compact::pick(&state.version, &family.options, &scores, &[]).is_some()
        });
        if !busy {
            return Ok(());
        }
        context.progress.wait_after(seen);
    }
}
