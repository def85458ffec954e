//! Families as maps, and the operations of a batch on them.
//!
//! All families of scripts have the same merge operator: operands are joined with commas.

use std::collections::BTreeMap;

use orogen_base::checksum::hash_xxh3;

use crate::engine::WriteBatch;
use crate::script::Step;

/// A family's name.
pub type Family = &'static str;

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Family, Vec<u8>, Vec<u8>),
    /// Adds an operand.
    Merge(Family, Vec<u8>, Vec<u8>),
    /// Deletes a key.
    Delete(Family, Vec<u8>),
    /// Deletes a key that was put once.
    SingleDelete(Family, Vec<u8>),
    /// Deletes keys from the first up to but not including the second.
    DeleteRange(Family, Vec<u8>, Vec<u8>),
}

impl Op {
    /// The family that it changes.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Put(f, ..)
            | Self::Merge(f, ..)
            | Self::Delete(f, _)
            | Self::SingleDelete(f, _)
            | Self::DeleteRange(f, ..) => f,
        }
    }

    /// Adds it to an engine's batch.
    pub fn add_to(&self, batch: &mut WriteBatch, id: u32) {
        match self {
            Self::Put(_, k, v) => batch.put(id, k, v),
            Self::Merge(_, k, v) => batch.merge(id, k, v),
            Self::Delete(_, k) => batch.delete(id, k),
            Self::SingleDelete(_, k) => batch.single_delete(id, k),
            Self::DeleteRange(_, from, to) => batch.delete_range(id, from, to),
        }
    }
}

/// The pairs of a family.
pub type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A database: its families and what they hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The families.
    pub families: BTreeMap<Family, Pairs>,
    /// What is prepared, by name.
    pub prepared: BTreeMap<&'static str, Vec<Op>>,
}

impl Model {
    /// With the default family only.
    #[must_use]
    pub fn new() -> Self {
        Self {
            families: BTreeMap::from([("default", Pairs::new())]),
            prepared: BTreeMap::new(),
        }
    }

    /// Does what the operation says; one on a family that is not there does nothing.
    pub fn apply(&mut self, op: &Op) {
        let Some(pairs) = self.families.get_mut(op.family()) else {
            return;
        };
        match op {
            Op::Put(_, k, v) => {
                pairs.insert(k.clone(), v.clone());
            }
            Op::Merge(_, k, operand) => match pairs.get_mut(k) {
                None => {
                    pairs.insert(k.clone(), operand.clone());
                }
                Some(value) => {
                    value.push(b',');
                    value.extend_from_slice(operand);
                }
            },
            Op::Delete(_, k) | Op::SingleDelete(_, k) => {
                pairs.remove(k);
            }
            Op::DeleteRange(_, from, to) => pairs.retain(|k, _| k < from || k >= to),
        }
    }

    /// Does what all operations of a batch say.
    pub fn apply_all(&mut self, ops: &[Op]) {
        for op in ops {
            self.apply(op);
        }
    }

    /// Does what a step says that writes to the log.
    pub fn write(&mut self, step: &Step) {
        match step {
            Step::Write { ops, .. } => self.apply_all(ops),
            Step::Prepare { name, ops, .. } => {
                self.prepared.insert(name, ops.clone());
            }
            Step::CommitPrepared(name, _) => {
                let ops = self.prepared.remove(name).unwrap_or_default();
                self.apply_all(&ops);
            }
            Step::RollbackPrepared(name, _) => {
                self.prepared.remove(name);
            }
            _ => {}
        }
    }

    /// A number for each family; two contents that differ have different ones in all likelihood.
    /// What is prepared counts as pairs of the default family.
    #[must_use]
    pub fn prints(&self) -> Prints {
        let families = self.families.iter();
        let mut prints: Prints = families
            .map(|(name, pairs)| ((*name).to_owned(), print_of(pairs.iter())))
            .collect();
        for (name, ops) in &self.prepared {
            add_prepared(&mut prints, name.as_bytes(), ops.len());
        }
        prints
    }
}

/// Adds a prepared write of so many operations to the number of the default family.
pub fn add_prepared(prints: &mut Prints, name: &[u8], operations: usize) {
    let key = [b"\0prepared\0", name].concat();
    let print = prints.entry("default".to_owned()).or_insert(0);
    *print = print.wrapping_add(print_of_pair(&key, &operations.to_le_bytes()));
}

/// A number for the content of each family.
pub type Prints = BTreeMap<String, u64>;

/// A number for pairs in any order.
pub fn print_of<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl Iterator<Item = (K, V)>) -> u64 {
    pairs.fold(0, |sum, (k, v)| {
        sum.wrapping_add(print_of_pair(k.as_ref(), v.as_ref()))
    })
}

/// A number for one pair; a family's is their sum.
#[must_use]
pub fn print_of_pair(key: &[u8], value: &[u8]) -> u64 {
    // Bits are mixed behind that: else values that changed places would give the same sum. By the end of splitmix64.
    let both = hash_xxh3(key).wrapping_mul(3) ^ hash_xxh3(value).rotate_left(31);
    let both = (both ^ both >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let both = (both ^ both >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    both ^ both >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_do_what_they_say() {
        let mut model = Model::new();
        let k = |s: &str| s.as_bytes().to_vec();
        model.apply_all(&[
            Op::Put("default", k("a"), k("1")),
            Op::Merge("default", k("a"), k("2")),
            Op::Merge("default", k("b"), k("3")),
            Op::Put("default", k("c"), k("4")),
            Op::Put("default", k("d"), k("5")),
            Op::Put("other", k("x"), k("lost")),
            Op::DeleteRange("default", k("b"), k("c")),
            Op::Delete("default", k("d")),
        ]);
        let expected = Pairs::from([(k("a"), k("1,2")), (k("c"), k("4"))]);
        assert_eq!(model.families["default"], expected);
        assert_eq!(model.prints()["default"], print_of(expected.iter().rev()));
        assert_eq!(model.families.len(), 1);
    }
}
