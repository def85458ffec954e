//! What a database tells of itself, under RocksDB's names.

use orogen_base::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use orogen_base::{FileNo, Result, SeqNo};
use orogen_sst::BlockCache;

use crate::blob_files::{GARBAGE_PERCENTS, garbage_percent_le};
use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compact::{LevelTargets, Scores};
use crate::context::Context;
use crate::events::StallCondition;
use crate::memory::MemoryUsage;
use crate::quarantine;
use crate::report;
use crate::scrub::{BlobVerifier, blob_bytes};
use crate::version::BlobFileMeta;
use crate::version::version::Version;

/// Tables that an estimate opens at most.
const TABLES_OPENED_MAX: usize = 32;

/// A table of the newest version.
#[derive(Clone, Debug)]
pub struct LiveFile {
    /// The family's name.
    pub column_family: String,
    /// The family's id.
    pub column_family_id: u32,
    /// The level.
    pub level: usize,
    /// The file's number.
    pub number: FileNo,
    /// Bytes of the file.
    pub size: u64,
    /// First user key.
    pub smallest: Vec<u8>,
    /// Last user key.
    pub largest: Vec<u8>,
    /// Oldest sequence number.
    pub smallest_seqno: SeqNo,
    /// Newest sequence number.
    pub largest_seqno: SeqNo,
    /// Entries, range tombstones included; `None` while nobody has opened the file.
    pub num_entries: Option<u64>,
    /// Tombstones among them.
    pub num_deletions: Option<u64>,
    /// True while a compaction reads it.
    pub being_compacted: bool,
}

/// The tables of all families.
pub(crate) fn live_files(context: &Context) -> Vec<LiveFile> {
    let mut out = Vec::new();
    for family in context.set.families() {
        let version = family.state().version.clone();
        for (level, file) in version.iter_files() {
            out.push(LiveFile {
                column_family: family.name.clone(),
                column_family_id: family.id,
                level,
                number: file.number,
                size: file.size,
                smallest: file.smallest_user_key().to_vec(),
                largest: file.largest_user_key().to_vec(),
                smallest_seqno: file.smallest_seqno,
                largest_seqno: file.largest_seqno,
                num_entries: file.counts.get().map(|c| c.0),
                num_deletions: file.counts.get().map(|c| c.1),
                being_compacted: file.being_compacted.get(),
            });
        }
    }
    out
}

/// Reads and checks every block of every table.
///
/// # Errors
/// The first damage, with file and offset.
pub(crate) fn verify_checksums(
    context: &Context,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let pinned: Vec<_> = context
        .set
        .families()
        .into_iter()
        .map(|f| (f.pin(), f.tables.clone()))
        .collect();
    let total = pinned
        .iter()
        .map(|(p, _)| p.version.total_bytes() + blob_bytes(&p.version))
        .sum();
    let mut done = 0;
    for (super_version, tables) in &pinned {
        for (_, file) in super_version.version.iter_files() {
            let verified = tables
                .reader(file)
                .and_then(|table| table.verify_checksums());
            verified.inspect_err(|e| {
                quarantine::note(context, e);
            })?;
            done += file.size;
            progress(done, total);
        }
        let mut blobs = BlobVerifier::new(tables, &super_version.version, &|| Ok(()));
        for &number in super_version.version.blob_files().keys() {
            let verified = blobs.verify(number, &mut |bytes| {
                done += bytes;
                progress(done, total);
            });
            verified.inspect_err(|e| {
                quarantine::note(context, e);
            })?;
        }
    }
    Ok(())
}

/// A property as text.
pub(crate) fn text(context: &Context, family: &ColumnFamilyData, name: &str) -> Option<String> {
    if name == "orogen.damaged-files" {
        return Some(quarantine::text(context));
    }
    if name == "orogen.cf-write-stall-cause" {
        return Some(context.stall.cause_of(family.id));
    }
    if name == "orogen.jobs" {
        return Some(report::jobs_text(context));
    }
    if name == "orogen.holders" {
        return Some(report::holders(context).to_text());
    }
    if name == "orogen.memory-usage" {
        return Some(memory_usage(context).to_text());
    }
    if name == "orogen.health" {
        return Some(health(context));
    }
    let Some(short) = name.strip_prefix("rocksdb.") else {
        return number(context, family, name).map(|n| n.to_string());
    };
    if let Some(level) = short.strip_prefix("num-files-at-level") {
        let level: usize = level.parse().ok()?;
        let state = family.state();
        return (level < state.version.num_levels())
            .then(|| state.version.num_files(level).to_string());
    }
    match short {
        "stats" => Some(format!("{}{}", cf_stats(family), db_stats(context))),
        "cfstats" | "cfstats-no-file-histogram" => Some(cf_stats(family)),
        "dbstats" => Some(db_stats(context)),
        "levelstats" => Some(level_stats(&family.state().version)),
        "blob-stats" => Some(blob_stats(&family.state().version)),
        "sstables" => Some(family.state().version.to_text()),
        "options-statistics" => Some(context.statistics.to_text()),
        "aggregated-table-properties" => Some(table_properties(family)),
        "write-stall-cause" => Some(context.stall.current().2),
        _ => number(context, family, name).map(|n| n.to_string()),
    }
}

/// A property that is a number.
pub(crate) fn number(context: &Context, family: &ColumnFamilyData, name: &str) -> Option<u64> {
    if name == "orogen.memory-usage" {
        return Some(memory_usage(context).total());
    }
    if name == "orogen.txn.prepared" {
        return Some(context.prepared.count() as u64);
    }
    if name == "orogen.out-of-space" {
        return Some(u64::from(context.health.out_of_space()));
    }
    if let Some(short) = name.strip_prefix("orogen.") {
        // The family's lock is free again before others are taken.
        let version = family.state().version.clone();
        return blob_number(context, family, &version, short);
    }
    let short = name.strip_prefix("rocksdb.")?;
    if short == "estimate-num-keys" {
        return Some(estimate_num_keys(family));
    }
    // These go over all of the cache, without the family's lock.
    if let Some(of_cache) = short.strip_prefix("block-cache-") {
        return cache_number(&family.cache, of_cache);
    }
    if let Some(of_cache) = short.strip_prefix("blob-cache-") {
        let cache = family.tables.blob_cache.then_some(&family.cache);
        return cache.and_then(|cache| cache_number(cache, of_cache));
    }
    if short == "estimate-table-readers-mem" {
        return Some(open_files_bytes(&family.version()));
    }
    // Of all families, as RocksDB counts them.
    let families = || context.set.families().into_iter();
    match short {
        "num-running-flushes" => {
            return Some(families().filter(|f| f.state().flushing.is_some()).count() as u64);
        }
        "num-running-compactions" => {
            return Some(families().map(|f| f.state().running.len() as u64).sum());
        }
        _ => {}
    }
    let state = family.state();
    let version = &state.version;
    Some(match short {
        "num-immutable-mem-table" => state.imm.len() as u64,
        "mem-table-flush-pending" => {
            let is_due = state.flush_due(&family.options()).is_some();
            let waits = is_due && state.flushing.is_none();
            u64::from(waits && !context.read_only)
        }
        "compaction-pending" => {
            u64::from(Scores::compute(version, &family.options()).needs_compaction())
        }
        "background-errors" => u64::from(context.health.check().is_err()),
        "cur-size-active-mem-table" => state.mem.table.memory_usage() as u64,
        "cur-size-all-mem-tables" | "size-all-mem-tables" => memtable_bytes(&state),
        "num-entries-active-mem-table" => state.mem.table.entry_count(),
        "num-deletes-active-mem-table" => state.mem.table.deletion_count(),
        "num-entries-imm-mem-tables" => state.imm.iter().map(|m| m.table.entry_count()).sum(),
        "num-deletes-imm-mem-tables" => state.imm.iter().map(|m| m.table.deletion_count()).sum(),
        "estimate-live-data-size" | "live-sst-files-size" | "total-sst-files-size" => {
            version.total_bytes()
        }
        "num-blob-files" => version.blob_files().len() as u64,
        "live-blob-file-size" => blob_file_bytes(version),
        "total-blob-file-size" => blob_file_bytes(version) + obsolete_blobs(context).1,
        "live-blob-file-garbage-size" => version
            .blob_files()
            .values()
            .map(|b| b.garbage_blob_bytes)
            .sum(),
        "num-snapshots" => context.snapshots.count() as u64,
        "oldest-snapshot-sequence" => context.snapshots.oldest().unwrap_or(0),
        "oldest-snapshot-time" => context.snapshots.oldest_taken_secs().unwrap_or(0),
        "base-level" => LevelTargets::compute(version, &family.options()).base_level as u64,
        "estimate-pending-compaction-bytes" => {
            family.pending_compaction_bytes.load(Ordering::Relaxed)
        }
        "actual-delayed-write-rate" => match context.stall.current() {
            (StallCondition::Delayed, rate, _) => rate,
            _ => 0,
        },
        "is-write-stopped" => u64::from(context.stall.current().0 == StallCondition::Stopped),
        "min-log-number-to-keep" => {
            drop(state);
            context.min_log_needed()
        }
        "current-super-version-number" => state.mem.id,
        _ => return None,
    })
}

fn cache_number(cache: &BlockCache, name: &str) -> Option<u64> {
    let bytes = match name {
        "capacity" => cache.capacity(),
        "usage" => cache.usage(),
        "pinned-usage" => cache.pinned_usage(),
        _ => return None,
    };
    Some(bytes as u64)
}

/// The budget's figures, of all databases that share it; or the sums of this database.
fn memory_usage(context: &Context) -> MemoryUsage {
    if let Some(budget) = &context.options.memory_budget {
        return budget.usage();
    }
    let mut usage = MemoryUsage::default();
    let mut caches: Vec<Arc<BlockCache>> = Vec::new();
    for family in context.set.families() {
        let state = family.state();
        usage.memtables += memtable_bytes(&state);
        usage.table_readers += open_files_bytes(&state.version);
        if !caches.iter().any(|c| Arc::ptr_eq(c, &family.cache)) {
            caches.push(family.cache.clone());
        }
    }
    for cache in caches {
        usage.block_cache += cache.usage() as u64;
        usage.held_blocks += cache.held_usage() as u64;
    }
    usage
}

/// What open tables and blob files hold of memory themselves.
fn open_files_bytes(version: &Version) -> u64 {
    let tables = version.iter_files().filter_map(|(_, f)| f.table.get());
    let blobs = version.blob_files().values();
    let blobs = blobs.filter_map(|b| b.file.reader.get());
    let bytes = tables.map(|t| t.memory_usage());
    bytes.chain(blobs.map(|b| b.memory_usage())).sum::<usize>() as u64
}

/// Whether writes are taken, and if not, why.
fn health(context: &Context) -> String {
    let (failed, cause) = (context.health.failed(), context.health.cause());
    match cause {
        None => "healthy".to_owned(),
        Some(cause) if failed => format!("read-only: {cause}"),
        Some(cause) => format!("out of space: {cause}"),
    }
}

fn memtable_bytes(state: &FamilyState) -> u64 {
    let all = std::iter::once(&state.mem).chain(&state.imm);
    all.map(|m| m.table.memory_usage() as u64).sum()
}

/// Entries less twice the deletions, as RocksDB estimates. A few tables are opened to know them;
/// the rest count by the average of those that are known.
fn estimate_num_keys(family: &ColumnFamilyData) -> u64 {
    let (version, memtables) = {
        let state = family.state();
        let all: Vec<_> = std::iter::once(&state.mem)
            .chain(&state.imm)
            .cloned()
            .collect();
        (state.version.clone(), all)
    };
    let mut entries: u64 = memtables.iter().map(|m| m.table.entry_count()).sum();
    let mut deletions: u64 = memtables.iter().map(|m| m.table.deletion_count()).sum();
    let (mut known_bytes, mut known_entries, mut unknown_bytes) = (0u64, 0u64, 0u64);
    let mut opened = 0;
    for (_, file) in version.iter_files() {
        let mut table = file.table.get();
        if table.is_none() && opened < TABLES_OPENED_MAX {
            opened += 1;
            table = family.tables.reader(file).ok();
        }
        match table {
            Some(table) => {
                let p = table.properties();
                known_bytes += file.size;
                known_entries += p.num_entries;
                entries += p.num_entries;
                deletions += p.num_deletions;
            }
            None => unknown_bytes += file.size,
        }
    }
    if known_bytes > 0 {
        let guess = u128::from(unknown_bytes) * u128::from(known_entries) / u128::from(known_bytes);
        entries = entries.saturating_add(u64::try_from(guess).unwrap_or(u64::MAX));
    }
    entries.saturating_sub(deletions.saturating_mul(2))
}

fn level_stats(version: &Version) -> String {
    let mut out = String::from("Level Files Size(MB)\n--------------------\n");
    for level in 0..version.num_levels() {
        let _ = writeln!(
            out,
            "{level:>3} {:>8} {:>8.0}",
            version.num_files(level),
            version.level_bytes(level) as f64 / f64::from(1 << 20)
        );
    }
    out
}

/// Blob files of all families that wait for their last holders, and the bytes of their records.
fn obsolete_blobs(context: &Context) -> (u64, u64) {
    let bytes = context.set.removed_blobs(|_, bytes, _| bytes);
    (bytes.len() as u64, bytes.iter().sum())
}

/// What RocksDB has no property for.
fn blob_number(
    context: &Context,
    family: &ColumnFamilyData,
    version: &Version,
    name: &str,
) -> Option<u64> {
    if let Some(levels) = name.strip_prefix("max-blob-reference-depth") {
        let level = match levels.strip_prefix("-at-level") {
            Some(level) => Some(level.parse().ok().filter(|&l| l < version.num_levels())?),
            None if levels.is_empty() => None,
            None => return None,
        };
        return Some(blob_depth(family, version, level));
    }
    if let Some(level) = name.strip_prefix("num-blob-files-at-level") {
        let level = level.parse().ok().filter(|&l| l < version.num_levels())?;
        return Some(blob_files_of(family, version, level));
    }
    let blobs = version.blob_files().values();
    Some(match name {
        "live-blob-size" => blobs.map(|b| b.live_bytes()).sum(),
        "num-obsolete-blob-files" => obsolete_blobs(context).0,
        "obsolete-blob-file-size" => obsolete_blobs(context).1,
        "num-damaged-blob-files" => quarantine::list_blob_files(context).len() as u64,
        _ => {
            let bound = name.strip_prefix("num-blob-files-garbage-le")?;
            let bound = GARBAGE_PERCENTS
                .into_iter()
                .find(|p| p.to_string() == bound)?;
            let part = |b: &BlobFileMeta| {
                garbage_percent_le(b.garbage_blob_bytes, b.addition().total_blob_bytes)
            };
            blobs.filter(|b| part(b) == bound).count() as u64
        }
    })
}

/// How many blob files a scan of one table reads from by turns at most; of a level, or of all.
/// Tables that nobody has opened yet are opened; those that do not tell count as 0.
fn blob_depth(family: &ColumnFamilyData, version: &Version, level: Option<usize>) -> u64 {
    let files = version.iter_files();
    let files = files.filter(|(at, _)| level.is_none_or(|level| level == *at));
    let depths = files.filter_map(|(_, file)| {
        if file.blob_depth.get().is_none() && file.oldest_blob_file_number != 0 {
            // One that does not open is told of by the first who needs it.
            let _ = family.tables.reader(file);
        }
        file.blob_depth.get()
    });
    depths.max().unwrap_or(0)
}

/// Blob files that tables of a level point to; of a table that does not tell or does not open, the
/// oldest alone. Tables that nobody has opened yet are opened.
fn blob_files_of(family: &ColumnFamilyData, version: &Version, level: usize) -> u64 {
    let mut numbers = BTreeSet::new();
    for (_, file) in version.iter_files().filter(|(at, _)| *at == level) {
        match family.tables.told_blob_references(file) {
            Ok(Some(told)) => numbers.extend(told.iter().map(|(number, _)| number)),
            Ok(None) | Err(_) => {
                numbers.insert(file.oldest_blob_file_number);
            }
        }
    }
    numbers.len() as u64
}

/// Bytes of the blob files of a version as wholes, holes included.
fn blob_file_bytes(version: &Version) -> u64 {
    let blobs = version.blob_files().values();
    blobs.map(|b| b.addition().file_size()).sum()
}

/// As RocksDB tells it: of whole files.
fn blob_stats(version: &Version) -> String {
    let blobs = version.blob_files().values();
    let garbage: u64 = blobs.map(|b| b.garbage_blob_bytes).sum();
    let total = blob_file_bytes(version);
    let live = total.saturating_sub(garbage);
    let amplification = if live > 0 {
        total as f64 / live as f64
    } else {
        0.0
    };
    format!(
        "Number of blob files: {}\nTotal size of blob files: {total}\n\
         Total size of garbage in blob files: {garbage}\n\
         Blob file space amplification: {amplification:.2}\n",
        version.blob_files().len()
    )
}

fn cf_stats(family: &ColumnFamilyData) -> String {
    let state = family.state();
    let scores = Scores::compute(&state.version, &family.options());
    let mut out = format!("\n** Compaction Stats [{}] **\n", family.name);
    out.push_str("Level    Files   Size(MB)  Target(MB)  Score\n");
    for level in 0..state.version.num_levels() {
        let score = scores
            .levels
            .iter()
            .find(|l| l.0 == level)
            .map_or(0.0, |l| l.1);
        let target = scores.targets.max_bytes.get(level).copied().unwrap_or(0);
        if state.version.num_files(level) == 0 && score == 0.0 {
            continue;
        }
        let target = if level == 0 || target == u64::MAX {
            "-".to_owned()
        } else {
            format!("{:.1}", target as f64 / f64::from(1 << 20))
        };
        let _ = writeln!(
            out,
            "  L{level:<4} {:>7} {:>10.1} {target:>11} {score:>6.2}",
            state.version.num_files(level),
            state.version.level_bytes(level) as f64 / f64::from(1 << 20),
        );
    }
    let _ = writeln!(
        out,
        "Memtables: {} of {} bytes; running compactions: {}; pending compaction bytes: {}",
        state.imm.len() + 1,
        memtable_bytes(&state),
        state.running.len(),
        scores.pending_compaction_bytes
    );
    out
}

fn db_stats(context: &Context) -> String {
    let mut out = String::from("\n** DB Stats **\n");
    let (condition, rate, cause) = context.stall.current();
    let _ = writeln!(
        out,
        "Last sequence: {}; logs: {} of {} bytes; snapshots: {}",
        context.sequence.visible(),
        context.logs.list().len(),
        context.logs.total_bytes(),
        context.snapshots.count()
    );
    let _ = match condition {
        StallCondition::Normal => writeln!(out, "Writers: free"),
        StallCondition::Delayed => {
            writeln!(out, "Writers: slowed to {rate} bytes/s because of {cause}")
        }
        StallCondition::Stopped => writeln!(out, "Writers: stopped because of {cause}"),
    };
    out
}

fn table_properties(family: &ColumnFamilyData) -> String {
    let version: Arc<Version> = family.state().version.clone();
    let mut sums = [0u64; 7];
    for (_, file) in version.iter_files() {
        if let Ok(table) = family.tables.reader(file) {
            let p = table.properties();
            for (sum, n) in sums.iter_mut().zip([
                p.num_data_blocks,
                p.num_entries,
                p.num_deletions,
                p.num_range_deletions,
                p.raw_key_size,
                p.raw_value_size,
                p.data_size,
            ]) {
                *sum += n;
            }
        }
    }
    let names = [
        "# data blocks",
        "# entries",
        "# deletions",
        "# range deletions",
        "raw key size",
        "raw value size",
        "data block size",
    ];
    names
        .iter()
        .zip(sums)
        .map(|(n, v)| format!("{n}={v}; "))
        .collect()
}
