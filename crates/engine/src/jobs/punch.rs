//! Giving up dead places inside blob files: marks them, announces it, and punches when nobody can need
//! them any more. See [`crate::holes`] for why that is safe, and [`punch_due`](super::punch_due) for when. Who asks for it does it on
//! his own thread, as far as readers let him; the background does what they leave.
//!
//! One job of the database at a time, in two parts with a wait between them that holds nothing. What
//! is met on the way costs no data and stops nothing: the file is left alone until the next open. Files whose values are better
//! moved while flushes come are left until none do.
//! What the MANIFEST meets is told as any job's is, and readers from before are waited for all the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::{Error, ErrorKind, FileNo, Result};
use orogen_blob::Extent;
use orogen_env::{Metadata, threads};

use crate::activity::{JobInfo, JobKind, JobState, Listed, RunningJob};
use crate::column_family::{ColumnFamilyData, FamilyState, Holes, HolesOfFile};
use crate::compact::collect::Lull;
use crate::context::Context;
use crate::filename;
use crate::holes::{self, Picked};
use crate::jobs::compaction_handle::{Control, Counted};
use crate::jobs::punch_due::{
    Ends, can_begin, find_files, flushes_come, is_better_moved, is_left, leave_to_moving,
    note_long_waits,
};
use crate::obsolete;
use crate::quarantine;
use crate::version::edit::VersionEdit;
use crate::version::version::{Era, Version};
use crate::version::{BlobFileGarbage, BlobFileMeta};
use crate::version_set::Change;

/// Holes after which it is looked whether flushes come.
const HOLES_PER_LOOK: usize = 64;
/// Who asks for holes waits so long, and so often, for a thread that looks for work or a get to be done with a version. Readers
/// that stay longer may be his own.
const READERS_MICROS: u64 = 5000;
const READERS_LOOKS: u32 = 200;

/// Work on the blob files of a family that a thread has taken.
pub(crate) struct PunchJob {
    family: Arc<ColumnFamilyData>,
    part: Option<Part>,
}

enum Part {
    Mark(Arc<Version>, Picked),
    Punch(Vec<HolesOfFile>),
}

/// A panic must not keep others from it.
impl Drop for PunchJob {
    fn drop(&mut self) {
        let mut state = self.family.state();
        if matches!(state.holes, Holes::Running) {
            state.holes = Holes::Idle;
        }
    }
}

/// Takes what is to be done now, if there is something.
pub(crate) fn next(context: &Context) -> Option<PunchJob> {
    let lull = context.lull();
    let families = context.set.families().into_iter();
    let mut taken = families.filter_map(|family| {
        let part = Some(take(context, &family, lull)?);
        Some(PunchJob { family, part })
    });
    taken.next()
}

/// Takes what is to be done in a family. Writers wait for its lock, so the files are gone over without it;
/// what was picked is taken only while its version is the newest and nobody else has begun.
fn take(context: &Context, family: &Arc<ColumnFamilyData>, lull: Lull) -> Option<Part> {
    loop {
        let version = 'state: {
            let mut state = family.state();
            forget_answered(&mut state);
            let is_asked = state.are_holes_asked();
            match &mut state.holes {
                Holes::Running => return None,
                Holes::Waiting { era, files, .. } => {
                    if !era.is_over() || !context.hole_punching.is_allowed() {
                        return None;
                    }
                    if !is_asked && is_left(context, family, lull) {
                        // So is what was found garbage since.
                        break 'state state.version.clone();
                    }
                    let mut files = std::mem::take(files);
                    // Who asks for the others waits for these.
                    files.iter_mut().for_each(|f| f.is_asked |= is_asked);
                    if !is_asked && !family.options().punches_holes() {
                        // They are looked for again when it is on.
                        for file in &files {
                            if let Some(blob) = state.version.blob_files().get(&file.number) {
                                blob.file.note_seen(0);
                            }
                        }
                        state.holes = Holes::Idle;
                        return None;
                    }
                    state.holes = Holes::Running;
                    return Some(Part::Punch(files));
                }
                Holes::Idle => state.version.clone(),
            }
        };
        let picked = find_files(context, family, &version, lull);
        if picked.files.is_empty() || family.is_dropped() {
            return None;
        }
        if !picked.is_asked && is_better_moved(context, family, lull) {
            let files = picked.files.iter();
            leave_to_moving(
                context,
                family,
                lull,
                files.filter_map(|n| version.blob_files().get(n)),
            );
            return None;
        }
        let mut state = family.state();
        if matches!(state.holes, Holes::Idle) && Arc::ptr_eq(&state.version, &version) {
            state.holes = Holes::Running;
            state.holes_asked.retain(|n| !picked.files.contains(n));
            return Some(Part::Mark(version, picked));
        }
    }
}

/// Begins a thread for what there is to do, unless one runs; it ends when there is nothing more.
pub(crate) fn spawn_if_due(context: &Arc<Context>) {
    if !context.hole_punching.is_worth_a_look() {
        return;
    }
    let (families, lull) = (context.set.families(), context.lull());
    families.iter().for_each(|f| note_long_waits(context, f));
    if !families.iter().any(|f| can_begin(f, context, lull)) || !context.hole_punching.take_thread()
    {
        return;
    }
    let theirs = context.clone();
    let spawned = threads::spawn("orogen-holes", move || {
        let result = catch_unwind(AssertUnwindSafe(|| run_all(&theirs)));
        theirs.hole_punching.give_thread_back();
        match result {
            Ok(Ok(())) => {}
            Ok(Err(e)) => theirs
                .log
                .warn(format_args!("hole punching was given up: {e}")),
            Err(_) => theirs.log.error(format_args!("hole punching panicked")),
        }
        // The MANIFEST may have met something that nobody else hears of.
        theirs.tell_failure();
        obsolete::purge(&theirs);
        theirs.work.raise();
        theirs.progress.raise();
    });
    match spawned {
        Ok(thread) => context.adopt(thread),
        // The next look tries again.
        Err(_) => context.hole_punching.give_thread_back(),
    }
}

fn run_all(context: &Context) -> Result<()> {
    let _listed = context.enter_job()?;
    while !context.is_closing()
        && let Some(job) = next(context)
    {
        job.run(context)?;
        context.progress.raise();
    }
    Ok(())
}

/// Gives up all dead places of a family that are whole blocks, for who asks for it. What readers and backups still need
/// goes when they have ended, by the background.
///
/// # Errors
/// Those of `control`; what a mark met, or the MANIFEST.
pub(crate) fn give_up_all(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    control: &Control,
) -> Result<()> {
    let version = family.version();
    let asked = version.blob_files().iter();
    let asked = asked.filter(|(_, blob)| holes::is_asked_about(blob));
    family.state().holes_asked.extend(asked.map(|(&n, _)| n));
    drop(version);
    let given_up = give_up_asked(context, family, control);
    // What is left is for the background, which may have looked in vain meanwhile.
    context.work.raise();
    if given_up.is_err() {
        family.state().holes_asked.clear();
        // It stops nothing, unless it is something that the MANIFEST met.
        context.tell_failure();
    }
    obsolete::purge(context);
    given_up
}

fn give_up_asked(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    control: &Control,
) -> Result<()> {
    let mut looks = 0;
    loop {
        let seen = context.progress.count();
        control.check(context, family)?;
        if control.is_paused() {
            context.progress.wait_after(seen);
            continue;
        }
        if run_one(context, family)? {
            context.progress.raise();
            continue;
        }
        {
            let mut state = family.state();
            forget_answered(&mut state);
            if !state.are_holes_asked() && !matches!(state.holes, Holes::Running) {
                return Ok(());
            }
            if matches!(state.holes, Holes::Waiting { .. }) {
                looks += 1;
            }
        }
        if looks > READERS_LOOKS {
            return Ok(());
        }
        context.progress.wait_after_for(seen, READERS_MICROS);
    }
}

/// Does what can be done in a family, if no thread of the background is at it: two jobs of a database never run beside each other,
/// since one that ends counts on the state that it has left. False if there was nothing.
fn run_one(context: &Context, family: &Arc<ColumnFamilyData>) -> Result<bool> {
    struct GivesBack<'a>(&'a Context);
    impl Drop for GivesBack<'_> {
        fn drop(&mut self) {
            self.0.hole_punching.give_thread_back();
        }
    }
    if !context.hole_punching.take_thread() {
        return Ok(false);
    }
    // Dropped behind the job, which may have to end its state.
    let _gives_back = GivesBack(context);
    let Some(part) = take(context, family, context.lull()) else {
        return Ok(false);
    };
    let _running = Counted::new(context, family, |s| &mut s.manual_running);
    let (family, part) = (family.clone(), Some(part));
    PunchJob { family, part }.run(context)?;
    Ok(true)
}

/// Drops those of the files that somebody asked to be looked at which are gone, or have nothing dead any more.
fn forget_answered(state: &mut FamilyState) {
    let version = &state.version;
    let blob = |n: &FileNo| version.blob_files().get(n);
    state
        .holes_asked
        .retain(|n| blob(n).is_some_and(|b| holes::is_asked_about(b)));
}

/// How many of the `punched` bytes of a file still take space: all of them where a snapshot of the file system
/// has the blocks, for one. A file that is compressed takes less than it tells, so none are missed there.
fn kept_bytes(file: &Metadata, punched: u64) -> u64 {
    let without = file
        .size
        .next_multiple_of(file.block_size)
        .saturating_sub(punched);
    file.allocated.saturating_sub(without).min(punched)
}

impl PunchJob {
    /// Does this part.
    ///
    /// # Errors
    /// What the MANIFEST met.
    pub(crate) fn run(mut self, context: &Context) -> Result<()> {
        let done = match self.part.take() {
            Some(Part::Mark(version, mut picked)) => {
                picked
                    .files
                    .retain(|&n| self.has_one_name(context, &version, n));
                let _listed = self.list(context, &picked.files, 0, "Mark");
                self.mark(context, version, &picked)
            }
            Some(Part::Punch(files)) => {
                let numbers: Vec<FileNo> = files.iter().map(|f| f.number).collect();
                let bytes = files.iter().map(|f| f.bytes).sum();
                let listed = self.list(context, &numbers, bytes, "Punch");
                self.punch(context, files, &listed.job)
            }
            None => Ok(()),
        };
        // What was looked at may be moved from here on, though the version is the same where no hole came of it.
        self.family.state().nothing_to_collect = None;
        match done {
            Err(e) if e.kind() == ErrorKind::Aborted => Ok(()),
            other => other,
        }
    }

    fn list<'a>(
        &self,
        context: &'a Context,
        files: &[FileNo],
        bytes: u64,
        reason: &str,
    ) -> Listed<'a> {
        let id = context.new_job_id();
        let begun = JobInfo {
            id: Some(id),
            kind: JobKind::HolePunching,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: None,
            output_level: None,
            input_files: files.to_vec(),
            input_bytes: bytes,
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: reason.to_owned(),
            since_secs: Some(context.clock.unix_secs()),
        };
        // Its entries are bytes.
        context.activity.list(id, RunningJob::new(begun, bytes))
    }

    /// Finds the places in files and announces that they go.
    fn mark(&self, context: &Context, version: Arc<Version>, picked: &Picked) -> Result<()> {
        if picked.files.is_empty() {
            return Ok(());
        }
        let found = self.find(context, &version, picked)?;
        if found.is_empty() {
            return Ok(());
        }
        let had_checksum = found.iter().any(|f| {
            let blob = version.blob_files().get(&f.number);
            blob.is_some_and(|b| b.checksum().is_some())
        });
        let era = version.era.clone();
        drop(version);
        let numbers = found.iter().map(|f| (f.number, 0));
        let punching = &context.hole_punching;
        let mut announced = self.note(context, numbers);
        if had_checksum && announced.is_ok() {
            punching.note_old_checksums(true);
        }
        if punching.has_old_checksums() && announced.is_ok() {
            // RocksDB does not know what was announced: a MANIFEST without those checksums does.
            announced = context.set.roll_manifest();
            punching.note_old_checksums(announced.is_err());
        }
        if announced.is_ok() {
            self.wait_for(context, era, found);
            return Ok(());
        }
        let version = self.family.version();
        for file in &found {
            if let Some(blob) = version.blob_files().get(&file.number) {
                blob.file.note_seen(0);
            }
        }
        if picked.is_asked {
            // Whoever asks looks again, and is told.
            self.family.state().holes_asked.extend(&picked.files);
        }
        // Readers from before are waited for all the same: the next look finds the same places, and knows nothing of them.
        self.wait_for(context, era, Vec::new());
        announced
    }

    fn wait_for(&self, context: &Context, era: Era, mut files: Vec<HolesOfFile>) {
        let mut state = self.family.state();
        files.retain(|f| state.version.blob_files().contains_key(&f.number));
        // None began if all of the files were gone when it was announced.
        if !state.version.era.is(&era) && !self.family.is_dropped() {
            // Else nobody's end is waited for.
            let counted = (!era.is_over()).then(|| context.hole_punching.wait());
            let last = state.version.blob_files().keys().next_back();
            state.holes = Holes::Waiting {
                era,
                files,
                counted,
                since_micros: context.clock.now_micros(),
                made_since: last.map_or(0, |n| n + 1),
            };
        }
    }

    fn find(
        &self,
        context: &Context,
        version: &Version,
        picked: &Picked,
    ) -> Result<Vec<HolesOfFile>> {
        let files = &picked.files;
        let tables = &self.family.tables;
        let marked = holes::mark(tables, version, files, &mut || match context.is_closing() {
            true => Err(Error::aborted("database closes")),
            false => Ok(()),
        });
        let mut marked = match marked {
            Ok(marked) => marked,
            Err(e) => {
                for &number in files {
                    self.leave(context, version, number, &e);
                }
                return Ok(Vec::new());
            }
        };
        let mut found = Vec::new();
        for &number in files {
            let Some(blob) = version.blob_files().get(&number) else {
                continue;
            };
            let Some(live) = marked.get_mut(&number) else {
                let told = Error::corruption("tables point to other values than the MANIFEST says")
                    .with("blob_file", number);
                self.leave(context, version, number, &told);
                continue;
            };
            let dead = match tables.dead_extents(version, number, live) {
                Ok(dead) => dead,
                Err(e) => {
                    self.leave(context, version, number, &e);
                    continue;
                }
            };
            let path = filename::blob_path(&context.dir, number);
            let block_size = match context.fs.metadata(&path) {
                Ok(metadata) => metadata.block_size,
                Err(e) => {
                    self.leave(context, version, number, &e);
                    continue;
                }
            };
            let whole = |e: &Extent| e.whole_blocks(block_size);
            let extents: Vec<Extent> = dead.iter().filter_map(whole).collect();
            // Padding goes along, and no garbage that comes later may be taken for what was given up.
            let bytes = extents.iter().map(|e| e.size).sum();
            let bytes = blob.garbage_blob_bytes.min(bytes);
            blob.file.note_seen(blob.garbage_blob_bytes);
            if bytes > blob.given_up_bytes.unwrap_or(0) {
                found.push(HolesOfFile {
                    number,
                    extents,
                    bytes,
                    made: 0,
                    is_asked: picked.is_asked,
                });
            }
        }
        Ok(found)
    }

    /// Leaves a file alone from here on.
    fn leave(&self, context: &Context, version: &Version, number: FileNo, why: &Error) {
        if why.kind() == ErrorKind::Aborted {
            return;
        }
        if let Some(blob) = version.blob_files().get(&number) {
            blob.file.leave_holes.set(true);
        }
        quarantine::note(context, why);
        context.log.warn(format_args!(
            "[{}] no space is given up in blob file {number}: {why}",
            self.family.name
        ));
    }

    /// If not, it is looked at again after a while.
    fn has_one_name(&self, context: &Context, version: &Version, number: FileNo) -> bool {
        context.statistics.add(Ticker::BlobLinkLooks, 1);
        let path = filename::blob_path(&context.dir, number);
        // One that is gone, or cannot be asked about, has none.
        let has_one = context.fs.metadata(&path).is_ok_and(|m| m.links == 1);
        if !has_one && let Some(blob) = version.blob_files().get(&number) {
            let now = context.clock.now_micros();
            let again = now.saturating_add(holes::LOOK_AGAIN_MICROS);
            blob.file.note_other_names(blob.garbage_blob_bytes, again);
        }
        has_one
    }

    fn punch(
        &self,
        context: &Context,
        files: Vec<HolesOfFile>,
        job: &Arc<RunningJob>,
    ) -> Result<()> {
        // Who copies the database beside this process misses these tables then, and finds no holes where they point to.
        obsolete::purge(context);
        // Somebody else may have begun to delete them.
        obsolete::wait_for_purges(context);
        let since = context.clock.now_micros();
        let mut done = Vec::new();
        let mut files = files.into_iter();
        while let Some(mut file) = files.next() {
            let allowed = context.hole_punching.begin();
            let ends = allowed.as_ref().map(|_| {
                let (ends, bytes) = self.punch_file(context, &mut file, since, job);
                done.extend((bytes > 0).then_some((file.number, bytes)));
                ends
            });
            drop(allowed);
            let is_held = ends.is_none() || !context.hole_punching.is_allowed();
            if matches!(ends, Some(Ends::ForGood)) {
                break;
            }
            if is_held || matches!(ends, Some(Ends::ForNow)) {
                let rest = std::iter::once(file).chain(files);
                let rest = rest.filter(|f| !f.extents.is_empty()).collect();
                // Nobody has a version of that era again.
                self.wait_for(context, Era::default(), rest);
                break;
            }
        }
        if done.is_empty() {
            return Ok(());
        }
        let bytes: u64 = done.iter().map(|d| d.1).sum();
        context.log.info(format_args!(
            "[{}] space given up in blob files: files={} bytes={bytes}",
            self.family.name,
            done.len(),
        ));
        self.note(context, done.into_iter())
    }

    /// Makes the holes of a file; how it ended, and the bytes that came back for the first time. What was not made is
    /// left in `file`.
    fn punch_file(
        &self,
        context: &Context,
        file: &mut HolesOfFile,
        since: u64,
        job: &Arc<RunningJob>,
    ) -> (Ends, u64) {
        let version = self.family.version();
        // All of it may be gone.
        let Some(blob) = version.blob_files().get(&file.number) else {
            return (Ends::Here, 0);
        };
        if !self.has_one_name(context, &version, file.number) {
            return (Ends::Here, 0);
        }
        let path = filename::blob_path(&context.dir, file.number);
        let (ends, made) = self.punch_extents(context, &version, blob, file, since, job);
        let rest = file.extents.split_off(made);
        let punched: u64 = file.extents.iter().map(|e| e.size).sum();
        file.extents = rest;
        let kept = match context.fs.metadata(&path) {
            Ok(metadata) => kept_bytes(&metadata, file.made + punched).min(punched),
            Err(e) => {
                if !e.is_file_not_found() {
                    self.leave(context, &version, file.number, &e);
                }
                return (Ends::Here, 0);
            }
        };
        context.hole_punching.note_kept(punched, kept);
        if holes::is_mostly_kept(punched, kept) {
            return (ends, 0);
        }
        file.made += punched;
        let given_up = blob.given_up_bytes.unwrap_or(0);
        (ends, file.bytes.min(file.made).saturating_sub(given_up))
    }

    /// Makes holes one by one; how it ended, and how many were made. The job makes holes since that moment.
    fn punch_extents(
        &self,
        context: &Context,
        version: &Version,
        blob: &BlobFileMeta,
        file: &HolesOfFile,
        since: u64,
        job: &Arc<RunningJob>,
    ) -> (Ends, usize) {
        let path = filename::blob_path(&context.dir, blob.addition().number);
        let mut lull = Lull::None;
        for (at, extent) in file.extents.iter().enumerate() {
            let goes_on = context.hole_punching.is_allowed();
            if !goes_on || context.is_closing() || self.family.is_dropped() {
                return (Ends::Here, at);
            }
            if !file.is_asked && !self.family.options().punches_holes() {
                // It is looked at again when it is on.
                blob.file.note_seen(0);
                return (Ends::Here, at);
            }
            if at % HOLES_PER_LOOK == 0 {
                // All families are asked.
                lull = context.lull();
            }
            if !file.is_asked && is_better_moved(context, &self.family, lull) {
                let all = version.blob_files().values();
                return (leave_to_moving(context, &self.family, lull, all), at);
            }
            let start = context.clock.now_micros();
            if let Err(e) = context.fs.punch_hole(&path, extent.offset, extent.size) {
                if !e.is_file_not_found() {
                    self.leave(context, version, blob.addition().number, &e);
                }
                return (Ends::Here, at);
            }
            let micros = context.clock.now_micros().saturating_sub(start);
            let statistics = &context.statistics;
            statistics.add(Ticker::BlobHoles, 1);
            statistics.add(Ticker::BlobHoleBytes, extent.size);
            statistics.record(HistogramKind::BlobHoleMicros, micros);
            job.note_done(extent.size);
            // For who waits for all work no flushes come, and some may have begun since it was looked.
            let is_beside = flushes_come(lull) || context.has_flushed_since(since);
            let punching = &context.hole_punching;
            punching.note_call(extent.size, micros, is_beside);
        }
        (Ends::Here, file.extents.len())
    }

    /// Has the MANIFEST say that so many bytes of files were given up; of 0 that they are about to
    /// be. Files that have left the version meanwhile need no word.
    fn note(&self, context: &Context, files: impl Iterator<Item = (FileNo, u64)>) -> Result<()> {
        let mut edit = VersionEdit::of_column_family(self.family.id);
        edit.blob_file_garbages = files
            .map(|(number, bytes)| BlobFileGarbage {
                number,
                given_up_bytes: Some(bytes),
                ..BlobFileGarbage::default()
            })
            .collect();
        context.set.apply(vec![Change {
            family: self.family.clone(),
            edit,
            install: None,
        }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_family::NothingToCollect;
    use crate::{Db, Options, ReadOptions, WriteOptions};
    use orogen_env::{Clock as _, ManualClock, MemFileSystem, SystemClock};
    use std::time::Duration;

    #[test]
    fn what_holes_bring_nothing_of_is_looked_at_for_moving_again() {
        let mut options = Options::default();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        options.cf.enable_blob_files = true;
        options.cf.min_blob_size = 100;
        options.cf.disable_auto_compactions = true;
        let db = Db::open("/db", &options).unwrap();
        // No place of two that are dead side by side is a whole block.
        for (step, value) in [(1, 1_u8), (2, 2)] {
            for n in (0..20_u8).step_by(step) {
                db.put(&[n], &[value; 500]).unwrap();
            }
            db.flush().unwrap();
        }
        let family = db.default_column_family();
        db.compact_range(&Default::default(), &family, None, None)
            .unwrap();
        let context = &db.core().context;
        let family = context.set.families().remove(0);
        let version = family.version();
        let picked = Picked {
            files: version.blob_files().keys().copied().collect(),
            is_asked: false,
        };
        {
            let mut state = family.state();
            state.holes = Holes::Running;
            state.nothing_to_collect = Some(NothingToCollect {
                version: Arc::downgrade(&version),
                options: Arc::downgrade(&family.options()),
                jobs_ended: None,
                lull: Lull::Long,
                left_to_compactions: false,
            });
        }
        let job = PunchJob {
            family: family.clone(),
            part: Some(Part::Mark(version.clone(), picked)),
        };
        job.run(context).unwrap();
        assert!(Arc::ptr_eq(&family.version(), &version));
        assert!(family.state().nothing_to_collect.is_none());
        db.close().unwrap();
    }

    #[test]
    fn files_made_since_do_not_wait_for_holes_while_a_reader_is_waited_for() {
        let mut options = Options::default();
        let clock = Arc::new(ManualClock::new());
        options.db.clock = clock.clone();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        options.cf.enable_blob_files = true;
        options.cf.min_blob_size = 100;
        let db = Db::open("/db", &options).unwrap();
        for n in 0..2 {
            db.put(&[n], &[n; 20_000]).unwrap();
            db.flush().unwrap();
        }
        let context = &db.core().context;
        let family = context.set.families().remove(0);
        let made_since = *family.version().blob_files().keys().nth(1).unwrap();
        let held = || {
            note_long_waits(context, &family);
            let version = family.version();
            let files = version.blob_files().values();
            files
                .map(|b| b.file.holes_wait_for_others.get())
                .collect::<Vec<_>>()
        };
        let waiting = |era: &Era, since_micros| Holes::Waiting {
            era: era.clone(),
            files: Vec::new(),
            counted: None,
            since_micros,
            made_since,
        };
        let reader = Era::default();
        family.state().holes = waiting(&reader, clock.now_micros());
        assert_eq!(held(), [false, false], "it does not wait for long yet");
        clock.advance(Duration::from_secs(3));
        assert_eq!(held(), [false, true]);
        drop(reader);
        assert_eq!(held(), [false, false]);
        db.close().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_family_that_was_dropped() {
        let mut options = Options::default();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        let db = Db::open("/db", &options).unwrap();
        let mut cf = options.cf;
        cf.enable_blob_files = true;
        cf.min_blob_size = 100;
        cf.blob_gc_auto = false;
        cf.blob_hole_punching_threshold = 0.0;
        cf.blob_hole_punching_min_bytes = 1;
        let family = db.create_column_family("f", cf).unwrap();
        let mut iter = None;
        for (keys, value) in [(20_u8, 1_u8), (10, 2)] {
            for n in 0..keys {
                let put = db.put_opt(&WriteOptions::default(), &family, &[n], &[value; 20_000]);
                put.unwrap();
            }
            db.flush_opt(&Default::default(), std::slice::from_ref(&family))
                .unwrap();
            iter.get_or_insert_with(|| db.iter(&ReadOptions::default(), &family).unwrap());
        }
        db.compact_range(&Default::default(), &family, None, None)
            .unwrap();
        let waits = || db.core().context.hole_punching.is_waiting();
        for _ in 0..10_000 {
            if waits() {
                break;
            }
            SystemClock.sleep(Duration::from_millis(1));
        }
        assert!(waits());
        db.drop_column_family(&family).unwrap();
        assert!(!waits());
        drop(iter);
        db.close().unwrap();
    }
}
