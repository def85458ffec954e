//! Flushes and compactions that are run again.
//!
//! Each seed draws writes, settings and snapshots; they are flushed from memtables into tables of
//! level 0, and these are compacted into tables of a level below, through what the jobs of an open
//! database write all their tables through. The second time it is another thread, and the writes
//! come into the memtables in another order, as they do from threads. In half of the seeds values go
//! to blob files, and the compaction writes those of the first file anew.

use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{InternalIterator, PinnedValue, Result, SeqNo, UserComparator, ValueKind};
use orogen_blob::{
    BlobFileBuilderOptions, BlobFileReader, BlobFileReaderOptions, BlobPointer, BlobReadahead,
};
use orogen_engine::compaction_iter::CompactionIterOptions;
use orogen_engine::output::{self, BlobOutputOptions, OutputOptions, Written};
use orogen_engine::read::{BlobSource, MergingIter};
use orogen_env::fs::read_file;
use orogen_env::{Access, FileSystem, MemFileSystem};
use orogen_memtable::{GuidedListMemTable, MemTable};
use orogen_sst::{
    CompressionType, TableBuilderOptions, TableReadOptions, TableReader, TableReaderOptions,
};
use orogen_testkit::Rng;

use crate::engine::merge_operator;

/// One write: key, number, kind, and the value or a range's end.
type Write = (Vec<u8>, SeqNo, ValueKind, Vec<u8>);

/// The tables and blob files of one database.
struct Tables {
    fs: MemFileSystem,
    next: u64,
}

/// Reads values of blob files.
struct Blobs(MemFileSystem);

impl BlobSource for Blobs {
    fn value(&self, pointer: &BlobPointer, user_key: &[u8]) -> Result<Option<PinnedValue>> {
        let reader = self.open(pointer.file)?;
        reader.get(*pointer, user_key, true).map(Some)
    }

    fn stored(
        &self,
        pointer: &BlobPointer,
        user_key: &[u8],
    ) -> Result<Option<(PinnedValue, Arc<BlobFileReader>)>> {
        let reader = self.open(pointer.file)?;
        let mut ahead = BlobReadahead::new(0);
        let stored = reader.read_stored(&mut ahead, *pointer, user_key)?;
        Ok(Some((stored.into(), Arc::new(reader))))
    }
}

impl Blobs {
    fn open(&self, number: u64) -> Result<BlobFileReader> {
        let file = self.0.open(&path(number), Access::Random)?;
        let size = file.size()?;
        let options = BlobFileReaderOptions {
            file_number: number,
            ..BlobFileReaderOptions::default()
        };
        BlobFileReader::open(file, size, options)
    }
}

/// The bytes of all tables and blob files that the flushes and the compaction of a seed make. `again` only
/// changes what must not matter.
pub(super) fn run(seed: u64, again: bool) -> Result<Vec<Vec<u8>>> {
    let mut rng = Rng::new(seed);
    let table = super::options(&mut rng);
    let flushes: Vec<Vec<Write>> = writes(&mut rng);
    let last = flushes.iter().map(|f| f.len() as u64).sum::<u64>();
    let mut snapshots: Vec<SeqNo> = (0..rng.below(4)).map(|_| 1 + rng.below(last)).collect();
    snapshots.sort_unstable();
    snapshots.dedup();
    let target = *rng.pick(&[2 << 10, 16 << 10, 1 << 20]);
    let bottommost = rng.chance(1, 2);
    let mut tables = Tables {
        fs: MemFileSystem::new(),
        next: 1,
    };
    let blobs = blobs(&mut rng);
    let (mut made, mut blobs_made) = (Vec::new(), Vec::new());
    for mut flush in flushes {
        if again {
            Rng::new(!seed).shuffle(&mut flush);
        }
        let written = tables.flush(&flush, &table, &snapshots, &blobs)?;
        made.extend(written.files);
        blobs_made.extend(written.blob_files);
    }
    let inputs: Vec<u64> = made.iter().map(|f| f.number).rev().collect();
    let source = Arc::new(Blobs(tables.fs.clone()));
    let blobs = BlobOutputOptions {
        relocate: Arc::new(blobs_made.iter().take(1).map(|b| b.number).collect()),
        source: Some(source.clone()),
        ..blobs
    };
    let options = OutputOptions {
        table,
        output_level: 1,
        target_file_size: target,
        max_file_size: target * 2,
        max_compaction_bytes: target * 25,
        blobs,
        ..OutputOptions::default()
    };
    let rules = CompactionIterOptions {
        bottommost,
        blobs: Some(source),
        ..rules(&snapshots)
    };
    let written = tables.compact(&inputs, options, rules)?;
    made.extend(written.files);
    blobs_made.extend(written.blob_files);
    let numbers = made.iter().map(|f| f.number);
    numbers
        .chain(blobs_made.iter().map(|b| b.number))
        .map(|number| read_file(&tables.fs, &path(number)))
        .collect()
}

/// Where the large values of a seed go.
fn blobs(rng: &mut Rng) -> BlobOutputOptions {
    let min = *rng.pick(&[0, 1, 40]);
    BlobOutputOptions {
        min_blob_size: rng.chance(1, 2).then_some(min),
        blob_file_size: *rng.pick(&[1, 4 << 10, 1 << 20]),
        file: BlobFileBuilderOptions {
            compression: *rng.pick(&[
                CompressionType::None,
                CompressionType::Lz4,
                CompressionType::Zstd,
            ]),
            creation_time: 1_700_000_000,
            file_checksum: rng.chance(1, 2),
            ..BlobFileBuilderOptions::default()
        },
        ..BlobOutputOptions::default()
    }
}

fn path(number: u64) -> PathBuf {
    PathBuf::from(format!("/{number:06}.sst"))
}

fn writes(rng: &mut Rng) -> Vec<Vec<Write>> {
    let mut seqno = 0;
    let keys = *rng.pick(&[20, 300, 5000]);
    let flushes = rng.range(1..5);
    let mut all = Vec::new();
    for _ in 0..flushes {
        let mut flush = Vec::new();
        for _ in 0..rng.range(1..800) {
            seqno += 1;
            let mut key = || format!("key{:06}", rng.below(keys)).into_bytes();
            let (from, to) = (key(), key());
            let len = rng.range(0..60);
            let mut value = rng.bytes(len);
            value.resize(len * 2, b'.');
            flush.push(match rng.below(40) {
                0 if from != to => {
                    let (from, to) = if from < to { (from, to) } else { (to, from) };
                    (from, seqno, ValueKind::RangeDeletion, to)
                }
                1..=5 => (from, seqno, ValueKind::Deletion, Vec::new()),
                6..=10 => (from, seqno, ValueKind::Merge, value),
                _ => (from, seqno, ValueKind::Value, value),
            });
        }
        all.push(flush);
    }
    all
}

impl Tables {
    fn write(
        &mut self,
        input: impl InternalIterator,
        tombstones: Arc<FragmentedRangeTombstones>,
        rules: CompactionIterOptions,
        options: OutputOptions,
    ) -> Result<Written> {
        let Self { fs, next } = self;
        let new_file = Box::new(|_| {
            *next += 1;
            Ok((*next, fs.create(&path(*next))?))
        });
        output::write(input, tombstones, rules, options, new_file).map_err(|failed| failed.error)
    }

    fn flush(
        &mut self,
        writes: &[Write],
        table: &TableBuilderOptions,
        snapshots: &[SeqNo],
        blobs: &BlobOutputOptions,
    ) -> Result<Written> {
        let memtable = GuidedListMemTable::new(UserComparator::BYTEWISE);
        for (key, seqno, kind, value) in writes {
            match kind {
                ValueKind::RangeDeletion => memtable.insert_range_deletion(key, value, *seqno)?,
                _ => memtable.insert(key, *seqno, *kind, value)?,
            }
        }
        let rules = rules(snapshots);
        let options = OutputOptions {
            table: table.clone(),
            target_file_size: u64::MAX,
            max_file_size: u64::MAX,
            max_compaction_bytes: u64::MAX,
            blobs: blobs.clone(),
            ..OutputOptions::default()
        };
        let tombstones = memtable.range_tombstones();
        self.write(memtable.iter(), tombstones, rules, options)
    }

    /// `inputs` are the tables, newest first.
    fn compact(
        &mut self,
        inputs: &[u64],
        options: OutputOptions,
        rules: CompactionIterOptions,
    ) -> Result<Written> {
        let mut children = Vec::new();
        let mut tombstones = Vec::new();
        for &number in inputs {
            let file = self.fs.open(&path(number), Access::Sequential)?;
            let size = file.size()?;
            let reader = TableReader::open(file, size, TableReaderOptions::default())?;
            children.push(reader.iter(TableReadOptions::compaction()));
            let of_table = reader.range_tombstones();
            tombstones.extend(of_table.iter().map(|(start, end, seqno)| RangeTombstone {
                start: start.to_vec(),
                end: end.to_vec(),
                seqno,
            }));
        }
        let order = UserComparator::BYTEWISE;
        let tombstones = Arc::new(FragmentedRangeTombstones::new(&order, tombstones));
        let input = MergingIter::new(InternalKeyComparator::default(), children);
        self.write(input, tombstones, rules, options)
    }
}

fn rules(snapshots: &[SeqNo]) -> CompactionIterOptions {
    CompactionIterOptions::for_flush(
        UserComparator::BYTEWISE,
        snapshots.to_vec(),
        merge_operator::by_name("stringappend"),
    )
}
