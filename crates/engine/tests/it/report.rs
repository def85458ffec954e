//! What runs, what is due, and what keeps old things alive.

use std::sync::Arc;
use std::time::Duration;

use orogen_engine::{
    CompactRangeOptions, Db, FlushOptions, JobInfo, JobKind, JobState, ReadOptions, WriteOptions,
};
use orogen_env::{Clock, ManualClock, MemFileSystem};

use crate::steer::{Gate, Told, ends, hold_flushes_of, on_thread, until};
use crate::support::{DIR, small};

fn of_kind(db: &Db, kind: JobKind, state: JobState) -> Vec<JobInfo> {
    let mut jobs = db.jobs();
    jobs.retain(|j| j.kind == kind && j.state == state);
    jobs
}

#[test]
fn flushes_are_listed_while_they_run_and_while_they_wait() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.db.max_background_jobs = 1;
    options.db.listeners = vec![hold_flushes_of("held", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    assert!(db.jobs().is_empty());
    let held = db.create_column_family("held", options.cf.clone()).unwrap();
    let later = db.create_column_family("later", options.cf).unwrap();
    let write = WriteOptions::default();
    db.put_opt(&write, &held, b"k", &[1; 1000]).unwrap();
    db.put_opt(&write, &later, b"k", &[1; 500]).unwrap();
    db.flush_opt(&FlushOptions { wait: false }, &[held])
        .unwrap();
    gate.wait_for(1);
    db.flush_opt(&FlushOptions { wait: false }, std::slice::from_ref(&later))
        .unwrap();
    let running = of_kind(&db, JobKind::Flush, JobState::Running);
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].column_family, "held");
    assert!(running[0].id.is_some() && running[0].since_secs.is_some());
    assert!(running[0].input_bytes >= 1000 && running[0].input_files.is_empty());
    let queued = of_kind(&db, JobKind::Flush, JobState::Queued);
    assert_eq!(queued.len(), 1);
    assert_eq!(
        (queued[0].column_family.as_str(), queued[0].id),
        ("later", None)
    );
    assert_eq!(queued[0].reason, "requested");
    let text = db.property(&later, "orogen.jobs").unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("[held] flush running job="), "{text}");
    gate.open();
    db.wait_for_background_work().unwrap();
    until(|| db.jobs().is_empty());
    assert_eq!(db.property(&later, "orogen.jobs").as_deref(), Some(""));
}

#[test]
fn compactions_tell_their_files_and_bytes_and_pauses_show() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.cf.level0_file_num_compaction_trigger = 3;
    let held = gate.clone();
    options.db.listeners = vec![Arc::new(Told {
        compaction_begin: Some(Box::new(move |_| held.pass())),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..3u32 {
        db.put(b"same", &n.to_be_bytes()).unwrap();
        db.flush().unwrap();
    }
    gate.wait_for(1);
    let running = of_kind(&db, JobKind::Compaction, JobState::Running);
    assert_eq!(running.len(), 1);
    let job = &running[0];
    let live = db.live_files();
    let mut numbers: Vec<u64> = live.iter().map(|f| f.number).collect();
    let mut inputs = job.input_files.clone();
    numbers.sort_unstable();
    inputs.sort_unstable();
    assert_eq!(inputs, numbers);
    assert_eq!(job.input_bytes, live.iter().map(|f| f.size).sum::<u64>());
    assert_eq!(job.start_level, Some(0));
    assert!(job.output_level > Some(0));
    gate.open();
    db.wait_for_background_work().unwrap();
    until(|| db.jobs().is_empty());
    db.put(b"more", b"1").unwrap();
    let cf = db.default_column_family();
    let how = CompactRangeOptions::default();
    db.disable_manual_compaction();
    assert!(db.compact_range(&how, &cf, None, None).is_err());
    assert!(db.jobs().is_empty(), "one that was refused is not listed");
    db.enable_manual_compaction();
}

#[test]
fn a_manual_compaction_that_is_paused_is_listed_so() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    let held = gate.clone();
    options.db.listeners = vec![Arc::new(Told {
        compaction_begin: Some(Box::new(move |_| held.pass())),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..3u32 {
        db.put(b"same", &n.to_be_bytes()).unwrap();
        db.flush().unwrap();
    }
    let cf = db.default_column_family();
    let how = CompactRangeOptions::default();
    let handle = db.compact_range_async(&how, &cf, None, None).unwrap();
    gate.wait_for(1);
    let whole = of_kind(&db, JobKind::ManualCompaction, JobState::Running);
    assert_eq!(whole.len(), 1);
    assert_eq!(
        of_kind(&db, JobKind::Compaction, JobState::Running).len(),
        1
    );
    handle.pause();
    let paused = of_kind(&db, JobKind::ManualCompaction, JobState::Paused);
    assert_eq!(paused.len(), 1);
    assert_eq!(paused[0].id, whole[0].id);
    gate.open();
    handle.resume();
    handle.wait().unwrap();
    until(|| db.jobs().is_empty());
}

#[test]
fn snapshots_and_readers_are_told_of_until_they_go() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let mut options = small(&fs);
    options.db.clock = clock.clone();
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    assert_eq!(db.holders(), orogen_engine::Holders::default());
    for n in 0..200u32 {
        db.put(&n.to_be_bytes(), &[1; 100]).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    let start = clock.unix_secs();
    let old = db.snapshot();
    clock.sleep(Duration::from_secs(30));
    db.put(b"k", b"v").unwrap();
    let newer = [db.snapshot(), db.snapshot()];
    clock.sleep(Duration::from_secs(12));
    let told = db.holders().snapshots;
    assert_eq!(told.len(), 2);
    assert_eq!((told[0].seqno, told[0].count), (old.seqno(), 1));
    assert_eq!((told[0].taken_secs, told[0].age_secs), (start, 42));
    assert_eq!((told[1].seqno, told[1].count), (newer[0].seqno(), 2));
    assert_eq!(told[1].age_secs, 12);
    let number = |name: &str| db.int_property(&cf, &format!("rocksdb.{name}")).unwrap();
    assert_eq!(number("num-snapshots"), 3);
    assert_eq!(number("oldest-snapshot-sequence"), told[0].seqno);
    assert_eq!(number("oldest-snapshot-time"), told[0].taken_secs);
    drop((old, newer));
    assert!(db.holders().snapshots.is_empty());
    assert_eq!(number("num-snapshots"), 0);

    let iter = db.iter(&ReadOptions::default(), &cf).unwrap();
    assert!(db.holders().views.is_empty(), "what is newest is no burden");
    let mut files: Vec<u64> = db.live_files().iter().map(|f| f.number).collect();
    files.sort_unstable();
    let bytes: u64 = db.live_files().iter().map(|f| f.size).sum();
    for n in 0..200u32 {
        db.put(&n.to_be_bytes(), &[2; 100]).unwrap();
    }
    let all = CompactRangeOptions::default();
    db.compact_range(&all, &cf, None, None).unwrap();
    db.wait_for_background_work().unwrap();
    clock.sleep(Duration::from_secs(5));
    let holders = db.holders();
    assert_eq!(holders.views.len(), 1, "{holders:?}");
    let view = &holders.views[0];
    let mut held = view.files.clone();
    held.sort_unstable();
    assert_eq!((held, view.file_bytes), (files.clone(), bytes));
    assert!(view.memtable_bytes > 0 && view.age_secs >= 5 && view.count >= 1);
    let obsolete: Vec<u64> = holders.obsolete_files.iter().map(|f| f.number).collect();
    assert!(files.iter().all(|n| obsolete.contains(n)), "{holders:?}");
    assert!(holders.obsolete_bytes() >= bytes);
    let text = db.property(&cf, "orogen.holders").unwrap();
    assert!(text.contains("[default] view count="), "{text}");
    drop(iter);
    until(|| db.holders() == orogen_engine::Holders::default());
}

#[test]
fn the_lists_can_be_asked_for_while_everything_goes_on() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let writer = db.clone();
    let written = on_thread(move || {
        for n in 0..3000u32 {
            writer.put(&(n % 500).to_be_bytes(), &[n as u8; 100])?;
        }
        writer.close()
    });
    // As long as it writes, and some more.
    for _ in 0..300 {
        for job in db.jobs() {
            assert!(job.input_bytes_done <= job.input_bytes, "{job:?}");
            assert_eq!(job.id.is_none(), job.state == JobState::Queued);
        }
        let _ = db.holders().to_text();
    }
    ends(&written).unwrap();
    assert!(db.jobs().is_empty());
}
