//! The same types over shuttle's, each step of which the scheduler may put others before.

mod bounded;

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync as model;
use shuttle::{Config, Runner};

use super::Mistake;
use bounded::Bounded;

/// Atomics.
pub mod atomic {
    pub use shuttle::sync::atomic::{
        AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence,
    };

    /// `std`'s, of its size and layout, for words inside of memory that is not typed: shuttle's
    /// is larger than what it holds. Each call is one step.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct AtomicU32(std::sync::atomic::AtomicU32);

    fn step() {
        AtomicUsize::new(0).load(Ordering::SeqCst);
    }

    impl AtomicU32 {
        /// Holds `value`.
        pub const fn new(value: u32) -> Self {
            Self(std::sync::atomic::AtomicU32::new(value))
        }

        /// What it holds.
        pub fn load(&self, _: Ordering) -> u32 {
            step();
            self.0.load(Ordering::SeqCst)
        }

        /// Holds `value` from now on.
        pub fn store(&self, value: u32, _: Ordering) {
            step();
            self.0.store(value, Ordering::SeqCst);
        }

        /// Holds `new` from now on, if it held `current`.
        ///
        /// # Errors
        /// What it held instead.
        pub fn compare_exchange(
            &self,
            current: u32,
            new: u32,
            _: Ordering,
            _: Ordering,
        ) -> Result<u32, u32> {
            step();
            let order = Ordering::SeqCst;
            self.0.compare_exchange(current, new, order, order)
        }
    }
}

/// Threads.
pub mod thread {
    pub use shuttle::thread::{Builder, JoinHandle, Thread, ThreadId, current, park, yield_now};
}

/// How often a loop looks before it sleeps: once, for more looks show nothing new.
#[must_use]
pub const fn spins(wanted: usize) -> usize {
    if wanted == 0 { 0 } else { 1 }
}

/// `parking_lot::Mutex`.
#[derive(Default)]
pub struct Mutex<T>(model::Mutex<T>);

/// `parking_lot::MutexGuard`.
pub struct MutexGuard<'a, T>(Option<model::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(model::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The lock, if nobody holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard(Some(self.0.try_lock().ok()?)))
    }

    /// What it guards.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it guards.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

const HELD: &str = "a guard holds its lock but while it waits";

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(HELD)
    }
}

/// `parking_lot::Condvar`.
pub struct Condvar(model::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self(model::Condvar::new())
    }

    /// Gives the lock up, and waits to be woken.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect(HELD);
        let held = self.0.wait(held).unwrap_or_else(PoisonError::into_inner);
        guard.0 = Some(held);
    }

    /// The same: time does not pass in the model.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
        self.wait(guard);
    }

    /// Wakes one.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// `parking_lot::RwLock`.
#[derive(Default)]
pub struct RwLock<T>(model::RwLock<T>);

/// `parking_lot::RwLockReadGuard`.
pub type RwLockReadGuard<'a, T> = model::RwLockReadGuard<'a, T>;
/// `parking_lot::RwLockWriteGuard`.
pub type RwLockWriteGuard<'a, T> = model::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(model::RwLock::new(value))
    }

    /// Waits for those that write.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for all others.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `arc_swap::ArcSwap`: each call is one step.
pub struct ArcSwap<T> {
    inner: arc_swap::ArcSwap<T>,
    step: model::atomic::AtomicUsize,
}

impl<T> ArcSwap<T> {
    /// Holds `value`.
    pub fn from_pointee(value: T) -> Self {
        Self {
            inner: arc_swap::ArcSwap::from_pointee(value),
            step: model::atomic::AtomicUsize::new(0),
        }
    }

    /// What it holds, for a short while.
    pub fn load(&self) -> arc_swap::Guard<Arc<T>> {
        self.step.load(atomic::Ordering::SeqCst);
        self.inner.load()
    }

    /// What it holds.
    pub fn load_full(&self) -> Arc<T> {
        self.step.load(atomic::Ordering::SeqCst);
        self.inner.load_full()
    }

    /// Holds `value` from now on.
    pub fn store(&self, value: Arc<T>) {
        self.step.fetch_add(1, atomic::Ordering::SeqCst);
        self.inner.store(value);
    }
}

thread_local! {
    /// Runs of one model are on one thread.
    static MISTAKE: Cell<Option<Mistake>> = const { Cell::new(None) };
}

/// True if the model that runs on this thread is to make this mistake.
pub fn makes(mistake: Mistake) -> bool {
    MISTAKE.get() == Some(mistake)
}

/// Schedules of a model, where `OROGEN_SCHEDULES` says nothing.
const SCHEDULES: usize = 2_000;
/// Preemptions that a PCT scheduler puts into a schedule.
const PCT_DEPTH: usize = 3;
/// Schedules within which a mistake must be found.
const SCHEDULES_FOR_A_MISTAKE: usize = 20_000;

fn number(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable).ok();
    text.map_or(default, |n| {
        n.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number"))
    })
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config
}

/// Runs `body` under half of `OROGEN_SCHEDULES` drawn at random and half by PCT (Burckhardt et al.,
/// "A randomized scheduler with probabilistic guarantees of finding bugs", 2010), both from
/// `OROGEN_SEED`.
///
/// # Panics
/// If `body` does under one of them, or all its threads wait for each other: with the schedule.
#[expect(clippy::print_stdout, reason = "a line for each model that ran")]
pub fn explore(name: &str, body: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = number("OROGEN_SCHEDULES", SCHEDULES);
    let seed = number("OROGEN_SEED", 1) as u64;
    let random = RandomScheduler::new_from_seed(seed, schedules / 2);
    let mut ran = Runner::new(random, config()).run(body.clone());
    let pct = PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules - schedules / 2);
    ran += Runner::new(pct, config()).run(body);
    println!("model/{name:<22} {ran:>8} schedules seed={seed}");
}

/// Runs `body` under every schedule with up to so many preemptions.
///
/// # Panics
/// As [`explore`].
#[expect(clippy::print_stdout, reason = "a line for each model that ran")]
pub fn explore_all(name: &str, preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let ran = Runner::new(Bounded::new(preemptions), config()).run(body);
    println!("model/{name:<22} {ran:>8} schedules, all with up to {preemptions} preemptions");
}

/// Runs `body` with a mistake, and returns after how many schedules it was found.
///
/// # Panics
/// If it is not found.
pub fn must_find(mistake: Mistake, body: impl Fn() + Send + Sync + 'static) {
    find(mistake, body, |body| {
        let half = SCHEDULES_FOR_A_MISTAKE / 2;
        let pct = PctScheduler::new_from_seed(1, PCT_DEPTH, half);
        let again = body.clone();
        Runner::new(pct, config()).run(move || again());
        let random = RandomScheduler::new_from_seed(1, half);
        Runner::new(random, config()).run(move || body());
    });
}

/// The same among all schedules with up to so many preemptions.
///
/// # Panics
/// If it is not found.
pub fn must_find_in_all(
    mistake: Mistake,
    preemptions: usize,
    body: impl Fn() + Send + Sync + 'static,
) {
    find(mistake, body, |body| {
        Runner::new(Bounded::new(preemptions), config()).run(move || body());
    });
}

#[expect(clippy::print_stdout, reason = "a line for each model that ran")]
fn find(
    mistake: Mistake,
    body: impl Fn() + Send + Sync + 'static,
    run: impl FnOnce(Arc<dyn Fn() + Send + Sync>),
) {
    MISTAKE.set(Some(mistake));
    let tried = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = tried.clone();
    let found = catch_unwind(AssertUnwindSafe(|| {
        run(Arc::new(move || {
            counted.fetch_add(1, atomic::Ordering::Relaxed);
            body();
        }));
    }));
    MISTAKE.set(None);
    let tried = tried.load(atomic::Ordering::Relaxed);
    assert!(
        found.is_err(),
        "{mistake:?} was not found in {tried} schedules"
    );
    println!("model/{mistake:?} found in schedule {tried}");
}
