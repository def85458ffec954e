//! Searches of ranges against the history that made the places.

use orogen_base::{SeqNo, UserComparator};

use crate::read::simulated::{Lsm, Op, Random, key, random_history};

/// What of a history is in a range, with its number.
fn in_range(
    order: &UserComparator,
    history: &[Op],
    (start, end): (&[u8], &[u8]),
) -> Vec<(SeqNo, Op)> {
    let numbered = history
        .iter()
        .enumerate()
        .map(|(i, op)| (i as SeqNo + 1, op));
    let meets = |op: &Op| match op {
        Op::Point(k, ..) => !order.less(k, start) && order.less(k, end),
        Op::DeleteRange(a, b) => order.less(a, b) && order.less(a, end) && order.less(start, b),
    };
    let met = numbered.filter(|(_, op)| order.less(start, end) && meets(op));
    met.map(|(n, op)| (n, op.clone())).collect()
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
            let (mut start, mut end) = (key(r.below(26)), key(r.below(26)));
            if order.less(&end, &start) {
                std::mem::swap(&mut start, &mut end);
            }
            let span = (last - lsm.oldest_reader) as usize;
            let back = r.below(span + 1).min(r.below(span + 1));
            let since = last - back as SeqNo;
            let read_seqno = last - r.below(back + 1) as SeqNo;
            let got = lsm
                .places()
                .written_since((&start, &end), since, read_seqno)
                .unwrap();
            let writes = in_range(&order, &history, (&start, &end));
            let wanted = writes
                .iter()
                .any(|(n, _)| (since + 1..=read_seqno).contains(n));
            assert_eq!(
                got.is_some(),
                wanted,
                "seed {seed}: {}..{} since {since} at {read_seqno}: {got:?}",
                start.escape_ascii(),
                end.escape_ascii()
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
            assert!(!order.less(&got.key, &start) && order.less(&got.key, &end));
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
        let (start, end) = (key(r.below(6)), key(6 + r.below(8)));
        let since = lsm.oldest_reader + (last - lsm.oldest_reader) / 2;
        let ask = || lsm.places().written_since((&start, &end), since, last);
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
