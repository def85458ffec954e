//! Compactions by hand, and what goes on beside them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orogen_base::ErrorKind;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::{
    BottommostLevelCompaction, CompactRangeOptions, CompactionHandle, Db, Options,
};
use orogen_env::MemFileSystem;

use crate::steer::{
    Gate, Told, ends, hold_flushes_of, on_thread, settle, until, until_closing, until_disabled,
};
use crate::support::{DIR, scan, small};

const FORCE: CompactRangeOptions = CompactRangeOptions {
    bottommost_level_compaction: BottommostLevelCompaction::Force,
    max_subcompactions: 0,
    exclusive_manual_compaction: false,
};

/// Keys `from..to` with values that differ from round to round.
fn fill(db: &Db, from: u32, to: u32, round: u8) {
    for n in from..to {
        db.put(&n.to_be_bytes(), &[round; 100])
            .expect("nothing fails here");
    }
    db.flush().expect("nothing fails here");
}

/// Two disjoint halves in the last level, and nothing above.
fn halves(options: &Options) -> Db {
    let db = Db::open(DIR, options).expect("it opens");
    let cf = db.default_column_family();
    for round in 0..2 {
        fill(&db, 0, 1000, round);
        fill(&db, 1_000_000, 1_001_000, round);
        db.compact_range(&Default::default(), &cf, None, None)
            .expect("nothing fails here");
    }
    db.wait_for_background_work().expect("nothing fails here");
    db
}

/// Holds manual compactions at a gate once `armed`; counts the automatic ones that end.
fn held(options: &mut Options) -> (Arc<Gate>, Arc<AtomicBool>, Arc<AtomicUsize>) {
    let gate = Gate::new();
    let armed = Arc::new(AtomicBool::new(false));
    let automatic = Arc::new(AtomicUsize::new(0));
    // Nobody is to wait for what is held.
    options.cf.level0_slowdown_writes_trigger = 1000;
    options.cf.level0_stop_writes_trigger = 2000;
    let (theirs, holds, counted) = (gate.clone(), armed.clone(), automatic.clone());
    options.db.listeners = vec![Arc::new(Told {
        compaction_begin: Some(Box::new(move |info| {
            if info.reason != "ManualCompaction" {
                counted.fetch_add(1, Ordering::SeqCst);
            } else if holds.load(Ordering::SeqCst) {
                theirs.pass();
            }
        })),
        ..Told::default()
    })];
    (gate, armed, automatic)
}

#[test]
fn automatic_compactions_go_on_beside_a_manual_one() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let (gate, armed, automatic) = held(&mut options);
    let db = halves(&options);
    let cf = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let end = 1000u32.to_be_bytes();
    let handle = db
        .compact_range_async(&FORCE, &cf, None, Some(&end))
        .unwrap();
    gate.wait_for(1);
    let before = automatic.load(Ordering::SeqCst);
    for round in 2..8 {
        fill(&db, 1_000_000, 1_001_000, round);
    }
    until(|| automatic.load(Ordering::SeqCst) > before);
    assert!(!handle.is_finished());
    gate.open();
    handle.wait().unwrap();
    let progress = handle.progress();
    assert!(progress.finished && progress.bytes_done > 0, "{progress:?}");
    assert_eq!(progress.bytes_done, progress.bytes_total);
    db.wait_for_background_work().unwrap();
    assert_eq!(scan(&db, &cf).len(), 2000);
}

#[test]
fn an_exclusive_one_keeps_automatic_compactions_out() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let (gate, armed, automatic) = held(&mut options);
    let db = halves(&options);
    let cf = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let exclusive = CompactRangeOptions {
        exclusive_manual_compaction: true,
        ..FORCE
    };
    let end = 1000u32.to_be_bytes();
    let handle = db
        .compact_range_async(&exclusive, &cf, None, Some(&end))
        .unwrap();
    gate.wait_for(1);
    let before = automatic.load(Ordering::SeqCst);
    for round in 2..8 {
        fill(&db, 1_000_000, 1_001_000, round);
    }
    settle();
    assert_eq!(automatic.load(Ordering::SeqCst), before);
    gate.open();
    handle.wait().unwrap();
    until(|| automatic.load(Ordering::SeqCst) > before);
}

#[test]
fn two_at_once_wait_for_each_other_and_both_end() {
    let fs = MemFileSystem::new();
    let db = halves(&small(&fs));
    let cf = db.default_column_family();
    let all: Vec<_> = (0..4)
        .map(|_| db.compact_range_async(&FORCE, &cf, None, None).unwrap())
        .collect();
    for round in 2..6 {
        fill(&db, 500, 1500, round);
    }
    let waiting = on_thread(move || all.iter().try_for_each(|h| h.wait()));
    ends(&waiting).unwrap();
    assert_eq!(scan(&db, &cf).len(), 2500);
}

/// One that was paused in its first step.
fn paused(how: &CompactRangeOptions) -> (Db, CompactionHandle) {
    let mut options = small(&MemFileSystem::new());
    let (gate, armed, _) = held(&mut options);
    let db = halves(&options);
    let cf = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let handle = db.compact_range_async(how, &cf, None, None);
    let handle = handle.expect("the system has a thread");
    gate.wait_for(1);
    handle.pause();
    gate.open();
    until(|| db.live_files().iter().all(|f| !f.being_compacted));
    db.wait_for_background_work().expect("nothing fails here");
    (db, handle)
}

#[test]
fn a_paused_one_holds_no_files_and_goes_on_later() {
    let (db, handle) = paused(&FORCE);
    let cf = db.default_column_family();
    let progress = handle.progress();
    assert!(progress.paused && !progress.finished);
    assert_eq!(progress.bytes_done, 0, "what was given up is not done");
    fill(&db, 0, 1000, 9);
    db.compact_range(&FORCE, &cf, None, None).unwrap();
    assert!(!handle.is_finished());
    handle.resume();
    handle.wait().unwrap();
    assert_eq!(scan(&db, &cf).len(), 2000);
}

#[test]
fn a_paused_one_lets_automatic_ones_run() {
    let exclusive = CompactRangeOptions {
        exclusive_manual_compaction: true,
        ..FORCE
    };
    let (db, handle) = paused(&exclusive);
    let cf = db.default_column_family();
    for round in 0..8 {
        fill(&db, 0, 100, round);
        db.flush().unwrap();
    }
    // Else writers would come to stand.
    let level0 = || db.live_files().iter().filter(|f| f.level == 0).count();
    until(|| level0() < 4);
    handle.resume();
    handle.wait().unwrap();
    assert_eq!(scan(&db, &cf).len(), 2000);
}

#[test]
fn a_cancelled_one_ends_and_leaves_everything_as_it_was() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let (gate, armed, _) = held(&mut options);
    let db = halves(&options);
    let cf = db.default_column_family();
    let before: Vec<_> = db.live_files().iter().map(|f| f.number).collect();
    armed.store(true, Ordering::SeqCst);
    let handle = db.compact_range_async(&FORCE, &cf, None, None).unwrap();
    gate.wait_for(1);
    handle.cancel();
    gate.open();
    assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::Aborted);
    assert!(db.live_files().iter().all(|f| !f.being_compacted));
    assert_eq!(
        before,
        db.live_files().iter().map(|f| f.number).collect::<Vec<_>>()
    );
    db.put(b"k", b"v").unwrap();
    db.compact_range(&FORCE, &cf, None, None).unwrap();
}

#[test]
fn while_they_are_disabled_none_runs() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let (gate, armed, _) = held(&mut options);
    let db = halves(&options);
    let cf = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let handle = db.compact_range_async(&FORCE, &cf, None, None).unwrap();
    gate.wait_for(1);
    let other = db.clone();
    let disabling = on_thread(move || other.disable_manual_compaction());
    until_disabled(&db);
    gate.open();
    ends(&disabling);
    assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::Aborted);
    db.disable_manual_compaction();
    db.enable_manual_compaction();
    let refused = db.compact_range(&FORCE, &cf, None, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Aborted);
    db.enable_manual_compaction();
    db.compact_range(&FORCE, &cf, None, None).unwrap();
}

#[test]
fn closing_the_database_ends_one_that_runs_and_one_that_is_paused() {
    for pause in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        let (gate, armed, _) = held(&mut options);
        let db = halves(&options);
        let cf = db.default_column_family();
        armed.store(true, Ordering::SeqCst);
        let handle = db.compact_range_async(&FORCE, &cf, None, None).unwrap();
        gate.wait_for(1);
        if pause {
            handle.pause();
            gate.open();
            until(|| db.live_files().iter().all(|f| !f.being_compacted));
        }
        let theirs = db.clone();
        let closing = on_thread(move || theirs.close());
        until_closing(&db);
        gate.open();
        ends(&closing).unwrap();
        drop(db);
        let error = handle.wait().unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::Aborted | ErrorKind::Closed
        ));
        assert_eq!(handle.progress().paused, pause);
        let db = Db::open(DIR, &small(&fs)).unwrap();
        assert_eq!(scan(&db, &db.default_column_family()).len(), 2000);
    }
}

#[test]
fn a_handle_that_is_dropped_lets_the_compaction_go_on() {
    let fs = MemFileSystem::new();
    let db = halves(&small(&fs));
    let before: Vec<_> = db.live_files().iter().map(|f| f.number).collect();
    let cf = db.default_column_family();
    drop(db.compact_range_async(&FORCE, &cf, None, None).unwrap());
    until(|| db.live_files().iter().all(|f| !before.contains(&f.number)));
}

#[test]
fn a_panic_on_the_callers_thread_leaves_nothing_taken() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let panics = Arc::new(AtomicBool::new(false));
    let armed = panics.clone();
    options.db.listeners = vec![Arc::new(Told {
        compaction_begin: Some(Box::new(move |info| {
            let manual = info.reason == "ManualCompaction";
            assert!(!(manual && armed.load(Ordering::SeqCst)), "for the test");
        })),
        ..Told::default()
    })];
    let db = halves(&options);
    let cf = db.default_column_family();
    panics.store(true, Ordering::SeqCst);
    for exclusive_manual_compaction in [false, true] {
        let request = CompactRangeOptions {
            exclusive_manual_compaction,
            ..FORCE
        };
        let body = || db.compact_range(&request, &cf, None, None);
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
        let handle = db.compact_range_async(&request, &cf, None, None).unwrap();
        assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::Aborted);
    }
    panics.store(false, Ordering::SeqCst);
    assert!(db.live_files().iter().all(|f| !f.being_compacted));
    fill(&db, 0, 1000, 9);
    let theirs = db;
    let waiting = on_thread(move || {
        theirs.wait_for_background_work()?;
        theirs.compact_range(&FORCE, &theirs.default_column_family(), None, None)?;
        theirs.close()
    });
    ends(&waiting).unwrap();
}

#[test]
fn a_paused_one_does_not_survive_that_all_are_disabled() {
    let (db, handle) = paused(&FORCE);
    let cf = db.default_column_family();
    db.disable_manual_compaction();
    db.enable_manual_compaction();
    handle.resume();
    assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::Aborted);
    db.compact_range(&FORCE, &cf, None, None).unwrap();
    assert_eq!(scan(&db, &cf).len(), 2000);
}

/// Gives a filter to manual compactions only, which drops what [`halves`] left.
#[derive(Debug)]
struct HalvesGo;

impl CompactionFilterFactory for HalvesGo {
    fn name(&self) -> &'static str {
        "HalvesGo"
    }

    fn create(&self, context: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        context
            .is_manual_compaction
            .then(|| Box::new(Self) as Box<dyn CompactionFilter>)
    }
}

impl CompactionFilter for HalvesGo {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        match value {
            [1, ..] => FilterDecision::Remove,
            _ => FilterDecision::Keep,
        }
    }
}

#[test]
fn forcing_takes_tables_that_others_wrote_meanwhile() {
    let fs = MemFileSystem::new();
    halves(&small(&fs)).close().unwrap();
    let mut options = small(&fs);
    let (gate, armed, automatic) = held(&mut options);
    options.cf.max_compaction_bytes = 1;
    options.cf.compaction_filter_factory = Some(Arc::new(HalvesGo));
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let handle = db.compact_range_async(&FORCE, &cf, None, None).unwrap();
    gate.wait_for(1);
    let before = automatic.load(Ordering::SeqCst);
    // Automatic compactions write the second half anew, with every other key as it was.
    for round in 2..8 {
        for n in (1_000_000..1_001_000u32).step_by(2) {
            db.put(&n.to_be_bytes(), &[round; 100]).unwrap();
        }
        db.flush().unwrap();
    }
    until(|| automatic.load(Ordering::SeqCst) > before);
    gate.open();
    handle.wait().unwrap();
    let left = scan(&db, &cf);
    assert_eq!(left.iter().filter(|(_, v)| v[0] == 1).count(), 0);
    assert_eq!(left.len(), 500);
}

#[test]
fn one_that_waits_for_its_flush_hears_that_all_are_disabled() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    db.put(b"k", b"v").unwrap();
    let handle = db.compact_range_async(&FORCE, &cf, None, None).unwrap();
    gate.wait_for(1);
    db.disable_manual_compaction();
    db.enable_manual_compaction();
    gate.open();
    assert_eq!(handle.wait().unwrap_err().kind(), ErrorKind::Aborted);
}
