//! Tables that are rewritten where they are, together, for what they keep of their values.
//!
//! ```text
//! look at the newest version -> take tables, as compactions do -> rewrite one after the other, values to
//! one blob file that goes on from table to table -> one edit -> look again ... until nothing is left
//! ```
//! Each of the parts is a compaction of a table within its level. Sequence numbers stay, so nobody who reads, at
//! whatever snapshot, can tell, and no write has to be looked out for.
//!
//! 1. The edit is conditional as every compaction's is: the tables are the parts' own until these are dropped,
//!    whatever ends the step.
//! 2. New files are durable, by name too, before the edit that lists them with the tables that point to them. A
//!    crash before it leaves strays, and everything as it was.
//! 3. Between steps, and while it is paused, a loop of steps holds nothing.
//! 4. What was picked for a version is taken only while that is the newest; writers do not wait for the pick.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::{FileNo, Result};

use crate::activity::{JobInfo, RunningJob};
use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compact::collect::Lull;
use crate::compact::{self, Reason};
use crate::compaction_iter::JobWatch;
use crate::context::Context;
use crate::events::BlobFileAdditionInfo;
use crate::filename::DataFile;
use crate::jobs::compaction::{CompactionJob, Moves, count_drops, install_outputs, locate};
use crate::jobs::compaction_handle::{Control, StepWatch};
use crate::jobs::flush::{addition_info, count_blobs, tell_created};
use crate::obsolete;
use crate::output::{BlobCarry, Breaks};
use crate::version::FileMeta;
use crate::version::blob_counts::BlobCounts;
use crate::version::edit::VersionEdit;
use crate::version::version::Version;

/// Where blob files have so many times the bytes that live in them, garbage is in no less of a hurry than who writes.
const BREAKS_UP_TO: u64 = 3;

/// The rewrite of one table, or of some that share user keys.
pub(super) struct Part {
    pub(super) job: CompactionJob,
    /// Files whose values are moved only to lie in key order.
    pub(super) ordered: HashSet<FileNo>,
}

/// What came of taking tables.
pub(super) enum Taken {
    /// These.
    Parts(Vec<Part>),
    /// Nothing: jobs have them.
    Busy,
    /// Nothing, and no job is in the way: they are damaged.
    Nothing,
    /// Nothing: the version is not the newest any more, or the caller is kept out.
    Stale,
}

/// Takes those of the tables of `version` that nobody is in the way of.
pub(super) fn take(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    version: &Arc<Version>,
    tables: &[(usize, Arc<FileMeta>)],
    reason: Reason,
    is_kept_out: &dyn Fn(&FamilyState) -> bool,
) -> Taken {
    let options = family.options();
    loop {
        let look = {
            let state = family.state();
            if !Arc::ptr_eq(&state.version, version) || is_kept_out(&state) {
                return Taken::Stale;
            }
            state.look(None)
        };
        let mut running = look.running.clone();
        let mut plans = Vec::new();
        for (level, file) in tables {
            // One that went with its neighbour is in its range.
            let at = (*level, file);
            if let Some(plan) = compact::pick_in_place(version, &options, &running, at, reason) {
                running.push(plan.running(version.icmp()));
                plans.push(plan);
            }
        }
        let mut state = family.state();
        if is_kept_out(&state) || !plans.iter().all(|plan| state.may_take(&look, plan)) {
            continue;
        }
        if plans.is_empty() {
            // Jobs mark tables, also those that began since the look; who deletes tables of a range does too.
            let is_marked = |(_, f): (usize, &Arc<FileMeta>)| f.being_compacted.get();
            let is_busy = !look.running.is_empty() || version.iter_files().any(is_marked);
            return match (state.is_as(&look), is_busy) {
                (false, _) => continue,
                (true, true) => Taken::Busy,
                (true, false) => Taken::Nothing,
            };
        }
        let mut part = |plan| Part {
            job: CompactionJob::take(&mut state, family, plan, context.new_job_id(), 1),
            ordered: HashSet::new(),
        };
        return Taken::Parts(plans.into_iter().map(&mut part).collect());
    }
}

/// Tables that were taken, and what is to become of their values.
pub(super) struct Step {
    pub(super) parts: Vec<Part>,
    /// The files that are emptied.
    pub(super) emptied: HashSet<FileNo>,
    /// The depth that the tables are to have, if this is why they are rewritten.
    pub(super) ordered_to: Option<u64>,
    pub(super) reason: Reason,
}

/// What was written in place of tables.
pub(super) struct Rewritten {
    /// The tables in their place.
    pub(super) tables: Vec<FileNo>,
    /// New blob files.
    pub(super) blob_files: Vec<BlobFileAdditionInfo>,
    /// Bytes of records that became garbage.
    pub(super) garbage_bytes: u64,
    /// Values that were moved only for the order, and the bytes of their records.
    pub(super) ordered: (u64, u64),
    /// Bytes of all new files.
    pub(super) bytes_written: u64,
}

impl Step {
    /// The tables that are rewritten, with their levels.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (usize, &Arc<FileMeta>)> {
        self.parts.iter().flat_map(|p| p.job.plan().input_files())
    }

    /// Their bytes.
    pub(super) fn table_bytes(&self) -> u64 {
        self.inputs().map(|(_, f)| f.size).sum()
    }

    /// Rewrites the tables and installs what came of it, listed as the job `begun` of so many entries.
    /// Listeners hear of the new blob files.
    ///
    /// # Errors
    /// `Aborted` if it is given up; damage in the tables, `NoSpace`, `Io`. Then nothing has changed.
    pub(super) fn run(
        mut self,
        context: &Context,
        family: &Arc<ColumnFamilyData>,
        (id, begun): (u64, JobInfo),
        entries: u64,
        watch: Option<&Arc<StepWatch>>,
    ) -> Result<Rewritten> {
        let (table_bytes, reason) = (self.table_bytes(), self.reason.name());
        let listed = context.activity.list(id, RunningJob::new(begun, entries));
        let result = self.rewrite(context, family, watch, &listed.job);
        let result = result.map_err(|e| locate(family, self.inputs().map(|(_, f)| f), e));
        if let Some(watch) = watch {
            watch.end(result.is_ok());
        }
        drop(listed);
        // The tables are free before anybody is told.
        drop(self);
        context.balance_memory();
        context.update_stall(family);
        let rewritten = result?;
        let statistics = &context.statistics;
        statistics.add(Ticker::CompactReadBytes, table_bytes);
        statistics.add(Ticker::CompactWriteBytes, rewritten.bytes_written);
        tell_created(context, family, id, reason, &rewritten.blob_files);
        Ok(rewritten)
    }

    fn rewrite(
        &mut self,
        context: &Context,
        family: &Arc<ColumnFamilyData>,
        watch: Option<&Arc<StepWatch>>,
        job: &Arc<RunningJob>,
    ) -> Result<Rewritten> {
        let mut edit = VersionEdit::of_column_family(family.id);
        let mut created: Vec<DataFile> = Vec::new();
        let mut rewritten = self
            .write(context, family, watch, job, &mut edit, &mut created)
            .inspect_err(|_| obsolete::discard(context, &created))?;
        rewritten.blob_files = edit.blob_file_additions.iter().map(addition_info).collect();
        rewritten.tables = edit.new_files.iter().map(|(_, f)| f.number).collect();
        let garbage = edit.blob_file_garbages.iter();
        rewritten.garbage_bytes = garbage.map(|g| g.garbage_blob_bytes).sum();
        install_outputs(context, family, edit, &created)?;
        Ok(rewritten)
    }

    /// Writes all new files; `created` names them whatever happens.
    fn write(
        &mut self,
        context: &Context,
        family: &ColumnFamilyData,
        watch: Option<&Arc<StepWatch>>,
        job: &Arc<RunningJob>,
        edit: &mut VersionEdit,
        created: &mut Vec<DataFile>,
    ) -> Result<Rewritten> {
        let carry = Arc::new(BlobCarry::default());
        let emptied = Arc::new(std::mem::take(&mut self.emptied));
        let mut rewritten = Rewritten {
            tables: Vec::new(),
            blob_files: Vec::new(),
            garbage_bytes: 0,
            ordered: (0, 0),
            bytes_written: 0,
        };
        let (mut read, mut kept) = (BlobCounts::default(), BlobCounts::default());
        for part in &mut self.parts {
            // A table alone may be too small for a look.
            match watch {
                Some(watch) => watch.look(0)?,
                None => context.closing.look(0)?,
            }
            let moves = Moves {
                emptied: emptied.clone(),
                ordered: Arc::new(std::mem::take(&mut part.ordered)),
                carry: Some(carry.clone()),
                breaks: (watch.is_none() && takes_breaks(context, family))
                    .then(|| Breaks::new(context.clock.clone())),
            };
            let written = part
                .job
                .run_part(context, &moves, watch.cloned(), job)
                .map_err(|failed| {
                    created.extend(failed.created);
                    created.extend(carry.open_file());
                    failed.error
                })?;
            count_drops(context, &written);
            count_blobs(context, &written);
            created.extend(written.created());
            created.extend(carry.open_file());
            rewritten.bytes_written += written.bytes;
            rewritten.ordered.0 += written.ordered.values;
            rewritten.ordered.1 += written.ordered.bytes;
            if let Some(depth) = self.ordered_to {
                written
                    .files
                    .iter()
                    .for_each(|f| f.blob_depth.note_tried(depth));
            }
            read.add_all(&written.pointers_read);
            kept.add_all(&written.pointers_kept);
            part.job.take_inputs(edit);
            written.add_to(part.job.plan().output_level, edit);
        }
        if let Some((addition, bytes)) = carry.finish()? {
            rewritten.bytes_written += bytes;
            let statistics = &context.statistics;
            statistics.add(Ticker::BlobDbBlobFileBytesWritten, bytes);
            statistics.add(Ticker::BlobDbBlobFileSynced, 1);
            statistics.add(Ticker::BlobDbNumKeysWritten, addition.total_blob_count);
            edit.blob_file_additions.push(addition);
        }
        edit.blob_file_garbages = read.without(&kept)?;
        Ok(rewritten)
    }
}

/// True while a thread that nobody waits for gives way to others: they write, and there is no more garbage than it can cope with so.
fn takes_breaks(context: &Context, family: &ColumnFamilyData) -> bool {
    let (records, live) = family.version().blob_space();
    context.lull() < Lull::Long
        && family.options().max_space_amp == 0.0
        && records < live.saturating_mul(BREAKS_UP_TO)
}

/// What a look came to.
pub(super) enum Next {
    /// There is nothing to be done.
    Done,
    /// Something was done, or more is known by now.
    Again,
    /// Others have what there is to be done, unless the version has changed.
    Wait,
}

/// What is done in steps, on its caller's thread, until nothing is left.
pub(super) trait Steps {
    /// # Errors
    /// Why it is to end before its time.
    fn check(&self) -> Result<()>;

    /// Looks at the newest version and does the next step, if there is one.
    ///
    /// # Errors
    /// What the step met.
    fn next(&mut self, version: &Arc<Version>) -> Result<Next>;
}

/// Does all steps, and none while `control` is paused.
///
/// # Errors
/// Those of the steps; those done so far stay.
pub(super) fn run_all(
    context: &Context,
    family: &ColumnFamilyData,
    control: &Control,
    steps: &mut dyn Steps,
) -> Result<()> {
    loop {
        let seen = context.progress.count();
        steps.check()?;
        if control.is_paused() {
            context.progress.wait_after(seen);
            continue;
        }
        let version = family.version();
        match steps.next(&version)? {
            Next::Done => return Ok(()),
            Next::Again => {}
            Next::Wait => {
                if Arc::ptr_eq(&family.version(), &version) {
                    context.progress.wait_after(seen);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Options};
    use orogen_env::MemFileSystem;

    #[test]
    fn what_others_have_marked_is_busy_and_only_what_is_damaged_is_not_there() {
        let mut options = Options::default();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        options.cf.disable_auto_compactions = true;
        let db = Db::open("/db", &options).unwrap();
        db.put(b"a", b"1").unwrap();
        db.flush().unwrap();
        let context = &db.core().context;
        let family = context.set.families().remove(0);
        let version = family.version();
        let tables: Vec<_> = version.iter_files().map(|(l, f)| (l, f.clone())).collect();
        let take = || {
            let reason = Reason::BlobConversion;
            take(context, &family, &version, &tables, reason, &|_| false)
        };
        // As whoever begins after the look, or deletes tables of a range.
        tables[0].1.being_compacted.set(true);
        assert!(matches!(take(), Taken::Busy));
        tables[0].1.being_compacted.set(false);
        match take() {
            Taken::Parts(parts) => {
                assert_eq!(parts.len(), 1);
                assert!(matches!(take(), Taken::Busy));
            }
            _ => panic!("nobody has it"),
        }
        tables[0].1.damaged.set(true);
        assert!(matches!(take(), Taken::Nothing));
        tables[0].1.damaged.set(false);
        db.close().unwrap();
    }
}
