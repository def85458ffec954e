//! Bits that flip, files that end early, holes.

use super::*;
use crate::dump::{DumpSummary, Piece, dump};
use crate::format::{FOOTER_LEN, HEADER_LEN};

const NO_DICTIONARY: &[u8] = b"";

fn small(
    codec: CompressionType,
    alignment: u32,
    dictionary: &[u8],
) -> (Vec<u8>, Vec<BlobPointer>, Records) {
    let mut rng = Rng::new(11);
    let mut records = records(&mut rng, 4, 60);
    // What a dictionary has, if there is one.
    records[3].1 = b"the quick brown fox jumps over the lazy dog".to_vec();
    // A head that begins with zeros: a key of 256 bytes.
    records[1].0 = vec![b'k'; 256];
    // And one that is nothing but zeros: an empty key, an empty value.
    records[2] = (Vec::new(), Vec::new());
    let mut options = options(codec);
    options.alignment = alignment;
    options.dictionary = (!dictionary.is_empty()).then(|| dictionary.into());
    let (bytes, pointers, _) = build(options, &records);
    (bytes, pointers, records)
}

/// What a file gives: each value or nothing, and all of the cursor, or nothing.
type Seen = (Vec<Option<Vec<u8>>>, Option<Walked>);

fn look(bytes: &[u8], pointers: &[BlobPointer], records: &Records) -> Option<Seen> {
    let reader = open(bytes).ok()?;
    let values = pointers
        .iter()
        .zip(records)
        .map(|(p, (k, _))| reader.get(*p, k, true).ok().map(|v| v.to_vec()))
        .collect();
    let _ = reader.properties();
    if let Ok(Some(mut places)) = reader.places() {
        while let Ok(Some(_)) = places.next() {}
    }
    Some((values, walk(&reader).ok()))
}

#[test]
fn no_flipped_bit_gives_another_value() {
    for (codec, alignment, dictionary) in [
        (CompressionType::None, 0, NO_DICTIONARY),
        (CompressionType::Snappy, 0, NO_DICTIONARY),
        (CompressionType::Lz4, 128, NO_DICTIONARY),
        (CompressionType::Zstd, 0, NO_DICTIONARY),
        (CompressionType::Zstd, 0, b"fox jumps over the lazy dog"),
    ] {
        let (bytes, pointers, records) = small(codec, alignment, dictionary);
        let (_, whole) = look(&bytes, &pointers, &records).unwrap();
        let whole = whole.unwrap();
        let mut quiet = 0;
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let Some((values, walked)) = look(&bad, &pointers, &records) else {
                continue;
            };
            for (value, (_, want)) in values.iter().zip(&records) {
                assert!(value.as_ref().is_none_or(|v| v == want), "bit {bit}");
            }
            // The cursor goes over everything but the header and the footer.
            if let Some(walked) = walked {
                assert!(walked == whole, "bit {bit}");
                quiet += 1;
            }
        }
        // The family and the codec of the header are compared with what the reader knows, so all
        // that goes unseen by a walk are codecs that read alike.
        assert!(quiet < 8, "{codec:?}: {quiet} bits");
    }
}

#[test]
fn a_file_cut_off_anywhere_is_refused_or_read_up_to_its_end() {
    for (codec, alignment) in [(CompressionType::None, 0), (CompressionType::Lz4, 128)] {
        let (bytes, pointers, records) = small(codec, alignment, NO_DICTIONARY);
        for len in 0..bytes.len() {
            let cut = &bytes[..len];
            assert!(open(cut).is_err(), "{len}");
            let unfinished =
                BlobFileReader::open_unfinished(file_of(cut), len as u64, reader_options());
            if len < HEADER_LEN {
                assert_eq!(unfinished.err().unwrap().kind(), ErrorKind::Corruption);
                continue;
            }
            let reader = unfinished.unwrap();
            assert_eq!(reader.record_count(), None);
            assert!(reader.meta_index().unwrap().is_none());
            let mut cursor = reader.records();
            let mut whole = 0;
            while let Some(record) = cursor.next().unwrap() {
                assert_eq!(record.pointer(), pointers[whole]);
                assert!(record.value().unwrap().unwrap() == records[whole].1);
                whole += 1;
            }
            let ends = |i: usize| pointers[i].offset + pointers[i].size;
            assert!(whole == 4 || ends(whole) > len as u64, "{len}");
            assert!(whole == 0 || cursor.position() >= ends(whole - 1));
            assert!(cursor.position() <= len as u64);
        }
    }
}

#[test]
fn a_torn_end_of_zeros_ends_an_unfinished_file() {
    let (bytes, pointers, records) = small(CompressionType::None, 0, NO_DICTIONARY);
    let end = (pointers[2].offset + pointers[2].size) as usize;
    let mut torn = bytes[..end + 20].to_vec();
    torn.resize(end + 100_000, 0);
    let reader =
        BlobFileReader::open_unfinished(file_of(&torn), torn.len() as u64, reader_options())
            .unwrap();
    let mut cursor = reader.records();
    for (key, _) in &records[..3] {
        assert_eq!(cursor.next().unwrap().unwrap().user_key, key);
    }
    assert!(cursor.next().unwrap().is_none());
    assert_eq!(cursor.position(), end as u64);
}

#[test]
fn damage_is_told_with_its_place_and_skipped_on_request() {
    for (codec, alignment) in [(CompressionType::None, 0), (CompressionType::Zstd, 4096)] {
        let mut rng = Rng::new(12);
        let mut records = records(&mut rng, 30, 3000);
        // A value that is a blob file: what is found by looking must not be taken for the index's.
        let (inner, ..) = small(CompressionType::None, 0, NO_DICTIONARY);
        records[10].1 = inner;
        let mut options = options(codec);
        options.alignment = alignment;
        let (bytes, pointers, _) = build(options, &records);
        let start = |i: usize| pointers[i].record_offset(records[i].0.len()).unwrap();
        for byte in [0, 17, 33, 200] {
            let mut bad = bytes.clone();
            let at = start(10) + byte;
            bad[at as usize] ^= 0x40;
            let reader = open(&bad).unwrap();
            let mut cursor = reader.records();
            for (key, _) in &records[..10] {
                assert_eq!(cursor.next().unwrap().unwrap().user_key, key);
            }
            for _ in 0..2 {
                let e = cursor.next().err().unwrap();
                assert_eq!(e.kind(), ErrorKind::Corruption);
                assert_eq!(e.context("offset"), Some(&start(10).to_string()[..]));
                assert_eq!(cursor.position(), start(10));
            }
            cursor.skip_damage().unwrap();
            for (key, _) in &records[11..] {
                assert_eq!(cursor.next().unwrap().unwrap().user_key, key);
            }
            assert!(cursor.next().unwrap().is_none());
        }
    }
}

#[test]
fn without_an_index_the_next_record_is_found_by_looking() {
    let mut rng = Rng::new(13);
    let records = records(&mut rng, 30, 3000);
    let (bytes, pointers, _) = build(options(CompressionType::Snappy), &records);
    let start = |i: usize| pointers[i].record_offset(records[i].0.len()).unwrap() as usize;
    // As RocksDB would have written it: nothing but records and the footer.
    let index = open(&bytes).unwrap().meta_index().unwrap().unwrap();
    let end = index.extents().next().unwrap().offset as usize;
    let mut plain = bytes[..end].to_vec();
    plain.extend_from_slice(&bytes[bytes.len() - FOOTER_LEN..]);
    let reader = open(&plain).unwrap();
    assert!(reader.meta_index().unwrap().is_none());
    assert!(reader.properties().unwrap().is_none());
    assert!(reader.places().unwrap().is_none());
    assert_eq!(walk(&reader).unwrap().len(), 30);

    let mut bad = plain.clone();
    bad[start(4)..start(7) + 5].fill(0xee);
    let reader = open(&bad).unwrap();
    let mut cursor = reader.records();
    let mut seen = Vec::new();
    loop {
        match cursor.next() {
            Ok(Some(record)) => seen.push(record.user_key.to_vec()),
            Ok(None) => break,
            Err(_) => cursor.skip_damage().unwrap(),
        }
    }
    let want: Vec<_> = records[..4].iter().chain(&records[8..]).collect();
    assert!(seen.iter().eq(want.iter().map(|(k, _)| k)));
}

/// Each piece as its kind and its extent, and whether they leave nothing out.
fn pieces(bytes: &[u8]) -> (Vec<(&'static str, u64, u64)>, DumpSummary) {
    let size = bytes.len() as u64;
    let (reader, end) = match open(bytes) {
        Ok(reader) => (reader, size - FOOTER_LEN as u64),
        Err(_) => {
            let file = file_of(bytes);
            let reader = BlobFileReader::open_unfinished(file, size, reader_options());
            (reader.unwrap(), size)
        }
    };
    let mut all = Vec::new();
    let summary = dump(&reader, true, &mut |piece| {
        all.push(match piece {
            Piece::Record(r) => ("record", r.offset, r.record_len()),
            Piece::Meta { extent, .. } => ("meta", extent.offset, extent.size),
            Piece::Zeros(extent) => ("zeros", extent.offset, extent.size),
            Piece::Hole(extent) => ("hole", extent.offset, extent.size),
            Piece::Damage { extent, .. } => ("damage", extent.offset, extent.size),
        });
        Ok(())
    })
    .unwrap();
    let mut next = HEADER_LEN as u64;
    for (_, offset, size) in &all {
        assert_eq!(*offset, next);
        next += size;
    }
    assert_eq!(next, end);
    (all, summary)
}

#[test]
fn a_dump_leaves_no_byte_out() {
    for (codec, alignment) in [(CompressionType::None, 0), (CompressionType::Lz4, 128)] {
        let (bytes, pointers, _) = small(codec, alignment, NO_DICTIONARY);
        let (_, summary) = pieces(&bytes);
        assert_eq!(summary.records, 4);
        assert_eq!(summary.damages, 0);
        assert_eq!(summary.zero_bytes > 0, alignment > 0);
        let built = open(&bytes).unwrap().properties().unwrap().unwrap();
        assert_eq!(summary.record_bytes, built.record_bytes);
        assert_eq!(summary.raw_bytes, built.raw_value_size);
        for at in HEADER_LEN..bytes.len() - FOOTER_LEN {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let (_, damaged) = pieces(&bad);
            assert!(damaged.damages > 0, "{at}");
            assert!(damaged.records >= 3 && damaged.records <= 4);
        }
        for len in HEADER_LEN..bytes.len() {
            let (_, cut) = pieces(&bytes[..len]);
            let whole = pointers.iter().filter(|p| p.offset + p.size <= len as u64);
            assert_eq!(cut.records, whole.count() as u64);
        }
    }
}

#[test]
fn holes_are_passed_over() {
    for alignment in [0, 512] {
        let mut rng = Rng::new(14);
        let records = records(&mut rng, 40, 3000);
        let mut options = options(CompressionType::None);
        options.alignment = alignment;
        let (bytes, pointers, _) = build(options, &records);
        let start = |i: usize| pointers[i].record_offset(records[i].0.len()).unwrap() as usize;
        // Whole records are zeros: three, and after some that live one more.
        let mut bad = bytes.clone();
        bad[start(5)..start(8)].fill(0);
        bad[start(20)..start(21)].fill(0);
        let reader = open(&bad).unwrap();
        let mut cursor = reader.records();
        let mut seen = Vec::new();
        while let Some(record) = cursor.next().unwrap() {
            seen.push(record.user_key.to_vec());
        }
        let want = (0..40).filter(|i| !(5..8).contains(i) && *i != 20);
        assert!(seen.iter().eq(want.map(|i| &records[i].0)));
        let holes = (start(8) - start(5) + start(21) - start(20)) as u64;
        assert!(cursor.zeros() >= holes);
        for (i, (key, value)) in records.iter().enumerate() {
            let got = reader.get(pointers[i], key, true);
            if (5..8).contains(&i) || i == 20 {
                assert_eq!(got.unwrap_err().kind(), ErrorKind::Corruption);
            } else {
                assert!(got.unwrap() == value[..]);
            }
        }
    }
}
