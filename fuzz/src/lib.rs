//! What the fuzz targets share: inputs read as choices, files that hold given bytes, and tables
//! put together of given blocks.

pub mod raw_table;

use std::path::Path;
use std::sync::Arc;

use orogen_base::Result;
use orogen_env::RandomAccessFile;

/// Reads an input as a row of choices; behind its end there are zeros.
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// Choices of the whole input.
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// True when nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        first
    }

    /// Two bytes as a number.
    pub fn short(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// Up to 15 bytes, of which there are few kinds: keys that meet each other.
    pub fn key(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte() & 15);
        let (key, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        key.to_vec()
    }

    /// Up to 63 bytes.
    pub fn bytes(&mut self) -> Vec<u8> {
        (0..self.byte() & 63).map(|_| self.byte()).collect()
    }

    /// Changes bytes: cuts them off, flips some, puts some in or over others.
    pub fn change(&mut self, content: &mut Vec<u8>) {
        let at = self.short() % (content.len() + 1);
        match self.byte() % 4 {
            0 => content.truncate(at),
            1 => {
                let mask = self.byte();
                content.get_mut(at).into_iter().for_each(|b| *b ^= mask);
            }
            2 => {
                content.splice(at..at, self.bytes());
            }
            _ => {
                let new = self.bytes();
                let end = content.len().min(at + new.len());
                content.splice(at..end, new);
            }
        }
    }

    /// What is left.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }
}

struct Bytes(Vec<u8>);

impl RandomAccessFile for Bytes {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.0.len());
        let n = buf.len().min(self.0.len() - start);
        buf[..n].copy_from_slice(&self.0[start..start + n]);
        Ok(n)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn path(&self) -> &Path {
        Path::new("fuzzed")
    }
}

/// A file that holds `bytes`.
pub fn file(bytes: impl Into<Vec<u8>>) -> Arc<dyn RandomAccessFile> {
    Arc::new(Bytes(bytes.into()))
}
