//! Batches of two-phase commits, as they are written and as they are read back.
//!
//! ```text
//! prepare     begin prepare, operations, end prepare NAME     in the log; in no memtable
//! commit      commit NAME                                     the operations take their numbers here
//!             roll back NAME, prepare, commit NAME            where the section is in an older log
//! roll back   roll back NAME
//! ```
//! Source: RocksDB's write-committed transactions, `db/write_batch.cc`;
//! `docs/adr/2026-11-23-two-phase-commit.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use orogen_base::{Error, FileNo, Result, SeqNo};

use super::bytes::Sink as _;
use super::{BatchOp, BatchReader, HEADER_LEN, WriteBatch, section_not_whole, tag};

/// Bytes of a name, at most: as in RocksDB.
pub const PREPARED_NAME_BYTES_MAX: usize = 512;
/// Bytes of a marker beside its name.
const MARKER_LEN_MAX: usize = 8;

/// What the commit pipeline does with a batch.
#[derive(Clone, Debug, Default)]
pub(super) enum Phase {
    /// Into the log and into memtables.
    #[default]
    Plain,
    /// Into the log only.
    Prepare {
        /// Told the log before it is written.
        log: Arc<AtomicU64>,
    },
    /// A marker into the log, what was prepared into memtables.
    Commit {
        /// The batch that was prepared.
        section: Arc<WriteBatch>,
        /// The log that has it.
        log: FileNo,
        /// The operation that rolls it back.
        unprepare: Box<[u8]>,
    },
    /// A marker into the log only.
    Rollback,
}

impl WriteBatch {
    /// Makes of a plain batch one that prepares it under `name`. `log` is told in which log it
    /// is about to be written.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that cannot be one; what [`WriteBatch::check_whole`] gives.
    pub(crate) fn into_prepare(mut self, name: &[u8], log: Arc<AtomicU64>) -> Result<Self> {
        check_name(name)?;
        self.check_whole()?;
        let spill = self.spill.as_deref();
        self.rep.reserve(name.len() + MARKER_LEN_MAX, spill)?;
        self.rep.insert(HEADER_LEN, tag::BEGIN_PREPARE);
        self.rep.put_u8(tag::END_PREPARE);
        self.rep.put_length_prefixed(name);
        self.needs_check = true;
        self.phase = Phase::Prepare { log };
        Ok(self)
    }

    /// A batch that commits `section`, which log number `log` has.
    pub(crate) fn commit(name: &[u8], section: Arc<Self>, log: FileNo) -> Self {
        let mut batch = Self::marker(tag::COMMIT, name);
        batch.needs_check = true;
        let unprepare = Self::rollback(name).operations().into();
        batch.phase = Phase::Commit {
            section,
            log,
            unprepare,
        };
        batch
    }

    /// A batch that rolls back what is prepared under `name`.
    pub(crate) fn rollback(name: &[u8]) -> Self {
        let mut batch = Self::marker(tag::ROLLBACK, name);
        batch.phase = Phase::Rollback;
        batch
    }

    fn marker(tag: u8, name: &[u8]) -> Self {
        let mut batch = Self::new();
        batch.rep.put_u8(tag);
        batch.rep.put_length_prefixed(name);
        batch
    }

    /// True for what goes into the log and into memtables as it is.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.phase, Phase::Plain)
    }

    /// Sequence numbers that it takes.
    #[inline]
    pub(crate) fn numbers(&self) -> SeqNo {
        self.inserted()
            .map_or(0, |batch| SeqNo::from(batch.count()))
    }

    /// The batch whose operations come into memtables.
    #[inline]
    pub(crate) fn inserted(&self) -> Option<&Self> {
        match &self.phase {
            Phase::Plain => Some(self),
            Phase::Commit { section, .. } => Some(section),
            Phase::Prepare { .. } | Phase::Rollback => None,
        }
    }

    /// What was prepared and has to be written to the log `current` once more, as it is in an
    /// older one; and the operation that has to stand before it.
    #[inline]
    pub(crate) fn repeats(&self, current: FileNo) -> Option<(&[u8], &Self)> {
        match &self.phase {
            Phase::Commit {
                section,
                log,
                unprepare,
            } if *log != current => Some((unprepare, section)),
            _ => None,
        }
    }

    /// Notes that it is about to be written to the log `current`.
    #[inline]
    pub(crate) fn note_log(&self, current: FileNo) {
        if let Phase::Prepare { log } = &self.phase {
            log.store(current, Relaxed);
        }
    }

    /// Bytes that the write moves.
    #[inline]
    pub(crate) fn bytes_moved(&self) -> usize {
        match &self.phase {
            Phase::Commit { section, .. } => self.size_bytes() + section.size_bytes(),
            _ => self.size_bytes(),
        }
    }
}

/// # Errors
/// `InvalidArgument`.
fn check_name(name: &[u8]) -> Result<()> {
    if (1..=PREPARED_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(
        Error::invalid_argument("name of a prepared write is empty or too long")
            .with("bytes", name.len())
            .with("bytes_max", PREPARED_NAME_BYTES_MAX),
    )
}

/// # Errors
/// `Corruption` if so many numbers from `first` on are more than there are.
fn check_numbers(first: SeqNo, count: u32) -> Result<()> {
    match first.saturating_add(SeqNo::from(count)) > SEQNO_MAX {
        false => Ok(()),
        true => Err(Error::corruption("sequence number is too large").with("seqno", first)),
    }
}

/// What logs have prepared, read from the oldest on.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    /// With the log that has it.
    by_name: BTreeMap<Box<[u8]>, (WriteBatch, FileNo)>,
    /// Of the operations in it.
    bytes: usize,
    crossed_logs: bool,
}

impl Sections {
    /// True if a commit was in another log than what it committed, as other writers of this format leave it.
    pub(crate) fn crossed_logs(&self) -> bool {
        self.crossed_logs
    }

    /// Bytes of what is prepared.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, name: &[u8]) -> Option<(WriteBatch, FileNo)> {
        let removed = self.by_name.remove(name)?;
        self.bytes -= removed.0.size_bytes();
        Some(removed)
    }

    /// Takes the next record, of `log`. `effect` is shown each operation that takes effect here, and its
    /// sequence number; returns the number after the last. The record was checked.
    ///
    /// # Errors
    /// `Corruption`, `NoMemory`; what `effect` gives.
    #[inline]
    pub(crate) fn take(
        &mut self,
        log: FileNo,
        record: &BatchReader<'_>,
        mut effect: impl FnMut(BatchOp<'_>, SeqNo) -> Result<()>,
    ) -> Result<SeqNo> {
        check_numbers(record.seqno, record.count)?;
        let mut seqno = record.seqno;
        let mut open: Option<WriteBatch> = None;
        for op in record.iter() {
            let op = op?;
            match (op, &mut open) {
                (BatchOp::BeginPrepare, None) => open = Some(WriteBatch::new()),
                (BatchOp::EndPrepare { name }, Some(_)) => {
                    let section = open.take().ok_or_else(section_not_whole)?;
                    section.check_whole()?;
                    self.remove(name);
                    self.bytes += section.size_bytes();
                    self.by_name.insert(name.into(), (section, log));
                }
                (BatchOp::Commit { name }, None) => {
                    // One that is not here is in all tables that it concerns.
                    let section = self.remove(name).map(|(section, of)| {
                        self.crossed_logs |= of != log;
                        section
                    });
                    check_numbers(seqno, section.as_ref().map_or(0, WriteBatch::count))?;
                    for op in section.iter().flatten() {
                        effect(op?, seqno)?;
                        seqno += 1;
                    }
                }
                (BatchOp::Rollback { name }, None) => {
                    self.remove(name);
                }
                (op, Some(section)) if op.counts() => section.add(op),
                (op, None) if op.counts() => {
                    effect(op, seqno)?;
                    seqno += 1;
                }
                (BatchOp::LogData(_), _) => {}
                _ => return Err(section_not_whole()),
            }
        }
        match open {
            None => Ok(seqno),
            Some(_) => Err(section_not_whole()),
        }
    }

    /// What is neither committed nor rolled back, by name.
    pub(crate) fn left(self) -> impl Iterator<Item = (Box<[u8]>, WriteBatch)> {
        let left = self.by_name.into_iter();
        left.map(|(name, (section, _))| (name, section))
    }
}

impl WriteBatch {
    /// Adds an operation that counts.
    pub(crate) fn add(&mut self, op: BatchOp<'_>) {
        match op {
            BatchOp::Put { cf, key, value } => self.put(cf, key, value),
            BatchOp::Merge { cf, key, operand } => self.merge(cf, key, operand),
            BatchOp::Delete { cf, key } => self.delete(cf, key),
            BatchOp::SingleDelete { cf, key } => self.single_delete(cf, key),
            BatchOp::DeleteRange { cf, start, end } => self.delete_range(cf, start, end),
            BatchOp::LogData(_)
            | BatchOp::BeginPrepare
            | BatchOp::EndPrepare { .. }
            | BatchOp::Commit { .. }
            | BatchOp::Rollback { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::ErrorKind;

    fn take(sections: &mut Sections, batch: &WriteBatch) -> Result<SeqNo> {
        let record = BatchReader::new(batch.as_bytes())?;
        record.check()?;
        sections.take(1, &record, |_, seqno| {
            assert!(seqno <= SEQNO_MAX);
            Ok(())
        })
    }

    #[test]
    fn numbers_that_a_damaged_log_makes_too_large_are_refused() {
        let mut plain = WriteBatch::new();
        plain.put(0, b"a", b"1");
        plain.put(0, b"b", b"2");
        let mut sections = Sections::default();
        let prepare = plain.clone().into_prepare(b"t", Arc::default()).unwrap();
        assert_eq!(take(&mut sections, &prepare).unwrap(), 0, "none are taken");
        let mut commit = WriteBatch::commit(b"t", Arc::new(prepare), 1);
        for seqno in [SEQNO_MAX - 1, SEQNO_MAX, u64::MAX] {
            for batch in [&mut commit, &mut plain] {
                batch.set_seqno(seqno);
                let by_name = sections.by_name.clone();
                let mut again = Sections {
                    by_name,
                    bytes: sections.bytes,
                    crossed_logs: false,
                };
                let error = take(&mut again, batch).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corruption, "{seqno}");
            }
        }
        commit.set_seqno(SEQNO_MAX - 2);
        assert!(sections.bytes() > 0);
        assert_eq!(take(&mut sections, &commit).unwrap(), SEQNO_MAX);
        assert_eq!(sections.bytes(), 0);
    }
}
