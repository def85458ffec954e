//! Opens the tables of a family, once each.
//!
//! An open table stays with its file's metadata, so a lookup goes from version to table without
//! a shared map or lock, and a table closes when the last version that lists its file goes.
//! `Hot path`.

use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::{self, PerfCounter};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{Error, ParsedInternalKey, Result, UserComparator};
use orogen_env::{Access, FileSystem, PerfTimer};
use orogen_sst::{
    BatchLookup, BlockCache, TableIter, TableReadOptions, TableReader, TableReaderOptions,
    ValueSource, Visit,
};

use crate::filename;
use crate::memory::MemoryBudget;
use crate::read::{Ask, GetState, TableAccess};
use crate::version::file_meta::FileMeta;

/// What opening a table of one family needs.
pub(crate) struct FamilyTables {
    pub(crate) dir: PathBuf,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) comparator: UserComparator,
    /// That of the open, which knows tables of the user's own extractor by its name; those that
    /// are built in need nobody. What iterators cut with is the family's setting.
    pub(crate) prefix_extractor: Option<Arc<dyn SliceTransform>>,
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
        let opened = match self.fs.open(&path, Access::Random) {
            Err(e) if e.is_file_not_found() => {
                let old = filename::old_table_path(&self.dir, file.number);
                self.fs.open(&old, Access::Random).map_err(|second| {
                    if second.is_file_not_found() {
                        missing(&path, e)
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
        self.statistics.add(Ticker::NoFileOpens, 1);
        let properties = table.properties();
        file.counts
            .set(properties.num_entries, properties.num_deletions);
        file.codec.set(&properties.compression);
        if let Some(budget) = &self.budget {
            budget.add_table(&table);
        }
        Ok(file.table.set(table))
    }
}

impl TableAccess for FamilyTables {
    type Iter = TableIter;
    type Options = TableReadOptions;

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

#[cold]
fn missing(path: &std::path::Path, cause: Error) -> Error {
    Error::corruption("table file that the MANIFEST lists is missing")
        .with("file", path.display())
        .caused_by(cause)
}
