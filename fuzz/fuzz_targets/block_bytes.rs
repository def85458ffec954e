//! Any bytes as a data block or an index, in every form of index that is read: every move ends, in
//! no more steps than there are bytes. Where the bytes are sound, by a decoder of the target's own,
//! scans, seeks and lookups tell what stands there.

#![no_main]

use std::cmp::Ordering;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::coding::{Decoder, put_length_prefixed, put_varint64, put_varsigned64};
use orogen_base::key::{InternalKeyComparator, append_internal_key, user_key};
use orogen_base::{InternalIterator, ParsedInternalKey, Result, ValueKind};
use orogen_fuzz::Choices;
use orogen_fuzz::raw_table::{LAST_KEY, RawTable, block_of, index_value, sorted_block, unchecked};
use orogen_sst::{BlockHandle, CompressionType, TableReader, TableReaderOptions, Visit};

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Hostile indexes may lead to one block again and again; enough is enough.
const MOVES_MAX: usize = 5_000;

fn order() -> InternalKeyComparator {
    InternalKeyComparator::default()
}

fn read_entries(block: &[u8]) -> Result<(Entries, Vec<u32>)> {
    let (mut all, mut whole, mut key) = (Entries::new(), Vec::new(), Vec::new());
    let mut d = Decoder::new(block);
    while !d.is_empty() {
        let at = d.position() as u32;
        let shared = d.varint32("shared")? as usize;
        let (own, value) = (d.varint32("own")? as usize, d.varint32("value")? as usize);
        if shared > key.len() {
            return Err(orogen_base::Error::corruption("shares too much"));
        }
        if shared == 0 {
            whole.push(at);
        }
        key.truncate(shared);
        key.extend_from_slice(d.bytes(own, "key")?);
        all.push((key.clone(), d.bytes(value, "value")?.to_vec()));
    }
    Ok((all, whole))
}

/// The entries of a data block, if every byte is as a builder could have written it.
fn sound_entries(block: &[u8]) -> Option<Entries> {
    let (rest, packed) = block.split_last_chunk::<4>()?;
    let restarts = u32::from_le_bytes(*packed) as usize;
    let start = rest.len().checked_sub(restarts.checked_mul(4)?)?;
    let (entries, offsets) = rest.split_at(start);
    let (entries, whole) = read_entries(entries).ok()?;
    let offsets: Vec<u32> = offsets
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let known = entries
        .iter()
        .all(|(key, _)| ParsedInternalKey::parse(key).is_ok());
    let sound = known
        && offsets.first() == Some(&0)
        && offsets.is_sorted_by(|a, b| a < b)
        && (entries.is_empty() || offsets.iter().all(|at| whole.binary_search(at).is_ok()))
        && (!entries.is_empty() || offsets.len() == 1)
        && entries.is_sorted_by(|a, b| order().compare(&a.0, &b.0) == Ordering::Less)
        && entries
            .last()
            .is_none_or(|last| order().compare(&last.0, &LAST_KEY) != Ordering::Greater);
    sound.then_some(entries)
}

fn here(iter: &impl InternalIterator) -> Option<(&[u8], &[u8])> {
    iter.status().expect("sound");
    iter.valid().then(|| (iter.key(), iter.value()))
}

/// Everything is read as `want` has it.
fn check(table: &Arc<TableReader>, want: &Entries) {
    let at = |i: Option<usize>| Some(want.get(i?)?).map(|(k, v)| (&k[..], &v[..]));
    let mut iter = table.iter(unchecked());
    iter.seek_to_first();
    for i in 0..=want.len() {
        assert_eq!(here(&iter), at(Some(i)), "forwards at {i}");
        if iter.valid() {
            iter.next();
        }
    }
    iter.seek_to_last();
    for i in (0..=want.len()).rev() {
        assert_eq!(here(&iter), at(i.checked_sub(1)), "backwards at {i}");
        if iter.valid() {
            iter.prev();
        }
    }
    for (key, _) in want.iter().take(100) {
        let (mut newer, mut longer) = (user_key(key).to_vec(), user_key(key).to_vec());
        newer.extend_from_slice(&(orogen_base::key::trailer(key).saturating_add(1)).to_le_bytes());
        longer.push(0);
        append_internal_key(&mut longer, b"", 9, ValueKind::Value);
        for target in [key, &newer, &longer] {
            let first = want.partition_point(|(k, _)| order().compare(k, target).is_lt());
            iter.seek(target);
            assert_eq!(here(&iter), at(Some(first)), "{target:?}");
            let behind = want.partition_point(|(k, _)| order().compare(k, target).is_le());
            iter.seek_for_prev(target);
            assert_eq!(here(&iter), at(behind.checked_sub(1)), "{target:?}");
        }
        let mut got = Entries::new();
        table
            .get(&unchecked(), user_key(key), u64::MAX >> 8, &mut |k, v| {
                got.push((k.encode(), v.bytes().to_vec()));
                Visit::Continue
            })
            .expect("sound");
        let versions = want.iter().filter(|(k, _)| user_key(k) == user_key(key));
        assert!(versions.eq(&got), "{key:?}");
    }
}

/// Whatever the bytes are, each way of reading ends.
fn wander(table: &Arc<TableReader>, moves_max: usize, is_data: bool) {
    let mut keys = Vec::new();
    let mut iter = table.iter(unchecked());
    iter.seek_to_first();
    let mut moves = 0;
    while iter.valid() && moves <= moves_max {
        if keys.len() < 20 {
            keys.push(iter.key().to_vec());
        }
        iter.next();
        moves += 1;
    }
    assert!(!is_data || moves <= moves_max, "more entries than bytes");
    iter.seek_to_last();
    moves = 0;
    while iter.valid() && moves <= moves_max {
        iter.prev();
        moves += 1;
    }
    assert!(!is_data || moves <= moves_max, "backwards without end");
    for key in &keys {
        iter.seek(key);
        if iter.valid() {
            iter.prev();
        }
        iter.seek_for_prev(key);
        if iter.valid() {
            iter.next();
        }
        let _ = table.get(&unchecked(), user_key(key), u64::MAX >> 8, &mut |_, _| {
            Visit::Continue
        });
        let _ = table.approximate_offset_of(key);
    }
    let _ = table.anchors(4);
}

fn some_entries(choices: &mut Choices<'_>, max: usize) -> Entries {
    let mut all = Entries::new();
    for _ in 0..usize::from(choices.byte()) % max {
        let mut key = Vec::new();
        let user_key = choices.key();
        append_internal_key(&mut key, &user_key, choices.byte().into(), ValueKind::Value);
        all.push((key, vec![choices.byte(); usize::from(choices.byte())]));
    }
    all.sort_by(|a, b| order().compare(&a.0, &b.0));
    all.dedup_by(|b, a| a.0 == b.0);
    all
}

fn change(choices: &mut Choices<'_>, block: &mut [u8]) -> bool {
    let times = choices.byte() % 4;
    for _ in 0..times {
        let at = choices.short() % block.len();
        block[at] = choices.byte();
    }
    times > 0
}

fn data_block(mut choices: Choices<'_>, is_made: bool) {
    let block = if is_made {
        let interval = 1 + usize::from(choices.byte() % 20);
        let mut block = sorted_block(&some_entries(&mut choices, 100), interval);
        change(&mut choices, &mut block);
        block
    } else {
        choices.rest().to_vec()
    };
    let mut table = RawTable::default();
    let data = table.block(&block, CompressionType::None);
    let index = table.index_of(data);
    let table = table
        .open(index, 5, TableReaderOptions::default())
        .expect("data blocks are not read at open");
    match sound_entries(&block) {
        Some(want) => check(&table, &want),
        None => wander(&table, block.len() + 1, true),
    }
}

/// What an index looks like.
#[derive(Clone, Copy)]
struct Form {
    user_keys: bool,
    delta_values: bool,
    first_keys: bool,
    two_level: bool,
}

impl Form {
    fn properties(self) -> Vec<u8> {
        let kind: u32 = match (self.two_level, self.first_keys) {
            (true, _) => 2,
            (_, true) => 3,
            _ => 0,
        };
        let number = |v: bool| {
            let mut out = Vec::new();
            put_varint64(&mut out, v.into());
            out
        };
        let entry = |name: &str, value| (name.as_bytes().to_vec(), value);
        sorted_block(
            &[
                entry(
                    "rocksdb.block.based.table.index.type",
                    kind.to_le_bytes().to_vec(),
                ),
                entry("rocksdb.index.key.is.user.key", number(self.user_keys)),
                entry(
                    "rocksdb.index.value.is.delta.encoded",
                    number(self.delta_values),
                ),
            ],
            1,
        )
    }

    /// An index block over blocks of these last and first keys.
    fn block(self, blocks: &[(Vec<u8>, Vec<u8>, BlockHandle)], interval: usize) -> Vec<u8> {
        let key = |last: &'_ Vec<u8>| {
            if self.user_keys {
                user_key(last).to_vec()
            } else {
                last.clone()
            }
        };
        let keys: Vec<_> = blocks.iter().map(|(last, ..)| key(last)).collect();
        block_of(keys.iter().map(Vec::as_slice), interval, |i, shares| {
            let (_, first, handle) = &blocks[i];
            let mut value = Vec::new();
            if self.delta_values && shares {
                put_varsigned64(&mut value, handle.size as i64 - blocks[i - 1].2.size as i64);
                if self.first_keys && !self.two_level {
                    put_length_prefixed(&mut value, first);
                }
            } else {
                let first = (self.first_keys && !self.two_level).then_some(&first[..]);
                value = index_value(*handle, first);
            }
            ((!self.delta_values).then_some(value.len()), value)
        })
    }
}

fn index_block(mut choices: Choices<'_>, is_made: bool, form: Form) {
    let mut table = RawTable::default();
    let interval = 1 + usize::from(choices.byte() % 8);
    let mut want = some_entries(&mut choices, 60);
    if form.user_keys {
        // Then no user key stands in two blocks.
        want.dedup_by(|b, a| user_key(&a.0) == user_key(&b.0));
    }
    let of = |table: &mut RawTable, entries: &[(Vec<u8>, Vec<u8>)], block: &[u8]| {
        let handle = table.block(block, CompressionType::None);
        let (first, last) = (&entries[0].0, &entries[entries.len() - 1].0);
        (last.clone(), first.clone(), handle)
    };
    let mut blocks = Vec::new();
    for entries in want.chunks(1 + usize::from(choices.byte() % 8)) {
        blocks.push(of(&mut table, entries, &sorted_block(entries, 4)));
    }
    if form.two_level {
        let mut parts = Vec::new();
        for below in blocks.chunks(1 + usize::from(choices.byte() % 4)) {
            let handle = table.block(&form.block(below, interval), CompressionType::None);
            parts.push((below[below.len() - 1].0.clone(), Vec::new(), handle));
        }
        blocks = parts;
    }
    let mut block = form.block(&blocks, interval);
    let mut is_sound = !change(&mut choices, &mut block);
    if !is_made {
        block = choices.rest().to_vec();
        is_sound = false;
    }
    let index = table.block(&block, CompressionType::None);
    table.meta_block("rocksdb.properties", &form.properties());
    match table.open(index, 5, TableReaderOptions::default()) {
        Ok(table) if is_sound => check(&table, &want),
        Ok(table) => wander(&table, MOVES_MAX, false),
        Err(e) => assert!(!is_sound, "{e}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let flags = choices.byte();
    let is_set = |bit: u8| flags & 1 << bit != 0;
    if !is_set(0) {
        return data_block(choices, is_set(1));
    }
    let form = Form {
        user_keys: is_set(2),
        delta_values: is_set(3),
        first_keys: is_set(4),
        two_level: is_set(5),
    };
    index_block(choices, is_set(1), form);
});
