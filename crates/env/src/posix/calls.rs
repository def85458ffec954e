//! The calls on an open file that may do less than they were asked to.
//!
//! POSIX lets `read` and `write` move fewer bytes than there are, and a signal may interrupt them
//! before the first. On a healthy local disk this is rare enough never to be seen in a test, so
//! files take these calls as a parameter: [`System`] makes them, [`Short`] makes them badly.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::buffer::spare_capacity;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::File;

/// The calls. Each may be interrupted; a read or write may move some of the bytes.
pub(super) trait Calls: Clone + Send + Sync + 'static {
    /// `pread`.
    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// `pread` into the room that a vector has.
    fn append_at(&self, file: &File, out: &mut Vec<u8>, offset: u64) -> Result<usize, Errno>;

    /// `preadv2` with `RWF_NOWAIT`.
    fn read_at_without_waiting(
        &self,
        file: &File,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno>;

    /// `pwrite`.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// `pwritev` of two pieces.
    fn write_both_at(
        &self,
        file: &File,
        bytes: &[u8],
        more: &[u8],
        offset: u64,
    ) -> io::Result<usize>;

    /// `fallocate` that keeps the file's size.
    fn reserve(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno>;

    /// `fallocate` that makes the file longer.
    fn lengthen(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno>;
}

/// What the system does.
#[derive(Clone, Copy, Debug)]
pub(super) struct System;

impl Calls for System {
    #[inline]
    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        // Not the library's: that is a point where threads may be cancelled, which it pays for.
        Ok(rustix::io::pread(file, buf, offset)?)
    }

    #[inline]
    fn append_at(&self, file: &File, out: &mut Vec<u8>, offset: u64) -> Result<usize, Errno> {
        rustix::io::pread(file, spare_capacity(out), offset)
    }

    #[inline]
    fn read_at_without_waiting(
        &self,
        file: &File,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut into = [io::IoSliceMut::new(buf)];
        rustix::io::preadv2(file, &mut into, offset, ReadWriteFlags::NOWAIT)
    }

    #[inline]
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(bytes, offset)
    }

    #[inline]
    fn write_both_at(
        &self,
        file: &File,
        bytes: &[u8],
        more: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        let pieces = [bytes, more].map(io::IoSlice::new);
        Ok(rustix::io::pwritev(file, &pieces, offset)?)
    }

    #[inline]
    fn reserve(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, len)
    }

    #[inline]
    fn lengthen(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        rustix::fs::fallocate(file, FallocateFlags::empty(), offset, len)
    }
}

/// How often calls were made badly.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) calls: AtomicU64,
    pub(super) cut_short: AtomicU64,
    pub(super) interrupted: AtomicU64,
}

/// The system's calls; half of them move some of the bytes only, a quarter is interrupted.
#[derive(Clone, Debug)]
pub(super) struct Short {
    /// Also the number of the next draw.
    pub(super) counts: Arc<Counts>,
    pub(super) seed: u64,
}

impl Short {
    /// How many of `len` bytes this call may move; `None` if it is interrupted.
    fn draw(&self, len: usize) -> Option<usize> {
        let n = self.counts.calls.fetch_add(1, Ordering::Relaxed);
        // The finisher of SplitMix64: neighbours differ in all bits.
        let mut x = (self.seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
        if x.is_multiple_of(4) {
            self.counts.interrupted.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // A call that moves nothing would be the end of the file.
        if x % 4 == 1 || len < 2 {
            return Some(len);
        }
        self.counts.cut_short.fetch_add(1, Ordering::Relaxed);
        Some(1 + (x >> 8) as usize % (len - 1))
    }
}

impl Calls for Short {
    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.draw(buf.len()) {
            Some(len) => System.read_at(file, &mut buf[..len], offset),
            None => Err(Errno::INTR.into()),
        }
    }

    fn append_at(&self, file: &File, out: &mut Vec<u8>, offset: u64) -> Result<usize, Errno> {
        let room = out.capacity() - out.len();
        match self.draw(room) {
            Some(len) if len == room => System.append_at(file, out, offset),
            Some(len) => {
                let mut some = Vec::with_capacity(len);
                System.append_at(file, &mut some, offset)?;
                some.truncate(len);
                out.extend_from_slice(&some);
                Ok(some.len())
            }
            None => Err(Errno::INTR),
        }
    }

    fn read_at_without_waiting(
        &self,
        file: &File,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        match self.draw(buf.len()) {
            Some(len) => System.read_at_without_waiting(file, &mut buf[..len], offset),
            None => Err(Errno::INTR),
        }
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.draw(bytes.len()) {
            Some(len) => System.write_at(file, &bytes[..len], offset),
            None => Err(Errno::INTR.into()),
        }
    }

    fn write_both_at(
        &self,
        file: &File,
        bytes: &[u8],
        more: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        let Some(len) = self.draw(bytes.len() + more.len()) else {
            return Err(Errno::INTR.into());
        };
        let of_first = len.min(bytes.len());
        let more = &more[..len - of_first];
        System.write_both_at(file, &bytes[..of_first], more, offset)
    }

    fn reserve(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        match self.draw(0) {
            Some(_) => System.reserve(file, offset, len),
            None => Err(Errno::INTR),
        }
    }

    fn lengthen(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        match self.draw(0) {
            Some(_) => System.lengthen(file, offset, len),
            None => Err(Errno::INTR),
        }
    }
}
