//! Opens a directory for a command.

use std::path::{Path, PathBuf};

use orogen::{
    ColumnFamily, ColumnFamilyOptions, CompactionHandle, Db, FileSystem, Options, UserComparator,
};
use orogen_base::ErrorKind;
use orogen_engine::filename;
use orogen_engine::version::manifest::{self, RecoveredManifest};

use crate::failure::Failure;
use crate::terminal::Terminal;

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

/// Opens for reading, beside whoever has it open. What a lost table held is missing, the rest is shown.
pub(crate) fn read_only(dir: &Path) -> Result<Db, Failure> {
    let mut options = options_for(dir)?;
    options.db.paranoid_checks = false;
    Ok(Db::open_read_only(dir, &options)?)
}

/// Opens for writing with the settings of the newest OPTIONS file. Where it has one of RocksDB's that is not ours, with the
/// defaults, and tells so.
pub(crate) fn read_write(dir: &Path, terminal: &Terminal) -> Result<Db, Failure> {
    let options = options_for(dir)?;
    match stored_options(dir, &options) {
        Err(e) if e.kind() == ErrorKind::InvalidArgument => {
            terminal.note(&format!("orogen: settings are the defaults: {e}"));
            Ok(Db::open(dir, &options)?)
        }
        stored => Ok(Db::open(dir, &stored?)?),
    }
}

/// The same for what must not be done with other settings than those of the directory.
pub(crate) fn read_write_as_set(dir: &Path) -> Result<Db, Failure> {
    let stored = stored_options(dir, &options_for(dir)?)?;
    Ok(Db::open(dir, &stored)?)
}

/// The settings of the newest OPTIONS file; `options` if there is none.
fn stored_options(dir: &Path, options: &Options) -> orogen::Result<Options> {
    let mut stored = match Db::load_latest_options(dir, options) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(options.clone()),
        stored => stored?,
    };
    stored.db.info_log = false;
    stored.db.create_if_missing = false;
    Ok(stored)
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

/// The column families that a command works through.
#[derive(clap::Args)]
pub(crate) struct Families {
    /// Only these column families; default: all.
    #[arg(
        long,
        visible_alias = "cf",
        visible_alias = "family",
        value_name = "NAME"
    )]
    column_family: Vec<String>,
}

impl Families {
    /// Runs a job in each, one after the other, and shows how far it is.
    pub(crate) fn work(
        &self,
        db: &Db,
        terminal: &Terminal,
        doing: &str,
        mut begin: impl FnMut(&ColumnFamily) -> orogen::Result<CompactionHandle>,
    ) -> Result<(), Failure> {
        let families = match self.column_family.is_empty() {
            true => db.column_families(),
            false => {
                let named = self.column_family.iter().map(|n| family(db, n));
                named.collect::<Result<_, _>>()?
            }
        };
        for family in &families {
            let handle = begin(family)?;
            terminal.follow(&handle, &format!("{doing} {}", family.name()))?;
        }
        Ok(())
    }
}
