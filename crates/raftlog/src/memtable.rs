//! What memory knows of the groups: where each entry lies, and all keys with their values.
//!
//! A group that was dropped stays in its slot, not present, as long as the rewrite queue shows
//! something of it: purge must write there that it is gone.
//!
//! Locks: that of a shard is not held while one waits for that of a group, since who reads a group
//! may ask for others.

mod group;
mod index;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use orogen_base::Result;
use orogen_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use orogen_base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::Compression;
use crate::item::{Item, Op};
use crate::names::{FileId, Queue};

pub(crate) use group::{Group, Pair, Written};
use index::fenced;
pub(crate) use index::{ENTRY_COST, Piece, Span};

/// Where the block of a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    /// With its checksum.
    pub(crate) len: u32,
    pub(crate) compression: Compression,
}

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) block: Block,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Location {
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// Who has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Tenancy {
    /// Nobody: the group is not there.
    Vacant,
    /// Nobody, but the rewrite queue shows something of the group.
    Haunted,
    Present,
    /// Nobody, and it is not in its shard any more.
    Removed,
}

/// A group and whether it is there.
pub(crate) struct Slot {
    /// A [`Tenancy`]. Changes under the group's lock, but for the step from `Vacant` to `Removed`.
    tenancy: AtomicU8,
    group: RwLock<Group>,
}

impl Slot {
    fn vacant() -> Self {
        Self {
            tenancy: AtomicU8::new(Tenancy::Vacant as u8),
            group: RwLock::default(),
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.tenancy.load(Ordering::Acquire) == Tenancy::Present as u8
    }

    /// Changes the tenancy under the group's lock; false if the slot was removed meanwhile.
    fn turn(&self, tenancy: Tenancy) -> bool {
        let update = |old| (old != Tenancy::Removed as u8).then_some(tenancy as u8);
        self.tenancy
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
            .is_ok()
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Group> {
        self.group.read()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Group> {
        self.group.write()
    }
}

/// What groups hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Entries and keys that lie in the append queue.
    pub(crate) appended: u64,
    /// Those that lie in the rewrite queue.
    pub(crate) rewritten: u64,
    /// Bytes of memory.
    pub(crate) bytes: u64,
}

/// Parts of the groups, each behind a lock of its own.
pub(crate) const SHARDS: usize = 64;

/// The shard of a group. Digests of files are cut by it, so a change of it is one of their format.
pub(crate) fn shard_of(group: u64) -> usize {
    // Numbers of groups are often consecutive or multiples of something.
    let hash = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    hash as usize % SHARDS
}

/// Every call looks a group up, some several times: the hash is one that takes no longer than the rest.
type Shard = RwLock<HashMap<u64, Arc<Slot>, RandomState>>;

/// All groups. Who writes to them is one thread, beside purge.
pub(crate) struct Memtables {
    shards: Vec<Shard>,
    /// Entries and keys that lie in the rewrite queue.
    rewritten: AtomicU64,
    /// Groups that are fenced.
    fenced: AtomicU64,
}

/// A group of which a directory lacks entries between others: a record cannot be read, or was written by an engine that does not look whether
/// entries follow on those before them. Its entries are not given, none is added, and its files stay, until it is cleaned or
/// compacted up to where the hole ends, or the log is [repaired](crate::raw::repair).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The group.
    pub group: u64,
    /// The index of the first entry behind the hole; behind the last one, if there are several.
    pub missing_before: u64,
}

impl Memtables {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            rewritten: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
        }
    }

    fn shard(&self, group: u64) -> &Shard {
        &self.shards[shard_of(group)]
    }

    /// The slot of a group, also of one that is not there.
    pub(crate) fn slot(&self, group: u64) -> Option<Arc<Slot>> {
        self.shard(group).read().get(&group).cloned()
    }

    pub(crate) fn get(&self, group: u64) -> Option<Arc<Slot>> {
        self.slot(group).filter(|slot| slot.is_present())
    }

    fn get_or_make(&self, group: u64) -> Arc<Slot> {
        if let Some(found) = self.slot(group) {
            return found;
        }
        let mut shard = self.shard(group).write();
        let slot = shard
            .entry(group)
            .or_insert_with(|| Arc::new(Slot::vacant()));
        Arc::clone(slot)
    }

    pub(crate) fn span(&self, group: u64) -> Span {
        self.get(group)
            .map_or_else(Span::default, |g| g.read().span())
    }

    /// Does what the items of a record say.
    pub(crate) fn apply(&self, items: impl IntoIterator<Item = Item>, block: Block) {
        self.each(items, |group, op| group.apply(op, block));
    }

    /// As [`Self::apply`], while the directory is being read: the rewrite queue first.
    pub(crate) fn replay(&self, items: impl IntoIterator<Item = Item>, block: Block) {
        for item in items {
            if item.op == Op::Clean && block.file.queue == Queue::Rewrite {
                // No former life is shown then.
                if let Some(slot) = self.shard(item.group).write().remove(&item.group) {
                    self.count(&mut slot.write(), Group::clean);
                }
            } else {
                self.each([item], |group, op| group.replay(op, block));
            }
        }
    }

    fn each(&self, items: impl IntoIterator<Item = Item>, mut apply: impl FnMut(&mut Group, Op)) {
        let mut last: Option<(u64, Arc<Slot>)> = None;
        for Item { group, op } in items {
            if op == Op::Clean {
                last = None;
                self.clean(group);
                continue;
            }
            let slot = match last.take() {
                Some((id, slot)) if id == group => slot,
                _ => self.get_or_make(group),
            };
            let (slot, ()) = self.change(group, slot, |group| apply(group, op));
            last = Some((group, slot));
        }
    }

    /// Changes a group, which is then there; its slot, which is not the given one if that was removed meanwhile.
    fn change<T>(
        &self,
        group: u64,
        mut slot: Arc<Slot>,
        change: impl FnOnce(&mut Group) -> T,
    ) -> (Arc<Slot>, T) {
        let mut guard = slot.write();
        while !slot.turn(Tenancy::Present) {
            drop(guard);
            slot = self.get_or_make(group);
            guard = slot.write();
        }
        let result = self.count(&mut guard, change);
        drop(guard);
        (slot, result)
    }

    /// Has `change` do to a group what a file of the append queue does, while the directory is being read.
    pub(crate) fn replay_group<T>(&self, group: u64, change: impl FnOnce(&mut Group) -> T) -> T {
        let slot = self.get_or_make(group);
        self.change(group, slot, change).1
    }

    /// Keeps the counts of what lies in the rewrite queue, and of groups that are fenced, over a change.
    fn count<T>(&self, group: &mut Group, change: impl FnOnce(&mut Group) -> T) -> T {
        let (before, was_fenced) = (group.rewritten_items(), group.is_fenced());
        let result = change(group);
        let after = group.rewritten_items();
        if after > before {
            self.rewritten.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.rewritten.fetch_sub(before - after, Ordering::Relaxed);
        }
        match (was_fenced, group.is_fenced()) {
            (false, true) => self.fenced.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.fenced.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        result
    }

    /// How many groups are fenced.
    pub(crate) fn fenced_count(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    /// The groups that are fenced, in order.
    pub(crate) fn fenced(&self) -> Vec<Fenced> {
        if self.fenced_count() == 0 {
            return Vec::new();
        }
        let of = |(group, slot): (u64, Arc<Slot>)| {
            let missing_before = slot.read().span().missing_before;
            (missing_before > 0).then_some(Fenced {
                group,
                missing_before,
            })
        };
        self.slots().into_iter().filter_map(of).collect()
    }

    /// # Errors
    /// `Corruption` if a group is fenced.
    pub(crate) fn check(&self) -> Result<()> {
        match self.fenced().first() {
            None => Ok(()),
            Some(first) => Err(fenced(first.group, first.missing_before)),
        }
    }

    /// Drops all that a group has.
    pub(crate) fn clean(&self, group: u64) {
        let Some(slot) = self.slot(group) else {
            return;
        };
        let mut found = slot.write();
        if !slot.is_present() {
            return;
        }
        self.count(&mut found, Group::clean);
        self.leave(group, &slot, found);
    }

    /// Nobody is in the slot any more, which goes away if nothing is shown of its group.
    fn leave(&self, group: u64, slot: &Slot, found: RwLockWriteGuard<'_, Group>) {
        let is_shown = found.is_shown();
        slot.turn(if is_shown {
            Tenancy::Haunted
        } else {
            Tenancy::Vacant
        });
        drop(found);
        if is_shown {
            return;
        }
        let mut shard = self.shard(group).write();
        let is_vacant = shard.get(&group).is_some_and(|slot| {
            let (old, new) = (Tenancy::Vacant as u8, Tenancy::Removed as u8);
            slot.tenancy
                .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        });
        if is_vacant {
            shard.remove(&group);
        }
    }

    /// Both queues were read.
    pub(crate) fn settle(&self) {
        for (_, slot) in self.slots() {
            self.count(&mut slot.write(), Group::settle);
        }
    }

    /// Knows what purge has written of a group; see [`Group::wrote`].
    pub(crate) fn wrote(&self, group: u64, written: &[Written], limit: FileId) {
        let mut slot = self.get_or_make(group);
        let mut found = slot.write();
        while !slot.is_present() && !slot.turn(Tenancy::Haunted) {
            drop(found);
            slot = self.get_or_make(group);
            found = slot.write();
        }
        self.count(&mut found, |found| {
            for written in written {
                found.wrote(written, limit);
            }
        });
        if !slot.is_present() {
            found.is_gone();
            self.leave(group, &slot, found);
        }
    }

    /// What all groups hold. Each is looked at, with its lock.
    pub(crate) fn held(&self) -> Held {
        let mut held = Held::default();
        let slots = self.slots();
        // A table keeps an eighth of its places free, and a byte for each.
        let place = size_of::<(u64, Arc<Slot>)>() + 1;
        held.bytes = (slots.len() * (size_of::<Slot>() + place * 8 / 7)) as u64;
        for (_, slot) in slots {
            let found = slot.read();
            held.bytes += found.heap_bytes() as u64;
            held.rewritten += found.rewritten_items();
            held.appended += found.items() - found.rewritten_items();
        }
        held
    }

    /// Entries and keys that lie in the rewrite queue.
    pub(crate) fn rewritten(&self) -> u64 {
        self.rewritten.load(Ordering::Relaxed)
    }

    /// All slots in the order of their groups.
    pub(crate) fn slots(&self) -> Vec<(u64, Arc<Slot>)> {
        let mut slots: Vec<(u64, Arc<Slot>)> = Vec::new();
        for shard in &self.shards {
            slots.extend(
                shard
                    .read()
                    .iter()
                    .map(|(id, slot)| (*id, Arc::clone(slot))),
            );
        }
        slots.sort_unstable_by_key(|(id, _)| *id);
        slots
    }

    pub(crate) fn groups(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            ids.extend(
                shard
                    .iter()
                    .filter(|(_, s)| s.is_present())
                    .map(|(id, _)| id),
            );
        }
        ids.sort_unstable();
        ids
    }

    pub(crate) fn is_empty(&self) -> bool {
        let mut shards = self.shards.iter();
        shards.all(|shard| !shard.read().values().any(|slot| slot.is_present()))
    }
}
