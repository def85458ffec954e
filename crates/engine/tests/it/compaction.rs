//! Whatever background work does, every snapshot reads what it read when it was taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamilyOptions, CompactRangeOptions, Db, Options, ReadOptions,
    Snapshot, WriteOptions,
};
use orogen_env::MemFileSystem;

use crate::support::{DIR, small};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (self.0 >> 33) as usize % n
    }
}

/// Plain keys are put, merged and deleted; those with `s` are put once and deleted once.
fn key(n: usize) -> Vec<u8> {
    let kind = if n.is_multiple_of(4) { 's' } else { 'p' };
    format!("{n:04}{kind}").into_bytes()
}

fn write(db: &Db, model: &mut Model, rng: &mut Rng, round: usize) {
    let (o, cf) = (WriteOptions::default(), db.default_column_family());
    let k = key(rng.below(2000));
    let mut value = format!("v{round}-").into_bytes();
    value.resize(value.len() + rng.below(60), b'x');
    if rng.below(150) == 0 {
        let a = rng.below(2000);
        let longest = if rng.below(4) == 0 { 800 } else { 40 };
        let b = a + rng.below(longest);
        let (start, end) = (key(a), key(b));
        db.delete_range_opt(&o, &cf, &start, &end)
            .expect("nothing fails here");
        if start < end {
            let gone: Vec<_> = model.range(start..end).map(|(k, _)| k.clone()).collect();
            gone.iter().for_each(|k| drop(model.remove(k)));
        }
    } else if k.ends_with(b"s") {
        if model.remove(&k).is_some() {
            db.single_delete_opt(&o, &cf, &k)
                .expect("nothing fails here");
        } else {
            db.put_opt(&o, &cf, &k, &value).expect("nothing fails here");
            model.insert(k, value);
        }
    } else {
        match rng.below(10) {
            0..5 => {
                db.put_opt(&o, &cf, &k, &value).expect("nothing fails here");
                model.insert(k, value);
            }
            5..7 => {
                db.delete_opt(&o, &cf, &k).expect("nothing fails here");
                model.remove(&k);
            }
            _ => {
                value.truncate(8);
                db.merge_opt(&o, &cf, &k, &value)
                    .expect("nothing fails here");
                let old = model.entry(k).or_default();
                if !old.is_empty() {
                    old.push(b',');
                }
                old.extend_from_slice(&value);
            }
        }
    }
}

fn check(db: &Db, snapshot: Option<&Snapshot>, model: &Model) {
    let read = ReadOptions {
        snapshot: snapshot.cloned(),
        ..ReadOptions::default()
    };
    let cf = db.default_column_family();
    let mut iter = db.iter(&read, &cf).expect("nothing fails here");
    iter.seek_to_first();
    for (k, v) in model {
        assert!(iter.valid(), "{} is missing", k.escape_ascii());
        assert_eq!(
            (
                iter.key().escape_ascii().to_string(),
                iter.value().escape_ascii().to_string()
            ),
            (k.escape_ascii().to_string(), v.escape_ascii().to_string())
        );
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().expect("nothing fails here");
    for n in (0..2000).step_by(7) {
        let k = key(n);
        let got = db
            .get_opt(&read, &cf, &k)
            .expect("nothing fails here")
            .map(|v| v.to_vec());
        assert_eq!(got.as_ref(), model.get(&k));
    }
}

fn run(seed: u64, mut options: Options) {
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    let db = Db::open(DIR, &options).expect("nothing fails here");
    let mut rng = Rng(seed);
    let mut model = Model::new();
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for round in 0..16_000 {
        write(&db, &mut model, &mut rng, round);
        match rng.below(800) {
            0 => snapshots.push((db.snapshot(), model.clone())),
            1 if !snapshots.is_empty() => {
                let (snapshot, then) = snapshots.swap_remove(rng.below(snapshots.len()));
                check(&db, Some(&snapshot), &then);
            }
            2 => check(&db, None, &model),
            3 if rng.below(3) == 0 => {
                let (begin, end) = (key(rng.below(1000)), key(1000 + rng.below(1000)));
                let request = CompactRangeOptions {
                    bottommost_level_compaction: BottommostLevelCompaction::Force,
                    max_subcompactions: 1 + rng.below(3),
                    exclusive_manual_compaction: rng.below(4) == 0,
                };
                let cf = db.default_column_family();
                db.compact_range(&request, &cf, Some(&begin), Some(&end))
                    .expect("nothing fails here");
            }
            _ => {}
        }
    }
    db.flush().expect("nothing fails here");
    db.wait_for_background_work().expect("nothing fails here");
    for (snapshot, then) in &snapshots {
        check(&db, Some(snapshot), then);
    }
    check(&db, None, &model);
    snapshots.clear();
    db.close().expect("nothing fails here");
    drop(db);
    let db = Db::open(DIR, &options).expect("nothing fails here");
    check(&db, None, &model);
}

fn tiny(fs: &MemFileSystem, dynamic: bool) -> Options {
    let mut options = small(fs);
    options.cf = ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes: dynamic,
        target_file_size_base: 4 << 10,
        max_bytes_for_level_base: 16 << 10,
        max_bytes_for_level_multiplier: 4.0,
        ..options.cf
    };
    options.db.max_background_jobs = 4;
    options.db.max_subcompactions = 2;
    options
}

#[test]
fn snapshots_read_the_same_whatever_is_compacted() {
    run(1, tiny(&MemFileSystem::new(), false));
}

#[test]
fn snapshots_read_the_same_with_levels_sized_from_the_last() {
    run(2, tiny(&MemFileSystem::new(), true));
}
