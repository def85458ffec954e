//! Reads of the loaded database: packages by name, lists by prefix, times, the tree.

use std::collections::HashMap;

use orogen::{ColumnFamily, Db, ReadOptions};
use orogen_env::{Clock as _, SystemClock};
use serde_json::{Value, json};

use super::control::Records;
use super::index::{self, BY_REVERSE_DEPENDENCY, BY_SECTION, FAMILIES, PACKAGES};
use super::load;
use super::story::Story;
use crate::db::scan::prefix_end;
use crate::db::tree::{self, Style};
use crate::failure::Failure;
use crate::text;

/// What reads took.
pub(super) struct Reads {
    pub(super) micros_per_get: f64,
    pub(super) scanned_per_sec: u64,
}

/// Packages that most systems know.
const WELL_KNOWN: [&str; 6] = ["bash", "coreutils", "git", "libc6", "python3", "vim"];
/// Entries of a list that are shown.
const SHOWN: usize = 10;
/// Reads that are timed.
const TIMED_READS: usize = 20_000;

pub(super) fn run(story: &mut Story<'_>, db: &Db, records: &Records<'_>) -> Result<Reads, Failure> {
    let families = load::families(db)?;
    story.heading("Packages by name")?;
    let found = point_reads(story, db, &families[PACKAGES], records)?;
    let section = favourite(
        records
            .list
            .iter()
            .map(|r| r.section)
            .filter(|s| !s.is_empty()),
        b"shells",
    );
    let in_section = list(story, db, &families[BY_SECTION], "in section", &section)?;
    let dependency = favourite(
        records
            .list
            .iter()
            .flat_map(|r| r.relations.iter().map(|n| n.package)),
        b"libc6",
    );
    let reverse = &families[BY_REVERSE_DEPENDENCY];
    let dependent = list(story, db, reverse, "that need or recommend", &dependency)?;
    let reads = timings(story, db, &families, records)?;
    story.heading("The tree")?;
    let style = Style {
        unicode: story.terminal.unicode,
        files: false,
        empty: false,
    };
    for line in tree::draw(db, story.terminal, &style) {
        story.say(&line)?;
    }
    story.fact(
        "reads",
        json!({
            "packages": found,
            "section": { "name": text::escape(&section), "packages": in_section },
            "dependency": { "name": text::escape(&dependency), "packages": dependent },
            "micros_per_get": reads.micros_per_get,
            "scanned_per_sec": reads.scanned_per_sec,
        }),
    );
    Ok(reads)
}

/// `wanted` if it occurs, else what occurs most often.
fn favourite<'a>(words: impl Iterator<Item = &'a [u8]>, wanted: &[u8]) -> Vec<u8> {
    let mut counts: HashMap<&[u8], u64> = HashMap::new();
    words.for_each(|w| *counts.entry(w).or_default() += 1);
    if counts.contains_key(wanted) {
        return wanted.to_vec();
    }
    let most = counts
        .into_iter()
        .max_by(|a, b| a.1.cmp(&b.1).then(b.0.cmp(a.0)));
    most.map_or_else(|| b"none".to_vec(), |(w, _)| w.to_vec())
}

fn prefix_options(prefix: &[u8]) -> ReadOptions {
    ReadOptions {
        iterate_lower_bound: Some(prefix.to_vec()),
        iterate_upper_bound: prefix_end(prefix),
        ..ReadOptions::default()
    }
}

fn point_reads(
    story: &mut Story<'_>,
    db: &Db,
    packages: &ColumnFamily,
    records: &Records<'_>,
) -> Result<Vec<Value>, Failure> {
    let known = WELL_KNOWN.iter().map(|n| n.as_bytes());
    let mut names: Vec<&[u8]> = known
        .filter(|n| records.list.iter().any(|r| r.package == *n))
        .collect();
    if names.is_empty() {
        names.extend(records.list.iter().take(3).map(|r| r.package));
    }
    let mut found = Vec::new();
    for name in names {
        // The version is not known: the first key with the name is looked up.
        let mut prefix = name.to_vec();
        prefix.push(0);
        let mut iter = db.iter(&prefix_options(&prefix), packages)?;
        iter.seek_to_first();
        if !iter.valid() {
            iter.status()?;
            let name = text::escape(name);
            return Err(Failure::Damaged(format!(
                "package {name} was loaded and is not there"
            )));
        }
        let value = db.get_opt(&ReadOptions::default(), packages, iter.key())?;
        let bytes = value.as_deref().unwrap_or_default();
        let parsed = Records::parse(bytes);
        let Some(record) = parsed.list.first() else {
            return Err(Failure::Damaged(
                "a value is not the record that was loaded".to_owned(),
            ));
        };
        let (name, version) = (text::escape(name), text::escape(record.version));
        let summary = text::escape(record.summary);
        story.say(&format!(
            "  {name:<12} {:<26} {:>10}  {}",
            text::shorten(&version, 26),
            record.size_bytes.map_or_else(|| "-".to_owned(), text::size),
            text::shorten(&summary, 60)
        ))?;
        found.push(json!({
            "package": name,
            "version": version,
            "bytes": record.size_bytes,
            "summary": summary,
        }));
    }
    Ok(found)
}

/// Lists what stands under a word of an index; gives how much.
fn list(
    story: &mut Story<'_>,
    db: &Db,
    family: &ColumnFamily,
    what: &str,
    word: &[u8],
) -> Result<u64, Failure> {
    let mut prefix = word.to_vec();
    prefix.push(0);
    let mut iter = db.iter(&prefix_options(&prefix), family)?;
    let mut shown = Vec::new();
    let mut count = 0;
    iter.seek_to_first();
    while iter.valid() {
        if shown.len() < SHOWN {
            let package = iter.key()[prefix.len()..].split(|b| *b == 0).next();
            shown.push(text::escape(package.unwrap_or_default()));
        }
        count += 1;
        iter.next();
    }
    iter.status()?;
    let word = text::escape(word);
    story.heading(&format!("Packages {what} {word}: {}", text::count(count)))?;
    let more = if count > SHOWN as u64 { ", ..." } else { "" };
    story.say(&format!("  {}{more}", shown.join(", ")))?;
    Ok(count)
}

fn timings(
    story: &mut Story<'_>,
    db: &Db,
    families: &[ColumnFamily],
    records: &Records<'_>,
) -> Result<Reads, Failure> {
    // A step that shares no factor with most counts visits records as if at random.
    let n = records.list.len();
    let keys: Vec<Vec<u8>> = (0..TIMED_READS.min(n * 10))
        .map(|i| index::package_key(&records.list[i.wrapping_mul(7_368_787) % n]))
        .collect();
    let options = ReadOptions::default();
    let start = SystemClock.now_micros();
    let mut bytes = 0u64;
    for key in &keys {
        match db.get_opt(&options, &families[PACKAGES], key)? {
            Some(value) => bytes += value.len() as u64,
            None => {
                return Err(Failure::Damaged(format!(
                    "{} is missing",
                    text::escape(key)
                )));
            }
        }
    }
    let micros_per_get = (SystemClock.now_micros() - start) as f64 / keys.len() as f64;
    let start = SystemClock.now_micros();
    let mut scanned = 0u64;
    for family in &families[BY_SECTION..] {
        let mut iter = db.iter(&options, family)?;
        iter.seek_to_first();
        while iter.valid() {
            scanned += 1;
            iter.next();
        }
        iter.status()?;
    }
    let micros = (SystemClock.now_micros() - start).max(1);
    let reads = Reads {
        micros_per_get,
        scanned_per_sec: (scanned as f64 / micros as f64 * 1e6) as u64,
    };
    story.heading("Times")?;
    story.say(&format!(
        "  {} reads of packages here and there: {micros_per_get:.2} us each, {} in all",
        text::count(keys.len() as u64),
        text::size(bytes)
    ))?;
    story.say(&format!(
        "  {} entries of {} and {} listed: {} entries/s",
        text::count(scanned),
        FAMILIES[BY_SECTION],
        FAMILIES[BY_REVERSE_DEPENDENCY],
        text::count(reads.scanned_per_sec)
    ))?;
    Ok(reads)
}
