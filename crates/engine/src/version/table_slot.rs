//! Where a file's open table is kept.

use std::fmt;
use std::sync::{Arc, OnceLock};

use orogen_sst::TableReader;

/// The open table of a file, once somebody has opened it. Not written, not copied, and not part
/// of what makes files equal.
#[derive(Default)]
pub struct TableSlot(OnceLock<Arc<TableReader>>);

impl TableSlot {
    /// The table, if it is open.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<&Arc<TableReader>> {
        self.0.get()
    }

    /// Keeps a table; the one that was there first wins.
    pub fn set(&self, table: Arc<TableReader>) -> &Arc<TableReader> {
        self.0.get_or_init(|| table)
    }
}

impl Clone for TableSlot {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for TableSlot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TableSlot {}

impl fmt::Debug for TableSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() {
            "open"
        } else {
            "closed"
        })
    }
}
