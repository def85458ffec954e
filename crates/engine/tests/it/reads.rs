//! Random histories: what readers see, against a map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_base::slice_transform::FixedPrefix;
use orogen_engine::plugin::merge_operator::{StringAppend, by_name};
use orogen_engine::{
    ColumnFamily, CompactRangeOptions, Db, DbIterator, Options, ReadOptions, Snapshot, WriteOptions,
};
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_sst::BlockCache;

use crate::support::{DIR, scan, scan_backward, small};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn key(&mut self) -> Vec<u8> {
        format!("{:03}", self.below(200)).into_bytes()
    }
}

/// A view that must not change, and what it showed first.
struct View {
    /// Keeps what the iterator sees readable by gets too.
    options: ReadOptions,
    iter: DbIterator,
    model: Model,
    /// The key that the iterator stands on.
    at: Option<Vec<u8>>,
}

impl View {
    fn new(db: &Db, family: &ColumnFamily, model: &Model) -> Self {
        let snapshot: Snapshot = db.snapshot();
        let options = ReadOptions {
            snapshot: Some(snapshot),
            ..ReadOptions::default()
        };
        let iter = db.iter(&options, family).expect("tables open");
        Self {
            options,
            iter,
            model: model.clone(),
            at: None,
        }
    }

    /// One random move of the iterator.
    fn step(&mut self, r: &mut Random) {
        let (iter, model) = (&mut self.iter, &self.model);
        let target = r.key();
        let first = |range: (Bound<&Vec<u8>>, Bound<&Vec<u8>>)| {
            model.range::<Vec<u8>, _>(range).next().map(|e| e.0.clone())
        };
        let last = |range: (Bound<&Vec<u8>>, Bound<&Vec<u8>>)| {
            model
                .range::<Vec<u8>, _>(range)
                .next_back()
                .map(|e| e.0.clone())
        };
        self.at = match (r.below(10), self.at.take()) {
            (0, _) => {
                iter.seek_to_first();
                first((Bound::Unbounded, Bound::Unbounded))
            }
            (1, _) => {
                iter.seek_to_last();
                last((Bound::Unbounded, Bound::Unbounded))
            }
            (2, _) => {
                iter.seek_for_prev(&target);
                last((Bound::Unbounded, Bound::Included(&target)))
            }
            (3..7, Some(at)) => {
                iter.next();
                first((Bound::Excluded(&at), Bound::Unbounded))
            }
            (_, Some(at)) => {
                iter.prev();
                last((Bound::Unbounded, Bound::Excluded(&at)))
            }
            (_, None) => {
                iter.seek(&target);
                first((Bound::Included(&target), Bound::Unbounded))
            }
        };
        iter.status().expect("nothing is damaged");
        let got = iter.valid().then(|| (iter.key(), iter.value()));
        let want = self
            .at
            .as_ref()
            .map(|k| (k.as_slice(), model[k].as_slice()));
        assert_eq!(got, want);
    }

    fn check_get(&self, db: &Db, family: &ColumnFamily, key: &[u8]) {
        let got = db
            .get_opt(&self.options, family, key)
            .expect("nothing fails");
        assert_eq!(got.as_deref(), self.model.get(key).map(Vec::as_slice));
    }
}

fn write(db: &Db, family: &ColumnFamily, model: &mut Model, r: &mut Random, n: usize) {
    let options = WriteOptions::default();
    let k = r.key();
    match r.below(20) {
        0 => {
            let end = r.key().max(k.clone());
            db.delete_range_opt(&options, family, &k, &end)
                .expect("nothing fails");
            let gone: Vec<Vec<u8>> = model.range(k..end).map(|e| e.0.clone()).collect();
            gone.iter().for_each(|k| drop(model.remove(k)));
        }
        1..4 => {
            db.delete_opt(&options, family, &k).expect("nothing fails");
            model.remove(&k);
        }
        4..9 => {
            let part = n.to_string().into_bytes();
            db.merge_opt(&options, family, &k, &part)
                .expect("nothing fails");
            model
                .entry(k)
                .and_modify(|v| *v = [v, &b","[..], &part].concat())
                .or_insert(part);
        }
        _ => {
            let value = n.to_string().repeat(1 + r.below(80)).into_bytes();
            db.put_opt(&options, family, &k, &value)
                .expect("nothing fails");
            model.insert(k, value);
        }
    }
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    options.cf.prefix_extractor = Some(Arc::new(FixedPrefix::new(2)));
    options.cf.write_buffer_size = 8 << 10;
    options.cf.target_file_size_base = 4 << 10;
    options.cf.max_bytes_for_level_base = 16 << 10;
    options
}

#[test]
fn every_view_stays_as_it_was_taken() {
    for seed in 0..8 {
        let mut r = Random(seed);
        let fs = MemFileSystem::new();
        let mut db = Db::open(DIR, &options(&fs)).unwrap();
        let mut family = db.default_column_family();
        let mut model = Model::new();
        let mut views: Vec<View> = Vec::new();
        for n in 0..1500 {
            write(&db, &family, &mut model, &mut r, n);
            match r.below(400) {
                0 | 1 => db.flush().unwrap(),
                2 => {
                    let (begin, end) = (r.key(), r.key());
                    let compact = CompactRangeOptions::default();
                    db.compact_range(&compact, &family, Some(&begin), Some(&end))
                        .unwrap();
                }
                3 => {
                    views.clear();
                    drop(family);
                    drop(db);
                    db = Db::open(DIR, &options(&fs)).unwrap();
                    family = db.default_column_family();
                }
                4..20 => views.push(View::new(&db, &family, &model)),
                20..30 if !views.is_empty() => {
                    let i = r.below(views.len());
                    views.swap_remove(i);
                }
                _ => {}
            }
            let k = r.key();
            assert_eq!(
                db.get(&k).unwrap().as_deref(),
                model.get(&k).map(Vec::as_slice)
            );
            for view in &mut views {
                view.step(&mut r);
                view.check_get(&db, &family, &k);
            }
        }
        let all = scan(&db, &family);
        assert!(
            all.iter().map(|e| (&e.0, &e.1)).eq(model.iter()),
            "seed {seed}"
        );
        assert_eq!(scan_backward(&db, &family), all);
    }
}

/// Keys as users ask for them: in any order, some twice, some that are not there.
fn asked_keys(r: &mut Random) -> Vec<Vec<u8>> {
    let count = [1, 7, 60, 400][r.below(4)];
    let draw = |r: &mut Random| match r.below(12) {
        0 => b"0".to_vec(),
        1 => b"zz".to_vec(),
        _ => r.key(),
    };
    (0..count).map(|_| draw(r)).collect()
}

#[test]
fn many_gets_at_once_answer_as_single_ones_do() {
    for seed in 0..12 {
        let mut r = Random(100 + seed);
        let fs = FaultFileSystem::over_memory(MemFileSystem::new());
        let mut options = options(&MemFileSystem::new());
        options.db.fs = Arc::new(fs.clone());
        options.cf.table.cache_index_and_filter_blocks = seed % 3 == 0;
        options.cf.block_cache = Some(Arc::new(BlockCache::new([0, 4096, 1 << 20][r.below(3)])));
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut model = Model::new();
        let mut views: Vec<(ReadOptions, Model)> = Vec::new();
        for n in 0..2500 {
            write(&db, &family, &mut model, &mut r, n);
            if r.below(300) == 0 {
                let snapshot = Some(db.snapshot());
                let options = ReadOptions {
                    snapshot,
                    fill_cache: r.below(2) == 0,
                    ..ReadOptions::default()
                };
                views.push((options, model.clone()));
            }
            if r.below(60) > 0 || views.is_empty() {
                continue;
            }
            let (options, model) = &views[r.below(views.len())];
            let keys = asked_keys(&mut r);
            let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (k, got) in keys.iter().zip(db.multi_get(options, &family, &asked)) {
                let got = got.expect("nothing fails");
                assert_eq!(
                    got.as_deref(),
                    model.get(k).map(Vec::as_slice),
                    "seed {seed}"
                );
                let single = db.get_opt(options, &family, k).expect("nothing fails");
                assert_eq!(got.as_deref(), single.as_deref());
            }
        }
        db.flush().unwrap();
        db.wait_for_background_work().unwrap();
        // Reads that fail fail their own keys, and the others are right.
        let mut failed = 0;
        for n in 1..40 {
            let keys = asked_keys(&mut r);
            let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            fs.faults().add(Fault::io().on(&[OpKind::Read]).nth(n));
            let found = db.multi_get(&ReadOptions::default(), &family, &asked);
            fs.faults().clear();
            for (k, got) in keys.iter().zip(found) {
                match got {
                    Ok(got) => assert_eq!(got.as_deref(), model.get(k).map(Vec::as_slice)),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Io);
                        failed += 1;
                    }
                }
            }
        }
        assert!(failed > 0 || options.cf.block_cache.as_ref().unwrap().capacity() > 4096);
    }
}

#[test]
fn prefix_filters_spare_tables_and_hide_nothing() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    // Each table has other prefixes of two bytes, between the same first and last.
    for round in 0..6 {
        for i in (2 * round..100).step_by(12) {
            for j in 0..3 {
                db.put(format!("{i:02}{j}").as_bytes(), b"v").unwrap();
            }
        }
        db.flush().unwrap();
    }
    let read = ReadOptions {
        prefix_same_as_start: true,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&read, &family).unwrap();
    for i in 0..100 {
        let mut got = Vec::new();
        iter.seek(format!("{i:02}").as_bytes());
        while iter.valid() {
            got.push(String::from_utf8(iter.key().to_vec()).unwrap());
            iter.next();
        }
        iter.status().unwrap();
        let want: Vec<String> = (0..3).map(|j| format!("{i:02}{j}")).collect();
        assert_eq!(got, if i % 2 == 0 { want } else { Vec::new() });
    }
    drop(iter);
    let statistics = db.statistics();
    assert!(statistics.get(Ticker::BloomFilterPrefixUseful) > 500);
}

#[test]
fn a_read_only_open_has_as_many_memtables_as_the_logs_fill() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 1 << 20;
    options.cf.merge_operator = by_name("stringappend");
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    for round in 0..4u32 {
        for n in 0..800u32 {
            let key = (n * 7 % 1000).to_be_bytes();
            match n % 5 {
                0 => db
                    .merge_opt(&WriteOptions::default(), &cf, &key, &[b'm'; 60])
                    .unwrap(),
                _ => db.put(&key, &[round as u8; 60]).unwrap(),
            }
        }
        let ends = [(round * 50).to_be_bytes(), (round * 50 + 20).to_be_bytes()];
        db.delete_range_opt(&WriteOptions::default(), &cf, &ends[0], &ends[1])
            .unwrap();
    }
    let latest = db.latest_sequence_number();
    let killed = fs.crash(PowerCut::KeepAll);
    drop(db);
    let open = |fs: &MemFileSystem, read_only: bool| {
        let mut options = small(fs);
        options.cf.merge_operator = by_name("stringappend");
        match read_only {
            true => Db::open_read_only(DIR, &options),
            false => Db::open(DIR, &options),
        }
        .unwrap()
    };
    let whole = open(&killed.fork(), false);
    let db = open(&killed, true);
    let cf = db.default_column_family();
    let sealed = db.int_property(&cf, "rocksdb.num-immutable-mem-table");
    assert!(sealed > Some(5), "{sealed:?}");
    let pending = db.int_property(&cf, "rocksdb.mem-table-flush-pending");
    assert_eq!(pending, Some(0));
    let want = scan(&whole, &whole.default_column_family());
    assert_eq!(scan(&db, &cf), want);
    assert_eq!(scan_backward(&db, &cf), want);
    for (key, value) in &want {
        assert_eq!(db.get(key).unwrap().as_deref(), Some(&value[..]));
    }
    let updates = db.get_updates_since(1).unwrap();
    let numbers: u64 = updates.map(|u| u64::from(u.unwrap().batch.count())).sum();
    assert_eq!(numbers, latest);
    db.checkpoint("/copy").unwrap();
    db.close().unwrap();
    let mut options = small(&killed);
    options.cf.merge_operator = by_name("stringappend");
    let copy = Db::open("/copy", &options).unwrap();
    assert_eq!(scan(&copy, &copy.default_column_family()), want);
}

#[test]
fn a_table_that_is_opened_counts_once() {
    let db = Db::open(DIR, &small(&MemFileSystem::new())).unwrap();
    db.put(b"k", b"v").unwrap();
    db.flush().unwrap();
    db.get(b"k").unwrap();
    assert_eq!(db.statistics().get(Ticker::NoFileOpens), 1);
}
