//! Gives up logs that no flush comes by for: of what they hold no memtable has anything.

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
