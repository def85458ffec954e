//! A flush that a user asked for.

use std::sync::Arc;

use orogen_base::{Error, Result};

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::options::FlushOptions;
use crate::write::commit::WritePath;
use crate::write::switch::Flush;

/// Seals the memtables of `families` and has them written out.
///
/// # Errors
/// `ReadOnly`, `Closed`, or what the flush met.
pub(crate) fn flush(
    context: &Context,
    write: &WritePath,
    options: &FlushOptions,
    families: &[Arc<ColumnFamilyData>],
) -> Result<()> {
    context.check_writable()?;
    // Who finds no space for the next log plans to resume.
    write
        .exclusive(|| write.seal(families, Flush::Now))
        .inspect_err(|_| context.tell_failure())?;
    let mut waiting = Vec::new();
    for family in families {
        let mut state = family.state();
        if let Some(last) = state.imm.last() {
            let up_to = last.id;
            state.flush_requested_up_to = state.flush_requested_up_to.max(up_to);
            waiting.push((family.clone(), up_to));
        }
    }
    context.work.raise();
    if !options.wait {
        return Ok(());
    }
    for (family, up_to) in waiting {
        loop {
            let seen = context.progress.count();
            if family.state().is_flushed(up_to) || family.is_dropped() {
                break;
            }
            context.health.check()?;
            if context.is_closing() {
                return Err(Error::closed("database was closed during a flush"));
            }
            context.progress.wait_after(seen);
        }
    }
    Ok(())
}
