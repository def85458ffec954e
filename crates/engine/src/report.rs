//! What runs, what is due, and what keeps old things alive.
//!
//! Nothing of it costs readers anything: a super version that was replaced is remembered by a weak
//! pointer, so whoever still reads from it is seen without being listed.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use orogen_base::{FileNo, SeqNo};

use crate::activity::{JobInfo, JobKind, JobState};
use crate::column_family::{ColumnFamilyData, Holes};
use crate::compact::{self, Scores};
use crate::context::Context;
use crate::filename;

/// Snapshots of one sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHolder {
    /// The newest write that they see.
    pub seqno: SeqNo,
    /// How many there are.
    pub count: usize,
    /// When the oldest of them was taken, in seconds since 1970.
    pub taken_secs: u64,
    /// How long ago that was.
    pub age_secs: u64,
}

/// Readers (iterators, values, snapshots of a secondary) and jobs that hold memtables and tables
/// of a family as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewHolder {
    /// The family's name.
    pub column_family: String,
    /// How many hold this view.
    pub count: usize,
    /// When it was replaced by a newer one, in seconds since 1970.
    pub replaced_secs: u64,
    /// How long ago that was.
    pub age_secs: u64,
    /// Bytes of memtables that are no longer the family's.
    pub memtable_bytes: u64,
    /// Tables that are no longer the family's.
    pub files: Vec<FileNo>,
    /// Bytes of those.
    pub file_bytes: u64,
}

/// A table or blob file that no newest version lists and that cannot be deleted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObsoleteFile {
    /// Its number.
    pub number: FileNo,
    /// Its bytes.
    pub bytes: u64,
    /// Versions and jobs that hold it; 0: it is about to go.
    pub holders: usize,
}

/// What keeps old things alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Live snapshots, oldest first: compactions keep what they see.
    pub snapshots: Vec<SnapshotHolder>,
    /// Replaced views that are still read, by family, oldest first.
    pub views: Vec<ViewHolder>,
    /// Tables that wait for the last who holds them. Several views may hold one table.
    pub obsolete_files: Vec<ObsoleteFile>,
    /// The same of blob files; bytes are those of their records.
    pub obsolete_blob_files: Vec<ObsoleteFile>,
}

impl Holders {
    /// Bytes on disk that wait for their holders.
    #[must_use]
    pub fn obsolete_bytes(&self) -> u64 {
        let all = self.obsolete_files.iter().chain(&self.obsolete_blob_files);
        all.map(|f| f.bytes).sum()
    }

    /// A line for each holder.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for s in &self.snapshots {
            let _ = writeln!(
                out,
                "snapshot sequence={} count={} age_seconds={}",
                s.seqno, s.count, s.age_secs
            );
        }
        for v in &self.views {
            let _ = writeln!(
                out,
                "[{}] view count={} age_seconds={} memtable_bytes={} files={:?} file_bytes={}",
                v.column_family, v.count, v.age_secs, v.memtable_bytes, v.files, v.file_bytes
            );
        }
        for f in &self.obsolete_files {
            let _ = writeln!(
                out,
                "obsolete file={} bytes={} holders={}",
                f.number, f.bytes, f.holders
            );
        }
        for f in &self.obsolete_blob_files {
            let _ = writeln!(
                out,
                "obsolete blob_file={} bytes={} holders={}",
                f.number, f.bytes, f.holders
            );
        }
        out
    }
}

/// What keeps old things alive now.
pub(crate) fn holders(context: &Context) -> Holders {
    let now = context.clock.unix_secs();
    let snapshots = context.snapshots.taken().into_iter();
    let snapshots = snapshots.map(|(seqno, taken)| {
        let taken_secs = taken.iter().min().copied().unwrap_or(now);
        SnapshotHolder {
            seqno,
            count: taken.len(),
            taken_secs,
            age_secs: now.saturating_sub(taken_secs),
        }
    });
    let mut holders = Holders {
        snapshots: snapshots.collect(),
        ..Holders::default()
    };
    for family in context.set.families() {
        views(&family, now, &mut holders.views);
    }
    let obsolete = |number, bytes, holders| ObsoleteFile {
        number,
        bytes,
        holders,
    };
    holders.obsolete_files = context.set.removed_tables(obsolete);
    holders.obsolete_blob_files = context.set.removed_blobs(obsolete);
    holders
}

fn views(family: &ColumnFamilyData, now: u64, out: &mut Vec<ViewHolder>) {
    let current = family.pin();
    let live: HashSet<FileNo> = current.version.iter_files().map(|f| f.1.number).collect();
    for (view, count, replaced_secs) in family.replaced() {
        let own = |mem: &&Arc<_>| !current.memtables().any(|m| Arc::ptr_eq(m, mem));
        let memtables = view.memtables().filter(own);
        let gone = view.version.iter_files().map(|f| f.1);
        let gone: Vec<_> = gone.filter(|f| !live.contains(&f.number)).collect();
        out.push(ViewHolder {
            column_family: family.name.clone(),
            count,
            replaced_secs,
            age_secs: now.saturating_sub(replaced_secs),
            memtable_bytes: memtables.map(|m| m.memory_usage() as u64).sum(),
            files: gone.iter().map(|f| f.number).collect(),
            file_bytes: gone.iter().map(|f| f.size).sum(),
        });
    }
}

/// The jobs that run, oldest first, and those that are due.
pub(crate) fn jobs(context: &Context) -> Vec<JobInfo> {
    let mut jobs = context.activity.now();
    for job in &mut jobs {
        let sizes = job.output_files.iter().map(|&number| {
            let table = filename::table_path(&context.dir, number);
            let found = context.fs.metadata(&table);
            let found = found.or_else(|_| {
                context
                    .fs
                    .metadata(&filename::blob_path(&context.dir, number))
            });
            // One that is not made yet, or has failed, has none.
            found.map_or(0, |m| m.size)
        });
        job.output_bytes = sizes.sum();
    }
    if context.read_only || context.is_closing() {
        return jobs;
    }
    let moment = context.moment();
    for family in context.set.families() {
        let state = family.state();
        let options = family.options();
        let queued = |kind, input_bytes, reason: &str| JobInfo {
            id: None,
            kind,
            state: JobState::Queued,
            column_family: family.name.clone(),
            start_level: None,
            output_level: Some(0),
            input_files: Vec::new(),
            input_bytes,
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: reason.to_owned(),
            since_secs: None,
        };
        if state.flushing.is_none()
            && let Some(reason) = state.flush_due(&options)
        {
            let bytes = state.imm.iter().map(|m| m.table.memory_usage() as u64);
            jobs.push(queued(JobKind::Flush, bytes.sum(), reason));
        }
        if let Holes::Waiting { era, files, .. } = &state.holes {
            let reason = match era.is_over() {
                true => "quiet",
                false => "readers",
            };
            jobs.push(JobInfo {
                output_level: None,
                input_files: files.iter().map(|f| f.number).collect(),
                ..queued(
                    JobKind::HolePunching,
                    files.iter().map(|f| f.bytes).sum(),
                    reason,
                )
            });
        }
        if options.disable_auto_compactions || state.exclusive_manual > 0 || family.is_dropped() {
            continue;
        }
        let scores = Scores::compute(&state.version, &options);
        let taken = state.taken(None);
        if let Some(plan) = compact::pick(&state.version, &options, &scores, &taken, moment) {
            let reason = plan.reason.name();
            jobs.push(JobInfo {
                start_level: Some(plan.start_level),
                output_level: Some(plan.output_level),
                input_files: plan.input_files().map(|(_, f)| f.number).collect(),
                ..queued(JobKind::Compaction, plan.input_bytes(), reason)
            });
        }
    }
    jobs
}

/// A line for each job.
pub(crate) fn jobs_text(context: &Context) -> String {
    let now = context.clock.unix_secs();
    let mut out = String::new();
    for job in jobs(context) {
        let number = |n: Option<usize>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let _ = writeln!(
            out,
            "[{}] {} {} job={} level={}->{} input_files={:?} input_bytes={} input_bytes_done={} \
             output_files={:?} output_bytes={} seconds={} reason={}",
            job.column_family,
            job.kind.name(),
            job.state.name(),
            job.id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            number(job.start_level),
            number(job.output_level),
            job.input_files,
            job.input_bytes,
            job.input_bytes_done,
            job.output_files,
            job.output_bytes,
            job.since_secs.map_or(0, |s| now.saturating_sub(s)),
            job.reason,
        );
    }
    out
}
