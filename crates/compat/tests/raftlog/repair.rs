//! Directories that a repair has changed: both open them, and see the same.

use std::path::Path;

use orogen_env::PosixFileSystem;
use orogen_raftlog::raw::{Change, RepairScript, Verdict, repair};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::histories::{History, Seen, options};
use crate::theirs::Theirs;
use crate::{assert_both_hold, assert_both_see, copied, names, ours, seeds};

/// Each drops something else; some leave holes, which a repair refuses.
const SCRIPTS: [&str; 4] = [
    "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if id == 2 { 1 } else { 0 } }
     fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { if id == 2 { 1 } else { 0 } }",
    "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if ilast % 7 == 0 { 2 } else { 0 } }",
    "fn filter_clean(id, first, count, rewrite_count, queue) { 1 }",
    "fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { if compact_to > first + 1 { 2 } else { 0 } }",
];

/// All files but digests, which are made anew.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = names(dir);
    names.sort();
    let read = |name: String| {
        let bytes = std::fs::read(dir.join(&name)).expect("it is there");
        (name, bytes)
    };
    names
        .into_iter()
        .filter(|n| n != "LOCK" && !n.ends_with(".digest"))
        .map(read)
        .collect()
}

#[test]
fn it_opens_what_we_repaired() {
    let (mut repaired, mut refused) = (0, 0);
    for seed in seeds(6) {
        let temp = TempDir::new("raftlog-repair");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("dir");
        let options = options(&mut rng);
        let mut history = History::new();
        if rng.chance(1, 2) {
            let engine = Theirs::open(&dir, &options);
            (0..50).for_each(|_| engine.write(&history.batch(&mut rng), false));
        } else {
            let engine = ours(&dir, &options);
            for _ in 0..50 {
                let batch = history.batch(&mut rng);
                engine.write(&mut batch.for_ours(), false).unwrap();
            }
        }
        for (n, script) in SCRIPTS.iter().enumerate() {
            let what = format!("seed {seed}, script {n}");
            let copy = temp.path().join(format!("repaired{n}"));
            copied(&dir, &copy);
            let before = content(&copy);
            let script = RepairScript::compile(script).unwrap();
            let fs = PosixFileSystem::new();
            match repair(&fs, &copy, None, None, |incoming| script.decide(incoming)) {
                Ok(done) => {
                    repaired += done.files.len();
                    assert_eq!(content(&copy) == before, done.files.is_empty(), "{what}");
                    assert_eq!(content(&copy).len(), before.len(), "{what}");
                    assert_both_see(&copy, &temp, &options, None, &what);
                }
                Err(e) => {
                    refused += 1;
                    assert_eq!(content(&copy), before, "{what}: {e}");
                }
            }
        }
    }
    println!("{repaired} files repaired, {refused} repairs refused");
    assert!(repaired > 40, "{repaired}");
}

#[test]
fn it_opens_what_we_repaired_after_it_purged() {
    let (mut repaired, mut refused) = (0, 0);
    for seed in seeds(7) {
        let temp = TempDir::new("raftlog-repair");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("dir");
        let options = options(&mut rng);
        let mut history = History::new();
        let live = {
            let engine = Theirs::open_to_purge(&dir, &options, true);
            for n in 0..120 {
                engine.write(&history.batch(&mut rng), false);
                if n % 20 == 19 {
                    for group in engine.purge() {
                        history.compact(group, &engine);
                    }
                }
            }
            Seen::of_theirs(&engine).without(1)
        };
        let before = content(&dir);
        // All entries of a group, in both queues; its keys and the other groups stay.
        let done = repair(&PosixFileSystem::new(), &dir, None, None, |incoming| {
            Ok(match (incoming.group, incoming.change) {
                (1, Change::Entries { .. } | Change::Compact { .. }) => Verdict::DropIncoming,
                _ => Verdict::Apply,
            })
        });
        // What is left of the append queue may begin with entries that lie below those of a later record: none follows on them then.
        let Ok(done) = done else {
            refused += 1;
            assert_eq!(content(&dir), before, "seed {seed}");
            continue;
        };
        repaired += done.files.len();
        let what = format!("seed {seed}");
        assert_both_hold(&dir, &temp, &options, &live, history.written_over(), &what);
        assert_eq!(ours(&dir, &options).last_index(1), None, "seed {seed}");
    }
    println!("{repaired} files repaired, {refused} repairs refused");
    assert!(repaired > 5, "{repaired}");
}
