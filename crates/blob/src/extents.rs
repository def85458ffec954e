//! What of a file is dead, by what of it lives.

use orogen_base::{Error, Result};

use crate::format::{HEADER_LEN, HOLE_BLOCK, VERSION_WITH_DICTIONARY};
use crate::meta::Extent;
use crate::pointer::BlobPointer;
use crate::reader::BlobFileReader;

impl BlobPointer {
    /// Where the record of the value stands, under a user key of so many bytes.
    #[must_use]
    pub fn record_extent(&self, key_len: usize) -> Option<Extent> {
        let offset = self.record_offset(key_len)?;
        Some(Extent {
            offset,
            size: self.record_len(key_len),
        })
    }
}

impl Extent {
    /// The whole blocks in it, of `block_size` bytes in the file system that has the file and of
    /// [`HOLE_BLOCK`] at least, in which space can be given up; `None` if there are none.
    #[must_use]
    pub fn whole_blocks(&self, block_size: u64) -> Option<Self> {
        let block_size = block_size.max(HOLE_BLOCK);
        let offset = self.offset.next_multiple_of(block_size);
        let end = self.end() / block_size * block_size;
        (end > offset).then(|| Self {
            offset,
            size: end - offset,
        })
    }
}

/// The stretches between header and footer that belong neither to a record of `live` nor to a meta
/// record, in the order of the file and as long as they can be: records that nothing points to, and
/// the padding around them.
///
/// `live` is sorted. Its records are all those that any pointer leads to, in any version that is
/// still held: what is not among them may be given up.
///
/// # Errors
/// `Corruption` if live records overlap or lie outside the file, and if the file has meta records
/// that cannot be read, or a dictionary and nothing that leads to it: nothing of it may then be given up. `Io`.
pub fn dead_extents(reader: &BlobFileReader, live: &mut [Extent]) -> Result<Vec<Extent>> {
    if reader.is_plain() && reader.header().version == VERSION_WITH_DICTIONARY {
        // The dictionary is found as the first record, but the other meta records would be taken for dead ones.
        let error = Error::corruption("end of a blob file with a dictionary leads to none");
        return Err(reader.locate(error, reader.records_end()));
    }
    live.sort_unstable();
    let index = reader.meta_index()?;
    let meta: Vec<Extent> = index.iter().flat_map(|i| i.extents()).collect();
    let (mut live, mut meta) = (live.iter().peekable(), meta.iter().peekable());
    let mut dead = Vec::new();
    let mut next = HEADER_LEN as u64;
    let end = match &index {
        // Behind it stands the footer.
        Some(index) => index.tail.end(),
        None => reader.records_end(),
    };
    loop {
        let kept = match (live.peek(), meta.peek()) {
            (Some(l), Some(m)) if l < m => live.next(),
            (Some(_), None) => live.next(),
            (_, Some(_)) => meta.next(),
            (None, None) => break,
        };
        let Some(kept) = kept else { break };
        if kept.offset < next || kept.end() > end {
            let error = Error::corruption("live blob record overlaps another or leaves its file");
            return Err(reader.locate(error.with("size", kept.size), kept.offset));
        }
        push(&mut dead, next, kept.offset);
        next = kept.end();
    }
    push(&mut dead, next, end);
    Ok(dead)
}

fn push(dead: &mut Vec<Extent>, from: u64, to: u64) {
    if to > from {
        dead.push(Extent {
            offset: from,
            size: to - from,
        });
    }
}
