//! RocksDB's tools on what only tools look at: checksums of files, backups.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use orogen_base::UserComparator;
use orogen_base::key::InternalKeyComparator;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::repair::TableDamage;
use orogen_engine::version::manifest;
use orogen_engine::{Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::PosixFileSystem;

use crate::open::is_supported;
use crate::store::{self, options};
use crate::{live_tables, scratch, written_by_rocksdb};

/// What `ldb` prints; it must end well.
pub(crate) fn ldb(args: &[&str]) -> String {
    let output = Command::new("ldb").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}\n{text}{errors}");
    text
}

fn scan(dir: &Path) -> Vec<String> {
    scan_of(&Db::open_read_only(dir, &Options::default()).unwrap())
}

fn scan_of(db: &Db) -> Vec<String> {
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .unwrap();
    let mut lines = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        lines.push(format!("{} : {}", text(iter.key()), text(iter.value())));
        iter.next();
    }
    iter.status().unwrap();
    lines
}

fn ldb_scan(dir: &Path) -> Vec<String> {
    let out = ldb(&["scan", &format!("--db={}", dir.display())]);
    out.lines().map(str::to_owned).collect()
}

/// A database of a few tables and a log.
fn make(dir: &Path) {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.cf.write_buffer_size = 64 << 10;
    options.cf.disable_auto_compactions = true;
    let db = Db::open(dir, &options).unwrap();
    for n in 0..5000 {
        let key = format!("key{:05}", n * 17 % 3000);
        db.put(key.as_bytes(), format!("value{n}").as_bytes())
            .unwrap();
    }
    db.wait_for_background_work().unwrap();
    db.close().unwrap();
}

#[test]
fn ldb_finds_the_checksums_of_files_in_our_manifest() {
    let dir = scratch("file-checksums").join("db");
    make(&dir);
    let fs = PosixFileSystem::new();
    let (_, recovered) = manifest::recover_current(&fs, &dir).unwrap();
    let icmp = InternalKeyComparator::new(UserComparator::BYTEWISE);
    let version = recovered.families[&0].version(&icmp, 7).unwrap();
    let dump = ldb(&[
        "file_checksum_dump",
        "--hex",
        &format!("--db={}", dir.display()),
    ]);
    let mut count = 0;
    for (_, file) in version.iter_files() {
        let bytes = std::fs::read(dir.join(format!("{:06}.sst", file.number))).unwrap();
        let crc = orogen_base::checksum::crc32c(&bytes);
        let line = format!("{}, FileChecksumCrc32c, 0x{crc:08X}", file.number);
        assert!(dump.contains(&line), "{line}\n{dump}");
        count += 1;
    }
    assert!(count > 1, "{dump}");
}

#[test]
fn ldb_restores_our_backups_and_we_restore_its() {
    let dir = scratch("backups");
    let db_dir = dir.join("db");
    make(&db_dir);
    let backups = dir.join("backups");
    let options = || BackupOptions {
        fs: Arc::new(PosixFileSystem::new()),
        ..BackupOptions::default()
    };
    let engine = BackupEngine::open(&backups, options()).unwrap();
    let db = Db::open(&db_dir, &Options::default()).unwrap();
    engine.create_backup(&db).unwrap();
    db.put(b"later", b"1").unwrap();
    engine.create_backup(&db).unwrap();
    db.close().unwrap();
    drop(engine);
    let at = |name: &str, path: &Path| format!("--{name}={}", path.display());
    // It restores the newest one.
    let theirs = dir.join("restored-by-ldb");
    ldb(&["restore", &at("backup_dir", &backups), &at("db", &theirs)]);
    assert!(ldb_scan(&theirs) == scan(&db_dir));
    ldb(&["checkconsistency", &at("db", &theirs)]);
    // It adds one of a directory of its own beside ours, sharing what it can.
    ldb(&["put", "theirs", "2", &at("db", &db_dir)]);
    ldb(&["backup", &at("backup_dir", &backups), &at("db", &db_dir)]);
    let engine = BackupEngine::open(&backups, options()).unwrap();
    assert!(engine.damaged().unwrap().is_empty());
    let ids: Vec<u32> = engine.list().unwrap().iter().map(|b| b.id).collect();
    assert_eq!(ids, [1, 2, 3]);
    for id in ids {
        engine.verify(id).unwrap();
        let ours = dir.join(format!("restored-{id}"));
        engine.restore(id, &ours).unwrap();
        let lines = scan(&ours);
        assert!(lines == ldb_scan(&ours));
        let has = |key: &str| lines.iter().any(|l| l.starts_with(key));
        assert_eq!((has("later"), has("theirs")), (id >= 2, id >= 3));
    }
}

#[test]
fn ldb_reads_what_repair_made() {
    let dir = scratch("repair");
    let options = Options::default();
    for (name, without_manifest) in [("kept", false), ("lost", true)] {
        let old = dir.join(name);
        make(&old);
        let db = Db::open(&old, &options).unwrap();
        db.put(b"in-the-log", b"1").unwrap();
        db.close().unwrap();
        let want = scan(&old);
        for entry in std::fs::read_dir(&old).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name == "CURRENT" || (without_manifest && name.starts_with("MANIFEST")) {
                std::fs::remove_file(path).unwrap();
            }
        }
        let new = dir.join(format!("{name}-repaired"));
        orogen_engine::repair::repair(&old, &new, &options, &mut |_, _| {}).unwrap();
        assert!(scan(&new) == want);
        ldb(&["checkconsistency", &format!("--db={}", new.display())]);
        assert!(ldb_scan(&new) == want);
    }
}

#[test]
fn what_rocksdb_wrote_is_repaired() {
    let dir = scratch("repair-rocksdb");
    let mut wrong = Vec::new();
    for original in written_by_rocksdb().iter().filter(|c| is_supported(c)) {
        for without_manifest in [false, true] {
            let name = original.name();
            let case = original
                .copy(&dir.join(format!("{name}-{without_manifest}")))
                .unwrap();
            if name == "log-recycled" {
                // As a process leaves it that is killed when it has just begun a table.
                std::fs::write(case.db().join("900000.sst"), b"").unwrap();
            }
            let options = options(&case);
            let quiet = &mut |_: u64, _: u64| {};
            let whole = orogen_engine::repair::examine(case.db(), &options, quiet).unwrap();
            assert!(whole.is_healthy(), "{name}: {whole:?}");
            let live = live_tables(&case);
            let mut tables = 0;
            for entry in std::fs::read_dir(case.db()).unwrap() {
                let path = entry.unwrap().path();
                let file = path.file_name().unwrap().to_str().unwrap();
                tables += usize::from(file.ends_with(".sst") || file.ends_with(".log"));
                if file == "CURRENT" || (without_manifest && file.starts_with("MANIFEST")) {
                    std::fs::remove_file(&path).unwrap();
                }
            }
            if tables == 0 {
                continue;
            }
            let new = dir.join(format!("{name}-{without_manifest}-new"));
            let report = orogen_engine::repair::repair(case.db(), &new, &options, quiet).unwrap();
            std::fs::remove_dir_all(case.db()).unwrap();
            std::fs::rename(&new, case.db()).unwrap();
            let db = Db::open(case.db(), &options).unwrap();
            for family in case.families() {
                let want = case.expected(family).unwrap();
                let got = db
                    .column_family(family)
                    .map_or_else(Vec::new, |_| store::scan(&db, family));
                // Nothing but the MANIFEST knows when a table was taken in.
                if got != want && !report.tables_of_unknown_age.is_empty() {
                    assert!(without_manifest && name.starts_with("ingested"), "{name}");
                    continue;
                }
                // What a killed process did not finish tells no age either; nothing is lost with it.
                let is_damaged = |t: &TableDamage| !without_manifest || live.contains(&t.number);
                if got != want
                    || report.tables_damaged.iter().any(is_damaged)
                    || !report.blob_files_damaged.is_empty()
                {
                    wrong.push(format!(
                        "{name} {without_manifest} {family}: {} of {} {:?} {:?}",
                        got.len(),
                        want.len(),
                        report.tables_damaged,
                        report.blob_files_damaged
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn wal_of(dir: &Path) -> String {
    let names = std::fs::read_dir(dir).expect("it is there");
    let names = names.map(|e| e.expect("it reads").path());
    let mut logs: Vec<_> = names
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
        .collect();
    logs.sort();
    let logs = logs.iter().map(|log| {
        let file = format!("--walfile={}", log.display());
        ldb(&["dump_wal", &file, "--print_value", "--header"])
    });
    logs.collect()
}

#[test]
fn ldb_reads_prepared_writes_in_our_logs() {
    let dir = scratch("prepared").join("db");
    let mut options = Options::default();
    options.db.create_if_missing = true;
    let db = Db::open(&dir, &options).unwrap();
    let synced = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let batch = |key: &str| {
        let mut batch = WriteBatch::new();
        batch.put(0, key.as_bytes(), b"value");
        batch.delete(0, b"gone");
        batch
    };
    db.put(b"gone", b"1").unwrap();
    for name in ["committed", "older", "rolled-back", "left"] {
        db.prepare(&synced, name.as_bytes(), batch(name)).unwrap();
    }
    db.commit_prepared(&synced, b"committed").unwrap();
    db.rollback_prepared(&synced, b"rolled-back").unwrap();
    // Before the flush, in one log: RocksDB's words for what is in it.
    let wal = wal_of(&dir);
    for said in [
        "BEGIN_PREPARE",
        "END_PREPARE(0x6C656674)",
        "COMMIT(0x636F6D6D6974746564)",
        "ROLLBACK(0x726F6C6C65642D6261636B)",
    ] {
        assert!(wal.contains(said), "{said} is not in\n{wal}");
    }
    db.put(b"plain", b"1").unwrap();
    db.flush().unwrap();
    db.commit_prepared(&synced, b"older").unwrap();
    db.put(b"last", b"1").unwrap();
    let expected = scan_of(&db);
    db.close().unwrap();
    // Opened without transactions RocksDB refuses such a log.
    let path = format!("--db={}", dir.display());
    let refused = Command::new("ldb").args(["scan", &path]).output().unwrap();
    assert!(!refused.status.success());
    let db = Db::open(&dir, &options).unwrap();
    assert_eq!(scan_of(&db), expected);
    let left: Vec<Vec<u8>> = db.prepared_writes().into_iter().map(|p| p.name).collect();
    assert_eq!(left, [b"left".to_vec()]);
    db.commit_prepared(&synced, b"left").unwrap();
    let expected = scan_of(&db);
    assert!(expected.contains(&"left : value".to_owned()));
    db.flush().unwrap();
    db.close().unwrap();
    assert_eq!(ldb_scan(&dir), expected);
}
