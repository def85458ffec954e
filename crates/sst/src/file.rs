//! The file of a table: blocks read, checked and decompressed.
//!
//! Invariants: (1) a handle is checked against the file's size before memory is taken; (2) a
//! block's checksum is checked before its bytes are believed; (3) errors name file and offset.
//! `Hot path`: a cache miss costs one read, one checksum, one decompression.
//! Source: RocksDB `table/block_fetcher.cc`.

use std::cell::Cell;
use std::sync::Arc;

use orogen_base::error::ResultExt;
use orogen_base::limits::BLOCK_SIZE_MAX;
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::PerfCounter;
use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_env::{PerfTimer, RandomAccessFile};

use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle, Footer, context_modifier};
use orogen_codec::{CompressionType, Dictionary, decompress};

/// Bytes of the file that are in memory already: its tail, or what was read ahead.
#[derive(Default)]
pub(crate) struct Window {
    pub(crate) offset: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Window {
    /// The bytes of a block with its trailer, if they are here.
    #[inline]
    pub(crate) fn block(&self, handle: BlockHandle) -> Option<&[u8]> {
        let start = usize::try_from(handle.offset.checked_sub(self.offset)?).ok()?;
        let len = usize::try_from(handle.size)
            .ok()?
            .checked_add(BLOCK_TRAILER_LEN)?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

/// A table's file and what its footer says of blocks.
pub(crate) struct TableFile {
    pub(crate) file: Arc<dyn RandomAccessFile>,
    pub(crate) size: u64,
    pub(crate) footer: Footer,
    /// Where the sequence number of an ingested table stands, if it has one. Ingestion may write
    /// it over eight zeros, and leaves the checksum of the block as it was for them.
    pub(crate) global_seqno_at: Option<u64>,
    /// Where blocks that are read twice are counted.
    pub(crate) statistics: Option<Arc<Statistics>>,
}

thread_local! {
    /// Compressed bytes on their way to decompression; kept for the next block.
    static RAW: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Larger buffers are not kept: each thread has one.
const RAW_KEPT_MAX: usize = 256 << 10;

impl TableFile {
    /// An error at `offset` of this file.
    pub(crate) fn locate(&self, error: Error, offset: u64) -> Error {
        error
            .with("file", self.file.path().display())
            .with("offset", offset)
    }

    pub(crate) fn check_handle(&self, handle: BlockHandle) -> Result<usize> {
        let inside = handle.end().is_some_and(|end| end <= self.size);
        if !inside || handle.size > BLOCK_SIZE_MAX as u64 {
            let error = Error::corruption("block lies outside the file").with("size", handle.size);
            return Err(self.locate(error, handle.offset));
        }
        Ok(handle.size as usize + BLOCK_TRAILER_LEN)
    }

    /// The bytes of a block, decompressed into the memory of `spare` if it fits, and the codec
    /// it was stored with.
    ///
    /// A block that is damaged is read once more: what went wrong may have been on its way here.
    pub(crate) fn read_block(
        &self,
        handle: BlockHandle,
        window: Option<&Window>,
        dictionary: Option<&Dictionary>,
        verify: bool,
        spare: Vec<u8>,
    ) -> Result<(Vec<u8>, CompressionType)> {
        let mut spare = spare;
        let mapped = match window {
            None => self.read_block_mapped(handle, dictionary, verify, &mut spare),
            Some(_) => None,
        };
        let first = match mapped {
            Some(read) => read,
            None => self.read_block_once(handle, window, dictionary, verify, spare),
        };
        match first {
            Err(e) if e.kind() == ErrorKind::Corruption && self.check_handle(handle).is_ok() => {
                self.read_block_again(handle, dictionary, verify)
            }
            other => other,
        }
    }

    #[cold]
    fn read_block_again(
        &self,
        handle: BlockHandle,
        dictionary: Option<&Dictionary>,
        verify: bool,
    ) -> Result<(Vec<u8>, CompressionType)> {
        let again = self.read_block_once(handle, None, dictionary, verify, Vec::new());
        if let Some(s) = &self.statistics {
            s.add(Ticker::FileReadCorruptionRetry, 1);
            s.add(
                match again {
                    Ok(_) => Ticker::FileReadCorruptionRetrySuccess,
                    Err(_) => Ticker::BlockChecksumMismatch,
                },
                1,
            );
        }
        again
    }

    /// A block out of the mapping of the file; `None` if there is none, or it did not give what is
    /// in the file.
    fn read_block_mapped(
        &self,
        handle: BlockHandle,
        dictionary: Option<&Dictionary>,
        verify: bool,
        spare: &mut Vec<u8>,
    ) -> Option<Result<(Vec<u8>, CompressionType)>> {
        let len = self.check_handle(handle).ok()?;
        let mut block = None;
        let mut look = |read: &[u8]| {
            let spare = std::mem::take(spare);
            block = Some(self.expand_block(read, handle, dictionary, verify, spare));
        };
        let is_whole = self.file.with_mapped(handle.offset, len, &mut look)?;
        block.filter(|_| is_whole)
    }

    /// Checks a stored block and decompresses it.
    fn expand_block(
        &self,
        stored: &[u8],
        handle: BlockHandle,
        dictionary: Option<&Dictionary>,
        verify: bool,
        spare: Vec<u8>,
    ) -> Result<(Vec<u8>, CompressionType)> {
        let kind = self.check_block(stored, handle, verify)?;
        let body = &stored[..handle.size as usize];
        let _timer = PerfTimer::start(PerfCounter::BlockDecompressTime);
        decompress(kind, body, dictionary, self.footer.format_version, spare)
            .map(|bytes| (bytes, kind))
            .map_err(|e| self.locate(e, handle.offset))
    }

    fn read_block_once(
        &self,
        handle: BlockHandle,
        window: Option<&Window>,
        dictionary: Option<&Dictionary>,
        verify: bool,
        spare: Vec<u8>,
    ) -> Result<(Vec<u8>, CompressionType)> {
        let len = self.check_handle(handle)?;
        let expand = |stored: &[u8]| self.expand_block(stored, handle, dictionary, verify, spare);
        if let Some(stored) = window.and_then(|w| w.block(handle)) {
            return expand(stored);
        }
        let mut raw = RAW.take();
        if let Err(e) = memory::resize(&mut raw, len, "stored block") {
            return Err(self.locate(e, handle.offset));
        }
        let timer = PerfTimer::start(PerfCounter::BlockReadTime);
        let read = self.file.read_exact_at(handle.offset, &mut raw);
        drop(timer);
        let result = read
            .context("block_size", || handle.size)
            .and_then(|()| expand(&raw));
        if raw.capacity() <= RAW_KEPT_MAX {
            RAW.set(raw);
        }
        result
    }

    /// Checks a block with its trailer; returns its codec.
    pub(crate) fn check_block(
        &self,
        stored: &[u8],
        handle: BlockHandle,
        verify: bool,
    ) -> Result<CompressionType> {
        let (body, trailer) = stored.split_at(handle.size as usize);
        let &[kind, a, b, c, d] = trailer else {
            let error = Error::corruption("block has no trailer");
            return Err(self.locate(error, handle.offset));
        };
        // Without a checksum 0 is stored: else a bit of the footer could take all others away.
        if verify {
            let _timer = PerfTimer::start(PerfCounter::BlockChecksumTime);
            let want = u32::from_le_bytes([a, b, c, d]);
            let context = context_modifier(self.footer.base_context_checksum, handle.offset);
            let sum_of = |body: &[u8]| {
                self.footer
                    .checksum
                    .compute(body, kind)
                    .wrapping_add(context)
            };
            let sum = sum_of(body);
            let holds = sum == want
                || self
                    .with_zero_seqno(body, handle)?
                    .is_some_and(|body| sum_of(&body) == want);
            if !holds {
                let error = Error::corruption("block has a bad checksum")
                    .with("size", handle.size)
                    .with("stored", want)
                    .with("computed", sum);
                return Err(self.locate(error, handle.offset));
            }
        }
        CompressionType::from_u8(kind).ok_or_else(|| {
            let error = Error::corruption("block has an unknown compression type");
            self.locate(error.with("compression_type", kind), handle.offset)
        })
    }

    /// The block as it was before its global sequence number was written, if it has one.
    #[cold]
    fn with_zero_seqno(&self, body: &[u8], handle: BlockHandle) -> Result<Option<Vec<u8>>> {
        let at = self
            .global_seqno_at
            .and_then(|at| at.checked_sub(handle.offset));
        let Some(at) = at.and_then(|at| usize::try_from(at).ok()) else {
            return Ok(None);
        };
        let Some(end) = at.checked_add(8).filter(|&end| end <= body.len()) else {
            return Ok(None);
        };
        let mut body = memory::copied(body, "stored block")?;
        body[at..end].fill(0);
        Ok(Some(body))
    }
}
