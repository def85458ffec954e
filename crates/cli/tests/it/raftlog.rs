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
fn a_fork_has_what_its_source_had() {
    let dir = TempDir::new("raftlog-fork");
    let (logs, copy) = (dir.path().join("raft"), dir.path().join("copy"));
    drop(engine(&logs));
    let (logs, copy) = (text(&logs), text(&copy));
    let made = json(&["raftlog", "fork", logs, copy]);
    assert_eq!(made["copied"].as_array().unwrap().len(), 1);
    assert!(made["shared"].as_array().unwrap().len() > 2);
    assert_eq!(
        ok(&["raftlog", "dump", logs]),
        ok(&["raftlog", "dump", copy])
    );
    ok(&["raftlog", "check", copy]);
    let again = orogen(&["raftlog", "fork", logs, copy]);
    assert!(
        again.code != 0 && again.err.contains("has files already"),
        "{}",
        again.err
    );
}
