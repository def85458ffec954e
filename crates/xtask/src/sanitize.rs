//! `cargo x sanitize`: tests under LLVM's sanitizers.

use std::process::Command;

use crate::step::shell;
use crate::workspace::root;

pub(crate) const HELP: &str = "
usage: cargo x sanitize address|thread [-p PACKAGE]... [-- arguments of the tests]

Builds cache, trie, memtable, transactions and engine, or the packages that are named, with their standard library and
AddressSanitizer or ThreadSanitizer in target/sanitize-NAME, and runs their tests but for those of documentation. Needs
the nightly toolchain with its source:
  rustup toolchain install nightly --component rust-src
Reports are on stderr and end the test with an error.
AddressSanitizer is told what is free in the blocks of tries (`--cfg orogen_asan`); children of a test use some of it, and must die of the report.
";

const PACKAGES: [&str; 5] = [
    "orogen-cache",
    "orogen-trie",
    "orogen-memtable",
    "orogen-txn",
    "orogen-engine",
];
/// Tests ask for more memory than there is, and are to be told.
const REFUSE: &str = "allocator_may_return_null=1";
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn parse(args: &[String]) -> Result<(&str, Vec<&str>, &[String]), String> {
    let (kind, mut rest) = args
        .split_first()
        .ok_or("say which sanitizer: address or thread")?;
    if !["address", "thread"].contains(&kind.as_str()) {
        return Err(format!("no sanitizer `{kind}`: address or thread"));
    }
    let mut packages = Vec::new();
    loop {
        match rest {
            [flag, package, behind @ ..] if flag == "-p" => {
                packages.push(package.as_str());
                rest = behind;
            }
            [flag, behind @ ..] if flag == "--" => {
                rest = behind;
                break;
            }
            [] => break,
            [other, ..] => return Err(format!("unknown argument `{other}`")),
        }
    }
    if packages.is_empty() {
        packages = PACKAGES.to_vec();
    }
    Ok((kind, packages, rest))
}

/// With AddressSanitizer tries tell it what is free in their blocks.
fn flags(kind: &str) -> String {
    let told = if kind == "address" {
        " --cfg orogen_asan"
    } else {
        ""
    };
    format!("-Zsanitizer={kind}{told}")
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (kind, packages, of_tests) = parse(args)?;
    let mut command = Command::new("rustup");
    command
        .current_dir(root())
        .args([
            "run", "nightly", "cargo", "test", "--locked", "--lib", "--tests",
        ])
        .args(["-Zbuild-std", "--target", TARGET, "--target-dir"])
        .arg(root().join(format!("target/sanitize-{kind}")));
    for package in packages {
        command.args(["-p", package]);
    }
    command
        .arg("--")
        .args(of_tests)
        .env("RUSTFLAGS", flags(kind))
        // Those of the toolchain that runs this.
        .env_remove("CARGO")
        .env_remove("RUSTC")
        .env_remove("RUSTUP_TOOLCHAIN")
        // Code of C is not built with it: it would be told of memory that C freed as of leaks.
        .env("ASAN_OPTIONS", format!("detect_leaks=0 {REFUSE}"))
        .env(
            "TSAN_OPTIONS",
            format!("halt_on_error=1 second_deadlock_stack=1 {REFUSE}"),
        );
    shell(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_run_must_be_said() {
        let parse_line = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&args).map(|(kind, packages, rest)| (kind.to_owned(), packages.len(), rest.len()))
        };
        assert_eq!(parse_line("thread").unwrap(), ("thread".to_owned(), 5, 0));
        let some = parse_line("address -p orogen-trie -p orogen-cache -- epoch --nocapture");
        assert_eq!(some.unwrap(), ("address".to_owned(), 2, 2));
        for (line, word) in [("", "which"), ("leak", "`leak`"), ("thread fast", "`fast`")] {
            let error = parse_line(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
