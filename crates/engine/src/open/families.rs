//! Families come and go.

use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::sync::atomic::AtomicBool;
use orogen_base::{Error, FileNo, Result};
use orogen_env::Access;

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::open::recover::write_options_file;
use crate::options::ColumnFamilyOptions;
use crate::options_map;
use crate::tables::FamilyTables;
use crate::version::edit::{ColumnFamilyChange, VersionEdit};
use crate::version::version::Version;
use crate::version_set::Change;
use crate::write::commit::WritePath;

/// The family in memory, with an empty memtable.
///
/// # Errors
/// `InvalidArgument` for settings out of bounds.
pub(crate) fn assemble(
    context: &Context,
    id: u32,
    name: &str,
    options: ColumnFamilyOptions,
    version: Arc<Version>,
    log_number: FileNo,
) -> Result<Arc<ColumnFamilyData>> {
    let cache = options
        .block_cache
        .clone()
        .unwrap_or_else(|| context.default_cache.clone());
    let budget = context
        .options
        .memory_budget
        .clone()
        .filter(|budget| Arc::ptr_eq(budget.block_cache(), &cache));
    let tables = FamilyTables {
        dir: context.dir.clone(),
        family_id: id,
        fs: context.fs.clone(),
        access: match context.options.allow_mmap_reads {
            true => Access::Mapped,
            // Beside a writer a value may become a hole between its check and its use.
            false if context.options.adaptive_mmap_reads && !context.read_only => {
                Access::MappedInMemory
            }
            false => Access::Random,
        },
        statistics: context.statistics.clone(),
        cache,
        blob_cache: options.blob_cache,
        follows: context.follows,
        others_may_write: AtomicBool::new(context.read_only),
        open_number: context.open_number,
        comparator: options.comparator.clone(),
        prefix_extractor: options.prefix_extractor.clone(),
        protect_cached_blocks: options.block_protection_bytes_per_key > 0,
        cache_index_and_filter_blocks: options.table.cache_index_and_filter_blocks
            || budget.is_some(),
        budget,
    };
    let mem = context.first_memtable(&options, false, log_number);
    let clock = context.clock.clone();
    let family =
        ColumnFamilyData::new((id, name), options, tables, mem, version, log_number, clock)?;
    Ok(Arc::new(family))
}

/// Writes the OPTIONS file anew. Without it the change holds all the same, and the next open
/// writes one.
fn renew_options_file(context: &Context) {
    let all = options_map::current(&context.set.families());
    if let Err(e) = write_options_file(context, &context.db_options(), &all) {
        context
            .log
            .warn(format_args!("cannot write the OPTIONS file: {e}"));
    }
}

/// Makes a family, and has the OPTIONS file name it. The caller leads the write path.
///
/// # Errors
/// As [`create_without_options_file`].
pub(crate) fn create(
    context: &Context,
    write: &WritePath,
    name: &str,
    options: ColumnFamilyOptions,
) -> Result<Arc<ColumnFamilyData>> {
    let family = create_without_options_file(context, write, name, options)?;
    renew_options_file(context);
    Ok(family)
}

/// Makes a family. The caller leads the write path, and writes the OPTIONS file.
///
/// # Errors
/// `InvalidArgument` if the name is taken or a setting is out of bounds; `Io`, `NoSpace`.
pub(crate) fn create_without_options_file(
    context: &Context,
    write: &WritePath,
    name: &str,
    options: ColumnFamilyOptions,
) -> Result<Arc<ColumnFamilyData>> {
    if context.set.family_named(name).is_some() {
        return Err(Error::invalid_argument("column family exists").with("column_family", name));
    }
    let options = options.sanitized();
    options.validate()?;
    let id = context.set.next_family_id();
    let icmp = InternalKeyComparator::new(options.comparator.clone());
    let version = Arc::new(Version::empty(icmp, options.num_levels));
    let log_number = context.logs.current();
    let comparator = options.comparator.name().to_owned();
    let family = assemble(context, id, name, options, version, log_number)?;
    let edit = VersionEdit {
        column_family_change: Some(ColumnFamilyChange::Add(name.to_owned())),
        comparator: Some(comparator),
        log_number: Some(log_number),
        max_column_family: Some(id),
        ..VersionEdit::of_column_family(id)
    };
    context.check_writable()?;
    context.set.apply(vec![Change {
        family: family.clone(),
        edit,
        install: None,
    }])?;
    write.refresh_memtables();
    context
        .log
        .info(format_args!("[{name}] column family created id={id}"));
    Ok(family)
}

/// Drops a family. The caller leads the write path.
///
/// # Errors
/// `InvalidArgument` if it is gone already; `Io`, `NoSpace`.
pub(crate) fn drop(
    context: &Context,
    write: &WritePath,
    family: &Arc<ColumnFamilyData>,
) -> Result<()> {
    if family.is_dropped() {
        return Err(Error::invalid_argument("column family was dropped before")
            .with("column_family", &family.name));
    }
    let edit = VersionEdit {
        column_family_change: Some(ColumnFamilyChange::Drop),
        max_column_family: Some(context.set.next_family_id() - 1),
        ..VersionEdit::of_column_family(family.id)
    };
    context.check_writable()?;
    context.set.apply(vec![Change {
        family: family.clone(),
        edit,
        install: None,
    }])?;
    family.raise_when_gone(&context.work);
    write.refresh_memtables();
    write.note_stall(family);
    renew_options_file(context);
    context
        .log
        .info(format_args!("[{}] column family dropped", family.name));
    Ok(())
}
