//! Writes that are prepared: in the log under a name, in no memtable.
//!
//! ```text
//! reserve -> written to the log -> prepared -> ending (commit or roll back) -> gone
//!    '-> gone, after an error         ^------------'  after an error
//! ```
//! Invariants: (1) a name is used once at a time; (2) from before the log is written to after the
//! end is in it, and a commit in the memtables, [`PreparedWrites::oldest_log`] is not newer than the log that
//! has the write; (3) who ends a write is the only one.
//!
//! Leaf lock; the write path's leader holds it while it writes what is left of old logs to the
//! current one, so that nobody ends a write meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use orogen_base::sync::{Mutex, MutexGuard};
use orogen_base::{Error, FileNo, Result};

use crate::batch::WriteBatch;

/// A write that is prepared, as it is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedWrite {
    /// Its name.
    pub name: Vec<u8>,
    /// Operations.
    pub operations: u32,
    /// Bytes in the log.
    pub bytes: usize,
    /// The log that has it, and that stays for its sake.
    pub log: FileNo,
    /// Somebody is just committing it or rolling it back.
    pub is_ending: bool,
}

/// One name.
pub(crate) struct Entry {
    /// With its markers; `None` while the log is written.
    section: Option<Arc<WriteBatch>>,
    /// 0 before the log is known.
    log: Arc<AtomicU64>,
    ending: bool,
}

type ByName = BTreeMap<Box<[u8]>, Entry>;

/// The prepared writes of a database.
#[derive(Default)]
pub(crate) struct PreparedWrites {
    by_name: Mutex<ByName>,
    /// How many, for those who need not wait.
    count: AtomicUsize,
    /// There were some since the database was opened.
    was_used: AtomicBool,
}

/// A name that nobody else may use; given up when it is dropped, unless the write was prepared.
pub(crate) struct Reserved<'a> {
    list: &'a PreparedWrites,
    name: Option<Box<[u8]>>,
    log: Arc<AtomicU64>,
}

/// A write that its holder alone may end; prepared again when it is dropped, unless it ended.
pub(crate) struct Ending<'a> {
    list: &'a PreparedWrites,
    name: Option<Box<[u8]>>,
    pub(crate) section: Arc<WriteBatch>,
    pub(crate) log: FileNo,
}

impl PreparedWrites {
    /// Takes a name for a write that is about to be prepared.
    ///
    /// # Errors
    /// `InvalidArgument` if it is used.
    pub(crate) fn reserve(&self, name: &[u8]) -> Result<Reserved<'_>> {
        let mut all = self.by_name.lock();
        if all.contains_key(name) {
            return Err(
                Error::invalid_argument("a write is prepared under this name already")
                    .with("name", name.escape_ascii()),
            );
        }
        let log = Arc::new(AtomicU64::new(0));
        let entry = Entry {
            section: None,
            log: log.clone(),
            ending: false,
        };
        all.insert(name.into(), entry);
        self.note_count(&all);
        Ok(Reserved {
            list: self,
            name: Some(name.into()),
            log,
        })
    }

    /// Takes a prepared write to end it.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name, `Busy` while somebody else ends it.
    pub(crate) fn take(&self, name: &[u8]) -> Result<Ending<'_>> {
        let mut all = self.by_name.lock();
        let entry = all.get_mut(name);
        let Some((entry, section)) = entry.and_then(|e| e.section.clone().map(|s| (e, s))) else {
            return Err(Error::not_found("no write is prepared under this name")
                .with("name", name.escape_ascii()));
        };
        if entry.ending {
            return Err(
                Error::busy("prepared write is just being committed or rolled back")
                    .with("name", name.escape_ascii()),
            );
        }
        entry.ending = true;
        Ok(Ending {
            list: self,
            name: Some(name.into()),
            section,
            log: entry.log.load(Relaxed),
        })
    }

    /// Takes up what an earlier open prepared; `section` has its markers.
    pub(crate) fn restore(&self, name: Box<[u8]>, section: WriteBatch, log: FileNo) {
        let mut all = self.by_name.lock();
        let entry = Entry {
            section: Some(Arc::new(section)),
            log: Arc::new(AtomicU64::new(log)),
            ending: false,
        };
        all.insert(name, entry);
        self.note_count(&all);
    }

    /// How many writes are prepared.
    pub(crate) fn count(&self) -> usize {
        let all = self.by_name.lock();
        all.values().filter(|entry| entry.section.is_some()).count()
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// The oldest log that has one of them. The caller has looked up the current log before.
    pub(crate) fn oldest_log(&self) -> Option<FileNo> {
        if self.is_empty() {
            return None;
        }
        oldest(&self.by_name.lock())
    }

    /// All writes that are prepared, by name.
    pub(crate) fn list(&self) -> Vec<PreparedWrite> {
        let all = self.by_name.lock();
        let prepared = all.iter().filter_map(|(name, entry)| {
            let section = entry.section.as_ref()?;
            Some(PreparedWrite {
                name: name.to_vec(),
                operations: section.count(),
                bytes: section.size_bytes(),
                log: entry.log.load(Relaxed),
                is_ending: entry.ending,
            })
        });
        prepared.collect()
    }

    /// The operations that are prepared under a name, with their markers.
    pub(crate) fn section(&self, name: &[u8]) -> Option<Arc<WriteBatch>> {
        self.by_name.lock().get(name)?.section.clone()
    }

    /// For the leader: keeps others out while it writes old ones anew.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.by_name.lock())
    }

    /// True if the logs of this open may have prepared writes, or the ends of some.
    pub(crate) fn was_used(&self) -> bool {
        self.was_used.load(Relaxed)
    }

    fn note_count(&self, all: &ByName) {
        self.was_used.fetch_or(!all.is_empty(), Relaxed);
        self.count.store(all.len(), Relaxed);
    }

    fn remove(&self, name: &[u8]) {
        let mut all = self.by_name.lock();
        all.remove(name);
        self.note_count(&all);
    }
}

fn oldest(all: &ByName) -> Option<FileNo> {
    let logs = all.values().map(|e| e.log.load(Relaxed));
    logs.filter(|&log| log != 0).min()
}

/// Nobody reserves or ends meanwhile.
pub(crate) struct Held<'a>(MutexGuard<'a, ByName>);

impl Held<'_> {
    /// The oldest log that has one of them.
    pub(crate) fn oldest_log(&self) -> Option<FileNo> {
        oldest(&self.0)
    }

    /// The names and sections in logs before `current` that nobody is ending.
    pub(crate) fn older_than(
        &self,
        current: FileNo,
    ) -> impl Iterator<Item = (&[u8], &Arc<WriteBatch>)> {
        let all = self.0.iter().filter(move |(_, e)| e.is_older_than(current));
        all.filter_map(|(name, e)| Some((&**name, e.section.as_ref()?)))
    }

    /// Notes that `current` has them now.
    pub(crate) fn moved_to(&self, current: FileNo) {
        for entry in self.0.values().filter(|e| e.is_older_than(current)) {
            entry.log.store(current, Relaxed);
        }
    }
}

impl Entry {
    fn is_older_than(&self, current: FileNo) -> bool {
        self.section.is_some() && !self.ending && self.log.load(Relaxed) < current
    }
}

impl Reserved<'_> {
    /// Where the commit pipeline notes the log.
    pub(crate) fn log(&self) -> Arc<AtomicU64> {
        self.log.clone()
    }

    /// The log has it.
    pub(crate) fn prepared(mut self, section: WriteBatch) {
        let Some(name) = self.name.take() else { return };
        if let Some(entry) = self.list.by_name.lock().get_mut(&name) {
            entry.section = Some(Arc::new(section));
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            self.list.remove(name);
        }
    }
}

impl Ending<'_> {
    /// It is committed and in the memtables, or rolled back.
    pub(crate) fn ended(mut self) {
        if let Some(name) = self.name.take() {
            self.list.remove(&name);
        }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Some(entry) = self.list.by_name.lock().get_mut(name)
        {
            entry.ending = false;
        }
    }
}
