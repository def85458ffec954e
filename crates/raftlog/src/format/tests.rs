//! The format against the published bytes, against itself, and against damage.

use orogen_testkit::rng::Rng;

use super::*;

const NEVER: Lz4Policy = Lz4Policy {
    threshold: 0,
    acceleration: 1,
};
const ALWAYS: Lz4Policy = Lz4Policy {
    threshold: 1,
    acceleration: 1,
};

fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

fn decode(bytes: &[u8], signature: u32) -> Result<(Vec<Item>, Vec<u8>)> {
    let header = RecordHeader::decode(bytes, bytes.len() as u64)?;
    let record = &bytes[..header.len as usize];
    let (front, footer) = record.split_at(header.footer_at() as usize);
    let items = decode_footer(footer, signature)?;
    let mut room = Vec::new();
    let block = decode_block(&front[RECORD_HEADER_LEN..], header.compression, &mut room)?;
    Ok((items, block.to_vec()))
}

/// What a reader of a record gets: items, and the bytes of each entry.
fn meaning(bytes: &[u8], signature: u32) -> Result<(Vec<Item>, Vec<Vec<u8>>)> {
    let (items, block) = decode(bytes, signature)?;
    let mut entries = Vec::new();
    for item in &items {
        if let Op::Entries(run) = &item.op {
            let mut start = run.start as usize;
            for end in &run.ends {
                let entry = block.get(start..*end as usize);
                entries.push(entry.ok_or_else(|| Error::corruption("short"))?.to_vec());
                start = *end as usize;
            }
        }
    }
    Ok((items, entries))
}

fn item(group: u64, op: Op) -> Item {
    Item { group, op }
}

#[test]
fn a_known_batch_has_the_published_bytes_in_both_versions() {
    let block = unhex("10 02 18 05 22 03 61 62 63  10 02 18 06 22 02 64 65");
    let items = [
        item(
            7,
            Op::Entries(Entries {
                first: 5,
                start: 0,
                ends: vec![9, 17],
            }),
        ),
        item(
            7,
            Op::Put {
                key: b"k".to_vec(),
                value: b"v1".to_vec(),
            },
        ),
        item(300, Op::Delete { key: b"x".to_vec() }),
        item(7, Op::Compact { index: 5 }),
        item(300, Op::Clean),
    ];
    let published = "00 00 00 00 00 00 46 00  00 00 00 00 00 00 00 25
        10 02 18 05 22 03 61 62 63  10 02 18 06 22 02 64 65  67 a1 5b 6d
        05  07 01 02 05 09 11  07 03 01 01 6b 02 76 31  ac 02 03 02 01 78
        07 02 02 05  ac 02 02 01";
    for (version, crc, header_len) in [
        (FormatVersion::V1, "c8 7a ab 9a", 61),
        (FormatVersion::V2, "c9 7a ab 9a", 69),
    ] {
        let header = FileHeader {
            version,
            alignment: 0,
        };
        let mut file = header.encode();
        assert_eq!(file.len(), header_len);
        let mut record = encode_record(&block, &items, NEVER).unwrap().bytes.clone();
        sign(&mut record, version.signature(1));
        file.extend_from_slice(&record);

        let mut expected = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5".to_vec();
        expected.extend_from_slice(&unhex("00 00 00 00 00 00 00"));
        expected.push(version as u8);
        if version == FormatVersion::V2 {
            expected.extend_from_slice(&[0; 8]);
        }
        expected.extend_from_slice(&unhex(published));
        expected.extend_from_slice(&unhex(crc));
        assert_eq!(file, expected);

        assert_eq!(FileHeader::decode(&file).unwrap(), header);
        let decoded = decode(&record, version.signature(1)).unwrap();
        assert_eq!(decoded, (items.to_vec(), block.clone()));
    }
}

fn random_batch(rng: &mut Rng) -> (Vec<u8>, Vec<Item>) {
    let mut block = Vec::new();
    let mut items = Vec::new();
    for _ in 0..rng.range(1..6) {
        let group = rng.u64() >> rng.below(64);
        let op = match rng.below(5) {
            0 => Op::Clean,
            1 => Op::Compact {
                index: rng.u64() >> rng.below(64),
            },
            2 => {
                let len = rng.range(0..8);
                Op::Put {
                    key: rng.bytes(len),
                    value: rng.bytes(len * 3),
                }
            }
            3 => {
                let len = rng.range(0..8);
                Op::Delete {
                    key: rng.bytes(len),
                }
            }
            _ => {
                let start = block.len() as u32;
                let n = rng.range(1..5);
                let ends = (0..n)
                    .map(|_| {
                        let len = rng.range(0..40);
                        if rng.chance(1, 2) {
                            block.extend_from_slice(&rng.bytes(len));
                        } else {
                            block.resize(block.len() + len, b'x');
                        }
                        block.len() as u32
                    })
                    .collect();
                Op::Entries(Entries {
                    first: rng.u64() >> rng.range(1..64),
                    start,
                    ends,
                })
            }
        };
        items.push(item(group, op));
    }
    (block, items)
}

#[test]
fn random_batches_come_back_and_damage_never_passes_for_another_batch() {
    let mut rng = Rng::new(Rng::seed_or(11));
    let mut compressed = 0;
    for round in 0..150 {
        let (block, items) = random_batch(&mut rng);
        let signature = if round % 3 == 0 { 0 } else { rng.u64() as u32 };
        let policy = if round % 2 == 0 { NEVER } else { ALWAYS };
        let record = encode_record(&block, &items, policy).unwrap();
        let mut bytes = record.bytes.clone();
        if record.header.compression == Compression::Lz4 {
            compressed += 1;
            let raw = encode_record(&block, &items, NEVER).unwrap().bytes.clone();
            assert!(bytes.len() < raw.len(), "kept only when it is shorter");
        }
        sign(&mut bytes, signature);
        assert_eq!(decode(&bytes, signature).unwrap(), (items, block));
        let whole = meaning(&bytes, signature).unwrap();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = meaning(&bytes, signature) {
                assert_eq!(other, whole, "bit {bit} of {}", bytes.len() * 8);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len], signature).is_err());
        }
        assert!(
            decode(&bytes, signature ^ 1).is_err(),
            "a record of another file is none of this one"
        );
    }
    assert!(compressed > 10);
}

#[test]
fn garbage_with_right_checksums_is_an_error_or_a_batch() {
    let mut rng = Rng::new(Rng::seed_or(12));
    for _ in 0..20_000 {
        let len = rng.range(0..24);
        let mut footer = rng.bytes(len);
        for byte in &mut footer {
            // Small numbers are kinds and counts more often.
            if rng.chance(2, 3) {
                *byte &= 3;
            }
        }
        let crc = crc32fast::hash(&footer);
        put_fixed32(&mut footer, crc);
        if let Ok(items) = decode_footer(&footer, 0) {
            assert!(items.len() <= len);
        }
        let len = rng.range(0..40);
        let mut block = rng.bytes(len);
        let crc = crc32fast::hash(&block);
        put_fixed32(&mut block, crc);
        let _ = decode_block(&block, Compression::Lz4, &mut Vec::new());
    }
}

#[test]
fn absurd_lengths_are_refused_before_memory_is_asked_for() {
    let header = |first: u64, second: u64| {
        let mut bytes = first.to_be_bytes().to_vec();
        bytes.extend_from_slice(&second.to_be_bytes());
        RecordHeader::decode(&bytes, 1 << 20)
    };
    assert!(header(100 << 8, 16).is_ok());
    assert!(header(100 << 8, 95).is_ok());
    for (first, second) in [
        (0, 0),
        (u64::MAX, 16),
        (100 << 8, 15),
        (100 << 8, 96),
        (100 << 8, u64::MAX),
        (100 << 8 | 2, 16),
        (100 << 8, 18),
        (((1 << 20) + 1) << 8, 16),
    ] {
        assert!(header(first, second).is_err(), "{first:x} {second:x}");
    }
    let mut block = (i32::MAX as u32).to_le_bytes().to_vec();
    block.extend_from_slice(&[0; 60]);
    let crc = crc32fast::hash(&block);
    put_fixed32(&mut block, crc);
    let error = decode_block(&block, Compression::Lz4, &mut Vec::new()).unwrap_err();
    assert_eq!(
        error.context("why"),
        Some("says more than its bytes can hold")
    );
}

#[test]
fn padding_is_none_or_long_enough() {
    for (end, alignment, expected) in [
        (69, 0, 0),
        (69, 512, 443),
        (512, 512, 0),
        (504, 512, 8),
        (505, 512, 0),
        (511, 512, 0),
        (513, 4096, 3583),
    ] {
        assert_eq!(padding(end, alignment), expected, "{end} {alignment}");
    }
    let kept = |alignment| {
        let version = FormatVersion::V2;
        FileHeader { version, alignment }.alignment_kept()
    };
    for foreign in [0, 1, 16, 511, 65537, u64::MAX] {
        assert_eq!(kept(foreign), 0);
    }
    for own in [512, 4096, 65536] {
        assert_eq!(kept(own), own);
    }
}

#[test]
fn with_a_filler_a_record_does_not_end_at_a_multiple() {
    let len_of = |at, len, alignment| {
        let filler = filler(at, len, alignment).unwrap();
        filler.map(|record| {
            let (items, block) = decode(&record.bytes, 0).unwrap();
            assert!(items.is_empty());
            assert_eq!(block.len(), if record.bytes.len() == 21 { 0 } else { 1 });
            record.bytes.len() as u64
        })
    };
    assert_eq!(len_of(4096, 512, 0), None);
    for alignment in [512, 4096] {
        for at in 1..alignment {
            let len = 2 * alignment - at;
            assert_eq!(len_of(at, len - 1, alignment), None);
            let filled = len_of(at, len, alignment).unwrap();
            assert!(!(at + filled).is_multiple_of(alignment));
            assert!(!(at + filled + len).is_multiple_of(alignment));
        }
    }
}

#[test]
fn damaged_file_headers_are_refused() {
    let header = FileHeader {
        version: FormatVersion::V2,
        alignment: 4096,
    };
    let mut bytes = header.encode();
    assert_eq!(FileHeader::decode(&bytes).unwrap(), header);
    for len in 0..bytes.len() {
        assert!(FileHeader::decode(&bytes[..len]).is_err());
    }
    for at in 0..61 {
        bytes[at] ^= 0x40;
        assert!(FileHeader::decode(&bytes).is_err());
        bytes[at] ^= 0x40;
    }
}

fn mark(id: u64, part: Part) -> Item {
    let (key, value) = (RESERVED_KEY.to_vec(), vec![part as u8]);
    Item {
        group: id,
        op: Op::Put { key, value },
    }
}

#[test]
fn marks_of_atomic_groups_are_taken_out() {
    let put = item(
        3,
        Op::Put {
            key: b"__".to_vec(),
            value: vec![1],
        },
    );
    let mut items = vec![put.clone(), mark(9, Part::End)];
    assert_eq!(take_mark(&mut items).unwrap(), Some((9, Part::End)));
    assert_eq!(items, [put]);
    assert_eq!(take_mark(&mut items).unwrap(), None);
    let mut wrong = vec![mark(9, Part::Begin)];
    if let Op::Put { value, .. } = &mut wrong[0].op {
        *value = vec![3];
    }
    assert!(take_mark(&mut wrong).is_err());
}
