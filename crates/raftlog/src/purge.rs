//! Making the queues shorter: what lives in old files is written again, then they are deleted.
//!
//! ```text
//! append queue:   those to empty, whose entries move | those in which many entries are too many | newer ones
//! one step:       look at groups -> sync appends -> (read blocks -> write and sync -> memory knows), several times
//! a purge:        tombstones -> entries and keys -> which files are needed -> sync -> delete; of entries that cannot be moved: tombstones apart -> ..
//! rewrite queue:  dead files at its beginning -> sync -> delete; or all of it, if that is not enough and much is garbage
//! ```
//! Files go from the oldest on: of a queue with a gap in its numbers only what is behind the gap is read. So there is no choice
//! which to empty, only when, and what is moved late has been compacted for the most part: no more are emptied than
//! [`Options::purge_headroom_ratio`] asks for.
//!
//! Read alone, the rewrite queue gives the *shadow* of a group, and what the append queue has from
//! its oldest file on is done to that. The shadow may hold more than is true only where a record
//! of the append queue takes it away. So, before such a record is deleted, the rewrite queue gets a
//! tombstone for it. Which are due is not read off old files: each group compares itself with its
//! shadow. Invariants:
//!
//! 1. What the rewrite queue says never runs ahead of what is durable in the append queue: appends are
//!    synced between the look at a group and the write of what was seen.
//! 2. Memory points into the rewrite queue, and counts on its tombstones, only after their sync.
//! 3. No file of the append queue is deleted that was the newest when tombstones were collected, or is
//!    newer, or holds an entry or a key that lives there. Nor is one that cuts off a shadow's end: there is
//!    no tombstone for that, only an entry at the same index. None is deleted before all tombstones that were collected are
//!    written and synced. Which files are left then is asked of memory, so it does not matter how much of what was to be moved was.
//! 4. When the rewrite queue itself is written anew, all that it shows of a group is replaced
//!    at once: by one record that begins with the group's removal, or by an atomic group of such. No part of an atomic group
//!    goes before the rest of it.
//! 5. No lock is held over a call to the file system but the one that makes this the only purge: writers do not wait
//!    while it syncs what they have appended.
//!
//! A purge that fails leaves records that are true, and more files than are needed. What cannot be moved keeps its file and those behind it,
//! not the dead ones before it, whose space may be all that there is; nor do entries that cannot be read keep more than those of
//! their group behind them. Nor does an error of the rewrite queue keep the append queue from being
//! purged. After damage in it all is not written anew before the damaged file has gone, or the queue has twice as much; where there was no space for it, not before as many files of the append queue
//! have gone as it has. The groups that a failed purge has
//! found for its caller are returned by the next one, and count as asked then; of several in a row that find damage, or no space, each second one
//! returns them in place of the error, as that may last until they are compacted.
//!
//! Groups are taken in the order of their numbers, so that what the rewrite queue holds of one lies
//! together. When this acts, and by which marks it finds the groups that it returns: as raft-engine does; but a group also counts as old if
//! some of it was moved, and fewer are. Unlike there, the old
//! are told from the young by files of the append queue only.

mod output;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use orogen_base::{ErrorKind, Result};
use orogen_env::RateLimiter;

use crate::events::oldest_wanted;
use crate::files::{Appender, LogFile, NewFiles, Table};
use crate::item::Op;
use crate::memtable::{Memtables, Slot};
use crate::metrics::{Meters, Skip};
use crate::names::{FileId, Queue};
use crate::options::Options;
use crate::recover::Found;
use crate::write_queue::WriteQueue;
use output::{Batch, Part, What};

/// Entries from which on a group is the caller's to compact.
const ENTRIES_MANY: u64 = 32;

/// How often in a row the caller is asked to compact a group before its entries are moved.
const ASKED_MAX: u32 = 9;

/// Files of the append queue that mean something to a purge.
struct Marks {
    /// Who has entries in an older one is asked to compact them, if they are many.
    compact: u64,
    /// Many up to this one.
    rewrite: FileId,
    /// Those up to this one are to be emptied.
    empty: FileId,
}

/// Why the rewrite queue is not written anew.
enum InVain {
    /// There was damage, and this file is there still; with fewer items it is not tried again.
    Damage { file: u64, below: u64 },
    /// There was no space, and there is not until so many files of the append queue have gone as it has: else what is written again, as far as it goes,
    /// takes all that comes free.
    NoSpace { first_append: u64 },
}

fn is_full(done: &Result<()>) -> bool {
    done.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace)
}

/// What one purge leaves to the next.
pub(crate) struct Purge {
    new_files: NewFiles,
    newest: Option<(Arc<LogFile>, u64)>,
    /// Appends to the rewrite queue; made when it is first needed.
    rewriter: Option<Appender>,
    /// Entries and operations that each file of the rewrite queue holds, needed or not.
    items: BTreeMap<u64, u64>,
    /// Files of the rewrite queue over which an atomic group goes: of none may the front go and the end stay.
    together: Vec<Range<u64>>,
    /// Files of the rewrite queue below this number are not counted on any more.
    first_rewritten: u64,
    limiter: Option<RateLimiter>,
    /// It cannot be written anew.
    in_vain: Option<InVain>,
    /// How often in a row the caller was asked to compact a group.
    asked: HashMap<u64, u32>,
    /// Groups that the caller should compact, found by purges which failed.
    untold: BTreeSet<u64>,
    /// What the last purge has told of.
    told: Option<ErrorKind>,
    /// Number of the next atomic group.
    atomic: u64,
}

impl Purge {
    pub(crate) fn new(new_files: NewFiles, found: Found, limiter: Option<RateLimiter>) -> Self {
        Self {
            new_files,
            newest: found.newest,
            rewriter: None,
            items: found.items,
            together: found.together,
            first_rewritten: 0,
            limiter,
            in_vain: None,
            asked: HashMap::new(),
            untold: BTreeSet::new(),
            told: None,
            atomic: found.next_atomic,
        }
    }
}

/// One purge.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) table: &'a Arc<Table>,
    pub(crate) memtables: &'a Memtables,
    pub(crate) writes: &'a WriteQueue,
    pub(crate) purge: &'a mut Purge,
}

impl Drop for Run<'_> {
    /// After a panic, of a listener say, memory may not know what the files hold, and with that what has to be told of it when it goes.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.writes.break_off();
        }
    }
}

impl Run<'_> {
    /// Purges both queues; the groups that the caller should compact.
    pub(crate) fn purge(mut self) -> Result<Vec<u64>> {
        let meters = self.meters();
        self.purge.new_files.dirs.probe(&*self.purge.new_files.fs);
        let (mut groups, mut asked) = (BTreeSet::new(), None);
        let purged = self.purge_queues(&meters, &mut groups, &mut asked);
        let mut untold = std::mem::take(&mut self.purge.untold);
        untold.retain(|group| self.has_many(*group));
        groups.append(&mut untold);
        let told = self.purge.told.take();
        if let Err(e) = purged {
            let kind = e.kind();
            // Who compacts may be what ends it, and has to know which groups.
            let may_wait = matches!(kind, ErrorKind::Corruption | ErrorKind::NoSpace);
            if groups.is_empty() || told != Some(kind) || !may_wait {
                self.purge.untold = groups;
                self.purge.told = Some(kind);
                return Err(e);
            }
        }
        if let Some(asked) = asked {
            self.purge.asked = asked;
        }
        meters.asked(groups.len());
        Ok(groups.into_iter().collect())
    }

    /// Purges both queues, the append queue whatever became of the other; the first error. `asked` gets how often the caller will have been asked
    /// for groups of the append queue once it is, if that was long enough.
    fn purge_queues(
        &mut self,
        meters: &Meters,
        groups: &mut BTreeSet<u64>,
        asked: &mut Option<HashMap<u64, u32>>,
    ) -> Result<()> {
        let mut is_short = true;
        let rewritten = self.purge_rewritten(meters, groups, &mut is_short);
        let before = self.first_append();
        let appended = self.as_space_comes(|run| {
            if !run.is_longer(Queue::Append, run.options.purge_threshold) {
                return Ok(());
            }
            is_short = false;
            let _timed = meters.rewrite_append.time();
            run.rewrite_appended(groups, asked)
        });
        if is_short {
            meters.skipped(Skip::Short);
        }
        if is_full(&rewritten) && self.first_append() != before {
            // There is some now.
            return appended;
        }
        rewritten.and(appended)
    }

    /// Does `task` again as long as that finds no space and has files of the append queue deleted: whoever is told that there is none finds
    /// no spare file either.
    fn as_space_comes(&mut self, mut task: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        loop {
            let before = self.first_append();
            let done = task(self);
            if !is_full(&done) || self.first_append() == before {
                return done;
            }
        }
    }

    fn first_append(&self) -> Option<u64> {
        self.table.span(Queue::Append).map(|(first, _)| first)
    }

    /// Makes the rewrite queue shorter if that is long enough. What cannot be deleted is not written anew either: it would be each time.
    fn purge_rewritten(
        &mut self,
        meters: &Meters,
        groups: &mut BTreeSet<u64>,
        is_short: &mut bool,
    ) -> Result<()> {
        if self.is_longer(Queue::Rewrite, self.options.rewrite_threshold()) {
            self.delete_dead_rewritten()?;
        }
        if !self.is_longer(Queue::Rewrite, self.options.rewrite_threshold()) || !self.has_garbage()
        {
            return Ok(());
        }
        *is_short = false;
        let _timed = meters.rewrite_rewrite.time();
        let rewritten = self.rewrite_rewritten(groups);
        if is_full(&rewritten) {
            let files = self.table.count_of(Queue::Rewrite);
            let first = self.first_append().unwrap_or(0);
            self.purge.in_vain = Some(InVain::NoSpace {
                first_append: first.saturating_add(files),
            });
            // Some may be all of what was moved. The first error is told.
            let _ = self.delete_dead_rewritten();
        }
        rewritten
    }

    /// Whether a group still has entries for which the caller is asked.
    fn has_many(&self, group: u64) -> bool {
        let slot = self.memtables.get(group);
        slot.is_some_and(|slot| {
            let span = slot.read().span();
            span.next - span.first > ENTRIES_MANY
        })
    }

    fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.purge.new_files.meters)
    }

    fn is_longer(&self, queue: Queue, threshold: u64) -> bool {
        let count = self.table.count_of(queue);
        count > 1 && count.saturating_mul(self.options.target_file_size) > threshold
    }

    /// What the rewrite queue holds, needed or not.
    fn items(&self) -> u64 {
        self.purge.items.values().sum()
    }

    fn has_garbage(&self) -> bool {
        let items = self.items();
        let garbage = items.saturating_sub(self.memtables.rewritten());
        let first = self.table.span(Queue::Rewrite).map(|(first, _)| first);
        let is_in_vain = |found: &InVain| match *found {
            InVain::Damage { file, below } => first <= Some(file) && items < below,
            InVain::NoSpace { first_append } => self.first_append() < Some(first_append),
        };
        !self.purge.in_vain.as_ref().is_some_and(is_in_vain)
            && garbage as f64 > self.options.purge_rewrite_garbage_ratio * items as f64
    }

    fn rewriter(&mut self) -> Result<&mut Appender> {
        let purge = &mut *self.purge;
        let rewriter = match purge.rewriter.take() {
            Some(rewriter) => rewriter,
            None => Appender::open(
                purge.new_files.clone(),
                Arc::clone(self.table),
                Queue::Rewrite,
                purge.newest.clone(),
                false,
            )?,
        };
        Ok(purge.rewriter.insert(rewriter))
    }

    /// Makes all that memory knows of the append queue survive a power loss.
    fn sync_appends(&self) -> Result<()> {
        let Some((_, newest)) = self.table.span(Queue::Append) else {
            return Ok(());
        };
        // Those before it were synced.
        match self.table.find(FileId::new(Queue::Append, newest)) {
            Some(file) => {
                let files = &self.purge.new_files;
                self.writes.sync_beside(&*files.fs, &files.dirs, &file)
            }
            None => Ok(()),
        }
    }

    fn delete_before(&self, queue: Queue, end: u64) -> Result<()> {
        let files = &self.purge.new_files;
        let newest = self.table.delete_before(files, queue, end)?;
        if let Some(newest) = newest {
            files.listeners.iter().for_each(|l| l.post_purge(newest));
        }
        Ok(())
    }

    /// Deletes the oldest files of the rewrite queue in which nothing lives.
    fn delete_dead_rewritten(&mut self) -> Result<()> {
        let Some((first, newest)) = self.table.span(Queue::Rewrite) else {
            return Ok(());
        };
        let slots = self.memtables.slots();
        let needed = slots.iter().filter(|(_, slot)| slot.is_present());
        let needed = needed.filter_map(|(_, slot)| slot.read().oldest_rewritten_file());
        let mut end = needed.min().map_or(newest, |needed| needed.min(newest));
        for files in self.purge.together.iter().rev() {
            if files.start < end && end <= files.end {
                end = files.start;
            }
        }
        if end <= first {
            return Ok(());
        }
        // What made needless what is there must be as durable as its loss.
        self.sync_appends()?;
        self.rewriter()?.sync()?;
        self.delete_rewritten(end)
    }

    /// Deletes the files of the rewrite queue before number `end`.
    fn delete_rewritten(&mut self, end: u64) -> Result<()> {
        // Some may be gone if that fails.
        self.purge.first_rewritten = end;
        self.delete_before(Queue::Rewrite, end)?;
        self.purge.items = self.purge.items.split_off(&end);
        self.purge.together.retain(|files| files.end >= end);
        Ok(())
    }

    /// Damage was met in a file of the rewrite queue.
    fn note_damage(&mut self, file: u64) {
        let below = self.items().saturating_mul(2);
        self.purge.in_vain = Some(InVain::Damage { file, below });
    }

    /// Writes the rewrite queue anew.
    fn rewrite_rewritten(&mut self, groups: &mut BTreeSet<u64>) -> Result<()> {
        let rewriter = self.rewriter()?;
        rewriter.start_file()?;
        let first = rewriter.file().id.seq;
        let limit = FileId::new(Queue::Rewrite, first - 1);
        let mut batch = self.batch(limit);
        for (group, slot) in self.memtables.slots() {
            let parts = self.all_of(group, &slot, limit, groups);
            let size = parts.iter().map(Part::size).sum();
            if batch.is_one_record(size) {
                batch.add_together(parts, size);
                self.write_if_full(&mut batch)?;
            } else {
                self.write(&mut batch)?;
                self.write_atomic(&mut batch, parts)?;
            }
        }
        self.write(&mut batch)?;
        self.delete_rewritten(first)?;
        self.purge.in_vain = None;
        Ok(())
    }

    /// All that takes the place of what the rewrite queue shows of a group.
    fn all_of(
        &self,
        group: u64,
        slot: &Slot,
        limit: FileId,
        groups: &mut BTreeSet<u64>,
    ) -> Vec<Part> {
        let found = slot.read();
        if !found.is_shown() {
            return Vec::new();
        }
        if found.rewritten() > ENTRIES_MANY {
            groups.insert(group);
        }
        let mut parts = vec![What::Tombstone(Op::Clean)];
        let pieces = found
            .index()
            .pieces(0, limit, self.record_bytes(), usize::MAX);
        parts.extend(pieces.into_iter().map(What::Entries));
        parts.extend(found.pairs(limit).into_iter().map(What::Pair));
        if slot.is_present() && found.is_empty() {
            parts.push(What::Tombstone(Op::Compact { index: 0 }));
        }
        parts.into_iter().map(|what| Part { group, what }).collect()
    }

    /// Moves what lives in old files of the append queue, and deletes those that nothing needs. `asked` gets how often the caller will have been asked
    /// for each group.
    fn rewrite_appended(
        &mut self,
        groups: &mut BTreeSet<u64>,
        asked: &mut Option<HashMap<u64, u32>>,
    ) -> Result<()> {
        let Some((first, active)) = self.table.span(Queue::Append) else {
            return Ok(());
        };
        let count = active - first + 1;
        let rewrite_mark = (first + count * 7 / 10).min(active - 1);
        let compact_mark = (first + count / 5).min(active - 1);
        let marks = Marks {
            compact: compact_mark,
            rewrite: FileId::new(Queue::Append, rewrite_mark),
            empty: FileId::new(
                Queue::Append,
                self.empty_mark(first, count).min(rewrite_mark),
            ),
        };
        let wanted = oldest_wanted(&self.purge.new_files.listeners);
        let mut batch = self.batch(marks.rewrite);
        let slots = self.memtables.slots();
        let mut moved = self.add_tombstones(&slots, &mut batch);
        let asked = asked.insert(HashMap::new());
        for (group, slot) in &slots {
            // Who is to compact is found whether there is space or not: it may be what makes some.
            if let Some(limit) = self.moves_up_to(*group, slot, &marks, groups, asked)
                && moved.is_ok()
            {
                moved = self.move_group(*group, limit, &mut batch);
                if moved.is_ok() {
                    self.purge.new_files.meters.moved_group();
                }
            }
        }
        let moved = moved.and_then(|()| self.write(&mut batch));
        let end = wanted.map_or(active, |wanted| wanted.min(active));
        self.finish_appended(moved, &slots, batch, end)
    }

    /// Deletes files of the append queue below `end` that nothing needs once `batch` was written, or `moved` tells why not; the first error.
    fn finish_appended(
        &mut self,
        moved: Result<()>,
        slots: &[(u64, Arc<Slot>)],
        mut batch: Batch,
        end: u64,
    ) -> Result<()> {
        if moved.is_err() {
            // Tombstones were to be written with what was not. Those that were are not due any more.
            batch = self.batch(batch.limit);
            let written = self
                .add_tombstones(slots, &mut batch)
                .and_then(|()| self.write(&mut batch));
            if written.is_err() {
                return moved;
            }
        }
        let deleted = self.delete_unneeded(end, &batch);
        moved.and_then(|()| batch.check()).and(deleted)
    }

    /// The last file to empty of `count` from `first` on: those above the threshold, and some more, at least one.
    fn empty_mark(&self, first: u64, count: u64) -> u64 {
        let (threshold, size) = (self.options.purge_threshold, self.options.target_file_size);
        let more = (threshold as f64 * self.options.purge_headroom_ratio) as u64;
        let stay = threshold.saturating_sub(more) / size;
        first + count.saturating_sub(stay).max(1) - 1
    }

    /// Adds what takes away from the rewrite queue what is there no more.
    fn add_tombstones(&mut self, slots: &[(u64, Arc<Slot>)], batch: &mut Batch) -> Result<()> {
        for (group, slot) in slots {
            let (tombstones, cut) = {
                let found = slot.read();
                let first = self.purge.first_rewritten;
                let tombstones = found.tombstones(slot.is_present(), first);
                (tombstones, found.file_of_cut())
            };
            if let Some(file) = cut {
                batch.cuts.insert(*group, file);
            }
            for op in tombstones {
                let what = What::Tombstone(op);
                batch.add(Part {
                    group: *group,
                    what,
                });
            }
            self.write_if_full(batch)?;
        }
        Ok(())
    }

    /// Moves all that lives in the append queue, in the files up to number `watermark` if it is given, whatever there is; with `moves` false
    /// only what it takes away from the rewrite queue is written. Then the files that nothing needs are deleted, if `deletes`.
    pub(crate) fn rewrite_append_queue(
        mut self,
        watermark: Option<u64>,
        moves: bool,
        deletes: bool,
    ) -> Result<()> {
        let Some((_, last)) = self.table.span(Queue::Append) else {
            return Ok(());
        };
        let watermark = watermark.map_or(last, |watermark| watermark.min(last));
        self.as_space_comes(|run| run.rewrite_appended_up_to(watermark, moves, deletes))
    }

    fn rewrite_appended_up_to(&mut self, watermark: u64, moves: bool, deletes: bool) -> Result<()> {
        let newest = |table: &Table| table.span(Queue::Append).map(|(_, newest)| newest);
        let mut begun = Ok(());
        if newest(self.table) == Some(watermark) {
            // Without it the newest file stays.
            begun = self.writes.start_file();
        }
        let active = newest(self.table).unwrap_or(watermark);
        // The newest file is written meanwhile: what is newer than the look must lie behind the limit. It is still the newest if it
        // has no record yet.
        let watermark = watermark.min(active.saturating_sub(1));
        let limit = FileId::new(Queue::Append, watermark);
        let wanted = oldest_wanted(&self.purge.new_files.listeners);
        let mut batch = self.batch(limit);
        let slots = self.memtables.slots();
        let mut moved = self.add_tombstones(&slots, &mut batch);
        if moves && moved.is_ok() {
            moved = self.move_groups(&slots, limit, &mut batch);
        }
        let moved = moved.and_then(|()| self.write(&mut batch));
        if !deletes {
            return begun.and(moved).and_then(|()| batch.check());
        }
        let end = wanted.map_or(active, |wanted| wanted.min(active));
        let finished = self.finish_appended(moved, &slots, batch, end);
        begun.and(finished)
    }

    /// Moves all that lies in files of the append queue up to `limit`.
    fn move_groups(
        &mut self,
        slots: &[(u64, Arc<Slot>)],
        limit: FileId,
        batch: &mut Batch,
    ) -> Result<()> {
        for (group, slot) in slots {
            let oldest = || slot.read().oldest_append_file();
            if slot.is_present() && oldest().is_some_and(|file| file <= limit.seq) {
                self.move_group(*group, limit, batch)?;
            }
        }
        Ok(())
    }

    /// Writes the rewrite queue anew, whatever it holds. If that fails, those files go in which nothing lives.
    pub(crate) fn rewrite_rewrite_queue(&mut self) -> Result<()> {
        if self.table.span(Queue::Rewrite).is_none() {
            return Ok(());
        }
        let rewritten = self.rewrite_rewritten(&mut BTreeSet::new());
        if rewritten.is_err() {
            // The first error is told.
            let _ = self.delete_dead_rewritten();
        }
        rewritten
    }

    /// Writes the rewrite queue anew, and deletes the files of the append queue that nothing needs, each whatever becomes of the other.
    pub(crate) fn purge_all_stale(mut self) -> Result<()> {
        let Some((_, last)) = self.table.span(Queue::Append) else {
            return self.rewrite_rewrite_queue();
        };
        // First what needs no space.
        let appended = self.as_space_comes(|run| run.rewrite_appended_up_to(last, false, true));
        self.rewrite_rewrite_queue().and(appended)
    }

    /// Up to which file a group's entries and keys are to be moved, if they are; whether the caller is to compact it.
    fn moves_up_to(
        &self,
        group: u64,
        slot: &Slot,
        marks: &Marks,
        groups: &mut BTreeSet<u64>,
        asked: &mut HashMap<u64, u32>,
    ) -> Option<FileId> {
        if !slot.is_present() {
            return None;
        }
        let found = slot.read();
        let oldest = found.oldest_append_file();
        let has_up_to = |limit: FileId| oldest.is_some_and(|file| file <= limit.seq);
        let rewritten = found.rewritten();
        let is_old = rewritten > 0 || oldest.is_some_and(|file| file < marks.compact);
        if is_old && found.has_up_to(ENTRIES_MANY, marks.rewrite) {
            groups.insert(group);
            let times = self.purge.asked.get(&group).copied().unwrap_or(0);
            if times < ASKED_MAX {
                asked.insert(group, times + 1);
                return None;
            }
            // It will not be compacted, and is asked for another nine times: what comes next must not wait for it so soon.
            return has_up_to(marks.rewrite).then_some(marks.rewrite);
        }
        let is_young = found.has_up_to(ENTRIES_MANY.saturating_add(rewritten), marks.rewrite);
        (has_up_to(marks.empty) && !is_young).then_some(marks.empty)
    }

    fn move_group(&mut self, group: u64, limit: FileId, batch: &mut Batch) -> Result<()> {
        let mut from = 0;
        while let Some(slot) = self.memtables.get(group) {
            let (pieces, pairs, is_all) = {
                let found = slot.read();
                let index = found.index();
                let first = index.span().first;
                let pieces = match batch.is_unread(group) {
                    true => Vec::new(),
                    false => index.pieces(
                        from.max(first + found.rewritten()),
                        limit,
                        self.record_bytes(),
                        batch.room(),
                    ),
                };
                let end = first + index.count_up_to(limit);
                let is_all = pieces.last().is_none_or(|piece| piece.next() >= end);
                let pairs = if is_all {
                    found.pairs(limit)
                } else {
                    Vec::new()
                };
                (pieces, pairs, is_all)
            };
            for piece in pieces {
                from = piece.next();
                let what = What::Entries(piece);
                batch.add(Part { group, what });
            }
            for pair in pairs {
                let what = What::Pair(pair);
                batch.add(Part { group, what });
            }
            self.write_if_full(batch)?;
            if is_all {
                break;
            }
        }
        Ok(())
    }

    /// Deletes the files of the append queue that nothing needs. `active` was the newest one before
    /// tombstones were collected, or is the oldest that a listener wants.
    fn delete_unneeded(&mut self, active: u64, batch: &Batch) -> Result<()> {
        let slots = self.memtables.slots();
        let living = slots
            .iter()
            .filter_map(|(_, slot)| slot.read().oldest_append_file());
        let cuts = batch.cuts.values().copied();
        let end = living.chain(cuts).min().unwrap_or(active).min(active);
        if self
            .table
            .span(Queue::Append)
            .is_none_or(|(first, _)| first >= end)
        {
            return Ok(());
        }
        // What made entries needless must be as durable as their loss.
        self.sync_appends()?;
        if self.table.span(Queue::Rewrite).is_some() {
            // A process that died may have left records that were read and not synced.
            self.rewriter()?.sync()?;
        }
        self.delete_before(Queue::Append, end)
    }
}
