//! Groups beside their shadows.

use orogen_testkit::rng::Rng;

use super::*;
use crate::format::Compression;
use crate::item::Entries;

fn block(queue: Queue, seq: u64) -> Block {
    Block {
        file: FileId::new(queue, seq),
        offset: 100,
        len: 50,
        compression: Compression::None,
    }
}

#[test]
fn ranges_of_keys_may_be_void_or_the_wrong_way_round() {
    let mut group = Group::default();
    let place = block(Queue::Append, 1);
    for key in ["a", "b", "c"] {
        let (key, value) = (key.into(), Vec::new());
        group.apply(Op::Put { key, value }, place);
    }
    let count = |start: Option<&str>, end: Option<&str>| {
        let (start, end) = (start.map(str::as_bytes), end.map(str::as_bytes));
        group.range(start, end).count()
    };
    assert_eq!(count(None, None), 3);
    assert_eq!(count(Some("b"), None), 2);
    assert_eq!(count(Some("a"), Some("c")), 2);
    assert_eq!(count(Some("b"), Some("b")), 0);
    assert_eq!(count(Some("c"), Some("a")), 0);
    assert_eq!(count(None, Some("")), 0);
}

/// Replays a group from operation `from` on over what it was behind operation `rewritten`; nothing before `from` is there any more.
fn replayed(ops: &[Op], from: usize, rewritten: usize) -> Group {
    let step = |group: &mut Group, n: usize, op: &Op| match op {
        Op::Clean => group.clean(),
        op => group.replay(op.clone(), block(Queue::Append, n as u64)),
    };
    let mut was = Group::default();
    for (n, op) in ops[..rewritten].iter().enumerate() {
        step(&mut was, n, op);
    }
    was.settle();
    let mut group = Group::default();
    let span = was.span();
    for first in span.first..span.next {
        let entries = Entries {
            first,
            start: 0,
            ends: vec![1],
        };
        group.replay(Op::Entries(entries), block(Queue::Rewrite, 1));
    }
    for (n, op) in ops.iter().enumerate().skip(from) {
        step(&mut group, n, op);
    }
    group.settle();
    group
}

#[test]
fn what_is_left_of_the_append_queue_goes_over_the_rewrite_queue() {
    let mut rng = Rng::new(Rng::seed_or(23));
    for _ in 0..3000 {
        let mut span = Span::default();
        let mut ops = Vec::new();
        for _ in 0..rng.range(1..25) {
            let op = match rng.below(8) {
                0 => Op::Clean,
                1 | 2 => Op::Compact {
                    index: span.first + rng.below(span.next - span.first + 2),
                },
                n => {
                    let first = match n {
                        3 if span.is_empty() => rng.below(20),
                        3..6 => span.first + rng.below(span.next - span.first + 1),
                        _ => span.next,
                    };
                    let count = rng.range(1..5) as u32;
                    Op::Entries(Entries {
                        first,
                        start: 0,
                        ends: (1..=count).collect(),
                    })
                }
            };
            span = span.after(1, &op).unwrap();
            ops.push(op);
        }
        let rewritten = rng.range(0..ops.len() + 1);
        let from = rng.range(0..rewritten + 1);
        let group = replayed(&ops, from, rewritten);
        let what = format!("from {from}, {rewritten} rewritten: {ops:?}");
        assert_eq!(group.span(), span, "{what}");
        let whole = replayed(&ops, 0, 0);
        for index in span.first..span.next {
            let place = group.index().locate(index).unwrap().block.file;
            let newest = whole.index().locate(index).unwrap().block.file;
            // A rewritten entry is the newest that was there.
            if place.queue == Queue::Append {
                assert_eq!(place, newest, "{index}, {what}");
            } else {
                assert!(newest.seq < rewritten as u64, "{index}, {what}");
            }
        }
    }
}
