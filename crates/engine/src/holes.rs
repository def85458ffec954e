//! Space inside blob files that comes back without a value being moved.
//!
//! ```text
//! pick      files with most dead bytes that nobody has looked at
//! mark      the places that tables of one version point to; all else in these files is dead
//! announce  an edit: something of these files is about to be given up; a new era of versions begins
//! wait      until no version of an earlier era is held, and until no flushes come where holes are too slow beside them
//! punch     whole blocks of dead stretches, if the file has one name
//! note      an edit: how many bytes that was
//! ```
//! Nothing but the files themselves outlives the process: what a crash leaves undone is dead still,
//! and found by the next mark. A mark costs reading the tables that point to the files, which is a
//! small part of the dead bytes: 60 bytes a value against thousands.
//!
//! Invariants:
//! 1. A place that is dead in a version is dead in all later ones: values are never pointed to anew. A job that
//!    passes pointers on holds a version that has them, and they are live until it ends.
//! 2. So a place may be given up once no version before the marked one is held. Versions share an
//!    [`Era`](crate::version::version::Era); the edit that announces begins the next.
//! 3. What was found must be as many values and bytes as the MANIFEST says are live, file by file. Where
//!    it is not, something points to the file that is in no table, or the count is wrong: the file is left alone.
//! 4. From the announcement on the file's checksum no longer counts, and whoever reads files as a whole
//!    (scrub, backup) knows it by the version that it holds.
//! 5. A file with several names is left alone: a checkpoint of an older version may need the places. One
//!    that is made after the announcement needs none of them. Whether its other names went nobody tells: one call asks
//!    when it has more garbage, and each [`LOOK_AGAIN_MICROS`].
//! 6. Who asks for holes has them looked for in all files, however little is dead, whatever they cost and whatever the
//!    settings say; 1 to 5 hold for him, too.
//!
//! With many files a pick takes long (0.46 ms with 10,000), so it is made without the family's lock, and taken while its
//! version is the newest: [why](../../../docs/adr/2026-11-22-picks-without-the-lock.md).
//!
//! Source: the proposal of Titan's authors, tikv/titan#59 and #326, for what must not go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use orogen_base::sync::{Mutex, MutexGuard};
use orogen_base::{FileNo, Result};
use orogen_blob::Extent;
use orogen_sst::TableReadOptions;

use crate::options::ColumnFamilyOptions;
use crate::tables::FamilyTables;
use crate::version::blob_counts::BlobCount;
use crate::version::{BlobFileMeta, Version};

/// Calls that tell what one brings and costs.
const PROBE_CALLS: u64 = 64;
/// Bytes that come back in a second below which holes cost too much, unless what jobs may write is bounded lower:
/// moving values frees as many as it writes, on most devices several times this.
const SLOW_BYTES_PER_SEC: u64 = 64 << 20;
/// The same where flushes are so fast that moving would free more: half of what they write, as who moves reads what it
/// writes. But no more than this: what is not written at all is worth something.
const SLOW_BYTES_PER_SEC_MAX: u64 = 256 << 20;
/// Bytes of flushes that tell how fast they are; half of what was counted is forgotten with each so many.
const FLUSHED_BYTES: u64 = 256 << 20;

/// Bytes in holes that tell whether a file system takes them back.
const PROBE_BYTES: u64 = 4 << 20;

/// Values that a mark notes the places of at most, 16 bytes each.
pub(crate) const MARKED_MAX: u64 = 4 << 20;

/// A file that has other names is looked at again after so many microseconds.
pub(crate) const LOOK_AGAIN_MICROS: u64 = 5 * 60 * 1_000_000;

/// True if holes of `punched` bytes bring less than half of them, because `kept` still take space.
pub(crate) fn is_mostly_kept(punched: u64, kept: u64) -> bool {
    kept > punched / 2
}

/// Dead bytes of a file that no mark has seen.
fn unseen(blob: &BlobFileMeta, now_micros: u64) -> u64 {
    let given_up = blob.given_up_bytes.unwrap_or(0);
    blob.garbage_blob_bytes
        .saturating_sub(given_up.max(blob.file.garbage_seen(now_micros)))
}

/// Files that are to be looked at.
#[derive(Default)]
pub(crate) struct Picked {
    pub(crate) files: Vec<FileNo>,
    /// Somebody has asked for it.
    pub(crate) is_asked: bool,
}

/// True if who asks for it has the file looked at: something in it is dead and was not given up.
pub(crate) fn is_asked_about(blob: &BlobFileMeta) -> bool {
    let is_punchable = blob.is_live() && !blob.file.damaged.get();
    is_punchable && blob.garbage_blob_bytes > blob.holes()
}

/// The files that are to be looked at now, most dead bytes first: those of `asked`, or else those that are worth it.
/// Among these are those whose holes wait for quiet, unless `leaves_waiting`.
pub(crate) fn pick(
    version: &Version,
    options: &ColumnFamilyOptions,
    asked: &BTreeSet<FileNo>,
    leaves_waiting: bool,
    now_micros: u64,
) -> Picked {
    let asked = asked.iter().filter_map(|number| {
        let blob = version.blob_files().get(number)?;
        let dead = blob.garbage_blob_bytes - blob.holes();
        is_asked_about(blob).then(|| (dead, *number, blob.live_count()))
    });
    let asked: Vec<_> = asked.collect();
    if !asked.is_empty() {
        return Picked {
            files: first(asked),
            is_asked: true,
        };
    }
    if !options.punches_holes() {
        return Picked::default();
    }
    let (mut dead, mut live) = (0u64, 0u64);
    let mut files = Vec::new();
    for (&number, blob) in version.blob_files() {
        live += blob.live_bytes();
        let bytes = unseen(blob, now_micros);
        let is_left = blob.file.damaged.get()
            || blob.file.leave_holes.get()
            || (leaves_waiting && blob.file.holes_wait_for_quiet.get());
        if bytes > 0 && blob.is_live() && !is_left {
            dead += bytes;
            files.push((bytes, number, blob.live_count()));
        }
    }
    let least = (options.blob_hole_punching_threshold * live as f64) as u64;
    if dead < least.max(options.blob_hole_punching_min_bytes).max(1) {
        return Picked::default();
    }
    Picked {
        files: first(files),
        is_asked: false,
    }
}

/// Of files with their dead bytes and their living values, those with most dead bytes, as many as one mark may note the places of.
fn first(mut files: Vec<(u64, FileNo, u64)>) -> Vec<FileNo> {
    files.sort_by(|a, b| b.cmp(a));
    let mut marked = 0;
    let mut picked = Vec::new();
    for (_, number, values) in files {
        marked += values;
        if marked > MARKED_MAX && !picked.is_empty() {
            break;
        }
        picked.push(number);
    }
    picked
}

/// Where the values stand that tables of the version point to, in each of `files`, unsorted. A file of which they
/// are not as many as the MANIFEST says is not among them.
///
/// # Errors
/// What a reader of the tables meets; those of `each_table`, which is asked before each.
pub(crate) fn mark(
    tables: &FamilyTables,
    version: &Version,
    files: &[FileNo],
    each_table: &mut dyn FnMut() -> Result<()>,
) -> Result<BTreeMap<FileNo, Vec<Extent>>> {
    let mut places: BTreeMap<FileNo, Vec<Extent>> =
        files.iter().map(|&number| (number, Vec::new())).collect();
    for (_, file) in version.iter_files() {
        each_table()?;
        let references = tables.blob_references(file)?;
        if references.iter().all(|(n, _)| !places.contains_key(&n)) {
            continue;
        }
        tables.each_pointer(file, TableReadOptions::compaction(), &mut |pointer, key| {
            if let Some(found) = places.get_mut(&pointer.file)
                && let Some(extent) = pointer.record_extent(key.len())
            {
                found.push(extent);
            }
            Ok(())
        })?;
    }
    places.retain(|number, found| {
        let count = BlobCount {
            values: found.len() as u64,
            bytes: found.iter().map(|e| e.size).sum(),
        };
        let blob = version.blob_files().get(number);
        blob.is_some_and(|b| (b.live_count(), b.live_bytes()) == (count.values, count.bytes))
    });
    Ok(places)
}

/// A family waits for versions to go.
pub(crate) struct Waits(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// Whether holes may be punched into blob files: not while somebody copies them as wholes.
#[derive(Default)]
pub(crate) struct HolePunching {
    holds: AtomicUsize,
    /// One for each family that waits for versions to go, and one more.
    waiting: Arc<()>,
    /// Held while holes are punched into a file.
    running: Mutex<()>,
    /// The MANIFEST has checksums of files that are about to have holes.
    has_old_checksums: AtomicBool,
    /// A thread is at it.
    has_thread: AtomicBool,
    /// While flushes come, when all waits for the device, and while none do.
    beside_flushes: Calls,
    in_quiet: Calls,
    punched: AtomicU64,
    kept: AtomicU64,
    flushed: Mutex<Flushed>,
    /// Bytes in a second that they were found to bring less than.
    found_below: AtomicU64,
    is_given_up: AtomicBool,
    waits_for_quiet: AtomicBool,
}

/// Calls that made holes.
#[derive(Default)]
struct Calls {
    calls: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
}

impl Calls {
    fn note(&self, bytes: u64, micros: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// True if they tell, and brought fewer bytes in a second.
    fn bring_less(&self, rate: u64) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let micros = self.micros.load(Ordering::Relaxed);
        self.calls.load(Ordering::Relaxed) >= PROBE_CALLS
            && bytes.saturating_mul(1_000_000) < rate.saturating_mul(micros)
    }
}

/// What flushes wrote lately, and how long it took.
#[derive(Default)]
struct Flushed {
    bytes: u64,
    micros: u64,
}

impl HolePunching {
    pub(crate) fn is_allowed(&self) -> bool {
        self.holds.load(Ordering::SeqCst) == 0
    }

    /// Counts a call that gave back `bytes`.
    pub(crate) fn note_call(&self, bytes: u64, micros: u64, flushes_come: bool) {
        self.calls(flushes_come).note(bytes, micros);
    }

    fn calls(&self, flushes_come: bool) -> &Calls {
        match flushes_come {
            true => &self.beside_flushes,
            false => &self.in_quiet,
        }
    }

    /// Counts a file with holes of `punched` bytes, of which `kept` still take space.
    pub(crate) fn note_kept(&self, punched: u64, kept: u64) {
        self.punched.fetch_add(punched, Ordering::Relaxed);
        self.kept.fetch_add(kept, Ordering::Relaxed);
    }

    /// True if the file system was found not to take back what is in holes, from the open on.
    pub(crate) fn bring_nothing(&self) -> bool {
        let punched = self.punched.load(Ordering::Relaxed);
        punched >= PROBE_BYTES && is_mostly_kept(punched, self.kept.load(Ordering::Relaxed))
    }

    /// Counts a flush.
    pub(crate) fn note_flush(&self, bytes: u64, micros: u64) {
        let mut flushed = self.flushed.lock();
        if flushed.bytes >= FLUSHED_BYTES {
            flushed.bytes /= 2;
            flushed.micros /= 2;
        }
        flushed.bytes = flushed.bytes.saturating_add(bytes);
        flushed.micros = flushed.micros.saturating_add(micros);
    }

    /// Bytes in a second that holes have to bring.
    fn least_rate(&self) -> u64 {
        let flushed = self.flushed.lock();
        let enough = flushed.bytes >= FLUSHED_BYTES / 2;
        let rate = flushed.bytes.saturating_mul(1_000_000) / flushed.micros.max(1);
        match enough {
            true => (rate / 2).clamp(SLOW_BYTES_PER_SEC, SLOW_BYTES_PER_SEC_MAX),
            false => SLOW_BYTES_PER_SEC,
        }
    }

    /// True if calls were found to cost too much for what they bring, from the open on, where jobs may
    /// write so many bytes in a second. While flushes come they have to bring more; and what they did not bring once they
    /// have to whenever flushes come from there on, so that nobody goes to and fro.
    pub(crate) fn is_slow(&self, write_rate: u64, flushes_come: bool) -> bool {
        let calls = self.calls(flushes_come);
        if !flushes_come {
            return calls.bring_less(SLOW_BYTES_PER_SEC.min(write_rate));
        }
        let found_below = self.found_below.load(Ordering::Relaxed);
        let least = self.least_rate().max(found_below);
        if calls.bring_less(least) {
            self.found_below.fetch_max(least, Ordering::Relaxed);
        }
        calls.bring_less(least.min(write_rate))
    }

    /// Notes that values are moved instead from here on. True the first time.
    pub(crate) fn note_given_up(&self) -> bool {
        !self.is_given_up.swap(true, Ordering::Relaxed)
    }

    /// Notes that values are moved instead while flushes come. True the first time.
    pub(crate) fn note_waits_for_quiet(&self) -> bool {
        !self.waits_for_quiet.swap(true, Ordering::Relaxed)
    }

    /// True if there may be files whose holes wait until no flushes come.
    pub(crate) fn waits_for_quiet(&self) -> bool {
        self.waits_for_quiet.load(Ordering::Relaxed)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }

    /// Notes whether the MANIFEST has checksums of files that are about to have holes.
    pub(crate) fn note_old_checksums(&self, has: bool) {
        self.has_old_checksums.store(has, Ordering::Relaxed);
    }

    pub(crate) fn has_old_checksums(&self) -> bool {
        self.has_old_checksums.load(Ordering::Relaxed)
    }

    /// Counts a family that waits until this is dropped.
    pub(crate) fn wait(&self) -> Waits {
        Waits(self.waiting.clone())
    }

    /// False while a thread is at it.
    pub(crate) fn is_worth_a_look(&self) -> bool {
        !self.has_thread.load(Ordering::Relaxed)
    }

    /// True for the one who may begin a thread, until [`Self::give_thread_back`].
    pub(crate) fn take_thread(&self) -> bool {
        !self.has_thread.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn give_thread_back(&self) {
        self.has_thread.store(false, Ordering::Release);
    }

    /// Begins to punch, unless that is not allowed; it ends when the guard is dropped.
    pub(crate) fn begin(&self) -> Option<MutexGuard<'_, ()>> {
        let guard = self.running.lock();
        self.is_allowed().then_some(guard)
    }

    /// Keeps holes from being punched, from the end of those on until [`Self::unhold`].
    pub(crate) fn hold(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
        drop(self.running.lock());
    }

    /// Ends one [`Self::hold`].
    pub(crate) fn unhold(&self) {
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_slow_that_bring_less_than_moving_does() {
        let slow = |bytes, micros, calls, write_rate| {
            let punching = HolePunching::default();
            for _ in 0..calls {
                punching.note_call(bytes, micros, true);
            }
            assert!(
                !punching.is_slow(write_rate, false),
                "nothing told of quiet times"
            );
            punching.is_slow(write_rate, true)
        };
        // A block in 3 ms, as with online discard; in 20 us; 256 KiB in 3 ms.
        assert!(slow(4096, 3000, PROBE_CALLS, u64::MAX));
        assert!(!slow(4096, 3000, PROBE_CALLS - 1, u64::MAX));
        assert!(!slow(4096, 20, PROBE_CALLS, u64::MAX));
        assert!(!slow(256 << 10, 3000, PROBE_CALLS, u64::MAX));
        // 1.3 MiB a second are enough where moving has no more, be it what a limiter leaves it.
        assert!(!slow(4096, 3000, PROBE_CALLS, 1 << 20));
    }

    #[test]
    fn calls_are_slow_that_bring_less_than_half_of_what_flushes_write() {
        let slow_beside = |flushes: &[(u64, u64)], bytes_per_call, micros_per_call| {
            let punching = HolePunching::default();
            for &(bytes, micros) in flushes {
                punching.note_flush(bytes, micros);
            }
            for _ in 0..PROBE_CALLS {
                punching.note_call(bytes_per_call, micros_per_call, true);
            }
            punching.is_slow(u64::MAX, true)
        };
        // Holes of 16 KiB in 150 us are 104 MiB a second.
        let (hole, micros) = (16 << 10, 150);
        assert!(!slow_beside(&[], hole, micros));
        let at = |mib_per_sec: u64| [(256 << 20, 256_000_000 / mib_per_sec)];
        assert!(slow_beside(&at(400), hole, micros));
        assert!(!slow_beside(&at(200), hole, micros));
        assert!(
            !slow_beside(&[(64 << 20, 100_000)], hole, micros),
            "too few to tell"
        );
        // However fast flushes are, 273 MiB a second are enough; and however slow, 52 are not.
        assert!(!slow_beside(&at(10_000), hole, 57));
        assert!(slow_beside(&at(10), hole, 300));
        // What was is forgotten.
        let faster_now = [at(10), at(400), at(400), at(400), at(400), at(400)].concat();
        assert!(slow_beside(&faster_now, hole, micros));
    }

    #[test]
    fn what_was_found_slow_beside_flushes_stays_so() {
        let punching = HolePunching::default();
        for _ in 0..PROBE_CALLS {
            punching.note_call(16 << 10, 150, true);
        }
        punching.note_flush(256 << 20, 640_000);
        assert!(!punching.is_slow(u64::MAX, false), "nothing else is done");
        assert!(punching.is_slow(u64::MAX, true));
        punching.note_flush(256 << 20, 256_000_000);
        assert!(punching.is_slow(u64::MAX, true));
        assert!(!punching.is_slow(u64::MAX, false), "quiet again");
        assert!(
            !punching.is_slow(32 << 20, true),
            "where moving has no more"
        );
        for _ in 0..PROBE_CALLS {
            punching.note_call(4096, 3000, false);
        }
        assert!(punching.is_slow(u64::MAX, false));
        assert!(!punching.is_slow(1 << 20, false));
    }
}
