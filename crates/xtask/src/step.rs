//! Steps of a run: each is timed, the rest goes on after one fails, a table closes the run.

use std::process::Command;
use std::sync::Mutex;
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
    /// How long all of it took, with steps that ran beside each other.
    elapsed: Duration,
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
        let seconds = start.elapsed();
        self.elapsed += seconds;
        self.outcomes.push(Outcome {
            name: name.to_owned(),
            seconds,
            error,
        });
    }

    /// Does a step for each name, some at a time. What `work` has to say is shown when it is done.
    pub(crate) fn run_together(
        &mut self,
        at_once: usize,
        names: &[String],
        work: impl Fn(&str) -> Result<String, String> + Sync,
    ) {
        let start = Instant::now();
        let next = Mutex::new(names.iter());
        let outcomes = Mutex::new(&mut self.outcomes);
        let take = || next.lock().expect("nobody panics with it").next();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(name) = take() {
                        let start = Instant::now();
                        let told = work(name);
                        let seconds = start.elapsed();
                        let mut outcomes = outcomes.lock().expect("nobody panics with it");
                        match &told {
                            Ok(text) => println!("\n== {name}\n{text}"),
                            Err(error) => eprintln!("\n== {name}\n{error}"),
                        }
                        outcomes.push(Outcome {
                            name: name.clone(),
                            seconds,
                            error: told.err(),
                        });
                    }
                });
            }
        });
        self.elapsed += start.elapsed();
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
        println!("{:<width$} {:>9.1}", "all", self.elapsed.as_secs_f64());
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

/// Runs a program to its end; gives what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| format!("cannot start {command:?}: {e}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}", errors.trim()));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{command:?}: {e}"))
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
