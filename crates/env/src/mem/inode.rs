//! One file in memory: what it holds now, and what of that is on the disk.
//!
//! What is on the disk is kept as a difference: the length at the last sync, and the former
//! bytes of the sectors that were written over since. So appending and syncing, which is nearly
//! all that a database does, copies nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use parking_lot::RwLock;

use super::TailFill;
use super::content::Content;
use super::random::Random;

/// The unit in which a disk keeps or loses what is written.
const SECTOR: usize = 512;

pub(super) struct Inode {
    /// Number of the file: in the order of creation, kept by crashes and forks.
    pub(super) id: u64,
    /// Locked after the disk's mutex; readers take it alone.
    pub(super) state: RwLock<FileState>,
}

#[derive(Clone, Default)]
pub(super) struct FileState {
    content: Content,
    /// Length at the last sync.
    durable_len: usize,
    /// Least length since the last sync, `durable_len` at most.
    least_len: usize,
    /// Sectors below `durable_len` whose bytes on the disk are not those of `content`.
    old: BTreeMap<usize, OldSector>,
    pub(super) links: u64,
    pub(super) modified_secs: u64,
    /// Up to here disk space was reserved.
    pub(super) reserved: u64,
    /// Blocks without disk space, by number.
    holes: BTreeSet<usize>,
}

/// The unit in which disk space is taken.
pub(super) const BLOCK: usize = 4096;

#[derive(Clone)]
struct OldSector {
    /// What the disk has, up to `durable_len`.
    bytes: Vec<u8>,
    /// Which bytes of the sector were written since; they may overlap.
    written: Vec<Range<usize>>,
    /// A failed sync dropped the new bytes: no later sync brings them to the disk.
    lost: bool,
}

impl OldSector {
    fn add_written(&mut self, start: usize, end: usize) {
        match self.written.last_mut() {
            Some(last) if last.start <= end && start <= last.end => {
                *last = last.start.min(start)..last.end.max(end);
            }
            _ => self.written.push(start..end),
        }
    }
}

impl FileState {
    /// Bytes of the disk that it takes, and those that it would take if it were at least `len` bytes long.
    pub(super) fn allocated_to(&self, len: u64) -> u64 {
        let len = (self.len() as u64).max(self.reserved).max(len);
        len.next_multiple_of(BLOCK as u64) - self.punched_bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.content.len()
    }

    pub(super) fn read_at(&self, offset: usize, buf: &mut [u8]) -> usize {
        self.content.read_at(offset, buf)
    }

    pub(super) fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if !self.holes.is_empty() {
            let last = (offset + bytes.len() - 1) / BLOCK;
            self.holes
                .retain(|block| !(offset / BLOCK..=last).contains(block));
        }
        // A gap beyond the end is written too, with zeros.
        self.keep_old(offset.min(self.len()), offset + bytes.len());
        self.content.write_at(offset, bytes);
    }

    /// Makes zeros of the bytes from `start` to `end`, and holes of the whole blocks in between.
    pub(super) fn punch(&mut self, start: usize, end: usize) {
        let end = end.min(self.len());
        if start >= end {
            return;
        }
        self.write_at(start, &vec![0; end - start]);
        let last = if end == self.len() {
            end.div_ceil(BLOCK)
        } else {
            end / BLOCK
        };
        self.holes.extend(start.div_ceil(BLOCK)..last);
    }

    /// Disk space that the file does not take.
    pub(super) fn punched_bytes(&self) -> u64 {
        (self.holes.len() * BLOCK) as u64
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.holes.retain(|block| block * BLOCK < len);
        if len > self.len() {
            self.keep_old(self.len(), len);
        } else {
            self.keep_old(len, self.len());
            self.least_len = self.least_len.min(len);
        }
        self.content.set_len(len);
    }

    /// Called before the bytes from `start` to `end` change.
    fn keep_old(&mut self, start: usize, end: usize) {
        let end = end.min(self.durable_len);
        let mut at = start;
        while at < end {
            let sector = at / SECTOR;
            let base = sector * SECTOR;
            let stop = end.min(base + SECTOR);
            let content = &self.content;
            let durable_end = self.durable_len.min(base + SECTOR);
            let old = self.old.entry(sector).or_insert_with(|| OldSector {
                bytes: content.range(base, durable_end),
                written: Vec::new(),
                lost: false,
            });
            old.add_written(at - base, stop - base);
            old.lost = false;
            at = stop;
        }
    }

    pub(super) fn sync(&mut self) {
        self.durable_len = self.len();
        self.least_len = self.durable_len;
        if !self.old.is_empty() {
            let end = self.durable_len;
            self.old
                .retain(|sector, old| old.lost && sector * SECTOR < end);
        }
    }

    /// What a failed sync does: the file reads as before, but what was not on the disk will
    /// never be, unless it is written again.
    pub(super) fn lose_unsynced(&mut self) {
        let on_disk = self.durable_len.min(self.least_len);
        let len = self.len();
        for old in self.old.values_mut() {
            old.lost = true;
        }
        let mut at = on_disk;
        while at < len {
            let sector = at / SECTOR;
            let base = sector * SECTOR;
            let stop = len.min(base + SECTOR);
            let content = &self.content;
            let old = self.old.entry(sector).or_insert_with(|| OldSector {
                bytes: content.range(base, at),
                written: Vec::new(),
                lost: true,
            });
            old.bytes.resize(stop - base, 0);
            old.add_written(at - base, stop - base);
            at = stop;
        }
        self.durable_len = len;
        self.least_len = len;
        self.old.retain(|sector, _| sector * SECTOR < len);
    }

    /// The file after a power cut that spares only what was synced.
    pub(super) fn durable(&self) -> Self {
        let mut content = self.content.clone();
        if content.len() != self.durable_len {
            content.set_len(self.durable_len);
        }
        for (sector, old) in &self.old {
            let base = sector * SECTOR;
            let n = old.bytes.len().min(self.durable_len.saturating_sub(base));
            content.write_at(base, &old.bytes[..n]);
        }
        self.on_disk(content)
    }

    /// The file after a power cut that keeps, drops or garbles each unsynced sector.
    pub(super) fn torn(&self, random: &mut Random) -> Self {
        if self.least_len < self.durable_len && random.percent(50) {
            // The disk has not heard of the shortening. What was written after it went to
            // sectors that the file on the disk does not have.
            return self.durable();
        }
        let fresh = self.least_len;
        let mut content = self.content.clone();
        content.set_len(self.torn_len(fresh, random));
        // Odds are drawn for each file, else a long run of kept sectors would never be seen.
        let keep = [0, 50, 90, 99, 100, 100][random.below(6)];
        let garble = [0, 50, 100][random.below(3)];
        let overwritten = self.old.keys().copied().take_while(|s| s * SECTOR < fresh);
        // The file system gives a block up whole.
        let mut given_up = None;
        for sector in overwritten.collect::<Vec<_>>() {
            let block = sector * SECTOR / BLOCK;
            let keep = match given_up {
                _ if !self.holes.contains(&block) => keep,
                Some((same, keep)) if same == block => keep,
                _ => {
                    let drawn = if random.percent(keep) { 100 } else { 0 };
                    given_up.insert((block, drawn)).1
                }
            };
            self.tear(sector, fresh, keep, garble, &mut content, random);
        }
        let first = fresh / SECTOR;
        // The sector of the old end is done above if it was written over too.
        let done = usize::from(fresh > first * SECTOR && self.old.contains_key(&first));
        for sector in first + done..content.len().div_ceil(SECTOR) {
            self.tear(sector, fresh, keep, garble, &mut content, random);
        }
        self.on_disk(content)
    }

    /// The file after a power cut before which all of it reached the disk; what a failed sync
    /// dropped did not.
    pub(super) fn written(&self) -> Self {
        let mut content = self.content.clone();
        for (sector, old) in self.old.iter().filter(|(_, old)| old.lost) {
            let base = sector * SECTOR;
            let n = old.bytes.len().min(content.len().saturating_sub(base));
            content.write_at(base, &old.bytes[..n]);
        }
        self.on_disk(content)
    }

    /// The file after a power cut before which its size reached the disk, but not all of the
    /// bytes behind its synced end.
    pub(super) fn tail(&self, random: &mut Random, fill: TailFill) -> Self {
        let fresh = self.least_len;
        let mut state = self.written();
        let added = self.len() - fresh;
        let start = if random.percent(50) {
            fresh
        } else {
            fresh + random.below(added + 1)
        };
        let mut bytes = vec![0; self.len() - start];
        match fill {
            TailFill::Zeros => {}
            TailFill::Garbage => random.fill(&mut bytes),
            TailFill::Stale => {
                state.content.read_at(0, &mut bytes);
                bytes.reverse();
            }
        }
        if fill != TailFill::Zeros {
            let mut new = vec![0; bytes.len()];
            self.content.read_at(start, &mut new);
            let wrong: u32 = bytes
                .iter()
                .zip(&new)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            // That would be a flipped bit of a whole write, which is to be found: see `TailFill`.
            if let (1, Some(first)) = (wrong, bytes.first_mut()) {
                *first = !new[0];
            }
        }
        if !bytes.is_empty() {
            state.content.write_at(start, &bytes);
        }
        state
    }

    /// A length between what the disk had and what the file has.
    fn torn_len(&self, fresh: usize, random: &mut Random) -> usize {
        let added = self.len() - fresh;
        match random.below(6) {
            0 => fresh,
            1 => fresh + random.below(added + 1),
            2 => {
                let end = (fresh + random.below(added + 1)).next_multiple_of(SECTOR);
                end.min(self.len())
            }
            _ => self.len(),
        }
    }

    fn tear(
        &self,
        sector: usize,
        fresh: usize,
        keep: usize,
        garble: usize,
        content: &mut Content,
        random: &mut Random,
    ) {
        let base = sector * SECTOR;
        let end = content.len().min(base + SECTOR);
        let old = self.old.get(&sector).filter(|_| base < fresh);
        let lost = old.is_some_and(|old| old.lost);
        if !lost && random.percent(keep) {
            return;
        }
        // A block that was given up is what it was, or zeros: nothing was written to it.
        let garbage = !lost && random.percent(garble) && !self.holes.contains(&(base / BLOCK));
        let mut replace = |range: Range<usize>, was: &[u8]| {
            if range.is_empty() {
                return;
            }
            let mut bytes = vec![0; range.len()];
            if garbage {
                random.fill(&mut bytes);
            } else {
                let n = was.len().min(bytes.len());
                bytes[..n].copy_from_slice(&was[..n]);
            }
            content.write_at(range.start, &bytes);
        };
        for written in old.map_or(&[][..], |old| &old.written) {
            let stop = (base + written.end).min(fresh).min(end);
            let was = old
                .and_then(|old| old.bytes.get(written.start..))
                .unwrap_or_default();
            replace(base + written.start..stop, was);
        }
        replace(fresh.max(base)..end, &[]);
    }

    fn on_disk(&self, content: Content) -> Self {
        let len = content.len();
        // What is back has its space back.
        let is_zeros = |block: usize| {
            let bytes = content.range(block * BLOCK, (block + 1) * BLOCK);
            !bytes.is_empty() && bytes.iter().all(|&b| b == 0)
        };
        let holes = self.holes.iter().copied();
        Self {
            holes: holes.filter(|&block| is_zeros(block)).collect(),
            content,
            durable_len: len,
            least_len: len,
            old: BTreeMap::new(),
            links: 0,
            modified_secs: self.modified_secs,
            reserved: 0,
        }
    }
}

#[cfg(test)]
mod tests;
