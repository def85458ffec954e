//! A database of Orogen, compared with what a case expects, and written beside a model.

use std::collections::BTreeMap;

use orogen_base::UserComparator;
use orogen_compat::{Case, Pair};
use orogen_engine::{
    CollectBlobGarbageOptions, ColumnFamily, CompactRangeOptions, Db, Options, ReadOptions,
    WriteBatch, WriteOptions,
};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

/// Every operand is a value of its own to every merge operator.
const OPERAND_LEN: usize = 8;

/// Options that fit the order of the case's keys.
pub(crate) fn options(case: &Case) -> Options {
    let mut options = Options::default();
    options.cf.comparator = UserComparator::by_name(case.comparator()).unwrap();
    // Small enough that a test flushes and compacts.
    options.cf.write_buffer_size = 64 << 10;
    options.cf.target_file_size_base = 32 << 10;
    options.cf.max_bytes_for_level_base = 128 << 10;
    if case.features().contains(&"blob") {
        options.cf.enable_blob_files = true;
        options.cf.min_blob_size = 60;
        options.cf.blob_file_size = 16 << 10;
        options.cf.blob_compression_type = CompressionType::Lz4;
        options.cf.enable_blob_garbage_collection = true;
        options.cf.blob_file_discardable_ratio = 0.3;
        options.cf.min_gc_batch_size = 0;
        options.cf.level_merge = true;
        options.cf.range_merge = true;
        options.cf.max_sorted_runs = 2;
    }
    options
}

pub(crate) fn family(db: &Db, name: &str) -> ColumnFamily {
    db.column_family(name)
        .unwrap_or_else(|| panic!("no family {name}"))
}

/// Every pair of a family, read forwards.
pub(crate) fn scan(db: &Db, name: &str) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut iter = db.iter(&ReadOptions::default(), &family(db, name)).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        pairs.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    pairs
}

/// Closes a database into which the families' `written` pairs went; the case expects them then.
pub(crate) fn hand_over(db: &Db, case: &mut Case, written: Vec<(String, Vec<Pair>)>) {
    for (name, pairs) in written {
        case.expect(&name, &pairs).unwrap();
    }
    assert_holds(db, case);
    if case.features().contains(&"blob") {
        // Values move, in all tables, before RocksDB takes over.
        let all = CollectBlobGarbageOptions {
            discardable_ratio: 0.0,
            merge_small_files: true,
        };
        for family in db.column_families() {
            db.compact_range(&CompactRangeOptions::default(), &family, None, None)
                .unwrap();
            db.collect_blob_garbage(&all, &family).unwrap();
        }
        let left = db.live_blob_files();
        assert!(!left.is_empty());
        assert!(left.iter().all(|b| b.garbage_blob_count == 0), "{left:?}");
        assert_holds(db, case);
    }
    db.close().unwrap();
    case.set_written_by_orogen().unwrap();
}

/// Compares all families with what the case expects: forwards, backwards, and key by key.
pub(crate) fn assert_holds(db: &Db, case: &Case) {
    let name = case.name();
    let mut families: Vec<String> = db
        .column_families()
        .iter()
        .map(|f| f.name().to_owned())
        .collect();
    families.sort();
    assert_eq!(families, case.families(), "{name}: families");
    for family_name in case.families() {
        let want = case.expected(family_name).unwrap();
        let got = scan(db, family_name);
        assert_same(&want, &got, &format!("{name}/{family_name}"));
        let handle = family(db, family_name);
        for check in db.check_blob_files(&handle, true).unwrap() {
            assert!(check.is_exact(), "{name}: {check:?}");
        }
        let read = ReadOptions::default();
        let mut iter = db.iter(&read, &handle).unwrap();
        iter.seek_to_last();
        for (key, value) in want.iter().rev() {
            assert!(
                iter.valid(),
                "{name}/{family_name}: ends early, read backwards"
            );
            assert_eq!(
                (iter.key(), iter.value()),
                (&key[..], &value[..]),
                "{name}, backwards"
            );
            iter.prev();
        }
        assert!(
            !iter.valid(),
            "{name}/{family_name}: goes on, read backwards"
        );
        iter.status().unwrap();
        for (key, value) in &want {
            let got = db.get_opt(&read, &handle, key).unwrap();
            assert_eq!(got.as_deref(), Some(&value[..]), "{name}: get {key:?}");
            let absent = [key, &b"\0absent"[..]].concat();
            assert!(
                db.get_opt(&read, &handle, &absent).unwrap().is_none(),
                "{name}: {absent:?}"
            );
        }
    }
}

/// Fails at the first difference; whole lists would fill the screen.
fn assert_same(want: &[Pair], got: &[Pair], place: &str) {
    for (at, (want, got)) in want.iter().zip(got).enumerate() {
        assert_eq!(want, got, "{place}: pair {at}");
    }
    assert_eq!(want.len(), got.len(), "{place}: number of pairs");
}

/// A family of a store and what it must hold.
pub(crate) struct Model {
    family: ColumnFamily,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
    merge_operator: String,
}

impl Model {
    pub(crate) fn new(db: &Db, name: &str, pairs: Vec<Pair>, merge_operator: &str) -> Self {
        Self {
            family: family(db, name),
            pairs: pairs.into_iter().collect(),
            merge_operator: merge_operator.to_owned(),
        }
    }

    fn any_key(&self, rng: &mut Rng) -> Vec<u8> {
        let known = !self.pairs.is_empty() && rng.chance(1, 2);
        if known {
            let at = rng.range(0..self.pairs.len());
            self.pairs.keys().nth(at).unwrap().clone()
        } else {
            format!("new{:05}", rng.below(5000)).into_bytes()
        }
    }

    fn merge(&mut self, key: &[u8], operand: &[u8]) {
        let merged = match (self.merge_operator.as_str(), self.pairs.get(key)) {
            (_, None) => operand.to_vec(),
            ("StringAppendOperator", Some(old)) => [old, &b","[..], operand].concat(),
            (_, Some(old)) => {
                let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                number(old)
                    .wrapping_add(number(operand))
                    .to_le_bytes()
                    .to_vec()
            }
        };
        self.pairs.insert(key.to_vec(), merged);
    }

    /// Writes `count` batches and single operations of every kind.
    pub(crate) fn write(&mut self, db: &Db, rng: &mut Rng, count: usize) {
        for _ in 0..count {
            let key = self.any_key(rng);
            let value = rng.bytes(OPERAND_LEN);
            let options = WriteOptions {
                sync: rng.chance(1, 50),
                ..WriteOptions::default()
            };
            match rng.below(10) {
                0..4 => {
                    db.put_opt(&options, &self.family, &key, &value).unwrap();
                    self.pairs.insert(key, value);
                }
                4..6 => {
                    db.delete_opt(&options, &self.family, &key).unwrap();
                    self.pairs.remove(&key);
                }
                6 if !self.merge_operator.is_empty() => {
                    db.merge_opt(&options, &self.family, &key, &value).unwrap();
                    self.merge(&key, &value);
                }
                7 if rng.chance(1, 8) => self.delete_range(db, rng, &options),
                _ => {
                    let mut batch = WriteBatch::new();
                    for at in 0..5u8 {
                        let key = [&key[..], &[at]].concat();
                        batch.put(self.family.id(), &key, &value);
                        self.pairs.insert(key, value.clone());
                    }
                    batch.delete(self.family.id(), &key);
                    self.pairs.remove(&key);
                    db.write_opt(&options, &mut batch).unwrap();
                }
            }
        }
    }

    /// Deletes up to ten neighbouring keys, in the family's own order.
    fn delete_range(&mut self, db: &Db, rng: &mut Rng, options: &WriteOptions) {
        let mut keys: Vec<Vec<u8>> = self.pairs.keys().cloned().collect();
        let order = self.family.options().comparator.clone();
        keys.sort_by(|a, b| order.compare(a, b));
        if keys.len() < 20 {
            return;
        }
        let start = rng.range(0..keys.len() - 11);
        let end = start + 1 + rng.range(0..10);
        db.delete_range_opt(options, &self.family, &keys[start], &keys[end])
            .unwrap();
        for key in &keys[start..end] {
            self.pairs.remove(key);
        }
    }

    /// What must be read, in the order of the family's keys.
    pub(crate) fn pairs(&self) -> Vec<Pair> {
        let mut pairs: Vec<Pair> = self
            .pairs
            .iter()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let order = self.family.options().comparator.clone();
        pairs.sort_by(|a, b| order.compare(&a.0, &b.0));
        pairs
    }

    pub(crate) fn name(&self) -> String {
        self.family.name().to_owned()
    }

    pub(crate) fn family(&self) -> &ColumnFamily {
        &self.family
    }
}
