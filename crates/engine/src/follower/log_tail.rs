//! A log that somebody else writes, read as far as it goes.

use std::path::Path;
use std::sync::Arc;

use orogen_base::coding::get_fixed32;
use orogen_base::{Error, FileNo, Result};
use orogen_env::fs::{Access, FileSystem, RandomAccessFile};
use orogen_wal::{ReadOutcome, Reader};

use crate::filename;

/// Bytes of a block of a log; records do not begin in the last few of one.
const BLOCK_SIZE: u64 = 32 << 10;
const HEADER_LEN: usize = 7;
/// With the log's number.
const RECYCLABLE_HEADER_LEN: usize = 11;
/// Types of records of data that have the number.
const RECYCLABLE_TYPES: std::ops::RangeInclusive<u8> = 5..=8;

/// What becomes of a record.
pub(super) enum Taken {
    /// It was taken.
    Yes,
    /// Not yet: it is read again next time.
    NotYet,
}

/// Where reading of a log ended for now.
pub(super) enum End {
    /// At the end of what was written.
    Clean,
    /// At bytes that are no record, and that may become one if the log is being written: what a crash cuts off looks
    /// so, if `is_tail`.
    Damaged { error: Error, is_tail: bool },
    /// Before a record that cannot be taken yet.
    NotYet,
}

/// One log.
pub(super) struct LogTail {
    pub(super) number: FileNo,
    /// Kept open: the name may go.
    file: Arc<dyn RandomAccessFile>,
    /// The end of the last record that was taken.
    pub(super) at: u64,
    /// It was read to its end, and a later log has records.
    pub(super) complete: bool,
}

impl LogTail {
    pub(super) fn open(fs: &dyn FileSystem, dir: &Path, number: FileNo) -> Result<Self> {
        let file = fs.open(&filename::wal_path(dir, number), Access::Sequential)?;
        Ok(Self {
            number,
            file,
            at: 0,
            complete: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Gives every record that was written since to `take`, with its offset. Behind zeros, and behind records of a former use of
    /// the file, it looks for lost records only if it `looks_behind`: there may be much of both.
    pub(super) fn poll(
        &mut self,
        looks_behind: bool,
        mut take: impl FnMut(&[u8], u64) -> Result<Taken>,
    ) -> Result<End> {
        if !looks_behind && self.has_no_news()? {
            return Ok(End::Clean);
        }
        let mut reader = Reader::starting_at(self.file.clone(), self.number, self.at)?;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record)? {
                ReadOutcome::Record { offset } => match take(&record, offset)? {
                    Taken::Yes => self.at = reader.valid_until(),
                    Taken::NotYet => return Ok(End::NotYet),
                },
                ReadOutcome::EndOfLog { clean: true, .. } => return Ok(End::Clean),
                ReadOutcome::EndOfLog { .. } => {
                    let error = Error::corruption("log ends within a record")
                        .with("file", self.file.path().display())
                        .with("offset", self.at);
                    let is_tail = true;
                    return Ok(End::Damaged { error, is_tail });
                }
                ReadOutcome::Damage(damage) => {
                    return Ok(End::Damaged {
                        error: reader.error(&damage),
                        is_tail: damage.is_tail,
                    });
                }
            }
            if !looks_behind && self.has_no_news()? {
                return Ok(End::Clean);
            }
        }
    }

    /// The sequence number that `read` finds in the first record from here on, if there is one.
    pub(super) fn peek<T>(&self, read: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let mut reader = Reader::starting_at(self.file.clone(), self.number, self.at)?;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record)? {
                ReadOutcome::Record { .. } => {
                    if let Some(found) = read(&record) {
                        return Ok(Some(found));
                    }
                }
                _ => return Ok(None),
            }
        }
    }

    /// True if no record of this log begins at its end for now: the file ends, zeros were
    /// reserved, or a record of a former use of the file stands there.
    fn has_no_news(&self) -> Result<bool> {
        let left = (BLOCK_SIZE - self.at % BLOCK_SIZE) as usize;
        let mut header = [0; RECYCLABLE_HEADER_LEN];
        let mut len = self.file.read_at(self.at, &mut header)?;
        // The end of a block is left free where no header fits.
        let is_padding = left < HEADER_LEN
            || left < RECYCLABLE_HEADER_LEN && header[..left.min(len)].iter().all(|&b| b == 0);
        if is_padding {
            len = self.file.read_at(self.at + left as u64, &mut header)?;
        }
        let header = &header[..len];
        if len < HEADER_LEN {
            return Ok(header.iter().all(|&b| b == 0));
        }
        if header[..HEADER_LEN].iter().all(|&b| b == 0) {
            return Ok(true);
        }
        let has_number = RECYCLABLE_TYPES.contains(&header[6]);
        let other = get_fixed32(&header[HEADER_LEN..]).is_some_and(|n| n != self.number as u32);
        Ok(has_number && other)
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::MemFileSystem;
    use orogen_wal::Writer;

    use super::*;

    /// Records of all lengths, so that every end of a block is met, read one by one as they are
    /// written.
    #[test]
    fn every_record_is_found_wherever_the_one_before_it_ends() {
        for recyclable in [false, true] {
            let fs = MemFileSystem::new();
            let dir = Path::new("/log");
            fs.create_dir_all(dir).unwrap();
            let file = fs.create(&filename::wal_path(dir, 9)).unwrap();
            let mut writer = Writer::new(file, 9, recyclable);
            let mut tail = LogTail::open(&fs, dir, 9).unwrap();
            let header = if recyclable { 11 } else { 7 };
            for left in 0..60usize {
                // Up to so many bytes before the end of the block, then a short one.
                let at = writer.size() as usize % BLOCK_SIZE as usize;
                let room = BLOCK_SIZE as usize - at;
                let Some(len) = room.checked_sub(header + left) else {
                    continue;
                };
                for len in [len, 1] {
                    assert!(tail.has_no_news().unwrap());
                    writer.add_record(&vec![7; len]).unwrap();
                    let mut seen = 0;
                    let end = tail.poll(left % 2 == 1, |record, _| {
                        seen += record.len();
                        Ok(Taken::Yes)
                    });
                    assert!(matches!(end.unwrap(), End::Clean));
                    assert_eq!(seen, len, "{left} bytes left, recyclable={recyclable}");
                }
            }
        }
    }
}
