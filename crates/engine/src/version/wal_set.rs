//! Write-ahead logs that the MANIFEST knows of.
//!
//! With RocksDB's option `track_and_verify_wals_in_manifest` each synced log stands in the
//! MANIFEST with its size, so that a log that vanished or shrank is noticed at open. Source:
//! RocksDB `db/wal_edit.{h,cc}`.

use std::collections::BTreeMap;

use orogen_base::coding::{Decoder, put_varint32, put_varint64};
use orogen_base::{Error, FileNo, Result};

const TERMINATE: u32 = 1;
const SYNCED_SIZE: u32 = 2;

/// A log was made or synced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalAddition {
    /// The log.
    pub number: FileNo,
    /// Bytes that were synced; `None` if the log is new.
    pub synced_size: Option<u64>,
}

impl WalAddition {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint64(out, self.number);
        if let Some(size) = self.synced_size {
            put_varint32(out, SYNCED_SIZE);
            put_varint64(out, size);
        }
        put_varint32(out, TERMINATE);
    }

    pub(crate) fn decode(input: &mut Decoder<'_>) -> Result<Self> {
        let mut wal = Self {
            number: input.varint64("wal number")?,
            synced_size: None,
        };
        loop {
            match input.varint32("wal addition tag")? {
                TERMINATE => return Ok(wal),
                SYNCED_SIZE => wal.synced_size = Some(input.varint64("wal synced size")?),
                tag => {
                    return Err(Error::corruption("unknown tag in a wal addition").with("tag", tag));
                }
            }
        }
    }
}

/// The logs that should be on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalSet {
    wals: BTreeMap<FileNo, Option<u64>>,
    min_number_to_keep: FileNo,
}

impl WalSet {
    /// Takes a log in, or raises its synced size.
    ///
    /// # Errors
    /// `Corruption` if the log is new for the second time.
    pub fn add(&mut self, wal: &WalAddition) -> Result<()> {
        if wal.number < self.min_number_to_keep {
            return Ok(());
        }
        match self.wals.get_mut(&wal.number) {
            None => {
                self.wals.insert(wal.number, wal.synced_size);
            }
            Some(_) if wal.synced_size.is_none() => {
                return Err(Error::corruption("wal is created twice").with("wal", wal.number));
            }
            // Edits with different sizes of one log may be written out of order.
            Some(size) => *size = (*size).max(wal.synced_size),
        }
        Ok(())
    }

    /// Forgets the logs before `number`, also those that are added later.
    pub fn delete_before(&mut self, number: FileNo) {
        if number > self.min_number_to_keep {
            self.min_number_to_keep = number;
            self.wals = self.wals.split_off(&number);
        }
    }

    /// The logs with their synced sizes, rising.
    pub fn iter(&self) -> impl Iterator<Item = WalAddition> + '_ {
        self.wals.iter().map(|(&number, &synced_size)| WalAddition {
            number,
            synced_size,
        })
    }

    /// True if no log is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wals.is_empty()
    }

    /// Compares the logs from number `from` on with what is on disk; `size_of` gives a log's size, `None` if it is missing.
    ///
    /// # Errors
    /// `Corruption` if a synced log is missing or shorter than it was; what `size_of` gives.
    pub fn check(
        &self,
        from: FileNo,
        size_of: &mut dyn FnMut(FileNo) -> Result<Option<u64>>,
    ) -> Result<()> {
        match self.first_wrong(from, size_of)? {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// The first log from number `from` on that is missing or shorter than it was, and what is wrong with it; see [`Self::check`].
    ///
    /// # Errors
    /// What `size_of` gives.
    pub fn first_wrong(
        &self,
        from: FileNo,
        size_of: &mut dyn FnMut(FileNo) -> Result<Option<u64>>,
    ) -> Result<Option<(FileNo, Error)>> {
        for (&number, synced) in self.wals.range(from..) {
            let Some(synced) = *synced else { continue };
            let error = match size_of(number)? {
                None => Error::corruption("wal is missing").with("wal", number),
                Some(size) if size < synced => {
                    Error::corruption("wal is shorter than when it was synced")
                        .with("wal", number)
                        .with("size", size)
                        .with("synced_size", synced)
                }
                Some(_) => continue,
            };
            return Ok(Some((number, error)));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wal(number: FileNo, synced_size: Option<u64>) -> WalAddition {
        WalAddition {
            number,
            synced_size,
        }
    }

    #[test]
    fn a_set_keeps_the_largest_synced_size_and_forgets_deleted_logs() {
        let mut set = WalSet::default();
        set.add(&wal(4, None)).unwrap();
        set.add(&wal(4, Some(20))).unwrap();
        set.add(&wal(4, Some(10))).unwrap();
        set.add(&wal(6, None)).unwrap();
        assert!(set.add(&wal(6, None)).is_err());
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [wal(4, Some(20)), wal(6, None)]
        );
        set.check(0, &mut |_| Ok(Some(20))).unwrap();
        assert!(set.check(0, &mut |_| Ok(Some(19))).is_err());
        assert!(set.check(0, &mut |_| Ok(None)).is_err());
        assert!(set.check(4, &mut |_| Ok(None)).is_err());
        set.check(5, &mut |_| Ok(None)).unwrap();
        set.delete_before(6);
        set.add(&wal(5, Some(1))).unwrap();
        assert_eq!(set.iter().collect::<Vec<_>>(), [wal(6, None)]);
        set.check(0, &mut |_| Ok(None)).unwrap();
    }
}
