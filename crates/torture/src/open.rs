//! How long an open takes: of a database of many tables, and of one with a long log.
//!
//! Both are made on the real file system, closed, and opened again; what was written is then
//! looked for. The figures are times, so nothing fails for being slow: only for being wrong.
//!
//! 1. With many tables nothing is opened but what the first get needs.
//! 2. All of the log is there after the open, its first pair and its last.

use std::path::Path;

use orogen_testkit::TempDir;

use crate::engine::{Db, Error, Options};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Bytes of the values in the log.
const LOG_VALUE_LEN: usize = 1000;

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Tables of the first database; 0: none is made.
    pub tables: u64,
    /// Mebibytes in the log of the second; 0: none is made.
    pub log_mib: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tables: 10_000,
            log_mib: 1024,
        }
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options
}

/// The figures of both databases.
#[must_use]
pub fn run(config: &Config) -> Vec<Figure> {
    let mut figures = Vec::new();
    if config.tables > 0 {
        let repeat = format!("open --tables {} --log-mib 0", config.tables);
        figures.push(figure(
            "open/tables",
            config.tables,
            "tables",
            repeat,
            |dir, f| many_tables(dir, config.tables, f),
        ));
    }
    if config.log_mib > 0 {
        let repeat = format!("open --tables 0 --log-mib {}", config.log_mib);
        figures.push(figure(
            "open/log",
            config.log_mib,
            "MiB",
            repeat,
            |dir, f| long_log(dir, config.log_mib, f),
        ));
    }
    figures
}

fn figure(
    name: &str,
    count: u64,
    unit: &'static str,
    repeat: String,
    play: impl FnOnce(&Path, &mut Figure) -> Result<(), String>,
) -> Figure {
    let mut figure = Figure {
        name: name.to_owned(),
        count,
        unit,
        seeds: 1,
        ..Figure::default()
    };
    let folder = TempDir::new("open");
    let (result, seconds) = timed(|| play(&folder.path().join("db"), &mut figure));
    figure.seconds = seconds;
    figure.failures = result
        .err()
        .map(|what| Failure { what, repeat })
        .into_iter()
        .collect();
    figure
}

fn told(doing: &'static str) -> impl Fn(Error) -> String {
    move |e| format!("{doing}: {e}")
}

fn millis(seconds: f64) -> f64 {
    seconds * 1e3
}

/// The first pair of a table.
fn table_key(table: u64) -> Vec<u8> {
    format!("table{table:08}").into_bytes()
}

fn expect(db: &Db, key: &[u8], value: &[u8]) -> Result<(), String> {
    match db.get(key).map_err(told("get"))? {
        Some(found) if &*found == value => Ok(()),
        found => Err(format!(
            "{} has {:?} bytes",
            key.escape_ascii(),
            found.map(|v| v.len())
        )),
    }
}

fn many_tables(dir: &Path, tables: u64, figure: &mut Figure) -> Result<(), String> {
    let mut options = options();
    options.cf.disable_auto_compactions = true;
    let db = Db::open(dir, &options).map_err(told("open"))?;
    let (made, make_seconds) = timed(|| {
        for table in 0..tables {
            let key = table_key(table);
            db.put(&key, &key).map_err(told("put"))?;
            db.flush().map_err(told("flush"))?;
        }
        Ok::<(), String>(())
    });
    made?;
    db.close().map_err(told("close"))?;
    let (db, open_seconds) = timed(|| Db::open(dir, &options));
    let db = db.map_err(told("open again"))?;
    let middle = table_key(tables / 2);
    let (first, first_get_seconds) = timed(|| expect(&db, &middle, &middle));
    first?;
    let (scan, first_scan_seconds) = timed(|| {
        let family = db.default_column_family();
        let iter = db.iter(&crate::engine::ReadOptions::default(), &family);
        let mut iter = iter.map_err(told("iter"))?;
        iter.seek_to_first();
        let mut n = 0;
        while iter.valid() {
            n += 1;
            iter.next();
        }
        iter.status().map_err(told("scan"))?;
        Ok::<u64, String>(n)
    });
    let found = scan?;
    if found != tables {
        return Err(format!("a scan of {tables} pairs gave {found}"));
    }
    figure.details = vec![
        ("make_ms", millis(make_seconds)),
        ("open_ms", millis(open_seconds)),
        ("first_get_ms", millis(first_get_seconds)),
        ("first_scan_ms", millis(first_scan_seconds)),
    ];
    db.close().map_err(told("close"))
}

fn log_key(n: u64) -> [u8; 16] {
    // Not in the order of the keys: the product of an odd number and a power of two's range.
    let mut key = [b'0'; 16];
    key[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn log_value(n: u64) -> Vec<u8> {
    let mut value = Vec::with_capacity(LOG_VALUE_LEN);
    let mut word = n;
    while value.len() < LOG_VALUE_LEN {
        // Half of it repeats, as the values of the benchmarks do.
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        value.extend_from_slice(&word.to_le_bytes());
        value.extend_from_slice(b"repeated");
    }
    value.truncate(LOG_VALUE_LEN);
    value
}

fn long_log(dir: &Path, mib: u64, figure: &mut Figure) -> Result<(), String> {
    let pairs = (mib << 20) / (LOG_VALUE_LEN as u64 + 16);
    let mut options = options();
    // Nothing is flushed before the log is as long as it shall be, nor at the end.
    options.cf.write_buffer_size = 4 * (mib << 20);
    options.db.avoid_flush_during_shutdown = true;
    let db = Db::open(dir, &options).map_err(told("open"))?;
    for n in 0..pairs {
        db.put(&log_key(n), &log_value(n)).map_err(told("put"))?;
    }
    db.close().map_err(told("close"))?;
    // As usual: what the log holds goes into tables.
    options.cf.write_buffer_size = 64 << 20;
    let (db, open_seconds) = timed(|| Db::open(dir, &options));
    let db = db.map_err(told("open again"))?;
    for n in [0, pairs / 2, pairs - 1] {
        expect(&db, &log_key(n), &log_value(n))?;
    }
    figure.details = vec![
        ("pairs", pairs as f64),
        ("open_ms", millis(open_seconds)),
        ("mib_per_second", mib as f64 / open_seconds.max(1e-9)),
    ];
    db.close().map_err(told("close"))
}
