//! Operations on memtables against a sorted map: lookups at sequence numbers, both ways through a
//! cursor, and seeks, while the memtable grows where it may and behind it where it may not.

#![no_main]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::key::{append_internal_key, append_seek_key};
use orogen_base::{InternalIterator, ParsedInternalKey, UserComparator, ValueKind};
use orogen_fuzz::Choices;
use orogen_memtable::{GuidedListMemTable, MemTable, TrieMemTable, VectorMemTable, Visit};

/// User key, in the order of bytes or the reverse, and sequence number to kind and value.
type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (ValueKind, Vec<u8>)>;

const KINDS: [ValueKind; 5] = [
    ValueKind::Value,
    ValueKind::Deletion,
    ValueKind::Merge,
    ValueKind::SingleDeletion,
    ValueKind::BlobIndex,
];

/// Entries as a cursor shows them, in order.
fn entries(model: &Model, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all: Vec<_> = model.iter().collect();
    if reverse {
        all.sort_by(|a, b| b.0.0.cmp(&a.0.0).then(a.0.1.cmp(&b.0.1)));
    }
    all.into_iter()
        .map(|((user_key, seqno), (kind, value))| {
            let mut key = Vec::new();
            append_internal_key(&mut key, user_key, seqno.0, *kind);
            (key, value.clone())
        })
        .collect()
}

fn here(iter: &dyn InternalIterator) -> Option<(Vec<u8>, Vec<u8>)> {
    iter.status().expect("nothing is damaged");
    iter.valid()
        .then(|| (iter.key().to_vec(), iter.value().to_vec()))
}

fn check_get(table: &dyn MemTable, model: &Model, user_key: &[u8], read_seqno: u64) {
    let mut got = Vec::new();
    let mut visit = |key: ParsedInternalKey<'_>, value: &[u8]| {
        assert_eq!(key.user_key, user_key);
        got.push((key.seqno, key.kind, value.to_vec()));
        Visit::Continue
    };
    table
        .get(user_key, read_seqno, &mut visit)
        .expect("nothing is damaged");
    let from = (user_key.to_vec(), Reverse(read_seqno));
    let want: Vec<_> = model
        .range(from..=(user_key.to_vec(), Reverse(0)))
        .map(|((_, seqno), (kind, value))| (seqno.0, *kind, value.clone()))
        .collect();
    assert_eq!(got, want, "{user_key:?} at {read_seqno}");
}

fn check_scans(table: Arc<dyn MemTable>, model: &Model, reverse: bool) {
    let want = entries(model, reverse);
    let mut iter = table.iter();
    iter.seek_to_first();
    for entry in &want {
        assert_eq!(here(&*iter).as_ref(), Some(entry));
        iter.next();
    }
    assert_eq!(here(&*iter), None);
    iter.seek_to_last();
    for entry in want.iter().rev() {
        assert_eq!(here(&*iter).as_ref(), Some(entry));
        iter.prev();
    }
    assert_eq!(here(&*iter), None);
}

fn check_seek(iter: &mut dyn InternalIterator, want: &[(Vec<u8>, Vec<u8>)], target: &[u8]) {
    let at = want.iter().position(|(key, _)| key == target);
    if let Some(at) = at {
        iter.seek(target);
        assert_eq!(here(iter).as_ref(), Some(&want[at]));
        iter.prev();
        assert_eq!(here(iter).as_ref(), at.checked_sub(1).map(|i| &want[i]));
        iter.seek_for_prev(target);
        assert_eq!(here(iter).as_ref(), Some(&want[at]));
        iter.next();
        assert_eq!(here(iter).as_ref(), want.get(at + 1));
    }
}

fn check_seek_to_version(
    iter: &mut dyn InternalIterator,
    want: &[(Vec<u8>, Vec<u8>)],
    user_key: &[u8],
    seqno: u64,
    reverse: bool,
) {
    let mut target = Vec::new();
    append_seek_key(&mut target, user_key, seqno);
    let is_before = |key: &[u8]| {
        let key = ParsedInternalKey::parse(key).expect("inserted by us");
        let order = if reverse {
            user_key.cmp(key.user_key)
        } else {
            key.user_key.cmp(user_key)
        };
        order.is_lt() || (order.is_eq() && key.seqno > seqno)
    };
    let at = want.partition_point(|(key, _)| is_before(key));
    iter.seek(&target);
    assert_eq!(here(iter).as_ref(), want.get(at));
    iter.seek_for_prev(&target);
    assert_eq!(here(iter).as_ref(), at.checked_sub(1).map(|i| &want[i]));
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let flags = choices.byte();
    let reverse = flags & 1 == 1;
    let order = if reverse {
        UserComparator::REVERSE_BYTEWISE
    } else {
        UserComparator::BYTEWISE
    };
    let written: Arc<dyn MemTable> = if !reverse && flags & 4 != 0 {
        TrieMemTable::new(1 << 20).unwrap()
    } else {
        GuidedListMemTable::with_protection(order.clone(), flags & 2 != 0)
    };
    let vector: Arc<dyn MemTable> = VectorMemTable::new(order);
    let (mut model, mut ranges) = (Model::new(), 0);
    while !choices.is_empty() && model.len() < 300 {
        let action = choices.byte();
        let (key, seqno) = (choices.key(), 1 + u64::from(choices.byte()));
        match action % 8 {
            0..=4 => {
                let kind = KINDS[usize::from(action % 8)];
                let value = vec![choices.byte(); usize::from(choices.byte()) << (action >> 6)];
                let place = (key.clone(), Reverse(seqno));
                if !model.contains_key(&place) {
                    written.insert(&key, seqno, kind, &value).unwrap();
                    vector.insert(&key, seqno, kind, &value).unwrap();
                    model.insert(place, (kind, value));
                }
            }
            5 => {
                let end = choices.key();
                written.insert_range_deletion(&key, &end, seqno).unwrap();
                vector.insert_range_deletion(&key, &end, seqno).unwrap();
                ranges += 1;
            }
            6 => check_get(&*written, &model, &key, seqno),
            _ => {
                let want = entries(&model, reverse);
                let mut iter = written.clone().iter();
                check_seek_to_version(&mut *iter, &want, &key, seqno, reverse);
            }
        }
    }
    let want = entries(&model, reverse);
    for table in [written, vector] {
        assert_eq!(table.entry_count(), model.len() as u64 + ranges);
        assert_eq!(table.has_range_tombstones(), ranges > 0);
        check_scans(table.clone(), &model, reverse);
        let mut iter = table.clone().iter();
        for (target, _) in &want {
            check_seek(&mut *iter, &want, target);
            let user_key = &target[..target.len() - 8];
            for seqno in [0, 100, 300] {
                check_get(&*table, &model, user_key, seqno);
                check_seek_to_version(&mut *iter, &want, user_key, seqno, reverse);
            }
        }
        check_get(&*table, &model, b"absent", 300);
    }
});
