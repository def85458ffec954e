use super::*;
use crate::read::simulated::{Lsm, Random, key, random_history};
use crate::version::level::is_exclusive_end;

/// The answer from looking at every tombstone of every place.
fn brute_force(lsm: &Lsm, k: &[u8], read_seqno: SeqNo) -> (SeqNo, Option<usize>) {
    let user = &lsm.order.user;
    let mut answers = Vec::new();
    for (child, memtable) in lsm.memtables.iter().enumerate() {
        answers.push((
            child,
            memtable
                .range_tombstones()
                .max_covering_seqno(user, k, read_seqno),
        ));
    }
    let mut child = lsm.memtables.len();
    let is_inside = |f: &FileMeta| {
        let ordering = user.compare(k, f.largest_user_key());
        !user.less(k, f.smallest_user_key())
            && (ordering.is_lt() || ordering.is_eq() && !is_exclusive_end(&f.largest))
    };
    for (number, level) in lsm.version.levels().iter().enumerate() {
        for f in level.files() {
            if is_inside(f) {
                let tombstones = &lsm.tables.tables[&f.number].tombstones;
                answers.push((child, tombstones.max_covering_seqno(user, k, read_seqno)));
            }
            child += usize::from(number == 0);
        }
        child += usize::from(number > 0 && !level.is_empty());
    }
    let newest = answers.iter().map(|a| a.1).max().unwrap_or(0);
    (newest, answers.iter().find(|a| a.1 > 0).map(|a| a.0))
}

fn aggregate(
    lsm: &Lsm,
    read_seqno: SeqNo,
) -> RangeDelAggregator<crate::read::simulated::SimTables> {
    let mut agg = RangeDelAggregator::new(lsm.order.clone(), read_seqno);
    let mut child = 0;
    for memtable in &lsm.memtables {
        agg.add_memtable(child, memtable.range_tombstones());
        child += 1;
    }
    for file in lsm.version.files(0) {
        agg.add_file(child, file, &*lsm.tables).unwrap();
        child += 1;
    }
    for level in lsm
        .version
        .levels()
        .iter()
        .skip(1)
        .filter(|l| !l.is_empty())
    {
        agg.add_level(child, level.clone(), lsm.tables.clone());
        child += 1;
    }
    agg
}

#[test]
fn answers_are_those_of_all_tombstones_within_their_files() {
    for seed in 0..2500 {
        let mut r = Random(seed);
        let order = [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE]
            [usize::from(seed % 4 == 0)]
        .clone();
        let keys = *r.pick(&[4, 12, 40]);
        let history = random_history(&mut r, &order, keys);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let read_seqno = r.below(history.len() + 1) as SeqNo;
        let mut agg = aggregate(&lsm, read_seqno);
        let mut i = r.below(keys);
        for _ in 0..3 * keys {
            i = match r.below(8) {
                0 => r.below(keys + 2),
                1..4 => i.saturating_sub(1),
                4 => i,
                _ => i + 1,
            };
            let mut k = key(i);
            if r.one_in(5) {
                k.push(0);
            }
            let (seqno, child) = brute_force(&lsm, &k, read_seqno);
            let found = agg.covering(&k).unwrap();
            assert_eq!(found.seqno, seqno, "seed {seed} key {}", k.escape_ascii());
            if let Some(child) = child {
                assert_eq!(found.child, child, "seed {seed} key {}", k.escape_ascii());
                let start = agg.tombstone_start().unwrap();
                let end = agg.tombstone_end().unwrap();
                assert!(!order.less(&k, start));
                let ordering = order.compare(&k, end.user_key);
                assert!(ordering.is_lt() || ordering.is_eq() && end.inclusive);
            }
        }
    }
}

#[test]
fn a_tombstone_hides_everything_older_between_its_ends() {
    for seed in 0..200 {
        let mut r = Random(seed);
        let order = UserComparator::BYTEWISE;
        let history = random_history(&mut r, &order, 30);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let mut agg = aggregate(&lsm, history.len() as SeqNo);
        for i in 0..30 {
            let found = agg.covering(&key(i)).unwrap();
            if found.seqno == 0 {
                continue;
            }
            let start = agg.tombstone_start().unwrap().to_vec();
            let end = agg.tombstone_end().unwrap();
            let (end_key, inclusive) = (end.user_key.to_vec(), end.inclusive);
            for other in (0..30).map(key) {
                let ordering = order.compare(&other, &end_key);
                if !order.less(&other, &start)
                    && (ordering.is_lt() || ordering.is_eq() && inclusive)
                {
                    let (_, child) = brute_force(&lsm, &other, history.len() as SeqNo);
                    assert!(child.is_some_and(|c| c <= found.child), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn without_tombstones_nothing_is_asked() {
    let mut agg = RangeDelAggregator::<crate::read::simulated::SimTables>::new(
        InternalKeyComparator::default(),
        9,
    );
    agg.add_memtable(0, Arc::default());
    assert!(agg.is_empty());
    assert_eq!(agg.covering_seqno(b"k").unwrap(), 0);
}
