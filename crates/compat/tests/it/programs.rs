//! The judges are sound: they pass what RocksDB wrote and find what was changed behind its back.

use orogen_compat::{Case, programs};

use crate::{case, live_tables, scratch, written_by_rocksdb};

/// Copies of a few cases of different shape.
fn copies(test: &str) -> Vec<Case> {
    let dir = scratch(test);
    [
        "log-and-tables",
        "index-filter-partitioned",
        "families",
        "merge-stringappend",
        "reverse",
    ]
    .iter()
    .map(|name| case(name).copy(&dir.join(name)).unwrap())
    .collect()
}

#[test]
fn every_kind_of_directory_is_there() {
    let cases = written_by_rocksdb();
    assert!(cases.len() >= 70, "{} cases", cases.len());
    let families = cases
        .iter()
        .flat_map(|c| c.families().into_iter().map(move |f| (c, f)));
    let pairs: usize = families.map(|(c, f)| c.expected(f).unwrap().len()).sum();
    assert!(pairs > 30_000, "{pairs} pairs");
}

#[test]
fn rocksdb_passes_and_writes_on_what_it_wrote() {
    let cases = copies("passes");
    let before: Vec<_> = cases
        .iter()
        .map(|c| c.expected("default").unwrap())
        .collect();
    programs::judge(&cases).unwrap();
    programs::judge_and_write(&cases).unwrap();
    programs::judge(&cases).unwrap();
    for (case, before) in cases.iter().zip(before) {
        assert_ne!(case.expected("default").unwrap(), before, "{}", case.name());
    }
}

#[test]
fn a_changed_value_a_missing_pair_and_a_flipped_byte_are_found() {
    let dir = scratch("damaged");
    let mut changed = case("codec-lz4").copy(&dir.join("changed")).unwrap();
    let mut pairs = changed.expected("default").unwrap();
    pairs[7].1.push(b'!');
    changed.expect("default", &pairs).unwrap();

    let mut missing = case("log-only").copy(&dir.join("missing")).unwrap();
    let mut pairs = missing.expected("default").unwrap();
    pairs.pop();
    missing.expect("default", &pairs).unwrap();

    let flip = |name: &str, into: Option<&str>| {
        let flipped = case("filter-bloom").copy(&dir.join(name)).unwrap();
        let number = live_tables(&flipped).into_iter().min().unwrap();
        let table = format!("{number:06}.sst");
        let mut bytes = std::fs::read(flipped.db().join(&table)).unwrap();
        bytes[300] ^= 0x10;
        std::fs::write(flipped.db().join(into.unwrap_or(&table)), bytes).unwrap();
        flipped
    };
    let flipped = flip("flipped", None);
    // No version has it and no scan reads it: only who verifies every table sees it.
    let flipped_apart = flip("flipped-apart", Some("900000.sst"));

    for damaged in [changed, missing, flipped, flipped_apart] {
        let name = damaged.dir().to_path_buf();
        assert!(programs::judge(&[damaged]).is_err(), "{}", name.display());
    }
}
