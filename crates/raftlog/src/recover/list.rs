//! Which files count.

use std::path::{Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::{Access, FileSystem};

use super::{Window, damage};
use crate::dirs::{Dirs, Place};
use crate::format::{FILE_HEADER_LEN_MAX, FileHeader};
use crate::names::{FileId, Name, Queue, SEQ_END};

/// True if nothing but zeros stands behind the header, whole or not: the file was being made.
pub(super) fn is_empty(fs: &dyn FileSystem, place: &Place) -> Result<bool> {
    let mut window = Window::new(fs.open(&place.path(), Access::Sequential)?)?;
    let decoded = FileHeader::decode(window.get(0, FILE_HEADER_LEN_MAX)?);
    let begin = match damage(decoded)? {
        Ok(header) => header.version.header_len() as u64,
        Err(_) => 0,
    };
    let size = window.size;
    Ok(size <= FILE_HEADER_LEN_MAX as u64 || window.is_zero(begin, size)?)
}

/// The files of a queue in the order of their numbers, and apart from these the empty ones whose number another one has: raft-engine
/// leaves such in one directory where it could not make a file, and makes it in the other.
fn sorted(fs: &dyn FileSystem, dirs: &Dirs, queue: Queue) -> Result<(Vec<Place>, Vec<Place>)> {
    let mut all: Vec<Place> = dirs
        .names(fs)?
        .into_iter()
        .filter_map(|(name, dir)| match name {
            Name::Log(id) if id.queue == queue => Some(Place {
                id,
                dir: dir.clone(),
            }),
            _ => None,
        })
        .collect();
    all.sort_by_key(|place| place.id);
    if let Some(last) = all.last().filter(|last| last.id.seq >= SEQ_END) {
        return Err(Error::corruption("number of a file is too large")
            .with("file", last.path().display())
            .with("help", "it is none of this log: move it away"));
    }
    let mut places: Vec<Place> = Vec::with_capacity(all.len());
    let mut empty = Vec::new();
    for place in all {
        match places.last_mut() {
            Some(last) if last.id == place.id => {
                if is_empty(fs, &place)? {
                    empty.push(place);
                } else if is_empty(fs, last)? {
                    empty.push(std::mem::replace(last, place));
                } else {
                    return Err(Error::corruption("two files have the same number")
                        .with("file", last.path().display())
                        .with("other", place.path().display()));
                }
            }
            _ => places.push(place),
        }
    }
    let gap = places
        .windows(2)
        .rposition(|pair| pair[0].id.seq + 1 != pair[1].id.seq);
    if let Some(at) = gap {
        places.drain(..=at);
    }
    // What was left of making a file in one directory is behind no other one once the file itself, which was made in the other, is
    // purged: it holds nothing. With one directory it is a file that has lost what it had.
    while dirs.second().is_some() && places.len() > 1 && is_empty(fs, &places[0])? {
        empty.push(places.remove(0));
    }
    Ok((places, empty))
}

/// The files of a queue that count, in order.
///
/// # Errors
/// `Corruption` if two have the same number; those of the file system.
pub(crate) fn list(fs: &dyn FileSystem, dirs: &Dirs, queue: Queue) -> Result<Vec<Place>> {
    Ok(sorted(fs, dirs, queue)?.0)
}

/// The files of a log that count and where they are, those of its second directory included if it has one: in the order in which an open reads
/// them, the rewrite queue first. Nothing is locked or changed.
///
/// # Errors
/// `Corruption` if two have the same number; those of the file system.
pub fn log_files(
    fs: &dyn FileSystem,
    dir: &Path,
    spill_dir: Option<&Path>,
) -> Result<Vec<(FileId, PathBuf)>> {
    let dirs = Dirs::new(dir, spill_dir)?;
    let mut files = list(fs, &dirs, Queue::Rewrite)?;
    files.extend(list(fs, &dirs, Queue::Append)?);
    Ok(files
        .into_iter()
        .map(|place| (place.id, place.path()))
        .collect())
}

/// As [`list`], and removes what was being made and has a number twice.
///
/// # Errors
/// As [`list`].
pub(super) fn list_to_open(fs: &dyn FileSystem, dirs: &Dirs, queue: Queue) -> Result<Vec<Place>> {
    let (places, empty) = sorted(fs, dirs, queue)?;
    for place in empty {
        fs.remove_file(&place.path())?;
        fs.sync_dir(&place.dir)?;
    }
    Ok(places)
}
