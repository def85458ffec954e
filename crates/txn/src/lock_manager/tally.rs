//! What counts against the limits, and the one place that compares it with them.
//!
//! 1. Each that holds or waits for a key or a range is a lock: a key that three share and one waits for is
//!    four. Who waits to make its shared lock exclusive is two, until it holds it so.
//! 2. Bytes are those of the entry of a key, of further holders, of waits and of ranges; each structure keeps the sum of its own
//!    under its mutex, and what families and managers count is the sum of these, where there is a limit.
//! 3. Within one step of a stripe what goes makes room for what comes: an [`Account`] asks for the difference alone. So a
//!    lock that passes from one to another is never refused, and never counts less than it is.

use orogen_base::metrics::Ticker;
use orogen_base::sync::atomic::AtomicUsize;
use orogen_base::sync::atomic::Ordering::Relaxed;
use orogen_base::{Error, ErrorKind, Result};

use super::family::FamilyLocks;
use super::stripe::Stripe;

/// Locks, and bytes that they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) locks: usize,
    pub(crate) bytes: usize,
}

impl Tally {
    /// One lock of so many bytes.
    pub(crate) const fn lock(bytes: usize) -> Self {
        Self { locks: 1, bytes }
    }

    /// Bytes that a lock takes which is counted already.
    pub(crate) const fn bytes(bytes: usize) -> Self {
        Self { locks: 0, bytes }
    }

    #[inline]
    pub(crate) fn add(&mut self, more: Self) {
        self.locks += more.locks;
        self.bytes += more.bytes;
    }

    #[inline]
    pub(crate) fn sub(&mut self, less: Self) {
        self.locks -= less.locks;
        self.bytes -= less.bytes;
    }

    fn and(mut self, more: Self) -> Self {
        self.add(more);
        self
    }

    /// What it has beyond another one.
    #[inline]
    fn beyond(self, other: Self) -> Self {
        Self {
            locks: self.locks.saturating_sub(other.locks),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Adds to a counter unless it would go beyond a limit then: who is refused is seen by nobody.
fn add_within(counter: &AtomicUsize, more: usize, limit: Option<usize>) -> bool {
    let add = |now: usize| {
        let then = now.saturating_add(more);
        (then <= limit.unwrap_or(usize::MAX)).then_some(then)
    };
    more == 0 || counter.fetch_update(Relaxed, Relaxed, add).is_ok()
}

impl FamilyLocks {
    /// Counts locks, where there are limits.
    ///
    /// # Errors
    /// `LockLimit` if that is too much; nothing is counted then.
    #[inline]
    pub(crate) fn count(&self, more: Tally) -> Result<()> {
        if self.core.is_limited {
            return self.count_limited(more);
        }
        Ok(())
    }

    fn count_limited(&self, more: Tally) -> Result<()> {
        let options = &self.core.options;
        if !add_within(&self.limited_count, more.locks, options.max_num_locks) {
            return Err(self.refuse("too many locks", "max_num_locks", options.max_num_locks));
        }
        let limit = options.memory_limit_bytes;
        if !add_within(&self.core.used_bytes, more.bytes, limit) {
            self.limited_count.fetch_sub(more.locks, Relaxed);
            return Err(self.refuse("locks take too much memory", "memory_limit_bytes", limit));
        }
        Ok(())
    }

    #[cold]
    fn refuse(&self, message: &'static str, name: &'static str, limit: Option<usize>) -> Error {
        self.core.statistics.add(Ticker::TxnLockLimits, 1);
        Error::new(ErrorKind::LockLimit, message)
            .with("cf", self.id)
            .with(name, limit.unwrap_or(usize::MAX))
    }

    /// Takes back what [`Self::count`] counted.
    #[inline]
    pub(crate) fn uncount(&self, less: Tally) {
        if self.core.is_limited {
            self.limited_count.fetch_sub(less.locks, Relaxed);
            self.core.used_bytes.fetch_sub(less.bytes, Relaxed);
        }
    }
}

/// What is counted for one stripe while its mutex is held. To be [closed](Self::close) where something has changed.
pub(crate) struct Account<'a> {
    family: &'a FamilyLocks,
    counted: Tally,
}

impl<'a> Account<'a> {
    #[inline]
    pub(crate) fn open(family: &'a FamilyLocks, stripe: &Stripe) -> Self {
        Self {
            family,
            counted: stripe.tally(),
        }
    }

    pub(crate) fn family(&self) -> &'a FamilyLocks {
        self.family
    }

    /// Counts what the stripe is going to have `more` than now, unless that much was counted or has gone since.
    ///
    /// # Errors
    /// `LockLimit` if that is too much; nothing is counted then.
    #[inline]
    pub(crate) fn reserve(&mut self, stripe: &Stripe, more: Tally) -> Result<()> {
        if self.family.core.is_limited {
            let missing = stripe.tally().and(more).beyond(self.counted);
            self.family.count_limited(missing)?;
            self.counted.add(missing);
        }
        Ok(())
    }

    /// Takes back what was counted and is not there.
    #[inline]
    pub(crate) fn close(self, stripe: &Stripe) {
        if self.family.core.is_limited {
            let less = self.counted.beyond(stripe.tally());
            debug_assert_eq!(
                self.counted,
                stripe.tally().and(less),
                "not all was counted"
            );
            self.family.uncount(less);
        }
    }
}
