//! Bytes that grow in a file instead of memory, of one owner.
//!
//! They never move. What the file has is shared with nobody: its name is gone.
#![expect(unsafe_code, reason = "slices of what is reserved")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use orogen_base::{Error, Result};

use super::Reserved;

/// A list of bytes in a file without a name: the system writes them back and keeps in memory what it sees fit.
pub struct FileBuffer {
    bytes: Reserved,
    /// Bytes from the start that can be used; no more than `max`.
    room: usize,
    len: usize,
    max: usize,
}

impl FileBuffer {
    /// An empty list in a new file in `dir`, of at most `max` bytes: so many addresses are reserved.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: no file could be made; `NoMemory`: no addresses.
    pub fn in_dir(max: usize, dir: &Path) -> Result<Self> {
        Ok(Self {
            bytes: Reserved::in_dir(max, dir)?,
            room: 0,
            len: 0,
            max,
        })
    }

    /// Takes the place of `more` bytes on disk; the list then grows by so many without asking.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `NoMemory`, and `InvalidArgument` beyond the most that it was made for: it is as it was.
    #[inline]
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        if self.room - self.len >= more {
            return Ok(());
        }
        self.grow(more)
    }

    #[cold]
    fn grow(&mut self, more: usize) -> Result<()> {
        let wanted = self.len.saturating_add(more);
        if wanted > self.max {
            return Err(
                Error::invalid_argument("buffer in a file would be too large")
                    .with("bytes", wanted)
                    .with("bytes_max", self.max),
            );
        }
        self.bytes.try_commit(wanted)?;
        self.room = self.bytes.committed().min(self.max);
        Ok(())
    }

    /// Adds bytes for which there is room.
    ///
    /// # Panics
    /// If there is none: see [`Self::reserve`].
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let (start, end) = (self.len, self.len + bytes.len());
        self.room_mut()[start..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Forgets what is behind the first `len` bytes, if there is anything; the file keeps its size.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn room_mut(&mut self) -> &mut [u8] {
        let start = self.bytes.start().as_ptr();
        // SAFETY: the first `room` bytes are committed: zeros, or what was written. Only this value has their address.
        unsafe { std::slice::from_raw_parts_mut(start, self.room) }
    }
}

impl Deref for FileBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let start = self.bytes.start().as_ptr();
        // SAFETY: `len <= room`, and those are committed and initialised; who changes them has `&mut self`.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl DerefMut for FileBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.room_mut()[..len]
    }
}

impl fmt::Debug for FileBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::ErrorKind;

    #[test]
    fn it_is_a_list_of_bytes_up_to_its_most() {
        let max = 5 << 20;
        let mut buffer = FileBuffer::in_dir(max, &std::env::temp_dir()).unwrap();
        let mut list = Vec::new();
        assert!(buffer.is_empty());
        for n in 0..300u32 {
            let piece = vec![n as u8; (n * 113 % 30_000) as usize];
            buffer.reserve(piece.len()).unwrap();
            let start = buffer.as_ptr();
            buffer.extend_from_slice(&piece);
            list.extend_from_slice(&piece);
            assert_eq!(buffer.as_ptr(), start);
            if n % 7 == 0 {
                let len = list.len() * 9 / 10;
                buffer.truncate(len);
                list.truncate(len);
            }
            if let Some(byte) = list.last_mut() {
                *byte ^= 1;
                let last = buffer.len() - 1;
                buffer[last] ^= 1;
            }
        }
        assert!(buffer[..] == list[..]);
        buffer.truncate(usize::MAX);
        let rest = max - list.len();
        let beyond = buffer.reserve(rest + 1).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::InvalidArgument);
        buffer.reserve(rest).unwrap();
        assert!(buffer[..] == list[..], "it is as it was");
    }

    #[test]
    fn without_a_directory_there_is_none() {
        let missing = std::env::temp_dir().join("orogen-no-such-directory");
        let error = FileBuffer::in_dir(1, &missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.context("dir").is_some());
    }
}
