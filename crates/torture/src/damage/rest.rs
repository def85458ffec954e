//! What is answered still where a blob file is damaged: all but the values that the damage is in.
//!
//! A read of everything ends at the first value that is damaged, so each key is asked for by itself, first those that may be lost. Its value must be
//! what was written where
//!
//! - its family is another one, or it is in a table, or in another blob file;
//! - it is in the damaged file, which differs from what it was within records of values and has its length, and
//!   none of the records that hold it was changed.
//!
//! Where something else of the file was changed (its head, a dictionary, what is behind the records, its length) the file may be
//! refused as a whole. What is in two files, as behind a collection, is taken for lost with either.

use std::collections::BTreeMap;
use std::ops::Range;

use orogen_blob::{BlobFileReader, BlobFileReaderOptions};

use super::{Access, Change, DIR, FileKind, FileSystem, Reference, options_of};
use crate::engine::{CompactRangeOptions, Db, Error, ReadOptions, Result};

/// Where the values of blob files are.
#[derive(Default)]
pub(super) struct Places {
    /// The records of each blob file, by its place in the list of files.
    records: BTreeMap<usize, Vec<Range<usize>>>,
    /// Those that hold a value, by its key.
    holding: BTreeMap<Vec<u8>, Vec<Record>>,
}

struct Record {
    file: usize,
    bytes: Range<usize>,
    value: Vec<u8>,
}

/// What of a damaged file may be missing.
enum Lost {
    /// All of it.
    File,
    /// What is within these.
    Bytes(Vec<Range<usize>>),
}

impl Reference {
    /// Notes where the values are.
    pub(super) fn find_values(&mut self) -> Result<()> {
        let mut places = Places::default();
        for (at, file) in self.files.iter().enumerate() {
            let Some(FileKind::Blob(file_number)) = file.kind else {
                continue;
            };
            let options = BlobFileReaderOptions {
                file_number,
                ..BlobFileReaderOptions::default()
            };
            let opened = self.fs.open(&file.path, Access::Random)?;
            let reader = BlobFileReader::open(opened, file.bytes.len() as u64, options)?;
            let records = places.records.entry(at).or_default();
            let mut cursor = reader.records();
            loop {
                match cursor.next() {
                    Ok(None) => break,
                    Ok(Some(record)) => {
                        let start = record.offset as usize;
                        let bytes = start..start + record.record_len() as usize;
                        records.push(bytes.clone());
                        let value = record.value()?.unwrap_or_default();
                        let held = places.holding.entry(record.user_key.to_vec());
                        held.or_default().push(Record {
                            file: at,
                            bytes,
                            value,
                        });
                    }
                    // A record that lost its middle to a hole is nobody's.
                    Err(_) if self.holes => cursor.skip_damage()?,
                    Err(e) => return Err(e),
                }
            }
        }
        self.places = places;
        Ok(())
    }

    /// True for the damage of which this knows what it may take.
    pub(super) fn knows_the_rest(&self, file: usize) -> bool {
        self.places.records.contains_key(&file)
    }

    /// Asks for each key by itself, of `only` or of all families; how many were to be answered. With `compacts` after a compaction, which
    /// may fail, of the family that the file is of.
    ///
    /// # Errors
    /// What was not answered, in words.
    pub(super) fn ask_for_the_rest(
        &self,
        file: usize,
        change: Change,
        compacts: bool,
        only: Option<&str>,
    ) -> std::result::Result<u64, String> {
        let bytes = self.changed(file, change);
        let lost = self.lost(file, &bytes);
        let fs = self.fs.fork();
        let told = |what: &str, e: Error| format!("beside the damage: {what}: {e}");
        fs.create(&self.files[file].path)
            .and_then(|mut f| f.append(&bytes))
            .map_err(|e| told("write", e))?;
        let mut options = options_of(&fs, self.number, self.holes);
        options.db.create_if_missing = false;
        options.db.paranoid_checks = false;
        let db = Db::open(DIR, &options).map_err(|e| told("open", e))?;
        let owner = self.files[file].family.as_deref();
        let mut answered = 0;
        for family in db.column_families() {
            if only.is_some_and(|only| only != family.name()) {
                continue;
            }
            if compacts && owner == Some(family.name()) {
                // One that cannot open the file fails, and takes nothing away.
                let _ = db.compact_range(&CompactRangeOptions::default(), &family, None, None);
            }
            let is_owner = owner == Some(family.name());
            let pairs = self.last()[family.name()].iter();
            let (lost, left): (Vec<_>, Vec<_>) =
                pairs.partition(|(key, value)| is_owner && self.is_in(file, &lost, key, value));
            // Who has met the damage reads on.
            for (key, value) in lost.into_iter().chain(left.iter().copied()) {
                let shown = format!("{} {}", family.name(), key.escape_ascii());
                let is_left = left.binary_search(&(key, value)).is_ok();
                match db.get_opt(&ReadOptions::default(), &family, key) {
                    Ok(found) if found.as_deref() == Some(value) => answered += u64::from(is_left),
                    Ok(_) => return Err(format!("beside the damage: {shown} is wrong")),
                    Err(e) if is_left => return Err(told(&shown, e)),
                    Err(_) => {}
                }
            }
        }
        Ok(answered)
    }

    /// What a changed file may lose.
    fn lost(&self, file: usize, bytes: &[u8]) -> Lost {
        let before = &self.files[file].bytes;
        if before.len() != bytes.len() {
            return Lost::File;
        }
        let records = self
            .places
            .records
            .get(&file)
            .map_or(&[][..], Vec::as_slice);
        let mut lost: Vec<Range<usize>> = Vec::new();
        let pairs = before.iter().zip(bytes).enumerate();
        for (at, _) in pairs.filter(|(_, (before, now))| before != now) {
            if lost.last().is_some_and(|record| record.contains(&at)) {
                continue;
            }
            let Some(record) = records.iter().find(|record| record.contains(&at)) else {
                return Lost::File;
            };
            lost.push(record.clone());
        }
        Lost::Bytes(lost)
    }

    /// True if what a key has may be in what is lost.
    fn is_in(&self, file: usize, lost: &Lost, key: &[u8], value: &[u8]) -> bool {
        let held = self.places.holding.get(key).into_iter().flatten();
        // What was merged begins with what was put.
        let mut here = held.filter(|r| r.file == file && value.starts_with(&r.value));
        match lost {
            Lost::File => here.next().is_some(),
            Lost::Bytes(lost) => here.any(|r| lost.contains(&r.bytes)),
        }
    }
}
