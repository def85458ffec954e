//! Locks, atomics and threads of the code in which the order of steps matters.
//!
//! In every build but one these are the types of `parking_lot`, `arc_swap` and `std`, and nothing
//! else. In a build with `--cfg orogen_shuttle` (`cargo x model`) they are those of shuttle, with
//! the same methods: a test then runs the real code on threads that a scheduler takes turns
//! with, one step of a lock, an atomic or a wait at a time, in thousands of orders.
//!
//! What only keeps its own bytes together (counters, the LOG, files in memory) needs none of
//! this: a lock under which nothing of this module is called is one step.
//!
//! Weak memory orders are not tried: in the model every step is seen by all at once.

#[cfg(not(orogen_shuttle))]
mod real {
    pub use arc_swap::ArcSwap;
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    /// Atomics.
    pub mod atomic {
        pub use std::sync::atomic::{
            AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
        };
    }

    /// Threads.
    pub mod thread {
        pub use std::thread::{Builder, JoinHandle, Thread, ThreadId, current, park, yield_now};
    }

    /// True if a model is to make this mistake: never.
    #[inline(always)]
    #[must_use]
    pub const fn makes(_: super::Mistake) -> bool {
        false
    }

    /// How often a loop looks before it sleeps: as often as it says.
    #[must_use]
    pub const fn spins(wanted: usize) -> usize {
        wanted
    }
}

/// A mistake that a model makes on purpose, to prove that it would be found. The code asks
/// [`makes`], which is the constant `false` in every other build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A group of writes is shown to readers before it is in the memtable.
    PublishBeforeInsert,
    /// A group is shown without waiting for the one before it.
    PublishOutOfOrder,
    /// A reader asks for the visible number before it pins memtables and tables.
    NumberBeforePlaces,
    /// A node is linked without looking whether its neighbour is still the next one.
    LinkWithoutLooking,
    /// Groups that wait for an earlier one are not woken when it is shown.
    ForgetToWake,
    /// A job is taken without looking whether all is still as it was when it was picked.
    TakeWithoutLooking,
    /// Whether there is space is looked at before others are kept from telling writers of it.
    FollowAnOldLook,
    /// A node of a trie is replaced by a copy and not marked as replaced.
    ReplaceWithoutMark,
    /// A child is added to a node of a trie that another writer may be changing.
    AppendWithoutLock,
    /// A node that was replaced is used again at once, whoever may still read it.
    ReuseAtOnce,
    /// A cursor goes on from its nodes without asking whether they were used again.
    TrustOldNodes,
    /// A lock that is let go is not handed to those who wait for it.
    KeepForNobody,
    /// Whether somebody waits for a lock is looked at before the step that lets it go.
    LookBeforeRelease,
    /// A search for deadlocks runs before its wait can be seen by others.
    SearchUnlisted,
    /// A search for deadlocks follows holders only, not those who wait before.
    SearchHoldersOnly,
    /// A range is counted after the look for locked keys in it.
    CountRangeLate,
    /// A wait that ends by itself does not look whether it was granted meanwhile.
    GiveUpBlindly,
    /// A leader of writes hands the lead to nobody.
    KeepTheLead,
    /// A leader tells its followers before it has applied what it wrote for them.
    AnswerBeforeApply,
    /// Who wakes threads does not let those know that are about to sleep.
    WakeUncounted,
}

#[cfg(orogen_shuttle)]
mod model;

#[cfg(orogen_shuttle)]
pub use model::*;
#[cfg(not(orogen_shuttle))]
pub use real::*;
