//! `orogen db create`: a new database, or new families in one that is there.

use std::collections::HashSet;

use orogen::{ColumnFamilyOptions, DEFAULT_COLUMN_FAMILY_NAME, Db, Options, UserComparator};
use orogen_engine::filename;
use serde_json::json;

use crate::failure::{Failure, after_help_of_writer};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db create ./quarry",
    "orogen db create ./quarry --column-family rocks --column-family fossils"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Column families to make beside `default`; with any, the database may be there already.
    #[arg(long, visible_alias = "cf", value_name = "NAME")]
    column_family: Vec<String>,
    /// Keep the keys of the new families in reverse order.
    #[arg(long)]
    reverse: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let path = &args.dir.path;
    let family_options = ColumnFamilyOptions {
        comparator: if args.reverse {
            UserComparator::REVERSE_BYTEWISE
        } else {
            UserComparator::BYTEWISE
        },
        ..ColumnFamilyOptions::default()
    };
    let mut options = Options::default();
    let exists = options.db.fs.exists(&filename::current_path(path))?;
    if exists && args.column_family.is_empty() {
        return Err(Failure::Failed(format!(
            "there is a database in {} already",
            path.display()
        )));
    }
    let mut asked = HashSet::new();
    for name in &args.column_family {
        if name == DEFAULT_COLUMN_FAMILY_NAME || !asked.insert(name) {
            return Err(Failure::Usage(format!(
                "column family '{}' is there, or asked for twice",
                text::escape(name.as_bytes())
            )));
        }
    }
    let db = if exists {
        open::read_write(path, terminal)?
    } else {
        options.db.create_if_missing = true;
        options.db.info_log = false;
        if args.column_family.is_empty() {
            options.cf = family_options.clone();
        }
        Db::open(path, &options)?
    };
    for name in &args.column_family {
        db.create_column_family(name, family_options.clone())?;
    }
    let names: Vec<String> = db
        .column_families()
        .iter()
        .map(|f| f.name().to_owned())
        .collect();
    db.close()?;
    if terminal.json {
        terminal.document(&json!({ "path": path.display().to_string(), "created": !exists, "column_families": names }))?;
    } else {
        terminal.note(&format!(
            "{}: column families {}",
            path.display(),
            text::escape(names.join(", ").as_bytes())
        ));
    }
    Ok(())
}
