//! Backups: shared, verified, whole or not there.

use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::repair::repair;
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamilyOptions, CompactRangeOptions, Db, FlushOptions, Options,
    WriteOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, PowerCut,
};

use crate::steer::until;
use crate::support::{DIR, scan, small};

const BACKUPS: &str = "/backups";

type Content = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;

fn engine(fs: &MemFileSystem) -> BackupEngine {
    let options = BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    BackupEngine::open(BACKUPS, options).expect("opens")
}

fn content(db: &Db) -> Content {
    let families = db.column_families();
    families
        .iter()
        .map(|f| (f.name().to_owned(), scan(db, f)))
        .collect()
}

fn content_of(fs: &MemFileSystem, dir: &str) -> Content {
    let db = Db::open_read_only(dir, &small(fs)).expect("opens");
    db.verify_checksums().expect("is whole");
    content(&db)
}

fn put(db: &Db, from: u32, count: u32) {
    for n in from..from + count {
        let key = format!("key{:05}", n * 7 % 4000);
        db.put(key.as_bytes(), format!("{n:060}").as_bytes())
            .expect("writes");
    }
}

fn names(fs: &MemFileSystem, dir: &str) -> Vec<String> {
    let mut names = fs.list(Path::new(dir)).expect("is there");
    names.sort();
    names
}

#[test]
fn backups_hold_what_the_database_held_and_share_its_tables() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let rocks = db
        .create_column_family("rocks", ColumnFamilyOptions::default())
        .unwrap();
    let backups = engine(&fs);
    let mut want = Vec::new();
    let mut copied = Vec::new();
    for round in 0..4 {
        put(&db, round * 1000, if round == 3 { 10 } else { 1000 });
        db.put_opt(&WriteOptions::default(), &rocks, &[round as u8], b"r")
            .unwrap();
        if round == 1 {
            db.flush_opt(&FlushOptions::default(), &db.column_families())
                .unwrap();
        }
        if round == 2 {
            // So that the last round changes no table, whatever runs in the background.
            db.flush_opt(&FlushOptions::default(), &db.column_families())
                .unwrap();
            db.wait_for_background_work().unwrap();
        }
        let mut last = (0, 0);
        let made = backups
            .create_backup_with(&db, &mut |done, total| last = (done, total))
            .unwrap();
        assert_eq!(made.info.id, round + 1);
        assert_eq!(made.info.sequence, db.latest_sequence_number());
        assert_eq!(last.0, last.1);
        copied.push(made.bytes_copied);
        want.push(content(&db));
    }
    // The last one found all its tables there.
    assert!(copied[3] * 4 < copied[2], "{copied:?}");
    let listed = backups.list().unwrap();
    assert_eq!(
        listed.iter().map(|b| b.id).collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
    assert!(listed[3].own_bytes < listed[3].bytes);
    assert!(backups.damaged().unwrap().is_empty());
    for (id, want) in (1..).zip(&want) {
        backups.verify(id).unwrap();
        let target = format!("/restored{id}");
        backups.restore(id, &target).unwrap();
        assert!(&content_of(&fs, &target) == want, "backup {id}");
        let again = backups.restore(id, &target).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::InvalidArgument);
        // It can be written.
        let db = Db::open(&target, &small(&fs)).unwrap();
        put(&db, 5000, 10);
        db.close().unwrap();
    }
    backups.delete(2).unwrap();
    assert_eq!(backups.delete(2).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backups.verify(2).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(backups.purge_old(1).unwrap(), [1, 3]);
    backups.verify(4).unwrap();
    assert_eq!(names(&fs, "/backups/private"), ["4"]);
    let left = names(&fs, "/backups/shared_checksum").len();
    assert_eq!(left, db.live_files().len());
    assert_eq!(backups.collect_garbage().unwrap(), 0);
}

#[test]
fn a_backup_is_of_one_moment_while_others_write() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    put(&db, 0, 500);
    let backups = engine(&fs);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Each write is the number of the one before plus one.
            for n in 0..3000u32 {
                let mut batch = orogen_engine::WriteBatch::new();
                batch.put(0, b"low", &n.to_be_bytes());
                batch.put(0, b"up", &n.to_be_bytes());
                batch.put(0, format!("x{n:05}").as_bytes(), &[b'v'; 100]);
                db.write(batch).unwrap();
            }
        });
        for id in 1..=4 {
            assert_eq!(backups.create_backup(&db).unwrap().id, id);
        }
        writer.join().unwrap();
    });
    for id in 1..=4 {
        backups.restore(id, format!("/r{id}")).unwrap();
        let db = Db::open(format!("/r{id}"), &small(&fs)).unwrap();
        let low = db.get(b"low").unwrap().map(|v| v.to_vec());
        assert_eq!(low, db.get(b"up").unwrap().map(|v| v.to_vec()));
        let n = low.map_or(0, |v| u32::from_be_bytes(v.try_into().unwrap()) + 1);
        let xs = scan(&db, &db.default_column_family());
        let xs = xs.iter().filter(|(k, _)| k[0] == b'x').count();
        assert_eq!(xs, n as usize);
    }
}

#[test]
fn writes_without_log_are_in_the_backup() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    db.put_opt(&unlogged, &db.default_column_family(), b"a", b"1")
        .unwrap();
    let backups = engine(&fs);
    backups.create_backup(&db).unwrap();
    backups.restore(1, "/r").unwrap();
    assert!(content_of(&fs, "/r") == content(&db));
}

#[test]
fn who_restores_to_a_directory_that_is_being_restored_is_told_and_harms_nothing() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    put(&db, 0, 100);
    let backups = engine(&fs);
    backups.create_backup(&db).unwrap();
    let mut told = 0;
    let mut second = |_: u64, _: u64| {
        let refused = backups.restore(1, "/r").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        told += 1;
    };
    backups.restore_with(1, "/r", &mut second).unwrap();
    assert!(told > 0);
    assert!(content_of(&fs, "/r") == content(&db));
    assert!(!fs.exists(Path::new("/r.tmp")).unwrap());
}

#[test]
fn damage_in_any_file_of_a_backup_is_found_and_not_restored() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    put(&db, 0, 800);
    let backups = engine(&fs);
    backups.create_backup(&db).unwrap();
    // Those of the first: a compaction may give the second one tables of its own.
    let mut files = Vec::new();
    for dir in ["/backups/private/1", "/backups/shared_checksum"] {
        files.extend(names(&fs, dir).iter().map(|n| format!("{dir}/{n}")));
    }
    put(&db, 800, 10);
    backups.create_backup(&db).unwrap();
    assert!(files.len() >= 5, "{files:?}");
    for file in &files {
        let good = read_file(&fs, Path::new(file)).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 4;
        for bad in [&bad[..], &good[..good.len() - 1]] {
            write_file(&fs, Path::new(file), bad).unwrap();
            let error = backups.verify(1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{file}");
            assert_eq!(error.context("file"), Some(file.as_str()));
            let error = backups.restore(1, "/r").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{file}");
            assert!(!fs.exists(Path::new("/r")).unwrap());
        }
        assert_eq!(backups.damaged().unwrap()[0].0, 1, "{file}");
        write_file(&fs, Path::new(file), &good).unwrap();
    }
    backups.verify(1).unwrap();
    // A disk that fails tells nothing of the backups.
    let failing = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
    drop(backups);
    let options = BackupOptions {
        fs: failing.clone(),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open(BACKUPS, options).unwrap();
    for kind in [OpKind::Open, OpKind::Read, OpKind::Metadata] {
        failing.faults().add(Fault::io().on(&[kind]));
        assert_eq!(
            backups.list().unwrap_err().kind(),
            ErrorKind::Io,
            "{kind:?}"
        );
        assert_eq!(backups.list().unwrap().len(), 2);
    }
    // A list that cannot be read keeps every table.
    let list = Path::new("/backups/meta/1");
    let good = read_file(&fs, list).unwrap();
    write_file(&fs, list, &good[..good.len() / 2]).unwrap();
    assert_eq!(backups.list().unwrap().len(), 1);
    assert_eq!(backups.damaged().unwrap().len(), 1);
    let before = names(&fs, "/backups/shared_checksum");
    backups.delete(2).unwrap();
    assert_eq!(names(&fs, "/backups/shared_checksum"), before);
    write_file(&fs, list, &good).unwrap();
    backups.restore(1, "/r").unwrap();
}

#[test]
fn a_damaged_table_makes_no_backup() {
    let fs = MemFileSystem::new();
    // No compaction takes the table away.
    let db = Db::open(DIR, &options_of(&fs)).unwrap();
    put(&db, 0, 800);
    db.flush().unwrap();
    let file = db.live_files()[0].number;
    let path = orogen_engine::filename::table_path(Path::new(DIR), file);
    let mut bytes = read_file(&fs, &path).unwrap();
    bytes[20] ^= 1;
    write_file(&fs, &path, &bytes).unwrap();
    let backups = engine(&fs);
    let error = backups.create_backup(&db).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(backups.list().unwrap().is_empty());
    for dir in ["private", "shared_checksum", "meta"] {
        assert!(names(&fs, &format!("{BACKUPS}/{dir}")).is_empty(), "{dir}");
    }
}

#[test]
fn one_engine_at_a_time() {
    let fs = MemFileSystem::new();
    let first = engine(&fs);
    let options = BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    let error = BackupEngine::open(BACKUPS, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    drop(first);
    engine(&fs);
}

/// What a run of the calls below got done before the power went.
#[derive(Default)]
struct Done {
    begun: usize,
    made: usize,
    restored: bool,
    deleting: bool,
    deleted: bool,
}

fn options_of(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    // No background work: every run makes the same calls.
    options.cf.disable_auto_compactions = true;
    options
}

/// What the database holds after `rounds` rounds of [`run`].
fn content_after(rounds: u8) -> Content {
    let first = (0..60).map(|n| (format!("key{n:03}").into_bytes(), vec![b'v'; 30]));
    let later = (0..rounds).map(|round| (vec![b'r', round], b"1".to_vec()));
    let mut pairs: Vec<_> = first.chain(later).collect();
    pairs.sort();
    vec![("default".to_owned(), pairs)]
}

fn run(fs: &MemFileSystem, db: &Db, done: &mut Done) -> orogen_base::Result<()> {
    let options = BackupOptions {
        fs: Arc::new(fs.clone()),
        clock: Arc::new(ManualClock::new()),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open(BACKUPS, options)?;
    for round in 0..3u8 {
        done.begun += 1;
        backups.create_backup(db)?;
        done.made += 1;
        db.put(&[b'r', round], b"1")?;
        if round == 1 {
            db.flush()?;
            backups.restore(1, "/restored")?;
            done.restored = true;
        }
    }
    done.deleting = true;
    backups.delete(2)?;
    done.deleted = true;
    Ok(())
}

fn check(disk: &MemFileSystem, done: &Done, cut: &str) {
    let backups = engine(disk);
    let listed: Vec<u32> = backups
        .list()
        .expect("lists")
        .into_iter()
        .map(|b| b.id)
        .collect();
    assert!(backups.damaged().expect("lists").is_empty(), "{cut}");
    for id in 1..=3u32 {
        let there = listed.contains(&id);
        let gone = id == 2 && done.deleting;
        if id as usize <= done.made {
            assert!(there || gone, "{cut}: backup {id} is lost");
        }
        if id as usize > done.begun || (id == 2 && done.deleted) {
            assert!(!there, "{cut}: backup {id} from nowhere");
        }
        if there {
            backups.verify(id).expect("is whole");
            let target = format!("/check{id}");
            backups.restore(id, &target).expect("restores");
            let want = content_after(id as u8 - 1);
            assert!(content_of(disk, &target) == want, "{cut}: backup {id}");
        }
    }
    let restored = Path::new("/restored");
    if disk.exists(restored).expect("looks") {
        assert!(content_of(disk, "/restored") == content_after(0), "{cut}");
    } else {
        assert!(!done.restored, "{cut}: what was restored is lost");
    }
    // Nothing that no backup names stays.
    let before = backups.collect_garbage().expect("collects");
    assert_eq!(before, 0, "{cut}");
}

#[test]
fn a_crash_at_any_call_leaves_whole_backups() {
    let prepare = || {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &options_of(&fs)).unwrap();
        for n in 0..60u32 {
            db.put(format!("key{n:03}").as_bytes(), &[b'v'; 30])
                .unwrap();
            if n == 20 || n == 40 {
                db.flush().unwrap();
            }
        }
        fs.sync_all();
        (fs, db)
    };
    let (fs, db) = prepare();
    let before = fs.op_count();
    run(&fs, &db, &mut Done::default()).unwrap();
    let calls = fs.op_count() - before;
    assert!(calls > 150, "{calls}");
    drop(db);
    for at in 0..calls {
        let (fs, db) = prepare();
        let mut done = Done::default();
        fs.crash_after(at);
        let result = run(&fs, &db, &mut done);
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: at },
        ] {
            let name = format!("call {at} of {calls}, {cut:?}, {:?}", result.as_ref().err());
            check(&fs.crash(cut), &done, &name);
        }
    }
}

#[test]
fn tables_under_their_old_names_are_read_copied_and_deleted() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    put(&db, 0, 300);
    db.flush().unwrap();
    db.close().unwrap();
    let with = |extension: &str| {
        let mut names = names(&fs, DIR);
        names.retain(|name| name.ends_with(extension));
        names
    };
    for name in with(".sst") {
        let old = name.replace(".sst", ".ldb");
        let dir = Path::new(DIR);
        fs.rename(&dir.join(name), &dir.join(old)).unwrap();
    }
    assert!(!with(".ldb").is_empty());
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let want = content(&db);
    assert_eq!(want[0].1.len(), 300);
    db.checkpoint("/copy").unwrap();
    assert_eq!(content_of(&fs, "/copy"), want);
    let backups = engine(&fs);
    let id = backups.create_backup(&db).unwrap().id;
    backups.restore(id, "/restored").unwrap();
    assert_eq!(content_of(&fs, "/restored"), want);
    let family = db.default_column_family();
    put(&db, 0, 1);
    // Some may have been moved to the last level by themselves, where nothing of this lies above them.
    let options = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.compact_range(&options, &family, None, None).unwrap();
    // What pins the old version may be somebody else's a moment longer.
    until(|| with(".ldb").is_empty());
    assert_eq!(content(&db)[0].1.len(), 300);
    db.verify_checksums().unwrap();
}

/// Backups on a disk that is told when to fail.
fn failing(fs: &MemFileSystem) -> (Arc<FaultFileSystem>, BackupEngine) {
    let failing = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
    let options = BackupOptions {
        fs: failing.clone(),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open(BACKUPS, options).expect("opens");
    (failing, backups)
}

#[test]
fn what_a_failed_backup_leaves_is_in_no_other() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let (failing, backups) = failing(&fs);
    for kind in [OpKind::Sync, OpKind::Remove] {
        let fault = Fault::io().on(&[kind]).path_with(".log.tmp");
        failing.faults().add(fault);
    }
    backups.create_backup(&db).unwrap_err();
    assert!(!names(&fs, "/backups/private/1").is_empty());
    failing.faults().clear();
    db.flush().unwrap();
    db.put(b"b", b"2").unwrap();
    let made = backups.create_backup(&db).unwrap();
    backups.verify(made.id).unwrap();
    backups.restore(made.id, "/r").unwrap();
    assert!(content_of(&fs, "/r") == content(&db));
}

#[test]
fn a_backup_that_was_not_made_is_none() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let (failing, backups) = failing(&fs);
    backups.create_backup(&db).unwrap();
    let fault = Fault::io().on(&[OpKind::SyncDir]).path_with("backups/meta");
    failing.faults().add(fault);
    backups.create_backup(&db).unwrap_err();
    failing.faults().clear();
    assert_eq!(backups.list().unwrap().len(), 1);
    assert_eq!(backups.purge_old(1).unwrap(), [0; 0]);
    backups.verify(1).unwrap();
}

#[test]
fn the_names_of_new_directories_survive_a_power_loss() {
    for dir in ["backups", "/vault/of/backups", "made"] {
        let fs = MemFileSystem::new();
        let db = Db::open("/of/many/parts", &small(&fs)).unwrap();
        let sync = WriteOptions {
            sync: true,
            ..WriteOptions::default()
        };
        db.put_opt(&sync, &db.default_column_family(), b"a", b"1")
            .unwrap();
        let open = |fs: &MemFileSystem| {
            let options = BackupOptions {
                fs: Arc::new(fs.clone()),
                ..BackupOptions::default()
            };
            BackupEngine::open(dir, options).unwrap()
        };
        let backups = open(&fs);
        backups.create_backup(&db).unwrap();
        backups.restore(1, "/a/b/restored").unwrap();
        db.checkpoint("copy/of/it").unwrap();
        let fs = fs.crash(PowerCut::DropUnsynced);
        assert_eq!(open(&fs).list().unwrap().len(), 1, "{dir}");
        for made in ["/of/many/parts", "/a/b/restored", "copy/of/it"] {
            assert!(content_of(&fs, made) == content(&db), "{made}");
        }
    }
}

#[test]
fn a_directory_that_was_put_aside_is_not_made_anew() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let backups = engine(&fs);
    backups.create_backup(&db).unwrap();
    let aside = Db::open("/r.tmp", &small(&fs)).unwrap();
    aside.put(b"only", b"copy").unwrap();
    let want = content(&aside);
    let busy_then_in_the_way = [
        backups.restore(1, "/r").unwrap_err(),
        db.checkpoint("/r").unwrap_err(),
    ];
    drop(aside);
    // One that nobody holds, and without the file of the lock.
    fs.remove_file(Path::new("/r.tmp/LOCK")).unwrap();
    for told in busy_then_in_the_way.into_iter().chain([
        backups.restore(1, "/r").unwrap_err(),
        db.checkpoint("/r").unwrap_err(),
        Db::open_read_only("/r.tmp", &small(&fs))
            .unwrap()
            .checkpoint("/r")
            .unwrap_err(),
    ]) {
        assert_eq!(told.kind(), ErrorKind::InvalidArgument, "{told}");
    }
    assert!(content_of(&fs, "/r.tmp") == want);
    fs.remove_file(Path::new("/r.tmp/CURRENT")).unwrap();
    let before = names(&fs, "/r.tmp");
    let told = repair("/r.tmp", "/r", &small(&fs), &mut |_, _| {}).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::InvalidArgument, "{told}");
    assert_eq!(names(&fs, "/r.tmp"), before);
    assert!(!fs.exists(Path::new("/r")).unwrap());
}

#[test]
fn a_slash_behind_a_name_is_none_of_it() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let want = content(&db);
    let backups = engine(&fs);
    backups.create_backup(&db).unwrap();
    backups.restore(1, "/r/").unwrap();
    db.checkpoint("./copy//").unwrap();
    db.close().unwrap();
    fs.remove_file(&Path::new(DIR).join("CURRENT")).unwrap();
    let report = repair(DIR, "/mended/", &small(&fs), &mut |_, _| {}).unwrap();
    assert!(!report.is_healthy());
    for made in ["/r", "/copy", "/mended"] {
        assert!(content_of(&fs, made) == want, "{made}");
    }
    for none in ["/", "a/.."] {
        let told = backups.restore(1, none).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::InvalidArgument, "{none}: {told}");
    }
}

#[test]
fn tables_that_rocksdb_shares_by_their_numbers_are_collected() {
    let fs = MemFileSystem::new();
    drop(engine(&fs));
    let shared = Path::new("/backups/shared");
    fs.create_dir_all(shared).unwrap();
    for name in ["000007.sst", "000009.sst"] {
        write_file(&fs, &shared.join(name), b"a table").unwrap();
    }
    let crc = orogen_base::checksum::crc32c(b"a table");
    for (id, table) in [(1, 7), (2, 9)] {
        let list = format!("5\n6\n1\nshared/{table:06}.sst crc32 {crc}\n");
        write_file(
            &fs,
            Path::new(&format!("/backups/meta/{id}")),
            list.as_bytes(),
        )
        .unwrap();
    }
    let backups = engine(&fs);
    backups.verify(2).unwrap();
    backups.delete(1).unwrap();
    assert_eq!(names(&fs, "/backups/shared"), ["000009.sst"]);
    backups.verify(2).unwrap();
}
