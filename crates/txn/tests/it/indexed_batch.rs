//! Every history runs on an indexed batch and on a map at the same time.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::{Comparator, ErrorKind, UserComparator};
use orogen_engine::plugin::merge_operator;
use orogen_engine::{ColumnFamily, ColumnFamilyOptions, Db, Options, ReadOptions, WriteBatch};
use orogen_env::MemFileSystem;
use orogen_testkit::{Rng, TempDir};
use orogen_txn::indexed_batch::{BatchLookup, IndexedBatch};
use orogen_txn::{OwnWritesIterator, SpillOptions};

fn cf(order: UserComparator) -> ColumnFamilyOptions {
    ColumnFamilyOptions {
        comparator: order,
        merge_operator: merge_operator::by_name("stringappend"),
        write_buffer_size: 16 << 10,
        ..ColumnFamilyOptions::default()
    }
}

fn open() -> Db {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf = cf(UserComparator::BYTEWISE);
    Db::open("/db", &options).expect("it opens")
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys that share beginnings, contain each other, and are empty.
fn key(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(5) as usize;
    (0..len)
        .map(|_| [0, b'a', b'b', 0xff][rng.below(4) as usize])
        .collect()
}

/// Keys that are put only where they are not, so that they can be deleted by single deletes.
fn key_put_once(rng: &mut Rng) -> Vec<u8> {
    vec![b'a', b's', [b'a', b'b', b'c'][rng.below(3) as usize]]
}

fn any_key(rng: &mut Rng) -> Vec<u8> {
    match rng.below(6) {
        0 => key_put_once(rng),
        _ => key(rng),
    }
}

#[derive(Clone)]
enum Change {
    Put(Vec<u8>, Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    SingleDelete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Change {
    fn draw(rng: &mut Rng, order: &UserComparator, n: u64, map: &Map) -> Self {
        let value = format!("v{n}").into_bytes();
        match rng.below(12) {
            0..5 => Self::Put(key(rng), value),
            5..7 => Self::Merge(key(rng), value),
            7..9 => Self::Delete(key(rng)),
            9 | 10 => {
                let key = key_put_once(rng);
                match map.contains_key(&key) {
                    true => Self::SingleDelete(key),
                    false => Self::Put(key, value),
                }
            }
            _ => {
                let (a, b) = (key(rng), key(rng));
                if order.less(&b, &a) {
                    Self::DeleteRange(b, a)
                } else {
                    Self::DeleteRange(a, b)
                }
            }
        }
    }

    fn write(&self, batch: &mut IndexedBatch, family: &ColumnFamily) {
        let done = match self {
            Self::Put(k, v) => batch.put(family, k, v),
            Self::Merge(k, v) => batch.merge(family, k, v),
            Self::Delete(k) => batch.delete(family, k),
            Self::SingleDelete(k) => batch.single_delete(family, k),
            Self::DeleteRange(a, b) => batch.delete_range(family, a, b),
        };
        done.expect("it fits");
    }

    fn apply(&self, map: &mut Map, order: &UserComparator) {
        match self {
            Self::Put(k, v) => drop(map.insert(k.clone(), v.clone())),
            Self::Merge(k, v) => match map.get_mut(k) {
                Some(value) => {
                    value.push(b',');
                    value.extend_from_slice(v);
                }
                None => drop(map.insert(k.clone(), v.clone())),
            },
            Self::Delete(k) | Self::SingleDelete(k) => drop(map.remove(k)),
            Self::DeleteRange(a, b) => map.retain(|k, _| order.less(k, a) || !order.less(k, b)),
        }
    }

    /// What a batch says of a key to which it said `before` until then.
    fn look<'a>(
        &'a self,
        key: &[u8],
        order: &UserComparator,
        before: BatchLookup<'a>,
    ) -> BatchLookup<'a> {
        match self {
            Self::Put(k, v) if k == key => BatchLookup::Value(v),
            Self::Delete(k) | Self::SingleDelete(k) if k == key => BatchLookup::Deleted,
            Self::DeleteRange(a, b) if !order.less(key, a) && order.less(key, b) => {
                BatchLookup::Deleted
            }
            Self::Merge(k, v) if k == key => match before {
                BatchLookup::NotFound => BatchLookup::Merge(vec![v]),
                BatchLookup::Value(base) => BatchLookup::MergeOnto(Some(base), vec![v]),
                BatchLookup::Deleted => BatchLookup::MergeOnto(None, vec![v]),
                BatchLookup::Merge(mut all) => {
                    all.push(v);
                    BatchLookup::Merge(all)
                }
                BatchLookup::MergeOnto(base, mut all) => {
                    all.push(v);
                    BatchLookup::MergeOnto(base, all)
                }
            },
            _ => before,
        }
    }
}

fn sorted(map: &Map, order: &UserComparator) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    all.sort_by(|a, b| order.compare(&a.0, &b.0));
    all
}

/// A family, and what has to be in it.
struct Part {
    family: ColumnFamily,
    order: UserComparator,
    map: Map,
    /// What the batch has for it.
    own: Vec<Change>,
}

impl Part {
    fn write(&mut self, batch: &RefCell<IndexedBatch>, rng: &mut Rng, count: &mut u64) {
        let change = Change::draw(rng, &self.order, *count, &self.map);
        *count += 1;
        change.write(&mut batch.borrow_mut(), &self.family);
        change.apply(&mut self.map, &self.order);
        self.own.push(change);
    }
}

struct Pair {
    db: Db,
    batch: RefCell<IndexedBatch>,
    parts: Vec<Part>,
    /// Each part's map, and how much the batch had for it, at each save point.
    saved: Vec<Vec<(Map, usize)>>,
}

impl Pair {
    fn write(&mut self, rng: &mut Rng, count: &mut u64) {
        let at = rng.below(self.parts.len() as u64) as usize;
        self.parts[at].write(&self.batch, rng, count);
    }

    fn set_save_point(&mut self) {
        self.batch.borrow_mut().set_save_point();
        let now = self.parts.iter().map(|p| (p.map.clone(), p.own.len()));
        self.saved.push(now.collect());
    }

    fn rollback_to_save_point(&mut self) {
        let done = self.batch.borrow_mut().rollback_to_save_point();
        let Some(saved) = self.saved.pop() else {
            return assert_eq!(done.map_err(|e| e.kind()), Err(ErrorKind::NotFound));
        };
        done.expect("there is one");
        for (part, (map, len)) in self.parts.iter_mut().zip(saved) {
            part.map = map;
            part.own.truncate(len);
        }
    }

    fn check(&self, rng: &mut Rng) {
        let options = ReadOptions::default();
        let batch = self.batch.borrow();
        for part in &self.parts {
            for _ in 0..5 {
                let key = any_key(rng);
                let found = batch
                    .get(&self.db, &options, &part.family, &key)
                    .expect("it reads");
                assert_eq!(
                    found.map(|v| v.to_vec()),
                    part.map.get(&key).cloned(),
                    "{key:?}"
                );
                let said = batch.lookup(&part.family, &key).expect("it is whole");
                let own = part.own.iter();
                let wanted = own.fold(BatchLookup::NotFound, |before, change| {
                    change.look(&key, &part.order, before)
                });
                assert_eq!(said, wanted, "{key:?}");
            }
        }
    }

    /// A cursor that wanders about, and the list that it has to be in.
    fn wander(&mut self, rng: &mut Rng, count: &mut u64) {
        let Self {
            db, batch, parts, ..
        } = self;
        let here = rng.below(parts.len() as u64) as usize;
        let (family, order) = (parts[here].family.clone(), parts[here].order.clone());
        let (mut lower, mut upper) = (None, None);
        if rng.below(3) == 0 {
            lower = Some(key(rng));
        }
        if rng.below(3) == 0 {
            upper = Some(key(rng));
        }
        let options = ReadOptions {
            iterate_lower_bound: lower.clone(),
            iterate_upper_bound: upper.clone(),
            ..ReadOptions::default()
        };
        let within = |list: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<(Vec<u8>, Vec<u8>)> {
            let keep = |k: &[u8]| {
                lower.as_deref().is_none_or(|l| !order.less(k, l))
                    && upper.as_deref().is_none_or(|u| order.less(k, u))
            };
            list.into_iter().filter(|(k, _)| keep(k)).collect()
        };
        let mut list = within(sorted(&parts[here].map, &order));
        let mut iter = OwnWritesIterator::new(batch, db, &options, &family).expect("opens");
        assert!(!iter.valid());
        let mut at: Option<usize> = None;
        for _ in 0..rng.below(40) {
            let target = any_key(rng);
            let place = |list: &[(Vec<u8>, Vec<u8>)], k: &[u8]| {
                list.partition_point(|(own, _)| order.less(own, k))
            };
            match rng.below(9) {
                0 => {
                    iter.seek_to_first();
                    at = (!list.is_empty()).then_some(0);
                }
                1 => {
                    iter.seek_to_last();
                    at = list.len().checked_sub(1);
                }
                2 => {
                    iter.seek(&target);
                    at = Some(place(&list, &target)).filter(|&i| i < list.len());
                }
                3 => {
                    iter.seek_for_prev(&target);
                    let i = place(&list, &target);
                    at = match list.get(i) {
                        Some((k, _)) if *k == target => Some(i),
                        _ => i.checked_sub(1),
                    };
                }
                4 => {
                    // Written while the cursor stands: it sees that at its next move.
                    let current = at.map(|i| list[i].clone());
                    let to = match rng.below(4) {
                        0 => rng.below(parts.len() as u64) as usize,
                        _ => here,
                    };
                    parts[to].write(batch, rng, count);
                    if let Some((k, v)) = &current {
                        assert_eq!((iter.key(), iter.value()), (&k[..], &v[..]));
                    }
                    list = within(sorted(&parts[here].map, &order));
                    let Some((k, _)) = current else { continue };
                    let i = place(&list, &k);
                    let is_there = list.get(i).is_some_and(|(own, _)| *own == k);
                    if rng.below(2) == 0 {
                        iter.next();
                        at = Some(i + usize::from(is_there)).filter(|&i| i < list.len());
                    } else {
                        iter.prev();
                        at = i.checked_sub(1);
                    }
                }
                5 | 6 => {
                    iter.next();
                    at = at.map(|i| i + 1).filter(|&i| i < list.len());
                }
                _ => {
                    iter.prev();
                    at = at.and_then(|i| i.checked_sub(1));
                }
            }
            iter.status().expect("it reads");
            assert_eq!(iter.valid(), at.is_some());
            if let Some(i) = at {
                assert_eq!((iter.key(), iter.value()), (&list[i].0[..], &list[i].1[..]));
            }
        }
    }
}

fn new_batch(spill: Option<&SpillOptions>) -> IndexedBatch {
    let batch = spill.cloned().map(WriteBatch::with_spill);
    IndexedBatch::with(batch.unwrap_or_default()).expect("it is empty")
}

fn history(seed: u64, orders: &[UserComparator], spill: Option<&SpillOptions>) {
    let mut rng = Rng::new(seed);
    let mut spilled = 0;
    let db = open();
    let parts = orders.iter().enumerate().map(|(n, order)| Part {
        family: db
            .create_column_family(&format!("f{n}"), cf(order.clone()))
            .expect("it is made"),
        order: order.clone(),
        map: Map::new(),
        own: Vec::new(),
    });
    let mut pair = Pair {
        parts: parts.collect(),
        db: db.clone(),
        batch: RefCell::new(new_batch(spill)),
        saved: Vec::new(),
    };
    let mut count = 0;
    for _ in 0..4 {
        // What is below.
        let above = pair.batch.replace(new_batch(spill));
        for _ in 0..rng.below(60) {
            pair.write(&mut rng, &mut count);
        }
        let below = pair.batch.replace(above);
        db.write(below.batch().clone()).expect("it writes");
        pair.parts.iter_mut().for_each(|part| part.own.clear());
        if rng.below(2) == 0 {
            db.flush().expect("it flushes");
        }
        // The index catches up when it is read: after every step, or after many.
        let reads = [1, 1, 5, 40][rng.below(4) as usize];
        for _ in 0..150 {
            match rng.below(12) {
                0 => pair.set_save_point(),
                1 => pair.rollback_to_save_point(),
                2 => {
                    let done = pair.batch.borrow_mut().pop_save_point();
                    assert_eq!(done.is_ok(), pair.saved.pop().is_some());
                }
                3 if rng.below(reads) == 0 => pair.wander(&mut rng, &mut count),
                _ => pair.write(&mut rng, &mut count),
            }
            if rng.below(reads) == 0 {
                pair.check(&mut rng);
            }
        }
        pair.check(&mut rng);
        // Written, it is what was seen before.
        let own = pair.batch.get_mut();
        spilled += own.batch().spilled_bytes();
        db.write(own.batch().clone()).expect("it writes");
        own.clear();
        assert!(own.is_empty() && own.batch().spilled_bytes() == 0);
        pair.saved.clear();
        for part in &mut pair.parts {
            part.own.clear();
            let now = ReadOptions::default();
            let mut iter = db.iter(&now, &part.family).expect("it reads");
            iter.seek_to_first();
            for (k, v) in sorted(&part.map, &part.order) {
                assert_eq!((iter.key(), iter.value()), (&k[..], &v[..]));
                iter.next();
            }
            assert!(!iter.valid());
        }
    }
    assert_eq!(spilled > 0, spill.is_some());
}

/// One batch writes to all of them, and what is for one of them is nobody else's.
#[test]
fn families_of_one_batch_equal_maps_of_their_own() {
    let (up, down) = (UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE);
    for seed in 0..40 {
        history(seed, &[up.clone(), down.clone(), up.clone()], None);
    }
}

#[test]
fn histories_equal_those_of_a_map() {
    for seed in 0..60 {
        history(seed, &[UserComparator::BYTEWISE], None);
    }
}

/// Short keys before long ones.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &'static str {
        "orogen.test.ByLength"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        (a.len(), a).cmp(&(b.len(), b))
    }
}

#[test]
fn keys_in_another_order_are_found_too() {
    let by_length = UserComparator::custom(Arc::new(ByLength));
    for seed in 0..20 {
        history(seed, &[UserComparator::REVERSE_BYTEWISE], None);
        history(seed, std::slice::from_ref(&by_length), None);
        let mixed = [by_length.clone(), UserComparator::REVERSE_BYTEWISE];
        history(seed, &mixed, None);
    }
}

#[test]
fn batches_that_spill_equal_a_map_too() {
    let dir = TempDir::new("spilled-histories");
    for seed in 0..60 {
        let order = match seed % 4 {
            0 => UserComparator::REVERSE_BYTEWISE,
            _ => UserComparator::BYTEWISE,
        };
        // At once, soon, in the midst of it.
        let threshold_bytes = [0, 64, 500][seed as usize % 3];
        let spill = SpillOptions {
            threshold_bytes,
            ..SpillOptions::in_dir(dir.path())
        };
        history(1000 + seed, &[order], Some(&spill));
    }
    let left = std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(left, 0, "files have no names");
}

#[test]
fn lookups_tell_what_the_batch_alone_knows() {
    let db = open();
    let family = db.default_column_family();
    let mut batch = IndexedBatch::new().unwrap();
    assert_eq!(batch.lookup(&family, b"a").unwrap(), BatchLookup::NotFound);
    batch.merge(&family, b"a", b"1").unwrap();
    batch.merge(&family, b"a", b"2").unwrap();
    assert_eq!(
        batch.lookup(&family, b"a").unwrap(),
        BatchLookup::Merge(vec![b"1", b"2"])
    );
    batch.delete_range(&family, b"a", b"b").unwrap();
    assert_eq!(batch.lookup(&family, b"a").unwrap(), BatchLookup::Deleted);
    assert_eq!(batch.lookup(&family, b"aa").unwrap(), BatchLookup::Deleted);
    assert_eq!(batch.lookup(&family, b"b").unwrap(), BatchLookup::NotFound);
    batch.merge(&family, b"a", b"3").unwrap();
    assert_eq!(
        batch.lookup(&family, b"a").unwrap(),
        BatchLookup::MergeOnto(None, vec![b"3"])
    );
    batch.put(&family, b"a", b"4").unwrap();
    batch.merge(&family, b"a", b"5").unwrap();
    let onto = BatchLookup::MergeOnto(Some(b"4"), vec![b"5"]);
    assert_eq!(batch.lookup(&family, b"a").unwrap(), onto);
    batch.single_delete(&family, b"a").unwrap();
    assert_eq!(batch.lookup(&family, b"a").unwrap(), BatchLookup::Deleted);
}

#[test]
fn what_is_refused_leaves_no_trace() {
    let db = open();
    let plain = db
        .create_column_family("plain", ColumnFamilyOptions::default())
        .unwrap();
    let family = db.default_column_family();
    let mut batch = IndexedBatch::new().unwrap();
    batch.put(&family, b"a", b"1").unwrap();
    let before = (batch.count(), batch.batch().size_bytes());
    let merged = batch.merge(&plain, b"a", b"1").unwrap_err();
    assert_eq!(merged.kind(), ErrorKind::InvalidArgument);
    let range = batch.delete_range(&family, b"b", b"a").unwrap_err();
    assert_eq!(range.kind(), ErrorKind::InvalidArgument);
    assert_eq!((batch.count(), batch.batch().size_bytes()), before);
    let mut full = WriteBatch::new();
    full.put(0, b"a", b"1");
    assert!(IndexedBatch::with(full).is_err());
}

#[test]
fn a_rollback_costs_what_was_written_since_and_frees_the_index() {
    let db = open();
    let family = db.default_column_family();
    let mut batch = IndexedBatch::new().unwrap();
    for n in 0..10_000u32 {
        batch.put(&family, &n.to_be_bytes(), b"v").unwrap();
    }
    let unread = batch.memory_usage();
    assert_eq!(unread, batch.batch().size_bytes(), "nobody has read it");
    batch.lookup(&family, b"new key").unwrap();
    assert!(batch.memory_usage() > unread);
    let mut bytes = 0;
    for n in 0..1000 {
        batch.set_save_point();
        batch.put(&family, b"new key", b"w").unwrap();
        if n % 2 == 0 {
            let own = batch.lookup(&family, b"new key").unwrap();
            assert_eq!(own, BatchLookup::Value(b"w"));
        }
        batch.put(&family, &5u32.to_be_bytes(), b"w").unwrap();
        batch.rollback_to_save_point().unwrap();
        let none = batch.lookup(&family, b"new key").unwrap();
        assert_eq!(none, BatchLookup::NotFound);
        if n == 0 {
            bytes = batch.memory_usage();
        }
    }
    assert_eq!(batch.memory_usage(), bytes);
    assert_eq!(batch.count(), 10_000);
    let five = batch.lookup(&family, &5u32.to_be_bytes()).unwrap();
    assert_eq!(five, BatchLookup::Value(b"v"));
}

#[test]
fn families_beyond_those_of_the_trie_are_read_without_a_key() {
    let db = open();
    let families: Vec<ColumnFamily> = (0..66)
        .map(|n| {
            let options = cf(UserComparator::BYTEWISE);
            db.create_column_family(&format!("f{n}"), options).unwrap()
        })
        .collect();
    let batch = RefCell::new(IndexedBatch::new().unwrap());
    for family in &families[..64] {
        batch.borrow_mut().put(family, b"k", b"v").unwrap();
    }
    let (ranges, keys) = (&families[64], &families[65]);
    batch.borrow_mut().delete_range(ranges, b"a", b"z").unwrap();
    let found = batch
        .borrow()
        .lookup(ranges, b"k")
        .map(|l| l == BatchLookup::Deleted);
    assert!(found.unwrap());
    let mut iter = OwnWritesIterator::new(&batch, &db, &ReadOptions::default(), ranges).unwrap();
    for go in [
        OwnWritesIterator::seek_to_first,
        OwnWritesIterator::seek_to_last,
    ] {
        go(&mut iter);
        assert!(!iter.valid() && iter.status().is_ok());
    }
    iter.seek(b"b");
    iter.seek_for_prev(b"b");
    assert!(!iter.valid() && iter.status().is_ok());
    batch.borrow_mut().put(keys, b"k", b"v").unwrap();
    iter.seek_to_first();
    assert!(!iter.valid());
    let own = batch
        .borrow()
        .lookup(keys, b"k")
        .map(|l| l == BatchLookup::Value(b"v"));
    assert!(own.unwrap());
}

#[test]
fn a_cursor_sees_what_a_rolled_back_range_had_deleted() {
    let db = open();
    let family = db.default_column_family();
    for key in [b"k1", b"k3", b"k6", b"k7"] {
        db.put(key, b"v").unwrap();
    }
    for clears in [false, true] {
        for (from, own, then) in [("k1", "k5", ["k6", "k7"]), ("k9", "k4", ["k3", "k1"])] {
            let batch = RefCell::new(IndexedBatch::new().unwrap());
            batch.borrow_mut().set_save_point();
            batch
                .borrow_mut()
                .delete_range(&family, b"k1", b"k9")
                .unwrap();
            batch
                .borrow_mut()
                .put(&family, own.as_bytes(), b"w")
                .unwrap();
            let options = ReadOptions::default();
            let mut iter = OwnWritesIterator::new(&batch, &db, &options, &family).unwrap();
            let is_forward = from == "k1";
            match is_forward {
                true => iter.seek(from.as_bytes()),
                false => iter.seek_for_prev(from.as_bytes()),
            }
            assert_eq!(iter.key(), own.as_bytes());
            match clears {
                true => batch.borrow_mut().clear(),
                false => batch.borrow_mut().rollback_to_save_point().unwrap(),
            }
            for key in then {
                match is_forward {
                    true => iter.next(),
                    false => iter.prev(),
                }
                assert_eq!(iter.key(), key.as_bytes(), "{from} {clears}");
            }
        }
    }
}
