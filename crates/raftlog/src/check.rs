//! Whether a directory that is not open is whole: each file is read to its end, blocks included, and nothing is changed.
//!
//! Damage is told as an open tells it that tolerates a torn end: what a crash leaves behind the newest files is none. Only blocks of earlier
//! files are looked at more closely, which an open leaves to their readers.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::FileSystem;

use crate::dirs::Dirs;
use crate::format::{drop_marks, take_mark};
use crate::item::{Item, Op};
use crate::names::{FileId, Queue};
use crate::recover::{Atomic, list, look, newest_of};

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
    /// queue is looked at by itself. In the rewrite queue, which need not tell what was compacted, only what may have stood behind
    /// damage is missing.
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
    for (queue, places) in queues.into_iter().zip(lists) {
        let newest = newest_of(fs, &places)?;
        let mut runs = Runs::default();
        let mut atomic = Atomic::default();
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
            let mut strange = None;
            let behind = look(fs, &place.path(), place.id, true, |mut items, block| {
                let mark = match queue {
                    Queue::Append => Ok(None),
                    Queue::Rewrite => take_mark(&mut items),
                };
                drop_marks(&mut items);
                file.count(&items);
                groups.extend(items.iter().map(|item| item.group));
                let due = match mark {
                    // Those of a group that is not complete never take effect.
                    Ok(mark) => atomic.take(mark, items, block),
                    Err(e) => {
                        strange.get_or_insert(e);
                        return Ok(());
                    }
                };
                for (items, block) in due {
                    for Item { group, op } in items {
                        runs.follow(&mut holes, group, &op, block.file);
                    }
                }
                Ok(())
            })?;
            file.is_torn_end = file.is_newest && strange.is_none() && behind.may_be_torn()?;
            let strange = strange.map(|e| e.with("file", file.path.display()));
            file.damage = strange.or_else(|| behind.told(file.is_newest));
            if file.damage.is_some() {
                runs.damaged.push(file.id);
            }
            checked.files.push(file);
            each(checked.files.len() as u64, count);
        }
    }
    checked.groups = groups.len() as u64;
    let before = |(group, hole): (u64, Hole)| (group, hole.before);
    checked.holes = holes.into_iter().map(before).collect();
    checked.holes.sort_unstable();
    Ok(checked)
}

/// Entries that are missing; of several holes, all that is between.
struct Hole {
    /// Index of the last entry before the first one.
    before: u64,
    /// Index of the first entry behind the last one.
    behind: u64,
}

/// The last entries of each group so far.
#[derive(Default)]
struct Runs {
    /// Index of the last one, and the file where it stands.
    lasts: HashMap<u64, (u64, FileId)>,
    /// Files that are damaged, in order.
    damaged: Vec<FileId>,
}

impl Runs {
    fn follow(&mut self, holes: &mut HashMap<u64, Hole>, group: u64, op: &Op, file: FileId) {
        // What is taken away is not missing any more.
        match op {
            Op::Clean => drop(holes.remove(&group)),
            Op::Compact { index } => {
                let is_above = |hole: &Hole| hole.behind > *index;
                if !holes.get(&group).is_none_or(is_above) {
                    holes.remove(&group);
                }
            }
            _ => {}
        }
        match op {
            Op::Entries(entries) if !entries.ends.is_empty() => {
                let last = entries.first + (entries.ends.len() as u64 - 1);
                if let Some((before, at)) = self.lasts.insert(group, (last, file))
                    && before.saturating_add(1) < entries.first
                    && (file.queue == Queue::Append || self.is_damaged_between(at, file))
                {
                    let behind = entries.first;
                    let hole = Hole { before, behind };
                    holes.entry(group).or_insert(hole).behind = behind;
                }
            }
            // Whatever comes next follows on nothing.
            Op::Clean => {
                self.lasts.remove(&group);
            }
            Op::Compact { index }
                if self.lasts.get(&group).is_some_and(|(last, _)| last < index) =>
            {
                self.lasts.remove(&group);
            }
            _ => {}
        }
    }

    /// Whether something of files from `from` up to, and without, `to` cannot be read: the damage of a file is behind what is read of it.
    fn is_damaged_between(&self, from: FileId, to: FileId) -> bool {
        let mut damaged = self.damaged.iter();
        damaged.any(|file| (from..to).contains(file))
    }
}
