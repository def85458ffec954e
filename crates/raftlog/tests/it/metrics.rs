//! What an engine says of itself, beside histories whose figures are known.

use std::path::Path;
use std::sync::Arc;

use orogen_env::{FileSystem, MemFileSystem};
use orogen_raftlog::raw::{
    Command, Engine, EventListener, FileBlockHandle, FileId, LogBatch, Metrics, Options, PerQueue,
    Queue, SAMPLE_EVERY,
};

use crate::purge::{entries, first_file, push_out};

fn options() -> Options {
    Options {
        target_file_size: 4000,
        purge_threshold: 16_000,
        batch_compression_threshold: 0,
        ..Options::default()
    }
}

fn open(fs: &MemFileSystem, options: Options) -> Engine {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Engine::open(&fs, Path::new("/log"), options).unwrap()
}

#[test]
fn writes_bytes_and_syncs_are_exact() {
    let engine = open(&MemFileSystem::new(), Options::default());
    let opened = engine.metrics();
    assert_eq!(
        opened.files_made,
        PerQueue {
            append: 1,
            rewrite: 0
        }
    );
    let (mut bytes, mut count, mut synced) = (0, 0, 0);
    for index in 1..=1000u64 {
        let mut batch = LogBatch::default();
        let entry = vec![1; index as usize];
        batch.add_entries(7, index, &[entry]).unwrap();
        let sync = index % 10 == 0;
        bytes += engine.write(&mut batch, sync).unwrap() as u64;
        count += 1;
        synced += u64::from(sync);
    }
    engine.write(&mut LogBatch::default(), true).unwrap();
    let mut refused = LogBatch::default();
    refused.add_entries(7, 5000, &[b"hole"]).unwrap();
    engine.write(&mut refused, false).unwrap_err();
    let seen = engine.metrics();
    assert_eq!(seen.write_size.count(), count);
    assert_eq!(seen.write_size.sum(), bytes as f64);
    assert_eq!(seen.appended_bytes.append, bytes);
    assert_eq!(seen.write_groups, count);
    // The last batch was synced, so the empty one finds nothing to sync.
    assert_eq!(
        seen.syncs,
        PerQueue {
            append: synced,
            rewrite: 0
        }
    );
    assert_eq!(seen.sync_log_duration.count(), synced);
    // One in so many counts for all of them, and each that syncs for itself.
    for of_writes in [
        &seen.write_duration,
        &seen.write_preprocess_duration,
        &seen.write_apply_duration,
        &seen.write_leader_duration,
    ] {
        assert!(of_writes.count().abs_diff(count) <= SAMPLE_EVERY);
        assert_eq!((of_writes.count() - synced) % SAMPLE_EVERY, 0);
    }
    assert_eq!(
        seen.log_entry_count,
        PerQueue {
            append: 1000,
            rewrite: 0
        }
    );
    assert_eq!(
        seen.log_file_count,
        PerQueue {
            append: 1,
            rewrite: 0
        }
    );
    // Three to seven bytes for each entry.
    assert!(
        (3_000..12_000).contains(&seen.memory_usage),
        "{}",
        seen.memory_usage
    );
    engine.compact_to(7, 990).unwrap();
    let later = engine.metrics();
    assert_eq!(later.log_entry_count.append, 11);
    assert!(later.memory_usage < seen.memory_usage / 4);
}

#[test]
fn threads_add_up() {
    let engine = open(&MemFileSystem::new(), Options::default());
    std::thread::scope(|scope| {
        for group in 1..=4 {
            let engine = &engine;
            scope.spawn(move || {
                for index in 1..=500 {
                    entries(engine, group, index, 1);
                    engine.get_entry(group, index).unwrap();
                }
            });
        }
    });
    let seen = engine.metrics();
    assert_eq!(seen.write_size.count(), 2000);
    assert!(seen.write_groups <= 2000);
    assert!(seen.read_entry_duration.count().abs_diff(2000) <= 4 * SAMPLE_EVERY);
    assert_eq!(seen.read_entry_count.mean(), 1.0);
}

/// Counts bytes by queue and the files of each.
#[derive(Default)]
struct Told {
    bytes: [std::sync::atomic::AtomicU64; 2],
    files: [std::sync::atomic::AtomicU64; 2],
}

impl EventListener for Told {
    fn post_new_log_file(&self, id: FileId) {
        self.files[id.queue as usize].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn on_append_log_file(&self, handle: FileBlockHandle) {
        let len = handle.len as u64;
        self.bytes[handle.id.queue as usize].fetch_add(len, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Told {
    fn per_queue(of: &[std::sync::atomic::AtomicU64; 2]) -> PerQueue {
        PerQueue {
            append: of[0].load(std::sync::atomic::Ordering::Relaxed),
            rewrite: of[1].load(std::sync::atomic::Ordering::Relaxed),
        }
    }
}

fn files_of(engine: &Engine, queue: Queue) -> u64 {
    engine
        .file_span(queue)
        .map_or(0, |(first, last)| last - first + 1)
}

#[test]
fn a_purge_is_counted() {
    let fs = MemFileSystem::new();
    let told = Arc::new(Told::default());
    let engine = {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let listener: Arc<dyn EventListener> = told.clone();
        Engine::open_with_listeners(&fs, Path::new("/log"), options(), vec![listener]).unwrap()
    };
    entries(&engine, 1, 1, 20);
    entries(&engine, 2, 1, 40);
    let mut batch = LogBatch::default();
    batch.put(1, b"key".to_vec(), b"value".to_vec()).unwrap();
    engine.write(&mut batch, true).unwrap();
    engine.purge_expired_files().unwrap();
    let short = engine.metrics();
    assert_eq!(
        (short.purge_skips_short, short.purge_duration.count()),
        (1, 1)
    );
    assert_eq!(short.rewrite_append_duration.count(), 0);
    push_out(&engine);
    let seen = engine.metrics();
    assert!(seen.rewrite_append_duration.count() > 0);
    assert!(seen.purge_groups_moved >= 2);
    assert!(
        seen.purge_groups_returned >= 9,
        "group 2 is asked for before it is moved"
    );
    assert_eq!(seen.appended_bytes, Told::per_queue(&told.bytes));
    assert_eq!(seen.files_made, Told::per_queue(&told.files));
    assert_eq!(
        seen.background_append_bytes.sum() + seen.background_rewrite_bytes.sum(),
        seen.appended_bytes.rewrite as f64
    );
    assert_eq!(seen.log_file_count.append, files_of(&engine, Queue::Append));
    assert_eq!(
        seen.log_file_count.rewrite,
        files_of(&engine, Queue::Rewrite)
    );
    // Those that are not there any more were deleted or are spare, or were taken from the spare ones.
    let gone = first_file(&engine, Queue::Append) - 1;
    assert_eq!(seen.files_deleted.append + seen.files_spared, gone);
    assert_eq!(
        seen.files_spared - seen.files_written_over,
        seen.recycled_file_count.append
    );
    assert_eq!(seen.log_entry_count.rewrite, 61);
    assert_eq!(
        seen.rotate_log_duration.count() + 2,
        seen.files_made.append + seen.files_made.rewrite,
        "but for the first of each queue"
    );
    drop(engine);
    let engine = open(&fs, options());
    let again = engine.metrics();
    assert_eq!(again.log_entry_count, seen.log_entry_count);
    assert_eq!(again.log_file_count, seen.log_file_count);
    assert_eq!(again.recycled_file_count, seen.recycled_file_count);
    assert_eq!(
        again.appended_bytes,
        PerQueue::default(),
        "it counts from its opening"
    );
    let mut batch = LogBatch::default();
    batch.add_command(1, Command::Clean);
    batch.add_command(2, Command::Clean);
    engine.write(&mut batch, false).unwrap();
    assert_eq!(engine.metrics().log_entry_count.rewrite, 0);
}

#[test]
fn compressed_batches_tell_how_much_is_left() {
    let ratio = |entry: Vec<u8>| {
        let options = Options {
            batch_compression_threshold: 1000,
            ..Options::default()
        };
        let engine = open(&MemFileSystem::new(), options);
        let mut batch = LogBatch::default();
        batch.add_entries(1, 1, &[entry]).unwrap();
        engine.write(&mut batch, false).unwrap();
        let Metrics {
            write_compression_ratio: ratio,
            ..
        } = engine.metrics();
        (ratio.count(), ratio.mean())
    };
    assert_eq!(ratio(vec![1; 999]).0, 0);
    let (count, mean) = ratio(vec![1; 100_000]);
    assert!(count == 1 && (0.003..0.01).contains(&mean), "{mean}");
}
