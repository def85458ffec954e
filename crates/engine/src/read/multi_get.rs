//! Point reads of many keys as of one moment, place after place as for one key (see `get.rs`).
//!
//! ```text
//! keys, sorted --> memtables --> level 0, newest file first --> each level: all keys at once
//! ```
//! The keys that a place must be searched for are given to its tables together, in order: so
//! keys that are neighbours share blocks, and what is not in the cache is read together (see
//! `TableAccess::get_batch`). What is found, and in which order, is as for single gets: each key
//! has a [`GetState`] and a result of its own, and an error of one key is not that of another.
//! Source: RocksDB `db/version_set.cc` (`Version::MultiGet`). `Hot path`.
//!
//! Invariant: a key is searched in a place only if no newer place settled or hid it.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::perf::{self, PerfCounter};
use orogen_base::{Error, PinnedValue, Result, SeqNo};
use orogen_env::PerfTimer;
use orogen_memtable::MemTable;

use super::get::note_search;
use super::table_access::{Ask, AskBlob, TableAccess};
use super::{GetState, Places};
use crate::version::{FileMeta, Level};

/// Keys that are searched together. Bounds the blocks that are held at once.
const BATCH_KEYS_MAX: usize = 128;

/// Where the search for a key is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Searching,
    EndedInMemtables,
    EndedAt(usize),
}

/// One key of a batch.
struct Lookup<'k> {
    state: GetState<'k>,
    progress: Progress,
    failed: Option<Error>,
}

impl<'k> Lookup<'k> {
    fn new(user_key: &'k [u8], read_seqno: SeqNo) -> Self {
        Self {
            state: GetState::new(user_key, read_seqno),
            progress: Progress::Searching,
            failed: None,
        }
    }

    #[inline]
    fn is_searching(&self) -> bool {
        self.progress == Progress::Searching
    }
}

/// Takes how the search of a place of `level` went for a key.
fn settle(
    level: usize,
    state: &GetState<'_>,
    outcome: Result<()>,
    progress: &mut Progress,
    failed: &mut Option<Error>,
) {
    *failed = outcome.err();
    if failed.is_some() || state.hides_older_places() {
        *progress = Progress::EndedAt(level);
    }
}

impl<'a, T: TableAccess, M> Places<'a, T, M>
where
    M: Iterator<Item = &'a Arc<dyn MemTable>> + Clone,
{
    /// The values of many keys, each with its own result, in the order of `keys`.
    ///
    /// The results are those of a `get` of each key.
    pub fn multi_get(&self, keys: &[&[u8]], read_seqno: SeqNo) -> Vec<Result<Option<PinnedValue>>> {
        let order = &self.version.icmp().user;
        let mut by_key: Vec<usize> = (0..keys.len()).collect();
        by_key.sort_by(|&a, &b| order.compare(keys[a], keys[b]));
        let mut results: Vec<Result<Option<PinnedValue>>> = Vec::new();
        results.resize_with(keys.len(), || Ok(None));
        let mut bytes = 0;
        for batch in by_key.chunks(BATCH_KEYS_MAX) {
            let lookups = batch.iter().map(|&i| Lookup::new(keys[i], read_seqno));
            let mut lookups: Vec<Lookup<'_>> = lookups.collect();
            self.search_batch(&mut lookups);
            self.follow_pointers(&mut lookups);
            for (&i, lookup) in batch.iter().zip(lookups) {
                results[i] = match (lookup.failed, lookup.progress) {
                    (Some(error), _) => Err(error),
                    (None, Progress::EndedInMemtables) => self.finish(lookup.state, None),
                    (None, Progress::EndedAt(level)) => self.finish(lookup.state, Some(level)),
                    (None, Progress::Searching) => {
                        self.finish(lookup.state, Some(self.version.num_levels()))
                    }
                };
                if let Ok(Some(value)) = &results[i] {
                    bytes += value.len() as u64;
                }
            }
        }
        self.statistics.add(Ticker::NumberMultigetCalls, 1);
        self.statistics
            .add(Ticker::NumberMultigetKeysRead, keys.len() as u64);
        self.statistics.add(Ticker::BytesRead, bytes);
        perf::add(PerfCounter::MultigetReadBytes, bytes);
        results
    }

    fn search_batch(&self, lookups: &mut [Lookup<'_>]) {
        let timer = PerfTimer::start(PerfCounter::GetFromMemtableTime);
        for memtable in self.memtables.clone() {
            for l in lookups.iter_mut().filter(|l| l.is_searching()) {
                if let Err(e) = self.search_memtable(&**memtable, &mut l.state) {
                    // What older places have is not its value.
                    (l.failed, l.progress) = (Some(e), Progress::EndedInMemtables);
                } else if l.state.hides_older_places() {
                    l.progress = Progress::EndedInMemtables;
                }
            }
        }
        drop(timer);
        let _timer = PerfTimer::start(PerfCounter::GetFromOutputFilesTime);
        for file in self.version.files(0) {
            self.search_together(0, lookups, |l| {
                let may_hold = self.may_hold(file, l.state.user_key());
                may_hold.then_some(std::slice::from_ref(file))
            });
        }
        for (number, level) in self.version.levels().iter().enumerate().skip(1) {
            if !level.is_empty() {
                self.search_together(number, lookups, |l| {
                    Some(self.candidates(level, &l.state)).filter(|files| !files.is_empty())
                });
            }
        }
    }

    /// Reads the values that are in blob files, those of one file together.
    fn follow_pointers(&self, lookups: &mut [Lookup<'_>]) {
        let mut asks = Vec::new();
        let mut asked = Vec::new();
        for (i, l) in lookups.iter().enumerate() {
            if let Some(pointer) = l.state.pointer() {
                asks.push(AskBlob {
                    pointer,
                    user_key: l.state.user_key(),
                    value: None,
                });
                asked.push(i);
            }
        }
        if asks.is_empty() {
            return;
        }
        self.tables
            .blobs(self.version, &mut asks, self.table_options);
        let values: Vec<_> = asks.into_iter().map(|ask| ask.value).collect();
        for (i, value) in asked.into_iter().zip(values) {
            if let Some(value) = value {
                lookups[i].state.resolve(value);
            }
        }
    }

    fn candidates<'l>(&self, level: &'l Level, state: &GetState<'_>) -> &'l [Arc<FileMeta>] {
        level.candidates(self.version.icmp(), state.user_key())
    }

    /// Searches a place for all keys that are still sought and that may be there: in the files
    /// that `files_of` names.
    fn search_together<'f>(
        &self,
        level: usize,
        lookups: &mut [Lookup<'_>],
        files_of: impl Fn(&Lookup<'_>) -> Option<&'f [Arc<FileMeta>]>,
    ) {
        let _search = perf::search_level(level);
        let mut asks = Vec::with_capacity(lookups.len());
        let mut asked = Vec::with_capacity(lookups.len());
        for l in lookups.iter_mut().filter(|l| l.is_searching()) {
            match files_of(l) {
                None => {}
                Some([file]) => match self.cover(file, &mut l.state) {
                    Ok(false) => {}
                    Ok(true) => {
                        asks.push(Ask {
                            file,
                            state: &mut l.state,
                            outcome: Ok(()),
                        });
                        asked.push((&mut l.progress, &mut l.failed));
                    }
                    Err(error) => {
                        settle(level, &l.state, Err(error), &mut l.progress, &mut l.failed);
                    }
                },
                // A key that neighbours share is rare.
                Some(files) => {
                    let outcome = self.search_neighbours(files, &mut l.state);
                    note_search(files.len(), &l.state);
                    settle(level, &l.state, outcome, &mut l.progress, &mut l.failed);
                }
            }
        }
        self.tables.get_batch(self.table_options, &mut asks);
        for (ask, (progress, failed)) in asks.into_iter().zip(asked) {
            note_search(1, ask.state);
            settle(level, ask.state, ask.outcome, progress, failed);
        }
    }

    /// Tells `state` the newest range tombstone of a file over its key; false if the key is not
    /// before the file's end.
    fn cover(&self, file: &Arc<FileMeta>, state: &mut GetState<'_>) -> Result<bool> {
        if !self.holds_up_to(file, state.user_key()) {
            return Ok(false);
        }
        let order = &self.version.icmp().user;
        let (key, read_seqno) = (state.user_key(), state.read_seqno());
        state.add_covering(self.tables.covering_seqno(file, order, key, read_seqno)?);
        Ok(true)
    }
}
