//! Where a file's open reader is kept.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// The open reader of a file, once somebody has opened it. Not written, not copied, and not part
/// of what makes files equal.
pub struct OpenSlot<R>(OnceLock<Arc<R>>);

impl<R> OpenSlot<R> {
    /// The reader, if the file is open.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&Arc<R>> {
        self.0.get()
    }

    /// Keeps a reader; the one that was there first wins.
    pub fn set(&self, reader: Arc<R>) -> &Arc<R> {
        self.0.get_or_init(|| reader)
    }
}

impl<R> Default for OpenSlot<R> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<R> Clone for OpenSlot<R> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<R> PartialEq for OpenSlot<R> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<R> Eq for OpenSlot<R> {}

impl<R> fmt::Debug for OpenSlot<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() {
            "open"
        } else {
            "closed"
        })
    }
}
