//! Beside the crate raft-engine itself: the same histories, and each other's directories.

mod aligned;
mod calls;
mod filling;
mod histories;
mod locks;
mod repair;
mod spill;
mod theirs;

use std::path::Path;
use std::sync::Arc;

use orogen_env::{FileSystem, PosixFileSystem};
use orogen_raftlog::raw::{Engine, Options, Queue, RecoveryMode};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use histories::{History, Seen};
use theirs::Theirs;

/// Those of a test; `RAFTLOG_SEEDS` says how many.
fn seeds(test: u64) -> std::ops::Range<u64> {
    let count = std::env::var("RAFTLOG_SEEDS").map_or(12, |n| n.parse().expect("a number"));
    test << 32..(test << 32) + count
}

fn ours(dir: &Path, options: &Options) -> Engine {
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::new());
    Engine::open(&fs, dir, options.clone()).expect("what was written opens")
}

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("it is not there");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it is listed");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("it is copied");
    }
}

const MODES: [RecoveryMode; 2] = [
    RecoveryMode::TolerateTailCorruption,
    RecoveryMode::TolerateAnyCorruption,
];

/// Both, opened on copies of a directory, see the same.
fn assert_both_see(
    dir: &Path,
    temp: &TempDir,
    options: &Options,
    wanted: Option<&Seen>,
    what: &str,
) {
    for (n, mode) in MODES.into_iter().enumerate() {
        let options = Options {
            recovery_mode: mode,
            ..options.clone()
        };
        let copies =
            ["copy-ours", "copy-theirs"].map(|name| temp.path().join(format!("{name}{n}")));
        for copy in &copies {
            copied(dir, copy);
        }
        let own = Seen::of_ours(&ours(&copies[0], &options));
        let other = Seen::of_theirs(&Theirs::open(&copies[1], &options));
        if let Some(wanted) = wanted {
            own.assert_same(wanted, &format!("{what}: ours"));
            wanted.assert_same(&other, &format!("{what}: theirs"));
        }
        own.assert_same(&other, what);
        for copy in &copies {
            std::fs::remove_dir_all(copy).expect("it is there");
        }
    }
}

#[test]
fn the_same_history_gives_the_same_answers() {
    for seed in seeds(0) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let options = histories::options(&mut rng);
        let dirs = ["ours", "theirs"].map(|name| temp.path().join(name));
        let mut history = History::new();
        let mut seen = None;
        for _ in 0..3 {
            let (own, other) = (ours(&dirs[0], &options), Theirs::open(&dirs[1], &options));
            for _ in 0..40 {
                let batch = history.batch(&mut rng);
                let sync = rng.chance(1, 10);
                own.write(&mut batch.for_ours(), sync).unwrap();
                other.write(&batch, sync);
                if rng.chance(1, 10) {
                    Seen::of_ours(&own)
                        .assert_same(&Seen::of_theirs(&other), &format!("seed {seed}"));
                }
            }
            Seen::of_ours(&own).assert_same(&Seen::of_theirs(&other), &format!("seed {seed}"));
            seen = Some(Seen::of_ours(&own));
        }
        for dir in &dirs {
            assert_both_see(dir, &temp, &options, seen.as_ref(), &format!("seed {seed}"));
        }
    }
}

#[test]
fn each_goes_on_with_the_directory_of_the_other() {
    for seed in seeds(1) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("shared");
        let mut history = History::new();
        for turn in 0..6 {
            // Versions, thresholds and sizes change from turn to turn.
            let options = histories::options(&mut rng);
            let seen = if turn % 2 == 0 {
                let engine = ours(&dir, &options);
                for _ in 0..rng.range(1..30) {
                    let batch = history.batch(&mut rng);
                    engine
                        .write(&mut batch.for_ours(), rng.chance(1, 10))
                        .unwrap();
                }
                let seen = Seen::of_ours(&engine);
                // As a process that is killed leaves it.
                assert_both_see(&dir, &temp, &options, Some(&seen), &format!("seed {seed}"));
                seen
            } else {
                let engine = Theirs::open(&dir, &options);
                for _ in 0..rng.range(1..30) {
                    engine.write(&history.batch(&mut rng), rng.chance(1, 10));
                }
                let seen = Seen::of_theirs(&engine);
                assert_both_see(&dir, &temp, &options, Some(&seen), &format!("seed {seed}"));
                seen
            };
            assert_both_see(
                &dir,
                &temp,
                &options,
                Some(&seen),
                &format!("seed {seed}, turn {turn}"),
            );
        }
    }
}

/// Ours and the original, opened on copies of a directory, hold what was there, and perhaps what was dropped before. The original
/// loses that something was dropped when it takes away the file that says so; and where it rewrote 11 to 20 and 14 was written again and
/// dropped with all before 16, it shows 16 to 20.
fn assert_both_hold(dir: &Path, temp: &TempDir, options: &Options, live: &Seen, what: &str) {
    let copies = ["copy-ours", "copy-theirs"].map(|name| temp.path().join(name));
    for copy in &copies {
        copied(dir, copy);
    }
    Seen::of_ours(&ours(&copies[0], options)).assert_holds(live, &format!("{what}: ours"));
    Seen::of_theirs(&Theirs::open(&copies[1], options))
        .assert_holds(live, &format!("{what}: theirs"));
    for copy in &copies {
        std::fs::remove_dir_all(copy).expect("it is there");
    }
}

#[test]
fn what_it_collected_and_wrote_over_is_read() {
    let (mut rewritten, mut collected, mut spare) = (0, 0, 0);
    for seed in seeds(2) {
        let what = format!("seed {seed}");
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("theirs");
        let options = histories::options(&mut rng);
        let mut history = History::new();
        for _ in 0..3 {
            let engine = Theirs::open_to_purge(&dir, &options);
            history.begin_anew(&engine);
            for n in 0..120 {
                engine.write(&history.batch(&mut rng), false);
                if n % 20 == 19 {
                    for group in engine.purge() {
                        history.compact(group, &engine);
                    }
                }
            }
            rewritten += engine.rewritten_files();
            let live = Seen::of_theirs(&engine);
            assert_both_hold(&dir, &temp, &options, &live, &what);
            drop(engine);
            let names = names(&dir);
            spare += names.iter().filter(|n| n.ends_with(".reserved")).count();
            collected += usize::from(!names.contains(&"0000000000000001.raftlog".to_owned()));
            assert_both_hold(&dir, &temp, &options, &live, &what);
        }
    }
    println!(
        "{rewritten} rewritten files, {collected} directories without the first file, {spare} spare files"
    );
    assert!(rewritten > 20 && collected > 20 && spare > 5);
}

#[test]
fn we_collect_what_it_has_collected_before() {
    let (mut theirs, mut own) = (0, 0);
    for seed in seeds(5) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("shared");
        let mut options = histories::options(&mut rng);
        options.purge_threshold = options.target_file_size * 4;
        options.purge_rewrite_threshold = Some(options.target_file_size);
        options.purge_rewrite_garbage_ratio = 0.3;
        let mut history = History::new();
        for turn in 0..6 {
            let what = format!("seed {seed}, turn {turn}");
            if turn % 2 == 0 {
                let engine = Theirs::open_to_purge(&dir, &options);
                history.begin_anew(&engine);
                for n in 0..60 {
                    engine.write(&history.batch(&mut rng), false);
                    if n % 20 == 19 {
                        engine.purge();
                    }
                }
                theirs += engine.rewritten_files();
                let live = Seen::of_theirs(&engine);
                drop(engine);
                Seen::of_ours(&ours(&dir, &options)).assert_holds(&live, &what);
            } else {
                let engine = ours(&dir, &options);
                history.begin_anew_with(&engine);
                for n in 0..60 {
                    let batch = history.batch(&mut rng);
                    engine.write(&mut batch.for_ours(), false).unwrap();
                    if n % 20 == 19 {
                        let before = Seen::of_ours(&engine);
                        engine.purge_expired_files().unwrap();
                        Seen::of_ours(&engine).assert_same(&before, &what);
                    }
                }
                own += engine
                    .file_span(Queue::Rewrite)
                    .map_or(0, |(_, newest)| newest);
                let seen = Seen::of_ours(&engine);
                drop(engine);
                Seen::of_ours(&ours(&dir, &options)).assert_same(&seen, &what);
            }
        }
    }
    println!("rewritten files: {theirs} theirs, {own} ours");
    assert!(theirs > 10 && own > 10);
}

#[test]
fn it_reads_what_we_collected() {
    let (mut rewritten, mut collected) = (0, 0);
    for seed in seeds(4) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("ours");
        let mut options = histories::options(&mut rng);
        options.purge_threshold = options.target_file_size * 4;
        options.purge_rewrite_threshold = Some(options.target_file_size);
        options.purge_rewrite_garbage_ratio = 0.3;
        let mut history = History::new();
        for turn in 0..3 {
            let what = format!("seed {seed}, turn {turn}");
            let engine = ours(&dir, &options);
            for n in 0..120 {
                let batch = history.batch(&mut rng);
                engine.write(&mut batch.for_ours(), false).unwrap();
                if n % 20 == 19 {
                    for group in engine.purge_expired_files().unwrap() {
                        let last = engine.last_index(group).expect("it has too many entries");
                        let batch = history.compacted(group, last);
                        engine.write(&mut batch.for_ours(), false).unwrap();
                    }
                }
            }
            rewritten += engine
                .file_span(Queue::Rewrite)
                .map_or(0, |(_, newest)| newest);
            let seen = Seen::of_ours(&engine);
            assert_both_hold(&dir, &temp, &options, &seen, &what);
            drop(engine);
            collected += usize::from(!names(&dir).contains(&"0000000000000001.raftlog".to_owned()));
            assert_both_hold(&dir, &temp, &options, &seen, &what);
            Seen::of_ours(&ours(&dir, &options)).assert_same(&seen, &what);
        }
    }
    println!("{rewritten} rewritten files, {collected} directories without the first file");
    assert!(rewritten > 20 && collected > 20);
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("it is there");
    let name = |e: std::io::Result<std::fs::DirEntry>| {
        let name = e.expect("it is listed").file_name();
        name.to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

#[test]
fn damage_ends_a_file_where_it_ends_it() {
    let mut cut = 0;
    for seed in seeds(3) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("dir");
        let options = histories::options(&mut rng);
        let mut history = History::new();
        {
            let engine = Theirs::open(&dir, &options);
            for _ in 0..60 {
                engine.write(&history.batch(&mut rng), false);
            }
        }
        let newest = names(&dir)
            .into_iter()
            .filter(|n| n.ends_with(".raftlog"))
            .max();
        let path = dir.join(newest.expect("there is one"));
        let mut bytes = std::fs::read(&path).expect("it is there");
        let (begin, end) = (69, bytes.len());
        if end <= begin {
            continue;
        }
        if rng.chance(1, 2) {
            bytes.truncate(rng.range(begin..end));
        } else {
            // In the last record: of those before it the original looks at the footer alone.
            let at = rng.range(begin.max(end - 20)..end);
            bytes[at] ^= 1 << rng.below(8);
        }
        std::fs::write(&path, bytes).expect("there is room");
        assert_both_see(&dir, &temp, &options, None, &format!("seed {seed}"));
        cut += 1;
    }
    assert!(cut > 5);
}
