//! The files below an output, passed in key order while it is written.
//!
//! A compaction of the output will have to read those that it meets. Source: RocksDB
//! `db/compaction/compaction_outputs.cc` (`UpdateGrandparentBoundaryInfo`).

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::UserComparator;

use crate::version::FileMeta;
use crate::version::level::ends_before;

/// Where the output stands among the files below it.
pub(super) struct Grandparents {
    order: UserComparator,
    files: Vec<Arc<FileMeta>>,
    /// The file that the last key is in, or the next one if it is in a gap.
    at: usize,
    in_gap: bool,
    seen_key: bool,
    overlapped_bytes: u64,
    borders_seen: usize,
}

impl Grandparents {
    /// Before all of `files`, which are in key order.
    pub(super) fn new(order: UserComparator, files: Vec<Arc<FileMeta>>) -> Self {
        Self {
            order,
            files,
            at: 0,
            in_gap: true,
            seen_key: false,
            overlapped_bytes: 0,
            borders_seen: 0,
        }
    }

    /// Moves to `user_key`; returns how many begins and ends of files were passed.
    pub(super) fn advance(&mut self, user_key: &[u8]) -> usize {
        let mut crossed = 0;
        while let Some(file) = self.files.get(self.at) {
            if self.in_gap {
                if self.order.less(user_key, file.smallest_user_key()) {
                    break;
                }
                self.in_gap = false;
                if self.seen_key {
                    crossed += 1;
                    self.overlapped_bytes += file.size;
                }
            } else {
                let shared_with_next = || {
                    self.files.get(self.at + 1).is_some_and(|next| {
                        self.order.compare(next.smallest_user_key(), user_key) != Ordering::Greater
                    })
                };
                if !ends_before(&self.order, &file.largest, user_key)
                    && (self.order.less(user_key, file.largest_user_key()) || !shared_with_next())
                {
                    break;
                }
                self.in_gap = true;
                self.at += 1;
                crossed += usize::from(self.seen_key);
            }
        }
        if !self.seen_key {
            self.overlapped_bytes = self.bytes_at(user_key);
        }
        self.seen_key = true;
        self.borders_seen += crossed;
        crossed
    }

    /// A new output file starts at `user_key`, to which this has moved.
    pub(super) fn restart(&mut self, user_key: &[u8]) {
        self.borders_seen = 0;
        self.overlapped_bytes = self.bytes_at(user_key);
    }

    /// Bytes of the files that the output file at hand meets.
    pub(super) fn overlapped_bytes(&self) -> u64 {
        self.overlapped_bytes
    }

    /// Begins and ends of files that the output file at hand has passed.
    pub(super) fn borders_seen(&self) -> usize {
        self.borders_seen
    }

    /// True if the last key is in none of the files.
    pub(super) fn is_in_gap(&self) -> bool {
        self.in_gap
    }

    /// Bytes of the files around the last key.
    fn bytes_at(&self, user_key: &[u8]) -> u64 {
        if self.in_gap {
            return 0;
        }
        // Neighbours may share the key.
        let shares = |f: &&Arc<FileMeta>| !ends_before(&self.order, &f.largest, user_key);
        self.files[..=self.at]
            .iter()
            .rev()
            .take_while(shares)
            .map(|f| f.size)
            .sum()
    }

    /// Bytes of the files inside `[start, end)`; a file that is partly inside counts half.
    pub(super) fn bytes_between(&self, start: &[u8], end: &[u8]) -> u64 {
        let first = self
            .files
            .partition_point(|f| ends_before(&self.order, &f.largest, start));
        let meets = |f: &&Arc<FileMeta>| self.order.less(f.smallest_user_key(), end);
        let bytes = |f: &Arc<FileMeta>| {
            let whole = !self.order.less(f.smallest_user_key(), start)
                && ends_before(&self.order, &f.largest, end);
            if whole { f.size } else { f.size / 2 }
        };
        self.files[first..]
            .iter()
            .take_while(meets)
            .map(bytes)
            .sum()
    }
}
