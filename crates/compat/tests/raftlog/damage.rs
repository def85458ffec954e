//! Damage that `AbsoluteConsistency` is to see, in files before the newest.

use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::{FileSystem, PosixFileSystem};
use orogen_raftlog::raw::{Engine, FormatVersion, LogBatch, Options, RecoveryMode};
use orogen_testkit::TempDir;

use crate::theirs::{Theirs, encoded};
use crate::{copied, ours};

/// Whether ours and the original open a directory.
fn opens(temp: &TempDir, dir: &Path, options: &Options) -> [bool; 2] {
    let copies = ["copy-ours", "copy-theirs"].map(|name| temp.path().join(name));
    for copy in &copies {
        copied(dir, copy);
    }
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::new());
    let own = Engine::open(&fs, &copies[0], options.clone()).map(drop);
    if let Err(e) = &own {
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    }
    let other = Theirs::refusal(&copies[1], options);
    for copy in &copies {
        std::fs::remove_dir_all(copy).expect("it is there");
    }
    [own.is_ok(), other == "it opens"]
}

#[test]
fn damaged_entries_in_a_full_file_are_seen_where_all_damage_is() {
    for format_version in [FormatVersion::V1, FormatVersion::V2] {
        let temp = TempDir::new("raftlog-original");
        let dir = temp.path().join("dir");
        let mut options = Options {
            recovery_mode: RecoveryMode::AbsoluteConsistency,
            target_file_size: 2000,
            batch_compression_threshold: 0,
            format_version,
            ..Options::default()
        };
        let engine = ours(&dir, &options);
        for index in 1..=60 {
            let mut batch = LogBatch::default();
            let entry = encoded(
                index,
                format!("entry {index:03}, {}", "e".repeat(80)).as_bytes(),
            );
            batch.add_entries(1, index, &[entry]).expect("it fits");
            engine.write(&mut batch, false).expect("it fits");
        }
        drop(engine);
        assert_eq!(opens(&temp, &dir, &options), [true, true]);
        let path = dir.join("0000000000000001.raftlog");
        let good = std::fs::read(&path).expect("it is there");
        let places: Vec<usize> = (0..good.len())
            .filter(|at| good[*at..].starts_with(b"entry "))
            .collect();
        let [first, .., last] = places[..] else {
            panic!("{places:?}");
        };
        // Of a full file the original looks at the last block. Where only the tail may be damaged it cuts it off all the same, and
        // then misses its entry; what lies before, and either here, is met when it is read.
        for (at, absolute, tail) in [
            (last, [false, false], [true, false]),
            (first, [false, true], [true, true]),
        ] {
            let mut damaged = good.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, damaged).expect("there is room");
            for (mode, expected) in [
                (RecoveryMode::AbsoluteConsistency, absolute),
                (RecoveryMode::TolerateTailCorruption, tail),
            ] {
                options.recovery_mode = mode;
                let what = format!("{format_version:?}, {mode:?}, offset {at}");
                assert_eq!(opens(&temp, &dir, &options), expected, "{what}");
            }
        }
    }
}
