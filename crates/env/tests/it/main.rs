//! What every file system must do, run over the real one, the one in memory, and both behind
//! the one that fails on purpose.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod random_ops;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use orogen_env::{FaultFileSystem, FileSystem, MemFileSystem, PosixFileSystem};

/// A directory of its own, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "orogen-env-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test in an empty directory of every file system.
fn everywhere(test: impl Fn(&dyn FileSystem, &Path)) {
    let temp = TempDir::new();
    for name in ["plain", "fault"] {
        std::fs::create_dir(temp.0.join(name)).unwrap();
    }
    let in_memory = Path::new("/a/dir");
    let memory = || {
        let mem = MemFileSystem::new();
        mem.create_dir_all(in_memory).unwrap();
        mem
    };
    test(&PosixFileSystem::new(), &temp.0.join("plain"));
    test(
        &FaultFileSystem::new(Arc::new(PosixFileSystem::new())),
        &temp.0.join("fault"),
    );
    test(&memory(), in_memory);
    test(&FaultFileSystem::over_memory(memory()), in_memory);
}

/// The operating system's number of an error.
fn errno(e: &orogen_base::Error) -> Option<i32> {
    std::error::Error::source(e)?
        .downcast_ref::<std::io::Error>()?
        .raw_os_error()
}

fn share(fs: impl FileSystem + 'static) -> Arc<dyn FileSystem> {
    Arc::new(fs)
}
