//! Gives up logs that no flush comes by for: what they hold is in no memtable, such as prepared writes that were rolled back.
//!
//! Who leaves such a log, or cleans up and finds that the MANIFEST still names it, asks ([`Context::give_up_idle_logs`],
//! [`Context::note_idle_logs`]); a background thread says in the MANIFEST which logs are needed, and cleans up.
//! Why in this order: `docs/adr/2026-11-23-two-phase-commit.md`, rule 6.

use orogen_base::Result;
use orogen_base::sync::atomic::Ordering;

use crate::context::Context;
use crate::version::edit::VersionEdit;
use crate::version_set::Change;

/// True, once, if somebody has asked.
pub(crate) fn take(context: &Context) -> bool {
    context.has_idle_logs.load(Ordering::Relaxed)
        && context.has_idle_logs.swap(false, Ordering::Relaxed)
}

/// Says in the MANIFEST which logs are needed; who cleans up then deletes the others.
///
/// # Errors
/// Those of the MANIFEST.
pub(crate) fn run(context: &Context) -> Result<()> {
    let needed = context.min_log_needed();
    let Some(family) = context.set.families().into_iter().next() else {
        return Ok(());
    };
    context
        .log
        .info(format_args!("logs before {needed} are not needed"));
    let edit = VersionEdit {
        min_log_number_to_keep: Some(needed),
        ..VersionEdit::of_column_family(family.id)
    };
    context.set.apply(vec![Change {
        family,
        edit,
        install: None,
    }])
}
