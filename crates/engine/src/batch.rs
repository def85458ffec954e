//! Operations encoded as they will stand in the log.
//!
//! ```text
//! fixed64 sequence number of the first operation | fixed32 count | operations
//! operation: tag u8 [varint32 family, where the tag is a family's] operands
//!   put, merge, delete_range   length-prefixed key, length-prefixed value (end key)
//!   delete, single delete      length-prefixed key
//!   log data                   length-prefixed bytes; not counted
//!   noop                       nothing; not counted
//!   begin prepare              nothing; not counted
//!   end prepare, commit, roll back
//!                              length-prefixed name; not counted
//! ```
//! The default family's operations have tags of their own without a family number. What stands
//! between begin and end of a prepare is counted, but takes sequence numbers only where its commit
//! stands ([`crate::prepared`]).
//! Source: RocksDB `db/write_batch.cc`; `docs/format/wal.md`.

use std::sync::Arc;

use orogen_base::coding::Decoder;
use orogen_base::limits::{BATCH_SIZE_MAX, KEY_SIZE_MAX, VALUE_SIZE_MAX};
use orogen_base::protection::Protection;
use orogen_base::{Error, Result, SeqNo, memory};

mod bytes;
mod two_phase;

use bytes::{Bytes, Sink};
pub use bytes::{Spill, SpillOptions};
pub use two_phase::PREPARED_NAME_BYTES_MAX;
use two_phase::Phase;
pub(crate) use two_phase::Sections;

/// Bytes before the first operation.
pub const HEADER_LEN: usize = 12;

/// The header of a record.
pub(crate) fn header(seqno: SeqNo, count: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&seqno.to_le_bytes());
    header[8..].copy_from_slice(&count.to_le_bytes());
    header
}

/// Of an operation, beside its operands: tag, family and two lengths.
const HEAD_LEN_MAX: usize = 16;
/// What memory is asked for.
const BATCH: &str = "write batch";

mod tag {
    pub(super) const DELETION: u8 = 0x0;
    pub(super) const VALUE: u8 = 0x1;
    pub(super) const MERGE: u8 = 0x2;
    pub(super) const LOG_DATA: u8 = 0x3;
    pub(super) const CF_DELETION: u8 = 0x4;
    pub(super) const CF_VALUE: u8 = 0x5;
    pub(super) const CF_MERGE: u8 = 0x6;
    pub(super) const SINGLE_DELETION: u8 = 0x7;
    pub(super) const CF_SINGLE_DELETION: u8 = 0x8;
    pub(super) const BEGIN_PREPARE: u8 = 0x9;
    pub(super) const END_PREPARE: u8 = 0xa;
    pub(super) const COMMIT: u8 = 0xb;
    pub(super) const ROLLBACK: u8 = 0xc;
    pub(super) const NOOP: u8 = 0xd;
    pub(super) const CF_RANGE_DELETION: u8 = 0xe;
    pub(super) const RANGE_DELETION: u8 = 0xf;
    pub(super) const CF_BLOB_INDEX: u8 = 0x10;
    pub(super) const BLOB_INDEX: u8 = 0x11;
}

/// Writes that happen together or not at all, over any families.
///
/// Keys may be up to 4 GiB - 64, values up to 4 GiB - 1 bytes; larger ones are refused by the
/// write, not by the call that adds them. So is a batch that memory, or a file's room, was lacking for: what could not
/// be added is left out, and the write gives that error. All together they may have 4 GiB - 65 bytes; memtables that are
/// tries take 2 GiB of one batch.
#[derive(Debug)]
pub struct WriteBatch {
    rep: Bytes,
    /// When the bytes go to a file.
    spill: Option<Arc<Spill>>,
    too_large: bool,
    /// Why something could not be added.
    refused: Option<Error>,
    /// Something is not a plain write to the default family and is checked before the log.
    needs_check: bool,
    /// Checksums of the operations that count, in order; made when they are added.
    protection: Option<Vec<Protection>>,
    phase: Phase,
}

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOp<'a> {
    /// Sets a key.
    Put {
        /// The family.
        cf: u32,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Adds a merge operand.
    Merge {
        /// The family.
        cf: u32,
        /// The key.
        key: &'a [u8],
        /// The operand.
        operand: &'a [u8],
    },
    /// Deletes a key.
    Delete {
        /// The family.
        cf: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Deletes a key that was put once.
    SingleDelete {
        /// The family.
        cf: u32,
        /// The key.
        key: &'a [u8],
    },
    /// Deletes keys from `start` up to but not including `end`.
    DeleteRange {
        /// The family.
        cf: u32,
        /// First key deleted.
        start: &'a [u8],
        /// First key after.
        end: &'a [u8],
    },
    /// Bytes for readers of the log only.
    LogData(&'a [u8]),
    /// What follows up to [`Self::EndPrepare`] takes effect where it is committed.
    BeginPrepare,
    /// The end of what is prepared, and the name under which it is.
    EndPrepare {
        /// The name.
        name: &'a [u8],
    },
    /// What was prepared under this name takes effect here.
    Commit {
        /// The name.
        name: &'a [u8],
    },
    /// What was prepared under this name never takes effect.
    Rollback {
        /// The name.
        name: &'a [u8],
    },
}

impl BatchOp<'_> {
    /// The family that it is about, if it is about one.
    #[must_use]
    pub fn family(&self) -> Option<u32> {
        match *self {
            Self::Put { cf, .. }
            | Self::Merge { cf, .. }
            | Self::Delete { cf, .. }
            | Self::SingleDelete { cf, .. }
            | Self::DeleteRange { cf, .. } => Some(cf),
            Self::LogData(_)
            | Self::BeginPrepare
            | Self::EndPrepare { .. }
            | Self::Commit { .. }
            | Self::Rollback { .. } => None,
        }
    }

    /// Bytes of its key and value, or of both ends of its range.
    pub(crate) fn operand_bytes(&self) -> usize {
        match *self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Merge { key, operand, .. } => key.len() + operand.len(),
            Self::Delete { key, .. } | Self::SingleDelete { key, .. } => key.len(),
            Self::DeleteRange { start, end, .. } => start.len() + end.len(),
            Self::LogData(_)
            | Self::BeginPrepare
            | Self::EndPrepare { .. }
            | Self::Commit { .. }
            | Self::Rollback { .. } => 0,
        }
    }

    /// True for the operations that belong to two-phase commits.
    #[must_use]
    pub fn is_marker(&self) -> bool {
        self.family().is_none() && !matches!(self, Self::LogData(_))
    }

    /// The checksum of an operation that counts.
    fn protection(&self) -> Option<Protection> {
        let (plain, cf, key, value): (u8, u32, &[u8], &[u8]) = match *self {
            Self::Put { cf, key, value } => (tag::VALUE, cf, key, value),
            Self::Merge { cf, key, operand } => (tag::MERGE, cf, key, operand),
            Self::Delete { cf, key } => (tag::DELETION, cf, key, &[]),
            Self::SingleDelete { cf, key } => (tag::SINGLE_DELETION, cf, key, &[]),
            Self::DeleteRange { cf, start, end } => (tag::RANGE_DELETION, cf, start, end),
            _ => return None,
        };
        Some(Protection::of(key, plain, value).with_family(cf))
    }

    /// True for operations that the header's count includes.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.family().is_some()
    }
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rep: Bytes::Memory(vec![0; HEADER_LEN]),
            spill: None,
            too_large: false,
            refused: None,
            needs_check: false,
            protection: None,
            phase: Phase::Plain,
        }
    }

    /// An empty batch that keeps a checksum of 8 bytes for each operation, made of what the caller
    /// gives. A write refuses the batch if its memory is not what was added any more.
    #[must_use]
    pub fn with_protection() -> Self {
        let mut batch = Self::new();
        batch.set_protected(true);
        batch
    }

    /// An empty batch whose bytes are in a file from some size on.
    ///
    /// In memory stay: a checksum's 8 bytes for each operation, where they are kept. What finds no room in the file is left out, and
    /// the write gives `NoSpace` or `Io`.
    #[must_use]
    pub fn with_spill(options: SpillOptions) -> Self {
        let mut batch = Self::new();
        batch.set_spill(Some(Spill::new(options, None)));
        batch
    }

    /// An empty batch with room for `bytes` of operations.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        let mut rep = Vec::new();
        // Where so much is not there it may be by the time that it is needed.
        let _ = rep.try_reserve_exact(HEADER_LEN + bytes);
        rep.resize(HEADER_LEN, 0);
        Self {
            rep: Bytes::Memory(rep),
            spill: None,
            too_large: false,
            refused: None,
            needs_check: false,
            protection: None,
            phase: Phase::Plain,
        }
    }

    /// Takes a batch from its bytes, checking each operation.
    ///
    /// # Errors
    /// `Corruption` if the bytes are not a batch, `NotSupported` for operations of features that
    /// are not here. `NoMemory`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        BatchReader::new(bytes)?.check()?;
        Ok(Self {
            rep: Bytes::Memory(memory::copied(bytes, BATCH)?),
            spill: None,
            too_large: false,
            refused: None,
            needs_check: true,
            protection: None,
            phase: Phase::Plain,
        })
    }

    /// The batch as it stands in the log.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.rep
    }

    /// The operations' bytes, without the header.
    #[must_use]
    pub fn operations(&self) -> &[u8] {
        &self.rep[HEADER_LEN..]
    }

    /// Operations that take a sequence number.
    #[must_use]
    pub fn count(&self) -> u32 {
        count_of(&self.rep)
    }

    /// True if the batch does nothing, not even log data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rep.len() == HEADER_LEN
    }

    /// The ids of the families that its operations name, in rising order.
    #[must_use]
    pub fn column_families(&self) -> Vec<u32> {
        let (mut families, mut last) = (Vec::new(), None);
        for cf in self.iter().flatten().filter_map(|op| op.family()) {
            // Nothing is kept for each operation, though families may take turns.
            if last != Some(cf)
                && let Err(at) = families.binary_search(&cf)
            {
                families.insert(at, cf);
            }
            last = Some(cf);
        }
        families
    }

    /// Bytes of the batch in the log.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.rep.len()
    }

    /// Bytes of memory that its operations take, and their checksums.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        let bytes = self.rep.len() - self.spilled_bytes();
        let checksums = self.protection.as_ref().map_or(0, Vec::len);
        bytes + checksums * size_of::<Protection>()
    }

    /// Bytes of the batch that are in a file instead of memory: all or none.
    #[must_use]
    pub fn spilled_bytes(&self) -> usize {
        match self.rep.is_file() {
            true => self.rep.len(),
            false => 0,
        }
    }

    /// From now on its bytes go to a file past a threshold, or do not. What is in a file stays there until the batch is cleared.
    pub fn set_spill(&mut self, spill: Option<Arc<Spill>>) {
        if let Some(spill) = &spill {
            self.rep.bound_memory(spill);
        }
        self.spill = spill;
    }

    /// What [`Self::set_spill`] was given.
    #[must_use]
    pub fn spill(&self) -> Option<&Arc<Spill>> {
        self.spill.as_ref()
    }

    /// Forgets all operations and keeps the memory; a file it gives up.
    pub fn clear(&mut self) {
        self.rep.clear();
        self.too_large = false;
        self.refused = None;
        self.needs_check = false;
        self.phase = Phase::Plain;
        if let Some(protection) = &mut self.protection {
            protection.clear();
        }
    }

    /// Has checksums made of what is added from now on, and of what is here, or does without: see [`Self::with_protection`].
    pub fn set_protected(&mut self, on: bool) {
        if !on {
            self.protection = None;
        } else if self.protection.is_none() {
            match self.protections() {
                Ok(protections) => self.protection = Some(protections),
                Err(e) => self.refuse(e),
            }
        }
    }

    /// Checksums of what stands here now, up to what does not decode.
    fn protections(&self) -> Result<Vec<Protection>> {
        let mut all = memory::with_capacity(self.count() as usize, BATCH)?;
        let ops = self.iter().map_while(Result::ok);
        for protection in ops.filter_map(|op| op.protection()) {
            memory::push(&mut all, protection, BATCH)?;
        }
        Ok(all)
    }

    #[cold]
    fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }

    /// True if there is room for an operation with so many bytes of operands.
    #[inline]
    fn has_room(&mut self, operands: usize) -> bool {
        let spill = self.spill.as_deref();
        let room = self.rep.reserve(operands + HEAD_LEN_MAX, spill);
        let checksum = match &mut self.protection {
            Some(protection) => memory::reserve(protection, 1, BATCH),
            None => Ok(()),
        };
        match room.and(checksum) {
            Ok(()) => true,
            Err(e) => {
                self.refuse(e);
                false
            }
        }
    }

    /// Compares what stands here with what was added, if checksums are kept.
    ///
    /// # Errors
    /// `Corruption` with the first operation that differs.
    #[inline]
    pub(crate) fn verify(&self) -> Result<()> {
        match &self.protection {
            None => Ok(()),
            Some(added) => self.compare_with(added),
        }
    }

    fn compare_with(&self, added: &[Protection]) -> Result<()> {
        let here = self.protections()?;
        if here == added && self.count() as usize == added.len() {
            return Ok(());
        }
        let same = here.iter().zip(added).take_while(|(a, b)| a == b).count();
        Err(
            Error::corruption("write batch in memory is not what was put into it")
                .with("operation", same)
                .with("operations", added.len()),
        )
    }

    pub(crate) fn set_seqno(&mut self, seqno: SeqNo) {
        self.rep[..8].copy_from_slice(&seqno.to_le_bytes());
    }

    pub(crate) fn seqno(&self) -> SeqNo {
        self.rep.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    }

    /// True if families or merge operators must be looked at before the write.
    #[inline]
    pub(crate) fn needs_check(&self) -> bool {
        self.needs_check
    }

    /// Refuses a batch that is not all that was added.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or value that is too large, `TooLarge` of more than 4 GiB in all; `NoMemory`; `NoSpace`, `Io` of the
    /// file that it is in.
    pub fn check_whole(&self) -> Result<()> {
        if let Some(e) = &self.refused {
            return Err(e.clone());
        }
        if self.too_large {
            return Err(Error::invalid_argument("key or value is too large")
                .with("key_bytes_max", KEY_SIZE_MAX)
                .with("value_bytes_max", VALUE_SIZE_MAX));
        }
        if self.rep.len() > BATCH_SIZE_MAX {
            return Err(bytes::too_large(self.rep.len()));
        }
        Ok(())
    }

    /// Adds an operation that counts, for which there is room.
    #[inline]
    fn add_counted<const N: usize>(&mut self, tags: [u8; 2], cf: u32, operands: [&[u8]; N]) {
        self.needs_check |= cf != 0;
        match &mut self.rep {
            Bytes::Memory(rep) => encode(rep, tags, cf, operands),
            Bytes::File(rep) => encode(&mut **rep, tags, cf, operands),
        }
    }

    #[inline]
    fn fits(&mut self, key: &[u8], value: &[u8]) -> bool {
        let fits = key.len() <= KEY_SIZE_MAX && value.len() <= VALUE_SIZE_MAX;
        self.too_large |= !fits;
        fits
    }

    /// Keeps the checksum of an operation that was added, if they are kept.
    #[inline]
    fn protect(&mut self, plain: u8, cf: u32, key: &[u8], value: &[u8]) {
        if let Some(protection) = &mut self.protection {
            protection.push(Protection::of(key, plain, value).with_family(cf));
        }
    }

    fn pair(&mut self, plain: u8, with_cf: u8, cf: u32, key: &[u8], value: &[u8]) {
        if self.fits(key, value) && self.has_room(key.len() + value.len()) {
            self.protect(plain, cf, key, value);
            self.add_counted([plain, with_cf], cf, [key, value]);
        }
    }

    fn single(&mut self, plain: u8, with_cf: u8, cf: u32, key: &[u8]) {
        if self.fits(key, &[]) && self.has_room(key.len()) {
            self.protect(plain, cf, key, &[]);
            self.add_counted([plain, with_cf], cf, [key]);
        }
    }

    /// Sets a key of family `cf`.
    pub fn put(&mut self, cf: u32, key: &[u8], value: &[u8]) {
        self.pair(tag::VALUE, tag::CF_VALUE, cf, key, value);
    }

    /// Adds a merge operand to a key of family `cf`.
    pub fn merge(&mut self, cf: u32, key: &[u8], operand: &[u8]) {
        self.needs_check = true;
        self.pair(tag::MERGE, tag::CF_MERGE, cf, key, operand);
    }

    /// Deletes a key of family `cf`.
    pub fn delete(&mut self, cf: u32, key: &[u8]) {
        self.single(tag::DELETION, tag::CF_DELETION, cf, key);
    }

    /// Deletes a key of family `cf` that was put at most once since its last single deletion, and
    /// that no merge and no plain deletion ever touched (a range deletion may).
    ///
    /// Cheaper than [`Self::delete`]: tombstone and value vanish together when they meet. On a
    /// key that was overwritten or merged the result is undefined.
    pub fn single_delete(&mut self, cf: u32, key: &[u8]) {
        self.single(tag::SINGLE_DELETION, tag::CF_SINGLE_DELETION, cf, key);
    }

    /// Deletes the keys of family `cf` from `start` up to but not including `end`. The write is
    /// refused if `end` is before `start`.
    pub fn delete_range(&mut self, cf: u32, start: &[u8], end: &[u8]) {
        self.needs_check = true;
        self.pair(tag::RANGE_DELETION, tag::CF_RANGE_DELETION, cf, start, end);
    }

    /// Adds bytes that only readers of the log see.
    pub fn put_log_data(&mut self, data: &[u8]) {
        if self.fits(&[], data) && self.has_room(data.len()) {
            self.rep.put_u8(tag::LOG_DATA);
            self.rep.put_length_prefixed(data);
        }
    }

    /// Where the batch ends now; see [`Self::roll_back_to`].
    #[must_use]
    pub fn mark(&self) -> BatchMark {
        BatchMark {
            bytes: self.rep.len(),
            count: self.count(),
            needs_check: self.needs_check,
            too_large: self.too_large,
            was_refused: self.refused.is_some(),
        }
    }

    /// Takes away what was added since `mark` was made of this batch, what could not be added included; what could not be added
    /// before stays an error. The cost is that of what goes.
    ///
    /// # Panics
    /// If the batch has less than it had then.
    pub fn roll_back_to(&mut self, mark: &BatchMark) {
        assert!(self.rep.len() >= mark.bytes && self.count() >= mark.count);
        self.rep.truncate(mark.bytes);
        set_count(&mut self.rep, mark.count);
        self.needs_check = mark.needs_check;
        self.too_large = mark.too_large;
        if !mark.was_refused {
            self.refused = None;
        }
        if let Some(protection) = &mut self.protection {
            protection.truncate(mark.count as usize);
        }
    }

    /// The operation that begins at byte `offset`, as [`Self::size_bytes`] was before it was added.
    ///
    /// # Errors
    /// `Corruption` if none begins there.
    pub fn operation_at(&self, offset: usize) -> Result<BatchOp<'_>> {
        let rest = self.rep.get(offset..).unwrap_or_default();
        let mut operations = Operations {
            decoder: Decoder::new(rest),
        };
        let none = || Error::corruption("no operation of the batch begins here");
        operations.read()?.ok_or_else(none)
    }

    /// The operations from byte `offset` on, where one begins, as for [`Self::operation_at`]; all of them from 0.
    #[must_use]
    pub fn operations_from(&self, offset: usize) -> Operations<'_> {
        let rest = self.rep.get(offset.max(HEADER_LEN)..);
        Operations {
            decoder: Decoder::new(rest.unwrap_or_default()),
        }
    }

    /// Adds all operations of `other` behind these.
    pub fn append(&mut self, other: &Self) {
        self.too_large |= other.too_large;
        self.needs_check |= other.needs_check;
        let room = self.rep.reserve(other.rep.len(), self.spill.as_deref());
        let room = match &mut self.protection {
            Some(own) => room.and_then(|()| memory::reserve(own, other.count() as usize, BATCH)),
            None => room,
        };
        if let Some(e) = room.err().or_else(|| other.refused.clone()) {
            return self.refuse(e);
        }
        if let Some(protection) = &mut self.protection {
            match &other.protection {
                Some(others) => protection.extend_from_slice(others),
                None => {
                    let ops = other.iter().map_while(Result::ok);
                    protection.extend(ops.filter_map(|op| op.protection()));
                }
            }
        }
        let count = self.count() + other.count();
        set_count(&mut self.rep, count);
        self.rep.extend_from_slice(other.operations());
    }

    /// The operations in order.
    #[must_use]
    pub fn iter(&self) -> Operations<'_> {
        Operations {
            decoder: Decoder::new(self.operations()),
        }
    }
}

impl Clone for WriteBatch {
    /// The copy of what is in a file is in a file of its own. Where there is no memory or no room for a copy it is empty, and
    /// its write gives that error.
    fn clone(&self) -> Self {
        self.try_clone().unwrap_or_else(|e| {
            let mut none = Self::new();
            none.set_spill(self.spill.clone());
            none.refuse(e);
            none
        })
    }
}

impl WriteBatch {
    fn try_clone(&self) -> Result<Self> {
        let protection = match &self.protection {
            None => None,
            Some(own) => {
                let mut copy = memory::with_capacity(own.len(), BATCH)?;
                copy.extend_from_slice(own);
                Some(copy)
            }
        };
        Ok(Self {
            rep: self.rep.try_clone(self.spill.as_deref())?,
            spill: self.spill.clone(),
            too_large: self.too_large,
            refused: self.refused.clone(),
            needs_check: self.needs_check,
            protection,
            phase: self.phase.clone(),
        })
    }
}

#[inline]
fn count_of(rep: &[u8]) -> u32 {
    rep[8..HEADER_LEN]
        .first_chunk()
        .map_or(0, |b| u32::from_le_bytes(*b))
}

#[inline]
fn set_count(rep: &mut [u8], count: u32) {
    rep[8..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
}

/// Writes an operation that counts; its tag is the first for the default family, the second for others.
#[inline]
fn encode<const N: usize>(rep: &mut impl Sink, tags: [u8; 2], cf: u32, operands: [&[u8]; N]) {
    let count = count_of(rep) + 1;
    set_count(rep, count);
    if cf == 0 {
        rep.put_u8(tags[0]);
    } else {
        rep.put_u8(tags[1]);
        rep.put_varint32(cf);
    }
    for operand in operands {
        rep.put_length_prefixed(operand);
    }
}

/// The end of a [`WriteBatch`] at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchMark {
    bytes: usize,
    count: u32,
    needs_check: bool,
    too_large: bool,
    was_refused: bool,
}

impl Default for WriteBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> IntoIterator for &'a WriteBatch {
    type Item = Result<BatchOp<'a>>;
    type IntoIter = Operations<'a>;
    fn into_iter(self) -> Operations<'a> {
        self.iter()
    }
}

/// A batch read from a log.
#[derive(Clone, Copy, Debug)]
pub struct BatchReader<'a> {
    /// Sequence number of the first operation.
    pub seqno: SeqNo,
    /// Operations that take a sequence number.
    pub count: u32,
    operations: &'a [u8],
}

impl<'a> BatchReader<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// `Corruption` if it is cut off.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut d = Decoder::new(bytes);
        let seqno = d.fixed64("write batch sequence number")?;
        let count = d.fixed32("write batch count")?;
        Ok(Self {
            seqno,
            count,
            operations: d.rest(),
        })
    }

    /// The operations in order.
    #[must_use]
    pub fn iter(&self) -> Operations<'a> {
        Operations {
            decoder: Decoder::new(self.operations),
        }
    }

    /// The operations of a log that Titan wrote.
    pub(crate) fn logged(&self) -> LoggedOperations<'a> {
        LoggedOperations(self.iter())
    }

    /// Reads every operation, compares their number with the header's, and looks that prepared
    /// sections are whole.
    ///
    /// # Errors
    /// `Corruption` or `NotSupported`.
    pub fn check(&self) -> Result<()> {
        let mut n = 0u32;
        let mut is_preparing = false;
        for op in self.iter() {
            let op = op?;
            n = n.saturating_add(u32::from(op.counts()));
            if op.is_marker() {
                let ends = matches!(op, BatchOp::EndPrepare { .. });
                if is_preparing != ends {
                    return Err(section_not_whole());
                }
                is_preparing = op == BatchOp::BeginPrepare;
            }
        }
        if is_preparing {
            return Err(section_not_whole());
        }
        if n == self.count {
            return Ok(());
        }
        Err(Error::corruption("write batch has the wrong count")
            .with("header", self.count)
            .with("found", n))
    }
}

/// Reads operations one by one; ends after the first error.
#[derive(Clone, Debug)]
pub struct Operations<'a> {
    decoder: Decoder<'a>,
}

impl<'a> Operations<'a> {
    /// Bytes of the operations that were not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.decoder.rest().len()
    }

    fn read(&mut self) -> Result<Option<BatchOp<'a>>> {
        let d = &mut self.decoder;
        loop {
            if d.is_empty() {
                return Ok(None);
            }
            let tag = d.u8("operation")?;
            let cf = match tag {
                tag::CF_DELETION
                | tag::CF_VALUE
                | tag::CF_MERGE
                | tag::CF_SINGLE_DELETION
                | tag::CF_RANGE_DELETION => d.varint32("column family")?,
                _ => 0,
            };
            return Ok(Some(match tag {
                tag::VALUE | tag::CF_VALUE => {
                    let key = d.length_prefixed("key")?;
                    BatchOp::Put {
                        cf,
                        key,
                        value: d.length_prefixed("value")?,
                    }
                }
                tag::MERGE | tag::CF_MERGE => {
                    let key = d.length_prefixed("key")?;
                    BatchOp::Merge {
                        cf,
                        key,
                        operand: d.length_prefixed("operand")?,
                    }
                }
                tag::DELETION | tag::CF_DELETION => BatchOp::Delete {
                    cf,
                    key: d.length_prefixed("key")?,
                },
                tag::SINGLE_DELETION | tag::CF_SINGLE_DELETION => BatchOp::SingleDelete {
                    cf,
                    key: d.length_prefixed("key")?,
                },
                tag::RANGE_DELETION | tag::CF_RANGE_DELETION => {
                    let start = d.length_prefixed("start key")?;
                    BatchOp::DeleteRange {
                        cf,
                        start,
                        end: d.length_prefixed("end key")?,
                    }
                }
                tag::LOG_DATA => BatchOp::LogData(d.length_prefixed("log data")?),
                tag::BEGIN_PREPARE => BatchOp::BeginPrepare,
                tag::END_PREPARE => BatchOp::EndPrepare {
                    name: d.length_prefixed("name of what is prepared")?,
                },
                tag::COMMIT => BatchOp::Commit {
                    name: d.length_prefixed("name of what is committed")?,
                },
                tag::ROLLBACK => BatchOp::Rollback {
                    name: d.length_prefixed("name of what is rolled back")?,
                },
                tag::NOOP => continue,
                _ => return Err(foreign_tag(tag)),
            }));
        }
    }
}

/// An operation of a log that Titan wrote: garbage collection writes pointers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoggedOp<'a> {
    /// One of ours.
    Op(BatchOp<'a>),
    /// Sets a key to a value in a blob file.
    Pointer {
        /// The family.
        cf: u32,
        /// The key.
        key: &'a [u8],
        /// Where the value is.
        pointer: &'a [u8],
    },
}

impl LoggedOp<'_> {
    pub(crate) fn family(&self) -> Option<u32> {
        match self {
            Self::Op(op) => op.family(),
            Self::Pointer { cf, .. } => Some(*cf),
        }
    }

    pub(crate) fn counts(&self) -> bool {
        match self {
            Self::Op(op) => op.counts(),
            Self::Pointer { .. } => true,
        }
    }
}

/// Reads operations of Titan's one by one; ends after the first error.
pub(crate) struct LoggedOperations<'a>(Operations<'a>);

impl<'a> LoggedOperations<'a> {
    fn read(&mut self) -> Result<Option<LoggedOp<'a>>> {
        let d = &mut self.0.decoder;
        loop {
            let tag = match d.rest().first() {
                None => return Ok(None),
                Some(&tag) => tag,
            };
            match tag {
                tag::NOOP => d.u8("operation")?,
                tag::BLOB_INDEX | tag::CF_BLOB_INDEX => {
                    d.u8("operation")?;
                    let cf = match tag {
                        tag::CF_BLOB_INDEX => d.varint32("column family")?,
                        _ => 0,
                    };
                    let key = d.length_prefixed("key")?;
                    let pointer = d.length_prefixed("blob pointer")?;
                    return Ok(Some(LoggedOp::Pointer { cf, key, pointer }));
                }
                _ => return Ok(self.0.read()?.map(LoggedOp::Op)),
            };
        }
    }
}

impl<'a> Iterator for LoggedOperations<'a> {
    type Item = Result<LoggedOp<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read();
        if item.is_err() {
            self.0.decoder = Decoder::new(&[]);
        }
        item.transpose()
    }
}

#[cold]
fn section_not_whole() -> Error {
    Error::corruption("prepared section of a write batch is not whole")
}

#[cold]
fn foreign_tag(tag: u8) -> Error {
    let feature = match tag {
        0x12 | 0x13 => "write-prepared transactions",
        0x15 => "timestamps of commits",
        tag::CF_BLOB_INDEX | tag::BLOB_INDEX => {
            "blob pointers in the log (enable_blob_direct_write, stacked BlobDB)"
        }
        0x14 => "user timestamps",
        0x16 | 0x17 => "wide columns",
        0x18 | 0x19 => "preferred sequence numbers",
        _ => return Error::corruption("unknown operation in write batch").with("tag", tag),
    };
    Error::not_supported("write batch of another feature").with("feature", feature)
}

impl<'a> Iterator for Operations<'a> {
    type Item = Result<BatchOp<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read();
        if item.is_err() {
            self.decoder = Decoder::new(&[]);
        }
        item.transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::ErrorKind;

    #[test]
    fn what_could_not_be_added_before_a_mark_stays_an_error_behind_it() {
        let refusals: [fn(&mut WriteBatch); 2] = [
            |batch| batch.refuse(memory::refused(BATCH, 1)),
            |batch| batch.too_large = true,
        ];
        for refuse in refusals {
            let mut batch = WriteBatch::new();
            refuse(&mut batch);
            let mark = batch.mark();
            batch.put(0, b"a", b"1");
            batch.roll_back_to(&mark);
            batch.check_whole().unwrap_err();
            // And what could not be added behind it is forgotten.
            batch.clear();
            let mark = batch.mark();
            refuse(&mut batch);
            batch.roll_back_to(&mark);
            batch.check_whole().unwrap();
        }
    }

    #[test]
    fn a_batch_that_lacked_memory_is_refused_until_it_is_cleared() {
        let mut batch = WriteBatch::new();
        batch.refuse(memory::refused(BATCH, 1));
        batch.put(0, b"k", b"v");
        let mut more = WriteBatch::new();
        more.append(&batch);
        assert!(more.is_empty(), "nothing of half a batch");
        for batch in [&mut batch, &mut more] {
            let error = batch.check_whole().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoMemory);
            batch.clear();
            batch.check_whole().unwrap();
        }
    }

    #[test]
    fn a_protected_batch_notices_every_bit_that_changes() {
        let mut batch = WriteBatch::with_protection();
        batch.put(0, b"a", b"1");
        batch.delete(7, b"b");
        batch.merge(1, b"d", b"+");
        let mut plain = WriteBatch::new();
        plain.delete_range(2, b"e", b"f");
        plain.single_delete(0, b"g");
        batch.append(&plain);
        assert!(batch.verify().is_ok());
        batch.set_seqno(12345);
        assert!(batch.verify().is_ok());
        for bit in 8 * 8..batch.rep.len() * 8 {
            let mut changed = batch.clone();
            changed.rep[bit / 8] ^= 1 << (bit % 8);
            let error = changed.verify().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "bit {bit}");
        }
        // Asked for later, checksums are of what is there then.
        plain.set_protected(true);
        assert!(plain.verify().is_ok());
        plain.rep.truncate(plain.rep.len() - 1);
        assert!(plain.verify().is_err());
        batch.clear();
        assert!(batch.verify().is_ok());
        batch.put(0, b"a", b"1");
        batch.rep[HEADER_LEN + 2] ^= 1;
        assert!(batch.verify().is_err());
        batch.set_protected(false);
        assert!(batch.verify().is_ok());
    }

    #[test]
    fn operations_come_back_as_they_went_in() {
        let mut batch = WriteBatch::new();
        batch.put(0, b"a", b"1");
        batch.put(7, b"b", b"");
        batch.delete(0, b"");
        batch.single_delete(300, b"c");
        batch.merge(1, b"d", b"+");
        batch.put_log_data(b"note");
        batch.delete_range(2, b"e", b"f");
        assert_eq!(batch.count(), 6);
        batch.set_seqno(9);
        let copy = WriteBatch::from_bytes(batch.as_bytes()).unwrap();
        assert_eq!(copy.seqno(), 9);
        let ops: Vec<_> = copy.iter().map(|op| op.unwrap()).collect();
        assert_eq!(
            ops[1],
            BatchOp::Put {
                cf: 7,
                key: b"b",
                value: b""
            }
        );
        assert_eq!(ops[5], BatchOp::LogData(b"note"));
        assert_eq!(
            ops[6],
            BatchOp::DeleteRange {
                cf: 2,
                start: b"e",
                end: b"f"
            }
        );
        let mut two = batch.clone();
        two.append(&batch);
        assert_eq!(two.count(), 12);
        assert!(WriteBatch::from_bytes(two.as_bytes()).is_ok());
    }

    #[test]
    fn damaged_batches_are_errors() {
        let mut batch = WriteBatch::new();
        batch.put(0, b"key", b"value");
        batch.delete(3, b"other");
        let bytes = batch.as_bytes();
        for n in 0..bytes.len() {
            assert!(WriteBatch::from_bytes(&bytes[..n]).is_err(), "{n}");
        }
        let mut foreign = WriteBatch::new();
        foreign.rep.put_u8(0x12);
        let error = WriteBatch::from_bytes(foreign.as_bytes()).unwrap_err();
        assert_eq!(
            error.context("feature"),
            Some("write-prepared transactions")
        );
    }
}
