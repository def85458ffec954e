//! Whether dead places of blob files are looked for and given up now, or later, or left to those who move values.
//!
//! Who gives them up: [`punch`](super::punch).

use std::sync::Arc;

use orogen_env::IoPriority;

use crate::column_family::{ColumnFamilyData, Holes};
use crate::compact::collect::Lull;
use crate::context::Context;
use crate::holes::{self, Picked};
use crate::version::BlobFileMeta;
use crate::version::version::Version;

/// Looks so often whether what is held has gone: a point read that was the last tells nobody.
const WAIT_MICROS: u64 = 200_000;

/// Where marked places are kept by a reader or a backup for longer than this, values of files that were made since are moved.
const LONG_WAIT_MICROS: u64 = 2_000_000;

/// What becomes of holes of a file that were not made.
pub(crate) enum Ends {
    /// Nothing: there are none, or they are looked for again when there is a reason.
    Here,
    /// They are made when no flushes come.
    ForNow,
    /// None are made before the next open.
    ForGood,
}

/// True while something is flushed, or was within two seconds.
pub(crate) fn flushes_come(lull: Lull) -> bool {
    lull < Lull::Long
}

/// The files of a version that are to be looked at in such a lull.
pub(crate) fn find_files(
    context: &Context,
    family: &ColumnFamilyData,
    version: &Version,
    lull: Lull,
) -> Picked {
    let now = context.clock.now_micros();
    // Where nobody moves their values none are left to that.
    let leaves_waiting = flushes_come(lull) && may_move(context, family);
    let asked = family.state().holes_asked.clone();
    holes::pick(version, &family.options(), &asked, leaves_waiting, now)
}

/// True while holes are left because flushes come.
pub(crate) fn is_left(context: &Context, family: &ColumnFamilyData, lull: Lull) -> bool {
    flushes_come(lull) && is_better_moved(context, family, lull)
}

/// True if values may be moved in place of holes.
fn may_move(context: &Context, family: &ColumnFamilyData) -> bool {
    family.options().chooses_gc_by_cost() && context.db_options().max_background_gc > 0
}

/// True if values of the family are better moved. Under a limiter that takes what flushes wait for, and a
/// hole takes nothing of it: then moving has no more than what is left beside them.
pub(crate) fn is_better_moved(context: &Context, family: &ColumnFamilyData, lull: Lull) -> bool {
    let limiter = context.options.rate_limiter.as_ref();
    let write_rate = limiter.map_or(u64::MAX, |limiter| {
        limiter.bytes_per_sec_beside(IoPriority::Low)
    });
    let holes = &context.hole_punching;
    let is_slow = |flushes_come| holes.is_slow(write_rate, flushes_come);
    may_move(context, family)
        && (is_slow(false) || (flushes_come(lull) && is_slow(true)) || holes.bring_nothing())
}

/// Has no holes looked for in files any more, or not while flushes come, if holes are worth it when none do: see
/// [`crate::version::BlobFileMeta::waits_for_holes`].
pub(crate) fn leave_to_moving<'a>(
    context: &Context,
    family: &ColumnFamilyData,
    lull: Lull,
    files: impl Iterator<Item = &'a Arc<BlobFileMeta>>,
) -> Ends {
    let is_for_now = flushes_come(lull) && !is_better_moved(context, family, Lull::Long);
    let holes = &context.hole_punching;
    // Before the marks: who reads these looks for a lull then.
    let is_first = match is_for_now {
        true => holes.note_waits_for_quiet(),
        false => holes.note_given_up(),
    };
    for blob in files {
        match is_for_now {
            true => blob.file.holes_wait_for_quiet.set(true),
            false => blob.file.leave_holes.set(true),
        }
    }
    // They may be moved from here on, though the version is the same.
    family.state().nothing_to_collect = None;
    if is_first {
        let until = match is_for_now {
            true => "while flushes come: none are punched until there were none for a while",
            false => "here, or bring less: none are punched until the next open",
        };
        context.log.info(format_args!(
            "[{}] holes cost more than moving values {until}",
            family.name
        ));
    }
    match is_for_now {
        true => Ends::ForNow,
        false => Ends::ForGood,
    }
}

/// Leaves files to those who move values while marked places have waited long for a reader or a backup: nothing is marked in others
/// before they are given up. Only files that were made since, as moving values of those that the reader holds frees nothing.
pub(crate) fn note_long_waits(context: &Context, family: &ColumnFamilyData) {
    let mut state = family.state();
    let made_since = match &state.holes {
        Holes::Waiting {
            era,
            since_micros,
            made_since,
            ..
        } => {
            let is_kept = !era.is_over() || !context.hole_punching.is_allowed();
            let waited = context.clock.now_micros().saturating_sub(*since_micros);
            (is_kept && waited >= LONG_WAIT_MICROS).then_some(*made_since)
        }
        Holes::Idle | Holes::Running => None,
    };
    let version = Arc::downgrade(&state.version);
    let was_noted = match (&state.holes_wait_long, made_since) {
        (None, None) => true,
        // Writers wait for the lock: it is gone over once for each version. What is held weakly is not given out anew.
        (Some(noted), Some(_)) => noted.ptr_eq(&version),
        _ => false,
    };
    if was_noted {
        return;
    }
    let mut changes = false;
    for (_, blob) in state.version.blob_files().range(made_since.unwrap_or(0)..) {
        let waits = made_since.is_some();
        let mark = &blob.file.holes_wait_for_others;
        if mark.get() != waits {
            mark.set(waits);
            changes = true;
        }
    }
    state.holes_wait_long = made_since.map(|_| version);
    if changes {
        state.nothing_to_collect = None;
    }
}

pub(crate) fn can_begin(family: &ColumnFamilyData, context: &Context, lull: Lull) -> bool {
    let is_running = matches!(family.state().holes, Holes::Running);
    !is_running && is_busy(family, context, lull)
}

/// True while something is done or could be done in such a lull.
pub(crate) fn is_busy(family: &ColumnFamilyData, context: &Context, lull: Lull) -> bool {
    let version = {
        let state = family.state();
        match &state.holes {
            Holes::Running => return true,
            Holes::Waiting { era, .. } => {
                let is_ready = era.is_over() && context.hole_punching.is_allowed();
                if !is_ready || state.are_holes_asked() || !is_left(context, family, lull) {
                    return is_ready;
                }
                state.version.clone()
            }
            Holes::Idle => state.version.clone(),
        }
    };
    !find_files(context, family, &version, lull).files.is_empty()
}

/// True if holes could be made, and are left because flushes come.
fn waits_for_quiet(family: &ColumnFamilyData, context: &Context, lull: Lull) -> bool {
    let is_ready = {
        let state = family.state();
        let is_ready = match &state.holes {
            Holes::Waiting { era, .. } => era.is_over() && context.hole_punching.is_allowed(),
            Holes::Idle | Holes::Running => false,
        };
        is_ready && !state.are_holes_asked()
    };
    is_ready && is_left(context, family, lull)
}

/// Microseconds after which it is to be looked again.
pub(crate) fn idle_micros(context: &Context) -> u64 {
    let (families, lull) = (context.set.families(), context.lull());
    let waits = |f: &&Arc<ColumnFamilyData>| matches!(f.state().holes, Holes::Waiting { .. });
    let mut waiting = families.iter().filter(waits).peekable();
    let some_wait = waiting.peek().is_some();
    // Of an end that is waited for, and of who keeps holes out of files, nobody tells.
    if waiting.any(|f| !waits_for_quiet(f, context, lull)) {
        return WAIT_MICROS;
    }
    let is_due = || families.iter().any(|f| is_busy(f, context, Lull::Long));
    if some_wait || (context.hole_punching.waits_for_quiet() && is_due()) {
        return context.micros_to_long_lull().max(WAIT_MICROS);
    }
    let now = context.clock.now_micros();
    let due = families
        .iter()
        .filter(|f| f.options().punches_holes())
        .flat_map(|f| {
            let version = f.version();
            let blobs = version.blob_files().values();
            // What is due already is not worth it: more garbage tells of itself.
            blobs
                .map(|b| b.file.look_again_at())
                .filter(|&at| at > now)
                .min()
        })
        .min();
    due.map_or(u64::MAX, |at| at - now)
}
