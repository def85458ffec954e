//! What memtables leave to those after them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::{HUGE_PAGE_LEN, HugePage, Reserved};
use crate::ahead::Ahead;

/// Huge pages and blocks for memtables: those of one that was flushed are used by the next, and new pages
/// are made before they are needed.
///
/// Mapping and unmapping wait for everybody in the process who does so, and a new page may be
/// milliseconds of work where the system is a guest of another one. Memory of pages that nobody took for
/// [`IDLE`] goes back to the system.
pub struct PagePool {
    spare: Mutex<Vec<HugePage>>,
    /// Blocks that were used; of no more bytes together than of pages are kept, and an eighth.
    blocks: Mutex<Vec<Reserved>>,
    /// So many pages are kept.
    keep: AtomicUsize,
    /// Blocks that are out.
    out: AtomicUsize,
    /// None is kept where there are as many.
    blocks_max: AtomicUsize,
    ahead: Arc<Ahead>,
    /// A task that makes pages is on its way.
    is_asked: AtomicBool,
    /// A task that looks for idle pages is on its way.
    is_watched: AtomicBool,
    /// Pages and blocks that were taken, each for itself: who takes the ones may have no use for the others.
    taken: AtomicU64,
    blocks_taken: AtomicU64,
    own: Weak<PagePool>,
}

/// Pages that are made before they are needed.
const PAGES_AHEAD: usize = 2;

/// Blocks that are kept: their addresses are many.
const BLOCKS_MAX: usize = 8;

/// How long pages are kept that nobody takes.
const IDLE: Duration = Duration::from_secs(1);

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagePool")
            .field("pages", &self.spare.lock().len())
            .field("blocks", &self.blocks.lock().len())
            .finish_non_exhaustive()
    }
}

impl PagePool {
    /// An empty pool, of which `ahead` takes care.
    #[must_use]
    pub fn new(ahead: Arc<Ahead>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            spare: Mutex::default(),
            blocks: Mutex::default(),
            keep: AtomicUsize::new(PAGES_AHEAD),
            out: AtomicUsize::new(0),
            blocks_max: AtomicUsize::new(BLOCKS_MAX),
            ahead,
            is_asked: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            blocks_taken: AtomicU64::new(0),
            own: own.clone(),
        })
    }

    /// Keeps up to `bytes` from now on, if that is more than before.
    pub fn keep_at_least(&self, bytes: usize) {
        let pages = bytes.div_ceil(HUGE_PAGE_LEN);
        self.keep.fetch_max(pages, Ordering::Relaxed);
    }

    /// Keeps no block from now on where there are `count` already, with those that are out: a block that comes back late, when
    /// the next memtable has memory of its own, would only be one more.
    pub fn keep_blocks_up_to(&self, count: usize) {
        self.blocks_max.store(count, Ordering::Relaxed);
    }

    /// A page with any content; `None` if the system has none.
    #[must_use]
    pub fn take(&self) -> Option<HugePage> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let (page, left) = {
            let mut spare = self.spare.lock();
            (spare.pop(), spare.len())
        };
        if left < PAGES_AHEAD && !self.is_asked.swap(true, Ordering::Relaxed) {
            let pool = self.own.clone();
            self.ahead.ask(move || {
                if let Some(pool) = pool.upgrade() {
                    pool.make();
                }
            });
        }
        page.or_else(HugePage::new)
    }

    fn make(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
        while self.spare.lock().len() < PAGES_AHEAD
            && let Some(page) = HugePage::new()
        {
            page.touch();
            self.give(page);
        }
    }

    /// Takes a page back, with any content.
    pub fn give(&self, page: HugePage) {
        let mut spare = self.spare.lock();
        if spare.len() >= self.keep.load(Ordering::Relaxed) {
            drop(spare);
            return drop(page);
        }
        spare.push(page);
        drop(spare);
        self.watch();
    }

    /// At least `len` bytes of addresses, as [`Reserved::new`], which come back here when they are dropped: with them the memory
    /// that was committed and used, of any content. `None` if the system has none.
    #[must_use]
    pub fn reserve(&self, len: usize) -> Option<Reserved> {
        self.blocks_taken.fetch_add(1, Ordering::Relaxed);
        let used_before = {
            let mut blocks = self.blocks.lock();
            // The last one: of it the most may still be in the caches.
            let fits = blocks.iter().rposition(|block| block.len >= len);
            fits.map(|i| blocks.swap_remove(i))
        };
        let mut block = used_before.or_else(|| Reserved::new(len))?;
        block.home = self.own.clone();
        self.out.fetch_add(1, Ordering::Relaxed);
        Some(block)
    }

    /// Keeps a block, if there is room.
    pub(super) fn give_back(&self, mut block: Reserved) {
        let keep = self.keep.load(Ordering::Relaxed) * HUGE_PAGE_LEN;
        // Memtables are a little larger than their bound.
        let keep = keep + keep / 8;
        block.forget_beyond(keep);
        let out = self.out.fetch_sub(1, Ordering::Relaxed) - 1;
        let mut blocks = self.blocks.lock();
        let kept: usize = blocks.iter_mut().map(|b| *b.touched.get_mut()).sum();
        let is_one_more = out + blocks.len() >= self.blocks_max.load(Ordering::Relaxed);
        if is_one_more || blocks.len() >= BLOCKS_MAX || kept + *block.touched.get_mut() > keep {
            drop(blocks);
            return drop(block);
        }
        blocks.push(block);
        drop(blocks);
        self.watch();
    }

    /// Looks after a while whether the pages were needed.
    fn watch(&self) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let pool = self.own.clone();
        let taken = self.taken.load(Ordering::Relaxed);
        let blocks_taken = self.blocks_taken.load(Ordering::Relaxed);
        self.ahead.ask_later(IDLE, move || {
            let Some(pool) = pool.upgrade() else { return };
            pool.is_watched.store(false, Ordering::Relaxed);
            let (mut idle, mut idle_blocks) = (Vec::new(), Vec::new());
            if pool.taken.load(Ordering::Relaxed) == taken {
                idle = std::mem::take(&mut *pool.spare.lock());
            }
            if pool.blocks_taken.load(Ordering::Relaxed) == blocks_taken {
                idle_blocks = std::mem::take(&mut *pool.blocks.lock());
            }
            if !pool.spare.lock().is_empty() || !pool.blocks.lock().is_empty() {
                pool.watch();
            }
            drop((idle, idle_blocks));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_what_it_was_given_and_keeps_no_more_than_it_may() {
        let pool = PagePool::new(Arc::new(Ahead::new()));
        pool.keep_at_least(4 * HUGE_PAGE_LEN);
        let pages: Vec<HugePage> = (0..7).map(|_| pool.take().unwrap()).collect();
        let starts: Vec<usize> = pages.iter().map(|p| p.start().addr().get()).collect();
        pages.into_iter().for_each(|page| pool.give(page));
        assert_eq!(pool.spare.lock().len(), 4);
        let again = pool.take().unwrap();
        // Some of them may be the ones that were made ahead.
        assert!(pool.spare.lock().len() >= 3);
        drop(again);
        assert!(starts.iter().all(|s| s % HUGE_PAGE_LEN == 0));
    }

    #[test]
    fn pages_are_made_ahead_and_given_up_when_nobody_takes_them() {
        let pool = PagePool::new(Arc::new(Ahead::new()));
        let page = pool.take().unwrap();
        while pool.spare.lock().len() < PAGES_AHEAD {
            std::thread::yield_now();
        }
        pool.give(page);
        assert_eq!(
            pool.spare.lock().len(),
            PAGES_AHEAD,
            "no more than may be kept"
        );
        while !pool.spare.lock().is_empty() {
            std::thread::yield_now();
        }
        drop(pool);
    }

    #[test]
    fn a_block_goes_to_the_next_who_wants_one_with_what_was_committed() {
        let pool = PagePool::new(Arc::new(Ahead::new()));
        pool.keep_at_least(4 * HUGE_PAGE_LEN);
        let block = pool.reserve(10 * HUGE_PAGE_LEN).unwrap();
        assert!(block.commit(3 * HUGE_PAGE_LEN));
        block.use_up_to(3 * HUGE_PAGE_LEN);
        let start = block.start();
        drop(block);
        let larger = pool.reserve(11 * HUGE_PAGE_LEN).unwrap();
        assert_ne!(larger.start(), start, "it is too small");
        let again = pool.reserve(9 * HUGE_PAGE_LEN).unwrap();
        assert_eq!(again.start(), start);
        assert_eq!(again.committed(), 3 * HUGE_PAGE_LEN);
        assert_eq!(again.used(), 0, "by whoever has it now");
        drop(pool);
        assert!(again.commit(4 * HUGE_PAGE_LEN));
    }

    #[test]
    fn blocks_keep_no_more_than_pages_and_go_when_nobody_takes_them() {
        let pool = PagePool::new(Arc::new(Ahead::new()));
        pool.keep_at_least(8 * HUGE_PAGE_LEN);
        let used = |pages: usize| {
            let block = pool.reserve(20 * HUGE_PAGE_LEN).unwrap();
            assert!(block.commit(pages * HUGE_PAGE_LEN));
            block.use_up_to(pages * HUGE_PAGE_LEN);
            block
        };
        let blocks = [used(12), used(1)];
        drop(blocks);
        let kept = |pool: &PagePool| -> Vec<usize> {
            let mut blocks = pool.blocks.lock();
            let touched = blocks.iter_mut().map(|b| *b.touched.get_mut());
            touched.map(|bytes| bytes / HUGE_PAGE_LEN).collect()
        };
        assert_eq!(kept(&pool), [9], "the end of a large one is given up");
        pool.keep_blocks_up_to(2);
        let (on_its_way, written_to, next) = (used(3), used(3), used(0));
        drop(on_its_way);
        assert_eq!(kept(&pool), [], "the next one has its own");
        drop(written_to);
        assert_eq!(kept(&pool), [3]);
        drop(next);
        // Pages are taken all the time.
        while !pool.blocks.lock().is_empty() {
            pool.give(pool.take().unwrap());
            std::thread::yield_now();
        }
    }
}
