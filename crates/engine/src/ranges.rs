//! Ranges of user keys as a whole: how large they are, and dropping the tables inside them.
//!
//! Sizes come from the metadata of tables that lie inside a range, and from the index of the few
//! that its ends cut. Tables are dropped with one edit. None is read but for its pointers, where its properties do not tell them.
//!
//! Invariants of dropping: (1) level 0 is left alone, for its tables overlap and an older one may
//! not outlive a newer one by accident; (2) no table goes that a compaction reads; (3) of tables
//! that share a user key all go or none; (4) one call at a time drops tables of a family.
//!
//! Source: RocksDB `db/version_set.cc` (`ApproximateSize`), `db/db_impl/db_impl.cc`
//! (`DeleteFilesInRanges`).

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::key::{append_seek_key, user_key};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, FileNo, InternalIterator as _, Result, UserComparator};
use orogen_memtable::MemTable;

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::obsolete;
use crate::version::BlobFileGarbage;
use crate::version::blob_counts::{BlobCount, BlobCounts};
use crate::version::edit::VersionEdit;
use crate::version::file_meta::FileMeta;
use crate::version::level::{Level, compare_ends, ends_before};
use crate::version::version::Version;
use crate::version_set::Change;

/// User keys from `start` up to but not including `end`; `None` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UserKeyRange<'a> {
    /// The first user key.
    pub start: Option<&'a [u8]>,
    /// The first user key after.
    pub end: Option<&'a [u8]>,
}

impl<'a> UserKeyRange<'a> {
    /// The keys from `start` up to but not including `end`.
    #[must_use]
    pub fn new(start: &'a [u8], end: &'a [u8]) -> Self {
        Self {
            start: Some(start),
            end: Some(end),
        }
    }
}

/// What the size of a range counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeApproximationOptions {
    /// Bytes of table files. Default true.
    pub include_files: bool,
    /// Bytes of keys and values in memtables; walks over those that lie in the range. Default
    /// false.
    pub include_memtables: bool,
}

impl Default for SizeApproximationOptions {
    fn default() -> Self {
        Self {
            include_files: true,
            include_memtables: false,
        }
    }
}

/// How a table lies to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Outside,
    Cut,
    Inside,
}

/// What went with the tables inside ranges: see [`crate::Db::delete_files_in_ranges`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedFiles {
    /// The tables' numbers, by level and then in key order.
    pub tables: Vec<FileNo>,
    /// Bytes of these tables.
    pub table_bytes: u64,
    /// Values of blob files that they pointed to, and that are garbage now.
    pub garbage_blob_count: u64,
    /// Bytes of those values' records.
    pub garbage_blob_bytes: u64,
    /// The blob files that went, rising: no table points into them any more.
    pub blob_files: Vec<FileNo>,
}

impl UserKeyRange<'_> {
    fn is_empty(&self, order: &UserComparator) -> bool {
        matches!((self.start, self.end), (Some(start), Some(end)) if !order.less(start, end))
    }

    fn of_file(&self, order: &UserComparator, file: &FileMeta) -> Lies {
        let (first, last) = (file.smallest_user_key(), file.largest_user_key());
        let before = self
            .start
            .is_some_and(|start| ends_before(order, &file.largest, start));
        let after = self.end.is_some_and(|end| !order.less(first, end));
        if before || after || self.is_empty(order) {
            return Lies::Outside;
        }
        let starts_inside = self.start.is_none_or(|start| !order.less(first, start));
        let ends_inside = self
            .end
            .is_none_or(|end| order.less(last, end) || ends_before(order, &file.largest, end));
        if starts_inside && ends_inside {
            Lies::Inside
        } else {
            Lies::Cut
        }
    }

    /// True if a table lies wholly inside; the range has its `end`, too, where `include_end` is set.
    fn has_file(&self, order: &UserComparator, file: &FileMeta, include_end: bool) -> bool {
        let end = self.end.filter(|_| include_end);
        let reaches = end.is_some_and(|end| order.compare(file.largest_user_key(), end).is_le());
        if !reaches {
            return self.of_file(order, file) == Lies::Inside;
        }
        let first = file.smallest_user_key();
        self.start.is_none_or(|start| !order.less(first, start))
    }
}

/// About the bytes that each range takes.
///
/// # Errors
/// `InvalidArgument` if nothing is to be counted; `Corruption` or `Io` of an index.
pub(crate) fn approximate_sizes(
    family: &ColumnFamilyData,
    options: &SizeApproximationOptions,
    ranges: &[UserKeyRange<'_>],
) -> Result<Vec<u64>> {
    if !options.include_files && !options.include_memtables {
        return Err(Error::invalid_argument(
            "sizes need files, memtables or both to count",
        ));
    }
    let pinned = family.pin();
    let order = &family.icmp.user;
    let mut sizes = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut bytes = 0u64;
        if options.include_files {
            for level in pinned.version.levels() {
                bytes = bytes.saturating_add(level_size(family, level, range)?);
            }
        }
        if options.include_memtables && !range.is_empty(order) {
            for table in pinned.memtables() {
                bytes = bytes.saturating_add(memtable_size(order, table, range)?);
            }
        }
        sizes.push(bytes);
    }
    Ok(sizes)
}

fn level_size(family: &ColumnFamilyData, level: &Level, range: &UserKeyRange<'_>) -> Result<u64> {
    let order = &family.icmp.user;
    let mut bytes = 0u64;
    for file in level.files() {
        let part = match range.of_file(order, file) {
            Lies::Outside => 0,
            Lies::Inside => file.size,
            Lies::Cut => {
                let key = |user: Option<&[u8]>| user.map(first_internal_key);
                let (start, end) = (key(range.start), key(range.end));
                let table = family.tables.reader(file)?;
                table.approximate_size(start.as_deref(), end.as_deref())?
            }
        };
        bytes = bytes.saturating_add(part);
    }
    Ok(bytes)
}

fn first_internal_key(user: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    append_seek_key(&mut key, user, SEQNO_MAX);
    key
}

fn memtable_size(
    order: &UserComparator,
    table: &Arc<dyn MemTable>,
    range: &UserKeyRange<'_>,
) -> Result<u64> {
    let mut iter = table.clone().iter();
    match range.start {
        Some(start) => iter.seek(&first_internal_key(start)),
        None => iter.seek_to_first(),
    }
    let mut bytes = 0;
    while iter.valid()
        && range
            .end
            .is_none_or(|end| order.less(user_key(iter.key()), end))
    {
        bytes += (iter.key().len() + iter.value().len()) as u64;
        iter.next();
    }
    iter.status()?;
    Ok(bytes)
}

/// Drops the tables that lie wholly inside one of `ranges`; tells what went.
///
/// # Errors
/// `ReadOnly`, `Closed`, `Aborted` if the family is dropped meanwhile; `Io`, `NoSpace`.
pub(crate) fn delete_files(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    ranges: &[UserKeyRange<'_>],
    include_end: bool,
) -> Result<DeletedFiles> {
    let _job = context.enter_job()?;
    // One at a time: what another one has chosen is gone when this one ends, and what a damaged table does not tell is known only
    // once the others are counted that do not tell either.
    let dropping = family.dropping_tables.lock();
    let (version, chosen) = {
        // Under the lock under which compactions choose theirs.
        let state = family.state();
        let chosen: Vec<(usize, Arc<FileMeta>)> = state
            .version
            .levels()
            .iter()
            .enumerate()
            .skip(1)
            .flat_map(|(n, level)| {
                let files = files_inside(&family.icmp.user, level, ranges, include_end);
                files.into_iter().map(move |f| (n, f))
            })
            .collect();
        chosen.iter().for_each(|(_, f)| f.being_compacted.set(true));
        (state.version.clone(), chosen)
    };
    if chosen.is_empty() {
        return Ok(DeletedFiles::default());
    }
    let mut edit = VersionEdit::of_column_family(family.id);
    for (level, file) in &chosen {
        edit.delete_file(*level, file.number);
    }
    let mut deleted = DeletedFiles {
        tables: chosen.iter().map(|(_, f)| f.number).collect(),
        table_bytes: chosen.iter().map(|(_, f)| f.size).sum(),
        ..DeletedFiles::default()
    };
    let gone = Arc::new(Mutex::new(Vec::new()));
    let result = garbage_of(family, &version, &chosen).and_then(|garbage| {
        deleted.garbage_blob_count = garbage.iter().map(|g| g.garbage_blob_count).sum();
        deleted.garbage_blob_bytes = garbage.iter().map(|g| g.garbage_blob_bytes).sum();
        let numbers: Vec<FileNo> = garbage.iter().map(|g| g.number).collect();
        let found = gone.clone();
        edit.blob_file_garbages = garbage;
        context.set.apply(vec![Change {
            family: family.clone(),
            edit,
            // This change's own version: others' changes do not count.
            install: Some(Box::new(move |state| {
                let blobs = state.version.blob_files();
                let numbers = numbers.into_iter();
                found
                    .lock()
                    .extend(numbers.filter(|n| !blobs.contains_key(n)));
            })),
        }])
    });
    deleted.blob_files = std::mem::take(&mut gone.lock());
    {
        let _state = family.state();
        chosen
            .iter()
            .for_each(|(_, f)| f.being_compacted.set(false));
    }
    // Listeners may drop tables themselves.
    drop(dropping);
    context.update_stall(family);
    if result.is_ok() {
        context.log.info(format_args!(
            "[{}] files in ranges deleted: files={} bytes={} garbage_blob_bytes={} blob_files={}",
            family.name,
            deleted.tables.len(),
            deleted.table_bytes,
            deleted.garbage_blob_bytes,
            deleted.blob_files.len()
        ));
    }
    drop((version, chosen));
    obsolete::purge(context);
    // A compaction may have found these files taken.
    context.work.raise();
    context.progress.raise();
    result.map(|()| deleted)
}

/// What blob files lose with these tables of the version.
///
/// A damaged one does not tell: with it goes what is left of the files' live values once all other tables have told of
/// theirs. Where one of those that stay is damaged, too, only what was told counts; the rest does when that one goes.
fn garbage_of(
    family: &ColumnFamilyData,
    version: &Version,
    chosen: &[(usize, Arc<FileMeta>)],
) -> Result<Vec<BlobFileGarbage>> {
    let (goes, is_all) = references(family, version, chosen.iter().map(|(_, f)| &**f))?;
    if is_all {
        return goes.without(&BlobCounts::default());
    }
    let goes_too = |file: &FileMeta| chosen.iter().any(|(_, f)| f.number == file.number);
    let others = version.iter_files().map(|(_, f)| &**f);
    let (stays, is_all) = references(family, version, others.filter(|f| !goes_too(f)))?;
    if !is_all {
        return goes.without(&BlobCounts::default());
    }
    let blobs = version.blob_files().iter();
    let live: BlobCounts = blobs
        .map(|(&number, blob)| {
            let (values, bytes) = (blob.live_count(), blob.live_bytes());
            (number, BlobCount { values, bytes })
        })
        .collect();
    live.without(&stays)
}

/// What tables point to, and whether all of them tell: damaged ones do not, nor those that point to more than there is.
fn references<'v>(
    family: &ColumnFamilyData,
    version: &Version,
    files: impl Iterator<Item = &'v FileMeta>,
) -> Result<(BlobCounts, bool)> {
    let (mut pointers, mut is_all) = (BlobCounts::default(), true);
    for file in files {
        match family.tables.blob_references(file) {
            Ok(told) if is_live(version, &told) && !has_bad_pointer(family, version, file) => {
                pointers.add_all(&told);
            }
            Ok(_) => is_all = false,
            Err(e) if e.kind() == ErrorKind::Corruption => is_all = false,
            Err(e) => return Err(e),
        }
    }
    Ok((pointers, is_all))
}

/// True if the version has as many live values as that in each of the files.
fn is_live(version: &Version, told: &BlobCounts) -> bool {
    told.iter().all(|(number, count)| {
        let blob = version.blob_files().get(&number);
        blob.is_some_and(|b| count.values <= b.live_count() && count.bytes <= b.live_bytes())
    })
}

/// True for a table that is left alone for where it points to.
fn has_bad_pointer(family: &ColumnFamilyData, version: &Version, file: &FileMeta) -> bool {
    let tables = &family.tables;
    let is_bad = |e: Error| e.context("blob_file").is_some();
    file.damaged.get() && tables.check_pointers(version, file).is_err_and(is_bad)
}

/// The files of a sorted run that may go.
fn files_inside(
    order: &UserComparator,
    level: &Level,
    ranges: &[UserKeyRange<'_>],
    include_end: bool,
) -> Vec<Arc<FileMeta>> {
    let files = level.files();
    let mut chosen: Vec<bool> = files
        .iter()
        .map(|f| {
            !f.being_compacted.get()
                && ranges
                    .iter()
                    .any(|range| range.has_file(order, f, include_end))
        })
        .collect();
    let share = |i: usize| {
        compare_ends(order, &files[i].largest, &files[i + 1].smallest) == Ordering::Equal
    };
    // What stays keeps its neighbours of the same user key, in both directions.
    for i in 1..files.len() {
        chosen[i] &= chosen[i - 1] || !share(i - 1);
    }
    for i in (1..files.len()).rev() {
        chosen[i - 1] &= chosen[i] || !share(i - 1);
    }
    files
        .iter()
        .zip(chosen)
        .filter(|(_, chosen)| *chosen)
        .map(|(f, _)| f.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::key::{InternalKeyComparator, ParsedInternalKey, ValueKind};

    fn key(user: &str, seqno: u64) -> Vec<u8> {
        let kind = ValueKind::Value;
        let user_key = user.as_bytes();
        ParsedInternalKey {
            user_key,
            seqno,
            kind,
        }
        .encode()
    }

    fn run(bounds: &[(&str, u64, &str, u64)]) -> Level {
        let files = bounds.iter().enumerate().map(|(i, &(a, sa, b, sb))| {
            Arc::new(FileMeta {
                number: i as u64 + 1,
                smallest: key(a, sa),
                largest: key(b, sb),
                ..FileMeta::default()
            })
        });
        let icmp = InternalKeyComparator::new(UserComparator::BYTEWISE);
        Level::new(1, &icmp, files.collect())
    }

    fn chosen(level: &Level, ranges: &[UserKeyRange<'_>], include_end: bool) -> Vec<u64> {
        let files = files_inside(&UserComparator::BYTEWISE, level, ranges, include_end);
        files.iter().map(|f| f.number).collect()
    }

    fn inside(level: &Level, ranges: &[UserKeyRange<'_>]) -> Vec<u64> {
        chosen(level, ranges, false)
    }

    #[test]
    fn only_files_wholly_inside_a_range_are_chosen() {
        let level = run(&[("a", 9, "c", 9), ("d", 9, "f", 9), ("g", 9, "i", 9)]);
        let range =
            |a: &'static str, b: &'static str| UserKeyRange::new(a.as_bytes(), b.as_bytes());
        assert_eq!(inside(&level, &[range("b", "z")]), [2, 3]);
        assert_eq!(inside(&level, &[range("a", "i")]), [1, 2]);
        assert_eq!(inside(&level, &[range("a", "f"), range("g", "j")]), [1, 3]);
        assert_eq!(inside(&level, &[UserKeyRange::default()]), [1, 2, 3]);
        assert!(inside(&level, &[range("z", "a")]).is_empty());
        level.files()[1].being_compacted.set(true);
        assert_eq!(inside(&level, &[UserKeyRange::default()]), [1, 3]);
    }

    #[test]
    fn a_range_with_its_end_has_the_file_that_ends_there() {
        let level = run(&[("a", 9, "c", 9), ("d", 9, "d", 9), ("g", 9, "i", 9)]);
        let with_end = |a: &str, b: &str| {
            chosen(
                &level,
                &[UserKeyRange::new(a.as_bytes(), b.as_bytes())],
                true,
            )
        };
        assert_eq!(with_end("a", "c"), [1]);
        assert_eq!(with_end("a", "b"), []);
        assert_eq!(with_end("d", "d"), [2]);
        assert_eq!(with_end("b", "i"), [2, 3]);
        assert_eq!(with_end("h", "i"), []);
        assert_eq!(with_end("z", "a"), []);
        assert_eq!(chosen(&level, &[UserKeyRange::default()], true), [1, 2, 3]);
        assert_eq!(inside(&level, &[UserKeyRange::new(b"d", b"d")]), []);
    }

    #[test]
    fn neighbours_that_share_a_user_key_stay_together() {
        let level = run(&[
            ("a", 9, "c", 9),
            ("c", 5, "c", 3),
            ("c", 2, "f", 9),
            ("g", 9, "i", 9),
        ]);
        let whole = UserKeyRange::default();
        assert_eq!(inside(&level, &[whole]), [1, 2, 3, 4]);
        let range = UserKeyRange::new(b"a", b"e");
        assert!(inside(&level, &[range]).is_empty());
        let range = UserKeyRange::new(b"b", b"z");
        assert_eq!(inside(&level, &[range]), [4]);
    }
}
