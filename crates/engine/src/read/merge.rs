//! Merge operands on their way to a value.
//!
//! A read meets operands newest first, or oldest first when it goes backward; the operator
//! wants them oldest first. Source: RocksDB `db/merge_helper.cc`, `db/merge_context.h`.

use std::ops::Range;
use std::sync::Arc;

use orogen_base::{Error, Result, memory};

use crate::plugin::merge_operator::MergeOperator;

/// What memory is asked for.
const OPERANDS: &str = "merge operands";

/// Operands of one key, copied into one buffer that is used again for the next key.
#[derive(Debug, Default)]
pub struct MergeOperands {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

/// The order in which operands were collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// As a forward scan and a get meet them.
    NewestFirst,
    /// As a backward scan meets them.
    OldestFirst,
}

impl MergeOperands {
    /// Forgets all operands and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    /// Adds one.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn push(&mut self, operand: &[u8]) -> Result<()> {
        let start = self.bytes.len();
        memory::append(&mut self.bytes, operand, OPERANDS)?;
        memory::push(&mut self.ranges, start..self.bytes.len(), OPERANDS)
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The operands, oldest first.
    fn oldest_first(&self, collected: Collected) -> Vec<&[u8]> {
        let operands = self.ranges.iter().map(|r| &self.bytes[r.clone()]);
        match collected {
            Collected::OldestFirst => operands.collect(),
            Collected::NewestFirst => operands.rev().collect(),
        }
    }
}

/// Folds collected operands onto `base`.
///
/// # Errors
/// As [`full_merge`].
pub fn fold(
    operator: Option<&Arc<dyn MergeOperator>>,
    user_key: &[u8],
    base: Option<&[u8]>,
    operands: &MergeOperands,
    collected: Collected,
) -> Result<Vec<u8>> {
    full_merge(operator, user_key, base, &operands.oldest_first(collected))
}

/// Folds `operands`, oldest first, onto `base`; `None`: the key had no value.
///
/// # Errors
/// `InvalidArgument` if there is no operator, `Corruption` if the operator refuses the operands.
/// Both tell the key's length, the latter the operator's name.
pub fn full_merge(
    operator: Option<&Arc<dyn MergeOperator>>,
    user_key: &[u8],
    base: Option<&[u8]>,
    operands: &[&[u8]],
) -> Result<Vec<u8>> {
    let Some(operator) = operator else {
        return Err(
            Error::invalid_argument("merge operand met, but no merge operator is set")
                .with("key_len", user_key.len()),
        );
    };
    operator
        .full_merge(user_key, base, operands)
        .ok_or_else(|| {
            Error::corruption("merge operator failed")
                .with("operator", operator.name())
                .with("key_len", user_key.len())
                .with("operands", operands.len())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::merge_operator::StringAppend;
    use orogen_base::ErrorKind;

    struct Refuse;

    impl MergeOperator for Refuse {
        fn name(&self) -> &str {
            "refuse"
        }
        fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> Option<Vec<u8>> {
            None
        }
    }

    #[test]
    fn operands_are_folded_oldest_first_whichever_way_they_came() {
        let append: Arc<dyn MergeOperator> = Arc::new(StringAppend::default());
        let mut operands = MergeOperands::default();
        operands.push(b"old").unwrap();
        operands.push(b"").unwrap();
        operands.push(b"new").unwrap();
        let fold = |collected| fold(Some(&append), b"k", Some(b"base"), &operands, collected);
        assert_eq!(fold(Collected::OldestFirst).unwrap(), b"base,old,,new");
        assert_eq!(fold(Collected::NewestFirst).unwrap(), b"base,new,,old");
        operands.clear();
        assert!(operands.is_empty());
    }

    #[test]
    fn a_failed_merge_names_its_operator() {
        let refuse: Arc<dyn MergeOperator> = Arc::new(Refuse);
        let error = full_merge(Some(&refuse), b"four", None, &[b"x"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(error.context("operator"), Some("refuse"));
        assert_eq!(error.context("key_len"), Some("4"));
        let error = full_merge(None, b"k", None, &[b"x"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}
