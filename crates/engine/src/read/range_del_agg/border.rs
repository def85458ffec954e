//! Places between keys, and the keys between two of them.

use std::cmp::Ordering;

use orogen_base::UserComparator;
use orogen_base::key::user_key;

use crate::version::level::is_exclusive_end;

/// A place between keys: just before or just after a user key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Border<'a> {
    pub(super) key: &'a [u8],
    pub(super) after: bool,
}

impl<'a> Border<'a> {
    pub(super) fn before(key: &'a [u8]) -> Self {
        Self { key, after: false }
    }

    /// Where a file with this largest internal key ends.
    pub(super) fn end_of(largest: &'a [u8]) -> Self {
        Self {
            key: user_key(largest),
            after: !is_exclusive_end(largest),
        }
    }

    pub(super) fn compare(self, order: &UserComparator, other: Self) -> Ordering {
        order
            .compare(self.key, other.key)
            .then(self.after.cmp(&other.after))
    }

    /// True if `key` lies behind the border.
    #[inline]
    pub(super) fn is_passed_by(self, order: &UserComparator, key: &[u8]) -> bool {
        match order.compare(self.key, key) {
            Ordering::Less => true,
            Ordering::Equal => !self.after,
            Ordering::Greater => false,
        }
    }
}

/// The keys between two borders; `None` is no border.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span<'a> {
    pub(super) start: Option<Border<'a>>,
    pub(super) end: Option<Border<'a>>,
}

impl<'a> Span<'a> {
    /// Moves the start up to `border` if it lies before it.
    pub(super) fn raise_start(&mut self, order: &UserComparator, border: Border<'a>) {
        if self.start.is_none_or(|s| s.compare(order, border).is_lt()) {
            self.start = Some(border);
        }
    }

    /// Moves the end down to `border` if it lies behind it.
    pub(super) fn lower_end(&mut self, order: &UserComparator, border: Border<'a>) {
        if self.end.is_none_or(|e| e.compare(order, border).is_gt()) {
            self.end = Some(border);
        }
    }

    pub(super) fn cut_to(&mut self, order: &UserComparator, other: Self) {
        if let Some(border) = other.start {
            self.raise_start(order, border);
        }
        if let Some(border) = other.end {
            self.lower_end(order, border);
        }
    }
}

/// A border that owns its key; the memory is used again.
#[derive(Debug, Default)]
pub(super) struct Kept {
    key: Vec<u8>,
    after: bool,
    is_set: bool,
}

impl Kept {
    pub(super) fn set(&mut self, border: Option<Border<'_>>) {
        self.is_set = border.is_some();
        if let Some(b) = border {
            self.key.clear();
            self.key.extend_from_slice(b.key);
            self.after = b.after;
        }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<Border<'_>> {
        self.is_set.then_some(Border {
            key: &self.key,
            after: self.after,
        })
    }
}
