#![expect(clippy::disallowed_types, reason = "takes files out of the page cache")]

use std::fs::File;

use rustix::fs::Advice;

use super::*;
use crate::{Access, FileSystem, PosixFileSystem};

const PAGE: usize = 4096;

struct Scratch(PathBuf);

impl Scratch {
    /// A directory with files of 256 pages.
    fn new(name: &str, files: usize) -> Self {
        let name = format!("orogen-residency-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let this = Self(dir);
        for n in 0..files {
            let bytes: Vec<u8> = (0..256 * PAGE).map(|i| (i / PAGE) as u8).collect();
            let mut file = PosixFileSystem.create(&this.file(n)).unwrap();
            file.append(&bytes).unwrap();
            file.sync().unwrap();
        }
        this
    }

    fn file(&self, n: usize) -> PathBuf {
        self.0.join(format!("file-{n}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How many of `reads` reads are given, from the place of the first.
fn given(file: &dyn crate::RandomAccessFile, reads: usize, page: usize) -> usize {
    let given = (0..reads).filter(|_| {
        let mut is_it = false;
        let mut look = |read: &[u8]| is_it = read == [page as u8; 100];
        file.with_mapped((page * PAGE) as u64 + 7, 100, &mut look) == Some(true) && is_it
    });
    given.count()
}

#[test]
fn mappings_are_used_once_memory_has_held_all_for_a_while() {
    let scratch = Scratch::new("used", 2);
    let open = |n| {
        let path = scratch.file(n);
        PosixFileSystem.open(&path, Access::MappedInMemory).unwrap()
    };
    let file = open(0);
    let looks = (LOOK_EVERY * IN_A_ROW) as usize;
    assert_eq!(given(&*file, looks / 3, 3), 0);
    given(&*file, 3 * looks, 3);
    assert_eq!(given(&*file, 100, 9), 100);
    // The other files of the directory, too, and none of another one.
    let other = open(1);
    assert_eq!(given(&*other, 100, 200), 100);
    let end = (256 * PAGE) as u64;
    assert_eq!(other.with_mapped(end - 1, 2, &mut |_| ()), None);
    let elsewhere = Scratch::new("elsewhere", 1);
    let elsewhere = PosixFileSystem.open(&elsewhere.file(0), Access::MappedInMemory);
    assert_eq!(given(&*elsewhere.unwrap(), 100, 1), 0);
    // Who asks for another way gets that.
    let by_calls = PosixFileSystem.open(&scratch.file(1), Access::Random);
    assert_eq!(given(&*by_calls.unwrap(), 100, 1), 0);
    // What was learned goes with the last file.
    drop((file, other));
    assert_eq!(given(&*open(0), 100, 1), 0);
}

#[test]
fn calls_are_used_from_the_first_look_on_that_finds_something_missing() {
    let scratch = Scratch::new("missing", 2);
    let path = scratch.file(0);
    let file = PosixFileSystem.open(&path, Access::MappedInMemory).unwrap();
    let looks = (4 * LOOK_EVERY * IN_A_ROW) as usize;
    given(&*file, looks, 3);
    assert_eq!(given(&*file, 1, 3), 1);
    // Out of memory, unless the file system keeps all there.
    let missing = scratch.file(1);
    let other = File::open(&missing).unwrap();
    rustix::fs::fadvise(&other, 0, None, Advice::DontNeed).unwrap();
    let mapping = FileMapping::new(&other, (256 * PAGE) as u64).unwrap();
    if mapping.is_resident((100 * PAGE) as u64, PAGE).unwrap() {
        return;
    }
    assert_eq!(mapping.is_resident(u64::MAX, 1), None);
    assert_eq!(mapping.is_resident(0, 257 * PAGE), None);
    drop(mapping);
    let other = PosixFileSystem
        .open(&missing, Access::MappedInMemory)
        .unwrap();
    // The look does not bring it in, and mappings are not used any more.
    for _ in 0..8 * LOOK_EVERY {
        let _ = other.with_mapped((250 * PAGE) as u64, PAGE, &mut |_| ());
        let file = File::open(&missing).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    }
    assert_eq!(given(&*file, 1, 3), 0);
    given(&*file, looks, 3);
    assert_eq!(given(&*file, 1, 3), 1, "they are again");
}

#[test]
fn threads_that_read_little_look_too_and_not_at_every_other_read() {
    let scratch = Scratch::new("little", 1);
    let path = scratch.file(0);
    let file = PosixFileSystem.open(&path, Access::MappedInMemory).unwrap();
    let read_by_threads = || {
        std::thread::scope(|scope| {
            for _ in 0..6 * IN_A_ROW * LOOK_EVERY / 8 {
                scope.spawn(|| given(&*file, 8, 3)).join().unwrap();
            }
        });
    };
    read_by_threads();
    assert_eq!(given(&*file, 1, 3), 1);
    // Reads of one kind and of another in turn: both are looked at.
    let mut parities = [0; 2];
    for read in 0..1000 * LOOK_EVERY {
        let before = UNTIL_LOOK.get();
        given(&*file, 1, 3);
        if before <= 1 {
            parities[(read % 2) as usize] += 1;
        }
    }
    assert!(parities.iter().all(|n| *n > 300), "{parities:?}");
}
