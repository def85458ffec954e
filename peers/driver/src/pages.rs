//! Files out of the page cache, without rights over the machine.
//!
//! A data set larger than memory is imitated: each time the process has moved as many bytes from
//! and to the device as the pages may hold, the pages of the database's files are forgotten. So
//! they hold half of their bound in the mean. It is the same for all engines, counts only what
//! lies in the page cache, and leaves pages that are mapped where they are.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::Path;

use rustix::fs::{Advice, fadvise};

use crate::Result;
use crate::process::Cost;

/// Calls `each` with every file below a directory; one that goes meanwhile is passed over.
fn for_each_file(dir: &Path, each: &mut dyn FnMut(&File) -> Result<()>) -> Result<()> {
    let gone = |error: &Error| error.kind() == ErrorKind::NotFound;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            for_each_file(&path, each)?;
            continue;
        }
        // To close a file ends the locks that the process has on it.
        if entry.file_name() == "LOCK" {
            continue;
        }
        match File::open(&path) {
            Ok(file) => each(&file)?,
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn forget(file: &File) -> Result<()> {
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

/// Forgets the pages of all files below a directory, once they are on the device.
pub(crate) fn forget_all(dir: &Path) -> Result<()> {
    for_each_file(dir, &mut |file| {
        file.sync_data()?;
        forget(file)
    })
}

/// Forgets the pages of all files below a directory that are on the device.
pub(crate) fn forget_clean(dir: &Path) -> Result<()> {
    for_each_file(dir, &mut forget)
}

/// Keeps the pages of a directory's files within a bound.
pub(crate) struct Bound {
    bytes: u64,
    moved: u64,
}

impl Bound {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        Ok(Self {
            bytes,
            moved: moved()?,
        })
    }

    /// Forgets the pages if as many bytes as they may hold were moved since it last did; gives
    /// whether it was so. Those that are not on the device yet begin to be written.
    pub(crate) fn hold(&mut self, dir: &Path) -> Result<bool> {
        let now = moved()?;
        let full = now - self.moved >= self.bytes;
        if full {
            forget_clean(dir)?;
            self.moved = now;
        }
        Ok(full)
    }
}

/// Bytes that the process moved from and to the device.
fn moved() -> Result<u64> {
    let cost = Cost::now()?;
    Ok(cost.device_bytes + cost.device_read_bytes)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Beside the test's program: a temporary directory may be in memory.
    fn dir(name: &str) -> PathBuf {
        let program = std::env::current_exe().unwrap();
        let name = format!("{name}-{}", std::process::id());
        let dir = program.parent().unwrap().join(name);
        std::fs::create_dir_all(dir.join("below")).unwrap();
        dir
    }

    #[test]
    fn what_was_forgotten_comes_from_the_device_again() {
        const LEN: u64 = 8 << 20;
        let dir = dir("pages");
        let path = dir.join("below").join("file");
        std::fs::write(&path, vec![7; LEN as usize]).unwrap();
        let read_from_device = || {
            let start = Cost::now().unwrap();
            assert_eq!(std::fs::read(&path).unwrap().len() as u64, LEN);
            Cost::now().unwrap().since(start).device_read_bytes
        };
        let cached = read_from_device();
        forget_all(&dir).unwrap();
        let mut bound = Bound::new(LEN).unwrap();
        let cold = read_from_device();
        assert!(cold >= LEN && cached < cold, "{cold} {cached}");
        // The bound was reached, and then it counts anew. Other tests move bytes too.
        assert!(bound.hold(&dir).unwrap());
        assert!(!Bound::new(u64::MAX).unwrap().hold(&dir).unwrap());
        assert!(read_from_device() >= LEN);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
