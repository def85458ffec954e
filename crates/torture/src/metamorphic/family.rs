//! A family as a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cursor::compare;
use super::setup::Fixed;
use crate::engine::{ColumnFamilyOptions, MergeOperator, merge_operator};
use crate::model::Pairs;

/// What a key met since it was last clean: never written, or gone by a single or range deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// One put.
    Once,
    /// More, or a plain deletion: a single deletion is not allowed.
    Otherwise,
}

/// One family.
pub(super) struct Family {
    pub(super) fixed: Fixed,
    pub(super) options: ColumnFamilyOptions,
    /// Shared with snapshots and cursors; copied when it changes.
    pub(super) pairs: Arc<Pairs>,
    operator: Arc<dyn MergeOperator>,
    writes: BTreeMap<Vec<u8>, Writes>,
}

impl Family {
    pub(super) fn new(fixed: Fixed, options: ColumnFamilyOptions) -> Self {
        let operator = merge_operator::by_name(fixed.operator).expect("it is built in");
        Self {
            fixed,
            options,
            pairs: Arc::default(),
            operator,
            writes: BTreeMap::new(),
        }
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        let clean = !self.writes.contains_key(key);
        let writes = if clean {
            Writes::Once
        } else {
            Writes::Otherwise
        };
        self.writes.insert(key.to_vec(), writes);
        Arc::make_mut(&mut self.pairs).insert(key.to_vec(), value.to_vec());
    }

    pub(super) fn merge(&mut self, key: &[u8], operand: &[u8]) {
        self.writes.insert(key.to_vec(), Writes::Otherwise);
        let pairs = Arc::make_mut(&mut self.pairs);
        let existing = pairs.get(key).map(Vec::as_slice);
        let merged = self.operator.full_merge(key, existing, &[operand]);
        pairs.insert(
            key.to_vec(),
            merged.expect("built-in operators take everything"),
        );
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        self.writes.insert(key.to_vec(), Writes::Otherwise);
        Arc::make_mut(&mut self.pairs).remove(key);
    }

    pub(super) fn single_delete(&mut self, key: &[u8]) {
        self.writes.remove(key);
        Arc::make_mut(&mut self.pairs).remove(key);
    }

    /// True if the key may be deleted by a single deletion.
    pub(super) fn may_single_delete(&self, key: &[u8]) -> bool {
        self.writes.get(key) != Some(&Writes::Otherwise)
    }

    pub(super) fn delete_range(&mut self, start: &[u8], end: &[u8]) {
        let reverse = self.fixed.reverse;
        let inside =
            |key: &[u8]| compare(reverse, key, start).is_ge() && compare(reverse, key, end).is_lt();
        Arc::make_mut(&mut self.pairs).retain(|key, _| !inside(key));
        self.writes.retain(|key, _| !inside(key));
    }
}
