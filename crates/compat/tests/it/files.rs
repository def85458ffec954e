//! Every file that RocksDB wrote is read whole, one by one and without a database around it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use orogen_base::key::user_key;
use orogen_base::{InternalIterator, ParsedInternalKey, UserComparator, ValueKind};
use orogen_blob::{BlobFileReader, BlobFileReaderOptions, BlobPointer};
use orogen_compat::Case;
use orogen_env::{Access, FileSystem, PosixFileSystem};
use orogen_sst::{TableReadOptions, TableReader, TableReaderOptions};
use orogen_wal::{ReadOutcome, Reader};

use crate::{live_tables, written_by_rocksdb};

/// The files of a database with a name of this kind.
fn files(case: &Case, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(case.db()).unwrap();
    let mut found: Vec<PathBuf> = entries
        .map(|e| e.unwrap().path())
        .filter(|p| is_wanted(p.file_name().and_then(|n| n.to_str()).unwrap()))
        .collect();
    found.sort();
    found
}

#[test]
fn tables_hold_what_their_properties_say() {
    let fs = PosixFileSystem::new();
    let mut tables = 0;
    for case in written_by_rocksdb() {
        let comparator = UserComparator::by_name(case.comparator()).unwrap();
        let live = live_tables(case);
        for path in files(case, |name| name.ends_with(".sst")) {
            let number = path.file_stem().and_then(|n| n.to_str()).unwrap();
            if !live.contains(&number.parse().unwrap()) {
                continue;
            }
            let shown = path.display();
            let file = fs.open(&path, Access::Random).unwrap();
            let size = file.size().unwrap();
            let options = TableReaderOptions {
                comparator: comparator.clone(),
                ..TableReaderOptions::default()
            };
            let table = TableReader::open(file, size, options).unwrap();
            table.verify_checksums().unwrap();
            let read = TableReadOptions::default();
            let mut forwards = Vec::new();
            let mut iter = table.iter(read);
            iter.seek_to_first();
            while iter.valid() {
                assert!(
                    table.may_contain(&read, user_key(iter.key())).unwrap(),
                    "the filter of {shown} denies a key that is there"
                );
                forwards.push((iter.key().to_vec(), iter.value().to_vec()));
                iter.next();
            }
            iter.status().unwrap();
            let properties = table.properties();
            // RocksDB counts range tombstones among the entries.
            let points = properties.num_entries - properties.num_range_deletions;
            assert_eq!(forwards.len() as u64, points, "{shown}");
            iter.seek_to_last();
            for (key, value) in forwards.iter().rev() {
                assert!(iter.valid(), "{shown}");
                assert_eq!(
                    (iter.key(), iter.value()),
                    (&key[..], &value[..]),
                    "{shown}"
                );
                iter.prev();
            }
            assert!(!iter.valid(), "{shown}");
            tables += 1;
        }
    }
    assert!(tables > 150, "only {tables} tables");
}

#[test]
fn logs_and_manifests_have_no_damage() {
    let fs = PosixFileSystem::new();
    let mut records = 0;
    for case in written_by_rocksdb() {
        // A compressed log is refused by name; the engine's tests look at that.
        let is_plain = !case.features().contains(&"wal-compression");
        let is_log =
            |name: &str| name.starts_with("MANIFEST-") || is_plain && name.ends_with(".log");
        for path in files(case, is_log) {
            let name = path.file_stem().and_then(|n| n.to_str()).unwrap();
            let number = name.trim_start_matches("MANIFEST-").parse().unwrap();
            let file = fs.open(&path, Access::Sequential).unwrap();
            let mut reader = Reader::new(file, number).unwrap();
            let mut record = Vec::new();
            loop {
                match reader.read_record(&mut record).unwrap() {
                    ReadOutcome::Record { .. } => records += 1,
                    ReadOutcome::EndOfLog { clean, .. } => {
                        let is_whole = clean || case.name().starts_with("log-recycled");
                        assert!(is_whole, "{} ends within a record", path.display());
                        break;
                    }
                    // Behind the end of a recycled log its former bytes go on anywhere.
                    ReadOutcome::Damage(damage)
                        if damage.is_tail && case.name().starts_with("log-recycled") => {}
                    ReadOutcome::Damage(damage) => {
                        panic!("{}: {}", path.display(), reader.error(&damage));
                    }
                }
            }
        }
    }
    assert!(records > 4_000, "only {records} records");
}

fn open_blob_file(db: &Path, number: u64) -> BlobFileReader {
    let path = db.join(format!("{number:06}.blob"));
    let file = PosixFileSystem::new().open(&path, Access::Random).unwrap();
    let size = file.size().unwrap();
    let options = BlobFileReaderOptions {
        file_number: number,
        column_family_id: Some(0),
        ..BlobFileReaderOptions::default()
    };
    BlobFileReader::open(file, size, options).unwrap()
}

#[test]
fn blob_files_hold_the_values_that_tables_point_to() {
    let fs = PosixFileSystem::new();
    let mut cases = 0;
    for case in written_by_rocksdb() {
        if !case.features().contains(&"blob") {
            continue;
        }
        cases += 1;
        let live = live_tables(case);
        // The newest entry of each key: its sequence number, and its value if it is in a blob file.
        let mut newest: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)> = BTreeMap::new();
        let mut files: BTreeMap<u64, BlobFileReader> = BTreeMap::new();
        let mut pointed = HashSet::new();
        for number in live {
            let path = case.db().join(format!("{number:06}.sst"));
            let file = fs.open(&path, Access::Random).unwrap();
            let size = file.size().unwrap();
            let table = TableReader::open(file, size, TableReaderOptions::default()).unwrap();
            let mut iter = table.iter(TableReadOptions::default());
            iter.seek_to_first();
            while iter.valid() {
                let key = ParsedInternalKey::parse(iter.key()).unwrap();
                let value = (key.kind == ValueKind::BlobIndex).then(|| {
                    let pointer = BlobPointer::decode(iter.value()).unwrap();
                    pointed.insert((pointer.file, pointer.offset));
                    let blobs = files
                        .entry(pointer.file)
                        .or_insert_with(|| open_blob_file(&case.db(), pointer.file));
                    blobs.get(pointer, key.user_key, true).unwrap().to_vec()
                });
                let known = newest.entry(key.user_key.to_vec()).or_insert((0, None));
                if key.seqno >= known.0 {
                    *known = (key.seqno, value);
                }
                iter.next();
            }
            iter.status().unwrap();
        }
        let mut compared = 0;
        for (key, value) in case.expected("default").unwrap() {
            if let Some((_, Some(found))) = newest.get(&key) {
                assert!(*found == value, "{}", case.name());
                compared += 1;
            }
        }
        assert!(compared > 50, "{}: only {compared} values", case.name());
        let mut walked = HashSet::new();
        for (&number, blobs) in &files {
            let mut records = 0;
            let mut cursor = blobs.records();
            while let Some(record) = cursor.next().unwrap() {
                record.value().unwrap().unwrap();
                walked.insert((number, record.pointer().offset));
                records += 1;
            }
            assert_eq!(Some(records), blobs.record_count());
            assert_eq!(cursor.zeros(), 0);
        }
        assert!(pointed.is_subset(&walked), "{}", case.name());
    }
    assert_eq!(cases, 3);
}
