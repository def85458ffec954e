//! Keeps records in one family and an index of them in another, in step through batches.
//!
//! `cargo run --example column_families -- some/directory`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use orogen::{
    ColumnFamilyOptions, Db, DbOptions, Options, ReadOptions, Result, UInt64Add, WriteBatch,
};

const ROCKS: [(&str, &str); 5] = [
    ("basalt", "igneous"),
    ("gneiss", "metamorphic"),
    ("granite", "igneous"),
    ("limestone", "sedimentary"),
    ("marble", "metamorphic"),
];

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).map_or_else(
        || std::env::temp_dir().join("orogen-column-families"),
        PathBuf::from,
    );
    Db::destroy(&dir, &Options::default())?;
    let counters = ColumnFamilyOptions {
        merge_operator: Some(Arc::new(UInt64Add)),
        ..ColumnFamilyOptions::default()
    };
    let db = Db::open(
        &dir,
        &Options {
            db: DbOptions {
                create_if_missing: true,
                create_missing_column_families: true,
                ..DbOptions::default()
            },
            families: BTreeMap::from([
                ("rocks".to_owned(), ColumnFamilyOptions::default()),
                ("by-kind".to_owned(), ColumnFamilyOptions::default()),
                ("kinds".to_owned(), counters),
            ]),
            ..Options::default()
        },
    )?;
    let family = |name: &str| db.column_family(name).expect("it was made at open");
    let (rocks, by_kind, kinds) = (family("rocks"), family("by-kind"), family("kinds"));

    for (rock, kind) in ROCKS {
        // Record, index entry and counter change together or not at all.
        let mut batch = WriteBatch::new();
        batch.put(rocks.id(), rock.as_bytes(), kind.as_bytes());
        batch.put(by_kind.id(), format!("{kind}\0{rock}").as_bytes(), b"");
        batch.merge(kinds.id(), kind.as_bytes(), &1u64.to_le_bytes());
        db.write(batch)?;
    }

    let mut iter = db.iter(&ReadOptions::default(), &kinds)?;
    iter.seek_to_first();
    while iter.valid() {
        let kind = String::from_utf8_lossy(iter.key()).into_owned();
        let count = iter
            .value()
            .first_chunk()
            .map_or(0, |b| u64::from_le_bytes(*b));
        println!("{kind}: {count}");
        let prefix = format!("{kind}\0");
        let mut index = db.iter(&ReadOptions::default(), &by_kind)?;
        index.seek(prefix.as_bytes());
        while index.valid() && index.key().starts_with(prefix.as_bytes()) {
            println!(
                "  {}",
                String::from_utf8_lossy(&index.key()[prefix.len()..])
            );
            index.next();
        }
        index.status()?;
        iter.next();
    }
    iter.status()?;
    db.close()
}
