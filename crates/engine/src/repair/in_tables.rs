//! What the tables of a family have already of what logs hold, where no MANIFEST tells.
//!
//! The newest number in a table does not tell it: an open writes what logs hold into several tables at the same
//! time, and one that is cut off may leave the newest whole and an older one not. So each entry of a log is looked
//! for. One with the same user key and number is the same entry: a second one would be an operand that counts
//! twice, or a value that a single delete does not meet. All others are taken, for a put or a deletion that is
//! hidden changes nothing.
//!
//! Operands are folded into newer ones, and then nothing tells which. So one is left out where the next newer
//! entry of its key in a table is an operand, too, or where its key has a value without a number. It may be
//! missing then; it never counts twice.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::key::{append_seek_key, user_key};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{
    InternalIterator as _, ParsedInternalKey, Result, SeqNo, UserComparator, ValueKind,
};
use orogen_env::{Access, FileSystem};
use orogen_sst::{TableIter, TableReadOptions, TableReader, TableReaderOptions};

use crate::filename;
use crate::version::file_meta::FileMeta;

/// The sorted run that a family's tables became.
pub(super) struct InTables<'a> {
    fs: &'a dyn FileSystem,
    dir: PathBuf,
    order: UserComparator,
    /// In key order.
    files: Vec<Arc<FileMeta>>,
    /// The newest number in the tables.
    newest: SeqNo,
    /// Index in `files`.
    open: Option<(usize, TableIter)>,
    /// The key that was asked about last, and its versions, newest first.
    asked: Option<Vec<u8>>,
    versions: Vec<(SeqNo, ValueKind)>,
}

impl<'a> InTables<'a> {
    /// `files` of `dir` in key order; `newest` is the newest number in what they were made of.
    pub(super) fn new(
        fs: &'a dyn FileSystem,
        dir: PathBuf,
        order: UserComparator,
        files: Vec<Arc<FileMeta>>,
        newest: SeqNo,
    ) -> Self {
        Self {
            fs,
            dir,
            order,
            files,
            newest,
            open: None,
            asked: None,
            versions: Vec::new(),
        }
    }

    /// True if the tables have the entry of this internal key, or an operand that it may be folded into. Quick for
    /// keys that rise.
    ///
    /// # Errors
    /// `Io`, `Corruption`.
    pub(super) fn has(&mut self, key: &[u8]) -> Result<bool> {
        let entry = ParsedInternalKey::parse(key)?;
        let is_asked = |asked: &Vec<u8>| self.order.compare(asked, entry.user_key).is_eq();
        if !self.asked.as_ref().is_some_and(is_asked) {
            self.asked = None;
            self.read(entry.user_key)?;
            self.asked = Some(entry.user_key.to_vec());
        }
        let is_operand = entry.kind == ValueKind::Merge;
        let newer = self.versions.iter().rfind(|v| v.0 >= entry.seqno);
        Ok(match newer {
            Some((seqno, _)) if *seqno == entry.seqno => true,
            Some((_, kind)) => is_operand && *kind == ValueKind::Merge,
            None => {
                let lost_its_number = self.versions.first().is_some_and(|v| v.0 == 0);
                is_operand && lost_its_number && entry.seqno <= self.newest
            }
        })
    }

    fn read(&mut self, key: &[u8]) -> Result<()> {
        self.versions.clear();
        let order = self.order.clone();
        let begin = |file: &Arc<FileMeta>| order.less(file.largest_user_key(), key);
        let mut at = self.files.partition_point(begin);
        let mut target = Vec::new();
        append_seek_key(&mut target, key, SEQNO_MAX);
        while let Some(file) = self.files.get(at).cloned()
            && !order.less(key, file.smallest_user_key())
        {
            let mut iter = match self.open.take() {
                Some((of, iter)) if of == at => iter,
                _ => self.iter(&file)?,
            };
            iter.seek(&target);
            while iter.valid() && order.compare(user_key(iter.key()), key) == Ordering::Equal {
                let entry = ParsedInternalKey::parse(iter.key())?;
                self.versions.push((entry.seqno, entry.kind));
                iter.next();
            }
            iter.status()?;
            self.open = Some((at, iter));
            at += 1;
        }
        Ok(())
    }

    fn iter(&self, file: &FileMeta) -> Result<TableIter> {
        let path = filename::table_path(&self.dir, file.number);
        let options = TableReaderOptions {
            comparator: self.order.clone(),
            file_number: file.number,
            ..TableReaderOptions::default()
        };
        let table = TableReader::open(self.fs.open(&path, Access::Random)?, file.size, options)?;
        Ok(table.iter(TableReadOptions::default()))
    }
}
