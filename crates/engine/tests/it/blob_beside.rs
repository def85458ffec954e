//! Large values beside other changes of the files that they are in: families that go, tables that are dropped, files
//! that are missing, flushes under way; and edits of blob files that contradict what is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::key::{ValueKind, append_internal_key};
use orogen_base::metrics::Ticker;
use orogen_base::{ErrorKind, SeqNo};
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::version::edit::VersionEdit;
use orogen_engine::version::{BlobFileAddition, BlobFileGarbage, FileMeta};
use orogen_engine::{CompactRangeOptions, ConvertTo, ConvertValuesOptions, Db, UserKeyRange};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_wal::Writer;

use crate::blob_collection::{any_garbage, collect, garbage, half_garbage, quiet};
use crate::blob_faults::{get, put};
use crate::blob_hazards::held_before_a_table_is_synced;
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, w,
};
use crate::holes::punching;
use crate::steer::{Gate, ends, on_thread, until};
use crate::support::{DIR, scan};

#[test]
fn a_family_that_was_dropped_is_not_collected_and_its_files_go() {
    let fs = MemFileSystem::new();
    let options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.create_column_family("f", options.cf).unwrap();
    for len in [500, 600] {
        for n in (0..20).step_by(len / 500) {
            db.put_opt(&w(), &family, &key(n), &vec![b'v'; len])
                .unwrap();
        }
        compact_all(&db, &family);
        // What a newer value hides is garbage by now.
        db.put_opt(&w(), &family, &key(0), &[b'n'; 700]).unwrap();
        compact_all(&db, &family);
    }
    assert!(garbage(&db.live_blob_files()) > 0);
    db.drop_column_family(&family).unwrap();
    let collected = db.collect_blob_garbage(&any_garbage(), &family);
    assert_eq!(collected.unwrap_err().kind(), ErrorKind::Aborted);
    let begun = db.collect_blob_garbage_async(&any_garbage(), &family);
    let collected = begun.and_then(|job| job.wait());
    assert_eq!(collected.unwrap_err().kind(), ErrorKind::Aborted);
    // It would change the settings first.
    let how = ConvertValuesOptions::default();
    let converted = db.convert_values(&family, ConvertTo::Inline, &how);
    assert_eq!(converted.unwrap_err().kind(), ErrorKind::InvalidArgument);
    drop(family);
    db.put(b"alive", b"yes").unwrap();
    db.flush().unwrap();
    assert_eq!(db.live_blob_files(), []);
    assert_no_strays(&fs, &db);
}

#[test]
fn values_come_back_although_the_file_of_others_is_missing() {
    let fs = MemFileSystem::new();
    let options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..2 {
        put(&db, n, 500);
        db.flush().unwrap();
    }
    let lost = db.live_blob_files()[0].number;
    db.close().unwrap();
    drop(db);
    fs.remove_file(&Path::new(DIR).join(format!("{lost:06}.blob")))
        .unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    db.set_options(&family, &[("blob_run_mode", "kFallback")])
        .unwrap();
    compact_all(&db, &family);
    let live: Vec<u64> = db.live_blob_files().iter().map(|b| b.number).collect();
    assert_eq!(live, [lost]);
    let e = db.get(&key(0)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.to_string().contains(&format!("{lost:06}.blob")), "{e}");
    assert_eq!(get(&db, 1), Some(vec![b'b'; 500]));
    // The health is not that of the value.
    put(&db, 0, 600);
    compact_all(&db, &family);
    assert_eq!(db.live_blob_files(), []);
    assert_eq!(get(&db, 0), Some(vec![b'a'; 600]));
}

#[test]
fn garbage_is_collected_while_a_flush_of_the_same_family_is_under_way() {
    let fs = MemFileSystem::new();
    // The blob file of the flush is whole by then, and no version lists it.
    let (options, gate, armed) = held_before_a_table_is_synced(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    assert!(garbage(&db.live_blob_files()) > 0);
    // Newer values of what moves, and of what does not.
    for n in 0..30 {
        let value = vec![b'n'; 500 + n];
        db.put(&key(n), &value).unwrap();
        map.insert(key(n), value);
    }
    armed.store(true, Ordering::SeqCst);
    let flushing = {
        let db = db.clone();
        on_thread(move || db.flush())
    };
    gate.wait_for(1);
    collect(&db, &family);
    assert_eq!(garbage(&db.live_blob_files()), 0);
    assert_exact(&db, &family);
    gate.open();
    ends(&flushing).unwrap();
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    compact_all(&db, &family);
    collect(&db, &family);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

/// Passes a gate at its first value, looks at all of them, and changes nothing.
struct Looks {
    gate: Arc<Gate>,
    armed: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
}

impl CompactionFilter for Looks {
    fn filter(&mut self, _: usize, key: &[u8], value: &[u8]) -> FilterDecision {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.gate.pass();
        }
        let expected = key.last().copied();
        assert!(value.len() == LEN && value.first().copied() == expected);
        self.seen.fetch_add(1, Ordering::SeqCst);
        FilterDecision::Keep
    }
}

struct MakesLooks(Arc<Gate>, Arc<AtomicBool>, Arc<AtomicU64>);

impl CompactionFilterFactory for MakesLooks {
    fn name(&self) -> &str {
        "looks"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Looks {
            gate: self.0.clone(),
            armed: self.1.clone(),
            seen: self.2.clone(),
        }))
    }
}

const LEN: usize = 20_000;

#[test]
fn a_filter_follows_pointers_while_other_tables_of_the_file_are_dropped_and_holes_come() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    options.cf.target_file_size_base = 1;
    options.cf.table.block_size = 16;
    let (gate, armed, seen) = (
        Gate::new(),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let makes = MakesLooks(gate.clone(), armed.clone(), seen.clone());
    options.cf.compaction_filter_factory = Some(Arc::new(makes));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = BTreeMap::new();
    for n in 0..20 {
        let key = key(n);
        let value = vec![*key.last().expect("has a digit"); LEN];
        db.put(&key, &value).unwrap();
        map.insert(key, value);
    }
    compact_all(&db, &family);
    assert_eq!(db.live_blob_files().len(), 1);
    assert!(db.live_files().len() > 10);
    seen.store(0, Ordering::SeqCst);
    armed.store(true, Ordering::SeqCst);
    let compacting = {
        let (db, family) = (db.clone(), family.clone());
        on_thread(move || {
            let (begin, end) = (key(0), key(5));
            let how = CompactRangeOptions {
                bottommost_level_compaction: orogen_engine::BottommostLevelCompaction::Force,
                ..CompactRangeOptions::default()
            };
            db.compact_range(&how, &family, Some(&begin), Some(&end))
        })
    };
    gate.wait_for(1);
    let (start, end) = (key(8), key(19));
    let dropped = db
        .delete_files_in_ranges(&family, &[UserKeyRange::new(&start, &end)], false)
        .unwrap();
    assert!(dropped.tables.len() > 5);
    let held: BTreeMap<_, _> = scan(&db, &family).into_iter().collect();
    assert!(held.iter().all(|(k, v)| map.get(k) == Some(v)));
    assert!((0..6).all(|n| held.contains_key(&key(n))) && held.len() < 15);
    // What nobody points to is announced while the compaction still reads the file.
    until(|| {
        db.live_blob_files()
            .iter()
            .any(|b| b.given_up_bytes.is_some())
    });
    gate.open();
    ends(&compacting).unwrap();
    assert!(seen.load(Ordering::SeqCst) >= 6);
    until(|| db.statistics().get(Ticker::BlobHoles) > 0);
    db.wait_for_background_work().unwrap();
    assert!(scan(&db, &family).into_iter().collect::<BTreeMap<_, _>>() == held);
    assert_exact(&db, &family);
    compact_all(&db, &family);
    assert!(scan(&db, &family).into_iter().collect::<BTreeMap<_, _>>() == held);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

fn files(fs: &MemFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).expect("is a directory");
    let paths = names.into_iter().map(|n| Path::new(DIR).join(n));
    paths
        .map(|path| {
            let bytes = read_file(fs, &path).expect("is a file");
            (path, bytes)
        })
        .collect()
}

fn internal(user_key: &[u8], seqno: SeqNo) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(&mut out, user_key, seqno, ValueKind::Value);
    out
}

#[test]
fn edits_that_contradict_what_is_there_are_refused_and_nothing_is_changed() {
    let fs = MemFileSystem::new();
    let options = {
        let mut options = separated(&fs);
        options.cf.disable_auto_compactions = true;
        options
    };
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let blob = db.live_blob_files()[0].clone();
    let table = db.live_files()[0].clone();
    db.close().unwrap();
    drop((family, db));
    let (level, other) = (table.level, table.level - 1);
    let garbage = |number, garbage_blob_count, garbage_blob_bytes| {
        let mut edit = VersionEdit::of_column_family(0);
        edit.blob_file_garbages.push(BlobFileGarbage {
            number,
            garbage_blob_count,
            garbage_blob_bytes,
            given_up_bytes: None,
        });
        edit
    };
    let added_blob = {
        let mut edit = VersionEdit::of_column_family(0);
        let mut again = BlobFileAddition::default();
        again.number = blob.number;
        again.total_blob_count = 1;
        again.total_blob_bytes = 100;
        edit.blob_file_additions.push(again);
        edit
    };
    let deleted = |level, number| {
        let mut edit = VersionEdit::of_column_family(0);
        edit.delete_file(level, number);
        edit
    };
    let added = |level, number, from: &[u8], to: &[u8]| {
        let mut edit = VersionEdit::of_column_family(0);
        let meta = FileMeta {
            number,
            size: 1,
            smallest: internal(from, 1),
            largest: internal(to, 1),
            smallest_seqno: 1,
            largest_seqno: 1,
            epoch_number: 1,
            ..FileMeta::default()
        };
        edit.add_file(level, Arc::new(meta));
        edit
    };
    let twice = {
        let mut edit = deleted(level, table.number);
        edit.delete_file(level, table.number);
        edit
    };
    let more = "more garbage in a blob file than it holds";
    let all = blob.total_blob_bytes;
    let cases = [
        ("blob file is added twice", added_blob),
        (
            "garbage in a blob file that is not there",
            garbage(999, 1, 1),
        ),
        (more, garbage(blob.number, blob.total_blob_count + 1, 0)),
        (more, garbage(blob.number, 0, all + 1)),
        (more, garbage(blob.number, u64::MAX, 0)),
        (more, garbage(blob.number, 0, u64::MAX)),
        ("deleted file is not on its level", deleted(level, 998)),
        (
            "deleted file is not on its level",
            deleted(other, table.number),
        ),
        ("deleted file is not on its level", twice),
        ("file is added twice", added(2, table.number, b"a", b"b")),
        (
            "files of a level overlap",
            added(level, 997, b"key000", b"key059"),
        ),
        ("file ends before it starts", added(2, 997, b"b", b"a")),
    ];
    for (what, edit) in cases {
        let image = fs.fork();
        let current = read_file(&image, &Path::new(DIR).join("CURRENT")).unwrap();
        let name = String::from_utf8(current).unwrap();
        let path = Path::new(DIR).join(name.trim_end());
        let whole = read_file(&image, &path).unwrap();
        let number: u64 = name.trim_end().rsplit('-').next().unwrap().parse().unwrap();
        let file = image.open_append(&path).unwrap();
        let mut manifest = Writer::resume(file, number, false, whole.len() as u64);
        manifest.add_record(&edit.encode()).unwrap();
        manifest.sync().unwrap();
        drop(manifest);
        let before = files(&image);
        let mut options = options.clone();
        options.db.fs = Arc::new(image.clone());
        options.db.info_log = false;
        let e = Db::open(DIR, &options).err().expect(what);
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.to_string().contains(what), "{what}: {e}");
        assert!(files(&image) == before, "{what}");
        // Without the record it is what it was.
        write_file(&image, &path, &whole).unwrap();
        let db = Db::open(DIR, &options).expect(what);
        assert_holds(&db, &db.default_column_family(), &map, None);
        assert_exact(&db, &db.default_column_family());
    }
}
