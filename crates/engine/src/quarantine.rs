//! Tables that turned out to be damaged while the database is open.
//!
//! Damage in a table is no reason to stop: reads of its other blocks and of all other tables go
//! on, and so do writes. The table is marked, so that no compaction picks it: what a compaction
//! could not read would be lost for good. The mark lasts until the table is gone or the database
//! is closed; the next open meets the damage anew.
//!
//! What cures it: [`crate::Db::delete_files_in_ranges`] over the table's range if it is not in level
//! 0, a restored backup, or [`crate::repair`].

use std::path::Path;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind, FileNo};

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::events::DamagedTable;
use crate::filename::{self, FileKind};
use crate::version::file_meta::FileMeta;

/// Marks the table that `error` is about, if it is damage in a table that is live; true if it
/// is.
#[cold]
pub(crate) fn note(context: &Context, error: &Error) -> bool {
    let Some(number) = damaged_table(context, error) else {
        return false;
    };
    let found = context.set.families().into_iter().find_map(|family| {
        let version = family.state().version.clone();
        let (level, file) = version.find(number)?;
        Some((family, level, file.clone()))
    });
    let Some((family, level, file)) = found else {
        return false;
    };
    if context.damaged.lock().contains_key(&number) {
        return true;
    }
    let info = describe(&family, level, &file, error);
    file.damaged.set(true);
    if context
        .damaged
        .lock()
        .insert(number, info.clone())
        .is_some()
    {
        // Somebody met it at the same time.
        return true;
    }
    context.statistics.add(Ticker::DamagedTables, 1);
    context.log.error(format_args!(
        "[{}] table {} of level {} is damaged: offset={} keys from '{}' to '{}'; no compaction \
         takes it, reads of the rest go on: {}",
        info.column_family,
        filename::table_name(number),
        info.level,
        info.offset
            .map_or_else(|| "unknown".to_owned(), |o| o.to_string()),
        info.from.escape_ascii(),
        info.to.escape_ascii(),
        info.error
    ));
    context.notify(|l| l.on_table_damaged(&info));
    true
}

/// The number of the table of this database that an error of damage names.
fn damaged_table(context: &Context, error: &Error) -> Option<FileNo> {
    if error.kind() != ErrorKind::Corruption {
        return None;
    }
    let path = Path::new(error.context("file")?);
    if path.parent() != Some(&context.dir) {
        return None;
    }
    match filename::parse(path.file_name()?.to_str()?) {
        Some(FileKind::Table(number)) => Some(number),
        _ => None,
    }
}

fn describe(
    family: &ColumnFamilyData,
    level: usize,
    file: &FileMeta,
    error: &Error,
) -> DamagedTable {
    let offset = error.context("offset").and_then(|o| o.parse().ok());
    let table = file.table.get();
    let around = offset
        .zip(table)
        .and_then(|(offset, table)| table.keys_around(offset).ok().flatten());
    let (after, up_to) = around.unwrap_or_default();
    DamagedTable {
        column_family: family.name.clone(),
        number: file.number,
        level,
        offset,
        from: after.unwrap_or_else(|| file.smallest_user_key().to_vec()),
        to: up_to.unwrap_or_else(|| file.largest_user_key().to_vec()),
        error: error.clone(),
    }
}

/// The damaged tables that are still live, by number.
pub(crate) fn list(context: &Context) -> Vec<DamagedTable> {
    let live: Vec<Arc<crate::version::version::Version>> = context
        .set
        .families()
        .iter()
        .map(|f| f.state().version.clone())
        .collect();
    let mut damaged = context.damaged.lock();
    damaged.retain(|&number, _| live.iter().any(|v| v.find(number).is_some()));
    damaged.values().cloned().collect()
}

/// The same as text: a line for each.
pub(crate) fn text(context: &Context) -> String {
    list(context)
        .iter()
        .map(|d| {
            format!(
                "{} level={} column_family={} offset={} from={} to={} {}\n",
                filename::table_name(d.number),
                d.level,
                d.column_family,
                d.offset
                    .map_or_else(|| "unknown".to_owned(), |o| o.to_string()),
                d.from.escape_ascii(),
                d.to.escape_ascii(),
                d.error
            )
        })
        .collect()
}
