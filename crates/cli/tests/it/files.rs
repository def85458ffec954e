//! `orogen sst`, `wal` and `manifest`: single files.

use std::process::Command;

use orogen_testkit::TempDir;

use super::{fails, files, json, ok, sample, table};

#[test]
fn a_tables_dump_has_properties_blocks_and_entries() {
    let dir = TempDir::new("cli-sst");
    let db = sample(&dir, 1000);
    let file = table(&db);
    let plain = ok(&["sst", "dump", &file]);
    assert!(
        plain.contains("rocksdb.num.entries") && !plain.contains("Entries\n"),
        "{plain}"
    );
    let full = json(&["sst", "dump", &file, "--blocks", "--entries"]);
    assert_eq!(full["properties"]["rocksdb.num.entries"], 501);
    assert_eq!(
        full["properties"]["rocksdb.comparator"],
        "leveldb.BytewiseComparator"
    );
    let entries = full["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 501);
    assert_eq!(entries[3]["key"], "key000003");
    assert_eq!(entries[3]["value"], "value 3");
    assert_eq!(entries[3]["kind"], "Value");
    let blocks = full["blocks"].as_array().unwrap();
    assert!(blocks.iter().any(|b| b["kind"] == "Properties"));
    let data = blocks.iter().filter(|b| b["kind"] == "Data").count() as u64;
    assert_eq!(full["properties"]["rocksdb.num.data.blocks"], data);
    let text = ok(&[
        "sst",
        "dump",
        &file,
        "--blocks",
        "--entries",
        "--limit",
        "2",
    ]);
    assert!(
        text.contains("key000001 @") && !text.contains("key000002 @"),
        "{text}"
    );
    let check = json(&["sst", "check", &file]);
    assert_eq!(
        (&check["entries"], &check["blocks"]),
        (&501.into(), &blocks.len().into())
    );
    assert!(ok(&["sst", "check", &file]).contains("no damage found"));
    fails(3, &["sst", "dump", "nowhere.sst"]);
}

#[test]
fn a_database_of_more_files_than_the_shell_allows_opens() {
    let dir = TempDir::new("cli-many");
    let path = dir.path().join("db");
    let mut options = orogen::Options::default();
    options.db.create_if_missing = true;
    options.cf.disable_auto_compactions = true;
    let db = orogen::Db::open(&path, &options).unwrap();
    for n in 0..60 {
        db.put(format!("key{n:03}").as_bytes(), b"value").unwrap();
        db.flush().unwrap();
    }
    db.close().unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -S -n 40; exec \"$0\" db scan \"$1\""])
        .arg(env!("CARGO_BIN_EXE_orogen"))
        .arg(&path);
    let output = shell.output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text.lines().count(), 60);
}

#[test]
fn a_logs_dump_lists_records_and_operations() {
    let dir = TempDir::new("cli-wal");
    let db = sample(&dir, 100);
    let log = files(&db, ".log").pop().unwrap();
    let records = json(&["wal", "dump", &log]);
    let records = records.as_array().unwrap();
    // The first one is the link to the log before.
    assert_eq!(records.len(), 50);
    assert_eq!(
        (&records[0]["offset"], &records[0]["count"]),
        (&0.into(), &0.into())
    );
    assert_eq!(records[0]["operations"][0]["operation"], "log_data");
    assert_eq!(
        (&records[1]["sequence_number"], &records[1]["count"]),
        (&103.into(), &2.into())
    );
    let put = &records[1]["operations"][1];
    assert_eq!(
        (&put["operation"], &put["column_family"]),
        (&"put".into(), &1.into())
    );
    assert_eq!(put["key"], "rock000051");
    let text = ok(&["wal", "dump", &log, "--limit", "2"]);
    assert!(
        text.contains("sequence 103 count 2") && text.contains("put cf=0 key000051"),
        "{text}"
    );
    assert_eq!(
        ok(&["wal", "dump", &log, "--records-only"]).lines().count(),
        50
    );
    fails(2, &["wal", "dump", "mislabelled"]);
    fails(3, &["wal", "dump", "000001.log"]);
}

#[test]
fn a_manifests_dump_lists_edits() {
    let dir = TempDir::new("cli-edits");
    let db = sample(&dir, 100);
    let edits = json(&["manifest", "dump", &db]);
    let edits = edits.as_array().unwrap();
    assert!(
        edits.iter().any(|e| e["column_family_add"] == "rocks"),
        "{edits:?}"
    );
    let files: Vec<_> = edits
        .iter()
        .flat_map(|e| e["new_files"].as_array().unwrap().iter())
        .collect();
    assert!(
        files
            .iter()
            .any(|f| f["smallest"] == "key000000" && f["largest"] == "key000050")
    );
    let text = ok(&["manifest", "dump", &db]);
    assert!(
        text.contains("+ L0 ") && text.contains("column_family_add=rocks"),
        "{text}"
    );
    fails(3, &["manifest", "dump", dir.path().to_str().unwrap()]);
}

#[test]
fn a_tables_dump_has_its_range_deletions() {
    let here = env!("CARGO_MANIFEST_DIR");
    let file = format!("{here}/../../testdata/sst/range_tombstones.sst");
    let told = json(&["sst", "dump", &file, "--entries"]);
    let entries = told["entries"].as_array().expect("a list");
    let deletions = entries.iter().filter(|e| e["kind"] == "RangeDeletion");
    assert!(deletions.clone().all(|e| e["end"].is_string()));
    assert_eq!(entries.len() - deletions.count(), 54);
    assert!(entries.len() > 54);
    let few = json(&["sst", "dump", &file, "--entries", "--limit", "54"]);
    assert_eq!(few["entries"].as_array().map(Vec::len), Some(54));
    assert!(ok(&["sst", "dump", &file, "--entries"]).contains(" RangeDeletion\t"));
}

#[test]
fn a_file_without_an_edit_is_no_manifest() {
    let dir = TempDir::new("cli-no-manifest");
    let file = dir.path().join("MANIFEST-000001");
    std::fs::write(&file, b"some text").expect("it can be written");
    fails(4, &["manifest", "dump", super::text(&file)]);
}

#[test]
fn a_table_of_another_kind_is_told_as_that() {
    let dir = TempDir::new("cli-plain-table");
    let file = dir.path().join("000001.sst");
    let mut bytes = vec![7; 200];
    bytes.extend(0x8242_2296_63bf_9564_u64.to_le_bytes());
    std::fs::write(&file, bytes).expect("it can be written");
    let run = fails(8, &["sst", "dump", super::text(&file)]);
    assert!(run.err.contains("plain table"), "{}", run.err);
    assert!(!run.err.contains("order"), "{}", run.err);
}
