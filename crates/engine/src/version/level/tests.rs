use orogen_base::key::append_seek_key;

use super::*;
use crate::version::text::parse_file;

fn level(icmp: &InternalKeyComparator, files: &[&str]) -> Level {
    Level::new(
        1,
        icmp,
        files
            .iter()
            .map(|f| Arc::new(parse_file(f).unwrap()))
            .collect(),
    )
}

#[test]
fn a_lookup_finds_the_file_that_a_scan_finds() {
    let mut seed = 5u64;
    let mut next = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    for order in [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE] {
        let icmp = InternalKeyComparator::new(order);
        for round in 0..300 {
            // Keys that share a prefix, that differ past the eighth byte, and that are empty.
            let prefix = ["", "p", "a long prefix of all "][round % 3];
            let mut key = || -> Vec<u8> {
                let mut key = prefix.as_bytes().to_vec();
                key.extend((0..next(12)).map(|_| [0, b'a', b'b', 0xff][next(4) as usize]));
                key
            };
            let mut ends: Vec<Vec<u8>> = (0..2 * (1 + round % 20)).map(|_| key()).collect();
            ends.sort_by(|a, b| icmp.user.compare(a, b));
            ends.dedup();
            if ends.len() % 2 == 1 {
                ends.pop();
            }
            let files: Vec<Arc<FileMeta>> = ends
                .chunks(2)
                .map(|pair| {
                    let mut f = parse_file("1: a..a").unwrap();
                    (f.smallest, f.largest) = (Vec::new(), Vec::new());
                    append_seek_key(&mut f.smallest, &pair[0], 9);
                    append_seek_key(&mut f.largest, &pair[1], 9);
                    Arc::new(f)
                })
                .collect();
            let level = Level::new(1, &icmp, files);
            let mut probes = ends.clone();
            probes.extend((0..20).map(|_| key()));
            probes.push(Vec::new());
            probes.push(vec![0xff; 30]);
            for k in probes {
                let by_scan = level
                    .files()
                    .iter()
                    .position(|f| !icmp.user.less(f.largest_user_key(), &k))
                    .unwrap_or(level.len());
                assert_eq!(level.find_file(&icmp, &k), by_scan, "{k:?}");
                for seqno in [8, 9, 10] {
                    let mut target = Vec::new();
                    append_seek_key(&mut target, &k, seqno);
                    let by_scan = level
                        .files()
                        .iter()
                        .position(|f| icmp.compare(&f.largest, &target) != Ordering::Less)
                        .unwrap_or(level.len());
                    assert_eq!(level.find_file_for_seek(&icmp, &target), by_scan);
                }
            }
        }
    }
}

#[test]
fn a_key_that_neighbours_share_has_two_candidates() {
    let icmp = InternalKeyComparator::default();
    let level = level(&icmp, &["1: a@9..c@9", "2: c@5..e@5", "3: g..h"]);
    let candidates = |key: &str| -> Vec<u64> {
        level
            .candidates(&icmp, key.as_bytes())
            .iter()
            .map(|f| f.number)
            .collect()
    };
    assert_eq!(candidates("c"), [1, 2]);
    assert_eq!(candidates("b"), [1]);
    assert_eq!(candidates("d"), [2]);
    assert!(candidates("f").is_empty());
    assert!(candidates("0").is_empty());
    assert!(candidates("i").is_empty());
}

#[test]
fn the_end_of_a_range_tombstone_is_not_part_of_the_file() {
    let icmp = InternalKeyComparator::default();
    let level = level(&icmp, &["1: a@9..c@MAX:RangeDeletion", "2: c@5..e@5"]);
    assert_eq!(level.overlapping(&icmp, Some(b"c"), Some(b"c")), 1..2);
    assert_eq!(level.overlapping(&icmp, Some(b"b"), Some(b"c")), 0..2);
    let first = KeyRange::of(&icmp, &level.files()[..1]).unwrap();
    assert_eq!(level.overlapping_range(&icmp, &first), 0..1);
    assert_eq!(level.clean_cut(&icmp, 0..1), 0..1);
    assert_eq!(level.position(2), Some(1));
    assert_eq!(level.position(3), None);
}
