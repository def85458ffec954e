//! Records that begin at multiples: where they lie, what is between them, and that nothing else changes.

use std::sync::{Arc, Mutex};

use orogen_base::ErrorKind;
use orogen_env::fs::read_file;
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_raftlog::raw::{
    Engine, EventListener, FileBlockHandle, FormatVersion, LogBatch, Options, Queue, RecoveryMode,
};
use orogen_testkit::rng::Rng;

use crate::model::{
    Model, content, dir, disk, lengths_after_torn_cuts, options, purge, random_batch,
};

fn aligned(record_alignment: u64) -> Options {
    Options {
        record_alignment,
        ..options()
    }
}

fn batch(index: u64, bytes: &[u8]) -> LogBatch {
    let mut batch = LogBatch::default();
    batch.add_entries(7, index, &[bytes]).unwrap();
    batch
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.split_whitespace();
    digits
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// Where records of a queue lie.
#[derive(Default)]
struct Places(Mutex<Vec<(Queue, u64, u64)>>);

impl EventListener for Places {
    fn on_append_log_file(&self, handle: FileBlockHandle) {
        let place = (handle.id.queue, handle.offset, handle.len as u64);
        self.0.lock().unwrap().push(place);
    }
}

#[test]
fn a_small_file_is_what_the_page_says() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        record_alignment: 512,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), options).unwrap();
    engine.write(&mut batch(1, b"abc"), true).unwrap();
    engine.write(&mut batch(2, b"de"), true).unwrap();
    engine.write(&mut batch(3, b"f"), false).unwrap();
    engine.write(&mut batch(4, b"gh"), false).unwrap();
    engine.sync().unwrap();
    let padding = engine.metrics().padding_bytes.append;
    engine.close().unwrap();
    let mut expected = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5".to_vec();
    expected.extend(unhex("00 00 00 00 00 00 00 02 00 00 00 00 00 00 02 00"));
    for (at, record) in [
        // Behind the header.
        (
            512,
            "00 00 00 00 00 00 21 00 00 00 00 00 00 00 00 17 61 62 63 c2 41 24 35
             01 07 01 01 01 03 be c3 d2 f1",
        ),
        // Behind a sync.
        (
            1024,
            "00 00 00 00 00 00 20 00 00 00 00 00 00 00 00 16 64 65 8b 29 90 7d
             01 07 01 01 02 02 eb a0 f8 ad",
        ),
        (
            1536,
            "00 00 00 00 00 00 1f 00 00 00 00 00 00 00 00 15 66 e0 2b d3 76
             01 07 01 01 03 01 10 c0 ea 2d",
        ),
        // Behind one that was not synced.
        (
            1567,
            "00 00 00 00 00 00 20 00 00 00 00 00 00 00 00 16 67 68 f5 06 0c 28
             01 07 01 01 04 02 6d 07 a2 fb",
        ),
    ] {
        expected.resize(at, 0);
        expected.extend(unhex(record));
    }
    // What is behind the last one was cut off.
    assert_eq!(padding, (1024 - 545) + (1536 - 1056) + (2048 - 1599));
    let name = dir().join("0000000000000001.raftlog");
    let found = read_file(&fs, &name).unwrap();
    assert_eq!(found, expected);
    let absolute = Options {
        recovery_mode: RecoveryMode::AbsoluteConsistency,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), absolute).unwrap();
    assert_eq!(engine.get_entry(7, 4).unwrap(), Some(b"gh".to_vec()));
    // The file keeps its alignment.
    engine.write(&mut batch(5, b"i"), true).unwrap();
    engine.write(&mut batch(6, b"j"), true).unwrap();
    assert!(engine.metrics().padding_bytes.append > 0);
    engine.close().unwrap();
    let found = read_file(&fs, &name).unwrap();
    // Packed, as the file was cut off there; then behind zeros.
    assert_eq!(found[1599..1607], [0, 0, 0, 0, 0, 0, 31, 0]);
    assert_eq!(found[1630..2048], [0; 2048 - 1630]);
    assert_eq!(found[2048..2056], [0, 0, 0, 0, 0, 0, 31, 0]);
}

#[test]
fn alignments_that_cannot_be_are_refused() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs);
    let refused = |options: Options| match Engine::open(&arc, dir(), options) {
        Ok(_) => panic!("it is opened"),
        Err(e) => e,
    };
    for value in [1, 256, 511, 768, 4097, 128 << 10, u64::MAX] {
        let error = refused(aligned(value));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.context("value"), Some(value.to_string().as_str()));
    }
    let old = Options {
        format_version: FormatVersion::V1,
        ..aligned(4096)
    };
    assert_eq!(refused(old).kind(), ErrorKind::InvalidArgument);
    for value in [0, 512, 4096, 64 << 10] {
        Engine::open(&arc, dir(), aligned(value)).unwrap();
    }
}

#[test]
fn groups_that_sync_begin_at_multiples_and_others_are_packed() {
    for alignment in [512, 4096, 64 << 10] {
        let fs = disk();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let places = Arc::new(Places::default());
        let options = Options {
            record_alignment: alignment,
            ..Options::default()
        };
        let listeners: Vec<Arc<dyn EventListener>> = vec![places.clone()];
        let engine = Engine::open_with_listeners(&arc, dir(), options, listeners).unwrap();
        let mut rng = Rng::new(Rng::seed_or(alignment));
        let mut synced = vec![true];
        for index in 1..200 {
            let sync = rng.chance(1, 2);
            let len = rng.range(1..3000);
            let bytes = rng.bytes(len);
            engine.write(&mut batch(index, &bytes), sync).unwrap();
            synced.push(sync);
        }
        let file = read_file(&fs, &dir().join("0000000000000001.raftlog")).unwrap();
        let places = places.0.lock().unwrap();
        let mut end = 69;
        for ((_, at, len), sync) in places.iter().zip(synced) {
            let next = match sync && end % alignment <= alignment - 8 {
                true => end.next_multiple_of(alignment),
                false => end,
            };
            // Nothing, or a record that says nothing.
            let between = at - next;
            assert!([0, 21, 26].contains(&between), "{alignment} {at} {end}");
            if sync {
                let padding = &file[end as usize..next as usize];
                assert!(padding.iter().all(|byte| *byte == 0));
            }
            end = at + len;
        }
        assert_eq!(places.len(), 199);
    }
}

#[test]
fn what_is_not_synced_never_begins_at_a_multiple() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let whole = Options {
        record_alignment: 4096,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), whole.clone()).unwrap();
    let mut states = vec![content(&engine)];
    let mut records = 0;
    // The second one would end where the first multiple behind it is, and a power loss may leave zeros of it alone.
    for (index, len) in [(1, 3553), (2, 481), (3, 900), (4, 481)] {
        records += engine
            .write(&mut batch(index, &vec![index as u8; len]), false)
            .unwrap() as u64;
        states.push(content(&engine));
    }
    assert_eq!(engine.metrics().appended_bytes.append, records + 21);
    let lengths = lengths_after_torn_cuts(&fs, &whole, &states);
    assert!(lengths.contains(&1) && lengths.len() > 2, "{lengths:?}");
}

#[test]
fn what_a_process_left_unsynced_up_to_a_multiple_is_synced_first() {
    let first = Options {
        record_alignment: 1024,
        // So that no room is behind the records, which would be cut off and synced.
        target_file_size: 2048,
        ..Options::default()
    };
    let next = Options {
        target_file_size: 1 << 20,
        ..first.clone()
    };
    let killed = (1..).find_map(|calls| {
        let mem = disk();
        let arc: Arc<dyn FileSystem> = Arc::new(mem.clone());
        let engine = Engine::open(&arc, dir(), first.clone()).unwrap();
        engine.write(&mut batch(1, &[1; 481]), false).unwrap();
        // It ends where the multiple is, as it is to be synced at once; before that the process dies.
        mem.crash_after(calls);
        let written = engine.write(&mut batch(2, &[2; 481]), true);
        assert!(written.is_err(), "no cut leaves it unsynced");
        let killed = mem.crash(PowerCut::KeepAll);
        let path = dir().join("0000000000000001.raftlog");
        let bytes = read_file(&killed, &path).unwrap();
        assert_eq!(bytes.len(), 2048);
        (bytes[1541] > 0).then_some(killed)
    });
    let mem = killed.unwrap();
    let arc: Arc<dyn FileSystem> = Arc::new(mem.clone());
    let engine = Engine::open(&arc, dir(), next.clone()).unwrap();
    assert_eq!(engine.last_index(7), Some(2));
    engine.write(&mut batch(3, b"third"), false).unwrap();
    let whole = content(&engine);
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk: Arc<dyn FileSystem> = Arc::new(mem.crash(PowerCut::Torn { seed }));
        let engine = Engine::open(&disk, dir(), next.clone()).unwrap();
        let last = engine.last_index(7);
        assert!(last.is_some_and(|last| last >= 2), "seed {seed} {last:?}");
        assert!(last == Some(2) || content(&engine) == whole);
        lengths.insert(last);
    }
    assert_eq!(lengths.len(), 2);
}

#[test]
fn records_of_many_threads_are_where_memory_says() {
    const THREADS: u64 = 8;
    const ENTRIES: u64 = 100;
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        record_alignment: 512,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
    // Records of 512 bytes, so that many would end at multiples.
    let entry = |group: u64, index: u64| [group as u8, index as u8].repeat(241)[..481].to_vec();
    let bytes = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for group in 1..=THREADS {
            let (engine, bytes) = (&engine, &bytes);
            scope.spawn(move || {
                for index in 1..=ENTRIES {
                    let mut batch = LogBatch::default();
                    let entry = entry(group, index);
                    batch.add_entries(group, index, &[entry]).unwrap();
                    let len = engine.write(&mut batch, (group + index) % 3 == 0).unwrap();
                    bytes.fetch_add(len as u64, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    let metrics = engine.metrics();
    assert!(metrics.appended_bytes.append > bytes.into_inner() + 21);
    assert!(metrics.padding_bytes.append > 0);
    let check = |engine: &Engine| {
        for group in 1..=THREADS {
            for index in 1..=ENTRIES {
                let found = engine.get_entry(group, index).unwrap();
                assert_eq!(found, Some(entry(group, index)), "{group} {index}");
            }
        }
    };
    check(&engine);
    let killed: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::KeepAll));
    check(&Engine::open(&killed, dir(), options).unwrap());
}

/// Opens with any alignment, writes and purges; sometimes the process is killed or the directory is closed for whoever wants it whole.
#[test]
fn histories_with_any_alignments_give_what_maps_give() {
    let mut rng = Rng::new(Rng::seed_or(61));
    let (mut padding, mut rewritten, mut moved) = (0, 0, 0);
    for round in 0..40 {
        let mut fs = MemFileSystem::new();
        let mut model = Model::new();
        let is_large = round % 4 == 3;
        for turn in 0..8 {
            let mut options = aligned(*rng.pick(&[0, 512, 4096]));
            options.enable_log_digests = rng.chance(1, 2);
            options.recovery_mode = *rng.pick(&[
                RecoveryMode::TolerateTailCorruption,
                RecoveryMode::TolerateAnyCorruption,
            ]);
            if is_large {
                // Few syncs to large files: they are written through memory.
                options.target_file_size = 20_000;
                options.purge_threshold = 60_000;
                options.purge_rewrite_threshold = Some(20_000);
            }
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let engine = Engine::open(&arc, dir(), options).unwrap();
            assert_eq!(content(&engine), model, "round {round} turn {turn}");
            for _ in 0..40 {
                let mut batch = random_batch(&mut rng, &mut model, 0);
                let often = if is_large { 50 } else { 3 };
                engine.write(&mut batch, rng.chance(1, often)).unwrap();
                if rng.chance(1, 8) {
                    purge(&mut rng, &engine, &mut model);
                }
            }
            assert_eq!(content(&engine), model, "round {round} turn {turn}");
            let metrics = engine.metrics();
            padding += metrics.padding_bytes.append;
            rewritten += metrics.padding_bytes.rewrite;
            moved += u32::from(engine.file_span(Queue::Append).unwrap().0 > 1);
            if rng.chance(1, 2) {
                let killed = fs.crash(PowerCut::KeepAll);
                drop(engine);
                fs = killed;
                continue;
            }
            engine.close().unwrap();
            let absolute = Options {
                recovery_mode: RecoveryMode::AbsoluteConsistency,
                ..aligned(0)
            };
            let copy: Arc<dyn FileSystem> = Arc::new(fs.fork());
            let whole = Engine::open(&copy, dir(), absolute).unwrap();
            assert_eq!(content(&whole), model, "round {round} turn {turn}");
        }
    }
    assert!(padding > 100_000 && rewritten > 10_000 && moved > 100);
}

#[test]
fn what_a_file_held_before_is_not_between_its_records() {
    for alignment in [512, 4096] {
        let fs = disk();
        let faulty = FaultFileSystem::over_memory(fs.clone());
        let arc: Arc<dyn FileSystem> = Arc::new(faulty.clone());
        let options = Options {
            target_file_size: 20_000,
            purge_threshold: 60_000,
            ..aligned(alignment)
        };
        let places = Arc::new(Places::default());
        let listeners: Vec<Arc<dyn EventListener>> = vec![places.clone()];
        let engine = Engine::open_with_listeners(&arc, dir(), options.clone(), listeners).unwrap();
        for index in 1..=300 {
            places.0.lock().unwrap().clear();
            let entry = Rng::new(index).bytes(700);
            engine.write(&mut batch(index, &entry), true).unwrap();
            engine.compact_to(7, index.saturating_sub(2)).unwrap();
            engine.sync().unwrap();
            engine.purge_expired_files().unwrap();
            let newest = engine.file_span(Queue::Append).unwrap().1;
            let path = dir().join(format!("{newest:016}.raftlog"));
            let bytes = read_file(&fs, &path).unwrap();
            let places = places.0.lock().unwrap();
            let ends = places.iter().filter(|place| place.0 == Queue::Append);
            for end in ends.map(|(_, at, len)| (at + len) as usize).skip(1) {
                let zeros = end.next_multiple_of(alignment as usize) - end;
                assert!(zeros < 8 || bytes[end..end + zeros].iter().all(|byte| *byte == 0));
            }
            drop(places);
            if index % 20 == 0 {
                for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
                    let after: Arc<dyn FileSystem> = Arc::new(fs.crash(cut));
                    let found = Engine::open(&after, dir(), options.clone()).unwrap();
                    assert_eq!(content(&found), content(&engine), "{index} {cut:?}");
                }
            }
        }
        assert!(faulty.faults().count(OpKind::Reuse) > 3);
    }
}

#[test]
fn a_failed_append_is_cut_off_with_its_padding() {
    for short in [0, 20, 40, 300] {
        let mem = disk();
        let fs = FaultFileSystem::over_memory(mem.clone());
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let options = Options {
            record_alignment: 512,
            ..Options::default()
        };
        let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
        engine.write(&mut batch(1, b"first"), true).unwrap();
        let before = content(&engine);
        let reopened = |cut| {
            let after: Arc<dyn FileSystem> = Arc::new(mem.crash(cut));
            content(&Engine::open(&after, dir(), options.clone()).unwrap())
        };
        let fail = || {
            let fault = Fault::no_space().on(&[OpKind::Append]).short(short);
            fs.faults().add(fault);
        };
        let mut second = batch(2, b"second");
        fail();
        assert!(engine.write(&mut second, true).is_err());
        assert_eq!(content(&engine), before);
        assert_eq!(reopened(PowerCut::KeepAll), before);
        // It is packed: what was padding is cut off, too.
        engine.write(&mut second, true).unwrap();
        assert_eq!(reopened(PowerCut::KeepAll), content(&engine));
        assert_eq!(reopened(PowerCut::DropUnsynced), content(&engine));
        // Padding that finds no space is no reason to fail.
        engine.write(&mut batch(2, b"other"), false).unwrap();
        fail();
        engine.sync().unwrap();
        assert_eq!(fs.faults().injected(), 2);
        assert_eq!(reopened(PowerCut::DropUnsynced), content(&engine));
        engine.write(&mut batch(2, b"third"), true).unwrap();
        assert_eq!(reopened(PowerCut::DropUnsynced), content(&engine));
    }
}

#[test]
fn a_damaged_header_costs_no_record_behind_padding() {
    for record_alignment in [512, 4096, 64 << 10] {
        let fs = disk();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let engine = Engine::open(&arc, dir(), aligned(record_alignment)).unwrap();
        engine.write(&mut batch(1, b"abc"), true).unwrap();
        let expected = content(&engine);
        engine.close().unwrap();
        let path = dir().join("0000000000000001.raftlog");
        let bytes = read_file(&*arc, &path).unwrap();
        for at in [0, 40, 60] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            fs.create(&path).unwrap().append(&flipped).unwrap();
            let e = Engine::open(&arc, dir(), aligned(record_alignment))
                .err()
                .unwrap();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
            assert_eq!(read_file(&*arc, &path).unwrap(), flipped);
        }
        fs.create(&path).unwrap().append(&bytes).unwrap();
        let engine = Engine::open(&arc, dir(), aligned(record_alignment)).unwrap();
        assert_eq!(content(&engine), expected);
    }
}
