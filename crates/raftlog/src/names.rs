//! Queues, numbers and names of files.
//!
//! A directory holds two queues of files. A name is the number in 16 decimal digits and a suffix:
//! `.raftlog` for what callers append, `.rewrite` for what the collector has moved,
//! `.raftlog.reserved` for spare files, which are none of a queue. Names of other shapes are not
//! ours and are left alone. `.raftlog.digest` stands behind the number of a file of the append queue of which it tells, and `.tmp` behind that
//! of a file that is being copied.

use std::cmp::Ordering;

/// One of the two sequences of files. The number of a file counts in its queue.
///
/// The append queue is the greater one: what it says is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Queue {
    /// What callers write.
    Append = 0,
    /// What the collector moved out of old files.
    Rewrite = 1,
}

impl Ord for Queue {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |queue: &Self| *queue as u8;
        number(other).cmp(&number(self))
    }
}

impl PartialOrd for Queue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A file by queue and number. Any file of the append queue is newer than any of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Where it belongs.
    pub queue: Queue,
    /// Its number there; 1 is the first.
    pub seq: u64,
}

/// The file whose lock keeps other processes out. A directory of that name keeps out all: the log is a [fork](crate::fork) that is being made.
pub(crate) const LOCK_NAME: &str = "LOCK";

const DIGITS: usize = 16;

/// Numbers of files are smaller: behind them there is room for more than are ever made, and a name has 16 digits.
pub(crate) const SEQ_END: u64 = 1_000_000_000_000_000;
const APPEND_SUFFIX: &str = ".raftlog";
const REWRITE_SUFFIX: &str = ".rewrite";
const RESERVED_SUFFIX: &str = ".raftlog.reserved";
const DIGEST_SUFFIX: &str = ".raftlog.digest";
const TEMPORARY_SUFFIX: &str = ".tmp";

impl FileId {
    /// File number `seq` of a queue.
    #[must_use]
    pub fn new(queue: Queue, seq: u64) -> Self {
        Self { queue, seq }
    }

    pub(crate) fn name(self) -> String {
        let suffix = match self.queue {
            Queue::Append => APPEND_SUFFIX,
            Queue::Rewrite => REWRITE_SUFFIX,
        };
        format!("{:016}{suffix}", self.seq)
    }

    /// The name of a copy until it has its own name.
    pub(crate) fn temporary_name(self) -> String {
        format!("{:016}{TEMPORARY_SUFFIX}", self.seq)
    }

    /// The name of the digest of a file of the append queue.
    pub(crate) fn digest_name(self) -> String {
        format!("{:016}{DIGEST_SUFFIX}", self.seq)
    }
}

/// The name of a spare file.
pub(crate) fn reserved_name(number: u64) -> String {
    format!("{number:016}{RESERVED_SUFFIX}")
}

/// What a name in the directory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Log(FileId),
    /// A spare file, numbered by itself.
    Reserved(u64),
    /// The digest of the file of the append queue with this number.
    Digest(u64),
    /// What was to be a copy of a file with this number.
    Temporary(u64),
    Other,
}

pub(crate) fn parse(name: &str) -> Name {
    let Some((digits, suffix)) = name.split_at_checked(DIGITS) else {
        return Name::Other;
    };
    // `parse` alone would take a sign.
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Name::Other;
    }
    let Ok(seq) = digits.parse() else {
        return Name::Other;
    };
    match suffix {
        APPEND_SUFFIX => Name::Log(FileId::new(Queue::Append, seq)),
        REWRITE_SUFFIX => Name::Log(FileId::new(Queue::Rewrite, seq)),
        RESERVED_SUFFIX => Name::Reserved(seq),
        DIGEST_SUFFIX => Name::Digest(seq),
        TEMPORARY_SUFFIX => Name::Temporary(seq),
        _ => Name::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_were_made_of() {
        for id in [
            FileId::new(Queue::Append, 1),
            FileId::new(Queue::Rewrite, 9_999_999_999_999_999),
        ] {
            assert_eq!(parse(&id.name()), Name::Log(id));
        }
        assert_eq!(
            FileId::new(Queue::Append, 42).name(),
            "0000000000000042.raftlog"
        );
        assert_eq!(reserved_name(7), "0000000000000007.raftlog.reserved");
        assert_eq!(
            parse("0000000000000007.raftlog.reserved"),
            Name::Reserved(7)
        );
        let digest = FileId::new(Queue::Append, 7).digest_name();
        assert_eq!(digest, "0000000000000007.raftlog.digest");
        assert_eq!(parse(&digest), Name::Digest(7));
        let copy = FileId::new(Queue::Rewrite, 7).temporary_name();
        assert_eq!(copy, "0000000000000007.tmp");
        assert_eq!(parse(&copy), Name::Temporary(7));
    }

    #[test]
    fn other_names_are_not_ours() {
        for name in [
            "LOCK",
            "swap",
            "",
            "0000000000000001.raftlog.bak",
            "+000000000000001.raftlog",
            "00000000000001.raftlog",
            "00000000000000001.raftlog",
            "000000000000001\u{e9}.raftlog",
        ] {
            assert_eq!(parse(name), Name::Other, "{name}");
        }
        assert!(FileId::new(Queue::Append, 1) > FileId::new(Queue::Rewrite, 2));
    }
}
