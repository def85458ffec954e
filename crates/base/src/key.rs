//! Internal keys: a user key, a sequence number and what kind of write it was.
//!
//! ```text
//! user key (any bytes) | fixed64 little-endian: sequence number << 8 | kind
//! ```
//! Order: user key rising, then sequence number falling, then kind falling, so the newest
//! version of a key comes first. Source: RocksDB `db/dbformat.h`.

use std::cmp::Ordering;
use std::fmt;

use crate::comparator::UserComparator;
use crate::error::{Error, Result};
use crate::seqno::{SEQNO_MAX, SeqNo};

/// Bytes after the user key.
pub const TRAILER_LEN: usize = 8;

/// What a write did. The numbers are RocksDB's and stand in WAL, memtable and SST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ValueKind {
    /// A point tombstone.
    Deletion = 0x0,
    /// A value.
    Value = 0x1,
    /// An operand for the merge operator.
    Merge = 0x2,
    /// A tombstone that cancels exactly one value.
    SingleDeletion = 0x7,
    /// A range tombstone: key is the start, value the end.
    RangeDeletion = 0xf,
    /// A pointer into a blob file.
    BlobIndex = 0x11,
}

impl ValueKind {
    /// The kind with this number, if Orogen reads it.
    #[inline]
    #[must_use]
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0x0 => Self::Deletion,
            0x1 => Self::Value,
            0x2 => Self::Merge,
            0x7 => Self::SingleDeletion,
            0xf => Self::RangeDeletion,
            0x11 => Self::BlobIndex,
            _ => return None,
        })
    }
}

/// The largest kind number: with it a seek finds every kind at its sequence number.
pub const KIND_FOR_SEEK: u8 = 0x7f;

/// Sequence number and kind in one number.
#[inline]
#[must_use]
pub fn pack(seqno: SeqNo, kind: ValueKind) -> u64 {
    debug_assert!(seqno <= SEQNO_MAX);
    (seqno << 8) | kind as u64
}

/// Appends `user_key` with its trailer.
#[inline]
pub fn append_internal_key(out: &mut Vec<u8>, user_key: &[u8], seqno: SeqNo, kind: ValueKind) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&pack(seqno, kind).to_le_bytes());
}

/// The internal key that a seek for `user_key` at `seqno` starts from: the first version that
/// a reader at `seqno` may see.
#[inline]
pub fn append_seek_key(out: &mut Vec<u8>, user_key: &[u8], seqno: SeqNo) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&((seqno << 8) | u64::from(KIND_FOR_SEEK)).to_le_bytes());
}

/// The user key of an internal key.
///
/// # Panics
/// If `key` is shorter than its trailer; readers check that once, when a key enters.
#[inline]
#[must_use]
pub fn user_key(key: &[u8]) -> &[u8] {
    &key[..key.len() - TRAILER_LEN]
}

/// The packed sequence number and kind of an internal key.
///
/// # Panics
/// If `key` is shorter than its trailer.
#[inline]
#[must_use]
pub fn trailer(key: &[u8]) -> u64 {
    let (_, t) = key
        .split_last_chunk::<TRAILER_LEN>()
        .expect("internal keys have a trailer");
    u64::from_le_bytes(*t)
}

/// The sequence number of an internal key.
///
/// # Panics
/// If `key` is shorter than its trailer.
#[inline]
#[must_use]
pub fn seqno_of(key: &[u8]) -> SeqNo {
    trailer(key) >> 8
}

/// An internal key taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ParsedInternalKey<'a> {
    /// The user's key.
    pub user_key: &'a [u8],
    /// When it was written.
    pub seqno: SeqNo,
    /// What was written.
    pub kind: ValueKind,
}

impl<'a> ParsedInternalKey<'a> {
    /// Takes an internal key apart.
    ///
    /// # Errors
    /// `Corruption` if it is too short, `NotSupported` if the kind is not known.
    #[inline]
    pub fn parse(key: &'a [u8]) -> Result<Self> {
        let Some((user_key, t)) = key.split_last_chunk::<TRAILER_LEN>() else {
            return Err(Error::corruption("internal key is too short").with("len", key.len()));
        };
        let t = u64::from_le_bytes(*t);
        match ValueKind::from_u8(t as u8) {
            Some(kind) => Ok(Self {
                user_key,
                seqno: t >> 8,
                kind,
            }),
            None => Err(unknown_kind(t as u8)),
        }
    }

    /// Puts the key together again.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.user_key.len() + TRAILER_LEN);
        append_internal_key(&mut out, self.user_key, self.seqno, self.kind);
        out
    }
}

impl fmt::Debug for ParsedInternalKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}:{:?}",
            self.user_key.escape_ascii(),
            self.seqno,
            self.kind
        )
    }
}

#[cold]
fn unknown_kind(kind: u8) -> Error {
    let name = match kind {
        0x14 => "deletion with timestamp",
        0x16 => "wide-column entity",
        0x18 => "value with preferred sequence number",
        _ => return Error::corruption("unknown value kind in internal key").with("kind", kind),
    };
    Error::not_supported("value kind of another feature").with("kind", name)
}

/// The order of internal keys over an order of user keys.
#[derive(Clone, Debug, Default)]
pub struct InternalKeyComparator {
    /// The order of user keys.
    pub user: UserComparator,
}

impl InternalKeyComparator {
    /// The internal order over `user`.
    #[must_use]
    pub fn new(user: UserComparator) -> Self {
        Self { user }
    }

    /// Orders two internal keys.
    ///
    /// # Panics
    /// If a key is shorter than its trailer.
    #[inline]
    #[must_use]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        self.user
            .compare(user_key(a), user_key(b))
            .then_with(|| trailer(b).cmp(&trailer(a)))
    }

    /// May shorten `start` to an internal key in `[start, limit)`.
    pub fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let (a, b) = (user_key(start), user_key(limit));
        let mut short = a.to_vec();
        self.user.find_shortest_separator(&mut short, b);
        if short.len() < a.len() && self.user.less(a, &short) {
            append_seek_trailer(&mut short);
            *start = short;
        }
    }

    /// May shorten `key` to an internal key that is not before it.
    pub fn find_short_successor(&self, key: &mut Vec<u8>) {
        let a = user_key(key);
        let mut short = a.to_vec();
        self.user.find_short_successor(&mut short);
        if short.len() < a.len() && self.user.less(a, &short) {
            append_seek_trailer(&mut short);
            *key = short;
        }
    }
}

/// RocksDB's largest kind as of 8.x, which its index separators carry.
const KIND_IN_SEPARATORS: u64 = 0x18;

fn append_seek_trailer(user_key: &mut Vec<u8>) {
    user_key.extend_from_slice(&((SEQNO_MAX << 8) | KIND_IN_SEPARATORS).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first() {
        let c = InternalKeyComparator::default();
        let k = |u: &[u8], s, v| {
            ParsedInternalKey {
                user_key: u,
                seqno: s,
                kind: v,
            }
            .encode()
        };
        let sorted = [
            k(b"", 9, ValueKind::Value),
            k(b"a", 7, ValueKind::Value),
            k(b"a", 7, ValueKind::Deletion),
            k(b"a", 3, ValueKind::Merge),
            k(b"b", 100, ValueKind::Value),
        ];
        for w in sorted.windows(2) {
            assert_eq!(c.compare(&w[0], &w[1]), Ordering::Less);
        }
        let mut seek = Vec::new();
        append_seek_key(&mut seek, b"a", 7);
        assert_eq!(c.compare(&sorted[0], &seek), Ordering::Less);
        assert_eq!(c.compare(&seek, &sorted[1]), Ordering::Less);
    }

    #[test]
    fn short_and_unknown_keys_are_errors() {
        assert!(ParsedInternalKey::parse(b"1234567").is_err());
        let error = ParsedInternalKey::parse(&[b'k', 0x16, 0, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotSupported);
    }
}
