//! The versions of a user key: a list behind the key's cell, newest first. `Hot path`.
//!
//! ```text
//! cell: newest -> record -> record -> ...                        each is older than the one before
//! first record of a key: older 4 | tag 8 | length 4 | value      in the same piece as the key, if the value is small
//! others:                older 4 | tag 8 | length 4 | jump 4 | depth 4 | value
//! ```
//! A tag is a sequence number and a kind, as in internal keys. Records are never taken away; of one that can be reached only
//! `older` changes, to a record that stands between. So readers never wait, and a writer has one compare-and-swap: of the
//! cell for what is newest, which most are, else of the `older` before.
//!
//! A record that came as the newest has a jump to an older one, so that a version among many is found in a logarithm of
//! steps; those that came late have none, and are passed one by one.
//!
//! Source of the jumps: Myers, "An applicative random-access stack" (1983).
#![expect(unsafe_code, reason = "records lie in a trie's untyped memory")]

use orogen_base::Result;
use orogen_base::sync::atomic::{AtomicU32, Ordering};
use orogen_base::sync::{Mistake, makes};
use orogen_trie::{Cell, Root, Trie};

/// Where keys are.
pub(crate) const ROOT: Root = Root(0);
/// Values up to this length lie beside the first record of their key; larger ones are not prepared a second time
/// when another thread was faster.
pub(crate) const BESIDE_MAX: usize = 1 << 10;

/// Words of records before the value.
const SHORT_WORDS: usize = 4;
const LONG_WORDS: usize = 6;
/// In the length's word: there are a jump and a depth.
const LONG: u32 = 1 << 31;

const OLDER: usize = 0;
const LENGTH: usize = 3;
const JUMP: usize = 4;
const DEPTH: usize = 5;

/// One version.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a> {
    trie: &'a Trie,
    at: u32,
}

impl<'a> Record<'a> {
    /// The record at `at`; `None` if that is 0.
    ///
    /// # Safety
    /// `at` is 0, or what [`Self::at`] of a record of this map gave.
    #[inline]
    pub(crate) unsafe fn new(trie: &'a Trie, at: u32) -> Option<Self> {
        (at != 0).then_some(Self { trie, at })
    }

    /// The newest version behind a cell of `trie`.
    #[inline]
    pub(crate) fn newest(trie: &'a Trie, cell: Cell<'_>) -> Self {
        let at = cell.load(0);
        Self { trie, at }
    }

    /// Where it is; never 0.
    #[inline]
    pub(crate) fn at(self) -> u32 {
        self.at
    }

    #[inline]
    fn words(self, count: usize) -> &'a [AtomicU32] {
        // SAFETY: records are never freed, and have at least these words; long ones all of them.
        unsafe { self.trie.kept_words(self.at, count) }
    }

    #[inline]
    fn load(self, word: usize, order: Ordering) -> u32 {
        u32::from_le(self.words(word + 1)[word].load(order))
    }

    /// Writes a word of a record that nobody knows of yet.
    fn set(self, word: usize, value: u32) {
        // The compare-and-swap that publishes the record orders this store.
        self.words(word + 1)[word].store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn tag(self) -> u64 {
        let half = |word| u64::from(self.load(word, Ordering::Relaxed));
        half(1) | half(2) << 32
    }

    #[inline]
    pub(crate) fn value(self) -> &'a [u8] {
        let length = self.load(LENGTH, Ordering::Relaxed);
        let words = if length & LONG == 0 {
            SHORT_WORDS
        } else {
            LONG_WORDS
        };
        // SAFETY: the value is behind the words, and nobody changes it.
        unsafe {
            self.trie
                .kept_bytes(self.at, words * 4, (length & !LONG) as usize)
        }
    }

    /// The version before it in time.
    #[inline]
    pub(crate) fn older(self) -> Option<Self> {
        let at = self.load(OLDER, Ordering::Acquire);
        // SAFETY: 0 or the place of a record.
        unsafe { Self::new(self.trie, at) }
    }

    /// Where it jumps to: itself if there is nothing.
    #[inline]
    fn jump(self) -> Self {
        if self.load(LENGTH, Ordering::Relaxed) & LONG == 0 {
            return self;
        }
        let at = self.load(JUMP, Ordering::Relaxed);
        // SAFETY: 0 or the place of a record, which was published before this one.
        unsafe { Self::new(self.trie, at) }.unwrap_or(self)
    }

    /// How many came as the newest before it.
    fn depth(self) -> u32 {
        if self.load(LENGTH, Ordering::Relaxed) & LONG == 0 {
            return 0;
        }
        self.load(DEPTH, Ordering::Relaxed)
    }

    /// From this one on: the last one whose tag is above `tag`, and the first whose is not.
    #[inline]
    pub(crate) fn around(self, tag: u64) -> (Option<Self>, Option<Self>) {
        self.split(|other| other > tag)
    }

    /// The oldest version.
    pub(crate) fn oldest(self) -> Self {
        self.split(|_| true).0.unwrap_or(self)
    }

    /// The last one that `is_before` holds for, and the first it does not hold for. It holds for all up to some tag.
    #[inline]
    fn split(self, is_before: impl Fn(u64) -> bool) -> (Option<Self>, Option<Self>) {
        if !is_before(self.tag()) {
            return (None, Some(self));
        }
        let mut here = self;
        loop {
            let jump = here.jump();
            if jump.at != here.at && is_before(jump.tag()) {
                here = jump;
                continue;
            }
            match here.older() {
                Some(older) if is_before(older.tag()) => here = older,
                older => return (Some(here), older),
            }
        }
    }

    /// Makes it, which nobody knows of, the one that comes above `head`.
    fn put_above(self, head: Self) {
        let jump = head.jump();
        let far = jump.jump();
        let is_even = head.depth() - jump.depth() == jump.depth() - far.depth();
        self.set(JUMP, if is_even { far.at } else { head.at });
        self.set(DEPTH, head.depth() + 1);
        self.set(OLDER, head.at);
    }

    /// Publishes `new` behind it if `old` still is.
    fn replace_older(self, old: Option<Self>, new: Self) -> bool {
        let old = old.map_or(0, Self::at);
        let word = &self.words(1)[OLDER];
        word.compare_exchange(
            old.to_le(),
            new.at.to_le(),
            Ordering::Release,
            Ordering::Relaxed,
        )
        .is_ok()
    }
}

fn header<const WORDS: usize>(tag: u64, length: u32) -> [[u8; 4]; WORDS] {
    let mut words = [[0; 4]; WORDS];
    words[1] = (tag as u32).to_le_bytes();
    words[2] = ((tag >> 32) as u32).to_le_bytes();
    words[LENGTH] = length.to_le_bytes();
    words
}

/// Adds a version. Of several with one tag, as only a damaged log brings them, the last one stands first, as in a list.
///
/// # Errors
/// `NoMemory`, `InvalidArgument` of a key or value of 2 GiB; it was not added.
#[inline]
pub(crate) fn add(trie: &Trie, key: &[u8], tag: u64, value: &[u8]) -> Result<()> {
    let mut writer = trie.writer();
    let long = header::<LONG_WORDS>(tag, value.len() as u32 | LONG);
    let long = [long.as_flattened(), value];
    let (cell, at) = if value.len() <= BESIDE_MAX {
        let short = header::<SHORT_WORDS>(tag, value.len() as u32);
        let parts = [short.as_flattened(), value];
        let (cell, is_new) = writer.insert_beside(ROOT, key, &[0], &parts)?;
        if is_new {
            return Ok(());
        }
        (cell, writer.allocate_bytes(&long)?)
    } else {
        let at = writer.allocate_bytes(&long)?;
        match writer.insert(ROOT, key, &[at]) {
            Ok((_, true)) => return Ok(()),
            Ok((cell, false)) => (cell, at),
            Err(e) => {
                let words = LONG_WORDS + value.len().div_ceil(4);
                // SAFETY: allocated above with this length, and in no cell.
                unsafe { writer.free(at, words as u32) };
                return Err(e);
            }
        }
    };
    drop(writer);
    link(cell, Record { trie, at }, tag);
    Ok(())
}

/// Publishes a record where its tag belongs.
fn link(cell: Cell<'_>, new: Record<'_>, tag: u64) {
    let mut head = Record::newest(new.trie, cell);
    while head.tag() <= tag {
        new.put_above(head);
        if makes(Mistake::LinkWithoutLooking) {
            return cell.store(0, new.at);
        }
        match cell.compare_exchange(0, head.at, new.at) {
            Ok(()) => return,
            Err(now) => head.at = now,
        }
    }
    // It came late: one with a jump would have to be above all that came before.
    new.set(JUMP, 0);
    new.set(DEPTH, 0);
    let mut newer = head;
    loop {
        let (before, after) = newer.around(tag);
        newer = before.unwrap_or(newer);
        new.set(OLDER, after.map_or(0, Record::at));
        if newer.replace_older(after, new) {
            return;
        }
    }
}
