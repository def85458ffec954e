//! Actions that copy the database, or read it past its front door.

use std::path::Path;
use std::sync::Arc;

use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::filename;
use orogen_engine::repair;
use orogen_engine::{UserKeyRange, VerifyOptions};
use orogen_env::FileSystem as _;

use super::world::{DIR, World};
use crate::engine::{Db, ErrorKind, Result as EngineResult};

/// Where the backups are.
const BACKUPS: &str = "/backups";

/// Backups that are kept at least.
const BACKUPS_KEPT: usize = 2;

fn fine<T>(result: EngineResult<T>) -> Result<T, String> {
    result.map_err(|e| format!("failed: {e}"))
}

impl World {
    /// Makes a backup, restores it, and compares.
    pub(super) fn backup(&mut self) -> Result<(), String> {
        self.count += 1;
        let options = BackupOptions {
            fs: Arc::new(self.fs.clone()),
            flush_before_backup: self.rng.chance(1, 2),
            ..BackupOptions::default()
        };
        let backups = fine(BackupEngine::open(BACKUPS, options))?;
        if let Some((id, e)) = fine(backups.damaged())?.into_iter().next() {
            return Err(format!("backup {id} is damaged: {e}"));
        }
        let made = fine(backups.create_backup(self.db()))?;
        if made.sequence != self.db().latest_sequence_number() {
            return Err(format!("backup {} is of another moment", made.id));
        }
        for old in fine(backups.list())? {
            fine(backups.verify(old.id))?;
        }
        let dir = format!("/restored{}", self.count);
        fine(backups.restore(made.id, &dir))?;
        if self.rng.chance(1, 2) {
            fine(backups.purge_old(BACKUPS_KEPT))?;
            fine(backups.verify(made.id))?;
        }
        let garbage = fine(backups.collect_garbage())?;
        if garbage > 0 {
            return Err(format!("{garbage} files belong to no backup"));
        }
        let read_only = self.rng.chance(1, 2);
        self.compare_checkpoint(&dir, read_only)
    }

    /// Repairs a checkpoint that lost its head.
    pub(super) fn repair(&mut self) -> Result<(), String> {
        self.count += 1;
        let (from, to) = (
            format!("/checkpoint{}", self.count),
            format!("/repaired{}", self.count),
        );
        fine(self.db().checkpoint(&from))?;
        let options = self.draw_options();
        let quiet = &mut |_, _| {};
        let names = fine(self.fs.list(Path::new(&from)))?;
        if !fine(repair::examine(&from, &options, quiet))?.is_healthy() {
            let found = fine(repair::examine(&from, &options, quiet))?;
            return Err(format!(
                "a whole checkpoint is said to need repair: {found:?}"
            ));
        }
        // An empty database is nothing without its MANIFEST.
        let holds = names.iter().any(|n| n.ends_with(".sst"));
        let without_manifest = self.rng.chance(1, 2) && holds;
        for name in names {
            if name == "CURRENT" || (without_manifest && name.starts_with("MANIFEST-")) {
                fine(self.fs.remove_file(&Path::new(&from).join(name)))?;
            }
        }
        let report = fine(repair::repair(&from, &to, &options, quiet))?;
        if report.is_healthy()
            || !report.tables_damaged.is_empty()
            || !report.logs_damaged.is_empty()
            || !report.blob_files_damaged.is_empty()
            || !report.values_lost.is_empty()
        {
            return Err(format!("repair finds {report:?}"));
        }
        fine(Db::destroy(&from, &options))?;
        if without_manifest {
            self.compare_salvaged(&to)
        } else {
            self.compare_checkpoint(&to, false)
        }
    }

    /// What is in the logs leads up to the newest write without a gap.
    pub(super) fn updates(&mut self) -> Result<(), String> {
        let latest = self.db().latest_sequence_number();
        let mut next = 1;
        let updates = loop {
            match self.db().get_updates_since(next) {
                Ok(updates) => break updates,
                // More may go before it is asked again.
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    let oldest = e.context("oldest").and_then(|n| n.parse().ok());
                    let oldest = oldest.unwrap_or(latest + 1);
                    if oldest <= next {
                        return Err(format!("{oldest} is said to be there, and is not: {e}"));
                    }
                    next = oldest;
                }
                Err(e) => return Err(format!("updates: {e}")),
            }
        };
        // Logs of opens that did not archive are missing between those of opens that did.
        let archived = fine(self.fs.exists(&filename::archive_dir(Path::new(DIR))))?;
        for update in updates {
            let update = match update {
                Err(e) if archived && e.kind() == ErrorKind::NotFound => {
                    let before = e.context("before").and_then(|n| n.parse().ok());
                    next = before.ok_or("a gap without an end")?;
                    continue;
                }
                other => fine(other)?,
            };
            if update.sequence != next {
                return Err(format!("update {} follows {next}", update.sequence));
            }
            next = update.next_sequence();
        }
        if next != latest + 1 {
            return Err(format!("updates end before {next}, the newest is {latest}"));
        }
        Ok(())
    }

    /// Reads all tables, and asks for the size of a range.
    pub(super) fn scrub(&mut self) -> Result<(), String> {
        let found = fine(self.db().scrub(&VerifyOptions::default(), &mut |_, _| {}))?;
        if !found.damaged.is_empty() {
            return Err(format!("scrub finds {found:?}"));
        }
        fine(self.db().verify_file_checksums())?;
        let name = self.draw_family();
        let family = self.handle(&name)?;
        let (a, b) = (self.draw_key(), self.draw_key());
        let options = orogen_engine::SizeApproximationOptions {
            include_memtables: self.rng.chance(1, 2),
            ..Default::default()
        };
        let ranges = [UserKeyRange::new(&a, &b), UserKeyRange::default()];
        let sizes = fine(self.db().approximate_sizes(&options, &family, &ranges))?;
        if sizes[0] > sizes[1] {
            return Err(format!("a part is larger than the whole: {sizes:?}"));
        }
        Ok(())
    }
}
