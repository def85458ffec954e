//! Values brought from tables to blob files, and back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orogen_base::{Error, ErrorKind};
use orogen_engine::events::{BlobConversionInfo, Converted, EventListener};
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BlobRunMode, ColumnFamily, ConvertTo, ConvertValuesOptions, Db, FlushOptions, JobKind,
    JobState, Options, Snapshot, WriteOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;
use parking_lot::Mutex;

use crate::blob_damage::{assert_damaged, assert_lives_on, damaged_value};
use crate::blob_faults::put;
use crate::blob_modes::apart;
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, value, w,
    write_some,
};
use crate::steer::{Gate, HookFileSystem, ends, on_thread, until, until_closing};
use crate::support::{DIR, scan};

/// Nothing happens but what is asked for.
fn quiet(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.target_file_size_base = 4 << 10;
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    options
}

fn convert(db: &Db, to: ConvertTo) -> Converted {
    let family = db.default_column_family();
    db.convert_values(&family, to, &ConvertValuesOptions::default())
        .expect("the disk is well")
}

/// Nothing is left, and a second call finds nothing to do.
fn assert_converted(fs: &MemFileSystem, db: &Db, to: ConvertTo) {
    let again = convert(db, to);
    assert!(again.is_whole(), "{again:?}");
    assert_eq!(again.tables_rewritten, 0, "{to:?}");
    if to == ConvertTo::Inline {
        assert_eq!(db.live_blob_files(), []);
    }
    let family = db.default_column_family();
    assert_exact(db, &family);
    db.wait_for_background_work().expect("the disk is well");
    assert_no_strays(fs, db);
}

/// Tables in several levels, level 0 among them, with everything that they may hold.
fn of_all_kinds(db: &Db, rng: &mut Rng, map: &mut Map) -> Vec<(Snapshot, Map)> {
    let family = db.default_column_family();
    let mut snapshots = Vec::new();
    for round in 0..6 {
        write_some(db, &family, rng, map, 120);
        // One put, one single deletion: the value must not come back.
        let once = format!("once{round}").into_bytes();
        db.put(&once, &[7; 300]).expect("the disk is well");
        db.flush().expect("the disk is well");
        if round % 2 == 0 {
            db.single_delete_opt(&w(), &family, &once)
                .expect("the disk is well");
        } else {
            map.insert(once, vec![7; 300]);
        }
        if round % 3 == 1 {
            snapshots.push((db.snapshot(), map.clone()));
        }
        if round < 4 {
            compact_all(db, &family);
        }
    }
    snapshots
}

#[test]
fn values_go_to_blob_files_and_come_back() {
    for seed in 0..6 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = quiet(&fs);
        options.cf.enable_blob_files = seed % 2 == 0;
        options.cf.blob_compression_type =
            *rng.pick(&[CompressionType::None, CompressionType::Zstd]);
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut map = Map::new();
        let mut snapshots = of_all_kinds(&db, &mut rng, &mut map);
        let levels = |db: &Db| db.live_files().iter().map(|f| f.level).collect::<Vec<_>>();
        assert!(levels(&db).contains(&0) && levels(&db).iter().any(|&l| l > 0));
        let mut before = apart(&db);
        let mut to = match options.cf.enable_blob_files {
            true => ConvertTo::Inline,
            false => ConvertTo::Separated,
        };
        for _ in 0..3 {
            let converted = convert(&db, to);
            assert!(
                converted.is_whole() && converted.tables_rewritten > 0,
                "{converted:?}"
            );
            assert!(converted.table_bytes_read > 0 && converted.bytes_written > 0);
            assert_holds(&db, &family, &map, None);
            for (snapshot, then) in &snapshots {
                assert_holds(&db, &family, then, Some(snapshot));
            }
            assert_converted(&fs, &db, to);
            // Each keeps its level.
            assert!(levels(&db).contains(&0) && levels(&db).iter().any(|&l| l > 0));
            assert!((apart(&db) == 0) == (to == ConvertTo::Inline));
            assert!(before != apart(&db));
            before = apart(&db);
            to = match to {
                ConvertTo::Inline => ConvertTo::Separated,
                ConvertTo::Separated => ConvertTo::Inline,
            };
        }
        snapshots.clear();
        compact_all(&db, &family);
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
    }
}

#[test]
fn a_conversion_sets_what_the_family_wants_from_then_on() {
    let fs = MemFileSystem::new();
    let options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    // What is in memory and in the log is converted, too.
    (0..8).for_each(|n| put(&db, n, 500));
    assert!(convert(&db, ConvertTo::Inline).is_whole());
    let (cf, loaded) = (
        family.options(),
        Db::load_latest_options(DIR, &options).unwrap(),
    );
    for cf in [&*cf, loaded.family("default")] {
        assert_eq!(cf.blob_run_mode, BlobRunMode::Fallback);
        assert!(!cf.enable_blob_files);
    }
    (8..16).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    assert_eq!(apart(&db), 0);
    let larger = ConvertValuesOptions {
        min_blob_size: Some(501),
    };
    let error = db
        .convert_values(&family, ConvertTo::Inline, &larger)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let converted = db
        .convert_values(&family, ConvertTo::Separated, &larger)
        .unwrap();
    assert_eq!((converted.tables_rewritten, apart(&db)), (0, 0));
    let smaller = ConvertValuesOptions {
        min_blob_size: Some(500),
    };
    let converted = db
        .convert_values(&family, ConvertTo::Separated, &smaller)
        .unwrap();
    assert_eq!((converted.tables_rewritten, apart(&db)), (2, 16));
    let loaded = Db::load_latest_options(DIR, &options).unwrap();
    let cf = loaded.family("default");
    assert_eq!(
        (cf.blob_run_mode, cf.min_blob_size),
        (BlobRunMode::Normal, 500)
    );
    assert!(cf.enable_blob_files);
}

#[test]
fn values_of_no_bytes_go_too_and_tombstones_are_none() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.enable_blob_files = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    db.put(&key(1), b"").unwrap();
    db.put(&key(2), b"x").unwrap();
    db.flush().unwrap();
    db.delete(&key(3)).unwrap();
    db.merge_opt(&w(), &family, &key(4), &[1; 500]).unwrap();
    db.flush().unwrap();
    let all = ConvertValuesOptions {
        min_blob_size: Some(0),
    };
    for rewritten in [1, 0] {
        let converted = db
            .convert_values(&family, ConvertTo::Separated, &all)
            .unwrap();
        assert!(converted.is_whole(), "{converted:?}");
        assert_eq!((converted.tables_rewritten, apart(&db)), (rewritten, 2));
        assert_eq!(db.get(&key(1)).unwrap().as_deref(), Some(&b""[..]));
    }
    assert_converted(&fs, &db, ConvertTo::Separated);
}

#[derive(Default)]
struct Seen(Mutex<Vec<BlobConversionInfo>>, AtomicUsize);

impl EventListener for Seen {
    fn on_blob_conversion_begin(&self, _: &BlobConversionInfo) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn on_blob_conversion_completed(&self, info: &BlobConversionInfo) {
        self.0.lock().push(info.clone());
    }
}

/// A family of three tables below level 0 and one in it, each with values that are inline, whose conversion
/// stands at the gate.
fn held(fs: &MemFileSystem) -> (Db, ColumnFamily, Arc<Gate>, Arc<Seen>, Map) {
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, is_armed) = (gate.clone(), armed.clone());
    let mut options = quiet(fs);
    options.db.fs = Arc::new(HookFileSystem::new(fs, move |_, path| {
        let is_blob = path.extension().is_some_and(|e| e == "blob");
        if is_blob && is_armed.load(Ordering::Relaxed) {
            theirs.pass();
        }
    }));
    let seen = Arc::new(Seen::default());
    options.db.listeners = vec![seen.clone()];
    options.cf.enable_blob_files = false;
    options.cf.target_file_size_base = 1;
    options.cf.compression = CompressionType::None;
    let db = Db::open(DIR, &options).expect("opens");
    options.db.listeners.clear();
    let family = db.create_column_family("f", options.cf).expect("it is new");
    let mut map = Map::new();
    for n in 0..4 {
        let v = vec![b'a' + n as u8; 30_000];
        db.put_opt(&w(), &family, &key(n), &v).expect("writes");
        map.insert(key(n), v);
        if n >= 2 {
            db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
                .expect("flushes");
        }
        if n == 2 {
            compact_all(&db, &family);
        }
    }
    armed.store(true, Ordering::Relaxed);
    (db, family, gate, seen, map)
}

fn begin(db: &Db, family: &ColumnFamily) -> orogen_engine::ConversionHandle {
    db.convert_values_async(
        family,
        ConvertTo::Separated,
        &ConvertValuesOptions::default(),
    )
    .expect("it begins")
}

#[test]
fn it_is_told_how_far_a_conversion_is() {
    let fs = MemFileSystem::new();
    let (db, family, gate, seen, map) = held(&fs);
    let handle = begin(&db, &family);
    gate.wait_for(1);
    let jobs = db.jobs();
    let whole = jobs
        .iter()
        .find(|j| j.kind == JobKind::BlobConversion)
        .expect("it is listed");
    assert_eq!(
        (whole.state, whole.reason.as_str()),
        (JobState::Running, "separated")
    );
    assert!(whole.input_bytes > 4 * 30_000, "{whole:?}");
    let step = jobs
        .iter()
        .find(|j| j.reason == "BlobConversion")
        .expect("its step is listed");
    assert_eq!(
        (step.kind, step.input_files.len()),
        (JobKind::Compaction, 1)
    );
    let progress = handle.progress();
    assert_eq!((progress.tables_done, progress.tables_total), (0, 4));
    assert!(progress.bytes_total > 4 * 30_000 && !progress.finished);
    handle.job().pause();
    assert!(handle.progress().paused);
    gate.open();
    // It would be in the way if it held its tables.
    until(|| !db.jobs().iter().any(|j| j.reason == "BlobConversion"));
    let exclusive = db.jobs();
    let whole = exclusive.iter().find(|j| j.kind == JobKind::BlobConversion);
    assert_eq!(whole.expect("it is not over").state, JobState::Paused);
    assert!(seen.0.lock().is_empty());
    handle.job().resume();
    let converted = handle.wait().unwrap();
    assert!(
        converted.is_whole() && converted.tables_rewritten == 4,
        "{converted:?}"
    );
    let progress = handle.progress();
    assert_eq!((progress.tables_done, progress.tables_total), (4, 4));
    assert!(progress.finished && progress.bytes_done == progress.bytes_total);
    let told = seen.0.lock();
    assert_eq!((told.len(), seen.1.load(Ordering::Relaxed)), (1, 1));
    assert_eq!((&told[0].converted, told[0].to), (&converted, "separated"));
    assert!(told[0].error.is_none());
    assert_eq!(scan(&db, &family), map.into_iter().collect::<Vec<_>>());
    assert_exact(&db, &family);
}

#[test]
fn conversions_that_are_given_up_leave_what_they_have_done() {
    for how in ["cancel", "drop", "settings", "close"] {
        let fs = MemFileSystem::new();
        let (db, family, gate, seen, map) = held(&fs);
        let handle = begin(&db, &family);
        gate.wait_for(1);
        let mut closing = None;
        match how {
            "cancel" => handle.job().cancel(),
            "drop" => db.drop_column_family(&family).unwrap(),
            "settings" => db
                .set_options(&family, &[("blob_run_mode", "kReadOnly")])
                .unwrap(),
            _ => {
                let theirs = db.clone();
                closing = Some(on_thread(move || theirs.close()));
                until_closing(&db);
            }
        }
        gate.open();
        let kind = handle.wait().unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::Aborted | ErrorKind::Closed),
            "{how} {kind:?}"
        );
        // Who heard of the beginning hears of the end.
        let told = seen.0.lock().clone();
        assert_eq!(
            (told.len(), seen.1.load(Ordering::Relaxed)),
            (1, 1),
            "{how}"
        );
        let why = told[0].error.as_ref().map(Error::kind);
        assert_eq!(why, Some(kind), "{how}");
        if let Some(closing) = closing {
            ends(&closing).unwrap();
            drop((handle, family, db));
            let mut options = quiet(&fs);
            options.families.insert("f".to_owned(), options.cf.clone());
            let db = Db::open(DIR, &options).unwrap();
            let family = db.column_family("f").unwrap();
            assert!(begin(&db, &family).wait().unwrap().is_whole());
            assert_eq!(scan(&db, &family).len(), map.len());
            assert_exact(&db, &family);
            assert_no_strays(&fs, &db);
        } else if how != "drop" {
            // Whoever comes next finds the tables free, and does the rest.
            let converted = begin(&db, &family).wait().unwrap();
            assert!(
                converted.is_whole() && converted.tables_rewritten > 0,
                "{how}"
            );
            assert_eq!(scan(&db, &family).len(), map.len());
            assert_exact(&db, &family);
        }
    }
}

/// Counts whom it is asked about; holds compactions at its gate.
struct Asked(Arc<AtomicUsize>, Arc<Gate>);

impl CompactionFilter for Asked {
    fn filter(&mut self, _: usize, _: &[u8], _: &[u8]) -> FilterDecision {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.pass();
        FilterDecision::Keep
    }
    fn filter_blob_by_key(&mut self, _: usize, _: &[u8], _: u64) -> Option<FilterDecision> {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.pass();
        Some(FilterDecision::Keep)
    }
}

struct Asks(Arc<AtomicUsize>, Arc<Gate>);

impl CompactionFilterFactory for Asks {
    fn name(&self) -> &str {
        "asks"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Asked(self.0.clone(), self.1.clone())))
    }
}

/// A compaction that began before goes on separating: what it writes is converted all the same, and the
/// filter is asked by nobody else.
#[test]
fn what_began_under_other_settings_is_waited_for() {
    let fs = MemFileSystem::new();
    let (asked, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let mut options = quiet(&fs);
    options.cf.compaction_filter_factory = Some(Arc::new(Asks(asked.clone(), gate.clone())));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..8).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    let handle = {
        let all = orogen_engine::CompactRangeOptions {
            bottommost_level_compaction: orogen_engine::BottommostLevelCompaction::Force,
            ..orogen_engine::CompactRangeOptions::default()
        };
        db.compact_range_async(&all, &family, None, None).unwrap()
    };
    gate.wait_for(1);
    let converting = db
        .convert_values_async(&family, ConvertTo::Inline, &ConvertValuesOptions::default())
        .unwrap();
    crate::steer::settle();
    assert!(!converting.progress().finished);
    gate.open();
    handle.wait().unwrap();
    assert!(converting.wait().unwrap().is_whole());
    assert_converted(&fs, &db, ConvertTo::Inline);
    let before = asked.load(Ordering::Relaxed);
    for to in [ConvertTo::Separated, ConvertTo::Inline] {
        assert!(convert(&db, to).tables_rewritten > 0);
    }
    assert_eq!(asked.load(Ordering::Relaxed), before);
}

#[test]
fn what_cannot_be_read_stays_and_is_told_of() {
    let (fs, db) = damaged_value(|options| options.cf.target_file_size_base = 1);
    let family = db.default_column_family();
    let damaged = db.live_blob_files()[0].number;
    (20..24).for_each(|n| put(&db, n, 500));
    compact_all(&db, &family);
    for _ in 0..2 {
        let converted = convert(&db, ConvertTo::Inline);
        assert_eq!(converted.tables_left.len(), 1, "{converted:?}");
        assert_eq!(converted.blob_files_left, [damaged]);
        assert_eq!(apart(&db), 1);
        assert_damaged(&db);
        assert_no_strays(&fs, &db);
    }
    assert_eq!(db.damaged_blob_files().len(), 1);
    assert_lives_on(&db, &[0, 2, 3, 4, 5, 6, 7]);
    assert!(convert(&db, ConvertTo::Inline).is_whole());
    assert_eq!(db.live_blob_files(), []);
    // A whole file that is missing costs its values and nothing else.
    assert!(convert(&db, ConvertTo::Separated).is_whole());
    put(&db, 30, 500);
    db.flush().unwrap();
    let lost = db.live_blob_files().last().unwrap().number;
    fs.remove_file(&Path::new(DIR).join(format!("{lost:06}.blob")))
        .unwrap();
    let converted = convert(&db, ConvertTo::Inline);
    assert_eq!(converted.blob_files_left, [lost]);
    assert_eq!(db.get(&key(30)).unwrap_err().kind(), ErrorKind::Corruption);
    assert!(db.get(&key(20)).unwrap().is_some());
}

#[test]
fn a_damaged_table_is_left_and_the_others_are_done() {
    for to in [ConvertTo::Separated, ConvertTo::Inline] {
        let fs = MemFileSystem::new();
        let mut options = quiet(&fs);
        options.cf.enable_blob_files = to == ConvertTo::Inline;
        options.cf.target_file_size_base = 1;
        let db = Db::open(DIR, &options).unwrap();
        (0..12).for_each(|n| put(&db, n, 500));
        compact_all(&db, &db.default_column_family());
        db.close().unwrap();
        drop(db);
        let files: Vec<u64> = {
            let db = Db::open_read_only(DIR, &options).unwrap();
            db.live_files().iter().map(|f| f.number).collect()
        };
        assert!(files.len() > 3);
        let path = Path::new(DIR).join(format!("{:06}.sst", files[1]));
        let mut bytes = read_file(&fs, &path).unwrap();
        bytes[3] ^= 1;
        write_file(&fs, &path, &bytes).unwrap();
        let db = Db::open(DIR, &options).unwrap();
        for _ in 0..2 {
            let converted = convert(&db, to);
            assert_eq!(converted.tables_left, [files[1]], "{to:?}");
            assert_eq!(
                converted.blob_files_left.len(),
                usize::from(to == ConvertTo::Inline)
            );
        }
        assert_eq!(db.damaged_tables().len(), 1);
        put(&db, 30, 500);
        db.flush().unwrap();
    }
}

#[test]
fn conversions_that_fail_are_done_again_and_leave_nothing() {
    let kinds = [
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::Read,
        OpKind::Open,
        OpKind::SyncDir,
    ];
    for (kind, to) in kinds
        .iter()
        .flat_map(|&k| [ConvertTo::Separated, ConvertTo::Inline].map(|to| (k, to)))
    {
        for n in 1..10 {
            let below = MemFileSystem::new();
            let fs = FaultFileSystem::over_memory(below.clone());
            let mut rng = Rng::new(n);
            let mut options = quiet(&below);
            options.cf.enable_blob_files = to == ConvertTo::Inline;
            options.cf.paranoid_file_checks = n % 2 == 0;
            options.db.fs = Arc::new(fs.clone());
            let db = Db::open(DIR, &options).unwrap();
            let family = db.default_column_family();
            let mut map = Map::new();
            drop(of_all_kinds(&db, &mut rng, &mut map));
            fs.faults().add(Fault::no_space().on(&[kind]).nth(n));
            let failed = db.convert_values(&family, to, &ConvertValuesOptions::default());
            fs.faults().clear();
            if let Err(e) = &failed {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{kind:?} {n}: {e}");
            }
            let _ = db.resume();
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            assert!(convert(&db, to).is_whole());
            assert_holds(&db, &family, &map, None);
            assert_converted(&below, &db, to);
        }
    }
}

/// Writes of all kinds, from other threads too, flushes, compactions and collections while values go to and fro.
#[test]
fn it_ends_whatever_is_written_meanwhile() {
    for seed in 0..10 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = separated(&fs);
        options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
        options.cf.enable_blob_files = rng.chance(1, 2);
        options.cf.blob_file_discardable_ratio = *rng.pick(&[0.2, 1.0]);
        options.cf.min_gc_batch_size = 0;
        options.cf.blob_file_size = *rng.pick(&[1, 4 << 10, 64 << 10]);
        options.cf.target_file_size_base = *rng.pick(&[1, 4 << 10, 64 << 10]);
        options.cf.level0_file_num_compaction_trigger = *rng.pick(&[1, 2, 4]);
        options.cf.enable_blob_garbage_collection = rng.chance(1, 3);
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut map = Map::new();
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, done) = (db.clone(), stop.clone());
        let writer = on_thread(move || {
            let mut rng = Rng::new(1000 + seed);
            let mut n = 0u64;
            while !done.load(Ordering::Relaxed) {
                let k = format!("other{:02}", n % 40).into_bytes();
                theirs.put(&k, &value(&mut rng)).expect("the disk is well");
                n += 1;
            }
            n
        });
        let mut to = ConvertTo::Separated;
        for round in 0..6 {
            let handle = db
                .convert_values_async(&family, to, &ConvertValuesOptions::default())
                .unwrap();
            for _ in 0..60 {
                let k = key(rng.below(60) as usize);
                let v = value(&mut rng);
                db.put_opt(&WriteOptions::default(), &family, &k, &v)
                    .unwrap();
                map.insert(k, v);
            }
            if round % 3 == 2 {
                compact_all(&db, &family);
            }
            let converted = handle.wait().unwrap();
            assert!(converted.is_whole(), "{seed} {round} {to:?} {converted:?}");
            if to == ConvertTo::Inline {
                assert_eq!(db.live_blob_files(), [], "{seed} {round}");
            }
            to = match to {
                ConvertTo::Inline => ConvertTo::Separated,
                ConvertTo::Separated => ConvertTo::Inline,
            };
        }
        stop.store(true, Ordering::Relaxed);
        let written = ends(&writer);
        assert!(written > 0);
        let held = scan(&db, &family);
        let own: Vec<_> = held
            .into_iter()
            .filter(|(k, _)| k.starts_with(b"key"))
            .collect();
        assert_eq!(own, map.into_iter().collect::<Vec<_>>(), "{seed}");
        assert_exact(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_no_strays(&fs, &db);
    }
}
