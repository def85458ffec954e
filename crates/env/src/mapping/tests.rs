#![expect(
    clippy::disallowed_types,
    reason = "cuts off the files that are mapped"
)]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::{Access, FileSystem, PosixFileSystem};

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

#[test]
fn what_is_inside_is_given_and_nothing_else() {
    let scratch = Scratch::holds("inside", 3);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    let end = file.size().unwrap();
    let read = file.mapped(PAGE - 1, 3).unwrap();
    assert_eq!(read[..], [1, 2, 2]);
    assert!(read.is_whole());
    assert_eq!(file.mapped(end - 1, 1).unwrap()[..], [4]);
    assert!(file.mapped(end, 0).unwrap().is_empty());
    assert!(file.mapped(end, 1).is_none());
    assert!(file.mapped(u64::MAX, 2).is_none());
    assert!(file.mapped(1, usize::MAX).is_none());
    let by_calls = PosixFileSystem.open(&scratch.0, Access::Random).unwrap();
    assert!(by_calls.mapped(0, 1).is_none());
    let empty = Scratch::new("empty");
    std::fs::write(&empty.0, []).unwrap();
    let file = PosixFileSystem.open(&empty.0, Access::Mapped).unwrap();
    assert!(file.mapped(0, 0).is_none());
}

#[test]
fn a_page_that_is_gone_is_zeros_and_told() {
    let scratch = Scratch::holds("gone", 8);
    let file = PosixFileSystem.open(&scratch.0, Access::Mapped).unwrap();
    let other = Scratch::holds("other", 2);
    let unharmed = PosixFileSystem.open(&other.0, Access::Mapped).unwrap();
    let kept = unharmed.mapped(0, 2).unwrap();
    let read = file.mapped(0, 7 * PAGE as usize).unwrap();
    assert_eq!(read[0], 1);
    scratch.cut_off(2);
    assert!(read.is_whole());
    assert_eq!(read[2 * PAGE as usize], 0);
    assert!(!read.is_whole());
    assert_eq!(read[5 * PAGE as usize + 7], 0);
    drop(read);
    assert!(
        file.mapped(0, 1).is_none(),
        "a lost mapping is not used again"
    );
    let mut buf = [9; 2];
    assert_eq!(file.read_at(PAGE - 1, &mut buf).unwrap(), 2);
    assert_eq!(buf, [1, 2]);
    assert_eq!(kept[..], [1, 1]);
    assert!(kept.is_whole());
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
                    while let Some(read) = file.mapped(3 * PAGE, 64) {
                        let seen = read[1];
                        assert!(!read.is_whole() || seen == 4);
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
    assert_eq!(file.mapped(0, 1).unwrap()[0], 1);
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
                let read = || file.mapped(5 * PAGE, 8).is_some();
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
                assert!(file.mapped(5 * PAGE, 8).is_none_or(|bytes| bytes[0] == 6));
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
