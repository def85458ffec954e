//! The demo's directory: made, known again by a marker, and emptied of nothing but its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen::{Db, FileSystem, Options};
use orogen_env::fs::write_file;

use crate::failure::Failure;

/// Name of the file that says whose directory it is.
pub(super) const MARKER: &str = "OROGEN-DEMO";

const MARKER_TEXT: &[u8] = b"Made by `orogen demo`, which empties it when it is run again.\n";
const INPUT: &str = "packages.txt";

/// Where the demo goes if nobody says.
pub(super) fn default_path() -> PathBuf {
    // Of a source tree the folder `build` is not under version control.
    if Path::new("Cargo.toml").exists() && Path::new("crates").is_dir() {
        return Path::new("build").join("demo");
    }
    std::env::temp_dir().join("orogen-demo")
}

/// A directory with the marker.
pub(super) struct Directory {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
}

impl Directory {
    /// Makes the directory, or empties one that a demo made.
    ///
    /// # Errors
    /// Of a directory that is not a demo's nothing is touched; `Busy` if a database in it is
    /// open.
    pub(super) fn prepare(path: &Path) -> Result<Self, Failure> {
        let fs = Options::default().db.fs;
        let this = Self {
            fs: fs.clone(),
            path: path.to_owned(),
        };
        if fs.exists(path)? {
            let is_dir = fs.metadata(path)?.is_dir;
            if !is_dir || (!fs.exists(&path.join(MARKER))? && !fs.list(path)?.is_empty()) {
                return Err(Failure::Failed(format!(
                    "{} was not made by a demo and is left alone; name another with --db",
                    path.display()
                )));
            }
        }
        fs.create_dir_all(path)?;
        write_file(&*fs, &path.join(MARKER), MARKER_TEXT)?;
        for database in [this.packages(), this.killed()] {
            Db::destroy(&database, &Options::default())?;
        }
        Ok(this)
    }

    /// Keeps the records for the writer, and for who wants to look.
    pub(super) fn keep_input(&self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(write_file(&*self.fs, &self.input(), bytes)?)
    }

    pub(super) fn input(&self) -> PathBuf {
        self.path.join(INPUT)
    }

    /// The database of the load.
    pub(super) fn packages(&self) -> PathBuf {
        self.path.join("packages")
    }

    /// The database whose writer is killed.
    pub(super) fn killed(&self) -> PathBuf {
        self.path.join("killed")
    }
}
