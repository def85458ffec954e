//! Histories against maps, threads against each other, blocks that run full.

mod keys;
mod histories;
mod threads;
mod room;
mod versions;
#[cfg(orogen_asan)]
mod poisoned;
