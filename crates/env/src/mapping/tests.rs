#![expect(
    clippy::disallowed_types,
    reason = "cuts off the files that are mapped"
)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::{Access, FileSystem, PosixFileSystem, RandomAccessFile};

const PAGE: u64 = 4096;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("orogen-mapping-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn holds(name: &str, pages: u64) -> Self {
        let this = Self::new(name);
        let bytes: Vec<u8> = (0..pages * PAGE + 100)
            .map(|i| (i / PAGE) as u8 + 1)
            .collect();
        std::fs::write(&this.0, bytes).unwrap();
        this
    }

    fn cut_off(&self, pages: u64) {
        let file = File::options().write(true).open(&self.0).unwrap();
        file.set_len(pages * PAGE).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes out of the mapping; `None` if there are none, or they were not the file's.
fn mapped(file: &dyn RandomAccessFile, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut seen = Vec::new();
    let is_whole = file.with_mapped(offset, len, &mut |read| seen = read.to_vec())?;
    is_whole.then_some(seen)
}

#[test]
fn what_is_inside_is_given_and_nothing_else() {
    let scratch = Scratch::holds("inside", 3);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    let end = file.size().unwrap();
    assert_eq!(mapped(&*file, PAGE - 1, 3), Some(vec![1, 2, 2]));
    assert_eq!(mapped(&*file, end - 1, 1), Some(vec![4]));
    assert_eq!(mapped(&*file, end, 0), Some(vec![]));
    assert_eq!(mapped(&*file, end, 1), None);
    assert_eq!(mapped(&*file, u64::MAX, 2), None);
    assert_eq!(mapped(&*file, 1, usize::MAX), None);
    let by_calls = PosixFileSystem.open(&scratch.0, Access::Random).unwrap();
    assert_eq!(mapped(&*by_calls, 0, 1), None);
    let empty = Scratch::new("empty");
    std::fs::write(&empty.0, []).unwrap();
    let file = PosixFileSystem.open(&empty.0, Access::Mapped).unwrap();
    assert_eq!(mapped(&*file, 0, 0), None);
}

#[test]
fn a_page_that_is_gone_is_zeros_and_told() {
    let scratch = Scratch::holds("gone", 8);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    let other = Scratch::holds("other", 2);
    let unharmed = PosixFileSystem.open(&other.0, Access::Mapped).unwrap();
    let mut looks = 0;
    let mut look = |read: &[u8]| {
        assert_eq!(read[0], 1);
        scratch.cut_off(2);
        assert_eq!(read[2 * PAGE as usize], 0);
        assert_eq!(read[5 * PAGE as usize + 7], 0);
        looks += 1;
    };
    // While another file is looked at, which has nothing to do with it.
    let whole = unharmed.with_mapped(0, 2, &mut |kept| {
        assert_eq!(
            file.with_mapped(0, 7 * PAGE as usize, &mut look),
            Some(false)
        );
        // A lost mapping is not used again.
        assert_eq!(mapped(&*file, 0, 1), None);
        let mut buf = [9; 2];
        assert_eq!(file.read_at(PAGE - 1, &mut buf).unwrap(), 2);
        assert_eq!(buf, [1, 2]);
        assert_eq!(kept[..], [1, 1]);
    });
    assert_eq!((whole, looks), (Some(true), 1));
}

#[test]
fn a_look_that_panics_is_over() {
    let scratch = Scratch::holds("panics", 2);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    let panics = || file.with_mapped(0, 1, &mut |_| panic!("on purpose"));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
    assert!(CURRENT.get().is_null());
    assert_eq!(mapped(&*file, 0, 1), Some(vec![1]));
    assert!(CURRENT.get().is_null());
}

#[test]
fn threads_that_meet_the_same_page_all_live() {
    for round in 0..20 {
        let scratch = Scratch::holds(&format!("threads-{round}"), 4);
        let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
        let start = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    let mut seen = 0;
                    while let Some(is_whole) =
                        file.with_mapped(3 * PAGE, 64, &mut |read| seen = read[1])
                    {
                        assert!(!is_whole || seen == 4);
                    }
                });
            }
            start.wait();
            scratch.cut_off(1);
        });
    }
}

/// What the child of the next test does: a SIGBUS that is nobody's.
#[test]
#[ignore = "ends its process; run by another test"]
fn dies_of_a_page_of_its_own() {
    let path = std::env::var_os("OROGEN_CUT_OFF").expect("set by the test that runs this one");
    let scratch = Scratch::holds("first", 1);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    assert_eq!(mapped(&*file, 0, 1), Some(vec![1]));
    let own = File::open(Path::new(&path)).unwrap();
    // SAFETY: at an address of the system's choice.
    let start = unsafe {
        mmap(
            null_mut(),
            4096,
            ProtFlags::READ,
            MapFlags::SHARED,
            &own,
            1 << 20,
        )
        .unwrap()
    };
    // SAFETY: mapped, and behind the end of the file: this is the signal.
    let byte = unsafe { start.cast::<u8>().read_volatile() };
    unreachable!("read {byte} behind the end of a file");
}

#[test]
fn a_signal_for_another_reason_ends_the_process_as_ever() {
    let scratch = Scratch::holds("child", 1);
    let status = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "mapping::tests::dies_of_a_page_of_its_own",
        ])
        .env("OROGEN_CUT_OFF", &scratch.0)
        .output()
        .unwrap();
    assert_eq!(status.status.signal(), Some(libc::SIGBUS), "{status:?}");
}

/// What the child of the next test does: pages that are gone, where the signal is blocked.
#[test]
#[ignore = "blocks a signal; run by another test"]
fn reads_where_the_signal_is_blocked() {
    for access in [Access::Mapped, Access::MappedInMemory] {
        let scratch = Scratch::holds(&format!("blocked-{access:?}"), 8);
        let file = PosixFileSystem.open(&scratch.0, access).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let read = || mapped(&*file, 5 * PAGE, 8).is_some();
                let reads = 100 * HEARS_FOR;
                assert!((0..reads).filter(|_| read()).count() > 0);
                // SAFETY: plain data.
                let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
                // SAFETY: a set of this function.
                unsafe { libc::sigaddset(&raw mut signals, libc::SIGBUS) };
                // SAFETY: as above; what was blocked is not asked for.
                unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, null_mut()) };
                let after = (0..reads).filter(|_| read()).count();
                assert!(after <= HEARS_FOR as usize, "{after}");
                scratch.cut_off(2);
                assert!(mapped(&*file, 5 * PAGE, 8).is_none_or(|bytes| bytes[0] == 6));
                assert_eq!(file.read_at(5 * PAGE, &mut [0; 8]).unwrap(), 0);
            });
        });
    }
}

#[test]
fn who_has_the_signal_blocked_reads_by_calls() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "mapping::tests::reads_where_the_signal_is_blocked",
        ])
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(told.contains("1 passed"), "{told}");
}

#[test]
fn the_system_tells_which_pages_are_there() {
    assert!(tells_of_pages());
}
