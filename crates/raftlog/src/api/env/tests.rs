use std::collections::BTreeSet;
use std::io::{Error, SeekFrom};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use orogen_testkit::TempDir;

use super::*;
use crate::internals::LogQueue;
use crate::{Config, Engine, LogBatch, ReadableSize};

/// Turns the bits of each byte over, and does one byte at a call.
#[derive(Default)]
struct Turned {
    inner: DefaultFileSystem,
    deleted: AtomicUsize,
    is_full: std::sync::atomic::AtomicBool,
}

struct TurnedFile(LogFile, bool);

impl Read for TurnedFile {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let len = buf.len().min(1);
        let n = self.0.read(&mut buf[..len])?;
        buf[..n].iter_mut().for_each(|b| *b = !*b);
        Ok(n)
    }
}

impl Write for TurnedFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.1 {
            return Err(Error::other("nospace"));
        }
        bytes.first().map_or(Ok(0), |b| self.0.write(&[!b]))
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

impl Seek for TurnedFile {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.0.seek(to)
    }
}

impl WriteExt for TurnedFile {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        WriteExt::truncate(&mut self.0, offset)
    }

    fn allocate(&mut self, _: usize, _: usize) -> Result<()> {
        // Zeros would be read as something else.
        Ok(())
    }
}

impl FileSystem for Turned {
    type Handle = LogFd;
    type Reader = TurnedFile;
    type Writer = TurnedFile;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<LogFd> {
        self.inner.create(path)
    }

    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> Result<LogFd> {
        self.inner.open(path, perm)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        self.deleted.fetch_add(1, Ordering::Relaxed);
        self.inner.delete(path)
    }

    /// As one that keeps keys by names: a name that has one gets no other.
    fn rename<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<()> {
        if dst_path.as_ref().exists() {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        self.inner.rename(src_path, dst_path)
    }

    fn new_reader(&self, handle: Arc<LogFd>) -> Result<TurnedFile> {
        Ok(TurnedFile(self.inner.new_reader(handle)?, false))
    }

    fn new_writer(&self, handle: Arc<LogFd>) -> Result<TurnedFile> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        Ok(TurnedFile(self.inner.new_writer(handle)?, is_full))
    }
}

fn put(engine: &Engine<Turned>, n: u8) -> crate::Result<usize> {
    let mut batch = LogBatch::default();
    batch.put(1, b"key".to_vec(), vec![n; 500])?;
    engine.write(&mut batch, true)
}

#[test]
fn a_log_lives_on_any_file_system() {
    let temp = TempDir::new("raftlog-env");
    let config = Config {
        dir: temp.path().to_str().unwrap().to_owned(),
        target_file_size: ReadableSize::kb(1),
        purge_threshold: ReadableSize::kb(4),
        ..Config::default()
    };
    let fs = Arc::new(Turned::default());
    let open = || Engine::open_with_file_system(config.clone(), Arc::clone(&fs)).unwrap();
    let engine = open();
    (0..20).for_each(|n| assert!(put(&engine, n).unwrap() > 500));
    engine.purge_expired_files().unwrap();
    assert!(fs.deleted.load(Ordering::Relaxed) > 0);
    drop(engine);
    let engine = open();
    assert_eq!(engine.get(1, b"key"), Some(vec![19; 500]));
    put(&engine, 20).unwrap();
    drop(engine);
    let newest = {
        let engine = open();
        assert_eq!(engine.get(1, b"key"), Some(vec![20; 500]));
        engine.file_span(LogQueue::Append).1
    };
    let bytes = std::fs::read(temp.path().join(format!("{newest:016}.raftlog"))).unwrap();
    assert!(bytes.starts_with(&[!b'R', !b'A', !b'F', !b'T']));
    assert!(Engine::open(config.clone()).is_err(), "it is not plain");
    let dumped = Engine::dump_with_file_system(temp.path(), Arc::clone(&fs)).unwrap();
    assert!(dumped.count() > 0);
}

#[test]
fn files_without_records_are_made_again_where_a_rename_replaces_none() {
    let temp = TempDir::new("raftlog-env");
    let config = Config {
        dir: temp.path().to_str().unwrap().to_owned(),
        ..Config::default()
    };
    let fs = Arc::new(Turned::default());
    let open = || Engine::open_with_file_system(config.clone(), Arc::clone(&fs));
    drop(open().unwrap());
    let [append, rewrite] = ["raftlog", "rewrite"].map(|queue| {
        let name = format!("{:016}.{queue}", 1);
        temp.path().join(name)
    });
    // No more than a header, as in each queue.
    std::fs::copy(append, rewrite).unwrap();
    for n in 0..2 {
        let engine = open().unwrap();
        assert_eq!(engine.get(1, b"key"), None, "{n}");
    }
    put(&open().unwrap(), 1).unwrap();
    assert_eq!(open().unwrap().get(1, b"key"), Some(vec![1; 500]));
    let names = std::fs::read_dir(temp.path()).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().ends_with(".tmp")));
}

/// Zeros of the system's would be read as something else: no file is filled, and none made and deleted for it.
#[test]
fn nothing_is_filled_where_files_are_not_plain() {
    let temp = TempDir::new("raftlog-env");
    let config = Config {
        dir: temp.path().to_str().unwrap().to_owned(),
        target_file_size: ReadableSize::mb(4),
        ..Config::default()
    };
    let fs = Arc::new(Turned::default());
    let engine = Engine::open_with_file_system(config, Arc::clone(&fs)).unwrap();
    // Such syncs that it would be: of 40 KiB that are not compressed.
    let mut rng = orogen_testkit::rng::Rng::new(1);
    for n in 0..18 {
        let mut batch = LogBatch::default();
        batch.put(n, b"key".to_vec(), rng.bytes(40 << 10)).unwrap();
        engine.write(&mut batch, true).unwrap();
    }
    assert_eq!(engine.metrics().filled_bytes, 0);
    drop(engine);
    assert_eq!(fs.deleted.load(Ordering::Relaxed), 0);
    let names = std::fs::read_dir(temp.path()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!names.into_iter().any(|name| name.ends_with(".reserved")));
}

#[test]
fn no_space_keeps_its_kind() {
    let temp = TempDir::new("raftlog-env");
    let config = Config {
        dir: temp.path().to_str().unwrap().to_owned(),
        ..Config::default()
    };
    let fs = Arc::new(Turned::default());
    fs.is_full.store(true, Ordering::Relaxed);
    let Err(e) = Engine::open_with_file_system(config, fs) else {
        panic!("the disk is full");
    };
    let crate::Error::Io(e) = e else {
        panic!("{e}");
    };
    assert_eq!(e.kind(), std::io::ErrorKind::StorageFull);
}

/// Keeps something for each name, as one that encrypts keeps keys.
#[derive(Default)]
struct Keyed {
    inner: DefaultFileSystem,
    keys: Mutex<BTreeSet<PathBuf>>,
}

impl Keyed {
    fn keys(&self) -> Vec<PathBuf> {
        self.keys.lock().unwrap().iter().cloned().collect()
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
        change(&mut self.keys.lock().unwrap())
    }
}

impl FileSystem for Keyed {
    type Handle = LogFd;
    type Reader = LogFile;
    type Writer = LogFile;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<LogFd> {
        self.change(|keys| keys.insert(path.as_ref().to_owned()));
        self.inner.create(path)
    }

    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> Result<LogFd> {
        self.inner.open(path, perm)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        self.inner.delete(&path)?;
        self.delete_metadata(path)
    }

    fn rename<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<()> {
        self.inner.rename(&src_path, &dst_path)?;
        self.change(|keys| {
            keys.remove(src_path.as_ref());
            keys.insert(dst_path.as_ref().to_owned());
        });
        Ok(())
    }

    fn delete_metadata<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        self.change(|keys| keys.remove(path.as_ref()));
        Ok(())
    }

    fn exists_metadata<P: AsRef<Path>>(&self, path: P) -> bool {
        self.change(|keys| keys.contains(path.as_ref()))
    }

    fn new_reader(&self, handle: Arc<LogFd>) -> Result<LogFile> {
        self.inner.new_reader(handle)
    }

    fn new_writer(&self, handle: Arc<LogFd>) -> Result<LogFile> {
        self.inner.new_writer(handle)
    }
}

/// Directories of a log with purged files, and all files in them but the locks.
fn purged(temp: &TempDir) -> (Config, Arc<Keyed>, [u64; 2]) {
    let dir = |name: &str| temp.path().join(name).to_str().unwrap().to_owned();
    let config = Config {
        dir: dir("log"),
        spill_dir: Some(dir("spill")),
        target_file_size: ReadableSize(1),
        purge_threshold: ReadableSize(1),
        purge_rewrite_threshold: Some(ReadableSize(1)),
        purge_rewrite_garbage_ratio: 0.0,
        enable_log_recycle: false,
        ..Config::default()
    };
    let fs = Arc::new(Keyed::default());
    let engine = Engine::open_with_file_system(config.clone(), Arc::clone(&fs)).unwrap();
    for n in 0..300 {
        let mut batch = LogBatch::default();
        batch
            .put(n % 10, b"key".to_vec(), vec![n as u8; 20])
            .unwrap();
        engine.write(&mut batch, false).unwrap();
        if n % 20 == 19 {
            engine.purge_expired_files().unwrap();
        }
    }
    let firsts = [LogQueue::Append, LogQueue::Rewrite].map(|queue| engine.file_span(queue).0);
    assert!(firsts[0] > 200 && firsts[1] > 10, "{firsts:?}");
    (config, fs, firsts)
}

fn files(config: &Config) -> Vec<PathBuf> {
    let dirs = [Some(&config.dir), config.spill_dir.as_ref()];
    let paths = dirs.into_iter().flatten().flat_map(|dir| {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path())
    });
    let mut paths: Vec<PathBuf> = paths.filter(|path| !path.ends_with("LOCK")).collect();
    paths.sort();
    paths
}

#[test]
fn what_is_kept_of_files_goes_with_them() {
    let temp = TempDir::new("raftlog-env");
    let (config, fs, firsts) = purged(&temp);
    let open = || Engine::open_with_file_system(config.clone(), Arc::clone(&fs)).unwrap();
    drop(open());
    assert_eq!(fs.keys(), files(&config));
    // As old versions left it, which deleted files and not what was kept of them.
    let spill = config.spill_dir.clone().unwrap();
    for (queue, first) in ["raftlog", "rewrite"].into_iter().zip(firsts) {
        for seq in first / 2..first {
            let dir = if seq % 3 == 0 { &spill } else { &config.dir };
            let path = Path::new(dir).join(format!("{seq:016}.{queue}"));
            fs.change(|keys| keys.insert(path));
        }
    }
    assert!(fs.keys().len() > 100 + files(&config).len());
    drop(open());
    assert_eq!(fs.keys(), files(&config));
}

#[test]
fn what_is_kept_of_a_file_that_is_there_stays() {
    let temp = TempDir::new("raftlog-env");
    let (config, fs, firsts) = purged(&temp);
    // Apart from those that count.
    let stray = Path::new(&config.dir).join(format!("{:016}.raftlog", firsts[0] / 2));
    std::fs::write(&stray, b"of whoever put it there").unwrap();
    fs.change(|keys| keys.insert(stray.clone()));
    drop(Engine::open_with_file_system(config.clone(), Arc::clone(&fs)).unwrap());
    assert!(stray.exists() && fs.exists_metadata(&stray));
    assert_eq!(fs.keys(), files(&config));
}

#[test]
fn the_files_of_the_system_are_read_and_written_at_any_place() {
    let temp = TempDir::new("raftlog-env");
    let [path, other] = ["a", "b"].map(|name| temp.path().join(name));
    let fs = DefaultFileSystem;
    assert!(fs.open(&path, Permission::ReadOnly).is_err());
    let handle = Arc::new(fs.create(&path).unwrap());
    let mut writer = fs.new_writer(Arc::clone(&handle)).unwrap();
    writer.write_all(b"0123456789").unwrap();
    writer.seek(SeekFrom::Current(-2)).unwrap();
    writer.write_all(b"x").unwrap();
    handle.sync().unwrap();
    drop(fs.create(&path).unwrap());
    fs.rename(&path, &other).unwrap();
    let handle = Arc::new(fs.open(&other, Permission::ReadOnly).unwrap());
    let mut reader = fs.new_reader(Arc::clone(&handle)).unwrap();
    assert_eq!(reader.seek(SeekFrom::End(-4)).unwrap(), 6);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "67x9");
    assert!(reader.seek(SeekFrom::Current(-11)).is_err());
    WriteExt::truncate(&mut writer, 4).unwrap();
    writer.write_all(b"!").unwrap();
    writer.allocate(5, 3).unwrap();
    let size = handle.file_size().unwrap();
    assert!(size == 8 || size == 5, "{size}");
    assert_eq!(std::fs::read(&other).unwrap()[..5], *b"0123!");
    fs.delete(&other).unwrap();
    assert!(fs.delete(&other).is_err());
}
