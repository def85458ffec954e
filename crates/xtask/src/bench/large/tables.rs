//! Samples as tables of medians, for the terminal, for a page and as JSON.
//!
//! A row is a candidate under a setting at a length of values, a column a figure of a phase. Cells
//! are medians over pairs, with the smallest and the largest behind them where there are several.

use serde_json::{Value, json};

use super::candidates::{BASES, without_gc};
use super::{Sample, plan};
use crate::bench::figures::{Spread, ratio, spread};
use crate::bench::report::{OTHER_CORES_MAX, short};

/// A table of text.
pub(super) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// For the terminal.
    pub(super) fn text(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| lines().map(|row| row[at].len()).max().unwrap_or(0))
            .collect();
        let mut out = format!("{}\n", self.title);
        for row in lines() {
            let cells = row.iter().zip(&widths).enumerate();
            let cells: Vec<String> = cells
                .map(|(at, (cell, width))| match at {
                    // Names on the left, figures on the right.
                    0 | 1 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }

    /// For a page.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = self.columns.iter().enumerate();
        let rule: String = rule
            .map(|(at, _)| if at < 2 { "|---" } else { "|---:" })
            .collect();
        let mut out = format!("{}:\n\n{}{rule}|\n", self.title, line(&self.columns));
        self.rows.iter().for_each(|row| out.push_str(&line(row)));
        out
    }
}

/// What a row is about.
#[derive(Clone, Copy, PartialEq)]
struct Key {
    setting: &'static str,
    value_len: u64,
    candidate: &'static str,
}

impl Sample {
    fn key(&self) -> Key {
        Key {
            setting: self.setting,
            value_len: self.value_len,
            candidate: self.candidate,
        }
    }
}

/// A figure of a phase.
struct Column {
    title: &'static str,
    phase: &'static str,
    field: &'static str,
    factor: f64,
    /// The field that it is divided by.
    each: Option<&'static str>,
}

const fn column(
    title: &'static str,
    phase: &'static str,
    field: &'static str,
    factor: f64,
) -> Column {
    Column {
        title,
        phase,
        field,
        factor,
        each: None,
    }
}

const RATE: &str = "ops_per_second";
const RATE_SETTLED: &str = "ops_per_second_settled";

/// Operations a second.
const RATES: [Column; 9] = [
    column("load", "load", RATE, 1.0),
    column("load, drained", "load", RATE_SETTLED, 1.0),
    column("get", "get", RATE, 1.0),
    column("scan100", "scan100", RATE, 1.0),
    column("scan10000", "scan10000", RATE, 1.0),
    column("update", "update", RATE, 1.0),
    column("update, drained", "update", RATE_SETTLED, 1.0),
    column("delete", "delete", RATE, 1.0),
    column("delete, drained", "delete", RATE_SETTLED, 1.0),
];

const SPACE: &str = "space_amplification";
const SPACE_PEAK: &str = "space_amplification_peak";
const DEVICE: &str = "device_amplification";

const SPACE_RIGHT_AFTER: &str = "space_amplification_foreground";
const DEVICE_RIGHT_AFTER: &str = "device_amplification_foreground";

/// Bytes written to the device for each byte put, and on the disk for each that lives.
const BYTES: [Column; 11] = [
    column("load: written", "load", DEVICE, 1.0),
    column("load: space", "load", SPACE, 1.0),
    column("update: written at once", "update", DEVICE_RIGHT_AFTER, 1.0),
    column("written, drained", "update", DEVICE, 1.0),
    column("space at once", "update", SPACE_RIGHT_AFTER, 1.0),
    column("space, peak", "update", SPACE_PEAK, 1.0),
    column("space, drained", "update", SPACE, 1.0),
    column(
        "half deleted: space at once",
        "delete",
        SPACE_RIGHT_AFTER,
        1.0,
    ),
    column("space, peak", "delete", SPACE_PEAK, 1.0),
    column("space, drained", "delete", SPACE, 1.0),
    Column {
        each: Some("ops"),
        ..column("get: KiB read", "get", "device_read_bytes", 1.0 / 1024.0)
    },
];

/// Latencies in microseconds.
const LATENCIES: [Column; 10] = [
    column("load p99", "load", "p99_ns", 1e-3),
    column("load p99.99", "load", "p9999_ns", 1e-3),
    column("get p99", "get", "p99_ns", 1e-3),
    column("get p99.99", "get", "p9999_ns", 1e-3),
    column("scan100 p99", "scan100", "p99_ns", 1e-3),
    column("scan100 p99.99", "scan100", "p9999_ns", 1e-3),
    column("scan10000 p99", "scan10000", "p99_ns", 1e-3),
    column("update p99", "update", "p99_ns", 1e-3),
    column("update p99.99", "update", "p9999_ns", 1e-3),
    column("delete p99", "delete", "p99_ns", 1e-3),
];

/// The bench of collecting: what updates cost.
const COLLECTING: [Column; 6] = [
    column("update", "update", RATE, 1.0),
    column("drained", "update", RATE_SETTLED, 1.0),
    column("written/byte", "update", DEVICE, 1.0),
    column("space, peak", "update", SPACE_PEAK, 1.0),
    column("space, end", "update", SPACE, 1.0),
    column("p99.9 us", "update", "p999_ns", 1e-3),
];

fn figures(samples: &[Sample], key: Key, phase: &str, field: &str) -> Vec<f64> {
    samples
        .iter()
        .filter(|s| s.key() == key && s.phase() == phase)
        .filter_map(|s| s.figures[field].as_f64())
        .collect()
}

/// A column's figure of each pair.
fn row(samples: &[Sample], key: Key, column: &Column) -> Vec<f64> {
    let values = figures(samples, key, column.phase, column.field);
    let Some(each) = column.each else {
        return values.into_iter().map(|v| v * column.factor).collect();
    };
    let each = figures(samples, key, column.phase, each);
    let both = values.into_iter().zip(each);
    both.map(|(v, each)| v * column.factor / each).collect()
}

/// `base` in the place of a row's candidate.
fn beside(key: Key, base: &'static str) -> Key {
    Key {
        candidate: base,
        ..key
    }
}

/// What the rows of a setting and length are told in times of.
fn base(samples: &[Sample], key: Key) -> Option<Key> {
    let mut bases = BASES.iter().map(|base| beside(key, base));
    bases.find(|base| samples.iter().any(|s| s.key() == *base))
}

fn ratio_to(samples: &[Sample], key: Key, base: Key, column: &Column) -> Option<Spread> {
    let (ours, theirs) = (row(samples, key, column), row(samples, base, column));
    // An unfinished pair has one of them only.
    let pairs = ours.len().min(theirs.len());
    (pairs > 0).then(|| ratio(&ours[..pairs], &theirs[..pairs]))
}

/// All rows, in the order of settings and of the first appearance of the rest.
fn keys(samples: &[Sample]) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    for sample in samples {
        let key = sample.key();
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.sort_by_key(|key| {
        let setting = plan::SETTINGS.iter().position(|s| s.name == key.setting);
        (setting, key.value_len)
    });
    keys
}

fn shown(spread: Spread) -> String {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(short);
    if min == max {
        median
    } else {
        format!("{median} ({min}..{max})")
    }
}

/// `~` before a figure of a phase during which others used the machine.
fn noise(samples: &[Sample], key: Key, phase: &str) -> &'static str {
    let cores = figures(samples, key, phase, "other_cores");
    if !cores.is_empty() && spread(cores).median > OTHER_CORES_MAX {
        "~"
    } else {
        ""
    }
}

/// A table of a setting with the columns that have figures.
fn table(
    samples: &[Sample],
    keys: &[Key],
    title: String,
    columns: &[Column],
    cell: &dyn Fn(Key, &Column) -> Option<String>,
) -> Table {
    let used: Vec<&Column> = columns
        .iter()
        .filter(|c| keys.iter().any(|key| !row(samples, *key, c).is_empty()))
        .collect();
    let rows = keys.iter().map(|key| {
        let names = [plan::size(key.value_len), key.candidate.to_owned()];
        let cells = used
            .iter()
            .map(|c| cell(*key, c).unwrap_or_else(|| "-".to_owned()));
        names.into_iter().chain(cells).collect()
    });
    let names = ["value".to_owned(), "candidate".to_owned()];
    Table {
        title,
        rows: rows.collect(),
        columns: names
            .into_iter()
            .chain(used.iter().map(|c| c.title.to_owned()))
            .collect(),
    }
}

/// A table of medians.
fn medians(samples: &[Sample], keys: &[Key], title: String, columns: &[Column]) -> Table {
    table(samples, keys, title, columns, &|key, column| {
        let row = row(samples, key, column);
        let noise = if column.field.starts_with(RATE) {
            noise(samples, key, column.phase)
        } else {
            ""
        };
        (!row.is_empty()).then(|| format!("{noise}{}", shown(spread(row))))
    })
}

/// A table of ratios to what stands beside each row; the base itself has no row.
fn ratios(samples: &[Sample], keys: &[Key], title: &str, columns: &[Column]) -> Option<Table> {
    let rivals = keys.iter().copied();
    let rivals: Vec<Key> = rivals
        .filter(|key| base(samples, *key).is_some_and(|base| base != *key))
        .collect();
    let base_name = base(samples, *rivals.first()?)?.candidate;
    let title = format!("{title}, times {base_name}; above 1 is faster");
    Some(table(samples, &rivals, title, columns, &|key, column| {
        ratio_to(samples, key, base(samples, key)?, column).map(shown)
    }))
}

/// The keys of each setting that was measured, with its title.
fn settings(samples: &[Sample]) -> Vec<(&'static str, Vec<Key>)> {
    let keys = keys(samples);
    let of = |setting: &plan::Setting| {
        let keys = keys.iter().copied().filter(|k| k.setting == setting.name);
        (setting.title, keys.collect::<Vec<_>>())
    };
    let all = plan::SETTINGS.iter().map(of);
    all.filter(|(_, keys)| !keys.is_empty()).collect()
}

/// The tables of `bench blob`.
pub(super) fn blob(samples: &[Sample]) -> Vec<Table> {
    let mut tables = Vec::new();
    for (title, keys) in settings(samples) {
        tables.extend(ratios(samples, &keys, title, &RATES));
        for (what, columns) in [
            ("operations/s (~: others used the machine)", &RATES[..]),
            ("bytes for each byte put, and that lives", &BYTES),
            ("latency, us", &LATENCIES),
        ] {
            let title = format!("{title}, {what}");
            tables.push(medians(samples, &keys, title, columns));
        }
    }
    tables
}

/// The tables of `bench gc`: candidates that collect, with what it costs the foreground.
pub(super) fn gc(samples: &[Sample]) -> Vec<Table> {
    let tail = &COLLECTING[COLLECTING.len() - 1];
    let mut tables = Vec::new();
    for (title, keys) in settings(samples) {
        tables.extend(ratios(samples, &keys, title, &COLLECTING[..2]));
        let title = format!("{title}, updates (~: others used the machine)");
        let mut table = medians(samples, &keys, title, &COLLECTING);
        table
            .columns
            .extend(["p99.9 uncollected".to_owned(), "ratio".to_owned()]);
        for (row_of, key) in table.rows.iter_mut().zip(&keys) {
            let without = without_gc(key.candidate).map(|name| beside(*key, name));
            let cells = without.and_then(|without| {
                let row = row(samples, without, tail);
                let ratio = ratio_to(samples, *key, without, tail)?;
                Some([shown(spread(row)), shown(ratio)])
            });
            row_of.extend(cells.unwrap_or_else(|| ["-".to_owned(), "-".to_owned()]));
        }
        tables.push(table);
    }
    tables
}

/// Medians and ratios of every figure, for the JSON document.
pub(super) fn cells(samples: &[Sample]) -> Vec<Value> {
    let as_json = |s: Spread| json!({ "median": s.median, "min": s.min, "max": s.max });
    let mut cells = Vec::new();
    for key in keys(samples) {
        for phase in plan::blob_phases() {
            let mut of_phase = samples
                .iter()
                .filter(|s| s.key() == key && s.phase() == phase);
            let first = of_phase.next();
            let Some(figures) = first.and_then(|s| s.figures.as_object()) else {
                continue;
            };
            let mut cell = json!({
                "setting": key.setting,
                "value_len": key.value_len,
                "candidate": key.candidate,
                "phase": phase,
            });
            if let Some(base) = base(samples, key) {
                cell["base"] = json!(base.candidate);
            }
            for field in figures.keys() {
                let values = self::figures(samples, key, phase, field);
                if values.is_empty() || field == "value_len" {
                    continue;
                }
                cell["figures"][field] = as_json(spread(values));
                let base = base(samples, key).map(|b| self::figures(samples, b, phase, field));
                let base = base.filter(|b| field.starts_with(RATE) && !b.is_empty());
                if let Some(theirs) = base {
                    let ours = self::figures(samples, key, phase, field);
                    cell["ratio"][field] = as_json(ratio(&ours, &theirs));
                }
            }
            cells.push(cell);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(
        setting: &'static str,
        candidate: &'static str,
        pair: usize,
        phase: &str,
        rate: f64,
    ) -> Sample {
        Sample {
            setting,
            value_len: 4096,
            candidate,
            pair,
            figures: json!({
                "phase": phase,
                "ops": 10,
                "ops_per_second": rate,
                "ops_per_second_settled": rate / 2.0,
                "device_read_bytes": 20480,
                "p999_ns": 1e9 / rate,
                "p99_ns": 1000.0,
                "device_amplification": 1.5,
                "other_cores": if candidate == "orogen" { 0.5 } else { 0.1 },
            }),
        }
    }

    /// Two pairs in which the second is twice as fast for RocksDB alone.
    fn blob_samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for (pair, rocksdb) in [(0, 100.0), (1, 200.0)] {
            for setting in ["cold", "memory"] {
                for phase in ["load", "get"] {
                    samples.push(sample(setting, "orogen", pair, phase, 300.0));
                    samples.push(sample(setting, "rocksdb", pair, phase, rocksdb));
                }
            }
        }
        samples
    }

    fn row_of<'a>(table: &'a Table, candidate: &str) -> &'a [String] {
        let mut rows = table.rows.iter();
        rows.find(|row| row[1] == candidate).unwrap()
    }

    #[test]
    fn ratios_are_medians_of_pairs_to_values_in_rocksdbs_tree() {
        let tables = blob(&blob_samples());
        // The settings in their order, four tables each.
        assert_eq!(tables.len(), 8);
        assert!(
            tables[0]
                .title
                .starts_with("memory-resident, times rocksdb")
        );
        assert_eq!(tables[0].rows.len(), 1, "the base has no row");
        assert_eq!(
            row_of(&tables[0], "orogen")[2..],
            [
                "2.25 (1.50..3.00)",
                "2.25 (1.50..3.00)",
                "2.25 (1.50..3.00)"
            ]
        );
        assert!(tables[4].title.starts_with("cold cache"));
    }

    #[test]
    fn medians_have_their_ends_and_noise_is_marked() {
        let tables = blob(&blob_samples());
        assert_eq!(tables[1].columns[2..], ["load", "load, drained", "get"]);
        assert_eq!(row_of(&tables[1], "orogen")[2], "~300");
        assert_eq!(row_of(&tables[1], "rocksdb")[3], "75.0 (50.0..100)");
        // 20480 bytes of ten gets.
        assert_eq!(tables[2].columns[2..], ["load: written", "get: KiB read"]);
        assert_eq!(row_of(&tables[2], "rocksdb")[2..], ["1.50", "2.00"]);
    }

    #[test]
    fn an_unfinished_pair_is_told_as_far_as_it_goes() {
        let mut samples = blob_samples();
        samples.push(sample("memory", "orogen", 2, "get", 900.0));
        let tables = blob(&samples);
        assert_eq!(row_of(&tables[0], "orogen")[4], "2.25 (1.50..3.00)");
        assert!(
            blob(&samples[..1])
                .iter()
                .all(|t| !t.title.contains("times"))
        );
        assert!(blob(&[]).is_empty());
        assert_eq!(cells(&samples).len(), 8);
    }

    #[test]
    fn collecting_is_told_beside_the_same_without_it() {
        let mut samples = Vec::new();
        for (pair, on) in [(0, 100.0), (1, 50.0)] {
            samples.push(sample("memory", "rocksdb-blob", pair, "update", on));
            samples.push(sample("memory", "rocksdb-off", pair, "update", 200.0));
            samples.push(sample("memory", "orogen-punch", pair, "update", 150.0));
        }
        let tables = gc(&samples);
        assert_eq!(tables.len(), 2);
        assert!(tables[0].title.contains("times rocksdb-blob"));
        assert_eq!(row_of(&tables[0], "orogen-punch")[2], "2.25 (1.50..3.00)");
        let row = row_of(&tables[1], "rocksdb-blob");
        assert_eq!(row.last().unwrap(), "3.00 (2.00..4.00)");
        // What it is the same as without collecting was left out.
        assert_eq!(row_of(&tables[1], "orogen-punch").last().unwrap(), "-");
        assert_eq!(tables[1].columns.len(), row.len());
    }

    #[test]
    fn a_table_is_written_for_the_terminal_and_for_a_page() {
        let table = Table {
            title: "speed".to_owned(),
            columns: vec!["value".into(), "candidate".into(), "get".into()],
            rows: vec![vec!["4 KiB".into(), "orogen".into(), "12".into()]],
        };
        assert_eq!(
            table.text(),
            "speed\nvalue  candidate  get\n4 KiB  orogen      12\n"
        );
        assert_eq!(
            table.markdown(),
            "speed:\n\n| value | candidate | get |\n|---|---|---:|\n| 4 KiB | orogen | 12 |\n"
        );
    }

    #[test]
    fn the_document_has_medians_and_ratios_of_rates() {
        let cells = cells(&blob_samples());
        let cell = cells
            .iter()
            .find(|c| c["candidate"] == "orogen" && c["phase"] == "get")
            .unwrap();
        assert_eq!(cell["setting"], "memory");
        assert_eq!(cell["base"], "rocksdb");
        assert_eq!(cell["ratio"]["ops_per_second"]["median"], 2.25);
        assert_eq!(cell["figures"]["p99_ns"]["max"], 1000.0);
        assert!(cell["ratio"]["p99_ns"].is_null());
    }
}
