//! `orogen raftlog`.

use std::path::Path;
use std::sync::Arc;

use orogen_env::PosixFileSystem;
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue};
use orogen_testkit::TempDir;

use crate::{fails, json, ok, orogen, text};

/// Three groups over several small files, and keys; still open.
fn engine(dir: &Path) -> Engine {
    let options = Options {
        target_file_size: 1000,
        purge_threshold: 1 << 20,
        ..Options::default()
    };
    let fs: Arc<dyn orogen_env::FileSystem> = Arc::new(PosixFileSystem);
    let engine = Engine::open(&fs, dir, options).expect("a whole disk");
    for index in 1..=60u64 {
        let mut batch = LogBatch::default();
        for group in 1..=3 {
            batch
                .add_entries(group, index, &[format!("{group}-{index}")])
                .expect("a whole disk");
        }
        batch
            .put(2, b"state".to_vec(), index.to_string().into_bytes())
            .expect("a whole disk");
        engine.write(&mut batch, false).expect("a whole disk");
    }
    let mut batch = LogBatch::default();
    batch.add_command(3, Command::Compact { index: 50 });
    batch.delete(2, b"gone".to_vec());
    engine.write(&mut batch, true).expect("a whole disk");
    assert!(engine.file_span(Queue::Append).expect("a whole disk").1 > 3);
    engine
}

#[test]
fn operations_are_listed() {
    let dir = TempDir::new("raftlog-dump");
    let logs = dir.path().join("raft");
    let open = engine(&logs);
    let logs = text(&logs);
    // Beside the process that writes.
    let all = json(&["raftlog", "dump", logs]);
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 60 * 4 + 2);
    assert_eq!(all[0]["group"], 1);
    assert_eq!((&all[0]["first"], &all[0]["bytes"]), (&1.into(), &3.into()));
    let of_two = json(&["raftlog", "dump", logs, "--group", "2", "--limit", "3"]);
    let of_two = of_two.as_array().unwrap();
    assert_eq!(of_two.len(), 3);
    assert_eq!(of_two[1]["key"], "state");
    assert_eq!(of_two[1]["value"], "1");
    let none = json(&["raftlog", "dump", logs, "--limit", "0"]);
    assert_eq!(none.as_array().unwrap().len(), 0);
    drop(open);
    let file = format!("{logs}/0000000000000002.raftlog");
    let lines = ok(&["raftlog", "dump", &file]);
    assert!(
        lines.contains("group 3") && lines.contains("put state\t"),
        "{lines}"
    );
    let lines = ok(&["raftlog", "dump", logs, "--group", "3"]);
    assert!(lines.trim_end().ends_with("compact 50"), "{lines}");
    fails(3, &["raftlog", "dump", &format!("{logs}/nowhere")]);
    fails(2, &["raftlog", "dump", &format!("{logs}/LOCK")]);
}

#[test]
fn damage_and_holes_are_told_but_for_a_torn_end() {
    let dir = TempDir::new("raftlog-check");
    let logs = dir.path().join("raft");
    let open = engine(&logs);
    let newest = open.file_span(Queue::Append).unwrap().1;
    let path = text(&logs);
    fails(5, &["raftlog", "check", path]);
    drop(open);
    let whole = json(&["raftlog", "check", path]);
    assert_eq!(
        (&whole["groups"], &whole["damaged_files"]),
        (&3.into(), &0.into())
    );
    let entries = whole["files"].as_array().unwrap().iter();
    assert_eq!(
        entries.map(|f| f["entries"].as_u64().unwrap()).sum::<u64>(),
        180
    );
    let file = |seq: u64| logs.join(format!("{seq:016}.raftlog"));
    let mut bytes = std::fs::read(file(newest)).unwrap();
    bytes.extend([7; 30]);
    std::fs::write(file(newest), &bytes).unwrap();
    let torn = ok(&["raftlog", "check", path]);
    assert!(
        torn.contains("as after a crash") && torn.contains("0 damaged files"),
        "{torn}"
    );
    let mut bytes = std::fs::read(file(2)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 60].fill(0x55);
    std::fs::write(file(2), &bytes).unwrap();
    let before = std::fs::read(file(2)).unwrap();
    let damaged = fails(4, &["raftlog", "check", path]);
    assert!(damaged.out.contains("1 damaged file,"), "{}", damaged.out);
    assert!(
        damaged.out.contains("entries are missing behind"),
        "{}",
        damaged.out
    );
    assert_eq!(
        std::fs::read(file(2)).unwrap(),
        before,
        "nothing is changed"
    );
    fails(4, &["raftlog", "dump", path]);
    fails(3, &["raftlog", "check", &format!("{path}/nowhere")]);
}

#[test]
fn files_behind_which_one_is_missing_are_told() {
    let dir = TempDir::new("raftlog-gap");
    let logs = dir.path().join("raft");
    let (first, newest) = engine(&logs)
        .file_span(Queue::Append)
        .expect("it has files");
    assert!(newest - first >= 2);
    let path = text(&logs);
    let whole = json(&["raftlog", "check", path]);
    assert_eq!(whole["not_read"], serde_json::json!([]));
    let name = |seq: u64| format!("{seq:016}.raftlog");
    std::fs::remove_file(logs.join(name(newest - 1))).expect("it is there");
    let told = fails(4, &["raftlog", "check", path]);
    let not_read: Vec<_> = (first..newest - 1).map(name).collect();
    for file in &not_read {
        let line = format!("{file}  not read");
        assert!(told.out.contains(&line), "{}", told.out);
    }
    let told = fails(4, &["raftlog", "check", path, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told.out).expect("a document");
    assert_eq!(told["not_read"], serde_json::json!(not_read));
}

#[test]
fn a_directory_without_logs_is_none_and_stays_as_it_is() {
    let dir = TempDir::new("raftlog-none");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).expect("a whole disk");
    let script = dir.path().join("s.rhai");
    std::fs::write(&script, "").expect("a whole disk");
    let (path, target) = (text(&empty), dir.path().join("target"));
    for command in [
        &["raftlog", "check", path][..],
        &["raftlog", "dump", path],
        &["raftlog", "fork", path, text(&target)],
        &["raftlog", "purge", "--path", path],
        &[
            "raftlog",
            "repair",
            "--path",
            path,
            "--queue",
            "all",
            "--script",
            text(&script),
        ],
    ] {
        let run = fails(3, command);
        assert!(run.err.contains("no Raft log"), "{command:?} {}", run.err);
    }
    assert_eq!(std::fs::read_dir(&empty).expect("is there").count(), 0);
    assert!(!target.exists());
}

#[test]
fn a_check_fails_where_an_open_does() {
    let dir = TempDir::new("raftlog-check-open");
    let logs = dir.path().join("raft");
    let fs: Arc<dyn orogen_env::FileSystem> = Arc::new(PosixFileSystem);
    let newest = engine(&logs)
        .file_span(Queue::Append)
        .expect("it has files")
        .1;
    let file = |seq: u64| logs.join(format!("{seq:016}.raftlog"));
    let whole = [newest - 1, newest].map(|seq| std::fs::read(file(seq)).expect("it is there"));
    let put = |seq: u64, bytes: &[u8]| std::fs::write(file(seq), bytes).expect("a whole disk");
    let agree = |is_well: bool, what: &str| {
        let checked = orogen(&["raftlog", "check", text(&logs)]);
        assert_eq!(
            checked.code,
            if is_well { 0 } else { 4 },
            "{what}: {}",
            checked.out
        );
        let copy = dir.path().join(what);
        std::fs::create_dir(&copy).expect("a whole disk");
        for name in names(&logs) {
            std::fs::copy(logs.join(&name), copy.join(&name)).expect("a whole disk");
        }
        let opened = Engine::open(&fs, &copy, Options::default());
        assert_eq!(opened.is_ok(), is_well, "{what}");
    };
    agree(true, "whole");
    let zeros = |bytes: &[u8]| [bytes, &[0; 100]].concat();
    put(newest, &zeros(&whole[1]));
    agree(true, "room behind the newest file");
    put(newest - 1, &zeros(&whole[0]));
    agree(false, "zeros behind an earlier file");
    // A process died while it made the next file.
    put(newest - 1, &whole[0][..whole[0].len() - 3]);
    put(newest, &whole[1][..69]);
    agree(true, "torn before a file without records");
    put(newest - 1, &whole[0]);
    let mut header = whole[1].clone();
    header[3] ^= 1;
    put(newest, &header);
    agree(false, "a damaged header before records");
    put(newest, &header[..30]);
    agree(true, "a part of a header");
}

#[test]
fn a_fork_has_what_its_source_had() {
    let dir = TempDir::new("raftlog-fork");
    let (logs, copy) = (dir.path().join("raft"), dir.path().join("copy"));
    drop(engine(&logs));
    let (logs, copy) = (text(&logs), text(&copy));
    let made = json(&["raftlog", "fork", logs, copy]);
    assert!(made["copied"].as_array().unwrap().len() > 3);
    assert_eq!(made["shared"].as_array().unwrap().len(), 0);
    let sharing = format!("{copy}-sharing");
    let made = json(&["raftlog", "fork", logs, &sharing, "--share"]);
    assert_eq!(made["copied"].as_array().unwrap().len(), 1);
    assert!(made["shared"].as_array().unwrap().len() > 2);
    assert_eq!(
        ok(&["raftlog", "dump", logs]),
        ok(&["raftlog", "dump", copy])
    );
    ok(&["raftlog", "check", copy]);
    let again = orogen(&["raftlog", "fork", logs, copy]);
    assert!(
        again.code == 1 && again.err.contains("has files already"),
        "{}",
        again.err
    );
    let fs: Arc<dyn orogen_env::FileSystem> = Arc::new(PosixFileSystem);
    let open = Engine::open(&fs, Path::new(logs), Options::default()).unwrap();
    let busy = orogen(&["raftlog", "fork", logs, &format!("{copy}-2")]);
    assert_eq!(busy.code, 5, "{}", busy.err);
    drop(open);
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .expect("it is there")
        .map(|entry| {
            let name = entry.expect("it is listed").file_name();
            name.to_string_lossy().into_owned()
        })
        .filter(|name| name != "LOCK")
        .collect();
    names.sort();
    names
}

#[test]
fn a_script_takes_operations_out() {
    let dir = TempDir::new("raftlog-repair");
    let logs = dir.path().join("raft");
    let script = dir.path().join("script.rhai");
    let open = engine(&logs);
    std::fs::write(
        &script,
        "fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { if id == 3 { 1 } else { 0 } }",
    )
    .unwrap();
    let repair = |queue| {
        let (path, script) = (text(&logs), text(&script));
        [
            "raftlog", "repair", "--path", path, "--queue", queue, "--script", script,
        ]
    };
    fails(5, &repair("all"));
    let newest = open.file_span(Queue::Append).unwrap().1;
    drop(open);
    // Digests are made in the background, and those that are left when it is closed. That of a file that is written anew goes.
    let mut before = names(&logs);
    let digest = format!("{newest:016}.raftlog.digest");
    assert!(before.contains(&digest), "{before:?}");
    before.retain(|name| *name != digest);
    let none = json(&repair("rewrite"));
    assert_eq!((&none["dropped"], &none["asked"]), (&0.into(), &0.into()));
    let done = json(&repair("append"));
    assert_eq!((&done["dropped"], &done["asked"]), (&1.into(), &181.into()));
    assert_eq!(done["files"].as_array().unwrap().len(), 1);
    assert_eq!(names(&logs), before);
    assert!(!ok(&["raftlog", "dump", text(&logs), "--group", "3"]).contains("compact"));
    ok(&["raftlog", "check", text(&logs)]);
    let again = ok(&repair("all"));
    assert!(
        again.contains("0 files written anew, 0 of 180 operations"),
        "{again}"
    );
    std::fs::write(&script, "fn filter_append(id) { 0 }").unwrap();
    fails(2, &repair("all"));
    fails(2, &repair("other"));
    let bytes = |name: &String| std::fs::read(logs.join(name)).unwrap();
    let whole: Vec<_> = before.iter().map(bytes).collect();
    // Entries without those before them leave a hole.
    std::fs::write(
        &script,
        "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if ifirst == 7 { 1 } else { 0 } }",
    )
    .unwrap();
    fails(4, &repair("all"));
    assert_eq!(before.iter().map(bytes).collect::<Vec<_>>(), whole);
    std::fs::remove_file(&script).unwrap();
    fails(3, &repair("all"));
}

#[test]
fn a_purge_makes_a_directory_shorter() {
    let dir = TempDir::new("raftlog-purge");
    let logs = dir.path().join("raft");
    let open = engine(&logs);
    let path = text(&logs);
    let purge = ["raftlog", "purge", "--path", path];
    fails(5, &purge);
    // Old files with nothing in them but what the next ones take away, and one key.
    for n in 0..40 {
        let mut batch = LogBatch::default();
        for group in 1..=3 {
            batch.add_command(group, Command::Clean);
        }
        if n == 0 {
            batch.put(8, b"old".to_vec(), vec![1]).unwrap();
        }
        batch.put(9, b"new".to_vec(), vec![n; 300]).unwrap();
        open.write(&mut batch, false).unwrap();
    }
    drop(open);
    let short = json(&purge);
    assert_eq!(short["files_before"], short["files_after"]);
    let small = ["--file-size", "1000", "--purge-threshold", "3000"];
    let done = json(&[&purge[..], &small].concat());
    let append = |files: &str| done[files]["append"].as_u64().unwrap();
    assert!(append("files_after") < append("files_before"), "{done}");
    assert_eq!(done["groups_moved"], 1, "{done}");
    ok(&["raftlog", "check", path]);
    let lines = ok(&[&purge[..], &small].concat());
    assert!(lines.starts_with("before: "), "{lines}");
    fails(
        3,
        &["raftlog", "purge", "--path", &format!("{path}/nowhere")],
    );
    // Less than a file has.
    fails(2, &[&purge[..], &["--purge-threshold", "1000"]].concat());
}

#[test]
fn a_bench_counts_the_bytes_of_entries_that_were_written() {
    let dir = TempDir::new("raftlog-bench-bytes");
    let path = dir.path().join("raft");
    // All threads but one have a single group, and no second one for their batches.
    let told = json(&[
        "raftlog",
        "bench",
        "--path",
        text(&path),
        "--count",
        "400",
        "--threads",
        "4",
        "--groups",
        "5",
        "--batch-groups",
        "2",
        "--entry-size",
        "10000",
    ]);
    let mib = told["entry_mib_per_second"].as_f64().unwrap() * told["seconds"].as_f64().unwrap();
    let appended = told["append"]["appended_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    // The bytes are random, so a log takes about as many; those of a batch may overlap, and are then compressed.
    assert!(
        0.95 * mib <= appended && appended <= 1.05 * mib,
        "{mib} {appended} {told}"
    );
}

#[test]
fn a_bench_tells_what_writes_took() {
    let dir = TempDir::new("raftlog-bench");
    let path = dir.path().join("raft");
    let bench = |name: &str, more: &[&str]| {
        let path = path.with_file_name(name);
        let mut args = vec!["raftlog", "bench", "--path"];
        let path = text(&path).to_owned();
        args.push(&path);
        args.extend(more);
        json(&args)
    };
    let some = bench(
        "some",
        &[
            "--count",
            "500",
            "--threads",
            "2",
            "--entries",
            "3",
            "--sync",
            "--batch-groups",
            "2",
        ],
    );
    assert_eq!(some["writes"], 500);
    assert!(some["append"]["syncs"].as_u64().unwrap() > 100);
    assert!(some["append"]["appended_bytes"].as_u64().unwrap() > 500 * 2 * 3 * 256);
    let latency = &some["write_micros"];
    assert!(latency["p50"].as_f64().unwrap() <= latency["max"].as_f64().unwrap());
    let logs = path.with_file_name("some");
    let held = json(&["raftlog", "check", text(&logs)]);
    assert_eq!(held["groups"], 64);
    let small = [
        "--file-size",
        "20000",
        "--purge-threshold",
        "60000",
        "--keep",
        "32",
        "--purge",
    ];
    let timed = bench(
        "timed",
        &[
            &["--seconds", "2", "--groups", "4", "--metrics"],
            &small[..],
        ]
        .concat(),
    );
    let metrics = timed["metrics"].as_str().unwrap();
    assert!(
        metrics.contains("raft_engine_write_size_count"),
        "{metrics}"
    );
    assert!(
        !metrics.contains("raft_engine_purge_duration_seconds_count 0"),
        "{metrics}"
    );
    let lines = {
        let path = path.with_file_name("text");
        ok(&[
            "raftlog",
            "bench",
            "--path",
            text(&path),
            "--count",
            "10",
            "--metrics",
        ])
    };
    assert!(
        lines.starts_with("10 writes in ") && lines.contains("p99.9"),
        "{lines}"
    );
    assert!(
        lines.contains("# TYPE raft_engine_memory_usage gauge"),
        "{lines}"
    );
    let aligned = bench(
        "aligned",
        &[
            &["--record-alignment", "4096", "--count", "100", "--sync"],
            &["--metrics"][..],
        ]
        .concat(),
    );
    let metrics = aligned["metrics"].as_str().unwrap();
    let padding = "orogen_raftlog_padding_bytes_total{type=\"append\"} ";
    let padding = metrics.split(padding).nth(1).unwrap();
    let padding: u64 = padding.lines().next().unwrap().parse().unwrap();
    assert!(padding > 100 * 3000, "{padding}");
    let aligned = path.with_file_name("refused");
    let refused = ["raftlog", "bench", "--path", text(&aligned)];
    fails(2, &[&refused[..], &["--record-alignment", "1000"]].concat());
    fails(2, &["raftlog", "bench", "--path", text(&logs)]);
    fails(
        2,
        &[
            "raftlog",
            "bench",
            "--path",
            text(&path),
            "--threads",
            "9",
            "--groups",
            "8",
        ],
    );
    fails(
        2,
        &[
            "raftlog",
            "bench",
            "--path",
            text(&path),
            "--purge-threshold",
            "1",
        ],
    );
}

#[test]
fn two_directories_are_one_log() {
    let temp = TempDir::new("raftlog-two-dirs");
    let [logs, second] = ["raft", "second"].map(|name| temp.path().join(name));
    drop(engine(&logs));
    let whole = json(&["raftlog", "check", text(&logs)]);
    // Files may lie in either.
    std::fs::create_dir(&second).unwrap();
    for seq in [2, 3] {
        let name = format!("{seq:016}.raftlog");
        std::fs::rename(logs.join(&name), second.join(&name)).unwrap();
    }
    let (logs, second) = (text(&logs), text(&second));
    let both = json(&["raftlog", "check", logs, "--spill-dir", second]);
    assert_eq!(both["groups"], whole["groups"]);
    assert_eq!(both["holes"], whole["holes"]);
    let files = both["files"].as_array().unwrap();
    assert_eq!(files.len(), whole["files"].as_array().unwrap().len());
    assert!(
        files[1]["file"].as_str().unwrap().starts_with(second),
        "{files:?}"
    );
    let all = json(&["raftlog", "dump", logs, "--spill-dir", second]);
    assert_eq!(all.as_array().unwrap().len(), 60 * 4 + 2);
    let copy = text(&temp.path().join("copy")).to_owned();
    let made = json(&["raftlog", "fork", logs, &copy, "--spill-dir", second]);
    let shared = made["shared"].as_array().unwrap().len();
    assert_eq!(
        shared + made["copied"].as_array().unwrap().len(),
        files.len()
    );
    let all = json(&["raftlog", "dump", &copy]);
    assert_eq!(all.as_array().unwrap().len(), 60 * 4 + 2);
    let script = temp.path().join("s.rhai");
    std::fs::write(
        &script,
        "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if id == 1 { 1 } else { 0 } }",
    )
    .unwrap();
    let repaired = json(&[
        "raftlog",
        "repair",
        "--path",
        logs,
        "--spill-dir",
        second,
        "--queue",
        "all",
        "--script",
        text(&script),
    ]);
    assert_eq!(repaired["dropped"], 60);
    let purged = json(&["raftlog", "purge", "--path", logs, "--spill-dir", second]);
    assert_eq!(purged["files_before"]["append"], files.len());
    let left = json(&["raftlog", "dump", logs, "--spill-dir", second]);
    assert_eq!(left.as_array().unwrap().len(), 60 * 3 + 2);
    fails(
        3,
        &[
            "raftlog",
            "check",
            logs,
            "--spill-dir",
            &format!("{second}/nowhere"),
        ],
    );
}
