//! Values asked for one after another.

use super::*;

#[test]
fn reads_in_a_row_are_few_and_give_what_single_ones_do() {
    let mut rng = Rng::new(9);
    for codec in WRITABLE {
        let mut records = records(&mut rng, 500, 1000);
        records[250].1 = rng.bytes(600_000);
        let (mut bytes, pointers, _) = build(options(codec), &records);
        bytes[pointers[100].offset as usize - 1] ^= 1;
        let (file, reader) = counted(&bytes);
        let mut ahead = BlobReadahead::new(256 << 10);
        let read = |ahead: &mut BlobReadahead, i: usize| {
            let got = reader.read_ahead(ahead, pointers[i], &records[i].0, true);
            match got {
                Ok(value) => assert!(PinnedValue::from(value) == records[i].1[..] && i != 100),
                Err(e) => assert!(e.kind() == ErrorKind::Corruption && i == 100),
            }
        };
        // Every third is garbage.
        (0..500)
            .filter(|i| i % 3 != 0)
            .for_each(|i| read(&mut ahead, i));
        let in_a_row = file.1.swap(0, Relaxed);
        assert!(in_a_row < 20, "{codec:?}: {in_a_row} reads");
        assert!(ahead.memory_usage() <= 256 << 10);
        // Backwards no more, and there no byte is read twice but what windows cut.
        file.3.store(0, Relaxed);
        let mut ahead = BlobReadahead::new(256 << 10);
        (0..500)
            .rev()
            .filter(|i| i % 3 != 0)
            .for_each(|i| read(&mut ahead, i));
        let in_a_row = file.1.swap(0, Relaxed);
        assert!(in_a_row < 20, "{codec:?}: {in_a_row} reads backward");
        let read_bytes = file.3.swap(0, Relaxed);
        assert!(read_bytes < bytes.len() as u64 * 5 / 4, "{read_bytes}");
        assert!(ahead.memory_usage() <= 256 << 10);
        // Here and there, and backwards.
        let mut order: Vec<usize> = (0..500).collect();
        rng.shuffle(&mut order);
        let mut ahead = BlobReadahead::new(256 << 10);
        order.iter().for_each(|&i| read(&mut ahead, i));
        let mut none = BlobReadahead::new(0);
        (0..500).rev().for_each(|i| read(&mut none, i));
        assert_eq!(none.memory_usage(), 0);
    }
}

/// Asks for records in an order; gives reads, hints, bytes read, bytes hinted.
fn ask(
    bytes: &[u8],
    pointers: &[BlobPointer],
    records: &Records,
    mut ahead: BlobReadahead,
    order: impl IntoIterator<Item = usize>,
) -> [u64; 4] {
    let (file, reader) = counted(bytes);
    for i in order {
        let got = reader.read_ahead(&mut ahead, pointers[i], &records[i].0, true);
        assert!(PinnedValue::from(got.unwrap()) == records[i].1[..], "{i}");
    }
    [&file.1, &file.2, &file.3, &file.4].map(|n| n.load(Relaxed))
}

fn sized(count: usize, len: usize) -> (Vec<u8>, Vec<BlobPointer>, Records) {
    let mut rng = Rng::new(len as u64);
    let records: Records = (0..count)
        .map(|i| (format!("key{i:06}").into_bytes(), rng.bytes(len)))
        .collect();
    let (bytes, pointers, _) = build(options(CompressionType::None), &records);
    (bytes, pointers, records)
}

#[test]
fn a_row_costs_the_same_in_both_directions() {
    for (len, reads_max) in [(100, 12), (1_000, 60), (3_000, 140), (16_000, 1_000)] {
        let (bytes, pointers, records) = sized(1_000, len);
        let ahead = || BlobReadahead::new(256 << 10);
        let forward = ask(&bytes, &pointers, &records, ahead(), 0..1_000);
        let backward = ask(&bytes, &pointers, &records, ahead(), (0..1_000).rev());
        let size = bytes.len() as u64;
        for [reads, hints, read, hinted] in [forward, backward] {
            assert!(reads <= reads_max, "{len}: {reads} reads");
            assert!(read <= size + size / 10, "{len}: {read} of {size} bytes");
            // The first value is not part of a row yet, and what is behind the last one is of no use.
            let told = 1_000 * (len as u64 + 41) - 2 * (len as u64 + 41)..=size;
            assert!(told.contains(&hinted), "{len}: {hinted}");
            assert!(hints <= 5 + size / (200 << 10), "{len}: {hints} hints");
        }
        assert!(forward[0].abs_diff(backward[0]) <= forward[0] / 10 + 1);
    }
}

#[test]
fn behind_announced_values_more_is_asked_for_once_their_row_is_long() {
    for len in [1_000, 4_500, 20_000] {
        let (bytes, pointers, records) = sized(200, len);
        let (file, reader) = counted(&bytes);
        let mut ahead = BlobReadahead::new(256 << 10);
        let mut go = |announced: std::ops::Range<usize>| {
            for i in announced.clone() {
                reader.announce(&mut ahead, pointers[i], &records[i].0);
            }
            reader.request(&mut ahead);
            for i in announced {
                let got = reader.read_ahead(&mut ahead, pointers[i], &records[i].0, true);
                assert!(PinnedValue::from(got.unwrap()) == records[i].1[..], "{i}");
            }
        };
        go(0..4);
        let hinted = file.4.load(Relaxed);
        assert_eq!(hinted, 4 * (len as u64 + 41), "{len}");
        (4..200).for_each(|i| go(i..i + 1));
        let (hints, hinted) = (file.2.load(Relaxed), file.4.load(Relaxed));
        assert!(hints < 40, "{len}: {hints}");
        assert!(hinted <= bytes.len() as u64, "{len}: {hinted}");
    }
}

#[test]
fn who_turns_around_uses_what_is_held_and_begins_a_row_with_the_second_step() {
    let (bytes, pointers, records) = sized(1_000, 500);
    let ahead = || BlobReadahead::new(256 << 10);
    // To a place within a window and back: what is held is used.
    let there = ask(&bytes, &pointers, &records, ahead(), 0..100);
    let back = ask(
        &bytes,
        &pointers,
        &records,
        ahead(),
        (0..100).chain((80..99).rev()),
    );
    assert_eq!((there[0], there[2]), (back[0], back[2]));
    // All the way back, and there again.
    let order = (0..1_000).chain((0..999).rev()).chain(1..1_000);
    let [reads, hints, read, hinted] = ask(&bytes, &pointers, &records, ahead(), order);
    let size = bytes.len() as u64;
    assert!(reads <= 3 * 20 && hints <= 3 * 9, "{reads} {hints}");
    assert!(read <= 3 * size + size / 4 && hinted <= 3 * size);
    // To and fro without end: nothing more is read ahead.
    for len in [500, 8_000] {
        let (bytes, pointers, records) = sized(100, len);
        let order = (0..200).map(|n| 50 + n % 2);
        let [reads, hints, read, hinted] = ask(&bytes, &pointers, &records, ahead(), order);
        let asked = 200 * (len as u64 + 41);
        assert!(reads <= 200 && read <= asked + (8 << 10), "{read}");
        assert!(hints <= 1 && hinted <= 32 << 10, "{hints} {hinted}");
    }
}

#[test]
fn values_in_no_order_are_not_read_many_times() {
    for (count, len) in [(2_000, 100), (500, 1_000), (200, 3_000), (200, 20_000)] {
        let (bytes, pointers, records) = sized(count, len);
        let mut order: Vec<usize> = (0..count).collect();
        for seed in 0..5 {
            Rng::new(seed).shuffle(&mut order);
            // Some stretches are in order, and some the other way.
            for stretch in order.chunks_mut(7).step_by(3) {
                stretch.sort_unstable();
            }
            for stretch in order.chunks_mut(5).step_by(4) {
                stretch.sort_unstable_by(|a, b| b.cmp(a));
            }
            let ahead = BlobReadahead::new(256 << 10);
            let told = ask(&bytes, &pointers, &records, ahead, order.iter().copied());
            let [_, _, read, hinted] = told;
            let (count, record) = (count as u64, len as u64 + 41);
            let bound = count * (record + (4 << 10)) + (8 << 10);
            assert!(read <= bound, "{len}: {read} of at most {bound}");
            let bound = count * 8 * record.max(4 << 10) + (32 << 10);
            assert!(hinted <= bound, "{len}: {hinted} of at most {bound}");
        }
    }
}

#[test]
fn a_row_passes_a_hole_in_both_directions() {
    let (mut bytes, pointers, records) = sized(400, 1_000);
    let is_dead = |i: &usize| (100..140).contains(i) || (300..305).contains(i);
    let extent = |i: usize| pointers[i].record_extent(records[i].0.len()).unwrap();
    for (first, last) in [(100, 139), (300, 304)] {
        let from = extent(first).offset.next_multiple_of(HOLE_BLOCK) as usize;
        let to = extent(last).end() as usize / HOLE_BLOCK as usize * HOLE_BLOCK as usize;
        bytes[from..to].fill(0);
    }
    let live: Vec<usize> = (0..400).filter(|i| !is_dead(i)).collect();
    for order in [live.clone(), live.into_iter().rev().collect()] {
        let ahead = BlobReadahead::new(256 << 10);
        let [reads, _, read, _] = ask(&bytes, &pointers, &records, ahead, order);
        assert!(reads <= 25, "{reads} reads");
        assert!(read <= bytes.len() as u64 * 11 / 10, "{read} bytes");
    }
}

#[test]
fn a_length_that_is_given_is_asked_for_at_once() {
    let (bytes, pointers, records) = sized(100, 10_000);
    for order in [vec![40, 41], vec![41, 40]] {
        let ahead = || BlobReadahead::new(200_000);
        let [_, hints, _, hinted] = ask(&bytes, &pointers, &records, ahead(), order.clone());
        assert_eq!((hints, hinted), (1, 32 << 10));
        let ahead = ahead().at_once();
        let [_, hints, _, hinted] = ask(&bytes, &pointers, &records, ahead, order);
        assert_eq!((hints, hinted), (1, 200_000));
    }
}
