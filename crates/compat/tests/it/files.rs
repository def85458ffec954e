//! Every file that RocksDB wrote is read whole, one by one and without a database around it.

use std::path::PathBuf;

use orogen_base::key::user_key;
use orogen_base::{InternalIterator, UserComparator};
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
