//! A value that stays where it was read: in a cached block or in a buffer of its own.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::{Result, memory};

/// Bytes that something shared keeps alive, such as a block of the cache.
pub trait Pin: Send + Sync {
    /// All bytes of the owner.
    fn bytes(&self) -> &[u8];
}

impl Pin for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A value read from the database, without a copy where it lies in a block.
///
/// It keeps the block in memory until it is dropped.
#[derive(Clone)]
pub struct PinnedValue(Repr);

#[derive(Clone)]
enum Repr {
    Owned(Vec<u8>),
    Pinned {
        owner: Arc<dyn Pin>,
        range: Range<usize>,
    },
}

impl PinnedValue {
    /// A value inside `owner`.
    ///
    /// # Panics
    /// If `range` is outside `owner`.
    #[must_use]
    pub fn pinned(owner: Arc<dyn Pin>, range: Range<usize>) -> Self {
        assert!(
            owner.bytes().get(range.clone()).is_some(),
            "range is inside its owner"
        );
        Self(Repr::Pinned { owner, range })
    }

    /// A copy of `value`.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn copied(value: &[u8]) -> Result<Self> {
        memory::copied(value, "value").map(Self::from)
    }

    /// The same value again: a copy only where it is in a buffer of its own.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn share(&self) -> Result<Self> {
        match &self.0 {
            Repr::Owned(value) => Self::copied(value),
            Repr::Pinned { .. } => Ok(self.clone()),
        }
    }

    /// The bytes as a vector; copies only if they are pinned.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Repr::Owned(v) => v,
            Repr::Pinned { owner, range } => owner.bytes()[range].to_vec(),
        }
    }
}

impl From<Vec<u8>> for PinnedValue {
    fn from(v: Vec<u8>) -> Self {
        Self(Repr::Owned(v))
    }
}

impl From<&[u8]> for PinnedValue {
    fn from(v: &[u8]) -> Self {
        Self(Repr::Owned(v.to_vec()))
    }
}

impl Deref for PinnedValue {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(v) => v,
            Repr::Pinned { owner, range } => &owner.bytes()[range.clone()],
        }
    }
}

impl AsRef<[u8]> for PinnedValue {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq<[u8]> for PinnedValue {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for PinnedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}
