use orogen_base::UserComparator;
use orogen_base::ValueKind;

use super::*;
use crate::read::simulated::{Lsm, Random, SimTables, internal_key, key, random_history};

fn level_iter(
    lsm: &Lsm,
    level: usize,
    lower: Option<&[u8]>,
    upper: Option<&[u8]>,
) -> LevelIter<SimTables> {
    let level = lsm.version.levels()[level].clone();
    LevelIter::new(
        lsm.order.clone(),
        lsm.tables.clone(),
        (),
        level,
        lower,
        upper,
    )
}

/// All entries of a level.
fn all_entries(lsm: &Lsm, level: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let files = lsm.version.files(level).iter();
    files
        .flat_map(|f| lsm.tables.tables[&f.number].entries.iter().cloned())
        .collect()
}

fn random_lsm(r: &mut Random, seed: u64) -> Lsm {
    let order = [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE]
        [usize::from(seed.is_multiple_of(4))]
    .clone();
    let history = random_history(r, &order, 30);
    Lsm::spread(r, &order, &history)
}

#[test]
fn random_moves_see_what_the_files_have_one_after_the_other() {
    for seed in 0..300 {
        let mut r = Random(seed);
        let lsm = random_lsm(&mut r, seed);
        let level = 1 + r.below(3);
        let all = all_entries(&lsm, level);
        let mut iter = level_iter(&lsm, level, None, None);
        let order = &lsm.order;
        let mut at: Option<usize> = None;
        for _ in 0..100 {
            let target = internal_key(&key(r.below(32)), r.below(200) as u64, ValueKind::Merge);
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
                    (iter.key(), iter.value()),
                    (&*all[i].0, &*all[i].1),
                    "seed {seed}"
                );
            }
        }
    }
}

#[test]
fn bounds_keep_files_closed_and_lose_no_entry_within() {
    for seed in 0..300 {
        let mut r = Random(seed);
        let lsm = random_lsm(&mut r, seed);
        let user = &lsm.order.user;
        let level = 1 + r.below(3);
        let (a, b) = (key(r.below(30)), key(r.below(30)));
        let lower = (!r.one_in(4)).then_some(&*a);
        let upper = (!r.one_in(4)).then_some(&*b);
        let is_within = |k: &[u8]| {
            lower.is_none_or(|l| !user.less(k, l)) && upper.is_none_or(|u| user.less(k, u))
        };
        let user_key = orogen_base::key::user_key;
        let mut want: Vec<_> = all_entries(&lsm, level);
        want.retain(|e| is_within(user_key(&e.0)));
        for is_forward in [true, false] {
            let mut iter = level_iter(&lsm, level, lower, upper);
            let mut got = Vec::new();
            if is_forward {
                iter.seek_to_first()
            } else {
                iter.seek_to_last()
            }
            while iter.valid() {
                got.push((iter.key().to_vec(), iter.value().to_vec()));
                if is_forward { iter.next() } else { iter.prev() }
            }
            if !is_forward {
                got.reverse();
            }
            got.retain(|e| is_within(user_key(&e.0)));
            assert_eq!(got, want, "seed {seed}");
        }
        for number in lsm.tables.opened.lock().iter() {
            let file = lsm.version.find(*number).unwrap().1;
            assert!(lower.is_none_or(|l| !user.less(file.largest_user_key(), l)));
            assert!(upper.is_none_or(|u| user.less(file.smallest_user_key(), u)));
        }
    }
}

#[test]
fn an_error_ends_the_cursor_until_the_next_seek() {
    for seed in 0..60 {
        let mut r = Random(seed);
        let lsm = random_lsm(&mut r, seed);
        let level = 1 + r.below(3);
        let all = all_entries(&lsm, level);
        let mut iter = level_iter(&lsm, level, None, None);
        for n in 0.. {
            lsm.tables.fuse.set(n);
            let mut got = Vec::new();
            iter.seek_to_first();
            while iter.valid() {
                got.push((iter.key().to_vec(), iter.value().to_vec()));
                iter.next();
            }
            assert!(all.starts_with(&got));
            if iter.status().is_ok() {
                assert_eq!(got, all);
                break;
            }
        }
    }
}
