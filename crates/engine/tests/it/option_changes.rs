//! Settings that change while the database is open.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_base::slice_transform::{FixedPrefix, SliceTransform};
use orogen_engine::events::{EventListener, OptionsChangedInfo};
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamily, CompactRangeOptions, Db, DbIterator, Options,
    ReadOptions, WriteOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use parking_lot::Mutex;

use crate::blobs::separated;
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, settle, until};
use crate::support::{DIR, scan, small};

fn options_files(fs: &MemFileSystem) -> usize {
    let names = fs.list(Path::new(DIR)).expect("it lists");
    names.iter().filter(|n| n.starts_with("OPTIONS-")).count()
}

fn level0_files(db: &Db) -> u64 {
    let files = db.property(&db.default_column_family(), "rocksdb.num-files-at-level0");
    files.and_then(|n| n.parse().ok()).expect("a number")
}

fn fill(db: &Db, keys: std::ops::Range<u32>) {
    for n in keys {
        db.put(&n.to_be_bytes(), &[7; 100]).expect("written");
    }
}

#[test]
fn refused_changes_change_nothing_and_name_the_option() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let cf = db.default_column_family();
    let before = fs.list(Path::new(DIR)).unwrap();
    let set = |changes: &[(&str, &str)]| db.set_options(&cf, changes).unwrap_err();
    for (name, value) in [("num_levels", "3"), ("no_such_option", "1"), ("ttl", "-1")] {
        let error = set(&[("write_buffer_size", "1m"), (name, value)]);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.context("option"), Some(name));
    }
    assert_eq!(set(&[]).kind(), ErrorKind::InvalidArgument);
    let error = db.set_db_options(&[("max_background_jobs", "4"), ("paranoid_checks", "false")]);
    assert_eq!(
        error.unwrap_err().context("option"),
        Some("paranoid_checks")
    );
    assert_eq!(cf.options().write_buffer_size, 16 << 10);
    assert_eq!(db.db_options().max_background_jobs, 2);
    assert_eq!(fs.list(Path::new(DIR)).unwrap(), before, "no file was made");
    let reader = Db::open_read_only(DIR, &small(&fs)).unwrap();
    let error = reader.set_options(&reader.default_column_family(), &[("ttl", "1")]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::ReadOnly);
    db.close().unwrap();
    let error = db
        .set_db_options(&[("max_background_jobs", "4")])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}

#[test]
fn changes_survive_a_power_loss_in_the_options_file() {
    let fs = MemFileSystem::new();
    let base = small(&fs);
    let db = Db::open(DIR, &base).unwrap();
    let other = db.create_column_family("other", base.cf).unwrap();
    for n in 0..5u32 {
        let bytes = (1 << 20) + n;
        db.set_options(&other, &[("write_buffer_size", &bytes.to_string())])
            .unwrap();
    }
    assert!(options_files(&fs) <= 2 + 1, "old ones go");
    db.set_options(
        &other,
        &[
            ("compression", "kZSTD"),
            ("compression_per_level", "kNoCompression:kLZ4Compression"),
            ("block_based_table_factory", "{block_size=1k;}"),
            ("block_based_table_factory.filter_policy", "nullptr"),
        ],
    )
    .unwrap();
    db.set_db_options(&[("bytes_per_sync", "2m"), ("max_background_jobs", "3")])
        .unwrap();
    let crashed = fs.crash(PowerCut::DropUnsynced);
    drop(db);
    let base = small(&crashed);
    let loaded = Db::load_latest_options(DIR, &base).unwrap();
    let cf = loaded.family("other");
    assert_eq!(cf.write_buffer_size, (1 << 20) + 4);
    assert_eq!(cf.compression.name(), "kZSTD");
    assert_eq!(cf.compression_per_level.len(), 2);
    assert_eq!(
        (cf.table.block_size, cf.table.filter_bits_per_key),
        (1024, 0.0)
    );
    assert_eq!(loaded.family("default").write_buffer_size, 16 << 10);
    assert_eq!(
        (loaded.db.bytes_per_sync, loaded.db.max_background_jobs),
        (2 << 20, 3)
    );
    let db = Db::open(DIR, &loaded).unwrap();
    let other = db.column_family("other").unwrap();
    assert_eq!(other.options().write_buffer_size, (1 << 20) + 4);
    assert_eq!(options_files(&crashed), 1);
    let missing = Db::load_latest_options("/none", &base).err().unwrap();
    assert!(matches!(
        missing.kind(),
        ErrorKind::NotFound | ErrorKind::Io
    ));
}

#[test]
fn the_next_memtable_and_the_next_table_follow_the_change() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    fill(&db, 0..2000);
    db.set_options(
        &cf,
        &[
            ("write_buffer_size", "16k"),
            ("block_based_table_factory.block_size", "64k"),
            ("compression", "kNoCompression"),
        ],
    )
    .unwrap();
    let files = || level0_files(&db);
    assert_eq!(files(), 0, "the memtable that there is keeps its size");
    db.flush().unwrap();
    assert_eq!(files(), 1);
    let bytes = db.live_files()[0].size;
    assert!(bytes > 200_000, "{bytes} bytes are not compressed");
    fill(&db, 2000..4000);
    db.flush().unwrap();
    assert!(files() > 5, "{} files", files());
    assert_eq!(scan(&db, &cf).len(), 4000);
}

#[test]
fn a_raised_trigger_lets_a_stopped_writer_go_on() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.level0_slowdown_writes_trigger = 3;
    options.cf.level0_stop_writes_trigger = 3;
    // The compaction stands at a gate: the stop ends by nothing but the change.
    options.cf.level0_file_num_compaction_trigger = 3;
    let gate = Gate::new();
    let held = gate.clone();
    options.db.listeners = vec![Arc::new(crate::steer::Told {
        compaction_begin: Some(Box::new(move |_| held.pass())),
        ..crate::steer::Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    for n in 0..3 {
        fill(&db, n..n + 1);
        db.flush().unwrap();
    }
    gate.wait_for(1);
    until(|| db.int_property(&cf, "rocksdb.is-write-stopped") == Some(1));
    let (writer, family) = (db.clone(), cf.clone());
    let waiting =
        on_thread(move || writer.put_opt(&WriteOptions::default(), &family, b"waits", b"1"));
    settle();
    assert!(waiting.try_recv().is_err(), "it waits");
    db.set_options(
        &cf,
        &[
            ("level0_slowdown_writes_trigger", "30"),
            ("level0_stop_writes_trigger", "40"),
        ],
    )
    .unwrap();
    ends(&waiting).unwrap();
    assert_eq!(db.int_property(&cf, "rocksdb.is-write-stopped"), Some(0));
    // And a lowered one stops at once.
    db.set_options(
        &cf,
        &[
            ("level0_slowdown_writes_trigger", "3"),
            ("level0_stop_writes_trigger", "3"),
        ],
    )
    .unwrap();
    assert_eq!(db.int_property(&cf, "rocksdb.is-write-stopped"), Some(1));
    gate.open();
    db.wait_for_background_work().unwrap();
}

#[test]
fn compactions_begin_when_they_are_enabled_or_due_by_a_new_trigger() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    let files = || level0_files(&db);
    let make = |n: u32| {
        for i in 0..n {
            fill(&db, i..i + 1);
            db.flush().unwrap();
        }
    };
    make(6);
    db.wait_for_background_work().unwrap();
    assert_eq!(files(), 6);
    db.set_options(&cf, &[("disable_auto_compactions", "false")])
        .unwrap();
    until(|| files() < 4);
    db.wait_for_background_work().unwrap();
    db.set_options(&cf, &[("level0_file_num_compaction_trigger", "18")])
        .unwrap();
    make(10);
    db.wait_for_background_work().unwrap();
    assert!(files() >= 10);
    db.set_options(&cf, &[("level0_file_num_compaction_trigger", "2")])
        .unwrap();
    until(|| files() < 2);
    db.set_options(&cf, &[("disable_auto_compactions", "true")])
        .unwrap();
    make(5);
    db.wait_for_background_work().unwrap();
    assert!(files() >= 5);
}

#[test]
fn threads_come_and_go_with_the_option() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    let held = gate.clone();
    options.db.listeners = vec![Arc::new(crate::steer::Told {
        flush_begin: Some(Box::new(move |info| {
            if info.column_family.starts_with("held") {
                held.pass();
            }
        })),
        ..crate::steer::Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    let no_wait = orogen_engine::FlushOptions { wait: false };
    for n in 0..5 {
        let family = db
            .create_column_family(&format!("held{n}"), options.cf.clone())
            .unwrap();
        db.put_opt(&WriteOptions::default(), &family, b"k", b"v")
            .unwrap();
        db.flush_opt(&no_wait, &[family]).unwrap();
    }
    gate.wait_for(2);
    settle();
    let jobs = |n: &str| db.set_db_options(&[("max_background_jobs", n)]).unwrap();
    jobs("1");
    jobs("5");
    // Five flushes at once: five threads, whatever became of the first two.
    gate.wait_for(5);
    jobs("1");
    gate.open();
    db.wait_for_background_work().unwrap();
    fill(&db, 0..1000);
    db.flush().unwrap();
    jobs("3");
    fill(&db, 0..1000);
    db.flush().unwrap();
    db.close().unwrap();
}

struct Heard(Mutex<Vec<OptionsChangedInfo>>);

impl EventListener for Heard {
    fn on_options_changed(&self, info: &OptionsChangedInfo) {
        self.0.lock().push(info.clone());
    }
}

#[test]
fn listeners_and_the_log_hear_old_and_new_values() {
    let fs = MemFileSystem::new();
    let heard = Arc::new(Heard(Mutex::default()));
    let mut options = small(&fs);
    options.db.info_log = true;
    options.db.listeners = vec![heard.clone()];
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    db.set_options(&cf, &[("ttl", "60"), ("write_buffer_size", "16384")])
        .unwrap();
    db.set_db_options(&[("delayed_write_rate", "1000000")])
        .unwrap();
    assert_eq!(
        db.int_property(&cf, "rocksdb.actual-delayed-write-rate"),
        Some(0)
    );
    let heard = heard.0.lock();
    assert_eq!(heard.len(), 2);
    assert_eq!(heard[0].column_family.as_deref(), Some("default"));
    assert_eq!(heard[0].changes.len(), 1, "the other has the value already");
    assert_eq!(heard[0].changes[0].old, "0");
    assert_eq!(heard[0].changes[0].new, "60");
    assert_eq!(heard[1].changes[0].name, "delayed_write_rate");
    let log = read_file(&fs, &Path::new(DIR).join("LOG")).unwrap();
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("[default] option ttl was 0 is 60"), "{log}");
}

#[test]
fn a_file_that_cannot_be_written_leaves_the_settings_as_they_are() {
    let fs = MemFileSystem::new();
    let mut options: Options = small(&fs);
    let faulty = Arc::new(FaultFileSystem::over_memory(fs));
    options.db.fs = faulty.clone();
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    for kind in [
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::Rename,
        OpKind::SyncDir,
    ] {
        let fault = Fault::no_space().on(&[kind]).forever();
        // A directory is synced under its own name.
        faulty.faults().add(match kind {
            OpKind::SyncDir => fault,
            _ => fault.path_with("OPTIONS"),
        });
        let result = db.set_options(&cf, &[("ttl", "77")]);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace, "{kind:?}");
        let result = db.set_db_options(&[("max_background_jobs", "7")]);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace, "{kind:?}");
        faulty.faults().clear();
        assert_eq!(cf.options().ttl, 0);
        assert_eq!(db.db_options().max_background_jobs, 2);
        db.put(b"k", b"v").unwrap();
        db.set_options(&cf, &[("ttl", "78")]).unwrap();
        db.set_options(&cf, &[("ttl", "0")]).unwrap();
    }
}

#[test]
fn a_change_that_was_refused_is_in_no_file() {
    for kind in [OpKind::Sync, OpKind::Rename, OpKind::SyncDir] {
        let fs = MemFileSystem::new();
        let mut options: Options = small(&fs);
        let faulty = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
        options.db.fs = faulty.clone();
        let db = Db::open(DIR, &options).unwrap();
        let before = fs.list(Path::new(DIR)).unwrap();
        let fault = Fault::no_space().on(&[kind]);
        faulty.faults().add(match kind {
            OpKind::SyncDir => fault,
            _ => fault.path_with("OPTIONS"),
        });
        let result = db.set_options(&db.default_column_family(), &[("ttl", "77")]);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace, "{kind:?}");
        assert_eq!(fs.list(Path::new(DIR)).unwrap(), before, "{kind:?}");
        // The process ends here.
        let loaded = Db::load_latest_options(DIR, &small(&fs)).unwrap();
        assert_eq!(loaded.family("default").ttl, 0, "{kind:?}");
    }
}

/// A later sync would succeed, and names that this one lost would be missing all the same.
#[test]
fn no_write_is_taken_after_the_sync_of_the_name_of_an_options_file_failed() {
    for makes_family in [false, true] {
        let fs = MemFileSystem::new();
        let mut options: Options = small(&fs);
        let faulty = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
        options.db.fs = faulty.clone();
        let db = Db::open(DIR, &options).unwrap();
        db.put(b"before", b"v").unwrap();
        faulty.faults().add(Fault::io().on(&[OpKind::SyncDir]));
        if makes_family {
            db.create_column_family("made", options.cf.clone()).unwrap();
        } else {
            let result = db.set_options(&db.default_column_family(), &[("ttl", "77")]);
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
        }
        assert_eq!(faulty.faults().injected(), 1);
        let refused = db.put(b"after", b"v").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        let told = db.statistics().get(Ticker::ErrorHandlerBgErrorCount);
        assert_eq!(told, 1);
        assert!(db.get(b"before").unwrap().is_some());
        drop(db);
        let db = Db::open(DIR, &options).unwrap();
        assert_eq!(db.column_family("made").is_some(), makes_family);
        assert!(db.get(b"before").unwrap().is_some());
        assert!(db.get(b"after").unwrap().is_none());
        db.put(b"after", b"v").unwrap();
    }
}

/// Keys `ppqqn`: a prefix of two and one of four bytes, both of them even numbers.
fn fill_prefixes(db: &Db, round: u32) {
    for p in (0..20).step_by(2) {
        for q in (0..6).step_by(2) {
            let key = format!("{p:02}{q:02}{round}");
            db.put(key.as_bytes(), b"v").expect("written");
        }
    }
    db.flush().expect("flushed");
}

fn within_prefix(iter: &mut DbIterator, target: &str) -> Vec<String> {
    iter.seek(target.as_bytes());
    let mut keys = Vec::new();
    while iter.valid() {
        keys.push(String::from_utf8(iter.key().to_vec()).expect("text"));
        iter.next();
    }
    iter.status().expect("no error");
    keys
}

/// Every prefix of `len` bytes shows what a scan shows of it; how many tables its filters spared.
fn check_prefixes(db: &Db, len: usize) -> u64 {
    let cf = db.default_column_family();
    let read = ReadOptions {
        prefix_same_as_start: true,
        ..ReadOptions::default()
    };
    let all: Vec<String> = scan(db, &cf)
        .into_iter()
        .map(|(k, _)| String::from_utf8(k).expect("text"))
        .collect();
    let before = db.statistics().get(Ticker::BloomFilterPrefixUseful);
    let mut iter = db.iter(&read, &cf).expect("it opens");
    for p in 0..20 {
        for q in 0..6 {
            let target = &format!("{p:02}{q:02}")[..len];
            let want = all.iter().filter(|k| k.starts_with(target));
            assert_eq!(
                within_prefix(&mut iter, target),
                Vec::from_iter(want.cloned())
            );
        }
    }
    db.statistics().get(Ticker::BloomFilterPrefixUseful) - before
}

#[test]
fn a_prefix_extractor_changes_and_filters_of_another_one_are_not_believed() {
    for whole_keys in [true, false] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.cf.disable_auto_compactions = true;
        options.cf.table.whole_key_filtering = whole_keys;
        options.cf.prefix_extractor = Some(Arc::new(FixedPrefix::new(2)));
        let db = Db::open(DIR, &options).unwrap();
        let cf = db.default_column_family();
        fill_prefixes(&db, 1);
        assert!(check_prefixes(&db, 2) > 0, "the filter spares its table");

        let read = ReadOptions {
            prefix_same_as_start: true,
            ..ReadOptions::default()
        };
        let mut of_before = db.iter(&read, &cf).unwrap();
        db.set_options(&cf, &[("prefix_extractor", "fixed:4")])
            .unwrap();
        let name = |cf: &ColumnFamily| {
            let options = cf.options();
            options
                .prefix_extractor
                .as_ref()
                .map(|p| p.name().to_owned())
        };
        assert_eq!(name(&cf).as_deref(), Some("rocksdb.FixedPrefix.4"));
        // The filter knows prefixes of two bytes: asked for four it would hide what is there.
        assert_eq!(check_prefixes(&db, 4), 0);
        assert_eq!(
            within_prefix(&mut of_before, "04"),
            ["04001", "04021", "04041"],
            "a cursor keeps what it began with"
        );
        fill_prefixes(&db, 2);
        let spared = check_prefixes(&db, 4);
        assert!(spared > 0, "the filter of the new table spares it");
        for key in ["04001", "04002", "18042"] {
            assert!(db.get(key.as_bytes()).unwrap().is_some());
        }
        assert!(db.get(b"04012").unwrap().is_none());

        // Back: the first table's filter serves again, the second one's does not.
        db.set_options(&cf, &[("prefix_extractor", "rocksdb.FixedPrefix.2")])
            .unwrap();
        assert!(check_prefixes(&db, 2) > 0);
        db.set_options(&cf, &[("prefix_extractor", "nullptr")])
            .unwrap();
        assert_eq!(name(&cf), None);
        fill_prefixes(&db, 3);
        assert_eq!(check_prefixes(&db, 0), 0);
        db.set_options(&cf, &[("prefix_extractor", "capped:4")])
            .unwrap();
        // Compaction makes one table of three kinds, with the filter of the newest.
        db.compact_range(&CompactRangeOptions::default(), &cf, None, None)
            .unwrap();
        assert!(check_prefixes(&db, 4) > 0);
        db.close().unwrap();

        // Who gives none gets the one of the file.
        options.cf.prefix_extractor = None;
        let db = Db::open(DIR, &options).unwrap();
        let cf = db.default_column_family();
        assert_eq!(name(&cf).as_deref(), Some("rocksdb.CappedPrefix.4"));
        assert!(check_prefixes(&db, 4) > 0);
    }
}

/// Cuts behind the first `-`; nobody can make it of its name.
struct Dash;

impl SliceTransform for Dash {
    fn name(&self) -> &str {
        "test.Dash"
    }
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        let end = key.iter().position(|b| *b == b'-').unwrap_or(key.len());
        &key[..end]
    }
    fn in_domain(&self, key: &[u8]) -> bool {
        key.contains(&b'-')
    }
}

#[test]
fn an_extractor_of_the_users_own_can_be_left_but_not_named() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.prefix_extractor = Some(Arc::new(Dash));
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    for key in ["a-1", "a-2", "bc-1", "bc-3"] {
        db.put(key.as_bytes(), b"v").unwrap();
    }
    db.flush().unwrap();
    db.set_options(&cf, &[("prefix_extractor", "test.Dash")])
        .expect("it is what it was");
    for wrong in ["test.Other", "fixed:", "fixed:x", ""] {
        let error = db.set_options(&cf, &[("ttl", "5"), ("prefix_extractor", wrong)]);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.context("option"), Some("prefix_extractor"));
    }
    db.set_options(&cf, &[("prefix_extractor", "fixed:1")])
        .unwrap();
    let error = db.set_options(&cf, &[("prefix_extractor", "test.Dash")]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.close().unwrap();
    // A table of one's own extractor is read whatever extractor there is.
    for extractor in [None, Some(Arc::new(Dash) as Arc<dyn SliceTransform>)] {
        options.cf.prefix_extractor = extractor;
        let db = Db::open(DIR, &options).unwrap();
        let cf = db.default_column_family();
        assert_eq!(scan(&db, &cf).len(), 4);
        let read = ReadOptions {
            prefix_same_as_start: true,
            ..ReadOptions::default()
        };
        let mut iter = db.iter(&read, &cf).unwrap();
        assert_eq!(within_prefix(&mut iter, "bc-0"), ["bc-1", "bc-3"]);
        drop(iter);
        db.close().unwrap();
    }
}

#[test]
fn a_directory_of_a_newer_table_format_is_written_to_in_ours() {
    let fs = MemFileSystem::new();
    drop(Db::open(DIR, &small(&fs)).unwrap());
    let names = fs.list(Path::new(DIR)).unwrap();
    let options = names.iter().find(|n| n.starts_with("OPTIONS-")).unwrap();
    let path = Path::new(DIR).join(options);
    let text = String::from_utf8(read_file(&fs, &path).unwrap()).unwrap();
    assert!(text.contains("format_version=5"));
    let newer = text.replace("format_version=5", "format_version=7");
    write_file(&fs, &path, newer.as_bytes()).unwrap();
    let loaded = Db::load_latest_options(DIR, &small(&fs)).unwrap();
    assert_eq!(loaded.family("default").table.format_version, 6);
    let db = Db::open(DIR, &loaded).unwrap();
    let asked = [("block_based_table_factory", "{format_version=7;}")];
    assert!(db.set_options(&db.default_column_family(), &asked).is_err());
}

/// Changes options while a job waits before it syncs its first table; what the job says.
pub(crate) fn changed_while_a_job_writes(
    options: Options,
    fill: impl Fn(&Db),
    job: impl FnOnce(&Db) -> orogen_base::Result<()> + Send + 'static,
    changes: &[(&str, &str)],
) -> (Db, orogen_base::Result<()>) {
    let fs = MemFileSystem::new();
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (at, is_armed) = (gate.clone(), armed.clone());
    let mut options = options;
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
        let is_table = path.extension().is_some_and(|e| e == "sst");
        if op == Op::Sync && is_table && is_armed.swap(false, Ordering::SeqCst) {
            at.pass();
        }
    }));
    let db = Db::open(DIR, &options).expect("it opens");
    fill(&db);
    armed.store(true, Ordering::SeqCst);
    let running = {
        let db = db.clone();
        on_thread(move || job(&db))
    };
    gate.wait_for(1);
    db.set_options(&db.default_column_family(), changes)
        .expect("they are options");
    gate.open();
    let result = ends(&running);
    (db, result)
}

#[test]
fn checks_that_are_asked_for_while_a_job_writes_begin_with_the_next() {
    let fs = MemFileSystem::new();
    let change = [("paranoid_file_checks", "true")];
    let put = |db: &Db| db.put(b"key", &[1; 500]).unwrap();
    let flush = |db: &Db| db.flush();
    let (db, flushed) = changed_while_a_job_writes(separated(&fs), put, flush, &change);
    flushed.unwrap();
    put(&db);
    let fill = |db: &Db| {
        put(db);
        db.flush().unwrap();
    };
    let compact = |db: &Db| {
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        db.compact_range(&all, &db.default_column_family(), None, None)
    };
    let (db, compacted) = changed_while_a_job_writes(separated(&fs), fill, compact, &change);
    compacted.unwrap();
    put(&db);
}
