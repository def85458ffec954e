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
//!   "passed": true,                     every figure did, and something was tried
//!   "figures": [{
//!     "name": "crash/flush",            what was tried
//!     "part": "deep/crash/flush",       of `all`: the part with its size; else null
//!     "commit": "1f0c...",              of this figure, where it was kept from an earlier run
//!     "unix_secs": 1795293000,          its end
//!     "rule": "...",                    what must hold
//!     "count": 310, "unit": "points",   how often
//!     "seeds": 3,                       from how many seeds
//!     "seconds": 1.5,
//!     "passed": true,                   no failures, and not skipped
//!     "skipped": "no `mount`",          why it could not be tried; absent where it was
//!     "details": {"images": 1550.0},    more numbers by name
//!     "failures": [{"what": "...", "repeat": "crash --script flush --point 7"}]
//!   }]
//! }
//! ```
//! Members may be added; a change of those above raises `schema`.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use orogen_env::{Clock, SystemClock};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

/// Tells a line. A run whose listener has gone goes on: its file says what came of it.
pub fn say(line: &dyn fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// This file, as panics name it.
pub(crate) const FILE: &str = file!();

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
    /// All of these as one: counts are added up, and so are details but for those that are a
    /// measure of each.
    #[must_use]
    pub fn sum(name: &str, figures: Vec<Self>) -> Self {
        let mut figures = figures.into_iter();
        let mut sum = figures.next().unwrap_or_default();
        sum.name = name.to_owned();
        sum.details.retain(|(name, _)| !is_measure(name));
        sum.seeds = 1;
        for figure in figures {
            sum.count += figure.count;
            sum.seeds += 1;
            sum.seconds += figure.seconds;
            sum.failures.extend(figure.failures);
            for (name, value) in &mut sum.details {
                let other = figure.details.iter().find(|(other, _)| other == name);
                *value += other.map_or(0.0, |(_, value)| *value);
            }
        }
        sum
    }

    /// True if nothing went wrong.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// True if it says something: a trial passed or failed.
    #[must_use]
    pub fn was_tried(&self) -> bool {
        self.count > 0 || !self.failures.is_empty()
    }

    /// Panics with the failures.
    ///
    /// # Panics
    /// If there is one, or if nothing was tried.
    pub fn must_pass(&self) {
        assert!(self.passed(), "{self}");
        assert!(self.was_tried(), "nothing was tried: {self}");
    }
}

fn is_measure(name: &str) -> bool {
    ["_us", "_ms", "_per_second"]
        .iter()
        .any(|unit| name.ends_with(unit))
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
    part: Option<String>,
    commit: Option<String>,
    unix_secs: u64,
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
            part: None,
            commit: commit(),
            unix_secs: SystemClock.unix_secs(),
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
    figures: &'a [Value],
}

/// Figures of this run and of earlier ones, as `reliability.json` has them.
#[derive(Debug, Default)]
pub struct Kept(Vec<Value>);

impl Kept {
    /// Those that an earlier run has left in a file, if it is there.
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = match std::fs::read_to_string(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|e| format!("cannot read {}: {e}", path.display()))?,
        };
        let json: Value = serde_json::from_str(&text)
            .map_err(|e| format!("{} is no JSON: {e}", path.display()))?;
        if json["schema"] != SCHEMA {
            return Err(format!(
                "{} has another shape than this program writes",
                path.display()
            ));
        }
        Ok(Self(
            json["figures"].as_array().cloned().unwrap_or_default(),
        ))
    }

    /// True if this part was done and passed; one that was skipped was not.
    #[must_use]
    pub fn has(&self, part: &str) -> bool {
        self.0
            .iter()
            .any(|f| f["part"] == part && f["passed"] == true)
    }

    /// Adds a figure; that of a part takes the place of an earlier one.
    pub fn add(&mut self, part: Option<&str>, figure: &Figure) {
        self.add_json(part, as_json(figure));
    }

    /// Adds that something could not be tried, and why.
    pub fn add_skipped(&mut self, part: Option<&str>, name: &str, why: &str) {
        let mut told = as_json(&Figure {
            name: name.to_owned(),
            ..Figure::default()
        });
        told["passed"] = false.into();
        told["skipped"] = why.into();
        self.add_json(part, told);
    }

    fn add_json(&mut self, part: Option<&str>, mut told: Value) {
        if let Some(part) = part {
            self.0.retain(|f| f["part"] != part);
            told["part"] = part.into();
        }
        self.0.push(told);
    }

    /// Writes the file, at once whole: one that is stopped meanwhile leaves the old one.
    ///
    /// # Errors
    /// The file and what the system says.
    pub fn write(&self, path: &Path, arguments: &[String]) -> Result<(), String> {
        let new = path.with_extension("json.new");
        std::fs::write(&new, to_json(&self.0, arguments))
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }
}

fn as_json(figure: &Figure) -> Value {
    serde_json::to_value(figure).expect("figures are plain data")
}

/// `reliability.json` of these figures, as of now.
fn to_json(figures: &[Value], arguments: &[String]) -> String {
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
        passed: figures.iter().all(|f| f["passed"] == true)
            && figures.iter().any(|f| f["count"] != 0),
        figures,
    };
    serde_json::to_string_pretty(&all).expect("figures are plain data")
}

fn commit() -> Option<String> {
    static COMMIT: OnceLock<Option<String>> = OnceLock::new();
    COMMIT.get_or_init(find_commit).clone()
}

fn find_commit() -> Option<String> {
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
        let mut kept = Kept::default();
        kept.add(None, &figure);
        let text = to_json(&kept.0, &["crash".to_owned()]);
        let json: Value = serde_json::from_str(&text).unwrap();
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
    fn a_part_that_passed_is_known_again_and_one_that_failed_is_not() {
        let dir = orogen_testkit::TempDir::new("report");
        let path = dir.path().join("reliability.json");
        let mut figure = Figure {
            count: 3,
            ..Figure::default()
        };
        let mut kept = Kept::read(&path).unwrap();
        assert!(!kept.has("deep/crash/puts"));
        figure.failures.push(Failure {
            what: "lost".to_owned(),
            repeat: "crash --point 1".to_owned(),
        });
        kept.add(Some("deep/crash/puts"), &figure);
        assert!(!kept.has("deep/crash/puts"));
        figure.failures.clear();
        kept.add(Some("deep/crash/puts"), &figure);
        kept.write(&path, &[]).unwrap();
        let mut again = Kept::read(&path).unwrap();
        assert!(again.has("deep/crash/puts"));
        assert!(!again.has("gate/crash/puts"));
        assert_eq!(again.0.len(), 1);
        again.add_skipped(Some("deep/crash/puts"), "crash/puts", "no room");
        assert!(!again.has("deep/crash/puts"));
        assert_eq!(
            (again.0.len(), &again.0[0]["skipped"]),
            (1, &"no room".into())
        );
        std::fs::write(&path, "{").unwrap();
        assert!(Kept::read(&path).is_err());
    }

    #[test]
    fn a_sum_adds_counts_and_leaves_measures_out() {
        let one = Figure {
            count: 2,
            details: vec![("images", 10.0), ("recovery_us", 5.0)],
            ..Figure::default()
        };
        let sum = Figure::sum("both", vec![one.clone(), one]);
        assert_eq!(
            (sum.count, sum.seeds, sum.details),
            (4, 2, vec![("images", 20.0)])
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
