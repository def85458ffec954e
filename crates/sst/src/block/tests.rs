use std::cmp::Ordering;
use std::collections::BTreeMap;

use orogen_base::UserComparator;
use orogen_base::coding::put_varsigned64;

use super::*;
use crate::footer::BlockHandle;
use crate::tests_support::Rng;

fn user_order() -> KeyOrder {
    KeyOrder::User(UserComparator::BYTEWISE)
}

fn random_map(rng: &mut Rng, n: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..n).map(|_| (rng.key(12, 3), rng.bytes(200))).collect()
}

#[test]
fn cursors_move_as_a_map_does() {
    let mut rng = Rng::new(1);
    for round in 0..60 {
        let n = rng.below(60) as usize;
        let map = random_map(&mut rng, n);
        let block = build(&map, 1 + round % 17);
        let order = user_order();
        let mut c = BlockCursor::new();
        let mut seen = Vec::new();
        let mut on = c.seek_to_first(&block, &order).unwrap();
        while on {
            seen.push((c.key().to_vec(), c.value(&block).to_vec()));
            on = c.next(&block, &order).unwrap();
        }
        assert!(seen.iter().map(|(k, v)| (k, v)).eq(map.iter()));
        let mut back = Vec::new();
        let mut on = c.seek_to_last(&block, &order).unwrap();
        while on {
            back.push((c.key().to_vec(), c.value(&block).to_vec()));
            on = c.prev(&block, &order).unwrap();
        }
        back.reverse();
        assert_eq!(back, seen);
        for _ in 0..100 {
            let target = rng.key(12, 3);
            let found = c.seek(&block, &target, &order).unwrap();
            let want = map.range(target.clone()..).next();
            assert_eq!(
                found.then(|| c.key().to_vec()),
                want.map(|(k, _)| k.clone())
            );
            // Steps in both directions from there, mixed.
            let mut here = want.map(|(k, _)| k.clone());
            for _ in 0..6 {
                let Some(k) = here else { break };
                let (on, want) = if rng.below(2) == 0 {
                    let above = (std::ops::Bound::Excluded(k), std::ops::Bound::Unbounded);
                    (c.next(&block, &order).unwrap(), map.range(above).next())
                } else {
                    (c.prev(&block, &order).unwrap(), map.range(..k).next_back())
                };
                assert_eq!(on, want.is_some());
                here = want.map(|(k, v)| {
                    assert_eq!((c.key(), c.value(&block)), (&k[..], &v[..]));
                    k.clone()
                });
            }
        }
    }
}

fn build(map: &BTreeMap<Vec<u8>, Vec<u8>>, interval: u32) -> Block {
    let mut b = BlockBuilder::new(interval, false);
    for (k, v) in map {
        b.add(k, v).unwrap();
    }
    let size = b.size();
    let bytes = b.finish().to_vec();
    assert_eq!(bytes.len(), size);
    Block::new(bytes).unwrap()
}

#[test]
fn no_byte_of_a_block_leads_outside_it() {
    let mut rng = Rng::new(2);
    let map = random_map(&mut rng, 20);
    let bytes = build(&map, 4).bytes().to_vec();
    let order = user_order();
    for i in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[i / 8] ^= 1 << (i % 8);
        let Ok(block) = Block::new(bad) else { continue };
        let mut c = BlockCursor::new();
        let mut on = c.seek_to_first(&block, &order);
        let mut steps = 0;
        while let Ok(true) = on {
            steps += 1;
            assert!(steps <= bytes.len());
            let _ = c.value(&block);
            on = c.next(&block, &order);
        }
        let mut on = c.seek_to_last(&block, &order);
        for _ in 0..bytes.len() {
            let Ok(true) = on else { break };
            on = c.prev(&block, &order);
        }
        let _ = c.seek(&block, b"\x01\x01", &order);
        let internal = KeyOrder::Internal(UserComparator::BYTEWISE);
        let _ = c.seek(&block, b"\x01\x0112345678", &internal);
    }
    for n in 0..bytes.len() {
        if let Ok(block) = Block::new(bytes[..n].to_vec()) {
            let mut c = BlockCursor::new();
            let _ = c.seek(&block, b"\x01", &order);
        }
    }
}

#[test]
fn index_cursors_find_the_block_of_a_key() {
    let mut rng = Rng::new(3);
    for round in 0..60u32 {
        let (delta_values, interval) = (round % 2 == 0, 1 + round % 5);
        let format = IndexFormat {
            order: user_order(),
            delta_values,
            first_keys: false,
        };
        let mut offset = 0;
        let mut map = BTreeMap::new();
        let n = 1 + rng.below(50);
        let keys: std::collections::BTreeSet<_> = (0..n).map(|_| rng.key(9, 3)).collect();
        for k in keys {
            let size = rng.below(5000);
            map.insert(k, BlockHandle { offset, size });
            offset += size + 5;
        }
        let mut b = BlockBuilder::new(interval, delta_values);
        let mut before = None::<BlockHandle>;
        for (k, h) in &map {
            let (mut whole, mut delta) = (Vec::new(), Vec::new());
            h.encode(&mut whole);
            if let Some(p) = before {
                put_varsigned64(&mut delta, h.size as i64 - p.size as i64);
            }
            b.add_index(k, &whole, &delta).unwrap();
            before = Some(*h);
        }
        let block = Block::new(b.finish().to_vec()).unwrap();
        let mut c = IndexCursor::with_buffer(Vec::new());
        let mut on = c.seek_to_first(&block, &format).unwrap();
        let mut seen = Vec::new();
        while on {
            seen.push((c.key().to_vec(), c.handle()));
            on = c.next(&block, &format).unwrap();
        }
        assert!(seen.iter().map(|(k, h)| (k, h)).eq(map.iter()));
        let mut on = c.seek_to_last(&block, &format).unwrap();
        for (k, h) in map.iter().rev() {
            assert!(on);
            assert_eq!((c.key(), c.handle()), (&k[..], *h));
            on = c.prev(&block, &format).unwrap();
        }
        assert!(!on);
        for _ in 0..50 {
            let target = rng.key(9, 3);
            let found = c.seek(&block, &target, &format).unwrap();
            let want = map.range(target..).next();
            assert_eq!(
                found.then(|| (c.key().to_vec(), c.handle())),
                want.map(|(k, h)| (k.clone(), *h))
            );
        }
    }
}

#[test]
fn a_digest_narrows_a_seek_to_the_right_place() {
    let mut rng = Rng::new(9);
    let mut blocks_known = 0;
    for round in 0..40u32 {
        let internal = round % 2 == 0;
        let order = match internal {
            true => KeyOrder::Internal(UserComparator::BYTEWISE),
            false => user_order(),
        };
        let format = IndexFormat {
            order,
            delta_values: round % 3 == 0,
            first_keys: false,
        };
        let prefix = [&b"common"[..], b""][round as usize % 2];
        let mut keys = std::collections::BTreeSet::new();
        while keys.len() < 200 {
            // Long and short keys, many alike in their first bytes.
            let mut key = prefix.to_vec();
            key.extend_from_slice(&[b'x'; 9][..rng.below(10) as usize]);
            key.extend(rng.key(9, 4));
            keys.insert(key);
        }
        let interval = [1, 1, 2, 4][round as usize / 2 % 4];
        let mut b = BlockBuilder::new(interval, format.delta_values);
        // Blocks one behind the other, in some rounds with one that stands elsewhere.
        let (mut handle, mut gap) = (BlockHandle { offset: 7, size: 9 }, round % 5 == 4);
        for key in &keys {
            let mut key = key.clone();
            if internal {
                key.extend_from_slice(&(7u64 << 8).to_le_bytes());
            }
            let (before, mut value, mut delta) = (handle.size, Vec::new(), Vec::new());
            handle.size = 9 + rng.below(500);
            handle.encode(&mut value);
            put_varsigned64(&mut delta, handle.size as i64 - before as i64);
            b.add_index(&key, &value, &delta).unwrap();
            handle.offset = handle.end().unwrap();
            if interval == 1 && std::mem::take(&mut gap) {
                handle.offset += 1;
            }
        }
        let block = Block::new(b.finish().to_vec()).unwrap();
        let Some(digest) = IndexDigest::new(&block, &format) else {
            assert!(block.num_restarts() < 64);
            continue;
        };
        let (mut a, mut b) = (
            IndexCursor::with_buffer(Vec::new()),
            IndexCursor::with_buffer(Vec::new()),
        );
        for i in 0..400 {
            let mut user_key = match i % 2 {
                0 => rng.key(12, 4),
                _ => keys.iter().nth(rng.below(200) as usize).unwrap().clone(),
            };
            if i % 3 == 0 {
                user_key.splice(0..0, prefix.iter().copied());
            }
            let mut target = user_key.clone();
            target.extend_from_slice(&(rng.below(10) << 8).to_le_bytes());
            let target = format.target(&target);
            let found = a.seek(&block, target, &format).unwrap();
            digest.prefetch(&user_key);
            let located = digest.locate(&user_key);
            let narrowed = match located {
                Located::AfterAll => false,
                Located::Entry(i) => {
                    blocks_known += 1;
                    b.seek_to_restart(&block, i, &format).unwrap();
                    assert_eq!(digest.block(i), a.handle(), "{round} {user_key:?}");
                    true
                }
                Located::Among(low, high) => {
                    b.seek_within(&block, target, &format, (low, high)).unwrap()
                }
            };
            assert_eq!(found, narrowed, "{round} {user_key:?}");
            if found {
                assert_eq!((a.key(), a.handle()), (b.key(), b.handle()));
            }
        }
    }
    assert!(blocks_known > 500, "{blocks_known}");
}

#[test]
fn a_hash_index_is_stepped_over_and_newer_layouts_are_refused() {
    let mut rng = Rng::new(4);
    let map = random_map(&mut rng, 10);
    let plain = build(&map, 4).bytes().to_vec();
    let restarts = u32::from_le_bytes(*plain.last_chunk().unwrap());
    let mut hashed = plain[..plain.len() - 4].to_vec();
    hashed.extend_from_slice(&[0xff, 0, 1]);
    hashed.extend_from_slice(&3u16.to_le_bytes());
    hashed.extend_from_slice(&(restarts | HASH_INDEX).to_le_bytes());
    let block = Block::new(hashed).unwrap();
    assert_eq!(
        block.entries(),
        Block::new(plain.clone()).unwrap().entries()
    );
    assert_eq!(block.num_restarts(), restarts);
    for (bit, refused) in [
        (UNIFORM_KEYS, false),
        (SEPARATED_VALUES, true),
        (1 << 30, true),
    ] {
        let mut b = plain.clone();
        let n = b.len();
        b[n - 4..].copy_from_slice(&(restarts | bit).to_le_bytes());
        assert_eq!(Block::new(b).is_err(), refused);
    }
}

#[test]
fn internal_keys_order_newest_first() {
    let order = KeyOrder::Internal(UserComparator::BYTEWISE);
    let key = |s: &[u8], n: u64| {
        let mut k = s.to_vec();
        k.extend_from_slice(&(n << 8 | 1).to_le_bytes());
        k
    };
    assert_eq!(order.compare(&key(b"a", 9), &key(b"a", 8)), Ordering::Less);
    assert_eq!(order.compare(&key(b"a", 1), &key(b"aa", 8)), Ordering::Less);
    assert_eq!(order.compare(b"short", &key(b"", 8)), Ordering::Less);
}

#[test]
fn a_seek_among_internal_keys_finds_the_first_that_is_not_before() {
    let order = KeyOrder::Internal(UserComparator::BYTEWISE);
    let mut rng = Rng::new(31);
    for round in 0..200u32 {
        let mut keys: Vec<Vec<u8>> = (0..rng.below(80))
            .map(|_| {
                // Prefixes of each other, several versions, bytes as in trailers.
                let mut key = [&b""[..], b"common-beginning"][round as usize % 2].to_vec();
                key.extend(rng.key(10, 4));
                let trailer = [rng.below(4) << 8 | 1, rng.below(1 << 50)][rng.below(2) as usize];
                key.extend_from_slice(&trailer.to_le_bytes());
                key
            })
            .collect();
        keys.sort_by(|a, b| order.compare(a, b));
        keys.dedup();
        let mut b = BlockBuilder::new(1 + round % 20, false);
        keys.iter().for_each(|k| b.add(k, b"value").unwrap());
        let block = Block::new(b.finish().to_vec()).unwrap();
        let mut c = BlockCursor::new();
        for _ in 0..100 {
            let mut target = match keys.len() as u64 {
                n if n > 0 && rng.below(2) == 0 => keys[rng.below(n) as usize].clone(),
                _ => rng.key(14, 4),
            };
            if rng.below(2) == 0 || target.len() < 8 {
                target.truncate(target.len().saturating_sub(8));
                target.extend_from_slice(&(rng.below(5) << 8 | 0xff).to_le_bytes());
            }
            let want = keys.partition_point(|k| order.compare(k, &target).is_lt());
            let found = c.seek(&block, &target, &order).unwrap();
            assert_eq!(
                found.then(|| c.key()),
                keys.get(want).map(Vec::as_slice),
                "{round}"
            );
            assert_eq!(c.valid(), found);
            if found {
                assert_eq!(c.value(&block), b"value");
                // What follows builds on the key held.
                let on = c.next(&block, &order).unwrap();
                assert_eq!(on.then(|| c.key()), keys.get(want + 1).map(Vec::as_slice));
            }
        }
    }
}

#[test]
fn going_back_over_long_keys_that_share_their_prefix_takes_little_memory() {
    let mut key = vec![b'k'; 1 << 20];
    let mut builder = BlockBuilder::new(u32::MAX, false);
    for n in 0..60u32 {
        key.truncate(1 << 20);
        key.extend_from_slice(&n.to_be_bytes());
        builder.add(&key, &n.to_be_bytes()).unwrap();
    }
    let block = Block::new(builder.into_block()).unwrap();
    let order = user_order();
    let mut cursor = BlockCursor::new();
    let mut on = cursor.seek_to_last(&block, &order).unwrap();
    for n in (0..60u32).rev() {
        assert!(on);
        assert_eq!(cursor.value(&block), n.to_be_bytes());
        assert_eq!(cursor.key()[1 << 20..], n.to_be_bytes());
        on = cursor.prev(&block, &order).unwrap();
        assert!(cursor.passed_bytes() <= 2 * (16 << 20), "{n}");
    }
    assert!(!on);
}
