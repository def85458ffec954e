//! Adding a key. `Hot path`.
//!
//! ```text
//! go down, holding nothing      -> the slot where it ends, whose node holds that slot, what is there
//! prepare leaf and nodes apart  -> nobody knows of them; without room this is the end
//! publish by one store          -> slot or count; if anything is not as it was: free what was prepared, from the root again
//! ```
//! | found | published by |
//! |---|---|
//! | an empty slot | setting it |
//! | a leaf or a path with another byte, or one of them ends | setting the slot to a new node above both; the old one stays as it is |
//! | a node without the label, with room | label and child behind the last, then the count, under the node's lock |
//! | a node without the label, full; or without a place for the key that ends there | setting the slot to a copy, node and holder locked |
//!
//! 1. Slots of full nodes and of roots are set by CAS: neither is ever replaced. Slots of others are
//!    set only under the lock of their node, which is taken only if that node was not replaced.
//! 2. Locks are taken downwards, for a few stores; readers never look at them.
//! 3. A node is marked as replaced, for ever, before its lock is given back.
//! 4. What is replaced waits until nobody is inside who may have seen it.

use orogen_base::sync::{Mistake, makes, spins, thread};
use orogen_base::{Error, Result};

use crate::event::Event;
use crate::node::{FULL, Head, Inner, Leaf, SHORT_MAX, Shape, TWO};
use crate::view::{Ref, View, WORD};

/// Longest key, and most bytes beside it.
pub(crate) const LEN_MAX: usize = 2 << 30;

/// What an insert needs of its map.
pub(crate) trait Host {
    /// Others read and write meanwhile.
    const SHARED: bool;

    /// The memory as it lies now.
    fn view(&self) -> View<'_>;

    /// A piece of any content.
    fn allocate(&mut self, words: u32) -> Result<Ref>;

    /// True if a piece of just this size, up to 64 words, was freed.
    fn has(&self, words: u32) -> bool;

    /// Takes back a piece that was never published.
    fn free(&mut self, at: Ref, words: u32);

    /// Makes room for a call of `retire`.
    fn prepare_retire(&mut self) -> Result<()>;

    /// Takes back a piece that others may still read.
    fn retire(&mut self, at: Ref, words: u32);

    fn count(&mut self, event: Event);
}

/// What a new key gets.
#[derive(Clone, Copy)]
pub(crate) struct Seed<'a> {
    /// Its cell.
    pub(crate) cell: &'a [u32],
    /// Bytes behind the cell, in the same piece; the cell's first word then tells where.
    pub(crate) beside: &'a [&'a [u8]],
}

impl Seed<'_> {
    #[inline(always)]
    fn words(self) -> u32 {
        let bytes: usize = self.beside.iter().map(|part| part.len()).sum();
        (self.cell.len() + bytes.div_ceil(WORD)) as u32
    }

    /// Writes it where nobody sees it yet.
    #[inline(always)]
    fn write(self, view: View<'_>, at: Ref) {
        for (i, &word) in self.cell.iter().enumerate() {
            view.put(at + i as u32, word);
        }
        if !self.beside.is_empty() {
            let start = at + self.cell.len() as u32;
            view.put(at, start);
            write_parts(view, start, self.beside);
        }
    }
}

/// Writes bytes one part behind the other where nobody sees them yet.
#[inline]
pub(crate) fn write_parts(view: View<'_>, at: Ref, parts: &[&[u8]]) {
    let mut skip = 0;
    for part in parts {
        view.write(at, skip, part);
        skip += part.len();
    }
}

/// Where a key belongs.
struct Place {
    /// The node whose lock is needed to set `slot`; 0 if it can be set by CAS.
    holder: Ref,
    /// The full node that has the slot; 0 if it is another one's.
    full: Ref,
    slot: Ref,
    /// What the slot had.
    at: Ref,
    /// Bytes of the key before what is there.
    depth: usize,
    found: Found,
}

enum Found {
    /// The key; where its cell is.
    Key(Ref),
    Nothing,
    /// Something with another byte after so many that are the same, if it has one.
    Else {
        common: usize,
        byte: Option<u8>,
    },
    /// A node without the label behind so many bytes of path.
    NoLabel {
        head: Head,
        path: usize,
    },
    /// A node at which the key ends, and which has no place for that.
    NoEnd {
        head: Head,
    },
}

/// Bytes that both begin with.
#[inline]
fn common_len(a: &[u8], b: &[u8]) -> usize {
    let mut len = 0;
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight of them"));
        let differs = word(a) ^ word(b);
        if differs != 0 {
            return len + differs.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    let same = |(a, b): &(&u8, &u8)| a == b;
    len + a[len..].iter().zip(&b[len..]).take_while(same).count()
}

#[inline(always)]
fn go_down(view: View<'_>, root: Ref, key: &[u8]) -> Place {
    let (mut holder, mut full, mut slot, mut depth) = (0, 0, root, 0);
    let mut at = view.load(slot);
    loop {
        let place = |found| Place {
            holder,
            full,
            slot,
            at,
            depth,
            found,
        };
        if at == 0 {
            return place(Found::Nothing);
        }
        let head = Head::of(view, at);
        let ours = &key[depth..];
        if head.is_leaf() {
            let leaf = Leaf::new(view, at, head);
            let rest = leaf.rest(depth);
            let common = common_len(rest, ours);
            if common == rest.len() && common == ours.len() {
                return place(Found::Key(leaf.cell()));
            }
            let byte = rest.get(common).copied();
            return place(Found::Else { common, byte });
        }
        let node = Inner::new(view, at, head);
        let path = node.path(depth);
        if !path.is_empty() {
            let common = common_len(path, ours);
            if let Some(&byte) = path.get(common) {
                let byte = Some(byte);
                return place(Found::Else { common, byte });
            }
        }
        let is_pinned = head.kind() == FULL;
        if path.len() == ours.len() {
            let Some(end) = node.end() else {
                return place(Found::NoEnd { head });
            };
            slot = end;
            depth += path.len();
        } else {
            let Some(child) = node.slot(ours[path.len()]) else {
                let path = path.len();
                return place(Found::NoLabel { head, path });
            };
            slot = child;
            depth += path.len() + 1;
        }
        (holder, full) = if is_pinned { (0, at) } else { (at, 0) };
        at = view.load(slot);
        head.ask_for_child(view, at);
    }
}

/// Waits a little for a lock that is held for a few stores.
fn wait(times: &mut usize) {
    *times += 1;
    if *times < spins(64) {
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// Takes the lock of a node; false if it was replaced.
fn lock<H: Host>(host: &mut H, at: Ref) -> bool {
    let mut times = 0;
    loop {
        let head = Head::of(host.view(), at);
        if head.is_replaced() {
            return false;
        }
        if !head.is_locked() && host.view().exchange(at, head.0, head.locked().0) {
            return true;
        }
        host.count(Event::Waited);
        wait(&mut times);
    }
}

/// Gives it back.
fn unlock(view: View<'_>, at: Ref) {
    view.store(at, Head(view.load_relaxed(at)).unlocked().0);
}

/// Sets a slot from `old` to `new`; false if it is not `old` any more, or its node was replaced.
#[inline(always)]
fn publish<H: Host>(host: &mut H, place: &Place, new: Ref) -> bool {
    if !H::SHARED {
        host.view().store(place.slot, new);
        return true;
    }
    let is_set = if place.holder == 0 {
        host.view().exchange(place.slot, place.at, new)
    } else if lock(host, place.holder) {
        let view = host.view();
        let is_same = view.load_relaxed(place.slot) == place.at;
        if is_same {
            view.store(place.slot, new);
        }
        unlock(view, place.holder);
        is_same
    } else {
        false
    };
    if !is_set {
        host.count(Event::LostSlot);
    }
    is_set
}

/// Adds `key` below the root at `root`, with `seed`, or finds it. Gives where its cell
/// is, and true if it was added. The caller is inside, if others are about.
///
/// # Errors
/// `NoMemory` if the block has no room; nothing has changed.
#[inline]
pub(crate) fn insert<H: Host>(
    host: &mut H,
    root: Ref,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<(Ref, bool)> {
    // A half of what references reach, so that no sum of sizes overflows them.
    let beside: usize = seed.beside.iter().map(|part| part.len()).sum();
    if key.len().max(beside) > LEN_MAX {
        return Err(Error::invalid_argument("a key or value of more than 2 GiB")
            .with("key", key.len())
            .with("value", beside));
    }
    let mut times = 0;
    loop {
        let place = go_down(host.view(), root, key);
        let added = match place.found {
            Found::Key(cell) => {
                host.count(Event::Found);
                return Ok((cell, false));
            }
            Found::Nothing => set_empty(host, &place, key, seed)?,
            Found::Else { common, byte } => put_above(host, &place, common, byte, key, seed)?,
            Found::NoLabel { head, path } if !head.is_full() => {
                append(host, &place, head, path, key, seed)?
            }
            Found::NoLabel { head, path } => {
                let depth = place.depth + path;
                replace(host, &place, head, Some(key[depth]), depth + 1, key, seed)?
            }
            Found::NoEnd { head } => replace(host, &place, head, None, key.len(), key, seed)?,
        };
        if let Some(cell) = added {
            return Ok((cell, true));
        }
        // Who has the lock may not be running: after some tries it gets this processor.
        wait(&mut times);
    }
}

/// A leaf that nobody knows of: where it is, its words, its cell.
#[inline(always)]
fn make_leaf<H: Host>(
    host: &mut H,
    depth: usize,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<(Ref, u32, Ref)> {
    let rest = &key[depth..];
    let cell = Leaf::words(rest.len());
    let words = cell + seed.words();
    let at = host.allocate(words)?;
    Leaf::make(host.view(), at, rest, depth);
    seed.write(host.view(), at + cell);
    Ok((at, words, at + cell))
}

#[inline(always)]
fn set_empty<H: Host>(
    host: &mut H,
    place: &Place,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<Option<Ref>> {
    let (leaf, words, cell) = make_leaf(host, place.depth, key, seed)?;
    if !publish(host, place, leaf) {
        host.free(leaf, words);
        return Ok(None);
    }
    host.count(if place.holder == 0 {
        Event::SetFree
    } else {
        Event::SetHeld
    });
    Ok(Some(cell))
}

#[inline(always)]
fn append<H: Host>(
    host: &mut H,
    place: &Place,
    head: Head,
    path: usize,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<Option<Ref>> {
    let depth = place.depth + path;
    let (leaf, words, cell) = make_leaf(host, depth + 1, key, seed)?;
    // The lock is taken only if the node is as it was when the label was looked for.
    let is_ours = !H::SHARED
        || makes(Mistake::AppendWithoutLock)
        || !head.is_locked()
            && !head.is_replaced()
            && host.view().exchange(place.at, head.0, head.locked().0);
    if !is_ours {
        host.free(leaf, words);
        host.count(Event::LostHead);
        return Ok(None);
    }
    let view = host.view();
    let counted = Inner::new(view, place.at, head).append(key[depth], leaf);
    view.store(place.at, counted.0);
    host.count(Event::Appended);
    Ok(Some(cell))
}

/// Puts a new node above what is in the slot and the new leaf, and above that nodes of one child
/// as far as the bytes that both have do not fit into its path.
fn put_above<H: Host>(
    host: &mut H,
    place: &Place,
    common: usize,
    byte: Option<u8>,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<Option<Ref>> {
    let ours = &key[place.depth..];
    let ours_byte = ours.get(common).copied();
    let links = common.saturating_sub(SHORT_MAX).div_ceil(SHORT_MAX + 1);
    let link = Shape::new(1, SHORT_MAX, false);
    let path_start = links * (SHORT_MAX + 1);
    let children = usize::from(byte.is_some()) + usize::from(ours_byte.is_some());
    let shape = Shape::new(children, common - path_start, children < 2);
    let leaf_depth = place.depth + common + usize::from(ours_byte.is_some());
    let cell = Leaf::words(key.len() - leaf_depth);
    let leaf_words = cell + seed.words();
    let mut words = links as u32 * link.words() + shape.words() + leaf_words;
    // One piece, so that the node and the newer of its leaves are mostly in one cache line; unless
    // a smaller node left one that fits.
    let mut leaf = 0;
    if links == 0 && shape.kind() == TWO && host.has(shape.words()) {
        words = shape.words();
        leaf = host.allocate(leaf_words)?;
    }
    let top = match host.allocate(words) {
        Ok(top) => top,
        Err(e) => {
            if leaf != 0 {
                host.free(leaf, leaf_words);
            }
            return Err(e);
        }
    };
    let is_apart = leaf != 0;
    let view = host.view();
    let mut at = top;
    for i in 0..links {
        let (from, to) = (i * (SHORT_MAX + 1), i * (SHORT_MAX + 1) + SHORT_MAX);
        let next = at + link.words();
        let node = link.make(view, at, &ours[from..to], place.depth + from);
        node.fill(std::iter::once((ours[to], next)));
        at = next;
    }
    if !is_apart {
        leaf = at + shape.words();
    }
    Leaf::make(view, leaf, &key[leaf_depth..], leaf_depth);
    seed.write(view, leaf + cell);
    let node = shape.make(
        view,
        at,
        &ours[path_start..common],
        place.depth + path_start,
    );
    let old = byte.map(|byte| (byte, place.at));
    let new = ours_byte.map(|byte| (byte, leaf));
    node.fill(old.into_iter().chain(new));
    if let Some(end) = node.end() {
        view.put(end, if byte.is_none() { place.at } else { leaf });
    }
    let is_two = shape.kind() == TWO;
    if !publish(host, place, top) {
        host.free(top, words);
        if is_apart {
            host.free(leaf, leaf_words);
        }
        return Ok(None);
    }
    host.count(match (byte, ours_byte) {
        (None, _) => Event::AboveShorter,
        (_, None) => Event::AboveLonger,
        _ if links > 0 => Event::AboveLinked,
        _ if is_two => Event::AboveTwo,
        _ => Event::AboveFour,
    });
    Ok(Some(leaf + cell))
}

/// Puts a copy of a node in its place: with a child more, or with a place for the key that ends
/// there.
fn replace<H: Host>(
    host: &mut H,
    place: &Place,
    head: Head,
    label: Option<u8>,
    leaf_depth: usize,
    key: &[u8],
    seed: Seed<'_>,
) -> Result<Option<Ref>> {
    host.prepare_retire()?;
    let (leaf, leaf_words, cell) = make_leaf(host, leaf_depth, key, seed)?;
    let old = Inner::new(host.view(), place.at, head);
    let (depth, old_words) = (place.depth, old.words());
    let children = head.count() + usize::from(label.is_some());
    let has_end = label.is_none() || head.has_end();
    let shape = Shape::new(children, old.path(depth).len(), has_end);
    let copy = match host.allocate(shape.words()) {
        Ok(copy) => copy,
        Err(e) => {
            host.free(leaf, leaf_words);
            return Err(e);
        }
    };
    let is_replaced = lock_both(host, place, head) && {
        let view = host.view();
        let old = Inner::new(view, place.at, head);
        let node = shape.make(view, copy, old.path(depth), depth);
        node.take_over(&old, label.map(|label| (label, leaf)));
        if label.is_none() {
            let end = node.end().expect("shaped with one");
            view.put(end, leaf);
        }
        set_copy(host, place, head, copy)
    };
    if !is_replaced {
        host.free(copy, shape.words());
        host.free(leaf, leaf_words);
        return Ok(None);
    }
    host.retire(place.at, old_words);
    if place.full != 0 {
        let view = host.view();
        let above = Inner::new(view, place.full, Head::of(view, place.full));
        above.remember_child(shape);
    }
    host.count(match label {
        Some(_) => Event::grown(head.kind(), shape.kind()),
        None => Event::EndAdded,
    });
    Ok(Some(cell))
}

/// Locks the node in the slot, and before it the one that holds the slot; false if one is not as
/// it was, and then none is locked.
fn lock_both<H: Host>(host: &mut H, place: &Place, head: Head) -> bool {
    if !H::SHARED {
        return true;
    }
    if place.holder != 0 {
        if !lock(host, place.holder) {
            host.count(Event::LostSlot);
            return false;
        }
        if host.view().load_relaxed(place.slot) != place.at {
            unlock(host.view(), place.holder);
            host.count(Event::LostSlot);
            return false;
        }
    }
    let is_ours = !head.is_locked()
        && !head.is_replaced()
        && host.view().exchange(place.at, head.0, head.locked().0);
    if !is_ours {
        if place.holder != 0 {
            unlock(host.view(), place.holder);
        }
        host.count(Event::LostHead);
    }
    is_ours
}

/// Puts the copy in place of the node, marks that, and gives the locks back.
fn set_copy<H: Host>(host: &mut H, place: &Place, head: Head, copy: Ref) -> bool {
    let view = host.view();
    if !H::SHARED {
        view.store(place.slot, copy);
        return true;
    }
    if place.holder != 0 {
        view.store(place.slot, copy);
    } else if !view.exchange(place.slot, place.at, copy) {
        unlock(view, place.at);
        host.count(Event::LostSlot);
        return false;
    }
    if makes(Mistake::ReplaceWithoutMark) {
        unlock(view, place.at);
    } else {
        view.store(place.at, head.replaced().0);
    }
    if place.holder != 0 {
        unlock(view, place.holder);
    }
    true
}
