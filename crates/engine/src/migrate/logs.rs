//! The logs of the source, read as a recovery would.
//!
//! A log ends where a crash cut it off, or before a record of a former use of its file, where more
//! may have stood. Behind that the next log is read only if it goes on with the very next sequence
//! number, as RocksDB reads them; else writes would be missing, and that is an error here. So is
//! damage in the middle of a log.

use std::path::Path;

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_env::{Access, FileSystem};
use orogen_wal::{ReadOutcome, Reader};

use crate::batch::{BatchReader, LoggedOp};
use crate::filename;

/// Passes each operation that counts on, with its log and sequence number. `in_tables` is the
/// MANIFEST's newest sequence number. Returns logs with a torn end, and the newest sequence number
/// of all.
///
/// # Errors
/// `Corruption` with file and offset; `NotSupported` for operations of other features; `Io`; those
/// of `visit`.
pub(super) fn each_operation(
    fs: &dyn FileSystem,
    dir: &Path,
    logs: &[FileNo],
    in_tables: SeqNo,
    visit: &mut dyn FnMut(FileNo, SeqNo, LoggedOp<'_>) -> Result<()>,
) -> Result<(Vec<FileNo>, SeqNo)> {
    let mut torn: Vec<FileNo> = Vec::new();
    let (mut last, mut is_torn) = (0, false);
    // All that stood before a record of a former use may be in tables.
    let mut may_lack_rest = false;
    for &log in logs {
        let path = filename::wal_path(dir, log);
        let mut reader = Reader::new(fs.open(&path, Access::Sequential)?, log)?;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record)? {
                ReadOutcome::EndOfLog { clean, .. } => {
                    if !clean && torn.last() != Some(&log) {
                        torn.push(log);
                    }
                    is_torn |= !clean;
                    may_lack_rest |= reader.ends_before_old_record();
                    break;
                }
                ReadOutcome::Damage(damage) if damage.is_tail => {
                    torn.push(log);
                    is_torn = true;
                }
                ReadOutcome::Damage(damage) => return Err(reader.error(&damage)),
                ReadOutcome::Record { offset } => {
                    let at = |e: Error| e.with("file", path.display()).with("offset", offset);
                    let batch = BatchReader::new(&record).map_err(at)?;
                    let end = batch.seqno.saturating_add(SeqNo::from(batch.count));
                    if end > SEQNO_MAX {
                        let e = Error::corruption("sequence number is too large");
                        return Err(at(e.with("seqno", batch.seqno)));
                    }
                    let follows = batch.seqno == last + 1
                        || last == 0 && !is_torn && batch.seqno == in_tables + 1;
                    if (is_torn || may_lack_rest) && !follows {
                        let e = Error::corruption(
                            "log goes on behind one that ends early, and writes between are missing",
                        );
                        return Err(at(e.with("seqno", batch.seqno).with("after", last)));
                    }
                    (is_torn, may_lack_rest) = (false, false);
                    let mut seqno = batch.seqno;
                    for op in batch.logged() {
                        let op = op.map_err(at)?;
                        if let LoggedOp::Op(op) = &op
                            && op.is_marker()
                        {
                            return Err(at(Error::not_supported(
                                "log has transactions that are prepared; end them with what wrote them",
                            )));
                        }
                        if op.counts() {
                            visit(log, seqno, op)?;
                            seqno += 1;
                        }
                    }
                    if seqno != end {
                        return Err(at(Error::corruption("write batch has the wrong count")
                            .with("header", batch.count)
                            .with("found", seqno - batch.seqno)));
                    }
                    last = last.max(end.saturating_sub(1));
                }
            }
        }
    }
    Ok((torn, last.max(in_tables)))
}
