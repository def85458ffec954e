//! A family as a reader sees it: super version first, then the sequence number.
//!
//! The order matters: with the number first, a compaction in between could drop a version that
//! the number still needs. With the super version first, everything up to the number that is in
//! it stays in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::sync::{self, Mistake};
use orogen_base::{Error, KeyRange, PinnedValue, Result, SeqNo};
use orogen_memtable::MemTable;
use orogen_sst::{Readahead, TableReadOptions};

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::quarantine;
use crate::read::{self, Places, ReadOptions, Scan, Snapshot, Written};
use crate::super_version::SuperVersion;
use crate::tables::FamilyTables;

fn table_options(options: &ReadOptions) -> TableReadOptions {
    TableReadOptions {
        verify_checksums: options.verify_checksums,
        fill_cache: options.fill_cache,
        readahead: match options.readahead_size {
            0 => Readahead::default(),
            bytes => Readahead::Fixed(bytes),
        },
    }
}

fn places<'a>(
    context: &'a Context,
    family: &'a ColumnFamilyData,
    pinned: &'a SuperVersion,
    table_options: &'a TableReadOptions,
) -> Places<'a, FamilyTables, impl Iterator<Item = &'a Arc<dyn MemTable>> + Clone> {
    Places {
        memtables: pinned.memtables(),
        version: &pinned.version,
        tables: &family.tables,
        table_options,
        merge_operator: family.merge_operator.as_ref(),
        statistics: &context.statistics,
    }
}

fn read_seqno(
    context: &Context,
    family: &ColumnFamilyData,
    options: &ReadOptions,
    pinned: &SuperVersion,
) -> Result<SeqNo> {
    family.check_is_of(context.open_number)?;
    match &options.snapshot {
        None => Ok(context.sequence.visible().min(pinned.limit)),
        Some(snapshot) if snapshot.is_of(&context.snapshots) => Ok(snapshot.seqno()),
        Some(_) => Err(Error::invalid_argument("snapshot is of another database")),
    }
}

/// What a snapshot of a follower keeps: the primary does not know of it, and keeps nothing.
#[derive(Default)]
pub(crate) struct PinnedViews(pub(crate) BTreeMap<u32, Arc<SuperVersion>>);

/// The super version that the snapshot in `options` brings, if it brings one.
#[cold]
fn pinned_by(
    options: &ReadOptions,
    family: &ColumnFamilyData,
) -> Result<Option<Arc<SuperVersion>>> {
    let pinned = options.snapshot.as_ref().and_then(Snapshot::pinned);
    let Some(views) = pinned.and_then(|p| p.downcast_ref::<PinnedViews>()) else {
        return Ok(None);
    };
    match views.0.get(&family.id) {
        Some(view) => Ok(Some(view.clone())),
        None => Err(Error::invalid_argument(
            "column family was not there when the snapshot was taken",
        )
        .with("column_family", &family.name)),
    }
}

/// The super version to read from, kept for long.
fn pin(options: &ReadOptions, family: &ColumnFamilyData) -> Result<Arc<SuperVersion>> {
    if options.snapshot.is_some()
        && let Some(pinned) = pinned_by(options, family)?
    {
        return Ok(pinned);
    }
    Ok(family.pin())
}

/// The value of a key.
///
/// # Errors
/// `Corruption`, `Io`; `InvalidArgument` for a foreign snapshot or operands that do not merge.
pub(crate) fn get(
    context: &Context,
    family: &ColumnFamilyData,
    options: &ReadOptions,
    key: &[u8],
) -> Result<Option<PinnedValue>> {
    let too_early = sync::makes(Mistake::NumberBeforePlaces).then(|| context.sequence.visible());
    let brought;
    let loaded;
    let pinned: &SuperVersion = match &options.snapshot {
        None => {
            loaded = family.load();
            &loaded
        }
        Some(_) => {
            brought = pin(options, family)?;
            &brought
        }
    };
    let seqno = read_seqno(context, family, options, pinned)?;
    let seqno = too_early.unwrap_or(seqno);
    places(context, family, pinned, &table_options(options))
        .get(key, seqno)
        .inspect_err(|e| {
            quarantine::note(context, e);
        })
}

/// The newest write to a key; see [`crate::Db::newest_write`].
pub(crate) fn newest_write(
    context: &Context,
    family: &ColumnFamilyData,
    key: &[u8],
) -> Result<SeqNo> {
    let options = ReadOptions::default();
    let pinned = family.load();
    let seqno = read_seqno(context, family, &options, &pinned)?;
    places(context, family, &pinned, &table_options(&options)).newest_seqno(key, seqno)
}

/// A write to a range of keys since a sequence number; see [`crate::Db::written_since`].
pub(crate) fn written_since<K: AsRef<[u8]>>(
    context: &Context,
    family: &ColumnFamilyData,
    range: &KeyRange<K>,
    since: SeqNo,
) -> Result<Option<Written>> {
    // Longer than a lookup: nothing else waits for its end.
    let pinned = family.pin();
    let options = ReadOptions::default();
    let seqno = read_seqno(context, family, &options, &pinned)?;
    places(context, family, &pinned, &table_options(&options))
        .written_since(range, since, seqno)
        .inspect_err(|e| {
            quarantine::note(context, e);
        })
}

/// The values of several keys as of one moment.
pub(crate) fn multi_get(
    context: &Context,
    family: &ColumnFamilyData,
    options: &ReadOptions,
    keys: &[&[u8]],
) -> Vec<Result<Option<PinnedValue>>> {
    let pinned = pin(options, family);
    match pinned.and_then(|p| Ok((read_seqno(context, family, options, &p)?, p))) {
        Ok((seqno, pinned)) => {
            let found =
                places(context, family, &pinned, &table_options(options)).multi_get(keys, seqno);
            for e in found.iter().filter_map(|r| r.as_ref().err()) {
                quarantine::note(context, e);
            }
            found
        }
        Err(e) => keys.iter().map(|_| Err(e.clone())).collect(),
    }
}

/// A cursor over a family.
///
/// # Errors
/// `Corruption` or `Io` if a table of level 0 cannot be opened; `InvalidArgument` for a foreign
/// snapshot.
pub(crate) fn iter(
    context: &Arc<Context>,
    family: &Arc<ColumnFamilyData>,
    options: &ReadOptions,
) -> Result<DbIterator> {
    let pinned = pin(options, family)?;
    let read_seqno = read_seqno(context, family, options, &pinned)?;
    let table_options = table_options(options);
    // It may change; the cursor keeps what it begins with.
    let settings = options.prefix_same_as_start.then(|| family.options());
    let scan = Scan {
        options,
        read_seqno,
        prefix_extractor: settings.as_ref().and_then(|s| s.prefix_extractor.as_ref()),
        pin: pinned.clone(),
    };
    let iter = read::DbIterator::new(&places(context, family, &pinned, &table_options), scan)?;
    Ok(DbIterator {
        iter: Some(Box::new(iter)),
        context: context.clone(),
    })
}

/// A cursor over the keys of one family as of one moment, in both directions.
///
/// It stands nowhere until a seek. It keeps its view, and the files and memtables behind it,
/// until it is dropped. After an error it is not valid and [`Self::status`] tells why.
pub struct DbIterator {
    /// Always there until drop.
    iter: Option<Box<read::DbIterator<FamilyTables>>>,
    context: Arc<Context>,
}

impl DbIterator {
    fn inner(&self) -> &read::DbIterator<FamilyTables> {
        self.iter
            .as_deref()
            .expect("the cursor is there until drop")
    }

    fn inner_mut(&mut self) -> &mut read::DbIterator<FamilyTables> {
        self.iter
            .as_deref_mut()
            .expect("the cursor is there until drop")
    }

    /// True while the cursor stands on a key.
    #[must_use]
    pub fn valid(&self) -> bool {
        self.inner().valid()
    }

    /// Why the cursor is not valid; `Ok` at the end of the keys.
    ///
    /// # Errors
    /// `Corruption`, `Io`, or operands that do not merge.
    pub fn status(&self) -> Result<()> {
        self.inner().status().inspect_err(|e| {
            quarantine::note(&self.context, e);
        })
    }

    /// The key here.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.inner().key()
    }

    /// The value here, borrowed from its block until the next move.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.inner().value()
    }

    /// Reads the value here if it is in a blob file and was not read yet. Under
    /// [`ReadOptions::allow_unprepared_value`] this must be called before the value is taken; else
    /// there is nothing to do. False if it cannot be read: the cursor is then not valid, and
    /// [`Self::status`] tells why.
    ///
    /// # Panics
    /// If the cursor is not valid.
    pub fn prepare_value(&mut self) -> bool {
        self.inner_mut().prepare_value()
    }

    /// The value here, kept beyond the next move without a copy where possible.
    ///
    /// # Panics
    /// If the cursor is not valid.
    ///
    /// # Errors
    /// `NoMemory` for a copy.
    pub fn pinned_value(&self) -> Result<PinnedValue> {
        self.inner().pinned_value()
    }

    /// Moves to the first key that is not before `target`.
    pub fn seek(&mut self, target: &[u8]) {
        self.inner_mut().seek(target);
    }

    /// Moves to the last key that is not after `target`.
    pub fn seek_for_prev(&mut self, target: &[u8]) {
        self.inner_mut().seek_for_prev(target);
    }

    /// Moves to the first key.
    pub fn seek_to_first(&mut self) {
        self.inner_mut().seek_to_first();
    }

    /// Moves to the last key.
    pub fn seek_to_last(&mut self) {
        self.inner_mut().seek_to_last();
    }

    /// Moves to the next key.
    ///
    /// # Panics
    /// If the cursor is not valid.
    pub fn next(&mut self) {
        self.inner_mut().next();
    }

    /// Moves to the previous key.
    ///
    /// # Panics
    /// If the cursor is not valid.
    pub fn prev(&mut self) {
        self.inner_mut().prev();
    }
}

impl Drop for DbIterator {
    fn drop(&mut self) {
        self.iter = None;
        // What only this cursor kept can go now.
        if self.context.set.has_removed() || self.context.hole_punching.is_waiting() {
            self.context.work.raise();
        }
    }
}
