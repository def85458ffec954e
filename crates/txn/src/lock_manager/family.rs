//! The locks of one column family: its stripes, and its ranges.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use foldhash::fast::FixedState;

use orogen_base::UserComparator;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::range::Ranges;
use super::stripe::Stripe;
use super::tally::Tally;
use super::waits::Waits;
use super::{Core, range_cost};

/// A stripe with its mutex, on cache lines of its own.
///
/// Rank: below the waits and the ranges. Guards a [`Stripe`]; what may change under it alone is rule
/// 1 of the module.
#[repr(align(128))]
pub(crate) struct Cell(pub(crate) Mutex<Stripe>);

/// The locks of one column family, made by
/// [`LockManager::add_family`](super::LockManager::add_family).
pub struct FamilyLocks {
    pub(crate) core: Arc<Core>,
    pub(crate) id: u32,
    pub(crate) order: UserComparator,
    pub(crate) cells: Box<[Cell]>,
    hasher: FixedState,
    /// Ranges that are locked or waited for: rule 7 of the module.
    pub(crate) range_count: AtomicUsize,
    /// Rank: below the waits, above the stripes.
    pub(crate) ranges: Mutex<Ranges>,
    /// Who holds or waits for a key or a range; counted only where there is a limit.
    pub(crate) limited_count: AtomicUsize,
}

/// Where a key is looked for.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) stripe: u16,
    pub(crate) hash: u32,
}

impl FamilyLocks {
    pub(crate) fn new(core: &Arc<Core>, id: u32, order: UserComparator) -> Self {
        Self {
            core: core.clone(),
            id,
            order,
            cells: (0..core.options.num_stripes)
                .map(|_| Cell(Mutex::new(Stripe::new())))
                .collect(),
            hasher: FixedState::with_seed(core.hash_seed),
            range_count: AtomicUsize::new(0),
            ranges: Mutex::new(Ranges::default()),
            limited_count: AtomicUsize::new(0),
        }
    }

    /// The number of the column family.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The order of its keys.
    #[must_use]
    pub fn order(&self) -> &UserComparator {
        &self.order
    }

    /// Keys that are locked or waited for, stripe by stripe: no moment had just so many.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.cells.iter().map(|cell| cell.0.lock().len()).sum()
    }

    /// Bytes that these keys count, with those who hold or wait for them, in the same way.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let used = |cell: &Cell| cell.0.lock().tally().bytes;
        self.cells.iter().map(used).sum()
    }

    /// What all its keys and ranges count; ranges as they are at one moment, keys stripe by stripe.
    pub(crate) fn tally(&self, waits: &Waits) -> Tally {
        let mut sum = Tally::default();
        let ranges = self.ranges.lock();
        for held in &ranges.held {
            sum.add(Tally::lock(range_cost(&held.range)));
        }
        for &number in &ranges.waiting {
            sum.add(waits.get(number).cost());
        }
        drop(ranges);
        for cell in &self.cells {
            sum.add(cell.0.lock().tally());
        }
        sum
    }

    /// Bytes that the tables have allocated, at least those of the keys.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        let allocated = |cell: &Cell| cell.0.lock().capacity_bytes();
        self.cells.iter().map(allocated).sum()
    }

    /// True while a range is locked or waited for. Told under the mutex of a stripe or of the waits.
    #[inline]
    pub(crate) fn has_ranges(&self) -> bool {
        self.range_count.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        let hash = hasher.finish();
        Place {
            stripe: (((hash >> 32) * self.cells.len() as u64) >> 32) as u16,
            hash: hash as u32,
        }
    }

    #[inline]
    pub(crate) fn cell(&self, stripe: u16) -> &Mutex<Stripe> {
        &self.cells[usize::from(stripe)].0
    }
}
