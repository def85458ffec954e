//! What both logs are given.

use raft::eraftpb::Entry;

/// An entry as a replicated system makes it.
#[must_use]
pub fn entry(index: u64, payload: &[u8]) -> Entry {
    let mut entry = Entry::new();
    entry.set_term(index / 1000 + 1);
    entry.set_index(index);
    entry.set_data(payload.to_vec().into());
    entry
}
