use orogen_base::metrics::Ticker;
use orogen_base::{ErrorKind, UserComparator};

use super::*;
use crate::read::simulated::{Lsm, Op, Random, key, model, random_history};

#[test]
fn gets_see_what_the_model_has_at_every_sequence_number() {
    for seed in 0..250 {
        let mut r = Random(seed);
        let order = [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE]
            [usize::from(seed % 4 == 0)]
        .clone();
        let history = random_history(&mut r, &order, 24);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let places = lsm.places();
        let last = history.len() as SeqNo;
        for read_seqno in lsm.oldest_reader..=last {
            if read_seqno != last && r.below(8) > 0 {
                continue;
            }
            let model = model(&order, &history, read_seqno);
            let keys: Vec<Vec<u8>> = (0..26).map(key).collect();
            let wanted = |k: &Vec<u8>| model.iter().find(|e| e.0 == *k).map(|e| e.1.clone());
            for k in &keys {
                let got = places
                    .get(k, read_seqno)
                    .unwrap()
                    .map(PinnedValue::into_vec);
                assert_eq!(
                    got,
                    wanted(k),
                    "seed {seed} at {read_seqno} {}",
                    k.escape_ascii()
                );
            }
            let count = *r.pick(&[0, 1, 10, 300]);
            let asked: Vec<&[u8]> = (0..count).map(|_| r.pick(&keys).as_slice()).collect();
            for (k, got) in asked.iter().zip(places.multi_get(&asked, read_seqno)) {
                assert_eq!(got.unwrap().map(PinnedValue::into_vec), wanted(&k.to_vec()));
            }
        }
    }
}

#[test]
fn a_damaged_table_gives_an_error_and_never_a_wrong_answer() {
    for seed in 0..40 {
        let mut r = Random(seed);
        let order = UserComparator::BYTEWISE;
        let history = random_history(&mut r, &order, 12);
        let lsm = Lsm::spread(&mut r, &order, &history);
        let model = model(&order, &history, history.len() as SeqNo);
        for k in (0..12).map(key) {
            let wanted = model.iter().find(|e| e.0 == k).map(|e| e.1.clone());
            for n in 0.. {
                lsm.tables.fuse.set(n);
                if let Ok(got) = lsm.places().get(&k, history.len() as SeqNo) {
                    assert_eq!(got.map(PinnedValue::into_vec), wanted, "seed {seed}");
                    break;
                }
            }
        }
        // Of many keys together only those fail that met the damage.
        let keys: Vec<Vec<u8>> = (0..12).chain(3..6).map(key).collect();
        let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        for n in 0.. {
            lsm.tables.fuse.set(n);
            let got = lsm.places().multi_get(&asked, history.len() as SeqNo);
            let failed = got.iter().filter(|r| r.is_err()).count();
            assert!(failed <= 1, "seed {seed}: {failed} failed");
            for (k, got) in keys.iter().zip(&got) {
                let wanted = model.iter().find(|e| e.0 == *k).map(|e| &e.1[..]);
                if let Ok(got) = got {
                    assert_eq!(got.as_deref(), wanted, "seed {seed}");
                }
            }
            if failed == 0 {
                break;
            }
        }
        lsm.tables.fuse.set(-1);
    }
}

#[test]
fn hits_are_counted_where_they_were() {
    let history: Vec<Op> = (0..30)
        .map(|i| Op::Point(key(i), ValueKind::Value, vec![1; 10]))
        .collect();
    let lsm = Lsm::spread(&mut Random(7), &UserComparator::BYTEWISE, &history);
    for i in 0..33 {
        lsm.places().get(&key(i), 30).unwrap();
    }
    let count = |t| lsm.statistics.get(t);
    assert_eq!(count(Ticker::NumberKeysRead), 33);
    assert_eq!(count(Ticker::BytesRead), 300);
    assert_eq!(count(Ticker::MemtableHit) + count(Ticker::MemtableMiss), 33);
    let tables = [Ticker::GetHitL0, Ticker::GetHitL1, Ticker::GetHitL2AndUp].map(count);
    assert_eq!(count(Ticker::MemtableMiss) - tables.iter().sum::<u64>(), 3);
    assert!(tables.iter().any(|n| *n > 0));
}

fn feed(entries: &[(SeqNo, ValueKind, &[u8])], covering: SeqNo) -> GetState<'static> {
    let mut state = GetState::new(b"k", 100);
    state.add_covering(covering);
    for &(seqno, kind, value) in entries {
        let key = ParsedInternalKey {
            user_key: b"k",
            seqno,
            kind,
        };
        if state.visit(key, || Ok(PinnedValue::from(value))) == Visit::Stop {
            break;
        }
    }
    state
}

#[test]
fn pointers_are_told_of_and_followed_before_the_end() {
    let refused = |entries: &[(SeqNo, ValueKind, &[u8])], covering| {
        let operator = crate::read::simulated::merge_operator();
        let mut state = feed(entries, covering);
        if let Some(pointer) = state.pointer() {
            assert_eq!(pointer, b"x");
            state.resolve(Err(Error::corruption("pointer leads nowhere")));
        }
        state.finish(Some(&operator)).map_err(|e| e.kind())
    };
    let corrupt = ErrorKind::Corruption;
    assert_eq!(
        refused(&[(5, ValueKind::BlobIndex, b"x")], 0).unwrap_err(),
        corrupt
    );
    let mut found = feed(
        &[
            (7, ValueKind::Merge, &b"m"[..]),
            (5, ValueKind::BlobIndex, b"x"),
        ],
        0,
    );
    found.resolve(Ok(PinnedValue::from(&b"base"[..])));
    let operator = crate::read::simulated::merge_operator();
    assert_eq!(&*found.finish(Some(&operator)).unwrap().unwrap(), b"base,m");
    let unfollowed = feed(&[(5, ValueKind::BlobIndex, b"x")], 0);
    assert!(unfollowed.finish(None).is_err());
    let merged = [
        (7, ValueKind::Merge, &b"m"[..]),
        (5, ValueKind::BlobIndex, b"x"),
    ];
    assert_eq!(refused(&merged, 0).unwrap_err(), corrupt);
    assert_eq!(&*refused(&merged, 6).unwrap().unwrap(), b"m");
    assert!(
        refused(&[(5, ValueKind::BlobIndex, b"x")], 6)
            .unwrap()
            .is_none()
    );
}

#[test]
fn operands_without_an_operator_are_an_error() {
    let state = feed(&[(7, ValueKind::Merge, b"m")], 0);
    assert_eq!(
        state.finish(None).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn what_settles_a_search_keeps_older_places_closed() {
    let history: Vec<Op> = (0..30)
        .map(|i| Op::Point(key(i), ValueKind::Value, vec![1; 10]))
        .collect();
    let lsm = Lsm::spread(&mut Random(7), &UserComparator::BYTEWISE, &history);
    assert!(lsm.version.total_files() > 0);
    lsm.memtables[0]
        .insert(&key(3), 31, ValueKind::Value, b"new")
        .unwrap();
    lsm.memtables[0]
        .insert(&key(4), 32, ValueKind::Deletion, b"")
        .unwrap();
    lsm.memtables[0]
        .insert_range_deletion(&key(0), b"l", 33)
        .unwrap();
    for (k, read_seqno, want) in [(3, 32, Some(&b"new"[..])), (4, 32, None), (5, 33, None)] {
        lsm.tables.fuse.set(0);
        let got = lsm.places().get(&key(k), read_seqno).unwrap();
        assert_eq!(got.as_deref(), want);
    }
}

#[test]
fn the_number_of_the_newest_version_is_found_without_a_value() {
    for kind in [ValueKind::Merge, ValueKind::Value, ValueKind::BlobIndex] {
        let mut state = GetState::of_number(b"k", 100);
        let key = ParsedInternalKey {
            user_key: b"k",
            seqno: 7,
            kind,
        };
        let visit = state.visit(key, || unreachable!("nobody wants it"));
        assert!(matches!(visit, Visit::Stop) && state.is_settled());
        assert_eq!(state.newest, 7);
    }
}
