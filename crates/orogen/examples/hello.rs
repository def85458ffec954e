//! Opens a database, writes, reads, and takes a snapshot.
//!
//! `cargo run --example hello -- some/directory`

use std::path::PathBuf;

use orogen::{Db, Options, ReadOptions, Result, WriteBatch, WriteOptions};

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<()> {
    let dir = std::env::args_os()
        .nth(1)
        .map_or_else(|| std::env::temp_dir().join("orogen-hello"), PathBuf::from);
    let mut options = Options::default();
    options.db.create_if_missing = true;
    let db = Db::open(&dir, &options)?;
    let family = db.default_column_family();

    db.put(b"sea", b"Tethys")?;
    let before = db.snapshot();

    // With sync the write survives a power loss, too.
    let mut batch = WriteBatch::new();
    batch.put(0, b"sea", b"Panthalassa");
    batch.put(0, b"land", b"Pangaea");
    db.write_opt(
        &WriteOptions {
            sync: true,
            ..WriteOptions::default()
        },
        &mut batch,
    )?;

    let show = |value: Option<orogen::PinnedValue>| match value {
        Some(value) => String::from_utf8_lossy(&value).into_owned(),
        None => "nothing".to_owned(),
    };
    println!(
        "now:    sea = {}, land = {}",
        show(db.get(b"sea")?),
        show(db.get(b"land")?)
    );
    let then = ReadOptions {
        snapshot: Some(before),
        ..ReadOptions::default()
    };
    println!(
        "before: sea = {}, land = {}",
        show(db.get_opt(&then, &family, b"sea")?),
        show(db.get_opt(&then, &family, b"land")?)
    );
    db.close()?;
    println!("the database is in {}", dir.display());
    Ok(())
}
