//! Iteration within one prefix: where it ends, and which places need not be asked.
//!
//! A place that surely has no key of the prefix is left out of the merge until the next seek,
//! also when the iterator turns around: nothing of it could be shown.

use std::sync::Arc;

use orogen_base::Result;
use orogen_base::metrics::Ticker;
use orogen_base::slice_transform::SliceTransform;

use super::DbIterator;
use crate::read::source::Source;
use crate::read::table_access::TableAccess;
use crate::version::FileMeta;

/// What asking the filters of tables takes.
pub(super) struct PrefixFilters<T: TableAccess> {
    tables: Arc<T>,
    options: T::Options,
    /// The children of the merge that are single files.
    files: Vec<(usize, Arc<FileMeta>)>,
}

impl<T: TableAccess> PrefixFilters<T> {
    pub(super) fn new(tables: &Arc<T>, options: &T::Options) -> Self {
        Self {
            tables: tables.clone(),
            options: options.clone(),
            files: Vec::new(),
        }
    }

    pub(super) fn add_file(&mut self, child: usize, file: &Arc<FileMeta>) {
        self.files.push((child, file.clone()));
    }

    /// False if the child surely has no key with the prefix of `user_key`.
    fn may_hold(
        &self,
        child: usize,
        source: &Source<T>,
        extractor: &dyn SliceTransform,
        user_key: &[u8],
    ) -> Result<bool> {
        match source {
            Source::Boxed(_) => Ok(true),
            Source::Level(level) => level.may_hold_prefix(extractor, user_key),
            Source::Table(_) => {
                let file = self.files.iter().find(|f| f.0 == child);
                file.map_or(Ok(true), |f| {
                    self.tables
                        .may_hold_prefix(&f.1, &self.options, extractor, user_key)
                })
            }
        }
    }
}

impl<T: TableAccess> DbIterator<T> {
    #[inline]
    pub(super) fn is_out_of_prefix(&self, key: &[u8]) -> bool {
        match (&self.prefix, &self.prefix_extractor) {
            (Some(prefix), Some(cut)) => !cut.in_domain(key) || cut.transform(key) != prefix,
            _ => false,
        }
    }

    /// Ends the iteration with the prefix of `key`, if it has one.
    pub(super) fn set_prefix(&mut self, key: &[u8]) {
        if let Some(cut) = self.prefix_extractor.as_ref().filter(|c| c.in_domain(key)) {
            self.prefix = Some(cut.transform(key).to_vec());
        }
    }

    /// Ends the iteration with the prefix of the current key.
    pub(super) fn set_prefix_here(&mut self) {
        if self.valid()
            && let Some(cut) = &self.prefix_extractor
        {
            let key = self.key();
            self.prefix = cut.in_domain(key).then(|| cut.transform(key).to_vec());
        }
    }

    /// Lets all places into the next seek.
    pub(super) fn include_all(&mut self) {
        if self.filters.is_some() {
            for child in 0..self.iter.children().len() {
                self.iter.set_excluded(child, false);
            }
        }
    }

    /// Leaves out of the next seek what has no key with the prefix of `target`; false after an
    /// error.
    pub(super) fn exclude_by_prefix(&mut self, target: &[u8]) -> bool {
        let (Some(filters), Some(cut)) = (&self.filters, &self.prefix_extractor) else {
            return true;
        };
        if self.prefix.is_none() {
            self.include_all();
            return true;
        }
        for child in 0..self.iter.children().len() {
            let source = &self.iter.children()[child];
            let is_asked = !matches!(source, Source::Boxed(_));
            self.counts
                .add(Ticker::BloomFilterPrefixChecked, u64::from(is_asked));
            match filters.may_hold(child, source, &**cut, target) {
                Ok(may_hold) => {
                    self.counts
                        .add(Ticker::BloomFilterPrefixUseful, u64::from(!may_hold));
                    self.iter.set_excluded(child, !may_hold);
                }
                Err(error) => {
                    self.fail(error);
                    return false;
                }
            }
        }
        true
    }
}
