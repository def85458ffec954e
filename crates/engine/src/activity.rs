//! The jobs that run now.
//!
//! A job notes what it works on when it begins and is forgotten when it ends; its threads count
//! entries every few thousand. Who asks reads it; nobody waits for anybody. Lock: a leaf.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use orogen_base::{FileNo, Result};

use crate::compaction_iter::JobWatch;
use crate::pace::CountsEntries;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Sealed memtables become a table of level 0.
    Flush,
    /// Tables become better tables.
    Compaction,
    /// Values leave blob files with much garbage.
    BlobCollection,
    /// Disk space of dead values in the middle of blob files comes back.
    HolePunching,
    /// Values go from tables to blob files, or back; each of its steps is a compaction of its own.
    BlobConversion,
    /// What a caller asked for; each of its steps is a compaction of its own.
    ManualCompaction,
}

impl JobKind {
    /// The kind in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::Compaction => "compaction",
            Self::BlobCollection => "blob-collection",
            Self::HolePunching => "hole-punching",
            Self::BlobConversion => "blob-conversion",
            Self::ManualCompaction => "manual-compaction",
        }
    }
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It is due, and waits for a thread, for files that another job has, or for readers to end.
    Queued,
    /// It runs.
    Running,
    /// Its caller has paused it.
    Paused,
}

impl JobState {
    /// The state in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
        }
    }
}

/// A job that runs, or that is due.
#[derive(Clone, Debug)]
pub struct JobInfo {
    /// Its number, as in the LOG and in events; `None` while it is queued.
    pub id: Option<u64>,
    /// What it does.
    pub kind: JobKind,
    /// How far it is.
    pub state: JobState,
    /// The family's name.
    pub column_family: String,
    /// The level of its first inputs and that of its outputs; `None` for what steps are parts of as a
    /// whole, and the first for a flush.
    pub start_level: Option<usize>,
    /// See [`Self::start_level`].
    pub output_level: Option<usize>,
    /// Tables that it reads; none for a flush; the blob files for holes in them.
    pub input_files: Vec<FileNo>,
    /// Bytes that it reads: of tables, or of memtables; of holes that it makes.
    pub input_bytes: u64,
    /// About how many of them are done.
    pub input_bytes_done: u64,
    /// Tables that it has begun to write.
    pub output_files: Vec<FileNo>,
    /// Bytes of those on disk by now.
    pub output_bytes: u64,
    /// Why it runs.
    pub reason: String,
    /// When it began, in seconds since 1970; `None` while it is queued.
    pub since_secs: Option<u64>,
}

/// Bytes done, bytes in all, and whether it is paused.
pub(crate) type Progress = Box<dyn Fn() -> (u64, u64, bool) + Send + Sync>;

/// A job as it was when it began, and what it counts.
pub(crate) struct RunningJob {
    pub(crate) begun: JobInfo,
    /// Entries of its inputs, as far as that is known.
    pub(crate) entries_total: u64,
    /// What tells of a manual compaction as a whole.
    pub(crate) progress: Option<Progress>,
    entries_done: AtomicU64,
    outputs: Mutex<Vec<FileNo>>,
}

impl RunningJob {
    pub(crate) fn new(begun: JobInfo, entries_total: u64) -> Self {
        Self {
            begun,
            entries_total,
            progress: None,
            entries_done: AtomicU64::new(0),
            outputs: Mutex::default(),
        }
    }

    /// Notes a table that it begins to write.
    pub(crate) fn note_output(&self, number: FileNo) {
        self.outputs.lock().push(number);
    }

    /// Counts entries that are done.
    pub(crate) fn note_done(&self, entries: u64) {
        self.entries_done.fetch_add(entries, Relaxed);
    }

    /// As it is now, but for the bytes that it has written.
    fn info(&self) -> JobInfo {
        let mut info = self.begun.clone();
        info.output_files.clone_from(&self.outputs.lock());
        match &self.progress {
            Some(progress) => {
                let (done, total, paused) = progress();
                (info.input_bytes_done, info.input_bytes) = (done, total);
                if paused {
                    info.state = JobState::Paused;
                }
            }
            None => {
                let done = u128::from(self.done());
                let share = u128::from(info.input_bytes) * done;
                let bytes = share / u128::from(self.entries_total.max(1));
                info.input_bytes_done = u64::try_from(bytes).unwrap_or(u64::MAX);
            }
        }
        info
    }
}

impl CountsEntries for RunningJob {
    fn done(&self) -> u64 {
        self.entries_done.load(Relaxed).min(self.entries_total)
    }

    fn total(&self) -> u64 {
        self.entries_total
    }
}

/// Counts entries for a job, and asks whoever else watches.
pub(crate) struct Counting {
    pub(crate) job: Arc<RunningJob>,
    pub(crate) beside: Option<Arc<dyn JobWatch>>,
}

impl JobWatch for Counting {
    fn look(&self, entries: u64) -> Result<()> {
        self.job.note_done(entries);
        self.beside.as_ref().map_or(Ok(()), |w| w.look(entries))
    }
}

/// The jobs of a database that run now, by number.
#[derive(Default)]
pub(crate) struct Activity(Mutex<BTreeMap<u64, Arc<RunningJob>>>);

/// A job in the list, until it is dropped.
pub(crate) struct Listed<'a> {
    activity: &'a Activity,
    id: u64,
    pub(crate) job: Arc<RunningJob>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.activity.0.lock().remove(&self.id);
    }
}

impl Activity {
    /// Lists a job under its number.
    pub(crate) fn list(&self, id: u64, job: RunningJob) -> Listed<'_> {
        let job = Arc::new(job);
        self.0.lock().insert(id, job.clone());
        Listed {
            activity: self,
            id,
            job,
        }
    }

    /// The jobs that run now, oldest first.
    pub(crate) fn now(&self) -> Vec<JobInfo> {
        let jobs: Vec<Arc<RunningJob>> = self.0.lock().values().cloned().collect();
        jobs.iter().map(|j| j.info()).collect()
    }
}
