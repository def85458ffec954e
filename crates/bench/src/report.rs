//! The head of a run and its results, as lines and as data.

use std::fmt::Write as _;

use serde::Serialize;

use crate::flags::Flags;
use crate::stats::Stats;

/// What one workload came to.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// The workload.
    pub name: String,
    /// Time of all threads over operations.
    pub micros_per_op: f64,
    /// Operations of all threads over time.
    pub ops_per_sec: f64,
    /// From the first start to the last end.
    pub seconds: f64,
    /// Operations of all threads.
    pub operations: u64,
    /// Bytes of keys and values over time; nothing where none were counted.
    pub mb_per_sec: Option<f64>,
    /// Keys found.
    pub found: Option<u64>,
    /// Keys looked for.
    pub looked_for: Option<u64>,
    /// Median of an operation's time.
    pub micros_p50: Option<f64>,
    /// 99 of 100 operations took less.
    pub micros_p99: Option<f64>,
    /// 999 of 1000 operations took less.
    pub micros_p999: Option<f64>,
    /// The longest.
    pub micros_max: Option<u64>,
}

impl BenchResult {
    pub(crate) fn of(name: &str, stats: &Stats) -> Self {
        let percentile = |p| stats.histogram.as_ref().map(|h| h.percentile(p));
        Self {
            name: name.to_owned(),
            micros_per_op: stats.micros_per_op(),
            ops_per_sec: stats.ops_per_sec(),
            seconds: stats.seconds(),
            operations: stats.done,
            mb_per_sec: stats.mb_per_sec(),
            found: stats.found.map(|f| f.0),
            looked_for: stats.found.map(|f| f.1),
            micros_p50: percentile(50.0),
            micros_p99: percentile(99.0),
            micros_p999: percentile(99.9),
            micros_max: stats.histogram.as_ref().map(|h| h.max()),
        }
    }
}

/// Day and time in UTC in the words of C's `ctime`.
fn date_text(unix_secs: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, secs) = (unix_secs / 86_400, unix_secs % 86_400);
    // Years begin in March here, so that a leap day is a year's last; an era has 400 years.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        secs / 3600,
        secs / 60 % 60,
        secs % 60
    )
}

/// What the machine is.
pub(crate) fn environment_text(unix_secs: u64) -> String {
    let mut out = format!("Orogen:     version {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(out, "Date:       {}", date_text(unix_secs));
    if let Ok(info) = std::fs::read_to_string("/proc/cpuinfo") {
        let field = |name: &str| {
            info.lines()
                .filter_map(|l| l.split_once(':'))
                .find(|(k, _)| k.trim() == name)
                .map(|(_, v)| v.trim().to_owned())
        };
        let cpus = info.lines().filter(|l| l.starts_with("processor")).count();
        if let Some(model) = field("model name") {
            let _ = writeln!(out, "CPU:        {cpus} * {model}");
        }
        if let Some(cache) = field("cache size") {
            let _ = writeln!(out, "CPUCache:   {cache}");
        }
    }
    out
}

/// What is about to be measured.
pub(crate) fn header_text(flags: &Flags) -> String {
    let compressed = (flags.value_size as f64 * flags.compression_ratio + 0.5) as usize;
    let megabytes = |pair: usize| (pair as f64 * flags.num as f64) / 1_048_576.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "Keys:       {} bytes each (+ 0 bytes user-defined timestamp)",
        flags.key_size
    );
    let _ = writeln!(
        out,
        "Values:     {} bytes each ({compressed} bytes after compression)",
        flags.value_size
    );
    let _ = writeln!(out, "Entries:    {}", flags.num);
    let raw = megabytes(flags.key_size + flags.value_size);
    let _ = writeln!(out, "RawSize:    {raw:.1} MB (estimated)");
    let _ = writeln!(
        out,
        "FileSize:   {:.1} MB (estimated)",
        megabytes(flags.key_size + compressed)
    );
    let mut codec = flags.compression_type.clone();
    if let Some(first) = codec.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    let _ = writeln!(out, "Compression: {codec}");
    if cfg!(debug_assertions) {
        let _ = writeln!(
            out,
            "WARNING: Assertions are enabled; benchmarks unnecessarily slow"
        );
    }
    let _ = writeln!(out, "------------------------------------------------");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_text(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date_text(951_782_399), "Mon Feb 28 23:59:59 2000");
        assert_eq!(date_text(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date_text(1_795_202_773), "Fri Nov 20 19:26:13 2026");
        assert_eq!(date_text(1_798_761_599), "Thu Dec 31 23:59:59 2026");
    }

    #[test]
    fn the_header_has_db_benchs_figures() {
        let text = header_text(&Flags {
            num: 1000,
            ..Flags::default()
        });
        assert!(text.contains("Values:     100 bytes each (50 bytes after compression)\n"));
        assert!(text.contains("RawSize:    0.1 MB (estimated)\nFileSize:   0.1 MB (estimated)\n"));
        assert!(text.contains("Compression: Snappy\n"));
    }
}
