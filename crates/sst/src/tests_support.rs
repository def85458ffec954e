//! What the tests of this crate share: files in memory and repeatable randomness.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use orogen_base::Result;
use orogen_env::{RandomAccessFile, WritableFile};

/// A linear congruential generator.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }

    /// A key of at most `len` bytes out of few different ones, so that keys share prefixes.
    pub(crate) fn key(&mut self, len: u64, letters: u64) -> Vec<u8> {
        let n = self.below(len + 1);
        (0..n)
            .map(|_| [0, 1, 0x7f, 0xff, b'a', b'b'][self.below(letters) as usize])
            .collect()
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Vec<u8> {
        let n = self.below(len + 1);
        (0..n).map(|_| self.below(256) as u8).collect()
    }
}

/// A file that is written in memory.
#[derive(Clone, Default)]
pub(crate) struct MemFile(pub(crate) Arc<Mutex<Vec<u8>>>);

impl MemFile {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl WritableFile for MemFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
}

/// A file that is read from memory.
pub(crate) struct MemTable(pub(crate) Vec<u8>, pub(crate) PathBuf);

impl MemTable {
    pub(crate) fn open(bytes: Vec<u8>) -> Arc<dyn RandomAccessFile> {
        Arc::new(Self(bytes, PathBuf::from("/db/000007.sst")))
    }
}

impl RandomAccessFile for MemTable {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|o| self.0.get(o..))
            .unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn size(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
    fn path(&self) -> &Path {
        &self.1
    }
}
