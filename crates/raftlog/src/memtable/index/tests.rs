//! The index against a map from index to entry, under random histories.

use std::collections::BTreeMap;

use orogen_testkit::rng::Rng;

use super::*;

fn block(rng: &mut Rng, seq: u64) -> Block {
    let (queue, compression) = if rng.chance(1, 2) {
        (Queue::Append, Compression::Lz4)
    } else {
        (Queue::Rewrite, Compression::None)
    };
    Block {
        file: FileId::new(queue, seq),
        offset: rng.u64(),
        len: rng.u64() as u32,
        compression,
    }
}

#[test]
fn an_index_finds_what_a_map_finds() {
    let mut rng = Rng::new(Rng::seed_or(21));
    for _ in 0..200 {
        let mut group = Index::default();
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
            match &op {
                Op::Entries(entries) => group.append(entries, place),
                Op::Compact { index } => {
                    group.compact(*index);
                }
                _ => {}
            }
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

#[test]
fn an_index_gives_memory_back() {
    let mut group = Index::default();
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
fn entries_that_are_moved_are_found_where_they_are() {
    let mut rng = Rng::new(Rng::seed_or(23));
    for _ in 0..300 {
        let mut index = Index::default();
        let mut model: BTreeMap<u64, Location> = BTreeMap::new();
        let mut next = 5;
        for seq in 1..8 {
            let mut place = block(&mut rng, seq);
            place.file.queue = Queue::Append;
            for _ in 0..rng.below(3) {
                let first = next - rng.below(3).min(next - 5);
                let start = rng.below(1000) as u32;
                let mut end = start;
                let ends = Vec::from_iter((0..1 + rng.below(5)).map(|_| {
                    end += rng.below(9) as u32;
                    end
                }));
                next = first + ends.len() as u64;
                let entries = Entries { first, start, ends };
                index.append(&entries, place);
            }
        }
        index.compact(5 + rng.below(4));
        let span = index.span();
        for at in span.first..span.next {
            model.insert(at, index.locate(at).unwrap());
        }
        let limit = FileId::new(Queue::Append, 1 + rng.below(7));
        let is_old = |location: &Location| location.block.file <= limit;
        let from = span.first + rng.below(4);
        let pieces = index.pieces(from, limit, 1 + rng.range(0..60), 1 + rng.range(0..300));
        let mut at = from.max(span.first);
        let mut target = block(&mut rng, 1);
        target.file.queue = Queue::Rewrite;
        for piece in pieces {
            assert_eq!(piece.first, at);
            let mut start = piece.start;
            for end in &piece.ends {
                let block = piece.block;
                let location = Location {
                    block,
                    start,
                    end: *end,
                };
                assert_eq!(model.get(&at), Some(&location));
                assert!(is_old(&location));
                (start, at) = (*end, at + 1);
            }
            // It stands elsewhere in its new block; some of it may be gone by now.
            let shift = rng.below(100) as u32;
            let moved = Piece {
                first: piece.first,
                block: target,
                start: shift,
                ends: piece.ends.iter().map(|e| e - piece.start + shift).collect(),
            };
            if rng.chance(1, 4) {
                let cut = piece.first + rng.below(4);
                index.compact(cut);
                model = model.split_off(&cut);
            }
            if rng.chance(1, 6) {
                let first = (piece.next() - 1).max(index.span().first);
                let mut newer = block(&mut rng, 8);
                newer.file.queue = Queue::Append;
                if index.span().after(1, &Op::Compact { index: 0 }).is_ok()
                    && first <= index.span().next
                {
                    let (start, ends) = (7, vec![9]);
                    index.append(&Entries { first, start, ends }, newer);
                    model.split_off(&first);
                    let location = Location {
                        block: newer,
                        start: 7,
                        end: 9,
                    };
                    model.insert(first, location);
                }
            }
            index.relocate(&moved, limit);
            let mut start = moved.start;
            for (index, end) in (moved.first..).zip(&moved.ends) {
                if let Some(location) = model.get_mut(&index)
                    && is_old(location)
                {
                    *location = Location {
                        block: target,
                        start,
                        end: *end,
                    };
                }
                start = *end;
            }
            for at in 0..span.next + 3 {
                assert_eq!(index.locate(at), model.get(&at).copied(), "{at}");
            }
            if index.locate(at).is_none_or(|location| !is_old(&location)) {
                break;
            }
        }
    }
}
