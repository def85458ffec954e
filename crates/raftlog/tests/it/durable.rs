//! Writers that are told later that what they wrote is durable.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

use orogen_base::ErrorKind;
use orogen_env::{
    Clock as _, Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut, SystemClock,
};
use orogen_raftlog::raw::{Engine, EventListener, FileBlockHandle, LogBatch};

use crate::model::{content, dir, disk, open, options};

fn faulty(fs: &MemFileSystem) -> (Arc<FaultFileSystem>, Engine) {
    let faulty = Arc::new(FaultFileSystem::over_memory(fs.clone()));
    let arc: Arc<dyn FileSystem> = faulty.clone();
    (faulty, Engine::open(&arc, dir(), options()).unwrap())
}

fn entry(at: u64) -> LogBatch {
    let mut batch = LogBatch::default();
    batch.add_entries(1, at, &[[at as u8; 20]]).unwrap();
    batch
}

#[test]
fn what_is_told_to_be_durable_survives_a_power_cut() {
    let fs = disk();
    let (faulty, engine) = faulty(&fs);
    let (tell, told) = mpsc::channel();
    let syncs = faulty.faults().count(OpKind::Sync);
    for at in 1..=300 {
        let (tell, fs) = (tell.clone(), fs.clone());
        let on_durable = move |synced: orogen_base::Result<()>| {
            synced.unwrap();
            if at % 20 == 0 {
                let after = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
                assert!(after.last_index(1).unwrap() >= at);
            }
            tell.send(at).unwrap();
        };
        engine.write_async(&mut entry(at), on_durable).unwrap();
        assert_eq!(engine.last_index(1), Some(at));
    }
    drop(tell);
    // Each once, in order.
    assert!(told.iter().eq(1..=300));
    let syncs = faulty.faults().count(OpKind::Sync) - syncs;
    assert!(syncs > 0);
    // An empty batch is told of, too.
    let (tell, told) = mpsc::channel();
    let on_durable = move |synced| tell.send(synced).unwrap();
    engine
        .write_async(&mut LogBatch::default(), on_durable)
        .unwrap();
    told.recv().unwrap().unwrap();
}

#[test]
fn all_are_told_before_an_engine_is_closed() {
    let fs = disk();
    for closes in [true, false] {
        let engine = open(&fs).unwrap();
        let count = Arc::new(AtomicUsize::new(0));
        let next = engine.last_index(1).unwrap_or(0) + 1;
        for at in next..next + 100 {
            let count = count.clone();
            let on_durable = move |synced: orogen_base::Result<()>| {
                synced.unwrap();
                count.fetch_add(1, SeqCst);
            };
            engine.write_async(&mut entry(at), on_durable).unwrap();
        }
        if closes {
            engine.close().unwrap();
        } else {
            drop(engine);
        }
        assert_eq!(count.load(SeqCst), 100);
    }
    assert_eq!(open(&fs).unwrap().last_index(1), Some(200));
}

#[test]
fn a_failed_sync_is_told_and_a_refused_batch_is_not() {
    let fs = disk();
    let (faulty, engine) = faulty(&fs);
    let told = Arc::new(Mutex::new(Vec::new()));
    let write = |mut batch: LogBatch| -> orogen_base::Result<()> {
        let told = told.clone();
        let (tell, wait) = mpsc::channel();
        let on_durable = move |synced: orogen_base::Result<()>| {
            told.lock().unwrap().push(synced.map_err(|e| e.kind()));
            tell.send(()).unwrap();
        };
        engine.write_async(&mut batch, on_durable)?;
        wait.recv().unwrap();
        Ok(())
    };
    write(entry(1)).unwrap();
    let refused = write(entry(9)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    faulty.faults().add(Fault::io().on(&[OpKind::Sync]));
    write(entry(2)).unwrap();
    let refused = write(entry(3)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let told = told.lock().unwrap();
    assert_eq!(told[0], Ok(()));
    assert!(told.len() == 2 && told[1].is_err(), "{told:?}");
}

#[test]
fn who_is_told_may_write() {
    let fs = disk();
    let engine = Arc::new(open(&fs).unwrap());
    let (tell, told) = mpsc::channel();
    let ours = Arc::downgrade(&engine);
    let on_durable = move |synced: orogen_base::Result<()>| {
        synced.unwrap();
        let engine = ours.upgrade().unwrap();
        engine.write(&mut entry(2), true).unwrap();
        let on_durable = move |synced: orogen_base::Result<()>| tell.send(synced).unwrap();
        engine.write_async(&mut entry(3), on_durable).unwrap();
    };
    engine.write_async(&mut entry(1), on_durable).unwrap();
    told.recv().unwrap().unwrap();
    let expected = content(&engine);
    drop(engine);
    assert_eq!(content(&open(&fs).unwrap()), expected);
    assert_eq!(expected.len(), 1);
}

#[test]
fn one_that_panics_keeps_nobody_from_being_told() {
    let fs = disk();
    let (_, engine) = faulty(&fs);
    let (tell, told) = mpsc::channel();
    for at in 1..=20 {
        let tell = tell.clone();
        let on_durable = move |synced: orogen_base::Result<()>| {
            assert_ne!(at, 3, "this one panics");
            tell.send((at, synced)).unwrap();
        };
        engine.write_async(&mut entry(at), on_durable).unwrap();
    }
    engine.close().unwrap();
    drop(tell);
    let told: Vec<_> = told
        .iter()
        .map(|(at, synced)| (at, synced.is_ok()))
        .collect();
    let others = (1..=20).filter(|at| *at != 3);
    assert_eq!(told, others.map(|at| (at, true)).collect::<Vec<_>>());
}

#[test]
fn an_engine_that_a_function_let_go_of_touches_no_file_any_more() {
    let fs = disk();
    let engine = Arc::new(open(&fs).unwrap());
    let gates = || mpsc::channel::<()>();
    let ((began, begins), (goes, go)) = (gates(), gates());
    let in_first = move |_| {
        began.send(()).unwrap();
        go.recv().unwrap();
    };
    engine.write_async(&mut entry(1), in_first).unwrap();
    begins.recv().unwrap();
    // Two of the next round: the first lets go of the engine, the second waits.
    let ((began, began_second), (goes_on, go_on)) = (gates(), gates());
    let ((gone, is_gone), (ends, end)) = (gates(), gates());
    let held = engine.clone();
    let in_second = move |_| {
        began.send(()).unwrap();
        go_on.recv().unwrap();
        drop(held);
        gone.send(()).unwrap();
    };
    engine.write_async(&mut entry(2), in_second).unwrap();
    engine
        .write_async(&mut entry(3), move |_| end.recv().unwrap())
        .unwrap();
    goes.send(()).unwrap();
    began_second.recv().unwrap();
    let (tell, told) = mpsc::channel();
    let in_last = move |synced| tell.send(synced).unwrap();
    engine.write_async(&mut entry(4), in_last).unwrap();
    drop(engine);
    goes_on.send(()).unwrap();
    is_gone.recv().unwrap();
    let again = open(&fs).unwrap();
    again.write(&mut entry(5), true).unwrap();
    ends.send(()).unwrap();
    told.recv().unwrap().unwrap();
    drop(again);
    assert_eq!(open(&fs).unwrap().last_index(1), Some(5));
}

/// Holds the thread that tells of a record, once.
struct Held {
    begins: mpsc::Sender<()>,
    ends: Mutex<Option<mpsc::Receiver<()>>>,
}

impl EventListener for Held {
    fn on_append_log_file(&self, _handle: FileBlockHandle) {
        let ends = self.ends.lock().unwrap().take();
        if let Some(ends) = ends {
            self.begins.send(()).unwrap();
            ends.recv().unwrap();
        }
    }
}

#[test]
fn who_waits_for_a_sync_gets_it_where_another_finds_no_space() {
    let fs = disk();
    let faulty = Arc::new(FaultFileSystem::over_memory(fs.clone()));
    let arc: Arc<dyn FileSystem> = faulty.clone();
    let (begins, began) = mpsc::channel();
    let (ends, end) = mpsc::channel();
    let held = Held {
        begins,
        ends: Mutex::new(Some(end)),
    };
    let listeners = vec![Arc::new(held) as Arc<dyn EventListener>];
    let engine = Engine::open_with_listeners(&arc, dir(), options(), listeners).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| engine.write(&mut entry(1), false).unwrap());
        began.recv().unwrap();
        let synced = threads.spawn(|| engine.sync());
        let mut other = LogBatch::default();
        other.add_entries(2, 1, &[b"an entry"]).unwrap();
        let engine = &engine;
        let written = threads.spawn(move || engine.write(&mut other, false));
        // Both wait by then, most likely.
        SystemClock.sleep(std::time::Duration::from_millis(100));
        let full = Fault::no_space().on(&[OpKind::Append]);
        faulty.faults().add(full.forever());
        ends.send(()).unwrap();
        let written = written.join().unwrap();
        assert_eq!(written.unwrap_err().kind(), ErrorKind::NoSpace);
        synced.join().unwrap().unwrap();
    });
    let after = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
    assert_eq!((after.last_index(1), after.last_index(2)), (Some(1), None));
}
