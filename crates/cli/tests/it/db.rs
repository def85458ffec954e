//! `orogen db`: what goes in comes out, and beside whom.

use std::io::Read as _;
use std::process::Stdio;

use orogen_testkit::TempDir;

use super::{command, fails, json, ok, orogen, sample, text};

#[test]
fn what_is_put_is_got_scanned_and_deleted() {
    let dir = TempDir::new("cli-point");
    let db = text(&dir.path().join("db")).to_owned();
    ok(&["db", "create", &db, "--column-family", "rocks"]);
    ok(&["db", "put", &db, "granite", "hard", "--sync"]);
    ok(&["db", "put", &db, "chalk", "-soft"]);
    ok(&["db", "put", &db, "--cf", "rocks", "basalt", "dark"]);
    assert_eq!(ok(&["db", "get", &db, "granite"]), "hard\n");
    assert_eq!(ok(&["db", "get", &db, "chalk", "--raw"]), "-soft");
    assert_eq!(ok(&["db", "get", &db, "--cf", "rocks", "basalt"]), "dark\n");
    assert_eq!(ok(&["db", "scan", &db]), "chalk\t-soft\ngranite\thard\n");
    ok(&["db", "delete", &db, "chalk"]);
    assert_eq!(ok(&["db", "scan", &db, "--keys-only"]), "granite\n");
    fails(3, &["db", "get", &db, "chalk"]);
    fails(3, &["db", "delete", &db, "chalk"]);
    ok(&["db", "delete", &db, "a", "--end", "z"]);
    assert_eq!(ok(&["db", "scan", &db, "--count"]), "0\n");
    assert_eq!(ok(&["db", "scan", &db, "--cf", "rocks", "--count"]), "1\n");
}

#[test]
fn reads_tell_what_they_cost_where_asked() {
    let dir = TempDir::new("cli-perf");
    let db = text(&dir.path().join("db")).to_owned();
    ok(&["db", "create", &db]);
    ok(&["db", "put", &db, "granite", "hard"]);
    // Another open puts it into a table.
    ok(&["db", "put", &db, "chalk", "soft"]);
    let got = command(&["db", "get", &db, "granite", "--perf"]).output();
    let got = got.expect("it runs");
    assert!(got.status.success());
    assert_eq!(got.stdout, b"hard\n", "the value alone is data");
    let told = String::from_utf8(got.stderr).expect("text");
    assert!(told.contains("get_read_bytes = 4\n"), "{told}");
    assert!(told.contains("block_read_count@level0 = 1"), "{told}");
    let got = json(&["db", "get", &db, "granite", "--perf"]);
    assert_eq!(got["value"], "hard");
    assert_eq!(got["perf"]["block_read_count"], 1);
    assert!(got["perf"]["get_from_output_files_time"].as_u64() > Some(0));
    assert!(json(&["db", "get", &db, "granite"])["perf"].is_null());
    let scanned = json(&["db", "scan", &db, "--perf"]);
    assert_eq!(scanned["entries"].as_array().map(Vec::len), Some(2));
    assert_eq!(scanned["perf"]["iter_next_count"], 2);
    let counted = json(&["db", "scan", &db, "--count", "--perf"]);
    assert_eq!(counted["entries"], 2);
    assert_eq!(counted["perf"]["iter_seek_count"], 1);
}

#[test]
fn bytes_go_in_and_out_as_hexadecimal() {
    let dir = TempDir::new("cli-hex");
    let db = text(&dir.path().join("db")).to_owned();
    ok(&["db", "create", &db]);
    ok(&["db", "put", &db, "--hex", "00ff", "0a41"]);
    assert_eq!(ok(&["db", "get", &db, "--hex", "00ff"]), "0a41\n");
    assert_eq!(ok(&["db", "scan", &db]), "\\0\\xff\t\\nA\n");
    assert_eq!(
        ok(&["db", "scan", &db, "--hex", "--prefix", "00"]),
        "00ff\t0a41\n"
    );
    let scanned = json(&["db", "scan", &db]);
    assert_eq!(scanned[0]["key"], "\\0\\xff");
    fails(2, &["db", "put", &db, "--hex", "0", "00"]);
}

#[test]
fn scans_keep_to_their_bounds() {
    let dir = TempDir::new("cli-scan");
    let db = sample(&dir, 100);
    let keys = |args: &[&str]| {
        let mut all = vec!["db", "scan", &db, "--keys-only"];
        all.extend(args);
        ok(&all).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(keys(&[]).len(), 100);
    assert_eq!(keys(&["--prefix", "key00002"]).len(), 10);
    assert_eq!(
        keys(&["--from", "key000097"]),
        ["key000097", "key000098", "key000099"]
    );
    assert_eq!(
        keys(&["--to", "key000002", "--reverse"]),
        ["key000001", "key000000"]
    );
    assert_eq!(keys(&["--limit", "3", "--reverse"])[2], "key000097");
    fails(2, &["db", "scan", &db, "--prefix", "a", "--from", "b"]);
    let counted = json(&["db", "scan", &db, "--cf", "rocks", "--count"]);
    assert_eq!(counted["entries"], 100);
    assert_eq!(counted["value_bytes"], 400);
}

#[test]
fn stats_tree_and_check_tell_the_same_story() {
    let dir = TempDir::new("cli-stats");
    let db = sample(&dir, 1000);
    let stats = json(&["db", "stats", &db]);
    assert_eq!(stats["latest_sequence_number"], 2000);
    let families = stats["column_families"].as_array().unwrap();
    assert_eq!(families[1]["name"], "rocks");
    assert_eq!(families[1]["memtable_entries"], 499);
    let tree = json(&["db", "tree", &db]);
    assert_eq!(tree["bytes"], stats["bytes"]);
    let table = &tree["column_families"][0]["levels"][0]["tables"][0];
    assert_eq!(
        (&table["smallest"], &table["largest"]),
        (&"key000000".into(), &"key000500".into())
    );
    let check = json(&["db", "check", &db]);
    assert_eq!(check["tables"], stats["files"]);
    assert_eq!(check["entries"], 1002);
    // The first record of a log is its link to the log before.
    assert_eq!(check["log_records"], 500);
    assert_eq!(check["damages"].as_array().unwrap().len(), 0);
    let quick = ok(&["db", "check", &db, "--quick"]);
    assert!(
        quick.contains("no damage found") && !quick.contains("entries"),
        "{quick}"
    );
    assert!(ok(&["db", "stats", &db]).contains("about 1,000"));
    let level0 = ok(&[
        "db",
        "stats",
        &db,
        "--property",
        "rocksdb.num-files-at-level0",
    ]);
    assert!(level0.contains("rocks: 1\n"), "{level0}");
    fails(3, &["db", "stats", &db, "--property", "rocksdb.nonsense"]);
}

#[test]
fn the_tree_is_drawn_to_scale_and_in_ascii_on_request() {
    let dir = TempDir::new("cli-tree");
    let db = sample(&dir, 1000);
    let drawn = ok(&["db", "tree", &db, "--files"]);
    assert!(
        drawn.contains('\u{2588}') && drawn.contains("key000000 -> key000500"),
        "{drawn}"
    );
    assert!(drawn.contains(".sst "), "{drawn}");
    let ascii = ok(&["db", "tree", &db, "--ascii"]);
    assert!(
        ascii.is_ascii() && ascii.contains(&"#".repeat(30)),
        "{ascii}"
    );
    assert!(
        ascii.contains("\n  L0 ") && ascii.contains("499 operations"),
        "{ascii}"
    );
}

#[test]
fn compaction_leaves_the_content_and_takes_the_dead() {
    let dir = TempDir::new("cli-compact");
    let db = sample(&dir, 1000);
    ok(&["db", "delete", &db, "key000100", "--end", "key000900"]);
    let before = ok(&["db", "scan", &db]);
    let result = json(&["db", "compact", &db, "--force"]);
    assert!(result["bytes_after"].as_u64().unwrap() > 0);
    assert_eq!(ok(&["db", "scan", &db]), before);
    assert_eq!(before.lines().count(), 200);
    let check = json(&["db", "check", &db]);
    assert_eq!(check["entries"], 1200);
    assert!(ok(&["db", "compact", &db, "--cf", "rocks"]).contains("after: "));
}

#[test]
fn a_checkpoint_is_a_database_of_its_own() {
    let dir = TempDir::new("cli-checkpoint");
    let db = sample(&dir, 100);
    let target = text(&dir.path().join("copy")).to_owned();
    json(&["db", "checkpoint", &db, &target]);
    ok(&["db", "delete", &db, "key000000"]);
    assert_eq!(ok(&["db", "get", &target, "key000000"]), "value 0\n");
    assert_eq!(
        ok(&["db", "scan", &target, "--cf", "rocks", "--count"]),
        "100\n"
    );
    fails(1, &["db", "checkpoint", &db, &target]);
}

#[test]
fn what_is_prepared_is_listed_and_ended() {
    let dir = TempDir::new("cli-prepared");
    let db = sample(&dir, 10);
    {
        let open = orogen::Db::open(&db, &orogen::Options::default()).unwrap();
        for name in ["a", "b", "c"] {
            let mut batch = orogen::WriteBatch::new();
            batch.put(0, name.as_bytes(), b"1");
            if name == "c" {
                batch.delete_range(0, b"x", b"z");
            }
            let how = orogen::WriteOptions::default();
            open.prepare(&how, name.as_bytes(), batch).unwrap();
        }
    }
    let names = |document: &serde_json::Value| {
        let all = document["prepared"].as_array().unwrap().iter();
        all.map(|p| p["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&json(&["db", "prepared", &db])), ["a", "b", "c"]);
    let locks = &json(&["db", "locks", &db])["locks"];
    assert_eq!(locks[0]["key"], "a");
    assert_eq!(locks[0]["prepared"][0], "a");
    assert_eq!(locks[3]["start"], "x");
    assert_eq!(locks[3]["end"], "z");
    assert!(ok(&["db", "locks", &db]).ends_with("default\tc\tc\ndefault\t[x, z)\tc\n"));
    let left = json(&["db", "prepared", &db, "--commit", "a"]);
    assert_eq!(names(&left), ["b", "c"]);
    assert_eq!(ok(&["db", "get", &db, "a"]), "1\n");
    assert!(ok(&["db", "prepared", &db, "--rollback", "b"]).starts_with("c\t2 operations"));
    fails(3, &["db", "get", &db, "b"]);
    fails(3, &["db", "prepared", &db, "--commit", "b"]);
    ok(&["db", "prepared", &db, "--rollback", "c"]);
    assert_eq!(ok(&["db", "locks", &db]), "");
}

#[test]
fn readers_work_beside_a_writer_and_writers_do_not() {
    let dir = TempDir::new("cli-beside");
    let path = sample(&dir, 10);
    let db = orogen::Db::open(&path, &orogen::Options::default()).unwrap();
    db.put(b"new", b"fresh").unwrap();
    assert_eq!(ok(&["db", "get", &path, "new"]), "fresh\n");
    assert_eq!(ok(&["db", "scan", &path, "--count"]), "11\n");
    ok(&["db", "tree", &path]);
    ok(&["db", "stats", &path]);
    ok(&["db", "check", &path]);
    ok(&["manifest", "dump", &path]);
    for args in [
        &["db", "put", &path, "a", "b"][..],
        &["db", "delete", &path, "new"],
        &["db", "compact", &path],
        &["db", "create", &path, "--cf", "more"],
    ] {
        fails(5, args);
    }
    db.close().unwrap();
    ok(&["db", "put", &path, "a", "b"]);
}

#[test]
fn what_is_not_there_is_not_found_and_not_made() {
    let dir = TempDir::new("cli-missing");
    let nowhere = text(&dir.path().join("nowhere")).to_owned();
    for command in ["stats", "check", "tree", "compact", "scan"] {
        fails(3, &["db", command, &nowhere]);
    }
    fails(3, &["db", "get", &nowhere, "a"]);
    fails(3, &["db", "put", &nowhere, "a", "b"]);
    assert!(!std::path::Path::new(&nowhere).exists());
    let db = sample(&dir, 3);
    let run = fails(3, &["db", "get", &db, "a", "--cf", "nobody"]);
    assert!(
        run.err.contains("'nobody'") && run.out.is_empty(),
        "{}",
        run.err
    );
    fails(1, &["db", "create", &db]);
    fails(2, &["db", "get", &db]);
    fails(2, &["db", "nonsense", &db]);
}

#[test]
fn families_in_reverse_order_are_read_in_it() {
    let dir = TempDir::new("cli-reverse");
    let db = text(&dir.path().join("db")).to_owned();
    ok(&["db", "create", &db, "--cf", "reverse", "--reverse"]);
    for key in ["a", "b", "ba", "c"] {
        ok(&["db", "put", &db, "--cf", "reverse", key, "x"]);
    }
    assert_eq!(
        ok(&["db", "scan", &db, "--cf", "reverse", "--keys-only"]),
        "c\nba\nb\na\n"
    );
    assert_eq!(
        ok(&[
            "db",
            "scan",
            &db,
            "--cf",
            "reverse",
            "--keys-only",
            "--prefix",
            "b"
        ]),
        "ba\nb\n"
    );
    ok(&["db", "compact", &db]);
    ok(&["db", "check", &db]);
    assert!(ok(&["db", "tree", &db]).contains("c -> a"));
}

#[test]
fn an_order_that_is_not_built_in_is_not_supported() {
    struct Shortest;
    impl orogen::Comparator for Shortest {
        fn name(&self) -> &str {
            "test.Shortest"
        }
        fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        }
    }
    let dir = TempDir::new("cli-order");
    let path = dir.path().join("db");
    let mut options = orogen::Options::default();
    options.db.create_if_missing = true;
    options.cf.comparator = orogen::UserComparator::custom(std::sync::Arc::new(Shortest));
    orogen::Db::open(&path, &options).unwrap().close().unwrap();
    let run = fails(8, &["db", "scan", text(&path)]);
    assert!(run.err.contains("test.Shortest"), "{}", run.err);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = TempDir::new("cli-pipe");
    let db = sample(&dir, 20_000);
    let mut child = command(&["db", "scan", &db])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn bench_hands_its_flags_on() {
    let dir = TempDir::new("cli-bench");
    let db = format!("--db={}", text(&dir.path().join("db")));
    let out = ok(&["bench", "--benchmarks=fillseq,readrandom", "--num=500", &db]);
    assert!(out.contains("(500 of 500 found)"), "{out}");
    let document = json(&["bench", "--benchmarks=fillseq", "--num=100", &db]);
    assert_eq!(document["results"][0]["operations"], 100);
    let first = ok(&["--json", "bench", "--benchmarks=fillseq", "--num=100", &db]);
    assert!(first.starts_with('{'), "{first}");
    assert!(ok(&["bench", "--flags"]).contains("--write_buffer_size"));
    assert_eq!(orogen(&["bench", "--nonsense=1"]).code, 2);
}

#[test]
fn ranges_have_sizes_and_their_tables_can_be_dropped() {
    let dir = TempDir::new("cli-ranges");
    let db = sample(&dir, 2000);
    // The newer half is in the log.
    let sizes = json(&["db", "sizes", &db]);
    assert!(sizes["table_bytes"].as_u64().unwrap() > 1000, "{sizes}");
    let in_log = json(&["db", "sizes", &db, "--from", "key001990"]);
    assert_eq!(in_log["table_bytes"], 0);
    assert!(in_log["memtable_bytes"].as_u64().unwrap() > 9 * 20);
    fails(2, &["db", "delete-files", &db]);
    // Level 0 is left alone.
    let none = json(&["db", "delete-files", &db, "--all-keys"]);
    assert_eq!(none["tables"].as_array().unwrap().len(), 0);
    ok(&["db", "compact", &db, "--force"]);
    let upto_last = [
        "db",
        "delete-files",
        &db,
        "--from",
        "key",
        "--to",
        "key001999",
    ];
    assert_eq!(json(&upto_last)["tables"].as_array().unwrap().len(), 0);
    let gone = json(&[&upto_last[..], &["--include-end"]].concat());
    assert_eq!(gone["tables"].as_array().unwrap().len(), 1);
    assert_eq!(gone["blob_files"].as_array().unwrap().len(), 0);
    fails(
        2,
        &["db", "delete-files", &db, "--all-keys", "--include-end"],
    );
    assert_eq!(ok(&["db", "scan", &db, "--count"]), "0\n");
    assert_eq!(
        ok(&["db", "scan", &db, "--cf", "rocks", "--count"]),
        "2000\n"
    );
}

#[test]
fn updates_in_the_log_are_printed_and_those_that_are_gone_are_told() {
    let dir = TempDir::new("cli-updates");
    let db = sample(&dir, 100);
    let all = json(&["db", "updates", &db]);
    let all = all.as_array().unwrap();
    // The first 51 batches of two went with their log.
    assert_eq!(all.len(), 49);
    assert_eq!(all[0]["sequence_number"], 103);
    assert_eq!(all[0]["operations"][0]["key"], "key000051");
    let some = ok(&["db", "updates", &db, "--since", "199", "--limit", "1"]);
    assert!(
        some.starts_with("sequence 199 count 2\n  put cf=0 key000099"),
        "{some}"
    );
    fails(3, &["db", "updates", &db, "--since", "5"]);
    fails(1, &["db", "updates", &db, "--since", "500"]);
}

#[test]
fn a_directory_that_is_being_written_is_read_as_a_secondary() {
    let dir = TempDir::new("orogen-cli");
    let path = dir.path().join("db").display().to_string();
    let mut options = orogen::Options::default();
    options.db.create_if_missing = true;
    options.cf.write_buffer_size = 16 << 10;
    let db = orogen::Db::open(&path, &options).unwrap();
    let before = names(&path);
    for n in 0..2000u32 {
        db.put(format!("key{n:04}").as_bytes(), b"value").unwrap();
    }
    db.wait_for_background_work().unwrap();
    let after = names(&path);
    assert_ne!(before, after);
    assert_eq!(
        ok(&["db", "get", &path, "key1999", "--secondary"]),
        "value\n"
    );
    assert_eq!(
        ok(&["db", "scan", &path, "--secondary", "--count"]),
        "2000\n"
    );
    for command in ["stats", "tree", "sizes"] {
        ok(&["db", command, &path, "--secondary"]);
    }
    // Some may go that a look for work had held.
    let made: Vec<_> = names(&path)
        .into_iter()
        .filter(|n| !after.contains(n))
        .collect();
    assert!(made.is_empty(), "nothing is made there: {made:?}");
}

fn names(dir: &str) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(dir).expect("it lists");
    let mut names: Vec<_> = entries.map(|e| e.expect("it lists").file_name()).collect();
    names.sort();
    names
}

#[test]
fn scans_read_no_value_that_nobody_asks_for() {
    let dir = TempDir::new("cli-scan-values");
    let db = text(&dir.path().join("db")).to_owned();
    ok(&["db", "create", &db]);
    ok(&["db", "put", &db, "a", "short"]);
    ok(&["db", "put", &db, "b", &"long".repeat(100)]);
    ok(&["db", "put", &db, "c", &"longer".repeat(100)]);
    let separate = ["--to", "separated", "--min-blob-size", "100"];
    ok(&[&["blob", "convert", &db][..], &separate].concat());
    assert!(ok(&["db", "scan", &db]).starts_with("a\tshort\nb\tlonglong"));
    for blob in super::files(&db, ".blob") {
        std::fs::remove_file(blob).expect("it is there");
    }
    fails(4, &["db", "scan", &db]);
    assert_eq!(ok(&["db", "scan", &db, "--keys-only"]), "a\nb\nc\n");
    assert_eq!(ok(&["db", "scan", &db, "--count"]), "3\n");
    assert_eq!(ok(&["db", "scan", &db, "--limit", "1"]), "a\tshort\n");
    assert_eq!(ok(&["db", "scan", &db, "--limit", "0"]), "");
    // Bytes of values are asked for.
    fails(4, &["db", "scan", &db, "--count", "--json"]);
}

#[test]
fn a_database_is_not_made_for_families_that_cannot_be() {
    let dir = TempDir::new("cli-create-names");
    let path = dir.path().join("db");
    let db = text(&path).to_owned();
    for names in [["a", "a"], ["a", "default"]] {
        fails(
            2,
            &["db", "create", &db, "--cf", names[0], "--cf", names[1]],
        );
        assert!(!path.exists());
    }
}

#[test]
fn names_of_families_do_not_steer_the_terminal() {
    let dir = TempDir::new("cli-names");
    let db = text(&dir.path().join("db")).to_owned();
    let run = orogen(&["db", "create", &db, "--cf", "\u{1b}[31mred"]);
    assert_eq!(run.code, 0);
    for shown in [
        run.err,
        ok(&["db", "repair", &db]),
        ok(&["db", "stats", &db]),
    ] {
        assert!(shown.contains("\\x1b[31mred"), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
