//! Whether a directory that is not open is whole: each file is read to its end, blocks included, and nothing is changed.
//!
//! Damage is told as an open tells it that tolerates a torn end: what a crash leaves behind the newest files is none. Only blocks of earlier
//! files are looked at more closely, which an open leaves to their readers.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::FileSystem;

use crate::dirs::Dirs;
use crate::format::drop_marks;
use crate::item::{Item, Op};
use crate::names::{FileId, Queue};
use crate::recover::{list, look, newest_of};

/// What a file of a log holds.
#[derive(Clone, Debug)]
pub struct CheckedFile {
    /// Its queue and number.
    pub id: FileId,
    /// Where it is.
    pub path: PathBuf,
    /// Whether it is the newest one of its queue, or has only files without records behind it.
    pub is_newest: bool,
    /// Operations in it.
    pub operations: u64,
    /// Entries among what these add.
    pub entries: u64,
    /// Bytes of the entries.
    pub entry_bytes: u64,
    /// What is in it that is no record.
    pub damage: Option<Error>,
    /// Whether the damage is what a crash leaves, and an open cuts off.
    pub is_torn_end: bool,
}

impl CheckedFile {
    fn count(&mut self, items: &[Item]) {
        self.operations += items.len() as u64;
        for item in items {
            if let Op::Entries(entries) = &item.op {
                self.entries += entries.ends.len() as u64;
                let end = entries.ends.last().copied().unwrap_or(entries.start);
                self.entry_bytes += u64::from(end.saturating_sub(entries.start));
            }
        }
    }
}

/// What a directory holds, or two.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The files that count, in the order in which an open reads them.
    pub files: Vec<CheckedFile>,
    /// How many groups there is an operation on.
    pub groups: u64,
    /// Groups of which entries are missing between others, in order, and the last index before that. What was compacted is not missing. Each
    /// queue is looked at by itself.
    pub holes: Vec<(u64, u64)>,
}

/// Reads the files of a directory that is not open, and of its second directory if it has one. `each` is told how many of how many files
/// were read.
///
/// # Errors
/// `InvalidArgument` if there is no such directory; `Busy` if it is open; `Corruption` if two files have the same number; those of the file
/// system.
pub fn check(
    fs: &dyn FileSystem,
    dir: &Path,
    spill_dir: Option<&Path>,
    each: impl FnMut(u64, u64),
) -> Result<Checked> {
    check_dirs(fs, &Dirs::new(dir, spill_dir)?, each)
}

/// As [`check`].
pub(crate) fn check_dirs(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    mut each: impl FnMut(u64, u64),
) -> Result<Checked> {
    let _locks = dirs.lock(fs)?;
    let queues = [Queue::Rewrite, Queue::Append];
    let lists = queues.map(|queue| list(fs, dirs, queue));
    let [rewrite, append] = lists;
    let lists = [rewrite?, append?];
    let count = lists.iter().map(Vec::len).sum::<usize>() as u64;
    let mut checked = Checked::default();
    let mut groups = HashSet::new();
    let mut holes = HashMap::new();
    for places in lists {
        let newest = newest_of(fs, &places)?;
        let mut lasts = HashMap::new();
        for (at, place) in places.iter().enumerate() {
            let mut file = CheckedFile {
                id: place.id,
                path: place.path(),
                is_newest: at >= newest,
                operations: 0,
                entries: 0,
                entry_bytes: 0,
                damage: None,
                is_torn_end: false,
            };
            let behind = look(fs, &place.path(), place.id, true, |mut items, _| {
                drop_marks(&mut items);
                file.count(&items);
                for Item { group, op } in items {
                    groups.insert(group);
                    follow(&mut lasts, &mut holes, group, &op);
                }
                Ok(())
            })?;
            file.is_torn_end = file.is_newest && behind.may_be_torn();
            file.damage = behind.told(file.is_newest);
            checked.files.push(file);
            each(checked.files.len() as u64, count);
        }
    }
    checked.groups = groups.len() as u64;
    checked.holes = holes.into_iter().collect();
    checked.holes.sort_unstable();
    Ok(checked)
}

fn follow(lasts: &mut HashMap<u64, u64>, holes: &mut HashMap<u64, u64>, group: u64, op: &Op) {
    match op {
        Op::Entries(entries) if !entries.ends.is_empty() => {
            let last = entries.first + (entries.ends.len() as u64 - 1);
            if let Some(before) = lasts.insert(group, last)
                && before.saturating_add(1) < entries.first
            {
                holes.entry(group).or_insert(before);
            }
        }
        // Whatever comes next follows on nothing.
        Op::Clean => {
            lasts.remove(&group);
        }
        Op::Compact { index } if lasts.get(&group).is_some_and(|last| last < index) => {
            lasts.remove(&group);
        }
        _ => {}
    }
}
