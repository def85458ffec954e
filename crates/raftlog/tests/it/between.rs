//! Writes and reads in the middle of a purge: at each of its calls to the file system, on the thread
//! of the purge itself. A lock that purge held over such a call would be waited for without end.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::Result;
use orogen_env::{
    Access, FileLock, FileSystem, MemFileSystem, Metadata, RandomAccessFile, WritableFile,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Queue, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, open, options, random_batch};
use crate::purge::{FILLER, command, entries, push_out, put};

type Step = Box<dyn FnMut() + Send>;

/// Does something at each call that only purge makes.
#[derive(Default)]
struct Hook {
    step: Mutex<Option<Step>>,
    is_on: AtomicBool,
}

impl Hook {
    fn call(&self) {
        // What it does makes calls, too.
        if self.is_on.swap(false, Ordering::SeqCst) {
            if let Some(step) = &mut *self.step.lock().unwrap() {
                step();
            }
            self.is_on.store(true, Ordering::SeqCst);
        }
    }
}

#[derive(Clone)]
struct HookedFileSystem {
    below: MemFileSystem,
    hook: Arc<Hook>,
}

fn is_rewrite(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "rewrite")
}

struct Writer {
    below: Box<dyn WritableFile>,
    hook: Arc<Hook>,
}

impl WritableFile for Writer {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.hook.call();
        self.below.append(bytes)
    }
    fn sync(&mut self) -> Result<()> {
        self.hook.call();
        self.below.sync()?;
        self.hook.call();
        Ok(())
    }
    fn size(&self) -> u64 {
        self.below.size()
    }
}

struct Reader {
    below: Arc<dyn RandomAccessFile>,
    hook: Arc<Hook>,
}

impl RandomAccessFile for Reader {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.hook.call();
        self.below.read_at(offset, buf)
    }
    fn size(&self) -> Result<u64> {
        self.below.size()
    }
    fn path(&self) -> &Path {
        self.below.path()
    }
}

impl HookedFileSystem {
    fn writer(&self, path: &Path, below: Box<dyn WritableFile>) -> Box<dyn WritableFile> {
        if !is_rewrite(path) {
            return below;
        }
        let hook = Arc::clone(&self.hook);
        Box::new(Writer { below, hook })
    }
}

impl FileSystem for HookedFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(self.writer(path, self.below.create(path)?))
    }
    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(self.writer(path, self.below.open_append(path)?))
    }
    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        self.below.reuse(old, new)
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let (below, hook) = (self.below.open(path, access)?, Arc::clone(&self.hook));
        Ok(Arc::new(Reader { below, hook }))
    }
    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        self.below.truncate(path, size)
    }
    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        self.below.punch_hole(path, offset, len)
    }
    fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.below.metadata(path)
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.below.create_dir_all(dir)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        self.hook.call();
        self.below.remove_file(path)?;
        self.hook.call();
        Ok(())
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.below.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.below.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.below.hard_link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.below.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.below.lock(path)
    }
    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.below.free_space(dir)
    }
}

struct State {
    rng: Rng,
    model: Model,
    steps: u32,
    /// What a power cut would have to leave at least, and a disk that it left.
    crashed: Option<(MemFileSystem, Vec<Model>)>,
}

#[test]
fn what_is_written_and_read_in_the_middle_of_a_purge_is_right() {
    let mut steps = 0;
    let mut deleted = [0, 0];
    for seed in 0..60 {
        let disk = disk();
        let hook = Arc::new(Hook::default());
        let fs: Arc<dyn FileSystem> = Arc::new(HookedFileSystem {
            below: disk.clone(),
            hook: Arc::clone(&hook),
        });
        let state = Arc::new(Mutex::new(State {
            rng: Rng::new(Rng::seed_or(0) + seed),
            model: Model::new(),
            steps: 0,
            crashed: None,
        }));
        for _ in 0..3 {
            let engine = Arc::new(Engine::open(&fs, dir(), options()).unwrap());
            let (inner, shared, below) = (Arc::clone(&engine), Arc::clone(&state), disk.clone());
            *hook.step.lock().unwrap() = Some(Box::new(move || {
                let state = &mut *shared.lock().unwrap();
                state.steps += 1;
                assert_eq!(inner.purge_expired_files().unwrap(), [], "one at a time");
                if state.rng.chance(1, 8) {
                    assert_eq!(content(&inner), state.model);
                }
                if state.rng.chance(1, 20) {
                    // All that was synced, and what is not may be there to some batch.
                    inner.sync().unwrap();
                    let mut states = vec![state.model.clone()];
                    for _ in 0..state.rng.below(4) {
                        let mut batch = random_batch(&mut state.rng, &mut state.model, 0);
                        inner.write(&mut batch, false).unwrap();
                        states.push(state.model.clone());
                    }
                    let crash = orogen_env::PowerCut::Torn {
                        seed: state.rng.u64(),
                    };
                    state.crashed = Some((below.crash(crash), states));
                }
                for _ in 0..state.rng.below(3) {
                    let mut batch = random_batch(&mut state.rng, &mut state.model, 0);
                    inner.write(&mut batch, false).unwrap();
                }
            }));
            for _ in 0..25 {
                for _ in 0..4 {
                    let state = &mut *state.lock().unwrap();
                    let mut batch = random_batch(&mut state.rng, &mut state.model, 0);
                    engine.write(&mut batch, false).unwrap();
                }
                hook.is_on.store(true, Ordering::SeqCst);
                engine.purge_expired_files().unwrap();
                hook.is_on.store(false, Ordering::SeqCst);
                let state = &mut *state.lock().unwrap();
                assert_eq!(content(&engine), state.model, "seed {seed}");
                if let Some((disk, states)) = state.crashed.take() {
                    let found = content(&open(&disk).unwrap());
                    assert!(states.contains(&found), "seed {seed}");
                }
            }
            for (queue, count) in [Queue::Append, Queue::Rewrite]
                .into_iter()
                .zip(&mut deleted)
            {
                *count += engine.file_span(queue).map_or(0, |(first, _)| first - 1);
            }
            *hook.step.lock().unwrap() = None;
            drop(engine);
            let opened = content(&open(&disk).unwrap());
            assert_eq!(opened, state.lock().unwrap().model, "seed {seed}");
        }
        steps += state.lock().unwrap().steps;
    }
    assert!(
        steps > 1000 && deleted[0] > 100 && deleted[1] > 100,
        "{steps} {deleted:?}"
    );
}

/// Runs a purge that does `step` when it first writes to the rewrite queue, then pushes out all
/// that was there; the groups and their content after the step and at the end must be alike.
fn check(prepare: impl Fn(&Engine), step: impl Fn(&Engine) + Send + 'static) {
    let disk = disk();
    let hook = Arc::new(Hook::default());
    let fs: Arc<dyn FileSystem> = Arc::new(HookedFileSystem {
        below: disk.clone(),
        hook: Arc::clone(&hook),
    });
    let engine = Arc::new(Engine::open(&fs, dir(), options()).unwrap());
    prepare(&engine);
    let inner = Arc::clone(&engine);
    let mut step = Some(step);
    *hook.step.lock().unwrap() = Some(Box::new(move || {
        if let Some(step) = step.take() {
            step(&inner);
        }
    }));
    hook.is_on.store(true, Ordering::SeqCst);
    engine.purge_expired_files().unwrap();
    hook.is_on.store(false, Ordering::SeqCst);
    *hook.step.lock().unwrap() = None;
    let expected = content(&engine);
    assert_eq!(content(&open(&disk.fork()).unwrap()), expected);
    push_out(&engine);
    let (mut found, mut expected) = (content(&engine), expected);
    found.remove(&FILLER);
    expected.remove(&FILLER);
    assert_eq!(found, expected);
    let mut found = content(&open(&disk.fork()).unwrap());
    found.remove(&FILLER);
    assert_eq!(found, expected);
}

#[test]
fn a_group_that_goes_while_it_is_moved_stays_away() {
    for is_new in [false, true] {
        check(
            |engine| {
                if !is_new {
                    entries(engine, 1, 1, 3);
                    push_out(engine);
                }
                entries(engine, 1, 4, 2);
                put(engine, 1, "a");
                for _ in 0..8 {
                    put(engine, FILLER, &"k".repeat(700));
                }
            },
            |engine| command(engine, 1, Command::Clean),
        );
    }
}

#[test]
fn a_file_that_cuts_off_what_was_moved_stays_as_long_as_it_must() {
    check(
        |engine| {
            entries(engine, 1, 1, 10);
            push_out(engine);
            put(engine, 2, "to be moved");
            for _ in 0..8 {
                put(engine, FILLER, &"k".repeat(700));
            }
            // Not in the part that moves, nor in the newest file.
            entries(engine, 1, 5, 2);
            put(engine, FILLER, &"k".repeat(700));
            put(engine, FILLER, &"k".repeat(700));
        },
        |engine| {
            engine.compact_to(1, 7).unwrap();
            assert_eq!(engine.first_index(1), None);
        },
    );
}

#[test]
fn what_is_written_over_while_it_is_moved_on_demand_is_not_the_old_again() {
    let (disk, hook) = (disk(), Arc::new(Hook::default()));
    let fs: Arc<dyn FileSystem> = Arc::new(HookedFileSystem {
        below: disk.clone(),
        hook: Arc::clone(&hook),
    });
    let engine = Arc::new(Engine::open(&fs, dir(), options()).unwrap());
    entries(&engine, 1, 1, 3);
    put(&engine, 2, "key");
    // The newest file has no record then.
    engine
        .rewrite_append_queue(None, RewriteSteps::Removals)
        .unwrap();
    let inner = Arc::clone(&engine);
    let mut is_done = false;
    *hook.step.lock().unwrap() = Some(Box::new(move || {
        if !std::mem::replace(&mut is_done, true) {
            let mut batch = LogBatch::default();
            batch.add_entries(1, 2, &["new"]).unwrap();
            batch.put(2, b"key".to_vec(), b"new".to_vec()).unwrap();
            inner.write(&mut batch, false).unwrap();
        }
    }));
    hook.is_on.store(true, Ordering::SeqCst);
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
    hook.is_on.store(false, Ordering::SeqCst);
    *hook.step.lock().unwrap() = None;
    let is_new = |engine: &Engine| {
        assert_eq!(engine.get_entry(1, 2).unwrap().unwrap(), b"new");
        assert_eq!(engine.get(2, b"key").unwrap(), b"new");
        assert_eq!(engine.last_index(1), Some(2));
    };
    is_new(&engine);
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
    is_new(&engine);
    drop(engine);
    is_new(&open(&disk).unwrap());
}
