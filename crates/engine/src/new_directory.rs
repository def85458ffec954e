//! A directory put together from parts: by repair, by a migration.
//!
//! It is made under a temporary name and renamed at the end, so it is whole or not there; CURRENT
//! is the last of its files. Files get their numbers here, from any thread.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::key::InternalKeyComparator;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{Error, FileNo, Result, SeqNo, UserComparator, ValueKind};
use orogen_blob::BlobFileBuilderOptions;
use orogen_env::{BufferedFile, FileSystem, WritableFile};
use orogen_memtable::MemTable;
use orogen_sst::TableBuilderOptions;
use orogen_wal::Writer;

use crate::batch::BatchOp;
use crate::filename::{self, DataFile, DataFileKind};
use crate::options::{ColumnFamilyOptions, FileChecksumKind, Options};
use crate::output::{BlobOutputOptions, NewFile, OutputOptions, OutputWriter};
use crate::temporary::TemporaryDir;
use crate::version::builder::VersionBuilder;
use crate::version::edit::VersionEdit;
use crate::version::manifest::{self, FamilySnapshot};
use crate::version::version::Version;
use crate::version::wal_set::WalSet;

/// Makes `target` by filling a [`TemporaryDir`].
///
/// # Errors
/// Those of `fill`, `Io`: what was made is removed; those of [`TemporaryDir::begin`].
pub(crate) fn make<T>(
    fs: &dyn FileSystem,
    target: &Path,
    fill: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let temporary = TemporaryDir::begin(fs, target, &|| Ok(()))?;
    match fill(temporary.path()) {
        Ok(made) => temporary.finish().map(|()| made),
        Err(e) => {
            temporary.discard();
            Err(e)
        }
    }
}

/// Takes the order that a family was written in.
///
/// # Errors
/// `NotSupported` for one that is neither given nor built in.
pub(crate) fn order_of(cf: &mut ColumnFamilyOptions, name: Option<&str>) -> Result<()> {
    let Some(name) = name.filter(|n| !n.is_empty() && *n != cf.comparator.name()) else {
        return Ok(());
    };
    cf.comparator = UserComparator::by_name(name).ok_or_else(|| {
        Error::not_supported("column family has an order that is not built in")
            .with("comparator", name)
    })?;
    Ok(())
}

/// A family of the new directory.
#[derive(Clone, Copy)]
pub(crate) struct NewFamily<'a> {
    pub(crate) id: u32,
    pub(crate) name: &'a str,
    pub(crate) options: &'a ColumnFamilyOptions,
}

/// Where tables go.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) level: usize,
    pub(crate) epoch_number: u64,
}

impl At {
    /// Never cut.
    pub(crate) fn level_0(epoch_number: u64) -> Self {
        Self {
            level: 0,
            epoch_number,
        }
    }
}

/// The directory while it is made.
pub(crate) struct NewDirectory<'a> {
    fs: &'a dyn FileSystem,
    dir: &'a Path,
    options: &'a Options,
    db_id: Option<&'a str>,
    next_file: AtomicU64,
}

impl<'a> NewDirectory<'a> {
    /// Files get numbers from `next_file` on.
    pub(crate) fn new(
        dir: &'a Path,
        options: &'a Options,
        db_id: Option<&'a str>,
        next_file: FileNo,
    ) -> Self {
        Self {
            fs: &*options.db.fs,
            dir,
            options,
            db_id,
            next_file: AtomicU64::new(next_file),
        }
    }

    /// A number that no file has.
    pub(crate) fn number(&self) -> FileNo {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// How a table of a family is built.
    pub(crate) fn table_options(&self, family: NewFamily<'_>, level: usize) -> TableBuilderOptions {
        let cf = family.options;
        let now = self.options.db.clock.unix_secs();
        TableBuilderOptions {
            table: cf.table.clone(),
            compression: cf.compression_of(level, level > 0),
            compression_options: cf.compression_opts,
            comparator: cf.comparator.clone(),
            prefix_extractor: cf.prefix_extractor.clone(),
            merge_operator_name: cf
                .merge_operator
                .as_ref()
                .map_or_else(|| "nullptr".to_owned(), |m| m.name().to_owned()),
            column_family_id: family.id,
            column_family_name: family.name.to_owned(),
            db_id: self.db_id.unwrap_or_default().to_owned(),
            creation_time: now,
            oldest_key_time: now,
            file_creation_time: now,
            file_checksum: self.has_checksums(),
            ..TableBuilderOptions::default()
        }
    }

    /// How a blob file of a family is built.
    pub(crate) fn blob_file_options(&self, family: NewFamily<'_>) -> BlobFileBuilderOptions {
        let cf = family.options;
        BlobFileBuilderOptions {
            compression: cf.blob_compression_type,
            compression_options: cf.blob_compression_opts,
            alignment: cf.blob_record_alignment,
            comparator: cf.comparator.clone(),
            column_family_id: family.id,
            column_family_name: family.name.to_owned(),
            creation_time: self.options.db.clock.unix_secs(),
            db_id: self.db_id.unwrap_or_default().to_owned(),
            file_checksum: self.has_checksums(),
            ..BlobFileBuilderOptions::default()
        }
    }

    fn has_checksums(&self) -> bool {
        self.options.db.file_checksum == FileChecksumKind::Crc32c
    }

    /// A new file of a kind.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    pub(crate) fn create(&self, kind: DataFileKind) -> Result<(FileNo, Box<dyn WritableFile>)> {
        let number = self.number();
        let file = self.fs.create(&DataFile { number, kind }.path(self.dir))?;
        Ok((number, Box::new(BufferedFile::new(file))))
    }

    /// A writer of tables for the user keys of `bounds`.
    pub(crate) fn writer<'w>(
        &'w self,
        family: NewFamily<'_>,
        at: At,
        tombstones: &FragmentedRangeTombstones,
        blobs: BlobOutputOptions,
        bounds: (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> OutputWriter<'w> {
        let size = family.options.target_file_size_base;
        let options = OutputOptions {
            paranoid_file_checks: true,
            table: self.table_options(family, at.level),
            output_level: at.level,
            target_file_size: size,
            max_file_size: size,
            max_compaction_bytes: u64::MAX,
            grandparents: Vec::new(),
            epoch_number: at.epoch_number,
            compact_on_deletion: None,
            blobs,
        };
        let new_file: NewFile<'w> = Box::new(move |kind| self.create(kind));
        OutputWriter::new(options, tombstones.fragments().to_vec(), bounds, new_file)
    }

    /// Writes a MANIFEST with the families' files and makes it the live one: all that is to be
    /// there must be there.
    ///
    /// # Errors
    /// `NoSpace`, `Io`; `Corruption` if the files of a level overlap.
    pub(crate) fn finish(
        &self,
        families: &[(NewFamily<'_>, VersionEdit)],
        last_sequence: SeqNo,
    ) -> Result<()> {
        let mut versions = Vec::new();
        for (family, edit) in families {
            let icmp = InternalKeyComparator::new(family.options.comparator.clone());
            let deepest = edit.new_files.iter().map(|(level, _)| level + 1).max();
            let levels = family.options.num_levels.max(deepest.unwrap_or(0));
            let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp, levels)));
            builder.apply(edit)?;
            versions.push((family, builder.build()?));
        }
        self.fs.sync_dir(self.dir)?;
        let number = self.number();
        let file = self.fs.create(&filename::manifest_path(self.dir, number))?;
        let mut writer = Writer::new(file, number, false);
        let snapshot = manifest::Snapshot {
            db_id: self.db_id,
            next_file_number: number + 1,
            last_sequence,
            min_log_number_to_keep: 0,
            max_column_family: versions.iter().map(|(f, _)| f.id).max().unwrap_or(0),
            wals: WalSet::default(),
            filled_blob_files: BTreeSet::new(),
            families: versions
                .iter()
                .map(|(family, version)| FamilySnapshot {
                    id: family.id,
                    name: family.name,
                    comparator: family.options.comparator.name(),
                    log_number: number,
                    version,
                    full_history_ts_low: None,
                })
                .collect(),
        };
        snapshot.write(&mut writer)?;
        writer.sync()?;
        self.fs.sync_dir(self.dir)?;
        manifest::set_current(self.fs, self.dir, number)
    }
}

/// Puts an operation of a log into memory.
///
/// # Errors
/// `NoMemory`.
pub(crate) fn insert_op(memtable: &dyn MemTable, op: &BatchOp<'_>, seqno: SeqNo) -> Result<()> {
    match *op {
        BatchOp::Put { key, value, .. } => memtable.insert(key, seqno, ValueKind::Value, value),
        BatchOp::Merge { key, operand, .. } => {
            memtable.insert(key, seqno, ValueKind::Merge, operand)
        }
        BatchOp::Delete { key, .. } => memtable.insert(key, seqno, ValueKind::Deletion, &[]),
        BatchOp::SingleDelete { key, .. } => {
            memtable.insert(key, seqno, ValueKind::SingleDeletion, &[])
        }
        BatchOp::DeleteRange { start, end, .. } => {
            memtable.insert_range_deletion(start, end, seqno)
        }
        _ => Ok(()),
    }
}
