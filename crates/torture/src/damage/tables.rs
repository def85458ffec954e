//! Every bit of every table of the reference database, flipped; the table is read alone.
//!
//! A fraction of the time that a whole database takes, so that no bit is left out where there are
//! only minutes. What the engine makes of a table's error is tried by the other ways.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::{ErrorKind, InternalIterator, Result};
use orogen_engine::filename::FileKind;
use orogen_env::{Access, FileSystem, MemFileSystem};
use orogen_sst::{TableReadOptions, TableReader, TableReaderOptions, Visit};

use super::{Config, Reference};
use crate::guard::{Guard, Outcome, timed};
use crate::report::{Failure, Figure};

/// What must hold, in a few words.
const RULE: &str = "an error, or what was written";

/// Each entry with its internal key, and the range tombstones.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    tombstones: Vec<(Vec<u8>, Vec<u8>, u64)>,
    /// The newest version of each fourth entry's key, as a lookup finds it.
    found: Vec<Option<Vec<u8>>>,
}

/// Flips all bits of all tables of a reference database; of [`Config`] only threads, case and
/// reference count.
///
/// # Panics
/// If the reference database cannot be made.
#[must_use]
pub fn table_bits(config: &Config) -> Figure {
    let reference = Reference::build(config.reference).expect("nothing fails in memory");
    let tables: Vec<(&str, &[u8])> = reference
        .files
        .iter()
        .filter(|f| matches!(f.kind, Some(FileKind::Table(_))))
        .map(|f| (f.name.as_str(), f.bytes.as_slice()))
        .collect();
    let whole: Vec<Content> = tables
        .iter()
        .map(|(_, bytes)| read(bytes, &[]).expect("nothing is damaged yet"))
        .collect();
    let bytes: usize = tables.iter().map(|(_, bytes)| bytes.len()).sum();
    let refused = AtomicU64::new(0);
    let repeat = |n: u64| {
        format!(
            "damage --tables --reference {} --case {n}",
            config.reference
        )
    };
    let first = config.case.unwrap_or(0);
    let end = config.case.map_or(bytes as u64 * 8, |only| only + 1);
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(config.threads, first, 1, repeat, |n| {
            let place = usize::try_from(n).ok().filter(|_| n < end);
            let Some((table, bit)) = place.and_then(|bit| find(&tables, bit)) else {
                return Outcome::NoMore;
            };
            let (name, bytes) = tables[table];
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let what = match read(&damaged, &whole[table].entries) {
                Ok(content) if content == whole[table] => return Outcome::Passed,
                Ok(_) => "wrong answer".to_owned(),
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Corruption
                            | ErrorKind::NotSupported
                            | ErrorKind::InvalidArgument
                    ) =>
                {
                    refused.fetch_add(1, Ordering::Relaxed);
                    return Outcome::Passed;
                }
                Err(e) => format!("the wrong kind of error: {e}"),
            };
            Outcome::Failed(Failure {
                what: format!("{name} bit {bit}: {what}"),
                repeat: repeat(n),
            })
        })
    });
    Figure {
        name: "damage/table-bits".to_owned(),
        rule: RULE,
        count: passed,
        unit: "cases",
        seeds: 1,
        seconds,
        details: vec![
            ("bytes", bytes as f64),
            ("refused", refused.into_inner() as f64),
        ],
        failures,
    }
}

/// The table that has the `bit`-th bit of all, and which of its bits that is.
fn find(tables: &[(&str, &[u8])], mut bit: usize) -> Option<(usize, usize)> {
    for (n, (_, bytes)) in tables.iter().enumerate() {
        if bit < bytes.len() * 8 {
            return Some((n, bit));
        }
        bit -= bytes.len() * 8;
    }
    None
}

/// What a table holds; lookups are those of `entries`, of its own if there are none.
fn read(bytes: &[u8], entries: &[(Vec<u8>, Vec<u8>)]) -> Result<Content> {
    let fs = MemFileSystem::new();
    let path = Path::new("/table");
    fs.create(path)?.append(bytes)?;
    let file = fs.open(path, Access::Random)?;
    let table = TableReader::open(file, bytes.len() as u64, TableReaderOptions::default())?;
    let options = TableReadOptions::default();
    let mut content = Content {
        entries: Vec::new(),
        tombstones: Vec::new(),
        found: Vec::new(),
    };
    let mut iter = table.iter(options);
    iter.seek_to_first();
    while iter.valid() {
        content
            .entries
            .push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status()?;
    for (start, end, seqno) in table.range_tombstones().iter() {
        content
            .tombstones
            .push((start.to_vec(), end.to_vec(), seqno));
    }
    let asked = if entries.is_empty() {
        &content.entries
    } else {
        entries
    };
    for (key, _) in asked.iter().step_by(4) {
        let mut found = None;
        let user_key = &key[..key.len().saturating_sub(8)];
        table.get(&options, user_key, u64::MAX >> 8, &mut |_, value| {
            found = Some(value.bytes().to_vec());
            Visit::Stop
        })?;
        content.found.push(found);
    }
    Ok(content)
}
