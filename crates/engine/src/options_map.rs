//! Our settings as RocksDB's OPTIONS file, and what an open takes from the file that is there.
//!
//! The file is written at every open, whenever families come or go and whenever a setting is
//! changed, so that RocksDB's tools
//! (`ldb --try_load_options`) and people see how the directory was used. An open takes from it
//! only what the caller left open and what the data cannot be read without: a built-in merge
//! operator, a fixed or capped prefix extractor, the number of levels. A file that is missing or
//! does not parse is no error then: every setting has another source. [`load`] takes all of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::slice_transform::{self, SliceTransform};
use orogen_base::{Error, ErrorKind, FileNo, Result};
use orogen_env::FileSystem;
use orogen_env::fs::read_file;

use orogen_sst::{FORMAT_VERSION_MAX, FORMAT_VERSION_MIN};

use crate::column_family::ColumnFamilyData;
use crate::events::OptionChange;
use crate::filename::{self, FileKind};
use crate::options::{ColumnFamilyOptions, DbOptions, Options};
use crate::options_file::{OptionsFile, Section, SectionKind, value};
use crate::version::manifest;
use items::{Item, stored_merge_operator};

mod items;

/// The RocksDB whose names and formats are written.
const ROCKSDB_VERSION: &str = "7.8.3";

/// A family's name and settings, for the file.
pub(crate) type NamedFamily = (String, Arc<ColumnFamilyOptions>);

/// The families' settings as they are now.
pub(crate) fn current(families: &[Arc<ColumnFamilyData>]) -> Vec<NamedFamily> {
    let each = families.iter().map(|f| (f.name.clone(), f.options()));
    each.collect()
}

/// In a line of ours: a blob file has a dictionary, or may come to have one.
const READABLE_BY_ROCKSDB: &str = "readable_by_rocksdb";

/// True if settings ask for blob files that RocksDB cannot read.
pub(crate) fn ask_for_dictionaries(families: &[NamedFamily]) -> bool {
    families.iter().any(|(_, o)| o.blob_dictionary().is_some())
}

/// The settings as the text of an OPTIONS file. `has_dictionaries`: RocksDB may not read all blob files, whatever the
/// settings ask for now.
pub(crate) fn to_text(db: &DbOptions, families: &[NamedFamily], has_dictionaries: bool) -> String {
    fn fill<T>(section: &mut Section, items: &[Item<T>], options: &T) {
        for item in items {
            section.append(item.name, (item.print)(options));
        }
    }
    fn fill_own<T>(section: &mut Section, items: &[Item<T>], options: &T) {
        for item in items {
            section.set_own(item.name, (item.print)(options));
        }
    }
    let mut file = OptionsFile::new(ROCKSDB_VERSION);
    let section = file.add(SectionKind::Db, "");
    fill(section, items::DB, db);
    fill_own(section, items::OWN_DB, db);
    if has_dictionaries || ask_for_dictionaries(families) {
        section.set_own(READABLE_BY_ROCKSDB, "false");
    }
    for (name, options) in families {
        let section = file.add(SectionKind::ColumnFamily, name);
        fill(section, items::FAMILY, options);
        fill_own(section, items::OWN_FAMILY, options);
        let kind = SectionKind::Table("BlockBasedTable".to_owned());
        fill(file.add(kind, name), items::TABLE, &options.table);
    }
    file.to_text()
}

/// The word before the settings of tables: `block_based_table_factory={block_size=8192;}`.
const TABLE_FACTORY: &str = "block_based_table_factory";

/// Its value is a name, of which a file may have some that we do not.
const PREFIX_EXTRACTOR: &str = "prefix_extractor";

fn refuse(message: &'static str, name: &str, value: &str) -> Error {
    Error::invalid_argument(message)
        .with("option", name)
        .with("value", value)
}

/// Takes one setting of an open database.
fn change_one<T>(items: &[&[Item<T>]], options: &mut T, name: &str, text: &str) -> Result<()> {
    let mut items = items.iter().copied().flatten();
    let Some(item) = items.find(|i| i.name == name) else {
        return Err(refuse("option is not known", name, text));
    };
    if !item.mutable {
        return Err(refuse(
            "option cannot change while the database is open",
            name,
            text,
        ));
    }
    (item.read)(options, text.trim()).ok_or_else(|| refuse("option has no such value", name, text))
}

fn differences<T>(items: &[Item<T>], before: &T, after: &T, prefix: &str) -> Vec<OptionChange> {
    let each = items.iter().map(|item| OptionChange {
        name: format!("{prefix}{}", item.name),
        old: (item.print)(before),
        new: (item.print)(after),
    });
    each.filter(|c| c.old != c.new).collect()
}

/// A family's settings with `changes` made, and what differs.
///
/// # Errors
/// `InvalidArgument` naming the first option that is not known, may not change, or is out of its
/// bounds.
pub(crate) fn change_family(
    before: &ColumnFamilyOptions,
    changes: &[(&str, &str)],
) -> Result<(ColumnFamilyOptions, Vec<OptionChange>)> {
    let mut after = before.clone();
    for &(name, text) in changes {
        if name == TABLE_FACTORY {
            let map =
                value::parse_map(text).ok_or_else(|| refuse("option is not a map", name, text))?;
            for (key, text) in map {
                change_one(&[items::TABLE], &mut after.table, &key, &text)?;
            }
        } else if let Some(key) = name
            .strip_prefix(TABLE_FACTORY)
            .and_then(|rest| rest.strip_prefix('.'))
        {
            change_one(&[items::TABLE], &mut after.table, key, text)?;
        } else if name == PREFIX_EXTRACTOR {
            change_extractor(&mut after, text)?;
        } else {
            change_one(&[items::FAMILY, items::OWN_FAMILY], &mut after, name, text)?;
        }
    }
    after.validate()?;
    after.table.validate()?;
    let after = after.sanitized();
    let mut changed = differences(items::FAMILY, before, &after, "");
    changed.extend(differences(items::OWN_FAMILY, before, &after, ""));
    let prefix = format!("{TABLE_FACTORY}.");
    changed.extend(differences(
        items::TABLE,
        &before.table,
        &after.table,
        &prefix,
    ));
    Ok((after, changed))
}

/// Only by name: one that is built in, the one that there is, or none.
fn change_extractor(cf: &mut ColumnFamilyOptions, text: &str) -> Result<()> {
    let name = value::unescape(text);
    let is_same = |p: &Arc<dyn SliceTransform>| p.name() == name;
    if name == "nullptr" {
        cf.prefix_extractor = None;
    } else if !cf.prefix_extractor.as_ref().is_some_and(is_same) {
        let built_in = slice_transform::by_name(&name);
        cf.prefix_extractor =
            Some(built_in.ok_or_else(|| {
                refuse("prefix extractor is not built in", PREFIX_EXTRACTOR, text)
            })?);
    }
    Ok(())
}

/// The database's settings with `changes` made, and what differs.
///
/// # Errors
/// As for [`change_family`].
pub(crate) fn change_db(
    before: &DbOptions,
    changes: &[(&str, &str)],
) -> Result<(DbOptions, Vec<OptionChange>)> {
    let mut after = before.clone();
    for &(name, text) in changes {
        change_one(&[items::DB, items::OWN_DB], &mut after, name, text)?;
    }
    after.validate()?;
    let mut changed = differences(items::DB, before, &after, "");
    changed.extend(differences(items::OWN_DB, before, &after, ""));
    Ok((after, changed))
}

/// The settings in the newest OPTIONS file of `dir`, over `base` for what a file cannot hold. Where it
/// asks for tables of a format that we do not write they will be of the nearest that we do. `unknown` is asked about each
/// value that we do not have, an `InvalidArgument` that names it: whether to go on with that of `base`.
///
/// # Errors
/// `NotFound` if there is no such file; `Corruption` if it does not parse; `Io`; those of `unknown`.
pub(crate) fn load(
    dir: &Path,
    base: &Options,
    unknown: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<Options> {
    type Get = fn(&Section, &str) -> Option<String>;
    const STORED: Get = |section, name| section.get(name).map(str::to_owned);
    const OWN: Get = |section, name| section.get_own(name).map(str::to_owned);
    fn take<T>(
        (section, get): (&Section, Get),
        items: &[Item<T>],
        out: &mut T,
        family: &str,
        unknown: &mut dyn FnMut(Error) -> Result<()>,
    ) -> Result<()> {
        for item in items {
            let Some(text) = get(section, item.name) else {
                continue;
            };
            let text = text.as_str();
            if (item.read)(out, text).is_none() {
                let e = refuse("option has a value that is not known", item.name, text);
                unknown(e.with("column_family", family))?;
            }
        }
        Ok(())
    }
    let fs = &*base.db.fs;
    let number = newest(&fs.list(dir)?).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no OPTIONS file here").with("path", dir.display())
    })?;
    let path = filename::options_path(dir, number);
    let in_file = |e: Error| e.with("file", path.display());
    let bytes = read_file(fs, &path)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| in_file(Error::corruption("OPTIONS file is not text")))?;
    let file = OptionsFile::parse(text).map_err(in_file)?;
    let unknown = &mut |e| unknown(in_file(e));
    let mut options = base.clone();
    if let Some(section) = file.db() {
        take((section, STORED), items::DB, &mut options.db, "", unknown)?;
        take((section, OWN), items::OWN_DB, &mut options.db, "", unknown)?;
    }
    // A family that was dropped may be there still: the file is renewed behind the MANIFEST.
    let manifest = manifest::recover_current(fs, dir).ok();
    let is_live = |name: &str| {
        let families = manifest.as_ref().map(|(_, m)| m.families.values());
        families.is_none_or(|mut all| all.any(|f| f.name == name))
    };
    for name in file.family_names().filter(|name| is_live(name)) {
        let mut cf = base.family(name).clone();
        if let Some(section) = file.family(name) {
            take((section, STORED), items::FAMILY, &mut cf, name, unknown)?;
            take((section, OWN), items::OWN_FAMILY, &mut cf, name, unknown)?;
        }
        if let Some(section) = file.table(name) {
            take(
                (section, STORED),
                items::TABLE,
                &mut cf.table,
                name,
                unknown,
            )?;
            // RocksDB 11 names 7 unless it is told another one; what LevelDB wrote is 0.
            let format_version = &mut cf.table.format_version;
            *format_version = (*format_version).clamp(FORMAT_VERSION_MIN, FORMAT_VERSION_MAX);
            cf.table.metadata_block_size = cf.table.metadata_block_size.max(1);
        }
        options.families.insert(name.to_owned(), cf);
    }
    Ok(options)
}

/// The number of the newest OPTIONS file among `names`.
pub(crate) fn newest(names: &[String]) -> Option<FileNo> {
    let numbers = names.iter().filter_map(|n| match filename::parse(n) {
        Some(FileKind::Options(number)) => Some(number),
        _ => None,
    });
    numbers.max()
}

/// The directory that has the logs of the database in `dir`, from number `from` on, if it is another one (`wal_dir`). `names` are
/// those in `dir`.
///
/// # Errors
/// `Io` if that directory cannot be looked at.
pub fn logs_elsewhere(
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
    from: FileNo,
) -> Result<Option<PathBuf>> {
    let stored = load_newest(fs, dir, names)?;
    logs_elsewhere_of(stored.as_ref(), fs, dir, names, from)
}

fn logs_elsewhere_of(
    stored: Option<&StoredOptions>,
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
    from: FileNo,
) -> Result<Option<PathBuf>> {
    let has_logs = |names: &[String]| {
        let mut kinds = names.iter().filter_map(|name| filename::parse(name));
        kinds.any(|kind| matches!(kind, FileKind::Wal(n) if n >= from))
    };
    let stored = stored.and_then(StoredOptions::wal_dir);
    let Some(path) = stored.map(PathBuf::from).filter(|path| path != dir) else {
        return Ok(None);
    };
    if has_logs(names) {
        return Ok(None);
    }
    let there = || match fs.metadata(&path) {
        Ok(found) if found.is_dir => fs.list(&path),
        Err(e) if !e.is_file_not_found() => Err(e),
        _ => Ok(Vec::new()),
    };
    let there = there().map_err(|e| e.with("wal_dir", path.display()))?;
    // RocksDB 6 writes the path of the database itself, and directories are copied: then it is another database.
    let is_database = there.iter().any(|name| name == filename::CURRENT);
    let is_elsewhere = !is_database && has_logs(&there);
    Ok(is_elsewhere.then_some(path))
}

/// Refuses a directory whose logs, from number `from` on, are in another one: what they hold would be missing, and lost with the
/// next write. `names` are those in `dir`.
///
/// # Errors
/// `NotSupported`; `Io`.
pub fn check_logs_are_here(
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
    from: FileNo,
) -> Result<()> {
    let stored = load_newest(fs, dir, names)?;
    check_logs_of(stored.as_ref(), fs, dir, names, from)
}

/// [`check_logs_are_here`] for one that has read what is `stored`.
///
/// # Errors
/// The same.
pub(crate) fn check_logs_of(
    stored: Option<&StoredOptions>,
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
    from: FileNo,
) -> Result<()> {
    match logs_elsewhere_of(stored, fs, dir, names, from)? {
        None => Ok(()),
        Some(path) => Err(Error::not_supported("the logs are in another directory")
            .with("path", dir.display())
            .with("wal_dir", path.display())
            .with(
                "help",
                "copy them beside the tables if they are of this database; of a copy that needs none, take wal_dir out of its OPTIONS file",
            )),
    }
}

/// Settings that were found in a directory.
pub(crate) struct StoredOptions(OptionsFile);

/// The newest OPTIONS file among `names`; `None` if it is gone, if it does not parse, or if there is none.
///
/// # Errors
/// `Io` and `NoMemory` where nothing is known of what stands in it: it may say where the logs are.
pub(crate) fn load_newest(
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
) -> Result<Option<StoredOptions>> {
    let Some(newest) = newest(names) else {
        return Ok(None);
    };
    let bytes = match read_file(fs, &filename::options_path(dir, newest)) {
        Err(e) if e.is_file_not_found() => return Ok(None),
        Err(e) => {
            let help = "to go on without what it says of merge operators and logs, move it away";
            return Err(e.with("help", help));
        }
        Ok(bytes) => bytes,
    };
    let text = std::str::from_utf8(&bytes).ok();
    let parsed = text.and_then(|text| OptionsFile::parse(text).ok());
    Ok(parsed.map(StoredOptions))
}

impl StoredOptions {
    /// False if blob files had dictionaries when it was written, or could come to have some.
    pub(crate) fn is_readable_by_rocksdb(&self) -> bool {
        let told = self.0.db().and_then(|db| db.get_own(READABLE_BY_ROCKSDB));
        told != Some("false")
    }

    /// Where the logs are, if not beside the tables.
    pub(crate) fn wal_dir(&self) -> Option<String> {
        let path = self.0.db()?.get_text("wal_dir")?;
        (!path.is_empty()).then_some(path)
    }

    /// Fills in what the caller left open for a family.
    pub(crate) fn fill_gaps(&self, family: &str, cf: &mut ColumnFamilyOptions) {
        let Some(stored) = self.0.family(family) else {
            return;
        };
        if cf.merge_operator.is_none() {
            cf.merge_operator = stored
                .get_text("merge_operator")
                .and_then(|n| stored_merge_operator(&n));
        }
        if cf.prefix_extractor.is_none() {
            cf.prefix_extractor = stored
                .get_text("prefix_extractor")
                .and_then(|n| slice_transform::by_name(&n));
        }
        if let Some(levels) = stored
            .get("num_levels")
            .and_then(|n| n.parse::<usize>().ok())
            && levels <= orogen_base::limits::NUM_LEVELS_MAX
        {
            cf.num_levels = cf.num_levels.max(levels);
        }
    }
}

#[cfg(test)]
mod tests;
