//! Zeros, and blocks of them written past the page cache.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use orogen_base::Result;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::calls::Calls;
use super::{File, failed, writeback};

const LEN: usize = 256 << 10;

/// At an address that may be written from past the page cache.
#[repr(C, align(4096))]
struct Aligned([u8; LEN]);

static ZEROS: Aligned = Aligned([0; LEN]);

/// So many zeros, 256 KiB at most.
pub(super) fn some(len: u64) -> &'static [u8] {
    &ZEROS.0[..usize::try_from(len).unwrap_or(LEN).min(LEN)]
}

fn open(path: &Path, is_direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    if is_direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    options.open(path)
}

/// Whether a file system says so of writes past the page cache that it does not have, or not of such a length.
fn is_refused(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// [`orogen_env::FileSystem::write_zeros_at`], with these calls.
///
/// [`orogen_env::FileSystem::write_zeros_at`]: crate::FileSystem::write_zeros_at
pub(super) fn write_at<C: Calls>(path: &Path, offset: u64, len: u64, calls: &C) -> Result<()> {
    let cannot = |e: io::Error| failed("cannot write zeros", path, e);
    let mut is_direct = true;
    let mut file = match open(path, true) {
        Err(e) if is_refused(&e) => {
            is_direct = false;
            open(path, false).map_err(cannot)?
        }
        file => file.map_err(cannot)?,
    };
    let mut at = offset;
    let end = offset.saturating_add(len);
    while at < end {
        match calls.write_at(&file, some(end - at), at) {
            Ok(0) => return Err(cannot(Errno::IO.into())),
            Ok(n) => at += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_direct && is_refused(&e) => {
                is_direct = false;
                file = open(path, false).map_err(cannot)?;
            }
            Err(e) => return Err(cannot(e)),
        }
    }
    if !is_direct {
        // So that the sync has little left.
        writeback::start(file.as_raw_fd(), offset, len).map_err(cannot)?;
    }
    Ok(())
}
