//! Keys that a transaction has noted, in the order in which it did. `Hot path`: nothing is allocated for each.
//!
//! ```text
//! keys:  number 8 | key length 4 | family 4 | key       one behind the other
//! index: family 4, most significant byte first | key    which of them are there
//! ```
//! Ranges lie apart, each with memory of its own: there are few.

use orogen_base::{Result, SeqNo, memory};
use orogen_engine::ColumnFamily;
use orogen_trie::{BLOCK_MAX, LocalTrie, Root};

const ROOT: Root = Root(0);
const HEAD: usize = 8 + 4;
const FAMILY: usize = 4;
const WHAT: &str = "keys of a transaction";

/// A key that was noted.
pub(super) struct Noted<'a> {
    pub(super) family: u32,
    pub(super) key: &'a [u8],
    /// The newest write to it that there was, or that was seen.
    pub(super) seen: SeqNo,
}

/// A range of keys that was noted.
pub(super) struct NotedRange {
    pub(super) family: ColumnFamily,
    pub(super) start: Vec<u8>,
    /// It is not in the range.
    pub(super) end: Vec<u8>,
    /// The newest write that there was, or that was seen.
    pub(super) seen: SeqNo,
}

/// Keys that must not be written after the numbers that they have.
#[derive(Default)]
pub(super) struct Tracked {
    families: Vec<ColumnFamily>,
    keys: Vec<u8>,
    count: usize,
    /// Made with the first key.
    index: Option<Box<LocalTrie>>,
    ranges: Vec<NotedRange>,
}

/// Where a list of noted keys ended.
#[derive(Clone, Copy)]
pub(super) struct End {
    bytes: usize,
    count: usize,
    ranges: usize,
}

impl Tracked {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn end(&self) -> End {
        End {
            bytes: self.keys.len(),
            count: self.count,
            ranges: self.ranges.len(),
        }
    }

    /// Notes a key if it is not noted yet, with the number that `seen` gives then.
    ///
    /// # Errors
    /// `NoMemory`, `InvalidArgument` of a key of 2 GiB: it is not noted.
    pub(super) fn note(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        seen: impl FnOnce() -> SeqNo,
    ) -> Result<()> {
        let id = family.id();
        if !self.families.iter().any(|f| f.id() == id) {
            memory::push(&mut self.families, family.clone(), WHAT)?;
        }
        let index = match &mut self.index {
            Some(index) => index,
            none => none.insert(Box::new(LocalTrie::new(BLOCK_MAX, 0, 1)?)),
        };
        let before = self.keys.len();
        memory::reserve(&mut self.keys, HEAD + FAMILY + key.len(), WHAT)?;
        self.keys.extend_from_slice(&[0; HEAD]);
        self.keys.extend_from_slice(&id.to_be_bytes());
        self.keys.extend_from_slice(key);
        let is_new = index.insert(ROOT, &self.keys[before + HEAD..], &[]);
        let is_new = is_new.map(|(_, is_new)| is_new);
        if !matches!(is_new, Ok(true)) {
            self.keys.truncate(before);
            return is_new.map(|_| ());
        }
        self.keys[before..before + 8].copy_from_slice(&seen().to_le_bytes());
        self.keys[before + 8..before + HEAD].copy_from_slice(&(key.len() as u32).to_le_bytes());
        self.count += 1;
        Ok(())
    }

    /// Notes the keys from `start` up to but not including `end`, with the number `seen`. What was noted before keeps its own.
    ///
    /// # Errors
    /// `NoMemory`: it is not noted.
    pub(super) fn note_range(
        &mut self,
        family: &ColumnFamily,
        start: &[u8],
        end: &[u8],
        seen: SeqNo,
    ) -> Result<()> {
        let range = NotedRange {
            family: family.clone(),
            start: memory::copied(start, WHAT)?,
            end: memory::copied(end, WHAT)?,
            seen,
        };
        memory::push(&mut self.ranges, range, WHAT)
    }

    /// All ranges.
    pub(super) fn ranges(&self) -> &[NotedRange] {
        &self.ranges
    }

    /// All keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = Noted<'_>> {
        let mut rest = &self.keys[..];
        std::iter::from_fn(move || {
            let (noted, behind) = split(rest)?;
            rest = behind;
            Some(noted)
        })
    }

    /// The family of a noted key.
    pub(super) fn family(&self, noted: &Noted<'_>) -> &ColumnFamily {
        let family = self.families.iter().find(|f| f.id() == noted.family);
        family.expect("it was noted with its family")
    }

    /// Forgets keys and ranges behind `end`.
    pub(super) fn truncate(&mut self, end: End) {
        let mut at = end.bytes;
        while let Some((noted, _)) = split(&self.keys[at..]) {
            let whole = at + HEAD..at + HEAD + FAMILY + noted.key.len();
            if let Some(index) = &mut self.index {
                index.remove(ROOT, &self.keys[whole.clone()]);
            }
            at = whole.end;
        }
        self.keys.truncate(end.bytes);
        self.count = end.count;
        self.ranges.truncate(end.ranges);
    }

    pub(super) fn clear(&mut self) {
        self.families.clear();
        self.keys.clear();
        self.count = 0;
        self.ranges.clear();
        if let Some(index) = &mut self.index {
            index.clear();
        }
    }
}

/// The first of them, and the others.
fn split(keys: &[u8]) -> Option<(Noted<'_>, &[u8])> {
    let (seen, rest) = keys.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (family, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let noted = Noted {
        family: u32::from_be_bytes(*family),
        key,
        seen: SeqNo::from_le_bytes(*seen),
    };
    Some((noted, rest))
}
