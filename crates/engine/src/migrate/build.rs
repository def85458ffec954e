//! Makes the new directory of what the source holds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use orogen_base::key::{ParsedInternalKey, ValueKind, append_internal_key, append_seek_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, ErrorKind, InternalIterator as _, Result, UserComparator};
use orogen_blob::titan::TitanPointer;
use orogen_env::fs::{parent_of, read_file, write_file};
use orogen_env::threads;
use orogen_memtable::MemTable;
use orogen_sst::{Anchor, TableBuilder, TableBuilderOptions};
use parking_lot::Mutex;

use super::blobs::Blobs;
use super::entries::{Chain, SourceTable};
use super::logs::each_operation;
use super::source::{Family, Source};
use super::{
    FamilyReport, LOST_LISTED_MAX, LostTitanValue, Made, Phase, TitanOptions, TitanReport, Watch,
};
use crate::batch::LoggedOp;
use crate::checkpoint::link_or_copy;
use crate::filename::{self, DataFileKind};
use crate::new_directory::{self, At, NewDirectory, insert_op};
use crate::options::Options;
use crate::options_map;
use crate::output::{BlobOutputOptions, OutputWriter, Written};
use crate::read::MergingIter;
use crate::version::edit::VersionEdit;

/// Bytes between two looks at whether to go on.
const BYTES_PER_LOOK: u64 = 1 << 20;

/// Stretches for each thread: the slowest is not waited for so long.
const STRETCHES_PER_THREAD: usize = 4;

/// Makes `to`.
pub(super) fn build(
    source: &mut Source<'_>,
    to: &Path,
    options: &Options,
    titan: &TitanOptions,
    watch: Watch<'_>,
) -> Result<TitanReport> {
    let fs = source.fs;
    let mut report = source.report(titan);
    if let Some(damage) = report.files_damaged.first()
        && !titan.skip_damaged
    {
        return Err(damage.error.clone());
    }
    if titan.check_space {
        let free = fs.free_space(parent_of(to))?;
        if free < report.bytes_needed {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "there is less space free than the new directory takes, about",
            )
            .with("bytes_needed", report.bytes_needed)
            .with("bytes_free", free));
        }
    }
    let progress = Progress {
        watch,
        done: AtomicU64::new(0),
        all: source
            .families
            .values()
            .map(|f| match f.has_pointers {
                true => f
                    .raw_bytes
                    .saturating_add(f.referenced_bytes())
                    .saturating_add(f.log_bytes),
                // Read once to see that there are none; the tables stay.
                false => f.raw_bytes,
            })
            .fold(0, u64::saturating_add),
    };
    let (made, families, lost) = new_directory::make(fs, to, |temporary| {
        source.look_for_pointers(&|bytes| progress.pass(bytes))?;
        let new = NewDirectory::new(
            temporary,
            options,
            source.db_id.as_deref(),
            source.next_file,
        );
        let work = Build {
            source,
            new,
            to: temporary,
            options,
            titan,
            progress: &progress,
            lost: Mutex::default(),
        };
        let (made, families) = work.run()?;
        Ok((made, families, work.lost.into_inner()))
    })?;
    for (told, found) in report.families.iter_mut().zip(families) {
        told.is_merged = found.is_merged;
        told.entries = found.entries;
        told.values = found.values;
        told.value_bytes = found.value_bytes;
    }
    report.made = Some(made);
    report.values_lost = lost.listed;
    report.values_lost_count = lost.count;
    Ok(report)
}

struct Progress<'w> {
    watch: Watch<'w>,
    done: AtomicU64,
    all: u64,
}

impl Progress<'_> {
    fn pass(&self, bytes: u64) -> Result<()> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        match (self.watch)(Phase::Migrate, done.min(self.all), self.all) {
            true => Ok(()),
            false => Err(Error::aborted("migration was given up")),
        }
    }
}

#[derive(Default)]
struct Lost {
    listed: Vec<LostTitanValue>,
    count: u64,
}

struct Build<'a, 's> {
    source: &'a Source<'s>,
    new: NewDirectory<'a>,
    to: &'a Path,
    options: &'a Options,
    titan: &'a TitanOptions,
    progress: &'a Progress<'a>,
    lost: Mutex<Lost>,
}

/// What the logs hold of a family.
struct FromLog {
    memtable: Arc<dyn MemTable>,
    /// Of a family that is merged: entries as they are, to be merged.
    temporary: Vec<SourceTable>,
    tombstones: Vec<RangeTombstone>,
    /// Of one that is not: tables of level 0, oldest first.
    written: Vec<Written>,
}

/// What came of a stretch of keys.
struct Stretch {
    written: Written,
    entries: u64,
    values: u64,
    value_bytes: u64,
}

impl Build<'_, '_> {
    fn run(&self) -> Result<(Made, Vec<FamilyReport>)> {
        let mut from_logs = self.read_logs()?;
        let (mut made, mut told) = (Made::default(), Vec::new());
        let mut new_families = Vec::new();
        for (&id, family) in &self.source.families {
            let Some(from_log) = from_logs.remove(&id) else {
                continue;
            };
            let mut edit = VersionEdit::of_column_family(id);
            let mut found = FamilyReport {
                is_merged: family.has_pointers,
                ..FamilyReport::default()
            };
            if family.has_pointers {
                for stretch in self.merge(family, &from_log)? {
                    found.entries += stretch.entries;
                    found.values += stretch.values;
                    found.value_bytes += stretch.value_bytes;
                    stretch
                        .written
                        .add_to(family.options.num_levels - 1, &mut edit);
                }
                for table in &from_log.temporary {
                    self.source.fs.remove_file(&table.path)?;
                }
            } else {
                self.link(family, &mut edit)?;
                for written in from_log.written {
                    written.add_to(0, &mut edit);
                }
            }
            made.tables += edit.new_files.len() as u64;
            made.table_bytes += edit.new_files.iter().map(|(_, f)| f.size).sum::<u64>();
            made.blob_files += edit.blob_file_additions.len() as u64;
            for file in &edit.blob_file_additions {
                let path = filename::blob_path(self.to, file.number);
                made.blob_file_bytes += self.source.fs.metadata(&path)?.size;
            }
            told.push(found);
            new_families.push((family.as_new(), edit));
        }
        self.write_settings()?;
        self.new.finish(&new_families, self.source.last_sequence)?;
        Ok((made, told))
    }

    fn link(&self, family: &Family, edit: &mut VersionEdit) -> Result<()> {
        let tables = family.runs.iter().flatten();
        for (table, (level, file)) in tables.zip(&family.listed) {
            let target = filename::table_path(self.to, table.number);
            link_or_copy(self.source.fs, &table.path, &target)?;
            edit.add_file(*level, file.clone());
        }
        Ok(())
    }

    /// What the logs hold and tables lack becomes tables.
    fn read_logs(&self) -> Result<BTreeMap<u32, FromLog>> {
        let families = &self.source.families;
        let fresh = |f: &Family| f.options.make_memtable(false, None);
        let mut found: BTreeMap<u32, FromLog> = families
            .iter()
            .map(|(&id, family)| {
                let from_log = FromLog {
                    memtable: fresh(family),
                    temporary: Vec::new(),
                    tombstones: Vec::new(),
                    written: Vec::new(),
                };
                (id, from_log)
            })
            .collect();
        let listed = families.values().flat_map(|f| &f.listed);
        let mut epoch = listed.map(|(_, f)| f.epoch_number).max().unwrap_or(0);
        let source = self.source;
        each_operation(
            source.fs,
            &source.wal_dir,
            &source.logs,
            source.in_tables,
            &mut |log, seqno, op| {
                let Some(id) = op.family() else {
                    return Ok(());
                };
                let (Some(family), Some(from_log)) = (families.get(&id), found.get_mut(&id)) else {
                    return Ok(());
                };
                if !family.wants(log) {
                    return Ok(());
                }
                match op {
                    LoggedOp::Op(op) => insert_op(&*from_log.memtable, &op, seqno)?,
                    LoggedOp::Pointer { key, pointer, .. } => {
                        let kind = ValueKind::BlobIndex;
                        from_log.memtable.insert(key, seqno, kind, pointer)?;
                    }
                }
                let bytes = from_log.memtable.memory_usage() as u64;
                if bytes >= family.options.write_buffer_size {
                    epoch += 1;
                    self.flush(family, from_log, epoch)?;
                    from_log.memtable = fresh(family);
                }
                Ok(())
            },
        )?;
        for (id, from_log) in &mut found {
            epoch += 1;
            self.flush(&families[id], from_log, epoch)?;
            from_log.memtable = fresh(&families[id]);
        }
        Ok(found)
    }

    fn flush(&self, family: &Family, from_log: &mut FromLog, epoch: u64) -> Result<()> {
        let memtable = from_log.memtable.clone();
        let tombstones = memtable.range_tombstones();
        let mut iter = memtable.iter();
        iter.seek_to_first();
        if !family.has_pointers {
            // As large as they are: a compaction puts them apart.
            let blobs = BlobOutputOptions::default();
            let at = At::level_0(epoch);
            let bounds = (None, None);
            let mut writer = self
                .new
                .writer(family.as_new(), at, &tombstones, blobs, bounds);
            while iter.valid() {
                writer.add(iter.key(), iter.value())?;
                iter.next();
            }
            iter.status()?;
            from_log.written.push(writer.finish()?);
            return Ok(());
        }
        from_log
            .tombstones
            .extend(tombstones.iter().map(|(start, end, seqno)| RangeTombstone {
                start: start.to_vec(),
                end: end.to_vec(),
                seqno,
            }));
        if !iter.valid() {
            return iter.status();
        }
        let (number, file) = self.new.create(DataFileKind::Table)?;
        let options = TableBuilderOptions {
            file_number: number,
            ..self.new.table_options(family.as_new(), 0)
        };
        let mut builder = TableBuilder::new(file, options)?;
        while iter.valid() {
            builder.add(iter.key(), iter.value())?;
            iter.next();
        }
        iter.status()?;
        let summary = builder.finish(None)?;
        from_log.temporary.push(SourceTable {
            path: filename::table_path(self.to, number),
            number,
            size: summary.file_size,
            largest: summary.largest.unwrap_or_default(),
            largest_seqno: None,
        });
        Ok(())
    }

    /// All of a family becomes one sorted run.
    fn merge(&self, family: &Family, from_log: &FromLog) -> Result<Vec<Stretch>> {
        let order = &family.options.comparator;
        let mut tombstones = family.tombstones.clone();
        tombstones.extend(from_log.tombstones.iter().cloned());
        let tombstones = FragmentedRangeTombstones::new(order, tombstones);
        let threads = self.titan.threads.max(1);
        let bounds = bounds(
            order,
            family.anchors.clone(),
            (threads > 1).then_some(threads * STRETCHES_PER_THREAD),
            family.options.target_file_size_base,
        );
        let starts = std::iter::once(None).chain(bounds.iter().cloned().map(Some));
        let ends = bounds
            .iter()
            .cloned()
            .map(Some)
            .chain(std::iter::once(None));
        let stretches: Vec<_> = starts.zip(ends).collect();
        let next = AtomicUsize::new(0);
        let failed = std::sync::atomic::AtomicBool::new(false);
        let work = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(bounds) = stretches.get(at) else {
                    return Ok(done);
                };
                if failed.load(Ordering::Relaxed) {
                    return Ok(done);
                }
                let result = self.stretch(family, from_log, &tombstones, bounds.clone());
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                done.push((at, result?));
            }
        };
        let tasks: Vec<_> = (0..threads.min(stretches.len())).map(|_| &work).collect();
        let mut all = Vec::new();
        for result in threads::run_all("orogen-migrate", tasks) {
            all.extend(result?);
        }
        all.sort_by_key(|(at, _): &(usize, Stretch)| *at);
        Ok(all.into_iter().map(|(_, stretch)| stretch).collect())
    }

    fn stretch(
        &self,
        family: &Family,
        from_log: &FromLog,
        tombstones: &FragmentedRangeTombstones,
        (start, end): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> Result<Stretch> {
        let fs = self.source.fs;
        let icmp = family.order();
        let order = icmp.user.clone();
        let logged = from_log.temporary.iter().rev().map(std::slice::from_ref);
        let runs = logged.chain(family.runs.iter().map(Vec::as_slice));
        let children = runs.map(|run| Chain::new(fs, icmp.clone(), run)).collect();
        let mut input = MergingIter::new(icmp.clone(), children);
        let cf = &family.options;
        let blobs = BlobOutputOptions {
            min_blob_size: self.titan.min_blob_size,
            blob_file_size: cf.blob_file_size,
            file: self.new.blob_file_options(family.as_new()),
            ..BlobOutputOptions::default()
        };
        let at = At {
            level: cf.num_levels - 1,
            epoch_number: 1,
        };
        // What they delete is not taken, and nothing lies below.
        let none = FragmentedRangeTombstones::default();
        let bounds = (start.clone(), end.clone());
        let mut writer = self.new.writer(family.as_new(), at, &none, blobs, bounds);
        let mut titan = Blobs::new(fs, &family.live, self.titan.threads);
        let mut done = Stretch {
            written: Written::default(),
            entries: 0,
            values: 0,
            value_bytes: 0,
        };
        let mut passed = 0;
        let mut seen = Seen::default();
        let mut operands = Operands::default();
        match &start {
            Some(start) => {
                let mut target = Vec::new();
                append_seek_key(&mut target, start, SEQNO_MAX);
                input.seek(&target);
            }
            None => input.seek_to_first(),
        }
        while input.valid() {
            let (key, value) = (input.key(), input.value());
            let parsed = ParsedInternalKey::parse(key)?;
            let ended = end.as_ref();
            if ended.is_some_and(|end| !order.less(parsed.user_key, end)) {
                break;
            }
            passed += (key.len() + value.len()) as u64;
            let is_pointer = parsed.kind == ValueKind::BlobIndex;
            let pointer = is_pointer.then(|| TitanPointer::decode(value));
            if let Some(Ok(pointer)) = &pointer {
                passed = passed.saturating_add(pointer.size);
            }
            if passed >= BYTES_PER_LOOK {
                self.progress.pass(std::mem::take(&mut passed))?;
            }
            let shows = seen.shows(&order, tombstones, &parsed);
            let has_open_base = shows
                && !seen.is_first
                && matches!(parsed.kind, ValueKind::Merge | ValueKind::BlobIndex);
            if !has_open_base {
                done.entries += operands.write(&mut writer)?;
            }
            if !shows {
                input.next();
                continue;
            }
            match (parsed.kind, pointer) {
                (ValueKind::Deletion | ValueKind::SingleDeletion, _) => {}
                (ValueKind::Merge, _) => {
                    refuse_titan_operand(family, parsed.user_key, value)?;
                    operands.hold(key, value);
                }
                (ValueKind::Value, _) => {
                    writer.add(key, value)?;
                    done.entries += 1;
                }
                (_, Some(Ok(pointer))) if pointer.is_deletion() => {}
                (_, Some(pointer)) => {
                    let number = pointer.as_ref().ok().map(|p| p.file);
                    let found = pointer.and_then(|p| titan.read(&p, parsed.user_key));
                    match found {
                        Ok(value) => {
                            done.entries += operands.write(&mut writer)?;
                            seen.internal.clear();
                            let kind = ValueKind::Value;
                            let out = &mut seen.internal;
                            append_internal_key(out, parsed.user_key, parsed.seqno, kind);
                            writer.add(&seen.internal, value)?;
                            done.entries += 1;
                            done.values += 1;
                            done.value_bytes += value.len() as u64;
                        }
                        Err(e) => {
                            self.lose(family, parsed.user_key, number, e)?;
                            operands.forget();
                        }
                    }
                }
                (ValueKind::RangeDeletion | ValueKind::BlobIndex, None) => {
                    return Err(Error::corruption("entry of this kind among point entries")
                        .with("kind", parsed.kind as u8)
                        .with("column_family", &family.name));
                }
            }
            input.next();
        }
        input
            .status()
            .map_err(|e| e.with("column_family", &family.name))?;
        done.entries += operands.write(&mut writer)?;
        self.progress.pass(passed)?;
        done.written = writer.finish()?;
        Ok(done)
    }

    /// Notes a value that cannot be read, if that is no reason to stop.
    fn lose(&self, family: &Family, key: &[u8], blob_file: Option<u64>, e: Error) -> Result<()> {
        if !self.titan.skip_damaged || e.kind() != ErrorKind::Corruption {
            return Err(e
                .with("column_family", &family.name)
                .with("key", key.escape_ascii()));
        }
        let mut lost = self.lost.lock();
        lost.count += 1;
        if lost.listed.len() < LOST_LISTED_MAX {
            lost.listed.push(LostTitanValue {
                column_family: family.name.clone(),
                key: key.to_vec(),
                blob_file,
                error: e,
            });
        }
        Ok(())
    }

    /// All that is neither tables nor MANIFEST.
    fn write_settings(&self) -> Result<()> {
        let fs = self.source.fs;
        let identity = filename::identity_path(&self.source.dir);
        if let Ok(bytes) = read_file(fs, &identity) {
            write_file(fs, &filename::identity_path(self.to), &bytes)?;
        }
        let families: Vec<_> = self
            .source
            .families
            .values()
            .map(|f| (f.name.clone(), Arc::new(f.options.clone())))
            .collect();
        let text = options_map::to_text(&self.options.db, &families, false);
        let path = filename::options_path(self.to, self.new.number());
        write_file(fs, &path, text.as_bytes())
    }
}

/// Which entries of a key a reader sees, as they come: newest first.
#[derive(Default)]
struct Seen {
    user_key: Option<Vec<u8>>,
    /// No entry of the key came before.
    is_first: bool,
    /// Nothing older shows.
    is_over: bool,
    /// Entries before it are deleted.
    covered_below: u64,
    /// An entry as it is written.
    internal: Vec<u8>,
}

impl Seen {
    fn shows(
        &mut self,
        order: &UserComparator,
        tombstones: &FragmentedRangeTombstones,
        entry: &ParsedInternalKey<'_>,
    ) -> bool {
        let is_same = self
            .user_key
            .as_ref()
            .is_some_and(|k| order.compare(k, entry.user_key).is_eq());
        self.is_first = !is_same;
        if !is_same {
            let key = self.user_key.get_or_insert_default();
            key.clear();
            key.extend_from_slice(entry.user_key);
            self.is_over = false;
            self.covered_below = tombstones.max_covering_seqno(order, entry.user_key, SEQNO_MAX);
        }
        if self.is_over || entry.seqno < self.covered_below {
            self.is_over = true;
            return false;
        }
        self.is_over = entry.kind != ValueKind::Merge;
        true
    }
}

/// Merge operands of a key until what is below them is read: with a value that is lost they would become another one.
#[derive(Default)]
struct Operands(Vec<(Vec<u8>, Vec<u8>)>);

impl Operands {
    fn hold(&mut self, key: &[u8], operand: &[u8]) {
        self.0.push((key.to_vec(), operand.to_vec()));
    }

    fn forget(&mut self) {
        self.0.clear();
    }

    /// Writes them, and returns how many there were.
    fn write(&mut self, writer: &mut OutputWriter<'_>) -> Result<u64> {
        for (key, operand) in &self.0 {
            writer.add(key, operand)?;
        }
        let count = self.0.len() as u64;
        self.forget();
        Ok(count)
    }
}

/// User keys that part a family into stretches of about the same size, each worth a table at
/// least.
fn bounds(
    order: &UserComparator,
    mut anchors: Vec<Anchor>,
    parts: Option<usize>,
    table_size: u64,
) -> Vec<Vec<u8>> {
    let Some(parts) = parts else {
        return Vec::new();
    };
    anchors.sort_by(|a, b| order.compare(&a.user_key, &b.user_key));
    let all: u64 = anchors.iter().map(|a| a.weight_bytes).sum();
    let parts = (parts as u64).min(all / table_size.max(1) + 1);
    let mut bounds: Vec<Vec<u8>> = Vec::new();
    let mut passed = 0;
    for anchor in anchors {
        passed += anchor.weight_bytes;
        let goal = all / parts * (bounds.len() as u64 + 1);
        let rises = bounds
            .last()
            .is_none_or(|b| order.less(b, &anchor.user_key));
        if (bounds.len() as u64) + 1 < parts && passed >= goal && rises {
            bounds.push(anchor.user_key);
        }
    }
    bounds
}

/// Garbage collection of some releases wrote operands that only Titan's own operator knows how to apply: whether
/// one counts depends on what lies below it. Taken for a user's operand it would become a wrong value.
fn refuse_titan_operand(family: &Family, key: &[u8], operand: &[u8]) -> Result<()> {
    let Some(file) = TitanPointer::file_of_operand(operand) else {
        return Ok(());
    };
    Err(
        Error::not_supported("merge operand of garbage collection with gc-merge-rewrite")
            .with("column_family", &family.name)
            .with("key", key.escape_ascii())
            .with("blob_file", file),
    )
}
