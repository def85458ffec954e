use super::*;
use crate::format::Compression;
use crate::names::FileId;

const KIB: usize = 1 << 10;

fn block(queue: Queue, seq: u64, offset: u64) -> Block {
    Block {
        file: FileId::new(queue, seq),
        offset,
        len: 1,
        compression: Compression::None,
    }
}

fn cache(bytes: usize) -> ReadCache {
    ReadCache::new(bytes, Arc::new(Meters::new())).unwrap()
}

#[test]
fn each_place_of_each_file_of_both_queues_is_its_own() {
    let cache = cache(KIB * KIB);
    let mut places = Vec::new();
    for queue in [Queue::Append, Queue::Rewrite] {
        for seq in [1, 2, 3, 1 << 32, u64::MAX] {
            places.extend([100, 101, 1 << 33].map(|offset| block(queue, seq, offset)));
        }
    }
    for (n, place) in places.iter().enumerate() {
        assert!(cache.get(place).is_none());
        cache.insert(place, vec![n as u8]);
    }
    for (n, place) in places.iter().enumerate() {
        assert_eq!(cache.get(place).as_deref(), Some(&vec![n as u8]));
    }
}

#[test]
fn it_takes_no_more_than_its_bytes() {
    assert!(ReadCache::new(0, Arc::new(Meters::new())).is_none());
    for bytes in [1, 4 * KIB, 100 * KIB, 3 * KIB * KIB] {
        let cache = cache(bytes);
        let len = cache.block_max.min(10 * KIB);
        assert!(cache.takes(len));
        for at in 0..1000 {
            let place = block(Queue::Append, 1, at);
            let (kept, gone) = cache.insert(&place, vec![at as u8; len]);
            assert_eq!((kept.len(), kept.last()), (len, vec![at as u8; len].last()));
            assert!(gone.is_none_or(|gone| gone.len() == len));
        }
        assert!(
            cache.bytes() <= bytes as u64,
            "{} of {bytes}",
            cache.bytes()
        );
        assert!(cache.bytes() * 2 >= bytes as u64 || len == 0);
        assert!(
            !cache.takes(bytes / 8 + 1),
            "a shard is more than one block"
        );
    }
    assert!(cache(usize::MAX).takes(KIB));
}

#[test]
fn what_is_read_once_does_not_push_out_what_is_read_again() {
    let cache = cache(400 * KIB);
    let wanted = block(Queue::Append, 1, 1);
    for _ in 0..3 {
        if cache.get(&wanted).is_none() {
            cache.insert(&wanted, vec![7; KIB]);
        }
    }
    for at in 0..10_000 {
        cache.insert(&block(Queue::Append, 2, at), vec![1; KIB]);
        if at % 100 == 0 {
            assert!(cache.get(&wanted).is_some(), "{at}");
        }
    }
}
