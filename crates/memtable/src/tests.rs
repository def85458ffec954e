//! What every memtable is to do that readers use while it is written to.

mod trie;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::comparator::Comparator;
use orogen_base::key::{InternalKeyComparator, append_seek_key};
use orogen_base::range_del::{Fragment, RangeTombstone};
use orogen_base::{InternalIterator, ParsedInternalKey, UserComparator, ValueKind};

use crate::{GuidedListMemTable, MemTable, TrieMemTable, Visit};

/// A memtable of either kind.
#[derive(Clone)]
struct Table {
    table: Arc<dyn MemTable>,
    list: Option<Arc<GuidedListMemTable>>,
}

impl Table {
    fn list(order: &UserComparator) -> Self {
        let list = GuidedListMemTable::new(order.clone());
        Self {
            table: list.clone(),
            list: Some(list),
        }
    }

    fn trie() -> Self {
        Self {
            table: TrieMemTable::new(64 << 20).unwrap(),
            list: None,
        }
    }

    /// Looks whether the list is one.
    fn check(&self) {
        if let Some(list) = &self.list {
            list.list().check();
        }
    }
}

impl std::ops::Deref for Table {
    type Target = Arc<dyn MemTable>;

    fn deref(&self) -> &Self::Target {
        &self.table
    }
}

/// One of each kind that takes keys in this order.
fn tables(order: &UserComparator) -> Vec<Table> {
    let mut tables = vec![Table::list(order)];
    if order.is_bytewise() {
        tables.push(Table::trie());
    }
    tables
}

fn ordered_tables() -> impl Iterator<Item = (UserComparator, Table)> {
    let of = |order: UserComparator| {
        let tables = tables(&order);
        tables.into_iter().map(move |table| (order.clone(), table))
    };
    orders().into_iter().flat_map(of)
}

fn bytewise() -> Vec<Table> {
    tables(&UserComparator::BYTEWISE)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }

    /// Short and long keys of few letters, with zeros, so that prefixes collide.
    fn key(&mut self) -> Vec<u8> {
        let start: &[u8] = if self.below(2) == 0 { b"" } else { b"prefix_" };
        let len = self.below(5);
        let mut key = start.to_vec();
        key.extend((0..len).map(|_| [0u8, 1, b'a', 0xff][self.below(4) as usize]));
        key
    }
}

/// Orders by length first: no prefix of the bytes says anything.
struct ByLength;

impl Comparator for ByLength {
    fn name(&self) -> &str {
        "by_length"
    }
    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

fn orders() -> [UserComparator; 3] {
    let custom = UserComparator::custom(Arc::new(ByLength));
    [
        UserComparator::BYTEWISE,
        UserComparator::REVERSE_BYTEWISE,
        custom,
    ]
}

/// The newest value of `key` at `read_seqno`.
fn get(table: &Table, key: &[u8], read_seqno: u64) -> Option<(u64, Vec<u8>)> {
    let mut found = None;
    table
        .get(key, read_seqno, &mut |k, v| {
            assert_eq!(k.user_key, key);
            found = Some((k.seqno, v.to_vec()));
            Visit::Stop
        })
        .unwrap();
    found
}

type Versions = BTreeMap<u64, (ValueKind, Vec<u8>)>;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Puts random entries into a memtable; the same entries sorted by the definition of the order.
fn fill(table: &Table, order: &UserComparator, seed: u64, n: u64) -> Entries {
    let mut rng = Rng(seed);
    let mut entries = Entries::new();
    for seqno in 1..=n {
        let kinds = [
            ValueKind::Value,
            ValueKind::Deletion,
            ValueKind::Merge,
            ValueKind::BlobIndex,
        ];
        let (key, kind) = (rng.key(), kinds[rng.below(4) as usize]);
        let value = vec![seqno as u8; rng.below(30) as usize];
        table.insert(&key, seqno, kind, &value).unwrap();
        entries.push((
            ParsedInternalKey {
                user_key: &key,
                seqno,
                kind,
            }
            .encode(),
            value,
        ));
    }
    let internal = InternalKeyComparator::new(order.clone());
    entries.sort_by(|a, b| internal.compare(&a.0, &b.0));
    entries
}

#[test]
fn lookups_answer_as_a_sorted_map_does() {
    for table in orders().iter().flat_map(tables) {
        let mut model: BTreeMap<Vec<u8>, Versions> = BTreeMap::new();
        let mut rng = Rng(5);
        for seqno in 1..=4000 {
            let (key, value) = (rng.key(), seqno.to_string().into_bytes());
            let kind = if rng.below(4) == 0 {
                ValueKind::Deletion
            } else {
                ValueKind::Value
            };
            table.insert(&key, seqno, kind, &value).unwrap();
            model.entry(key).or_default().insert(seqno, (kind, value));
            let (key, read) = (rng.key(), rng.below(seqno + 2));
            let mut versions = Vec::new();
            table
                .get(&key, read, &mut |k, v| {
                    versions.push((k.seqno, (k.kind, v.to_vec())));
                    Visit::Continue
                })
                .unwrap();
            let want: Vec<_> = model
                .get(&key)
                .map(|m| {
                    m.range(..=read)
                        .rev()
                        .map(|(s, v)| (*s, v.clone()))
                        .collect()
                })
                .unwrap_or_default();
            assert_eq!(versions, want);
        }
        table.check();
    }
}

#[test]
fn a_visit_can_stop_early() {
    for table in bytewise() {
        for seqno in 1..=3 {
            table.insert(b"k", seqno, ValueKind::Merge, b"v").unwrap();
        }
        assert_eq!(get(&table, b"k", 2), Some((2, b"v".to_vec())));
        assert_eq!(get(&table, b"", 9), None);
        assert_eq!(get(&table, b"k\0", 9), None);
    }
}

#[test]
fn cursors_walk_both_ways_as_the_sorted_entries_do() {
    for (order, table) in ordered_tables() {
        let entries = fill(&table, &order, 3, 500);
        let mut iter = Arc::clone(&table).iter();
        assert!(!iter.valid());
        iter.seek_to_first();
        for (key, value) in &entries {
            assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
            iter.next();
        }
        assert!(!iter.valid());
        iter.seek_to_last();
        for (key, value) in entries.iter().rev() {
            assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
            iter.prev();
        }
        assert!(!iter.valid() && iter.status().is_ok());
    }
}

#[test]
fn seeks_and_turns_agree_with_the_sorted_entries() {
    for (order, table) in ordered_tables() {
        let entries = fill(&table, &order, 10, 300);
        let internal = InternalKeyComparator::new(order);
        let mut iter = Arc::clone(&table).iter();
        let mut rng = Rng(77);
        for _ in 0..3000 {
            let mut target = Vec::new();
            append_seek_key(&mut target, &rng.key(), rng.below(302));
            if rng.below(3) == 0 {
                target.clone_from(&entries[rng.below(300) as usize].0);
            }
            let mut at = if rng.below(2) == 0 {
                iter.seek(&target);
                entries.partition_point(|e| internal.compare(&e.0, &target).is_lt()) as isize
            } else {
                iter.seek_for_prev(&target);
                entries.partition_point(|e| internal.compare(&e.0, &target).is_le()) as isize - 1
            };
            for _ in 0..rng.below(6) {
                let want = usize::try_from(at).ok().and_then(|i| entries.get(i));
                assert_eq!(iter.valid(), want.is_some());
                let Some((key, value)) = want else { break };
                assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
                if rng.below(2) == 0 {
                    iter.next();
                    at += 1;
                } else {
                    iter.prev();
                    at -= 1;
                }
            }
        }
    }
}

#[test]
fn a_cursor_keeps_its_table_and_sees_later_entries_after_a_seek() {
    for table in bytewise() {
        table.insert(b"a", 1, ValueKind::Value, b"").unwrap();
        let mut iter = Arc::clone(&table).iter();
        iter.seek_to_first();
        table.insert(b"b", 2, ValueKind::Value, b"new").unwrap();
        drop(table);
        assert_eq!(iter.key()[0], b'a');
        iter.seek_to_last();
        assert_eq!((iter.key()[0], iter.value()), (b'b', &b"new"[..]));
        iter.prev();
        assert_eq!(iter.key()[0], b'a');
    }
}

#[test]
fn an_open_cursor_of_a_list_sees_later_entries() {
    let table = Table::list(&UserComparator::BYTEWISE);
    table.insert(b"a", 1, ValueKind::Value, b"").unwrap();
    let mut iter = Arc::clone(&table).iter();
    iter.seek_to_first();
    table.insert(b"b", 2, ValueKind::Value, b"").unwrap();
    iter.next();
    assert_eq!(iter.key()[0], b'b');
}

#[test]
fn rising_falling_and_interleaved_runs_are_sorted() {
    for (pattern, table) in (0..4u64).flat_map(|p| bytewise().into_iter().map(move |t| (p, t))) {
        for i in 0..20_000u64 {
            let n = match pattern {
                0 => i,
                1 => u64::MAX - i,
                2 => (i % 3) * 1_000_000 + i,
                _ => i.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            };
            table
                .insert(&n.to_be_bytes(), i + 1, ValueKind::Value, &n.to_le_bytes())
                .unwrap();
        }
        table.check();
        let mut iter = Arc::clone(&table).iter();
        iter.seek_to_first();
        let mut count = 0;
        while iter.valid() {
            count += 1;
            iter.next();
        }
        assert_eq!(count, 20_000);
    }
}

#[test]
fn readers_beside_four_writers_see_whole_entries_in_order() {
    const PER_WRITER: u64 = 20_000;
    for table in bytewise() {
        let done = AtomicBool::new(false);
        let written: [AtomicU64; 4] = Default::default();
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2u64)
                .map(|r| {
                    let (table, done, written) = (&table, &done, &written);
                    scope.spawn(move || {
                        let mut rng = Rng(r);
                        while !done.load(Ordering::Acquire) {
                            let w = rng.below(4);
                            let n = written[w as usize].load(Ordering::Acquire);
                            if n == 0 {
                                continue;
                            }
                            let i = rng.below(n);
                            let (key, value) = entry(w, i);
                            let found = get(table, &key, u64::MAX >> 8);
                            assert_eq!(found, Some((seqno(w, i), value)));
                            let mut iter = Arc::clone(table).iter();
                            let mut target = Vec::new();
                            append_seek_key(&mut target, &key, u64::MAX >> 8);
                            iter.seek(&target);
                            let mut last = target;
                            for _ in 0..20 {
                                if !iter.valid() {
                                    break;
                                }
                                let order = InternalKeyComparator::default();
                                assert!(order.compare(&last, iter.key()).is_lt());
                                assert_eq!(iter.value()[..8], iter.key()[..8]);
                                last = iter.key().to_vec();
                                iter.next();
                            }
                        }
                    })
                })
                .collect();
            let writers: Vec<_> = (0..4)
                .map(|w| {
                    let (table, written) = (&table, &written);
                    scope.spawn(move || {
                        for i in 0..PER_WRITER {
                            let (key, value) = entry(w, i);
                            table
                                .insert(&key, seqno(w, i), ValueKind::Value, &value)
                                .unwrap();
                            written[w as usize].store(i + 1, Ordering::Release);
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::Release);
            for reader in readers {
                reader.join().unwrap();
            }
        });
        table.check();
        assert_eq!(table.entry_count(), 4 * PER_WRITER);
        for w in 0..4 {
            for i in 0..PER_WRITER {
                let (key, value) = entry(w, i);
                assert_eq!(get(&table, &key, u64::MAX >> 8), Some((seqno(w, i), value)));
            }
        }
    }
}

fn seqno(writer: u64, i: u64) -> u64 {
    1 + i * 4 + writer
}

/// Half of the keys rise and meet those of the other writers, half are scattered.
fn entry(writer: u64, i: u64) -> (Vec<u8>, Vec<u8>) {
    let n = i * 4 + writer;
    let place = if i.is_multiple_of(2) {
        n
    } else {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let key = place.to_be_bytes().to_vec();
    let mut value = key.clone();
    value.extend_from_slice(&n.to_le_bytes()[..(n % 8) as usize]);
    (key, value)
}

#[test]
fn range_tombstones_are_counted_and_rebuilt_after_a_change() {
    for table in bytewise() {
        let order = UserComparator::BYTEWISE;
        assert!(!table.has_range_tombstones() && table.range_tombstones().is_empty());
        table.insert_range_deletion(b"a", b"m", 5).unwrap();
        assert!(table.has_range_tombstones());
        let first = table.range_tombstones();
        assert_eq!(first.max_covering_seqno(&order, b"b", 9), 5);
        assert!(Arc::ptr_eq(&first, &table.range_tombstones()));
        table.insert_range_deletion(b"b", b"c", 7).unwrap();
        let second = table.range_tombstones();
        assert_eq!(second.max_covering_seqno(&order, b"b", 9), 7);
        assert_eq!(first.max_covering_seqno(&order, b"b", 9), 5);
        table
            .insert(b"k", 8, ValueKind::SingleDeletion, b"")
            .unwrap();
        table.insert(b"k", 9, ValueKind::Value, b"").unwrap();
        assert_eq!((table.entry_count(), table.deletion_count()), (4, 3));
    }
}

#[test]
fn the_readers_copy_of_range_tombstones_counts_as_memory() {
    for table in bytewise() {
        let empty = table.memory_usage();
        for n in 0..2000u32 {
            let (start, end) = ((2 * n).to_be_bytes(), (2 * n + 1).to_be_bytes());
            table
                .insert_range_deletion(&start, &end, u64::from(n))
                .unwrap();
        }
        let written = |n: usize| n * (size_of::<RangeTombstone>() + 8);
        let before = table.memory_allocated() - table.memory_usage();
        // The second copy takes the place of the first.
        for n in [2000, 2001] {
            let copy = table.range_tombstones().memory_usage();
            assert!(copy >= n * (size_of::<Fragment>() + 16));
            assert_eq!(table.memory_usage(), empty + written(n) + copy);
            assert_eq!(table.memory_allocated() - table.memory_usage(), before);
            let (start, end) = ([0xfe; 4], [0xff; 4]);
            table.insert_range_deletion(&start, &end, n as u64).unwrap();
        }
    }
}

#[test]
fn memory_grows_with_what_is_inserted() {
    for table in bytewise() {
        let empty = table.memory_usage();
        assert!(empty < 256);
        table.insert(b"k", 1, ValueKind::Value, &[0; 100]).unwrap();
        assert!(table.memory_usage() >= empty + 100);
        table
            .insert(b"k", 2, ValueKind::Value, &vec![7; 5 << 20])
            .unwrap();
        assert!(table.memory_usage() >= 5 << 20);
        assert_eq!(get(&table, b"k", 9), Some((2, vec![7; 5 << 20])));
        let before = table.memory_usage();
        table.insert_range_deletion(b"a", b"b", 3).unwrap();
        assert!(table.memory_usage() > before);
    }
}

#[test]
fn a_protected_table_shows_the_same_entries() {
    let order = UserComparator::BYTEWISE;
    let list = GuidedListMemTable::with_protection(order.clone(), true);
    let protected = Table {
        table: list.clone(),
        list: Some(list),
    };
    let plain = Table::list(&order);
    let entries = fill(&plain, &order, 77, 300);
    for (key, value) in &entries {
        let key = ParsedInternalKey::parse(key).unwrap();
        protected
            .insert(key.user_key, key.seqno, key.kind, value)
            .unwrap();
    }
    let mut iter = Arc::clone(&protected).iter();
    iter.seek_to_first();
    for (key, value) in &entries {
        assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
        iter.next();
    }
    assert!(!iter.valid() && iter.status().is_ok());
    iter.seek_to_last();
    for (key, value) in entries.iter().rev() {
        assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
        iter.prev();
    }
    for (key, _) in &entries {
        let user_key = orogen_base::key::user_key(key);
        for seqno in [0, 100, 300] {
            let found = get(&protected, user_key, seqno);
            assert_eq!(found, get(&plain, user_key, seqno));
        }
    }
}
