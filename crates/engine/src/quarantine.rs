//! Tables and blob files that turned out to be damaged while the database is open.
//!
//! Damage in a table is no reason to stop: reads of its other blocks and of all other tables go
//! on, and so do writes. A table whose pointers lead to no place of a blob file counts as damaged, too. The table is marked, so that no compaction picks it: what a compaction
//! could not read would be lost for good. The mark lasts until the table is gone or the database
//! is closed; the next open meets the damage anew. A blob file is only told of: its other values are
//! read, and a compaction passes pointers to damaged ones on.
//!
//! What cures it: [`crate::Db::delete_files_in_ranges`] over the table's range if it is not in level
//! 0, a restored backup, or [`crate::repair`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, FileNo};

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::events::{DamagedBlobFile, DamagedTable};
use crate::filename::{self, FileKind};
use crate::version::file_meta::FileMeta;
use crate::version::version::Version;

/// Marks the table or blob file that `error` is about, if it is damage in one that is live; true if
/// it is.
#[cold]
pub(crate) fn note(context: &Context, error: &Error) -> bool {
    match damaged_file(context, error) {
        Some(FileKind::Table(number)) => note_table(context, number, error),
        Some(FileKind::Blob(number)) => note_blob_file(context, number, error),
        _ => false,
    }
}

fn note_blob_file(context: &Context, number: FileNo, error: &Error) -> bool {
    let lists = |family: &Arc<ColumnFamilyData>| {
        let version = family.state().version.clone();
        version.blob_files().contains_key(&number)
    };
    let Some(family) = context.set.families().into_iter().find(lists) else {
        return false;
    };
    let info = DamagedBlobFile {
        column_family: family.name.clone(),
        number,
        offset: offset_of(error),
        error: error.clone(),
    };
    let mut damaged = context.damaged_blobs.lock();
    if damaged.contains_key(&number) {
        return true;
    }
    damaged.insert(number, info.clone());
    drop(damaged);
    context.statistics.add(Ticker::DamagedBlobFiles, 1);
    context.log.error(format_args!(
        "[{}] blob file {number:06} is damaged: offset={}; its other values are read: {}",
        info.column_family,
        place(info.offset),
        info.error
    ));
    context.notify(|l| l.on_blob_file_damaged(&info));
    true
}

fn offset_of(error: &Error) -> Option<u64> {
    error.context("offset").and_then(|o| o.parse().ok())
}

fn place(offset: Option<u64>) -> String {
    offset.map_or_else(|| "unknown".to_owned(), |o| o.to_string())
}

fn note_table(context: &Context, number: FileNo, error: &Error) -> bool {
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
        place(info.offset),
        info.from.escape_ascii(),
        info.to.escape_ascii(),
        info.error
    ));
    context.notify(|l| l.on_table_damaged(&info));
    true
}

/// The table that `error` is about, if it is damage in one.
pub(crate) fn damaged_table(context: &Context, error: &Error) -> Option<FileNo> {
    match damaged_file(context, error)? {
        FileKind::Table(number) => Some(number),
        _ => None,
    }
}

/// The file of this database that an error of damage names.
fn damaged_file(context: &Context, error: &Error) -> Option<FileKind> {
    if error.kind() != ErrorKind::Corruption {
        return None;
    }
    let path = Path::new(error.context("file")?);
    if path.parent() != Some(&context.dir) {
        return None;
    }
    filename::parse(path.file_name()?.to_str()?)
}

fn describe(
    family: &ColumnFamilyData,
    level: usize,
    file: &FileMeta,
    error: &Error,
) -> DamagedTable {
    let offset = offset_of(error);
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
    list_live(context, &context.damaged, |version, number| {
        version.find(number).is_some()
    })
}

/// The damaged blob files that are still live, by number.
pub(crate) fn list_blob_files(context: &Context) -> Vec<DamagedBlobFile> {
    list_live(context, &context.damaged_blobs, |version, number| {
        version.blob_files().contains_key(&number)
    })
}

/// What is noted of files that are still live; the others are forgotten. Only those that were noted before the look at
/// the versions: one that is noted meanwhile may be of a version that the look missed.
fn list_live<T: Clone>(
    context: &Context,
    noted: &Mutex<BTreeMap<FileNo, T>>,
    lists: impl Fn(&Version, FileNo) -> bool,
) -> Vec<T> {
    let before: Vec<FileNo> = noted.lock().keys().copied().collect();
    let families = context.set.families();
    let live: Vec<Arc<Version>> = families.iter().map(|f| f.version()).collect();
    let mut noted = noted.lock();
    for number in before {
        if !live.iter().any(|version| lists(version, number)) {
            noted.remove(&number);
        }
    }
    noted.values().cloned().collect()
}

/// Both as text: a line for each.
pub(crate) fn text(context: &Context) -> String {
    let blobs = list_blob_files(context);
    let blobs = blobs.iter().map(|d| {
        let (number, family) = (d.number, &d.column_family);
        let offset = place(d.offset);
        format!(
            "{number:06}.blob column_family={family} offset={offset} {}\n",
            d.error
        )
    });
    list(context)
        .iter()
        .map(|d| {
            format!(
                "{} level={} column_family={} offset={} from={} to={} {}\n",
                filename::table_name(d.number),
                d.level,
                d.column_family,
                place(d.offset),
                d.from.escape_ascii(),
                d.to.escape_ascii(),
                d.error
            )
        })
        .chain(blobs)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::edit::VersionEdit;
    use crate::version_set::Change;
    use crate::{ColumnFamilyOptions, Db, Options};
    use orogen_base::key::{ParsedInternalKey, ValueKind};
    use orogen_base::sync::thread;
    use orogen_env::{Clock as _, MemFileSystem, SystemClock};
    use std::time::Duration;

    #[test]
    fn a_table_that_came_and_was_noted_beside_a_listing_stays_noted() {
        let mut options = Options::default();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        let db = Db::open("/db", &options).unwrap();
        db.create_column_family("f", ColumnFamilyOptions::default())
            .unwrap();
        let context = &db.core().context;
        let families = context.set.families();
        let (number, user_key) = (context.set.new_file_number(), b"key");
        let key = ParsedInternalKey {
            user_key,
            seqno: 1,
            kind: ValueKind::Value,
        };
        let file = FileMeta {
            number,
            smallest: key.encode(),
            largest: key.encode(),
            ..FileMeta::default()
        };
        // Whoever lists has seen the version of the first family, and waits for the second.
        let second = families[1].state();
        let theirs = db.clone();
        let listing = thread::Builder::new();
        let listing = listing.spawn(move || list(&theirs.core().context)).unwrap();
        SystemClock.sleep(Duration::from_millis(50));
        let mut edit = VersionEdit::of_column_family(families[0].id);
        edit.add_file(6, Arc::new(file));
        let change = Change {
            family: families[0].clone(),
            edit,
            install: None,
        };
        context.set.apply(vec![change]).unwrap();
        let path = filename::table_path(&context.dir, number);
        let error = Error::corruption("on purpose").with("file", path.display());
        assert!(note(context, &error));
        drop(second);
        listing.join().unwrap();
        let told: Vec<FileNo> = list(context).iter().map(|d| d.number).collect();
        assert_eq!(told, [number]);
    }
}
