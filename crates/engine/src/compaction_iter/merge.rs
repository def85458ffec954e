//! Merge operands of one stripe, folded.
//!
//! ```text
//! operands of the stripe, then
//!   a value, a tombstone, or versions under a range tombstone -> full merge -> a value
//!   nothing more of the key, and nothing below                -> full merge -> a value
//!   an older stripe, or perhaps more below                    -> partial merge -> one operand
//! ```
//! A filter is shown each operand that no snapshot may read before it is taken.
//! Where the operator refuses, or the base is damaged, operands and base stay as they are: a reader
//! is told, and the job goes on. Source: RocksDB `db/merge_helper.cc`.

use orogen_base::key::{TRAILER_LEN, user_key};
use orogen_base::{Error, InternalIterator, Result, SeqNo, ValueKind, memory};

use super::{CompactionIter, Peek, ValueAt, fetch, misplaced};
use crate::plugin::compaction_filter::FilterDecision;

/// Operands of a key, newest first; the buffers are used again for the next key.
#[derive(Default)]
pub(super) struct Operands {
    bytes: Vec<u8>,
    /// Sequence number and end in `bytes` of each.
    entries: Vec<(SeqNo, usize)>,
}

impl Operands {
    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    fn push(&mut self, seqno: SeqNo, value: &[u8]) -> Result<()> {
        memory::append(&mut self.bytes, value, "merge operands")?;
        memory::push(
            &mut self.entries,
            (seqno, self.bytes.len()),
            "merge operands",
        )
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The sequence number of the `i`th newest.
    pub(super) fn seqno(&self, i: usize) -> SeqNo {
        self.entries[i].0
    }

    /// The `i`th newest.
    pub(super) fn value(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.entries[i - 1].1 };
        &self.bytes[start..self.entries[i].1]
    }

    /// All of them as the operator wants them.
    fn oldest_first(&self) -> Vec<&[u8]> {
        (0..self.len()).rev().map(|i| self.value(i)).collect()
    }
}

/// What the operands of a stripe rest on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Base {
    /// The value under the input cursor.
    Value,
    /// The value that the pointer under the input cursor leads to.
    Blob,
    /// Nothing: it was deleted.
    Deleted,
    /// Nothing more of this key in the inputs.
    EndOfKey,
    /// Versions of an older stripe.
    OlderStripe,
}

impl<I: InternalIterator> CompactionIter<I> {
    /// An operand under the input cursor that heads its stripe; true if something comes out.
    pub(super) fn on_merge(&mut self, seqno: SeqNo, stripe: usize) -> Result<bool> {
        let Some(operator) = self.options.merge_operator.clone() else {
            return Err(
                Error::invalid_argument("merge operands without a merge operator")
                    .with("key", user_key(&self.key).escape_ascii()),
            );
        };
        let Some(base) = self.collect_operands(seqno, stripe)? else {
            return Ok(false);
        };
        if self.operands.is_empty() {
            return Ok(false);
        }
        let newest = self.operands.seqno(0);
        let full = match base {
            Base::Value | Base::Blob | Base::Deleted => true,
            Base::EndOfKey => self.nothing_below(),
            Base::OlderStripe => false,
        };
        let key = &self.key[..self.key.len() - TRAILER_LEN];
        if full {
            let fetched;
            let existing = match base {
                Base::Value => Some(self.input.value()),
                Base::Blob => {
                    fetched = fetch(self.options.blobs.as_deref(), self.input.value(), key)?;
                    fetched.as_deref()
                }
                _ => None,
            };
            let is_damaged = base == Base::Blob && existing.is_none();
            let merged = match is_damaged {
                true => None,
                false => operator.full_merge(key, existing, &self.operands.oldest_first()),
            };
            match merged {
                Some(value) => {
                    self.own = value;
                    self.answered = Some(stripe);
                    let at = match base {
                        Base::Value | Base::Blob => ValueAt::OwnOverInput,
                        _ => ValueAt::Own,
                    };
                    return Ok(self.emit_value(newest, ValueKind::Value, stripe, at));
                }
                None => self.stats.merge_failures += u64::from(!is_damaged),
            }
        } else if self.operands.len() > 1
            && let Some(value) = operator.partial_merge(key, &self.operands.oldest_first())
        {
            self.own = value;
            return Ok(self.emit(newest, ValueKind::Merge, ValueAt::Own));
        }
        // A base in the same stripe is still wanted: the stripe is not answered.
        self.emit_operand(0);
        Ok(true)
    }

    /// Takes the operands of the stripe from the input, as far as the filter leaves them, and tells
    /// what is under them; `None` if it skips the key.
    fn collect_operands(&mut self, mut seqno: SeqNo, stripe: usize) -> Result<Option<Base>> {
        self.operands.clear();
        let is_shown = stripe == self.options.snapshots.len();
        let base = loop {
            match self.ask_about_operand(is_shown) {
                FilterDecision::Keep => self.operands.push(seqno, self.input.value())?,
                FilterDecision::ChangeValue(value) => self.operands.push(seqno, &value)?,
                FilterDecision::Remove => self.stats.dropped_user += 1,
                FilterDecision::RemoveAndSkipUntil(until) => {
                    self.stats.dropped_user += self.operands.len() as u64;
                    self.skip_until(&until)?;
                    return Ok(None);
                }
            }
            self.advance_input();
            let Peek::SameKey(older, kind) = self.peek()? else {
                break Base::EndOfKey;
            };
            if self.stripe_of(older) != stripe {
                break Base::OlderStripe;
            }
            if self.is_covered(older, stripe) {
                break Base::Deleted;
            }
            match kind {
                ValueKind::Merge => seqno = older,
                ValueKind::Value => break Base::Value,
                ValueKind::Deletion | ValueKind::SingleDeletion => break Base::Deleted,
                ValueKind::BlobIndex => break Base::Blob,
                ValueKind::RangeDeletion => return Err(misplaced(kind)),
            }
        };
        Ok(Some(base))
    }

    /// What the filter says of the operand under the input cursor.
    fn ask_about_operand(&mut self, is_shown: bool) -> FilterDecision {
        let Some((filter, level)) = self.options.filter.as_mut().filter(|_| is_shown) else {
            return FilterDecision::Keep;
        };
        let key = &self.key[..self.key.len() - TRAILER_LEN];
        match filter.filter_merge_operand(*level, key, self.input.value()) {
            FilterDecision::RemoveAndSkipUntil(until)
                if !self.options.comparator.less(key, &until) =>
            {
                FilterDecision::Keep
            }
            decision => decision,
        }
    }
}
