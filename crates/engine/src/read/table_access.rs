//! How reads reach the tables of files: the one place where they meet `sst`.

use std::sync::Arc;

use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{InternalIterator, PinnedValue, Result, SeqNo, UserComparator};

use orogen_blob::{BlobFileReader, BlobPointer};

use super::get::GetState;
use crate::version::{FileMeta, Identity, Level, Version};

/// Files of a level that are asked for tombstones before all of it is taken to have some.
const ASKED_FILES_MAX: usize = 64;

/// A file that is to be searched for the key of a state.
pub struct Ask<'a, 'k> {
    /// Where to search.
    pub file: &'a Arc<FileMeta>,
    /// For what, and what was found.
    pub state: &'a mut GetState<'k>,
    /// How the search went.
    pub outcome: Result<()>,
}

/// Reads the values that pointers in tables lead to, for jobs.
pub trait BlobSource: Send + Sync {
    /// The value of `user_key` at `pointer`; `None` if it is damaged. Then the job passes the pointer
    /// on: readers are told, and the job's other entries have nothing to do with it.
    ///
    /// # Errors
    /// `Io`, `NotSupported`.
    fn value(&self, pointer: &BlobPointer, user_key: &[u8]) -> Result<Option<PinnedValue>>;

    /// [`Self::value`] as its file stores it, and the file.
    ///
    /// # Errors
    /// As [`Self::value`].
    fn stored(
        &self,
        pointer: &BlobPointer,
        user_key: &[u8],
    ) -> Result<Option<(PinnedValue, Arc<BlobFileReader>)>>;
}

/// Takes values into a cache that were just written to blob files.
pub trait BlobKeeper: Send + Sync {
    /// Keeps the value at `pointer`, of a file that will have this identity, if there is room.
    fn keep(&self, file: Identity, pointer: &BlobPointer, value: &[u8]);
}

/// A pointer that is to be followed.
pub struct AskBlob<'p> {
    /// As it stands in the table.
    pub pointer: &'p [u8],
    /// Whose value it leads to.
    pub user_key: &'p [u8],
    /// What came of it; `None` before.
    pub value: Option<Result<PinnedValue>>,
}

/// Shows pointers, with their user keys, that a cursor is likely to follow next, until it is told false.
pub type Upcoming<'a> = &'a dyn Fn(&mut dyn FnMut(&[u8], &[u8]) -> bool);

/// Opens tables, or finds them open, and reads them.
///
/// Called from many threads at once.
pub trait TableAccess: Send + Sync + 'static {
    /// The cursor over a table's point entries.
    type Iter: InternalIterator;
    /// How a table is read.
    type Options: Clone + Send + 'static;
    /// What a cursor has read ahead of blob files.
    type Readahead: Default + Send + Sync + 'static;

    /// A cursor over the point entries of a file.
    ///
    /// # Errors
    /// If the file cannot be opened or is damaged.
    fn iter(&self, file: &Arc<FileMeta>, options: &Self::Options) -> Result<Self::Iter>;

    /// [`Self::iter`] in place of a cursor that is done; `is_neighbour` if the scan goes on from
    /// there to this file.
    ///
    /// # Errors
    /// As [`Self::iter`].
    fn next_iter(
        &self,
        file: &Arc<FileMeta>,
        options: &Self::Options,
        done: Self::Iter,
        is_neighbour: bool,
    ) -> Result<Self::Iter> {
        let _ = (done, is_neighbour);
        self.iter(file, options)
    }

    /// The range tombstones of a file, not cut to its key range.
    ///
    /// # Errors
    /// If the file cannot be opened or is damaged.
    fn range_tombstones(&self, file: &Arc<FileMeta>) -> Result<Arc<FragmentedRangeTombstones>>;

    /// False if the file is known to have no range tombstones; costs no I/O.
    fn may_have_range_tombstones(&self, file: &FileMeta) -> bool;

    /// False if the files of a level are known to have no range tombstones; costs no I/O.
    ///
    /// A scan asks once. If it is told true without need, it compares each key with a border.
    fn level_may_have_range_tombstones(&self, level: &Level) -> bool {
        level.len() > ASKED_FILES_MAX
            || level
                .files()
                .iter()
                .any(|f| self.may_have_range_tombstones(f))
    }

    /// False if a file surely has no key with the prefix that `extractor` cuts of `user_key`, by
    /// its filter. Always true of a file whose filter has no prefixes, or those of another
    /// extractor.
    ///
    /// # Errors
    /// If the file cannot be opened.
    fn may_hold_prefix(
        &self,
        file: &Arc<FileMeta>,
        options: &Self::Options,
        extractor: &dyn SliceTransform,
        user_key: &[u8],
    ) -> Result<bool> {
        let _ = (file, options, extractor, user_key);
        Ok(true)
    }

    /// The newest range tombstone of a file over `user_key` up to `read_seqno`, or 0, not cut to
    /// the file's key range.
    ///
    /// # Errors
    /// If the file cannot be opened or is damaged.
    fn covering_seqno(
        &self,
        file: &Arc<FileMeta>,
        order: &UserComparator,
        user_key: &[u8],
        read_seqno: SeqNo,
    ) -> Result<SeqNo> {
        if !self.may_have_range_tombstones(file) {
            return Ok(0);
        }
        Ok(self
            .range_tombstones(file)?
            .max_covering_seqno(order, user_key, read_seqno))
    }

    /// Asks the processor for what [`Self::get`] will look at first in a file, if it is open.
    fn prefetch(&self, file: &FileMeta, state: &GetState<'_>) {
        let _ = (file, state);
    }

    /// [`Self::get`] for each of `asks`, which are in the order of their keys, with an outcome
    /// of its own for each.
    fn get_batch(&self, options: &Self::Options, asks: &mut [Ask<'_, '_>]) {
        for ask in asks {
            ask.outcome = self.get(ask.file, options, ask.state);
        }
    }

    /// The value of `user_key` that a pointer in a table of `version` leads to.
    ///
    /// # Errors
    /// `Corruption` if it leads nowhere; `NotSupported` for values that expire; `Io`.
    fn blob(
        &self,
        version: &Version,
        pointer: &[u8],
        user_key: &[u8],
        options: &Self::Options,
    ) -> Result<PinnedValue>;

    /// [`Self::blob`] for a cursor, which may go on from there, to what `upcoming` shows.
    ///
    /// # Errors
    /// As [`Self::blob`].
    fn blob_in_row(
        &self,
        version: &Version,
        pointer: &[u8],
        user_key: &[u8],
        options: &Self::Options,
        ahead: &mut Self::Readahead,
        upcoming: Option<Upcoming<'_>>,
    ) -> Result<PinnedValue> {
        let _ = (ahead, upcoming);
        self.blob(version, pointer, user_key, options)
    }

    /// [`Self::blob`] for each of `asks`, in any order.
    fn blobs(&self, version: &Version, asks: &mut [AskBlob<'_>], options: &Self::Options) {
        for ask in asks {
            ask.value = Some(self.blob(version, ask.pointer, ask.user_key, options));
        }
    }

    /// Shows `state` the versions of its key in a file that its reader may see, newest first,
    /// until it has enough.
    ///
    /// # Errors
    /// If the file cannot be opened or is damaged.
    fn get(
        &self,
        file: &Arc<FileMeta>,
        options: &Self::Options,
        state: &mut GetState<'_>,
    ) -> Result<()>;
}
