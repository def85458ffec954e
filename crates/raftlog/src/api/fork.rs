//! A second directory that begins with what another one has.

use std::path::Path;
use std::sync::Arc;

use orogen_env::fs::make_dir;
use orogen_env::{Access, FileSystem};

use super::{Config, Error, RecoveryMode, Result};
use crate::dirs::Dirs;
use crate::names::Queue;
use crate::recover::list;

/// The files of a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyDetails {
    /// Those that were copied.
    pub copied: Vec<String>,
    /// Those that both directories share. They are hard links: either directory may delete its own.
    pub symlinked: Vec<String>,
}

const CHUNK: usize = 1 << 20;

fn copy(fs: &dyn FileSystem, from: &Path, to: &Path) -> Result<()> {
    let file = fs.open(from, Access::Sequential)?;
    let mut out = fs.create(to)?;
    let (mut at, mut chunk) = (0, Vec::new());
    loop {
        chunk.clear();
        let n = file.append_at(at, CHUNK, &mut chunk)?;
        if n == 0 {
            break;
        }
        out.append(&chunk)?;
        at += n as u64;
    }
    Ok(out.sync()?)
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
    let _locks = dirs.lock(&**fs)?;
    make_dir(&**fs, target)?;
    let targets = Dirs::new(target, None)?;
    for queue in [Queue::Append, Queue::Rewrite] {
        if !list(&**fs, &targets, queue)?.is_empty() {
            return refused("the target has files already");
        }
    }
    let mut details = CopyDetails::default();
    for queue in [Queue::Append, Queue::Rewrite] {
        let places = list(&**fs, &dirs, queue)?;
        for place in &places {
            let (from, to) = (place.path(), target.join(place.id.name()));
            let shown = to.display().to_string();
            // The newest is written on. Across file systems there are no links.
            if places.last() != Some(place) && fs.hard_link(&from, &to).is_ok() {
                details.symlinked.push(shown);
            } else {
                copy(&**fs, &from, &to)?;
                details.copied.push(shown);
            }
        }
    }
    fs.sync_dir(target)?;
    Ok(details)
}
