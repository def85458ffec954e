//! Folders on the real file system that vanish with their guard.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new folder; dropped, it is removed with all that is in it. After a panic it stays, so that
/// one can look.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// A new folder below the system's folder for such, with `name` in its name.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let leaf = format!("orogen-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(leaf);
        // An earlier process of this number may have left one.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self { path }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Nothing depends on it: what is left over is the system's to clear.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_differ_and_vanish() {
        let (a, b) = (TempDir::new("t"), TempDir::new("t"));
        assert_ne!(a.path(), b.path());
        std::fs::write(a.path().join("x"), "x").unwrap();
        let path = a.path().to_path_buf();
        drop(a);
        assert!(!path.exists() && b.path().exists());
    }
}
