//! Who is inside of a block, and since when. `Hot path`.
//!
//! One number, the epoch, rises now and then. Who goes in says in a place of their own which epoch
//! it was; what is freed is tagged with the epoch then. A freed piece may be used again when the
//! epoch is a later one, and so was that of all who are inside.
//!
//! 1. Freeing: unlink, fence, read the epoch. Going in: read the epoch, say it, fence, then read the
//!    block. Using again: read the epoch, fence, read all places. So who came in a later epoch than the tag
//!    does not find the piece; who came in the same or an earlier one is seen, or came after the places were
//!    read, and then finds it unlinked.
//! 2. A thread looks for a free place from its own on, and nobody else's is written to. Where all
//!    are taken a common count says that somebody is inside: nothing is used again meanwhile.
//! 3. A cursor goes in with the epoch that it had before, fences, and compares it with the epoch.
//!    If they are the same, nothing with that tag or a later one was used again, nor will be until it
//!    leaves; and what has an earlier tag it did not find then.
//! 4. Where the system fences all threads for one (`Barrier`), who goes in does not: of 32 threads each has a place that it alone
//!    writes to, in every map, so that a plain store says the epoch. Who uses again fences all between reading the
//!    epoch and the places. A thread that says an epoch before it is fenced is seen; one that says it later reads the block later still, and
//!    finds what the fencing thread knew: that the piece is unlinked, and an epoch that is not a cursor's of before (3). That somebody
//!    of a later epoch does not find the piece needs no fence of theirs where stores have one order: it was unlinked
//!    before the tag was read, so before the epoch rose, so before they read it, and reads are in order.

use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(all(test, orogen_loom))]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(all(test, orogen_loom)))]
use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use orogen_env::barrier::Barrier;

use own::own_place;

/// Places to say an epoch in.
const PLACES: usize = if cfg!(orogen_loom) {
    1
} else if cfg!(orogen_shuttle) {
    4
} else {
    64
};
/// The first of them are threads' own, where the system fences.
const OWNED: usize = if cfg!(orogen_loom) { 0 } else { PLACES / 2 };
/// Nobody.
const FREE: u64 = 0;

/// Alone in two cache lines, which processors fetch together.
#[repr(align(128))]
struct Alone<T>(T);

/// Who is inside, and the epoch.
pub(crate) struct Epochs {
    now: Alone<AtomicU64>,
    barrier: Option<Barrier>,
    places: Box<[Alone<AtomicU64>; PLACES]>,
    /// Who found no place.
    others: AtomicUsize,
}

/// A fence behind an exchange in the same thread: where that is one itself, only for the compiler.
#[inline(always)]
fn fence_behind_exchange() {
    if cfg!(all(
        target_arch = "x86_64",
        not(orogen_shuttle),
        not(orogen_loom)
    )) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// A fence that others make for this thread (4).
#[inline(always)]
fn fence_by_others() {
    if cfg!(orogen_loom) {
        fence(Ordering::SeqCst);
    } else {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A number of this thread, mostly no other's.
#[inline]
pub(crate) fn thread_number() -> usize {
    // Of the process, not of a model's run.
    static THREADS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        while number.get() == 0 {
            number.set(THREADS.fetch_add(1, Ordering::Relaxed) as usize);
        }
        number.get()
    })
}

impl Epochs {
    /// What it holds.
    pub(crate) const BYTES: usize = PLACES * size_of::<Alone<AtomicU64>>();

    pub(crate) fn new() -> Self {
        Self {
            now: Alone(AtomicU64::new(1)),
            barrier: Barrier::of_process(),
            places: Box::new(std::array::from_fn(|_| Alone(AtomicU64::new(FREE)))),
            others: AtomicUsize::new(0),
        }
    }

    /// The epoch.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.0.load(Ordering::Acquire)
    }

    /// Says an epoch in a place that only this thread writes to; false if it has said one there already.
    #[inline(always)]
    fn say_in(&self, place: usize, epoch: u64) -> bool {
        let place = &self.places[place].0;
        if place.load(Ordering::Relaxed) != FREE {
            return false;
        }
        // Who reads it sees what the thread did on visits before.
        place.store(epoch, Ordering::Release);
        fence_by_others();
        true
    }

    /// Says an epoch; gives the place, which is `None` if there was no free one.
    #[inline(always)]
    fn say(&self, epoch: u64) -> Option<usize> {
        if self.barrier.is_some()
            && let Some(own) = own_place()
            && self.say_in(own, epoch)
        {
            return Some(own);
        }
        self.say_in_common(epoch)
    }

    /// The same in a place that any thread may take.
    fn say_in_common(&self, epoch: u64) -> Option<usize> {
        let owned = if self.barrier.is_some() { OWNED } else { 0 };
        let common = PLACES - owned;
        let first = thread_number();
        for i in 0..common {
            let place = owned + (first + i) % common;
            let said = self.places[place].0.compare_exchange(
                FREE,
                epoch,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if said.is_ok() {
                fence_behind_exchange();
                return Some(place);
            }
        }
        self.others.fetch_add(1, Ordering::SeqCst);
        fence_behind_exchange();
        None
    }

    /// Goes in with an epoch that was: that of now, or that of an earlier visit.
    #[inline]
    pub(crate) fn enter(&self, epoch: u64) -> Inside<'_> {
        let place = self.say(epoch);
        Inside {
            epochs: self,
            place,
            of_this_thread: PhantomData,
        }
    }

    /// Raises the epoch: who comes from now on sees nothing of what was freed before.
    pub(crate) fn advance(&self) {
        self.now.0.fetch_add(1, Ordering::SeqCst);
    }

    /// What is tagged with an epoch before this one may be used again.
    pub(crate) fn oldest(&self) -> u64 {
        let mut oldest = self.now.0.load(Ordering::SeqCst);
        let is_fenced = match self.barrier {
            Some(barrier) => barrier.fence(),
            None => {
                fence(Ordering::SeqCst);
                true
            }
        };
        if !is_fenced || self.others.load(Ordering::SeqCst) != 0 {
            return 0;
        }
        for place in self.places.iter() {
            let epoch = place.0.load(Ordering::SeqCst);
            if epoch != FREE {
                oldest = oldest.min(epoch);
            }
        }
        oldest
    }

    /// The tag of what was just made unreachable.
    pub(crate) fn tag(&self) -> u64 {
        // Whoever enters in a later epoch than this sees that it is unreachable.
        fence(Ordering::SeqCst);
        self.now.0.load(Ordering::SeqCst)
    }
}

/// Somebody who is inside, until this is dropped: by the same thread, for only that one writes to its place.
pub(crate) struct Inside<'a> {
    epochs: &'a Epochs,
    place: Option<usize>,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        match self.place {
            Some(place) => self.epochs.places[place].0.store(FREE, Ordering::Release),
            None => {
                self.epochs.others.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// Which places are whose, for all maps of the process: a thread has one from its first visit until it ends.
mod own {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::OWNED;

    /// A bit for each place that a thread has.
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    const ALL: u32 = ((1u64 << OWNED) - 1) as u32;

    const NOT_YET: usize = usize::MAX;
    /// The thread ends: what runs then has none any more.
    const NEVER: usize = usize::MAX - 1;

    thread_local! {
        static PLACE: Cell<usize> = const { Cell::new(NOT_YET) };
        static GIVES_BACK: GivesBack = const { GivesBack };
    }

    /// Gives the thread's place back when the thread ends.
    struct GivesBack;

    impl Drop for GivesBack {
        fn drop(&mut self) {
            let place = PLACE.replace(NEVER);
            if place < OWNED {
                // Who takes it next sees that nobody is inside there.
                TAKEN.fetch_and(!(1 << place), Ordering::Release);
            }
        }
    }

    /// This thread's own place, if there was one left for it.
    #[inline(always)]
    pub(super) fn own_place() -> Option<usize> {
        let place = PLACE.get();
        if place < OWNED {
            return Some(place);
        }
        take(place)
    }

    #[cold]
    fn take(place: usize) -> Option<usize> {
        // Registered first: a place that nobody gives back would be lost.
        if place == NEVER || GIVES_BACK.try_with(|_| ()).is_err() {
            return None;
        }
        let mut taken = TAKEN.load(Ordering::Relaxed);
        while taken != ALL {
            let free = taken.trailing_ones();
            let now = taken | 1 << free;
            match TAKEN.compare_exchange_weak(taken, now, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    PLACE.set(free as usize);
                    return Some(free as usize);
                }
                Err(other) => taken = other,
            }
        }
        None
    }
}

#[cfg(all(test, not(orogen_loom), not(orogen_shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_second_visit_of_a_thread_has_a_place_too() {
        let epochs = Epochs::new();
        let first = epochs.enter(epochs.now());
        epochs.advance();
        let second = epochs.enter(epochs.now());
        assert_ne!(first.place, second.place);
        assert_eq!(epochs.oldest(), 1);
        drop(first);
        assert_eq!(epochs.oldest(), 2);
        epochs.advance();
        assert_eq!(epochs.oldest(), 2);
        drop(second);
        assert_eq!(epochs.oldest(), 3);
    }

    #[test]
    fn a_thread_gives_its_place_back_when_it_ends() {
        let has_one = || {
            let place = std::thread::scope(|scope| scope.spawn(own_place).join());
            place.unwrap().is_some()
        };
        (0..4 * OWNED).for_each(|_| {
            has_one();
        });
        // Other tests may have all of them, for a while.
        assert!((0..20_000).any(|_| has_one()));
    }

    #[test]
    fn threads_that_live_have_places_of_their_own_as_far_as_there_are_any() {
        let everybody = std::sync::Barrier::new(2 * OWNED);
        let mut places: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2 * OWNED)
                .map(|_| {
                    scope.spawn(|| {
                        let place = own_place();
                        everybody.wait();
                        place
                    })
                })
                .collect();
            threads
                .into_iter()
                .filter_map(|t| t.join().unwrap())
                .collect()
        });
        places.sort_unstable();
        let count = places.len();
        places.dedup();
        assert_eq!(places.len(), count, "each place is one thread's");
        assert!(places.iter().all(|&place| place < OWNED));
    }
}

/// Under loom, which tries what each load may see: every order of steps and of memory.
#[cfg(all(test, orogen_loom))]
#[expect(unsafe_code, reason = "pieces are written to as those of a block are")]
mod loom_model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A slot that names one of two pieces; the first becomes free and is written anew.
    struct Block {
        epochs: Epochs,
        slot: AtomicUsize,
        pieces: [UnsafeCell<u32>; 2],
    }

    impl Block {
        fn new() -> Self {
            Self {
                epochs: Epochs::new(),
                slot: AtomicUsize::new(0),
                pieces: [UnsafeCell::new(7), UnsafeCell::new(8)],
            }
        }

        /// Goes in by a place of its own, if it has one.
        fn enter(&self, own: Option<usize>) -> Inside<'_> {
            let epoch = self.epochs.now();
            let Some(own) = own else {
                return self.epochs.enter(epoch);
            };
            assert!(self.epochs.say_in(own, epoch), "its own");
            Inside {
                epochs: &self.epochs,
                place: Some(own),
                of_this_thread: PhantomData,
            }
        }

        /// Loom tells of a read beside a write.
        fn read(&self, own: Option<usize>) -> u32 {
            let inside = self.enter(own);
            let piece = self.slot.load(Ordering::Acquire);
            // SAFETY: found inside, so nobody writes to it: that is what is tried.
            let found = self.pieces[piece].with(|piece| unsafe { *piece });
            drop(inside);
            found
        }

        /// True if the piece was used again.
        fn replace(&self) -> bool {
            self.slot.store(1, Ordering::Release);
            let tag = self.epochs.tag();
            self.epochs.advance();
            let is_free = tag < self.epochs.oldest();
            if is_free {
                // SAFETY: nobody finds it any more: that is what is tried.
                self.pieces[0].with_mut(|piece| unsafe { *piece = 9 });
            }
            is_free
        }
    }

    #[expect(clippy::print_stdout, reason = "a line for each model that ran")]
    fn explore(name: &str, readers: usize, have_own: bool, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        // Not loom's, which would be one more thing to take turns at.
        let tried = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = tried.clone();
        model.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let block = Arc::new(Block::new());
            let readers: Vec<_> = (0..readers)
                .map(|i| {
                    let block = block.clone();
                    let own = have_own.then_some(i);
                    // A second visit: what the first one did is seen by who sees it.
                    let visits = 1 + usize::from(have_own);
                    thread::spawn(move || {
                        for _ in 0..visits {
                            assert!([7, 8].contains(&block.read(own)));
                        }
                    })
                })
                .collect();
            block.replace();
            for reader in readers {
                reader.join().unwrap();
            }
            // With nobody inside all is free.
            assert!(block.replace());
        });
        let tried = tried.load(std::sync::atomic::Ordering::Relaxed);
        let bound = preemptions.map_or("all there are".to_owned(), |n| {
            format!("with up to {n} preemptions")
        });
        println!("loom/{name:<23} {tried:>8} interleavings, {bound}");
        assert!(tried > 50, "the model has become shorter");
    }

    #[test]
    fn what_a_reader_may_find_is_not_used_again() {
        explore("epochs", 1, false, None);
    }

    #[test]
    fn nor_where_one_finds_no_place() {
        explore("epochs without places", 2, false, Some(3));
    }

    #[test]
    fn nor_where_one_says_it_in_a_place_of_its_own() {
        explore("epochs, own places", 1, true, None);
    }
}
