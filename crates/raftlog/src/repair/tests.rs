use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fs::read_file;
use orogen_env::{Fault, FaultFileSystem, MemFileSystem};

use super::*;
use crate::names::LOCK_NAME;
use crate::raw::{Command, Engine, LogBatch, Options, RepairScript};

fn dir() -> &'static Path {
    Path::new("/log")
}

fn open(fs: &MemFileSystem) -> Engine {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        target_file_size: 600,
        purge_threshold: 1800,
        purge_rewrite_threshold: Some(1200),
        batch_compression_threshold: 500,
        enable_log_recycle: false,
        ..Options::default()
    };
    Engine::open(&fs, dir(), options).unwrap()
}

fn write(engine: &Engine, group: u64, first: u64, count: u64) {
    let mut batch = LogBatch::default();
    let entries: Vec<String> = (first..first + count)
        .map(|i| format!("{group}-{i}-").repeat(9))
        .collect();
    batch.add_entries(group, first, &entries).unwrap();
    batch
        .put(
            group,
            b"last".to_vec(),
            (first + count).to_le_bytes().to_vec(),
        )
        .unwrap();
    engine.write(&mut batch, false).unwrap();
}

fn command(engine: &Engine, group: u64, command: Command) {
    let mut batch = LogBatch::default();
    batch.add_command(group, command);
    engine.write(&mut batch, false).unwrap();
}

/// Three groups over several files of both queues.
fn sample() -> MemFileSystem {
    let fs = MemFileSystem::new();
    let engine = open(&fs);
    for turn in 0..12 {
        for group in 1..=3 {
            write(&engine, group, 1 + turn * 4, 4);
        }
        engine.purge_expired_files().unwrap();
    }
    command(&engine, 2, Command::Compact { index: 40 });
    command(&engine, 3, Command::Clean);
    write(&engine, 3, 100, 2);
    assert!(engine.file_span(Queue::Rewrite).is_some());
    engine.close().unwrap();
    fs
}

type Files = BTreeMap<String, Vec<u8>>;

/// All files but digests, which are made anew.
fn files(fs: &dyn FileSystem) -> Files {
    let names = fs.list(dir()).unwrap();
    names
        .into_iter()
        .filter(|name| name != LOCK_NAME && !name.ends_with(".digest"))
        .map(|name| {
            let bytes = read_file(fs, &dir().join(&name)).unwrap();
            (name, bytes)
        })
        .collect()
}

fn by_script(fs: &dyn FileSystem, queue: Option<Queue>, text: &str) -> Result<Repaired> {
    let script = RepairScript::compile(text)?;
    repair(fs, dir(), None, queue, |incoming| script.decide(incoming))
}

#[test]
fn without_a_verdict_nothing_changes() {
    let fs = sample();
    let before = files(&fs);
    for queue in [None, Some(Queue::Append), Some(Queue::Rewrite)] {
        assert_eq!(by_script(&fs, queue, "").unwrap(), Repaired::default());
    }
    assert_eq!(files(&fs), before);
}

#[test]
fn what_is_dropped_is_gone_and_the_rest_is_as_it_was() {
    // A clean: group 3 is what it was before, and the entries behind that go, too, which would leave a hole.
    let fs = sample();
    let done = by_script(
        &fs,
        None,
        "fn filter_clean(id, first, count, rewrite_count, queue) { if id == 3 { 1 } else { 0 } }
         fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) {
           if id == 3 && ifirst >= 100 { 1 } else { 0 }
         }",
    )
    .unwrap();
    assert_eq!((done.dropped, done.added), (2, 0));
    let engine = open(&fs);
    assert_eq!(
        (engine.first_index(3), engine.last_index(3)),
        (Some(1), Some(48))
    );
    let entry = engine.get_entry(3, 17).unwrap().unwrap();
    assert_eq!(entry, "3-17-".repeat(9).into_bytes());
    assert_eq!(
        engine.get(3, b"last"),
        Some(102u64.to_le_bytes().to_vec()),
        "keys stay"
    );
    assert_eq!(
        (engine.first_index(2), engine.last_index(2)),
        (Some(40), Some(48))
    );
    drop(engine);
    // A compact.
    let fs = sample();
    by_script(
        &fs,
        Some(Queue::Append),
        "fn filter_compact(a, b, c, d, e, f) { 1 }",
    )
    .unwrap();
    assert_eq!(open(&fs).first_index(2), Some(1));
    // Entries.
    let fs = sample();
    let last = "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) {
        if id == 1 && ilast == 48 { 1 } else { 0 }
    }";
    let done = by_script(&fs, None, last).unwrap();
    assert_eq!((done.dropped, done.files.len()), (1, 1));
    assert_eq!(open(&fs).last_index(1), Some(44));
    // What is there before.
    let fs = sample();
    let existing = "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) {
        if id == 1 && ilast == 48 { 2 } else { 0 }
    }";
    let done = by_script(&fs, None, existing).unwrap();
    assert_eq!((done.dropped, done.added), (0, 1));
    let engine = open(&fs);
    assert_eq!(
        (engine.first_index(1), engine.last_index(1)),
        (Some(45), Some(48))
    );
}

#[test]
fn states_are_told_as_they_are_replayed() {
    let fs = MemFileSystem::new();
    let engine = open(&fs);
    write(&engine, 9, 5, 4);
    write(&engine, 9, 7, 4);
    command(&engine, 9, Command::Compact { index: 6 });
    command(&engine, 9, Command::Clean);
    engine.close().unwrap();
    let mut told = Vec::new();
    repair(&fs, dir(), None, None, |incoming| {
        told.push((incoming.first, incoming.count, incoming.change));
        Ok(Verdict::Apply)
    })
    .unwrap();
    let entries = |first, last| Change::Entries { first, last };
    let compact = Change::Compact { index: 6 };
    let expected = [
        (0, 0, entries(5, 8)),
        (5, 4, entries(7, 10)),
        (5, 6, compact),
    ];
    assert_eq!(told[..3], expected);
    assert_eq!(told[3], (6, 5, Change::Clean));
}

#[test]
fn a_hole_that_passes_is_an_error() {
    let mut state = State::default();
    let entries = |first, last| Change::Entries { first, last };
    state.apply(Queue::Append, entries(5, 9)).unwrap();
    for wrong in [entries(11, 12), entries(4, 4)] {
        let e = state.apply(Queue::Append, wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption);
    }
    assert_eq!((state.first, state.count), (5, 5));
    let e = state.apply(Queue::Rewrite, entries(7, 9)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    state.apply(Queue::Rewrite, entries(5, 6)).unwrap();
    assert_eq!((state.count, state.rewrite_count), (2, 2));
    state.apply(Queue::Rewrite, entries(20, 20)).unwrap();
    assert_eq!((state.first, state.count, state.rewrite_count), (20, 1, 1));
    let last = entries(u64::MAX - 1, u64::MAX);
    State::default().apply(Queue::Append, last).unwrap();
}

const DROP_GROUP_ONE: &str = "
    fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if id == 1 { 1 } else { 0 } }
    fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { if id == 1 { 1 } else { 0 } }";

#[test]
fn an_error_at_any_step_leaves_every_file_as_it_was() {
    let mut failed = 0;
    for n in 1.. {
        let disk = sample();
        let before = files(&disk);
        let fs = FaultFileSystem::over_memory(disk.clone());
        fs.faults().add(Fault::io().nth(n));
        match by_script(&fs, None, DROP_GROUP_ONE) {
            Ok(done) => {
                assert!(done.files.len() > 3);
                if fs.faults().injected() == 0 {
                    break;
                }
                // To remove an original, or to give it a second name, is not needed.
            }
            Err(_) => {
                failed += 1;
                assert_eq!(files(&disk), before, "operation {n}");
            }
        }
    }
    assert!(failed > 30, "{failed}");
    let fs = sample();
    let before = files(&fs);
    let late = "fn filter_clean(id, first, count, rewrite_count, queue) { 7 }
        fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { if id == 1 { 1 } else { 0 } }";
    by_script(&fs, None, late).unwrap_err();
    assert_eq!(files(&fs), before, "an error of the script, too");
    let engine = open(&fs);
    let e = by_script(&fs, None, DROP_GROUP_ONE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy);
    drop(engine);
    orogen_env::fs::write_file(&fs, &dir().join("0000000000000001.raftlog.bak"), b"x").unwrap();
    let e = by_script(&fs, None, DROP_GROUP_ONE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    let e = repair(&fs, Path::new("/nowhere"), None, None, |_| {
        Ok(Verdict::Apply)
    })
    .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_repaired_file_is_packed_and_others_keep_their_alignment() {
    let fs = MemFileSystem::new();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        record_alignment: 512,
        target_file_size: 2000,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
    for index in 1..=9 {
        let mut batch = LogBatch::default();
        batch.add_entries(index, 1, &["entry"]).unwrap();
        engine.write(&mut batch, true).unwrap();
    }
    engine.close().unwrap();
    let done = repair(&fs, dir(), None, None, |incoming| {
        Ok(match incoming.group {
            2 => Verdict::DropIncoming,
            _ => Verdict::Apply,
        })
    });
    assert_eq!(done.unwrap().dropped, 1);
    let files = files(&fs);
    let alignments = files.values().map(|bytes| FileHeader::decode(bytes));
    let alignments: Vec<u64> = alignments.map(|header| header.unwrap().alignment).collect();
    assert_eq!(alignments, [0, 512, 512]);
    assert!(files.values().next().unwrap().len() < 512);
    let engine = Engine::open(&arc, dir(), options).unwrap();
    assert_eq!(engine.raft_groups(), [1, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(engine.get_entry(3, 1).unwrap(), Some(b"entry".to_vec()));
}

#[test]
fn damage_in_a_block_costs_no_record_behind_it() {
    let fs = MemFileSystem::new();
    let engine = open(&fs);
    (1..=8).for_each(|group| write(&engine, group, 1, 4));
    engine.close().unwrap();
    let path = dir().join("0000000000000001.raftlog");
    let mut bytes = read_file(&fs, &path).unwrap();
    let len = (u64::from_be_bytes(bytes[69..77].try_into().unwrap()) >> 8) as usize;
    // In the block of the second record.
    bytes[69 + len + 16] ^= 1;
    orogen_env::fs::write_file(&fs, &path, &bytes).unwrap();
    let last = || [2, 3].map(|group| open(&fs).last_index(group));
    assert_eq!(last(), [Some(4); 2], "who opens it passes over that");
    let before = files(&fs);
    let e = by_script(&fs, None, DROP_GROUP_ONE).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert_eq!(files(&fs), before);
    // What is damaged may go.
    by_script(&fs, None, &DROP_GROUP_ONE.replace("id == 1", "id == 2")).unwrap();
    assert_eq!(last(), [None, Some(4)]);
}

#[test]
fn what_is_behind_damage_is_told_of_and_stays_in_the_original() {
    let fs = sample();
    let (id, path) = {
        let dirs = Dirs::new(dir(), None).unwrap();
        let places = list(&fs, &dirs, Queue::Append).unwrap();
        (places[0].id, places[0].path())
    };
    // In the middle of the file.
    let mut bytes = read_file(&fs, &path).unwrap();
    let mut ends = Vec::new();
    look(&fs, &path, id, false, |_, block| {
        ends.push(block.offset + u64::from(block.len));
        Ok(())
    })
    .unwrap();
    assert!(ends.len() > 2, "{ends:?}");
    bytes[ends[1] as usize + 2] ^= 1;
    fs.remove_file(&path).unwrap();
    let mut file = fs.create(&path).unwrap();
    file.append(&bytes).unwrap();
    file.sync().unwrap();
    drop(file);
    let dropping = "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { 1 }";
    let done = by_script(&fs, Some(Queue::Append), dropping).unwrap();
    let kept = path.with_added_extension("damaged");
    assert_eq!(done.damaged, std::slice::from_ref(&kept));
    assert!(done.left.is_empty() && done.dropped > 0);
    assert_eq!(read_file(&fs, &kept).unwrap(), bytes);
    let names = fs.list(dir()).unwrap();
    assert!(
        names.iter().all(|name| !name.ends_with(".bak")),
        "{names:?}"
    );
    // It is no file of the log, and none is in the way of the next repair.
    let again = by_script(&fs, Some(Queue::Append), dropping).unwrap();
    assert_eq!(again, Repaired::default());
    open(&fs).close().unwrap();
    assert_eq!(read_file(&fs, &kept).unwrap(), bytes);
}
