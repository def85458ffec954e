//! The workloads by name, and what a thread of one works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orogen::{ColumnFamily, Db, ReadOptions, WriteOptions};
use orogen_base::Result;
use orogen_env::{Clock, SystemClock};

use crate::flags::Flags;
use crate::generate::{Key, Rng, Values};
use crate::stats::Stats;
use crate::{read, write};

/// A workload that is measured.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Starts from an empty database.
    pub(crate) fresh: bool,
    pub(crate) run: fn(&mut Worker) -> Result<()>,
    /// A thread beside those that are measured.
    pub(crate) beside: Option<fn(&mut Worker) -> Result<()>>,
    /// Threads, where the flag does not say.
    pub(crate) threads: Option<usize>,
    /// Keys are one byte longer than those that were written.
    pub(crate) missing: bool,
    /// The count of found keys ends its line, and an empty one follows, as db_bench has it.
    pub(crate) found_ends_line: bool,
    pub(crate) verb: &'static str,
}

const fn workload(
    name: &'static str,
    verb: &'static str,
    run: fn(&mut Worker) -> Result<()>,
) -> Workload {
    Workload {
        name,
        fresh: false,
        run,
        beside: None,
        threads: None,
        missing: false,
        found_ends_line: true,
        verb,
    }
}

/// Every workload that is measured.
pub(crate) const WORKLOADS: &[Workload] = &[
    Workload {
        fresh: true,
        ..workload("fillseq", "write", write::sequential)
    },
    Workload {
        fresh: true,
        ..workload("fillrandom", "write", write::random)
    },
    workload("overwrite", "write", write::random),
    workload("readrandom", "read", read::random),
    Workload {
        missing: true,
        ..workload("readmissing", "read", read::random)
    },
    workload("readseq", "read", read::forward),
    workload("readreverse", "read", read::backward),
    workload("seekrandom", "seek", read::seek_random),
    Workload {
        found_ends_line: false,
        ..workload("multireadrandom", "read", read::multi_random)
    },
    Workload {
        beside: Some(write::beside_readers),
        ..workload("readwhilewriting", "read", read::random)
    },
    workload("deleteseq", "delete", write::delete_sequential),
    workload("deleterandom", "delete", write::delete_random),
    Workload {
        threads: Some(1),
        ..workload("compact", "compact", write::compact)
    },
];

/// The workload of this name.
pub(crate) fn by_name(name: &str) -> Option<&'static Workload> {
    WORKLOADS.iter().find(|w| w.name == name)
}

/// A thread at work.
pub(crate) struct Worker {
    pub(crate) db: Db,
    pub(crate) family: ColumnFamily,
    pub(crate) flags: Arc<Flags>,
    pub(crate) key_size: usize,
    pub(crate) rng: Rng,
    pub(crate) stats: Stats,
    /// Threads that are measured and not done yet.
    pub(crate) running: Arc<AtomicUsize>,
}

impl Worker {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.key_size)
    }

    pub(crate) fn values(&mut self) -> Values {
        Values::new(
            &mut self.rng,
            self.flags.value_size,
            self.flags.compression_ratio,
        )
    }

    pub(crate) fn read_options(&self) -> ReadOptions {
        ReadOptions {
            verify_checksums: self.flags.verify_checksum,
            ..ReadOptions::default()
        }
    }

    pub(crate) fn write_options(&self) -> WriteOptions {
        WriteOptions {
            sync: self.flags.sync,
            disable_wal: self.flags.disable_wal,
            ..WriteOptions::default()
        }
    }

    /// Operations of a workload: `ops`, or as many as `--duration` allows.
    pub(crate) fn budget(&self, ops: u64) -> Budget {
        let seconds = self.flags.duration;
        let deadline = (seconds > 0).then(|| {
            let micros = seconds.saturating_mul(1_000_000);
            SystemClock.now_micros().saturating_add(micros)
        });
        Budget {
            left: if deadline.is_some() { u64::MAX } else { ops },
            deadline,
        }
    }

    pub(crate) fn others_run(&self) -> bool {
        self.running.load(Ordering::Relaxed) > 0
    }
}

/// How many operations are still to do.
pub(crate) struct Budget {
    left: u64,
    deadline: Option<u64>,
}

impl Budget {
    /// Takes `n` operations; false when there are none left.
    #[inline]
    pub(crate) fn take(&mut self, n: u64) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left = self.left.saturating_sub(n);
        // A look at the clock each 256 batches is lost in the noise.
        if let Some(deadline) = self.deadline
            && ((u64::MAX - self.left) / n) & 0xff == 0
        {
            return SystemClock.now_micros() < deadline;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_gives_so_many_operations_in_whole_batches() {
        let mut budget = Budget {
            left: 10,
            deadline: None,
        };
        let mut batches = 0;
        while budget.take(4) {
            batches += 1;
        }
        assert_eq!(batches, 3);
    }

    #[test]
    fn a_budget_ends_at_its_deadline() {
        let mut budget = Budget {
            left: u64::MAX,
            deadline: Some(0),
        };
        let mut ops = 0;
        while budget.take(3) {
            ops += 1;
        }
        assert!(ops < 256, "{ops}");
    }
}
