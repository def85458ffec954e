//! A cursor over a database as it would be after a batch was written.
//!
//! Two cursors, over the database and over the batch's keys; the batch counts where both have a key. What
//! the batch says of a key is read when the cursor comes to it, and kept: the batch may change while the
//! cursor stands. At its next move it looks for its place anew, and then sees what was written.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::{Error, Result, SliceTransform, UserComparator};
use orogen_engine::{ColumnFamily, Db, DbIterator, ReadOptions};

use crate::indexed_batch::{BatchLookup, IndexedBatch, Place};

/// Iterates over a family with the writes of a batch in it; see the module's head. The database is
/// seen as of the iterator's making, or of its snapshot.
pub struct OwnWritesIterator<'b> {
    batch: &'b RefCell<IndexedBatch>,
    family: u32,
    order: UserComparator,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// Set if the iteration ends with the prefix. The base goes on: it is sent to places of the batch.
    prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// The prefix that keys must have.
    prefix: Option<Vec<u8>>,
    base: DbIterator,
    place: Place,
    /// The batch's changes that `place` knows; `None` if it stands nowhere.
    seen: Option<u64>,
    /// Those that the base's place knows: what a batch deleted it has passed over.
    base_seen: u64,
    is_forward: bool,
    at: At,
    key: Vec<u8>,
    value: Vec<u8>,
    error: Option<Error>,
}

/// Where the current pair is from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nothing,
    Base,
    /// The base may stand at the same key.
    Batch,
}

/// Which way to go.
#[derive(Clone, Copy)]
enum From<'k> {
    End,
    /// The key counts.
    Key(&'k [u8]),
    /// The key does not count.
    Beyond(&'k [u8]),
}

impl<'b> OwnWritesIterator<'b> {
    /// An iterator at no pair. Values are read as it comes by, whatever
    /// [`ReadOptions::allow_unprepared_value`] says: merges of the batch may need them.
    ///
    /// # Errors
    /// Those of [`Db::iter`].
    pub fn new(
        batch: &'b RefCell<IndexedBatch>,
        db: &Db,
        options: &ReadOptions,
        family: &ColumnFamily,
    ) -> Result<Self> {
        let prefix_extractor = family.options().prefix_extractor.clone();
        Ok(Self {
            batch,
            family: family.id(),
            order: family.options().comparator.clone(),
            lower: options.iterate_lower_bound.clone(),
            upper: options.iterate_upper_bound.clone(),
            prefix_extractor: prefix_extractor.filter(|_| options.prefix_same_as_start),
            prefix: None,
            base: db.iter(
                &ReadOptions {
                    allow_unprepared_value: false,
                    prefix_same_as_start: false,
                    ..options.clone()
                },
                family,
            )?,
            place: Place::default(),
            seen: None,
            base_seen: 0,
            is_forward: true,
            at: At::Nothing,
            key: Vec::new(),
            value: Vec::new(),
            error: None,
        })
    }

    /// True if it stands at a pair.
    #[must_use]
    pub fn valid(&self) -> bool {
        self.at != At::Nothing
    }

    /// What ended it, if that was no end of the family.
    ///
    /// # Errors
    /// Those of the database's iterator and of merges.
    pub fn status(&self) -> Result<()> {
        match &self.error {
            Some(e) => Err(e.clone()),
            None => self.base.status(),
        }
    }

    /// The key that it stands at; empty if at none.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self.at {
            At::Nothing => &[],
            At::Base => self.base.key(),
            At::Batch => &self.key,
        }
    }

    /// The value that it stands at; empty if at none.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        match self.at {
            At::Nothing => &[],
            At::Base => self.base.value(),
            At::Batch => &self.value,
        }
    }

    /// Goes to the first pair.
    pub fn seek_to_first(&mut self) {
        self.base.seek_to_first();
        self.forward(From::End);
    }

    /// Goes to the last pair.
    pub fn seek_to_last(&mut self) {
        self.base.seek_to_last();
        self.backward(From::End);
    }

    /// Goes to the first pair whose key is not before `target`.
    pub fn seek(&mut self, target: &[u8]) {
        self.base.seek(target);
        self.forward(From::Key(target));
    }

    /// Goes to the last pair whose key is not behind `target`.
    pub fn seek_for_prev(&mut self, target: &[u8]) {
        self.base.seek_for_prev(target);
        self.backward(From::Key(target));
    }

    /// Goes to the next pair. It must be at one.
    pub fn next(&mut self) {
        if !self.valid() {
            return;
        }
        let current = self.take_key();
        if !self.is_forward || self.has_changed() {
            self.base.seek(&current);
        }
        if self.base.valid() && self.order.compare(self.base.key(), &current).is_eq() {
            self.base.next();
        }
        self.forward(From::Beyond(&current));
        self.give_back(current);
    }

    /// Goes to the pair before. It must be at one.
    pub fn prev(&mut self) {
        if !self.valid() {
            return;
        }
        let current = self.take_key();
        if self.is_forward || self.has_changed() {
            self.base.seek_for_prev(&current);
        }
        if self.base.valid() && self.order.compare(self.base.key(), &current).is_eq() {
            self.base.prev();
        }
        self.backward(From::Beyond(&current));
        self.give_back(current);
    }

    fn has_changed(&self) -> bool {
        self.base_seen != self.batch.borrow().changes()
    }

    fn take_key(&mut self) -> Vec<u8> {
        if self.at == At::Base {
            self.key.clear();
            self.key.extend_from_slice(self.base.key());
        }
        std::mem::take(&mut self.key)
    }

    /// The memory of a key that is not needed any more.
    fn give_back(&mut self, key: Vec<u8>) {
        if self.key.capacity() == 0 && self.at != At::Batch {
            self.key = key;
        }
    }

    fn forward(&mut self, from: From<'_>) {
        self.go(from, true);
    }

    fn backward(&mut self, from: From<'_>) {
        self.go(from, false);
    }

    fn go(&mut self, from: From<'_>, is_forward: bool) {
        let turned = is_forward != self.is_forward;
        self.is_forward = is_forward;
        let went = self.try_go(from, turned);
        if let Err(e) = went {
            self.at = At::Nothing;
            self.error = Some(e);
        }
        if let Some(cut) = self.prefix_extractor.clone() {
            self.stay_in_prefix(&*cut, from);
        }
    }

    /// Ends where the keys of another prefix begin.
    fn stay_in_prefix(&mut self, cut: &dyn SliceTransform, from: From<'_>) {
        let prefix_of = |key: &[u8]| cut.in_domain(key).then(|| cut.transform(key).to_vec());
        match from {
            From::Key(target) => self.prefix = prefix_of(target),
            From::End => self.prefix = self.valid().then(|| prefix_of(self.key())).flatten(),
            From::Beyond(_) => {}
        }
        let is_out = self.prefix.is_some() && prefix_of(self.key()) != self.prefix;
        if self.valid() && is_out {
            self.at = At::Nothing;
        }
    }

    fn try_go(&mut self, from: From<'_>, turned: bool) -> Result<()> {
        self.error = None;
        self.at = At::Nothing;
        let batch = self.batch.borrow();
        self.base_seen = batch.changes();
        let Some(family) = batch.find_family(self.family) else {
            self.seen = None;
            self.at = if self.base.valid() {
                At::Base
            } else {
                At::Nothing
            };
            return Ok(());
        };
        let stands = self.seen == Some(batch.changes()) && !turned;
        self.position(&batch, family, from, stands)?;
        self.seen = Some(batch.changes());
        self.settle(&batch, family)
    }

    /// Brings the place in the batch to its first key from there on.
    fn position(
        &mut self,
        batch: &IndexedBatch,
        family: u32,
        from: From<'_>,
        stands: bool,
    ) -> Result<()> {
        let place = &mut self.place;
        let (bound, is_forward) = match self.is_forward {
            true => (self.lower.as_deref(), true),
            false => (self.upper.as_deref(), false),
        };
        match from {
            From::End if is_forward => batch.seek(family, place, bound)?,
            From::End => batch.seek_for_prev(family, place, bound)?,
            From::Key(key) if is_forward => {
                let key = bound.filter(|b| self.order.less(key, b)).unwrap_or(key);
                batch.seek(family, place, Some(key))?;
            }
            From::Key(key) => {
                let key = bound.filter(|b| self.order.less(b, key)).unwrap_or(key);
                batch.seek_for_prev(family, place, Some(key))?;
            }
            From::Beyond(key) => {
                // Else it is at the key itself, or beyond already.
                if !stands && is_forward {
                    batch.seek(family, place, Some(key))?;
                } else if !stands {
                    batch.seek_for_prev(family, place, Some(key))?;
                }
                if batch
                    .at(family, place)
                    .is_some_and(|(k, _)| batch.order(family).compare(k, key).is_eq())
                {
                    match is_forward {
                        true => batch.next(family, place)?,
                        false => batch.prev(family, place)?,
                    }
                }
            }
        }
        // The upper bound itself does not count.
        if !is_forward
            && let (Some(upper), Some((key, _))) = (bound, batch.at(family, place))
            && !self.order.less(key, upper)
        {
            batch.prev(family, place)?;
        }
        Ok(())
    }

    /// Goes on from where both stand to the next pair that there is.
    fn settle(&mut self, batch: &IndexedBatch, family: u32) -> Result<()> {
        loop {
            let own = batch.at(family, &self.place).filter(|(key, _)| {
                let beyond = match self.is_forward {
                    true => self
                        .upper
                        .as_deref()
                        .is_some_and(|b| !self.order.less(key, b)),
                    false => self
                        .lower
                        .as_deref()
                        .is_some_and(|b| self.order.less(key, b)),
                };
                !beyond
            });
            let base = self.base.valid().then(|| self.base.key());
            if base.is_none() {
                // An error is no end.
                self.base.status()?;
            }
            let order = match (own, base) {
                (None, None) => return Ok(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((own, _)), Some(base)) => {
                    let order = self.order.compare(own, base);
                    if self.is_forward {
                        order
                    } else {
                        order.reverse()
                    }
                }
            };
            let Some((own, newest)) = own.filter(|_| order.is_le()) else {
                if !self.is_deleted(batch, family) {
                    self.at = At::Base;
                    return Ok(());
                }
                continue;
            };
            let is_both = order == Ordering::Equal;
            let value = match batch.lookup_in(family, own, Some(newest))? {
                BatchLookup::Value(value) => Some(value.to_vec()),
                BatchLookup::Merge(operands) => {
                    let base = is_both.then(|| self.base.value());
                    Some(batch.merged(family, own, base, &operands)?)
                }
                BatchLookup::MergeOnto(base, operands) => {
                    Some(batch.merged(family, own, base, &operands)?)
                }
                BatchLookup::NotFound | BatchLookup::Deleted => None,
            };
            if let Some(value) = value {
                self.key.clear();
                self.key.extend_from_slice(own);
                self.value = value;
                self.at = At::Batch;
                return Ok(());
            }
            if is_both {
                match self.is_forward {
                    true => self.base.next(),
                    false => self.base.prev(),
                }
            }
            match self.is_forward {
                true => batch.next(family, &mut self.place)?,
                false => batch.prev(family, &mut self.place)?,
            }
        }
    }

    /// True if the base stands in a range that the batch deletes; it has moved on then.
    fn is_deleted(&mut self, batch: &IndexedBatch, family: u32) -> bool {
        let ranges = batch.ranges(family);
        let covering = ranges.and_then(|r| r.covering(batch.order(family), self.base.key()));
        let Some(fragment) = covering else {
            return false;
        };
        if self.is_forward {
            self.base.seek(&fragment.end);
        } else {
            self.base.seek_for_prev(&fragment.start);
            let order = batch.order(family);
            if self.base.valid() && order.compare(self.base.key(), &fragment.start).is_eq() {
                self.base.prev();
            }
        }
        true
    }
}
