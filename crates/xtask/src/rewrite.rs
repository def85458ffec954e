//! `cargo x rewrite`: takes what datadriven tests print now as what they should print.

use crate::step;
use crate::workspace;

pub(crate) const HELP: &str = "
usage: cargo x rewrite [arguments of cargo test]

Runs the tests with REWRITE=1: a datadriven test then writes its results into its file under
tests/data instead of comparing them. Read the diff before you commit it.
  cargo x rewrite -p orogen-engine picker
";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = workspace::cargo();
    command.arg("test").env("REWRITE", "1");
    if args.iter().all(|a| a != "-p" && a != "--package") {
        command.arg("--workspace");
    }
    step::shell(command.args(args))
}
