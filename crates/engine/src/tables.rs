//! Opens the tables of a family, once each.
//!
//! An open table stays with its file's metadata, so a lookup goes from version to table without
//! a shared map or lock, and a table closes when the last version that lists its file goes.
//! `Hot path`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::coding::Decoder;
use orogen_base::key::InternalKeyComparator;
use orogen_base::limits::NUM_LEVELS_MAX;
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::{self, PerfCounter};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use orogen_base::{
    Error, ErrorKind, FileNo, InternalIterator, ParsedInternalKey, PinnedValue, Result,
    UserComparator, ValueKind,
};
use orogen_blob::extents::dead_extents;
use orogen_blob::format::HEADER_LEN;
use orogen_blob::{
    AheadRead, BlobFileReader, BlobFileReaderOptions, BlobPointer, BlobRead, BlobReadahead,
    Coalesce, Extent,
};
use orogen_env::{Access, FileSystem, PerfTimer};
use orogen_sst::{
    BatchLookup, BlockCache, Readahead, TableIter, TableProperties, TableReadOptions, TableReader,
    TableReaderOptions, ValueSource, Visit,
};

use crate::filename;
use crate::memory::MemoryBudget;
use crate::read::{Ask, AskBlob, BlobSource, GetState, TableAccess, Upcoming};
use crate::version::blob_counts::{BLOB_REFERENCES, BlobCounts, INLINE_VALUE_SIZE_BOUND};
use crate::version::blob_reach::{BLOB_STRETCHES, BlobReach, BlobStretches};
use crate::version::file_meta::FileMeta;
use crate::version::{BlobFile, BlobFileAddition, Version, manifest};

/// Entries that are read between two looks.
const ENTRIES_PER_LOOK: u64 = 4096;

mod blob_rows;
mod kept_values;

pub(crate) use blob_rows::BlobRows;

/// What opening a table of one family needs.
pub(crate) struct FamilyTables {
    pub(crate) dir: PathBuf,
    pub(crate) family_id: u32,
    pub(crate) fs: Arc<dyn FileSystem>,
    /// How tables and blob files are opened.
    pub(crate) access: Access,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) cache: Arc<BlockCache>,
    /// It keeps values of blob files, too.
    pub(crate) blob_cache: bool,
    pub(crate) comparator: UserComparator,
    /// That of the open, which knows tables of the user's own extractor by its name; those that
    /// are built in need nobody. What iterators cut with is the family's setting.
    pub(crate) prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// Somebody else writes the database, and may give values up that are still looked for here.
    pub(crate) follows: bool,
    /// Nobody holds the lock here that keeps others from writing the database: there may be holes where values were.
    pub(crate) others_may_write: AtomicBool,
    /// [`crate::context::Context::open_number`] of the database.
    pub(crate) open_number: u64,
    pub(crate) cache_index_and_filter_blocks: bool,
    pub(crate) protect_cached_blocks: bool,
    /// What open tables are told to, and what is read ahead is reserved in.
    pub(crate) budget: Option<Arc<MemoryBudget>>,
}

impl FamilyTables {
    /// The open table of `file`.
    ///
    /// # Errors
    /// `Corruption`, `NotSupported` or `Io`, with the file's path.
    #[inline]
    pub(crate) fn reader<'f>(&self, file: &'f FileMeta) -> Result<&'f Arc<TableReader>> {
        match file.table.get() {
            Some(table) => Ok(table),
            None => self.open(file),
        }
    }

    #[cold]
    fn open<'f>(&self, file: &'f FileMeta) -> Result<&'f Arc<TableReader>> {
        let _timer = PerfTimer::start(PerfCounter::FindTableNanos);
        perf::add(PerfCounter::TableOpenCount, 1);
        let path = filename::table_path(&self.dir, file.number);
        let opened = match self.fs.open(&path, self.access) {
            Err(e) if e.is_file_not_found() => {
                let old = filename::old_table_path(&self.dir, file.number);
                self.fs.open(&old, self.access).map_err(|second| {
                    if second.is_file_not_found() {
                        let lost = "table file that the MANIFEST lists is missing";
                        self.missing(lost, &path, e, |now| {
                            now.iter_files().any(|(_, f)| f.number == file.number)
                        })
                    } else {
                        second
                    }
                })?
            }
            other => other?,
        };
        let size = opened.size()?;
        if size != file.size {
            return Err(
                Error::corruption("table file has another size than the MANIFEST says")
                    .with("file", path.display())
                    .with("size", size)
                    .with("wanted", file.size),
            );
        }
        let options = TableReaderOptions {
            comparator: self.comparator.clone(),
            block_cache: Some(self.cache.clone()),
            statistics: Some(self.statistics.clone()),
            prefix_extractor: self.prefix_extractor.clone(),
            file_number: file.number,
            largest_seqno: Some(file.largest_seqno),
            tail_size: file.tail_size,
            cache_index_and_filter_blocks: self.cache_index_and_filter_blocks,
            protect_cached_blocks: self.protect_cached_blocks,
            charge_readahead: self.budget.is_some(),
            ..TableReaderOptions::default()
        };
        let table = TableReader::open(opened, size, options)?;
        let properties = table.properties();
        file.counts
            .set((properties.num_entries, properties.num_deletions));
        file.codec.set(properties.compression.as_str().into());
        // Damage in these properties is told to who needs them.
        if let Ok(reach) = reach_of(&properties) {
            file.blob_depth.set(reach.map_or(0, |r| r.depth()));
        }
        if let Some(budget) = &self.budget {
            budget.add_table(&table);
        }
        Ok(file.table.set(table))
    }
}

impl FamilyTables {
    /// The open blob file of a number, which must be of `version`.
    ///
    /// # Errors
    /// `Corruption` if the version lists no such file, or it is damaged; `NotSupported`, `Io`.
    #[inline]
    pub(crate) fn blob_reader<'v>(
        &self,
        version: &'v Version,
        number: FileNo,
    ) -> Result<&'v Arc<BlobFileReader>> {
        self.reader_of(self.blob_file(version, number)?)
    }

    /// The stretches of a blob file of `version` that are dead where `live` is all that lives.
    ///
    /// # Errors
    /// Those of [`Self::blob_reader`] and of [`dead_extents`]; `Corruption` if the MANIFEST says that there are padding and
    /// meta records, and the end of the file does not lead to them.
    pub(crate) fn dead_extents(
        &self,
        version: &Version,
        number: FileNo,
        live: &mut [Extent],
    ) -> Result<Vec<Extent>> {
        let reader = self.blob_reader(version, number)?;
        reader.check_end(self.blob_file(version, number)?.addition.overhead_bytes)?;
        dead_extents(reader, live)
    }

    /// A blob file of `version`.
    #[inline]
    fn blob_file<'v>(&self, version: &'v Version, number: FileNo) -> Result<&'v BlobFile> {
        match version.blob_files().get(&number) {
            Some(file) => Ok(&file.file),
            None => Err(
                Error::corruption("pointer leads to a blob file that is not listed")
                    .with("file", filename::blob_path(&self.dir, number).display()),
            ),
        }
    }

    #[inline]
    fn reader_of<'v>(&self, file: &'v BlobFile) -> Result<&'v Arc<BlobFileReader>> {
        match file.reader.get() {
            Some(reader) => Ok(reader),
            None => {
                let reader = self.open_blob(&file.addition)?;
                let reader = file.reader.set(Arc::new(reader));
                if let Some(budget) = &self.budget {
                    budget.add_blob_file(reader);
                }
                Ok(reader)
            }
        }
    }

    #[cold]
    fn open_blob(&self, listed: &BlobFileAddition) -> Result<BlobFileReader> {
        let number = listed.number;
        let path = filename::blob_path(&self.dir, number);
        // Beside a writer a value may become a hole between its check and its use. Tables stay as they are.
        let access = match self.others_may_write.load(Relaxed) {
            true => Access::Random,
            false => self.access,
        };
        let opened = self.fs.open(&path, access).map_err(|e| {
            if e.is_file_not_found() {
                let lost = "blob file that the MANIFEST lists is missing";
                self.missing(lost, &path, e, |now| now.blob_files().contains_key(&number))
            } else {
                e
            }
        })?;
        let size = opened.size()?;
        let options = BlobFileReaderOptions {
            file_number: number,
            column_family_id: Some(self.family_id),
            is_listed: true,
            statistics: Some(self.statistics.clone()),
        };
        let reader = BlobFileReader::open(opened, size, options)?;
        let is_other = match reader.properties() {
            Ok(Some(own)) => own.file_number != number,
            // RocksDB's do not tell, and without what was damaged values are read all the same.
            Ok(None) => false,
            Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotSupported) => false,
            Err(e) => return Err(e),
        };
        let is_listed = |count| listed.tells_of(count, None, size);
        if is_other || !reader.record_count().is_some_and(is_listed) {
            return Err(
                Error::corruption("blob file is another one than the MANIFEST lists")
                    .with("file", path.display())
                    .with("values", listed.total_blob_count),
            );
        }
        self.statistics.add(Ticker::NoFileOpens, 1);
        Ok(reader)
    }

    /// What is wrong where a file is not there: it is lost, or who writes here has given it up since this was opened.
    #[cold]
    fn missing(
        &self,
        lost: &'static str,
        path: &Path,
        cause: Error,
        is_listed: impl Fn(&Version) -> bool,
    ) -> Error {
        let is_given_up = self.others_may_write.load(Relaxed)
            && manifest::recover_current(&*self.fs, &self.dir).is_ok_and(|(_, now)| {
                let family = now.families.get(&self.family_id);
                let icmp = InternalKeyComparator::new(self.comparator.clone());
                let version = family.map(|family| family.version(&icmp, NUM_LEVELS_MAX));
                version.is_none_or(|version| version.is_ok_and(|version| !is_listed(&version)))
            });
        let error = match is_given_up {
            true => Error::busy("another process has removed the file since this was opened")
                .with("help", "open it as a secondary, or anew"),
            false => Error::corruption(lost),
        };
        error.with("file", path.display()).caused_by(cause)
    }

    /// What the pointers of a table lead to.
    ///
    /// A table of RocksDB does not tell, and is read for it, once.
    ///
    /// # Errors
    /// What a reader of the table meets.
    pub(crate) fn blob_references(&self, file: &FileMeta) -> Result<BlobCounts> {
        if let Some(told) = self.told_blob_references(file)? {
            return Ok(told);
        }
        let counted = self.count_pointers(file)?;
        file.counted_pointers.set(counted.clone());
        Ok(counted)
    }

    /// [`Self::blob_references`] as far as the table tells, or was read; `None` if it would have to be.
    ///
    /// # Errors
    /// What opening the table meets; `Corruption`.
    pub(crate) fn told_blob_references(&self, file: &FileMeta) -> Result<Option<BlobCounts>> {
        if file.oldest_blob_file_number == 0 {
            return Ok(Some(BlobCounts::default()));
        }
        if let Some(counted) = file.counted_pointers.get() {
            return Ok(Some(counted.clone()));
        }
        let properties = &self.reader(file)?.properties().user_collected;
        let told = properties.get(BLOB_REFERENCES);
        let told = told.map(|told| BlobCounts::decode(told)).transpose();
        told.map_err(|e| self.locate(e, file))
    }

    /// An error of what a table says.
    fn locate(&self, error: Error, file: &FileMeta) -> Error {
        let path = filename::table_path(&self.dir, file.number);
        error.with("file", path.display())
    }

    /// How far the table reaches into blob files, as far as it tells; `None` if it does not.
    ///
    /// # Errors
    /// What opening the table meets; `Corruption`.
    pub(crate) fn told_blob_reach(&self, file: &FileMeta) -> Result<Option<BlobReach>> {
        if file.oldest_blob_file_number == 0 {
            return Ok(Some(BlobReach::default()));
        }
        reach_of(&self.reader(file)?.properties()).map_err(|e| self.locate(e, file))
    }

    /// [`Self::told_blob_reach`], of a table of RocksDB by reading it.
    ///
    /// # Errors
    /// What a reader of the table meets.
    pub(crate) fn blob_reach(&self, file: &FileMeta) -> Result<BlobReach> {
        match self.told_blob_reach(file)? {
            Some(told) => Ok(told),
            None => BlobReach::new(&self.blob_references(file)?, None),
        }
    }

    /// [`Self::blob_references`] by reading the table.
    ///
    /// # Errors
    /// What a reader of the table meets.
    pub(crate) fn count_pointers(&self, file: &FileMeta) -> Result<BlobCounts> {
        let mut counts = BlobCounts::default();
        let options = TableReadOptions::compaction();
        self.each_pointer(file, options, &mut |pointer, user_key| {
            counts.add(pointer, user_key.len());
            Ok(())
        })?;
        Ok(counts)
    }

    /// What all values that a table has itself have fewer bytes than, 0 if there is none; `None` if it
    /// does not tell, as those of RocksDB, and would have to be read.
    ///
    /// # Errors
    /// What opening the table meets; `Corruption`.
    pub(crate) fn told_inline_value_size_bound(&self, file: &FileMeta) -> Result<Option<u64>> {
        let properties = &self.reader(file)?.properties().user_collected;
        let told = properties.get(INLINE_VALUE_SIZE_BOUND);
        told.map(|told| Decoder::new(told).varint64("bound of value sizes"))
            .transpose()
    }

    /// The same by reading the table; `look` is asked now and then.
    ///
    /// # Errors
    /// What a reader of the table meets; those of `look`.
    pub(crate) fn find_inline_value_size_bound(
        &self,
        file: &FileMeta,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u64> {
        let mut bound = 0;
        let mut iter = self.reader(file)?.iter(TableReadOptions::compaction());
        iter.seek_to_first();
        let mut entries = 0u64;
        while iter.valid() {
            if ParsedInternalKey::parse(iter.key())?.kind == ValueKind::Value {
                bound = bound.max(iter.value().len() + 1);
            }
            entries += 1;
            if entries.is_multiple_of(ENTRIES_PER_LOOK) {
                look()?;
            }
            iter.next();
        }
        iter.status()?;
        Ok(bound as u64)
    }

    /// Shows the pointers of a table, with their user keys.
    ///
    /// # Errors
    /// What a reader of the table meets; those of `visit`.
    pub(crate) fn each_pointer(
        &self,
        file: &FileMeta,
        options: TableReadOptions,
        visit: &mut dyn FnMut(&BlobPointer, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut iter = self.reader(file)?.iter(options);
        iter.seek_to_first();
        while iter.valid() {
            let key = ParsedInternalKey::parse(iter.key())?;
            if key.kind == ValueKind::BlobIndex {
                visit(&BlobPointer::decode(iter.value())?, key.user_key)?;
            }
            iter.next();
        }
        iter.status()
    }
}

impl FamilyTables {
    /// Looks whether the pointers of a table lead to places of blob files that the version lists. No blob file is read.
    ///
    /// # Errors
    /// `Corruption` with the table, and the blob file of the first pointer that does not; what a reader of the table meets.
    pub(crate) fn check_pointers(&self, version: &Version, file: &FileMeta) -> Result<()> {
        let mut check = |pointer: &BlobPointer, user_key: &[u8]| {
            let wrong = |what: &'static str| {
                let e = Error::corruption(what).with("blob_file", pointer.file);
                let e = e.with("blob_offset", pointer.offset);
                Err(e.with("blob_size", pointer.size))
            };
            let Some(blob) = version.blob_files().get(&pointer.file) else {
                return wrong("table points to a blob file that is not listed");
            };
            let listed = blob.addition();
            let end = (HEADER_LEN as u64)
                .saturating_add(listed.total_blob_bytes)
                .saturating_add(listed.overhead_bytes);
            match pointer.record_extent(user_key.len()) {
                Some(record) if record.offset.saturating_add(record.size) <= end => Ok(()),
                _ => wrong("table points outside the records of a blob file"),
            }
        };
        self.each_pointer(file, TableReadOptions::compaction(), &mut check)
            .map_err(|e| match (e.context("file"), e.context("blob_offset")) {
                (Some(_), _) => e,
                (None, Some(_)) => self.locate(e, file),
                // An offset in it is none of the table's.
                (None, None) => {
                    let unread = Error::new(e.kind(), "table has a pointer that cannot be read");
                    self.locate(unread.caused_by(e), file)
                }
            })
    }

    /// Has the system read the value that a cursor is at, and those that it is likely to ask for next, so that the
    /// device works on several at a time.
    #[cold]
    fn announce(
        &self,
        version: &Version,
        rows: &mut BlobRows,
        options: &TableReadOptions,
        (pointer, user_key): (&[u8], &[u8]),
        upcoming: Upcoming<'_>,
    ) {
        let Some(mut announcement) = rows.begin_announcement(options.readahead) else {
            return;
        };
        let mut add = |pointer: &[u8], user_key: &[u8]| {
            let Ok(pointer) = BlobPointer::decode(pointer) else {
                return false;
            };
            let Ok(file) = self.blob_file(version, pointer.file) else {
                return false;
            };
            let Ok(reader) = self.reader_of(file) else {
                return false;
            };
            if self.is_cached(file, &pointer) {
                return announcement.add(0);
            }
            let row = rows.of(self, pointer.file, options.readahead);
            let bytes = reader.announce(row, pointer, user_key);
            if bytes > 0 && announcement.is_first() {
                rows.note_first(reader.is_in_memory(pointer));
            }
            announcement.add(bytes)
        };
        if add(pointer, user_key) {
            upcoming(&mut add);
        }
        rows.end_announcement(&announcement, |number, row| {
            let file = self.blob_file(version, number)?;
            self.reader_of(file)?.request(row);
            Ok(())
        });
    }

    /// Who reads beside a writer may meet holes, which only checksums tell from values.
    #[inline]
    fn verifies(&self, options: &TableReadOptions) -> bool {
        options.verify_checksums || self.others_may_write.load(Relaxed)
    }

    /// What a follower tells of a value that is not whole: that it is behind, if the primary may have given the
    /// value up.
    #[cold]
    fn unless_given_up(
        &self,
        error: Error,
        file: &BlobFile,
        pointer: &BlobPointer,
        user_key: &[u8],
    ) -> Error {
        if !self.follows || error.kind() != ErrorKind::Corruption {
            return error;
        }
        let has_hole = || {
            let extent = pointer.record_extent(user_key.len())?;
            let reader = self.reader_of(file).ok()?;
            reader.has_hole(extent).ok()
        };
        match has_hole() {
            Some(true) => {
                Error::busy("the primary has given the value up: catch up with it and read again")
                    .caused_by(error)
            }
            _ => error,
        }
    }
}

/// The blob files of a version, for one part of a job, which goes through them in the order of
/// keys.
pub(crate) struct VersionBlobs {
    tables: Arc<FamilyTables>,
    version: Arc<Version>,
    readahead: Readahead,
    rows: Mutex<BlobRows>,
    damaged: Mutex<Option<Error>>,
}

impl VersionBlobs {
    /// `readahead_size` are the bytes that are asked for ahead in each file; 0: as cursors do it.
    pub(crate) fn new(
        tables: Arc<FamilyTables>,
        version: Arc<Version>,
        readahead_size: u64,
    ) -> Self {
        Self {
            tables,
            version,
            readahead: match usize::try_from(readahead_size).unwrap_or(usize::MAX) {
                0 => Readahead::Auto,
                bytes => Readahead::Fixed(bytes),
            },
            rows: Mutex::new(BlobRows::of_job()),
            damaged: Mutex::default(),
        }
    }

    /// What `read` gives; `None`, with a mark on the file, for damage.
    fn unless_damaged<T>(
        &self,
        pointer: &BlobPointer,
        read: impl FnOnce(&Arc<BlobFileReader>, &mut BlobReadahead) -> Result<T>,
    ) -> Result<Option<T>> {
        let result = self
            .tables
            .blob_reader(&self.version, pointer.file)
            .and_then(|reader| {
                let mut rows = self.rows.lock();
                read(reader, rows.of(&self.tables, pointer.file, self.readahead))
            });
        match result {
            Ok(value) => Ok(Some(value)),
            Err(e) if e.kind() == ErrorKind::Corruption => {
                if let Some(blob) = self.version.blob_files().get(&pointer.file) {
                    blob.file.damaged.set(true);
                }
                self.damaged.lock().get_or_insert(e);
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// The first damage that was met.
    pub(crate) fn damaged(&self) -> Option<Error> {
        self.damaged.lock().clone()
    }
}

impl BlobSource for VersionBlobs {
    fn value(&self, pointer: &BlobPointer, user_key: &[u8]) -> Result<Option<PinnedValue>> {
        self.unless_damaged(pointer, |reader, row| {
            let value = reader.read_ahead(row, *pointer, user_key, true)?;
            Ok(value.into())
        })
    }

    fn stored(
        &self,
        pointer: &BlobPointer,
        user_key: &[u8],
    ) -> Result<Option<(PinnedValue, Arc<BlobFileReader>)>> {
        self.unless_damaged(pointer, |reader, row| {
            let value = reader.read_stored(row, *pointer, user_key)?;
            Ok((value.into(), reader.clone()))
        })
    }
}

impl TableAccess for FamilyTables {
    type Iter = TableIter;
    type Options = TableReadOptions;
    type Readahead = BlobRows;

    fn iter(&self, file: &Arc<FileMeta>, options: &TableReadOptions) -> Result<TableIter> {
        Ok(self.reader(file)?.iter(*options))
    }

    fn next_iter(
        &self,
        file: &Arc<FileMeta>,
        _: &TableReadOptions,
        done: TableIter,
        is_neighbour: bool,
    ) -> Result<TableIter> {
        Ok(done.into_next(self.reader(file)?.clone(), is_neighbour))
    }

    fn range_tombstones(&self, file: &Arc<FileMeta>) -> Result<Arc<FragmentedRangeTombstones>> {
        Ok(self.reader(file)?.range_tombstones())
    }

    #[inline]
    fn may_have_range_tombstones(&self, file: &FileMeta) -> bool {
        file.table.get().is_none_or(|t| t.has_range_tombstones())
    }

    fn may_hold_prefix(
        &self,
        file: &Arc<FileMeta>,
        options: &TableReadOptions,
        extractor: &dyn SliceTransform,
        user_key: &[u8],
    ) -> Result<bool> {
        let reader = self.reader(file)?;
        if !reader.has_prefixes_of(extractor) {
            return Ok(true);
        }
        reader.prefix_may_match(options, user_key)
    }

    #[inline]
    fn prefetch(&self, file: &FileMeta, state: &GetState<'_>) {
        if let Some(table) = file.table.get() {
            table.prefetch_filter(state.key());
        }
    }

    fn get_batch(&self, options: &TableReadOptions, asks: &mut [Ask<'_, '_>]) {
        let mut lookups = Vec::with_capacity(asks.len());
        for ask in &mut *asks {
            let (key, seqno) = (ask.state.key(), ask.state.read_seqno());
            match self.reader(ask.file) {
                Ok(table) => lookups.push(BatchLookup::new(table, key, seqno)),
                Err(error) => ask.outcome = Err(error),
            }
        }
        BatchLookup::prepare(&mut lookups, options);
        let opened = asks.iter_mut().filter(|ask| ask.outcome.is_ok());
        for (ask, lookup) in opened.zip(lookups) {
            ask.outcome =
                lookup.finish(options, &mut |entry, value| show(ask.state, entry, &value));
        }
    }

    fn blob(
        &self,
        version: &Version,
        pointer: &[u8],
        user_key: &[u8],
        options: &TableReadOptions,
    ) -> Result<PinnedValue> {
        let pointer = BlobPointer::decode(pointer)?;
        let file = self.blob_file(version, pointer.file)?;
        if let Some(value) = self.cached_value(file, &pointer) {
            return Ok(value);
        }
        let value = self
            .reader_of(file)?
            .read(pointer, user_key, self.verifies(options))
            .map_err(|e| self.unless_given_up(e, file, &pointer, user_key))?;
        Ok(self.keep_value(file, &pointer, value, options))
    }

    fn blob_in_row(
        &self,
        version: &Version,
        pointer_bytes: &[u8],
        user_key: &[u8],
        options: &TableReadOptions,
        ahead: &mut BlobRows,
        upcoming: Option<Upcoming<'_>>,
    ) -> Result<PinnedValue> {
        let pointer = BlobPointer::decode(pointer_bytes)?;
        let file = self.blob_file(version, pointer.file)?;
        ahead.let_go();
        let is_due = ahead.is_announcement_due();
        if let Some(value) = self.cached_value(file, &pointer) {
            return Ok(value);
        }
        if let Some(upcoming) = upcoming.filter(|_| is_due) {
            let here = (pointer_bytes, user_key);
            self.announce(version, ahead, options, here, upcoming);
        }
        let verify = self.verifies(options);
        let reader = self.reader_of(file)?;
        let row = ahead.of(self, pointer.file, options.readahead);
        let read = match reader.try_ahead(row, pointer, user_key, verify) {
            Ok(AheadRead::NotInMemory(place)) => {
                let waited = reader.wait_ahead(row, &place, user_key, verify);
                ahead.note_waited(place.was_announced());
                waited
            }
            Ok(AheadRead::Value(value)) => Ok(value),
            Err(e) => Err(e),
        };
        let value = read.map_err(|e| self.unless_given_up(e, file, &pointer, user_key))?;
        if !self.keeps(&value, options) {
            ahead.hold(self, value.memory_usage());
        }
        Ok(self.keep_value(file, &pointer, value, options))
    }

    fn blobs(&self, version: &Version, asks: &mut [AskBlob<'_>], options: &TableReadOptions) {
        let mut reads = Vec::with_capacity(asks.len());
        let mut asked = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter_mut().enumerate() {
            let found = BlobPointer::decode(ask.pointer).and_then(|pointer| {
                let file = self.blob_file(version, pointer.file)?;
                ask.value = self.cached_value(file, &pointer).map(Ok);
                if ask.value.is_none() {
                    let read = BlobRead::new(self.reader_of(file)?, pointer, ask.user_key);
                    reads.push(read);
                    asked.push((i, file));
                }
                Ok(())
            });
            if let Err(e) = found {
                ask.value = Some(Err(e));
            }
        }
        BlobRead::read_many(&mut reads, self.verifies(options), Coalesce::default());
        for (read, (i, file)) in reads.into_iter().zip(asked) {
            let keep = |value| self.keep_value(file, &read.pointer, value, options);
            let given_up = |e| self.unless_given_up(e, file, &read.pointer, read.user_key);
            asks[i].value = read.outcome.map(|found| found.map(keep).map_err(given_up));
        }
    }

    fn get(
        &self,
        file: &Arc<FileMeta>,
        options: &TableReadOptions,
        state: &mut GetState<'_>,
    ) -> Result<()> {
        let (key, seqno) = (state.key(), state.read_seqno());
        self.reader(file)?
            .lookup(options, key, seqno, &mut |entry, value| {
                show(state, entry, &value)
            })
    }
}

#[inline]
fn show(state: &mut GetState<'_>, entry: ParsedInternalKey<'_>, value: &ValueSource<'_>) -> Visit {
    match state.visit(entry, || Ok(value.pin())) {
        orogen_memtable::Visit::Continue => Visit::Continue,
        orogen_memtable::Visit::Stop => Visit::Stop,
    }
}

/// What a table's properties say of how far it reaches into blob files; `None` if they do not.
fn reach_of(properties: &TableProperties) -> Result<Option<BlobReach>> {
    let told = |name: &str| properties.user_collected.get(name);
    let Some(counts) = told(BLOB_REFERENCES) else {
        return Ok(None);
    };
    let counts = BlobCounts::decode(counts)?;
    let stretches = told(BLOB_STRETCHES).map(|told| BlobStretches::decode(told));
    BlobReach::new(&counts, stretches.transpose()?.as_ref()).map(Some)
}

#[cfg(test)]
mod tests;
