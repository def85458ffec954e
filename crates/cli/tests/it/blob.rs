//! `orogen blob`: files of large values, listed, printed and checked.

use std::path::Path;

use orogen::FileSystem;
use orogen_engine::filename;
use orogen_engine::version::{BlobFileGarbage, VersionEdit, manifest};
use orogen_env::{Access, PosixFileSystem};
use orogen_testkit::TempDir;
use orogen_wal::{ReadOutcome, Reader, Writer};

use super::{fails, files, json, ok, sample, text};

/// Forty large values of which ten were replaced, so that one blob file has garbage, and some
/// small ones.
fn with_blobs(dir: &TempDir) -> String {
    let path = text(&dir.path().join("blobs")).to_owned();
    let mut options = orogen::Options::default();
    options.db.create_if_missing = true;
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 1000;
    let db = orogen::Db::open(&path, &options).expect("opens");
    let family = db.default_column_family();
    for (from, to, byte) in [(0, 40, b'a'), (10, 20, b'b')] {
        for n in from..to {
            let key = format!("key{n:03}");
            db.put(key.as_bytes(), &[byte; 5000]).expect("writes");
            db.put(format!("small{n:03}").as_bytes(), b"small")
                .expect("writes");
        }
        db.flush().expect("flushes");
    }
    db.compact_range(&orogen::CompactRangeOptions::default(), &family, None, None)
        .expect("compacts");
    db.close().expect("closes");
    path
}

/// Bytes of a record.
const RECORD: u64 = 32 + 6 + 5000;

#[test]
fn collections_bring_space_back() {
    let dir = TempDir::new("cli-collect-large");
    let db = with_blobs(&dir);
    let before = json(&["blob", "list", &db]);
    let garbage = before["total"]["garbage_bytes"].clone();
    assert_eq!(garbage, 10 * RECORD);
    // Too little garbage for what is asked by default: it is given up where it is, and a few bytes are left.
    let told = json(&["blob", "gc", &db]);
    assert_eq!(told["after"]["garbage_bytes"], garbage);
    let told = json(&["blob", "gc", &db, "--discardable-ratio", "0.02"]);
    assert_eq!(told["before"]["garbage_bytes"], garbage);
    assert_eq!(told["after"]["garbage_bytes"], 0);
    assert_eq!(told["after"]["live_bytes"], 40 * RECORD);
    assert!(ok(&["blob", "gc", &db, "--merge-small"]).contains("after:"));
    assert_eq!(json(&["blob", "list", &db])["total"]["garbage_bytes"], 0);
    ok(&["blob", "check", &db]);
    fails(2, &["blob", "gc", &db, "--discardable-ratio", "2"]);
}

/// Bytes of blocks that the blob files of a directory take.
fn blocks(db: &str) -> u64 {
    let blocks = |file: &String| {
        let metadata = std::fs::metadata(file).expect("is there");
        std::os::unix::fs::MetadataExt::blocks(&metadata) * 512
    };
    files(db, ".blob").iter().map(blocks).sum()
}

#[test]
fn collections_leave_holes_where_files_stay() {
    for settings in [
        "",
        "blob_hole_punching=false",
        "disable_auto_compactions=true",
    ] {
        let dir = TempDir::new("cli-collect-holes");
        let db = with_blobs(&dir);
        if let Some((name, value)) = settings.split_once('=') {
            let opened = orogen::Db::load_latest_options(&db, &orogen::Options::default()).unwrap();
            let opened = orogen::Db::open(&db, &opened).unwrap();
            let family = opened.default_column_family();
            opened.set_options(&family, &[(name, value)]).unwrap();
            opened.close().unwrap();
        }
        let before = blocks(&db);
        let told = json(&["blob", "gc", &db]);
        // Of ten dead values side by side no more is left than parts of two blocks.
        let came_back = before - blocks(&db);
        assert!(came_back >= 10 * RECORD - 2 * 4096, "{settings}: {told}");
        assert_eq!(told["given_back_bytes"], came_back, "{settings}: {told}");
        assert_eq!(told["after"]["disk_bytes"], blocks(&db));
        assert!(told["after"]["given_up_bytes"].as_u64() >= Some(10 * RECORD - 2 * 4096));
        assert_eq!(json(&["blob", "list", &db])["total"]["values"], 50);
        ok(&["blob", "check", &db]);
        let again = ok(&["blob", "gc", &db]);
        assert!(again.contains("given back 0 B"), "{again}");
        // What is given up takes nothing for the values that live.
        for command in [&["blob", "list"][..], &["db", "stats"], &["db", "tree"]] {
            let told = json(&[command, &[db.as_str()][..]].concat());
            let sums = match command[1] {
                "list" => &told["total"],
                "stats" => &told["blobs"],
                _ => &told["column_families"][0]["blobs"],
            };
            let amp = sums["space_amplification"].as_f64().unwrap();
            assert!((1.0..1.1).contains(&amp), "{command:?}: {amp}");
        }
    }
}

#[test]
fn values_go_into_tables_and_back_and_stay_there() {
    let dir = TempDir::new("cli-convert");
    let db = with_blobs(&dir);
    let told = json(&["blob", "convert", &db, "--to", "inline"]);
    assert_eq!(
        (&told["to"], &told["path"]),
        (&"inline".into(), &db.as_str().into())
    );
    let family = &told["column_families"][0];
    assert_eq!(
        (&family["column_family"], &family["whole"]),
        (&"default".into(), &true.into())
    );
    assert!(family["tables_rewritten"].as_u64() > Some(0));
    assert!(files(&db, ".blob").is_empty());
    assert_eq!(json(&["blob", "list", &db])["total"]["files"], 0);
    let get = json(&["db", "get", &db, "key015"]);
    assert!(get.to_string().contains("bbbb"), "{get}");
    // There is nothing left to do, and who writes on does so in the same mode.
    let again = ok(&[
        "blob", "convert", &db, "--to", "inline", "--family", "default",
    ]);
    assert!(again.contains("default: 0 tables rewritten"), "{again}");
    assert!(again.contains("values are inline in "), "{again}");
    let own = orogen::Options::default();
    let stored = orogen::Db::load_latest_options(&db, &own).unwrap();
    let cf = stored.family("default");
    assert_eq!(cf.blob_run_mode, orogen::BlobRunMode::Fallback);
    assert!(!cf.enable_blob_files);
    ok(&[
        "blob",
        "convert",
        &db,
        "--to",
        "separated",
        "--min-blob-size",
        "4000",
    ]);
    assert_eq!(json(&["blob", "list", &db])["total"]["values"], 40);
    let stored = orogen::Db::load_latest_options(&db, &own).unwrap();
    let cf = stored.family("default");
    assert_eq!(
        (cf.blob_run_mode, cf.min_blob_size),
        (orogen::BlobRunMode::Normal, 4000)
    );
    ok(&["blob", "check", &db]);
    ok(&["db", "check", &db]);
    fails(2, &["blob", "convert", &db]);
    fails(
        2,
        &[
            "blob",
            "convert",
            &db,
            "--to",
            "inline",
            "--min-blob-size",
            "1",
        ],
    );
    fails(
        3,
        &["blob", "convert", &db, "--to", "inline", "--cf", "nobody"],
    );
    fails(3, &["blob", "convert", "/nowhere", "--to", "inline"]);
    // What is damaged is left, and told of.
    let file = files(&db, ".blob").remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[30 + RECORD as usize + 100] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let run = fails(4, &["blob", "convert", &db, "--to", "inline"]);
    assert!(run.out.contains("1 table left: [") && run.out.contains("1 blob file left: ["));
    assert_eq!(json(&["blob", "list", &db])["total"]["files"], 1);
}

#[test]
fn lists_tell_values_garbage_and_disk_of_each_file() {
    let dir = TempDir::new("cli-list-large");
    let db = with_blobs(&dir);
    let list = json(&["blob", "list", &db]);
    let listed = list["blob_files"].as_array().unwrap();
    assert_eq!(listed.len(), 2);
    let [old, new] = &listed[..] else {
        panic!("{list}")
    };
    assert_eq!(
        (&old["column_family"], &old["values"], &old["bytes"]),
        (&"default".into(), &40.into(), &(40 * RECORD).into())
    );
    assert_eq!(
        (&old["garbage_values"], &old["garbage_bytes"]),
        (&10.into(), &(10 * RECORD).into())
    );
    assert_eq!(old["garbage_percent"], 25.0);
    assert_eq!(
        (&new["values"], &new["garbage_values"]),
        (&10.into(), &0.into())
    );
    let file = format!("{db}/{}", old["file"].as_str().unwrap());
    let size = std::fs::metadata(&file).unwrap().len();
    assert_eq!(old["file_bytes"], size);
    assert!(old["disk_bytes"].as_u64().unwrap() >= 40 * RECORD);
    assert_eq!(list["total"]["values"], 50);
    let is_amp = |told: &serde_json::Value| {
        let amp = told["space_amplification"].as_f64().unwrap();
        assert!((1.25..1.26).contains(&amp), "{amp}");
    };
    is_amp(&list["total"]);
    let told = ok(&["blob", "list", &db]);
    assert!(
        told.contains("25.0 %") && told.contains("2 blob files: 50 values"),
        "{told}"
    );
    assert!(told.contains("space amplification 1.26"), "{told}");
    // The values that were replaced lie in the middle of the others.
    let depth = &list["total"]["max_blob_reference_depth"];
    let levels = &list["column_families"][0]["levels"];
    assert_eq!((depth, levels.as_array().unwrap().len()), (&2.into(), 1));
    assert_eq!(levels[0]["max_blob_reference_depth"], 2);
    let deep = format!(
        "most files that one table reads by turns: L{} 2",
        levels[0]["level"]
    );
    assert!(told.contains(&deep), "{told}");
    // Where the tree and the sizes are told they are told too.
    let tree = json(&["db", "tree", &db]);
    let blobs = &tree["column_families"][0]["blobs"];
    assert_eq!(
        (&blobs["files"], &blobs["garbage_values"]),
        (&2.into(), &10.into())
    );
    assert_eq!(blobs["blob_files"][0]["file"], old["file"]);
    let drawn = ok(&["db", "tree", &db, "--files"]);
    assert!(
        drawn.contains("\n  blob ") && drawn.contains("(20.0 %)"),
        "{drawn}"
    );
    assert!(drawn.contains(old["file"].as_str().unwrap()), "{drawn}");
    let stats = json(&["db", "stats", &db]);
    assert_eq!(stats["column_families"][0]["blobs"]["bytes"], 50 * RECORD);
    assert_eq!(stats["blobs"]["garbage_bytes"], 10 * RECORD);
    is_amp(&stats["blobs"]);
    let by_garbage = stats["blobs"]["files_by_garbage"].as_array().unwrap();
    let files: Vec<u64> = by_garbage
        .iter()
        .map(|b| b["files"].as_u64().unwrap())
        .collect();
    assert_eq!(files, [1, 0, 1, 0, 0]);
    assert_eq!(by_garbage[2]["percent_le"], 50);
    assert!(
        drawn.contains("files by garbage: 1 without, 1 up to 50 %"),
        "{drawn}"
    );
    let level = &tree["column_families"][0]["levels"][0];
    assert_eq!(level["max_blob_reference_depth"], 2);
    let by_turns = format!("one table reads by turns: L{} 2\n", level["level"]);
    assert!(drawn.contains(&by_turns), "{drawn}");
    assert!(ok(&["db", "stats", &db]).contains("by garbage   1 without, 1 up to 50 %"));
    assert!(ok(&["db", "stats", &db]).contains("blob files   2, 50 values"));
    // A database without any has no line.
    let plain = sample(&dir, 100);
    assert!(!ok(&["db", "tree", &plain]).contains("blob "));
    assert!(!ok(&["db", "stats", &plain]).contains("blob files"));
    assert_eq!(json(&["blob", "list", &plain])["total"]["files"], 0);
    fails(3, &["blob", "list", "/nowhere"]);
}

#[test]
fn dumps_show_records_and_what_else_is_in_the_file() {
    let dir = TempDir::new("cli-blob-dump");
    let db = with_blobs(&dir);
    let file = files(&db, ".blob").remove(0);
    let dump = json(&["blob", "dump", &file]);
    assert_eq!(
        (&dump["version"], &dump["records"]),
        (&1.into(), &40.into())
    );
    assert!(dump["unfinished"].is_null());
    assert_eq!(
        dump["properties"]["orogen.blob.column.family.name"],
        "default"
    );
    let pieces = dump["pieces"].as_array().unwrap();
    let records: Vec<_> = pieces.iter().filter(|p| p["piece"] == "record").collect();
    assert_eq!(records.len(), 40);
    assert_eq!(records[0]["key"], "key000");
    assert_eq!(
        (&records[0]["offset"], &records[0]["bytes"]),
        (&30.into(), &RECORD.into())
    );
    assert_eq!(records[0]["value_offset"], 30 + 32 + 6);
    assert_eq!(records[0]["stored_bytes"], 5000);
    assert!(records[0]["value"].is_null());
    assert!(pieces.iter().any(|p| p["name"] == "orogen.properties"));
    assert_eq!(dump["summary"]["record_bytes"], 40 * RECORD);
    assert!(dump["summary"]["value_bytes"].is_null());
    // Every byte but header and footer belongs to a piece.
    let bytes: u64 = pieces.iter().map(|p| p["bytes"].as_u64().unwrap()).sum();
    assert_eq!(dump["bytes"], bytes + 30 + 32);
    let some = json(&["blob", "dump", &file, "--values", "--limit", "2"]);
    let pieces = some["pieces"].as_array().unwrap();
    let records: Vec<_> = pieces.iter().filter(|p| p["piece"] == "record").collect();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1]["value"], "a".repeat(5000));
    assert_eq!(some["summary"]["records"], 40);
    assert_eq!(some["summary"]["value_bytes"], 40 * 5000);
    let told = ok(&["blob", "dump", &file, "--limit", "1"]);
    assert!(
        told.contains("key000") && !told.contains("key001"),
        "{told}"
    );
    assert!(
        told.contains("meta record orogen.tail") && told.contains("40 records in"),
        "{told}"
    );
    fails(3, &["blob", "dump", "/nowhere/000001.blob"]);
    let other = files(&db, ".sst").remove(0);
    fails(4, &["blob", "dump", &other]);
}

#[test]
fn damage_of_blob_files_is_found_and_placed() {
    let dir = TempDir::new("cli-blob-damage");
    let db = with_blobs(&dir);
    for args in [
        &["blob", "check", &db][..],
        &["blob", "check", &db, "--no-follow"],
    ] {
        assert!(ok(args).contains("2 blob files, 40 values"), "{args:?}");
        assert!(ok(args).contains("no damage found"));
    }
    let whole = json(&["blob", "check", &db]);
    assert_eq!(whole["followed"], true);
    let checked = &whole["column_families"][0]["blob_files"];
    assert_eq!(
        (&checked[0]["live_values"], &checked[0]["exact"]),
        (&30.into(), &true.into())
    );
    let scanned = json(&["db", "check", &db]);
    assert_eq!(
        (&scanned["blob_files"], &scanned["blob_values"]),
        (&2.into(), &50.into())
    );
    let file = files(&db, ".blob").remove(0);
    let sound = std::fs::read(&file).unwrap();
    // In the value of the second record.
    let mut bytes = sound.clone();
    bytes[30 + RECORD as usize + 100] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let offset = 30 + RECORD;
    let run = fails(4, &["blob", "check", &db]);
    assert!(run.out.contains(&format!("offset={offset}")), "{}", run.out);
    assert!(run.err.contains("1 damage found"), "{}", run.err);
    ok(&["blob", "check", &db, "--no-follow"]);
    let run = fails(4, &["db", "check", &db]);
    assert!(
        run.out.contains(&format!("at offset {offset}")),
        "{}",
        run.out
    );
    ok(&["blob", "dump", &file]);
    let run = fails(4, &["blob", "dump", &file, "--values", "--json"]);
    let dump: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(dump["summary"]["records"], 39);
    let damage = dump["pieces"].as_array().unwrap().iter();
    let damage: Vec<_> = damage.filter(|p| p["piece"] == "damage").collect();
    assert_eq!((damage.len(), &damage[0]["offset"]), (1, &offset.into()));
    // Of the header and of what is before the footer nothing has a checksum.
    let magic = sound.len() - 64 + 20;
    for at in [4, 8, magic] {
        let mut bytes = sound.clone();
        bytes[at] ^= 2;
        std::fs::write(&file, &bytes).unwrap();
        let run = fails(4, &["db", "check", &db, "--quick"]);
        assert!(run.out.contains(&file), "{at}: {}", run.out);
    }
    // Cut off within the third record.
    std::fs::write(&file, &sound[..30 + 2 * RECORD as usize + 50]).unwrap();
    let run = fails(4, &["blob", "dump", &file]);
    assert!(
        run.out.contains("not finished") && run.out.contains("2 records in"),
        "{}",
        run.out
    );
    fails(4, &["blob", "check", &db, "--no-follow"]);
    std::fs::remove_file(&file).unwrap();
    for args in [
        &["blob", "check", &db][..],
        &["blob", "check", &db, "--no-follow"],
        &["db", "check", &db],
    ] {
        let run = fails(4, args);
        assert!(run.out.contains(&file), "{args:?} {}", run.out);
    }
    assert!(ok(&["blob", "list", &db]).contains("missing"));
}

/// Three more values in a blob file of their own.
fn add_a_file(db: &str) {
    let mut options = orogen::Options::default();
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 1000;
    let db = orogen::Db::open(db, &options).expect("opens");
    for n in 50..53 {
        let key = format!("key{n:03}");
        db.put(key.as_bytes(), &[b'c'; 5000]).expect("writes");
    }
    db.flush().expect("flushes");
    db.close().expect("closes");
}

#[test]
fn a_check_goes_on_behind_damage() {
    let dir = TempDir::new("cli-blob-damages");
    let db = with_blobs(&dir);
    add_a_file(&db);
    let [first, second, _third] = &files(&db, ".blob")[..] else {
        panic!("three files")
    };
    // Two values of the first file, and the end of the second.
    let mut bytes = std::fs::read(first).unwrap();
    let offsets = [1, 3].map(|n| 30 + n * RECORD);
    for offset in offsets {
        bytes[offset as usize + 100] ^= 4;
    }
    std::fs::write(first, &bytes).unwrap();
    let bytes = std::fs::read(second).unwrap();
    std::fs::write(second, &bytes[..bytes.len() - 10]).unwrap();

    let run = fails(4, &["blob", "check", &db]);
    for offset in offsets {
        let told = run
            .out
            .lines()
            .find(|l| l.contains(&format!("offset={offset}")));
        assert!(told.is_some_and(|l| l.contains(first)), "{}", run.out);
    }
    assert!(run.out.contains(second), "{}", run.out);
    assert!(
        run.out.contains("3 blob files, 31 values read"),
        "{}",
        run.out
    );
    assert!(run.err.contains("3 damages found"), "{}", run.err);
    let run = fails(4, &["blob", "check", &db, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let family = &told["column_families"][0];
    assert_eq!(family["damage_count"], 3);
    let damages = family["damages"].as_array().unwrap();
    let in_first = damages.iter().filter(|d| d["file"] == *first);
    let in_first: Vec<_> = in_first.filter_map(|d| d["offset"].as_u64()).collect();
    assert_eq!(in_first, offsets);
    assert!(damages.iter().any(|d| d["file"] == *second), "{told}");
    assert_eq!(
        (&family["values_read"], &family["bytes_read"]),
        (&31.into(), &(31 * RECORD).into())
    );
    // Garbage is counted by the tables, which are whole.
    let listed = family["blob_files"].as_array().unwrap();
    let live: Vec<_> = listed.iter().map(|f| f["live_values"].as_u64()).collect();
    assert_eq!(live, [Some(30), Some(10), Some(3)]);
    for file in listed {
        assert_eq!(
            (&file["counted"], &file["exact"]),
            (&true.into(), &true.into())
        );
    }
    let run = fails(4, &["blob", "check", &db, "--no-follow"]);
    assert!(run.err.contains("1 damage found"), "{}", run.err);
    assert!(run.out.contains("43 values pointed to"), "{}", run.out);
}

#[test]
fn a_check_goes_on_behind_a_damaged_table() {
    let dir = TempDir::new("cli-blob-table-damage");
    let db = with_blobs(&dir);
    add_a_file(&db);
    // The newest table alone points to the newest file.
    let table = files(&db, ".sst").pop().expect("there is one");
    let mut bytes = std::fs::read(&table).unwrap();
    bytes[20] ^= 4;
    std::fs::write(&table, &bytes).unwrap();
    let run = fails(4, &["blob", "check", &db, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let family = &told["column_families"][0];
    assert_eq!(family["damage_count"], 1);
    assert_eq!(
        (&family["values_read"], &family["damages"][0]["file"]),
        (&40.into(), &table.as_str().into())
    );
    let listed = family["blob_files"].as_array().unwrap();
    let counted: Vec<_> = listed.iter().map(|f| f["counted"].as_bool()).collect();
    assert_eq!(counted, [Some(true), Some(true), Some(false)]);
    assert!(listed[..2].iter().all(|f| f["exact"] == true), "{told}");
    let run = fails(4, &["blob", "check", &db]);
    assert!(
        run.out.contains("garbage not checked of 1 blob file"),
        "{}",
        run.out
    );
}

/// The newest OPTIONS file.
fn options_file(db: &str) -> String {
    let found = files(db, "").into_iter();
    let found = found.filter(|p| p.contains("/OPTIONS-") && !p.ends_with("dbtmp"));
    found.max().expect("there is one")
}

#[test]
fn a_manifests_dump_has_its_blob_files_as_data() {
    let dir = TempDir::new("cli-blob-edits");
    let db = with_blobs(&dir);
    let edits = json(&["manifest", "dump", &db]);
    let edits = edits.as_array().unwrap();
    let added: Vec<_> = edits
        .iter()
        .filter_map(|e| e.get("blob_file_addition"))
        .collect();
    assert!(!added.is_empty());
    for blob in added {
        let blob = match blob.as_array() {
            Some(several) => &several[0],
            None => blob,
        };
        for name in ["number", "values", "bytes", "overhead_bytes"] {
            assert!(blob[name].is_u64(), "{blob}");
        }
    }
}

#[test]
fn commands_that_write_keep_the_settings_of_the_directory() {
    let dir = TempDir::new("cli-settings");
    let db = with_blobs(&dir);
    let is_kept = |after: &str| {
        let own = orogen::Options::default();
        let stored = orogen::Db::load_latest_options(&db, &own).unwrap();
        let cf = stored.family("default");
        let kept = (cf.enable_blob_files, cf.min_blob_size);
        assert_eq!(kept, (true, 1000), "{after}");
    };
    let copy = text(&dir.path().join("copy")).to_owned();
    let backups = text(&dir.path().join("backups")).to_owned();
    let large = "x".repeat(3000);
    for command in [
        &["db", "put", &db, "key900", &large][..],
        &["db", "compact", &db],
        &["db", "delete", &db, "small000"],
        &["db", "delete-files", &db, "--from", "zz"],
        &["db", "create", &db, "--column-family", "more"],
        &["db", "checkpoint", &db, &copy],
        &["backup", "create", &db, &backups],
        &["blob", "gc", &db],
    ] {
        ok(command);
        is_kept(&command.join(" "));
    }
    // What they write is written as the database writes it.
    assert_eq!(json(&["blob", "list", &db])["total"]["values"], 51);

    // What RocksDB has and we have not is told of, by all but those for which it matters most.
    let file = options_file(&db);
    let good = std::fs::read_to_string(&file).unwrap();
    let other = good.replace("kBinarySearch", "kHashSearch");
    assert_ne!(good, other);
    std::fs::write(&file, &other).unwrap();
    fails(1, &["blob", "gc", &db]);
    fails(1, &["blob", "convert", &db, "--to", "inline"]);
    let run = fails(0, &["db", "put", &db, "k", "v"]);
    assert!(
        run.err.contains("setting is the default") && run.err.contains("index_type"),
        "{}",
        run.err
    );
    // The others stay.
    is_kept("a setting that is not known");

    // Damage is an error, and nothing is written.
    let file = options_file(&db);
    std::fs::write(&file, "[Version").unwrap();
    for command in [
        &["db", "put", &db, "k", "w"][..],
        &["db", "compact", &db],
        &["blob", "gc", &db],
    ] {
        let run = fails(4, command);
        assert!(run.err.contains("OPTIONS-"), "{}", run.err);
    }
    assert_eq!(ok(&["db", "get", &db, "k"]), "v\n");
    std::fs::remove_file(&file).unwrap();
    for older in files(&db, "")
        .into_iter()
        .filter(|f| f.contains("/OPTIONS-"))
    {
        std::fs::remove_file(older).unwrap();
    }
    ok(&["db", "put", &db, "k", "w"]);
    assert_eq!(ok(&["db", "get", &db, "k"]), "w\n");
}

/// Has the MANIFEST say what RocksDB makes of it when it writes it anew: what is ours in a blob file is one
/// record more, which is garbage, and what tells it from others is gone.
fn written_anew_by_rocksdb(db: &str) {
    let (fs, dir) = (PosixFileSystem::new(), Path::new(db));
    let path = filename::manifest_path(dir, manifest::current(&fs, dir).expect("has a MANIFEST"));
    let mut reader =
        Reader::new(fs.open(&path, Access::Sequential).expect("opens"), 0).expect("reads");
    let (mut record, mut edits) = (Vec::new(), Vec::new());
    while let ReadOutcome::Record { .. } = reader.read_record(&mut record).expect("reads") {
        edits.push(VersionEdit::decode(&record).expect("is an edit"));
    }
    let mut with_overhead = 0;
    let mut writer = Writer::new(fs.create(&path).expect("creates"), 0, false);
    for mut edit in edits {
        for addition in &mut edit.blob_file_additions {
            let overhead = std::mem::take(&mut addition.overhead_bytes);
            with_overhead += u64::from(overhead > 0);
            addition.total_blob_count += 1;
            addition.total_blob_bytes += overhead;
            edit.blob_file_garbages.push(BlobFileGarbage {
                number: addition.number,
                garbage_blob_count: 1,
                garbage_blob_bytes: overhead,
                ..BlobFileGarbage::default()
            });
        }
        writer.add_record(&edit.encode()).expect("writes");
    }
    writer.sync().expect("syncs");
    assert!(with_overhead > 0);
}

#[test]
fn files_are_whole_whose_manifest_rocksdb_wrote_anew() {
    let dir = TempDir::new("cli-blobs-anew");
    let db = with_blobs(&dir);
    let before = json(&["db", "check", &db]);
    written_anew_by_rocksdb(&db);
    assert_eq!(json(&["db", "check", &db])["damages"], before["damages"]);
    ok(&["blob", "check", &db]);
}
