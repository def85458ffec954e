//! Settings changed while the database is open.
//!
//! ```text
//! lead the write path -> parse and check all -> threads -> OPTIONS file, durable -> install
//! let go of it -> stalls judged anew -> background work looks anew -> LOG, listeners
//! ```
//! Invariants: (1) all settings of one call change, or none; (2) the OPTIONS file that is newest
//! holds what is in effect; (3) no read and no write looks at a setting that can change but
//! through its memtable, its version or the stall controller: each job, each new memtable and each
//! cursor within a prefix takes the settings as they are when it begins.

use std::sync::Arc;

use orogen_base::{Error, Result};

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::core::Core;
use crate::events::{OptionChange, OptionsChangedInfo};
use crate::open::recover::write_options_file;
use crate::options::{BlobRunMode, ConvertTo, ConvertValuesOptions};
use crate::options_map;

/// Changes settings of a family; see [`crate::Db::set_options`].
///
/// # Errors
/// See there.
pub(crate) fn set_options(
    core: &Core,
    family: &Arc<ColumnFamilyData>,
    changes: &[(&str, &str)],
) -> Result<()> {
    refuse_none(changes)?;
    let context = &*core.context;
    let changed = core.write.exclusive(|| {
        context.check_writable()?;
        if family.is_dropped() {
            return Err(Error::invalid_argument("column family was dropped")
                .with("column_family", &family.name));
        }
        let (after, changed) = options_map::change_family(&family.options(), changes)?;
        let after = Arc::new(after);
        let mut families = options_map::current(&context.set.families());
        for (name, options) in &mut families {
            if *name == family.name {
                *options = after.clone();
            }
        }
        write_options_file(context, &context.db_options(), &families)?;
        family.set_options(after);
        core.write.refresh_memtables();
        Ok(changed)
    });
    let changed = changed.inspect_err(|_| context.tell_failure())?;
    context.update_stall(family);
    tell(context, Some(&family.name), changed);
    Ok(())
}

/// Has a family want its values where a conversion is to bring them, if it does not yet.
///
/// # Errors
/// As [`set_options`]; `InvalidArgument` for a size where values come back.
pub(crate) fn set_blob_mode(
    core: &Core,
    family: &Arc<ColumnFamilyData>,
    to: ConvertTo,
    options: &ConvertValuesOptions,
) -> Result<()> {
    let now = family.options();
    let min_blob_size = options.min_blob_size.unwrap_or(now.min_blob_size);
    let size = min_blob_size.to_string();
    let (is_set, changes) = match to {
        ConvertTo::Separated => (
            now.separates_values() && now.min_blob_size == min_blob_size,
            vec![
                ("enable_blob_files", "true"),
                ("blob_run_mode", "kNormal"),
                ("min_blob_size", size.as_str()),
            ],
        ),
        ConvertTo::Inline if options.min_blob_size.is_some() => {
            return Err(
                Error::invalid_argument("a least size is for values that are separated")
                    .with("option", "min_blob_size")
                    .with("value", size),
            );
        }
        // RocksDB, which knows no modes, is to separate nothing either.
        ConvertTo::Inline => (
            now.blob_run_mode == BlobRunMode::Fallback && !now.enable_blob_files,
            vec![
                ("blob_run_mode", "kFallback"),
                ("enable_blob_files", "false"),
            ],
        ),
    };
    match is_set {
        true => Ok(()),
        false => set_options(core, family, &changes),
    }
}

/// Changes settings of the database; see [`crate::Db::set_db_options`].
///
/// # Errors
/// See there.
pub(crate) fn set_db_options(core: &Core, changes: &[(&str, &str)]) -> Result<()> {
    refuse_none(changes)?;
    let context = &*core.context;
    let changed = core.write.exclusive(|| {
        context.check_writable()?;
        let before = context.db_options();
        let (after, changed) = options_map::change_db(&before, changes)?;
        let resize = |jobs| match &core.background {
            Some(background) => background.resize(&core.write, jobs),
            None => Ok(()),
        };
        resize(after.max_background_jobs)?;
        let families = options_map::current(&context.set.families());
        if let Err(e) = write_options_file(context, &after, &families) {
            // The threads that there were are there still: nothing is to be started.
            let _ = resize(before.max_background_jobs);
            return Err(e);
        }
        context
            .stall
            .set_delayed_write_rate(after.delayed_write_rate);
        context.set_db_options(Arc::new(after));
        core.write.refresh_memtables();
        Ok(changed)
    });
    let changed = changed.inspect_err(|_| context.tell_failure())?;
    for family in context.set.families() {
        context.update_stall(&family);
    }
    tell(context, None, changed);
    Ok(())
}

fn refuse_none(changes: &[(&str, &str)]) -> Result<()> {
    if changes.is_empty() {
        return Err(Error::invalid_argument("no option is given"));
    }
    Ok(())
}

fn tell(context: &Context, family: Option<&str>, changes: Vec<OptionChange>) {
    for change in &changes {
        context.log.info(format_args!(
            "[{}] option {} was {} is {}",
            family.unwrap_or("db"),
            change.name,
            change.old,
            change.new
        ));
    }
    // What was not due may be now.
    context.work.raise();
    context.progress.raise();
    if !changes.is_empty() {
        let info = OptionsChangedInfo {
            column_family: family.map(str::to_owned),
            changes,
        };
        context.notify(|l| l.on_options_changed(&info));
    }
}
