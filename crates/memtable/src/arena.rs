//! Memory that is only ever added to, and freed all at once.
//!
//! A memtable's entries live and die together, so each is cut from the end of the current chunk
//! with one compare-and-swap. Only a new chunk takes the lock. Hot path.
//!
//! 1. `current` points to the last chunk of `chunks`, whose headers never move.
//! 2. Bytes of a chunk below `used` belong to whoever got them; those above to nobody.
//! 3. What is promised fits into the current chunk, or into the spare one alone.
//! 4. Chunks double from 8 KiB, so that a small memtable costs little, up to 2 MiB, each of which
//!    is one huge page where the system gives them.
#![expect(
    unsafe_code,
    reason = "hands out raw memory that lives as long as the arena"
)]

use orogen_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use orogen_base::sync::Mutex;
use orogen_base::{Result, memory};
use orogen_env::memory::{HUGE_PAGE_LEN, HugePage, PagePool};

use crate::{Growth, Moment};

/// All memory is aligned and sized to this.
pub(crate) const ALIGNMENT: usize = 8;

const CHUNK_MIN: usize = 8 << 10;
const CHUNK_MAX: usize = HUGE_PAGE_LEN;

/// A larger request gets a chunk of its own, so that it does not end the current one early.
const SHARED_MAX: usize = CHUNK_MAX / 4;

struct Chunk {
    base: NonNull<u8>,
    size: usize,
    /// Of a chunk of the largest size; others come from the allocator.
    page: Option<HugePage>,
    /// Where the page comes from.
    pool: Option<Arc<PagePool>>,
    used: AtomicUsize,
}

impl Chunk {
    fn new(size: usize, pool: Option<&Arc<PagePool>>) -> Result<Self> {
        let size = size.max(ALIGNMENT);
        let page = match pool {
            _ if size != CHUNK_MAX => None,
            Some(pool) => pool.take(),
            None => HugePage::new(),
        };
        let base = match &page {
            Some(page) => page.start(),
            None => {
                let layout = Self::layout(size);
                // SAFETY: the layout's size is not zero.
                let base = unsafe { alloc(layout) };
                NonNull::new(base).ok_or_else(|| memory::refused("memtable", size))?
            }
        };
        Ok(Self {
            base,
            size,
            page,
            pool: pool.cloned(),
            used: AtomicUsize::new(0),
        })
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, ALIGNMENT)
            .expect("keys and values are far below the address space")
    }

    /// Bytes that nobody has.
    #[inline]
    fn free(&self) -> usize {
        self.size - self.used.load(Ordering::Relaxed)
    }

    /// Takes `size` bytes, a multiple of the alignment, if so many are left.
    #[inline]
    fn take(&self, size: usize) -> Option<NonNull<u8>> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            if size > self.size - used {
                return None;
            }
            let next = used + size;
            match self
                .used
                .compare_exchange_weak(used, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                // SAFETY: `used + size` is within the allocation, as checked above.
                Ok(_) => return Some(unsafe { self.base.add(used) }),
                Err(now) => used = now,
            }
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        match (self.page.take(), &self.pool) {
            (Some(page), Some(pool)) => pool.give(page),
            (Some(page), None) => drop(page),
            (None, _) => {
                // SAFETY: `base` came from `alloc` with this layout and is freed only here.
                unsafe { dealloc(self.base.as_ptr(), Self::layout(self.size)) };
            }
        }
    }
}

/// What the lock guards; it is a leaf.
#[derive(Default)]
struct Chunks {
    /// Boxed: `current` points into the last one while the vector grows.
    #[expect(
        clippy::vec_box,
        reason = "the address of a chunk is held by `current`"
    )]
    shared: Vec<Box<Chunk>>,
    alone: Vec<Chunk>,
    /// What becomes the current chunk next, if there is one already.
    spare: Option<Box<Chunk>>,
}

/// Memory of one memtable.
pub(crate) struct Arena {
    current: AtomicPtr<Chunk>,
    /// Bytes of all chunks but the current one.
    closed_bytes: AtomicUsize,
    spare_bytes: AtomicUsize,
    /// Bytes that were promised and may not be allocated yet.
    promised: AtomicUsize,
    chunks: Mutex<Chunks>,
    /// Chunks that several pieces share are no larger.
    chunk_max: AtomicUsize,
    /// Where huge pages come from.
    pool: OnceLock<Arc<PagePool>>,
    /// Told of new chunks, and by its end that there are none any more: last.
    grows: OnceLock<Growth>,
}

// SAFETY: chunks are plain memory owned by the arena; `used` is atomic and the lists are locked.
unsafe impl Send for Arena {}
// SAFETY: as above; all methods take `&self` and synchronise by the atomics and the lock.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena with its first, small chunk.
    ///
    /// # Panics
    /// If the system has not even that: it is no big allocation.
    pub(crate) fn new() -> Self {
        let mut chunks = Chunks::default();
        let first = Chunk::new(CHUNK_MIN, None).expect("a few kibibytes are there");
        chunks.shared.push(Box::new(first));
        let first = NonNull::from(&*chunks.shared[0]);
        Self {
            current: AtomicPtr::new(first.as_ptr()),
            closed_bytes: AtomicUsize::new(0),
            spare_bytes: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            chunks: Mutex::new(chunks),
            chunk_max: AtomicUsize::new(CHUNK_MAX),
            pool: OnceLock::new(),
            grows: OnceLock::new(),
        }
    }

    #[inline]
    fn current(&self) -> &Chunk {
        // SAFETY: points to a boxed chunk that is kept until the arena is dropped.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// `size` bytes of uninitialised memory that live as long as the arena, aligned to
    /// [`ALIGNMENT`]; nobody else gets them.
    ///
    /// # Errors
    /// `NoMemory`.
    #[inline]
    pub(crate) fn allocate(&self, size: usize) -> Result<NonNull<u8>> {
        let size = size.next_multiple_of(ALIGNMENT);
        if size <= SHARED_MAX {
            if let Some(memory) = self.current().take(size) {
                return Ok(memory);
            }
            return self.allocate_from_new_chunk(size);
        }
        self.allocate_alone(size)
    }

    #[cold]
    fn allocate_alone(&self, size: usize) -> Result<NonNull<u8>> {
        {
            // What was promised lies in the current chunk or in the spare one.
            let mut chunks = self.chunks.lock();
            if let Some(memory) = self.current().take(size) {
                return Ok(memory);
            }
            if let Some(spare) = self.take_spare(&mut chunks, size) {
                return Ok(self.make_current(&mut chunks, spare, size));
            }
        }
        let chunk = self.new_chunk(size)?;
        let memory = chunk.base;
        self.closed_bytes.fetch_add(size, Ordering::Relaxed);
        self.chunks.lock().alone.push(chunk);
        self.tell(Moment::After, size);
        Ok(memory)
    }

    /// A chunk that was told of, once; where there is none it is taken back.
    fn new_chunk(&self, size: usize) -> Result<Chunk> {
        self.tell(Moment::Before, size);
        Chunk::new(size, self.pool.get()).inspect_err(|_| self.tell(Moment::Not, size))
    }

    #[cold]
    fn allocate_from_new_chunk(&self, size: usize) -> Result<NonNull<u8>> {
        let mut chunks = self.chunks.lock();
        // Another thread may have added a chunk while this one waited.
        let full = self.current();
        if let Some(memory) = full.take(size) {
            return Ok(memory);
        }
        if let Some(spare) = self.take_spare(&mut chunks, size) {
            return Ok(self.make_current(&mut chunks, spare, size));
        }
        let chunk_max = self.chunk_max();
        if size > chunk_max / 4 {
            drop(chunks);
            return self.allocate_alone(size);
        }
        let next_size = (full.size * 2)
            .max((size * 4).next_power_of_two())
            .min(chunk_max);
        let chunk = Box::new(self.new_chunk(next_size)?);
        let memory = self.make_current(&mut chunks, chunk, size);
        drop(chunks);
        self.tell(Moment::After, next_size);
        Ok(memory)
    }

    /// The spare chunk, if it has `size` bytes.
    fn take_spare(&self, chunks: &mut Chunks, size: usize) -> Option<Box<Chunk>> {
        chunks.spare.take_if(|spare| spare.size >= size)
    }

    /// Takes `size` bytes from a new chunk, from which others take theirs then.
    fn make_current(&self, chunks: &mut Chunks, chunk: Box<Chunk>, size: usize) -> NonNull<u8> {
        let memory = chunk.take(size).expect("a new chunk holds it");
        let full_size = self.current().size;
        // At its place first: a box that is moved is its content's only owner again, and earlier addresses count for nothing.
        let place = chunks.shared.len();
        chunks.shared.push(chunk);
        let chunk = NonNull::from(&*chunks.shared[place]);
        self.current.store(chunk.as_ptr(), Ordering::Release);
        self.closed_bytes.fetch_add(full_size, Ordering::Relaxed);
        if chunks.spare.is_none() {
            self.spare_bytes.store(0, Ordering::Relaxed);
        }
        memory
    }

    /// Sees to it that `bytes` can be allocated, in whatever pieces, beside what was promised
    /// before; [`Self::release`] ends it. Each piece counts with its end rounded up to
    /// [`ALIGNMENT`]. One thread at a time promises.
    ///
    /// # Errors
    /// `NoMemory`; nothing is promised.
    #[inline]
    pub(crate) fn promise(&self, bytes: usize) -> Result<()> {
        let promised = self.promised.fetch_add(bytes, Ordering::AcqRel) + bytes;
        // What of it was allocated meanwhile counts twice, which does no harm.
        if self.current().free() >= promised {
            return Ok(());
        }
        self.keep_spare().inspect_err(|_| self.release(bytes))
    }

    /// Ends a promise, when all was allocated that will be.
    #[inline]
    pub(crate) fn release(&self, bytes: usize) {
        self.promised.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Gets a chunk that alone holds all that is promised: then it does not matter how much of it
    /// the current one holds.
    #[cold]
    fn keep_spare(&self) -> Result<()> {
        let mut chunks = self.chunks.lock();
        let promised = self.promised.load(Ordering::Acquire);
        let current = self.current();
        if current.free() >= promised || chunks.spare.as_ref().is_some_and(|s| s.size >= promised) {
            return Ok(());
        }
        let size = (current.size * 2)
            .min(self.chunk_max())
            .max(promised.next_multiple_of(ALIGNMENT));
        let spare = Box::new(self.new_chunk(size)?);
        self.spare_bytes.store(size, Ordering::Relaxed);
        let before = chunks.spare.replace(spare);
        drop(chunks);
        drop(before);
        self.tell(Moment::After, size);
        Ok(())
    }

    fn tell(&self, moment: Moment, bytes: usize) {
        if let Some(grows) = self.grows.get() {
            grows(moment, bytes);
        }
    }

    /// Has `grows` told of chunks from now on; the first call counts.
    pub(crate) fn watch_growth(&self, grows: Growth) {
        let _ = self.grows.set(grows);
    }

    fn chunk_max(&self) -> usize {
        self.chunk_max.load(Ordering::Relaxed)
    }

    /// Bounds what is taken from the system ahead of what is wanted from now on.
    pub(crate) fn allocate_ahead_at_most(&self, bytes: usize) {
        let bytes = bytes.clamp(CHUNK_MIN, CHUNK_MAX);
        self.chunk_max.store(1 << bytes.ilog2(), Ordering::Relaxed);
    }

    /// Takes huge pages from `pool` from now on; the first call counts.
    pub(crate) fn use_pages(&self, pool: Arc<PagePool>) {
        let _ = self.pool.set(pool);
    }

    /// Bytes taken from the system, without the free end of the current chunk.
    pub(crate) fn memory_usage(&self) -> usize {
        self.closed_bytes.load(Ordering::Relaxed) + self.current().used.load(Ordering::Relaxed)
    }

    /// As [`Self::memory_usage`] with the free end.
    pub(crate) fn memory_allocated(&self) -> usize {
        self.closed_bytes.load(Ordering::Relaxed)
            + self.current().size
            + self.spare_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_do_not_overlap() {
        let arena = Arena::new();
        let sizes = [
            1,
            7,
            8,
            100,
            5000,
            9000,
            300_000,
            SHARED_MAX,
            SHARED_MAX + 1,
            3 << 20,
        ];
        let mut pieces: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let allocate = || -> Vec<(usize, usize)> {
                (0..3000)
                    .map(|i| sizes[if i % 500 == 0 { i / 500 + 4 } else { i % 4 }])
                    .map(|size| (arena.allocate(size).unwrap().as_ptr().addr(), size))
                    .collect()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(allocate)).collect();
            threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect()
        });
        pieces.sort_unstable();
        let total: usize = pieces.iter().map(|p| p.1).sum();
        for pair in pieces.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0);
        }
        assert!(pieces.iter().all(|p| p.0 % ALIGNMENT == 0));
        assert!(arena.memory_usage() >= total && arena.memory_usage() < total * 3 / 2);
    }

    #[test]
    fn pieces_of_chunks_that_were_followed_by_others_are_still_there() {
        let arena = Arena::new();
        let pieces: Vec<_> = (0..40u8)
            .map(|n| {
                let piece = arena.allocate(1000).unwrap();
                // SAFETY: so many bytes are this test's alone.
                unsafe { piece.write_bytes(n, 1000) };
                piece
            })
            .collect();
        arena.promise(64 << 10).unwrap();
        arena.allocate(32 << 10).unwrap();
        for (n, piece) in (0..40u8).zip(pieces) {
            // SAFETY: as above.
            assert_eq!(unsafe { piece.read() }, n);
        }
    }

    #[test]
    fn growth_is_told_to_the_byte() {
        use std::sync::Arc;

        let arena = Arc::new(Arena::new());
        let told = Arc::new(AtomicUsize::new(arena.memory_allocated()));
        let (sum, watched) = (told.clone(), Arc::downgrade(&arena));
        arena.watch_growth(Box::new(move |moment, bytes| {
            let is = watched.upgrade().map(|arena| arena.memory_allocated());
            let known = sum.load(Ordering::Relaxed);
            if moment == Moment::Before {
                assert_eq!(is, Some(known), "nothing is counted yet");
                sum.fetch_add(bytes, Ordering::Relaxed);
            } else {
                assert_eq!(is, Some(known));
            }
        }));
        for size in [10, 9000, 100_000, 3 << 20, 400_000, 1 << 20] {
            arena.allocate(size).unwrap();
            assert_eq!(told.load(Ordering::Relaxed), arena.memory_allocated());
        }
    }

    #[test]
    fn what_is_promised_is_there_in_whatever_pieces() {
        let arena = Arena::new();
        there_in_whatever_pieces(&arena);
        let arena = Arena::new();
        arena.allocate_ahead_at_most(70 << 10);
        there_in_whatever_pieces(&arena);
    }

    #[test]
    fn no_more_is_taken_ahead_than_one_may() {
        let arena = Arena::new();
        arena.allocate_ahead_at_most(100 << 10);
        let mut used = 0;
        for size in [100, 20_000, 16, 90_000].into_iter().cycle().take(400) {
            arena.allocate(size).unwrap();
            used += size.next_multiple_of(ALIGNMENT);
            // Ends of chunks are lost, of each less than a quarter.
            assert!(arena.memory_allocated() <= used * 4 / 3 + (64 << 10) + CHUNK_MIN);
        }
    }

    fn there_in_whatever_pieces(arena: &Arena) {
        for pieces in [
            vec![100; 1000],
            vec![5000; 30],
            vec![300_000, 8, 400_000, 300_000],
            vec![SHARED_MAX + 8, 3 << 20, 16],
            vec![7 << 20],
        ] {
            let bytes: usize = pieces.iter().map(|p: &usize| p.next_multiple_of(8)).sum();
            // Half of it taken before, so that the current chunk has some room at times.
            arena.allocate(bytes / 3 % SHARED_MAX).unwrap();
            arena.promise(bytes).unwrap();
            let before = arena.memory_allocated();
            for size in pieces {
                arena.allocate(size).unwrap();
            }
            assert_eq!(arena.memory_allocated(), before, "it was there");
            arena.release(bytes);
        }
        let error = arena.promise(isize::MAX as usize / 2).unwrap_err();
        assert_eq!(error.kind(), orogen_base::ErrorKind::NoMemory);
        assert_eq!(arena.promised.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_small_arena_counts_small() {
        let arena = Arena::new();
        assert_eq!(arena.memory_usage(), 0);
        arena.allocate(20).unwrap();
        assert_eq!(arena.memory_usage(), 24);
        assert_eq!(arena.memory_allocated(), CHUNK_MIN);
    }
}
