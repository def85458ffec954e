//! One bit of a directory flipped, at every byte of it, and opened in each recovery mode.
//!
//! What is then there is foretold by a reader of the test's own: it knows which bytes of a file are a header, a block, a footer or
//! padding, and replays both queues without what an open leaves out for that flip. So an open is
//!
//! 1. refused, with the name of the file, or
//! 2. gives what was written without the records of that file from the damaged one on, where the mode permits it, and fences groups
//!    which lack entries for it, or
//! 3. gives all of it, but for entries of a damaged block, of which each is refused when it is read;
//!
//! and which of these it must be is known for each flip. The bytes of an entry follow from its group, index and length, so a reader
//! need not unpack blocks to know them. Of headers, checksums and footers all bits are flipped, of other bytes one.

mod history;
mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orogen_base::{ErrorKind, Result};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_raftlog::raw::{Command, Engine, Fenced, LogBatch, Options, RecoveryMode};
use orogen_testkit::figures::tell;
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk, options};
use history::History;
use reader::{File, Group, HEADER_LEN, Kind, MAGIC_LEN, Record, entry, parse, replay};

/// A digest knows its file by so many bytes at the end.
const TAIL_LEN: usize = 4096;

const MODES: [RecoveryMode; 3] = [
    RecoveryMode::TolerateTailCorruption,
    RecoveryMode::TolerateAnyCorruption,
    RecoveryMode::AbsoluteConsistency,
];

/// A group that is nowhere before.
const OTHER: u64 = 99;

#[derive(Clone, Copy, Debug)]
struct Flip {
    file: usize,
    at: usize,
    bit: u8,
    mode: RecoveryMode,
    digests: bool,
}

/// How often which fate was met.
#[derive(Debug, Default)]
struct Met {
    flips: u64,
    exact: u64,
    refused: u64,
    cut: u64,
    /// And groups are fenced.
    cut_fenced: u64,
    unreadable: u64,
    entries_refused: usize,
}

/// What an open makes of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Nothing: all is as it was.
    Exact,
    Refused,
    /// A file ends before one of its records.
    Cut {
        file: usize,
        record: usize,
    },
    /// It has a block that is damaged.
    Unreadable {
        file: usize,
        record: usize,
    },
}

struct Dir {
    fs: MemFileSystem,
    options: Options,
    files: Vec<File>,
    /// Behind the last record of a file lies what it held before.
    has_stale: bool,
}

impl Dir {
    fn of(fs: MemFileSystem, options: Options) -> Self {
        let mut names = fs.list(dir()).unwrap();
        names.retain(|name| name != "LOCK");
        names.sort();
        let read = |name: String| {
            let bytes = read_file(&fs, &dir().join(&name)).unwrap();
            parse(name, bytes)
        };
        let mut files: Vec<File> = names.into_iter().map(read).collect();
        let mut has_stale = false;
        for kind in [Kind::Append, Kind::Rewrite] {
            if let Some(newest) = files.iter_mut().rfind(|file| file.kind == kind) {
                newest.is_newest = true;
                let end = newest.records.last().unwrap().end;
                has_stale |= newest.bytes[end..].iter().any(|byte| *byte != 0);
            }
        }
        Self {
            fs,
            options,
            files,
            has_stale,
        }
    }

    fn count(&self, kind: Kind) -> usize {
        self.files.iter().filter(|file| file.kind == kind).count()
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.files.iter().flat_map(|file| &file.records)
    }

    fn tell(&self) {
        let records = self.records();
        let marks: BTreeSet<u64> = records.filter_map(|r| Some(r.mark?.0)).collect();
        tell(format_args!(
            "bits: {} + {} files and {} beside them, {} bytes, {} records, {} of them packed, {} atomic groups",
            self.count(Kind::Append),
            self.count(Kind::Rewrite),
            self.count(Kind::Beside),
            self.files
                .iter()
                .map(|file| file.bytes.len())
                .sum::<usize>(),
            self.records().count(),
            self.records().filter(|record| record.is_lz4).count(),
            marks.len(),
        ));
    }

    fn open(&self, fs: &MemFileSystem, mode: RecoveryMode, digests: bool) -> Result<Engine> {
        let options = Options {
            recovery_mode: mode,
            enable_log_digests: digests,
            recovery_threads: 1,
            ..self.options.clone()
        };
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        Engine::open(&fs, dir(), options)
    }

    /// What is there without the records that `fate` takes away.
    fn replay(&self, fate: Fate) -> BTreeMap<u64, Group> {
        replay(&self.files, |f, r| match fate {
            Fate::Cut { file, record } => file == f && record <= r,
            _ => false,
        })
    }

    /// What becomes of a flip of one bit.
    fn fate(&self, flip: Flip) -> Fate {
        let Flip {
            file: f,
            at,
            bit,
            mode,
            digests,
        } = flip;
        let file = &self.files[f];
        let is_absolute = mode == RecoveryMode::AbsoluteConsistency;
        if is_absolute && self.has_stale {
            return Fate::Refused;
        }
        if file.kind == Kind::Beside {
            return Fate::Exact;
        }
        let cut = |record| match mode {
            RecoveryMode::AbsoluteConsistency => Fate::Refused,
            RecoveryMode::TolerateTailCorruption if !file.is_newest => Fate::Refused,
            _ => Fate::Cut { file: f, record },
        };
        let is_read =
            is_absolute || !self.has_digest(f) || !digests || at + TAIL_LEN >= file.bytes.len();
        if at < MAGIC_LEN {
            return match mode {
                _ if !is_read && !file.is_newest => Fate::Exact,
                // There are records, so it was not being made.
                RecoveryMode::TolerateAnyCorruption => cut(0),
                _ => Fate::Refused,
            };
        }
        // In padding, or behind the last record.
        let beside = match is_absolute {
            true => Fate::Refused,
            false => Fate::Exact,
        };
        let padded = |(r, end, next): (usize, usize, usize)| (end != next).then_some(r);
        let ends = [HEADER_LEN]
            .into_iter()
            .chain(file.records.iter().map(|r| r.end));
        let nexts = file.records.iter().map(|r| r.at);
        let mut gaps = ends
            .zip(nexts)
            .enumerate()
            .map(|(r, (end, next))| (r, end, next));
        if at < HEADER_LEN {
            return match gaps.find_map(padded) {
                // From the first padding on it is not known where records are.
                Some(record) if is_read => cut(record),
                _ => Fate::Exact,
            };
        }
        let Some((r, record)) = file
            .records
            .iter()
            .enumerate()
            .find(|(_, record)| at < record.end)
        else {
            return beside;
        };
        if at < record.at {
            return beside;
        }
        let block = match (is_absolute, file.is_newest && is_read) {
            (true, _) | (_, true) => cut(r),
            _ => Fate::Unreadable { file: f, record: r },
        };
        let has_block = record.footer > record.block();
        let is_of_block = (record.block()..record.footer).contains(&at);
        // What says whether a block is compressed has no checksum. A block that is has less bytes than its entries.
        let is_packing = at == record.at + 7 && bit == 0 && !record.is_lz4;
        match () {
            () if !is_read && !is_of_block => Fate::Exact,
            () if is_packing && !has_block => Fate::Exact,
            () if is_packing || is_of_block => block,
            () => cut(r),
        }
    }

    /// Has the newest file written over one that held what an earlier one holds: its records are behind the last one.
    fn add_stale(&mut self) {
        let mut files = self.files.iter().filter(|f| f.kind == Kind::Append);
        let newest = files.next_back().unwrap();
        let seq = |file: &File| file.name[..16].parse::<u64>().unwrap();
        // A single bit makes a record of one file one of another if their numbers differ by one bit.
        let differs = |file: &&File| (seq(file) ^ seq(newest)).count_ones() > 1;
        let Some(other) = files.find(differs) else {
            return;
        };
        let end = newest.records.last().map_or(HEADER_LEN, |last| last.end);
        let end = end.next_multiple_of(newest.alignment);
        let mut bytes = newest.bytes.clone();
        bytes.truncate(end);
        bytes.resize(end, 0);
        bytes.extend(&other.bytes[newest.alignment..]);
        write_file(&self.fs, &newest.path(), &bytes).unwrap();
        *self = Self::of(self.fs.clone(), self.options.clone());
    }

    fn has_digest(&self, f: usize) -> bool {
        let name = format!("{}.digest", self.files[f].name);
        self.files.iter().any(|file| file.name == name)
    }

    /// Checks all answers, and gives how many entries were refused.
    fn check(
        &self,
        engine: &Engine,
        groups: &BTreeMap<u64, Group>,
        fate: Fate,
        what: &str,
    ) -> usize {
        let damaged = match fate {
            Fate::Unreadable { file, record } => Some((file, record)),
            _ => None,
        };
        assert!(engine.raft_groups().iter().eq(groups.keys()), "{what}");
        let fenced = |(group, found): (&u64, &Group)| Fenced {
            group: *group,
            missing_before: found.missing_before,
        };
        let mut fenced: Vec<Fenced> = groups.iter().map(fenced).collect();
        fenced.retain(|fenced| fenced.missing_before > 0);
        assert_eq!(engine.fenced_groups(), fenced, "{what}");
        let mut refused = 0;
        for (id, group) in groups {
            let mut keys = BTreeMap::new();
            engine.scan(*id, None, None, false, |key, value| {
                keys.insert(key.to_vec(), value.to_vec());
                true
            });
            assert_eq!(keys, group.keys, "{what}: group {id}");
            let (first, last) = (group.below.keys().next(), group.below.keys().next_back());
            assert_eq!(
                engine.first_index(*id),
                first.copied(),
                "{what}: group {id}"
            );
            assert_eq!(engine.last_index(*id), last.copied(), "{what}: group {id}");
            let is_fenced = group.missing_before > 0;
            let mut expected = Vec::new();
            let mut refused_here = 0;
            for (index, (len, place)) in &group.below {
                let found = engine.get_entry(*id, *index);
                if is_fenced || damaged == Some(*place) {
                    let e = found.expect_err(what);
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
                    let name = &self.files[place.0].name;
                    assert!(is_fenced || e.to_string().contains(name), "{what}: {e}");
                    refused_here += 1;
                } else {
                    let bytes = entry(*id, *index, *len);
                    assert!(
                        found.unwrap() == Some(bytes.clone()),
                        "{what}: {id} {index}"
                    );
                    expected.push(bytes);
                }
            }
            if let (Some(first), Some(last)) = (first, last) {
                let mut all = Vec::new();
                let fetched = engine.fetch_entries_to(*id, *first, last + 1, None, &mut all);
                if refused_here > 0 {
                    assert_eq!(fetched.unwrap_err().kind(), ErrorKind::Corruption, "{what}");
                    assert!(all.is_empty(), "{what}");
                } else {
                    assert_eq!(fetched.unwrap(), expected.len(), "{what}");
                    assert!(all == expected, "{what}: group {id}");
                    assert_eq!(engine.get_entry(*id, last + 1).unwrap(), None, "{what}");
                    assert_eq!(engine.get_entry(*id, first - 1).unwrap(), None, "{what}");
                }
            }
            refused += refused_here;
        }
        refused
    }

    /// Flips a bit, opens, and looks whether it is as foretold.
    fn try_flip(
        &self,
        flip: Flip,
        fate: Fate,
        groups: &BTreeMap<u64, Group>,
        goes_on: bool,
        met: &mut Met,
    ) {
        let file = &self.files[flip.file];
        let what = format!("{} {flip:?} {fate:?}", file.name);
        let mut bytes = file.bytes.clone();
        bytes[flip.at] ^= 1 << flip.bit;
        let fs = self.fs.fork();
        write_file(&fs, &file.path(), &bytes).unwrap();
        let open = || self.open(&fs, flip.mode, flip.digests);
        met.flips += 1;
        let engine = match open() {
            Ok(engine) => engine,
            Err(e) => {
                assert_eq!(fate, Fate::Refused, "{what}: {e}");
                assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
                let is_told = e.to_string().contains(&file.name);
                assert!(is_told || self.has_stale, "{what}: {e}");
                met.refused += 1;
                return;
            }
        };
        assert!(fate != Fate::Refused, "{what}");
        met.entries_refused += self.check(&engine, groups, fate, &what);
        match fate {
            Fate::Cut { .. } if engine.fenced_groups().is_empty() => met.cut += 1,
            Fate::Cut { .. } => met.cut_fenced += 1,
            Fate::Unreadable { .. } => met.unreadable += 1,
            _ => met.exact += 1,
        }
        if goes_on {
            // The same is there the next time, and what is written behind it.
            let mut batch = LogBatch::default();
            batch.add_entries(OTHER, 1, &[entry(OTHER, 1, 30)]).unwrap();
            engine.write(&mut batch, true).unwrap();
            engine.close().unwrap();
            let again = open().unwrap();
            let found = again.get_entry(OTHER, 1).unwrap();
            assert_eq!(found, Some(entry(OTHER, 1, 30)), "{what}");
            batch.add_command(OTHER, Command::Clean);
            again.write(&mut batch, true).unwrap();
            self.check(&again, groups, fate, &what);
        }
    }
}

/// Which bits are flipped.
struct Plan {
    modes: &'static [RecoveryMode],
    /// Whether digests are read: now and then if it is not said.
    digests: Option<bool>,
    /// Of the bytes by which a digest knows its file, every so many.
    tail_step: usize,
}

/// Flips bits of all files, each alone.
fn flip_all(dir: &Dir, plan: &Plan) -> Met {
    let mut met = Met::default();
    let mut rng = Rng::new(Rng::seed_or(5));
    let whole = dir.replay(Fate::Exact);
    for mode in plan.modes {
        for digests in [false, true] {
            if *mode == RecoveryMode::AbsoluteConsistency && dir.has_stale {
                continue;
            }
            let engine = dir.open(&dir.fs.fork(), *mode, digests).unwrap();
            dir.check(&engine, &whole, Fate::Exact, "as it was written");
        }
    }
    // Flips of one record come one behind the other.
    let mut last: Option<(Fate, BTreeMap<u64, Group>)> = None;
    let mut turn = 0;
    for (f, file) in dir.files.iter().enumerate() {
        let len = file.bytes.len();
        let is_wanted = |at: &usize| at + TAIL_LEN < len || at.is_multiple_of(plan.tail_step);
        for at in (0..len).filter(is_wanted) {
            for bit in file.bits(at, &mut rng) {
                turn += 1;
                let modes = match file.is_raw(at) {
                    true => plan.modes,
                    false => &plan.modes[turn % plan.modes.len()..][..1],
                };
                for &mode in modes {
                    let is_digest = file.name.ends_with(".digest");
                    let digests = plan.digests.unwrap_or_else(|| rng.chance(1, 2));
                    let flip = Flip {
                        file: f,
                        at,
                        bit,
                        mode,
                        digests: digests || is_digest,
                    };
                    let fate = dir.fate(flip);
                    let groups = match fate {
                        Fate::Cut { .. } => {
                            if last.as_ref().is_none_or(|(other, _)| *other != fate) {
                                last = Some((fate, dir.replay(fate)));
                            }
                            last.as_ref().map_or(&whole, |(_, groups)| groups)
                        }
                        _ => &whole,
                    };
                    let goes_on = rng.chance(1, 16);
                    dir.try_flip(flip, fate, groups, goes_on, &mut met);
                }
            }
        }
    }
    tell(format_args!("bits: {met:?}"));
    met
}

/// A directory that was closed, or whose process was killed.
fn written(options: &Options, seed: u64, len_max: usize, is_killed: bool) -> Dir {
    let fs = disk();
    let mut history = History::on(&fs, options.clone(), seed, len_max);
    let purged = 50 + history.rng.below(20);
    for step in 0..70 {
        history.step(step % 2 == 0 && step < purged);
    }
    let held = content(&history.engine);
    let fs = match is_killed {
        true => fs.crash(PowerCut::KeepAll),
        false => {
            history.engine.close().unwrap();
            fs
        }
    };
    let mut dir = Dir::of(fs, options.clone());
    if is_killed {
        dir.add_stale();
    }
    let engine = dir.open(&dir.fs.fork(), RecoveryMode::default(), true);
    assert_eq!(content(&engine.unwrap()), held);
    dir
}

/// The first directory of which all is true that is wanted.
fn first(written: impl Fn(u64) -> Dir, is_wanted: impl Fn(&Dir) -> bool) -> Dir {
    let dir = (1..100).map(written).find(is_wanted).unwrap();
    dir.tell();
    dir
}

#[test]
fn a_flipped_bit_gives_what_was_written_or_an_error() {
    let options = Options {
        enable_log_digests: true,
        purge_rewrite_threshold: Some(1500),
        ..options()
    };
    let is_wanted = |dir: &Dir| {
        let is_packed = |packed| dir.records().any(|record| record.is_lz4 == packed);
        let is_marked = dir.records().any(|record| record.mark.is_some());
        let [append, rewrite] = [Kind::Append, Kind::Rewrite].map(|kind| dir.count(kind));
        // A digest for each file, and a spare file.
        let is_beside = dir.count(Kind::Beside) > append;
        let is_all = is_marked && is_packed(true) && is_packed(false);
        is_all && append > 2 && rewrite > 1 && is_beside
    };
    let dir = first(|seed| written(&options, seed, 60, false), is_wanted);
    let plan = Plan {
        modes: &MODES,
        digests: None,
        tail_step: 1,
    };
    let met = flip_all(&dir, &plan);
    assert!(met.exact > 1000 && met.refused > 1000 && met.cut > 1000);
    assert!(met.cut_fenced > 100 && met.unreadable > 100, "{met:?}");
}

#[test]
fn a_flipped_bit_behind_a_digest_gives_what_was_written_or_an_error() {
    let options = Options {
        enable_log_digests: true,
        target_file_size: 5000,
        purge_threshold: 10_000,
        ..options()
    };
    let is_wanted = |dir: &Dir| dir.count(Kind::Append) > 2 && dir.count(Kind::Beside) > 2;
    let dir = first(|seed| written(&options, seed, 400, false), is_wanted);
    let plan = Plan {
        modes: &MODES[..2],
        digests: Some(true),
        tail_step: 61,
    };
    let met = flip_all(&dir, &plan);
    assert!(met.exact > 300 && met.unreadable > 300, "{met:?}");
}

#[test]
fn a_flipped_bit_beside_padding_and_old_records_gives_what_was_written_or_an_error() {
    let options = Options {
        record_alignment: 512,
        target_file_size: 1600,
        purge_threshold: 5000,
        purge_rewrite_threshold: Some(3200),
        ..options()
    };
    let is_wanted = |dir: &Dir| dir.has_stale && dir.count(Kind::Append) > 2;
    let dir = first(|seed| written(&options, seed, 60, true), is_wanted);
    let plan = Plan {
        modes: &MODES,
        digests: Some(false),
        tail_step: 1,
    };
    let met = flip_all(&dir, &plan);
    assert!(met.exact > 300 && met.cut > 300, "{met:?}");
}
