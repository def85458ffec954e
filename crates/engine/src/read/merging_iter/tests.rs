use std::sync::Arc;

use orogen_base::{UserComparator, ValueKind};

use super::*;
use crate::read::simulated::{Fuse, Random, VecIter, internal_key, key};

/// Children and all their entries with the child of each, in the order of the merge.
fn random_children(
    r: &mut Random,
    order: &InternalKeyComparator,
    fuse: &Fuse,
) -> (Vec<VecIter>, Vec<(Vec<u8>, usize)>) {
    let n = r.below(7);
    let mut all = Vec::new();
    let mut children = Vec::new();
    for child in 0..n {
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = (0..r.below(20))
            .map(|_| {
                let k = internal_key(&key(r.below(9)), r.below(5) as u64, ValueKind::Value);
                (k, vec![child as u8])
            })
            .collect();
        entries.sort_by(|a, b| order.compare(&a.0, &b.0));
        entries.dedup();
        all.extend(entries.iter().map(|e| (e.0.clone(), child)));
        children.push(VecIter::new(order.clone(), Arc::new(entries), fuse.clone()));
    }
    all.sort_by(|a, b| order.compare(&a.0, &b.0).then(a.1.cmp(&b.1)));
    (children, all)
}

#[test]
fn random_moves_see_what_a_sorted_list_has_also_where_children_have_equal_keys() {
    for seed in 0..600 {
        let mut r = Random(seed);
        let user = [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE]
            [usize::from(seed % 4 == 0)]
        .clone();
        let order = InternalKeyComparator::new(user);
        let (children, all) = random_children(&mut r, &order, &Fuse::never());
        let mut iter = MergingIter::new(order.clone(), children);
        assert!(!iter.valid());
        let mut at: Option<usize> = None;
        for _ in 0..80 {
            let target = internal_key(&key(r.below(10)), r.below(6) as u64, ValueKind::Value);
            let first_not_before = all.partition_point(|e| order.compare(&e.0, &target).is_lt());
            let first_after = all.partition_point(|e| order.compare(&e.0, &target).is_le());
            at = match (r.below(12), at) {
                (0, _) => {
                    iter.seek_to_first();
                    (!all.is_empty()).then_some(0)
                }
                (1, _) => {
                    iter.seek_to_last();
                    all.len().checked_sub(1)
                }
                (2, _) => {
                    iter.seek(&target);
                    (first_not_before < all.len()).then_some(first_not_before)
                }
                (3, _) => {
                    iter.seek_for_prev(&target);
                    first_after.checked_sub(1)
                }
                (4..8, Some(i)) => {
                    iter.next();
                    (i + 1 < all.len()).then_some(i + 1)
                }
                (_, Some(i)) => {
                    iter.prev();
                    i.checked_sub(1)
                }
                (_, None) => None,
            };
            assert_eq!(iter.valid(), at.is_some(), "seed {seed}");
            assert!(iter.status().is_ok());
            if let Some(i) = at {
                assert_eq!(
                    (iter.key(), iter.child()),
                    (&all[i].0[..], all[i].1),
                    "seed {seed}"
                );
                assert_eq!(iter.value(), [all[i].1 as u8]);
            }
        }
    }
}

#[test]
fn older_children_jump_and_newer_ones_stay() {
    for seed in 0..300 {
        let mut r = Random(seed);
        let order = InternalKeyComparator::default();
        let (children, all) = random_children(&mut r, &order, &Fuse::never());
        let mut iter = MergingIter::new(order.clone(), children);
        let is_forward = r.one_in(2);
        if is_forward {
            iter.seek_to_first()
        } else {
            iter.seek_to_last()
        }
        let steps = r.below(10);
        for _ in 0..steps {
            if iter.valid() {
                if is_forward { iter.next() } else { iter.prev() }
            }
        }
        if !iter.valid() {
            continue;
        }
        let here = (iter.key().to_vec(), iter.child());
        let newer = r.below(7);
        let target = internal_key(&key(r.below(10)), r.below(6) as u64, ValueKind::Value);
        let is_left = |e: &&(Vec<u8>, usize)| {
            let from_here = order.compare(&e.0, &here.0).then(e.1.cmp(&here.1));
            let from_target = order.compare(&e.0, &target);
            if is_forward {
                from_here.is_ge() && (e.1 <= newer || from_target.is_ge())
            } else {
                from_here.is_le() && (e.1 <= newer || from_target.is_le())
            }
        };
        let mut want: Vec<_> = all.iter().filter(is_left).cloned().collect();
        if is_forward {
            iter.seek_older(newer, &target);
        } else {
            iter.seek_older_for_prev(newer, &target);
            want.reverse();
        }
        let mut got = Vec::new();
        while iter.valid() {
            got.push((iter.key().to_vec(), iter.child()));
            if is_forward { iter.next() } else { iter.prev() }
        }
        assert_eq!(got, want, "seed {seed}");
    }
}

#[test]
fn an_error_of_any_child_ends_the_merge_until_the_next_seek() {
    for seed in 0..100 {
        let mut r = Random(seed);
        let order = InternalKeyComparator::default();
        let fuse = Fuse::never();
        let (children, all) = random_children(&mut r, &order, &fuse);
        let mut iter = MergingIter::new(order.clone(), children);
        for n in 0.. {
            fuse.set(n);
            let mut got = Vec::new();
            iter.seek_to_first();
            while iter.valid() {
                got.push((iter.key().to_vec(), iter.child()));
                iter.next();
            }
            assert!(all.starts_with(&got));
            if iter.status().is_ok() {
                assert_eq!(got, all);
                break;
            }
        }
        fuse.set(-1);
        iter.seek_to_last();
        assert!(iter.status().is_ok());
        assert_eq!(iter.valid(), !all.is_empty());
    }
}
