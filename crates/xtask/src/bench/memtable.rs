//! Ordered maps in memory side by side: a program of `crates/bench`.

use crate::step::shell;
use crate::workspace::cargo;

pub(super) fn run(args: &[String]) -> Result<(), String> {
    shell(
        cargo()
            .args(["bench", "--locked", "-p", "orogen-bench"])
            .args(["--bench", "memtable", "--"])
            .args(args),
    )
}
