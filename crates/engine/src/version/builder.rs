//! Edits applied to a version give the next one.
//!
//! The MANIFEST is believed only as far as it makes sense: an edit that adds a file twice, deletes
//! one that is not there or makes the files of a level overlap is damage, not a new state.
//!
//! Invariants of what `build` gives: (1) a file that stays keeps its `Arc`, a level that does
//! not change keeps its own; (2) level 0 is ordered newest first by epoch number, or by sequence
//! number while a file without an epoch number is there; (3) every other level is a sorted run.
//! Source: RocksDB `db/version_builder.cc`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::{Error, FileNo, Result};

use super::blob_meta::{BlobFile, BlobFileGarbage, BlobFileMeta, BlobSpace};
use super::edit::VersionEdit;
use super::file_meta::FileMeta;
use super::level::Level;
use super::version::{Era, Version};

/// For an edit of so many files it is noted where each file of the version is; for fewer each is looked for.
const MANY: usize = 64;

/// Gathers edits of one column family on top of a version.
#[derive(Clone)]
pub struct VersionBuilder {
    base: Arc<Version>,
    /// The levels of the files of `base`, once an edit has many.
    base_levels: Option<HashMap<FileNo, usize>>,
    added: BTreeMap<usize, HashMap<FileNo, Arc<FileMeta>>>,
    deleted: BTreeMap<usize, HashSet<FileNo>>,
    /// The level of each file that an edit touched; `None` once it is deleted.
    moved: HashMap<FileNo, Option<usize>>,
    compact_cursors: BTreeMap<usize, Vec<u8>>,
    blob_files: BTreeMap<FileNo, Arc<BlobFileMeta>>,
    blob_space: BlobSpace,
    era: Era,
}

impl VersionBuilder {
    /// A builder on top of `base`.
    #[must_use]
    pub fn new(base: &Arc<Version>) -> Self {
        Self {
            base_levels: None,
            added: BTreeMap::new(),
            deleted: BTreeMap::new(),
            moved: HashMap::new(),
            compact_cursors: base.compact_cursors.clone(),
            blob_files: base.blob_files.clone(),
            blob_space: base.blob_space,
            era: base.era.clone(),
            base: Arc::clone(base),
        }
    }

    /// Applies an edit: deletions, then additions.
    ///
    /// # Errors
    /// `Corruption` naming file and level if the edit contradicts what is there; the builder is
    /// then of no further use.
    pub fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        // RocksDB applies blob files first: additions, then garbage; then tables.
        for addition in &edit.blob_file_additions {
            let meta = BlobFileMeta {
                file: Arc::new(BlobFile::new(addition.clone())),
                garbage_blob_count: 0,
                garbage_blob_bytes: 0,
                given_up_bytes: None,
            };
            self.blob_space.add(&meta);
            if self
                .blob_files
                .insert(addition.number, Arc::new(meta))
                .is_some()
            {
                return Err(Error::corruption("blob file is added twice")
                    .with("blob_file", addition.number));
            }
        }
        for garbage in &edit.blob_file_garbages {
            self.add_garbage(garbage)?;
        }
        if edit.deleted_files.len() + edit.new_files.len() >= MANY {
            let (base, levels) = (&self.base, &mut self.base_levels);
            levels.get_or_insert_with(|| base.iter_files().map(|(l, f)| (f.number, l)).collect());
        }
        for (level, number) in &edit.deleted_files {
            self.delete(*level, *number)?;
        }
        for (level, file) in &edit.new_files {
            self.add(*level, file)?;
        }
        for (level, key) in &edit.compact_cursors {
            self.compact_cursors.insert(*level, key.clone());
        }
        Ok(())
    }

    /// Lets go of what `version`, which was built of a clone of this, does not have: its blob files would stay open, and
    /// nothing is said of them any more.
    pub(crate) fn forget_gone(&mut self, version: &Version) {
        let listed = version.blob_files();
        let space = &mut self.blob_space;
        self.blob_files.retain(|number, meta| {
            let stays = listed.contains_key(number);
            if !stays {
                space.remove(meta);
            }
            stays
        });
        let base = &self.base;
        self.moved
            .retain(|&number, level| level.is_some() || base.find(number).is_some());
    }

    fn level_of(&self, number: FileNo) -> Option<usize> {
        match self.moved.get(&number) {
            Some(level) => *level,
            None => match &self.base_levels {
                Some(levels) => levels.get(&number).copied(),
                None => self.base.find(number).map(|(level, _)| level),
            },
        }
    }

    fn delete(&mut self, level: usize, number: FileNo) -> Result<()> {
        let current = self.level_of(number);
        if current != Some(level) {
            let error = Error::corruption("deleted file is not on its level")
                .with("file", number)
                .with("level", level);
            return Err(match current {
                Some(current) => error.with("found_on_level", current),
                None => error,
            });
        }
        if self
            .added
            .get_mut(&level)
            .and_then(|files| files.remove(&number))
            .is_none()
        {
            self.deleted.entry(level).or_default().insert(number);
        }
        self.moved.insert(number, None);
        Ok(())
    }

    fn add(&mut self, level: usize, file: &Arc<FileMeta>) -> Result<()> {
        if let Some(current) = self.level_of(file.number) {
            return Err(Error::corruption("file is added twice")
                .with("file", file.number)
                .with("level", level)
                .with("found_on_level", current));
        }
        self.added
            .entry(level)
            .or_default()
            .insert(file.number, Arc::clone(file));
        self.moved.insert(file.number, Some(level));
        Ok(())
    }

    fn add_garbage(&mut self, garbage: &BlobFileGarbage) -> Result<()> {
        let bad =
            |what: &'static str| Err(Error::corruption(what).with("blob_file", garbage.number));
        let Some(meta) = self.blob_files.get_mut(&garbage.number) else {
            return bad("garbage in a blob file that is not there");
        };
        let count = meta
            .garbage_blob_count
            .checked_add(garbage.garbage_blob_count);
        let bytes = meta
            .garbage_blob_bytes
            .checked_add(garbage.garbage_blob_bytes);
        let (Some(count), Some(bytes)) = (count, bytes) else {
            return bad("more garbage in a blob file than it holds");
        };
        if count > meta.addition().total_blob_count || bytes > meta.addition().total_blob_bytes {
            return bad("more garbage in a blob file than it holds");
        }
        let given_up_bytes = match (meta.given_up_bytes, garbage.given_up_bytes) {
            (before, None) => before,
            (before, Some(more)) => Some(before.unwrap_or(0).saturating_add(more)),
        };
        if garbage.given_up_bytes == Some(0) {
            self.era = Era::default();
        }
        self.blob_space.remove(meta);
        *meta = Arc::new(BlobFileMeta {
            file: meta.file.clone(),
            garbage_blob_count: count,
            garbage_blob_bytes: bytes,
            given_up_bytes,
        });
        self.blob_space.add(meta);
        Ok(())
    }

    /// The version after all edits, ordered as the base version is, with as many levels.
    ///
    /// # Errors
    /// `Corruption` naming file and level if files are out of order or overlap;
    /// `InvalidArgument` if a file is on a level that there is not.
    pub fn build(self) -> Result<Version> {
        self.build_and_tell().map(|(version, _)| version)
    }

    /// The same, and the blob files that the version lacks and the base version or an edit has.
    pub(crate) fn build_and_tell(self) -> Result<(Version, Vec<Arc<BlobFile>>)> {
        let (icmp, num_levels) = (self.base.icmp.clone(), self.base.num_levels());
        self.build_with(icmp, num_levels)
    }

    /// The version after all edits; the base version must be empty, or have this order.
    pub(crate) fn build_as(
        self,
        icmp: InternalKeyComparator,
        num_levels: usize,
    ) -> Result<Version> {
        self.build_with(icmp, num_levels)
            .map(|(version, _)| version)
    }

    fn build_with(
        mut self,
        icmp: InternalKeyComparator,
        num_levels: usize,
    ) -> Result<(Version, Vec<Arc<BlobFile>>)> {
        let deepest = self
            .added
            .iter()
            .rfind(|(_, files)| !files.is_empty())
            .map(|(&n, _)| n);
        if let Some(deepest) = deepest.filter(|&n| n >= num_levels) {
            return Err(
                Error::invalid_argument("column family has more levels than num_levels")
                    .with("level", deepest)
                    .with("num_levels", num_levels),
            );
        }
        let order = self.level_0_order();
        let mut levels = Vec::with_capacity(num_levels);
        for n in 0..num_levels {
            levels.push(self.build_level(&icmp, n, order)?);
        }
        let gone = self.drop_unlinked_blob_files(&levels);
        let version = Version {
            icmp,
            levels,
            compact_cursors: self.compact_cursors,
            blob_files: self.blob_files,
            blob_space: self.blob_space,
            era: self.era,
        };
        Ok((version, gone))
    }

    /// Epoch numbers order level 0 only once every file of the column family has one.
    fn level_0_order(&self) -> fn(&FileMeta, &FileMeta) -> Ordering {
        let mut added = self.added.values().flat_map(HashMap::values);
        let base = self.base.iter_files().filter(|(level, f)| {
            !self
                .deleted
                .get(level)
                .is_some_and(|files| files.contains(&f.number))
        });
        let missing = added.any(|f| f.epoch_number == 0)
            || base.into_iter().any(|(_, f)| f.epoch_number == 0);
        if missing {
            newest_first_by_seqno
        } else {
            newest_first_by_epoch
        }
    }

    fn build_level(
        &mut self,
        icmp: &InternalKeyComparator,
        n: usize,
        level_0_order: fn(&FileMeta, &FileMeta) -> Ordering,
    ) -> Result<Arc<Level>> {
        let base = self.base.levels.get(n);
        let added = self.added.remove(&n).unwrap_or_default();
        let deleted = self.deleted.remove(&n).unwrap_or_default();
        if let Some(base) = base
            && added.is_empty()
            && deleted.is_empty()
        {
            return Ok(Arc::clone(base));
        }
        let stay = base.map_or(&[][..], |l| l.files());
        let mut files: Vec<Arc<FileMeta>> = stay
            .iter()
            .filter(|f| !deleted.contains(&f.number))
            .cloned()
            .collect();
        files.extend(added.into_values());
        // What stays is in order already, which a merging sort makes use of.
        if n == 0 {
            files.sort_by(|a, b| level_0_order(a, b));
        } else {
            files.sort_by(|a, b| {
                icmp.compare(&a.smallest, &b.smallest)
                    .then_with(|| a.number.cmp(&b.number))
            });
        }
        check_order(icmp, n, &files)?;
        Ok(Arc::new(Level::new(n, icmp, files)))
    }

    /// Blob files older than the first that a table points into are gone, and so are those that
    /// are garbage to the last byte.
    fn drop_unlinked_blob_files(&mut self, levels: &[Arc<Level>]) -> Vec<Arc<BlobFile>> {
        let mut gone = Vec::new();
        if self.blob_files.is_empty() {
            return gone;
        }
        let tables = levels.iter().flat_map(|l| l.files());
        let mut linked: Vec<FileNo> = tables.map(|f| f.oldest_blob_file_number).collect();
        linked.sort_unstable();
        linked.dedup();
        // Both are in order, and this is done under the lock of the MANIFEST: no file is searched for.
        let mut linked = linked.into_iter().peekable();
        let mut has_first = false;
        let space = &mut self.blob_space;
        self.blob_files.retain(|&number, meta| {
            while linked.next_if(|&n| n < number).is_some() {}
            let is_linked = linked.peek() == Some(&number);
            has_first |= is_linked;
            let stays = is_linked || (has_first && meta.is_live());
            if !stays {
                space.remove(meta);
                gone.push(meta.file.clone());
            }
            stays
        });
        gone
    }
}

fn newest_first_by_seqno(a: &FileMeta, b: &FileMeta) -> Ordering {
    (b.largest_seqno, b.smallest_seqno, b.number).cmp(&(
        a.largest_seqno,
        a.smallest_seqno,
        a.number,
    ))
}

fn newest_first_by_epoch(a: &FileMeta, b: &FileMeta) -> Ordering {
    b.epoch_number
        .cmp(&a.epoch_number)
        .then_with(|| newest_first_by_seqno(a, b))
}

fn check_order(icmp: &InternalKeyComparator, n: usize, files: &[Arc<FileMeta>]) -> Result<()> {
    for f in files {
        if icmp.compare(&f.smallest, &f.largest) == Ordering::Greater {
            return Err(Error::corruption("file ends before it starts")
                .with("file", f.number)
                .with("level", n));
        }
    }
    for pair in files.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        let overlap = if n == 0 {
            // Files of one epoch come from one job, which writes disjoint files.
            a.epoch_number != 0
                && a.epoch_number == b.epoch_number
                && icmp.compare(&a.smallest, &b.largest) != Ordering::Greater
                && icmp.compare(&b.smallest, &a.largest) != Ordering::Greater
        } else {
            icmp.compare(&a.largest, &b.smallest) != Ordering::Less
        };
        if overlap {
            return Err(Error::corruption("files of a level overlap")
                .with("level", n)
                .with("file", a.number)
                .with("other_file", b.number));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
