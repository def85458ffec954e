//! Each promise of the trait.

use orogen_base::ErrorKind;
use orogen_env::Access;
use orogen_env::fs::{read_file, replace_file, write_file};

use crate::everywhere;

#[test]
fn appended_bytes_are_read_back_at_any_place() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        let mut file = fs.create(&path).unwrap();
        file.append(b"hello ").unwrap();
        let reader = fs.open(&path, Access::Random).unwrap();
        assert_eq!(reader.size().unwrap(), 6);
        file.append(b"").unwrap();
        file.append(b"world").unwrap();
        file.start_writeback().unwrap();
        file.start_writeback().unwrap();
        file.sync().unwrap();
        assert_eq!(file.size(), 11);
        // A file that was open before the append sees it.
        assert_eq!(reader.size().unwrap(), 11);
        let mut buf = [0; 5];
        reader.read_exact_at(6, &mut buf).unwrap();
        assert_eq!(&buf, b"world");
        // It may say that it would have to wait, but what it reads is right.
        if let Some(n) = reader.read_at_without_waiting(6, &mut buf).unwrap() {
            assert_eq!(n, buf.len());
            let mut again = buf;
            reader.read_exact_at(6, &mut again).unwrap();
            assert_eq!(buf, again);
        }
        let beyond = reader.read_at_without_waiting(9, &mut buf).unwrap();
        assert!(beyond.is_none_or(|n| n == 2), "{beyond:?}");
        assert_eq!(reader.read_at(9, &mut buf).unwrap(), 2);
        assert_eq!(reader.read_at(11, &mut buf).unwrap(), 0);
        assert_eq!(reader.read_at(1 << 40, &mut buf).unwrap(), 0);
        let e = reader.read_exact_at(9, &mut buf).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert_eq!(e.context("file"), Some(path.to_str().unwrap()));
        assert_eq!(reader.path(), path);
        reader.advise(Access::Sequential);
        reader.prefetch(0, 11);
        reader.prefetch(0, 0);
        assert_eq!(read_file(fs, &path).unwrap(), b"hello world");
    });
}

#[test]
fn bytes_are_added_to_a_vector_whatever_room_it_has() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        write_file(fs, &path, b"hello world").unwrap();
        let reader = fs.open(&path, Access::Random).unwrap();
        for room in [0, 3, 5, 6, 100] {
            for before in [&b""[..], b"ab"] {
                for (offset, len, want) in [
                    (0, 5, &b"hello"[..]),
                    (6, 5, b"world"),
                    (9, 5, b"ld"),
                    (11, 5, b""),
                    (1 << 40, 5, b""),
                    (2, 0, b""),
                ] {
                    let mut out = Vec::with_capacity(before.len() + room);
                    out.extend_from_slice(before);
                    let n = reader.append_at(offset, len, &mut out).unwrap();
                    assert_eq!(n, want.len(), "{room} {offset} {len}");
                    assert_eq!(out, [before, want].concat());
                    let whole = reader.append_exact_at(offset, len, &mut out);
                    assert_eq!(whole.is_ok(), len == want.len());
                    assert_eq!(out, [before, want, want].concat());
                }
            }
        }
    });
}

#[test]
fn create_empties_and_open_append_goes_on() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        write_file(fs, &path, b"one").unwrap();
        let mut file = fs.open_append(&path).unwrap();
        assert_eq!(file.size(), 3);
        file.append(b"two").unwrap();
        assert_eq!(file.size(), 6);
        assert_eq!(read_file(fs, &path).unwrap(), b"onetwo");
        drop(fs.create(&path).unwrap());
        assert_eq!(read_file(fs, &path).unwrap(), b"");
        let missing = dir.join("b");
        let e = fs.open_append(&missing).err().unwrap();
        assert!(e.is_file_not_found());
        assert_eq!(e.context("file"), Some(missing.to_str().unwrap()));
        assert!(
            fs.open(&missing, Access::Random)
                .err()
                .unwrap()
                .is_file_not_found()
        );
        assert!(!fs.exists(&missing).unwrap());
    });
}

#[test]
fn reuse_writes_over_the_start_and_keeps_the_rest() {
    everywhere(|fs, dir| {
        let (old, new) = (dir.join("old"), dir.join("new"));
        write_file(fs, &old, b"0123456789").unwrap();
        let mut file = fs.reuse(&old, &new).unwrap();
        assert_eq!(file.size(), 0);
        file.append(b"abc").unwrap();
        assert_eq!(file.size(), 3);
        file.sync().unwrap();
        assert!(!fs.exists(&old).unwrap());
        assert_eq!(read_file(fs, &new).unwrap(), b"abc3456789");
        file.append(b"defghijklm").unwrap();
        drop(file);
        assert_eq!(read_file(fs, &new).unwrap(), b"abcdefghijklm");
        assert!(fs.reuse(&old, &new).err().unwrap().is_file_not_found());
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        write_file(fs, &path, b"bytes").unwrap();
        let reader = fs.open(&path, Access::Random).unwrap();
        fs.remove_file(&path).unwrap();
        assert!(fs.remove_file(&path).unwrap_err().is_file_not_found());
        write_file(fs, &path, b"other").unwrap();
        let mut buf = [0; 5];
        reader.read_exact_at(0, &mut buf).unwrap();
        assert_eq!(&buf, b"bytes");
    });
}

#[test]
fn rename_replaces_and_open_files_follow() {
    everywhere(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        write_file(fs, &b, b"old").unwrap();
        let mut file = fs.create(&a).unwrap();
        file.append(b"new").unwrap();
        fs.rename(&a, &b).unwrap();
        file.append(b"er").unwrap();
        assert_eq!(read_file(fs, &b).unwrap(), b"newer");
        assert_eq!(fs.list(dir).unwrap(), ["b"]);
        replace_file(fs, &b, b"newest").unwrap();
        assert_eq!(read_file(fs, &b).unwrap(), b"newest");
        assert_eq!(fs.list(dir).unwrap(), ["b"]);
        let e = fs.rename(&a, &b).unwrap_err();
        assert!(e.is_file_not_found());
        assert_eq!(e.context("new_name"), Some(b.to_str().unwrap()));
    });
}

#[test]
fn a_directory_can_be_renamed_with_what_is_in_it() {
    everywhere(|fs, dir| {
        let (from, to) = (dir.join("checkpoint.tmp"), dir.join("checkpoint"));
        fs.create_dir_all(&from.join("deep/er")).unwrap();
        fs.create_dir_all(&from.join("deep/er")).unwrap();
        write_file(fs, &from.join("deep/er/x"), b"x").unwrap();
        fs.rename(&from, &to).unwrap();
        assert_eq!(read_file(fs, &to.join("deep/er/x")).unwrap(), b"x");
        assert!(fs.remove_dir(&to).is_err());
        assert!(fs.rename(&to, &to.join("deep/in itself")).is_err());
        assert!(fs.metadata(&to).unwrap().is_dir);
        fs.remove_file(&to.join("deep/er/x")).unwrap();
        fs.remove_dir(&to.join("deep/er")).unwrap();
        fs.remove_dir(&to.join("deep")).unwrap();
        fs.remove_dir(&to).unwrap();
        assert!(fs.list(dir).unwrap().is_empty());
        fs.sync_dir(dir).unwrap();
        assert!(fs.sync_dir(&to).unwrap_err().is_file_not_found());
        assert!(fs.list(&to).unwrap_err().is_file_not_found());
    });
}

#[test]
fn links_share_one_file() {
    everywhere(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        write_file(fs, &a, b"one").unwrap();
        fs.hard_link(&a, &b).unwrap();
        assert!(fs.hard_link(&a, &b).is_err());
        assert_eq!(fs.metadata(&a).unwrap().links, 2);
        fs.open_append(&b).unwrap().append(b"two").unwrap();
        assert_eq!(read_file(fs, &a).unwrap(), b"onetwo");
        fs.remove_file(&a).unwrap();
        assert_eq!(fs.metadata(&b).unwrap().links, 1);
        assert_eq!(read_file(fs, &b).unwrap(), b"onetwo");
    });
}

#[test]
fn metadata_tells_size_and_space() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        let mut file = fs.create(&path).unwrap();
        file.append(&[7; 5000]).unwrap();
        file.preallocate(1 << 20).unwrap();
        file.preallocate(0).unwrap();
        file.sync().unwrap();
        let open = fs.metadata(&path).unwrap();
        assert_eq!(open.size, 5000);
        assert!(!open.is_dir);
        assert_eq!(open.links, 1);
        assert!(open.modified_secs > 1_600_000_000);
        drop(file);
        // What was reserved is given back.
        let closed = fs.metadata(&path).unwrap();
        assert_eq!(closed.size, 5000);
        assert!(
            closed.allocated >= 5000 && closed.allocated < 1 << 20,
            "{closed:?}"
        );
        fs.truncate(&path, 10).unwrap();
        assert_eq!(fs.metadata(&path).unwrap().size, 10);
        fs.truncate(&path, 20).unwrap();
        assert_eq!(
            read_file(fs, &path).unwrap()[8..],
            [7, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert!(fs.metadata(&dir.join("b")).unwrap_err().is_file_not_found());
        assert!(fs.free_space(dir).unwrap() > 0);
        assert!(fs.free_space(&dir.join("b")).is_err());
    });
}

#[test]
fn a_hole_reads_as_zeros_and_takes_no_space() {
    everywhere(|fs, dir| {
        let path = dir.join("a");
        let mut want = vec![b'x'; 100_000];
        write_file(fs, &path, &want).unwrap();
        let full = fs.metadata(&path).unwrap().allocated;
        // No whole block, then several and parts of two, then the end.
        for (offset, len) in [(10, 100), (5000, 40_000), (90_000, 10_000), (200_000, 5)] {
            match fs.punch_hole(&path, offset, len) {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NotSupported);
                    return;
                }
            }
            let (start, end) = (offset as usize, (offset + len) as usize);
            let end = end.min(want.len());
            want[start.min(end)..end].fill(0);
            assert_eq!(read_file(fs, &path).unwrap(), want);
        }
        let punched = fs.metadata(&path).unwrap();
        assert_eq!(punched.size, 100_000);
        // Blocks of 4 KiB, or of less.
        assert!(punched.allocated + 36_000 <= full, "{punched:?} of {full}");
        assert!(fs.punch_hole(&dir.join("none"), 0, 1).is_err());
    });
}

#[test]
fn a_lock_keeps_others_out_until_it_is_dropped() {
    everywhere(|fs, dir| {
        let path = dir.join("LOCK");
        let lock = fs.lock(&path).unwrap();
        assert!(fs.exists(&path).unwrap());
        let e = fs.lock(&path).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Busy);
        assert_eq!(e.context("file"), Some(path.to_str().unwrap()));
        // The same file by another name.
        fs.hard_link(&path, &dir.join("LOCK2")).unwrap();
        assert_eq!(
            fs.lock(&dir.join("LOCK2")).err().unwrap().kind(),
            ErrorKind::Busy
        );
        let other = fs.lock(&dir.join("OTHER")).unwrap();
        drop(lock);
        let again = fs.lock(&path).unwrap();
        drop((other, again));
        assert!(
            fs.lock(&dir.join("missing/LOCK"))
                .err()
                .unwrap()
                .is_file_not_found()
        );
    });
}
