//! A MANIFEST that somebody else writes, read as far as it goes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_env::fs::{Access, FileSystem, RandomAccessFile};
use orogen_wal::{ReadOutcome, Reader};

use super::{RecoveredFamily, Replay};
use crate::filename;
use crate::version::edit::VersionEdit;
use crate::version::version::Version;

/// Bytes at its start that hold the database's id.
const HEAD_LEN: usize = 128;

/// The state so far, and the place to go on from.
pub(crate) struct ManifestTail {
    number: FileNo,
    /// Kept open: the name may go when a newer MANIFEST is current.
    file: Arc<dyn RandomAccessFile>,
    /// The end of the last record that was taken.
    at: u64,
    replay: Replay,
    /// Some edit contradicted those before it: what comes behind it makes no state.
    contradiction: Option<Error>,
}

impl ManifestTail {
    /// Opens MANIFEST `number`; nothing is read yet.
    ///
    /// # Errors
    /// `Io`, also if it is not there any more.
    pub(crate) fn open(fs: &dyn FileSystem, dir: &Path, number: FileNo) -> Result<Self> {
        let file = fs.open(&filename::manifest_path(dir, number), Access::Sequential)?;
        Ok(Self {
            number,
            file,
            at: 0,
            replay: Replay::default(),
            contradiction: None,
        })
    }

    /// True if the file of its name begins as this one does: else the directory is another
    /// database's by now.
    ///
    /// # Errors
    /// `Io`, also if it is not there any more.
    pub(crate) fn has_its_name(&self, fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
        let named = fs.open(
            &filename::manifest_path(dir, self.number),
            Access::Sequential,
        )?;
        let (mut own, mut theirs) = ([0; HEAD_LEN], [0; HEAD_LEN]);
        let len = self.file.read_at(0, &mut own)?;
        Ok(named.read_at(0, &mut theirs)? >= len && own[..len] == theirs[..len])
    }

    /// Takes up what was written since; true if the state has changed. What is not there whole
    /// was not written yet, and an atomic group is taken with its last edit.
    ///
    /// # Errors
    /// `Corruption` with file and offset for damage that records stand behind, or an edit that
    /// contradicts those before it; `NotSupported`, `Io`.
    pub(crate) fn poll(&mut self) -> Result<bool> {
        if let Some(error) = &self.contradiction {
            return Err(error.clone());
        }
        if self.file.size()? <= self.at {
            return Ok(false);
        }
        let path = self.file.path().to_owned();
        let mut reader = Reader::starting_at(self.file.clone(), 0, self.at)?;
        let before = self.replay.edits;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record)? {
                ReadOutcome::Record { offset } => {
                    let end = reader.valid_until();
                    let at = |e: Error| e.with("file", path.display()).with("offset", offset);
                    let edit = VersionEdit::decode(&record).map_err(at)?;
                    self.replay.add(edit, end).map_err(at).inspect_err(|e| {
                        self.contradiction = Some(e.clone());
                    })?;
                    self.at = end;
                }
                ReadOutcome::Damage(damage) if !damage.is_tail => {
                    return Err(reader.error(&damage));
                }
                ReadOutcome::Damage(_) | ReadOutcome::EndOfLog { .. } => break,
            }
        }
        Ok(self.replay.edits != before)
    }

    pub(crate) fn number(&self) -> FileNo {
        self.number
    }

    /// The live families by id.
    pub(crate) fn families(&self) -> &BTreeMap<u32, RecoveredFamily> {
        &self.replay.families
    }

    /// Lets go of files that the newest version of a family does not have any more.
    pub(crate) fn forget_gone(&mut self, family: u32, version: &Version) {
        if let Some(family) = self.replay.families.get_mut(&family) {
            family.forget_gone(version);
        }
    }

    /// The largest id of a family ever used.
    pub(crate) fn max_column_family(&self) -> u32 {
        self.replay.max_column_family
    }

    /// The database's id, if the MANIFEST has it.
    pub(crate) fn db_id(&self) -> Option<&str> {
        self.replay.db_id.as_deref()
    }

    /// Logs before it hold nothing that is needed.
    pub(crate) fn min_log_number_to_keep(&self) -> FileNo {
        self.replay.min_log_number_to_keep
    }

    /// The newest write that is in tables.
    ///
    /// # Errors
    /// `Corruption` if the MANIFEST does not begin with a whole state.
    pub(crate) fn last_sequence(&self) -> Result<SeqNo> {
        let replay = &self.replay;
        match (replay.last_sequence, replay.log_number) {
            (Some(seqno), Some(_)) if replay.next_file_number.is_some() => Ok(seqno),
            _ => Err(Error::corruption("manifest is incomplete")
                .with("file", self.file.path().display())),
        }
    }
}
