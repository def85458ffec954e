use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_base::slice_transform::FixedPrefix;

use super::*;
use crate::read::simulated::{Lsm, Op, PREFIX_LEN, Random, SimTables, key, model, random_history};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn open(lsm: &Lsm, options: &ReadOptions, read_seqno: SeqNo) -> Result<DbIterator<SimTables>> {
    let extractor: Arc<dyn SliceTransform> = Arc::new(FixedPrefix::new(PREFIX_LEN));
    DbIterator::new(
        &lsm.places(),
        Scan {
            options,
            read_seqno,
            prefix_extractor: Some(&extractor),
            pin: Arc::new(()),
        },
    )
}

fn orders(seed: u64) -> UserComparator {
    let reverse = seed.is_multiple_of(4);
    if reverse {
        UserComparator::REVERSE_BYTEWISE
    } else {
        UserComparator::BYTEWISE
    }
}

/// The pairs that an iterator with these options may show.
fn bounded(order: &UserComparator, mut pairs: Pairs, options: &ReadOptions) -> Pairs {
    if let Some(l) = &options.iterate_lower_bound {
        pairs.retain(|e| !order.less(&e.0, l));
    }
    if let Some(u) = &options.iterate_upper_bound {
        pairs.retain(|e| order.less(&e.0, u));
    }
    pairs
}

fn random_bounds(r: &mut Random, keys: usize) -> ReadOptions {
    let mut bound = || {
        let mut k = key(r.below(keys + 1));
        if r.one_in(4) {
            k.push(0);
        }
        r.one_in(3).then_some(k)
    };
    ReadOptions {
        iterate_lower_bound: bound(),
        iterate_upper_bound: bound(),
        ..ReadOptions::default()
    }
}

/// Writes that come while an iterator is open: it must not see them.
fn disturb(r: &mut Random, lsm: &Lsm, seqno: &mut SeqNo, keys: usize) {
    *seqno += 1;
    let kind = *r.pick(&[ValueKind::Value, ValueKind::Deletion, ValueKind::Merge]);
    let k = key(r.below(keys));
    lsm.memtables[0].insert(&k, *seqno, kind, b"later").unwrap();
    if r.one_in(4) {
        lsm.memtables[0]
            .insert_range_deletion(&k, &key(r.below(keys)), *seqno)
            .unwrap();
    }
}

#[test]
fn random_moves_see_what_the_model_has() {
    for seed in 0..1500 {
        let mut r = Random(seed);
        let order = orders(seed);
        let keys = *r.pick(&[3, 12, 40]);
        let history = random_history(&mut r, &order, keys);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let last = history.len() as SeqNo;
        let span = (last - lsm.oldest_reader + 1) as usize;
        let read_seqno = if r.one_in(2) {
            last
        } else {
            lsm.oldest_reader + r.below(span) as SeqNo
        };
        let options = random_bounds(&mut r, keys);
        let pairs = bounded(&order, model(&order, &history, read_seqno), &options);
        let mut iter = open(&lsm, &options, read_seqno).unwrap();
        let mut newest = last;
        let mut at: Option<usize> = None;
        for step in 0..150 {
            if r.one_in(10) {
                disturb(&mut r, &lsm, &mut newest, keys);
            }
            let mut target = key(r.below(keys + 2));
            if r.one_in(4) {
                target.pop();
            }
            at = match (r.below(24), at) {
                (0, _) => {
                    iter.seek_to_first();
                    (!pairs.is_empty()).then_some(0)
                }
                (1, _) => {
                    iter.seek_to_last();
                    pairs.len().checked_sub(1)
                }
                (2 | 3, _) | (_, None) if step % 2 == 0 => {
                    iter.seek(&target);
                    let i = pairs.partition_point(|e| order.less(&e.0, &target));
                    (i < pairs.len()).then_some(i)
                }
                (2 | 3, _) | (_, None) => {
                    iter.seek_for_prev(&target);
                    pairs
                        .partition_point(|e| !order.less(&target, &e.0))
                        .checked_sub(1)
                }
                (4..15, Some(i)) => {
                    iter.next();
                    (i + 1 < pairs.len()).then_some(i + 1)
                }
                (_, Some(i)) => {
                    iter.prev();
                    i.checked_sub(1)
                }
            };
            let got = iter
                .valid()
                .then(|| (iter.key().to_vec(), iter.value().to_vec()));
            assert_eq!(got, at.map(|i| pairs[i].clone()), "seed {seed} step {step}");
            assert!(iter.status().is_ok());
            if let Some(i) = at {
                assert_eq!(&*iter.pinned_value().unwrap(), &*pairs[i].1);
            }
        }
    }
}

fn all_forward(iter: &mut DbIterator<SimTables>) -> Pairs {
    let mut out = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        out.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    out
}

fn all_backward(iter: &mut DbIterator<SimTables>) -> Pairs {
    let mut out = Vec::new();
    iter.seek_to_last();
    while iter.valid() {
        out.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.prev();
    }
    out.reverse();
    out
}

#[test]
fn every_sequence_number_has_its_own_view_both_ways() {
    for seed in 0..60 {
        let mut r = Random(seed);
        let order = orders(seed);
        let history = random_history(&mut r, &order, 12);
        let lsm = Lsm::spread(&mut r, &order, &history);
        for read_seqno in lsm.oldest_reader..=history.len() as SeqNo {
            let pairs = model(&order, &history, read_seqno);
            let mut iter = open(&lsm, &ReadOptions::default(), read_seqno).unwrap();
            assert_eq!(all_forward(&mut iter), pairs, "seed {seed} at {read_seqno}");
            assert_eq!(
                all_backward(&mut iter),
                pairs,
                "seed {seed} at {read_seqno}"
            );
        }
    }
}

#[test]
fn a_prefix_ends_the_iteration_and_hides_nothing_within() {
    let mut useful_in_all = 0;
    for seed in 0..300 {
        let mut r = Random(seed);
        let order = orders(seed);
        let keys = 20;
        let history = random_history(&mut r, &order, keys);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let read_seqno = history.len() as SeqNo;
        let mut options = random_bounds(&mut r, keys);
        options.prefix_same_as_start = true;
        options.total_order_seek = r.one_in(4);
        let pairs = bounded(&order, model(&order, &history, read_seqno), &options);
        let mut iter = open(&lsm, &options, read_seqno).unwrap();
        let mut useful = 0;
        for _ in 0..30 {
            let target = key(r.below(keys + 1));
            let mut within = pairs.clone();
            within.retain(|e| e.0[..PREFIX_LEN] == target[..PREFIX_LEN]);
            let mut at = if r.one_in(2) {
                iter.seek(&target);
                let i = within.partition_point(|e| order.less(&e.0, &target));
                (i < within.len()).then_some(i)
            } else {
                iter.seek_for_prev(&target);
                within
                    .partition_point(|e| !order.less(&target, &e.0))
                    .checked_sub(1)
            };
            let mostly_forward = r.one_in(2);
            loop {
                let got = iter
                    .valid()
                    .then(|| (iter.key().to_vec(), iter.value().to_vec()));
                assert_eq!(got, at.map(|i| within[i].clone()), "seed {seed}");
                assert!(iter.status().is_ok());
                let Some(i) = at else { break };
                at = if r.one_in(4) != mostly_forward {
                    iter.next();
                    (i + 1 < within.len()).then_some(i + 1)
                } else {
                    iter.prev();
                    i.checked_sub(1)
                };
            }
            useful = lsm.statistics.get(Ticker::BloomFilterPrefixUseful);
        }
        useful_in_all += useful;
        // The first key's prefix.
        let first = all_forward(&mut iter);
        let head = pairs.first().map(|e| e.0[..3].to_vec());
        let want: Pairs = pairs
            .iter()
            .take_while(|e| Some(&e.0[..3]) == head.as_deref())
            .cloned()
            .collect();
        assert_eq!(first, want, "seed {seed}");
        iter.seek(&key(r.below(keys)));
        // A target without a prefix sets no end.
        iter.seek(b"k");
        let from: Pairs = pairs
            .iter()
            .filter(|e| !order.less(&e.0, b"k"))
            .cloned()
            .collect();
        let mut got = Vec::new();
        while iter.valid() {
            got.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        assert_eq!(got, from, "seed {seed}");
    }
    assert!(useful_in_all > 1000, "{useful_in_all}");
}

#[test]
fn an_error_below_is_told_and_nothing_false_is_shown_before_it() {
    for seed in 0..50 {
        let mut r = Random(seed);
        let order = orders(seed);
        let history = random_history(&mut r, &order, 12);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let last = history.len() as SeqNo;
        let pairs = model(&order, &history, last);
        let fuse = &lsm.tables.fuse;
        for n in 0.. {
            fuse.set(n);
            let Ok(mut iter) = open(&lsm, &ReadOptions::default(), last) else {
                continue;
            };
            let got = all_forward(&mut iter);
            assert!(pairs.starts_with(&got), "seed {seed}");
            if iter.status().is_ok() {
                assert_eq!(got, pairs);
                break;
            }
        }
        fuse.set(-1);
        let mut iter = open(&lsm, &ReadOptions::default(), last).unwrap();
        for n in 0.. {
            fuse.set(n);
            let got = all_backward(&mut iter);
            assert!(pairs.ends_with(&got), "seed {seed}");
            if iter.status().is_ok() {
                assert_eq!(got, pairs);
                break;
            }
        }
        // Turning around at every place, with an error at every place.
        fuse.set(-1);
        for turn in 0..pairs.len() {
            for n in 0.. {
                fuse.set(-1);
                iter.seek(&pairs[turn].0);
                assert_eq!(iter.key(), pairs[turn].0);
                fuse.set(n);
                iter.prev();
                let before = turn.checked_sub(1).map(|i| &*pairs[i].0);
                if iter.status().is_ok() {
                    assert_eq!(iter.valid().then(|| iter.key()), before);
                    iter.next();
                    if before.is_none() {
                        break;
                    }
                    if iter.status().is_ok() {
                        assert_eq!(iter.key(), pairs[turn].0);
                        assert_eq!(iter.value(), pairs[turn].1);
                        break;
                    }
                }
                assert!(!iter.valid());
            }
        }
    }
}

fn points(ops: &[(&[u8], ValueKind, &[u8])]) -> Vec<Op> {
    ops.iter()
        .map(|(k, kind, v)| Op::Point(k.to_vec(), *kind, v.to_vec()))
        .collect()
}

#[test]
fn pointers_that_lead_nowhere_are_errors_unless_something_newer_hides_them() {
    use ValueKind::{BlobIndex, Deletion, Merge, Value};
    let history = points(&[
        (b"a", BlobIndex, b"x"),
        (b"a", Value, b"1"),
        (b"b", BlobIndex, b"x"),
        (b"b", Deletion, b""),
        (b"c", BlobIndex, b"x"),
        (b"d", Value, b"1"),
        (b"e", BlobIndex, b"x"),
        (b"e", Merge, b"2"),
    ]);
    for seed in 0..20 {
        let lsm = Lsm::spread(&mut Random(seed), &UserComparator::BYTEWISE, &history);
        let last = history.len() as SeqNo;
        let mut iter = open(&lsm, &ReadOptions::default(), last).unwrap();
        assert_eq!(all_forward(&mut iter), [(b"a".to_vec(), b"1".to_vec())]);
        assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corruption);
        iter.seek(b"d");
        assert_eq!(iter.value(), b"1");
        iter.next();
        assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corruption);
        assert!(all_backward(&mut iter).is_empty());
        assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corruption);
        iter.seek_for_prev(b"b");
        assert_eq!(iter.key(), b"a");
    }
}

#[test]
fn a_failed_merge_is_an_error_both_ways() {
    let history = points(&[(b"a", ValueKind::Merge, b"x")]);
    let lsm = Lsm::spread(&mut Random(1), &UserComparator::BYTEWISE, &history);
    let places = Places {
        merge_operator: None,
        ..lsm.places()
    };
    let options = ReadOptions::default();
    let scan = Scan {
        options: &options,
        read_seqno: 1,
        prefix_extractor: None,
        pin: Arc::new(()),
    };
    let mut iter = DbIterator::new(&places, scan).unwrap();
    for backward in [false, true] {
        if backward {
            iter.seek_to_last()
        } else {
            iter.seek_to_first()
        }
        assert!(!iter.valid());
        assert_eq!(
            iter.status().unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
    }
    assert_eq!(lsm.statistics.get(Ticker::NumberMergeFailures), 2);
}

#[test]
fn moves_are_counted_when_the_iterator_ends() {
    let history = points(&[
        (b"a", ValueKind::Value, b"11"),
        (b"b", ValueKind::Value, b"old"),
        (b"b", ValueKind::Value, b"22"),
    ]);
    let lsm = Lsm::spread(&mut Random(1), &UserComparator::BYTEWISE, &history);
    let mut iter = open(&lsm, &ReadOptions::default(), 3).unwrap();
    assert_eq!(all_forward(&mut iter).len(), 2);
    assert_eq!(all_backward(&mut iter).len(), 2);
    iter.seek(b"c");
    drop(iter);
    let count = |t| lsm.statistics.get(t);
    assert_eq!(count(Ticker::NoIteratorCreated), 1);
    assert_eq!(
        (
            count(Ticker::NumberDbSeek),
            count(Ticker::NumberDbSeekFound)
        ),
        (3, 2)
    );
    assert_eq!(
        (
            count(Ticker::NumberDbNext),
            count(Ticker::NumberDbNextFound)
        ),
        (2, 1)
    );
    assert_eq!(
        (
            count(Ticker::NumberDbPrev),
            count(Ticker::NumberDbPrevFound)
        ),
        (2, 1)
    );
    assert_eq!(count(Ticker::IterBytesRead), 4 * 3);
    assert!(count(Ticker::NumberIterSkip) > 0);
}

#[test]
fn what_it_pins_lives_as_long_as_it() {
    let lsm = Lsm::spread(&mut Random(1), &UserComparator::BYTEWISE, &[]);
    let pin = Arc::new(5);
    let options = ReadOptions::default();
    let scan = Scan {
        options: &options,
        read_seqno: 1,
        prefix_extractor: None,
        pin: pin.clone(),
    };
    let iter = DbIterator::new(&lsm.places(), scan).unwrap();
    assert_eq!(Arc::strong_count(&pin), 2);
    drop(iter);
    assert_eq!(Arc::strong_count(&pin), 1);
}

#[test]
fn a_range_tombstone_over_many_keys_is_skipped_by_few_steps() {
    let put = |i: usize| Op::Point(format!("{i:05}").into_bytes(), ValueKind::Value, vec![1]);
    let mut history: Vec<Op> = (0..5000).map(put).collect();
    history.push(Op::DeleteRange(b"00010".to_vec(), b"04990".to_vec()));
    let mut lsm = Lsm::spread(&mut Random(1), &UserComparator::BYTEWISE, &[]);
    // All values in the last memtable, the tombstone in the first.
    let old = orogen_memtable::GuidedListMemTable::new(UserComparator::BYTEWISE);
    for i in 0..5000 {
        MemTable::insert(
            &*old,
            format!("{i:05}").as_bytes(),
            i + 1,
            ValueKind::Value,
            &[1],
        )
        .unwrap();
    }
    lsm.memtables[0]
        .insert_range_deletion(b"00010", b"04990", 5001)
        .unwrap();
    lsm.memtables.push(old);
    for seqno in [5001, 5000] {
        let pairs = model(&UserComparator::BYTEWISE, &history, seqno);
        let mut iter = open(&lsm, &ReadOptions::default(), seqno).unwrap();
        assert_eq!(all_forward(&mut iter), pairs);
        assert_eq!(all_backward(&mut iter), pairs);
        if seqno == 5001 {
            assert!(iter.counts.skipped < 100, "{}", iter.counts.skipped);
        }
    }
}
