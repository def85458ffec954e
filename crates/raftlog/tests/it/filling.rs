//! Files of zeros that are made before there are emptied ones.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_env::{
    Clock, Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem, PowerCut,
    SystemClock,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk};

const FILE: u64 = 8 << 20;
/// Of an entry, so that a sync has enough to write.
const ENTRY: usize = 40 << 10;
/// The most that files are filled for, nearly.
const LONG: usize = 90 << 10;

fn options() -> Options {
    Options {
        enable_log_digests: false,
        target_file_size: FILE,
        purge_threshold: 4 * FILE,
        ..Options::default()
    }
}

fn write(engine: &Engine, bytes: usize) {
    let next = engine.last_index(1).map_or(1, |last| last + 1);
    let mut batch = LogBatch::default();
    let entry = Rng::new(next).bytes(bytes);
    batch.add_entries(1, next, &[entry]).unwrap();
    engine.write(&mut batch, true).unwrap();
}

/// Writes and syncs until the log has so many bytes.
fn write_until(engine: &Engine, bytes: u64) {
    write_of(engine, ENTRY, bytes);
}

/// The same with entries of `len` bytes.
fn write_of(engine: &Engine, len: usize, bytes: u64) {
    while engine.metrics().appended_bytes.append < bytes {
        write(engine, len);
    }
}

/// The sizes of the spare files.
fn spares(fs: &dyn FileSystem, dir: &Path) -> Vec<u64> {
    let names = fs.list(dir).unwrap().into_iter();
    let spares = names.filter(|name| name.ends_with(".reserved"));
    // One may be gone meanwhile.
    spares
        .filter_map(|name| Some(fs.metadata(&dir.join(name)).ok()?.size))
        .collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = SystemClock.now_micros() + 60_000_000;
    while !is_so() {
        assert!(SystemClock.now_micros() < end, "in vain: {what}");
        SystemClock.sleep(Duration::from_millis(1));
    }
}

fn is_filled(engine: &Engine, bytes: u64) {
    wait_for("it is filled", || engine.metrics().filled_bytes == bytes);
}

#[test]
fn the_next_file_is_filled_while_the_newest_is_written_and_then_written_over() {
    let temp = TempDir::new("raftlog-filling");
    let memory = disk();
    let systems: [(Arc<dyn FileSystem>, &Path, usize); 3] = [
        (Arc::new(memory), dir(), ENTRY),
        (Arc::new(disk()), dir(), LONG),
        (Arc::new(PosixFileSystem::new()), temp.path(), ENTRY),
    ];
    for (fs, dir, len) in systems {
        let write_until = |engine: &Engine, bytes| write_of(engine, len, bytes);
        let engine = Engine::open(&fs, dir, options()).unwrap();
        for part in 1..=9 {
            write_until(&engine, part * FILE / 10);
            let seen = engine.metrics();
            let most = seen.appended_bytes.append * 5 / 4;
            assert!(seen.filled_bytes <= most, "{part}: {}", seen.filled_bytes);
        }
        is_filled(&engine, FILE);
        assert_eq!(engine.metrics().files_written_over, 0);
        wait_for("it is whole", || spares(&*fs, dir) == [FILE]);
        wait_for("it is there", || {
            engine.metrics().recycled_file_count.append == 1
        });
        write_until(&engine, FILE + FILE / 10);
        let seen = engine.metrics();
        assert_eq!((seen.files_made.append, seen.files_written_over), (2, 1));
        // The next one is begun, and no more than that.
        write_until(&engine, FILE + FILE * 9 / 10);
        is_filled(&engine, 2 * FILE);
        let expected = content(&engine);
        engine.close().unwrap();
        let engine = Engine::open(&fs, dir, options()).unwrap();
        assert_eq!(content(&engine), expected);
        assert_eq!(spares(&*fs, dir), [FILE]);
        write_until(&engine, FILE);
        assert_eq!(engine.metrics().files_written_over, 1);
        let expected = content(&engine);
        drop(engine);
        assert_eq!(
            content(&Engine::open(&fs, dir, options()).unwrap()),
            expected
        );
    }
}

#[test]
fn what_was_begun_is_a_spare_file_after_a_crash() {
    let mut found = 0;
    for part in [0, 3, 6, 9] {
        for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
            let fs = disk();
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let engine = Engine::open(&arc, dir(), options()).unwrap();
            write_until(&engine, part * FILE / 10);
            if part > 0 {
                wait_for("it is begun", || engine.metrics().filled_bytes > 0);
            }
            let expected = content(&engine);
            // The thread is at it, perhaps.
            let after = fs.crash(cut);
            let arc: Arc<dyn FileSystem> = Arc::new(after.clone());
            let killed = Engine::open(&arc, dir(), options()).unwrap();
            assert_eq!(content(&killed), expected, "{part} of 10, {cut:?}");
            // Through whatever was found.
            let spares = killed.metrics().recycled_file_count.append;
            found += spares;
            write_until(&killed, 2 * FILE);
            assert!(killed.metrics().files_written_over >= spares);
            let expected = content(&killed);
            for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
                let arc: Arc<dyn FileSystem> = Arc::new(after.crash(cut));
                let again = Engine::open(&arc, dir(), options()).unwrap();
                assert_eq!(content(&again), expected, "{part} of 10, {cut:?}");
            }
        }
    }
    assert!(found >= 3, "{found}");
}

#[test]
fn who_cannot_fill_one_goes_on_without() {
    let kinds = [
        (OpKind::Append, 1),
        (OpKind::Append, 4),
        (OpKind::OpenAppend, 1),
        (OpKind::Sync, 1),
        (OpKind::FreeSpace, 1),
    ];
    for (kind, nth) in kinds {
        let faulty = Arc::new(FaultFileSystem::over_memory(disk()));
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let engine = Engine::open(&fs, dir(), options()).unwrap();
        let fault = Fault::no_space().on(&[kind]).nth(nth);
        let fault = match kind {
            OpKind::FreeSpace => fault.free(FILE),
            _ => fault.path_with(".reserved"),
        };
        faulty.faults().add(fault);
        write_until(&engine, FILE * 9 / 10);
        wait_for("it is given up", || {
            faulty.faults().injected() > 0 && spares(&*fs, dir()).is_empty()
        });
        write_until(&engine, FILE + FILE / 10);
        assert_eq!(engine.metrics().files_written_over, 0, "{kind:?}");
        // The next file is a new chance.
        write_until(&engine, 2 * FILE - FILE / 10);
        wait_for("the next is filled", || spares(&*fs, dir()) == [FILE]);
        wait_for("it is there", || {
            engine.metrics().recycled_file_count.append == 1
        });
        write_until(&engine, 2 * FILE + FILE / 10);
        assert_eq!(engine.metrics().files_written_over, 1, "{kind:?}");
        let expected = content(&engine);
        drop(engine);
        let again = Engine::open(&fs, dir(), options()).unwrap();
        assert_eq!(content(&again), expected, "{kind:?}");
    }
}

#[test]
fn none_is_filled_where_there_is_no_use_for_it() {
    let with = |change: fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        options
    };
    let cases = [
        (
            "not written over",
            with(|o| o.enable_log_recycle = false),
            ENTRY,
        ),
        (
            "small files",
            with(|o| o.target_file_size = 700 << 10),
            ENTRY,
        ),
        ("short syncs", options(), 10 << 10),
        ("long syncs", options(), 200 << 10),
        // One file may be kept.
        ("no room", with(|o| o.purge_threshold = FILE), ENTRY),
    ];
    for (what, options, bytes) in cases {
        let fs = disk();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let engine = Engine::open(&arc, dir(), options).unwrap();
        while engine.metrics().appended_bytes.append < 3 * FILE {
            write(&engine, bytes);
        }
        let expected = content(&engine);
        assert_eq!(engine.metrics().filled_bytes, 0, "{what}");
        assert_eq!(spares(&*arc, dir()), [0; 0], "{what}");
        drop(engine);
        let again = Engine::open(&arc, dir(), self::options()).unwrap();
        assert_eq!(content(&again), expected, "{what}");
    }
}

#[test]
fn no_more_are_filled_than_may_be_kept() {
    let small = 2 << 20;
    let options = Options {
        target_file_size: small,
        purge_threshold: 4 * small,
        ..options()
    };
    let fs: MemFileSystem = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
    for file in 1..=40 {
        write_until(&engine, file * small);
        let mut batch = LogBatch::default();
        let index = engine.last_index(1).unwrap();
        batch.add_command(1, Command::Compact { index });
        engine.write(&mut batch, true).unwrap();
        engine.purge_expired_files().unwrap();
        let names = fs.list(dir()).unwrap().into_iter();
        let files = names.filter(|name| name.contains(".raftlog")).count();
        // One may be emptied while one is filled.
        assert!(files <= 6 + 1, "{files} files");
    }
    let seen = engine.metrics();
    assert!(seen.filled_bytes <= 6 * small, "{}", seen.filled_bytes);
    assert!(seen.files_written_over >= 30, "{}", seen.files_written_over);
    let expected = content(&engine);
    drop(engine);
    let again = Engine::open(&arc, dir(), options).unwrap();
    assert_eq!(content(&again), expected);
}
