//! Values of blob files, counted by the pointers that lead to them.
//!
//! A table has as a property what its pointers lead to, so that it need not be read when it is
//! dropped whole:
//!
//! ```text
//! files varint32 | (number | values | bytes (varint64 each))*     numbers rising
//! ```
//! A value's bytes are those of its record, as the MANIFEST counts them. Every entry of kind 0x11
//! counts, several versions of a key too.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use orogen_base::coding::{Decoder, put_varint32, put_varint64};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, FileNo, Result};
use orogen_blob::BlobPointer;

use super::blob_meta::BlobFileGarbage;

/// The table property that holds the counts.
pub const BLOB_REFERENCES: &str = "orogen.blob.references";

/// The table property that holds, as varint64, what all values that are in the table itself have fewer bytes
/// than; 0 if there is none. So whether a table has values that are to leave it is known without reading
/// it. Merge operands never leave and do not count.
pub const INLINE_VALUE_SIZE_BOUND: &str = "orogen.inline.value.size.bound";

/// Values of one blob file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobCount {
    /// How many.
    pub values: u64,
    /// Bytes of their records.
    pub bytes: u64,
}

impl BlobCount {
    /// Counts the value of a user key of so many bytes.
    #[inline]
    pub fn add(&mut self, pointer: &BlobPointer, key_len: usize) {
        self.values += 1;
        self.bytes = self.bytes.saturating_add(pointer.record_len(key_len));
    }
}

/// Something of each blob file that pointers are met of, which come by the million and in no order.
pub type ByBlobFile<T> = HashMap<FileNo, T, RandomState>;

/// Values by blob file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobCounts(BTreeMap<FileNo, BlobCount>);

impl FromIterator<(FileNo, BlobCount)> for BlobCounts {
    fn from_iter<I: IntoIterator<Item = (FileNo, BlobCount)>>(counts: I) -> Self {
        Self(counts.into_iter().collect())
    }
}

impl BlobCounts {
    /// Counts the value of a user key of so many bytes.
    #[inline]
    pub fn add(&mut self, pointer: &BlobPointer, key_len: usize) {
        let count = self.0.entry(pointer.file).or_default();
        count.add(pointer, key_len);
    }

    /// Adds all of `other`.
    pub fn add_all(&mut self, other: &Self) {
        for (&file, more) in &other.0 {
            let count = self.0.entry(file).or_default();
            count.values = count.values.saturating_add(more.values);
            count.bytes = count.bytes.saturating_add(more.bytes);
        }
    }

    /// True if no value was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest number of a file; 0 if no value was counted, as tables have it in the MANIFEST.
    #[must_use]
    pub fn oldest_file(&self) -> FileNo {
        self.0.first_key_value().map_or(0, |(&file, _)| file)
    }

    /// What was counted of one file.
    #[must_use]
    pub fn of(&self, file: FileNo) -> BlobCount {
        self.0.get(&file).copied().unwrap_or_default()
    }

    /// Bytes of the records of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, c| sum.saturating_add(c.bytes))
    }

    /// Records of all files.
    #[must_use]
    pub fn values(&self) -> u64 {
        self.0
            .values()
            .fold(0, |sum, c| sum.saturating_add(c.values))
    }

    /// The files with what was counted of each, by number.
    pub fn iter(&self) -> impl Iterator<Item = (FileNo, BlobCount)> + '_ {
        self.0.iter().map(|(&file, &count)| (file, count))
    }

    /// What is in here and not in `kept`: the garbage of a job that read the former and passed the
    /// latter on.
    ///
    /// # Errors
    /// `Corruption` if more was passed on than read.
    pub fn without(&self, kept: &Self) -> Result<Vec<BlobFileGarbage>> {
        let mut garbage = Vec::new();
        let mut passed_on = 0;
        for (&number, read) in &self.0 {
            let kept = kept.0.get(&number).inspect(|_| passed_on += 1);
            let kept = kept.copied().unwrap_or_default();
            let values = read.values.checked_sub(kept.values);
            let bytes = read.bytes.checked_sub(kept.bytes);
            let (Some(values), Some(bytes)) = (values, bytes) else {
                return Err(more_than_read(number));
            };
            if values > 0 {
                garbage.push(BlobFileGarbage {
                    number,
                    garbage_blob_count: values,
                    garbage_blob_bytes: bytes,
                    given_up_bytes: None,
                });
            }
        }
        if passed_on < kept.0.len() {
            return Err(more_than_read(kept.oldest_file()));
        }
        Ok(garbage)
    }

    /// The bytes of the property.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint32(&mut out, self.0.len() as u32);
        for (&file, count) in &self.0 {
            put_varint64(&mut out, file);
            put_varint64(&mut out, count.values);
            put_varint64(&mut out, count.bytes);
        }
        out
    }

    /// Reads the property.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes);
        let mut counts = Self::default();
        let mut values = 0u64;
        for _ in 0..from.varint32("number of blob files")? {
            let file = from.varint64("blob file number")?;
            let count = BlobCount {
                values: from.varint64("values of a blob file")?,
                bytes: from.varint64("bytes of a blob file")?,
            };
            if counts.0.last_key_value().is_some_and(|(&l, _)| l >= file) {
                return Err(
                    Error::corruption("blob references are out of order").with("blob_file", file)
                );
            }
            values = values.saturating_add(count.values);
            if values > SEQNO_MAX {
                return Err(
                    Error::corruption("blob references are more than there are writes")
                        .with("blob_file", file),
                );
            }
            counts.0.insert(file, count);
        }
        if !from.is_empty() {
            return Err(Error::corruption(
                "blob references have bytes behind their end",
            ));
        }
        Ok(counts)
    }
}

#[cold]
fn more_than_read(file: FileNo) -> Error {
    Error::corruption("a job has more pointers to a blob file than it read").with("blob_file", file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_sst::CompressionType;

    fn counts(of: &[(FileNo, u64)]) -> BlobCounts {
        let mut counts = BlobCounts::default();
        for &(file, size) in of {
            let pointer = BlobPointer {
                file,
                offset: 100,
                size,
                codec: CompressionType::None,
            };
            counts.add(&pointer, 8);
        }
        counts
    }

    #[test]
    fn what_is_not_passed_on_is_garbage() {
        let read = counts(&[(7, 100), (7, 200), (3, 50), (9, 1)]);
        assert_eq!(read.oldest_file(), 3);
        let garbage = read.without(&counts(&[(7, 200), (9, 1)])).unwrap();
        let told: Vec<_> = garbage
            .iter()
            .map(|g| (g.number, g.garbage_blob_count, g.garbage_blob_bytes))
            .collect();
        assert_eq!(told, [(3, 1, 90), (7, 1, 140)]);
        assert!(read.without(&counts(&[(9, 1), (9, 1)])).is_err());
        assert!(read.without(&counts(&[(4, 1)])).is_err());
        assert!(read.without(&read).unwrap().is_empty());
    }

    #[test]
    fn the_property_round_trips_and_damage_is_refused() {
        let all = counts(&[(7, 100), (1 << 40, 200), (3, 50)]);
        let bytes = all.encode();
        let mut many = counts(&[(7, 100), (8, 100)]);
        many.0.values_mut().for_each(|c| c.values = 1 << 63);
        assert!(BlobCounts::decode(&many.encode()).is_err());
        assert_eq!(BlobCounts::decode(&bytes).unwrap(), all);
        for n in 0..bytes.len() {
            assert!(BlobCounts::decode(&bytes[..n]).is_err(), "{n}");
        }
        assert!(BlobCounts::decode(&[2, 5, 1, 1, 5, 1, 1]).is_err());
        assert!(BlobCounts::decode(&[1, 5, 1, 1, 0]).is_err());
    }
}
