//! The words that a key has.

use orogen_base::sync::atomic::{AtomicU32, Ordering};

/// The words of one key: as many as its map was made with. Readers and writers may use them at the same
/// time; each word is seen whole, words beside each other are not seen together.
#[derive(Clone, Copy)]
pub struct Cell<'a>(pub(crate) &'a [AtomicU32]);

impl Cell<'_> {
    /// The word at `index`, and all that was written before it.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    #[must_use]
    pub fn load(self, index: usize) -> u32 {
        u32::from_le(self.0[index].load(Ordering::Acquire))
    }

    /// Writes the word at `index`, after all that was written before.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn store(self, index: usize, value: u32) {
        self.0[index].store(value.to_le(), Ordering::Release);
    }

    /// Writes the word at `index` if it is `old`.
    ///
    /// # Errors
    /// What it is instead.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn compare_exchange(self, index: usize, old: u32, new: u32) -> Result<(), u32> {
        let (old, new) = (old.to_le(), new.to_le());
        self.0[index]
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(u32::from_le)
    }
}
