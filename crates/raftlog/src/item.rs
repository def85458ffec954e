//! What a batch does, one group at a time, in the order in which it is applied.

/// One operation on one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) group: u64,
    pub(crate) op: Op,
}

impl Item {
    /// For how many it counts where operations are counted: each entry is one.
    pub(crate) fn weight(&self) -> u64 {
        match &self.op {
            Op::Entries(entries) => entries.ends.len() as u64,
            _ => 1,
        }
    }
}

/// What is done to the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Entries(Entries),
    /// All of the group goes.
    Clean,
    /// Entries below `index` go.
    Compact {
        index: u64,
    },
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Delete {
        key: Vec<u8>,
    },
}

/// Entries of consecutive indexes, which lie one behind the other in the batch's block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    /// Index of the first one.
    pub(crate) first: u64,
    /// Where the first one begins in the raw block.
    pub(crate) start: u32,
    /// Where each one ends in the raw block.
    pub(crate) ends: Vec<u32>,
}
