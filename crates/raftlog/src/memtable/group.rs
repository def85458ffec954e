//! One group: where its entries lie, its keys, and what the rewrite queue shows of it.
//!
//! Files of the append queue go away, and with them the records that said what is gone. So beside
//! the truth a group knows its [`Shadow`]: what one would find who read the rewrite queue alone. What
//! stands there and is not true any more needs a tombstone there before the file that holds the
//! one of the append queue may be deleted. Invariants:
//!
//! 1. The entries that lie in the rewrite queue are the first `rewritten` ones.
//! 2. Each of them, and each key that lies there, is part of the shadow, and at the same place.
//!    What stood in files that went because nothing in them lives may still be part of it.
//! 3. Only purge changes what the rewrite queue holds; it says so by [`Group::wrote`] after the sync.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Block;
use super::index::{Index, Piece, Span, missing_after};
use crate::item::{Entries, Op};
use crate::names::{FileId, Queue};

/// What is known of a key.
#[derive(Debug)]
struct Value {
    bytes: Vec<u8>,
    /// Where it was written.
    file: FileId,
    /// Whether the rewrite queue shows the key, with whatever value.
    is_shown: bool,
}

/// What the rewrite queue alone says of a group.
#[derive(Debug, Default)]
struct Shadow {
    /// It shows a former life of the group, of which nothing is true.
    is_stale: bool,
    /// Not 0: the newest file with a record that makes that there is such a group.
    file: u64,
    /// The entries.
    span: Span,
    /// The keys that it shows and the group has not. Those that both have are marked in the group.
    dead: BTreeSet<Vec<u8>>,
}

impl Shadow {
    fn shows(&self) -> bool {
        self.is_stale || self.file > 0
    }

    fn compact(&mut self, index: u64) {
        if index >= self.span.next {
            self.span = Span::default();
        } else {
            self.span.first = self.span.first.max(index);
        }
    }

    /// As [`Index::append`].
    fn append(&mut self, first: u64, next: u64) {
        let follows = !self.span.is_empty() && first >= self.span.first && first <= self.span.next;
        self.span = Span {
            first: if follows { self.span.first } else { first },
            next,
            missing_before: 0,
        };
    }
}

/// What purge has written to the rewrite queue.
#[derive(Debug)]
pub(crate) enum Written {
    /// `Clean`, `Compact` or `Delete`, in a file.
    Tombstone(Op, FileId),
    Entries(Piece),
    /// A key whose value was in one file when it was read, and is now in another.
    Key {
        key: Vec<u8>,
        from: FileId,
        to: FileId,
    },
}

impl Written {
    fn file(&self) -> FileId {
        match self {
            Self::Tombstone(_, file) | Self::Key { to: file, .. } => *file,
            Self::Entries(piece) => piece.block.file,
        }
    }
}

/// A key to write again.
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) file: FileId,
}

/// One group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    index: Index,
    rewritten: u64,
    keys: BTreeMap<Vec<u8>, Value>,
    /// How many keys lie in the rewrite queue.
    rewritten_keys: u64,
    shadow: Shadow,
    /// Not 0: records of the append queue had entries that did not follow on those before them, and this is the index of the first
    /// behind the last such hole.
    missing_before: u64,
    /// What the append queue has put on top of the entries of the rewrite queue, while the directory is
    /// being read: records there may follow on entries that only later ones take away.
    above: Option<Box<Index>>,
}

impl Group {
    pub(crate) fn span(&self) -> Span {
        Span {
            missing_before: self.missing_before,
            ..self.index.span()
        }
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.missing_before > 0
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.keys.is_empty()
    }

    /// Entries that lie in the rewrite queue.
    pub(crate) fn rewritten(&self) -> u64 {
        self.rewritten
    }

    /// Entries and keys that lie in the rewrite queue.
    pub(crate) fn rewritten_items(&self) -> u64 {
        self.rewritten + self.rewritten_keys
    }

    /// Entries and keys.
    pub(crate) fn items(&self) -> u64 {
        self.index.len() + self.keys.len() as u64
    }

    /// Bytes of memory beside its own. The maps' nodes are taken to be three quarters full.
    pub(crate) fn heap_bytes(&self) -> usize {
        let key = size_of::<(Vec<u8>, Value)>() * 4 / 3;
        let keys = self.keys.iter();
        let keys: usize = keys
            .map(|(k, v)| key + k.capacity() + v.bytes.capacity())
            .sum();
        let dead = size_of::<Vec<u8>>() * 4 / 3;
        let shown = self.shadow.dead.iter();
        let shown: usize = shown.map(|k| dead + k.capacity()).sum();
        self.index.heap_bytes() + keys + shown
    }

    /// Does what an item of a record of the append queue says, but for `Clean`.
    pub(crate) fn apply(&mut self, op: Op, block: Block) {
        match op {
            Op::Clean => {}
            Op::Entries(entries) => self.append(&entries, block),
            Op::Compact { index } => {
                let count = self.index.compact(index);
                self.rewritten = self.rewritten.saturating_sub(count);
                let is_empty = self.index.is_empty()
                    && (self.above.as_ref()).is_none_or(|above| above.is_empty());
                self.missing_before = match is_empty {
                    true => 0,
                    false => missing_after(self.missing_before, index),
                };
            }
            Op::Put { key, value } => self.put(key, value, block.file),
            Op::Delete { key } => self.delete(&key),
        }
    }

    fn put(&mut self, key: Vec<u8>, bytes: Vec<u8>, file: FileId) {
        let is_shown = match self.keys.get(&key) {
            Some(old) => {
                self.rewritten_keys -= u64::from(old.file.queue == Queue::Rewrite);
                old.is_shown
            }
            None => self.shadow.dead.remove(&key),
        };
        let value = Value {
            bytes,
            file,
            is_shown,
        };
        self.keys.insert(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        if let Some((key, old)) = self.keys.remove_entry(key) {
            self.rewritten_keys -= u64::from(old.file.queue == Queue::Rewrite);
            if old.is_shown {
                self.shadow.dead.insert(key);
            }
        }
    }

    /// Drops all that it has.
    pub(crate) fn clean(&mut self) {
        self.index.clear();
        self.above = None;
        self.missing_before = 0;
        self.keys.clear();
        self.rewritten = 0;
        self.rewritten_keys = 0;
        self.shadow = Shadow {
            is_stale: self.shadow.shows(),
            ..Shadow::default()
        };
    }

    /// Does what an item of a record says, but for `Clean`, while the directory is being read.
    ///
    /// A record of the append queue may follow on entries that are in neither queue any more,
    /// because later ones take them away. So entries are laid in a layer of their own, and
    /// only take away from those below; what is still apart at the end was not adjacent.
    pub(crate) fn replay(&mut self, op: Op, block: Block) {
        if block.file.queue == Queue::Rewrite {
            self.replay_rewritten(op, block);
            return;
        }
        match op {
            Op::Entries(entries) => self.replay_entries(&entries, block),
            Op::Compact { index } => {
                if let Some(above) = &mut self.above {
                    above.compact(index);
                }
                // Those below end where those above begin, or before.
                self.apply(op, block);
            }
            op => self.apply(op, block),
        }
    }

    /// As [`Self::replay`], entries of the append queue.
    ///
    /// Whoever wrote them followed on what there was then. Of that what the append queue has put on top is the end, unless a record
    /// between them cannot be read, or was written by an engine that does not look. Then the group is fenced.
    pub(crate) fn replay_entries(&mut self, entries: &Entries, block: Block) {
        let top = match &self.above {
            Some(above) => above.span(),
            None if self.rewritten == 0 => self.index.span(),
            None => Span::default(),
        };
        if !entries.ends.is_empty() && !top.is_empty() && entries.first > top.next {
            self.missing_before = entries.first;
        }
        if self.rewritten == 0 && self.above.is_none() {
            self.append(entries, block);
        } else if !entries.ends.is_empty() {
            if entries.first < self.index.span().next {
                self.index.truncate(entries.first);
                self.rewritten = self.index.len();
            }
            self.above.get_or_insert_default().append(entries, block);
        }
    }

    fn append(&mut self, entries: &Entries, block: Block) {
        if entries.ends.is_empty() {
            return;
        }
        self.index.append(entries, block);
        let below = entries.first - self.index.span().first;
        self.rewritten = self.rewritten.min(below);
    }

    fn replay_rewritten(&mut self, op: Op, block: Block) {
        match op {
            Op::Clean => {}
            Op::Entries(entries) => self.index.append(&entries, block),
            Op::Compact { index } => {
                self.index.compact(index);
            }
            Op::Put { key, value } => {
                self.put(key.clone(), value, block.file);
                self.rewritten_keys += 1;
                if let Some(value) = self.keys.get_mut(&key) {
                    value.is_shown = true;
                }
            }
            Op::Delete { key } => {
                self.delete(&key);
                self.shadow.dead.clear();
            }
        }
        self.rewritten = self.index.len();
        self.shadow.file = block.file.seq;
        self.shadow.span = self.index.span();
    }

    /// Both queues were read.
    pub(crate) fn settle(&mut self) {
        if let Some(above) = self.above.take()
            && !above.is_empty()
        {
            if self.index.span().next != above.span().first {
                self.rewritten = 0;
            }
            self.index.stack(*above);
        }
    }

    /// Whether the rewrite queue shows anything of it.
    pub(crate) fn is_shown(&self) -> bool {
        self.shadow.shows()
    }

    /// What must stand in the rewrite queue before files of the append queue may go. Of the rewrite queue those from number
    /// `first` on are left.
    pub(crate) fn tombstones(&self, is_present: bool, first: u64) -> Vec<Op> {
        let mut ops = Vec::new();
        let shadow = &self.shadow;
        if shadow.is_stale {
            ops.push(Op::Clean);
        } else if !shadow.span.is_empty() {
            let first = self.index.span().first;
            if self.rewritten == 0 {
                // Not where it ends: raft-engine applies removals to older files that it has read apart,
                // and there it may have ended later.
                ops.push(Op::Compact { index: u64::MAX });
            } else if shadow.span.first < first {
                ops.push(Op::Compact { index: first });
            }
        }
        ops.extend(shadow.dead.iter().cloned().map(|key| Op::Delete { key }));
        let exists = shadow.file >= first.max(1) && !shadow.is_stale;
        if is_present && self.is_empty() && !exists {
            ops.push(Op::Compact { index: 0 });
        }
        ops
    }

    /// If the shadow ends behind the entries that lie in the rewrite queue: the file that says so,
    /// which no tombstone can do in its place.
    pub(crate) fn file_of_cut(&self) -> Option<u64> {
        let next = self.index.span().first + self.rewritten;
        if self.shadow.is_stale || self.rewritten == 0 || self.shadow.span.next <= next {
            return None;
        }
        self.index.file_of(next).map(|file| file.seq)
    }

    /// The oldest file of the append queue that an entry or a key lies in.
    pub(crate) fn oldest_append_file(&self) -> Option<u64> {
        let entry = self.index.file_of(self.index.span().first + self.rewritten);
        let keys = self.keys.values().map(|value| value.file);
        let files = entry.into_iter().chain(keys);
        files
            .filter(|file| file.queue == Queue::Append)
            .map(|file| file.seq)
            .min()
    }

    /// The oldest file of the rewrite queue that is needed for what it has, or for that it is there.
    pub(crate) fn oldest_rewritten_file(&self) -> Option<u64> {
        if self.is_empty() && !self.shadow.is_stale && self.shadow.file > 0 {
            return Some(self.shadow.file);
        }
        let first = self.index.span().first;
        let entry = match self.rewritten {
            0 => None,
            _ => self.index.file_of(first),
        };
        let keys = self.keys.values().map(|value| value.file);
        let keys = keys.filter(|_| self.rewritten_keys > 0);
        let files = entry.into_iter().chain(keys);
        files
            .filter(|file| file.queue == Queue::Rewrite)
            .map(|file| file.seq)
            .min()
    }

    /// True if it has `count` entries, counted from 1, up to the end of a file.
    pub(crate) fn has_up_to(&self, count: u64, limit: FileId) -> bool {
        let index = (self.index.span().first).saturating_add(count.saturating_sub(1));
        self.index.file_of(index).is_some_and(|file| file <= limit)
    }

    /// The keys that lie in files of `limit`'s queue up to it.
    pub(crate) fn pairs(&self, limit: FileId) -> Vec<Pair> {
        self.keys
            .iter()
            .filter(|(_, value)| value.file.queue == limit.queue && value.file <= limit)
            .map(|(key, value)| Pair {
                key: key.clone(),
                value: value.bytes.clone(),
                file: value.file,
            })
            .collect()
    }

    /// Knows what purge has written of it, and synced; entries that still lie in files up to `limit`
    /// lie there now.
    pub(crate) fn wrote(&mut self, written: &Written, limit: FileId) {
        if matches!(written, Written::Tombstone(Op::Clean, _)) {
            self.shadow = Shadow::default();
            for value in self.keys.values_mut() {
                value.is_shown = false;
            }
            return;
        }
        if self.shadow.is_stale {
            // Of its former life, as all that stands there.
            return;
        }
        self.shadow.file = written.file().seq;
        match written {
            Written::Tombstone(Op::Compact { index }, _) => self.shadow.compact(*index),
            Written::Tombstone(Op::Delete { key }, _) => {
                self.shadow.dead.remove(key);
            }
            Written::Tombstone(..) => {}
            Written::Entries(piece) => {
                self.shadow.append(piece.first, piece.next());
                let end = self.index.span().first + self.rewritten;
                // Entries move from the front on. Behind one that stays they stay, too: as only the front is counted, it would go with its file.
                if piece.first <= end
                    && let Some(next) = self.index.relocate(piece, limit)
                {
                    let count = next - self.index.span().first;
                    self.rewritten = self.rewritten.max(count);
                }
            }
            Written::Key { key, from, to } => match self.keys.get_mut(key) {
                Some(value) => {
                    value.is_shown = true;
                    if value.file == *from {
                        self.rewritten_keys += u64::from(from.queue == Queue::Append);
                        value.file = *to;
                    }
                }
                None => {
                    self.shadow.dead.insert(key.clone());
                }
            },
        }
    }

    /// What the rewrite queue shows of a group that is not there is of a former life.
    pub(crate) fn is_gone(&mut self) {
        self.shadow = Shadow {
            is_stale: self.shadow.shows(),
            ..Shadow::default()
        };
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.keys.get(key).map(|value| value.bytes.as_slice())
    }

    /// The keys from `start` up to, and without, `end`.
    pub(crate) fn range(
        &self,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        // The map panics at a range whose ends are the wrong way round.
        let is_void = matches!((start, end), (Some(start), Some(end)) if end <= start);
        let start = start.map_or(Bound::Unbounded, Bound::Included);
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = if is_void {
            (Bound::Unbounded, Bound::Excluded(&[][..]))
        } else {
            (start, end)
        };
        self.keys
            .range::<[u8], _>(bounds)
            .map(|(k, v)| (k.as_slice(), v.bytes.as_slice()))
    }
}

#[cfg(test)]
mod tests;
