//! What runs tell: one line per figure, and `reliability.json`.
//!
//! ```text
//! {
//!   "schema": 1,
//!   "date": "2026-11-21T20:30:00Z",     end of the run, UTC
//!   "unix_secs": 1795293000,            the same in seconds since 1970
//!   "commit": "1f0c...",                of OROGEN_COMMIT, else of git; null where neither tells
//!   "build": "release",                 or "debug"
//!   "arguments": ["all"],               of orogen-torture
//!   "passed": true,                     every figure did
//!   "figures": [{
//!     "name": "crash/flush",            what was tried
//!     "rule": "...",                    what must hold
//!     "count": 310, "unit": "points",   how often
//!     "seeds": 3,                       from how many seeds
//!     "seconds": 1.5,
//!     "passed": true,                   no failures
//!     "details": {"images": 1550.0},    more numbers by name
//!     "failures": [{"what": "...", "repeat": "crash --script flush --point 7"}]
//!   }]
//! }
//! ```
//! Members may be added; a change of those above raises `schema`.

use std::fmt;
use std::path::Path;
use std::process::Command;

use orogen_env::{Clock, SystemClock};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// The version of `reliability.json`.
const SCHEMA: u32 = 1;

/// The result of one run.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(into = "Told")]
pub struct Figure {
    /// What was tried, as `crash/flush`.
    pub name: String,
    /// What must hold.
    pub rule: &'static str,
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

/// A figure as `reliability.json` has it.
#[derive(Serialize)]
struct Told {
    name: String,
    rule: &'static str,
    count: u64,
    unit: &'static str,
    seeds: u64,
    seconds: f64,
    passed: bool,
    details: Details,
    failures: Vec<Failure>,
}

impl From<Figure> for Told {
    fn from(figure: Figure) -> Self {
        Self {
            passed: figure.passed(),
            name: figure.name,
            rule: figure.rule,
            count: figure.count,
            unit: figure.unit,
            seeds: figure.seeds,
            seconds: figure.seconds,
            details: Details(figure.details),
            failures: figure.failures,
        }
    }
}

struct Details(Vec<(&'static str, f64)>);

impl Serialize for Details {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// All figures of a run of the program; the head of the module has the shape.
#[derive(Debug, Serialize)]
struct Reliability<'a> {
    schema: u32,
    date: String,
    unix_secs: u64,
    commit: Option<String>,
    build: &'static str,
    arguments: &'a [String],
    passed: bool,
    figures: &'a [Figure],
}

/// `reliability.json` of these figures, as of now.
fn to_json(figures: &[Figure], arguments: &[String]) -> String {
    let unix_secs = SystemClock.unix_secs();
    let all = Reliability {
        schema: SCHEMA,
        date: utc(unix_secs),
        unix_secs,
        commit: commit(),
        build: if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        },
        arguments,
        passed: figures.iter().all(Figure::passed),
        figures,
    };
    serde_json::to_string_pretty(&all).expect("figures are plain data")
}

/// Writes `reliability.json` of these figures, as of now; the head of the module has the shape.
///
/// # Errors
/// The file and what the system says.
pub fn write_json(path: &Path, figures: &[Figure], arguments: &[String]) -> Result<(), String> {
    std::fs::write(path, to_json(figures, arguments))
        .map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn commit() -> Option<String> {
    if let Ok(commit) = std::env::var("OROGEN_COMMIT") {
        return Some(commit);
    }
    let out = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let out = out.ok().filter(|out| out.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|hash| !hash.is_empty())
}

/// Seconds since 1970 as a date and time. Source: Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`.
fn utc(unix_secs: u64) -> String {
    let (days, secs) = (unix_secs / 86_400 + 719_468, unix_secs % 86_400);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (secs / 3600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_line_and_each_failure_one_more() {
        let mut figure = Figure {
            name: "crash/puts".to_owned(),
            rule: "nothing is lost",
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

    #[test]
    fn the_json_has_what_the_head_of_the_module_says() {
        let figure = Figure {
            name: "crash/puts".to_owned(),
            rule: "nothing is lost",
            count: 12,
            unit: "points",
            seeds: 3,
            seconds: 0.25,
            details: vec![("images", 60.0)],
            failures: vec![Failure {
                what: "lost".to_owned(),
                repeat: "crash --point 1".to_owned(),
            }],
        };
        let text = to_json(&[figure], &["crash".to_owned()]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["passed"], false);
        assert_eq!(json["arguments"][0], "crash");
        assert_eq!(json["figures"][0]["details"]["images"], 60.0);
        assert_eq!(json["figures"][0]["rule"], "nothing is lost");
        assert_eq!(json["figures"][0]["passed"], false);
        assert_eq!(
            json["figures"][0]["failures"][0]["repeat"],
            "crash --point 1"
        );
        assert_eq!(json["date"].as_str().map(str::len), Some(20));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
