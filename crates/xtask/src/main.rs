//! `cargo x`: the one entry to everything that is done to this repository.
//!
//! A subcommand is a module with a `HELP` text and a `run` function; it says what went wrong as
//! a `String` and the process then ends with code 1. Scripts live here and nowhere else.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a tool of the terminal that times other programs; it runs beside the floors"
)]

mod workspace;
mod step;
mod plots;
mod tidy;
mod setup;
mod fuzz;
mod model;
mod sanitize;
mod check;
mod rewrite;
mod bench;
mod exchange;

use std::process::ExitCode;

/// A subcommand: its name, one line about it, its help and what it does.
struct Subcommand {
    name: &'static str,
    about: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<(), String>,
}

const SUBCOMMANDS: [Subcommand; 10] = [
    Subcommand {
        name: "check",
        about: "all of the gate: fmt, clippy, tidy, docs, tests, fuzz",
        help: check::HELP,
        run: check::run,
    },
    Subcommand {
        name: "tidy",
        about: "rules about the source that the compiler does not know",
        help: tidy::HELP,
        run: tidy::run,
    },
    Subcommand {
        name: "rewrite",
        about: "write the results of datadriven tests into their files",
        help: rewrite::HELP,
        run: rewrite::run,
    },
    Subcommand {
        name: "fuzz",
        about: "feed decoders mutated bytes, guided by coverage",
        help: fuzz::HELP,
        run: fuzz::run,
    },
    Subcommand {
        name: "model",
        about: "run the code of locks and waits under thousands of schedules",
        help: model::HELP,
        run: model::run,
    },
    Subcommand {
        name: "sanitize",
        about: "run tests under AddressSanitizer or ThreadSanitizer",
        help: sanitize::HELP,
        run: sanitize::run,
    },
    Subcommand {
        name: "bench",
        about: "measure beside other engines, in one run",
        help: bench::HELP,
        run: bench::run,
    },
    Subcommand {
        name: "plots",
        about: "draw the measured tables of the guides",
        help: plots::HELP,
        run: plots::run,
    },
    Subcommand {
        name: "exchange",
        about: "directories to and fro with the newest RocksDB, built from source",
        help: exchange::HELP,
        run: exchange::run,
    },
    Subcommand {
        name: "setup",
        about: "install what the tests need: RocksDB's tools and its Python binding",
        help: setup::HELP,
        run: setup::run,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        print_usage();
        return ExitCode::from(2);
    };
    if matches!(name.as_str(), "-h" | "--help" | "help") {
        print_usage();
        return ExitCode::SUCCESS;
    }
    let Some(command) = SUBCOMMANDS.iter().find(|c| c.name == name) else {
        eprintln!("cargo x: no subcommand `{name}`\n");
        print_usage();
        return ExitCode::from(2);
    };
    if rest.iter().any(|a| a == "-h" || a == "--help") {
        println!("{}", command.help.trim());
        return ExitCode::SUCCESS;
    }
    match (command.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo x {name}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn print_usage() {
    println!("usage: cargo x <subcommand> [options]\n");
    for command in &SUBCOMMANDS {
        println!("  {:<8} {}", command.name, command.about);
    }
    println!("\n`cargo x <subcommand> --help` says more.");
}
