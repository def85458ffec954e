//! Opens a directory for a command.

use std::path::{Path, PathBuf};

use orogen::{ColumnFamily, ColumnFamilyOptions, Db, FileSystem, Options, UserComparator};
use orogen_base::ErrorKind;
use orogen_engine::filename;
use orogen_engine::version::manifest::{self, RecoveredManifest};

use crate::failure::Failure;

/// The directory that a command works on.
#[derive(clap::Args)]
pub(crate) struct Dir {
    /// Directory of the database.
    #[arg(value_name = "DB")]
    pub(crate) path: PathBuf,
}

/// The directory and one of its column families.
#[derive(clap::Args)]
pub(crate) struct DirAndFamily {
    #[command(flatten)]
    pub(crate) dir: Dir,
    /// Column family.
    #[arg(
        long,
        visible_alias = "cf",
        default_value = "default",
        value_name = "NAME"
    )]
    pub(crate) column_family: String,
}

/// What the MANIFEST of `dir` says.
pub(crate) fn recover_manifest(
    fs: &dyn FileSystem,
    dir: &Path,
) -> Result<RecoveredManifest, Failure> {
    if !fs.exists(&filename::current_path(dir))? {
        return Err(Failure::NotFound(format!(
            "there is no database in {}",
            dir.display()
        )));
    }
    Ok(manifest::recover_current(fs, dir)?.1)
}

/// Options with which `dir` opens: each family in the order in which it was written.
pub(crate) fn options_for(dir: &Path) -> Result<Options, Failure> {
    let mut options = Options::default();
    // A command leaves a directory as it was but for what it was asked to do.
    options.db.info_log = false;
    for family in recover_manifest(&*options.db.fs, dir)?
        .families
        .into_values()
    {
        let Some(name) = &family.comparator else {
            continue;
        };
        let Some(comparator) = UserComparator::by_name(name) else {
            return Err(Failure::Engine(
                orogen::Error::not_supported("column family has an order that is not built in")
                    .with("column_family", &family.name)
                    .with("comparator", name),
            ));
        };
        let settings = ColumnFamilyOptions {
            comparator,
            ..ColumnFamilyOptions::default()
        };
        options.families.insert(family.name, settings);
    }
    Ok(options)
}

/// How a command that reads opens a directory.
#[derive(clap::Args)]
pub(crate) struct Reading {
    /// Read as a secondary: for a database that another process (RocksDB's too) writes meanwhile.
    /// It is shown as of one moment, whatever files the writer removes.
    #[arg(long)]
    pub(crate) secondary: bool,
}

/// Opens for reading, as it is asked for.
pub(crate) fn read(dir: &Path, how: &Reading) -> Result<Db, Failure> {
    if !how.secondary {
        return read_only(dir);
    }
    let options = options_for(dir)?;
    Ok(Db::open_as_secondary(dir, None, &options)?)
}

/// Opens for reading, beside whoever has it open.
pub(crate) fn read_only(dir: &Path) -> Result<Db, Failure> {
    let options = options_for(dir)?;
    Ok(Db::open_read_only(dir, &options)?)
}

/// Opens for writing.
pub(crate) fn read_write(dir: &Path) -> Result<Db, Failure> {
    let options = options_for(dir)?;
    Ok(Db::open(dir, &options)?)
}

/// Opens for writing with the settings of the newest OPTIONS file, if there is one: for what writes
/// as the database itself would.
pub(crate) fn read_write_as_set(dir: &Path) -> Result<Db, Failure> {
    let options = options_for(dir)?;
    let mut options = match Db::load_latest_options(dir, &options) {
        Ok(loaded) => loaded,
        Err(e) if e.kind() == ErrorKind::NotFound => options,
        Err(e) => return Err(e.into()),
    };
    options.db.info_log = false;
    options.db.create_if_missing = false;
    Ok(Db::open(dir, &options)?)
}

/// A family of an open database.
pub(crate) fn family(db: &Db, name: &str) -> Result<ColumnFamily, Failure> {
    db.column_family(name)
        .ok_or_else(|| Failure::NotFound(format!("there is no column family '{name}'")))
}

/// About how many keys a family has.
pub(crate) fn keys_estimated(db: &Db, family: &ColumnFamily) -> u64 {
    // Tables count by their properties once they are open, and this property opens them.
    let _ = db.property(family, "rocksdb.aggregated-table-properties");
    db.int_property(family, "rocksdb.estimate-num-keys")
        .unwrap_or(0)
}
