//! Two directories: what one leaves in them the other reads and goes on with.
//!
//! Here the second one has as much space as the first, so the original makes no file there. But it appends to those that it finds
//! there, empties them and writes them over; and files that it made are put there by hand, as they may lie in either.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_env::{Fault, FaultFileSystem, FileSystem, OpKind, PosixFileSystem};
use orogen_raftlog::raw::{Engine, FormatVersion, Options};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use super::histories::{self, History, Seen};
use super::theirs::Theirs;
use super::{TOLERANT, copied, names, ours, seeds};

struct Pair([PathBuf; 2]);

impl Pair {
    fn new(temp: &TempDir, name: &str) -> Self {
        Self([name.to_owned(), format!("{name}-spill")].map(|name| temp.path().join(name)))
    }

    fn first(&self) -> &Path {
        &self.0[0]
    }

    fn options(&self, options: &Options) -> Options {
        Options {
            spill_dir: Some(self.0[1].clone()),
            ..options.clone()
        }
    }

    fn copy(&self, temp: &TempDir, name: &str) -> Self {
        let copy = Self::new(temp, name);
        for (from, to) in self.0.iter().zip(&copy.0) {
            copied(from, to);
        }
        copy
    }

    fn remove(&self) {
        for dir in &self.0 {
            std::fs::remove_dir_all(dir).expect("it is there");
        }
    }

    /// Log files in each.
    fn files(&self) -> [usize; 2] {
        self.0.each_ref().map(|dir| {
            let names = names(dir);
            let is_log = |name: &&String| name.ends_with(".raftlog") || name.ends_with(".rewrite");
            names.iter().filter(is_log).count()
        })
    }

    fn spare(&self) -> usize {
        let names = names(&self.0[1]);
        names
            .iter()
            .filter(|name| name.ends_with(".reserved"))
            .count()
    }

    /// Has some files change the directory; their digests stay, and are none of them any more.
    fn shuffle(&self, rng: &mut Rng) {
        for at in 0..2 {
            for name in names(&self.0[at]) {
                if !name.starts_with('0') || name.ends_with(".digest") || !rng.chance(1, 3) {
                    continue;
                }
                let (from, to) = (self.0[at].join(&name), self.0[1 - at].join(&name));
                if !to.exists() {
                    std::fs::rename(from, to).expect("both are there");
                }
            }
        }
    }

    /// Opens it on a disk where now one and now the other directory has no space.
    fn ours_spreading(&self, options: &Options) -> (Engine, FaultFileSystem) {
        let fs = FaultFileSystem::new(Arc::new(PosixFileSystem::new()));
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let engine = Engine::open(&arc, self.first(), self.options(options));
        (engine.expect("what was written opens"), fs)
    }

    fn spread(&self, fs: &FaultFileSystem, rng: &mut Rng) {
        let faults = fs.faults();
        faults.clear();
        let is_first = rng.chance(1, 2);
        let answer = |free| {
            Fault::no_space()
                .on(&[OpKind::FreeSpace])
                .free(free)
                .forever()
        };
        // The first that looks at a call decides, and the name of one directory begins with that of the other.
        let (first, second) = if is_first { (1 << 50, 0) } else { (0, 1 << 50) };
        faults.add(answer(second).path_with("-spill"));
        faults.add(answer(first));
    }

    fn assert_both_see(&self, temp: &TempDir, options: &Options, wanted: &Seen, what: &str) {
        for mode in TOLERANT {
            let options = Options {
                recovery_mode: *mode,
                ..options.clone()
            };
            let own = self.copy(temp, "copy-ours");
            Seen::of_ours(&ours(own.first(), &own.options(&options)))
                .assert_same(wanted, &format!("{what}: ours"));
            own.remove();
            let other = self.copy(temp, "copy-theirs");
            wanted.assert_same(
                &Seen::of_theirs(&Theirs::open(other.first(), &other.options(&options))),
                &format!("{what}: theirs"),
            );
            other.remove();
        }
    }
}

#[test]
fn each_goes_on_with_both_directories_of_the_other() {
    let mut files = [0; 2];
    let mut turns = 0;
    for seed in seeds(8) {
        let temp = TempDir::new("raftlog-two");
        let mut rng = Rng::new(seed);
        let pair = Pair::new(&temp, "shared");
        let mut history = History::new();
        for turn in 0..6 {
            let what = format!("seed {seed}, turn {turn}");
            let options = histories::options(&mut rng);
            let seen = if turn % 2 == 0 {
                let (engine, fs) = pair.ours_spreading(&options);
                for _ in 0..rng.range(1..40) {
                    pair.spread(&fs, &mut rng);
                    let batch = history.batch(&mut rng);
                    engine
                        .write(&mut batch.for_ours(), rng.chance(1, 10))
                        .unwrap();
                }
                let seen = Seen::of_ours(&engine);
                // As a process that is killed leaves it.
                pair.assert_both_see(&temp, &options, &seen, &what);
                seen
            } else {
                let engine = Theirs::open(pair.first(), &pair.options(&options));
                for _ in 0..rng.range(1..40) {
                    engine.write(&history.batch(&mut rng), rng.chance(1, 10));
                }
                let seen = Seen::of_theirs(&engine);
                pair.assert_both_see(&temp, &options, &seen, &what);
                seen
            };
            pair.assert_both_see(&temp, &options, &seen, &what);
            for (sum, count) in files.iter_mut().zip(pair.files()) {
                *sum += count;
            }
            turns += 1;
            pair.shuffle(&mut rng);
            pair.assert_both_see(&temp, &options, &seen, &format!("{what}, shuffled"));
        }
    }
    println!(
        "{turns} turns, {} files in the first and {} in the second",
        files[0], files[1]
    );
    assert!(files[0] > 30 && files[1] > 30, "{files:?}");
}

#[test]
fn each_empties_files_in_both_directories_of_the_other() {
    let (mut theirs, mut own, mut spare, mut spilled) = (0, 0, 0, 0);
    for seed in seeds(9) {
        let temp = TempDir::new("raftlog-two");
        let mut rng = Rng::new(seed);
        let pair = Pair::new(&temp, "shared");
        let mut options = histories::options(&mut rng);
        options.format_version = FormatVersion::V2;
        options.purge_threshold = options.target_file_size * 4;
        options.purge_rewrite_threshold = Some(options.target_file_size);
        options.purge_rewrite_garbage_ratio = 0.3;
        let mut history = History::new();
        for turn in 0..6 {
            let what = format!("seed {seed}, turn {turn}");
            if turn % 2 == 0 {
                // Spare files would be taken where they are.
                options.enable_log_recycle = turn == 0;
                let (engine, fs) = pair.ours_spreading(&options);
                history.begin_anew_with(&engine);
                for n in 0..60 {
                    pair.spread(&fs, &mut rng);
                    let batch = history.batch(&mut rng);
                    engine.write(&mut batch.for_ours(), false).unwrap();
                    if n % 20 == 19 {
                        let before = Seen::of_ours(&engine);
                        engine.purge_expired_files().unwrap();
                        Seen::of_ours(&engine).assert_same(&before, &what);
                    }
                }
                let metrics = engine.metrics();
                own += metrics.files_made.rewrite;
                spilled += metrics.files_spilled.append + metrics.files_spilled.rewrite;
                let seen = Seen::of_ours(&engine);
                drop(engine);
                spare += pair.spare();
                pair.assert_both_see(&temp, &options, &seen, &what);
            } else {
                let engine = Theirs::open_to_purge(pair.first(), &pair.options(&options), true);
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
                let copy = pair.copy(&temp, "copy");
                Seen::of_ours(&ours(copy.first(), &copy.options(&options)))
                    .assert_holds(&live, &what);
                copy.remove();
                pair.shuffle(&mut rng);
            }
        }
    }
    println!(
        "rewritten files: {theirs} theirs, {own} ours; {spilled} of ours in the second directory, {spare} spare there"
    );
    assert!(theirs > 10 && own > 10 && spilled > 10 && spare > 0);
}
