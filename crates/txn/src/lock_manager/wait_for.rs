//! Deadlocks: cycles of the wait-for graph, searched for when a wait begins.
//!
//! The graph is not kept. Its edges are the blockers of each wait, asked for when the search comes to
//! it, under the mutex of the waits: so no edge is out of date, and every cycle that exists goes through
//! the wait that began last (rule 6 of the module).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::FixedState;
use orogen_base::Error;

use super::owner::{LockMode, TxnId};
use super::range::OwnedRange;
use super::waits::{Found, Target, Wait, Waits};

/// What one of a cycle waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A key.
    Key(Box<[u8]>),
    /// A range.
    Range(OwnedRange),
}

/// One wait of a cycle: for a lock that the next one holds, or waits for before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockEdge {
    /// The one that waits.
    pub txn: TxnId,
    /// The column family.
    pub family: u32,
    /// How it wants to lock.
    pub mode: LockMode,
    /// What it wants to lock.
    pub wanted: Wanted,
}

/// A cycle of waits, the one that closed it first; each waits for the next and the last for the
/// first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockPath {
    /// The waits. Empty where `limit_exceeded`.
    pub edges: Vec<DeadlockEdge>,
    /// The search was given up at `deadlock_detect_depth`, and a deadlock assumed.
    pub limit_exceeded: bool,
    /// Microseconds since 1970.
    pub unix_micros: u64,
}

impl DeadlockPath {
    /// The cycle of an error of kind `Deadlock`.
    #[must_use]
    pub fn of(error: &Error) -> Option<&Self> {
        let source = std::error::Error::source(error)?;
        source.downcast_ref::<Cycle>().map(|cycle| &*cycle.0)
    }
}

/// The cycle as the cause of an error. Keys are users' data, and are not printed.
#[derive(Debug)]
pub(crate) struct Cycle(pub(crate) Arc<DeadlockPath>);

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.limit_exceeded {
            return f.write_str("more waits than the search may look at");
        }
        f.write_str("cycle")?;
        for edge in &self.0.edges {
            let mode = match edge.mode {
                LockMode::Shared => "shared",
                LockMode::Exclusive => "exclusive",
            };
            write!(f, " txn={} cf={} mode={mode}", edge.txn, edge.family)?;
        }
        Ok(())
    }
}

impl std::error::Error for Cycle {}

/// What a search found.
pub(crate) enum Search {
    /// No cycle.
    Free,
    /// A cycle of transactions that wait, beginning with the one that was asked for.
    Cycle(Vec<TxnId>),
    /// Not known: there are more waits than were to be looked at.
    GivenUp,
}

impl Waits {
    /// Searches breadth first for a way from a transaction's wait back to itself; `depth` 0: without a
    /// limit.
    pub(crate) fn find_cycle(&self, start: TxnId, wait: u32, depth: u32) -> Search {
        // Each transaction that was reached, and from whom: in the order of the search.
        let mut reached: Vec<(TxnId, usize)> = vec![(start, 0)];
        let mut known: HashMap<TxnId, (), FixedState> = HashMap::default();
        let mut at = 0;
        let mut looked_at = 0;
        while let Some(&(txn, _)) = reached.get(at) {
            let number = if at == 0 {
                Some(wait)
            } else {
                self.by_txn.get(&txn).copied()
            };
            if let Some(number) = number {
                if depth != 0 && looked_at == depth {
                    return Search::GivenUp;
                }
                looked_at += 1;
                let mut found = Found::all();
                self.blockers_of(self.get(number), &mut found);
                for blocker in found.txns {
                    if blocker == start {
                        return Search::Cycle(way(&reached, at));
                    }
                    if known.insert(blocker, ()).is_none() {
                        reached.push((blocker, at));
                    }
                }
            }
            at += 1;
        }
        Search::Free
    }

    /// Describes a cycle, and keeps it among the last ones.
    pub(crate) fn keep_deadlock(
        &mut self,
        txns: &[TxnId],
        limit_exceeded: bool,
    ) -> Arc<DeadlockPath> {
        let edge = |txn: &TxnId| self.by_txn.get(txn).map(|&n| edge(self.get(n)));
        let path = Arc::new(DeadlockPath {
            edges: txns.iter().filter_map(edge).collect(),
            limit_exceeded,
            unix_micros: self.clock.unix_micros(),
        });
        self.deadlocks.push_back(path.clone());
        while self.deadlocks.len() > self.deadlocks_max {
            self.deadlocks.pop_front();
        }
        path
    }
}

/// The way from the start of a search to one that it reached.
fn way(reached: &[(TxnId, usize)], mut at: usize) -> Vec<TxnId> {
    let mut txns = Vec::new();
    while at != 0 {
        txns.push(reached[at].0);
        at = reached[at].1;
    }
    txns.push(reached[0].0);
    txns.reverse();
    txns
}

fn edge(wait: &Wait) -> DeadlockEdge {
    let wanted = match &wait.target {
        Target::Point { stripe, entry } => {
            Wanted::Key(wait.family.cell(*stripe).lock().key(*entry).into())
        }
        Target::Range { range, .. } => Wanted::Range(range.to_owned()),
    };
    DeadlockEdge {
        txn: wait.owner.id,
        family: wait.family.id,
        mode: wait.mode,
        wanted,
    }
}
