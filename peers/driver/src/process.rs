//! What the process has cost so far, as the kernel counts it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// Counters at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU of all threads, also of those that ended.
    pub(crate) cpu_seconds: f64,
    /// Bytes passed to write calls.
    pub(crate) write_call_bytes: u64,
    /// Bytes that the process caused to be written to the device.
    pub(crate) device_bytes: u64,
    /// Bytes that the process caused to be read from the device.
    pub(crate) device_read_bytes: u64,
    /// CPU of the whole machine, and of those that share it with us.
    machine_seconds: f64,
}

/// Ticks of `/proc/stat` in a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Busy time in the first line of `/proc/stat`: all but idle (3) and waiting for I/O (4), without
/// guests, which user time has already.
fn busy_seconds(stat: &str) -> Option<f64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks = fields.split_whitespace().take(8).enumerate();
    let busy = ticks.filter(|(at, _)| *at != 3 && *at != 4);
    let sum: f64 = busy.filter_map(|(_, text)| text.parse::<f64>().ok()).sum();
    Some(sum / TICKS_PER_SECOND)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
}

impl Cost {
    pub(crate) fn now() -> Result<Self> {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let stat = std::fs::read_to_string("/proc/stat")?;
        let io = std::fs::read_to_string("/proc/self/io")?;
        Ok(Self {
            cpu_seconds: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            write_call_bytes: field(&io, "wchar").ok_or("no wchar in /proc/self/io")?,
            device_bytes: field(&io, "write_bytes").ok_or("no write_bytes in /proc/self/io")?,
            device_read_bytes: field(&io, "read_bytes").ok_or("no read_bytes in /proc/self/io")?,
            machine_seconds: busy_seconds(&stat).ok_or("no cpu in /proc/stat")?,
        })
    }

    pub(crate) fn since(self, start: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - start.cpu_seconds,
            write_call_bytes: self.write_call_bytes - start.write_call_bytes,
            device_bytes: self.device_bytes - start.device_bytes,
            device_read_bytes: self.device_read_bytes - start.device_read_bytes,
            machine_seconds: self.machine_seconds - start.machine_seconds,
        }
    }

    /// Cores that others used meanwhile.
    pub(crate) fn other_cores(self, seconds: f64) -> f64 {
        ((self.machine_seconds - self.cpu_seconds) / seconds).max(0.0)
    }
}

/// Forgets the largest resident size so far.
pub(crate) fn reset_peak_rss() -> Result<()> {
    Ok(std::fs::write("/proc/self/clear_refs", "5")?)
}

/// The largest resident size since it was forgotten, in bytes.
pub(crate) fn peak_rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = field(&status, "VmHWM").ok_or("no VmHWM in /proc/self/status")?;
    Ok(kib * 1024)
}

/// The resident size now, in bytes.
pub(crate) fn rss() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = field(&status, "VmRSS").ok_or("no VmRSS in /proc/self/status")?;
    Ok(kib * 1024)
}

/// Bytes that the files of a directory take on the disk.
pub(crate) fn disk_bytes(dir: &Path) -> Result<u64> {
    const BLOCK: u64 = 512;
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        // A file may go between the listing and the look.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        sum += if metadata.is_dir() {
            disk_bytes(&entry.path())?
        } else {
            metadata.blocks() * BLOCK
        };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "rchar: 1\nwchar: 23\nwrite_bytes: 4\nVmHWM:\t  567 kB\n";
        assert_eq!(field(text, "wchar"), Some(23));
        assert_eq!(field(text, "VmHWM"), Some(567));
        assert_eq!(field(text, "write"), None);
    }

    #[test]
    fn idle_time_and_guests_are_not_busy() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 99 99\ncpu0 1 1 1 1\n";
        assert_eq!(busy_seconds(stat), Some(1.71));
        assert_eq!(busy_seconds("cpu0 1"), None);
    }

    #[test]
    fn writing_is_seen_as_cost() {
        let start = Cost::now().unwrap();
        let path = std::env::temp_dir().join(format!("peers-cost-{}", std::process::id()));
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let cost = Cost::now().unwrap().since(start);
        std::fs::remove_file(&path).unwrap();
        assert!(cost.write_call_bytes >= 100_000);
        reset_peak_rss().unwrap();
        assert!(peak_rss().unwrap() > 0);
    }
}
