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
