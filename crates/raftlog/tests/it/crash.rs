//! Power cuts at every call, and every call failing.
//!
//! The promise: after a crash an engine holds what it held after some batch: none is torn, none
//! before it is missing, and the last one that was synced is there. A call that fails changes
//! nothing that can be seen.
//!
//! Each history is run in all [`SETTINGS`], and the directories it leaves are opened in the same: with the first in every other point where it
//! is cut off or a call fails, with the others in every sixth, beginning with another one for each seed. Where absolute
//! consistency is asked for, a record that is cut off is an error, and the directory is opened as one that tolerates it then.
//! Digests are made by a thread of their own, so with them not all calls come in the same order each time.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_env::{
    Clock, Fault, FaultFileSystem, Faults, FileSystem, ManualClock, MemFileSystem, OpKind,
    PowerCut, TailFill,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RecoveryMode, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{
    Model, content, dir, disk, lengths_after_torn_cuts, open, options, random_batch, spill_dir,
    spilling,
};

/// Where files lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dirs {
    One,
    /// In two directories, as now one and now the other says that it has no space.
    Two,
    /// In two directories, as the first is slow now and then.
    Slow,
}

const THRESHOLD: Duration = Duration::from_millis(10);

/// How a directory is opened by who writes, and after that.
#[derive(Clone, Copy, Debug)]
struct Setting {
    dirs: Dirs,
    mode: RecoveryMode,
    digests: bool,
}

/// Modes, and whether there are digests.
const SETTINGS: [(RecoveryMode, bool); 6] = [
    (RecoveryMode::TolerateTailCorruption, false),
    (RecoveryMode::TolerateTailCorruption, true),
    (RecoveryMode::TolerateAnyCorruption, false),
    (RecoveryMode::TolerateAnyCorruption, true),
    (RecoveryMode::AbsoluteConsistency, false),
    (RecoveryMode::AbsoluteConsistency, true),
];

/// Numbers of calls at which something happens with a setting in the history of a seed.
fn points(setting: usize, seed: u64) -> impl Iterator<Item = u64> {
    let (first, step) = match setting {
        0 => (seed % 2, 2),
        _ => ((setting as u64 + seed) % 6, 6),
    };
    (first + 1..).step_by(step)
}

impl Setting {
    fn all(dirs: Dirs) -> impl Iterator<Item = (usize, Self)> {
        let of = move |(mode, digests)| Self {
            dirs,
            mode,
            digests,
        };
        SETTINGS.into_iter().map(of).enumerate()
    }

    fn is_absolute(self) -> bool {
        self.mode == RecoveryMode::AbsoluteConsistency
    }

    fn options(self) -> Options {
        let options = match self.dirs {
            Dirs::One => options(),
            Dirs::Two | Dirs::Slow => spilling(),
        };
        Options {
            recovery_mode: self.mode,
            enable_log_digests: self.digests,
            recovery_threads: 2,
            ..options
        }
    }

    /// Of whoever writes, by a clock that goes on only where a call is slow.
    fn open_on(
        self,
        fs: &Arc<dyn FileSystem>,
        clock: &Arc<dyn Clock>,
        record_alignment: u64,
    ) -> orogen_base::Result<Engine> {
        let options = Options {
            record_alignment,
            spill_stall_threshold: (self.dirs == Dirs::Slow).then_some(THRESHOLD),
            ..self.options()
        };
        Engine::open_with_clock(fs, dir(), options, Vec::new(), Arc::clone(clock))
    }

    fn open(self, fs: &MemFileSystem) -> orogen_base::Result<Engine> {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        Engine::open(&fs, dir(), self.options())
    }

    /// Opens what a power cut has left; with another mode if a cut-off record is an error. Counts those.
    fn open_after(
        self,
        fs: &MemFileSystem,
        cut: PowerCut,
        refused: &mut u64,
        what: &str,
    ) -> Engine {
        let leaves_whole = matches!(
            cut,
            PowerCut::KeepAll | PowerCut::DropUnsynced | PowerCut::Names { .. }
        );
        match self.open(fs) {
            Ok(engine) => engine,
            Err(e) if self.is_absolute() && !leaves_whole => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{what}: {e}");
                *refused += 1;
                let tolerant = Self {
                    mode: RecoveryMode::TolerateTailCorruption,
                    ..self
                };
                let engine = tolerant.open(fs);
                engine.unwrap_or_else(|e| panic!("{what}: {e}"))
            }
            Err(e) => panic!("{what}: {e}"),
        }
    }
}

impl Dirs {
    /// Has the directories tell anew whether they have space, and now and then an append to one find none; or the first be slow now and then.
    fn worsen(self, faults: &Faults, rng: &mut Rng, clock: &Arc<dyn Clock>) {
        faults.clear();
        match self {
            Self::One => {}
            Self::Slow => {
                if rng.chance(1, 6) {
                    let calls = [
                        OpKind::Append,
                        OpKind::Sync,
                        OpKind::Create,
                        OpKind::SyncDir,
                    ];
                    let slow = Fault::io().on(&[calls[rng.range(0..4)]]);
                    let slow = slow.path_with(dir().to_string_lossy());
                    faults.add(slow.slow(Arc::clone(clock), THRESHOLD * 2));
                }
            }
            Self::Two => {
                for dir in [dir(), spill_dir()] {
                    // More than before, for else a directory in which an append found none gets no file.
                    let free = if rng.chance(1, 2) {
                        0
                    } else {
                        rng.u64() | 1 << 40
                    };
                    let answer = Fault::no_space().on(&[OpKind::FreeSpace]).free(free);
                    faults.add(answer.path_with(dir.to_string_lossy()).forever());
                    if rng.chance(1, 6) {
                        let fault = Fault::no_space().on(&[OpKind::Append]);
                        faults.add(fault.path_with(dir.to_string_lossy()));
                    }
                }
            }
        }
    }
}

/// What a script has come to.
struct Outcome {
    /// What the engine held after each batch, the first before any.
    states: Vec<Model>,
    /// How many of them a sync has followed.
    synced: usize,
    /// What it would hold had the failed batch behind each state succeeded.
    attempted: Vec<(usize, Model)>,
    failed_sync: bool,
    /// Whether files of the append queue, and of the rewrite queue, were deleted.
    has_deleted: [bool; 2],
    /// Files that were made in the second directory, and in all.
    made: [u64; 2],
}

impl Outcome {
    /// True if `found` may be what is there after the states up to number `least`.
    fn allows(&self, found: &Model, least: usize) -> bool {
        self.states[least..].contains(found)
            || self
                .attempted
                .iter()
                .any(|(after, state)| *after >= least && state == found)
    }
}

const STEPS: usize = 60;

/// Writes random batches, some synced, purges, and opens again now and then; goes on after errors.
fn run(fs: &Arc<dyn FileSystem>, setting: Setting, seed: u64, check: Option<&Faults>) -> Outcome {
    // Before it has failed a call, one of those that check would.
    let check = || check.is_some_and(|faults| faults.injected() > 0);
    let worse = FaultFileSystem::new(Arc::clone(fs));
    let arc: Arc<dyn FileSystem> = Arc::new(worse.clone());
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let mut rng = Rng::new(seed);
    let mut out = Outcome {
        states: vec![Model::new()],
        synced: 0,
        attempted: Vec::new(),
        failed_sync: false,
        has_deleted: [false; 2],
        made: [0; 2],
    };
    // Files of one directory have other alignments.
    let mut alignments = [0, 512, 0, 0].into_iter().cycle().skip(seed as usize % 4);
    let mut open = || setting.open_on(&arc, &clock, alignments.next().unwrap_or(0));
    let mut engine = open().ok();
    for step in 0..STEPS {
        setting.dirs.worsen(worse.faults(), &mut rng, &clock);
        if step % 9 == 8
            && let Some(engine) = engine.take()
        {
            let metrics = engine.metrics();
            let made = [metrics.files_spilled, metrics.files_made];
            for (sum, made) in out.made.iter_mut().zip(made) {
                *sum += made.append + made.rewrite;
            }
            if engine.close().is_err() {
                out.failed_sync = true;
                break;
            }
            out.synced = out.states.len() - 1;
        }
        if engine.is_none() {
            engine = open().ok();
        }
        let last = out.states[out.states.len() - 1].clone();
        if step % 3 == 2
            && let Some(engine) = &engine
        {
            // One that fails half-way changes nothing that can be seen.
            if let Err(e) = engine.purge_expired_files()
                && check()
            {
                assert_eq!(content(engine), last, "step {step} {e}");
            }
            for (queue, has) in [Queue::Append, Queue::Rewrite]
                .into_iter()
                .zip(&mut out.has_deleted)
            {
                *has |= engine.file_span(queue).is_some_and(|(first, _)| first > 1);
            }
        }
        let mut next = last.clone();
        let mut batch = random_batch(&mut rng, &mut next, 0);
        let sync = rng.chance(1, 3);
        let Some(engine) = &engine else { continue };
        let before = batch.clone();
        match engine.write(&mut batch, sync) {
            Ok(_) => {
                out.states.push(next);
                if sync {
                    out.synced = out.states.len() - 1;
                }
            }
            Err(_) => {
                assert_eq!(batch, before, "a failed batch is as it was");
                out.attempted.push((out.states.len() - 1, next));
                if check() {
                    assert_eq!(content(engine), last);
                }
                // What a failed sync has dropped can still be read by who opens again, and is
                // not on the disk: nothing is promised of what is written behind it.
                if engine.sync().is_err() {
                    out.failed_sync = true;
                    break;
                }
                out.synced = out.states.len() - 1;
            }
        }
        if rng.chance(1, 8) {
            if engine.sync().is_err() {
                out.failed_sync = true;
                break;
            }
            out.synced = out.states.len() - 1;
        }
    }
    out
}

/// What cuts have met.
#[derive(Debug, Default)]
struct Met {
    points: u64,
    /// Cuts after which a directory was refused for absolute consistency.
    refused: u64,
    /// Histories in which the rewrite queue was written anew.
    written_anew: u32,
    /// Files made in the second directory, and in all, by the whole histories.
    made: [u64; 2],
}

fn cut_everywhere(dirs: Dirs, seeds: std::ops::Range<u64>) -> Met {
    let mut met = Met::default();
    for seed in seeds {
        for (number, setting) in Setting::all(dirs) {
            for at in points(number, seed) {
                let fs = disk();
                fs.crash_after(at);
                let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
                let out = run(&arc, setting, seed, None);
                if !fs.is_power_off() {
                    assert!(out.has_deleted[0], "seed {seed} {setting:?}");
                    met.written_anew += u32::from(out.has_deleted[1]);
                    for (sum, made) in met.made.iter_mut().zip(out.made) {
                        *sum += made;
                    }
                    break;
                }
                met.points += 1;
                cut_at(
                    &fs,
                    setting,
                    at,
                    &out,
                    &mut met.refused,
                    &format!("{seed} {at} {setting:?}"),
                );
            }
        }
    }
    println!("{dirs:?}: {met:?}");
    met
}

/// Cuts the power of a disk, and looks at what is left.
fn cut_at(
    fs: &MemFileSystem,
    setting: Setting,
    at: u64,
    out: &Outcome,
    refused: &mut u64,
    what: &str,
) {
    let tail = |fill| PowerCut::Tail { seed: at, fill };
    for cut in [
        PowerCut::KeepAll,
        PowerCut::DropUnsynced,
        PowerCut::Torn { seed: at },
        PowerCut::Torn {
            seed: at + 1_000_000,
        },
        PowerCut::Names { seed: at },
        tail(TailFill::Zeros),
        tail(TailFill::Garbage),
        tail(TailFill::Stale),
    ] {
        let what = format!("{what} {cut:?}");
        let disk = fs.crash(cut);
        let engine = setting.open_after(&disk, cut, refused, &what);
        let found = content(&engine);
        let least = if cut == PowerCut::KeepAll {
            out.states.len() - 1
        } else {
            out.synced
        };
        assert!(out.allows(&found, least), "{what}");
        // What is there stays, and what is written behind it too, also when purged.
        let mut after = found.clone();
        let mut batch = random_batch(&mut Rng::new(at), &mut after, 0);
        engine.write(&mut batch, true).unwrap();
        if at.is_multiple_of(2) {
            engine.purge_expired_files().unwrap();
        }
        let engine = setting.open(&disk.crash(PowerCut::DropUnsynced));
        let engine = engine.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(content(&engine), after, "{what}");
    }
}

#[test]
fn after_a_power_cut_every_synced_batch_is_there_and_none_is_torn() {
    let met = cut_everywhere(Dirs::One, 0..3);
    assert!(met.points > 100 && met.written_anew > 1, "{met:?}");
}

#[test]
fn after_a_power_cut_two_directories_are_one_log() {
    let met = cut_everywhere(Dirs::Two, 10..13);
    let [second, all] = met.made;
    assert!(met.points > 100 && met.written_anew > 1, "{met:?}");
    assert!(second > 10 && all - second > 10, "{met:?}");
}

#[test]
fn after_a_power_cut_a_log_that_left_a_slow_directory_is_whole() {
    let met = cut_everywhere(Dirs::Slow, 20..23);
    let [second, all] = met.made;
    assert!(met.points > 100 && met.written_anew > 1, "{met:?}");
    assert!(second > 10 && all - second > 10, "{met:?}");
}

fn cut_opens(dirs: Dirs, seeds: std::ops::Range<u64>) -> u64 {
    let (mut points, mut refused) = (0, 0);
    for seed in seeds {
        for (number, setting) in Setting::all(dirs) {
            // Cuts that fall into purges too; each other one would take long.
            for at in (1 + 7 * (number as u64)..).step_by(7 * SETTINGS.len()) {
                let fs = disk();
                fs.crash_after(at);
                let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
                let out = run(&arc, setting, seed, None);
                if !fs.is_power_off() {
                    break;
                }
                let what = format!("{seed} {at} {setting:?}");
                // A record that is cut off is an error of absolute consistency, however often it is opened.
                let first = fs.crash(match setting.is_absolute() {
                    true => PowerCut::DropUnsynced,
                    false => PowerCut::Torn { seed: at },
                });
                let found = content(&setting.open(&first.fork()).unwrap());
                assert!(out.allows(&found, out.synced), "{what}");
                for calls in 0.. {
                    let disk = first.fork();
                    disk.crash_after(calls);
                    let opened = setting.open(&disk);
                    let is_off = disk.is_power_off();
                    drop(opened);
                    for cut in [PowerCut::DropUnsynced, PowerCut::Torn { seed: calls }] {
                        let what = format!("{what} {calls} {cut:?}");
                        // Who closes writes padding, which may be cut off.
                        let again = disk.crash(cut);
                        let again = setting.open_after(&again, cut, &mut refused, &what);
                        assert!(out.allows(&content(&again), out.synced), "{what}");
                    }
                    points += 1;
                    if !is_off {
                        break;
                    }
                }
            }
        }
    }
    println!("{dirs:?}: {points} cuts while it is opened, {refused} directories refused");
    points
}

#[test]
fn a_power_cut_while_a_directory_is_opened_loses_nothing() {
    assert!(cut_opens(Dirs::One, 0..3) > 100);
    assert!(cut_opens(Dirs::Two, 10..12) > 100);
    assert!(cut_opens(Dirs::Slow, 20..22) > 100);
}

#[test]
fn unsynced_batches_are_there_up_to_the_first_one_in_pieces() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let whole = Options::default();
    let engine = Engine::open(&arc, dir(), whole.clone()).unwrap();
    let mut states = vec![content(&engine)];
    let mut rng = Rng::new(Rng::seed_or(41));
    for index in 1..=10 {
        // Several sectors, so that a block can be damaged between a good header and footer.
        let mut batch = LogBatch::default();
        batch.add_entries(1, index, &[rng.bytes(2000)]).unwrap();
        engine.write(&mut batch, false).unwrap();
        states.push(content(&engine));
    }
    let lengths = lengths_after_torn_cuts(&fs, &whole, &states);
    assert!(lengths.len() > 3, "{lengths:?}");
}

/// Has each call of histories fail in turn; how many there were.
fn fail_everywhere(dirs: Dirs, seeds: std::ops::Range<u64>) -> u64 {
    let mut calls = 0;
    for kind in 0..4 {
        for seed in seeds.clone() {
            for (number, setting) in Setting::all(dirs) {
                for n in points(number, seed) {
                    if !fail_at(kind, seed, n, setting) {
                        break;
                    }
                    calls += 1;
                }
            }
        }
    }
    println!("{dirs:?}: {calls} calls failed");
    calls
}

/// Has one call of a history fail, and looks at what is left; false if there is no such call.
fn fail_at(kind: u32, seed: u64, n: u64, setting: Setting) -> bool {
    let mem = disk();
    let fs = FaultFileSystem::over_memory(mem.clone());
    fs.faults().lose_names();
    let fault = match kind {
        0 => Fault::io(),
        1 => Fault::no_space().on(&[OpKind::Append]).short(7),
        2 => Fault::no_space(),
        _ => Fault::io().after_effect(),
    };
    fs.faults().add(fault.nth(n));
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let out = run(&arc, setting, seed, Some(fs.faults()));
    if fs.faults().injected() == 0 {
        return false;
    }
    let name = format!("kind {kind} seed {seed} n {n} {setting:?}");
    let open = |cut| {
        let engine = setting.open(&mem.crash(cut));
        engine.unwrap_or_else(|e| panic!("{name} {cut:?}: {e}"))
    };
    // A process that died and one whose machine lost power.
    let found = content(&open(PowerCut::KeepAll));
    if out.failed_sync {
        assert!(out.allows(&found, out.synced), "{name}");
    } else {
        assert_eq!(Some(&found), out.states.last(), "{name}");
    }
    for cut in [PowerCut::DropUnsynced, PowerCut::Names { seed: n }] {
        assert!(
            out.allows(&content(&open(cut)), out.synced),
            "{name} {cut:?}"
        );
    }
    true
}

#[test]
fn a_call_that_fails_changes_nothing_and_loses_nothing() {
    assert!(fail_everywhere(Dirs::One, 0..2) > 500);
}

#[test]
fn a_call_that_fails_in_one_of_two_directories_loses_nothing() {
    assert!(fail_everywhere(Dirs::Two, 10..12) > 500);
}

#[test]
fn a_call_that_fails_beside_a_slow_directory_loses_nothing() {
    assert!(fail_everywhere(Dirs::Slow, 20..22) > 500);
}

#[test]
fn where_the_sync_of_a_cut_fails_nothing_is_written_any_more() {
    let mem = disk();
    let fs = FaultFileSystem::over_memory(mem);
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let mut batch = LogBatch::default();
    batch.add_entries(1, 1, &["first"]).unwrap();
    engine.write(&mut batch, true).unwrap();
    batch.add_entries(1, 2, &["second"]).unwrap();
    fs.faults()
        .add(Fault::no_space().on(&[OpKind::Append]).short(7));
    fs.faults().add(Fault::io().on(&[OpKind::Sync]));
    assert!(engine.write(&mut batch, false).is_err());
    // What was cut off may come back behind what would be written now.
    let e = engine.write(&mut batch, false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
}

#[test]
fn a_failed_append_leaves_the_engine_as_it_was_and_writable() {
    let mem = disk();
    let fs = FaultFileSystem::over_memory(mem.clone());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let mut batch = LogBatch::default();
    batch.add_entries(1, 1, &["first"]).unwrap();
    engine.write(&mut batch, true).unwrap();
    let before = content(&engine);
    batch.add_entries(1, 2, &["second"]).unwrap();
    for short in 0..20 {
        let fault = Fault::no_space().on(&[OpKind::Append]).short(short);
        fs.faults().add(fault);
        assert!(engine.write(&mut batch, true).is_err());
        assert_eq!(content(&engine), before);
    }
    engine.write(&mut batch, true).unwrap();
    let engine = open(&mem.crash(PowerCut::DropUnsynced)).unwrap();
    assert_eq!(engine.last_index(1), Some(2));
}

/// Writes batches with a sync up to the first that fails, or `count`; the index of the next entry.
fn write_on(engine: &Engine, from: u64, count: u64) -> u64 {
    for index in from..from + count {
        let mut batch = LogBatch::default();
        let entry = Rng::new(index).bytes(300);
        batch.add_entries(1, index, &[entry]).unwrap();
        if engine.write(&mut batch, true).is_err() {
            return index;
        }
    }
    from + count
}

/// How the file behind the newest one is to be made, whose name a sync does not bring to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// As one of a header alone, when the newest is full.
    Header,
    /// The same, with padding behind the header.
    Padded,
    /// Of a spare file, with what that held behind the header.
    OfSpare,
    /// For a purge, while the newest has room: it is written on.
    Early,
}

impl Next {
    fn options(self) -> Options {
        Options {
            record_alignment: if self == Self::Padded { 512 } else { 0 },
            ..options()
        }
    }

    fn open(self, fs: &Arc<dyn FileSystem>) -> orogen_base::Result<Engine> {
        Engine::open(fs, dir(), self.options())
    }

    /// A log with spare files if they are wanted, and the index of the next entry.
    fn prepare(self, fs: &Arc<dyn FileSystem>) -> (Option<Engine>, u64) {
        if self != Self::OfSpare {
            return (None, 1);
        }
        let engine = self.open(fs).expect("opens");
        let next = write_on(&engine, 1, 12);
        let mut batch = LogBatch::default();
        batch.add_command(1, Command::Compact { index: next - 1 });
        engine.write(&mut batch, true).expect("there is room");
        engine.purge_expired_files().expect("there is room");
        let names = fs.list(dir()).expect("it is there");
        assert!(names.iter().any(|name| name.ends_with(".reserved")));
        (Some(engine), next)
    }

    /// Writes up to the first batch that fails, or some; the index of the next entry.
    fn write(self, engine: &Engine, from: u64) -> u64 {
        if self != Self::Early {
            return write_on(engine, from, 10);
        }
        let next = write_on(engine, from, 1);
        let _ = engine.rewrite_append_queue(None, RewriteSteps::All);
        write_on(engine, next, 1)
    }
}

#[test]
fn a_file_whose_name_was_not_synced_is_made_again() {
    // The file that could not be made is still there: in the same process, and in the next one.
    for (next, dies) in [
        (Next::Header, false),
        (Next::Header, true),
        (Next::Padded, true),
        (Next::OfSpare, true),
        (Next::Early, false),
    ] {
        let mut failed = 0;
        for nth in 1.. {
            let mem = disk();
            let fs = FaultFileSystem::over_memory(mem.clone());
            fs.faults().lose_names();
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let (ready, from) = next.prepare(&arc);
            let before = fs.faults().count(OpKind::SyncDir);
            let fault = Fault::io().on(&[OpKind::SyncDir]).path_with("/log");
            fs.faults().add(fault.nth(nth));
            fs.faults().add(Fault::io().on(&[OpKind::Remove]).forever());
            let engine = ready.or_else(|| next.open(&arc).ok());
            let to = engine
                .as_ref()
                .map_or(from, |engine| next.write(engine, from));
            if fs.faults().count(OpKind::SyncDir) - before < nth {
                break;
            }
            failed += 1;
            fs.faults().clear();
            let mem = match dies {
                true => mem.crash(PowerCut::KeepAll),
                false => mem,
            };
            let whole: Arc<dyn FileSystem> = Arc::new(mem.clone());
            let again = (dies || engine.is_none()).then(|| next.open(&whole).unwrap());
            let engine = again.as_ref().or(engine.as_ref()).unwrap();
            assert_eq!(write_on(engine, to, 10), to + 10);
            let after = open(&mem.crash(PowerCut::DropUnsynced)).unwrap();
            assert!(content(&after) == content(engine), "{next:?} {dies} {nth}");
        }
        assert!(failed > 2, "{next:?} {failed}");
    }
}
