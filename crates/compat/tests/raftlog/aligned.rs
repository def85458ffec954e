//! Files whose records begin at multiples, which the original reads and does not write.

use std::path::{Path, PathBuf};

use orogen_raftlog::raw::{LogBatch, Options, RecoveryMode};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::histories::{self, History, Seen};
use crate::theirs::{Theirs, encoded};
use crate::{assert_both_see, copied, ours, seeds};

#[test]
fn it_reads_aligned_records_and_goes_on_behind_them() {
    let mut padding = 0;
    for seed in seeds(6) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let dir = temp.path().join("shared");
        let mut history = History::new();
        for turn in 0..6 {
            let what = format!("seed {seed}, turn {turn}");
            let mut options = histories::options(&mut rng);
            options.format_version = orogen_raftlog::raw::FormatVersion::V2;
            options.record_alignment = *rng.pick(&[0, 512, 4096]);
            options.target_file_size *= rng.range(1..20) as u64;
            if turn % 2 == 0 {
                let engine = ours(&dir, &options);
                for _ in 0..rng.range(1..40) {
                    let batch = history.batch(&mut rng);
                    let sync = rng.chance(1, 2);
                    engine.write(&mut batch.for_ours(), sync).unwrap();
                }
                let seen = Seen::of_ours(&engine);
                // As a process that is killed leaves it, and then as one that is closed.
                assert_both_see(&dir, &temp, &options, Some(&seen), &what);
                padding += engine.metrics().padding_bytes.append;
                if rng.chance(1, 2) {
                    let killed = temp.path().join("killed");
                    copied(&dir, &killed);
                    drop(engine);
                    std::fs::remove_dir_all(&dir).expect("it is there");
                    std::fs::rename(&killed, &dir).expect("it is there");
                } else {
                    drop(engine);
                }
                assert_both_see(&dir, &temp, &options, Some(&seen), &what);
            } else {
                let engine = Theirs::open(&dir, &options);
                for _ in 0..rng.range(1..40) {
                    engine.write(&history.batch(&mut rng), rng.chance(1, 2));
                }
                let seen = Seen::of_theirs(&engine);
                assert_both_see(&dir, &temp, &options, Some(&seen), &what);
                drop(engine);
                assert_both_see(&dir, &temp, &options, Some(&seen), &what);
            }
        }
    }
    assert!(padding > 50_000, "{padding}");
}

/// Batches of one entry of so many bytes to groups of their own, each synced or not; where each record begins and ends.
fn written(dir: &Path, batches: &[(usize, bool)]) -> (PathBuf, Vec<(usize, usize)>) {
    let options = Options {
        record_alignment: 512,
        batch_compression_threshold: 0,
        ..Options::default()
    };
    let engine = ours(dir, &options);
    let (mut places, mut end) = (Vec::new(), 512);
    for (group, (len, sync)) in (1..).zip(batches) {
        let mut batch = LogBatch::default();
        let entry = encoded(1, &vec![7; *len]);
        batch.add_entries(group, 1, &[entry]).expect("it fits");
        let written = engine.write(&mut batch, *sync).expect("it fits");
        places.push((end, end + written));
        end += written;
        if *sync && end.next_multiple_of(512) - end >= 8 {
            end = end.next_multiple_of(512);
        }
    }
    engine.close().expect("it is well");
    (dir.join("0000000000000001.raftlog"), places)
}

/// Groups that ours and the original show of a directory with one file.
fn shown(temp: &TempDir, dir: &Path, bytes: &[u8]) -> [Vec<u64>; 2] {
    let options = Options {
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        ..Options::default()
    };
    let copies = ["copy-ours", "copy-theirs"].map(|name| temp.path().join(name));
    for copy in &copies {
        copied(dir, copy);
        std::fs::write(copy.join("0000000000000001.raftlog"), bytes).expect("there is room");
        let digest = copy.join("0000000000000001.raftlog.digest");
        std::fs::remove_file(digest).expect("it is there");
    }
    let own = ours(&copies[0], &options).raft_groups();
    let other = Theirs::open(&copies[1], &options).groups();
    for copy in &copies {
        std::fs::remove_dir_all(copy).expect("it is there");
    }
    [own, other]
}

#[test]
fn it_looks_at_both_ends_of_padding_and_we_at_all_of_it() {
    let temp = TempDir::new("raftlog-original");
    let dir = temp.path().join("dir");
    let (path, places) = written(&dir, &[(100, true), (100, true), (100, true)]);
    let bytes = std::fs::read(path).expect("it is there");
    assert_eq!(places[1].0, 1024);
    assert_eq!(bytes[places[0].1..1024], vec![0; 1024 - places[0].1]);
    let (first, last) = (places[0].1, 1023);
    for (flipped, expected) in [
        (vec![], [3, 3]),
        (vec![first], [3, 1]),
        (vec![last], [3, 1]),
        (vec![first + 40], [3, 3]),
        (vec![first + 40, last - 40], [1, 3]),
    ] {
        let mut damaged = bytes.clone();
        for at in &flipped {
            damaged[*at] ^= 0x20;
        }
        let shown = shown(&temp, &dir, &damaged).map(|groups| groups.len());
        assert_eq!(shown, expected, "{flipped:?}");
    }
}

#[test]
fn it_passes_over_a_damaged_header_that_is_followed_by_padding() {
    let temp = TempDir::new("raftlog-original");
    let dir = temp.path().join("dir");
    let (path, places) = written(&dir, &[(100, false), (100, true), (100, true)]);
    let mut bytes = std::fs::read(path).expect("it is there");
    assert_eq!(shown(&temp, &dir, &bytes), [vec![1, 2, 3], vec![1, 2, 3]]);
    // No kind of compression.
    bytes[places[1].0 + 7] = 9;
    assert_eq!(shown(&temp, &dir, &bytes), [vec![1], vec![1, 3]]);
}

#[test]
fn it_may_take_short_padding_for_a_header() {
    let temp = TempDir::new("raftlog-original");
    // The record of an empty entry, and how much one has to have to end a byte before a multiple.
    let (_, places) = written(&temp.path().join("probe"), &[(200, true), (5000, true)]);
    let over = |at: usize, len: usize| places[at].1 - places[at].0 - len;
    let first = 511 - over(0, 200);
    for (wanted, expected) in [(5120, vec![1]), (5200, vec![1, 2])] {
        let dir = temp.path().join(format!("dir-{wanted}"));
        let (path, places) = written(&dir, &[(first, true), (wanted - over(1, 5000), true)]);
        assert_eq!(places[0].1, 1023);
        assert_eq!(places[1], (1023, 1023 + wanted), "we pack it");
        let mut bytes = std::fs::read(path).expect("it is there");
        assert_eq!(shown(&temp, &dir, &bytes), [vec![1, 2], vec![1, 2]]);
        // As padding of one byte would have it.
        bytes.insert(1023, 0);
        assert_eq!(shown(&temp, &dir, &bytes), [vec![1, 2], expected]);
    }
}
