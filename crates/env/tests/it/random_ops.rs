//! Random histories give the same answers on the disk and in memory.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::{ErrorKind, Result};
use orogen_env::fs::read_file;
use orogen_env::{
    Access, FileLock, FileSystem, MemFileSystem, PosixFileSystem, RandomAccessFile, WritableFile,
};

use crate::{TempDir, errno, share};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// One file system with what is open of it.
struct Subject {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    writers: Vec<Box<dyn WritableFile>>,
    readers: Vec<Arc<dyn RandomAccessFile>>,
    locks: Vec<(String, Box<dyn FileLock>)>,
}

fn shown<T>(result: Result<T>, show: impl FnOnce(T) -> String) -> String {
    match result {
        Ok(value) => format!("ok {}", show(value)),
        Err(e) if e.kind() == ErrorKind::Busy => "busy".to_owned(),
        Err(e) => format!("{:?} {:?}", e.kind(), errno(&e)),
    }
}

const NAMES: [&str; 10] = ["a", "b", "c", "d/a", "d/b", "d", "e", "e/f", "e/f/a", "a/x"];

impl Subject {
    fn new(fs: Arc<dyn FileSystem>, dir: &Path) -> Self {
        let dir = dir.to_owned();
        Self {
            fs,
            dir,
            writers: Vec::new(),
            readers: Vec::new(),
            locks: Vec::new(),
        }
    }

    fn keep(&mut self, made: Result<Box<dyn WritableFile>>) -> String {
        shown(made, |file| {
            let size = file.size();
            self.writers.push(file);
            format!("{size}")
        })
    }

    fn step(&mut self, random: &mut Random) -> String {
        let op = random.below(20);
        let name = NAMES[random.below(NAMES.len())];
        let (one, two) = (
            self.dir.join(name),
            self.dir.join(NAMES[random.below(NAMES.len())]),
        );
        let (place, size) = (random.below(3000), random.below(1500));
        let fs = Arc::clone(&self.fs);
        if self.writers.len() > 4 {
            self.writers.remove(place % 5);
        }
        let result = match op {
            0 | 1 => self.keep(fs.create(&one)),
            2 => self.keep(fs.open_append(&one)),
            // On the disk a directory would be moved before it is found to be one.
            3 if fs.metadata(&one).is_ok_and(|m| m.is_dir) => String::new(),
            3 => self.keep(fs.reuse(&one, &two)),
            4 => shown(fs.open(&one, Access::Random), |file| {
                self.readers.push(file);
                String::new()
            }),
            5..=8 => match self.writers.len() {
                0 => String::new(),
                n => {
                    let writer = &mut self.writers[place % n];
                    let bytes: Vec<u8> = (0..size).map(|i| (i + place) as u8).collect();
                    let done = shown(writer.append(&bytes), |()| String::new());
                    let synced = shown(writer.sync(), |()| String::new());
                    format!("{done} {synced} {}", writer.size())
                }
            },
            9 | 10 => match self.readers.len() {
                0 => String::new(),
                n => {
                    let mut buf = vec![0; size];
                    let n = self.readers[place % n].read_at(place as u64, &mut buf);
                    shown(n, |n| format!("{:?}", &buf[..n]))
                }
            },
            11 => shown(fs.truncate(&one, place as u64), |()| String::new()),
            12 => shown(fs.create_dir_all(&one), |()| String::new()),
            13 => shown(fs.remove_file(&one), |()| String::new()),
            14 => shown(fs.remove_dir(&one), |()| String::new()),
            15 => shown(fs.rename(&one, &two), |()| String::new()),
            16 => shown(fs.hard_link(&one, &two), |()| String::new()),
            17 => shown(fs.sync_dir(&one), |()| String::new()),
            18 => match self.locks.iter().position(|(held, _)| held == name) {
                Some(i) => {
                    self.locks.remove(i);
                    "given back".to_owned()
                }
                None => shown(fs.lock(&one), |lock| {
                    self.locks.push((name.to_owned(), lock));
                    String::new()
                }),
            },
            _ => shown(fs.list(&one), |mut names| {
                names.sort();
                names.join(" ")
            }),
        };
        format!(
            "{op} {name} {}: {result}",
            two.file_name().unwrap().display()
        )
    }

    fn all(&self, dir: &Path, out: &mut String) {
        let mut names = self.fs.list(dir).unwrap();
        names.sort();
        for name in names {
            let path = dir.join(&name);
            let meta = self.fs.metadata(&path).unwrap();
            if meta.is_dir {
                writeln!(out, "{name}/").unwrap();
                self.all(&path, out);
            } else {
                let bytes = read_file(&*self.fs, &path).unwrap();
                assert_eq!(bytes.len() as u64, meta.size);
                writeln!(out, "{name} {} {bytes:?}", meta.links).unwrap();
            }
        }
    }
}

#[test]
fn memory_and_disk_agree_on_random_histories() {
    for seed in 0..15 {
        let temp = TempDir::new();
        let mem = MemFileSystem::new();
        let mut posix = Subject::new(share(PosixFileSystem::new()), &temp.0);
        let mut memory = Subject::new(share(mem.clone()), Path::new("/"));
        let (mut one, mut two) = (Random(seed), Random(seed));
        for step in 0..300 {
            let expected = posix.step(&mut one);
            assert_eq!(memory.step(&mut two), expected, "seed={seed} step={step}");
        }
        let (mut expected, mut found) = (String::new(), String::new());
        posix.all(&temp.0, &mut expected);
        memory.all(Path::new("/"), &mut found);
        assert_eq!(found, expected, "seed={seed}");
        // A fork holds the same.
        memory.fs = share(mem.fork());
        found.clear();
        memory.all(Path::new("/"), &mut found);
        assert_eq!(found, expected, "seed={seed}");
    }
}
