//! Makes a new directory of what was found.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::key::{InternalKeyComparator, ParsedInternalKey, user_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{Error, InternalIterator as _, Result, UserComparator, ValueKind};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Access, FileSystem};
use orogen_memtable::MemTable;
use orogen_sst::salvage::Visitor;
use orogen_sst::{TableIter, TableReadOptions, TableReader};

use super::blobs::{Blobs, Once};
use super::examine::{FamilyPlan, Plan, TablePlan, read_table, reader_options};
use super::logs::each_record;
use crate::checkpoint::link_or_copy;
use crate::compact::run::clip_tombstones;
use crate::filename;
use crate::new_directory::{self, At, NewDirectory, insert_op};
use crate::options::Options;
use crate::output::{BlobOutputOptions, OutputWriter, Written};
use crate::read::MergingIter;
use crate::version::blob_counts::BlobCounts;
use crate::version::blob_meta::BlobFileGarbage;
use crate::version::edit::VersionEdit;
use crate::version::file_meta::FileMeta;

/// Makes `to` of the plan for `from`.
///
/// # Errors
/// `Io`, `NoSpace`: what was made is removed.
pub(super) fn rebuild(from: &Path, to: &Path, options: &Options, plan: &Plan) -> Result<()> {
    let fs = &*options.db.fs;
    new_directory::make(fs, to, |temporary| {
        let work = Rebuild {
            fs,
            from,
            to: temporary,
            plan,
            new: NewDirectory::new(temporary, options, plan.db_id.as_deref(), plan.next_file),
        };
        work.run()
    })
}

struct Rebuild<'a> {
    fs: &'a dyn FileSystem,
    from: &'a Path,
    to: &'a Path,
    plan: &'a Plan,
    new: NewDirectory<'a>,
}

/// Memory for what the logs hold, and the tables that were made of it.
struct FromLogs {
    memtable: Arc<dyn MemTable>,
    tables: Vec<FileMeta>,
}

impl Rebuild<'_> {
    fn run(&self) -> Result<()> {
        let mut edits = BTreeMap::new();
        for (&id, family) in &self.plan.families {
            let mut edit = VersionEdit::of_column_family(id);
            let points_to = if self.plan.has_manifest {
                self.keep_levels(id, family, &mut edit)?
            } else {
                self.merge(id, family, &mut edit)?
            };
            self.take_blob_files(&points_to, &mut edit)?;
            edits.insert(id, edit);
        }
        self.logs(&mut edits)?;
        self.head(edits)
    }

    /// Tables stay where they are; damaged ones are replaced. Gives what all of them point to in old
    /// blob files.
    fn keep_levels(
        &self,
        id: u32,
        family: &FamilyPlan,
        edit: &mut VersionEdit,
    ) -> Result<BlobCounts> {
        let mut points_to = BlobCounts::default();
        for table in &family.tables {
            let Some((level, file)) = &table.listed else {
                continue;
            };
            if table.is_whole && self.keeps_its_pointers(table) {
                let target = filename::table_path(self.to, table.number);
                link_or_copy(self.fs, &table.path, &target)?;
                edit.add_file(*level, file.clone());
                points_to.add_all(&table.points_to);
            } else {
                let blobs = self.blob_options(id, family, *level);
                let left = self.rewrite(id, family, table, blobs)?;
                points_to.add_all(&left.pointers_kept);
                left.add_to(*level, edit);
            }
        }
        Ok(points_to)
    }

    fn keeps_its_pointers(&self, table: &TablePlan) -> bool {
        let relocate = self.plan.blobs.relocate();
        table.values_lost == 0 && table.points_to.iter().all(|(n, _)| !relocate.contains(&n))
    }

    /// Blob files that tables point to come along. What they do not point to is garbage.
    fn take_blob_files(&self, points_to: &BlobCounts, edit: &mut VersionEdit) -> Result<()> {
        for (number, count) in points_to.iter() {
            let (path, addition, has_holes) = self.plan.blobs.taken(number)?;
            let values = addition.total_blob_count.checked_sub(count.values);
            let bytes = addition.total_blob_bytes.checked_sub(count.bytes);
            let (Some(values), Some(bytes)) = (values, bytes) else {
                return Err(
                    Error::corruption("tables point to more values than a blob file has")
                        .with("blob_file", number),
                );
            };
            link_or_copy(self.fs, path, &filename::blob_path(self.to, number))?;
            edit.blob_file_additions.push(addition.clone());
            if values > 0 || has_holes {
                edit.blob_file_garbages.push(BlobFileGarbage {
                    number,
                    garbage_blob_count: values,
                    garbage_blob_bytes: bytes,
                    given_up_bytes: has_holes.then_some(0),
                });
            }
        }
        Ok(())
    }

    /// Values of damaged blob files are written anew.
    fn blob_options(&self, id: u32, family: &FamilyPlan, level: usize) -> BlobOutputOptions {
        let cf = &family.options;
        let source: Arc<Blobs> = self.plan.blobs.clone();
        BlobOutputOptions {
            min_blob_size: cf.separates_from(level),
            blob_file_size: cf.blob_file_size,
            file: self.new.blob_file_options(family.as_new(id)),
            relocate: Arc::new(source.relocate().clone()),
            source: Some(source),
            ..BlobOutputOptions::default()
        }
    }

    /// What is left of a damaged table, as a table; none if that is nothing.
    fn rewrite(
        &self,
        id: u32,
        family: &FamilyPlan,
        table: &TablePlan,
        blobs: BlobOutputOptions,
    ) -> Result<Written> {
        // Tombstones go first, and are known only after all was read.
        let found = match read_table(self.fs, family, table, &mut |_, _| Ok(())) {
            Err(e) if e.is_file_not_found() => return Ok(Written::default()),
            other => other?,
        };
        let order = &family.options.comparator;
        let icmp = InternalKeyComparator::new(order.clone());
        let mut tombstones = found.range_tombstones;
        let mut epoch_number = 1;
        if let Some((level, file)) = &table.listed {
            epoch_number = file.epoch_number;
            // RocksDB lets them reach beyond the table.
            let clipped = clip_tombstones(&icmp, *level, &[(file.clone(), tombstones)]);
            tombstones = Arc::new(FragmentedRangeTombstones::new(order, clipped));
        }
        let at = At::level_0(epoch_number);
        let mut writer = self.writer(id, family, at, &tombstones, blobs);
        read_table(self.fs, family, table, &mut |key, value| match self
            .plan
            .blobs
            .holds(key, value)?
        {
            true => writer.add(key, value),
            false => Ok(()),
        })?;
        writer.finish()
    }

    /// All tables of a family become one sorted run. Gives what it points to in old blob files.
    fn merge(&self, id: u32, family: &FamilyPlan, edit: &mut VersionEdit) -> Result<BlobCounts> {
        let order = &family.options.comparator;
        let icmp = InternalKeyComparator::new(order.clone());
        let (mut children, mut tombstones, mut partial) = (Vec::new(), Vec::new(), Vec::new());
        for table in &family.tables {
            let (path, bytes) = if table.is_whole {
                (table.path.clone(), table.bytes)
            } else {
                // Values move later, and once.
                let blobs = BlobOutputOptions::default();
                let left = self.rewrite(id, family, table, blobs)?;
                let Some(left) = left.files.into_iter().next() else {
                    continue;
                };
                let path = filename::table_path(self.to, left.number);
                partial.push(path.clone());
                (path, left.size)
            };
            let file = self.fs.open(&path, Access::Sequential)?;
            let reader = TableReader::open(file, bytes, reader_options(family, table))?;
            let all = reader.range_tombstones();
            tombstones.extend(all.iter().map(|(start, end, seqno)| RangeTombstone {
                start: start.to_vec(),
                end: end.to_vec(),
                seqno,
            }));
            children.push(reader.iter(TableReadOptions::compaction()));
        }
        let tombstones = FragmentedRangeTombstones::new(order, tombstones);
        let level = family.options.num_levels - 1;
        let at = At {
            level,
            epoch_number: 1,
        };
        let blobs = self.blob_options(id, family, level);
        let mut writer = self.writer(id, family, at, &tombstones, blobs);
        let mut once = Once::default();
        merge_entries(
            order,
            MergingIter::new(icmp, children),
            &self.plan.blobs,
            &mut |key, value| match once.is_again(key, value)? {
                true => Ok(()),
                false => writer.add(key, value),
            },
        )?;
        let written = writer.finish()?;
        let points_to = written.pointers_kept.clone();
        written.add_to(level, edit);
        for path in partial {
            self.fs.remove_file(&path)?;
        }
        Ok(points_to)
    }

    /// What the logs hold and the tables lack becomes tables of level 0.
    fn logs(&self, edits: &mut BTreeMap<u32, VersionEdit>) -> Result<()> {
        let plan = self.plan;
        let fresh = |family: &FamilyPlan| family.options.make_memtable(false, None);
        let mut found: BTreeMap<u32, FromLogs> = plan
            .families
            .iter()
            .map(|(&id, family)| {
                let memtable = fresh(family);
                let tables = Vec::new();
                (id, FromLogs { memtable, tables })
            })
            .collect();
        let mut epoch = edits
            .values()
            .flat_map(|e| e.new_files.iter().map(|(_, f)| f.epoch_number))
            .max()
            .unwrap_or(0);
        // They were told of when the logs were examined.
        let mut damaged = Vec::new();
        each_record(
            self.from,
            self.fs,
            &plan.logs,
            plan.visible,
            &mut damaged,
            &mut |log, op, seqno| {
                let Some(id) = op.family() else {
                    return Ok(());
                };
                if let (Some(family), Some(from_logs)) =
                    (plan.families.get(&id), found.get_mut(&id))
                    && family.wants(log, seqno)
                {
                    insert_op(&*from_logs.memtable, &op, seqno)?;
                    let bytes = from_logs.memtable.memory_usage() as u64;
                    if bytes >= family.options.write_buffer_size {
                        let full = std::mem::replace(&mut from_logs.memtable, fresh(family));
                        epoch += 1;
                        let table = self.flush(id, family, &full, epoch)?;
                        from_logs.tables.extend(table);
                    }
                }
                Ok(())
            },
        )?;
        for (id, mut from_logs) in found {
            let family = &plan.families[&id];
            epoch += 1;
            let last = self.flush(id, family, &from_logs.memtable, epoch)?;
            from_logs.tables.extend(last);
            let edit = edits.entry(id).or_default();
            for table in from_logs.tables {
                edit.add_file(0, Arc::new(table));
            }
        }
        Ok(())
    }

    fn flush(
        &self,
        id: u32,
        family: &FamilyPlan,
        memtable: &Arc<dyn MemTable>,
        epoch: u64,
    ) -> Result<Option<FileMeta>> {
        let tombstones = memtable.range_tombstones();
        // As large as they are: a compaction puts them apart.
        let blobs = BlobOutputOptions::default();
        let mut writer = self.writer(id, family, At::level_0(epoch), &tombstones, blobs);
        let mut iter = memtable.clone().iter();
        iter.seek_to_first();
        while iter.valid() {
            writer.add(iter.key(), iter.value())?;
            iter.next();
        }
        iter.status()?;
        Ok(writer.finish()?.files.into_iter().next())
    }

    fn writer(
        &self,
        id: u32,
        family: &FamilyPlan,
        at: At,
        tombstones: &FragmentedRangeTombstones,
        blobs: BlobOutputOptions,
    ) -> OutputWriter<'_> {
        self.new
            .writer(family.as_new(id), at, tombstones, blobs, (None, None))
    }

    /// Everything but the tables.
    fn head(&self, edits: BTreeMap<u32, VersionEdit>) -> Result<()> {
        let identity = filename::identity_path(self.from);
        if let Ok(bytes) = read_file(self.fs, &identity) {
            write_file(self.fs, &filename::identity_path(self.to), &bytes)?;
        }
        if let Some(number) = self.plan.newest_options
            && let Ok(bytes) = read_file(self.fs, &filename::options_path(self.from, number))
        {
            write_file(self.fs, &filename::options_path(self.to, number), &bytes)?;
        }
        let families: Vec<_> = edits
            .into_iter()
            .map(|(id, edit)| (self.plan.families[&id].as_new(id), edit))
            .collect();
        self.new.finish(&families, self.plan.last_sequence)
    }
}

/// Passes all entries on, each user key and sequence number once, but pointers to values that are
/// lost.
///
/// Two tables have the same entry where one is what a compaction made of the other; then an
/// operand may stand in one of them and the value that it became in the other.
fn merge_entries(
    order: &UserComparator,
    mut input: MergingIter<TableIter>,
    blobs: &Blobs,
    visit: Visitor<'_>,
) -> Result<()> {
    let mut held: Option<(Vec<u8>, Vec<u8>)> = None;
    input.seek_to_first();
    while input.valid() {
        if !blobs.holds(input.key(), input.value())? {
            input.next();
            continue;
        }
        let entry = (input.key().to_vec(), input.value().to_vec());
        let again = match &held {
            Some((key, _)) => {
                let (old, new) = (
                    ParsedInternalKey::parse(key)?,
                    ParsedInternalKey::parse(&entry.0)?,
                );
                let same = old.seqno == new.seqno
                    && order.compare(user_key(key), user_key(&entry.0)).is_eq();
                same.then_some(old.kind)
            }
            None => None,
        };
        match again {
            None => {
                if let Some((key, value)) = held.replace(entry) {
                    visit(&key, &value)?;
                }
            }
            Some(ValueKind::Merge) => held = Some(entry),
            Some(_) => {}
        }
        input.next();
    }
    input.status()?;
    if let Some((key, value)) = held {
        visit(&key, &value)?;
    }
    Ok(())
}
