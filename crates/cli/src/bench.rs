//! `orogen bench`: hands its flags to the workload tool.

use orogen_bench::{BenchError, Flags};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::terminal::Terminal;

const ABOUT: &str = "\
Example:
  orogen bench --benchmarks=fillseq,readrandom --num=1000000 --db=bench-db
  orogen bench --benchmarks=fillrandom,overwrite --threads=2 --histogram --json

Benchmarks: fillseq fillrandom overwrite readrandom readmissing readseq readreverse seekrandom
  multireadrandom readwhilewriting deleteseq deleterandom compact
  flush waitforcompaction stats levelstats resetstats

The database in --db (default: see --flags) is deleted first, unless --use_existing_db is set.
The flags are db_bench's, and so are their defaults; `orogen bench --flags` lists them.

Exit codes: 0 done; 1 failed; 2 wrong command line; 4 damaged data; 5 open elsewhere; 6 no space;
            7 read-only; 8 not supported; 9 too large";

/// What follows `bench`.
#[derive(clap::Args)]
#[command(after_help = ABOUT)]
pub(crate) struct BenchArgs {
    /// List the flags with their meanings and defaults.
    #[arg(long)]
    flags: bool,
    /// Flags as `--name=value`.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "FLAGS"
    )]
    args: Vec<String>,
}

impl BenchArgs {
    /// True if help is asked for behind the first flag, where it counts as one.
    pub(crate) fn ask_for_help(&self) -> bool {
        self.args.iter().any(|a| a == "--help" || a == "-h")
    }
}

pub(crate) fn run(mut args: BenchArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    if args.flags && terminal.json {
        let flags = Flags::default().list().into_iter();
        let flags: Vec<Value> = flags
            .map(|(name, meaning, default)| {
                json!({ "name": name, "meaning": meaning, "default": default })
            })
            .collect();
        return Ok(terminal.document(&Value::from(flags))?);
    }
    if args.flags {
        return Ok(terminal.raw(Flags::help().as_bytes())?);
    }
    // Options of the whole command stand among flags, too. There are no bars and no keys,
    // and damage in logs is dropped in any case.
    let of_the_command = ["--no-progress", "--hex", "--drop-log-damage"];
    args.args.retain(|a| !of_the_command.contains(&a.as_str()));
    if terminal.json {
        args.args.push("--json".to_owned());
    }
    orogen_bench::run(&args.args, terminal.out(), &mut std::io::stderr()).map_err(|e| match e {
        BenchError::Usage(m) => Failure::Usage(m),
        BenchError::Db(e) => Failure::Engine(e),
        BenchError::Output(e) => Failure::Output(e),
    })
}
