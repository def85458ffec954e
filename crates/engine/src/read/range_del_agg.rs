//! Which range tombstone hides a key: the answer of all places together.
//!
//! Sources stand newest to oldest: memtables, files of level 0, sorted levels. A tombstone of a
//! file counts only for user keys inside the file's key range: outside of it older writes may
//! have lost their sequence numbers, and would be taken for deleted ones. A file whose largest
//! key is the end of a tombstone ends just before that user key.
//!
//! The answer is kept with the *stretch* of keys for which it holds: between two borders no
//! source has a tombstone or a file that starts or ends. A scan asks the sources only when it
//! leaves a stretch, and then each source looks next to where it was before it searches.
//! Source: RocksDB `db/range_del_aggregator.h`, `table/merging_iterator.cc`. `Hot path`.

use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{Result, SeqNo, UserComparator};

use super::table_access::TableAccess;
use crate::version::{FileMeta, Level};
use border::{Border, Kept, Span};

mod border;

/// Fragments and where the last search in them ended.
struct Cursor {
    tombstones: Arc<FragmentedRangeTombstones>,
    /// The first fragment that ends after the key that was searched last.
    at: usize,
}

impl Cursor {
    fn new(tombstones: Arc<FragmentedRangeTombstones>) -> Self {
        Self { tombstones, at: 0 }
    }

    /// The newest tombstone over `key` up to `read_seqno`, and where that holds.
    fn find(&mut self, order: &UserComparator, key: &[u8], read_seqno: SeqNo) -> (SeqNo, Span<'_>) {
        let fragments = self.tombstones.fragments();
        let ends_after = |i: usize| fragments.get(i).is_none_or(|f| order.less(key, &f.end));
        let is_first = |i: usize| ends_after(i) && (i == 0 || !ends_after(i - 1));
        let near = [
            Some(self.at),
            self.at.checked_add(1),
            self.at.checked_sub(1),
        ];
        self.at = near
            .into_iter()
            .flatten()
            .find(|&i| i <= fragments.len() && is_first(i))
            .unwrap_or_else(|| self.tombstones.first_ending_after(order, key));
        let before = self
            .at
            .checked_sub(1)
            .map(|i| Border::before(&fragments[i].end));
        let Some(f) = fragments.get(self.at) else {
            return (
                0,
                Span {
                    start: before,
                    end: None,
                },
            );
        };
        let (start, end) = (Border::before(&f.start), Border::before(&f.end));
        if start.is_passed_by(order, key) {
            (
                f.visible_seqno(read_seqno),
                Span {
                    start: Some(start),
                    end: Some(end),
                },
            )
        } else {
            (
                0,
                Span {
                    start: before,
                    end: Some(start),
                },
            )
        }
    }
}

/// The range tombstones of one place.
enum Source<T: TableAccess> {
    Memtable(Cursor),
    File {
        file: Arc<FileMeta>,
        cursor: Cursor,
    },
    Level {
        level: Arc<Level>,
        tables: Arc<T>,
        open: Option<(usize, Cursor)>,
    },
}

impl<T: TableAccess> Source<T> {
    fn find(
        &mut self,
        order: &InternalKeyComparator,
        key: &[u8],
        read_seqno: SeqNo,
    ) -> Result<(SeqNo, Span<'_>)> {
        match self {
            Self::Memtable(cursor) => Ok(cursor.find(&order.user, key, read_seqno)),
            Self::File { file, cursor } => Ok(find_in_file(
                &order.user,
                file,
                Some(cursor),
                key,
                read_seqno,
            )),
            Self::Level {
                level,
                tables,
                open,
            } => find_in_level(order, level, &**tables, open, key, read_seqno),
        }
    }
}

/// As [`Cursor::find`], cut to the file's key range. No cursor: the file has no tombstones.
fn find_in_file<'a>(
    order: &UserComparator,
    file: &'a FileMeta,
    cursor: Option<&'a mut Cursor>,
    key: &[u8],
    read_seqno: SeqNo,
) -> (SeqNo, Span<'a>) {
    let start = Border::before(file.smallest_user_key());
    let end = Border::end_of(&file.largest);
    if !start.is_passed_by(order, key) {
        return (
            0,
            Span {
                start: None,
                end: Some(start),
            },
        );
    }
    if end.is_passed_by(order, key) {
        return (
            0,
            Span {
                start: Some(end),
                end: None,
            },
        );
    }
    let (seqno, mut span) =
        cursor.map_or_else(Default::default, |c| c.find(order, key, read_seqno));
    span.cut_to(
        order,
        Span {
            start: Some(start),
            end: Some(end),
        },
    );
    (seqno, span)
}

fn find_in_level<'a, T: TableAccess>(
    order: &InternalKeyComparator,
    level: &'a Level,
    tables: &T,
    open: &'a mut Option<(usize, Cursor)>,
    key: &[u8],
    read_seqno: SeqNo,
) -> Result<(SeqNo, Span<'a>)> {
    let user = &order.user;
    let files = level.files();
    let ends_before_key = |i: usize| {
        files
            .get(i)
            .is_some_and(|f| Border::end_of(&f.largest).is_passed_by(user, key))
    };
    // The search may give a file that ends just before the key.
    let mut at = level.find_file(order, key);
    while ends_before_key(at) {
        at += 1;
    }
    let before = at.checked_sub(1).map(|i| Border::end_of(&files[i].largest));
    let Some(file) = files.get(at) else {
        return Ok((
            0,
            Span {
                start: before,
                end: None,
            },
        ));
    };
    let start = Border::before(file.smallest_user_key());
    if !start.is_passed_by(user, key) {
        return Ok((
            0,
            Span {
                start: before,
                end: Some(start),
            },
        ));
    }
    let next_start = files
        .get(at + 1)
        .map(|f| Border::before(f.smallest_user_key()));
    if next_start.is_some_and(|b| b.is_passed_by(user, key)) {
        let only = Span {
            start: next_start,
            end: Some(Border::end_of(&file.largest)),
        };
        return Ok((
            covering_of_sharers(user, &files[at..], tables, key, read_seqno)?,
            only,
        ));
    }
    let mut cursor = None;
    if tables.may_have_range_tombstones(file) {
        if open.as_ref().is_none_or(|(i, _)| *i != at) {
            *open = Some((at, Cursor::new(tables.range_tombstones(file)?)));
        }
        cursor = open.as_mut().map(|(_, c)| c);
    }
    let (seqno, mut span) = find_in_file(user, file, cursor, key, read_seqno);
    // A key that a neighbour shares has an answer of its own.
    span.cut_to(
        user,
        Span {
            start: before,
            end: next_start,
        },
    );
    Ok((seqno, span))
}

/// The newest tombstone over a key that the first of `files` shares with those after it.
fn covering_of_sharers<T: TableAccess>(
    order: &UserComparator,
    files: &[Arc<FileMeta>],
    tables: &T,
    key: &[u8],
    read_seqno: SeqNo,
) -> Result<SeqNo> {
    files
        .iter()
        .take_while(|f| Border::before(f.smallest_user_key()).is_passed_by(order, key))
        .filter(|f| !Border::end_of(&f.largest).is_passed_by(order, key))
        .try_fold(0, |newest: SeqNo, f| {
            Ok(newest.max(tables.covering_seqno(f, order, key, read_seqno)?))
        })
}

/// What hides keys around a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covering {
    /// Versions older than this are deleted; 0 if nothing is.
    pub seqno: SeqNo,
    /// The newest child of the merge that deletes: for it all later children are hidden
    /// throughout its tombstone.
    pub child: usize,
}

impl Covering {
    const NONE: Self = Self { seqno: 0, child: 0 };
}

/// Where a tombstone ends, for skipping what it hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TombstoneEnd<'a> {
    /// A user key.
    pub user_key: &'a [u8],
    /// True if the key itself is still deleted.
    pub inclusive: bool,
}

/// The range tombstones of all places of one read.
pub struct RangeDelAggregator<T: TableAccess> {
    order: InternalKeyComparator,
    read_seqno: SeqNo,
    /// With the child of the merge that each belongs to, rising.
    sources: Vec<(usize, Source<T>)>,
    /// What was found last, and where it holds.
    covering: Covering,
    is_known: bool,
    start: Kept,
    end: Kept,
    /// The tombstone of [`Covering::child`].
    tombstone_start: Kept,
    tombstone_end: Kept,
}

impl<T: TableAccess> RangeDelAggregator<T> {
    /// No tombstones yet, for a reader at `read_seqno`.
    #[must_use]
    pub fn new(order: InternalKeyComparator, read_seqno: SeqNo) -> Self {
        Self {
            order,
            read_seqno,
            sources: Vec::new(),
            covering: Covering::NONE,
            is_known: false,
            start: Kept::default(),
            end: Kept::default(),
            tombstone_start: Kept::default(),
            tombstone_end: Kept::default(),
        }
    }

    /// Adds a memtable's tombstones; `child` is its place in the merge. Places are added newest
    /// first.
    pub fn add_memtable(&mut self, child: usize, tombstones: Arc<FragmentedRangeTombstones>) {
        if !tombstones.is_empty() {
            self.add(child, Source::Memtable(Cursor::new(tombstones)));
        }
    }

    /// Adds a file of level 0.
    ///
    /// # Errors
    /// If its tombstones cannot be read.
    pub fn add_file(&mut self, child: usize, file: &Arc<FileMeta>, tables: &T) -> Result<()> {
        if tables.may_have_range_tombstones(file) {
            let tombstones = tables.range_tombstones(file)?;
            if !tombstones.is_empty() {
                let file = file.clone();
                self.add(
                    child,
                    Source::File {
                        file,
                        cursor: Cursor::new(tombstones),
                    },
                );
            }
        }
        Ok(())
    }

    /// Adds a sorted level, whose tombstones are read when a key asks for them.
    pub fn add_level(&mut self, child: usize, level: Arc<Level>, tables: Arc<T>) {
        self.add(
            child,
            Source::Level {
                level,
                tables,
                open: None,
            },
        );
    }

    fn add(&mut self, child: usize, source: Source<T>) {
        debug_assert!(
            self.sources.last().is_none_or(|(c, _)| *c < child),
            "newest first"
        );
        self.sources.push((child, source));
        self.is_known = false;
    }

    /// True if no key is deleted by a range.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// The newest range tombstone over `key` that the reader sees.
    ///
    /// # Errors
    /// If tombstones cannot be read.
    #[inline]
    pub fn covering(&mut self, key: &[u8]) -> Result<Covering> {
        if self.sources.is_empty() {
            return Ok(Covering::NONE);
        }
        let user = &self.order.user;
        if self.is_known
            && self.end.get().is_none_or(|b| !b.is_passed_by(user, key))
            && self.start.get().is_none_or(|b| b.is_passed_by(user, key))
        {
            return Ok(self.covering);
        }
        self.search(key)
    }

    /// The sequence number of [`Self::covering`].
    ///
    /// # Errors
    /// If tombstones cannot be read.
    #[inline]
    pub fn covering_seqno(&mut self, key: &[u8]) -> Result<SeqNo> {
        Ok(self.covering(key)?.seqno)
    }

    /// The first user key of the tombstone of [`Covering::child`], after [`Self::covering`] found
    /// one.
    #[must_use]
    pub fn tombstone_start(&self) -> Option<&[u8]> {
        self.tombstone_start.get().map(|b| b.key)
    }

    /// Where the tombstone of [`Covering::child`] ends, after [`Self::covering`] found one.
    #[must_use]
    pub fn tombstone_end(&self) -> Option<TombstoneEnd<'_>> {
        self.tombstone_end.get().map(|b| TombstoneEnd {
            user_key: b.key,
            inclusive: b.after,
        })
    }

    #[cold]
    fn search(&mut self, key: &[u8]) -> Result<Covering> {
        self.is_known = false;
        let mut covering = Covering::NONE;
        let mut stretch = Span::default();
        self.tombstone_start.set(None);
        self.tombstone_end.set(None);
        for (child, source) in &mut self.sources {
            let (seqno, span) = source.find(&self.order, key, self.read_seqno)?;
            stretch.cut_to(&self.order.user, span);
            if seqno > 0 && covering.seqno == 0 {
                covering.child = *child;
                self.tombstone_start.set(span.start);
                self.tombstone_end.set(span.end);
            }
            covering.seqno = covering.seqno.max(seqno);
        }
        self.start.set(stretch.start);
        self.end.set(stretch.end);
        self.covering = covering;
        self.is_known = true;
        Ok(covering)
    }
}

#[cfg(test)]
mod tests;
