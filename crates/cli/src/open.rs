//! Opens a directory for a command.

use std::path::{Path, PathBuf};

use orogen::{
    ColumnFamily, ColumnFamilyOptions, CompactionHandle, Db, FileSystem, Options, UserComparator,
};
use orogen_base::ErrorKind;
use orogen_engine::filename::{self, FileKind};
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
        let shown = dir.display();
        if has_data(fs, dir) {
            return Err(Failure::Damaged(format!(
                "CURRENT is missing in {shown}, which has files of a database: `orogen db repair` makes a directory of them"
            )));
        }
        return Err(Failure::NotFound(format!(
            "there is no database in {shown}"
        )));
    }
    match manifest::recover_current(fs, dir) {
        Ok((_, manifest)) => Ok(manifest),
        Err(e) if e.is_file_not_found() => Err(Failure::Damaged(format!(
            "the MANIFEST that CURRENT names is missing; `orogen db repair` makes a directory of what is there: {e}"
        ))),
        Err(e) => Err(e.into()),
    }
}

/// True if there are files that only a database has.
fn has_data(fs: &dyn FileSystem, dir: &Path) -> bool {
    let names = fs.list(dir).unwrap_or_default();
    let mut kinds = names.iter().filter_map(|name| filename::parse(name));
    kinds.any(|kind| matches!(kind, FileKind::Manifest(_) | FileKind::Table(_)))
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
pub(crate) fn read(dir: &Path, how: &Reading, terminal: &Terminal) -> Result<Db, Failure> {
    if !how.secondary {
        return read_only(dir, terminal);
    }
    let options = options_for(dir)?;
    in_spite_of_log_damage(options, terminal, |options| {
        Db::open_as_secondary(dir, None, options)
    })
}

/// Opens for reading, beside whoever has it open. What a lost table held is missing, and what stands behind damage in a log, of
/// which the person is told; the rest is shown.
pub(crate) fn read_only(dir: &Path, terminal: &Terminal) -> Result<Db, Failure> {
    let mut options = options_for(dir)?;
    options.db.paranoid_checks = false;
    in_spite_of_log_damage(options, terminal, |options| {
        Db::open_read_only(dir, options)
    })
}

/// Opens without what stands behind damage in a log; the person is told of that.
fn in_spite_of_log_damage(
    mut options: Options,
    terminal: &Terminal,
    open: impl Fn(&Options) -> orogen::Result<Db>,
) -> Result<Db, Failure> {
    options.db.refuse_log_damage = true;
    // Beside a writer a record that is half written looks like damage, once.
    let mut opened = open(&options);
    if matches!(&opened, Err(e) if e.kind() == ErrorKind::Corruption) {
        opened = open(&options);
    }
    let damage = match opened {
        Err(e) if e.kind() == ErrorKind::Corruption => e,
        opened => return Ok(opened?),
    };
    options.db.refuse_log_damage = false;
    let db = open(&options)?;
    terminal.note(&format!(
        "orogen: shown without writes that are lost to damage: {damage}"
    ));
    Ok(db)
}

/// Opens for writing with the settings of the newest OPTIONS file. Where it has some of RocksDB's that are not ours these are the
/// defaults, of which the person is told.
pub(crate) fn read_write(dir: &Path, terminal: &Terminal) -> Result<Db, Failure> {
    let stored = known_options(dir, options_for(dir)?, terminal)?;
    write(dir, stored, terminal)
}

/// The settings of the newest OPTIONS file as far as we have them, over `base`; the person is told of the others.
pub(crate) fn known_options(
    dir: &Path,
    base: Options,
    terminal: &Terminal,
) -> orogen::Result<Options> {
    let (stored, unknown) = match Db::load_known_options(dir, &base) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(base),
        stored => stored?,
    };
    for e in unknown {
        terminal.note(&format!("orogen: this setting is the default: {e}"));
    }
    Ok(stored)
}

/// The same for what must not be done with other settings than those of the directory.
pub(crate) fn read_write_as_set(dir: &Path, terminal: &Terminal) -> Result<Db, Failure> {
    let options = options_for(dir)?;
    let stored = match Db::load_latest_options(dir, &options) {
        Err(e) if e.kind() == ErrorKind::NotFound => options,
        stored => stored?,
    };
    write(dir, stored, terminal)
}

/// Opens for writing. Nobody would see that writes behind damage in a log are dropped, so that is refused unless it is asked for.
fn write(dir: &Path, mut options: Options, terminal: &Terminal) -> Result<Db, Failure> {
    options.db.info_log = false;
    options.db.create_if_missing = false;
    options.db.refuse_log_damage = !terminal.drop_log_damage;
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
