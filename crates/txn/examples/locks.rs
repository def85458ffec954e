//! Measures the lock manager beside a plain one of the usual kind, in one process.
//!
//! `cargo run --release -p orogen-txn --example locks` runs both in turns; a line has the median of
//! nanoseconds for each key locked and let go, and its 10th and 90th percentile over the rounds. The plain
//! one has stripes of a mutex, a condition variable and a hash map with a copy of each key, and wakes
//! all when a key is let go, as RocksDB does; it has no queues, no deadlines and no search for deadlocks.
//!
//! With `count ours|plain N` it only locks and lets go N keys one by one, for callgrind: take the
//! difference of two N.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that shows what it measured"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::FixedState;
use orogen_base::UserComparator;
use orogen_txn::lock_manager::{
    Endpoint, FamilyLocks, KeyRange, LockManager, LockManagerOptions, LockMode, TxnLockOptions,
    TxnLocks,
};
use parking_lot::{Condvar, Mutex};

/// One way to lock: what a thread does with its transaction.
trait Locks: Sync {
    type Txn: Send;
    fn begin(&self) -> Self::Txn;
    fn lock(&self, txn: &mut Self::Txn, key: &[u8]);
    fn unlock_all(&self, txn: &mut Self::Txn);
}

struct Ours {
    manager: LockManager,
    family: Arc<FamilyLocks>,
}

impl Ours {
    fn new() -> Self {
        let manager = LockManager::new(LockManagerOptions::default());
        let family = manager.add_family(0, UserComparator::BYTEWISE);
        Self { manager, family }
    }
}

impl Locks for Ours {
    type Txn = TxnLocks;

    fn begin(&self) -> TxnLocks {
        self.manager.begin(TxnLockOptions::default())
    }

    fn lock(&self, txn: &mut TxnLocks, key: &[u8]) {
        let locked = self
            .manager
            .try_lock(txn, &self.family, key, LockMode::Exclusive, None);
        locked.expect("keys are locked in order: no deadlock");
    }

    fn unlock_all(&self, txn: &mut TxnLocks) {
        self.manager.unlock_all(txn);
    }
}

/// Holders of a key; here always one.
struct Info {
    exclusive: bool,
    holders: Vec<u64>,
}

#[repr(align(128))]
#[derive(Default)]
struct Stripe {
    keys: Mutex<HashMap<Vec<u8>, Info, FixedState>>,
    freed: Condvar,
}

struct Plain {
    stripes: Vec<Stripe>,
    hasher: FixedState,
    ids: std::sync::atomic::AtomicU64,
}

struct PlainTxn {
    id: u64,
    keys: Vec<(usize, Vec<u8>)>,
}

impl Plain {
    fn new() -> Self {
        Self {
            stripes: (0..16).map(|_| Stripe::default()).collect(),
            hasher: FixedState::with_seed(1),
            ids: std::sync::atomic::AtomicU64::new(1),
        }
    }
}

impl Locks for Plain {
    type Txn = PlainTxn;

    fn begin(&self) -> PlainTxn {
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        PlainTxn {
            id: self.ids.fetch_add(1, relaxed),
            keys: Vec::new(),
        }
    }

    fn lock(&self, txn: &mut PlainTxn, key: &[u8]) {
        use std::hash::BuildHasher as _;
        let at = (self.hasher.hash_one(key) >> 32) as usize % self.stripes.len();
        let stripe = &self.stripes[at];
        let mut keys = stripe.keys.lock();
        loop {
            match keys.get(key) {
                None => break,
                Some(info) if info.holders.contains(&txn.id) && info.exclusive => return,
                Some(_) => stripe.freed.wait(&mut keys),
            }
        }
        let info = Info {
            exclusive: true,
            holders: vec![txn.id],
        };
        keys.insert(key.to_vec(), info);
        drop(keys);
        txn.keys.push((at, key.to_vec()));
    }

    fn unlock_all(&self, txn: &mut PlainTxn) {
        for (at, key) in txn.keys.drain(..) {
            let stripe = &self.stripes[at];
            stripe.keys.lock().remove(&key);
            stripe.freed.notify_all();
        }
    }
}

const KEY: usize = 16;

/// Keys of a thread: different from those of others.
fn own_keys(thread: usize, count: usize) -> Vec<[u8; KEY]> {
    let key = |n: usize| {
        let mut key = [0; KEY];
        let n = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key[..8].copy_from_slice(&n.to_be_bytes());
        key[8..].copy_from_slice(&(thread as u64).to_be_bytes());
        key
    };
    (0..count).map(key).collect()
}

/// Nanoseconds of each key, where threads lock keys that nobody else wants.
fn apart<L: Locks>(locks: &L, threads: usize, each: usize, resident: usize) -> f64 {
    const TOTAL: usize = 200_000;
    let start = std::sync::Barrier::new(threads);
    let nanos: Vec<f64> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let start = &start;
                scope.spawn(move || {
                    let keys = own_keys(thread, resident);
                    let mut txn = locks.begin();
                    let mut at = 0;
                    start.wait();
                    let began = Instant::now();
                    for _ in 0..TOTAL / each {
                        for _ in 0..each {
                            locks.lock(&mut txn, &keys[at]);
                            at = if at + 1 == keys.len() { 0 } else { at + 1 };
                        }
                        locks.unlock_all(&mut txn);
                    }
                    began.elapsed().as_nanos() as f64 / TOTAL as f64
                })
            })
            .collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, f64>| handle.join().expect("ran");
        handles.into_iter().map(join).collect()
    });
    nanos.iter().sum::<f64>() / threads as f64
}

/// Nanoseconds that the calling thread has run, as of some milliseconds ago.
fn ran_nanos() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    first.parse().unwrap_or_default()
}

/// Eight threads that want three of the same 100 keys, in order: nanoseconds of each key over all
/// threads, nanoseconds that the threads ran for each key, and microseconds of the longest transaction.
fn hot<L: Locks>(locks: &L, work: u32) -> [f64; 3] {
    const THREADS: usize = 8;
    const TXNS: usize = 16_000;
    let keys = &own_keys(0, 100);
    let start = &std::sync::Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut seed = thread as u64 + 1;
                    let mut draw = || {
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        (seed >> 20) as usize % 100
                    };
                    let mut txn = locks.begin();
                    let mut longest = 0.0f64;
                    start.wait();
                    let ran = ran_nanos();
                    for _ in 0..TXNS {
                        let mut wanted = [draw(), draw(), draw()];
                        wanted.sort_unstable();
                        let began = Instant::now();
                        for key in wanted {
                            locks.lock(&mut txn, &keys[key]);
                        }
                        for _ in 0..work {
                            std::hint::spin_loop();
                        }
                        locks.unlock_all(&mut txn);
                        longest = longest.max(began.elapsed().as_nanos() as f64 / 1e3);
                    }
                    (longest, ran_nanos() - ran)
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let (mut longest, mut ran) = (0.0f64, 0.0);
        for handle in handles {
            let (of_thread, ran_thread) = handle.join().expect("ran");
            longest = longest.max(of_thread);
            ran += ran_thread;
        }
        let total = (THREADS * TXNS * 3) as f64;
        [
            began.elapsed().as_nanos() as f64 / total,
            ran / total,
            longest,
        ]
    })
}

/// Nanoseconds of a key outside of a range that another thread waits for, because a few of so
/// many locked keys are in it.
fn beside_a_range(locked: usize) -> f64 {
    const TOTAL: usize = 2_000;
    let ours = Ours::new();
    let mut holder = ours.begin();
    for key in own_keys(0, locked) {
        ours.lock(&mut holder, &key);
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let range = KeyRange {
                start: Endpoint::First,
                end: Endpoint::Before([1; KEY]),
            };
            let (manager, mode) = (&ours.manager, LockMode::Exclusive);
            let asked = manager.try_lock_range(&mut ours.begin(), &ours.family, &range, mode, None);
            asked.expect("nobody waits for this one")
        });
        while ours
            .manager
            .lock_status()
            .iter()
            .all(|s| s.waiting.is_empty())
        {
            std::thread::yield_now();
        }
        let mut txn = ours.begin();
        let began = Instant::now();
        for n in 0..TOTAL {
            let mut key = [0xff; KEY + 2];
            key[KEY..].copy_from_slice(&(n as u16).to_be_bytes());
            ours.lock(&mut txn, &key);
            ours.unlock_all(&mut txn);
        }
        let nanos = began.elapsed().as_nanos() as f64 / TOTAL as f64;
        drop(holder);
        waits.join().expect("ran");
        nanos
    })
}

fn shown(values: &mut [f64]) -> String {
    values.sort_by(f64::total_cmp);
    let at = |percent: usize| values[(values.len() - 1) * percent / 100];
    format!("{:>8.1} ({:>7.1} to {:>7.1})", at(50), at(10), at(90))
}

fn count<L: Locks>(locks: &L, n: usize) {
    let keys = own_keys(0, 1000);
    let mut txn = locks.begin();
    for at in 0..n {
        locks.lock(&mut txn, &keys[at % keys.len()]);
        locks.unlock_all(&mut txn);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, who, n] = &args[..]
        && mode == "count"
    {
        let n = n.parse().expect("a number of keys");
        match who.as_str() {
            "ours" => count(&Ours::new(), n),
            _ => count(&Plain::new(), n),
        }
        return;
    }
    let rounds = 25;
    println!(
        "{:<44} {:^30} {:^30}",
        "ns a key: median (10 % to 90 %)", "ours", "plain"
    );
    for (threads, each, resident) in [
        (1, 1, 1000),
        (1, 1, 100_000),
        (1, 10, 1000),
        (1, 1000, 1000),
        (2, 1, 1000),
        (2, 10, 1000),
    ] {
        let (ours, plain) = (Ours::new(), Plain::new());
        let mut figures = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            let figure = [
                apart(&ours, threads, each, resident),
                apart(&plain, threads, each, resident),
            ];
            if round > 0 {
                figures[0].push(figure[0]);
                figures[1].push(figure[1]);
            }
        }
        let name = format!("{threads} threads, {each} keys a transaction of {resident}");
        let [ours, plain] = &mut figures;
        println!("{name:<44} {} {}", shown(ours), shown(plain));
    }
    for locked in [100, 100_000] {
        let mut ours: Vec<f64> = (0..5).map(|_| beside_a_range(locked)).collect();
        let name = format!("a range is waited for, {locked} keys locked");
        println!("{name:<44} {}", shown(&mut ours));
    }
    let rounds = 9;
    for work in [0, 100] {
        let (ours, plain) = (Ours::new(), Plain::new());
        let mut figures = [const { [const { Vec::new() }; 3] }; 2];
        for _ in 0..rounds {
            for (lists, run) in figures
                .iter_mut()
                .zip([hot(&ours, work), hot(&plain, work)])
            {
                for (list, figure) in lists.iter_mut().zip(run) {
                    list.push(figure);
                }
            }
        }
        let names = [
            &*format!("8 threads, 3 of 100 hot keys, work {work}"),
            "  processor time, ns a key",
            "  longest transaction, us",
        ];
        let [ours, plain] = &mut figures;
        for (name, (ours, plain)) in names.iter().zip(ours.iter_mut().zip(plain)) {
            println!("{name:<44} {} {}", shown(ours), shown(plain));
        }
    }
}
