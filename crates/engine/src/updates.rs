//! The writes that are still in the logs, in the order in which they happened.
//!
//! ```text
//! archive/NNNNNN.log ... -> logs kept for a reader -> logs that are needed -> the current log
//! ```
//! A reader follows the current log while it is written, up to what other readers see. It pins
//! the log that it stands in: that one and all later ones stay until it moves on or is dropped.
//! Only bytes that were written whole are read, so the end of the current log is never taken for
//! a torn one. Links between logs (see [`crate::logs`]) are not shown.
//!
//! Invariants: (1) updates come in the order of their sequence numbers, each once; (2) where
//! numbers are missing, between two logs or within one, that is an error and not passed over in
//! silence. Source: RocksDB `db/transaction_log_impl.cc`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use orogen_env::{Access, RandomAccessFile};
use orogen_wal::{ReadOutcome, Reader};

use crate::batch::{BatchOp, BatchReader, WriteBatch};
use crate::context::Context;
use crate::filename;
use crate::logs::Link;
use crate::obsolete;

/// A record of the log: one batch, or several that were written together.
///
/// What was prepared comes when it was prepared, between markers, and takes effect, and its sequence
/// numbers, where its commit comes ([`crate::batch::BatchOp::Commit`]).
#[derive(Clone, Debug)]
pub struct Update {
    /// The sequence number of its first operation.
    pub sequence: SeqNo,
    /// Its operations.
    pub batch: WriteBatch,
    next: SeqNo,
}

impl Update {
    /// The sequence number after the last that it takes. For a commit of what was prepared before the
    /// reader's first update it is not known how many that are; then it is that of the first.
    #[must_use]
    pub fn next_sequence(&self) -> SeqNo {
        self.next
    }
}

/// Reads updates from the logs; see [`crate::Db::get_updates_since`].
///
/// `None` is the end for now: asked again later, it goes on with what was written meanwhile.
///
/// An error of kind `NotFound` tells that sequence numbers are missing: those of writes without
/// WAL, or of a log that an open after a crash could not take whole. The next call goes on
/// behind the gap. After any other error the reader does not move.
pub struct UpdatesIterator {
    context: Arc<Context>,
    pin: u64,
    /// The first number that was not given yet.
    expected: SeqNo,
    log: Option<OpenLog>,
    record: Vec<u8>,
    /// `record` holds what was read and not given yet.
    pending: bool,
    /// How many numbers it takes, and whether they are all, once that was looked up.
    numbers: Option<(SeqNo, bool)>,
    /// The last damage that was met, and that may be why numbers are missing.
    damage: Option<Error>,
    prepared: PreparedCounts,
    /// Numbers from `expected` on may belong to the update that was given last.
    is_open: bool,
}

/// How many operations are prepared under each name that was read.
#[derive(Default)]
struct PreparedCounts(BTreeMap<Box<[u8]>, SeqNo>);

impl PreparedCounts {
    /// Takes a record, which was checked: how many numbers it takes, and whether they are all.
    fn take(&mut self, record: &BatchReader<'_>) -> Result<(SeqNo, bool)> {
        let (mut numbers, mut is_all) = (0, true);
        let mut section = None;
        for op in record.iter() {
            match op? {
                BatchOp::BeginPrepare => section = Some(0),
                BatchOp::EndPrepare { name } => {
                    self.0.insert(name.into(), section.take().unwrap_or(0));
                }
                BatchOp::Commit { name } => match self.0.remove(name) {
                    Some(count) => numbers += count,
                    None => is_all = false,
                },
                BatchOp::Rollback { name } => {
                    self.0.remove(name);
                }
                op => *section.as_mut().unwrap_or(&mut numbers) += SeqNo::from(op.counts()),
            }
        }
        Ok((numbers, is_all))
    }
}

struct OpenLog {
    number: FileNo,
    file: Arc<dyn RandomAccessFile>,
    reader: Reader,
    /// Bytes that the reader knows of.
    bytes: u64,
    /// What ended the log, if that was not its end.
    damage: Option<Error>,
}

/// The first bytes of a file: what was written whole.
struct Prefix {
    file: Arc<dyn RandomAccessFile>,
    bytes: u64,
}

impl RandomAccessFile for Prefix {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = self.bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        self.file.read_at(offset, &mut buf[..left])
    }
    fn size(&self) -> Result<u64> {
        Ok(self.bytes)
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

impl OpenLog {
    fn open(context: &Context, number: FileNo, bytes: u64) -> Result<Self> {
        let path = filename::wal_path(&context.dir, number);
        let file = match context.fs.open(&path, Access::Sequential) {
            Err(e) if e.is_file_not_found() => context.fs.open(
                &filename::archived_wal_path(&context.dir, number),
                Access::Sequential,
            )?,
            other => other?,
        };
        Ok(Self {
            number,
            reader: reader_from(&file, number, 0, bytes)?,
            file,
            bytes,
            damage: None,
        })
    }

    /// Takes up what was written since.
    fn grow(&mut self, bytes: u64) -> Result<()> {
        let at = self.reader.valid_until();
        self.reader = reader_from(&self.file, self.number, at, bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// The next record; false at the end of the bytes.
    fn read(&mut self, record: &mut Vec<u8>) -> Result<bool> {
        let at = self.reader.valid_until();
        let outcome = match self.reader.read_record(record) {
            Ok(outcome) => outcome,
            Err(e) => {
                // It may have got into the middle of the record.
                self.reader = reader_from(&self.file, self.number, at, self.bytes)?;
                return Err(e);
            }
        };
        match outcome {
            ReadOutcome::Record { offset } => {
                match BatchReader::new(record).and_then(|batch| batch.check()) {
                    Ok(()) => Ok(true),
                    // Where recovery stopped, or what it passed over.
                    Err(e) if e.kind() == ErrorKind::Corruption => {
                        self.damage = Some(e.with("log", self.number).with("offset", offset));
                        Ok(false)
                    }
                    Err(e) => {
                        self.reader = reader_from(&self.file, self.number, at, self.bytes)?;
                        Err(e)
                    }
                }
            }
            ReadOutcome::EndOfLog { .. } => Ok(false),
            // Behind the end of a log that was written over, or that a crash cut off, anything
            // may stand. If the next log goes on with the next number, nothing is missing.
            ReadOutcome::Damage(damage) => {
                self.damage = Some(self.reader.error(&damage));
                Ok(false)
            }
        }
    }
}

fn reader_from(
    file: &Arc<dyn RandomAccessFile>,
    number: FileNo,
    at: u64,
    bytes: u64,
) -> Result<Reader> {
    let file = file.clone();
    Reader::starting_at(Arc::new(Prefix { file, bytes }), number, at)
}

/// The logs that can be read, oldest first, with their bytes.
fn readable(context: &Context) -> Result<Vec<(FileNo, u64)>> {
    // In this order: a log moves from the first list to the second.
    let mut logs = context.logs.readable();
    let archived = obsolete::archived_logs(context)?;
    // Those that could not be archived stand between those that could.
    for log in archived {
        if let Err(at) = logs.binary_search_by_key(&log.number, |l| l.0) {
            logs.insert(at, (log.number, log.bytes));
        }
    }
    Ok(logs)
}

/// A reader of the updates from `seqno` on.
///
/// # Errors
/// See [`crate::Db::get_updates_since`].
pub(crate) fn since(context: &Arc<Context>, seqno: SeqNo) -> Result<UpdatesIterator> {
    context.check_not_following("get_updates_since")?;
    let wanted = seqno.max(1);
    let mut updates = UpdatesIterator {
        context: context.clone(),
        pin: context.logs.pin(),
        expected: wanted,
        log: None,
        record: Vec::new(),
        pending: false,
        numbers: None,
        damage: None,
        prepared: PreparedCounts::default(),
        is_open: false,
    };
    let visible = context.sequence.visible();
    if wanted > visible + 1 {
        return Err(
            Error::invalid_argument("sequence number was not written yet")
                .with("seqno", wanted)
                .with("latest", visible),
        );
    }
    let logs = readable(context)?;
    let mut oldest = None;
    let mut start = None;
    for &(number, bytes) in logs.iter().rev() {
        let mut log = OpenLog::open(context, number, bytes)?;
        if !log.read(&mut updates.record)? {
            continue;
        }
        let first = BatchReader::new(&updates.record)?.seqno;
        oldest = Some(first);
        if first <= wanted {
            start = Some((number, bytes));
            break;
        }
    }
    let newest = logs.last().copied();
    // Where no log holds anything, nothing is missing only if nothing is wanted yet.
    let start = start.or_else(|| newest.filter(|_| oldest.is_none() && wanted == visible + 1));
    let Some((number, bytes)) = start else {
        let error = Error::not_found("updates are not in the logs any more").with("seqno", wanted);
        return Err(match oldest {
            Some(oldest) => error.with("oldest", oldest),
            None => error,
        });
    };
    updates.log = Some(OpenLog::open(context, number, bytes)?);
    context.logs.move_pin(updates.pin, number);
    Ok(updates)
}

impl UpdatesIterator {
    /// Puts the next record into `self.record`; false at the end for now.
    fn advance(&mut self) -> Result<bool> {
        while !self.pending {
            let Some(log) = &mut self.log else {
                return Ok(false);
            };
            if log.damage.is_none() && log.read(&mut self.record)? {
                self.pending = true;
                break;
            }
            self.damage = log.damage.clone().or_else(|| self.damage.take());
            let newest = self.context.logs.readable().pop();
            let logs = match newest.filter(|newest| newest.0 == log.number) {
                // Without a look at the archive for each record that comes.
                Some(newest) => vec![newest],
                None => readable(&self.context)?,
            };
            let here = logs.iter().find(|l| l.0 == log.number);
            if let Some(&(_, bytes)) = here.filter(|l| l.1 > log.bytes && log.damage.is_none()) {
                log.grow(bytes)?;
                continue;
            }
            let Some(&(number, bytes)) = logs.iter().find(|l| l.0 > log.number) else {
                return Ok(false);
            };
            *log = OpenLog::open(&self.context, number, bytes)?;
            self.context.logs.move_pin(self.pin, number);
            self.context.work.raise();
        }
        Ok(true)
    }

    /// Tells of missing numbers, and goes on behind them.
    fn gap(&mut self, before: SeqNo) -> Error {
        let from = std::mem::replace(&mut self.expected, before);
        let error = Error::not_found("updates are not in the logs")
            .with("from", from)
            .with("before", before);
        match self.damage.take() {
            Some(damage) => error.caused_by(damage),
            None => error,
        }
    }

    fn read(&mut self) -> Result<Option<Update>> {
        loop {
            // First: what is visible now is in the logs that are looked at then.
            let visible = self.context.sequence.visible();
            if !self.advance()? {
                if self.expected > visible {
                    return Ok(None);
                }
                if !self.is_open {
                    return Err(self.gap(visible + 1));
                }
                self.expected = visible + 1;
                return Ok(None);
            }
            let batch = BatchReader::new(&self.record)?;
            let (numbers, is_all) = match self.numbers {
                Some(numbers) => numbers,
                None => *self.numbers.insert(self.prepared.take(&batch)?),
            };
            let (sequence, next) = (batch.seqno, batch.seqno.saturating_add(numbers));
            // Archived logs were never replayed.
            if next > SEQNO_MAX {
                return Err(
                    Error::corruption("sequence number is too large").with("seqno", sequence)
                );
            }
            let is_old =
                is_all && next <= self.expected && (numbers > 0 || sequence < self.expected);
            if is_old || Link::of(&batch).is_some() {
                (self.pending, self.numbers) = (false, None);
                continue;
            }
            // Of a commit that nothing is known of one is enough: a group is seen whole.
            if next + SeqNo::from(!is_all) > self.context.sequence.visible() + 1 {
                return Ok(None);
            }
            // Before it counts as read.
            let update = WriteBatch::from_bytes(&self.record)?;
            if std::mem::take(&mut self.is_open) {
                self.expected = self.expected.max(sequence);
            }
            if sequence > self.expected {
                return Err(self.gap(sequence));
            }
            (self.pending, self.numbers) = (false, None);
            self.damage = None;
            self.expected = next.max(self.expected);
            self.is_open = !is_all;
            return Ok(Some(Update {
                sequence,
                batch: update,
                next,
            }));
        }
    }
}

impl Iterator for UpdatesIterator {
    type Item = Result<Update>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

impl Drop for UpdatesIterator {
    fn drop(&mut self) {
        self.context.logs.unpin(self.pin);
        // What only this reader kept can go now.
        self.context.work.raise();
    }
}
