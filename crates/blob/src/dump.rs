//! A blob file piece by piece, for tools that look at a file and for checking all of it.
//!
//! Every byte between header and footer belongs to a piece.

use orogen_base::{Error, ErrorKind, Result};
use orogen_codec::decompressed_len;

use crate::cursor::BlobRecord;
use crate::format::META_MARK;
use crate::meta::{self, Extent};
use crate::reader::BlobFileReader;

/// What stands at a place of a file.
pub enum Piece<'p> {
    /// A record of the user.
    Record(BlobRecord<'p>),
    /// A record that is not the user's.
    Meta {
        /// Its name.
        name: &'p [u8],
        /// Where it stands.
        extent: Extent,
    },
    /// Nothing: padding, or space that was given up.
    Zeros(Extent),
    /// Records that nobody points to any more, and of which whole blocks were given up.
    Hole(Extent),
    /// What cannot be read, up to where something can.
    Damage {
        /// Where it stands.
        extent: Extent,
        /// What is wrong with its beginning.
        error: &'p Error,
    },
}

/// What a file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpSummary {
    /// Records of the user.
    pub records: u64,
    /// Bytes of these records, as the MANIFEST counts them.
    pub record_bytes: u64,
    /// Bytes of their keys.
    pub key_bytes: u64,
    /// Bytes of their values as stored.
    pub stored_bytes: u64,
    /// Bytes of their values before compression, as they claim; 0 where values are not read.
    pub raw_bytes: u64,
    /// Bytes of meta records.
    pub meta_bytes: u64,
    /// Bytes of zeros between records.
    pub zero_bytes: u64,
    /// Bytes of records of which blocks were given up.
    pub hole_bytes: u64,
    /// Damaged places.
    pub damages: u64,
    /// Their bytes.
    pub damaged_bytes: u64,
}

/// Shows each piece of the file in its order.
///
/// Without values, they are neither read nor verified.
///
/// # Errors
/// What `visit` gives; `Io`. Damage is a piece. A file that was not finished ends at its first
/// damage, and the rest of it is one.
pub fn dump(
    reader: &BlobFileReader,
    with_values: bool,
    visit: &mut dyn FnMut(Piece<'_>) -> Result<()>,
) -> Result<DumpSummary> {
    let mut cursor = match with_values {
        true => reader.records(),
        false => reader.keys(),
    };
    let mut summary = DumpSummary::default();
    // Everything before was shown.
    let mut shown = cursor.position();
    loop {
        match cursor.step() {
            Ok(Some((at, header))) => {
                shown = show_zeros(shown, at, &mut summary, visit)?;
                let size = header.record_len().unwrap_or(0);
                if header.expiration == META_MARK {
                    summary.meta_bytes += size;
                    let extent = Extent { offset: at, size };
                    let key = cursor.key(at, &header)?;
                    let name = meta::split_key(key).map_or(&b""[..], |(name, _)| name);
                    visit(Piece::Meta { name, extent })?;
                } else {
                    let record = cursor.record(at, header)?;
                    summary.records += 1;
                    summary.record_bytes += size;
                    summary.key_bytes += header.key_len;
                    summary.stored_bytes += header.value_len;
                    if let Some(stored) = record.stored() {
                        let codec = reader.header().codec;
                        summary.raw_bytes += decompressed_len(codec, stored).unwrap_or(0);
                    }
                    visit(Piece::Record(record))?;
                }
                shown += size;
            }
            Ok(None) if cursor.is_at_damage() => {
                let error = Error::corruption("unfinished blob file ends before its last byte");
                let error = reader.locate(error, cursor.position());
                let end = cursor.end();
                return show_damage(shown, end, &error, &mut summary, visit).map(|()| summary);
            }
            Ok(None) => {
                let end = cursor.end();
                return show_zeros(shown, end, &mut summary, visit).map(|_| summary);
            }
            Err(e) if e.kind() == ErrorKind::Corruption => {
                shown = show_zeros(shown, cursor.position(), &mut summary, visit)?;
                let is_hole = cursor.is_at_hole()?;
                cursor.skip_damage()?;
                let end = cursor.position();
                if is_hole {
                    let size = end - shown;
                    summary.hole_bytes += size;
                    visit(Piece::Hole(Extent {
                        offset: shown,
                        size,
                    }))?;
                    shown = end;
                    continue;
                }
                show_damage(shown, end, &e, &mut summary, visit)?;
                shown = end;
            }
            Err(e) => return Err(e),
        }
    }
}

fn show_zeros(
    from: u64,
    to: u64,
    summary: &mut DumpSummary,
    visit: &mut dyn FnMut(Piece<'_>) -> Result<()>,
) -> Result<u64> {
    if to > from {
        let size = to - from;
        summary.zero_bytes += size;
        visit(Piece::Zeros(Extent { offset: from, size }))?;
    }
    Ok(to.max(from))
}

fn show_damage(
    from: u64,
    to: u64,
    error: &Error,
    summary: &mut DumpSummary,
    visit: &mut dyn FnMut(Piece<'_>) -> Result<()>,
) -> Result<()> {
    let size = to.saturating_sub(from);
    summary.damages += 1;
    summary.damaged_bytes += size;
    let extent = Extent { offset: from, size };
    visit(Piece::Damage { extent, error })
}
