use super::*;

fn may_match(kind: FilterKind, filter: &[u8], key: &[u8]) -> bool {
    let hash = hash64(key);
    kind.prefetch(filter, hash);
    kind.may_match(filter, key, hash)
}

#[test]
fn no_filter_denies_a_key_it_was_given() {
    for version in [4, 5] {
        for bits in [1.0, 5.0, 10.0, 9.9, 20.0, 60.0] {
            for n in [1u32, 2, 63, 1000] {
                let mut b = FilterBuilder::new(bits, version);
                let key = |i: u32| format!("key{i:0w$}", w = (i % 300) as usize).into_bytes();
                (0..n).for_each(|i| b.add_key(&key(i)).unwrap());
                let filter = b.finish().unwrap();
                assert_eq!(filter.len(), b.size());
                let kind = FilterKind::of(&filter);
                assert!(
                    (0..n).all(|i| may_match(kind, &filter, &key(i))),
                    "{version} {bits} {n}"
                );
                let hits = (n..n + 2000)
                    .filter(|&i| may_match(kind, &filter, &key(i)))
                    .count();
                if bits >= 9.9 {
                    assert!(
                        hits < 80,
                        "{version} {bits} {n}: {hits} false positives of 2000"
                    );
                }
            }
        }
    }
}

#[test]
fn repeated_keys_and_prefixes_count_once() {
    let mut b = FilterBuilder::new(10.0, 5);
    for key in [&b"aa1"[..], b"aa1", b"aa2", b"ab1"] {
        b.add_prefix(&key[..2]).unwrap();
        b.add_key(key).unwrap();
    }
    assert_eq!(b.entries(), 5);
}

#[test]
fn unknown_and_damaged_filters_deny_nothing() {
    let mut b = FilterBuilder::new(10.0, 5);
    b.add_key(b"x").unwrap();
    let good = b.finish().unwrap();
    let n = good.len();
    for (at, byte) in [
        (n - 5, 0xfd),
        (n - 5, 0),
        (n - 4, 1),
        (n - 3, 0x86),
        (n - 2, 1),
    ] {
        let mut f = good.clone();
        f[at] = byte;
        assert_eq!(FilterKind::of(&f), FilterKind::AlwaysTrue);
    }
    assert_eq!(FilterKind::of(&[]), FilterKind::AlwaysFalse);
    let mut ribbon = good.clone();
    for meta in [
        [0xfe, 0, 0, 0, 0],
        [0xfe, 9, 1, 0, 0],
        [0xfe, 0, 2, 0, 0],
        [0xfe, 7, 255, 255, 255],
    ] {
        ribbon[n - 5..].copy_from_slice(&meta);
        let kind = FilterKind::of(&ribbon);
        for i in 0..100u8 {
            let _ = may_match(kind, &ribbon, &[i; 20]);
        }
    }
    let mut legacy = good;
    for probes in [1, 6, 127] {
        legacy[n - 5] = probes;
        for lines in [0u32, 1, 2, 3, 64, 1 << 31, u32::MAX] {
            legacy[n - 4..].copy_from_slice(&lines.to_le_bytes());
            let kind = FilterKind::of(&legacy);
            let _ = may_match(kind, &legacy, b"some key");
        }
    }
}

#[test]
fn probes_follow_bits_per_key() {
    for (millibits, probes) in [
        (1000, 1),
        (10_000, 6),
        (10_070, 6),
        (10_071, 7),
        (28_000, 12),
        (28_001, 13),
    ] {
        assert_eq!(num_probes(millibits), probes, "{millibits}");
    }
    assert_eq!((num_probes(50_000), num_probes(50_001)), (23, 24));
}
