//! The parts of an engine that tell what it has, and all engines of the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::dirs::Dirs;
use crate::files::Table;
use crate::memtable::Memtables;
use crate::metrics::{Meters, Metrics, PerQueue};
use crate::names::Queue;
use crate::read_cache::ReadCache;
use crate::spares::Spares;

/// An open engine, as far as its metrics go.
pub(crate) struct Watched {
    pub(crate) meters: Arc<Meters>,
    pub(crate) table: Arc<Table>,
    pub(crate) memtables: Arc<Memtables>,
    pub(crate) spares: Arc<Spares>,
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) cache: Option<Arc<ReadCache>>,
}

/// The engines of the process.
struct All {
    open: Vec<Arc<Watched>>,
    /// What those have counted that are closed.
    closed: Option<Metrics>,
}

/// Leaf lock.
static ALL: Mutex<All> = Mutex::new(All {
    open: Vec::new(),
    closed: None,
});

fn all() -> MutexGuard<'static, All> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Shows it to [`process_metrics`], as long as what this gives is there.
    pub(crate) fn show(self) -> Shown {
        let shown = Arc::new(self);
        all().open.push(Arc::clone(&shown));
        Shown(shown)
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = self.meters.look();
        let held = self.memtables.held();
        metrics.memory_usage = held.bytes;
        metrics.log_entry_count = PerQueue {
            append: held.appended,
            rewrite: held.rewritten,
        };
        metrics.log_file_count = PerQueue {
            append: self.table.count_of(Queue::Append),
            rewrite: self.table.count_of(Queue::Rewrite),
        };
        metrics.spill_dir_file_count = self.dirs.second().map_or(0, |dir| self.table.count_in(dir));
        metrics.groups_fenced = self.memtables.fenced_count();
        metrics.dirs_stalled = u64::from(self.dirs.is_stalled());
        metrics.recycled_file_count.append = self.spares.count();
        metrics.read_cache_bytes = self.cache.as_ref().map_or(0, |cache| cache.bytes());
        metrics
    }
}

/// An engine that is among those of the process until this is dropped.
pub(crate) struct Shown(Arc<Watched>);

impl Shown {
    pub(crate) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// What it has counted and what it has. Each group is looked at, with its lock.
    pub(crate) fn metrics(&self) -> Metrics {
        self.0.metrics()
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let mut all = all();
        all.open.retain(|other| !Arc::ptr_eq(other, &self.0));
        let counted = self.0.meters.look();
        match &mut all.closed {
            Some(closed) => closed.add_counted(&counted),
            None => all.closed = Some(counted),
        }
    }
}

/// What all engines of this process together have counted, those that were closed included, and what those have that are open.
#[must_use]
pub fn process_metrics() -> Metrics {
    let (open, closed) = {
        let all = all();
        (all.open.clone(), all.closed.clone())
    };
    let mut sum = closed.unwrap_or_else(|| Meters::new().look());
    for engine in open {
        sum.add(&engine.metrics());
    }
    sum
}

#[cfg(test)]
mod tests;
