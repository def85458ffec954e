//! A database that another process writes, followed without touching it.
//!
//! ```text
//! CURRENT, MANIFEST tail -> versions, every table opened -> tails of the logs into memtables
//!     -> nothing new in CURRENT and MANIFEST? publish : once more
//! ```
//! The primary gives up a log or a table only after the edit that makes it needless is in the
//! MANIFEST. So where the MANIFEST has not moved on, all that was needed was there to be opened,
//! and what is open stays readable though its name goes, or another log is written over it.
//!
//! Each family has a memtable for each log, so that a memtable goes with its log. Records are
//! taken into the memtables that readers have; their super versions hide them by
//! [`crate::super_version::SuperVersion::limit`] until new ones are published.
//!
//! Invariants: (1) no file of the directory is made, changed, locked or removed; (2) what is
//! published is the state after a whole number of the primary's writes, the same for all
//! families; (3) a record is taken whole or not at all, and once; (4) what the primary takes back
//! (a record whose sync failed) goes with the next catch-up: all logs are then read anew;
//! (5) after an error what was published stays. Source for the semantics: RocksDB
//! `db/db_impl/db_impl_secondary.cc`.

mod log_tail;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::Ordering;
use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo};

use crate::batch::{BatchReader, Sections};
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::filename::{self, FileKind};
use crate::logs::Link;
use crate::open::recover::{assemble_recovered, open_context};
use crate::options::Options;
use crate::options_map::{self, StoredOptions};
use crate::read::Snapshot;
use crate::super_version::MemHandle;
use crate::version::manifest;
use crate::version::manifest::ManifestTail;
use crate::version::version::Version;
use crate::view::PinnedViews;
use crate::write::apply::MemTables;
use log_tail::{End, LogTail, Taken};

/// Tries while the MANIFEST moves on all the time.
const TRIES_MAX: usize = 10_000;
/// Tries while the same is wrong and the MANIFEST does not move.
const TRIES_SAME_MAX: usize = 20;
/// Between those.
const PAUSE: Duration = Duration::from_millis(1);

/// Follows a primary.
pub(crate) struct Follower {
    context: Arc<Context>,
    options: Options,
    /// One catches up at a time; held over its I/O.
    state: Mutex<State>,
    /// What was published last. Held while it is, so that a snapshot sees all of it or none.
    published: Mutex<Published>,
}

#[derive(Default)]
struct Published {
    limit: SeqNo,
    views: Arc<PinnedViews>,
}

#[derive(Default)]
struct State {
    manifest: Option<ManifestTail>,
    /// By number.
    logs: BTreeMap<FileNo, LogTail>,
    families: BTreeMap<u32, Followed>,
    /// What the logs have prepared.
    prepared: Sections,
    /// The newest sequence number that was taken from a log.
    logs_until: SeqNo,
    /// Records may not be older than this: all readers see up to it.
    published_until: SeqNo,
    /// All logs are to be read anew.
    anew: bool,
    /// They are being read anew.
    reading_anew: bool,
    /// What the last look found in logs that no crash leaves and nothing goes on behind.
    damage: Option<Error>,
}

/// A family of the primary.
struct Followed {
    family: Arc<ColumnFamilyData>,
    version: Arc<Version>,
    log_number: FileNo,
    /// The MANIFEST and the number of its edits that `version` was made of.
    made_of: (FileNo, u64),
    /// One for each log that holds entries, oldest first.
    memtables: Vec<(FileNo, Arc<MemHandle>)>,
}

/// How a round ended.
enum Round {
    /// All was read, and nothing that was needed can have gone meanwhile.
    Settled,
    /// The MANIFEST moved on, or is about to.
    Moved,
}

/// Opens a follower of the database in `dir`, as it is now.
///
/// # Errors
/// See [`crate::Db::open_as_secondary`].
pub(crate) fn open(dir: &Path, own_dir: Option<&Path>, options: &Options) -> Result<Follower> {
    options.cf.validate()?;
    options.db.validate()?;
    let context = patiently(&options.db, || open_context(dir, own_dir, options))?;
    let follower = Follower {
        context: Arc::new(context),
        options: options.clone(),
        state: Mutex::default(),
        published: Mutex::default(),
    };
    follower.catch_up()?;
    Ok(follower)
}

/// Tries again where a file goes between finding its name and opening it.
fn patiently<T>(db: &crate::options::DbOptions, run: impl Fn() -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        match run() {
            Err(e) if e.kind() != ErrorKind::InvalidArgument && tries < TRIES_SAME_MAX => {
                tries += 1;
                db.clock.sleep(PAUSE);
            }
            done => return done,
        }
    }
}

impl Follower {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Takes up what the primary has written since; see
    /// [`crate::Db::try_catch_up_with_primary`].
    ///
    /// # Errors
    /// See there.
    pub(crate) fn catch_up(&self) -> Result<()> {
        if self.context.is_closing() {
            return Err(Error::closed("database is closed"));
        }
        let mut state = self.state.lock();
        let mut same = 0;
        for _ in 0..TRIES_MAX {
            if state.anew {
                state.forget_logs();
            }
            match state.round(&self.context, &self.options) {
                Ok(Round::Settled) => match state.damage.take() {
                    // What was read before the primary wrote on looks like damage before what was read behind that.
                    Some(error) if self.context.options.refuse_log_damage => {
                        if same == TRIES_SAME_MAX {
                            return Err(error);
                        }
                        same += 1;
                        self.context.clock.sleep(PAUSE);
                    }
                    _ => return self.publish(&mut state),
                },
                Ok(Round::Moved) => same = 0,
                Err(e) => {
                    // Some of a record may have been taken.
                    state.anew = true;
                    match state.read_manifest(&self.context) {
                        Ok(true) => same = 0,
                        _ if same == TRIES_SAME_MAX => return Err(e),
                        _ => same += 1,
                    }
                    self.context.clock.sleep(PAUSE);
                }
            }
        }
        Err(Error::busy("the primary changes its files all the time"))
    }

    /// A snapshot of what was published last.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let now_secs = self.context.clock.unix_secs();
        let published = self.published.lock();
        let (limit, views) = (published.limit, published.views.clone());
        self.context
            .snapshots
            .acquire_pinned(|| limit, now_secs, Some(views))
    }

    fn publish(&self, state: &mut State) -> Result<()> {
        let context = &self.context;
        let Some(manifest) = &state.manifest else {
            return Ok(());
        };
        let limit = manifest.last_sequence()?.max(state.logs_until);
        for followed in state.families.values_mut() {
            let from = followed.log_number;
            let memtables = &mut followed.memtables;
            // Only the newest can be empty.
            let empty = memtables.pop_if(|(_, mem)| mem.is_empty());
            memtables.retain(|(log, _)| *log >= from);
            if memtables.is_empty() {
                let fresh = || context.new_memtable(&followed.family, from);
                let mem = empty.map_or_else(fresh, |(_, mem)| mem);
                memtables.push((from, mem));
            }
        }
        let mut published = self.published.lock();
        context
            .sequence
            .reset(limit.max(context.sequence.visible()));
        let mut views = BTreeMap::new();
        for (&id, followed) in &state.families {
            let family = &followed.family;
            let mut into = family.state();
            let mut handles = followed.memtables.iter().map(|m| m.1.clone());
            if let Some(newest) = handles.next_back() {
                into.mem = newest;
            }
            into.imm = handles.collect();
            into.version = followed.version.clone();
            into.log_number = followed.log_number;
            family.publish_up_to(&into, limit);
            drop(into);
            views.insert(id, family.pin());
            // Nobody finds a new one before it shows what it holds.
            if context.set.family(id).is_none() {
                context.set.register(family.clone());
            }
        }
        *published = Published {
            limit,
            views: Arc::new(PinnedViews(views)),
        };
        drop(published);
        for gone in context.set.families() {
            if !state.families.contains_key(&gone.id) {
                gone.dropped.store(true, Ordering::Release);
                context.set.forget(gone.id);
            }
        }
        (state.published_until, state.reading_anew) = (limit, false);
        Ok(())
    }
}

impl State {
    /// Reads everything there is once.
    fn round(&mut self, context: &Context, options: &Options) -> Result<Round> {
        self.read_manifest(context)?;
        self.take_versions(context, options)?;
        let caught_up = self.read_logs(context)?;
        // Looked at last: see the head of this file.
        if self.read_manifest(context)? || !caught_up {
            return Ok(Round::Moved);
        }
        Ok(Round::Settled)
    }

    /// Takes up what is new in the MANIFEST, or another MANIFEST; true if there was anything.
    fn read_manifest(&mut self, context: &Context) -> Result<bool> {
        let number = manifest::current(&*context.fs, &context.dir)?;
        if let Some(tail) = &mut self.manifest
            && tail.number() == number
            && tail.has_its_name(&*context.fs, &context.dir)?
        {
            return tail.poll();
        }
        let mut tail = ManifestTail::open(&*context.fs, &context.dir, number)?;
        tail.poll()?;
        tail.last_sequence()?;
        if tail.db_id().is_some_and(|id| id != context.set.db_id()) {
            return Err(
                Error::invalid_argument("another database was made in this directory")
                    .with("path", context.dir.display()),
            );
        }
        self.manifest = Some(tail);
        Ok(true)
    }

    /// Makes the versions that the MANIFEST tells of, and opens their tables.
    fn take_versions(&mut self, context: &Context, options: &Options) -> Result<()> {
        let Some(manifest) = &self.manifest else {
            return Ok(());
        };
        let found = manifest.families();
        self.families.retain(|id, _| found.contains_key(id));
        let mut stored = None;
        for (&id, recovered) in found {
            let made_of = (manifest.number(), recovered.edits());
            let before = self.families.get(&id);
            if before.is_some_and(|f| f.made_of == made_of) {
                continue;
            }
            let (family, version) = match before {
                Some(f) => {
                    let levels = f.version.num_levels();
                    let version = recovered.version(&f.family.icmp, levels)?;
                    hand_on_tables(&f.version, &version);
                    (f.family.clone(), Arc::new(version))
                }
                None => {
                    let stored = match &stored {
                        Some(stored) => stored,
                        None => stored.insert(load_options(context)?),
                    };
                    let family =
                        assemble_recovered(context, options, stored.as_ref(), id, recovered)?;
                    let version = family.state().version.clone();
                    (family, version)
                }
            };
            for (_, file) in version.iter_files() {
                family.tables.reader(file)?;
            }
            for &number in version.blob_files().keys() {
                family.tables.blob_reader(&version, number)?;
            }
            let memtables = self.families.remove(&id).map(|f| f.memtables);
            let followed = Followed {
                family,
                version,
                log_number: recovered.log_number,
                made_of,
                memtables: memtables.unwrap_or_default(),
            };
            self.families.insert(id, followed);
        }
        if let Some(manifest) = &mut self.manifest {
            for (&id, followed) in &self.families {
                manifest.forget_gone(id, &followed.version);
            }
        }
        Ok(())
    }

    /// Takes up what is new in the logs; false if something cannot be taken yet.
    fn read_logs(&mut self, context: &Context) -> Result<bool> {
        self.damage = None;
        let Some(manifest) = &self.manifest else {
            return Ok(true);
        };
        let needed = self.families.values().map(|f| f.log_number).min();
        // Logs before those that families need may have what is prepared.
        let from = match manifest.min_log_number_to_keep() {
            0 => needed.unwrap_or(0),
            kept => kept,
        };
        let families_max = manifest.max_column_family();
        self.logs.retain(|&number, _| number >= from);
        for name in context.fs.list(&context.dir)? {
            if let Some(FileKind::Wal(number)) = filename::parse(&name)
                && number >= from
                && !self.logs.contains_key(&number)
            {
                let tail = LogTail::open(&*context.fs, &context.dir, number)?;
                self.logs.insert(number, tail);
            }
        }
        let numbers: Vec<FileNo> = self.logs.keys().copied().collect();
        let mut damaged: Option<(Error, bool)> = None;
        for number in numbers {
            let Some(mut log) = self.logs.remove(&number) else {
                continue;
            };
            if log.complete {
                self.logs.insert(number, log);
                continue;
            }
            if let Some((error, is_tail)) = damaged.take() {
                // What looks like damage may be former bytes of a log that was written over: if
                // this log goes on with the very next number, nothing is missing.
                let first = log.peek(|record| {
                    let batch = BatchReader::new(record).ok()?;
                    (batch.count > 0).then_some(batch.seqno)
                })?;
                match first {
                    Some(seqno) if seqno == self.logs_until + 1 => {}
                    Some(_) => return Err(error.with("log_behind_it", number)),
                    None => {
                        // It went on there if some of it was taken before.
                        damaged = Some((error, is_tail || log.at > 0));
                        self.logs.insert(number, log);
                        continue;
                    }
                }
            }
            let end = self.read_log(context, &mut log, families_max)?;
            match end {
                // A later one may be there that could not be begun: then this one is written on.
                End::Clean => {
                    let mut later = self.logs.range(number + 1..);
                    log.complete = later.any(|(_, later)| later.at > 0);
                }
                // Behind the newest nothing is to be read: it was not written yet.
                End::Damaged { error, is_tail } => damaged = Some((error, is_tail)),
                End::NotYet => {
                    self.logs.insert(number, log);
                    return Ok(false);
                }
            }
            self.logs.insert(number, log);
            if self.anew {
                return Ok(false);
            }
        }
        self.damage = damaged.and_then(|(error, is_tail)| (!is_tail).then_some(error));
        Ok(true)
    }

    /// Takes the new records of one log.
    fn read_log(&mut self, context: &Context, log: &mut LogTail, families_max: u32) -> Result<End> {
        let number = log.number;
        let path = log.path().to_owned();
        let mut memtables: Option<MemTables> = None;
        log.poll(context.options.refuse_log_damage, |record, offset| {
            let at = |e: Error| e.with("file", path.display()).with("offset", offset);
            let batch = BatchReader::new(record).map_err(at)?;
            batch.check().map_err(at)?;
            if let Some(link) = Link::of(&batch)
                && let Some(before) = self.logs.get(&link.log)
                && before.at != link.bytes
            {
                if before.at < link.bytes {
                    let error = Error::corruption("log is cut off and another one follows")
                        .with("log_before", link.log)
                        .with("bytes_missing", link.bytes - before.at);
                    return Err(at(error));
                }
                // The primary took back what it had written last.
                if !self.reading_anew {
                    self.anew = true;
                    return Ok(Taken::NotYet);
                }
            }
            if batch.count == 0 && !batch.iter().flatten().any(|op| op.is_marker()) {
                return Ok(Taken::Yes);
            }
            if batch.seqno.saturating_add(SeqNo::from(batch.count)) > SEQNO_MAX {
                let error = Error::corruption("sequence number is too large");
                return Err(at(error.with("seqno", batch.seqno)));
            }
            let known = self.logs_until.max(self.published_until);
            if batch.seqno <= known && !self.reading_anew {
                // It was given again, or comes later than what is published: the readers'
                // memtables cannot take it.
                self.anew = true;
                return Ok(Taken::NotYet);
            }
            let of_unknown = batch.iter().any(|op| {
                let family = op.ok().and_then(|op| op.family());
                family.is_some_and(|cf| cf > families_max)
            });
            if of_unknown {
                // The edit that makes it is in the MANIFEST already.
                return Ok(Taken::NotYet);
            }
            let memtables = memtables.get_or_insert_with(|| self.memtables_of(context, number));
            let families = &self.families;
            let wanted = |cf: u32| families.get(&cf).is_some_and(|f| number >= f.log_number);
            let end = self
                .prepared
                .take(number, &batch, |op, seqno| {
                    memtables.apply_one(op, seqno, &wanted)
                })
                .map_err(at)?;
            self.logs_until = self.logs_until.max(end.saturating_sub(1));
            Ok(Taken::Yes)
        })
    }

    /// The memtables that take the records of a log.
    fn memtables_of(&mut self, context: &Context, log: FileNo) -> MemTables {
        let handles = self.families.values_mut().map(|followed| {
            let family = &followed.family;
            let memtables = &mut followed.memtables;
            match memtables.last_mut() {
                Some((of, mem)) if *of == log => (family.clone(), mem.clone()),
                // One that is empty holds nothing of another log.
                Some((of, mem)) if mem.is_empty() => {
                    *of = log;
                    mem.raise_log_number(log);
                    (family.clone(), mem.clone())
                }
                _ => {
                    let fresh = context.new_memtable(family, log);
                    memtables.push((log, fresh.clone()));
                    (family.clone(), fresh)
                }
            }
        });
        MemTables::with(handles.collect())
    }

    /// Reads all logs anew from here on, into memtables that no reader has.
    fn forget_logs(&mut self) {
        self.logs.clear();
        self.prepared = Sections::default();
        for followed in self.families.values_mut() {
            followed.memtables.clear();
        }
        self.logs_until = 0;
        (self.anew, self.reading_anew) = (false, true);
    }
}

/// Lets the files of `after` have the tables that are open for those of `before`.
fn hand_on_tables(before: &Version, after: &Version) {
    for (_, file) in after.iter_files() {
        if file.table.get().is_none()
            && let Some((_, old)) = before.find(file.number)
            && old.size == file.size
            && let Some(table) = old.table.get()
        {
            file.table.set(table.clone());
        }
    }
    for (number, blob) in after.blob_files() {
        if let Some(old) = before.blob_files().get(number)
            && old.addition() == blob.addition()
            && let Some(reader) = old.file.reader.get()
        {
            blob.file.reader.set(reader.clone());
        }
    }
}

/// The newest OPTIONS file, if one can be read.
fn load_options(context: &Context) -> Result<Option<StoredOptions>> {
    for _ in 0..TRIES_SAME_MAX {
        let names = context.fs.list(&context.dir)?;
        let is_there = |n: &String| matches!(filename::parse(n), Some(FileKind::Options(_)));
        let stored = options_map::load_newest(&*context.fs, &context.dir, &names)?;
        if stored.is_some() || !names.iter().any(is_there) {
            return Ok(stored);
        }
        // It went, or is one that does not parse.
        context.clock.sleep(PAUSE);
    }
    Ok(None)
}
