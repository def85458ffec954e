//! The children of a scan's merge. An enum, so that a step of a table's cursor is not a virtual
//! call.

use orogen_base::{InternalIterator, PinnedValue, Result};

use super::LevelIter;
use super::table_access::TableAccess;

/// One place of a scan.
pub enum Source<T: TableAccess> {
    /// A memtable.
    Boxed(Box<dyn InternalIterator>),
    /// A table, such as a file of level 0.
    Table(T::Iter),
    /// A sorted level.
    Level(LevelIter<T>),
}

macro_rules! each {
    ($self:ident, $source:ident => $call:expr) => {
        match $self {
            Source::Boxed($source) => $call,
            Source::Table($source) => $call,
            Source::Level($source) => $call,
        }
    };
}

impl<T: TableAccess> InternalIterator for Source<T> {
    #[inline]
    fn valid(&self) -> bool {
        each!(self, s => s.valid())
    }
    fn seek_to_first(&mut self) {
        each!(self, s => s.seek_to_first());
    }
    fn seek_to_last(&mut self) {
        each!(self, s => s.seek_to_last());
    }
    fn seek(&mut self, target: &[u8]) {
        each!(self, s => s.seek(target));
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        each!(self, s => s.seek_for_prev(target));
    }
    #[inline]
    fn next(&mut self) {
        each!(self, s => s.next());
    }
    #[inline]
    fn prev(&mut self) {
        each!(self, s => s.prev());
    }
    #[inline]
    fn key(&self) -> &[u8] {
        each!(self, s => s.key())
    }
    #[inline]
    fn value(&self) -> &[u8] {
        each!(self, s => s.value())
    }
    fn pinned_value(&self) -> Result<PinnedValue> {
        each!(self, s => s.pinned_value())
    }
    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        each!(self, s => s.peek(visit))
    }
    fn status(&self) -> Result<()> {
        each!(self, s => s.status())
    }
}
