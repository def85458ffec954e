//! The locks on ranges of keys that one family has.

pub use orogen_base::key_range::{Endpoint, KeyRange, OwnedRange};

use super::{LockMode, TxnId};

/// A range that is locked.
pub(crate) struct RangeLock {
    pub(crate) id: u32,
    pub(crate) holder: TxnId,
    pub(crate) mode: LockMode,
    pub(crate) range: OwnedRange,
}

/// Locked ranges of a family, and who waits for one.
///
/// Changed only under the mutex of the waits. Their number is expected to be small: all of them
/// are looked at in turn.
#[derive(Default)]
pub(crate) struct Ranges {
    pub(crate) held: Vec<RangeLock>,
    /// Numbers of waits, those who came first in front.
    pub(crate) waiting: Vec<u32>,
    pub(crate) next_id: u32,
}
