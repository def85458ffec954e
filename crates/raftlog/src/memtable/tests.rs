//! The index against a map from index to entry, under random histories.

use orogen_testkit::rng::Rng;

use super::*;

fn block(rng: &mut Rng, seq: u64) -> Block {
    let compression = if rng.chance(1, 2) {
        Compression::Lz4
    } else {
        Compression::None
    };
    Block {
        file: FileId::new(Queue::Append, seq),
        offset: rng.u64(),
        len: rng.u64() as u32,
        compression,
    }
}

#[test]
fn an_index_finds_what_a_map_finds() {
    let mut rng = Rng::new(Rng::seed_or(21));
    for _ in 0..200 {
        let mut group = Group::default();
        let mut model: BTreeMap<u64, Location> = BTreeMap::new();
        for seq in 0..60 {
            let span = group.span();
            let op = if rng.chance(3, 4) {
                let first = match rng.below(4) {
                    0 => rng.below(40),
                    1 => span.first + rng.below(span.next - span.first + 1),
                    _ => span.next,
                };
                let start = rng.below(1000) as u32;
                let mut end = start;
                let ends = (0..rng.below(6))
                    .map(|_| {
                        end += rng.below(9) as u32;
                        end
                    })
                    .collect();
                Op::Entries(Entries { first, start, ends })
            } else {
                Op::Compact {
                    index: rng.below(span.next + 3),
                }
            };
            let after = span.after(1, &op);
            let place = block(&mut rng, seq);
            match &op {
                Op::Entries(entries) if !entries.ends.is_empty() => {
                    if after.is_err() {
                        model.clear();
                    }
                    model.split_off(&entries.first);
                    let mut start = entries.start;
                    for (index, end) in (entries.first..).zip(&entries.ends) {
                        let location = Location {
                            block: place,
                            start,
                            end: *end,
                        };
                        model.insert(index, location);
                        start = *end;
                    }
                }
                Op::Compact { index } => model = model.split_off(index),
                _ => {}
            }
            group.apply(op, place);
            let span = group.span();
            assert_eq!(span.is_empty(), model.is_empty());
            if let Ok(after) = after
                && !after.is_empty()
            {
                assert_eq!(after, span);
            }
            for index in 0..span.next + 5 {
                assert_eq!(group.locate(index), model.get(&index).copied(), "{index}");
            }
        }
    }
}

/// Replays a group from operation `from` on over what it was behind operation `rewritten`; nothing before `from` is there any more.
fn replayed(ops: &[Op], from: usize, rewritten: usize) -> Group {
    let at = |queue, seq| Block {
        file: FileId::new(queue, seq),
        offset: 0,
        len: 1,
        compression: Compression::None,
    };
    let mut was = Group::default();
    let apply = |group: &mut Group, n: usize, op: &Op| match op {
        Op::Clean => *group = Group::default(),
        op => group.apply(op.clone(), at(Queue::Append, n as u64)),
    };
    for (n, op) in ops[..rewritten].iter().enumerate() {
        apply(&mut was, n, op);
    }
    let mut group = Group::default();
    let span = was.span();
    for index in span.first..span.next {
        let entries = Entries {
            first: index,
            start: 0,
            ends: vec![1],
        };
        group.append(&entries, at(Queue::Rewrite, index));
    }
    for (n, op) in ops.iter().enumerate().skip(from) {
        apply(&mut group, n, op);
    }
    group.end_recovery();
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
        assert_eq!(
            group.span(),
            span,
            "from {from}, {rewritten} rewritten: {ops:?}"
        );
        let whole = replayed(&ops, 0, 0);
        for index in span.first..span.next {
            let place = group.locate(index).unwrap().block.file;
            let newest = whole.locate(index).unwrap().block.file;
            // A rewritten entry is the newest that was there.
            if place.queue == Queue::Append {
                assert_eq!(place, newest, "{index}");
            } else {
                assert!(newest.seq < rewritten as u64, "{index}: {ops:?}");
            }
        }
    }
}

#[test]
fn an_index_gives_memory_back() {
    let mut group = Group::default();
    let mut rng = Rng::new(1);
    for first in 1..=10_000 {
        let entries = Entries {
            first,
            start: 0,
            ends: vec![1],
        };
        let place = block(&mut rng, first);
        group.append(&entries, place);
    }
    assert_eq!(size_of::<Run>(), 32);
    assert_eq!(group.compact(9_990), 9_989);
    assert!(group.ends.capacity() < 100 && group.runs.capacity() < 100);
}

#[test]
fn ranges_of_keys_may_be_void_or_the_wrong_way_round() {
    let mut group = Group::default();
    let place = block(&mut Rng::new(1), 1);
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
