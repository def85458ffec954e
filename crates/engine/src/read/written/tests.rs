//! Searches of ranges against the history that made the places.

use orogen_base::key_range::{Endpoint, OwnedRange};
use orogen_base::{KeyRange, SeqNo, UserComparator};

use crate::read::simulated::{Lsm, Op, Random, key, random_history};

/// What of a history is in a range, with its number.
fn in_range(order: &UserComparator, history: &[Op], range: &OwnedRange) -> Vec<(SeqNo, Op)> {
    // Between two neighbours lies nothing.
    let range = KeyRange {
        start: range.start.before_next(order),
        end: range.end.clone(),
    };
    let numbered = history
        .iter()
        .enumerate()
        .map(|(i, op)| (i as SeqNo + 1, op));
    let meets = |op: &Op| match op {
        Op::Point(k, ..) => range.contains(order, k),
        Op::DeleteRange(a, b) => {
            order.less(a, b) && range.overlaps(order, &KeyRange::new(a, b, false))
        }
    };
    let met = numbered.filter(|(_, op)| !range.is_empty(order) && meets(op));
    met.map(|(n, op)| (n, op.clone())).collect()
}

/// Half of all ends are before a key.
fn random_end(r: &mut Random) -> Endpoint<Box<[u8]>> {
    let mut key = key(r.below(26));
    match r.below(10) {
        0 => Endpoint::First,
        1 => Endpoint::Last,
        2 | 3 => Endpoint::After(key.into()),
        4 => {
            key.truncate(2 + r.below(3));
            Endpoint::AfterPrefix(key.into())
        }
        _ => Endpoint::Before(key.into()),
    }
}

#[test]
fn a_range_was_written_since_if_and_only_if_the_history_says_so() {
    let (mut found, mut none) = (0, 0);
    for seed in 0..300 {
        let mut r = Random(seed);
        let order = [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE]
            [usize::from(seed % 4 == 0)]
        .clone();
        let history = random_history(&mut r, &order, 24);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let last = history.len() as SeqNo;
        for _ in 0..60 {
            let (mut start, mut end) = (random_end(&mut r), random_end(&mut r));
            if end.compare(&order, &start).is_lt() {
                std::mem::swap(&mut start, &mut end);
            }
            let range = KeyRange { start, end };
            let span = (last - lsm.oldest_reader) as usize;
            let back = r.below(span + 1).min(r.below(span + 1));
            let since = last - back as SeqNo;
            let read_seqno = last - r.below(back + 1) as SeqNo;
            let got = lsm
                .places()
                .written_since(&range, since, read_seqno)
                .unwrap();
            let writes = in_range(&order, &history, &range);
            let wanted = writes
                .iter()
                .any(|(n, _)| (since + 1..=read_seqno).contains(n));
            assert_eq!(
                got.is_some(),
                wanted,
                "seed {seed}: {range:?} since {since} at {read_seqno}: {got:?}"
            );
            let Some(got) = got else {
                none += 1;
                continue;
            };
            found += 1;
            let (_, op) = writes
                .iter()
                .find(|(n, _)| *n == got.seqno)
                .expect("it is a write to the range");
            match op {
                Op::Point(k, ..) => assert_eq!(*k, got.key),
                Op::DeleteRange(a, b) => {
                    assert!(!order.less(&got.key, a) && order.less(&got.key, b));
                }
            }
            // In another order than that of bytes the first key behind one has no name.
            let is_start = range.start.key() == Some(&got.key) && !order.is_bytewise();
            assert!(is_start || range.contains(&order, &got.key), "{range:?}");
        }
    }
    assert!(found > 1000 && none > 1000, "{found} {none}");
}

#[test]
fn what_cannot_be_read_is_an_error_and_no_answer() {
    for seed in 0..60 {
        let mut r = Random(seed);
        let order = UserComparator::BYTEWISE;
        let history = random_history(&mut r, &order, 12);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let last = history.len() as SeqNo;
        let range = KeyRange::new(key(r.below(6)), key(6 + r.below(8)), false);
        let since = lsm.oldest_reader + (last - lsm.oldest_reader) / 2;
        let ask = || lsm.places().written_since(&range, since, last);
        lsm.tables.fuse.set(-1);
        let wanted = ask().unwrap();
        for n in 0.. {
            lsm.tables.fuse.set(n);
            if let Ok(got) = ask() {
                assert_eq!(got, wanted, "seed {seed}");
                break;
            }
        }
    }
}
