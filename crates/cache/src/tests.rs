use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use orogen_base::inspect::Inspect;

use crate::{Cache, CacheKey, Priority, Reservation, SHARD_BYTES_MIN};

fn key(offset: u64) -> CacheKey {
    CacheKey { id: 1, offset }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n
    }
}

fn check<V: Send + Sync>(cache: &Cache<V>) {
    for shard in &cache.shards {
        shard.check();
    }
}

#[test]
fn a_value_is_found_until_it_is_erased() {
    let cache = Cache::new(1000);
    assert!(cache.get(key(1)).is_none());
    cache.insert(key(1), Arc::new("one"), 10);
    assert_eq!(cache.get(key(1)).as_deref(), Some(&"one"));
    assert!(cache.get(CacheKey { id: 2, offset: 1 }).is_none());
    assert_eq!((cache.usage(), cache.entry_count()), (10, 1));
    cache.erase(key(1));
    cache.erase(key(1));
    assert!(cache.get(key(1)).is_none());
    assert_eq!((cache.usage(), cache.entry_count()), (0, 0));
}

#[test]
fn the_first_insert_of_a_key_wins() {
    let cache = Cache::new(1000);
    let first = cache.insert(key(1), Arc::new(1), 10);
    let second = cache.insert(key(1), Arc::new(2), 20);
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(cache.usage(), 10);
}

#[test]
fn ids_are_unique() {
    let cache = Cache::<()>::new(0);
    let ids: std::collections::HashSet<u64> = (0..100).map(|_| cache.new_id()).collect();
    assert_eq!(ids.len(), 100);
}

#[test]
fn what_is_larger_than_a_shard_is_returned_but_not_kept() {
    let cache = Cache::new(100);
    cache.insert(key(1), Arc::new(1), 60);
    assert_eq!(*cache.insert(key(2), Arc::new(2), 101), 2);
    assert!(cache.get(key(2)).is_none());
    assert!(cache.get(key(1)).is_some());
    let none = Cache::new(0);
    none.insert(key(1), Arc::new(1), 1);
    assert_eq!(none.entry_count(), 0);
}

#[test]
fn shards_are_a_power_of_two_of_at_least_half_a_mebibyte() {
    for (capacity, shards) in [(0, 1), (1 << 20, 2), (3 << 20, 4), (8 << 30, 64)] {
        assert_eq!(Cache::<()>::new(capacity).shards.len(), shards);
    }
}

#[test]
fn charges_stay_within_the_capacity_under_any_operations() {
    let cache = Cache::new(2 << 20);
    let mut rng = Rng(1);
    for i in 0..60_000u64 {
        let k = key(rng.below(900));
        match rng.below(10) {
            0..5 => {
                let priority = [Priority::Bottom, Priority::Low, Priority::High];
                let priority = priority[k.offset as usize % 3];
                let charge = 1 + rng.below(9000) as usize;
                drop(cache.insert_and_take(k, Arc::new(k.offset), charge, priority));
            }
            5..8 => assert!(cache.get(k).is_none_or(|v| *v == k.offset)),
            _ => cache.erase(k),
        }
        if i % 1000 == 0 {
            check(&cache);
            assert!(cache.usage() <= cache.capacity());
        }
        if i % 20_000 == 19_999 {
            cache.set_capacity((1 + rng.below(3) as usize) << 20);
            check(&cache);
            assert!(cache.usage() <= cache.capacity());
        }
    }
    cache.set_capacity(0);
    assert_eq!((cache.usage(), cache.entry_count()), (0, 0));
}

#[test]
fn erased_keys_leave_no_queue_behind() {
    let cache = Cache::new(1000);
    for i in 0..10_000 {
        cache.insert(key(i), Arc::new(i), 1);
        cache.erase(key(i));
    }
    check(&cache);
}

#[test]
fn a_scan_does_not_push_out_what_is_read_again_and_again() {
    let cache = Cache::new(100_000);
    let hot = 0..500u64;
    for _ in 0..4 {
        for i in hot.clone() {
            if cache.get(key(i)).is_none() {
                cache.insert(key(i), Arc::new(i), 100);
            }
        }
    }
    for i in 10_000..60_000 {
        cache.insert(key(i), Arc::new(i), 100);
    }
    let kept = hot.filter(|&i| cache.get(key(i)).is_some()).count();
    assert_eq!(
        kept, 500,
        "a scan of fifty times the cache evicted hot entries"
    );
}

#[test]
fn what_is_of_high_priority_stays_over_a_scan_though_it_was_asked_once() {
    let cache = Cache::new(100_000);
    for i in 0..100 {
        cache.insert_and_take(key(i), Arc::new(i), 100, Priority::High);
        cache.insert_and_take(key(1000 + i), Arc::new(i), 100, Priority::Low);
        assert!(cache.get(key(i)).is_some() && cache.get(key(1000 + i)).is_some());
    }
    for i in 10_000..60_000 {
        cache.insert(key(i), Arc::new(i), 100);
    }
    let kept = |first: u64| {
        (first..first + 100)
            .filter(|&i| cache.get(key(i)).is_some())
            .count()
    };
    assert_eq!((kept(0), kept(1000)), (100, 0));
}

#[test]
fn what_is_of_bottom_priority_takes_what_others_leave_and_a_tenth() {
    let cache = Cache::new(100_000);
    let insert = |i, priority| drop(cache.insert_and_take(key(i), Arc::new(i), 100, priority));
    let kept = |keys: std::ops::Range<u64>| keys.filter(|&i| cache.get(key(i)).is_some()).count();
    // All of an empty cache.
    (0..1000).for_each(|i| insert(i, Priority::Bottom));
    assert_eq!(cache.entry_count(), 1000);
    // Others push it out down to a tenth, oldest first.
    (1000..1890).for_each(|i| insert(i, Priority::Low));
    assert_eq!((kept(0..890), kept(890..1000)), (0, 110));
    assert_eq!(kept(1000..1890), 890);
    // It pushes out its like alone, whether those were asked for or not.
    (10_000..60_000).for_each(|i| insert(i, Priority::Bottom));
    assert_eq!(kept(1000..1890), 890);
    check(&cache);
}

#[test]
fn what_is_of_bottom_priority_stays_if_it_is_asked_for_again() {
    let cache = Cache::new(100_000);
    let insert = |i, priority| drop(cache.insert_and_take(key(i), Arc::new(i), 100, priority));
    let kept = |keys: std::ops::Range<u64>| keys.filter(|&i| cache.get(key(i)).is_some()).count();
    (0..50).for_each(|i| insert(i, Priority::Bottom));
    assert_eq!(kept(0..50) + kept(0..50), 100);
    (10_000..60_000).for_each(|i| insert(i, Priority::Bottom));
    assert_eq!(kept(0..50), 50);
    (100_000..160_000).for_each(|i| insert(i, Priority::Low));
    assert_eq!(kept(0..50), 50);
    // A key that left is none that was misjudged.
    insert(10_000, Priority::Bottom);
    (200_000..260_000).for_each(|i| insert(i, Priority::Bottom));
    assert_eq!(kept(10_000..10_001), 0);
    check(&cache);
}

/// Strict least-recently-used over values of equal size: what the cache is compared with.
struct Lru {
    len_max: usize,
    clock: u64,
    used: std::collections::HashMap<u64, u64>,
    by_use: std::collections::BTreeMap<u64, u64>,
}

impl Lru {
    fn new(len_max: usize) -> Self {
        Self {
            len_max,
            clock: 0,
            used: Default::default(),
            by_use: Default::default(),
        }
    }

    /// True if it was there; it is there afterwards.
    fn ask(&mut self, key: u64) -> bool {
        self.clock += 1;
        let before = self.used.insert(key, self.clock);
        if let Some(before) = before {
            self.by_use.remove(&before);
        } else if self.used.len() > self.len_max {
            let (_, oldest) = self.by_use.pop_first().unwrap();
            self.used.remove(&oldest);
        }
        self.by_use.insert(self.clock, key);
        before.is_some()
    }
}

/// Hits of `gets` Zipf-distributed gets out of 20,000 keys, after as many that do not count, with
/// a scan of `scan_len` other blocks after each `scan_every` gets; in parts of a thousand.
fn zipf_hits(ask: &mut dyn FnMut(u64) -> bool, gets: u64, scan_every: u64, scan_len: u64) -> u64 {
    const KEYS: u64 = 20_000;
    let mut rng = Rng(42);
    // Sums of 1 / rank, in fixed point, so that no machine rounds otherwise.
    let mut sums = vec![0u64];
    for rank in 1..=KEYS {
        sums.push(sums[rank as usize - 1] + (1 << 32) / rank);
    }
    let (mut hits, mut scanned) = (0, 1 << 32);
    for n in 0..2 * gets {
        let draw = (rng.below(1 << 31) * (sums[KEYS as usize] >> 20)) >> 11;
        let rank = sums.partition_point(|&sum| sum <= draw) as u64;
        hits += u64::from(ask(rank) && n >= gets);
        if n % scan_every == 0 {
            for _ in 0..scan_len {
                ask(scanned);
                scanned += 1;
            }
        }
    }
    hits * 1000 / gets
}

#[test]
fn scans_cost_few_hits_where_they_would_cost_lru_many() {
    let in_cache = |scan_every, scan_len| {
        let cache = Cache::new(100_000);
        let mut ask = |k: u64| {
            let hit = cache.get(key(k)).is_some();
            if !hit {
                cache.insert(key(k), Arc::new(k), 100);
            }
            hit
        };
        zipf_hits(&mut ask, 100_000, scan_every, scan_len)
    };
    let in_lru = |scan_every, scan_len| {
        let mut lru = Lru::new(1000);
        zipf_hits(&mut |k| lru.ask(k), 100_000, scan_every, scan_len)
    };
    // A twentieth of the keys fits; each scan is five times the cache.
    let never = u64::MAX;
    let (calm, scanned) = (in_cache(never, 0), in_cache(2000, 5000));
    let (lru_calm, lru_scanned) = (in_lru(never, 0), in_lru(2000, 5000));
    println!("hits of 1000: {calm} calm, {scanned} beside scans; LRU {lru_calm}, {lru_scanned}");
    assert!(calm >= lru_calm + 20, "{calm} {lru_calm}");
    assert!(scanned + 40 >= calm, "{scanned} {calm}");
    assert!(scanned >= lru_scanned + 100, "{scanned} {lru_scanned}");
}

#[test]
fn a_key_that_comes_back_soon_is_kept_over_a_scan() {
    let cache = Cache::new(10_000);
    for i in 0..110 {
        cache.insert(key(i), Arc::new(i), 100);
    }
    assert!(
        cache.get(key(0)).is_none(),
        "the oldest left by the small queue"
    );
    cache.insert(key(0), Arc::new(0), 100);
    for i in 1000..2000 {
        cache.insert(key(i), Arc::new(i), 100);
    }
    assert!(cache.get(key(0)).is_some());
}

#[test]
fn pinned_bytes_are_those_held_outside() {
    let cache = Cache::new(1000);
    let held = cache.insert(key(1), Arc::new(1), 10);
    drop(cache.insert(key(2), Arc::new(2), 20));
    assert_eq!(cache.pinned_usage(), 10);
    drop(held);
    assert_eq!(cache.pinned_usage(), 0);
}

#[test]
fn it_shows_itself() {
    let cache = Cache::new(1000);
    cache.insert(key(1), Arc::new(1), 10);
    let mut shown = Vec::new();
    cache.inspect(&mut |name, value| shown.push((name.to_owned(), value)));
    assert!(shown.contains(&("usage_bytes".to_owned(), "10".to_owned())));
    assert!(shown.contains(&("inserted_total".to_owned(), "1".to_owned())));
}

#[test]
fn threads_see_only_right_values_and_all_are_dropped() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Counted(u64);
    impl Counted {
        fn new(v: u64) -> Arc<Self> {
            ALIVE.fetch_add(1, Ordering::Relaxed);
            Arc::new(Self(v))
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let cache = Cache::new(1 << 20);
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut rng = Rng(t);
                for _ in 0..30_000 {
                    let k = key(rng.below(700));
                    match rng.below(16) {
                        0 => cache.erase(k),
                        1 => assert!(cache.usage() <= 1 << 20),
                        _ => {
                            let v = cache
                                .get(k)
                                .unwrap_or_else(|| cache.insert(k, Counted::new(k.offset), 4096));
                            assert_eq!(v.0, k.offset);
                        }
                    }
                }
            });
        }
    });
    check(&cache);
    assert_eq!(ALIVE.load(Ordering::Relaxed), cache.entry_count());
    drop(cache);
    assert_eq!(ALIVE.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_held_takes_from_the_capacity_until_it_is_let_go() {
    let cache: Cache<Vec<u8>> = Cache::new(64 << 10);
    let key = |offset| CacheKey { id: 1, offset };
    let put = |offset| cache.insert(key(offset), Arc::new(vec![0; 1 << 10]), 1 << 10);
    let held: Vec<_> = (0..48).map(put).collect();
    for offset in 100..400 {
        drop(put(offset));
    }
    assert!(cache.usage() + cache.held_usage() <= 64 << 10);
    let held_now: usize = held
        .iter()
        .enumerate()
        .filter(|(n, _)| cache.get(key(*n as u64)).is_none())
        .count();
    assert_eq!(cache.held_usage(), held_now << 10);
    assert!(held_now > 0);
    // More than fits: nothing is kept beside it, and none of it is forgotten.
    let more: Vec<_> = (1000..1100).map(put).collect();
    assert!(cache.usage() + cache.held_usage() >= 100 << 10);
    drop((held, more));
    assert_eq!(cache.held_usage(), 0);
    for offset in 2000..2200 {
        drop(put(offset));
    }
    assert!(cache.usage() > 60 << 10, "{}", cache.usage());
}

#[test]
fn what_somebody_has_stays_while_others_can_leave() {
    let cache: Cache<u64> = Cache::new(1000);
    let put = |n| cache.insert(key(n), Arc::new(n), 100);
    let held: Vec<_> = (0..5).map(put).collect();
    (5..60).for_each(|n| drop(put(n)));
    assert!((0..5).all(|n| cache.contains(key(n))));
    assert_eq!(cache.held_usage(), 0);
    drop(held);
    (60..90).for_each(|n| drop(put(n)));
    assert!(!(0..5).any(|n| cache.contains(key(n))));
    // Nothing else is there: they leave.
    let held: Vec<_> = (100..110).map(put).collect();
    (110..120).for_each(|n| drop(put(n)));
    assert!(cache.usage() + cache.held_usage() <= 1000 + 100);
    drop(held);
    check(&cache);
}

#[test]
fn what_was_held_for_a_moment_takes_no_room_from_what_is_here() {
    let cache: Cache<u64> = Cache::new(100);
    let put = |n, charge| drop(cache.insert(key(n), Arc::new(n), charge));
    put(1, 60);
    put(2, 101);
    put(3, 10);
    assert!(cache.contains(key(1)) && cache.contains(key(3)));
    // A block that is larger than a shard, read again and again.
    let cache: Cache<u64> = Cache::new(4 << 20);
    let put = |n, charge| drop(cache.insert(key(n), Arc::new(n), charge));
    (0..1000).for_each(|n| put(n, 4 << 10));
    for _ in 0..100 {
        put(1 << 40, 1 << 20);
        assert!(cache.usage() > 2 << 20, "{}", cache.usage());
    }
    check(&cache);
}

#[test]
fn a_cache_without_room_tells_its_shards_nothing_new() {
    let cache: Cache<u64> = Cache::new(32 << 20);
    cache.set_capacity(0);
    for n in 0..1000 {
        let shard = cache.shard(key(n).mix());
        let inserted = shard.insert(key(n), Arc::new(n), 4 << 10, Priority::Low);
        assert!(!inserted.overdraft_changed, "{n}");
    }
    assert_eq!(cache.usage(), 0);
}

#[test]
fn what_one_shard_holds_beyond_its_share_the_others_give_up() {
    const CHARGE: usize = 4 << 10;
    let cache = Arc::new(Cache::new(4 << 20));
    let all = |cache: &Cache<u64>| cache.usage() + cache.held_usage() + cache.reserved_usage();
    let most = (4 << 20) + (4 << 20) / 64;
    let is_first = |n: &u64| std::ptr::eq(cache.shard(key(*n).mix()), &cache.shards[0]);
    let firsts: Vec<u64> = (0..).filter(is_first).take(400).collect();
    let mut reserved = Reservation::new(cache.clone());
    reserved.set(1 << 20);
    let mut next = 1 << 40;
    let mut fill = |cache: &Cache<u64>| {
        for _ in 0..3000 {
            next += 1;
            cache.insert(key(next), Arc::new(next), CHARGE);
        }
    };
    fill(&cache);
    let mut held = Vec::new();
    for &n in &firsts {
        held.push(cache.insert(key(n), Arc::new(n), CHARGE));
        assert!(
            all(&cache) <= most,
            "{} with {} held",
            all(&cache),
            held.len()
        );
    }
    fill(&cache);
    assert_eq!(cache.held_usage() / CHARGE, held.len());
    assert!(all(&cache) <= most, "{}", all(&cache));
    // What is reserved comes and goes with the same bound.
    reserved.set(2 << 20);
    assert!(all(&cache) <= most, "{}", all(&cache));
    reserved.set(1 << 20);
    fill(&cache);
    let beside = cache.usage();
    // They have it back once it is let go.
    held.clear();
    fill(&cache);
    fill(&cache);
    assert!(cache.usage() > beside + 300 * CHARGE, "{}", cache.usage());
    assert!(all(&cache) <= most, "{}", all(&cache));
    check(&cache);
}

#[test]
fn any_that_are_held_and_reserved_leave_the_rest_to_what_is_cached() {
    const CHARGE: usize = 4 << 10;
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let cache = Arc::new(Cache::new(4 << 20));
        let mut reserved = Reservation::new(cache.clone());
        let mut held: Vec<Arc<u64>> = Vec::new();
        for _ in 0..20_000 {
            let n = rng.below(4000);
            let value = cache
                .get(key(n))
                .unwrap_or_else(|| cache.insert(key(n), Arc::new(n), CHARGE));
            // Up to two thirds of it, and of the rest nearly all reserved.
            match rng.below(40) {
                0..=3 => held.push(value),
                4 if rng.below(200) == 0 => {
                    held.truncate(rng.below(1 + held.len() as u64) as usize)
                }
                5 => reserved.set(rng.below(5 << 18) as usize),
                _ => {}
            }
            held.truncate(700);
            let all = cache.usage() + cache.held_usage() + cache.reserved_usage();
            assert!(all <= (4 << 20) + (4 << 20) / 64, "{all}, seed {seed}");
        }
    }
}

#[test]
fn what_is_reserved_is_taken_from_the_cache() {
    let cache = Arc::new(Cache::new(1 << 20));
    for n in 0..2048 {
        cache.insert(key(n), Arc::new(n), 1 << 10);
    }
    assert!(cache.usage() > (1 << 20) - (64 << 10));
    let mut reservation = Reservation::new(cache.clone());
    for bytes in [100 << 10, 900 << 10, 1 << 20, 3 << 20] {
        reservation.set(bytes);
        assert_eq!(cache.reserved_usage(), bytes);
        assert!(cache.usage() <= (1usize << 20).saturating_sub(bytes));
        check(&cache);
    }
    reservation.set(10 << 10);
    (0..2048).for_each(|n| drop(cache.insert(key(n), Arc::new(n), 1 << 10)));
    assert!(cache.usage() + (10 << 10) <= 1 << 20 && cache.usage() > 900 << 10);
    cache.set_capacity(512 << 10);
    assert!(cache.usage() <= 502 << 10);
    drop(reservation);
    assert_eq!(cache.reserved_usage(), 0);
    cache.set_capacity(1 << 20);
    (0..2048).for_each(|n| drop(cache.insert(key(n), Arc::new(n), 1 << 10)));
    assert!(cache.usage() > (1 << 20) - (64 << 10));
}

#[test]
fn who_can_do_with_less_is_refused_half_of_the_capacity() {
    let cache = Arc::new(Cache::<u64>::new(1 << 20));
    let mut must = Reservation::new(cache.clone());
    let mut may = Reservation::new(cache.clone());
    assert!(may.try_grow(300 << 10));
    assert!(!may.try_grow(513 << 10));
    assert_eq!(may.bytes(), 300 << 10);
    must.set(400 << 10);
    assert!(!may.is_granted_still());
    assert!(
        may.try_grow(200 << 10),
        "what it has is not asked for again"
    );
    assert!(!may.try_grow(301 << 10));
    may.set(100 << 10);
    assert!(may.is_granted_still() && may.try_grow(112 << 10));
    drop((must, may));
    // Values that left while somebody has them count as well.
    let held: Vec<_> = (0..500u64)
        .map(|n| cache.insert(key(n), Arc::new(n), 1 << 10))
        .collect();
    (0..500).for_each(|n| cache.erase(key(n)));
    let mut may = Reservation::new(cache);
    assert!(may.try_grow(10 << 10) && !may.try_grow(100 << 10));
    drop(held);
    assert!((0..20).any(|_| may.try_grow(100 << 10)));
}

#[test]
fn many_threads_reserve_and_leave_nothing_behind() {
    let cache = Arc::new(Cache::new(4 << 20));
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let mut rng = Rng(seed);
                let mut own = Reservation::new(cache.clone());
                for n in 0..3000 {
                    let bytes = rng.below(1 << 20) as usize;
                    if n % 2 == 0 {
                        own.set(bytes);
                    } else if own.try_grow(bytes) {
                        assert!(own.bytes() >= bytes);
                    }
                    cache.insert(key(rng.below(9000)), Arc::new(n), 1 << 10);
                }
            });
        }
    });
    assert_eq!(cache.reserved_usage(), 0);
    cache.set_capacity(4 << 20);
    (0..9000).for_each(|n| drop(cache.insert(key(n), Arc::new(n), 1 << 10)));
    assert!(cache.usage() > 3 << 20);
    check(&cache);
}

#[test]
fn what_gives_way_is_dropped_when_no_lock_is_held() {
    struct Looks(Weak<Cache<Self>>, Arc<AtomicUsize>);

    impl Drop for Looks {
        fn drop(&mut self) {
            let Some(cache) = self.0.upgrade() else {
                return;
            };
            assert!(cache.sizing.try_lock().is_some(), "shares are being told");
            let _ = cache.held_usage();
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    let cache = Arc::new(Cache::new(4 * SHARD_BYTES_MIN));
    let dropped = Arc::new(AtomicUsize::new(0));
    let fill = || {
        for n in 0..100 {
            let value = Looks(Arc::downgrade(&cache), dropped.clone());
            cache.insert(key(n), Arc::new(value), SHARD_BYTES_MIN / 50);
        }
    };
    fill();
    let mut reservation = Reservation::new(cache.clone());
    reservation.set(2 * SHARD_BYTES_MIN);
    let for_reservation = dropped.load(Ordering::Relaxed);
    assert!(for_reservation > 0);
    fill();
    cache.set_capacity(0);
    assert_eq!(cache.entry_count(), 0);
    assert!(dropped.load(Ordering::Relaxed) > for_reservation);
}
