//! A flush by two threads: one table, and a blob file of each.
//!
//! ```text
//! user keys   [ ............. split .............. )
//! this thread   values to file a    |  entries of the other one, which are small
//! other thread      ^ at the same time: values to file b, entries (key, pointer) kept
//! ```
//! Compressing and writing the values is what a flush of large values does; what goes to the table
//! of it is some 50 bytes a value. So the second half's entries wait in memory until the first
//! half's are in the table. Who calls has looked that they are few bytes.
//!
//! Invariants: (1) the table has the entries of both halves in order, as one thread would have
//! written them; the versions of a user key are in one half. (2) What either half created is named
//! if any of them fails. (3) The files are the same whichever thread is faster, as long as the second half's
//! values fit into one. (4) No file has a dictionary: the halves would wait for different samples.

use std::sync::Arc;

use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{InternalIterator, Result, memory};
use orogen_cache::Reservation;
use orogen_env::threads;
use orogen_sst::CachedBlock;

use super::blobs::{BlobWriter, BlobsWritten};
use super::{Failed, NewFile, OutputOptions, OutputWriter, Written};
use crate::compaction_iter::{
    CompactionIter, CompactionIterOptions, CompactionIterStats, surviving_tombstones,
};
use crate::filename::DataFile;
use crate::version::blob_counts::BlobCounts;

/// What one of the threads reads, and how its files are made.
pub struct Half<'a, I> {
    /// All of the job's entries.
    pub input: I,
    /// With the half's bounds.
    pub rules: CompactionIterOptions,
    /// Makes its files.
    pub new_file: NewFile<'a>,
}

/// What entries that wait are called where there is no memory for them.
const HELD: &str = "entries of a flush by two threads";

/// Memory is reserved in steps of so many bytes.
const RESERVED_STEP: usize = 256 << 10;

/// Entries of the second half, as the table gets them.
struct Placed {
    /// Length of the key, length of the value, key, value; over and over.
    entries: Vec<u8>,
    _reservation: Option<Reservation<CachedBlock>>,
    blobs: BlobsWritten,
    stats: CompactionIterStats,
    pointers_read: BlobCounts,
}

/// Writes what stays of two halves to one table of level 0.
///
/// # Errors
/// As of [`super::write`].
pub fn write_halves<I: InternalIterator>(
    [first, mut second]: [Half<'_, I>; 2],
    tombstones: Arc<FragmentedRangeTombstones>,
    options: OutputOptions,
) -> Result<Written, Failed> {
    let (surviving, dropped_range_tombstones) = surviving_tombstones(&tombstones, &first.rules);
    let mut second_created = Vec::new();
    let mut second_blobs = BlobWriter::new(options.blobs.clone());
    let reservation = options.blobs.reserve_in.clone().map(Reservation::new);
    let mut writer = OutputWriter::new(options, surviving, (None, None), first.new_file);
    let mut iter = CompactionIter::new(first.input, tombstones.clone(), first.rules);
    let beside = || {
        let mut iter = CompactionIter::new(second.input, tombstones, second.rules);
        let new_file = &mut second.new_file;
        let created = &mut second_created;
        place_all(&mut iter, &mut second_blobs, new_file, created, reservation)
    };
    let here = || -> Result<()> {
        iter.seek_to_first();
        while iter.valid() {
            writer.add(iter.key(), iter.value())?;
            iter.next();
        }
        iter.status()
    };
    let (placed, added) = threads::run_both("orogen-flush", beside, here);
    let finish = || -> Result<Written> {
        added?;
        let placed = placed?;
        let mut rest = &placed.entries[..];
        while let Some((key, value)) = take_entry(&mut rest) {
            writer.add_placed(key, value)?;
        }
        let mut written = writer.finish()?;
        let (mut stats, mut pointers_read) = (*iter.stats(), iter.pointers_read());
        stats.add(&placed.stats);
        pointers_read.add_all(&placed.pointers_read);
        written.bytes += placed.blobs.bytes;
        written.blob_bytes += placed.blobs.bytes;
        written.blob_files.extend(placed.blobs.additions);
        written.relocated.values += placed.blobs.relocated.values;
        written.relocated.bytes += placed.blobs.relocated.bytes;
        written.returned.values += placed.blobs.returned.values;
        written.returned.bytes += placed.blobs.returned.bytes;
        written.ordered.values += placed.blobs.ordered.values;
        written.ordered.bytes += placed.blobs.ordered.bytes;
        written.pointers_kept.add_all(&placed.blobs.kept);
        Ok(Written {
            stats,
            pointers_read,
            dropped_range_tombstones,
            ..written
        })
    };
    finish().map_err(|error| Failed {
        error,
        created: {
            let mut created = writer.into_created();
            created.extend(second_created);
            created
        },
    })
}

/// Puts the large values of a half apart, and keeps the entries.
fn place_all<I: InternalIterator>(
    iter: &mut CompactionIter<I>,
    blobs: &mut BlobWriter,
    new_file: &mut NewFile<'_>,
    created: &mut Vec<DataFile>,
    mut reservation: Option<Reservation<CachedBlock>>,
) -> Result<Placed> {
    let mut entries = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        let (key, value) = blobs.place(iter.key(), iter.value(), new_file, created)?;
        let (key_len, value_len) = (key.len().to_le_bytes(), value.len().to_le_bytes());
        for part in [&key_len[..], &value_len, key, value] {
            memory::append(&mut entries, part, HELD)?;
        }
        if let Some(reservation) = &mut reservation
            && reservation.bytes() < entries.capacity()
        {
            reservation.set(entries.capacity().next_multiple_of(RESERVED_STEP));
        }
        iter.next();
    }
    iter.status()?;
    Ok(Placed {
        entries,
        _reservation: reservation,
        blobs: blobs.finish()?,
        stats: *iter.stats(),
        pointers_read: iter.pointers_read(),
    })
}

/// The next entry; `None` at the end.
fn take_entry<'e>(rest: &mut &'e [u8]) -> Option<(&'e [u8], &'e [u8])> {
    let (key_len, tail) = rest.split_first_chunk()?;
    let (value_len, tail) = tail.split_first_chunk()?;
    let (key, tail) = tail.split_at_checked(usize::from_le_bytes(*key_len))?;
    let (value, tail) = tail.split_at_checked(usize::from_le_bytes(*value_len))?;
    *rest = tail;
    Some((key, value))
}
