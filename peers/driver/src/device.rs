//! What the device of a file system has written, as it counts itself.
//!
//! `write_bytes` of a process is not that: it has neither the journal of the file system nor what a page costs that is written for two
//! syncs, and where the system keeps pages together one changed block counts as all of them. What other programs write to the
//! device meanwhile is in its count, too.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor, syncfs};

use crate::Result;

/// Bytes of a sector in the kernel's counts, whatever the device has.
const SECTOR: u64 = 512;

/// The block device on which the file system of a directory is.
#[derive(Debug)]
pub(crate) struct Device {
    /// Any file of the file system.
    dir: File,
    stat: PathBuf,
}

/// Sectors written, the seventh number.
fn sectors_written(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse().ok()
}

impl Device {
    /// None where the file system is on no block device that the kernel shows: in memory, or put together of others.
    pub(crate) fn of(dir: &Path) -> Result<Option<Self>> {
        let number = std::fs::metadata(dir)?.dev();
        let name = format!("{}:{}", major(number), minor(number));
        let stat = Path::new("/sys/dev/block").join(name).join("stat");
        if !stat.exists() {
            return Ok(None);
        }
        let dir = File::open(dir)?;
        Ok(Some(Self { dir, stat }))
    }

    /// Bytes that it has written, once the file system has nothing more to write.
    pub(crate) fn written(&self) -> Result<u64> {
        syncfs(&self.dir)?;
        let stat = std::fs::read_to_string(&self.stat)?;
        let sectors = sectors_written(&stat).ok_or("no sectors in the statistics of a device")?;
        Ok(sectors * SECTOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_written_are_the_seventh_number() {
        let stat = "  1 2 3 4   5 6 7777 8 9 10 11 12 13 14 15 16 17\n";
        assert_eq!(sectors_written(stat), Some(7777));
        assert_eq!(sectors_written("1 2 3 4 5 6"), None);
        assert_eq!(sectors_written("1 2 3 4 5 6 x"), None);
    }

    #[test]
    fn a_directory_that_is_on_no_device_has_none() {
        assert!(Device::of(Path::new("/proc")).unwrap().is_none());
        assert!(Device::of(Path::new("/not/there")).is_err());
    }

    #[test]
    fn what_is_written_is_counted() {
        let dir = std::env::temp_dir();
        let Some(device) = Device::of(&dir).unwrap() else {
            return;
        };
        let before = device.written().unwrap();
        let path = dir.join(format!("peers-device-{}", std::process::id()));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let after = device.written().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(after - before >= 1 << 20, "{before} {after}");
    }
}
