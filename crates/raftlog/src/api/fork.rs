//! A second directory, as raft-engine makes one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_env::FileSystem;

use super::{Config, Error, RecoveryMode, Result};
use crate::dirs::Dirs;
use crate::fork::fork_dirs;

/// The files of a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyDetails {
    /// Those that were copied.
    pub copied: Vec<String>,
    /// Those that both directories share. They are hard links: either directory may delete its own.
    pub symlinked: Vec<String>,
}

/// Forks a directory that is not open.
pub(super) fn fork(
    source: &Config,
    fs: &Arc<dyn FileSystem>,
    target: &Path,
) -> Result<CopyDetails> {
    let refused = |why: &str| Err(Error::InvalidArgument(why.to_owned()));
    if source.enable_log_recycle {
        return refused("enable-log-recycle would write over files that are shared");
    }
    if source.recovery_mode == RecoveryMode::TolerateAnyCorruption {
        return refused("tolerate-any-corruption would cut off files that are shared");
    }
    let mut source = source.clone();
    source.sanitize()?;
    let (dir, options) = source.options();
    let dirs = Dirs::new(&dir, options.spill_dir.as_deref())?;
    let made = fork_dirs(&**fs, &dirs, target, true)?;
    let shown = |paths: Vec<PathBuf>| paths.iter().map(|p| p.display().to_string()).collect();
    Ok(CopyDetails {
        copied: shown(made.copied),
        symlinked: shown(made.shared),
    })
}
