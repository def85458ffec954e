//! The logs of a damaged directory: every record that verifies.

use std::collections::BTreeMap;
use std::path::Path;

use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use orogen_env::{Access, FileSystem};
use orogen_wal::{ReadOutcome, Reader};

use super::examine::{FamilyOptions, FamilyPlan, Plan, family_plan};
use super::{LogDamage, RepairReport};
use crate::batch::{BatchOp, BatchReader, Sections};
use crate::filename;
use crate::logs::Link;
use crate::options::Options;

/// Logs that were read.
#[derive(Default)]
pub(super) struct LogsRead {
    /// What is prepared, and neither committed nor rolled back.
    prepared: Sections,
    /// The newest with records, if it ends within one.
    torn: Option<Doubt>,
}

/// A log that may lack its end: no write may stand behind it but the very next one.
struct Doubt {
    log: FileNo,
    /// What it is if one does.
    error: Error,
    /// It ends within a record.
    is_torn: bool,
    /// It, or one before it, ends before a record of a former use of its file.
    is_old: bool,
}

/// Reads the records of the logs that are taken, and shows each operation that takes effect with its
/// log and sequence number. `visible` is the newest number that the MANIFEST tells.
///
/// # Errors
/// `Io`; what `visit` gives, but for `Corruption`, which counts as damage of the record.
pub(super) fn each_record(
    dir: &Path,
    fs: &dyn FileSystem,
    logs: &[FileNo],
    visible: SeqNo,
    damaged: &mut Vec<LogDamage>,
    visit: &mut dyn FnMut(FileNo, BatchOp<'_>, SeqNo) -> Result<()>,
) -> Result<LogsRead> {
    let mut ends: BTreeMap<FileNo, u64> = BTreeMap::new();
    let (mut next_seqno, mut has_records): (SeqNo, bool) = (0, false);
    let mut doubt: Option<Doubt> = None;
    let mut prepared = Sections::default();
    for &number in logs {
        let path = filename::wal_path(dir, number);
        let mut errors = Vec::new();
        let mut reader = Reader::new(fs.open(&path, Access::Sequential)?, number)?;
        let mut record = Vec::new();
        let (mut is_first, mut torn) = (true, None);
        loop {
            match reader.read_record(&mut record) {
                Ok(ReadOutcome::EndOfLog { valid_until, .. }) => {
                    ends.insert(number, valid_until);
                    break;
                }
                // As a crash leaves it; the next log tells if it is more than that.
                Ok(ReadOutcome::Damage(damage)) if damage.is_tail => {
                    torn = Some(reader.error(&damage));
                }
                Ok(ReadOutcome::Damage(damage)) => errors.push(reader.error(&damage)),
                Ok(ReadOutcome::Record { offset }) => {
                    let outcome = BatchReader::new(&record).and_then(|batch| {
                        batch.check()?;
                        let link = Link::of(&batch);
                        if std::mem::take(&mut is_first)
                            && let Some(before) = &doubt
                        {
                            // As replay has it. What a link says is looked at below.
                            let is_told = link.is_some_and(|link| link.log == before.log);
                            let next = match has_records {
                                true => Some(next_seqno.max(1)),
                                // All that stood there may be in tables.
                                false => before.is_old.then(|| visible.saturating_add(1)),
                            };
                            if is_told || next == Some(batch.seqno) {
                                doubt = None;
                            }
                        }
                        if link.is_none()
                            && let Some(before) = doubt.take()
                        {
                            note(damaged, before.log, before.error.with("log_behind", number));
                        }
                        has_records = true;
                        if let Some(link) = link {
                            check_link(link, &ends)?;
                        }
                        if batch.count > 0 && batch.seqno < next_seqno {
                            return Err(Error::corruption("sequence numbers of logs go back")
                                .with("seqno", batch.seqno));
                        }
                        let end = prepared.take(number, &batch, |op, seqno| {
                            next_seqno = next_seqno.max(seqno.saturating_add(1));
                            visit(number, op, seqno)
                        });
                        end.map(|end| next_seqno = next_seqno.max(end))
                    });
                    match outcome {
                        Ok(()) => {}
                        Err(e) if e.kind() == ErrorKind::Corruption => {
                            errors.push(e.with("file", path.display()).with("offset", offset));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Err(e) => return Err(e),
            }
        }
        for error in errors {
            note(damaged, number, error);
        }
        let is_torn = torn.is_some();
        let is_old = reader.ends_before_old_record();
        let before_old = || {
            Error::corruption("log ends before a record of a former use of its file")
                .with("file", path.display())
                .with("offset", reader.valid_until())
        };
        let error = torn.or_else(|| is_old.then(before_old));
        // Behind one that is torn nothing was written since.
        if let Some(error) = error.filter(|_| doubt.as_ref().is_none_or(|d| !d.is_torn)) {
            doubt = Some(Doubt {
                log: number,
                error,
                is_torn,
                is_old: is_old || doubt.is_some(),
            });
        }
    }
    Ok(LogsRead {
        prepared,
        torn: doubt.filter(|doubt| doubt.is_torn),
    })
}

/// Tells of what is wrong with a log.
pub(super) fn note(damaged: &mut Vec<LogDamage>, number: FileNo, error: Error) {
    match damaged.iter_mut().find(|log| log.number == number) {
        Some(log) => log.errors.push(error),
        None => damaged.push(LogDamage {
            number,
            errors: vec![error],
        }),
    }
}

fn check_link(link: Link, ends: &BTreeMap<FileNo, u64>) -> Result<()> {
    match ends.get(&link.log) {
        Some(&end) if end < link.bytes => Err(Error::corruption("log before this one is cut off")
            .with("log_before", link.log)
            .with("bytes_missing", link.bytes - end)),
        _ => Ok(()),
    }
}

/// Counts what the logs hold, and makes the families that only they know.
pub(super) fn read_logs(
    dir: &Path,
    options: &Options,
    plan: &mut Plan,
    report: &mut RepairReport,
    family_options: FamilyOptions<'_>,
) -> Result<()> {
    let mut damaged = std::mem::take(&mut report.logs_damaged);
    let mut operations = 0;
    let mut last = 0;
    let (families, has_manifest) = (&mut plan.families, plan.has_manifest);
    let read = each_record(
        dir,
        &*options.db.fs,
        &plan.logs,
        plan.visible,
        &mut damaged,
        &mut |log, op, seqno| {
            let Some(id) = op.family() else {
                return Ok(());
            };
            if !has_manifest && !families.contains_key(&id) {
                let name = format!("recovered_{id}");
                families.insert(id, family_plan(&name, family_options, None)?);
            }
            let family = families.get(&id);
            operations += u64::from(family.is_some_and(|f| f.wants(log, seqno)));
            last = last.max(seqno);
            Ok(())
        },
    )?;
    if let Some(torn) = read.torn.filter(|torn| plan.is_ahead_of(torn.log)) {
        let what = "log is damaged and the tables of a column family hold later writes";
        note(&mut damaged, torn.log, torn.error.with("why", what));
    }
    plan.last_sequence = plan.last_sequence.max(last);
    report.log_operations = operations;
    damaged.sort_by_key(|log| log.number);
    report.logs_damaged = damaged;
    report.prepared_left_out = read.prepared.left().map(|(name, _)| name.into()).collect();
    Ok(())
}

impl Plan {
    /// True if the tables of a family hold writes from behind a log that is cut off: no open takes that.
    fn is_ahead_of(&self, log: FileNo) -> bool {
        let mut families = self.families.values();
        families.any(|f| f.log_number > log && !f.tables.is_empty())
    }
}

impl FamilyPlan {
    /// True for an operation of a log that the tables lack.
    pub(super) fn wants(&self, log: FileNo, seqno: SeqNo) -> bool {
        log >= self.log_number && seqno > self.in_tables_up_to
    }
}
