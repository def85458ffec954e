//! Directories that Titan itself wrote: what it read from them arrives.
//!
//! `testdata/README.md` tells how each was made, `contents.txt` what Titan's iterator gave.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use orogen_base::checksum::crc32c;
use orogen_engine::migrate::{Phase, TitanOptions, TitanReport, examine_titan, migrate_titan};
use orogen_engine::{Db, Options};
use orogen_testkit::TempDir;

use crate::titan::content;

const NAMES: [&str; 4] = ["version-1", "dictionary", "version-3", "padded"];

fn source(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../../testdata/titan").join(name)
}

/// Length and checksum of each value, by family and key.
type Digests = BTreeMap<(String, String), (usize, u32)>;

fn wanted(name: &str) -> Digests {
    let text = std::fs::read_to_string(source(name).join("contents.txt")).expect("is there");
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [family, key, len, crc] = words[..] else {
                panic!("{line}")
            };
            let digest = (
                len.parse().expect("a number"),
                u32::from_str_radix(crc, 16).expect("a checksum"),
            );
            ((family.to_owned(), key.to_owned()), digest)
        })
        .collect()
}

fn found(db: &Db) -> Digests {
    let mut found = Digests::new();
    for (family, pairs) in content(db) {
        for (key, value) in pairs {
            let key = String::from_utf8(key).expect("is text");
            found.insert((family.clone(), key), (value.len(), crc32c(&value)));
        }
    }
    found
}

fn go(_: Phase, _: u64, _: u64) -> bool {
    true
}

fn migrate(from: &Path, to: &Path, titan: &TitanOptions) -> TitanReport {
    migrate_titan(from, to, &quiet(), titan, &go).unwrap_or_else(|e| panic!("{e}"))
}

fn quiet() -> Options {
    let mut options = Options::default();
    options.db.info_log = false;
    options
}

#[test]
fn what_titan_read_arrives() {
    for name in NAMES {
        let want = wanted(name);
        let dir = TempDir::new("titan-golden");
        for (n, min_blob_size) in [Some(128), None].into_iter().enumerate() {
            let titan = TitanOptions {
                min_blob_size,
                threads: n + 1,
                ..TitanOptions::default()
            };
            let to = dir.path().join(format!("new-{n}"));
            let report = migrate(&source(name), &to, &titan);
            let large = want
                .iter()
                .filter(|((family, _), (len, _))| family != "plain" && *len >= 128)
                .count() as u64;
            let values: u64 = report.families.iter().map(|f| f.values).sum();
            // Those that were in the log are not in blob files yet.
            assert!(values > 0 && values < large, "{name}: {values} of {large}");
            let merged: BTreeSet<&str> = report
                .families
                .iter()
                .filter(|f| f.is_merged)
                .map(|f| f.name.as_str())
                .collect();
            assert!(!merged.contains("plain") && merged.contains("default"));
            assert!(report.files_not_live.is_empty());
            let db = Db::open(&to, &quiet()).expect("opens");
            assert!(found(&db) == want, "{name}");
            db.verify_checksums().expect("is whole");
            let blobs = db.live_blob_files().len();
            assert_eq!(blobs > 0, min_blob_size.is_some());
            db.close().expect("closes");
        }
    }
}

/// Bytes that Titan takes no checksum of, nor looks at, and those of a file's end that say where
/// its blocks are.
#[test]
fn a_changed_byte_of_a_blob_file_is_told_or_costs_nothing() {
    let name = "dictionary";
    let want = wanted(name);
    let dir = TempDir::new("titan-golden-damage");
    let copy = dir.path().join("copy");
    std::fs::create_dir_all(copy.join("titandb")).expect("makes a directory");
    for part in ["", "titandb"] {
        for entry in std::fs::read_dir(source(name).join(part)).expect("is a directory") {
            let path = entry.expect("can be listed").path();
            let file = path.file_name().expect("has a name");
            if path.is_file() {
                std::fs::copy(&path, copy.join(part).join(file)).expect("copies");
            }
        }
    }
    let titan = TitanOptions {
        skip_damaged: true,
        ..TitanOptions::default()
    };
    let mut blobs: Vec<PathBuf> = std::fs::read_dir(copy.join("titandb"))
        .expect("is a directory")
        .map(|e| e.expect("can be listed").path())
        .filter(|p| p.extension().is_some_and(|e| e == "blob"))
        .collect();
    blobs.sort();
    let mut lost_in_all = 0;
    for blob in &blobs {
        let whole = std::fs::read(blob).expect("is a file");
        for at in (0..whole.len())
            .step_by(whole.len() / 7 + 1)
            .chain([4, 9, whole.len() - 3])
        {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            std::fs::write(blob, &bytes).expect("writes");
            let to = dir.path().join("new");
            let report = match migrate_titan(&copy, &to, &quiet(), &titan, &go) {
                Ok(report) => report,
                // A version or a flag that may come one day.
                Err(e) => {
                    assert!(at < 12 && !to.exists(), "{}: {e}", blob.display());
                    let told = examine_titan(&copy, &quiet(), &titan, &go);
                    assert_eq!(told.err().map(|t| t.kind()), Some(e.kind()));
                    continue;
                }
            };
            let mut want = want.clone();
            for lost in &report.values_lost {
                let key = String::from_utf8(lost.key.clone()).expect("is text");
                let was = want.remove(&(lost.column_family.clone(), key));
                assert!(was.is_some(), "only what a reader sees is lost");
            }
            lost_in_all += report.values_lost_count;
            let db = Db::open(&to, &quiet()).expect("opens");
            assert!(found(&db) == want, "{} at {at}", blob.display());
            db.close().expect("closes");
            std::fs::remove_dir_all(&to).expect("removes");
        }
        std::fs::write(blob, &whole).expect("writes");
    }
    assert!(lost_in_all > 10, "{lost_in_all}");
}
