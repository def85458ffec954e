use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use super::{BEYOND_LEN, DIRECT_LEN, File, LET_GO_LEN, MappedFile, PIECE_LEN, SPACE_LEN};
use crate::Ahead;
use crate::fs::{FileSystem, LengthHint, WritableFile, read_file};
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

/// Twice too long, so that both ways to the end are gone.
fn hint(expected: u64) -> LengthHint {
    LengthHint {
        expected,
        likely: expected / 2,
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
    let mut file = fs
        .create_mapped(&path, hint(3 * SPACE_LEN / 2), None)
        .unwrap();
    let mut expected = Vec::new();
    let around = [DIRECT_LEN, PIECE_LEN as usize, SPACE_LEN as usize];
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
    let mut file = fs
        .create_mapped(&path, hint(3 * SPACE_LEN / 2), None)
        .unwrap();
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
    let window = SPACE_LEN;
    let mut file = fs
        .create_mapped(&path, hint(5 * window - 10), None)
        .unwrap();
    file.append(&pattern(SPACE_LEN as usize, 1)).unwrap();
    assert_eq!(len(), window, "a small file stays small");
    file.append(b"x").unwrap();
    let ahead = len();
    // Where a reservation costs as much as its pages it is made a window at a time.
    assert!([2 * window, 5 * window].contains(&ahead), "{ahead}");
    file.append(&pattern(4 * SPACE_LEN as usize, 2)).unwrap();
    assert!(len() > file.size());
    drop(file);
    assert_eq!(len(), 5 * window + 1);
}

/// Writes small pieces and large ones, and syncs after each of about `sync_each` bytes.
fn write_all(name: &str, expected: u64, total: usize, sync_each: usize, ahead: Option<Arc<Ahead>>) {
    write_over(name, 0, expected, total, sync_each, ahead);
}

/// The same over `former` bytes.
fn write_over(
    name: &str,
    former: usize,
    expected: u64,
    total: usize,
    sync_each: usize,
    ahead: Option<Arc<Ahead>>,
) {
    let dir = Scratch::new(name);
    let path = dir.0.join("log");
    let fs = PosixFileSystem::new();
    let made = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    made.write_all_at(&vec![0xff; former], 0).unwrap();
    let Ok(mut file) = MappedFile::new(made, former as u64, &path, hint(expected), ahead) else {
        eprintln!("the file system of {} is written by calls", path.display());
        return;
    };
    let (mut bytes, mut n) = (Vec::new(), 0);
    while bytes.len() < total {
        n += 1;
        let len = 1 + n * 7919 % 1999 + if n % 29 == 0 { DIRECT_LEN } else { 0 };
        let piece = pattern(len, n);
        file.append(&piece).unwrap();
        bytes.extend_from_slice(&piece);
        if bytes.len() / sync_each != (bytes.len() - len) / sync_each {
            file.sync().unwrap();
        }
        if n % 997 == 0 {
            // As after an error: pages are made anew, and the bytes in them stay.
            file.window = None;
        }
        if n % 331 == 0 {
            // As another process would see it, just when more is being made ready.
            let on_disk = read_file(&fs, &path).unwrap();
            assert!(on_disk.starts_with(&bytes), "{} bytes", bytes.len());
            let behind = &on_disk[bytes.len()..];
            let old = former.saturating_sub(bytes.len()).min(behind.len());
            assert!(behind[..old].iter().all(|&b| b == 0 || b == 0xff));
            assert!(behind[old..].iter().all(|&b| b == 0));
        }
    }
    drop(file);
    assert!(read_file(&fs, &path).unwrap() == bytes);
}

#[test]
fn appends_across_windows_lose_no_byte() {
    write_all("small", 2 * SPACE_LEN, 3 * SPACE_LEN as usize, 9999, None);
    write_all("large", 2 * SPACE_LEN, 3 << 20, usize::MAX, None);
}

#[test]
fn what_is_made_ahead_overwrites_no_byte() {
    let ahead = Arc::new(Ahead::new());
    for (name, expected, sync_each) in [
        ("ahead", 6 * SPACE_LEN, usize::MAX),
        ("ahead-short", 0, usize::MAX),
        ("ahead-often", 6 * SPACE_LEN, 9999),
        ("ahead-seldom", 6 * SPACE_LEN, 3 << 20),
    ] {
        let total = (6 * SPACE_LEN + BEYOND_LEN) as usize + 12_345;
        write_all(name, expected, total, sync_each, Some(ahead.clone()));
    }
}

#[test]
fn what_was_there_is_written_over() {
    let ahead = Arc::new(Ahead::new());
    let space = SPACE_LEN as usize;
    for former in [
        1,
        4095,
        4096,
        4097,
        space - 1,
        space,
        4 * space + 5,
        12 * space,
    ] {
        for (sync_each, ahead) in [
            (usize::MAX, None),
            (usize::MAX, Some(ahead.clone())),
            (9999, Some(ahead.clone())),
            (3 << 20, Some(ahead.clone())),
        ] {
            let total = 6 * space + 12_345;
            write_over("over", former, 5 * SPACE_LEN, total, sync_each, ahead);
        }
    }
}

/// Has the system refuse to map the file, which is open for writing alone then, or map it again.
fn refuse_to_map(file: &MappedFile, path: &Path, refuse: bool) {
    let other = File::options().read(!refuse).write(true).open(path);
    let (other, own) = (other.unwrap(), file.ground.file().as_raw_fd());
    // SAFETY: another description of the same file takes the place of the one before.
    let given = unsafe { libc::dup2(other.as_raw_fd(), own) };
    assert_eq!(given, own);
}

#[test]
fn what_cannot_be_mapped_is_written_by_calls() {
    let dir = Scratch::new("refused");
    let path = dir.0.join("log");
    for former in [0, 3 * SPACE_LEN as usize] {
        std::fs::write(&path, vec![0xff; former]).unwrap();
        let open = File::options().read(true).write(true).open(&path).unwrap();
        let hint = hint(SPACE_LEN);
        let Ok(mut file) = MappedFile::new(open, former as u64, &path, hint, None) else {
            return;
        };
        let mut bytes = Vec::new();
        for n in 0..4000 {
            if n % 500 == 0 {
                refuse_to_map(&file, &path, n % 1000 == 0);
                file.window = None;
            }
            let piece = pattern(1 + n * 7919 % 3999, n);
            file.append(&piece).unwrap();
            bytes.extend_from_slice(&piece);
            assert_eq!(file.window.is_none(), n % 1000 < 500, "{n}");
        }
        file.sync().unwrap();
        assert_eq!(file.size(), bytes.len() as u64);
        drop(file);
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
}

/// A file of so many bytes in all, whose header was synced; how many bytes have pages when those who work ahead are done, and
/// from where on they are mapped.
fn ready_behind_a_header(len: usize, ahead: Option<Arc<Ahead>>) -> Option<(u64, u64)> {
    let dir = Scratch::new("header");
    let path = dir.0.join("log");
    let open = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let hint = hint(16 * SPACE_LEN);
    let mut file = MappedFile::new(open.unwrap(), 0, &path, hint, ahead.clone()).ok()?;
    file.append(&pattern(69, 1)).unwrap();
    file.sync().unwrap();
    while (file.size() as usize) < len {
        file.append(&pattern(1000, 2)).unwrap();
    }
    if let Some(ahead) = ahead {
        let (sender, receiver) = std::sync::mpsc::channel();
        ahead.ask(move || sender.send(()).unwrap());
        receiver.recv().unwrap();
    }
    let window = file.window.as_ref().unwrap();
    Some((file.ground.ready(), window.gone()))
}

#[test]
fn the_sync_of_a_header_does_not_keep_pages_from_being_made_ahead() {
    let Some((ready, _)) = ready_behind_a_header(200_000, Some(Arc::new(Ahead::new()))) else {
        return;
    };
    assert!(ready > SPACE_LEN, "{ready}");
}

#[test]
fn a_writer_that_nobody_works_ahead_of_unmaps_what_is_behind_it() {
    let Some((ready, gone)) = ready_behind_a_header(10 << 20, None) else {
        return;
    };
    assert!(ready < (10 << 20) + 2 * PIECE_LEN, "{ready}");
    assert!(gone >= LET_GO_LEN, "{gone}");
}

#[test]
fn a_sealed_file_leaves_the_next_use_alone() {
    let dir = Scratch::new("sealed");
    let (first, second) = (dir.0.join("1"), dir.0.join("2"));
    let fs = PosixFileSystem::new();
    let ahead = Arc::new(Ahead::new());
    let expected = hint(4 * SPACE_LEN);
    for n in 0..50 {
        let mut old = fs.create_mapped(&first, expected, Some(&ahead)).unwrap();
        let bytes = pattern(300_000, n);
        bytes.chunks(500).for_each(|b| old.append(b).unwrap());
        old.seal();
        assert!(read_file(&fs, &first).unwrap() == bytes);
        let mut new = fs
            .reuse_mapped(&first, &second, expected, Some(&ahead))
            .unwrap();
        assert_eq!(new.size(), 0);
        let other = pattern(300_000 + n * 30_000, n + 1);
        let (begin, end) = other.split_at(other.len() / 2);
        begin.chunks(700).for_each(|b| new.append(b).unwrap());
        old.sync().unwrap();
        drop(old);
        end.chunks(700).for_each(|b| new.append(b).unwrap());
        assert!(read_file(&fs, &second).unwrap().starts_with(&other));
        drop(new);
        assert!(read_file(&fs, &second).unwrap() == other);
    }
}

#[test]
fn files_that_are_closed_at_once_keep_their_size() {
    let dir = Scratch::new("closed");
    let fs = PosixFileSystem::new();
    let ahead = Arc::new(Ahead::new());
    for n in 0..200 {
        let path = dir.0.join(format!("{n}"));
        let mut file = fs
            .create_mapped(&path, hint(8 * SPACE_LEN), Some(&ahead))
            .unwrap();
        let bytes = pattern(60_000 + n * 100, n);
        bytes.chunks(500).for_each(|b| file.append(b).unwrap());
        drop(file);
        assert!(read_file(&fs, &path).unwrap() == bytes);
        fs.remove_file(&path).unwrap();
    }
}
