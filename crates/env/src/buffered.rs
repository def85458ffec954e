//! A buffer before a [`WritableFile`], through which table builders write.
//!
//! Many small appends become few system calls, and the system is asked to write out every
//! `bytes_per_sync` bytes, so that the sync at the end does not find gigabytes to do.
//!
//! 1. Bytes reach the file in the order of the appends.
//! 2. After a failed write the file's end is unknown: every later call gives the same error.
//! 3. Dropping the buffer writes nothing: a file that nobody finished is an abandoned one.

use orogen_base::sync::atomic::AtomicBool;
use std::sync::Arc;

use orogen_base::{Error, Result, memory};

use crate::fs::WritableFile;
use crate::rate_limiter::{IoPriority, RateLimiter};

/// A writable file with a buffer before it.
pub struct BufferedFile {
    file: Box<dyn WritableFile>,
    buffer: Vec<u8>,
    capacity: usize,
    bytes_per_sync: u64,
    unasked: u64,
    limit: Option<Limit>,
    failed: Option<Error>,
}

struct Limit {
    limiter: Arc<RateLimiter>,
    priority: IoPriority,
    stop: Arc<AtomicBool>,
}

impl BufferedFile {
    /// Bytes of the buffer where nothing else is said.
    pub const DEFAULT_CAPACITY: usize = 1 << 20;

    /// A buffer of [`Self::DEFAULT_CAPACITY`] bytes, without periodic writeback.
    #[must_use]
    pub fn new(file: Box<dyn WritableFile>) -> Self {
        Self::with_capacity(file, Self::DEFAULT_CAPACITY)
    }

    /// A buffer of `capacity` bytes; 0 passes every append on at once.
    #[must_use]
    pub fn with_capacity(file: Box<dyn WritableFile>, capacity: usize) -> Self {
        Self {
            file,
            buffer: Vec::new(),
            capacity,
            bytes_per_sync: 0,
            unasked: 0,
            limit: None,
            failed: None,
        }
    }

    /// Asks the system to write out after every `bytes` bytes; 0, the default, never.
    #[must_use]
    pub fn bytes_per_sync(mut self, bytes: u64) -> Self {
        self.bytes_per_sync = bytes;
        self
    }

    /// Takes the bytes from `limiter` at this priority before they are written to the file,
    /// until `stop` is set.
    #[must_use]
    pub fn rate_limiter(
        mut self,
        limiter: Arc<RateLimiter>,
        priority: IoPriority,
        stop: Arc<AtomicBool>,
    ) -> Self {
        self.limit = Some(Limit {
            limiter,
            priority,
            stop,
        });
        self
    }

    /// Writes out the buffer; the bytes are with the operating system when this returns.
    ///
    /// # Errors
    /// `NoSpace` or `Io`, then and ever after.
    pub fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return self.check();
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.pass_on(&buffer);
        buffer.clear();
        self.buffer = buffer;
        result
    }

    /// The file below, after a flush.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    pub fn into_inner(mut self) -> Result<Box<dyn WritableFile>> {
        self.flush()?;
        Ok(self.file)
    }

    /// Flushes, syncs and closes; returns the size of the file.
    ///
    /// # Errors
    /// `NoSpace` or `Io`; the file is then not to be used.
    pub fn finish(mut self) -> Result<u64> {
        self.sync()?;
        Ok(self.file.size())
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn remember<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.failed = Some(e.clone());
        }
        result
    }

    fn pass_on(&mut self, bytes: &[u8]) -> Result<()> {
        self.check()?;
        if let Some(limit) = &self.limit {
            let bytes = bytes.len() as u64;
            limit
                .limiter
                .request_until(bytes, limit.priority, &limit.stop);
        }
        let result = self.file.append(bytes);
        self.remember(result)?;
        self.unasked += bytes.len() as u64;
        if self.bytes_per_sync > 0 && self.unasked >= self.bytes_per_sync {
            self.unasked = 0;
            let result = self.file.start_writeback();
            self.remember(result)?;
        }
        Ok(())
    }
}

impl WritableFile for BufferedFile {
    /// Adds bytes at the end; unlike in other files they may stay in this process until
    /// [`BufferedFile::flush`].
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.check()?;
        let room = self.capacity.saturating_sub(self.buffer.len());
        if bytes.len() < self.capacity || !self.buffer.is_empty() {
            memory::reserve(&mut self.buffer, room.min(bytes.len()), "write buffer")?;
        }
        if self.buffer.len() + bytes.len() >= self.capacity {
            if !self.buffer.is_empty() {
                let room = self
                    .capacity
                    .saturating_sub(self.buffer.len())
                    .min(bytes.len());
                let (first, rest) = bytes.split_at(room);
                self.buffer.extend_from_slice(first);
                bytes = rest;
                self.flush()?;
            }
            if bytes.len() >= self.capacity {
                return self.pass_on(bytes);
            }
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.flush()?;
        let result = self.file.sync();
        self.remember(result)?;
        self.unasked = 0;
        Ok(())
    }

    fn size(&self) -> u64 {
        self.file.size() + self.buffer.len() as u64
    }

    fn start_writeback(&mut self) -> Result<()> {
        self.flush()?;
        self.unasked = 0;
        let result = self.file.start_writeback();
        self.remember(result)
    }

    fn seal(&mut self) {
        // An error is remembered for the sync.
        let _ = self.flush();
        self.file.seal();
    }

    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        let buffered = self.buffer.len() as u64;
        self.file.preallocate(bytes.saturating_add(buffered))
    }

    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let buffered = self.buffer.len() as u64;
        self.file.lengthen(bytes.saturating_add(buffered))
    }

    fn write_zeros(&mut self, bytes: u64) -> Result<()> {
        let buffered = self.buffer.len() as u64;
        self.file.write_zeros(bytes.saturating_add(buffered))
    }

    fn give_up_old_bytes(&mut self) {
        self.file.give_up_old_bytes();
    }
}

#[cfg(test)]
mod tests;
