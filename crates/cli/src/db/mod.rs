//! `orogen db`: a database directory.

mod create;
mod point;
pub(crate) mod scan;
mod stats;
mod check;
mod compact;
mod checkpoint;
mod prepared;
mod locks;
mod ranges;
mod updates;
mod repair;
mod migrate;
pub(crate) mod tree;

use clap::Subcommand;

use crate::failure::Failure;
use crate::terminal::Terminal;

/// Commands on a directory.
#[derive(Subcommand)]
pub(crate) enum DbCommand {
    /// Make a database, or column families in one.
    Create(create::Args),
    /// Set a key.
    Put(point::PutArgs),
    /// Print the value of a key.
    Get(point::GetArgs),
    /// Delete a key.
    Delete(point::DeleteArgs),
    /// Print keys and values in order.
    Scan(scan::Args),
    /// Print how large it is and how it does.
    Stats(stats::Args),
    /// Read everything and verify it.
    Check(check::Args),
    /// Rewrite it without what nobody can see any more.
    Compact(compact::Args),
    /// Print about how many bytes a range of keys takes.
    Sizes(ranges::SizesArgs),
    /// Drop tables inside a range of keys, without reading them: to free space.
    DeleteFiles(ranges::DeleteFilesArgs),
    /// Print the writes that are still in the logs.
    Updates(updates::Args),
    /// Make a new database of what can be read of a damaged one.
    Repair(repair::Args),
    /// Make a database of what another engine wrote.
    Migrate(migrate::Args),
    /// Make a second database with the same content.
    Checkpoint(checkpoint::Args),
    /// List writes that are prepared, and commit or roll back one.
    Prepared(prepared::Args),
    /// Print the keys and ranges that prepared writes keep locked.
    Locks(locks::Args),
    /// Draw its levels and files.
    Tree(tree::Args),
}

pub(crate) fn run(command: DbCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        DbCommand::Create(args) => create::run(&args, terminal),
        DbCommand::Put(args) => point::put(&args, terminal),
        DbCommand::Get(args) => point::get(&args, terminal),
        DbCommand::Delete(args) => point::delete(&args, terminal),
        DbCommand::Scan(args) => scan::run(&args, terminal),
        DbCommand::Stats(args) => stats::run(&args, terminal),
        DbCommand::Check(args) => check::run(&args, terminal),
        DbCommand::Compact(args) => compact::run(&args, terminal),
        DbCommand::Sizes(args) => ranges::sizes(&args, terminal),
        DbCommand::DeleteFiles(args) => ranges::delete_files(&args, terminal),
        DbCommand::Updates(args) => updates::run(&args, terminal),
        DbCommand::Repair(args) => repair::run(&args, terminal),
        DbCommand::Migrate(args) => migrate::run(&args, terminal),
        DbCommand::Checkpoint(args) => checkpoint::run(&args, terminal),
        DbCommand::Prepared(args) => prepared::run(&args, terminal),
        DbCommand::Locks(args) => locks::run(&args, terminal),
        DbCommand::Tree(args) => tree::run(&args, terminal),
    }
}
