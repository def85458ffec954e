//! Which files were written over: a file stays the same one for the file system when it gets another name.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_env::{Access, FileSystem as _, PosixFileSystem, RandomAccessFile};

/// The files whose names end so, by what the file system knows them by.
pub(crate) fn files(dir: &Path, ending: &str) -> BTreeMap<u64, PathBuf> {
    let entries = std::fs::read_dir(dir).expect("it is there");
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("it is listed");
        let is_one = entry.file_name().to_string_lossy().ends_with(ending);
        is_one.then(|| (entry.metadata().expect("it is there").ino(), entry.path()))
    };
    entries.filter_map(file).collect()
}

struct Named {
    names: BTreeSet<PathBuf>,
    /// As long as it is open no other file is known by the same number.
    _open: Arc<dyn RandomAccessFile>,
}

/// Follows the files of an append queue.
#[derive(Default)]
pub(crate) struct Watch(BTreeMap<u64, Named>);

impl Watch {
    pub(crate) fn look(&mut self, dir: &Path) {
        for (file, path) in files(dir, ".raftlog") {
            let named = self.0.entry(file).or_insert_with(|| Named {
                names: BTreeSet::new(),
                _open: PosixFileSystem::new()
                    .open(&path, Access::Random)
                    .expect("it is there"),
            });
            named.names.insert(path);
        }
    }

    /// Files that have been two of the queue, one after the other.
    pub(crate) fn written_over(&self) -> usize {
        let has_two = |named: &&Named| named.names.len() > 1;
        self.0.values().filter(has_two).count()
    }
}
