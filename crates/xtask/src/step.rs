//! Steps of a run: each is timed, the rest goes on after one fails, a table closes the run.

use std::process::Command;
use std::time::{Duration, Instant};

/// What became of one step.
struct Outcome {
    name: String,
    seconds: Duration,
    error: Option<String>,
}

/// A run of several steps.
#[derive(Default)]
pub(crate) struct Steps {
    outcomes: Vec<Outcome>,
}

impl Steps {
    /// Does one step; a failure is kept for the table.
    pub(crate) fn run(&mut self, name: &str, work: impl FnOnce() -> Result<(), String>) {
        println!("\n== {name}");
        let start = Instant::now();
        let error = work().err();
        if let Some(error) = &error {
            eprintln!("{name}: {error}");
        }
        self.outcomes.push(Outcome {
            name: name.to_owned(),
            seconds: start.elapsed(),
            error,
        });
    }

    /// Prints the table; an error names the steps that failed.
    pub(crate) fn finish(self) -> Result<(), String> {
        let width = self
            .outcomes
            .iter()
            .map(|o| o.name.len())
            .max()
            .unwrap_or(0)
            .max(4);
        println!("\n{:<width$} {:>9}  result", "step", "seconds");
        let mut failed = Vec::new();
        for outcome in &self.outcomes {
            let result = if outcome.error.is_some() {
                "FAILED"
            } else {
                "ok"
            };
            let seconds = outcome.seconds.as_secs_f64();
            println!("{:<width$} {seconds:>9.1}  {result}", outcome.name);
            if outcome.error.is_some() {
                failed.push(outcome.name.as_str());
            }
        }
        let total: Duration = self.outcomes.iter().map(|o| o.seconds).sum();
        println!("{:<width$} {:>9.1}", "all", total.as_secs_f64());
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("failed: {}", failed.join(", ")))
        }
    }
}

/// Runs a program to its end, its output going where ours goes.
pub(crate) fn shell(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|e| format!("{}: {e}", line(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` ended with {status}", line(command)))
    }
}

/// The command as one would type it.
pub(crate) fn line(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
