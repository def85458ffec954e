//! A version drawn as text, and read from it: for debugging, and for tests.
//!
//! ```text
//! L0
//!   12: a@5..m@3 size=100 seq=3..5 epoch=2
//! L1
//!   7: c@1:Merge..f@MAX:RangeDeletion size=2048 seq=0..1 epoch=1 marked compacting blob=4
//! ```
//! A key is `user key[@sequence number[:kind]]`; bytes of the user key other than letters,
//! digits, `_` and `-` are written as `\xNN`. Only `number: smallest..largest` must be there.
//! What is left out: a sequence number is 0, a kind `Value`, the size 1, `seq` the least and the
//! greatest of the two keys, the epoch number the file number.

use std::fmt::Write;
use std::sync::Arc;

use orogen_base::key::{
    InternalKeyComparator, ParsedInternalKey, TRAILER_LEN, ValueKind, seqno_of, trailer, user_key,
};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, Result};

use super::builder::VersionBuilder;
use super::edit::VersionEdit;
use super::file_meta::FileMeta;
use super::version::Version;

const KINDS: [(&str, ValueKind); 6] = [
    ("Deletion", ValueKind::Deletion),
    ("Value", ValueKind::Value),
    ("Merge", ValueKind::Merge),
    ("SingleDeletion", ValueKind::SingleDeletion),
    ("RangeDeletion", ValueKind::RangeDeletion),
    ("BlobIndex", ValueKind::BlobIndex),
];

/// The levels that have files, each file on a line.
#[must_use]
pub fn draw(version: &Version) -> String {
    let mut out = String::new();
    for (n, level) in version
        .levels()
        .iter()
        .enumerate()
        .filter(|(_, l)| !l.is_empty())
    {
        let _ = writeln!(out, "L{n}");
        for f in level.files() {
            let _ = writeln!(out, "  {}", draw_file(f));
        }
    }
    out
}

/// One file as it stands in a drawing.
#[must_use]
pub fn draw_file(f: &FileMeta) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "{}: {}..{}",
        f.number,
        draw_key(&f.smallest),
        draw_key(&f.largest)
    );
    let _ = write!(out, " size={} seq={}", f.size, draw_seqno(f.smallest_seqno));
    let _ = write!(
        out,
        "..{} epoch={}",
        draw_seqno(f.largest_seqno),
        f.epoch_number
    );
    if f.marked_for_compaction {
        out.push_str(" marked");
    }
    if f.being_compacted.get() {
        out.push_str(" compacting");
    }
    if f.oldest_blob_file_number != 0 {
        let _ = write!(out, " blob={}", f.oldest_blob_file_number);
    }
    out
}

fn draw_key(key: &[u8]) -> String {
    let mut out = String::new();
    if key.len() < TRAILER_LEN {
        let _ = write!(out, "damaged(\"{}\")", key.escape_ascii());
        return out;
    }
    for &b in user_key(key) {
        if b.is_ascii_alphanumeric() || b == b'_' || b == b'-' {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "\\x{b:02x}");
        }
    }
    let _ = write!(out, "@{}", draw_seqno(seqno_of(key)));
    match ValueKind::from_u8(trailer(key) as u8) {
        Some(ValueKind::Value) => {}
        Some(kind) => drop(write!(out, ":{kind:?}")),
        None => drop(write!(out, ":{}", trailer(key) as u8)),
    }
    out
}

fn draw_seqno(seqno: u64) -> String {
    if seqno == SEQNO_MAX {
        "MAX".to_owned()
    } else {
        seqno.to_string()
    }
}

/// Reads a drawing.
///
/// # Errors
/// `InvalidArgument` naming the line; `Corruption` if the files do not make a version.
pub fn parse(icmp: &InternalKeyComparator, num_levels: usize, drawing: &str) -> Result<Version> {
    let base = Arc::new(Version::empty(icmp.clone(), num_levels));
    let mut edit = VersionEdit::default();
    let mut level = None;
    for line in drawing.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let bad = || Error::invalid_argument("cannot read a version's drawing").with("line", line);
        if let Some(n) = line.strip_prefix('L') {
            level = Some(n.parse().map_err(|_| bad())?);
            continue;
        }
        let file = parse_file(line).ok_or_else(bad)?;
        edit.add_file(level.ok_or_else(bad)?, Arc::new(file));
    }
    let mut builder = VersionBuilder::new(&base);
    builder.apply(&edit)?;
    builder.build()
}

/// Reads one file's line.
#[must_use]
pub fn parse_file(line: &str) -> Option<FileMeta> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let mut words = rest.split_whitespace();
    let (smallest, largest) = words.next()?.split_once("..")?;
    let (smallest, largest) = (parse_key(smallest)?, parse_key(largest)?);
    let (a, b) = (seqno_of(&smallest), seqno_of(&largest));
    let mut file = FileMeta {
        number,
        size: 1,
        smallest_seqno: a.min(b),
        largest_seqno: a.max(b),
        epoch_number: number,
        smallest,
        largest,
        ..FileMeta::default()
    };
    for word in words {
        match word.split_once('=') {
            None if word == "marked" => file.marked_for_compaction = true,
            None if word == "compacting" => file.being_compacted.set(true),
            Some(("size", v)) => file.size = v.parse().ok()?,
            Some(("epoch", v)) => file.epoch_number = v.parse().ok()?,
            Some(("blob", v)) => file.oldest_blob_file_number = v.parse().ok()?,
            Some(("seq", v)) => {
                let (from, to) = v.split_once("..")?;
                file.smallest_seqno = parse_seqno(from)?;
                file.largest_seqno = parse_seqno(to)?;
            }
            _ => return None,
        }
    }
    Some(file)
}

fn parse_key(s: &str) -> Option<Vec<u8>> {
    let (user_key, version) = s.split_once('@').unwrap_or((s, "0"));
    let (seqno, kind) = version.split_once(':').unwrap_or((version, "Value"));
    let kind = KINDS.iter().find(|(name, _)| *name == kind)?.1;
    let user_key = parse_user_key(user_key)?;
    let seqno = parse_seqno(seqno)?;
    Some(
        ParsedInternalKey {
            user_key: &user_key,
            seqno,
            kind,
        }
        .encode(),
    )
}

fn parse_user_key(s: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(s.len());
    let mut rest = s;
    while let Some((plain, escaped)) = rest.split_once("\\x") {
        out.extend_from_slice(plain.as_bytes());
        let (digits, after) = escaped.split_at_checked(2)?;
        out.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    out.extend_from_slice(rest.as_bytes());
    Some(out)
}

fn parse_seqno(s: &str) -> Option<u64> {
    if s == "MAX" {
        return Some(SEQNO_MAX);
    }
    s.parse().ok().filter(|&n| n <= SEQNO_MAX)
}
