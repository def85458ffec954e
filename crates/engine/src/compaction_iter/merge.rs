//! Merge operands of one stripe, folded.
//!
//! ```text
//! operands of the stripe, then
//!   a value, a tombstone, or versions under a range tombstone -> full merge -> a value
//!   nothing more of the key, and nothing below                -> full merge -> a value
//!   an older stripe, or perhaps more below                    -> partial merge -> one operand
//! ```
//! Where the operator refuses, or the base is damaged, operands and base stay as they are: a reader
//! is told, and the job goes on. Source: RocksDB `db/merge_helper.cc`.

use orogen_base::key::{TRAILER_LEN, user_key};
use orogen_base::{Error, InternalIterator, Result, SeqNo, ValueKind, memory};

use super::{CompactionIter, Peek, ValueAt, fetch, misplaced};

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
    /// An operand under the input cursor that heads its stripe; always comes to an output.
    pub(super) fn on_merge(&mut self, newest: SeqNo, stripe: usize) -> Result<bool> {
        let Some(operator) = self.options.merge_operator.clone() else {
            return Err(
                Error::invalid_argument("merge operands without a merge operator")
                    .with("key", user_key(&self.key).escape_ascii()),
            );
        };
        let base = self.collect_operands(newest, stripe)?;
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

    /// Takes the operands of the stripe from the input and tells what is under them.
    fn collect_operands(&mut self, newest: SeqNo, stripe: usize) -> Result<Base> {
        self.operands.clear();
        let mut seqno = newest;
        loop {
            self.operands.push(seqno, self.input.value())?;
            self.advance_input();
            let Peek::SameKey(older, kind) = self.peek()? else {
                return Ok(Base::EndOfKey);
            };
            if self.stripe_of(older) != stripe {
                return Ok(Base::OlderStripe);
            }
            if self.is_covered(older, stripe) {
                return Ok(Base::Deleted);
            }
            match kind {
                ValueKind::Merge => seqno = older,
                ValueKind::Value => return Ok(Base::Value),
                ValueKind::Deletion | ValueKind::SingleDeletion => return Ok(Base::Deleted),
                ValueKind::BlobIndex => return Ok(Base::Blob),
                ValueKind::RangeDeletion => return Err(misplaced(kind)),
            }
        }
    }
}
