//! Samples as tables and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::engines::Sample;
use super::figures::{Spread, geometric_mean, median, ratio};
use super::plan;

/// What Orogen is to reach: so many times RocksDB in each cell, and in the geometric mean.
const GOAL_CELL: f64 = 1.0;
const GOAL_MEAN: f64 = 1.5;
/// Cores that others may use before a figure is marked.
pub(super) const OTHER_CORES_MAX: f64 = 0.25;

/// A figure of each sample of an engine's phase, in the order of the pairs.
fn row(samples: &[Sample], engine: &str, phase: &str, field: &str) -> Vec<f64> {
    samples
        .iter()
        .filter(|s| s.engine == engine && s.phase() == phase)
        .filter_map(|s| s.figures[field].as_f64())
        .collect()
}

fn middle(samples: &[Sample], engine: &str, phase: &str, field: &str) -> Option<f64> {
    let row = row(samples, engine, phase, field);
    (!row.is_empty()).then(|| median(row))
}

fn speed(samples: &[Sample], engine: &str, phase: &str) -> Spread {
    let of = |name: &str| row(samples, name, phase, "ops_per_second");
    ratio(&of("orogen"), &of(engine))
}

/// The ratio of the best rates of all pairs: what each does when it is disturbed least.
fn best(samples: &[Sample], engine: &str, phase: &str) -> f64 {
    let of = |name: &str| {
        let rates = row(samples, name, phase, "ops_per_second");
        rates.into_iter().fold(0.0, f64::max)
    };
    of("orogen") / of(engine)
}

/// How much less CPU than the other we took for the same operations; above 1 we took less.
fn thrift(samples: &[Sample], engine: &str, phase: &str) -> f64 {
    let of = |name: &str| middle(samples, name, phase, "cpu_seconds_settled");
    of(engine)
        .zip(of("orogen"))
        .map_or(f64::NAN, |(a, b)| a / b)
}

/// `~` behind a rate that was taken while others used more of the machine than
/// [`OTHER_CORES_MAX`], in the median of the pairs.
fn noise(samples: &[Sample], engine: &str, phase: &str) -> &'static str {
    match middle(samples, engine, phase, "other_cores") {
        Some(cores) if cores > OTHER_CORES_MAX => "~",
        _ => "",
    }
}

/// Phases that were measured, in the order of the plan.
fn measured(samples: &[Sample]) -> Vec<&'static str> {
    plan::phases()
        .into_iter()
        .filter(|phase| samples.iter().any(|s| s.phase() == *phase))
        .collect()
}

/// Peers that keep a cell from its goal: RocksDB in all cells, Pebble where it is about writes.
fn ahead_of_us<'a>(samples: &[Sample], engines: &[&'a str], phase: &str) -> Vec<&'a str> {
    engines
        .iter()
        .copied()
        .filter(|e| *e == "rocksdb" || (*e == "pebble" && plan::is_write(phase)))
        .filter(|e| speed(samples, e, phase).median < GOAL_CELL)
        .collect()
}

/// The cells as JSON: medians of each engine, ratios to each peer.
pub(super) fn cells(samples: &[Sample], engines: &[&str]) -> Vec<Value> {
    let cell = |phase: &&str| {
        let mut cell =
            json!({ "phase": phase, "goal_missed_to": ahead_of_us(samples, engines, phase) });
        for engine in engines {
            cell["ops_per_second"][engine] =
                json!(middle(samples, engine, phase, "ops_per_second"));
            if *engine != "orogen" {
                let r = speed(samples, engine, phase);
                cell["ratio"][engine] = json!({ "median": r.median, "min": r.min, "max": r.max });
                cell["best_ratio"][engine] = json!(best(samples, engine, phase));
                cell["cpu_ratio"][engine] = json!(thrift(samples, engine, phase));
            }
            cell["other_cores"][engine] = json!(middle(samples, engine, phase, "other_cores"));
        }
        cell
    };
    measured(samples).iter().map(cell).collect()
}

/// All tables.
pub(super) fn text(samples: &[Sample], engines: &[&str]) -> String {
    let phases = measured(samples);
    let mut out = speeds(samples, engines, &phases);
    out.push_str(
        "best: ratio of the best rates. cpu: theirs for an operation over ours. \
         ~: others used the machine meanwhile.\n",
    );
    for (title, fields) in COSTS {
        out.push_str(&costs(samples, engines, &phases, title, fields));
    }
    if samples
        .iter()
        .any(|s| s.figures["multi_get_is_a_loop"] == true)
    {
        out.push_str(
            "\nfjall and Pebble have no multi-get: their multireadrandom is a loop of gets.\n",
        );
    }
    out
}

fn speeds(samples: &[Sample], engines: &[&str], phases: &[&str]) -> String {
    let others: Vec<&str> = engines.iter().copied().filter(|e| *e != "orogen").collect();
    let mut out = format!("\n{:<17} {:>11}", "operations/s", "orogen");
    for other in &others {
        let _ = write!(
            out,
            " {other:>11} {:>6} {:>11} {:>5} {:>5}",
            "ratio", "min..max", "best", "cpu"
        );
    }
    out.push_str("  goal\n");
    for phase in phases {
        let rate = |e: &str| {
            let rate = middle(samples, e, phase, "ops_per_second").unwrap_or(f64::NAN);
            format!("{}{}", noise(samples, e, phase), short(rate))
        };
        let _ = write!(out, "{phase:<17} {:>11}", rate("orogen"));
        for other in &others {
            let r = speed(samples, other, phase);
            let range = format!("{:.2}..{:.2}", r.min, r.max);
            let (rate, cpu) = (rate(other), thrift(samples, other, phase));
            let best = best(samples, other, phase);
            let _ = write!(
                out,
                " {rate:>11} {:>6.2} {range:>11} {best:>5.2} {cpu:>5.2}",
                r.median
            );
        }
        let ahead = ahead_of_us(samples, engines, phase);
        let goal = if ahead.is_empty() {
            "met".to_owned()
        } else {
            format!("BELOW {}", ahead.join(", "))
        };
        let _ = writeln!(out, "  {goal}");
    }
    let _ = write!(out, "{:<17} {:>11}", "geometric mean", "");
    let mut goal = "";
    for other in &others {
        let ratios: Vec<f64> = phases
            .iter()
            .map(|p| speed(samples, other, p).median)
            .collect();
        let mean_of = |f: fn(&[Sample], &str, &str) -> f64| {
            let values: Vec<f64> = phases.iter().map(|p| f(samples, other, p)).collect();
            geometric_mean(&values)
        };
        let (mean, best, cpu) = (geometric_mean(&ratios), mean_of(best), mean_of(thrift));
        let _ = write!(
            out,
            " {:>11} {mean:>6.2} {:>11} {best:>5.2} {cpu:>5.2}",
            "", ""
        );
        if *other == "rocksdb" {
            goal = if mean >= GOAL_MEAN {
                "met"
            } else {
                "BELOW 1.50"
            };
        }
    }
    let _ = writeln!(out, "  {goal}");
    out
}

/// A figure of cost: its title, the field, the field that it is divided by if any, its factor.
type Cost = (&'static str, &'static str, Option<&'static str>, f64);

/// Tables of medians, a column for each engine and figure.
const COSTS: [(&str, &[Cost]); 3] = [
    (
        "latency, us",
        &[
            ("p50", "p50_ns", None, 1e-3),
            ("p99", "p99_ns", None, 1e-3),
            ("p99.9", "p999_ns", None, 1e-3),
            ("max", "max_ns", None, 1e-3),
        ],
    ),
    (
        "cost",
        &[
            ("cpu us/op", "cpu_seconds_settled", Some("ops"), 1e6),
            ("rss MiB", "peak_rss_bytes", None, 1.0 / 1_048_576.0),
        ],
    ),
    (
        "writes, settled",
        &[
            ("ops/s", "ops_per_second_settled", None, 1.0),
            ("wr amp", "write_amplification", None, 1.0),
            ("dev amp", "device_amplification", None, 1.0),
            ("space", "space_amplification", None, 1.0),
        ],
    ),
];

fn costs(
    samples: &[Sample],
    engines: &[&str],
    phases: &[&str],
    title: &str,
    costs: &[Cost],
) -> String {
    const COLUMN: usize = 10;
    let width = (COLUMN + 1) * costs.len();
    let mut out = format!("\n{title:<17}");
    engines
        .iter()
        .for_each(|e| out.push_str(&format!(" |{e:>w$}", w = width - 1)));
    let _ = write!(out, "\n{:<17}", "");
    for _ in engines {
        out.push_str(" |");
        for (at, (name, ..)) in costs.iter().enumerate() {
            let _ = write!(out, "{name:>w$}", w = COLUMN + usize::from(at > 0));
        }
    }
    out.push('\n');
    for phase in phases {
        let figure = |engine: &str, (_, field, divisor, factor): Cost| {
            let value = middle(samples, engine, phase, field)? * factor;
            let by = divisor.map_or(Some(1.0), |d| middle(samples, engine, phase, d))?;
            Some(value / by)
        };
        // A phase that has none of these figures has no row.
        if costs.iter().all(|c| figure(engines[0], *c).is_none()) {
            continue;
        }
        let _ = write!(out, "{phase:<17}");
        for engine in engines {
            out.push_str(" |");
            for (at, cost) in costs.iter().enumerate() {
                let value = figure(engine, *cost).map_or_else(|| "-".to_owned(), short);
                let _ = write!(out, "{value:>w$}", w = COLUMN + usize::from(at > 0));
            }
        }
        out.push('\n');
    }
    out
}

/// Three digits, or all before the point.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(engine: &'static str, pair: usize, phase: &str, rate: f64) -> Sample {
        Sample {
            engine,
            pair,
            figures: json!({
                "phase": phase,
                "ops_per_second": rate,
                "p50_ns": 1500.0,
                "cpu_seconds_settled": 3.0 / rate,
                "other_cores": if engine == "orogen" { 0.3 } else { 0.2 },
            }),
        }
    }

    fn samples() -> Vec<Sample> {
        let rates = [
            ("orogen", "fillseq", 300.0),
            ("rocksdb", "fillseq", 100.0),
            ("pebble", "fillseq", 400.0),
            ("orogen", "readrandom", 90.0),
            ("rocksdb", "readrandom", 120.0),
            ("pebble", "readrandom", 180.0),
        ];
        (0..3)
            .flat_map(|pair| rates.map(|(engine, phase, rate)| sample(engine, pair, phase, rate)))
            .collect()
    }

    #[test]
    fn goals_are_rocksdb_everywhere_and_pebble_in_writes() {
        let (samples, engines) = (samples(), ["orogen", "rocksdb", "pebble"]);
        assert_eq!(ahead_of_us(&samples, &engines, "fillseq"), ["pebble"]);
        assert_eq!(ahead_of_us(&samples, &engines, "readrandom"), ["rocksdb"]);
        let cells = cells(&samples, &engines);
        assert_eq!(cells[0]["ratio"]["rocksdb"]["median"], 3.0);
        assert_eq!(cells[1]["ops_per_second"]["pebble"], 180.0);
        assert_eq!(cells[0]["cpu_ratio"]["rocksdb"], 3.0);
    }

    #[test]
    fn tables_have_a_row_for_each_phase_with_figures() {
        let text = text(&samples(), &["orogen", "rocksdb", "pebble"]);
        let lines: Vec<&str> = text.lines().collect();
        // Every figure stands under its name: both end in the same column.
        let ends = |line: &str| -> Vec<usize> {
            let words = line.char_indices().filter(|&(at, c)| {
                c != ' ' && line[at + 1..].chars().next().is_none_or(|next| next == ' ')
            });
            words.map(|(at, _)| at).collect()
        };
        let names = ends(lines[1]);
        for row in &lines[2..4] {
            assert_eq!(ends(row)[1..12], names[1..12], "{text}");
        }
        let named = [3, 5, 6, 8, 10, 11].map(|at| names[at]);
        assert_eq!(ends(lines[4])[2..8], named, "{text}");
        assert!(
            lines[2].starts_with("fillseq") && lines[2].ends_with("BELOW pebble"),
            "{text}"
        );
        assert!(lines[3].ends_with("BELOW rocksdb"), "{text}");
        assert!(
            lines[3].contains("~90.0") && !lines[3].contains("~120"),
            "{text}"
        );
        // The geometric mean of 3 and 0.75 is 1.5.
        assert!(
            lines[4].contains("1.50") && lines[4].ends_with("met"),
            "{text}"
        );
        let latencies = text.lines().skip_while(|l| !l.starts_with("latency"));
        let rows: Vec<&str> = latencies.skip(2).take(2).collect();
        assert!(
            rows.iter().all(|r| r.matches("1.50").count() == 3),
            "{text}"
        );
        assert!(lines.last().unwrap().contains("space"), "{text}");
    }
}
