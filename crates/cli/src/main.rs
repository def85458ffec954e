//! The `orogen` command: one door to a database directory for people and scripts.
//!
//! ```text
//! arguments -> a command -> data on stdout, talk on stderr -> an exit code
//! ```
//! Invariants: (1) stdout carries what was asked for and nothing else; (2) commands that only
//! read open the directory read-only, beside a process that has it open; (3) a reader that goes
//! away early is no error; (4) every failure has one of the exit codes of [`failure`].

mod failure;
mod terminal;
mod text;
mod open;
mod perf;
mod db;
mod sst;
mod blob;
mod wal;
mod raftlog;
mod manifest;
mod backup;
mod bench;
mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use orogen_env::limits;

use crate::failure::{EXIT_CODES, Failure};
use crate::terminal::Terminal;

/// Looks into, checks and changes databases in RocksDB's formats.
#[derive(Parser)]
#[command(name = "orogen", version, propagate_version = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    output: Output,
    #[command(subcommand)]
    command: Command,
}

/// How everything is printed.
#[derive(clap::Args)]
struct Output {
    /// Print JSON. Keys and values are text; bytes that are none are `\xff`, control characters `\x01`, `\u{85}`, `\n`,
    /// `\t` and `\0`, backslashes `\\`; see --hex.
    #[arg(long, global = true)]
    json: bool,
    /// Keys and values are hexadecimal digits, in arguments and in what is printed.
    #[arg(long, global = true)]
    hex: bool,
    /// Draw no progress bars.
    #[arg(long, global = true)]
    no_progress: bool,
    /// Open a database (no Raft log) to write although its logs are damaged: what stands behind the damage is dropped.
    #[arg(long, global = true)]
    drop_log_damage: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Work with a database directory.
    #[command(subcommand)]
    Db(db::DbCommand),
    /// Look into a table file.
    #[command(subcommand)]
    Sst(sst::SstCommand),
    /// List, look into and check the files of large values.
    #[command(subcommand)]
    Blob(blob::BlobCommand),
    /// Look into a write-ahead log file.
    #[command(subcommand)]
    Wal(wal::WalCommand),
    /// Look into, check, repair and measure directories of Raft logs.
    #[command(subcommand)]
    Raftlog(raftlog::RaftlogCommand),
    /// Look into a MANIFEST.
    #[command(subcommand)]
    Manifest(manifest::ManifestCommand),
    /// Make, verify and restore backups.
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Measure with db_bench's workloads and flags.
    Bench(bench::BenchArgs),
    /// Show what the engine does on real data.
    #[command(subcommand)]
    Demo(demo::DemoCommand),
    /// The process that the demo kills.
    #[command(hide = true)]
    DemoWriter(demo::WriterArgs),
}

fn run(command: Command, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        Command::Db(command) => db::run(command, terminal),
        Command::Sst(command) => sst::run(command, terminal),
        Command::Blob(command) => blob::run(command, terminal),
        Command::Wal(command) => wal::run(command, terminal),
        Command::Raftlog(command) => raftlog::run(command, terminal),
        Command::Manifest(command) => manifest::run(command, terminal),
        Command::Backup(command) => backup::run(command, terminal),
        Command::Bench(args) => bench::run(args, terminal),
        Command::Demo(command) => demo::run(command, terminal),
        Command::DemoWriter(args) => demo::run_writer(&args, terminal),
    }
}

fn main() -> ExitCode {
    let mut cli = Cli::parse();
    if let Command::Bench(args) = &cli.command
        && args.ask_for_help()
    {
        // It ends with the help that is printed.
        cli = Cli::parse_from(["orogen", "bench", "--help"]);
    }
    limits::raise_open_files();
    let mut terminal = Terminal::new(cli.output.json, cli.output.hex, cli.output.no_progress);
    terminal.drop_log_damage = cli.output.drop_log_damage;
    let result = run(cli.command, &mut terminal).and_then(|()| Ok(terminal.flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed before the failure is data all the same.
            let _ = terminal.close_items().and_then(|()| terminal.flush());
            if let Some(message) = failure.message() {
                terminal.note(&format!("orogen: {message}"));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
