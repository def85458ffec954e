use std::path::PathBuf;

use super::{DIRECT_LEN, File, MappedFile, PIECE_LEN, WINDOW_LEN};
use crate::fs::{FileSystem, WritableFile, read_file};
use crate::posix::PosixFileSystem;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("orogen-mapped-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + seed * 7) as u8 | 1).collect()
}

#[test]
fn what_was_appended_is_read_at_once_and_nothing_is_left_behind() {
    let dir = Scratch::new("append");
    let path = dir.0.join("log");
    let fs = PosixFileSystem::new();
    let mut file = fs.create_mapped(&path, 3 * WINDOW_LEN as u64 / 2).unwrap();
    let mut expected = Vec::new();
    let around = [DIRECT_LEN, PIECE_LEN, WINDOW_LEN, 2 * WINDOW_LEN + 5];
    let lengths = [0, 1, 7, 4096].into_iter();
    for (i, len) in lengths
        .chain(around.iter().flat_map(|&n| [n - 1, n, n + 1]))
        .enumerate()
    {
        let bytes = pattern(len, i);
        file.append(&bytes).unwrap();
        expected.extend_from_slice(&bytes);
        assert_eq!(file.size(), expected.len() as u64);
        // As another process would see it.
        let on_disk = read_file(&fs, &path).unwrap();
        assert!(on_disk.starts_with(&expected), "{len}");
        assert!(on_disk[expected.len()..].iter().all(|&b| b == 0), "{len}");
    }
    file.start_writeback().unwrap();
    file.sync().unwrap();
    drop(file);
    assert!(read_file(&fs, &path).unwrap() == expected);
}

#[test]
fn a_file_that_was_made_shorter_is_left_so() {
    let dir = Scratch::new("shorter");
    let path = dir.0.join("log");
    let fs = PosixFileSystem::new();
    let mut file = fs.create_mapped(&path, 3 * WINDOW_LEN as u64 / 2).unwrap();
    file.append(&pattern(1000, 1)).unwrap();
    fs.truncate(&path, 300).unwrap();
    drop(file);
    assert!(read_file(&fs, &path).unwrap() == pattern(1000, 1)[..300]);
}

#[test]
fn space_is_reserved_for_what_is_expected_and_given_back() {
    let dir = Scratch::new("expected");
    let path = dir.0.join("log");
    let fs = PosixFileSystem::new();
    let len = || std::fs::metadata(&path).unwrap().len();
    let window = WINDOW_LEN as u64;
    let mut file = fs.create_mapped(&path, 5 * window - 10).unwrap();
    file.append(&pattern(WINDOW_LEN, 1)).unwrap();
    assert_eq!(len(), window, "a small file stays small");
    file.append(b"x").unwrap();
    let ahead = len();
    // Where a reservation costs as much as its pages it is made a window at a time.
    assert!([2 * window, 5 * window].contains(&ahead), "{ahead}");
    file.append(&pattern(4 * WINDOW_LEN, 2)).unwrap();
    assert!(len() > file.size());
    drop(file);
    assert_eq!(len(), 5 * window + 1);
}

#[test]
fn small_appends_across_windows_lose_no_byte() {
    let dir = Scratch::new("small");
    let path = dir.0.join("log");
    let fs = PosixFileSystem::new();
    let made = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let Ok(mut file) = MappedFile::new(made, &path, 2 * WINDOW_LEN as u64) else {
        eprintln!("the file system of {} is written by calls", path.display());
        return;
    };
    let mut expected = Vec::new();
    while expected.len() < 3 * WINDOW_LEN {
        let by_call = expected.len() % 7 == 0;
        let len = 1 + expected.len() % 1999 + if by_call { DIRECT_LEN } else { 0 };
        let bytes = pattern(len, expected.len());
        file.append(&bytes).unwrap();
        expected.extend_from_slice(&bytes);
        if expected.len() % 11 == 0 {
            file.sync().unwrap();
        }
        if expected.len() % 13 == 0 {
            // As after an error: pages are made anew, and the bytes in them stay.
            file.window = None;
        }
    }
    drop(file);
    assert!(read_file(&fs, &path).unwrap() == expected);
}
