//! An open directory: the public calls, each a few lines over the parts.

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::sync::Mutex;
use orogen_base::{Error, Result, memory};
use orogen_env::{Clock, FileLock, FileSystem, RateLimiter, SystemClock};

use crate::batch::{Command, LogBatch};
use crate::blocks::Blocks;
use crate::dirs::Dirs;
use crate::durable::Durable;
use crate::events::EventListener;
use crate::files::{Appender, NewFiles, OnFull, Table, gone};
use crate::format::encode_record;
use crate::memtable::{Block, Fenced, Memtables};
use crate::metrics::{self, Meters, Metrics, Skip};
use crate::names::Queue;
use crate::options::{Options, RecoveryMode};
use crate::perf::{self, PerfContext};
use crate::places::Places;
use crate::purge::{self, Purge};
use crate::read_cache::ReadCache;
use crate::recover::{Digester, read_append_queue, read_rewrite_queue};
use crate::spares::Spares;
use crate::watched::{Shown, Watched};
use crate::write_queue::{Request, WriteQueue};

/// How far [`Engine::rewrite_append_queue`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewriteSteps {
    /// What takes away from the rewrite queue what is there no more is written to it.
    Removals,
    /// And what lives in the files.
    Moves,
    /// And files that are not needed are deleted.
    All,
}

/// An open directory of logs.
///
/// All calls may be made from any thread. What a call reads and another writes at the same time is
/// seen before or after, for each operation of the batch: one that has several of a group may be seen in part, as in raft-engine. Dropping it syncs; [`Engine::close`] also tells whether that
/// worked.
pub struct Engine {
    options: Options,
    dir: PathBuf,
    table: Arc<Table>,
    memtables: Arc<Memtables>,
    cache: Option<Arc<ReadCache>>,
    writes: Arc<WriteQueue>,
    durable: Durable,
    purge: Mutex<Purge>,
    digester: Arc<Digester>,
    files_read: u64,
    shown: Shown,
    /// Given back last.
    _locks: Vec<Box<dyn FileLock>>,
}

impl Engine {
    /// Opens a directory, which is made if it is not there, and reads what it holds.
    ///
    /// # Errors
    /// `Busy` if it is open already; `Corruption` as [`Options::recovery_mode`] says;
    /// `InvalidArgument` for options that cannot be; those of the file system.
    pub fn open(fs: &Arc<dyn FileSystem>, dir: &Path, options: Options) -> Result<Self> {
        Self::open_with_listeners(fs, dir, options, Vec::new())
    }

    /// As [`Self::open`], and listeners are told of the files that it finds and of all that happens
    /// from then on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_listeners(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        options: Options,
        listeners: Vec<Arc<dyn EventListener>>,
    ) -> Result<Self> {
        Self::open_with_clock(fs, dir, options, listeners, Arc::new(SystemClock))
    }

    /// As [`Self::open_with_listeners`], and it is by `clock` that [`Options::spill_stall_threshold`] and [`Options::purge_rate_bytes_per_sec`] are measured.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_clock(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        options: Options,
        listeners: Vec<Arc<dyn EventListener>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        options.validate()?;
        let dirs = Dirs::new(dir, options.spill_dir.as_deref())?;
        let meters = Arc::new(Meters::new());
        let threshold = options.spill_stall_threshold;
        let dirs = Arc::new(dirs.watching(threshold, Arc::clone(&clock), Arc::clone(&meters)));
        let locks = dirs.open(&**fs)?;
        let table = Arc::new(Table::default());
        let memtables = Arc::new(Memtables::new());
        let rewritten = read_rewrite_queue(&**fs, &dirs, &options, &table, &memtables)?;
        let appended = read_append_queue(&**fs, &dirs, &options, &table, &memtables)?;
        let (newest, is_unread) = (appended.newest, appended.is_newest_unread);
        memtables.settle();
        if options.recovery_mode == RecoveryMode::AbsoluteConsistency {
            memtables.check()?;
        }
        let digester = Arc::new(Digester::new(Arc::clone(fs), Arc::clone(&table)));
        let on_full: OnFull = match options.uses_digests() {
            true => {
                let digester = Arc::clone(&digester);
                Arc::new(move |file, len| digester.ask(file.id, len))
            }
            false => Arc::new(|_, _| {}),
        };
        let new_files = NewFiles {
            fs: Arc::clone(fs),
            dirs: Arc::clone(&dirs),
            header: options.file_header(),
            target_size: options.target_file_size,
            ahead: Arc::default(),
            beside: Arc::default(),
            meters,
            listeners: listeners.into(),
            spares: Arc::new(Spares::open(
                &**fs,
                &dirs,
                options.files_max(),
                options.files_are_in_memory(),
            )?),
            on_full,
        };
        table.ids().into_iter().for_each(|id| new_files.tell(id));
        for dir in dirs.iter().filter(|dir| table.count_in(dir) == 0) {
            // Whoever made the directory may have died before its name was synced.
            dir.parent().map_or(Ok(()), |parent| fs.sync_dir(parent))?;
        }
        let rewritten_files = rewritten.files_read;
        let cache = ReadCache::new(options.read_cache_bytes, Arc::clone(&new_files.meters));
        let cache = cache.map(Arc::new);
        let shown = Watched {
            meters: Arc::clone(&new_files.meters),
            table: Arc::clone(&table),
            memtables: Arc::clone(&memtables),
            spares: Arc::clone(&new_files.spares),
            dirs: Arc::clone(&dirs),
            cache: cache.clone(),
        };
        let rate = options.purge_rate_bytes_per_sec;
        let limiter = (rate > 0).then(|| RateLimiter::new(rate, clock));
        let purge = Purge::new(new_files.clone(), rewritten, limiter);
        let queue = Queue::Append;
        let appender = Appender::open(new_files, Arc::clone(&table), queue, newest, is_unread)?;
        Ok(Self {
            options,
            dir: dir.to_owned(),
            table,
            memtables,
            cache,
            writes: Arc::new(WriteQueue::new(appender)),
            durable: Durable::new(),
            purge: Mutex::new(purge),
            digester,
            files_read: rewritten_files + appended.files_read,
            shown: shown.show(),
            _locks: locks,
        })
    }

    /// Writes a batch, which is then empty; the bytes of its record.
    ///
    /// With `sync` it, and all that was written before, survives a power loss when this returns; an
    /// empty batch syncs, too. Without it survives the end of the process.
    ///
    /// # Errors
    /// `InvalidArgument` if entries would leave a hole or lie below a group's first entry; `Corruption` for entries of a group that is
    /// [fenced](Self::fenced_groups); `NoMemory`; those of the file system. Nothing of the batch is then seen, and it is as it was
    /// and can be written again. After a failed sync or a panic of a listener, which also may leave it in the file, `ReadOnly`
    /// until the directory is opened again. For as long as the machine runs, what the sync has dropped may read as if it were
    /// on the disk, and no later sync brings it there: what is written behind it then may be lost with it at a power loss.
    pub fn write(&self, batch: &mut LogBatch, sync: bool) -> Result<usize> {
        if batch.is_empty() {
            if sync || !batch.block.is_empty() {
                // Its operations may be gone with a panic of who wrote it with others: then nothing is written any more.
                self.sync()?;
            }
            return Ok(0);
        }
        let sample = metrics::sample_write(sync);
        let watch = perf::start();
        let record = encode_record(&batch.block, &batch.items, self.options.lz4())?;
        if watch.is_some() {
            perf::add(&PerfContext {
                log_populating_duration: perf::elapsed(watch),
                ..PerfContext::default()
            });
        }
        if let Some(stored) = record.compressed_len() {
            self.meters().compressed(batch.block.len(), stored);
        }
        let len = record.bytes.len();
        let request = Request {
            record: Some(record),
            items: std::mem::take(&mut batch.items),
            sync,
            is_timed: false,
        };
        match self
            .writes
            .submit(&self.memtables, request, sample.as_ref())
        {
            Ok(()) => {
                batch.clear();
                Ok(len)
            }
            Err((e, items)) => {
                batch.items = items;
                Err(e)
            }
        }
    }

    /// Writes a batch as [`Self::write`] does without `sync`, and calls `on_durable` once it survives a power loss, or
    /// with the error of the sync that should have done that.
    ///
    /// It is called by a thread of the engine, after those that were given before, and by the time when the engine is closed or dropped; if this
    /// returns an error it is not called. One sync serves all that were written before it began. It may use the engine, but must not
    /// drop the last reference to it: others would be told after that. While it runs nobody else is told.
    ///
    /// # Errors
    /// As [`Self::write`]; of the system if it has no thread left.
    pub fn write_async(
        &self,
        batch: &mut LogBatch,
        on_durable: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<usize> {
        self.durable.start(&self.writes, &self.memtables)?;
        let len = self.write(batch, false)?;
        self.durable.tell(Box::new(on_durable));
        Ok(len)
    }

    /// Makes all that was written survive a power loss.
    ///
    /// # Errors
    /// Those of the file system; `ReadOnly` if an earlier sync failed.
    pub fn sync(&self) -> Result<()> {
        self.writes.sync(&self.memtables)
    }

    /// The entry, if it is there.
    ///
    /// # Errors
    /// `Corruption`, also for a group that is [fenced](Self::fenced_groups); those of the file system.
    pub fn get_entry(&self, group: u64, index: u64) -> Result<Option<Vec<u8>>> {
        self.get_as(group, index, |bytes| memory::copied(bytes, "an entry"))
    }

    /// What `make` makes of an entry, if it is there.
    pub(crate) fn get_as<T, E: From<Error>>(
        &self,
        group: u64,
        index: u64,
        make: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let reading = self.meters().read_entries();
        let mut missed = None;
        loop {
            let Some(found) = self.memtables.get(group) else {
                return Ok(None);
            };
            let location = {
                let found = found.read();
                found.span().check(group)?;
                found.index().locate(index)
            };
            let Some(location) = location else {
                return Ok(None);
            };
            let mut blocks = Blocks::new(&self.table, self.cache.as_deref());
            match blocks.get(location.block, iter::empty())? {
                Some(block) => {
                    reading.found(1);
                    return make(block.entry(location.start, location.end)?).map(Some);
                }
                None => look_again(&mut missed, location.block)?,
            }
        }
    }

    /// Adds the entries from `begin` up to, and without, `end` to `out`, as long as they are
    /// `max_size` bytes together, but at least one; how many.
    ///
    /// An unknown group has none, which is no error.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` is before `begin` or behind the last entry; `NotFound` if `begin` is
    /// below the first entry: it was compacted; `Corruption`, also for a group that is [fenced](Self::fenced_groups); those of the file
    /// system. `out` is then as it was.
    pub fn fetch_entries_to(
        &self,
        group: u64,
        begin: u64,
        end: u64,
        max_size: Option<usize>,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<usize> {
        self.fetch_entries_as(group, begin, end, max_size, out, |_, bytes| {
            memory::copied(bytes, "an entry")
        })
    }

    /// As [`Self::fetch_entries_to`], with what `make` makes of indexes and entries: nothing is copied before. It may be called
    /// for the same index again if a purge moves the entries meanwhile; `out` has what it made the last time.
    ///
    /// # Errors
    /// As [`Self::fetch_entries_to`]; those of `make`.
    pub fn fetch_entries_as<T, E: From<Error>>(
        &self,
        group: u64,
        begin: u64,
        end: u64,
        max_size: Option<usize>,
        out: &mut Vec<T>,
        mut make: impl FnMut(u64, &[u8]) -> Result<T, E>,
    ) -> Result<usize, E> {
        if end < begin {
            return Err(Error::invalid_argument("range ends before it begins")
                .with("begin", begin)
                .with("end", end)
                .into());
        }
        let reading = self.meters().read_entries();
        let mut missed = None;
        loop {
            let places = self.locate(group, begin, end, max_size)?;
            let before = out.len();
            let read = self.read_entries(begin, &places, out, &mut make);
            if !matches!(read, Ok(None)) {
                out.truncate(before);
            }
            match read? {
                None => {
                    reading.found(places.count());
                    return Ok(places.count());
                }
                Some(block) => look_again(&mut missed, block)?,
            }
        }
    }

    /// Where the entries lie that a fetch gives.
    fn locate(&self, group: u64, begin: u64, end: u64, max_size: Option<usize>) -> Result<Places> {
        let mut places = Places::default();
        let Some(found) = self.memtables.get(group) else {
            return Ok(places);
        };
        if begin == end {
            return Ok(places);
        }
        let found = found.read();
        let span = found.span();
        span.check(group)?;
        let place = |e: Error| {
            e.with("group", group)
                .with("begin", begin)
                .with("end", end)
                .with("first", span.first)
                .with("next", span.next)
        };
        if !span.is_empty() && begin < span.first {
            return Err(place(Error::not_found("entries are compacted")));
        }
        if end > span.next {
            return Err(place(Error::invalid_argument(
                "range ends behind the last entry",
            )));
        }
        places.reserve(end - begin.max(span.first))?;
        let mut size = 0usize;
        for location in found.index().locations(begin, end) {
            size = size.saturating_add(location.len());
            if places.count() > 0 && max_size.is_some_and(|max| size > max) {
                break;
            }
            places.push(&location)?;
        }
        Ok(places)
    }

    /// Reads the entries; a block whose file is gone ends it.
    fn read_entries<T, E: From<Error>>(
        &self,
        begin: u64,
        places: &Places,
        out: &mut Vec<T>,
        make: &mut impl FnMut(u64, &[u8]) -> Result<T, E>,
    ) -> Result<Option<Block>, E> {
        memory::reserve(out, places.count(), "entries")?;
        let mut blocks = Blocks::new(&self.table, self.cache.as_deref());
        let mut index = begin;
        for (n, run) in places.runs().iter().enumerate() {
            let ahead = places.runs()[n + 1..].iter().map(|run| run.block);
            let Some(block) = blocks.get(run.block, ahead)? else {
                return Ok(Some(run.block));
            };
            let mut start = run.start;
            for &end in places.ends(n) {
                out.push(make(index, block.entry(start, end)?)?);
                index += 1;
                start = end;
            }
        }
        Ok(None)
    }

    /// Groups of which entries are missing between others, in order. The others are not concerned, nor are the keys of these; but as long as there is
    /// one nothing is purged, so that [`repair`](crate::raw::repair) finds all that there is.
    #[must_use]
    pub fn fenced_groups(&self) -> Vec<Fenced> {
        self.memtables.fenced()
    }

    /// Index of the first entry; of a [fenced](Self::fenced_groups) group, of those behind the hole.
    #[must_use]
    pub fn first_index(&self, group: u64) -> Option<u64> {
        let span = self.memtables.span(group);
        (!span.is_empty()).then_some(span.first)
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last_index(&self, group: u64) -> Option<u64> {
        let span = self.memtables.span(group);
        (!span.is_empty()).then(|| span.next - 1)
    }

    /// Drops the entries below `index`, without a sync; how many those are.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn compact_to(&self, group: u64, index: u64) -> Result<u64> {
        let span = self.memtables.span(group);
        let count = index.min(span.next).saturating_sub(span.first);
        let lifts_fence = span.missing_before > 0 && index >= span.missing_before;
        if count == 0 && !lifts_fence {
            return Ok(0);
        }
        let mut batch = LogBatch::default();
        batch.add_command(group, Command::Compact { index });
        self.write(&mut batch, false)?;
        Ok(count)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, group: u64, key: &[u8]) -> Option<Vec<u8>> {
        self.get_as_value(group, key, <[u8]>::to_vec)
    }

    /// What `make` makes of the value of a key. The group is locked meanwhile.
    pub(crate) fn get_as_value<T>(
        &self,
        group: u64,
        key: &[u8],
        make: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let _timed = self.meters().read_keys();
        let found = self.memtables.get(group)?;
        let found = found.read();
        found.get(key).map(make)
    }

    /// Shows the keys of a group from `start` up to, and without, `end`, and their values, until `each`
    /// says false. Of up to 256 keys, or 64 KiB, what is shown is of one moment; what follows is of a later one. Nothing is locked while `each`
    /// runs.
    pub fn scan(
        &self,
        group: u64,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
        reverse: bool,
        mut each: impl FnMut(&[u8], &[u8]) -> bool,
    ) {
        const KEYS_AT_ONCE: usize = 256;
        const BYTES_AT_ONCE: usize = 64 << 10;
        let _timed = self.meters().read_keys();
        let (mut start, mut end) = (start.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec));
        loop {
            let Some(found) = self.memtables.get(group) else {
                return;
            };
            let (mut pairs, mut bytes, mut is_last) = (Vec::new(), 0, true);
            {
                // A writer that waits for the group leads all others: nobody is called meanwhile.
                let found = found.read();
                let mut range = found.range(start.as_deref(), end.as_deref());
                while let Some((key, value)) = if reverse {
                    range.next_back()
                } else {
                    range.next()
                } {
                    if pairs.len() == KEYS_AT_ONCE || bytes >= BYTES_AT_ONCE {
                        is_last = false;
                        break;
                    }
                    bytes += key.len() + value.len();
                    pairs.push((key.to_vec(), value.to_vec()));
                }
            }
            for (key, value) in &pairs {
                if !each(key, value) {
                    return;
                }
            }
            let Some((mut key, _)) = pairs.pop().filter(|_| !is_last) else {
                return;
            };
            if reverse {
                end = Some(key);
            } else {
                key.push(0);
                start = Some(key);
            }
        }
    }

    /// Every group that anything was written of, in order, those included that are empty now.
    #[must_use]
    pub fn raft_groups(&self) -> Vec<u64> {
        self.memtables.groups()
    }

    /// True if there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.memtables.is_empty()
    }

    /// Files whose records were read when the directory was opened, and not their [digests](Options::enable_log_digests).
    #[must_use]
    pub fn files_read_at_open(&self) -> u64 {
        self.files_read
    }

    /// Numbers of the oldest and the newest file of a queue.
    #[must_use]
    pub fn file_span(&self, queue: Queue) -> Option<(u64, u64)> {
        self.table.span(queue)
    }

    /// Bytes that the files would take if each were as long as a full one. A queue without a file counts as one, as it does for
    /// raft-engine.
    #[must_use]
    pub fn get_used_size(&self) -> u64 {
        let files = |queue| self.table.count_of(queue).max(1);
        (files(Queue::Append) + files(Queue::Rewrite)).saturating_mul(self.options.target_file_size)
    }

    /// Deletes files that are not needed any more, and makes those needed no more that hold little: what
    /// lives in the oldest ones is written to the rewrite queue. Returns the groups whose entries
    /// hold old files and which the caller should compact.
    ///
    /// Does nothing as long as the queues are not longer than [`Options::purge_threshold`] and
    /// [`Options::purge_rewrite_threshold`] say, and nothing but return an empty list while another
    /// thread does it. A group whose old entries are many is returned nine times in a row before its
    /// entries are written again. To be called now and then, in a thread of its own: reads and
    /// writes go on meanwhile. It syncs both queues.
    ///
    /// # Errors
    /// `Corruption` if an entry that is to be moved cannot be read, or a group is [fenced](Self::fenced_groups); those of the file system.
    /// Nothing is lost, files that nothing needs are deleted all the same, and the next call goes on where this one ended; but after a failed sync it
    /// fails with `ReadOnly` until the directory is opened again. Where the entry is in the rewrite queue, the append queue is
    /// purged first, and calls tell of it again when the rewrite queue has twice as much, or the file has gone and another is damaged. Where
    /// there is no space to write the rewrite queue anew, that is tried again once as many files of the append queue have gone as it has. The groups that such a call has found are
    /// returned by the next one that succeeds, or that would tell of damage, or of no space, as the last one did.
    pub fn purge_expired_files(&self) -> Result<Vec<u64>> {
        let _timed = self.meters().purge.time();
        let Some(mut purge) = self.purge.try_lock() else {
            self.meters().skipped(Skip::Busy);
            return Ok(Vec::new());
        };
        self.purging(&mut purge)?.purge()
    }

    fn purging<'e>(&'e self, purge: &'e mut Purge) -> Result<purge::Run<'e>> {
        self.writes.check()?;
        // What is left of its entries lies in files that a purge would take for those of entries which are gone.
        self.memtables.check()?;
        Ok(purge::Run {
            options: &self.options,
            table: &self.table,
            memtables: &self.memtables,
            writes: &self.writes,
            purge,
        })
    }

    /// Moves all that lives in the files of the append queue, up to number `watermark` if it is given, to the rewrite queue, and deletes the files
    /// that are not needed any more up to `steps`; waits for a purge that runs. [`Self::purge_expired_files`] does what of this pays.
    ///
    /// # Errors
    /// As [`Self::purge_expired_files`].
    pub fn rewrite_append_queue(&self, watermark: Option<u64>, steps: RewriteSteps) -> Result<()> {
        let moves = steps != RewriteSteps::Removals;
        let deletes = steps == RewriteSteps::All;
        let mut purge = self.purge.lock();
        self.purging(&mut purge)?
            .rewrite_append_queue(watermark, moves, deletes)
    }

    /// Writes the rewrite queue anew and deletes what it was; waits for a purge that runs.
    ///
    /// # Errors
    /// As [`Self::purge_expired_files`].
    pub fn rewrite_rewrite_queue(&self) -> Result<()> {
        let mut purge = self.purge.lock();
        self.purging(&mut purge)?.rewrite_rewrite_queue()
    }

    /// Deletes all files but those to which something is written or that something living is in: the rewrite queue is written
    /// anew for that, of the append queue nothing is moved. Waits for a purge that runs.
    ///
    /// # Errors
    /// As [`Self::purge_expired_files`]; what can be deleted is all the same.
    pub fn purge_all_stale(&self) -> Result<()> {
        let mut purge = self.purge.lock();
        self.purging(&mut purge)?.purge_all_stale()
    }

    fn meters(&self) -> &Meters {
        self.shown.meters()
    }

    /// What it has counted and what it has. Each group is looked at, with its lock: to be called every few seconds at most.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.shown.metrics()
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Syncs and closes.
    ///
    /// # Errors
    /// As [`Self::sync`]; it is closed in any case.
    pub fn close(self) -> Result<()> {
        self.close_files()
    }

    fn close_files(&self) -> Result<()> {
        self.durable.finish();
        let closed = self.writes.close(&self.memtables);
        self.digester.finish();
        closed
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody is there to be told; who wants to know calls `close`.
        let _ = self.close_files();
    }
}

/// Says that a location was of no use since its file is gone. Purge moves what it keeps before it
/// deletes, so the second look finds another one.
fn look_again(missed: &mut Option<Block>, block: Block) -> Result<()> {
    if missed.replace(block) == Some(block) {
        return Err(gone(block.file));
    }
    Ok(())
}
