//! The bytes of a batch: in memory, or from some size on in a file.
//!
//! ```text
//! memory (may move when it grows) -- past the threshold --> file (never moves) -- clear --> memory
//! ```
//! 1. What finds no room has changed nothing.
//! 2. With a threshold, memory has no more room than that: who finds room there need not ask for it.
//!
//! `Hot path`: in memory. Source: `docs/adr/2026-11-23-spill-of-large-transactions.md`.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::coding::{put_length_prefixed, put_varint32};
use orogen_base::limits::BATCH_SIZE_MAX;
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::{Error, Result, memory};
use orogen_env::memory::FileBuffer;

use super::{BATCH, HEADER_LEN, PREPARED_NAME_BYTES_MAX};

/// Bytes that a file may get: a batch that can be written, and what is added where it is found to be too large, or is prepared.
const FILE_MAX: usize = u32::MAX as usize + 2 * PREPARED_NAME_BYTES_MAX;

/// Where the bytes of a batch go that gets large.
///
/// Past the threshold all of them, those from before too, are in a file without a name that is mapped to memory: the system writes
/// them back and keeps in memory what it sees fit. They go with the batch, with its next use, or with the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpillOptions {
    /// The directory of the files, which is there already. On a file system in memory nothing is won; on one that writes
    /// elsewhere what is written anew (copy on write) a full disk may end the process.
    pub dir: PathBuf,
    /// Bytes of a batch that stay in memory.
    ///
    /// Larger: fewer batches pay for a file, each may take so much memory. Default 64 MiB; any, 0 is none.
    pub threshold_bytes: usize,
}

impl SpillOptions {
    /// Default of [`Self::threshold_bytes`].
    pub const THRESHOLD_BYTES: usize = 64 << 20;

    /// Files in `dir`, the threshold as it is by default.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            threshold_bytes: Self::THRESHOLD_BYTES,
        }
    }
}

/// [`SpillOptions`] that batches share, and where it is counted that one spilled.
pub struct Spill {
    options: SpillOptions,
    statistics: Option<Arc<Statistics>>,
}

impl Spill {
    /// Counted as `orogen.txn.spills`, if there is something to count in.
    #[must_use]
    pub fn new(options: SpillOptions, statistics: Option<Arc<Statistics>>) -> Arc<Self> {
        Arc::new(Self {
            options,
            statistics,
        })
    }

    /// The same with another threshold.
    #[must_use]
    pub fn with_threshold(&self, threshold_bytes: usize) -> Arc<Self> {
        let dir = self.options.dir.clone();
        let options = SpillOptions {
            dir,
            threshold_bytes,
        };
        Self::new(options, self.statistics.clone())
    }
}

impl fmt::Debug for Spill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

/// What takes the parts of operations, once there is room for them.
pub(super) trait Sink: DerefMut<Target = [u8]> {
    fn put_u8(&mut self, byte: u8);
    fn put_varint32(&mut self, v: u32);
    /// Of less than 4 GiB.
    fn put_length_prefixed(&mut self, s: &[u8]);
}

impl Sink for Vec<u8> {
    #[inline]
    fn put_u8(&mut self, byte: u8) {
        self.push(byte);
    }

    #[inline]
    fn put_varint32(&mut self, v: u32) {
        put_varint32(self, v);
    }

    #[inline]
    fn put_length_prefixed(&mut self, s: &[u8]) {
        put_length_prefixed(self, s);
    }
}

impl Sink for FileBuffer {
    fn put_u8(&mut self, byte: u8) {
        self.extend_from_slice(&[byte]);
    }

    fn put_varint32(&mut self, mut v: u32) {
        let (mut bytes, mut len) = ([0; 5], 0);
        while v >= 0x80 {
            bytes[len] = v as u8 | 0x80;
            v >>= 7;
            len += 1;
        }
        bytes[len] = v as u8;
        self.extend_from_slice(&bytes[..=len]);
    }

    fn put_length_prefixed(&mut self, s: &[u8]) {
        self.put_varint32(s.len() as u32);
        self.extend_from_slice(s);
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) enum Bytes {
    Memory(Vec<u8>),
    File(Box<FileBuffer>),
}

impl Bytes {
    /// Makes room for `more` bytes, in a file if `spill` says so.
    ///
    /// # Errors
    /// `NoMemory`; of a file `NoSpace`, `Io`, and `InvalidArgument` of more than a batch may have.
    #[inline]
    pub(super) fn reserve(&mut self, more: usize, spill: Option<&Spill>) -> Result<()> {
        match self {
            Self::Memory(bytes) if bytes.capacity() - bytes.len() >= more => Ok(()),
            _ => self.grow(more, spill),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, more: usize, spill: Option<&Spill>) -> Result<()> {
        let wanted = self.len().saturating_add(more);
        let bytes = match self {
            Self::File(bytes) => return reserve_in_file(bytes, more),
            Self::Memory(bytes) => bytes,
        };
        let Some(spill) = spill else {
            return memory::reserve(bytes, more, BATCH);
        };
        let threshold = spill.options.threshold_bytes;
        if wanted <= threshold {
            // Twice as much, as lists grow, but for what is beyond the threshold.
            let room = bytes.len().saturating_mul(2).clamp(wanted, threshold);
            let refused = |_| memory::refused(BATCH, room);
            return bytes.try_reserve_exact(room - bytes.len()).map_err(refused);
        }
        *self = Self::File(copy_to_file(bytes, more, spill)?);
        if let Some(statistics) = &spill.statistics {
            statistics.add(Ticker::TxnSpills, 1);
        }
        Ok(())
    }

    /// Sees to it that memory has no more room than the threshold.
    pub(super) fn bound_memory(&mut self, spill: &Spill) {
        if let Self::Memory(bytes) = self {
            bytes.shrink_to(spill.options.threshold_bytes);
        }
    }

    /// As many as these, of which a copy spills where these did.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn try_clone(&self, spill: Option<&Spill>) -> Result<Self> {
        match (self, spill) {
            (Self::File(_), Some(spill)) => Ok(Self::File(copy_to_file(self, 0, spill)?)),
            _ => Ok(Self::Memory(memory::copied(self, BATCH)?)),
        }
    }

    /// An empty header alone; a file is given up, memory is kept.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Memory(bytes) => {
                bytes.truncate(HEADER_LEN);
                bytes.fill(0);
            }
            Self::File(_) => *self = Self::Memory(vec![0; HEADER_LEN]),
        }
    }

    pub(super) fn truncate(&mut self, len: usize) {
        match self {
            Self::Memory(bytes) => bytes.truncate(len),
            Self::File(bytes) => bytes.truncate(len),
        }
    }

    /// Adds bytes, for which there is room.
    pub(super) fn extend_from_slice(&mut self, more: &[u8]) {
        match self {
            Self::Memory(bytes) => bytes.extend_from_slice(more),
            Self::File(bytes) => bytes.extend_from_slice(more),
        }
    }

    /// Puts a byte, for which there is room, before the one at `at`.
    pub(super) fn insert(&mut self, at: usize, byte: u8) {
        let len = self.len();
        self.put_u8(0);
        self.copy_within(at..len, at + 1);
        self[at] = byte;
    }

    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

impl Sink for Bytes {
    fn put_u8(&mut self, byte: u8) {
        match self {
            Self::Memory(bytes) => bytes.put_u8(byte),
            Self::File(bytes) => bytes.put_u8(byte),
        }
    }

    fn put_varint32(&mut self, v: u32) {
        match self {
            Self::Memory(bytes) => Sink::put_varint32(bytes, v),
            Self::File(bytes) => bytes.put_varint32(v),
        }
    }

    fn put_length_prefixed(&mut self, s: &[u8]) {
        match self {
            Self::Memory(bytes) => Sink::put_length_prefixed(bytes, s),
            Self::File(bytes) => bytes.put_length_prefixed(s),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::File(bytes) => bytes,
        }
    }
}

fn reserve_in_file(bytes: &mut FileBuffer, more: usize) -> Result<()> {
    let wanted = bytes.len().saturating_add(more);
    if wanted > FILE_MAX {
        return Err(too_large(wanted));
    }
    bytes.reserve(more)
}

fn copy_to_file(bytes: &[u8], more: usize, spill: &Spill) -> Result<Box<FileBuffer>> {
    let wanted = bytes.len().saturating_add(more);
    if wanted > FILE_MAX {
        return Err(too_large(wanted));
    }
    let dir = &spill.options.dir;
    let mut file = FileBuffer::in_dir(FILE_MAX, dir)?;
    let room = file.reserve(wanted);
    room.map_err(|e| e.with("dir", dir.display()))?;
    file.extend_from_slice(bytes);
    Ok(Box::new(file))
}

/// The error of a batch of so many bytes.
#[cold]
pub(super) fn too_large(bytes: usize) -> Error {
    Error::too_large("batch is larger than 4 GiB")
        .with("bytes", bytes)
        .with("bytes_max", BATCH_SIZE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchOp, WriteBatch};
    use orogen_base::ErrorKind;

    fn in_tmp(threshold_bytes: usize) -> SpillOptions {
        SpillOptions {
            threshold_bytes,
            ..SpillOptions::in_dir(std::env::temp_dir())
        }
    }

    /// Some of each kind of operation, and more of them with each `n`.
    fn fill(batch: &mut WriteBatch, n: u32) {
        for i in 0..n {
            let key = i.to_be_bytes();
            let value = vec![i as u8; (i * 37 % 300) as usize];
            batch.put(i % 3 * 100_000, &key, &value);
            batch.merge(1, &key, b"+");
            batch.delete(0, &key);
            batch.single_delete(7, &key);
            batch.delete_range(200, &key, b"z");
            batch.put_log_data(&value);
        }
    }

    #[test]
    fn bytes_in_a_file_are_those_in_memory() {
        assert_eq!(size_of::<Bytes>(), size_of::<Vec<u8>>(), "a batch is moved");
        for (threshold, n) in [(0, 1), (12, 3), (64, 40), (1000, 40), (5000, 100)] {
            for is_protected in [false, true] {
                let mut plain = WriteBatch::new();
                let mut batch = WriteBatch::with_spill(in_tmp(threshold));
                plain.set_protected(is_protected);
                batch.set_protected(is_protected);
                assert_eq!(batch.spilled_bytes(), 0);
                fill(&mut plain, n / 2);
                fill(&mut batch, n / 2);
                let marks = (plain.mark(), batch.mark());
                fill(&mut plain, n);
                fill(&mut batch, n);
                let same = |batch: &WriteBatch, plain: &WriteBatch| {
                    assert!(batch.as_bytes() == plain.as_bytes());
                    batch.check_whole().expect("there was room");
                    batch.verify().expect("it is what was added");
                    let checksums = batch.memory_usage();
                    assert_eq!(batch.spilled_bytes(), batch.size_bytes());
                    let count = batch.count() as usize;
                    assert_eq!(checksums, if is_protected { 8 * count } else { 0 });
                };
                same(&batch, &plain);
                same(&batch.clone(), &plain.clone());
                let more = (plain.clone(), batch.clone());
                plain.append(&more.0);
                batch.append(&more.1);
                same(&batch, &plain);
                let prepare =
                    |batch: &WriteBatch| batch.clone().into_prepare(b"name", Arc::default());
                let (own, other) = (prepare(&batch).unwrap(), prepare(&plain).unwrap());
                assert!(own.as_bytes() == other.as_bytes() && own.spilled_bytes() > 0);
                let first = own.iter().next().unwrap().unwrap();
                assert_eq!(first, BatchOp::BeginPrepare);
                plain.roll_back_to(&marks.0);
                batch.roll_back_to(&marks.1);
                same(&batch, &plain);
                batch.clear();
                assert!(batch.is_empty() && batch.spilled_bytes() == 0);
                fill(&mut batch, n);
                assert!(batch.spilled_bytes() > 0, "and again");
            }
        }
    }

    #[test]
    fn memory_has_no_more_room_than_the_threshold() {
        let spill = Spill::new(in_tmp(1000), Some(Arc::default()));
        let mut bytes = Bytes::Memory(vec![0; HEADER_LEN]);
        for len in HEADER_LEN..=1000 {
            bytes.reserve(1, Some(&spill)).unwrap();
            let Bytes::Memory(own) = &bytes else {
                panic!("{len} bytes are in a file");
            };
            assert!((len + 1..=1000).contains(&own.capacity()) || len == 1000);
            if len == 999 {
                break;
            }
            bytes.put_u8(1);
        }
        let statistics = spill.statistics.clone().unwrap();
        assert_eq!(statistics.get(Ticker::TxnSpills), 0);
        bytes.reserve(2, Some(&spill)).unwrap();
        assert!(bytes.is_file() && bytes.len() == 999);
        assert_eq!(statistics.get(Ticker::TxnSpills), 1);
        let error = bytes.reserve(FILE_MAX, Some(&spill)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert_eq!(bytes.len(), 999, "it is as it was");
    }
}
