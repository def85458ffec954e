//! Where the writes of one transaction go.

use std::sync::Arc;

use orogen_engine::batch::Spill;

/// What all transactions of a database share, with a threshold of this one if it has any.
pub(crate) fn of(all: &Option<Arc<Spill>>, own: Option<usize>) -> Option<Arc<Spill>> {
    let all = all.as_ref()?;
    Some(match own {
        None => all.clone(),
        Some(threshold_bytes) => all.with_threshold(threshold_bytes),
    })
}
