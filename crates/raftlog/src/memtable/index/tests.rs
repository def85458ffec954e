//! The index against maps and lists of places, under random histories; what it costs.

use std::collections::BTreeMap;

use orogen_testkit::rng::Rng;

use super::*;
use crate::format::Compression;
use crate::names::Queue;

fn any_block(rng: &mut Rng, seq: u64) -> Block {
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
            let place = any_block(&mut rng, seq);
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

/// Bytes of an index, with 16 for the allocator at each allocation.
fn bytes_of(index: &Index) -> usize {
    let allocated = |bytes: usize| if bytes == 0 { 0 } else { bytes + 16 };
    let codes = index
        .chunks
        .iter()
        .map(|chunk| allocated(chunk.codes.len()));
    size_of::<Index>()
        + allocated(index.chunks.capacity() * size_of::<Chunk>())
        + codes.sum::<usize>()
        + allocated(index.tail.capacity())
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
        let place = any_block(&mut rng, first);
        group.append(&entries, place);
    }
    assert_eq!(group.compact(9_990), 9_989);
    assert!(bytes_of(&group) < 5_000, "{}", bytes_of(&group));
    assert_eq!(group.compact(10_001), 11);
    assert_eq!(bytes_of(&group), size_of::<Index>());
}

#[test]
fn entries_that_are_moved_are_found_where_they_are() {
    let mut rng = Rng::new(Rng::seed_or(23));
    for _ in 0..300 {
        let mut index = Index::default();
        let mut model: BTreeMap<u64, Location> = BTreeMap::new();
        let mut next = 5;
        for seq in 1..8 {
            let mut place = any_block(&mut rng, seq);
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
        let mut target = any_block(&mut rng, 1);
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
                let mut newer = any_block(&mut rng, 8);
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

/// Adds up how often each kind of code stands in `codes`, of `count` entries: kinds, and behind them bits of flags.
fn count_kinds(mut codes: &[u8], count: u64, kinds: &mut [u32; 7]) {
    let mut place = ORIGIN;
    for _ in 0..count {
        let kind = codes[0] & 3;
        kinds[usize::from(kind)] += 1;
        if u64::from(kind) == code::GENERAL {
            let head = codes.iter().position(|byte| *byte < 0x80).unwrap();
            let flags = codes[head + 1];
            (0..3).for_each(|bit| kinds[4 + bit] += u32::from(flags >> bit & 1));
        }
        let before = codes.len();
        code::step(&mut codes, &mut place);
        let len = before - codes.len();
        assert!((1..=code::CODE_LEN_MAX).contains(&len));
    }
    assert!(codes.is_empty(), "a chunk ends with its last code");
}

/// Checks that chunks are as the head of the module says, so that no look-up decodes more than one.
fn check_shape(index: &Index, kinds: &mut [u32; 7]) {
    let count = index.chunks.len();
    for (n, chunk) in index.chunks.iter().enumerate() {
        let len = index.first_of(n + 1) - chunk.first;
        assert!((1..=CHUNK_LEN).contains(&len), "{len}");
        count_kinds(&chunk.codes, len, kinds);
    }
    let in_tail = index.next - index.tail_first;
    assert!(in_tail <= CHUNK_LEN);
    count_kinds(&index.tail, in_tail, kinds);
    assert_eq!(index.is_empty(), index.tail.is_empty());
    assert!(index.first_of(0) <= index.first);
    assert!(count == 0 || index.first < index.first_of(1));
    if let Some(last) = index.next.checked_sub(1).and_then(|at| index.locate(at)) {
        assert_eq!(index.last, last);
    }
}

/// What an index should hold.
#[derive(Clone, Debug, Default)]
struct Model {
    first: u64,
    places: Vec<Location>,
}

impl Model {
    fn next(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    fn get(&self, index: u64) -> Option<Location> {
        let at = index.checked_sub(self.first)?;
        self.places.get(at as usize).copied()
    }

    fn append(&mut self, entries: &Entries, block: Block) {
        let is_void = self.places.is_empty();
        if is_void || entries.first < self.first || entries.first > self.next() {
            self.first = entries.first;
        }
        self.places.truncate((entries.first - self.first) as usize);
        let mut start = entries.start;
        for &end in &entries.ends {
            self.places.push(Location { block, start, end });
            start = end;
        }
    }

    fn compact(&mut self, index: u64) -> u64 {
        let count = index.saturating_sub(self.first);
        let count = count.min(self.places.len() as u64);
        self.places.drain(..count as usize);
        self.first += count;
        count
    }

    fn stack(&mut self, above: Self) {
        if above.places.is_empty() {
        } else if self.next() == above.first && !self.places.is_empty() {
            self.places.extend(above.places);
        } else {
            *self = above;
        }
    }

    /// Where the entries of `moved` lie that are in files up to `limit` from its first one on.
    fn relocate(&mut self, moved: &Piece, limit: FileId) -> Option<u64> {
        let mut behind = None;
        let mut start = moved.start;
        for (index, &end) in (moved.first..).zip(&moved.ends) {
            if index >= self.first {
                let at = (index - self.first) as usize;
                let Some(place) = self.places.get_mut(at) else {
                    break;
                };
                if place.block.file > limit {
                    break;
                }
                let block = moved.block;
                *place = Location { block, start, end };
                behind = Some(index + 1);
            }
            start = end;
        }
        behind
    }
}

/// A number of less than `bits` bits, small ones as often as large ones.
fn small(rng: &mut Rng, bits: u64) -> u64 {
    let bits = rng.below(bits);
    rng.below(1 << bits)
}

/// Gives blocks as logs do, or any.
struct Places {
    next: Block,
    is_wild: bool,
}

impl Places {
    fn new(is_wild: bool) -> Self {
        let mut next = ORIGIN.block;
        next.file.seq = 1;
        Self { next, is_wild }
    }

    /// `count` entries from `first` on and the block that they are in.
    fn entries(&mut self, rng: &mut Rng, first: u64, count: u64) -> (Entries, Block) {
        let start = if rng.chance(1, 2) {
            0
        } else {
            rng.below(3000) as u32
        };
        let mut end = start;
        let ends = Vec::from_iter((0..count).map(|_| {
            end += small(rng, 16) as u32;
            end
        }));
        let block = &mut self.next;
        block.offset += u64::from(block.len) + small(rng, 23);
        block.compression = Compression::None;
        block.len = end + 4;
        match rng.below(12) {
            0 => {
                block.file.seq += 1 + rng.below(3);
                block.offset = rng.below(200);
            }
            1 | 2 => {
                block.compression = Compression::Lz4;
                block.len = rng.below(2000) as u32;
            }
            3..5 => block.len += rng.below(3000) as u32,
            5 if self.is_wild => {
                let seq = block.file.seq;
                *block = any_block(rng, seq);
                block.offset >>= rng.below(40);
            }
            6 if self.is_wild => block.offset = block.offset.wrapping_sub(rng.below(1 << 20)),
            7 if self.is_wild => block.file.seq = rng.u64() >> rng.below(64),
            8 if end == 0 => block.len = 0,
            _ => {}
        }
        let block = *block;
        if self.is_wild {
            self.next.offset &= (1 << 40) - 1;
        }
        (Entries { first, start, ends }, block)
    }
}

fn check(index: &Index, model: &Model, rng: &mut Rng) {
    let span = index.span();
    assert_eq!(span.is_empty(), model.places.is_empty());
    assert_eq!(index.len(), model.places.len() as u64);
    if !span.is_empty() {
        assert_eq!((span.first, span.next), (model.first, model.next()));
    }
    let some =
        |rng: &mut Rng| (model.first + rng.below(model.places.len() as u64 + 4)).saturating_sub(2);
    for _ in 0..4 {
        let at = some(rng);
        assert_eq!(index.locate(at), model.get(at), "{at}");
    }
    let (from, to) = (some(rng), some(rng));
    let found = Vec::from_iter(index.locations(from, to));
    let wanted = Vec::from_iter((from..to).filter_map(|at| model.get(at)));
    assert_eq!(found, wanted, "{from} to {to}");
    assert_eq!(index.locate(u64::MAX), None);
}

/// Checks what relies on the order of files.
fn check_files(index: &Index, model: &Model, rng: &mut Rng) {
    let files = || model.places.iter().map(|place| place.block.file);
    assert!(files().is_sorted(), "the model is not wild");
    let mut limits = Vec::from_iter(files());
    limits.dedup();
    limits.push(FileId::new(Queue::Rewrite, 0));
    limits.push(FileId::new(Queue::Append, u64::MAX));
    for limit in limits {
        let count = files().filter(|file| *file <= limit).count() as u64;
        assert_eq!(index.count_up_to(limit), count, "{limit:?}");
        let from = model.first + rng.below(count + 1);
        let pieces = index.pieces(from, limit, 1 + rng.range(0..9000), usize::MAX);
        let end = pieces.last().map_or(from, Piece::next);
        assert_eq!(end, model.first + count);
    }
}

#[test]
fn histories_leave_what_they_leave_in_a_list() {
    let mut rng = Rng::new(Rng::seed_or(24));
    let mut kinds = [0; 7];
    let mut done = [0; 6];
    for round in 0..60 {
        let mut places = Places::new(round % 2 == 0);
        let is_wild = places.is_wild;
        let (mut index, mut model) = (Index::default(), Model::default());
        let mut moved_to = 0;
        for _ in 0..150 {
            let (first, next) = (model.first, model.next());
            let some = |rng: &mut Rng| first + rng.below(next - first + 2);
            let op = [0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 4, 5][rng.range(0..12)];
            let count = 1 + small(&mut rng, 8);
            match op {
                0 => {
                    let count = if rng.chance(2, 3) { 1 } else { count };
                    for n in 0..1 + rng.below(40) {
                        let first = model.next().max(1).saturating_sub(match n {
                            0 => rng.below(100) * rng.below(2),
                            _ => 0,
                        });
                        if !is_wild && first < model.first {
                            break;
                        }
                        let (entries, block) = places.entries(&mut rng, first, count);
                        index.append(&entries, block);
                        model.append(&entries, block);
                    }
                }
                1 => {
                    let at = some(&mut rng);
                    index.truncate(at);
                    model.places.truncate((at - model.first) as usize);
                }
                2 => {
                    let at = first + rng.below(1 + (next - first) / 2);
                    assert_eq!(index.compact(at), model.compact(at));
                }
                // As purge: what lies in old files from the first one on that is not moved.
                3 if !is_wild && next > first => {
                    let is_moved = |p: &&Location| p.block.file.queue == Queue::Rewrite;
                    let done = model.places.iter().take_while(is_moved).count() as u64;
                    let limit = model.places[rng.range(0..model.places.len())].block.file;
                    if limit.queue == Queue::Append {
                        moved_to += 1;
                        for piece in index.pieces(first + done, limit, 20_000, 60_000) {
                            let (entries, mut block) =
                                places.entries(&mut rng, 0, piece.ends.len() as u64);
                            block.file = FileId::new(Queue::Rewrite, moved_to);
                            let (start, ends) = (entries.start, entries.ends);
                            let first = piece.first;
                            let moved = Piece {
                                first,
                                block,
                                start,
                                ends,
                            };
                            let behind = model.relocate(&moved, limit);
                            assert_eq!(behind, Some(moved.next()));
                            assert_eq!(index.relocate(&moved, limit), behind);
                        }
                    }
                }
                3 => {
                    let from = some(&mut rng).saturating_sub(2);
                    let (entries, block) = places.entries(&mut rng, from, count);
                    let (start, ends) = (entries.start, entries.ends);
                    let moved = Piece {
                        first: from,
                        block,
                        start,
                        ends,
                    };
                    let limit = FileId::new(Queue::Append, places.next.file.seq);
                    let limits = [limit, FileId::new(Queue::Append, u64::MAX)];
                    let limit = limits[rng.range(0..2)];
                    assert_eq!(index.relocate(&moved, limit), model.relocate(&moved, limit));
                }
                4 => {
                    let (mut above, mut list) = (Index::default(), Model::default());
                    let begin = next.max(1) + if rng.chance(1, 12) { 5 } else { 0 };
                    // What is gone of it must not come back.
                    let gone = (rng.below(100) * rng.below(2)).min(begin - 1);
                    let mut at = begin - gone;
                    for _ in 0..rng.below(150) {
                        let count = 1 + rng.below(3);
                        let (entries, block) = places.entries(&mut rng, at, count);
                        at += count;
                        above.append(&entries, block);
                        list.append(&entries, block);
                    }
                    assert_eq!(above.compact(begin), list.compact(begin));
                    index.stack(above);
                    model.stack(list);
                }
                _ => {
                    let at = if rng.chance(1, 8) {
                        next
                    } else {
                        first + rng.below(3)
                    };
                    assert_eq!(index.compact(at), model.compact(at));
                }
            }
            done[op] += 1;
            if model.places.is_empty() {
                model.first = 0;
            }
            check(&index, &model, &mut rng);
            check_shape(&index, &mut kinds);
            if !is_wild && rng.chance(1, 4) {
                check_files(&index, &model, &mut rng);
            }
        }
    }
    assert!(kinds.iter().all(|count| *count > 1000), "{kinds:?}");
    assert!(done.iter().all(|count| *count > 100), "{done:?}");
}

#[test]
fn any_place_has_a_code_behind_any_other() {
    let mut rng = Rng::new(Rng::seed_or(25));
    let number = |rng: &mut Rng| rng.u64() >> rng.below(64);
    let mut longest = 0;
    for _ in 0..50_000 {
        let [before, entry] = [(); 2].map(|()| {
            let mut block = any_block(&mut rng, 0);
            block.file.seq = number(&mut rng);
            block.offset = number(&mut rng);
            block.len = number(&mut rng) as u32;
            let start = number(&mut rng) as u32;
            let end = start.saturating_add(number(&mut rng) as u32);
            Location { block, start, end }
        });
        let code = Code::new(&before, &entry);
        let (mut codes, mut place) = (code.bytes(), before);
        longest = longest.max(codes.len());
        code::step(&mut codes, &mut place);
        assert_eq!((place, codes.len()), (entry, 0), "{before:?}");
    }
    assert!(longest <= code::CODE_LEN_MAX && longest > 30);
    // Codes that nobody wrote, or not to their end.
    for _ in 0..20_000 {
        let len = rng.range(0..24);
        let bytes = rng.bytes(len);
        let (mut codes, mut place) = (bytes.as_slice(), ORIGIN);
        code::skip(&mut codes, &mut place, 30);
        assert!(codes.is_empty());
    }
}

/// Writes records as a queue of files of 128 MiB does.
struct Writer {
    seq: u64,
    offset: u64,
}

impl Writer {
    fn new() -> Self {
        Self { seq: 1, offset: 69 }
    }

    /// One record with `count` entries of `len` bytes for each of `groups`.
    fn write(&mut self, indexes: &mut [Index], groups: &[usize], count: u32, len: u32) {
        if self.offset >= 128 << 20 {
            *self = Self {
                seq: self.seq + 1,
                offset: 69,
            };
        }
        let raw = count * len * groups.len() as u32;
        let block = Block {
            file: FileId::new(Queue::Append, self.seq),
            offset: self.offset + 16,
            len: raw + 4,
            compression: Compression::None,
        };
        let mut start = 0;
        for group in groups {
            let index = &mut indexes[*group];
            let span = index.span();
            let first = if span.is_empty() { 1 } else { span.next };
            let ends = (1..=count).map(|n| start + n * len).collect();
            index.append(&Entries { first, start, ends }, block);
            start += count * len;
        }
        self.offset += 16 + u64::from(raw) + 4 + 30;
    }
}

/// Bytes of the mean entry.
fn bytes_per_entry(indexes: &[Index]) -> f64 {
    let bytes: usize = indexes.iter().map(bytes_of).sum();
    let entries: u64 = indexes.iter().map(Index::len).sum();
    bytes as f64 / entries as f64
}

fn indexes(count: usize) -> Vec<Index> {
    (0..count).map(|_| Index::default()).collect()
}

#[test]
fn an_entry_costs_a_dozen_bytes_at_most() {
    let mut rng = Rng::new(26);
    for len in [256, 1024] {
        // One entry for each batch.
        let mut groups = indexes(1000);
        let mut writer = Writer::new();
        for _ in 0..300_000 {
            let group = rng.range(0..groups.len());
            writer.write(&mut groups, &[group], 1, len);
        }
        let alone = bytes_per_entry(&groups);
        // Ten of one group.
        let mut groups = indexes(100);
        let mut writer = Writer::new();
        for _ in 0..30_000 {
            let group = rng.range(0..groups.len());
            writer.write(&mut groups, &[group], 10, len);
        }
        let ten = bytes_per_entry(&groups);
        // One of each of eight groups.
        let mut groups = indexes(1000);
        let mut writer = Writer::new();
        for _ in 0..40_000 {
            let first = rng.range(0..groups.len() - 8 * 70);
            let eight: [usize; 8] = std::array::from_fn(|n| first + n * 70 + rng.range(0..70));
            writer.write(&mut groups, &eight, 1, len);
        }
        let of_eight = bytes_per_entry(&groups);
        println!(
            "{len} B: alone {alone:.2}, ten of a group {ten:.2}, of eight groups {of_eight:.2}"
        );
        assert!(alone <= 8.0, "{alone}");
        assert!(ten <= 4.0, "{ten}");
        assert!(of_eight <= 12.0, "{of_eight}");
    }
    for (count, most) in [(1, 160), (10, 230), (60, 700)] {
        let mut groups = indexes(1000);
        let mut writer = Writer::new();
        for _ in 0..count {
            for group in 0..1000 {
                writer.write(&mut groups, &[group], 1, 1024);
            }
        }
        let bytes = groups.iter().map(bytes_of).max().unwrap();
        println!("a group of {count}: {bytes}");
        assert!(bytes <= most, "{count}: {bytes}");
    }
}

#[test]
#[ignore = "a measurement"]
fn what_calls_cost() {
    let mut rng = Rng::new(7);
    let n = 2_000_000u64;
    for (groups, len) in [(1000usize, 256u32), (1000, 1024), (1, 1024)] {
        let mut indexes = indexes(groups);
        let order = Vec::from_iter((0..n).map(|_| rng.range(0..groups)));
        let watch = orogen_env::Stopwatch::start();
        let mut writer = Writer::new();
        for group in &order {
            writer.write(&mut indexes, &[*group], 1, len);
        }
        let append = watch.elapsed().as_nanos() as f64 / n as f64;
        let asked = Vec::from_iter((0..n).map(|_| {
            let group = rng.range(0..groups);
            (group, 1 + rng.below(indexes[group].len()))
        }));
        let watch = orogen_env::Stopwatch::start();
        let mut sum = 0;
        for (group, at) in &asked {
            sum += indexes[*group].locate(*at).unwrap().block.offset;
        }
        let locate = watch.elapsed().as_nanos() as f64 / n as f64;
        let watch = orogen_env::Stopwatch::start();
        for (group, at) in &asked[..20_000] {
            let places = indexes[*group].locations(*at, at + 100);
            sum += places.map(|l| l.block.offset).sum::<u64>();
        }
        let fetch = watch.elapsed().as_nanos() as f64 / 2e6;
        println!(
            "{groups} groups, {len} B: append {append:.1} ns, locate {locate:.1} ns, of a hundred {fetch:.1} ns ({sum})"
        );
    }
}
