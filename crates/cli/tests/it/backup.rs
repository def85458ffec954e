//! `orogen backup`: from making one to restoring it.

use orogen_testkit::TempDir;

use super::{fails, files, json, ok, sample, text};

#[test]
fn backups_are_made_listed_verified_restored_and_purged() {
    let dir = TempDir::new("cli-backup");
    let db = sample(&dir, 1000);
    let backups = text(&dir.path().join("backups")).to_owned();
    fails(3, &["backup", "list", &backups]);
    let first = json(&["backup", "create", &db, &backups]);
    assert_eq!(first["id"], 1);
    assert_eq!(first["bytes_copied"], first["bytes"]);
    let before = ok(&["db", "scan", &db]);
    ok(&["db", "put", &db, "another", "one"]);
    let second = json(&["backup", "create", &db, &backups, "--flush"]);
    assert!(second["bytes_copied"].as_u64() < first["bytes_copied"].as_u64());
    assert!(ok(&["backup", "create", &db, &backups]).starts_with("backup 3: "));
    let listed = json(&["backup", "list", &backups]);
    assert_eq!(listed["backups"].as_array().unwrap().len(), 3);
    assert_eq!(ok(&["backup", "list", &backups]).lines().count(), 4);
    let verified = ok(&["backup", "verify", &backups]);
    assert_eq!(verified.matches("no damage found").count(), 3);
    let again = text(&dir.path().join("again")).to_owned();
    ok(&["backup", "restore", &backups, "1", &again]);
    assert_eq!(ok(&["db", "scan", &again]), before);
    ok(&["db", "check", &again]);
    fails(1, &["backup", "restore", &backups, "1", &again]);
    fails(
        3,
        &[
            "backup",
            "restore",
            &backups,
            "9",
            &again.replace("again", "nine"),
        ],
    );
    ok(&["backup", "delete", &backups, "2"]);
    fails(3, &["backup", "delete", &backups, "2"]);
    let purged = json(&["backup", "purge", &backups, "--keep", "1"]);
    assert_eq!(purged["deleted"][0], 1);
    ok(&["backup", "verify", &backups, "3"]);
    let table = files(&format!("{backups}/shared_checksum"), ".sst").remove(0);
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[10] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let run = fails(4, &["backup", "verify", &backups]);
    assert!(run.out.contains(&table), "{}", run.out);
    let target = again.replace("again", "damaged");
    fails(4, &["backup", "restore", &backups, "3", &target]);
    assert!(!std::path::Path::new(&target).exists());
}

#[test]
fn backups_that_are_looked_at_stay_as_they_are() {
    let dir = TempDir::new("cli-backup-looks");
    let db = sample(&dir, 100);
    let backups = text(&dir.path().join("backups")).to_owned();
    ok(&["backup", "create", &db, &backups]);
    // As a backup that RocksDB is making.
    let being_made = [
        "private/2/000012.log",
        "shared_checksum/000099_sABC_100.sst",
    ];
    for name in being_made {
        let path = dir.path().join("backups").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"1").unwrap();
    }
    ok(&["backup", "list", &backups]);
    ok(&["backup", "verify", &backups]);
    let again = text(&dir.path().join("again")).to_owned();
    ok(&["backup", "restore", &backups, "1", &again]);
    for name in being_made {
        assert!(dir.path().join("backups").join(name).exists(), "{name}");
    }
}
