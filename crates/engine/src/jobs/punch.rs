//! Giving up dead places inside blob files: marks them, announces it, and punches when nobody can need
//! them any more. See [`crate::holes`] for why that is safe.
//!
//! One job of a family at a time, in two parts with a wait between them that holds nothing. What
//! is met on the way costs no data and stops nothing: the file is left alone until the next open.

use std::sync::Arc;

use orogen_base::{Error, ErrorKind, FileNo, Result};
use orogen_blob::Extent;
use orogen_blob::extents::dead_extents;

use crate::column_family::{ColumnFamilyData, FamilyState, Holes, HolesOfFile};
use crate::context::Context;
use crate::filename;
use crate::holes;
use crate::quarantine;
use crate::version::BlobFileGarbage;
use crate::version::edit::VersionEdit;
use crate::version::version::{Era, Version};
use crate::version_set::Change;

/// Looks so often whether what is held has gone: a point read that was the last tells nobody.
const WAIT_MICROS: u64 = 200_000;

/// Work on the blob files of a family that a thread has taken.
pub(crate) struct PunchJob {
    family: Arc<ColumnFamilyData>,
    part: Option<Part>,
}

enum Part {
    Mark(Arc<Version>, Vec<FileNo>),
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
    context.set.families().into_iter().find_map(|family| {
        let mut state = family.state();
        let part = match &mut state.holes {
            Holes::Running => return None,
            Holes::Waiting(era, files) => {
                if !era.is_over() || !context.hole_punching.is_allowed() {
                    return None;
                }
                context.hole_punching.note_waiting(false);
                Part::Punch(std::mem::take(files))
            }
            Holes::Idle => {
                let version = &state.version;
                let files = holes::pick(version, &family.options());
                if files.is_empty() || family.is_dropped() {
                    return None;
                }
                Part::Mark(version.clone(), files)
            }
        };
        state.holes = Holes::Running;
        drop(state);
        Some(PunchJob {
            family,
            part: Some(part),
        })
    })
}

/// True while something is done or could be done.
pub(crate) fn is_busy(family: &ColumnFamilyData, state: &FamilyState, context: &Context) -> bool {
    match &state.holes {
        Holes::Running => true,
        Holes::Waiting(era, _) => era.is_over() && context.hole_punching.is_allowed(),
        Holes::Idle => !holes::pick(&state.version, &family.options()).is_empty(),
    }
}

/// Microseconds after which it is to be looked again.
pub(crate) fn idle_micros(context: &Context) -> u64 {
    let families = context.set.families();
    let waits = |f: &Arc<ColumnFamilyData>| matches!(f.state().holes, Holes::Waiting(..));
    match families.iter().any(waits) {
        true => WAIT_MICROS,
        false => u64::MAX,
    }
}

impl PunchJob {
    /// Does this part.
    ///
    /// # Errors
    /// What the MANIFEST met.
    pub(crate) fn run(mut self, context: &Context) -> Result<()> {
        let done = match self.part.take() {
            Some(Part::Mark(version, files)) => self.mark(context, version, &files),
            Some(Part::Punch(files)) => self.punch(context, files),
            None => Ok(()),
        };
        match done {
            Err(e) if e.kind() == ErrorKind::Aborted => Ok(()),
            other => other,
        }
    }

    /// Finds the places in `files` and announces that they go.
    fn mark(&self, context: &Context, version: Arc<Version>, files: &[FileNo]) -> Result<()> {
        let found = self.find(context, &version, files)?;
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
        self.note(context, numbers)?;
        if had_checksum {
            // RocksDB does not know what was announced: a MANIFEST without those checksums does.
            context.set.roll_manifest()?;
        }
        self.wait_for(context, era, found);
        Ok(())
    }

    fn wait_for(&self, context: &Context, era: Era, files: Vec<HolesOfFile>) {
        let mut state = self.family.state();
        // None began if all of the files were gone when it was announced.
        if !state.version.era.is(&era) {
            state.holes = Holes::Waiting(era, files);
            context.hole_punching.note_waiting(true);
        }
    }

    fn find(
        &self,
        context: &Context,
        version: &Version,
        files: &[FileNo],
    ) -> Result<Vec<HolesOfFile>> {
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
            let dead = tables
                .blob_reader(version, number)
                .and_then(|reader| dead_extents(reader, live));
            let dead = match dead {
                Ok(dead) => dead,
                Err(e) => {
                    self.leave(context, version, number, &e);
                    continue;
                }
            };
            let extents: Vec<Extent> = dead.iter().filter_map(Extent::whole_blocks).collect();
            let bytes = extents.iter().map(|e| e.size).sum();
            blob.file.note_seen(blob.garbage_blob_bytes);
            if bytes > blob.given_up_bytes.unwrap_or(0) && self.has_one_name(context, number) {
                found.push(HolesOfFile {
                    number,
                    extents,
                    bytes,
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

    fn has_one_name(&self, context: &Context, number: FileNo) -> bool {
        let path = filename::blob_path(&context.dir, number);
        // One that is gone, or cannot be asked about, has none.
        context.fs.metadata(&path).is_ok_and(|m| m.links == 1)
    }

    fn punch(&self, context: &Context, files: Vec<HolesOfFile>) -> Result<()> {
        let Some(_allowed) = context.hole_punching.begin() else {
            // Nobody has a version of that era again.
            self.wait_for(context, Era::default(), files);
            return Ok(());
        };
        let mut done = Vec::new();
        for file in files {
            if context.is_closing() {
                break;
            }
            let version = self.family.state().version.clone();
            let Some(blob) = version.blob_files().get(&file.number) else {
                // All of it is gone.
                continue;
            };
            if !self.has_one_name(context, file.number) {
                continue;
            }
            let path = filename::blob_path(&context.dir, file.number);
            let punched = file
                .extents
                .iter()
                .try_for_each(|e| context.fs.punch_hole(&path, e.offset, e.size));
            match punched {
                Ok(()) => {
                    let more = file.bytes.saturating_sub(blob.given_up_bytes.unwrap_or(0));
                    if more > 0 {
                        done.push((file.number, more));
                    }
                }
                Err(e) if e.is_file_not_found() => {}
                Err(e) => self.leave(context, &version, file.number, &e),
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
