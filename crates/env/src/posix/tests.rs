use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use orogen_base::ErrorKind;

use super::*;

const PATH_FOR_CHILD: &str = "OROGEN_ENV_TEST_LOCK";

fn temp_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("orogen-posix-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs `the_child` in another process; true if that got the lock.
fn another_process_gets(path: &Path) -> bool {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "posix::tests::the_child", "--test-threads=1"])
        .env(PATH_FOR_CHILD, path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Does nothing unless [`another_process_gets`] started it.
#[test]
fn the_child() {
    if let Some(path) = std::env::var_os(PATH_FOR_CHILD) {
        PosixFileSystem.lock(Path::new(&path)).unwrap();
    }
}

#[test]
fn a_lock_keeps_other_processes_out() {
    let dir = temp_dir("lock");
    let path = dir.join("LOCK");
    let lock = PosixFileSystem.lock(&path).unwrap();
    assert!(!another_process_gets(&path));
    // A refused attempt of this process must not give the lock up.
    assert_eq!(
        PosixFileSystem.lock(&path).err().unwrap().kind(),
        ErrorKind::Busy
    );
    assert!(!another_process_gets(&path));
    drop(lock);
    assert!(another_process_gets(&path));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_is_sealed_is_left_to_who_uses_the_file_next() {
    use std::os::unix::fs::MetadataExt;
    const ROOM: u64 = 4 << 20;
    let dir = temp_dir("sealed");
    let path = dir.join("a");
    let blocks = || fs::metadata(&path).unwrap().blocks() * 512;
    let posix = PosixFileSystem::new();
    let mut first = posix.create(&path).unwrap();
    first.append(b"first").unwrap();
    first.preallocate(2 * ROOM).unwrap();
    assert!(blocks() >= 2 * ROOM);
    first.seal();
    assert!(blocks() < ROOM);
    let mut second = posix.open_append(&path).unwrap();
    second.preallocate(ROOM).unwrap();
    drop(first);
    assert!(blocks() >= ROOM);
    drop(second);
    assert!(blocks() < ROOM);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn errors_name_the_file_and_the_cause() {
    let dir = temp_dir("errors");
    let missing = dir.join("missing/a");
    let posix = PosixFileSystem::new();
    let errors = [
        posix.create(&missing).err().unwrap(),
        posix.open(&missing, Access::Random).err().unwrap(),
        posix.open_append(&missing).err().unwrap(),
        posix.reuse(&missing, &dir.join("a")).err().unwrap(),
        posix.truncate(&missing, 0).unwrap_err(),
        posix.remove_file(&missing).unwrap_err(),
        posix.remove_dir(&missing).unwrap_err(),
        posix.rename(&missing, &dir.join("a")).unwrap_err(),
        posix.hard_link(&missing, &dir.join("a")).unwrap_err(),
        posix.list(&missing).unwrap_err(),
        posix.sync_dir(&missing).unwrap_err(),
        posix.lock(&missing).err().unwrap(),
        posix.free_space(&missing).unwrap_err(),
    ];
    for e in errors {
        assert_eq!(e.context("file"), Some(missing.to_str().unwrap()), "{e}");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        assert!(e.is_file_not_found(), "{e}");
    }
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_full_device_is_no_space() {
    let full = Path::new("/dev/full");
    if full.exists() {
        let mut file = PosixFileSystem.open_append(full).unwrap();
        let e = file.append(b"x").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert_eq!(e.context("file"), Some("/dev/full"));
        assert_eq!(file.size(), 0);
    }
}

#[test]
fn the_empty_directory_name_is_the_working_directory() {
    let fs = PosixFileSystem::new();
    fs.sync_dir(Path::new("")).unwrap();
    assert!(!fs.list(Path::new("")).unwrap().is_empty());
    assert!(fs.free_space(Path::new("")).unwrap() > 0);
}

#[test]
fn writing_out_is_asked_for_of_any_file() {
    let (fs, dir) = (PosixFileSystem::new(), temp_dir("write-out"));
    fs.create_dir_all(&dir).unwrap();
    let path = dir.join("file");
    let missing = fs.start_writeback_at(&path, 0, 4096).unwrap_err();
    assert!(missing.is_file_not_found(), "{missing}");
    crate::fs::write_file(&fs, &path, &[1; 100_000]).unwrap();
    fs.start_writeback_at(&path, 4096, 8192).unwrap();
    fs.start_writeback_at(&path, 96_000, 1 << 30).unwrap();
    assert!(crate::fs::read_file(&fs, &path).unwrap() == [1; 100_000]);
}

/// The system's files, by whole calls and by short ones, and those in memory, with a directory in each.
fn systems(name: &str) -> [(Arc<dyn FileSystem>, PathBuf); 3] {
    [
        (Arc::new(PosixFileSystem::new()), temp_dir(name)),
        (
            Arc::new(ShortCallsFileSystem::new(3)),
            temp_dir(&format!("{name}-short")),
        ),
        (
            Arc::new(crate::MemFileSystem::new()),
            PathBuf::from("/memory"),
        ),
    ]
}

#[test]
fn zeros_are_written_at_any_place() {
    for (fs, dir) in systems("zeros-at") {
        fs.create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        fs.write_zeros_at(&path, 4096, 4096).unwrap();
        assert!(crate::fs::read_file(&*fs, &path).unwrap() == [0; 8192]);
        crate::fs::write_file(&*fs, &path, &[1; 600_000]).unwrap();
        let mut expected = vec![1; 600_000];
        // Whole blocks, parts of one, more than is written at once, and behind the end.
        for (offset, len) in [(8192, 4096), (5, 10), (100_000, 300_000), (598_016, 8192)] {
            fs.write_zeros_at(&path, offset as u64, len as u64).unwrap();
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].fill(0);
            assert!(crate::fs::read_file(&*fs, &path).unwrap() == expected);
        }
    }
}

#[test]
fn old_bytes_of_a_page_become_zeros_where_nobody_needs_them() {
    for (fs, dir) in systems("old") {
        fs.create_dir_all(&dir).unwrap();
        let (old, new) = (dir.join("old"), dir.join("new"));
        crate::fs::write_file(&*fs, &old, &[9; 10_000]).unwrap();
        let mut file = fs.reuse(&old, &new).unwrap();
        file.append(&[1; 10]).unwrap();
        assert!(crate::fs::read_file(&*fs, &new).unwrap()[10..] == [9; 9990]);
        file.give_up_old_bytes();
        let mut expected = vec![9; 10_000];
        expected[..10].fill(1);
        let mut at = 10;
        // Within a page, to its end, over some, and over the end of the file, where no page is replaced in part.
        for (value, len) in [(2, 3000), (3, 1086), (4, 1), (5, 50), (6, 5000), (7, 2000)] {
            file.append(&vec![value; len]).unwrap();
            let end = at + len;
            expected.resize(expected.len().max(end), 0);
            expected[at..end].fill(value);
            at = end;
            assert_eq!(file.size(), at as u64);
            let bytes = crate::fs::read_file(&*fs, &new).unwrap();
            assert_eq!(bytes.len(), expected.len());
            assert!(bytes[..at] == expected[..at], "behind {value}");
            // What is behind is zeros to the end of the page at most, and else as it was.
            let whole = at.next_multiple_of(4096).min(bytes.len());
            assert!(bytes[at..whole].iter().all(|byte| [0, 9].contains(byte)));
            assert!(bytes[whole..].iter().all(|byte| *byte == 9));
        }
        file.sync().unwrap();
        assert_eq!(at, 11_147);
    }
}

#[test]
fn zeros_are_written_behind_the_end_until_it_is_closed() {
    let fs: [(Arc<dyn FileSystem>, PathBuf); 2] = [
        (Arc::new(PosixFileSystem::new()), temp_dir("zeros")),
        (
            Arc::new(crate::MemFileSystem::new()),
            PathBuf::from("/zeros"),
        ),
    ];
    for (fs, dir) in fs {
        fs.create_dir_all(&dir).unwrap();
        let path = dir.join("log");
        let read = |name: &str| {
            let file = fs.open(&dir.join(name), Access::Sequential).unwrap();
            let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
            file.read_exact_at(0, &mut bytes).unwrap();
            bytes
        };
        let mut file = fs.create(&path).unwrap();
        file.append(b"one").unwrap();
        file.write_zeros(100_000).unwrap();
        assert_eq!(file.size(), 3);
        file.append(b"two").unwrap();
        file.write_zeros(10).unwrap();
        file.sync().unwrap();
        let bytes = read("log");
        assert_eq!((&bytes[..6], bytes.len()), (&b"onetwo"[..], 100_003));
        assert!(bytes[6..].iter().all(|byte| *byte == 0));
        drop(file);
        assert_eq!(fs.metadata(&path).unwrap().size, 6);
        // What is written over stays.
        let mut file = fs.reuse(&path, &dir.join("new")).unwrap();
        file.write_zeros(100).unwrap();
        file.append(b"O").unwrap();
        drop(file);
        assert_eq!(read("new"), b"Onetwo");
    }
}

#[test]
fn zeros_ahead_of_appends_are_given_up() {
    let dir = temp_dir("longer");
    for fs in [
        &PosixFileSystem::new() as &dyn FileSystem,
        &ShortCallsFileSystem::new(1),
    ] {
        let path = dir.join("one");
        let len = || fs::metadata(&path).unwrap().len();
        let mut file = fs.create(&path).unwrap();
        file.preallocate(1 << 20).unwrap();
        file.append(b"first").unwrap();
        file.lengthen(10_000).unwrap();
        assert_eq!((file.size(), len()), (5, 10_005));
        file.append(&[7; 20_000]).unwrap();
        assert_eq!((file.size(), len()), (20_005, 20_005));
        file.lengthen(100).unwrap();
        file.lengthen(50).unwrap();
        file.append(b"end").unwrap();
        assert_eq!((file.size(), len()), (20_008, 20_105));
        file.seal();
        assert_eq!(len(), 20_008);
        drop(file);
        let mut file = fs.open_append(&path).unwrap();
        file.lengthen(100).unwrap();
        file.append(b"!").unwrap();
        drop(file);
        let bytes = fs::read(&path).unwrap();
        assert_eq!((bytes.len(), &bytes[20_005..]), (20_009, &b"end!"[..]));
        // What is written over has no end to give up.
        let mut file = fs.reuse(&path, &path).unwrap();
        file.lengthen(1 << 20).unwrap();
        file.append(b"F").unwrap();
        drop(file);
        assert_eq!(len(), 20_009);
    }
}

/// Calls that reserve half of what is asked for, and then refuse it, as ext4 does on a full disk.
#[derive(Clone)]
struct Meagre;

impl Calls for Meagre {
    fn read_at(&self, file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        System.read_at(file, buf, offset)
    }
    fn append_at(&self, file: &File, out: &mut Vec<u8>, offset: u64) -> Result<usize, Errno> {
        System.append_at(file, out, offset)
    }
    fn read_at_without_waiting(
        &self,
        file: &File,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        System.read_at_without_waiting(file, buf, offset)
    }
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
        System.write_at(file, bytes, offset)
    }
    fn write_both_at(
        &self,
        file: &File,
        bytes: &[u8],
        more: &[u8],
        offset: u64,
    ) -> io::Result<usize> {
        System.write_both_at(file, bytes, more, offset)
    }
    fn reserve(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        System.reserve(file, offset, len / 2)?;
        Err(Errno::NOSPC)
    }
    fn lengthen(&self, file: &File, offset: u64, len: u64) -> Result<(), Errno> {
        System.lengthen(file, offset, len / 2)?;
        Err(Errno::NOSPC)
    }
}

#[test]
fn what_a_refused_reservation_got_is_given_back() {
    let dir = temp_dir("meagre");
    let path = dir.join("one");
    let new = || {
        let file = File::create(&path).unwrap();
        PosixWritableFile::new(file, Meagre, &path, 0, 0)
    };
    let mut file = new();
    assert!(file.preallocate(1 << 20).is_err());
    file.append(b"first").unwrap();
    drop(file);
    let left = fs::metadata(&path).unwrap();
    assert!(left.blocks() * 512 < 64 << 10, "{} blocks", left.blocks());
    assert_eq!(left.len(), 5);
    let mut file = new();
    assert!(file.lengthen(1 << 20).is_err());
    file.append(b"first").unwrap();
    file.seal();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5);
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn where_there_can_be_no_link_a_copy_serves() {
    for errno in [Errno::XDEV, Errno::OPNOTSUPP, Errno::PERM, Errno::MLINK] {
        assert!(has_no_links(&errno.into()), "{errno:?}");
    }
    for errno in [Errno::IO, Errno::NOSPC, Errno::EXIST, Errno::NOENT] {
        assert!(!has_no_links(&errno.into()), "{errno:?}");
    }
}

#[test]
fn too_many_open_files_are_told_with_what_to_do() {
    let path = Path::new("/db/7.sst");
    let text = failed("open", path, Errno::MFILE).to_string();
    assert!(
        text.contains("/db/7.sst") && text.contains("ulimit"),
        "{text}"
    );
    assert!(failed("open", path, Errno::IO).context("help").is_none());
}

#[test]
fn reads_and_writes_that_do_a_part_are_made_whole() {
    let dir = temp_dir("short");
    let (one, two) = (dir.join("one"), dir.join("two"));
    let fs = ShortCallsFileSystem::new(1);
    let bytes: Vec<u8> = (0..20_000u32).map(|n| ((n * n) >> 7) as u8).collect();
    let mut file = fs.create(&one).unwrap();
    file.preallocate(1 << 16).unwrap();
    let mut sizes = 0;
    for piece in bytes[..15_000].chunks(999) {
        file.append(piece).unwrap();
        sizes += piece.len() as u64;
        assert_eq!(file.size(), sizes);
    }
    drop(file);
    let mut file = fs.open_append(&one).unwrap();
    file.append(&bytes[15_000..]).unwrap();
    drop(file);
    assert_eq!(fs::read(&one).unwrap(), bytes);

    let file = fs.open(&one, Access::Random).unwrap();
    for (from, len) in [(0, 20_000), (7, 5000), (19_990, 100), (20_000, 5), (3, 0)] {
        let mut buf = vec![0; len];
        let n = file.read_at(from as u64, &mut buf).unwrap();
        let end = bytes.len().min(from + len);
        assert_eq!((n, &buf[..n]), (end - from, &bytes[from..end]));
    }
    for (from, len) in [(0, 20_000), (7, 5000), (19_990, 100), (20_000, 5), (3, 0)] {
        let mut out = Vec::with_capacity(len);
        let n = file.append_at(from as u64, len, &mut out).unwrap();
        let end = bytes.len().min(from + len);
        assert_eq!((n, &out[..]), (end - from, &bytes[from..end]));
    }
    // It may say that it would have to wait, but never show a part.
    for from in (0..20_000).step_by(500) {
        let mut buf = vec![0; 400];
        if let Some(n) = file.read_at_without_waiting(from as u64, &mut buf).unwrap() {
            assert_eq!((n, &buf[..]), (400, &bytes[from..from + 400]));
        }
    }
    let mut file = fs.reuse(&one, &two).unwrap();
    file.append(&[9; 3000]).unwrap();
    drop(file);
    let over = fs::read(&two).unwrap();
    assert_eq!((over.len(), &over[..3000]), (20_000, &[9; 3000][..]));
    assert_eq!(over[3000..], bytes[3000..]);
    let counts = fs.counts();
    assert!(
        counts.cut_short > 40 && counts.interrupted > 20,
        "{counts:?}"
    );
    fs::remove_dir_all(dir).unwrap();
}
