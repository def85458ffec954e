//! Reads a log's records back, and says what is wrong where something is.
//!
//! Recovery calls [`Reader::read_record`] until the end. Damage is an outcome like a record: it
//! tells whether it may be the trace of a write that a crash cut off (a torn tail), and the
//! next call goes on behind it. What to do about it is the caller's choice.
//!
//! 1. Only bytes under a right checksum are returned.
//! 2. Records come in the order of the file; none comes twice.
//! 3. `valid_until` is the end of the last good record: a writer may resume there after the
//!    file is cut off.

use std::sync::Arc;

use orogen_base::coding::get_fixed32;
use orogen_base::{Error, Result, memory};
use orogen_env::RandomAccessFile;

use crate::format::{Kind, Part};
use crate::physical::{Blocks, Physical, end_if_one_bit_is_wrong, parse, true_end};

/// What [`Reader::read_record`] met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOutcome {
    /// A record; its bytes are in the caller's buffer.
    Record {
        /// Where its first header stands.
        offset: u64,
    },
    /// There are no more records.
    EndOfLog {
        /// True if the log ends with a whole record: at the end of the file, before reserved
        /// zeros, or before records of a former use of the file. False after a torn tail.
        clean: bool,
        /// The end of the last good record.
        valid_until: u64,
    },
    /// Bytes that cannot be used; reading may go on behind them.
    Damage(Damage),
}

/// Bytes of a log that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where the unusable record begins.
    pub offset: u64,
    /// What is wrong.
    pub reason: DamageReason,
    /// Bytes up to where the next call goes on.
    pub bytes_dropped: u64,
    /// True if it may be a write that a crash cut off: nothing of this log follows, and the
    /// record is not known to have been whole. False for damage in the middle.
    pub is_tail: bool,
}

/// What is wrong with bytes of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageReason {
    /// The file ends within a header.
    TruncatedHeader,
    /// The file ends within a record.
    TruncatedBody,
    /// A record would be longer than its block, or a length is damaged.
    BadLength,
    /// A record's bytes do not have its checksum.
    BadChecksum,
    /// A record is intact but for its log number.
    BadLogNumber,
    /// Legacy and recyclable records in one log.
    MixedFormats,
    /// A record type that nobody may skip and this version does not know.
    UnknownType(u8),
    /// The later parts of a record without its first.
    MissingStart,
    /// The first parts of a record without its last.
    MissingEnd,
    /// Zeros where records follow.
    Hole,
    /// A record of a former use of the file where records of this one follow.
    OldRecord,
}

impl DamageReason {
    /// The reason in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TruncatedHeader => "truncated header",
            Self::TruncatedBody => "truncated record",
            Self::BadLength => "bad record length",
            Self::BadChecksum => "checksum mismatch",
            Self::BadLogNumber => "damaged log number",
            Self::MixedFormats => "legacy and recyclable records in one log",
            Self::UnknownType(_) => "unknown record type",
            Self::MissingStart => "start of a record is missing",
            Self::MissingEnd => "end of a record is missing",
            Self::Hole => "zeros between records",
            Self::OldRecord => "record of another log between records",
        }
    }
}

/// Where reading can go on behind a bad place.
struct Beyond {
    resume: Option<u64>,
    /// Something of this log follows, or the bad record was whole once.
    is_certain_damage: bool,
    /// Parts of a record whose beginning is not there.
    has_rest: bool,
}

/// Reads a log from its start.
pub struct Reader {
    blocks: Blocks,
    log_number: u32,
    at: u64,
    valid_until: u64,
    /// Set by the first record: a log has one format.
    recyclable: Option<bool>,
    ended_clean: Option<bool>,
    ends_before_old_record: bool,
}

impl Reader {
    /// A reader of the log with this number; for a MANIFEST, which is never recycled, the
    /// number does not matter.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(file: Arc<dyn RandomAccessFile>, log_number: u64) -> Result<Self> {
        Ok(Self {
            blocks: Blocks::new(file)?,
            // The format keeps the low 32 bits only.
            log_number: log_number as u32,
            at: 0,
            valid_until: 0,
            recyclable: None,
            ended_clean: None,
            ends_before_old_record: false,
        })
    }

    /// A reader that starts at `offset`, where a record ends or the file begins.
    ///
    /// # Errors
    /// `Io`.
    pub fn starting_at(
        file: Arc<dyn RandomAccessFile>,
        log_number: u64,
        offset: u64,
    ) -> Result<Self> {
        let mut reader = Self::new(file, log_number)?;
        (reader.at, reader.valid_until) = (offset, offset);
        Ok(reader)
    }

    /// Reads the next record into `out`, whose content is replaced.
    ///
    /// After damage the next call goes on with the next record that begins behind it.
    ///
    /// # Errors
    /// `NotSupported` for a compressed log; `Io`. What is wrong with the bytes is an outcome.
    pub fn read_record(&mut self, out: &mut Vec<u8>) -> Result<ReadOutcome> {
        out.clear();
        let mut start = None;
        while self.ended_clean.is_none() {
            let here = self.at;
            match self.physical(here)? {
                Physical::Padding => self.at = Blocks::next_block(here),
                Physical::Record {
                    kind,
                    header_len,
                    len,
                } => {
                    let end = here + (header_len + len) as u64;
                    let is_start = !matches!(
                        kind,
                        Kind::Data {
                            part: Part::Middle | Part::Last,
                            ..
                        } | Kind::Unknown(_)
                    );
                    if let Some(offset) = start
                        && is_start
                    {
                        // Old writers left an empty first part at the end of a block.
                        if !out.is_empty() {
                            return Ok(self.unfinished(offset, here));
                        }
                        start = None;
                    }
                    match kind {
                        Kind::Data { part, recyclable } => {
                            if start.is_none() && !part.is_start() {
                                return self.damage(here, DamageReason::MissingStart, here);
                            }
                            self.recyclable = Some(recyclable);
                            let (rest, _) = self.blocks.rest(here)?;
                            memory::append(out, &rest[header_len..header_len + len], "log record")?;
                            self.at = end;
                            let offset = *start.get_or_insert(here);
                            if matches!(part, Part::Full | Part::Last) {
                                self.valid_until = end;
                                return Ok(ReadOutcome::Record { offset });
                            }
                        }
                        Kind::SetCompression => {
                            self.check_compression(here, header_len)?;
                            (self.at, self.valid_until) = (end, end);
                        }
                        Kind::Skippable => (self.at, self.valid_until) = (end, end),
                        Kind::Unknown(t) => {
                            let offset = start.unwrap_or(here);
                            return self.damage(offset, DamageReason::UnknownType(t), here);
                        }
                    }
                }
                Physical::Bad { reason, .. } => {
                    return self.damage(start.unwrap_or(here), reason, here);
                }
                met @ (Physical::Zeros | Physical::Old | Physical::End) => {
                    if let Some(offset) = start {
                        return self.damage(offset, DamageReason::MissingEnd, here);
                    }
                    let reason = match met {
                        Physical::Old => DamageReason::OldRecord,
                        _ => DamageReason::Hole,
                    };
                    let beyond = self.look_beyond(here)?;
                    if beyond.is_certain_damage || beyond.has_rest {
                        return Ok(self.go_on(here, reason, &beyond));
                    }
                    self.ends_before_old_record = matches!(met, Physical::Old);
                    self.ended_clean = Some(true);
                }
            }
        }
        let clean = self.ended_clean.unwrap_or(true);
        Ok(ReadOutcome::EndOfLog {
            clean,
            valid_until: self.valid_until,
        })
    }

    /// The end of the last good record so far.
    #[must_use]
    pub fn valid_until(&self) -> u64 {
        self.valid_until
    }

    /// True if reading ended before a whole record of a former use of the file: where records of this log stood there that
    /// never reached the disk, nothing else tells.
    #[must_use]
    pub fn ends_before_old_record(&self) -> bool {
        self.ends_before_old_record
    }

    /// The error that `damage` is to somebody who cannot go on.
    #[must_use]
    pub fn error(&self, damage: &Damage) -> Error {
        let error = Error::corruption(damage.reason.name())
            .with("file", self.blocks.path().display())
            .with("offset", damage.offset)
            .with("bytes_dropped", damage.bytes_dropped)
            .with("at_tail", damage.is_tail);
        match damage.reason {
            DamageReason::UnknownType(t) => error.with("type", t),
            _ => error,
        }
    }

    /// What stands at `at`, in the format that this log has.
    fn physical(&mut self, at: u64) -> Result<Physical> {
        let (log_number, format) = (self.log_number, self.recyclable);
        let (rest, ends_file) = self.blocks.rest(at)?;
        Ok(in_format(parse(rest, ends_file, log_number), format))
    }

    fn check_compression(&mut self, at: u64, header_len: usize) -> Result<()> {
        let (rest, _) = self.blocks.rest(at)?;
        let number = get_fixed32(&rest[header_len..]);
        if number == Some(0) {
            return Ok(());
        }
        Err(Error::not_supported("compressed write-ahead log")
            .with("file", self.blocks.path().display())
            .with("compression_type", number.unwrap_or(u32::MAX)))
    }

    /// The record from `offset` on has no end, but another begins at `next`.
    fn unfinished(&mut self, offset: u64, next: u64) -> ReadOutcome {
        let beyond = Beyond {
            resume: Some(next),
            is_certain_damage: true,
            has_rest: false,
        };
        self.go_on(offset, DamageReason::MissingEnd, &beyond)
    }

    /// The record from `offset` on cannot be used for what stands at `bad`.
    fn damage(&mut self, offset: u64, reason: DamageReason, bad: u64) -> Result<ReadOutcome> {
        let beyond = self.look_beyond(bad)?;
        Ok(self.go_on(offset, reason, &beyond))
    }

    fn go_on(&mut self, offset: u64, reason: DamageReason, beyond: &Beyond) -> ReadOutcome {
        if beyond.resume.is_none() {
            self.ended_clean = Some(false);
        }
        self.at = beyond.resume.unwrap_or_else(|| self.blocks.size());
        ReadOutcome::Damage(Damage {
            offset,
            reason,
            bytes_dropped: self.at.saturating_sub(offset),
            is_tail: !beyond.is_certain_damage,
        })
    }

    /// Looks for records of this log behind what stands at `bad`.
    fn look_beyond(&mut self, bad: u64) -> Result<Beyond> {
        let (mut next, is_certain_damage) = self.step_over(bad)?;
        let mut has_rest = false;
        loop {
            match self.physical(next)? {
                Physical::Record {
                    kind,
                    header_len,
                    len,
                } => {
                    // What goes on from a part that is not there may be the rest of a record that was being written: its blocks
                    // reach the disk in any order.
                    let is_rest = matches!(
                        kind,
                        Kind::Data {
                            part: Part::Middle | Part::Last,
                            ..
                        }
                    );
                    if !is_rest {
                        return Ok(Beyond {
                            resume: Some(next),
                            is_certain_damage: true,
                            has_rest,
                        });
                    }
                    has_rest = true;
                    next += (header_len + len) as u64;
                }
                Physical::End => {
                    return Ok(Beyond {
                        resume: None,
                        is_certain_damage,
                        has_rest,
                    });
                }
                _ => next = Blocks::next_block(next),
            }
        }
    }

    /// The first place behind what stands at `bad` where a record may begin, and whether it is
    /// known already that this is no torn write.
    fn step_over(&mut self, bad: u64) -> Result<(u64, bool)> {
        let met = self.physical(bad)?;
        let (log_number, format) = (self.log_number, self.recyclable);
        let (rest, ends_file) = self.blocks.rest(bad)?;
        let here = |at: usize| in_format(parse(&rest[at..], ends_file, log_number), format);
        let is_record = |at: usize| matches!(here(at), Physical::Record { .. });
        match met {
            Physical::End | Physical::Padding => {}
            Physical::Record {
                header_len, len, ..
            } => {
                return Ok((bad + (header_len + len) as u64, true));
            }
            Physical::Bad {
                reason: DamageReason::BadLogNumber,
                claimed,
            } => {
                // Not certain: a header may be torn before its number.
                return Ok((bad + claimed as u64, false));
            }
            Physical::Bad {
                reason: DamageReason::TruncatedHeader,
                ..
            } => {}
            Physical::Bad { reason, claimed } => {
                if claimed <= rest.len() && is_record(claimed) {
                    return Ok((bad + claimed as u64, true));
                }
                let is_boundary = |rest: &[u8]| {
                    let met = in_format(parse(rest, ends_file, log_number), format);
                    !matches!(met, Physical::Bad { .. })
                };
                if let Some(end) = true_end(rest, is_boundary) {
                    return Ok((bad + end as u64, true));
                }
                if let Some(end) = end_if_one_bit_is_wrong(rest) {
                    return Ok((bad + end as u64, true));
                }
                // A cut-off record has only its own bytes behind it. Else, a record anywhere in
                // the block proves that the log went on, but only a block's start is trusted
                // enough to go on from: a value may hold a piece of a log.
                if reason != DamageReason::TruncatedBody && (1..rest.len()).any(is_record) {
                    return Ok((Blocks::next_block(bad), true));
                }
            }
            Physical::Zeros | Physical::Old => {
                if (1..rest.len()).any(is_record) {
                    return Ok((Blocks::next_block(bad), true));
                }
            }
        }
        Ok((Blocks::next_block(bad), false))
    }
}

/// A log has one format: an intact record of the other one is not of this log.
fn in_format(met: Physical, format: Option<bool>) -> Physical {
    match met {
        Physical::Record {
            kind: Kind::Data { recyclable, .. },
            header_len,
            len,
        } if format.is_some_and(|f| f != recyclable) => Physical::Bad {
            reason: DamageReason::MixedFormats,
            claimed: header_len + len,
        },
        met => met,
    }
}

#[cfg(test)]
mod tests;
