//! Writes that are prepared under a name, and committed or rolled back later.

use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};

use orogen_base::ErrorKind;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::batch::BatchOp;
use orogen_engine::events::{EventListener, FlushInfo};
use orogen_engine::options::MemTableKind;
use orogen_engine::plugin::merge_operator;
use orogen_engine::repair;
use orogen_engine::{
    ColumnFamily, ColumnFamilyIdentity, Db, Options, ReadOptions, WriteBatch, WriteOptions,
};
use orogen_env::{FileSystem, MemFileSystem, PowerCut};

use crate::steer::until;
use crate::support::{DIR, scan, small};

fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options
}

fn synced() -> WriteOptions {
    WriteOptions {
        sync: true,
        ..WriteOptions::default()
    }
}

fn plain() -> WriteOptions {
    WriteOptions::default()
}

fn puts(pairs: &[(&str, &str)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for (key, value) in pairs {
        batch.put(0, key.as_bytes(), value.as_bytes());
    }
    batch
}

fn get(db: &Db, key: &str) -> Option<String> {
    let value = db.get(key.as_bytes()).expect("it works")?;
    Some(String::from_utf8(value.to_vec()).expect("it works"))
}

fn names(db: &Db) -> Vec<String> {
    let prepared = db.prepared_writes().into_iter();
    prepared
        .map(|p| String::from_utf8(p.name).expect("it works"))
        .collect()
}

/// Logs on the disk.
fn logs(fs: &MemFileSystem) -> usize {
    let all = fs.list(Path::new(DIR)).expect("it works");
    all.iter().filter(|n| n.ends_with(".log")).count()
}

/// Fills so many memtables.
fn fill(db: &Db, memtables: usize) {
    for n in 0..memtables {
        for i in 0..20 {
            db.put(format!("fill{n}-{i}").as_bytes(), &[b'f'; 1000])
                .expect("it works");
        }
        db.flush().expect("it works");
    }
}

/// What a power cut leaves: all that was synced, nothing else.
fn after_power_cut(fs: &MemFileSystem) -> MemFileSystem {
    fs.crash(PowerCut::DropUnsynced)
}

#[test]
fn nobody_sees_it_before_its_commit_and_all_at_once_then() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    let side = db.create_column_family("side", options(&fs).cf).unwrap();
    db.put(b"a", b"old").unwrap();
    let mut batch = puts(&[("a", "new"), ("b", "1")]);
    batch.merge(side.id(), b"m", b"x");
    batch.delete_range(side.id(), b"p", b"q");
    db.put_opt(&plain(), &side, b"pp", b"gone later").unwrap();
    let before = db.latest_sequence_number();
    db.prepare(&plain(), b"one", batch).unwrap();
    assert_eq!(db.latest_sequence_number(), before, "it takes no numbers");
    assert_eq!(get(&db, "a").as_deref(), Some("old"));
    let prepared = db.prepared_writes();
    assert_eq!((prepared.len(), prepared[0].operations), (1, 4));
    let inside = db.prepared_batch(b"one").unwrap().unwrap();
    assert!(matches!(
        inside.iter().next(),
        Some(Ok(BatchOp::Put { key: b"a", .. }))
    ));
    // Written after it was prepared, before it is committed: the commit wins.
    db.put(b"a", b"between").unwrap();
    let snapshot = db.snapshot();
    db.commit_prepared(&plain(), b"one").unwrap();
    assert_eq!(db.latest_sequence_number(), before + 5);
    assert_eq!(get(&db, "a").as_deref(), Some("new"));
    let of = |family: &ColumnFamily, key: &[u8]| {
        db.get_opt(&ReadOptions::default(), family, key)
            .unwrap()
            .map(|v| v.to_vec())
    };
    assert_eq!(of(&side, b"m"), Some(b"x".to_vec()));
    assert_eq!(of(&side, b"pp"), None);
    let at = ReadOptions {
        snapshot: Some(snapshot),
        ..ReadOptions::default()
    };
    let seen = db.get_opt(&at, &db.default_column_family(), b"a").unwrap();
    assert_eq!(seen.as_deref(), Some(&b"between"[..]));
    assert!(db.prepared_writes().is_empty());
    // The name can be used again, and what is rolled back never was.
    db.prepare(&plain(), b"one", puts(&[("a", "never")]))
        .unwrap();
    db.rollback_prepared(&plain(), b"one").unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("new"));
}

#[test]
fn names_and_ends_that_cannot_be_are_refused() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    let one = || puts(&[("a", "1")]);
    let kind = |result: orogen_base::Result<()>| result.unwrap_err().kind();
    for name in [&b""[..], &[b'n'; 513]] {
        assert_eq!(
            kind(db.prepare(&plain(), name, one())),
            ErrorKind::InvalidArgument
        );
    }
    db.prepare(&plain(), &[b'n'; 512], one()).unwrap();
    let again = db.prepare(&plain(), &[b'n'; 512], one()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(db.commit_prepared(&plain(), b"other")),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(db.rollback_prepared(&plain(), b"other")),
        ErrorKind::NotFound
    );
    let unlogged = WriteOptions {
        disable_wal: true,
        ..plain()
    };
    assert_eq!(
        kind(db.prepare(&unlogged, b"x", one())),
        ErrorKind::InvalidArgument
    );
    let mut foreign = WriteBatch::new();
    foreign.put(77, b"a", b"1");
    assert_eq!(
        kind(db.prepare(&plain(), b"x", foreign)),
        ErrorKind::InvalidArgument
    );
    // What was refused holds no name.
    db.prepare(&plain(), b"x", one()).unwrap();
    // Records of another database's log are no batch to write, nor to prepare: no recovery could read past it.
    let update = || db.get_updates_since(1).unwrap().next().unwrap().unwrap();
    assert_eq!(kind(db.write(update().batch)), ErrorKind::NotSupported);
    let again = db.prepare(&plain(), b"again", update().batch);
    assert_eq!(kind(again), ErrorKind::NotSupported);
    assert_eq!(names(&db).len(), 2);
    // Not even an empty one is passed over in silence.
    db.prepare(&plain(), b"empty", WriteBatch::new()).unwrap();
    db.commit_prepared(&plain(), b"empty").unwrap();
}

#[test]
fn it_survives_a_close_a_crash_and_a_power_cut() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    db.prepare(&synced(), b"synced", puts(&[("a", "1")]))
        .unwrap();
    let mut merges = WriteBatch::new();
    merges.merge(0, b"m", b"x");
    db.prepare(&synced(), b"merge", merges).unwrap();
    db.prepare(&plain(), b"unsynced", puts(&[("b", "2")]))
        .unwrap();
    let cut = after_power_cut(&fs);
    db.close().unwrap();
    drop(db);
    let all = ["merge", "synced", "unsynced"];
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert_eq!(names(&db), all);
    drop(db);
    // From one open to the next, with nothing written in between.
    let read_only = Db::open_read_only(DIR, &options(&fs)).unwrap();
    assert_eq!(names(&read_only), all);
    let refused = read_only.commit_prepared(&plain(), b"merge").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    drop(read_only);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    db.commit_prepared(&synced(), b"merge").unwrap();
    db.rollback_prepared(&synced(), b"unsynced").unwrap();
    let fs = after_power_cut(&fs);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert_eq!(
        (names(&db), get(&db, "m")),
        (vec!["synced".to_owned()], Some("x".to_owned()))
    );
    drop(db);
    let db = Db::open(DIR, &options(&cut)).unwrap();
    assert_eq!(names(&db), ["merge", "synced"]);
    db.commit_prepared(&plain(), b"synced").unwrap();
    db.commit_prepared(&plain(), b"merge").unwrap();
    assert_eq!(
        (get(&db, "a").as_deref(), get(&db, "m").as_deref()),
        (Some("1"), Some("x"))
    );
}

#[test]
fn a_commit_counts_once_whatever_was_flushed_between() {
    for memtables_between in [0, 1, 3] {
        for memtables_behind in [0, 1] {
            let fs = MemFileSystem::new();
            let mut options = options(&fs);
            // So that what is held back is not written anew by itself.
            options.cf.write_buffer_size = 1 << 20;
            let db = Db::open(DIR, &options).unwrap();
            let mut batch = puts(&[("k", "1")]);
            batch.merge(0, b"m", b"x");
            batch.put(0, b"large", &[b'l'; 100_000]);
            db.prepare(&synced(), b"t", batch).unwrap();
            fill(&db, memtables_between);
            assert!(logs(&fs) > memtables_between, "its log stays");
            db.commit_prepared(&plain(), b"t").unwrap();
            // Synced if the log that has it may go.
            if memtables_between > 0 {
                let cut = after_power_cut(&fs);
                let db = Db::open(
                    DIR,
                    &Options {
                        db: small(&cut).db,
                        ..options.clone()
                    },
                )
                .unwrap();
                assert_eq!((names(&db).len(), get(&db, "m").as_deref()), (0, Some("x")));
            }
            fill(&db, memtables_behind);
            drop(db);
            for _ in 0..2 {
                let db = Db::open(DIR, &options).unwrap();
                assert_eq!(get(&db, "m").as_deref(), Some("x"), "{memtables_between}");
                assert_eq!(get(&db, "k").as_deref(), Some("1"));
                assert!(names(&db).is_empty());
            }
            assert_eq!(logs(&fs), 1);
        }
    }
}

/// Commits when a flush begins: what it flushes was sealed, and the commit comes to the next log.
#[derive(Default)]
struct CommitsInFlush(OnceLock<Db>);

impl EventListener for CommitsInFlush {
    fn on_flush_begin(&self, _: &FlushInfo) {
        if let Some(db) = self.0.get().filter(|db| !names(db).is_empty()) {
            db.commit_prepared(&plain(), b"t").expect("it is prepared");
        }
    }
}

#[test]
fn the_log_that_has_it_goes_only_when_its_commit_is_on_disk() {
    let fs = MemFileSystem::new();
    let listener = Arc::new(CommitsInFlush::default());
    let mut with_listener = options(&fs);
    with_listener.db.listeners = vec![listener.clone()];
    let db = Db::open(DIR, &with_listener).unwrap();
    let _ = listener.0.set(db.clone());
    db.put(b"b", b"1").unwrap();
    db.prepare(&synced(), b"t", puts(&[("a", "1")])).unwrap();
    let log = db.prepared_writes()[0].log;
    db.flush().unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
    let path = format!("{DIR}/{log:06}.log");
    // Nothing keeps it.
    until(|| !fs.exists(Path::new(&path)).unwrap());
    let fs = after_power_cut(&fs);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert_eq!((get(&db, "a").as_deref(), names(&db).len()), (Some("1"), 0));
}

#[test]
fn what_waits_for_long_does_not_keep_all_logs() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    db.prepare(&synced(), b"old", puts(&[("a", "1")])).unwrap();
    let first = db.prepared_writes()[0].log;
    fill(&db, 8);
    db.wait_for_background_work().unwrap();
    until(|| logs(&fs) <= 3);
    assert!(db.prepared_writes()[0].log > first);
    let cut = after_power_cut(&fs);
    for fs in [&fs, &cut] {
        let db = Db::open_read_only(DIR, &options(fs)).unwrap();
        assert_eq!(names(&db), ["old"]);
    }
    db.commit_prepared(&plain(), b"old").unwrap();
    drop(db);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert_eq!((get(&db, "a").as_deref(), names(&db).len()), (Some("1"), 0));
}

#[test]
fn threads_prepare_and_end_side_by_side() {
    const THREADS: usize = 4;
    const EACH: usize = 100;
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.write_buffer_size = 64 << 10;
    let db = Db::open(DIR, &options).unwrap();
    let begin = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (db, begin) = (&db, &begin);
            scope.spawn(move || {
                begin.wait();
                for n in 0..EACH {
                    let name = format!("{t}-{n}");
                    let mut batch = puts(&[(&name, &name)]);
                    batch.put(0, format!("big{t}").as_bytes(), &[b'b'; 700]);
                    batch.merge(0, b"count", b".");
                    let how = if n % 3 == 0 { synced() } else { plain() };
                    db.prepare(&how, name.as_bytes(), batch).unwrap();
                    match n % 4 {
                        0 => db.rollback_prepared(&how, name.as_bytes()).unwrap(),
                        3 if n > EACH / 2 => {}
                        _ => db.commit_prepared(&how, name.as_bytes()).unwrap(),
                    }
                }
            });
        }
    });
    let left = (EACH / 2 + 1..EACH).filter(|n| n % 4 == 3).count() * THREADS;
    let committed = THREADS * EACH - left - THREADS * EACH.div_ceil(4);
    let check = |db: &Db| {
        assert_eq!(names(db).len(), left);
        let dots = get(db, "count").unwrap();
        assert_eq!(dots.matches('.').count(), committed);
        let found = scan(db, &db.default_column_family());
        assert_eq!(found.len(), committed + THREADS + 1);
    };
    check(&db);
    drop(db);
    let db = Db::open(DIR, &options).unwrap();
    check(&db);
    for name in names(&db) {
        db.commit_prepared(&plain(), name.as_bytes()).unwrap();
    }
    let dots = get(&db, "count").unwrap();
    assert_eq!(dots.matches('.').count(), committed + left);
}

#[test]
fn readers_of_updates_see_both_halves() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.db.wal_ttl_seconds = 1000;
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", b"1").unwrap();
    db.prepare(&plain(), b"t", puts(&[("b", "1"), ("c", "1")]))
        .unwrap();
    db.put(b"d", b"1").unwrap();
    fill(&db, 2);
    db.commit_prepared(&plain(), b"t").unwrap();
    db.prepare(&plain(), b"no", puts(&[("e", "1")])).unwrap();
    db.rollback_prepared(&plain(), b"no").unwrap();
    db.put(b"f", b"1").unwrap();
    let (mut next, mut commits) = (1, 0);
    for update in db.get_updates_since(1).unwrap() {
        let update = update.unwrap();
        assert_eq!(update.sequence, next);
        let ops: Vec<BatchOp<'_>> = update.batch.iter().map(Result::unwrap).collect();
        commits += ops
            .iter()
            .filter(|op| matches!(op, BatchOp::Commit { name: b"t" }))
            .count();
        next = update.next_sequence();
    }
    assert_eq!((next, commits), (db.latest_sequence_number() + 1, 1));
}

#[test]
fn followers_take_it_when_it_is_committed() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    db.prepare(&plain(), b"t", puts(&[("a", "1")])).unwrap();
    db.prepare(&plain(), b"later", puts(&[("b", "1")])).unwrap();
    let follower = Db::open_as_secondary(DIR, None, &options(&fs)).unwrap();
    assert_eq!(get(&follower, "a"), None);
    db.commit_prepared(&plain(), b"t").unwrap();
    follower.try_catch_up_with_primary().unwrap();
    assert_eq!(get(&follower, "a").as_deref(), Some("1"));
    fill(&db, 2);
    follower.try_catch_up_with_primary().unwrap();
    assert_eq!(get(&follower, "b"), None);
    db.commit_prepared(&plain(), b"later").unwrap();
    follower.try_catch_up_with_primary().unwrap();
    assert_eq!(get(&follower, "b").as_deref(), Some("1"));
    assert_eq!(
        scan(&follower, &follower.default_column_family()),
        scan(&db, &db.default_column_family())
    );
}

#[test]
fn copies_have_it_and_a_repair_tells_of_it() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    db.prepare(&plain(), b"t", puts(&[("a", "1")])).unwrap();
    db.put(b"b", b"1").unwrap();
    db.flush().unwrap();
    db.checkpoint("/copy").unwrap();
    let how = BackupOptions {
        fs: Arc::new(fs),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open("/backups", how).unwrap();
    let backup = backups.create_backup(&db).unwrap();
    backups.restore(backup.id, "/restored").unwrap();
    drop(db);
    let report = repair::examine(DIR, &options, &mut |_, _| ()).unwrap();
    assert!(report.is_healthy());
    assert_eq!(report.prepared_left_out, [b"t".to_vec()]);
    for dir in [DIR, "/copy", "/restored"] {
        let db = Db::open(dir, &options).unwrap();
        assert_eq!(names(&db), ["t"], "{dir}");
        db.commit_prepared(&plain(), b"t").unwrap();
        assert_eq!(get(&db, "a").as_deref(), Some("1"));
    }
}

#[test]
fn what_a_dropped_family_had_is_left_out() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    let side = db.create_column_family("side", options(&fs).cf).unwrap();
    let mut batch = puts(&[("a", "1")]);
    batch.put(side.id(), b"s", b"1");
    batch.put(0, b"z", b"1");
    db.prepare(&synced(), b"t", batch).unwrap();
    db.drop_column_family(&side).unwrap();
    drop(side);
    drop(db);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    db.commit_prepared(&plain(), b"t").unwrap();
    assert_eq!(get(&db, "a"), get(&db, "z"));
    drop(db);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert_eq!(
        (get(&db, "a"), get(&db, "z")),
        (Some("1".into()), Some("1".into()))
    );
}

#[test]
fn copies_of_a_database_that_is_only_read_have_it() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    db.prepare(&synced(), b"t", puts(&[("a", "1")])).unwrap();
    db.put(b"b", b"1").unwrap();
    db.flush().unwrap();
    drop(db);
    let db = Db::open_read_only(DIR, &options).unwrap();
    assert_eq!(names(&db), ["t"]);
    db.checkpoint("/copy").unwrap();
    drop(db);
    let db = Db::open("/copy", &options).unwrap();
    assert_eq!(names(&db), ["t"]);
}

#[test]
fn a_commit_of_another_log_than_its_section_is_there_after_two_opens() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    db.prepare(&synced(), b"t", puts(&[("a", "1")])).unwrap();
    db.put(b"b", b"1").unwrap();
    db.flush().unwrap();
    db.put(b"c", b"1").unwrap();
    let next = db.latest_sequence_number() + 1;
    drop(db);
    // As RocksDB leaves it: the commit alone, in a later log.
    let mut record = next.to_le_bytes().to_vec();
    record.extend([0, 0, 0, 0, 0x0b, 1, b't']);
    let logs = fs.list(DIR.as_ref()).unwrap();
    let newest = logs
        .iter()
        .filter_map(|n| n.strip_suffix(".log")?.parse::<u64>().ok());
    let number = newest.max().unwrap() + 1;
    let path = Path::new(DIR).join(format!("{number:06}.log"));
    let file = fs.create(&path).unwrap();
    let mut log = orogen_wal::Writer::new(file, number, false);
    log.add_record(&record).unwrap();
    log.sync().unwrap();
    drop(log);
    options.db.avoid_flush_during_recovery = true;
    for open in 0..3 {
        let db = Db::open(DIR, &options).unwrap();
        assert_eq!(get(&db, "a").as_deref(), Some("1"), "open {open}");
        assert_eq!(get(&db, "c").as_deref(), Some("1"), "open {open}");
    }
}

#[test]
fn what_no_memtable_takes_at_once_is_refused_and_nothing_fails() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.memtable_factory = MemTableKind::Trie.factory();
    let db = Db::open(DIR, &options).unwrap();
    let mut batch = WriteBatch::new();
    for n in 0..20_000_000u32 {
        batch.delete(0, &n.to_be_bytes());
    }
    let told = db.prepare(&plain(), b"t", batch.clone()).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::TooLarge);
    assert!(told.context("bytes").is_some() && told.context("bytes_max").is_some());
    // Who adds to a batch can know it before.
    let family = ColumnFamilyIdentity::of(&db.default_column_family());
    let kind = |operations, bytes| {
        let checked = family.check_batch_size(operations, bytes);
        checked.err().map(|e| e.kind())
    };
    assert_eq!(
        kind(20_000_000, batch.size_bytes()),
        Some(ErrorKind::TooLarge)
    );
    assert_eq!(kind(1, 2 << 30), Some(ErrorKind::TooLarge));
    assert_eq!(kind(1, (2 << 30) - 64), None);
    assert_eq!(kind(1_000_000, 32 << 20), None);
    let told = db.write(batch).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::TooLarge);
    db.put(b"a", b"1").unwrap();
    db.prepare(&plain(), b"t", puts(&[("b", "1")])).unwrap();
    db.commit_prepared(&plain(), b"t").unwrap();
    assert_eq!(get(&db, "b").as_deref(), Some("1"));
}

#[test]
fn what_a_trie_would_not_take_is_refused_while_keys_rise_too() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.memtable_factory = MemTableKind::Adaptive.factory();
    let db = Db::open(DIR, &options).unwrap();
    // Behind flushes of rising keys lists take the place of tries.
    for n in 0..2000u32 {
        db.put(&n.to_be_bytes(), b"1").unwrap();
        if n % 1000 == 999 {
            db.flush().unwrap();
        }
    }
    let mut batch = WriteBatch::new();
    for n in 0..20_000_000u32 {
        batch.delete(0, &n.to_be_bytes());
    }
    let told = db.prepare(&plain(), b"t", batch).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::TooLarge);
    db.put(b"a", b"1").unwrap();
    assert_eq!(get(&db, "a").as_deref(), Some("1"));
}

/// Bytes of all logs on the disk.
fn log_bytes(fs: &MemFileSystem) -> u64 {
    let all = fs.list(Path::new(DIR)).expect("it works");
    let logs = all.iter().filter(|n| n.ends_with(".log"));
    // One may go between the list and the question.
    logs.filter_map(|n| fs.metadata(&Path::new(DIR).join(n)).ok())
        .map(|m| m.size)
        .sum()
}

#[test]
fn what_is_only_rolled_back_does_not_fill_the_logs() {
    // A family of its own has its memtables' bytes, four times, as its bound.
    for (families, bound, max) in [
        (1, 0, 1 << 20),
        (1, 64 << 10, 64 << 10),
        (3, 64 << 10, 64 << 10),
    ] {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.db.max_total_wal_size = bound;
        options.cf.write_buffer_size = 64 << 10;
        options.cf.max_write_buffer_number = 4;
        let db = Db::open(DIR, &options).unwrap();
        for n in 1..families {
            db.create_column_family(&format!("cf{n}"), options.cf.clone())
                .unwrap();
        }
        db.put(b"before", b"v").unwrap();
        db.flush().unwrap();
        db.prepare(&plain(), b"stays", puts(&[("stays", "v")]))
            .unwrap();
        let value = "x".repeat(4000);
        let roll_back_one = || {
            db.prepare(&plain(), b"goes", puts(&[("goes", &value)]))
                .unwrap();
            db.rollback_prepared(&plain(), b"goes").unwrap();
        };
        for n in 0..1000 {
            if n == 500 && families > 1 {
                // In a memtable, which pins the log until it is flushed.
                db.put(b"between", b"v").unwrap();
            }
            roll_back_one();
            if n % 200 == 199 {
                // They are given up in the background, and one that is just rolled back keeps its log until the next look.
                until(|| {
                    roll_back_one();
                    log_bytes(&fs) < max + max / 2
                });
            }
        }
        assert_eq!(names(&db), ["stays"]);
        db.put_opt(&synced(), &db.default_column_family(), b"last", b"v")
            .unwrap();
        // Nothing is closed: the next opens find what a power cut and a crash leave.
        for left in [after_power_cut(&fs), fs.fork()] {
            let mut options = options.clone();
            options.db.fs = Arc::new(left);
            let db = Db::open(DIR, &options).unwrap();
            assert_eq!(names(&db), ["stays"]);
            db.commit_prepared(&plain(), b"stays").unwrap();
            for key in ["before", "stays", "last"] {
                assert_eq!(get(&db, key).as_deref(), Some("v"), "{key}");
            }
            assert_eq!(get(&db, "between").is_some(), families > 1);
            assert_eq!(get(&db, "goes"), None);
            db.close().unwrap();
        }
        db.close().unwrap();
    }
}

#[test]
fn log_data_alone_does_not_fill_the_logs() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.db.max_total_wal_size = 64 << 10;
    let db = Db::open(DIR, &options).unwrap();
    let log_data = || {
        let mut batch = WriteBatch::new();
        batch.put_log_data(&[b'd'; 4000]);
        db.write(batch).unwrap();
    };
    (0..100).for_each(|_| log_data());
    until(|| {
        log_data();
        log_bytes(&fs) < 96 << 10
    });
    db.put(b"k", b"v").unwrap();
    db.close().unwrap();
    let db = Db::open(DIR, &options).unwrap();
    assert_eq!(get(&db, "k").as_deref(), Some("v"));
}

#[test]
fn damage_in_an_old_log_does_not_undo_what_tables_have() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.write_buffer_size = 1 << 20;
    let db = Db::open(DIR, &options).unwrap();
    // Too large to be carried: the logs behind it stay.
    let large = "p".repeat(64 << 10);
    db.prepare(&plain(), b"p", puts(&[("p", &large)])).unwrap();
    db.put(b"a", b"1").unwrap();
    db.flush().unwrap();
    db.prepare(&plain(), b"q", puts(&[("k", "1")])).unwrap();
    let log = db.prepared_writes().last().unwrap().log;
    db.put(b"filler", "f".repeat(40 << 10).as_bytes()).unwrap();
    db.commit_prepared(&plain(), b"q").unwrap();
    db.put(b"k", b"2").unwrap();
    db.flush().unwrap();
    db.put_opt(&synced(), &db.default_column_family(), b"c", b"v")
        .unwrap();
    let left = fs.fork();
    let path = Path::new(DIR).join(format!("{log:06}.log"));
    let mut bytes = orogen_env::fs::read_file(&left, &path).unwrap();
    assert!(bytes.len() > 40 << 10);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    orogen_env::fs::write_file(&left, &path, &bytes).unwrap();
    options.db.fs = Arc::new(left);
    let refused = Db::open(DIR, &options).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
}

#[test]
fn opens_that_flush_nothing_leave_no_log_each() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.db.avoid_flush_during_recovery = true;
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", b"1").unwrap();
    db.flush().unwrap();
    db.prepare(&synced(), b"waits", puts(&[("k", "v")]))
        .unwrap();
    drop(db);
    for _ in 0..6 {
        let db = Db::open(DIR, &options).unwrap();
        assert_eq!(names(&db), ["waits"]);
        until(|| logs(&fs) <= 2);
    }
    let db = Db::open(DIR, &options).unwrap();
    db.commit_prepared(&synced(), b"waits").unwrap();
    assert_eq!(get(&db, "k").as_deref(), Some("v"));
}
