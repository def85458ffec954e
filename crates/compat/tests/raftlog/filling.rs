//! Spare files that we have filled with zeros, in part or whole, which the original writes over.

use orogen_raftlog::raw::{FormatVersion, Options};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::histories::{Batch, Op, Seen};
use crate::theirs::Theirs;
use crate::{assert_both_see, copied, ours};

const FILE: u64 = 2 << 20;
const ENTRY: usize = 40 << 10;

fn next(group: u64, at: u64) -> Batch {
    let payload = Rng::new(at).bytes(ENTRY);
    Batch(vec![(group, Op::Entries(at, vec![payload]))])
}

#[test]
fn it_writes_over_what_we_filled() {
    let options = Options {
        target_file_size: FILE,
        purge_threshold: 4 * FILE,
        format_version: FormatVersion::V2,
        ..Options::default()
    };
    let (mut spares, mut over) = (Vec::new(), 0);
    for count in [20, 30, 45, 80] {
        let temp = TempDir::new("raftlog-original");
        let (dir, killed) = (temp.path().join("log"), temp.path().join("killed"));
        let engine = ours(&dir, &options);
        for at in 1..=count {
            engine.write(&mut next(1, at).for_ours(), true).unwrap();
        }
        let seen = Seen::of_ours(&engine);
        // As a process that is killed leaves it: what is being filled ends anywhere.
        copied(&dir, &killed);
        drop(engine);
        let what = format!("{count} entries");
        assert_both_see(&killed, &temp, &options, Some(&seen), &what);
        let found = std::fs::read_dir(&killed)
            .expect("it is there")
            .map(|entry| {
                let entry = entry.expect("it is listed");
                let is_spare = entry.file_name().to_string_lossy().ends_with(".reserved");
                is_spare.then(|| entry.metadata().expect("it is there").len())
            });
        spares.extend(found.flatten());
        let filled = crate::spares::files(&killed, ".reserved");
        // Theirs goes on through some files, with its own filled ones and ours.
        let theirs = Theirs::open_to_purge(&killed, &options, true);
        for at in count + 1..=count + 200 {
            theirs.write(&next(1, at), true);
        }
        over += crate::spares::files(&killed, ".raftlog")
            .keys()
            .filter(|file| filled.contains_key(file))
            .count();
        let seen = Seen::of_theirs(&theirs);
        assert_both_see(&killed, &temp, &options, Some(&seen), &what);
        drop(theirs);
        let engine = ours(&killed, &options);
        Seen::of_ours(&engine).assert_same(&seen, &what);
        for at in count + 201..=count + 300 {
            engine.write(&mut next(1, at).for_ours(), true).unwrap();
        }
        let seen = Seen::of_ours(&engine);
        drop(engine);
        assert_both_see(&killed, &temp, &options, Some(&seen), &what);
    }
    assert!(spares.len() >= 2, "{spares:?}");
    assert!(over >= 2, "{over} of {spares:?}");
}
