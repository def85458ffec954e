//! Beside the crate raft-engine itself: the same histories, and each other's directories.

mod aligned;
mod calls;
mod damage;
mod filling;
mod histories;
mod locks;
mod purges;
mod repair;
mod spares;
mod spill;
mod theirs;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use orogen_env::{FileSystem, PosixFileSystem};
use orogen_raftlog::raw::{Engine, Options, Queue, RecoveryMode};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use histories::{Batch, History, Op, Seen};
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

/// Those that open what a killed process leaves.
const TOLERANT: &[RecoveryMode] = &[
    RecoveryMode::TolerateTailCorruption,
    RecoveryMode::TolerateAnyCorruption,
];

/// Those that open what was closed.
const ALL_MODES: &[RecoveryMode] = &[
    RecoveryMode::TolerateTailCorruption,
    RecoveryMode::TolerateAnyCorruption,
    RecoveryMode::AbsoluteConsistency,
];

/// Both, opened on copies of a directory, see the same.
fn assert_both_see(
    dir: &Path,
    temp: &TempDir,
    options: &Options,
    wanted: Option<&Seen>,
    what: &str,
) {
    assert_both_see_but(TOLERANT, &BTreeSet::new(), dir, temp, options, wanted, what);
}

/// The same of a directory that was closed, in every mode.
fn assert_both_see_closed(
    dir: &Path,
    temp: &TempDir,
    options: &Options,
    wanted: &Seen,
    what: &str,
) {
    let wanted = Some(wanted);
    assert_both_see_but(
        ALL_MODES,
        &BTreeSet::new(),
        dir,
        temp,
        options,
        wanted,
        what,
    );
}

/// The same in some modes, but of groups `may_return` that have no entries any more the original may show some: where the rewrite queue has 11 to 20
/// and then 14 was written again, which ends the group there, and was dropped with all before 16, it shows 16 to 20. How many such groups
/// there are.
fn assert_both_see_but(
    modes: &[RecoveryMode],
    may_return: &BTreeSet<u64>,
    dir: &Path,
    temp: &TempDir,
    options: &Options,
    wanted: Option<&Seen>,
    what: &str,
) -> usize {
    let mut returned = 0;
    for mode in modes {
        let what = &format!("{what}, {mode:?}");
        let options = Options {
            recovery_mode: *mode,
            ..options.clone()
        };
        let copies = ["copy-ours", "copy-theirs"].map(|name| temp.path().join(name));
        for copy in &copies {
            copied(dir, copy);
        }
        let own = Seen::of_ours(&ours(&copies[0], &options));
        let other = Seen::of_theirs(&Theirs::open(&copies[1], &options));
        if let Some(wanted) = wanted {
            own.assert_same(wanted, &format!("{what}: ours"));
        }
        returned += own.assert_same_but(&other, may_return, what);
        for copy in &copies {
            std::fs::remove_dir_all(copy).expect("it is there");
        }
    }
    returned
}

#[test]
fn the_same_history_gives_the_same_answers() {
    for seed in seeds(0) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let options = histories::options(&mut rng);
        let dirs = ["ours", "theirs"].map(|name| temp.path().join(name));
        let mut history = History::new();
        let mut seen = Seen::default();
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
            seen = Seen::of_ours(&own);
        }
        for dir in &dirs {
            assert_both_see_closed(dir, &temp, &options, &seen, &format!("seed {seed}"));
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
            let what = format!("seed {seed}, turn {turn}");
            assert_both_see_closed(&dir, &temp, &options, &seen, &what);
        }
    }
}

/// With as many threads as it takes by default it may forget that something was dropped, or panic; but nothing is dropped here.
#[test]
fn it_reads_with_its_own_threads_where_nothing_is_dropped() {
    let mut files = 0;
    for seed in seeds(9) {
        let what = format!("seed {seed}");
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("ours");
        let options = histories::options(&mut rng);
        let mut nexts = [1; 5];
        let engine = ours(&dir, &options);
        for _ in 0..200 {
            let group = rng.below(5);
            let next = &mut nexts[group as usize];
            let payloads: Vec<_> = (0..rng.range(1..5)).map(|n| rng.bytes(10 * n)).collect();
            let first = *next;
            *next += payloads.len() as u64;
            let key = vec![b'a' + rng.below(6) as u8];
            let batch = Batch(vec![
                (group, Op::Entries(first, payloads)),
                (group, Op::Put(key, rng.bytes(10))),
            ]);
            engine.write(&mut batch.for_ours(), false).unwrap();
        }
        files += engine.file_span(Queue::Append).map_or(0, |(_, last)| last);
        let seen = Seen::of_ours(&engine);
        drop(engine);
        for mode in ALL_MODES {
            let copy = temp.path().join("copy");
            copied(&dir, &copy);
            let options = Options {
                recovery_mode: *mode,
                ..options.clone()
            };
            let other = Seen::of_theirs(&Theirs::open_by_threads(&copy, &options));
            seen.assert_same(&other, &format!("{what}, {mode:?}"));
            std::fs::remove_dir_all(&copy).expect("it is there");
        }
    }
    assert!(files > 100, "{files}");
}

/// Ours and the original, opened on copies of a directory that it has purged, hold what was there, and perhaps what was dropped before: it
/// loses that something was dropped when it takes away the file that says so. They see the same, but of groups `may_return` as with [`assert_both_see_but`].
fn assert_both_hold(
    dir: &Path,
    temp: &TempDir,
    options: &Options,
    live: &Seen,
    may_return: &BTreeSet<u64>,
    what: &str,
) {
    let copies = ["copy-ours", "copy-theirs"].map(|name| temp.path().join(name));
    for copy in &copies {
        copied(dir, copy);
    }
    let own = Seen::of_ours(&ours(&copies[0], options));
    own.assert_holds(live, &format!("{what}: ours"));
    let other = Seen::of_theirs(&Theirs::open(&copies[1], options));
    other.assert_holds(live, &format!("{what}: theirs"));
    own.assert_same_but(&other, may_return, what);
    for copy in &copies {
        std::fs::remove_dir_all(copy).expect("it is there");
    }
}

#[test]
fn what_it_collected_and_wrote_over_is_read() {
    let (mut rewritten, mut collected, mut spare, mut over) = (0, 0, 0, 0);
    for seed in seeds(2) {
        let what = format!("seed {seed}");
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("theirs");
        let options = histories::options(&mut rng);
        let mut history = History::new();
        let mut watch = spares::Watch::default();
        for _ in 0..3 {
            // Files that were filled beforehand are written first, and hold nothing.
            let engine = Theirs::open_to_purge(&dir, &options, rng.chance(1, 4));
            history.begin_anew(&engine);
            for n in 0..120 {
                engine.write(&history.batch(&mut rng), false);
                watch.look(&dir);
                if n % 20 == 19 {
                    for group in engine.purge() {
                        history.compact(group, &engine);
                    }
                }
            }
            rewritten += engine.rewritten_files();
            let live = Seen::of_theirs(&engine);
            assert_both_hold(&dir, &temp, &options, &live, history.written_over(), &what);
            drop(engine);
            let names = names(&dir);
            spare += names.iter().filter(|n| n.ends_with(".reserved")).count();
            collected += usize::from(!names.contains(&"0000000000000001.raftlog".to_owned()));
            assert_both_hold(&dir, &temp, &options, &live, history.written_over(), &what);
        }
        over += watch.written_over();
    }
    println!(
        "{rewritten} rewritten files, {collected} directories without the first file, {spare} spare files, {over} written over"
    );
    assert!(rewritten > 20 && collected > 20 && spare > 5 && over > 5);
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
                let engine = Theirs::open_to_purge(&dir, &options, true);
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
    let (mut rewritten, mut collected, mut over, mut returned) = (0, 0, 0, 0);
    for seed in seeds(4) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("ours");
        let mut options = histories::options(&mut rng);
        options.purge_threshold = options.target_file_size * 4;
        options.purge_rewrite_threshold = Some(options.target_file_size);
        options.purge_rewrite_garbage_ratio = 0.3;
        let mut history = match seed % 3 {
            1 => History::of_appends(),
            _ => History::new(),
        };
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
            over += engine.metrics().files_written_over;
            let seen = Seen::of_ours(&engine);
            let may_return = history.written_over();
            returned += assert_both_see_but(
                TOLERANT,
                may_return,
                &dir,
                &temp,
                &options,
                Some(&seen),
                &what,
            );
            drop(engine);
            collected += usize::from(!names(&dir).contains(&"0000000000000001.raftlog".to_owned()));
            returned += assert_both_see_but(
                ALL_MODES,
                may_return,
                &dir,
                &temp,
                &options,
                Some(&seen),
                &what,
            );
            Seen::of_ours(&ours(&dir, &options)).assert_same(&seen, &what);
        }
    }
    println!(
        "{rewritten} rewritten files, {collected} directories without the first file, {over} written over, {returned} groups with entries again"
    );
    assert!(rewritten > 20 && collected > 20 && over > 20);
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
