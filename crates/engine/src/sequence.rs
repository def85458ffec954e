//! The two watermarks of the commit pipeline.
//!
//! `allocated` is the last sequence number that was given out; `visible` the last one that
//! readers see. Invariants: (1) `visible <= allocated`; (2) both only rise; (3) when `visible`
//! is n, every write up to n is in its memtable; (4) only `write/` and recovery change
//! them.

use orogen_base::sync::atomic::{AtomicU64, Ordering};

use orogen_base::SeqNo;

/// Last number given out, last number seen.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    allocated: AtomicU64,
    visible: AtomicU64,
}

impl Sequence {
    /// The last sequence number that readers see. In one order with those who go to sleep until
    /// it is reached (write/order.rs).
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        self.visible.load(Ordering::SeqCst)
    }

    /// The last sequence number given out.
    pub(crate) fn allocated(&self) -> SeqNo {
        self.allocated.load(Ordering::Acquire)
    }

    pub(crate) fn set_allocated(&self, seqno: SeqNo) {
        debug_assert!(seqno >= self.allocated());
        self.allocated.store(seqno, Ordering::Release);
    }

    /// Raises `visible` to `seqno`, unless another thread was faster and further.
    pub(crate) fn raise_visible(&self, seqno: SeqNo) {
        debug_assert!(seqno <= self.allocated());
        self.visible.fetch_max(seqno, Ordering::SeqCst);
    }

    /// Both at `seqno`: nothing is under way.
    pub(crate) fn reset(&self, seqno: SeqNo) {
        self.set_allocated(seqno);
        self.raise_visible(seqno);
    }
}
