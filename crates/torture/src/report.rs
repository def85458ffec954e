//! What runs tell: one line per figure, and `reliability.json`.

use std::fmt;

use serde::Serialize;

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    /// What was tried, as `crash/flush`.
    pub name: String,
    /// How often: crash points, injected faults, operations, damaged files.
    pub count: u64,
    /// What is counted.
    pub unit: &'static str,
    /// How many seeds.
    pub seeds: u64,
    /// How long it took.
    pub seconds: f64,
    /// More numbers, by name.
    pub details: Vec<(&'static str, f64)>,
    /// What went wrong, each with the command that repeats it.
    pub failures: Vec<Failure>,
}

/// Something that went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// What is not as promised.
    pub what: String,
    /// The arguments of `orogen-torture` that repeat it.
    pub repeat: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} | cargo run -p orogen-torture -- {}",
            self.what, self.repeat
        )
    }
}

impl Figure {
    /// True if nothing went wrong.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Panics with the first failure.
    ///
    /// # Panics
    /// If there is one.
    pub fn must_pass(&self) {
        assert!(self.passed(), "{self}");
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<28} {:>8} {:<10} seeds={:<4} seconds={:.1}",
            self.name, self.count, self.unit, self.seeds, self.seconds
        )?;
        for (name, value) in &self.details {
            if value.fract() == 0.0 {
                write!(f, " {name}={value}")?;
            } else {
                write!(f, " {name}={value:.1}")?;
            }
        }
        for failure in &self.failures {
            write!(f, "\nFAIL {}: {failure}", self.name)?;
        }
        Ok(())
    }
}

/// All figures of a run of the program.
#[derive(Debug, Default, Serialize)]
pub struct Reliability {
    /// Seconds since 1970 at the end of the run.
    pub unix_secs: u64,
    /// The commit, if the environment's `OROGEN_COMMIT` tells.
    pub commit: Option<String>,
    /// One for each run.
    pub figures: Vec<Figure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_line_and_each_failure_one_more() {
        let mut figure = Figure {
            name: "crash/puts".to_owned(),
            count: 12,
            unit: "points",
            seeds: 3,
            seconds: 0.25,
            details: vec![("images", 60.0), ("recovery_us", 812.52)],
            failures: Vec::new(),
        };
        assert!(figure.passed());
        assert_eq!(
            figure.to_string(),
            "crash/puts                         12 points     seeds=3    seconds=0.2 images=60 \
             recovery_us=812.5"
        );
        figure.failures.push(Failure {
            what: "a synced write is gone".to_owned(),
            repeat: "crash --script puts --point 7".to_owned(),
        });
        let text = figure.to_string();
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with("cargo run -p orogen-torture -- crash --script puts --point 7"));
    }
}
