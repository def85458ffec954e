//! Tables that are rewritten where they are, together, for what they keep of their values.
//!
//! Each of the parts is a compaction of a table within its level; values that go to blob files go to one
//! that goes on from part to part, and one edit installs all. Sequence numbers stay, so nobody who reads, at
//! whatever snapshot, can tell.
//!
//! 1. The edit is conditional as every compaction's is: the tables are the parts' own until these are dropped.
//! 2. New files are durable, by name too, before the edit that lists them. A crash before it leaves
//!    strays, and everything as it was.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::{FileNo, Result};

use crate::activity::RunningJob;
use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compact::{self, Reason};
use crate::compaction_iter::JobWatch;
use crate::context::Context;
use crate::events::BlobFileAdditionInfo;
use crate::filename::DataFile;
use crate::jobs::compaction::{CompactionJob, Moves, count_drops, install_outputs};
use crate::jobs::compaction_handle::StepWatch;
use crate::jobs::flush::{addition_info, count_blobs};
use crate::obsolete;
use crate::output::BlobCarry;
use crate::version::FileMeta;
use crate::version::blob_counts::BlobCounts;
use crate::version::edit::VersionEdit;

/// What was written in place of tables.
pub(super) struct Rewritten {
    /// The tables in their place.
    pub(super) tables: Vec<FileNo>,
    /// New blob files.
    pub(super) blob_files: Vec<BlobFileAdditionInfo>,
    /// Bytes of all new files.
    pub(super) bytes_written: u64,
}

/// Takes those of the tables that nobody is in the way of.
pub(super) fn take(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    state: &mut FamilyState,
    tables: &[(usize, Arc<FileMeta>)],
    reason: Reason,
) -> Vec<CompactionJob> {
    let options = family.options();
    let version = state.version.clone();
    let mut parts = Vec::new();
    for (level, file) in tables {
        let running = state.taken(None);
        // One that went with its neighbour is busy by now.
        let plan = compact::pick_in_place(&version, &options, &running, (*level, file), reason);
        let Some(plan) = plan else { continue };
        let id = context.new_job_id();
        parts.push(CompactionJob::take(state, family, plan, id, 1));
    }
    parts
}

/// Rewrites the tables of all parts and installs what came of it.
///
/// # Errors
/// `Aborted` if it is given up; damage in the tables, `NoSpace`, `Io`. Then nothing has changed.
pub(super) fn rewrite(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    parts: &mut [CompactionJob],
    watch: &Arc<StepWatch>,
    job: &Arc<RunningJob>,
) -> Result<Rewritten> {
    let mut edit = VersionEdit::of_column_family(family.id);
    let mut created: Vec<DataFile> = Vec::new();
    let bytes_written = write(context, parts, watch, job, &mut edit, &mut created)
        .inspect_err(|_| obsolete::discard(context, &created))?;
    let blob_files = edit.blob_file_additions.iter().map(addition_info).collect();
    let tables = edit.new_files.iter().map(|(_, f)| f.number).collect();
    install_outputs(context, family, edit, &created)?;
    Ok(Rewritten {
        tables,
        blob_files,
        bytes_written,
    })
}

/// Writes all new files, and tells their bytes; `created` names them whatever happens.
fn write(
    context: &Context,
    parts: &mut [CompactionJob],
    watch: &Arc<StepWatch>,
    job: &Arc<RunningJob>,
    edit: &mut VersionEdit,
    created: &mut Vec<DataFile>,
) -> Result<u64> {
    let carry = Arc::new(BlobCarry::default());
    let moves = Moves {
        emptied: Arc::default(),
        ordered: Arc::default(),
        carry: Some(carry.clone()),
    };
    let mut bytes_written = 0;
    let (mut read, mut kept) = (BlobCounts::default(), BlobCounts::default());
    for part in parts {
        // A table alone may be too small for a look.
        watch.look(0)?;
        let written = part
            .run_part(context, &moves, Some(watch.clone()), job)
            .map_err(|failed| {
                created.extend(failed.created);
                created.extend(carry.open_file());
                failed.error
            })?;
        count_drops(context, &written);
        count_blobs(context, &written);
        created.extend(written.created());
        created.extend(carry.open_file());
        bytes_written += written.bytes;
        read.add_all(&written.pointers_read);
        kept.add_all(&written.pointers_kept);
        part.take_inputs(edit);
        written.add_to(part.plan().output_level, edit);
    }
    if let Some((addition, bytes)) = carry.finish()? {
        bytes_written += bytes;
        let statistics = &context.statistics;
        statistics.add(Ticker::BlobDbBlobFileBytesWritten, bytes);
        statistics.add(Ticker::BlobDbBlobFileSynced, 1);
        edit.blob_file_additions.push(addition);
    }
    edit.blob_file_garbages = read.without(&kept)?;
    Ok(bytes_written)
}
