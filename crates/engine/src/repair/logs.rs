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

/// Reads the records of the logs that are taken, and shows each operation that takes effect with its
/// log and sequence number. Returns what is prepared, and neither committed nor rolled back.
///
/// # Errors
/// `Io`; what `visit` gives, but for `Corruption`, which counts as damage of the record.
pub(super) fn each_record(
    dir: &Path,
    fs: &dyn FileSystem,
    logs: &[FileNo],
    damaged: &mut Vec<LogDamage>,
    visit: &mut dyn FnMut(FileNo, BatchOp<'_>, SeqNo) -> Result<()>,
) -> Result<Sections> {
    let mut ends: BTreeMap<FileNo, u64> = BTreeMap::new();
    let mut next_seqno = 0;
    let mut prepared = Sections::default();
    for &number in logs {
        let path = filename::wal_path(dir, number);
        let mut errors = Vec::new();
        let mut reader = Reader::new(fs.open(&path, Access::Sequential)?, number)?;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record) {
                Ok(ReadOutcome::EndOfLog { valid_until, .. }) => {
                    ends.insert(number, valid_until);
                    break;
                }
                // As a crash leaves it; the next log tells if it is more than that.
                Ok(ReadOutcome::Damage(damage)) if damage.is_tail => {}
                Ok(ReadOutcome::Damage(damage)) => errors.push(reader.error(&damage)),
                Ok(ReadOutcome::Record { offset }) => {
                    let outcome = BatchReader::new(&record).and_then(|batch| {
                        batch.check()?;
                        if let Some(link) = Link::of(&batch) {
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
                        end.map(|_| ())
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
        if !errors.is_empty() {
            damaged.push(LogDamage { number, errors });
        }
    }
    Ok(prepared)
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
    let mut damaged = Vec::new();
    let mut operations = 0;
    let mut last = 0;
    let (families, has_manifest) = (&mut plan.families, plan.has_manifest);
    let prepared = each_record(
        dir,
        &*options.db.fs,
        &plan.logs,
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
    plan.last_sequence = plan.last_sequence.max(last);
    report.log_operations = operations;
    report.logs_damaged = damaged;
    report.prepared_left_out = prepared.left().map(|(name, _)| name.into()).collect();
    Ok(())
}

impl FamilyPlan {
    /// True for an operation of a log that the tables lack.
    pub(super) fn wants(&self, log: FileNo, seqno: SeqNo) -> bool {
        log >= self.log_number && seqno > self.in_tables_up_to
    }
}
