//! The program `orogen-torture`: runs of any size, one line for each figure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use orogen_env::{Clock, SystemClock};
use orogen_torture::fault::{Cause, Variant, Way};
use orogen_torture::heap::CountingAllocator;
use orogen_torture::parts::{self, Machine, Size};
use orogen_torture::report::{self, Figure, Kept};
use orogen_torture::{
    allocations, concurrent, crash, damage, determinism, fault, flips, full_disk, guard, kill,
    memory, metamorphic, open, repair, scripts, short_calls, stalls,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Tries to break the engine, and tells how often it tried.
#[derive(Parser)]
#[command(name = "orogen-torture", version)]
struct Cli {
    /// Write all figures to this file, as JSON; `orogen_torture::report` has the shape.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
    /// Threads for trials; default: one for each processor.
    #[arg(long, global = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Cuts the power after each call of the file system.
    Crash(CrashArgs),
    /// Lets the n-th call of each kind fail.
    Fault(FaultArgs),
    /// Random calls under random options against a map.
    Metamorphic(MetamorphicArgs),
    /// Many threads, and the invariants of every snapshot.
    Concurrent(ConcurrentArgs),
    /// Flips bits, cuts files off, exchanges pieces.
    Damage(DamageArgs),
    /// Repairs whole and damaged directories, also while the power goes.
    Repair(RepairArgs),
    /// Turns bits over in memory: of batches, memtables, cached blocks and new tables.
    Flips(FlipsArgs),
    /// Builds tables twice.
    Determinism(DeterminismArgs),
    /// Fills a real file system of 16 MiB and frees it, again and again; needs root to mount it.
    FullDisk(FullDiskArgs),
    /// Kills a real process while it writes to a real file system.
    Kill(KillArgs),
    /// The process that is killed.
    #[command(hide = true)]
    KillChild(KillChildArgs),
    /// Writes and reads far more than a budget of memory, and looks what the process takes.
    Memory(MemoryArgs),
    /// Refuses memory to the n-th big allocation, of 32 KiB or more, for many n.
    Allocations(AllocationsArgs),
    /// The process that is refused memory.
    #[command(hide = true)]
    AllocationsChild(AllocationsChildArgs),
    /// Opens a database of many tables, and one with a long log, and tells how long that took.
    Open(OpenArgs),
    /// Writes faster than compactions can, and tells how long single puts took.
    Stalls(StallsArgs),
    /// Lets system calls on a real file system do a part of their work, or be interrupted.
    ShortCalls(ShortCallsArgs),
    /// All of them in their default size, but for memory, open and stalls; full-disk only with
    /// --deep.
    All(AllArgs),
}

#[derive(Args)]
struct AllArgs {
    /// In the size for nights: every bit of ten directories, every call of every script, all
    /// images of each point, thousands of drawn scripts and histories.
    #[arg(long)]
    deep: bool,
    /// Only the parts of these names, as `crash-random`, `damage/flip/3` or `metamorphic/7`, in
    /// this order.
    #[arg(long)]
    only: Vec<String>,
    /// Tell the names of the parts, and run nothing.
    #[arg(long)]
    list: bool,
    /// Leave out the parts that the file of --json says are done and passed, and keep them there.
    #[arg(long, requires = "json")]
    resume: bool,
    /// Begin no part after so many minutes.
    #[arg(long)]
    minutes: Option<f64>,
}

#[derive(Args)]
struct ShortCallsArgs {
    /// How many seeds.
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct CrashArgs {
    /// Only these scripts.
    #[arg(long)]
    script: Vec<String>,
    /// Only this point.
    #[arg(long)]
    point: Option<u64>,
    /// Only this kind of image: keep, drop, torn, names, zeros, garbage or stale.
    #[arg(long)]
    mode: Option<crash::Cut>,
    /// Seed of the torn images.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Torn images of each point.
    #[arg(long, default_value_t = 3)]
    torn: u64,
    /// Every so many points get all 26 images; 0: none.
    #[arg(long, default_value_t = 7)]
    full_stride: u64,
    /// Every so many points the recovery is crashed at each of its calls too; 0: never.
    #[arg(long, default_value_t = 16)]
    recovery_stride: u64,
    /// Every so many points.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    stride: u64,
    /// How often all of it: background threads run otherwise each time.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    repeat: u64,
    /// Put the disk of a failure here.
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Args)]
struct FaultArgs {
    /// Only these scripts.
    #[arg(long)]
    script: Vec<String>,
    /// Only this kind of call.
    #[arg(long)]
    kind: Option<String>,
    /// What a failing call does: nothing, short or all.
    #[arg(long)]
    way: Option<String>,
    /// Only this cause: eio, enospc, edquot, eintr, emfile or estale.
    #[arg(long)]
    errno: Option<Cause>,
    /// Only faults that last.
    #[arg(long)]
    forever: bool,
    /// Only faults on files with this in their path.
    #[arg(long)]
    part: Option<String>,
    /// Only this call. Other choices are then exact: what is not set is off.
    #[arg(long)]
    nth: Option<u64>,
    /// Every so many calls.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    stride: u64,
    /// Every so many of those, for causes beside eio and enospc.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..))]
    rare_stride: u64,
    /// Also of long scripts every call; else every fifth.
    #[arg(long)]
    every: bool,
    /// How often all of it.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    repeat: u64,
}

#[derive(Args)]
struct MetamorphicArgs {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// Calls of each.
    #[arg(long, default_value_t = 2000, value_parser = value_parser!(u64).range(1..))]
    ops: u64,
    /// How often each: background threads run otherwise each time.
    #[arg(long, default_value_t = 1, value_parser = value_parser!(u64).range(1..))]
    repeat: u64,
    /// Write the calls of the seed to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Put the disk before the last open of a seed that fails here.
    #[arg(long)]
    keep: Option<PathBuf>,
}

#[derive(Args)]
struct ConcurrentArgs {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 2, value_parser = value_parser!(u64).range(1..))]
    seeds: u64,
    /// How long each.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

#[derive(Args)]
struct DamageArgs {
    /// Only this way: flip, cut, grow, swap-sectors, swap-blocks, replace, bits, burst.
    #[arg(long)]
    way: Option<damage::Way>,
    /// Every so many bits and lengths.
    #[arg(long, default_value_t = 29, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    stride: usize,
    /// Cases of bits and burst, each drawn.
    #[arg(long, default_value_t = 4000)]
    random: usize,
    /// Only this case.
    #[arg(long)]
    case: Option<u64>,
    /// Only: every bit of every table, and the table is read alone.
    #[arg(long)]
    tables: bool,
    /// Of the directory of this number; from 1 on formats are drawn.
    #[arg(long, default_value_t = 0)]
    reference: u64,
    /// Of the directory whose blob files have holes.
    #[arg(long, conflicts_with_all = ["reference", "tables"])]
    holes: bool,
}

/// What is repaired.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Repaired {
    /// Directories that a crash left.
    Healthy,
    /// Damaged directories.
    Damaged,
    /// Damaged directories, while the power goes.
    Crashed,
}

#[derive(Args)]
struct RepairArgs {
    /// Only these.
    #[arg(long)]
    only: Option<Repaired>,
    /// Directories that a crash left.
    #[arg(long, default_value_t = 1000)]
    healthy: u64,
    /// Damaged directories.
    #[arg(long, default_value_t = 5000)]
    damaged: u64,
    /// The first seed; each directory has its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct FlipsArgs {
    /// Only here: batch, memtable, block or output.
    #[arg(long)]
    place: Option<flips::Place>,
    /// Flips of each place.
    #[arg(long, default_value_t = 2500, value_parser = value_parser!(u64).range(1..))]
    flips: u64,
    /// The first seed; each flip has its own.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Without protection: to see that the flips do harm.
    #[arg(long)]
    unprotected: bool,
}

#[derive(Args)]
struct DeterminismArgs {
    /// How many tables.
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u64).range(1..))]
    jobs: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct MemoryArgs {
    /// Only this workload: mixed, fillrandom, overwrite, zipf, scan, large, families or cycles.
    #[arg(long)]
    only: Option<memory::Workload>,
    /// Bytes of the budget.
    #[arg(long, default_value_t = 32 << 20)]
    limit: u64,
    /// Bytes of values that each workload writes.
    #[arg(long, default_value_t = 64 << 20)]
    data: u64,
    /// In the size for a night: a budget of 64 MiB, 4 GiB for each workload.
    #[arg(long, conflicts_with_all = ["limit", "data"])]
    deep: bool,
    /// Decides keys and values.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct AllocationsArgs {
    /// Points at least: each is one trial in which memory was refused.
    #[arg(long, default_value_t = 2000, value_parser = value_parser!(u64).range(1..))]
    points: u64,
    /// The first seed; each has options and calls of its own, and every second of its
    /// allocations is a point.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this allocation of the first seed.
    #[arg(long)]
    nth: Option<u64>,
    /// Print where memory was refused.
    #[arg(long)]
    trace: bool,
}

#[derive(Args)]
struct AllocationsChildArgs {
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    from: u64,
    #[arg(long)]
    once: bool,
    #[arg(long)]
    trace: bool,
}

#[derive(Args)]
struct OpenArgs {
    /// Tables of the first database; 0: none is made.
    #[arg(long, default_value_t = 10_000)]
    tables: u64,
    /// Mebibytes in the log of the second; 0: none is made.
    #[arg(long, default_value_t = 1024)]
    log_mib: u64,
}

#[derive(Args)]
struct StallsArgs {
    /// How long.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Decides keys and values.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct FullDiskArgs {
    /// How often it is filled and freed.
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u64).range(1..))]
    cycles: u64,
    /// Decides keys and values.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write logs through memory.
    #[arg(long)]
    mapped: bool,
}

#[derive(Args)]
struct KillArgs {
    /// How often.
    #[arg(long, default_value_t = 150, value_parser = value_parser!(u64).range(1..))]
    kills: u64,
    /// Decides when, and under which options.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Args)]
struct KillChildArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    cycle: u64,
}

/// A trial of the deep run may take so long: it is made for the time that others leave.
const DEEP_TRIAL_SECS: u64 = 1800;

fn this_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let threads = cli.threads.unwrap_or_else(guard::default_threads);
    let mut figures = Vec::new();
    let mut skipped = None;
    let mut tell = |figure: Figure| {
        report::say(&figure);
        figures.push(figure);
    };
    let done = match &cli.command {
        Command::Crash(args) => run_crash(args, threads, &mut tell),
        Command::Fault(args) => run_fault(args, threads, &mut tell),
        Command::Metamorphic(args) => {
            let &MetamorphicArgs {
                seed,
                seeds,
                ops,
                repeat,
                ref trace,
                ref keep,
            } = args;
            tell(metamorphic::run(&metamorphic::Config {
                threads,
                seed,
                seeds,
                ops,
                repeat,
                trace: trace.clone(),
                keep: keep.clone(),
            }));
            Ok(())
        }
        Command::Concurrent(args) => {
            let &ConcurrentArgs {
                seed,
                seeds,
                seconds,
            } = args;
            let config = concurrent::Config {
                seed,
                seeds,
                seconds,
                ..concurrent::Config::default()
            };
            tell(concurrent::run(&config));
            Ok(())
        }
        Command::Damage(args) => {
            let &DamageArgs {
                stride,
                random,
                case,
                reference,
                holes,
                ..
            } = args;
            let config = damage::Config {
                threads,
                stride,
                random,
                case,
                reference,
                holes,
                ..damage::Config::default()
            };
            if args.tables {
                tell(damage::table_bits(&config));
            }
            for way in damage::Way::ALL.into_iter().filter(|_| !args.tables) {
                if args.way.is_none_or(|only| only == way) {
                    tell(damage::run(way, &config));
                }
            }
            Ok(())
        }
        Command::Repair(args) => {
            let config = repair::Config {
                threads,
                healthy: args.healthy,
                damaged: args.damaged,
                seed: args.seed,
            };
            let wants = |what| args.only.is_none_or(|only| only == what);
            if wants(Repaired::Healthy) {
                tell(repair::healthy(&config));
            }
            if wants(Repaired::Damaged) {
                tell(repair::damaged(&config));
            }
            if wants(Repaired::Crashed) {
                tell(repair::crashed(&config));
            }
            Ok(())
        }
        Command::Flips(args) => {
            let &FlipsArgs {
                flips,
                seed,
                unprotected,
                ..
            } = args;
            let config = flips::Config {
                threads,
                flips,
                seed,
                unprotected,
            };
            for place in flips::Place::ALL {
                if args.place.is_none_or(|only| only == place) {
                    tell(flips::run(place, &config));
                }
            }
            Ok(())
        }
        Command::Determinism(args) => {
            let &DeterminismArgs { jobs, seed } = args;
            tell(determinism::run(&determinism::Config {
                threads,
                seed,
                jobs,
            }));
            Ok(())
        }
        Command::FullDisk(args) => {
            let &FullDiskArgs {
                cycles,
                seed,
                mapped,
            } = args;
            match full_disk::run(&full_disk::Config {
                cycles,
                seed,
                mapped,
            }) {
                Ok(figure) => tell(figure),
                Err(why) => skipped = Some(("full-disk", why)),
            }
            Ok(())
        }
        Command::Kill(args) => {
            let &KillArgs { kills, seed } = args;
            this_program().map(|program| {
                tell(kill::run(&kill::Config {
                    program,
                    kills,
                    seed,
                }));
            })
        }
        Command::KillChild(args) => {
            return end(kill::child(&args.dir, args.seed, args.cycle).map(|()| true));
        }
        Command::Memory(args) => {
            let &MemoryArgs {
                only,
                limit,
                data,
                deep,
                seed,
            } = args;
            let (limit, data) = if deep {
                (64 << 20, 4 << 30)
            } else {
                (limit, data)
            };
            let config = memory::Config {
                limit,
                data,
                seed,
                only,
            };
            memory::run(&config).into_iter().for_each(&mut tell);
            Ok(())
        }
        Command::Allocations(args) => {
            let &AllocationsArgs {
                points,
                seed,
                nth,
                trace,
            } = args;
            this_program().map(|program| {
                tell(allocations::run(&allocations::Config {
                    program,
                    threads,
                    points,
                    seed,
                    nth,
                    trace,
                }));
            })
        }
        Command::AllocationsChild(args) => {
            let done = allocations::child(args.seed, args.from, args.once, args.trace);
            return end(done.map(|()| true));
        }
        Command::Open(args) => {
            let &OpenArgs { tables, log_mib } = args;
            open::run(&open::Config { tables, log_mib })
                .into_iter()
                .for_each(&mut tell);
            Ok(())
        }
        Command::Stalls(args) => {
            let &StallsArgs { seconds, seed } = args;
            tell(stalls::run(&stalls::Config { seconds, seed }));
            Ok(())
        }
        Command::ShortCalls(args) => {
            let &ShortCallsArgs { seeds, seed } = args;
            tell(short_calls::run(&short_calls::Config {
                threads,
                seed,
                seeds,
            }));
            Ok(())
        }
        // Writes its file itself, after each part.
        Command::All(args) => return end(run_all(args, threads, cli.json.as_deref())),
    };
    let done = done.and_then(|()| {
        let mut kept = Kept::default();
        for figure in &figures {
            kept.add(None, figure);
        }
        if let Some((name, why)) = &skipped {
            kept.add_skipped(None, name, why);
        }
        if let Some(path) = &cli.json {
            kept.write(path, &arguments())?;
        }
        match skipped {
            _ if !figures.iter().all(Figure::passed) => Ok(false),
            Some((name, why)) => Err(format!("{name} is skipped: {why}")),
            // A script may have fewer points than the one that is asked for; not all of them.
            None if !figures.iter().any(Figure::was_tried) => Err("nothing was tried".to_owned()),
            None => Ok(true),
        }
    });
    end(done)
}

/// 0: all passed, 1: something did not, 2: it could not be tried.
fn end(passed: Result<bool, String>) -> ExitCode {
    match passed {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(what) => {
            report::say(&what);
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Vec<String> {
    std::env::args().skip(1).collect()
}

fn run_crash(
    args: &CrashArgs,
    threads: usize,
    tell: &mut impl FnMut(Figure),
) -> Result<(), String> {
    let config = crash::Config {
        threads,
        torn: args.torn,
        full_stride: args.full_stride,
        recovery_stride: args.recovery_stride,
        seed: args.seed,
        point: args.point,
        cut: args.mode,
        stride: args.stride,
        repeat: args.repeat,
        keep: args.keep.clone(),
    };
    for script in scripts::named(&args.script)? {
        tell(crash::run(&script, &config));
    }
    Ok(())
}

fn run_fault(
    args: &FaultArgs,
    threads: usize,
    tell: &mut impl FnMut(Figure),
) -> Result<(), String> {
    let way = |w: Way| format!("{w:?}").to_lowercase();
    let wanted = |v: &Variant| {
        let exact = args.nth.is_some();
        args.kind
            .as_ref()
            .is_none_or(|k| k.eq_ignore_ascii_case(&format!("{:?}", v.kind)))
            && args.way.as_ref().is_none_or(|w| *w == way(v.way))
            && args
                .errno
                .map_or(!exact || v.cause == Cause::Io, |only| v.cause == only)
            && (v.forever == args.forever || !args.forever && !exact)
            && match &args.part {
                None => !exact || v.part.is_empty(),
                Some(part) => v.part == part,
            }
    };
    let variants: Vec<Variant> = Variant::all().into_iter().filter(wanted).collect();
    if variants.is_empty() {
        return Err("no such fault".to_owned());
    }
    let config = fault::Config {
        threads,
        variants,
        nth: args.nth,
        stride: args.stride,
        rare_stride: args.rare_stride,
        every: args.every,
    };
    for _ in 0..args.repeat {
        for script in scripts::named(&args.script)? {
            if script.takes_faults() {
                tell(fault::run(&script, &config));
            }
        }
    }
    Ok(())
}

/// Runs the parts that are asked for; true if all passed. A part that cannot be tried keeps no other
/// from being run, but the end tells of it.
fn run_all(args: &AllArgs, threads: usize, json: Option<&Path>) -> Result<bool, String> {
    let size = if args.deep { Size::Deep } else { Size::Gate };
    let mut chosen = parts::all(size);
    if !args.only.is_empty() {
        let mut all = std::mem::take(&mut chosen);
        for name in &args.only {
            let of_name: Vec<_> = all.extract_if(.., |part| part.is_of(name)).collect();
            if of_name.is_empty() {
                return Err(format!("no part `{name}` is left; see --list"));
            }
            chosen.extend(of_name);
        }
    }
    if args.list {
        for part in &chosen {
            report::say(&part.name);
        }
        return Ok(true);
    }
    let mut kept = Kept::default();
    if let (true, Some(path)) = (args.resume, json) {
        kept = Kept::read(path)?;
    }
    let before = chosen.len();
    chosen.retain(|part| !kept.has(&part.name));
    report::say(&format_args!(
        "{} parts, {} of them done before",
        before,
        before - chosen.len()
    ));
    if args.deep {
        guard::set_limit_secs(DEEP_TRIAL_SECS);
    }
    let machine = Machine {
        threads,
        program: this_program()?,
    };
    let start = SystemClock.now_micros();
    let mut passed = true;
    let mut skipped = Vec::new();
    for (n, part) in chosen.iter().enumerate() {
        let minutes = SystemClock.now_micros().saturating_sub(start) as f64 / 60e6;
        if args.minutes.is_some_and(|limit| minutes >= limit) {
            report::say(&format_args!("{} parts are left", chosen.len() - n));
            break;
        }
        report::say(&format_args!(
            "[{}/{} after {minutes:.1} minutes] {}",
            n + 1,
            chosen.len(),
            part.name
        ));
        let tried = part.run(&machine).and_then(|figure| {
            if figure.was_tried() {
                return Ok(figure);
            }
            Err("nothing was tried".to_owned())
        });
        match tried {
            Ok(figure) => {
                report::say(&figure);
                passed &= figure.passed();
                kept.add(Some(&part.name), &figure);
            }
            Err(why) => {
                report::say(&format_args!("{} is skipped: {why}", part.name));
                kept.add_skipped(Some(&part.name), &part.name, &why);
                skipped.push(part.name.as_str());
            }
        }
        if let Some(path) = json {
            kept.write(path, &arguments())?;
        }
    }
    if !skipped.is_empty() {
        let told = format!("skipped: {}", skipped.join(", "));
        if passed {
            return Err(told);
        }
        report::say(&told);
    }
    Ok(passed)
}
