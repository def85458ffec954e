//! The rules of what a flush or a compaction keeps: versions in, the versions that matter out.
//!
//! Stands between the merged inputs ([`orogen_base::InternalIterator`]) and the tables that
//! [`crate::output`] writes. The live snapshots cut time into *stripes*: stripe `i` holds the
//! sequence numbers above snapshot `i - 1` and up to snapshot `i`; the last stripe is open. No
//! reader tells two moments of one stripe apart.
//!
//! ```text
//! input entry -> covered by a range tombstone of its stripe? drop
//!             -> single delete: meets its value in its stripe? drop both
//!             -> stripe already answered by a newer version? drop
//!             -> value: filter, emit    tombstone: drop if nothing is below, else emit
//!             -> merge: fold the stripe's operands, emit
//! ```
//! Invariants:
//! 1. For every live snapshot and for the present, each key reads the same before and after,
//!    whatever older versions lie below the output (but for what a compaction filter changes or
//!    skips, and single deletes on keys that were not written exactly once).
//! 2. Keys come out in strict internal order.
//! 3. A tombstone goes only if no older version can be below: none beyond the output level and,
//!    above the oldest snapshot, none left in the inputs.
//! 4. A single delete is never dropped merely because a newer version hides it: it still has a
//!    value to meet, which would come back when the newer version meets a single delete.
//! 5. A sequence number becomes 0 only at the bottom, in the oldest stripe and on values; the
//!    range tombstones of that stripe are dropped by the same job.
//!
//! Hot path: values are not copied; only merges and filters allocate. Source: RocksDB
//! `db/compaction/compaction_iterator.cc`, `db/merge_helper.cc`.

mod merge;
mod tombstones;

use orogen_base::sync::atomic::{AtomicBool, Ordering as Memory};
use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::key::{TRAILER_LEN, append_seek_key, pack, trailer, user_key};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{
    Error, InternalIterator, ParsedInternalKey, PinnedValue, Result, SeqNo, UserComparator,
    ValueKind,
};
use orogen_blob::BlobPointer;

use crate::plugin::compaction_filter::{CompactionFilter, FilterDecision};
use crate::plugin::merge_operator::MergeOperator;
use crate::read::BlobSource;
use crate::version::blob_counts::{BlobCount, BlobCounts, ByBlobFile};
use merge::Operands;
pub use tombstones::surviving_tombstones;

/// Entries between two looks of whoever watches the job.
const ENTRIES_PER_LOOK: u64 = 1024;

/// Tells of a user key whether nothing older lies below the output; asked with rising keys.
pub type KeyNotExistsBeyond = Box<dyn FnMut(&[u8]) -> bool + Send>;

/// Tells of the user keys from the first up to but not including the second whether nothing
/// older lies below the output.
pub type RangeNotExistsBeyond = Box<dyn Fn(&[u8], &[u8]) -> bool + Send>;

/// What the job knows.
pub struct CompactionIterOptions {
    /// The order of user keys.
    pub comparator: UserComparator,
    /// Sequence numbers of the live snapshots, rising strictly. Taken after the inputs were
    /// sealed, so that a later snapshot sees all of them.
    pub snapshots: Vec<SeqNo>,
    /// The oldest snapshot that a transaction checks conflicts against: a key written after it
    /// keeps a trace. [`SEQNO_MAX`] if there is none.
    pub earliest_write_conflict_snapshot: SeqNo,
    /// Folds merge operands; without it an operand is an error.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// The user's say, and the level it is told. A flush has none.
    pub filter: Option<(Box<dyn CompactionFilter>, usize)>,
    /// False if the inputs have no pointers to blob files: what a filter skips need not be counted,
    /// and is not read.
    pub counts_pointers: bool,
    /// True if nothing of the job's key range lies below the output.
    pub bottommost: bool,
    /// Whether a single key has nothing below the output; `None`: never known.
    pub key_not_exists_beyond_output_level: Option<KeyNotExistsBeyond>,
    /// The same of a stretch of keys, for range tombstones.
    pub range_not_exists_beyond_output_level: Option<RangeNotExistsBeyond>,
    /// First user key of the job, `None` for all from the start.
    pub start: Option<Vec<u8>>,
    /// First user key after the job, `None` for all to the end.
    pub end: Option<Vec<u8>>,
    /// Looks in from time to time, and may give the job up.
    pub watch: Option<Arc<dyn JobWatch>>,
    /// Reads values in blob files, for merges and filters.
    pub blobs: Option<Arc<dyn BlobSource>>,
}

/// Told how a job gets on, on the job's threads.
pub trait JobWatch: Send + Sync {
    /// `entries` more were read.
    ///
    /// # Errors
    /// `Aborted` to give the job up.
    fn look(&self, entries: u64) -> Result<()>;
}

/// A flag that gives the job up once it is set.
impl JobWatch for AtomicBool {
    fn look(&self, _entries: u64) -> Result<()> {
        if self.load(Memory::Relaxed) {
            return Err(Error::aborted("job was cancelled"));
        }
        Ok(())
    }
}

impl CompactionIterOptions {
    /// What a flush knows: nothing of older versions.
    #[must_use]
    pub fn for_flush(
        comparator: UserComparator,
        snapshots: Vec<SeqNo>,
        merge_operator: Option<Arc<dyn MergeOperator>>,
    ) -> Self {
        Self {
            comparator,
            snapshots,
            earliest_write_conflict_snapshot: SEQNO_MAX,
            merge_operator,
            filter: None,
            counts_pointers: true,
            bottommost: false,
            key_not_exists_beyond_output_level: None,
            range_not_exists_beyond_output_level: None,
            start: None,
            end: None,
            watch: None,
            blobs: None,
        }
    }
}

/// What was read and what was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionIterStats {
    /// Entries read.
    pub input_records: u64,
    /// Point tombstones among them.
    pub input_deletions: u64,
    /// Bytes of their internal keys.
    pub input_key_bytes: u64,
    /// Bytes of their values.
    pub input_value_bytes: u64,
    /// User keys among them.
    pub input_keys: u64,
    /// Keys whose newest version is newer than that of the key before: they were written behind it.
    pub rising_keys: u64,
    /// Entries that came out.
    pub output_records: u64,
    /// Dropped: a newer version of the stripe hides them.
    pub dropped_hidden: u64,
    /// Dropped: tombstones with nothing below.
    pub dropped_obsolete: u64,
    /// Dropped: under a range tombstone of their stripe.
    pub dropped_range_del: u64,
    /// Dropped: the compaction filter removed them, as far as they were read.
    pub dropped_user: u64,
    /// Single deletes that met something else than one value.
    pub single_delete_mismatches: u64,
    /// Folds that the merge operator refused; the operands stay.
    pub merge_failures: u64,
}

impl CompactionIterStats {
    /// Adds the counts of another part of the job.
    pub fn add(&mut self, other: &Self) {
        self.input_records += other.input_records;
        self.input_deletions += other.input_deletions;
        self.input_key_bytes += other.input_key_bytes;
        self.input_value_bytes += other.input_value_bytes;
        self.input_keys += other.input_keys;
        self.rising_keys += other.rising_keys;
        self.output_records += other.output_records;
        self.dropped_hidden += other.dropped_hidden;
        self.dropped_obsolete += other.dropped_obsolete;
        self.dropped_range_del += other.dropped_range_del;
        self.dropped_user += other.dropped_user;
        self.single_delete_mismatches += other.single_delete_mismatches;
        self.merge_failures += other.merge_failures;
    }
}

/// Where the value of the current entry lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueAt {
    /// Under the input cursor, which has not moved.
    Input,
    /// Under the input cursor, but a filter or a fold put `CompactionIter::own` in its place.
    OwnOverInput,
    /// In `CompactionIter::own`; the input cursor has moved on.
    Own,
    /// The value is empty; the input cursor has moved on.
    Nothing,
    /// The value is empty in place of the one under the input cursor.
    NothingOverInput,
    /// One of the collected operands.
    Operand(usize),
}

/// What stands under the input cursor.
enum Peek {
    /// The end of the input or of the job's range.
    End,
    /// A version of another user key.
    OtherKey(SeqNo, ValueKind),
    /// A version of the current user key.
    SameKey(SeqNo, ValueKind),
}

/// The entries that must stay, in order.
pub struct CompactionIter<I> {
    input: I,
    tombstones: Arc<FragmentedRangeTombstones>,
    options: CompactionIterOptions,
    stats: CompactionIterStats,
    pointers_read: ByBlobFile<BlobCount>,
    /// A pointer that was passed and leads nowhere.
    bad_pointer: Option<Error>,
    looked_at: u64,
    next_look: u64,
    valid: bool,
    status: Result<()>,

    /// The internal key that comes out; its user key is the current one.
    key: Vec<u8>,
    value_at: ValueAt,
    own: Vec<u8>,
    operands: Operands,

    /// False before the first key.
    has_key: bool,
    /// The sequence number of the last version of the current key that was passed.
    last_seqno: SeqNo,
    /// The sequence number of the newest version of the current key.
    newest: SeqNo,
    /// True until the first version of the current key was judged.
    newest_version: bool,
    /// True once the current key has come out.
    has_output: bool,
    /// The stripe of the current key whose readers have their answer.
    answered: Option<usize>,
    /// The next entry is the value of a single delete that had to stay: its bytes are not read.
    clear_next: bool,
    /// The first fragment that ends after the current key.
    fragment: usize,
    /// True if that fragment covers the current key.
    covered: bool,
}

impl<I: InternalIterator> CompactionIter<I> {
    /// Over merged `input` and all range tombstones of the inputs. Not positioned.
    ///
    /// # Panics
    /// If the snapshots do not rise strictly.
    #[must_use]
    pub fn new(
        input: I,
        tombstones: Arc<FragmentedRangeTombstones>,
        options: CompactionIterOptions,
    ) -> Self {
        assert!(
            options.snapshots.is_sorted_by(|a, b| a < b),
            "snapshots rise strictly"
        );
        Self {
            input,
            tombstones,
            options,
            stats: CompactionIterStats::default(),
            pointers_read: ByBlobFile::default(),
            bad_pointer: None,
            looked_at: 0,
            next_look: 0,
            valid: false,
            status: Ok(()),
            key: Vec::new(),
            value_at: ValueAt::Nothing,
            own: Vec::new(),
            operands: Operands::default(),
            has_key: false,
            last_seqno: SEQNO_MAX,
            newest: SEQNO_MAX,
            newest_version: false,
            has_output: false,
            answered: None,
            clear_next: false,
            fragment: 0,
            covered: false,
        }
    }

    /// Moves to the first entry that stays. Called once.
    pub fn seek_to_first(&mut self) {
        match &self.options.start {
            None => self.input.seek_to_first(),
            Some(start) => {
                let mut target = Vec::new();
                append_seek_key(&mut target, start, SEQNO_MAX);
                self.input.seek(&target);
            }
        }
        self.settle();
    }

    /// True while there is an entry.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// Moves to the next entry that stays.
    pub fn next(&mut self) {
        debug_assert!(self.valid);
        match self.value_at {
            ValueAt::Operand(i) if i + 1 < self.operands.len() => {
                self.emit_operand(i + 1);
                return;
            }
            ValueAt::Input | ValueAt::OwnOverInput | ValueAt::NothingOverInput => {
                self.advance_input();
            }
            ValueAt::Own | ValueAt::Nothing | ValueAt::Operand(_) => {}
        }
        self.settle();
    }

    /// The internal key here.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value here.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &[u8] {
        match self.value_at {
            ValueAt::Input => self.input.value(),
            ValueAt::Own | ValueAt::OwnOverInput => &self.own,
            ValueAt::Nothing | ValueAt::NothingOverInput => b"",
            ValueAt::Operand(i) => self.operands.value(i),
        }
    }

    /// Why there is no entry.
    ///
    /// # Errors
    /// What the input met; `Corruption` for keys out of order; `NotSupported` for kinds of other
    /// features; `InvalidArgument` for an operand without a merge operator; `Aborted`.
    pub fn status(&self) -> Result<()> {
        self.status.clone()
    }

    /// The counts so far.
    #[must_use]
    pub fn stats(&self) -> &CompactionIterStats {
        &self.stats
    }

    /// The pointers to blob files that were read so far.
    #[must_use]
    pub fn pointers_read(&self) -> BlobCounts {
        self.pointers_read.iter().map(|(&n, &c)| (n, c)).collect()
    }

    /// Finds the next entry that stays, from where the input stands.
    fn settle(&mut self) {
        self.valid = false;
        match self.find_next() {
            Ok(found) => self.valid = found,
            Err(e) => self.status = Err(e),
        }
    }

    fn find_next(&mut self) -> Result<bool> {
        loop {
            self.let_watch()?;
            let (seqno, kind) = match self.peek()? {
                Peek::End => return Ok(false),
                Peek::OtherKey(seqno, kind) => {
                    self.begin_key();
                    (seqno, kind)
                }
                Peek::SameKey(seqno, kind) => (seqno, kind),
            };
            let stripe = self.stripe_of(seqno);
            if std::mem::take(&mut self.clear_next) {
                self.answered = Some(stripe);
                return Ok(self.emit(seqno, ValueKind::Value, ValueAt::NothingOverInput));
            }
            if self.is_covered(seqno, stripe) {
                self.stats.dropped_range_del += 1;
                self.advance_input();
                continue;
            }
            let newest_version = std::mem::take(&mut self.newest_version);
            if kind != ValueKind::SingleDeletion && self.answered == Some(stripe) {
                self.stats.dropped_hidden += 1;
                self.advance_input();
                continue;
            }
            let emitted = match kind {
                ValueKind::Value | ValueKind::BlobIndex => {
                    self.on_value(seqno, kind, stripe, newest_version)?
                }
                ValueKind::Deletion => {
                    self.advance_input();
                    self.on_deletion(seqno, stripe)?
                }
                ValueKind::SingleDeletion => self.on_single_deletion(seqno, stripe)?,
                ValueKind::Merge => self.on_merge(seqno, stripe)?,
                ValueKind::RangeDeletion => return Err(misplaced(kind)),
            };
            if emitted {
                return Ok(true);
            }
        }
    }

    /// A value, or a pointer to one, that answers its stripe; true if something comes out.
    fn on_value(
        &mut self,
        seqno: SeqNo,
        mut kind: ValueKind,
        stripe: usize,
        newest_version: bool,
    ) -> Result<bool> {
        self.answered = Some(stripe);
        let mut at = ValueAt::Input;
        let unseen = self
            .options
            .snapshots
            .last()
            .is_none_or(|&newest| seqno > newest);
        if newest_version
            && unseen
            && let Some((filter, level)) = &mut self.options.filter
        {
            let user_key = &self.key[..self.key.len() - TRAILER_LEN];
            let decision = if kind == ValueKind::Value {
                filter.filter(*level, user_key, self.input.value())
            } else {
                filter_blob(
                    &mut **filter,
                    self.options.blobs.as_deref(),
                    *level,
                    user_key,
                    self.input.value(),
                )?
            };
            match decision {
                FilterDecision::Keep => {}
                FilterDecision::RemoveAndSkipUntil(until) => {
                    if self.options.comparator.less(user_key, &until) {
                        self.skip_until(&until)?;
                        return Ok(false);
                    }
                }
                FilterDecision::ChangeValue(value) => {
                    self.own = value;
                    at = ValueAt::OwnOverInput;
                    kind = ValueKind::Value;
                }
                FilterDecision::Remove => {
                    self.stats.dropped_user += 1;
                    self.advance_input();
                    return self.on_deletion(seqno, stripe);
                }
            }
        }
        Ok(self.emit_value(seqno, kind, stripe, at))
    }

    /// Drops what there is from the entry under the input cursor up to the user key `until`.
    fn skip_until(&mut self, until: &[u8]) -> Result<()> {
        loop {
            self.stats.dropped_user += 1;
            self.advance_input();
            self.let_watch()?;
            match self.peek()? {
                Peek::End => return Ok(()),
                Peek::SameKey(..) => {}
                Peek::OtherKey(..) => {
                    let next = user_key(self.input.key());
                    if !self.options.comparator.less(next, until) {
                        return Ok(());
                    }
                    if !self.options.counts_pointers {
                        let mut target = Vec::new();
                        append_seek_key(&mut target, until, SEQNO_MAX);
                        self.input.seek(&target);
                        return Ok(());
                    }
                    self.begin_key();
                }
            }
        }
    }

    /// A tombstone that answers its stripe; the input is past it.
    fn on_deletion(&mut self, seqno: SeqNo, stripe: usize) -> Result<bool> {
        self.answered = Some(stripe);
        if stripe == 0 && self.nothing_below() {
            self.stats.dropped_obsolete += 1;
            return Ok(false);
        }
        // A transaction may have to see that the key was written, though it was not there before.
        if self.options.bottommost && seqno <= self.options.earliest_write_conflict_snapshot {
            // Only older versions that are still in the inputs can need it.
            while let Peek::SameKey(older, _) = self.peek()?
                && self.stripe_of(older) == stripe
            {
                self.stats.dropped_hidden += 1;
                self.advance_input();
            }
            if !matches!(self.peek()?, Peek::SameKey(..)) {
                self.stats.dropped_obsolete += 1;
                return Ok(false);
            }
        }
        Ok(self.emit(seqno, ValueKind::Deletion, ValueAt::Nothing))
    }

    /// A single delete under the input cursor; true if something comes out.
    fn on_single_deletion(&mut self, seqno: SeqNo, stripe: usize) -> Result<bool> {
        self.advance_input();
        let met = match self.peek()? {
            Peek::SameKey(older, kind) if self.stripe_of(older) == stripe => Some(kind),
            _ => None,
        };
        match met {
            None => {
                if stripe == 0 && self.nothing_below() {
                    self.answered = Some(stripe);
                    self.stats.dropped_obsolete += 1;
                    return Ok(false);
                }
            }
            Some(ValueKind::Value | ValueKind::BlobIndex) => {
                let traced = self.has_output
                    || stripe == 0
                    || seqno <= self.options.earliest_write_conflict_snapshot;
                if traced {
                    self.answered = Some(stripe);
                    self.stats.dropped_obsolete += 1;
                    self.stats.dropped_hidden += 1;
                    self.advance_input();
                    return Ok(false);
                }
                // A transaction may have to see that the key was written. The value stays with
                // it, empty, so that both can go later.
                self.clear_next = true;
            }
            Some(ValueKind::SingleDeletion | ValueKind::Deletion) => {
                // The older tombstone says the same to every reader.
                self.stats.single_delete_mismatches += 1;
                self.stats.dropped_obsolete += 1;
                return Ok(false);
            }
            Some(ValueKind::Merge) => {
                self.stats.single_delete_mismatches += 1;
                if self.answered == Some(stripe) {
                    self.stats.dropped_hidden += 1;
                    return Ok(false);
                }
                // Operands may go on below: only a plain tombstone hides them all.
                return self.on_deletion(seqno, stripe);
            }
            Some(kind @ ValueKind::RangeDeletion) => return Err(misplaced(kind)),
        }
        self.answered = Some(stripe);
        Ok(self.emit(seqno, ValueKind::SingleDeletion, ValueAt::Nothing))
    }

    fn emit_value(&mut self, seqno: SeqNo, kind: ValueKind, stripe: usize, at: ValueAt) -> bool {
        let seqno = if self.options.bottommost && stripe == 0 {
            0
        } else {
            seqno
        };
        self.emit(seqno, kind, at)
    }

    fn emit(&mut self, seqno: SeqNo, kind: ValueKind, at: ValueAt) -> bool {
        let at_trailer = self.key.len() - TRAILER_LEN;
        self.key[at_trailer..].copy_from_slice(&pack(seqno, kind).to_le_bytes());
        self.value_at = at;
        self.has_output = true;
        self.stats.output_records += 1;
        true
    }

    fn emit_operand(&mut self, i: usize) {
        let seqno = self.operands.seqno(i);
        self.emit(seqno, ValueKind::Merge, ValueAt::Operand(i));
    }

    /// Looks at the entry under the input cursor; checks order.
    fn peek(&self) -> Result<Peek> {
        if !self.input.valid() {
            self.input.status()?;
            return Ok(Peek::End);
        }
        let entry = ParsedInternalKey::parse(self.input.key())?;
        let order = &self.options.comparator;
        if self.has_key {
            let current = &self.key[..self.key.len() - TRAILER_LEN];
            match order.compare(entry.user_key, current) {
                Ordering::Equal if entry.seqno <= self.last_seqno => {
                    return Ok(Peek::SameKey(entry.seqno, entry.kind));
                }
                Ordering::Greater => {}
                Ordering::Equal | Ordering::Less => {
                    return Err(Error::corruption("inputs of a job are out of order")
                        .with("key", format_args!("{entry:?}"))
                        .with("after", current.escape_ascii())
                        .with("after_seqno", self.last_seqno));
                }
            }
        }
        match &self.options.end {
            Some(end) if !order.less(entry.user_key, end) => {
                // The inputs are left in the middle of their blocks.
                self.input.status()?;
                Ok(Peek::End)
            }
            _ => Ok(Peek::OtherKey(entry.seqno, entry.kind)),
        }
    }

    /// Makes the entry under the input cursor the newest version of a new current key.
    fn begin_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(self.input.key());
        self.has_key = true;
        self.stats.input_keys += 1;
        self.stats.rising_keys += u64::from(trailer(&self.key) >> 8 > self.newest);
        self.newest = trailer(&self.key) >> 8;
        self.last_seqno = SEQNO_MAX;
        self.newest_version = true;
        self.has_output = false;
        self.answered = None;
        self.clear_next = false;
        let fragments = self.tombstones.fragments();
        if self.fragment < fragments.len() {
            let user_key = &self.key[..self.key.len() - TRAILER_LEN];
            let order = &self.options.comparator;
            while fragments
                .get(self.fragment)
                .is_some_and(|f| !order.less(user_key, &f.end))
            {
                self.fragment += 1;
            }
            self.covered = fragments
                .get(self.fragment)
                .is_some_and(|f| !order.less(user_key, &f.start));
        } else {
            self.covered = false;
        }
    }

    /// Moves the input past the entry it stands on.
    fn advance_input(&mut self) {
        let key = self.input.key();
        let t = trailer(key);
        self.last_seqno = t >> 8;
        self.stats.input_records += 1;
        self.stats.input_key_bytes += key.len() as u64;
        self.stats.input_value_bytes += self.input.value().len() as u64;
        let kind = t as u8;
        if kind == ValueKind::Deletion as u8 || kind == ValueKind::SingleDeletion as u8 {
            self.stats.input_deletions += 1;
        } else if kind == ValueKind::BlobIndex as u8 {
            match BlobPointer::decode(self.input.value()) {
                Ok(pointer) => {
                    let count = self.pointers_read.entry(pointer.file).or_default();
                    count.add(&pointer, key.len() - TRAILER_LEN);
                }
                Err(e) => self.bad_pointer = Some(e),
            }
        }
        self.input.next();
    }

    /// How many snapshots are older than `seqno`: the stripe it belongs to.
    #[inline]
    fn stripe_of(&self, seqno: SeqNo) -> usize {
        self.options.snapshots.partition_point(|&s| s < seqno)
    }

    /// True if a range tombstone of the stripe hides the current key's version `seqno`.
    #[inline]
    fn is_covered(&self, seqno: SeqNo, stripe: usize) -> bool {
        if !self.covered {
            return false;
        }
        let newest = self
            .options
            .snapshots
            .get(stripe)
            .copied()
            .unwrap_or(SEQNO_MAX);
        self.tombstones.fragments()[self.fragment].visible_seqno(newest) > seqno
    }

    /// True if no older version of the current key lies below the output.
    fn nothing_below(&mut self) -> bool {
        if self.options.bottommost {
            return true;
        }
        let user_key = &self.key[..self.key.len() - TRAILER_LEN];
        self.options
            .key_not_exists_beyond_output_level
            .as_mut()
            .is_some_and(|f| f(user_key))
    }

    #[inline]
    fn let_watch(&mut self) -> Result<()> {
        if let Some(error) = self.bad_pointer.take() {
            return Err(error);
        }
        if self.stats.input_records < self.next_look {
            return Ok(());
        }
        let entries = self.stats.input_records - self.looked_at;
        self.looked_at = self.stats.input_records;
        self.next_look = self.looked_at + ENTRIES_PER_LOOK;
        match &self.options.watch {
            Some(watch) => watch.look(entries),
            None => Ok(()),
        }
    }
}

/// The value that a pointer leads to, for a job that needs it; `None` if it is damaged.
fn fetch(
    blobs: Option<&dyn BlobSource>,
    pointer: &[u8],
    user_key: &[u8],
) -> Result<Option<PinnedValue>> {
    let pointer = BlobPointer::decode(pointer)?;
    match blobs {
        Some(blobs) => blobs.value(&pointer, user_key),
        None => Err(
            Error::invalid_argument("values of blob files cannot be read here")
                .with("blob_file", pointer.file),
        ),
    }
}

/// Asks a filter about a value in a blob file, which is read only if the key is not enough. What is
/// damaged stays.
fn filter_blob(
    filter: &mut dyn CompactionFilter,
    blobs: Option<&dyn BlobSource>,
    level: usize,
    user_key: &[u8],
    pointer: &[u8],
) -> Result<FilterDecision> {
    let stored_len = BlobPointer::decode(pointer)?.size;
    if let Some(decision) = filter.filter_blob_by_key(level, user_key, stored_len) {
        return Ok(decision);
    }
    Ok(match fetch(blobs, pointer, user_key)? {
        Some(value) => filter.filter(level, user_key, &value),
        None => FilterDecision::Keep,
    })
}

#[cold]
fn misplaced(kind: ValueKind) -> Error {
    Error::corruption("entry of this kind among point entries").with("kind", kind as u8)
}

#[cfg(test)]
pub(crate) mod tests;
