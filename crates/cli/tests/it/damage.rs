//! Damaged directories: the right exit code, and where the damage is.

use orogen_base::checksum;
use orogen_testkit::TempDir;

use super::{fails, files, json, ok, orogen, sample, table, text};

fn flip(path: &str, at: usize) {
    let mut bytes = std::fs::read(path).expect("can be read");
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).expect("can be written");
}

#[test]
fn a_flipped_byte_of_a_table_is_found_and_placed() {
    let dir = TempDir::new("cli-flip");
    let db = sample(&dir, 2000);
    let file = table(&db);
    flip(&file, 100);
    let run = fails(4, &["db", "check", &db]);
    let name = file.rsplit('/').next().unwrap();
    assert!(
        run.out.contains(name) && run.out.contains("at offset 0"),
        "{}",
        run.out
    );
    assert!(run.err.contains("1 damage found"), "{}", run.err);
    // The rest was looked at all the same.
    let run = fails(4, &["db", "check", &db, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(document["tables"], files(&db, ".sst").len() - 1);
    assert_eq!(document["damages"][0]["offset"], 0);
    assert!(
        document["damages"][0]["file"]
            .as_str()
            .unwrap()
            .ends_with(name)
    );
    fails(4, &["sst", "check", &file]);
    fails(4, &["db", "scan", &db]);
    fails(4, &["db", "get", &db, "key000000"]);
}

#[test]
fn a_table_that_is_cut_off_or_gone_is_damage() {
    let dir = TempDir::new("cli-cut");
    let db = sample(&dir, 500);
    let tables = files(&db, ".sst");
    let bytes = std::fs::read(&tables[0]).unwrap();
    std::fs::write(&tables[0], &bytes[..bytes.len() - 10]).unwrap();
    std::fs::remove_file(&tables[1]).unwrap();
    let run = fails(4, &["db", "check", &db]);
    assert!(
        run.err.contains("2 damages found"),
        "{}\n{}",
        run.out,
        run.err
    );
    assert!(
        run.out.contains("another size than the MANIFEST says"),
        "{}",
        run.out
    );
}

#[test]
fn damage_in_the_middle_of_a_log_is_told_from_a_torn_tail() {
    let dir = TempDir::new("cli-log");
    let db = sample(&dir, 1000);
    let log = files(&db, ".log").pop().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(&log, &bytes[..bytes.len() - 3]).unwrap();
    let torn = ok(&["db", "check", &db]);
    assert!(torn.contains("1 torn tail after a crash"), "{torn}");
    assert!(ok(&["wal", "dump", &log]).contains("torn tail"));
    flip(&log, bytes.len() / 2);
    let run = fails(4, &["db", "check", &db]);
    assert!(
        run.out.contains("checksum mismatch") && run.out.contains(".log"),
        "{}",
        run.out
    );
    let dump = fails(4, &["wal", "dump", &log]);
    assert!(
        dump.out.contains("damage: checksum mismatch"),
        "{}",
        dump.out
    );
}

#[test]
fn commands_that_write_leave_a_damaged_log_alone_and_those_that_read_tell_of_it() {
    let dir = TempDir::new("cli-log-writes");
    let db = sample(&dir, 1000);
    let log = files(&db, ".log").pop().unwrap();
    let bytes = std::fs::read(&log).unwrap();
    // As a crash leaves it: nobody is bothered.
    let torn = text(&dir.path().join("torn")).to_owned();
    std::fs::create_dir(&torn).unwrap();
    for file in files(&db, "") {
        std::fs::copy(&file, file.replace(&db, &torn)).unwrap();
    }
    std::fs::write(log.replace(&db, &torn), &bytes[..bytes.len() - 3]).unwrap();
    let run = fails(0, &["db", "scan", &torn]);
    assert_eq!((run.out.lines().count(), run.err.as_str()), (999, ""));
    ok(&["db", "put", &torn, "a", "b"]);

    // Zeros where a record begins look as space that was reserved does, but for what stands behind them.
    let records = json(&["wal", "dump", &log, "--records-only"]);
    let offset = |n: usize| records[n]["offset"].as_u64().unwrap() as usize;
    let zeroed = text(&dir.path().join("zeroed")).to_owned();
    std::fs::create_dir(&zeroed).unwrap();
    for file in files(&db, "") {
        std::fs::copy(&file, file.replace(&db, &zeroed)).unwrap();
    }
    let mut zeros = bytes.clone();
    zeros[offset(1)..offset(2)].fill(0);
    std::fs::write(log.replace(&db, &zeroed), zeros).unwrap();
    for how in [&[][..], &["--secondary"]] {
        let run = fails(0, &[&["db", "scan", &zeroed], how].concat());
        assert!(run.err.contains("lost to damage"), "{how:?} {}", run.err);
    }

    flip(&log, bytes.len() / 2);
    let before: Vec<_> = files(&db, "");
    let target = text(&dir.path().join("new")).to_owned();
    for command in [
        &["db", "put", &db, "a", "b"][..],
        &["db", "delete", &db, "a"],
        &["db", "compact", &db],
        &["db", "checkpoint", &db, &target],
        &["db", "create", &db, "--column-family", "more"],
        &["db", "delete-files", &db, "--from", "zz"],
        &["backup", "create", &db, &target],
        &["blob", "gc", &db],
    ] {
        let run = fails(4, command);
        let file = log.rsplit('/').next().unwrap();
        assert!(
            run.err.contains(file) && run.err.contains("repair"),
            "{command:?} {}",
            run.err
        );
    }
    assert_eq!(files(&db, ""), before);
    let scan = |how: &[&str]| {
        let run = fails(0, &[&["db", "scan", &db], how].concat());
        let is_told = run.err.contains("lost to damage") && run.err.contains(".log");
        assert!(is_told, "{how:?} {}", run.err);
        run.out.lines().count()
    };
    let shown = scan(&[]);
    assert!((501..999).contains(&shown), "{shown}");
    assert_eq!(scan(&["--secondary"]), shown);
    for how in [&[][..], &["--secondary"]] {
        let run = fails(3, &[&["db", "get", &db, "key000999"], how].concat());
        assert!(run.err.contains("lost to damage"), "{how:?} {}", run.err);
    }
    ok(&["db", "repair", &db, "--to", &target]);
    assert!(ok(&["db", "scan", &target]).lines().count() > 990);
    ok(&["db", "put", &target, "a", "b"]);
    // Who wants it so gets it so.
    ok(&["db", "put", &db, "a", "b", "--drop-log-damage"]);
    ok(&["db", "check", &db]);
    assert_eq!(ok(&["db", "scan", &db]).lines().count(), shown + 1);
}

#[test]
fn a_lost_manifest_is_damage_and_not_a_missing_key() {
    let dir = TempDir::new("cli-current");
    let db = sample(&dir, 100);
    let current = format!("{db}/CURRENT");
    let name = std::fs::read_to_string(&current).unwrap();
    for lose in [
        &|| std::fs::write(&current, "MANIFEST-000999\n").unwrap(),
        &|| std::fs::remove_file(&current).unwrap(),
    ] as [&dyn Fn(); 2]
    {
        lose();
        for command in [
            &["db", "check", &db][..],
            &["db", "get", &db, "key000000"],
            &["db", "put", &db, "a", "b"],
            &["db", "scan", &db],
        ] {
            let run = fails(4, command);
            assert!(run.err.contains("repair"), "{command:?} {}", run.err);
        }
    }
    std::fs::write(&current, name).unwrap();
    ok(&["db", "check", &db]);
    fails(3, &["db", "get", text(dir.path()), "key000000"]);
}

#[test]
fn a_damaged_manifest_is_an_error_and_no_panic() {
    let dir = TempDir::new("cli-manifest");
    let db = sample(&dir, 100);
    let current = std::fs::read_to_string(format!("{db}/CURRENT")).unwrap();
    flip(&format!("{db}/{}", current.trim()), 9);
    for args in [
        &["db", "check", &db][..],
        &["db", "scan", &db],
        &["db", "put", &db, "a", "b"],
    ] {
        fails(4, args);
    }
    fails(4, &["manifest", "dump", &db]);
}

#[test]
fn garbage_is_refused_in_every_command() {
    let dir = TempDir::new("cli-garbage");
    let db = dir.path().join("db");
    std::fs::create_dir(&db).unwrap();
    std::fs::write(db.join("CURRENT"), b"no manifest at all").unwrap();
    for command in ["check", "stats", "tree", "compact", "scan"] {
        fails(4, &["db", command, text(&db)]);
    }
    let file = dir.path().join("000007.sst");
    for len in [0, 10, 60, 5000] {
        std::fs::write(&file, vec![0x5a; len]).unwrap();
        let run = orogen(&["sst", "dump", text(&file)]);
        assert!([4, 8].contains(&run.code), "{len} {} {}", run.code, run.err);
    }
    let log = dir.path().join("000007.log");
    for bytes in [
        &[0x5a; 5000][..],
        b"2026-11-20 10:00:00 something happened\n",
    ] {
        std::fs::write(&log, bytes).unwrap();
        let run = fails(4, &["wal", "dump", text(&log)]);
        assert!(run.err.contains("is no log"), "{}", run.err);
        assert!(!run.out.contains("sequence"), "{}", run.out);
    }
    // As a crash leaves it, in its first record or before it.
    let other = TempDir::new("cli-first-record");
    let whole = std::fs::read(files(&sample(&other, 10), ".log").pop().unwrap()).unwrap();
    for len in [0, 3, 7, 20] {
        std::fs::write(&log, &whole[..len.min(whole.len())]).unwrap();
        fails(0, &["wal", "dump", text(&log)]);
    }
}

#[test]
fn a_log_in_the_file_of_another_one_is_shown_by_its_number() {
    let dir = TempDir::new("cli-other-log");
    let log = text(&dir.path().join("000009.log")).to_owned();
    // One record of log 7, a batch that is empty.
    let covered = [&[5][..], &7u32.to_le_bytes(), &[0; 12]].concat();
    let crc = checksum::mask(checksum::crc32c(&covered)).to_le_bytes();
    let record = [&crc[..], &12u16.to_le_bytes(), &covered].concat();
    std::fs::write(&log, record).unwrap();
    let run = fails(0, &["wal", "dump", &log]);
    assert!(
        run.err.contains("0 records") && run.err.contains("--number 7"),
        "{}",
        run.err
    );
    let run = fails(0, &["wal", "dump", &log, "--number", "7"]);
    assert!(
        run.err.contains("1 record") && !run.err.contains("--number"),
        "{}",
        run.err
    );
}

#[test]
fn a_damaged_directory_is_repaired_into_a_new_one() {
    let dir = TempDir::new("cli-repair");
    let db = sample(&dir, 2000);
    assert!(ok(&["db", "repair", &db]).contains("nothing to repair"));
    let new = text(&dir.path().join("new")).to_owned();
    ok(&["db", "repair", &db, "--to", &new]);
    assert!(!std::path::Path::new(&new).exists());
    flip(&table(&db), 100);
    let bytes: Vec<Vec<u8>> = files(&db, "")
        .iter()
        .map(|f| std::fs::read(f).unwrap())
        .collect();
    let dry = fails(4, &["db", "repair", &db]);
    let lost = "lost: keys from 'key000000' to 'key000";
    assert!(dry.out.contains(lost), "{}", dry.out);
    assert!(!std::path::Path::new(&new).exists());
    let run = ok(&["db", "repair", &db, "--to", &new]);
    assert!(run.contains(lost), "{run}");
    let after: Vec<Vec<u8>> = files(&db, "")
        .iter()
        .map(|f| std::fs::read(f).unwrap())
        .collect();
    assert!(bytes == after);
    ok(&["db", "check", &new]);
    let keys = ok(&["db", "scan", &new, "--keys-only"]);
    let left = keys.lines().count();
    assert!(left > 1700 && left < 2000, "{left}");
    assert!(keys.contains("key001999") && !keys.contains("key000000"));
    fails(1, &["db", "repair", &db, "--to", &new]);
    fails(3, &["db", "repair", "/nowhere"]);
}

#[test]
fn a_table_put_in_the_place_of_another_is_found_by_its_checksum() {
    let dir = TempDir::new("cli-swapped");
    let db = sample(&dir, 500);
    let file = table(&db);
    // The footer's padding: no block's checksum is over it, and no reader looks at it.
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - 14;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    ok(&["db", "check", &db, "--quick"]);
    let run = fails(4, &["db", "check", &db]);
    assert!(run.out.contains("its checksum differs"), "{}", run.out);
}

#[test]
fn what_was_printed_before_damage_is_a_document() {
    let dir = TempDir::new("cli-json");
    let db = sample(&dir, 2000);
    let file = table(&db);
    let size = std::fs::metadata(&file).unwrap().len() as usize;
    flip(&file, size / 2);
    for args in [
        &["db", "scan", &db][..],
        &["db", "scan", &db, "--perf"],
        &["sst", "dump", &file, "--blocks"],
        &["sst", "dump", &file, "--entries"],
    ] {
        let run = fails(4, &[args, &["--json"]].concat());
        let document: serde_json::Value =
            serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{args:?} {e}\n{}", run.out));
        assert!(document.is_array() || document.is_object());
    }
}

#[test]
fn damage_is_told_beside_a_log_that_cannot_be_read() {
    let dir = TempDir::new("cli-log");
    let db = sample(&dir, 2000);
    let file = table(&db);
    flip(&file, 100);
    // One record, whose type says that the log is compressed.
    let log = files(&db, ".log").pop().unwrap();
    let covered = [&[9][..], &7u32.to_le_bytes()].concat();
    let crc = checksum::mask(checksum::crc32c(&covered)).to_le_bytes();
    let record = [&crc[..], &4u16.to_le_bytes(), &covered].concat();
    std::fs::write(&log, record).unwrap();
    let run = fails(4, &["db", "check", &db]);
    assert!(run.out.contains(".sst"), "{}", run.out);
    assert!(run.err.contains("compressed"), "{}", run.err);
    flip(&file, 100);
    let run = fails(8, &["db", "check", &db]);
    assert!(run.err.contains("compressed"), "{}", run.err);
    // Each is named.
    let second = format!("{db}/000900.log");
    std::fs::copy(&log, &second).unwrap();
    let run = fails(8, &["db", "check", &db]);
    for log in [&log, &second] {
        let name = log.rsplit('/').next().unwrap();
        assert!(run.err.contains(name), "{name} {}", run.err);
    }
    let run = fails(8, &["db", "check", &db, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(document["not_checked"].as_array().map(Vec::len), Some(2));
}
