//! The entries of tables one after the other, as a child of a merge.

use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::{Error, FileNo, InternalIterator, Result, SeqNo};
use orogen_env::{Access, FileSystem};
use orogen_sst::{TableIter, TableReadOptions, TableReader, TableReaderOptions};

use std::path::PathBuf;

/// A table that is read.
#[derive(Clone, Debug)]
pub(super) struct SourceTable {
    pub(super) path: PathBuf,
    pub(super) number: FileNo,
    pub(super) size: u64,
    /// Its last internal key.
    pub(super) largest: Vec<u8>,
    /// As the MANIFEST has it.
    pub(super) largest_seqno: Option<SeqNo>,
}

impl SourceTable {
    /// # Errors
    /// `Corruption`, also if the table is missing; `Io`.
    pub(super) fn open(
        &self,
        fs: &dyn FileSystem,
        order: &InternalKeyComparator,
    ) -> Result<Arc<TableReader>> {
        let missing = |e: Error| match e.is_file_not_found() {
            true => Error::corruption("table is missing").with("file", self.path.display()),
            false => e,
        };
        let file = fs.open(&self.path, Access::Sequential).map_err(missing)?;
        let size = file.size()?;
        if size != self.size {
            return Err(
                Error::corruption("table has another size than the MANIFEST says")
                    .with("file", self.path.display())
                    .with("size", size)
                    .with("wanted", self.size),
            );
        }
        let options = TableReaderOptions {
            comparator: order.user.clone(),
            file_number: self.number,
            largest_seqno: self.largest_seqno,
            ..TableReaderOptions::default()
        };
        TableReader::open(file, size, options)
    }
}

/// A cursor over tables that follow each other in key order, one of them open at a time. It goes
/// forward only.
pub(super) struct Chain<'a> {
    fs: &'a dyn FileSystem,
    order: InternalKeyComparator,
    tables: &'a [SourceTable],
    at: usize,
    open: Option<TableIter>,
    error: Option<Error>,
}

impl<'a> Chain<'a> {
    pub(super) fn new(
        fs: &'a dyn FileSystem,
        order: InternalKeyComparator,
        tables: &'a [SourceTable],
    ) -> Self {
        Self {
            fs,
            order,
            tables,
            at: 0,
            open: None,
            error: None,
        }
    }

    /// Stands on the first entry of table `at` or a later one, not before `target`.
    fn enter(&mut self, at: usize, target: Option<&[u8]>) {
        (self.at, self.open, self.error) = (at, None, None);
        let mut target = target;
        while let Some(table) = self.tables.get(self.at) {
            let reader = match table.open(self.fs, &self.order) {
                Ok(reader) => reader,
                Err(e) => {
                    self.error = Some(e);
                    return;
                }
            };
            let mut iter = reader.iter(TableReadOptions::compaction());
            match target.take() {
                Some(target) => iter.seek(target),
                None => iter.seek_to_first(),
            }
            if iter.valid() || iter.status().is_err() {
                self.open = Some(iter);
                return;
            }
            self.at += 1;
        }
    }

    fn refuse(&mut self) {
        self.open = None;
        self.error = Some(Error::not_supported("this cursor goes forward only"));
    }
}

impl InternalIterator for Chain<'_> {
    fn valid(&self) -> bool {
        self.open.as_ref().is_some_and(InternalIterator::valid)
    }

    fn seek_to_first(&mut self) {
        self.enter(0, None);
    }

    fn seek_to_last(&mut self) {
        self.refuse();
    }

    fn seek(&mut self, target: &[u8]) {
        let order = &self.order;
        let at = self
            .tables
            .partition_point(|t| order.compare(&t.largest, target).is_lt());
        self.enter(at, Some(target));
    }

    fn seek_for_prev(&mut self, _: &[u8]) {
        self.refuse();
    }

    fn next(&mut self) {
        let Some(iter) = &mut self.open else {
            return;
        };
        iter.next();
        if !iter.valid() && iter.status().is_ok() {
            self.enter(self.at + 1, None);
        }
    }

    fn prev(&mut self) {
        self.refuse();
    }

    fn key(&self) -> &[u8] {
        self.open.as_ref().map_or(&[], InternalIterator::key)
    }

    fn value(&self) -> &[u8] {
        self.open.as_ref().map_or(&[], InternalIterator::value)
    }

    fn status(&self) -> Result<()> {
        match (&self.error, &self.open) {
            (Some(e), _) => Err(e.clone()),
            (None, Some(iter)) => iter.status(),
            (None, None) => Ok(()),
        }
    }
}
