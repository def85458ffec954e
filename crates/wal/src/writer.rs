//! Appends records to a log.
//!
//! A record is framed in a buffer that is kept, and goes to the file in one append, so that a
//! record costs one system call and is rarely torn. Hot path.
//!
//! 1. `size` is the place of the next byte; records never cross a block.
//! 2. After a failed append or sync nobody knows what the file holds: the writer fails for good.

use orogen_base::{Error, Result, memory};
use orogen_env::WritableFile;

use crate::format::{BLOCK_SIZE, HEADER_LEN, Part, RECYCLABLE_HEADER_LEN, TYPE_AT, checksum};

/// A larger record goes to the file in several appends of about this many bytes, so that the
/// buffer stays small.
const FRAME_MAX: usize = 1 << 20;

/// Writes a log.
pub struct Writer {
    file: Box<dyn WritableFile>,
    log_number: u32,
    recyclable: bool,
    size: u64,
    frame: Vec<u8>,
    failed: Option<Error>,
}

impl Writer {
    /// A writer at the start of `file`: a new one, or one that is written over.
    ///
    /// With `recyclable`, each record carries the low half of `log_number`, so that records of
    /// a former use of the file behind the end are told apart.
    #[must_use]
    pub fn new(file: Box<dyn WritableFile>, log_number: u64, recyclable: bool) -> Self {
        Self::resume(file, log_number, recyclable, 0)
    }

    /// A writer that goes on at `offset`, where the last good record ends and the file must
    /// have been cut off.
    #[must_use]
    pub fn resume(
        file: Box<dyn WritableFile>,
        log_number: u64,
        recyclable: bool,
        offset: u64,
    ) -> Self {
        // The format keeps the low 32 bits only.
        let log_number = log_number as u32;
        Self {
            file,
            log_number,
            recyclable,
            size: offset,
            frame: Vec::new(),
            failed: None,
        }
    }

    /// Says that no record follows; [`WritableFile::seal`].
    pub fn seal(&mut self) {
        self.file.seal();
    }

    /// Appends a record; it is with the operating system when this returns, not yet safe from
    /// a power loss.
    ///
    /// # Errors
    /// `NoMemory`: nothing was appended. `NoSpace` or `Io`; part of the record may be in the file,
    /// and all later calls fail too.
    pub fn add_record(&mut self, record: &[u8]) -> Result<()> {
        self.add_record_parts(&[record])
    }

    /// Appends one record whose bytes are `parts` one after the other.
    ///
    /// # Errors
    /// As [`Self::add_record`].
    pub fn add_record_parts(&mut self, parts: &[&[u8]]) -> Result<()> {
        self.check()?;
        let mut left: usize = parts.iter().map(|p| p.len()).sum();
        let mut parts = parts.iter().copied();
        let mut part: &[u8] = &[];
        let header_len = if self.recyclable {
            RECYCLABLE_HEADER_LEN
        } else {
            HEADER_LEN
        };
        let mut is_first = true;
        self.frame.clear();
        // All that the frame will hold, before a byte of the record is in the file.
        let headers = (left / (BLOCK_SIZE - RECYCLABLE_HEADER_LEN) + 2) * 2 * RECYCLABLE_HEADER_LEN;
        let frame = (left + headers).min(FRAME_MAX + BLOCK_SIZE + headers);
        memory::reserve(&mut self.frame, frame, "log record")?;
        loop {
            let mut room = self.room_in_block();
            if room < header_len {
                self.frame.resize(self.frame.len() + room, 0);
                room = BLOCK_SIZE;
            }
            let len = left.min(room - header_len);
            left -= len;
            let header_at = self.frame.len();
            let record_type = Part::of(is_first, left == 0).record_type(self.recyclable);
            self.frame.extend_from_slice(&[0; 4]);
            // A block is shorter than 64 KiB, so two bytes hold the length.
            self.frame.extend_from_slice(&(len as u16).to_le_bytes());
            self.frame.push(record_type);
            if self.recyclable {
                self.frame.extend_from_slice(&self.log_number.to_le_bytes());
            }
            let mut wanted = len;
            while wanted > 0 {
                if part.is_empty() {
                    let Some(next) = parts.next() else { break };
                    part = next;
                    continue;
                }
                let (now, later) = part.split_at(wanted.min(part.len()));
                self.frame.extend_from_slice(now);
                wanted -= now.len();
                part = later;
            }
            let crc = checksum(&self.frame[header_at + TYPE_AT..]);
            self.frame[header_at..header_at + 4].copy_from_slice(&crc.to_le_bytes());
            is_first = false;
            if left == 0 || self.frame.len() >= FRAME_MAX {
                self.append_frame()?;
            }
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Bytes left in the block that the frame's end stands in.
    fn room_in_block(&self) -> usize {
        BLOCK_SIZE - ((self.size + self.frame.len() as u64) % BLOCK_SIZE as u64) as usize
    }

    fn append_frame(&mut self) -> Result<()> {
        let result = self.file.append(&self.frame);
        self.size += self.frame.len() as u64;
        self.frame.clear();
        self.remember(result)
    }

    fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn remember(&mut self, result: Result<()>) -> Result<()> {
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// Makes all records so far survive a power loss.
    ///
    /// # Errors
    /// `Io`; all later calls fail too.
    pub fn sync(&mut self) -> Result<()> {
        self.check()?;
        let result = self.file.sync();
        self.remember(result)
    }

    /// Asks the system to start writing out, without waiting.
    ///
    /// # Errors
    /// `Io`.
    pub fn start_writeback(&mut self) -> Result<()> {
        self.file.start_writeback()
    }

    /// Reserves disk space beyond the end.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    pub fn preallocate(&mut self, bytes: u64) -> Result<()> {
        self.file.preallocate(bytes)
    }

    /// Bytes of the log so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }
}
