//! Groups that are put together on purpose: the first leader is held until others wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, PowerCut};

use super::*;
use crate::batch::LogBatch;
use crate::engine::Engine;
use crate::events::EventListener;
use crate::files::{NewFiles, Table};
use crate::format::{FileHeader, FormatVersion, Lz4Policy, encode_record};
use crate::names::Queue as FileQueue;
use crate::options::Options;
use crate::spares::Spares;

const PLAIN: Lz4Policy = Lz4Policy {
    threshold: 0,
    acceleration: 1,
};

/// Holds whoever appends first, and panics when it is told of the record or batch of a number.
struct Gate {
    entered: Mutex<Option<Sender<()>>>,
    may_leave: Mutex<Receiver<()>>,
    told: AtomicU64,
    panics_at: Option<u64>,
    is_of_apply: bool,
}

impl Gate {
    fn count(&self) {
        let told = self.told.fetch_add(1, Ordering::Relaxed);
        assert_ne!(Some(told), self.panics_at, "a listener panics");
    }
}

impl EventListener for Gate {
    fn on_append_log_file(&self, _: FileBlockHandle) {
        if let Some(entered) = self.entered.lock().take() {
            entered.send(()).unwrap();
            self.may_leave.lock().recv().unwrap();
        }
        if !self.is_of_apply {
            self.count();
        }
    }

    fn post_apply_memtables(&self, _: FileId) {
        if self.is_of_apply {
            self.count();
        }
    }
}

fn queue(fs: &MemFileSystem, gate: Gate) -> WriteQueue {
    queue_of(fs, gate, 64 << 20, 0)
}

fn queue_of(fs: &MemFileSystem, gate: Gate, target_size: u64, alignment: u64) -> WriteQueue {
    queue_in(Arc::new(fs.clone()), None, gate, target_size, alignment)
}

fn queue_in(
    fs: Arc<dyn FileSystem>,
    spill_dir: Option<&Path>,
    gate: Gate,
    target_size: u64,
    alignment: u64,
) -> WriteQueue {
    let dir = Path::new("/log");
    fs.create_dir_all(dir).unwrap();
    let dirs = Arc::new(Dirs::new(dir, spill_dir).unwrap());
    let spares = Arc::new(Spares::open(&*fs, &dirs, 0, false).unwrap());
    let files = NewFiles {
        fs,
        dirs: Arc::clone(&dirs),
        header: FileHeader {
            version: FormatVersion::V2,
            alignment,
        },
        target_size,
        ahead: Arc::default(),
        beside: Arc::default(),
        spares,
        listeners: Arc::from([Arc::new(gate) as Arc<dyn EventListener>]),
        on_full: Arc::new(|_, _| {}),
        meters: Arc::new(Meters::new()),
    };
    let table = Arc::new(Table::default());
    WriteQueue::new(Appender::open(files, table, FileQueue::Append, None, false).unwrap())
}

fn batch(group: u64, first: u64, len: usize) -> LogBatch {
    let mut batch = LogBatch::default();
    batch.add_entries(group, first, &[vec![7; len]]).unwrap();
    batch
}

fn request(batch: &LogBatch, sync: bool) -> Request {
    Request {
        record: Some(encode_record(&batch.block, &batch.items, PLAIN).unwrap()),
        items: batch.items.clone(),
        sync,
        ..Request::default()
    }
}

/// Has a batch written, and `batches` behind it as one group, in their order, those with a sync of which `syncs` says so. `between` runs when they wait. What became of each; none where a
/// panic went through.
fn write_together(
    queue: &WriteQueue,
    memtables: &Memtables,
    (is_entered, leave): (Receiver<()>, Sender<()>),
    batches: &[LogBatch],
    syncs: fn(usize) -> bool,
    between: impl FnOnce(),
) -> Vec<Option<Outcome>> {
    let submit = |batch: &LogBatch, sync| {
        let request = request(batch, sync);
        let submit = || queue.submit(memtables, request, None);
        catch_unwind(AssertUnwindSafe(submit)).ok()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| submit(&batch(1, 1, 10), false));
        is_entered.recv().unwrap();
        let mut others = Vec::new();
        for batch in batches {
            let waiting = others.len();
            others.push(scope.spawn(move || submit(batch, syncs(waiting))));
            while queue.queue.lock().waiters.len() == waiting {
                thread::yield_now();
            }
        }
        between();
        leave.send(()).unwrap();
        assert!(matches!(first.join().unwrap(), Some(Ok(()))));
        let others = others.into_iter();
        others.map(|other| other.join().unwrap()).collect()
    })
}

fn gate(panics_at: Option<u64>, is_of_apply: bool) -> (Gate, (Receiver<()>, Sender<()>)) {
    let (entered, is_entered) = channel();
    let (leave, may_leave) = channel();
    let gate = Gate {
        entered: Mutex::new(Some(entered)),
        may_leave: Mutex::new(may_leave),
        told: AtomicU64::new(0),
        panics_at,
        is_of_apply,
    };
    (gate, (is_entered, leave))
}

const NONE: fn(usize) -> bool = |_| false;

/// None, all, and every second one.
const SYNCS: [fn(usize) -> bool; 3] = [NONE, |_| true, |at| at % 2 == 1];

/// More than there are bits in a room, and so long that they are several groups.
#[test]
fn all_of_many_groups_are_told() {
    for syncs in SYNCS {
        let fs = MemFileSystem::new();
        let (gate, held) = gate(None, false);
        let queue = queue(&fs, gate);
        let memtables = Memtables::new();
        let batches: Vec<LogBatch> = (2..42).map(|group| batch(group, 1, 250 << 10)).collect();
        let outcomes = write_together(&queue, &memtables, held, &batches, syncs, || {});
        assert!(outcomes.iter().all(|told| matches!(told, Some(Ok(())))));
        assert!((2..42).all(|group| !memtables.span(group).is_empty()));
    }
}

#[test]
fn who_is_led_by_a_thread_that_panics_has_its_batch_again() {
    // Told of the first record of the group, and when the first follower's batch was applied.
    let moments = [(1, false), (2, true)];
    for ((panics_at, is_of_apply), syncs) in moments.into_iter().flat_map(|m| SYNCS.map(|s| (m, s)))
    {
        let fs = MemFileSystem::new();
        let (gate, held) = gate(Some(panics_at), is_of_apply);
        let queue = queue(&fs, gate);
        let memtables = Memtables::new();
        let batches = [2, 3, 4].map(|group| batch(group, 1, 10));
        let outcomes = write_together(&queue, &memtables, held, &batches, syncs, || {});
        assert!(outcomes[0].is_none(), "it led");
        for (at, batch) in batches.iter().enumerate().skip(1) {
            let outcome = outcomes[at].as_ref().expect("it was led");
            if is_of_apply && at == 1 {
                assert!(outcome.is_ok(), "it is in the file, and seen");
                continue;
            }
            let (e, items) = outcome.as_ref().expect_err("it is not seen");
            assert_eq!(e.kind(), ErrorKind::ReadOnly);
            assert_eq!(items, &batch.items);
        }
        let is_seen = |group| !memtables.span(group).is_empty();
        assert_eq!([3, 4].map(is_seen), [is_of_apply, false]);
        assert!(queue.check().is_err());
    }
}

#[test]
fn who_finds_no_space_is_refused_and_others_of_the_group_are_not() {
    for alignment in [0, 512] {
        let fs = MemFileSystem::new();
        let (gate, held) = gate(None, false);
        let queue = queue_of(&fs, gate, 16 << 10, alignment);
        fs.sync_all();
        let memtables = Memtables::new();
        let many = 64 << 10;
        let batches = [
            batch(2, 1, 10),
            batch(3, 1, many),
            batch(4, 1, 10),
            // What would follow on a batch that was refused.
            batch(3, 2, 10),
            batch(5, 1, many * 2),
            batch(4, 2, 400),
        ];
        let leave_little = || {
            fs.set_capacity(u64::MAX);
            let free = fs.free_space(Path::new("/log")).unwrap();
            fs.set_capacity(u64::MAX - free + (8 << 10));
        };
        let outcomes = write_together(&queue, &memtables, held, &batches, NONE, leave_little);
        let outcomes = outcomes
            .into_iter()
            .map(|outcome| outcome.expect("no panic"));
        let kinds: Vec<_> = outcomes
            .map(|outcome| outcome.err().map(|(e, _)| e.kind()))
            .collect();
        let full = Some(ErrorKind::NoSpace);
        assert_eq!(kinds, [None, full, None, full, full, None], "{alignment}");
        queue.sync(&memtables).unwrap();
        let spans = |memtables: &Memtables| {
            [1, 2, 3, 4, 5].map(|group| {
                let span = memtables.span(group);
                span.next - span.first
            })
        };
        assert_eq!(spans(&memtables), [1, 1, 0, 2, 0]);
        let fs: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::DropUnsynced));
        let engine = Engine::open(&fs, Path::new("/log"), Options::default()).unwrap();
        for (group, expected) in [(1, 1), (2, 1), (3, 0), (4, 2), (5, 0)] {
            let last = engine.last_index(group).unwrap_or(0);
            assert_eq!(last, expected, "{alignment} {group}");
            for index in 1..=last {
                let entry = engine.get_entry(group, index).unwrap().unwrap();
                assert!(entry.iter().all(|byte| *byte == 7));
            }
        }
    }
}

/// A purge that looks before the group is in memory would delete the file that was left.
#[test]
fn a_group_of_which_one_is_in_a_file_does_not_leave_it() {
    let mem = MemFileSystem::new();
    let second = Path::new("/spill");
    mem.create_dir_all(second).unwrap();
    let fs = FaultFileSystem::over_memory(mem.clone());
    let (gate, held) = gate(None, false);
    let queue = queue_in(Arc::new(fs.clone()), Some(second), gate, 16 << 10, 0);
    let memtables = Memtables::new();
    let batches = [batch(2, 1, 10), batch(3, 1, 4 << 10), batch(4, 1, 10)];
    let run_full = || {
        // When the group finds no space, and not when the second of it does.
        let none = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
        fs.faults().add(none.path_with("/spill"));
        for nth in [1, 3] {
            let fault = Fault::no_space().on(&[OpKind::Append]);
            fs.faults().add(fault.path_with("/log").nth(nth));
        }
    };
    let outcomes = write_together(&queue, &memtables, held, &batches, NONE, run_full);
    assert_eq!(fs.faults().injected(), 3);
    let kinds = outcomes.into_iter().map(|outcome| {
        let outcome = outcome.expect("no panic");
        outcome.err().map(|(e, _)| e.kind())
    });
    let kinds: Vec<_> = kinds.collect();
    assert_eq!(kinds, [None, Some(ErrorKind::NoSpace), None]);
    assert!(mem.list(second).unwrap().is_empty());
}
