//! The cache under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Threads look up, insert and erase in one small shard: (1) a value is its key's; (2) a value that
//! is held stays whole when it is evicted or erased; (3) charges add up in the end.

use std::sync::Arc;

use orogen_base::sync::atomic::Ordering;
use orogen_base::sync::{explore, thread};

use crate::{Cache, CacheKey, Reservation};

const CHARGE: usize = 100;

fn turns() {
    let cache = Arc::new(Cache::<u64>::new(4 * CHARGE));
    let id = cache.new_id();
    let key = move |offset| CacheKey { id, offset };
    let threads = [0u64, 1, 2].map(|w| {
        let cache = cache.clone();
        let builder = thread::Builder::new().name("model".to_owned());
        let body = move || {
            let mut held = Vec::new();
            for n in 0..4u64 {
                let offset = (n * (w + 1)) % 6;
                let value = cache
                    .get(key(offset))
                    .unwrap_or_else(|| cache.insert(key(offset), Arc::new(offset), CHARGE));
                held.push((offset, value));
                if w == 2 && n == 2 {
                    cache.erase(key(0));
                }
            }
            for (offset, value) in held {
                assert_eq!(*value, offset, "the value of another key");
            }
        };
        builder.spawn(body).unwrap()
    });
    for thread in threads {
        thread.join().unwrap();
    }
    for offset in 0..6 {
        if let Some(value) = cache.get(key(offset)) {
            assert_eq!(*value, offset);
        }
    }
    let _ = cache.held_usage();
    assert!(cache.usage() <= 4 * CHARGE, "{} bytes", cache.usage());
    assert_eq!(cache.usage(), cache.entry_count() * CHARGE);
    for shard in &*cache.shards {
        shard.check();
    }
}

#[test]
fn holds() {
    explore("cache", turns);
}

/// One thread reserves while another gives back: what is reserved has left the shards, and not much more.
fn reservations() {
    let cache = Arc::new(Cache::<u64>::new(64 * CHARGE));
    let id = cache.new_id();
    let mut first = Reservation::new(cache.clone());
    first.set(32 * CHARGE);
    let theirs = cache.clone();
    let thread = thread::Builder::new().name("model".to_owned());
    let body = move || {
        let mut second = Reservation::new(theirs.clone());
        second.set(32 * CHARGE);
        for offset in 0..5 {
            let key = CacheKey { id, offset };
            theirs.insert(key, Arc::new(offset), 16 * CHARGE);
        }
        let usage = theirs.usage();
        assert!(
            usage <= 32 * CHARGE,
            "{usage} bytes beside what is reserved"
        );
        second
    };
    let thread = thread.spawn(body).unwrap();
    first.set(0);
    let second = thread.join().unwrap();
    let withdrawn = cache.withdrawn.load(Ordering::SeqCst);
    let most = second.bytes() + 5 * cache.capacity() / 256;
    assert!(withdrawn <= most, "{withdrawn} bytes withdrawn");
    drop(second);
    assert_eq!(cache.reserved_usage(), 0);
}

#[test]
fn reserves() {
    explore("cache-reservations", reservations);
}
