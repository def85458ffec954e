//! The info LOG: what the database did, a line each, for people.
//!
//! ```text
//! 2026/01/31-12:34:56.789012 INFO [default] flushed job=3 file=12 bytes=4096
//! ```
//! The LOG of an earlier open is renamed to `LOG.old.<micros>`; the newest few are kept. A LOG
//! that cannot be written never stops the database. Each line is also a `tracing` event.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use orogen_base::Result;
use orogen_base::sync::Mutex;
use orogen_env::{Clock, FileSystem, WritableFile};

use crate::filename::{self, FileKind};
use crate::options::InfoLogLevel;

/// Writes the LOG.
pub(crate) struct InfoLog {
    level: InfoLogLevel,
    clock: Arc<dyn Clock>,
    file: Mutex<Option<Box<dyn WritableFile>>>,
}

impl InfoLog {
    /// A LOG that writes nothing to disk.
    pub(crate) fn disabled(clock: Arc<dyn Clock>) -> Self {
        Self {
            level: InfoLogLevel::Error,
            clock,
            file: Mutex::new(None),
        }
    }

    /// A new LOG in `dir`; the old one is kept under another name.
    pub(crate) fn open(
        fs: &dyn FileSystem,
        clock: Arc<dyn Clock>,
        dir: &Path,
        level: InfoLogLevel,
        keep: usize,
    ) -> Result<Self> {
        let path = filename::info_log_path(dir);
        if fs.exists(&path)? {
            fs.rename(
                &path,
                &filename::old_info_log_path(dir, clock.unix_micros()),
            )?;
            remove_old(fs, dir, keep)?;
        }
        let file = fs.create(&path)?;
        Ok(Self {
            level,
            clock,
            file: Mutex::new(Some(file)),
        })
    }

    /// Writes a line if `level` is high enough.
    pub(crate) fn write(&self, level: InfoLogLevel, text: fmt::Arguments<'_>) {
        match level {
            InfoLogLevel::Debug => tracing::debug!("{text}"),
            InfoLogLevel::Info => tracing::info!("{text}"),
            InfoLogLevel::Warn => tracing::warn!("{text}"),
            InfoLogLevel::Error => tracing::error!("{text}"),
        }
        if level < self.level {
            return;
        }
        let mut file = self.file.lock();
        let Some(open) = file.as_mut() else { return };
        let name = match level {
            InfoLogLevel::Debug => "DEBUG",
            InfoLogLevel::Info => "INFO",
            InfoLogLevel::Warn => "WARN",
            InfoLogLevel::Error => "ERROR",
        };
        let line = format!("{} {name} {text}\n", timestamp(&*self.clock));
        if open.append(line.as_bytes()).is_err() {
            *file = None;
        }
    }

    pub(crate) fn info(&self, text: fmt::Arguments<'_>) {
        self.write(InfoLogLevel::Info, text);
    }

    pub(crate) fn warn(&self, text: fmt::Arguments<'_>) {
        self.write(InfoLogLevel::Warn, text);
    }

    pub(crate) fn error(&self, text: fmt::Arguments<'_>) {
        self.write(InfoLogLevel::Error, text);
    }
}

fn remove_old(fs: &dyn FileSystem, dir: &Path, keep: usize) -> Result<()> {
    let mut old: Vec<String> = fs
        .list(dir)?
        .into_iter()
        .filter(|n| matches!(filename::parse(n), Some(FileKind::OldInfoLog(_))))
        .collect();
    old.sort();
    let excess = old.len().saturating_sub(keep.saturating_sub(1));
    for name in old.drain(..excess) {
        fs.remove_file(&dir.join(name))?;
    }
    Ok(())
}

fn timestamp(clock: &dyn Clock) -> String {
    // One reading: parts of two clocks would go back and forth.
    let now = clock.unix_micros();
    let (secs, micros) = (now / 1_000_000, now % 1_000_000);
    let (days, second) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!(
        "{year:04}/{month:02}/{day:02}-{:02}:{:02}:{:02}.{micros:06}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Gregorian date of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says other micros as time goes by than the date has.
    struct Apart;

    impl Clock for Apart {
        fn now_micros(&self) -> u64 {
            999_999
        }
        fn unix_micros(&self) -> u64 {
            1_709_210_096_000_123
        }
        fn sleep(&self, _: std::time::Duration) {}
    }

    #[test]
    fn times_are_of_the_date() {
        assert_eq!(timestamp(&Apart), "2024/02/29-12:34:56.000123");
    }

    #[test]
    fn dates_are_gregorian() {
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(19_782), (2024, 2, 29));
        assert_eq!(civil_from_days(20_777), (2026, 11, 20));
    }
}
