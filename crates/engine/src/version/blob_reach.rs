//! How far a table reaches into blob files: which stretch of its keys has values in each of them.
//!
//! ```text
//! keys of the table     1  2  3  4  5  6  7  8  9
//! pointers to file  3   [--------]
//!                   5               [-----]           in key order, one after the other
//!                   8      [-----------------]        over both: depth 2
//! ```
//! The *depth* is how many of these stretches lie over one another at most: how many files a scan of the
//! table reads from by turns. How many files there are says less, for a table of some MiB may lead to many GiB of
//! values that all lie in key order.
//!
//! A table that points to several files has as a property:
//!
//! ```text
//! pointers varint64 | files varint32 | (number | first | last - first (varint64 each))*     numbers rising
//! ```
//! `first` and `last` count the table's pointers from 0. Of a table without it each file's stretch is taken for the whole
//! table.

use std::collections::BTreeMap;

use orogen_base::coding::{Decoder, put_varint32, put_varint64};
use orogen_base::{Error, FileNo, Result};

use super::blob_counts::BlobCounts;

/// The table property that holds the stretches.
pub const BLOB_STRETCHES: &str = "orogen.blob.stretches";

/// The first and the last of a table's pointers that leads to a file, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first one.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

/// The stretches of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobStretches {
    pointers: u64,
    files: BTreeMap<FileNo, Stretch>,
}

impl BlobStretches {
    /// Those of a table with so many pointers.
    #[must_use]
    pub fn new(pointers: u64, files: BTreeMap<FileNo, Stretch>) -> Self {
        Self { pointers, files }
    }

    /// The bytes of the property; `None` if the table needs none.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.files.len() < 2 {
            return None;
        }
        let mut out = Vec::new();
        put_varint64(&mut out, self.pointers);
        put_varint32(&mut out, self.files.len() as u32);
        for (&file, stretch) in &self.files {
            put_varint64(&mut out, file);
            put_varint64(&mut out, stretch.first);
            put_varint64(&mut out, stretch.last - stretch.first);
        }
        Some(out)
    }

    /// Reads the property.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes);
        let pointers = from.varint64("pointers of a table")?;
        let mut files = BTreeMap::new();
        for _ in 0..from.varint32("number of blob files")? {
            let file = from.varint64("blob file number")?;
            let first = from.varint64("first pointer to a blob file")?;
            let more = from.varint64("pointers up to the last one")?;
            let last = first.checked_add(more).filter(|&last| last < pointers);
            let rises = files.last_key_value().is_none_or(|(&l, _)| l < file);
            let (Some(last), true) = (last, rises) else {
                let error = Error::corruption("stretches of a table's pointers are impossible");
                return Err(error.with("blob_file", file));
            };
            files.insert(file, Stretch { first, last });
        }
        if !from.is_empty() {
            return Err(Error::corruption(
                "stretches of a table's pointers have bytes behind their end",
            ));
        }
        Ok(Self { pointers, files })
    }
}

/// What a table's pointers lead to in one file, and where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileReach {
    /// The file.
    pub file: FileNo,
    /// Bytes of the records.
    pub bytes: u64,
    /// Which of the table's pointers lead there.
    pub stretch: Stretch,
}

/// How far a table reaches into blob files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlobReach {
    /// Pointers of the table.
    pub pointers: u64,
    /// The files, by number.
    pub files: Vec<FileReach>,
}

impl BlobReach {
    /// What the two properties of a table say together.
    ///
    /// # Errors
    /// `Corruption` if they contradict each other.
    pub fn new(counts: &BlobCounts, stretches: Option<&BlobStretches>) -> Result<Self> {
        let pointers: u64 = counts.iter().map(|(_, c)| c.values).sum();
        let files = counts.iter().map(|(file, count)| {
            let stretch = match stretches {
                Some(told) => told.files.get(&file).copied(),
                None => Some(Stretch {
                    first: 0,
                    last: pointers.max(1) - 1,
                }),
            };
            stretch.map(|stretch| FileReach {
                file,
                bytes: count.bytes,
                stretch,
            })
        });
        let files: Option<Vec<FileReach>> = files.collect();
        let is_same = stretches.is_none_or(|told| {
            told.pointers == pointers && told.files.len() == counts.iter().count()
        });
        match files {
            Some(files) if is_same => Ok(Self { pointers, files }),
            _ => Err(Error::corruption(
                "table tells of other stretches than of blob files that it points to",
            )),
        }
    }

    /// How many stretches lie over one another at most.
    #[must_use]
    pub fn depth(&self) -> u64 {
        depth(self.files.iter().map(|f| f.stretch))
    }
}

/// How many of these lie over one another at most.
pub fn depth(stretches: impl Iterator<Item = Stretch>) -> u64 {
    // At one pointer a stretch begins before another ends.
    let borders = stretches.flat_map(|s| [(s.first, false), (s.last, true)]);
    let mut borders: Vec<(u64, bool)> = borders.collect();
    borders.sort_unstable();
    let (mut open, mut most) = (0, 0);
    for (_, ends) in borders {
        if ends {
            open -= 1;
        } else {
            open += 1;
            most = most.max(open);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_blob::BlobPointer;
    use orogen_sst::CompressionType;

    fn table(files: &[FileNo]) -> (BlobCounts, BlobStretches) {
        let mut counts = BlobCounts::default();
        let mut stretches = BTreeMap::new();
        for (n, &file) in (0..).zip(files) {
            let pointer = BlobPointer {
                file,
                offset: 100,
                size: 60,
                codec: CompressionType::None,
            };
            counts.add(&pointer, 8);
            let stretch: &mut Stretch = stretches
                .entry(file)
                .or_insert(Stretch { first: n, last: n });
            stretch.last = n;
        }
        (counts, BlobStretches::new(files.len() as u64, stretches))
    }

    fn depth_of(files: &[FileNo]) -> u64 {
        let (counts, stretches) = table(files);
        let told = stretches.encode();
        let told = told.map(|bytes| BlobStretches::decode(&bytes).unwrap());
        BlobReach::new(&counts, told.as_ref()).unwrap().depth()
    }

    #[test]
    fn files_in_a_row_are_one_deep_and_those_by_turns_as_deep_as_they_are_many() {
        assert_eq!(depth_of(&[]), 0);
        assert_eq!(depth_of(&[7, 7, 7]), 1);
        assert_eq!(depth_of(&[7, 7, 3, 3, 9]), 1);
        assert_eq!(depth_of(&[7, 3, 7]), 2);
        assert_eq!(depth_of(&[3, 3, 8, 3, 8, 5, 5, 8, 5]), 2);
        assert_eq!(depth_of(&[1, 2, 3, 1, 2, 3]), 3);
        // Each ends where the next begins, but for one that goes on.
        assert_eq!(depth_of(&[4, 1, 1, 2, 2, 3, 3, 4]), 2);
    }

    #[test]
    fn the_property_round_trips_and_damage_is_refused() {
        let (counts, stretches) = table(&[3, 3, 8, 3, 8, 5, 5, 8, 5]);
        let bytes = stretches.encode().unwrap();
        let told = BlobStretches::decode(&bytes).unwrap();
        let reach = BlobReach::new(&counts, Some(&told)).unwrap();
        let stretches: Vec<_> = reach
            .files
            .iter()
            .map(|f| (f.file, f.stretch.first, f.stretch.last, f.bytes))
            .collect();
        assert_eq!(stretches, [(3, 0, 3, 300), (5, 5, 8, 300), (8, 2, 7, 300)]);
        assert_eq!(told.encode().unwrap(), bytes);
        for n in 0..bytes.len() {
            assert!(BlobStretches::decode(&bytes[..n]).is_err(), "{n}");
        }
        for wrong in [
            &[4, 2, 5, 0, 1, 5, 2, 1][..],
            &[4, 1, 5, 3, 1],
            &[4, 1, 5, 0, 0, 9],
        ] {
            assert!(BlobStretches::decode(wrong).is_err(), "{wrong:?}");
        }
        // A property of another table.
        let (others, _) = table(&[3, 3, 8]);
        assert!(BlobReach::new(&others, Some(&told)).is_err());
        let unknown = BlobReach::new(&counts, None).unwrap();
        assert_eq!((unknown.pointers, unknown.depth()), (9, 3));
    }
}
