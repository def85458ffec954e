use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use orogen_base::key::{append_internal_key, append_seek_key};
use orogen_base::{InternalIterator, UserComparator, ValueKind};

use super::VectorMemTable;
use crate::{GuidedListMemTable, MemTable, Moment, Visit};

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }

    /// Keys of which many share eight bytes and more, with zeros at their ends.
    fn key(&mut self) -> Vec<u8> {
        let start: &[u8] = [&b""[..], b"shared__", b"\xff"][self.below(3) as usize];
        let len = self.below(4);
        let mut key = start.to_vec();
        key.extend((0..len).map(|_| [0u8, b'a', 0xff][self.below(3) as usize]));
        key
    }
}

type Versions = Vec<(u64, ValueKind, Vec<u8>)>;

fn versions(table: &dyn MemTable, key: &[u8], read_seqno: u64, most: usize) -> Versions {
    let mut found = Versions::new();
    table
        .get(key, read_seqno, &mut |k, v| {
            assert_eq!(k.user_key, key);
            found.push((k.seqno, k.kind, v.to_vec()));
            if found.len() == most {
                Visit::Stop
            } else {
                Visit::Continue
            }
        })
        .unwrap();
    found
}

#[test]
fn it_reads_like_the_guided_list() {
    let kinds = [
        ValueKind::Value,
        ValueKind::Deletion,
        ValueKind::SingleDeletion,
        ValueKind::Merge,
    ];
    for order in [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE] {
        for seed in 1..10 {
            let mut rng = Rng(seed);
            let list: Arc<dyn MemTable> = GuidedListMemTable::new(order.clone());
            let vector: Arc<dyn MemTable> = VectorMemTable::new(order.clone());
            let n = rng.below(400);
            for seqno in 1..=n {
                let key = rng.key();
                let kind = kinds[rng.below(4) as usize];
                // Some do not fit into what is taken at once.
                let len = if rng.below(200) == 0 {
                    (1 << 20) + 1
                } else {
                    rng.below(40)
                };
                let value = vec![seqno as u8; len as usize];
                list.insert(&key, seqno, kind, &value).unwrap();
                vector.insert(&key, seqno, kind, &value).unwrap();
                if rng.below(30) == 0 {
                    let end = rng.key();
                    list.insert_range_deletion(&key, &end, seqno).unwrap();
                    vector.insert_range_deletion(&key, &end, seqno).unwrap();
                }
            }
            assert_eq!(vector.entry_count(), list.entry_count());
            assert_eq!(vector.deletion_count(), list.deletion_count());
            assert_eq!(vector.has_range_tombstones(), list.has_range_tombstones());
            let tombstones = |t: &dyn MemTable| -> Vec<_> {
                let all = t.range_tombstones();
                all.iter()
                    .map(|(s, e, n)| (s.to_vec(), e.to_vec(), n))
                    .collect()
            };
            assert_eq!(tombstones(&*vector), tombstones(&*list));
            let (mut a, mut b) = (list.clone().iter(), vector.clone().iter());
            assert!(!b.valid());
            for _ in 0..500 {
                match rng.below(6) {
                    0 if a.valid() => (a.next(), b.next()).0,
                    1 if a.valid() => (a.prev(), b.prev()).0,
                    2 => (a.seek_to_first(), b.seek_to_first()).0,
                    3 => (a.seek_to_last(), b.seek_to_last()).0,
                    way => {
                        let mut target = Vec::new();
                        let (key, seqno) = (rng.key(), rng.below(n + 2));
                        if rng.below(2) == 0 {
                            append_seek_key(&mut target, &key, seqno);
                        } else {
                            append_internal_key(&mut target, &key, seqno, ValueKind::Value);
                        }
                        if way == 4 {
                            (a.seek(&target), b.seek(&target)).0
                        } else {
                            (a.seek_for_prev(&target), b.seek_for_prev(&target)).0
                        }
                    }
                }
                assert_eq!(a.valid(), b.valid());
                if a.valid() {
                    assert_eq!((a.key(), a.value()), (b.key(), b.value()));
                }
                let (key, seqno, most) = (rng.key(), rng.below(n + 2), rng.below(3) as usize);
                assert_eq!(
                    versions(&*vector, &key, seqno, most),
                    versions(&*list, &key, seqno, most)
                );
            }
        }
    }
}

#[test]
fn it_fills_by_what_is_inserted_also_if_that_is_little() {
    let table = VectorMemTable::new(UserComparator::BYTEWISE);
    for n in 1..=1000u64 {
        table
            .insert(&n.to_be_bytes(), n, ValueKind::Value, &[7; 100])
            .unwrap();
        let least = n as usize * (8 + 8 + 100);
        assert!((least..least * 3 / 2).contains(&table.memory_usage()));
    }
}

#[test]
#[should_panic(expected = "takes no entries")]
fn what_was_read_takes_no_more() {
    let table = VectorMemTable::new(UserComparator::BYTEWISE);
    drop(table.clone().iter());
    table.insert(b"a", 1, ValueKind::Value, b"").unwrap();
}

#[test]
fn growth_is_told_to_the_byte_and_bounded() {
    let table = VectorMemTable::new(UserComparator::BYTEWISE);
    let dynamic: Arc<dyn MemTable> = table.clone();
    let watched = Arc::downgrade(&dynamic);
    let told = Arc::new(AtomicUsize::new(0));
    let pending = Arc::new(AtomicUsize::new(0));
    let (sum, open) = (told.clone(), pending);
    table.allocate_ahead_at_most(16 << 10);
    table.watch_growth(Box::new(move |moment, bytes| {
        let is = watched.upgrade().map(|t| t.memory_allocated());
        assert_eq!(
            is,
            Some(sum.load(Relaxed) + if moment == Moment::Before { 0 } else { bytes })
        );
        match moment {
            Moment::Before => open.fetch_add(bytes, Relaxed),
            Moment::After => sum.fetch_add(open.swap(0, Relaxed), Relaxed),
            Moment::Not => unreachable!("there is memory"),
        };
    }));
    for n in 0..20_000_u64 {
        let value = vec![
            b'v';
            if n % 1000 == 0 {
                40_000
            } else {
                n as usize % 50
            }
        ];
        table
            .insert(&n.to_be_bytes(), n, ValueKind::Value, &value)
            .unwrap();
        let (used, taken) = (table.memory_usage(), table.memory_allocated());
        assert_eq!(told.load(Relaxed), taken);
        assert!(used <= taken, "{used} of {taken}");
    }
    // A large value takes its own piece and leaves what is free in the one before.
    let wasted = table.memory_allocated() - table.memory_usage();
    assert!(wasted < 22 * (16 << 10), "{wasted}");
}
