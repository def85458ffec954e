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

use std::cell::Cell;

#[cfg(all(test, orogen_loom))]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(all(test, orogen_loom)))]
use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Places to say an epoch in.
const PLACES: usize = if cfg!(orogen_loom) {
    1
} else if cfg!(orogen_shuttle) {
    4
} else {
    64
};
/// Nobody.
const FREE: u64 = 0;

/// Alone in two cache lines, which processors fetch together.
#[repr(align(128))]
struct Alone<T>(T);

/// Who is inside, and the epoch.
pub(crate) struct Epochs {
    now: Alone<AtomicU64>,
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
            places: Box::new(std::array::from_fn(|_| Alone(AtomicU64::new(FREE)))),
            others: AtomicUsize::new(0),
        }
    }

    /// The epoch.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.now.0.load(Ordering::Acquire)
    }

    /// Says an epoch; gives the place, which is `None` if there was no free one.
    #[inline]
    fn say(&self, epoch: u64) -> Option<usize> {
        let first = thread_number();
        for i in 0..PLACES {
            let place = (first + i) % PLACES;
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
        }
    }

    /// Raises the epoch: who comes from now on sees nothing of what was freed before.
    pub(crate) fn advance(&self) {
        self.now.0.fetch_add(1, Ordering::SeqCst);
    }

    /// What is tagged with an epoch before this one may be used again.
    pub(crate) fn oldest(&self) -> u64 {
        let mut oldest = self.now.0.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.others.load(Ordering::SeqCst) != 0 {
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

/// Somebody who is inside, until this is dropped.
pub(crate) struct Inside<'a> {
    epochs: &'a Epochs,
    place: Option<usize>,
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

        /// Loom tells of a read beside a write.
        fn read(&self) -> u32 {
            let inside = self.epochs.enter(self.epochs.now());
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
    fn explore(name: &str, readers: usize, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        // Not loom's, which would be one more thing to take turns at.
        let tried = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let counted = tried.clone();
        model.check(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let block = Arc::new(Block::new());
            let readers: Vec<_> = (0..readers)
                .map(|_| {
                    let block = block.clone();
                    thread::spawn(move || assert!([7, 8].contains(&block.read())))
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
        explore("epochs", 1, None);
    }

    #[test]
    fn nor_where_one_finds_no_place() {
        explore("epochs without places", 2, Some(3));
    }
}
