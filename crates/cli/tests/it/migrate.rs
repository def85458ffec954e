//! `orogen db migrate`, on directories that Titan wrote.

use std::path::Path;

use orogen_testkit::TempDir;

use super::{fails, json, ok, text};

fn source(name: &str) -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    text(&here.join("../../testdata/titan").join(name)).to_owned()
}

fn copy(name: &str, dir: &TempDir) -> String {
    let to = dir.path().join(name);
    for part in ["titandb", ""] {
        std::fs::create_dir_all(to.join(part)).expect("makes a directory");
        for entry in std::fs::read_dir(Path::new(&source(name)).join(part)).expect("is there") {
            let path = entry.expect("can be listed").path();
            if path.is_file() {
                let file = path.file_name().expect("has a name");
                std::fs::copy(&path, to.join(part).join(file)).expect("copies");
            }
        }
    }
    text(&to).to_owned()
}

#[test]
fn a_directory_of_titan_becomes_one_of_ours() {
    let dir = TempDir::new("cli-migrate");
    let from = source("dictionary");
    let to = text(&dir.path().join("moved")).to_owned();
    let migrate = ["db", "migrate", "--from", "titan", &from, &to];
    let mut dry = migrate.to_vec();
    dry.push("--dry-run");
    let told = json(&dry);
    assert!(told["made"].is_null() && told["bytes_needed"].as_u64() > Some(10_000));
    let names: Vec<&str> = told["column_families"]
        .as_array()
        .expect("is a list")
        .iter()
        .map(|f| f["name"].as_str().expect("has a name"))
        .collect();
    assert_eq!(names, ["default", "plain", "dict"]);
    assert!(ok(&dry).contains("becomes      merged"));
    assert!(!Path::new(&to).exists());

    let mut with = migrate.to_vec();
    with.extend([
        "--min-blob-size",
        "200",
        "--compression",
        "lz4",
        "--threads",
        "3",
    ]);
    let done = json(&with);
    assert!(done["made"]["blob_files"].as_u64() > Some(0), "{done}");
    let family = &done["column_families"][0];
    assert_eq!(family["blob_compression"], "kLZ4Compression");
    assert!(family["values"].as_u64() > Some(10), "{done}");
    ok(&["db", "check", &to]);
    ok(&["blob", "check", &to]);
    let wanted = std::fs::read_to_string(format!("{from}/contents.txt")).expect("is there");
    for name in names {
        let scan = json(&["db", "scan", &to, "--column-family", name]);
        let prefix = format!("{name} ");
        let lines: Vec<&str> = wanted.lines().filter(|l| l.starts_with(&prefix)).collect();
        let found = scan["entries"].as_array().or(scan.as_array());
        let found = found.expect("is a list");
        assert_eq!(found.len(), lines.len());
        for (pair, line) in found.iter().zip(lines) {
            let value = pair["value"].as_str().expect("is text");
            let key = pair["key"].as_str().expect("is text");
            let told = format!("{name} {key} {} ", value.len());
            assert!(line.starts_with(&told), "{line}: {told}");
        }
    }

    // What is there is not written over.
    fails(1, &migrate);
    fails(2, &["db", "migrate", &from, &to]);
    let nowhere = text(&dir.path().join("nowhere")).to_owned();
    fails(3, &["db", "migrate", "--from", "titan", &nowhere, &to]);
    // One of ours is none of Titan's.
    let again = text(&dir.path().join("again")).to_owned();
    let run = fails(1, &["db", "migrate", "--from", "titan", &to, &again]);
    assert!(run.err.contains("titandb"), "{}", run.err);
}

#[test]
fn damaged_values_stop_it_or_are_told_by_key() {
    let dir = TempDir::new("cli-migrate-damage");
    let from = copy("version-1", &dir);
    let blob = std::fs::read_dir(format!("{from}/titandb"))
        .expect("is there")
        .map(|e| e.expect("can be listed").path())
        .filter(|p| p.extension().is_some_and(|e| e == "blob"))
        .max()
        .expect("has blob files");
    let mut bytes = std::fs::read(&blob).expect("is a file");
    let records = 20..bytes.len() - 40;
    for at in records.step_by(90) {
        bytes[at] ^= 1;
    }
    std::fs::write(&blob, bytes).expect("writes");
    let to = text(&dir.path().join("moved")).to_owned();
    let migrate = ["db", "migrate", "--from", "titan", &from, &to, "--inline"];
    let run = fails(4, &migrate);
    assert!(
        run.err.contains("checksum") && run.err.contains("offset="),
        "{}",
        run.err
    );
    assert!(!Path::new(&to).exists());
    let mut skip = migrate.to_vec();
    skip.extend(["--skip-damaged", "--json"]);
    let run = fails(4, &skip);
    let told: serde_json::Value = serde_json::from_str(&run.out).expect("is a document");
    let lost = told["values_lost"].as_array().expect("is a list");
    assert!(!lost.is_empty() && told["values_lost_count"] == lost.len());
    for value in lost {
        fails(
            3,
            &["db", "get", &to, value["key"].as_str().expect("is text")],
        );
    }
    ok(&["db", "check", &to]);
}

#[test]
fn what_is_whole_and_not_read_here_is_no_damage() {
    let dir = TempDir::new("cli-titan-check");
    let from = copy("version-3", &dir);
    let run = fails(8, &["db", "check", &from]);
    assert!(!run.out.contains("damaged: "), "{}", run.out);
    let run = fails(8, &["wal", "dump", &format!("{from}/000032.log")]);
    assert!(run.err.contains("not supported"), "{}", run.err);
}
