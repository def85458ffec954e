//! Lookups in batches: each answers as a lookup by itself, with fewer reads.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use orogen_base::ErrorKind;
use orogen_env::RandomAccessFile;

use super::*;

type Entries = Vec<(u64, u8, Vec<u8>)>;
type Answer = std::result::Result<Entries, ErrorKind>;

fn take(entries: &mut Entries, k: ParsedInternalKey<'_>, v: &ValueSource<'_>) -> Visit {
    entries.push((k.seqno, k.kind as u8, v.bytes().to_vec()));
    match entries.len() {
        3 => Visit::Stop,
        _ => Visit::Continue,
    }
}

fn one(table: &TableReader, read: &TableReadOptions, key: &[u8], seqno: u64) -> Answer {
    let mut entries = Vec::new();
    let result = table.get(read, key, seqno, &mut |k, v| take(&mut entries, k, &v));
    result.map(|()| entries).map_err(|e| e.kind())
}

fn together<'t>(
    tables: &[&'t TableReader],
    read: &TableReadOptions,
    keys: &'t [Vec<u8>],
    seqno: u64,
) -> Vec<Answer> {
    let lookup =
        |table: &&'t TableReader, k: &'t Vec<u8>| BatchLookup::new(table, LookupKey::new(k), seqno);
    let mut lookups: Vec<BatchLookup<'_>> = tables
        .iter()
        .flat_map(|t| keys.iter().map(move |k| lookup(t, k)))
        .collect();
    BatchLookup::prepare(&mut lookups, read);
    let finish = |l: BatchLookup<'_>| {
        let mut entries = Vec::new();
        let result = l.finish(read, &mut |k, v| take(&mut entries, k, &v));
        result.map(|()| entries).map_err(|e| e.kind())
    };
    lookups.into_iter().map(finish).collect()
}

/// Counts reads, and has some of its pages on the device only.
pub(super) struct SlowFile {
    file: Arc<dyn RandomAccessFile>,
    /// Of each so many calls without waiting one would wait; 0: none.
    cold_one_in: usize,
    pub(super) reads: AtomicUsize,
    /// Calls of `prefetch` that no read has followed yet, and the most there were.
    ahead: AtomicUsize,
    ahead_max: AtomicUsize,
}

impl RandomAccessFile for SlowFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reads.fetch_add(1, Relaxed);
        self.ahead.store(0, Relaxed);
        self.file.read_at(offset, buf)
    }
    fn read_at_without_waiting(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let n = self.reads.fetch_add(1, Relaxed);
        if self.cold_one_in > 0 && n.is_multiple_of(self.cold_one_in) {
            return Ok(None);
        }
        self.file.read_at(offset, buf).map(Some)
    }
    fn size(&self) -> Result<u64> {
        self.file.size()
    }
    fn prefetch(&self, _: u64, _: u64) {
        let n = self.ahead.fetch_add(1, Relaxed) + 1;
        self.ahead_max.fetch_max(n, Relaxed);
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

pub(super) fn slow(bytes: &[u8], cold_one_in: usize) -> Arc<SlowFile> {
    Arc::new(SlowFile {
        file: MemTable::open(bytes.to_vec()),
        cold_one_in,
        reads: AtomicUsize::new(0),
        ahead: AtomicUsize::new(0),
        ahead_max: AtomicUsize::new(0),
    })
}

fn drawn_keys(rng: &mut Rng, model: &Model) -> Vec<Vec<u8>> {
    let known: Vec<&Vec<u8>> = model.keys().map(|k| &k.0).collect();
    let draw = |rng: &mut Rng| match known.len() as u64 {
        n if n > 0 && rng.below(3) > 0 => known[rng.below(n) as usize].clone(),
        _ => rng.key(6, 4),
    };
    let mut keys: Vec<Vec<u8>> = (0..rng.below(60)).map(|_| draw(rng)).collect();
    keys.sort();
    keys
}

#[test]
fn a_batch_answers_as_its_lookups_one_by_one() {
    let mut rng = Rng::new(21);
    for round in 0..150 {
        let models = [0, 1].map(|_| {
            let n = [0, 1, 40, 400][rng.below(4) as usize];
            random_model(&mut rng, n, [0, 10, 100][round % 3])
        });
        let cache = Arc::new(BlockCache::new([0, 3000, 1 << 20][rng.below(3) as usize]));
        let with_cache = rng.below(4) > 0;
        let tables = models.each_ref().map(|model| {
            let options = all_options(&mut rng);
            let (mut bytes, _) = build_with(options.clone(), model);
            let file = slow(&bytes, rng.below(4) as usize);
            let reader_options = TableReaderOptions {
                block_cache: with_cache.then(|| cache.clone()),
                prefix_extractor: options.prefix_extractor.clone(),
                cache_index_and_filter_blocks: rng.below(2) == 0,
                largest_seqno: Some(rng.below(500)),
                ..Default::default()
            };
            if round % 4 == 3 && !model.is_empty() {
                // Damage to what lies before the tail, seen when blocks are read.
                let at = rng.below(bytes.len() as u64 / 2) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            let size = bytes.len() as u64;
            match TableReader::open(file, size, reader_options.clone()) {
                Ok(_) if round % 4 == 3 => {
                    TableReader::open(slow(&bytes, rng.below(3) as usize), size, reader_options)
                }
                other => other,
            }
        });
        let [Ok(a), Ok(b)] = &tables else { continue };
        let read = TableReadOptions {
            fill_cache: rng.below(3) > 0,
            ..Default::default()
        };
        for _ in 0..6 {
            let model = &models[rng.below(2) as usize];
            let keys = drawn_keys(&mut rng, model);
            let seqno = rng.below(500);
            let got = together(&[a, b], &read, &keys, seqno);
            let want = [a, b]
                .into_iter()
                .flat_map(|t| keys.iter().map(|k| one(t, &read, k, seqno)));
            assert_eq!(got, want.collect::<Vec<_>>(), "round {round}");
        }
    }
}

pub(super) fn many_blocks() -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut model = Model::new();
    let keys: Vec<Vec<u8>> = (0..4000u32)
        .map(|i| format!("key{i:08}").into_bytes())
        .collect();
    for k in &keys {
        model.insert((k.clone(), std::cmp::Reverse(7 << 8 | 1)), vec![b'v'; 100]);
    }
    let options = TableBuilderOptions {
        table: BlockBasedOptions {
            block_size: 1000,
            ..Default::default()
        },
        ..Default::default()
    };
    (build_with(options, &model).0, keys)
}

#[test]
fn blocks_that_stand_together_are_read_at_once() {
    let (bytes, keys) = many_blocks();
    let file = slow(&bytes, 0);
    let statistics = Arc::new(Statistics::new());
    let options = TableReaderOptions {
        statistics: Some(statistics.clone()),
        ..Default::default()
    };
    let table = TableReader::open(file.clone(), bytes.len() as u64, options).unwrap();
    let before = file.reads.load(Relaxed);
    // A stretch of neighbours, and far from it and from each other ten more.
    let mut asked: Vec<Vec<u8>> = keys[100..200].to_vec();
    asked.extend((0..10).map(|i| keys[1000 + 300 * i].clone()));
    let got = together(&[&table], &TableReadOptions::default(), &asked, 100);
    assert!(got.iter().all(|a| a.as_ref().unwrap().len() == 1));
    assert_eq!(file.reads.load(Relaxed) - before, 11);
    assert_eq!(statistics.get(Ticker::MultigetReads), 11);
    assert!(statistics.get(Ticker::MultigetBlocksRead) > 20);
    assert_eq!(statistics.get(Ticker::MultigetReadsWaited), 0);
}

#[test]
fn the_device_is_told_of_all_reads_before_one_is_waited_for() {
    let (bytes, keys) = many_blocks();
    let file = slow(&bytes, 1);
    let statistics = Arc::new(Statistics::new());
    let options = TableReaderOptions {
        statistics: Some(statistics.clone()),
        ..Default::default()
    };
    let table = TableReader::open(file.clone(), bytes.len() as u64, options).unwrap();
    let asked: Vec<Vec<u8>> = (0..13).map(|i| keys[300 * i].clone()).collect();
    let got = together(&[&table], &TableReadOptions::default(), &asked, 100);
    assert!(got.iter().all(|a| a.as_ref().unwrap().len() == 1));
    assert_eq!(file.ahead_max.load(Relaxed), 13);
    assert_eq!(statistics.get(Ticker::MultigetReadsWaited), 13);
}
