//! The load: every record with its index entries in atomic batches.

use std::collections::BTreeMap;
use std::path::Path;

use orogen::{
    BlockBasedOptions, ColumnFamily, ColumnFamilyOptions, Db, DbOptions, Options, WriteBatch,
    WriteOptions,
};
use orogen_env::{Clock as _, SystemClock};
use serde_json::json;

use super::control::{Record, Records};
use super::directory::Directory;
use super::index::{self, FAMILIES, Model};
use super::proof;
use super::story::Story;
use crate::failure::Failure;
use crate::text;

/// Opens a database with the demo's families; small memtables and tables, so that even an index
/// of some megabytes is flushed and compacted.
///
/// # Errors
/// What the open met.
pub(super) fn open(path: &Path) -> Result<Db, Failure> {
    let family = ColumnFamilyOptions {
        write_buffer_size: 4 << 20,
        target_file_size_base: 4 << 20,
        max_bytes_for_level_base: 16 << 20,
        table: BlockBasedOptions {
            filter_bits_per_key: 10.0,
            ..BlockBasedOptions::default()
        },
        ..ColumnFamilyOptions::default()
    };
    let options = Options {
        db: DbOptions {
            create_if_missing: true,
            create_missing_column_families: true,
            ..DbOptions::default()
        },
        families: FAMILIES
            .iter()
            .map(|n| ((*n).to_owned(), family.clone()))
            .collect(),
        ..Options::default()
    };
    Ok(Db::open(path, &options)?)
}

/// The demo's families in the order of [`FAMILIES`].
///
/// # Errors
/// `NotFound` if one is missing.
pub(super) fn families(db: &Db) -> Result<Vec<ColumnFamily>, Failure> {
    FAMILIES
        .iter()
        .map(|name| crate::open::family(db, name))
        .collect()
}

/// Fills `batch` with all entries of `records`.
pub(super) fn fill(batch: &mut WriteBatch, families: &[ColumnFamily], records: &[Record<'_>]) {
    batch.clear();
    for record in records {
        index::entries(record, |family, key, value| {
            batch.put(families[family].id(), key, value);
        });
    }
}

/// The loaded database and what it took.
pub(super) struct Loaded {
    pub(super) db: Db,
    pub(super) micros: u64,
    records: u64,
    bytes: u64,
}

impl Loaded {
    pub(super) fn records_per_sec(&self) -> u64 {
        (self.records as f64 / self.micros.max(1) as f64 * 1e6) as u64
    }

    pub(super) fn megabytes_per_sec(&self) -> f64 {
        self.bytes as f64 / self.micros.max(1) as f64
    }
}

/// Loads all records, waits for background work, and compares everything with the input.
///
/// # Errors
/// What the database met; `Damaged` if it holds anything else than was put in.
pub(super) fn run(
    story: &mut Story<'_>,
    directory: &Directory,
    records: &Records<'_>,
    batch_records: usize,
) -> Result<Loaded, Failure> {
    story.heading("Load")?;
    let db = open(&directory.packages())?;
    let families = families(&db)?;
    let bar = story
        .terminal
        .bar(records.list.len() as u64, false, "loading");
    let mut batch = WriteBatch::new();
    let (mut entries, mut batches, mut bytes) = (0u64, 0u64, 0u64);
    let start = SystemClock.now_micros();
    for chunk in records.list.chunks(batch_records) {
        fill(&mut batch, &families, chunk);
        db.write_opt(&WriteOptions::default(), &mut batch)?;
        entries += u64::from(batch.count());
        bytes += batch.size_bytes() as u64;
        batches += 1;
        bar.inc(chunk.len() as u64);
    }
    let micros = SystemClock.now_micros() - start;
    bar.finish_and_clear();
    let start = SystemClock.now_micros();
    db.wait_for_background_work()?;
    let background_micros = SystemClock.now_micros() - start;
    let loaded = Loaded {
        db,
        micros,
        records: records.list.len() as u64,
        bytes,
    };
    story.say(&format!(
        "{} with {} in {} over {} families",
        text::plural(loaded.records, "record"),
        text::plural(entries, "entry"),
        text::plural(batches, "atomic batch"),
        FAMILIES.len()
    ))?;
    story.say(&format!(
        "written in {}: {} records/s, {} entries/s, {:.1} MB/s; compaction done {} later",
        text::duration(micros),
        text::count(loaded.records_per_sec()),
        text::count((entries as f64 / micros.max(1) as f64 * 1e6) as u64),
        loaded.megabytes_per_sec(),
        text::duration(background_micros)
    ))?;
    let mut model = Model::default();
    records.list.iter().for_each(|r| model.add(r));
    let scanned = proof::compare(&loaded.db, &model)?;
    story.say(&format!(
        "compared with the input: {} entries, all equal, none too many",
        text::count(scanned)
    ))?;
    let by_family: BTreeMap<&str, usize> = FAMILIES
        .iter()
        .zip(&model.families)
        .map(|(n, f)| (*n, f.len()))
        .collect();
    story.fact(
        "load",
        json!({
            "entries": entries,
            "batches": batches,
            "bytes": bytes,
            "micros": micros,
            "records_per_sec": loaded.records_per_sec(),
            "megabytes_per_sec": loaded.megabytes_per_sec(),
            "background_micros": background_micros,
            "entries_by_family": by_family,
            "entries_compared": scanned,
        }),
    );
    Ok(loaded)
}
