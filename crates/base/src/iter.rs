//! The cursor that every place and every merge of places speaks: over internal keys.

use crate::error::Result;
use crate::pinned::PinnedValue;

/// A cursor over internal keys in their order.
///
/// After an error the cursor is not valid and [`Self::status`] tells the error until the next
/// seek. Callers move it only while it is valid. Keys and values are borrowed until the next
/// move.
pub trait InternalIterator: Send {
    /// True while the cursor stands on an entry.
    fn valid(&self) -> bool;
    /// Moves to the first entry.
    fn seek_to_first(&mut self);
    /// Moves to the last entry.
    fn seek_to_last(&mut self);
    /// Moves to the first entry that is not before the internal key `target`.
    fn seek(&mut self, target: &[u8]);
    /// Moves to the last entry that is not after the internal key `target`.
    fn seek_for_prev(&mut self, target: &[u8]);
    /// Moves to the next entry.
    fn next(&mut self);
    /// Moves to the previous entry.
    fn prev(&mut self);
    /// The internal key here.
    fn key(&self) -> &[u8];
    /// The value here.
    fn value(&self) -> &[u8];
    /// The value here, kept beyond the next move; without a copy where the place can.
    ///
    /// # Errors
    /// `NoMemory` for a copy.
    fn pinned_value(&self) -> Result<PinnedValue> {
        PinnedValue::copied(self.value())
    }
    /// Shows entries behind the one here that are at hand, such as those of the same block, in their
    /// order, until `visit` gives false. Nothing is read for it. False if it cannot do that.
    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        let _ = visit;
        false
    }
    /// Why the cursor is not valid.
    ///
    /// # Errors
    /// What was met on the way here.
    fn status(&self) -> Result<()>;
}

impl<T: InternalIterator + ?Sized> InternalIterator for Box<T> {
    fn valid(&self) -> bool {
        (**self).valid()
    }
    fn seek_to_first(&mut self) {
        (**self).seek_to_first();
    }
    fn seek_to_last(&mut self) {
        (**self).seek_to_last();
    }
    fn seek(&mut self, target: &[u8]) {
        (**self).seek(target);
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        (**self).seek_for_prev(target);
    }
    fn next(&mut self) {
        (**self).next();
    }
    fn prev(&mut self) {
        (**self).prev();
    }
    fn key(&self) -> &[u8] {
        (**self).key()
    }
    fn value(&self) -> &[u8] {
        (**self).value()
    }
    fn pinned_value(&self) -> Result<PinnedValue> {
        (**self).pinned_value()
    }
    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        (**self).peek(visit)
    }
    fn status(&self) -> Result<()> {
        (**self).status()
    }
}
