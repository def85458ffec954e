use orogen_base::ErrorKind;

use super::*;
use crate::PowerCut;
use crate::clock::ManualClock;
use crate::fs::{read_file, replace_file, write_file};

fn path(name: &str) -> PathBuf {
    PathBuf::from(name)
}

fn over_memory() -> (MemFileSystem, FaultFileSystem) {
    let mem = MemFileSystem::new();
    (mem.clone(), FaultFileSystem::over_memory(mem))
}

/// Makes a call of every kind once at least.
fn history(fs: &dyn FileSystem) -> Result<()> {
    fs.create_dir_all(&path("/db"))?;
    fs.sync_dir(&path("/"))?;
    let _lock = fs.lock(&path("/db/LOCK"))?;
    let mut file = fs.create(&path("/db/a"))?;
    file.preallocate(100)?;
    file.append(b"1")?;
    file.start_writeback()?;
    file.sync()?;
    fs.open_append(&path("/db/a"))?.append(b"2")?;
    read_file(fs, &path("/db/a"))?;
    fs.list(&path("/db"))?;
    fs.free_space(&path("/db"))?;
    fs.hard_link(&path("/db/a"), &path("/db/b"))?;
    fs.punch_hole(&path("/db/b"), 0, 1)?;
    fs.truncate(&path("/db/b"), 1)?;
    drop(fs.reuse(&path("/db/b"), &path("/db/c"))?);
    fs.rename(&path("/db/c"), &path("/db/d"))?;
    fs.metadata(&path("/db/d"))?;
    fs.remove_file(&path("/db/d"))?;
    fs.create_dir_all(&path("/db/sub"))?;
    fs.remove_dir(&path("/db/sub"))
}

#[test]
fn every_kind_of_call_is_counted_and_fails_on_demand() {
    let (_, fs) = over_memory();
    history(&fs).unwrap();
    for kind in OpKind::ALL {
        let calls = fs.faults().count(kind);
        assert!(calls > 0, "{kind:?}");
        for n in 1..=calls {
            let (_, fs) = over_memory();
            fs.faults().add(Fault::io().on(&[kind]).nth(n));
            let e = history(&fs).unwrap_err();
            assert_eq!(e.context("call"), Some(&*format!("{kind:?}")));
            assert!(e.context("file").is_some());
            assert_eq!(e.kind(), ErrorKind::Io);
            assert_eq!(fs.faults().count(kind), n);
        }
        let (_, fs) = over_memory();
        fs.faults().add(Fault::io().on(&[kind]).nth(calls + 1));
        history(&fs).unwrap();
    }
}

#[test]
fn a_loop_over_all_calls_ends_when_no_fault_is_met() {
    let mut n = 0;
    loop {
        n += 1;
        let (_, fs) = over_memory();
        fs.faults().add(Fault::no_space().nth(n));
        let result = history(&fs);
        assert_eq!(result.is_err(), fs.faults().injected() == 1);
        match result {
            Ok(()) => break,
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
        }
    }
    let (_, fs) = over_memory();
    history(&fs).unwrap();
    assert_eq!(n, fs.faults().total() + 1);
}

#[test]
fn a_fault_happens_once_or_until_it_is_cleared() {
    let (_, fs) = over_memory();
    let a = path("/a");
    let mut file = fs.create(&a).unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::Append]).nth(2));
    file.append(b"1").unwrap();
    file.append(b"x").unwrap_err();
    file.append(b"2").unwrap();
    fs.faults().add(
        Fault::no_space()
            .on(&[OpKind::Append, OpKind::Create])
            .nth(2)
            .forever(),
    );
    file.append(b"3").unwrap();
    for _ in 0..3 {
        assert_eq!(file.append(b"x").unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(
            fs.create(&path("/b")).err().unwrap().kind(),
            ErrorKind::NoSpace
        );
    }
    fs.faults().clear();
    file.append(b"4").unwrap();
    assert_eq!(read_file(&fs, &a).unwrap(), b"1234");
    assert!(!fs.exists(&path("/b")).unwrap());
    assert_eq!(fs.faults().injected(), 7);
}

#[test]
fn a_fault_can_be_for_some_paths_only() {
    let (_, fs) = over_memory();
    fs.faults().add(Fault::io().path_with("MANIFEST").forever());
    write_file(&fs, &path("/a.sst"), b"a").unwrap();
    write_file(&fs, &path("/MANIFEST-000001"), b"a").unwrap_err();
    assert_eq!(fs.list(&path("/")).unwrap(), ["a.sst"]);
}

#[test]
fn of_two_faults_due_at_once_the_second_waits() {
    let (_, fs) = over_memory();
    fs.faults().add(Fault::io());
    fs.faults().add(Fault::no_space());
    assert_eq!(fs.list(&path("/")).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(fs.list(&path("/")).unwrap_err().kind(), ErrorKind::NoSpace);
    fs.list(&path("/")).unwrap();
}

#[test]
fn an_append_can_be_cut_short() {
    let (_, fs) = over_memory();
    let mut file = fs.create(&path("/a")).unwrap();
    fs.faults()
        .add(Fault::no_space().on(&[OpKind::Append]).short(3));
    file.append(b"abcdef").unwrap_err();
    assert_eq!(file.size(), 3);
    fs.faults()
        .add(Fault::no_space().on(&[OpKind::Append]).short(100));
    file.append(b"de").unwrap_err();
    fs.faults()
        .add(Fault::no_space().on(&[OpKind::Append]).short(100));
    file.append(b"").unwrap_err();
    assert_eq!(read_file(&fs, &path("/a")).unwrap(), b"abcd");
}

#[test]
fn a_call_can_happen_and_still_be_reported_as_failed() {
    let (mem, fs) = over_memory();
    let (a, b) = (path("/a"), path("/b"));
    write_file(&fs, &a, b"a").unwrap();
    fs.faults()
        .add(Fault::io().on(&[OpKind::Rename]).after_effect());
    fs.rename(&a, &b).unwrap_err();
    assert_eq!(fs.list(&path("/")).unwrap(), ["b"]);
    fs.faults()
        .add(Fault::io().on(&[OpKind::Lock]).after_effect());
    assert!(fs.lock(&path("/LOCK")).is_err());
    drop(fs.lock(&path("/LOCK")).unwrap());
    let mut file = fs.open_append(&b).unwrap();
    fs.faults()
        .add(Fault::io().on(&[OpKind::Append]).after_effect());
    file.append(b"+").unwrap_err();
    fs.faults()
        .add(Fault::io().on(&[OpKind::Sync]).after_effect());
    file.sync().unwrap_err();
    fs.sync_dir(&path("/")).unwrap();
    assert_eq!(
        read_file(&mem.crash(PowerCut::DropUnsynced), &b).unwrap(),
        b"a+"
    );
    // The true error wins.
    fs.faults()
        .add(Fault::io().on(&[OpKind::Remove]).after_effect());
    assert!(fs.remove_file(&a).unwrap_err().is_file_not_found());
}

#[test]
fn a_failed_sync_drops_what_it_should_have_saved() {
    let (mem, fs) = over_memory();
    let a = path("/a");
    write_file(&fs, &a, b"saved").unwrap();
    fs.sync_dir(&path("/")).unwrap();
    let mut file = fs.open_append(&a).unwrap();
    file.append(b" lost").unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::Sync]));
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!(read_file(&fs, &a).unwrap(), b"saved lost");
    let disk = mem.crash(PowerCut::DropUnsynced);
    assert_eq!(read_file(&disk, &a).unwrap(), b"saved\0\0\0\0\0");
}

#[test]
fn a_failed_sync_drops_bytes_of_its_file_whatever_the_name_is_by_then() {
    let (mem, fs) = over_memory();
    let [a, b, c] = ["/a", "/b", "/c"].map(path);
    let mut file = fs.create(&a).unwrap();
    file.append(b"lost").unwrap();
    fs.rename(&a, &b).unwrap();
    let mut other = fs.create(&a).unwrap();
    other.append(b"other").unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::Sync]));
    file.sync().unwrap_err();
    file.sync().unwrap();
    other.sync().unwrap();
    fs.sync_dir(&path("/")).unwrap();
    let disk = mem.crash(PowerCut::DropUnsynced);
    assert_eq!(read_file(&disk, &b).unwrap(), b"\0\0\0\0");
    assert_eq!(read_file(&disk, &a).unwrap(), b"other");
    // One that is written over under another name, too.
    let mut again = fs.reuse(&a, &c).unwrap();
    again.append(b"again").unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::Sync]));
    other.sync().unwrap_err();
    again.sync().unwrap();
    fs.sync_dir(&path("/")).unwrap();
    let disk = mem.crash(PowerCut::DropUnsynced);
    assert_eq!(read_file(&disk, &c).unwrap(), b"other");
}

#[test]
fn a_replaced_file_is_old_or_new_whatever_call_fails() {
    let mut n = 0;
    loop {
        n += 1;
        for after_effect in [false, true] {
            let (mem, fs) = over_memory();
            let a = path("/a");
            write_file(&mem, &a, b"old").unwrap();
            mem.sync_all();
            let fault = Fault::io().nth(n);
            fs.faults().add(if after_effect {
                fault.after_effect()
            } else {
                fault
            });
            let result = replace_file(&fs, &a, b"new");
            if fs.faults().injected() == 0 {
                result.unwrap();
                assert_eq!(n, fs.faults().total() + 1);
                return;
            }
            for seed in 0..20 {
                let disk = mem.crash(PowerCut::Torn { seed });
                let bytes = read_file(&disk, &a).unwrap();
                assert!(bytes == b"old" || bytes == b"new", "n={n} {bytes:?}");
            }
        }
    }
}

#[test]
fn faults_can_be_set_from_another_thread_while_files_are_open() {
    let (_, fs) = over_memory();
    let mut file = fs.create(&path("/a")).unwrap();
    let faults = fs.faults().clone();
    let thread = crate::threads::spawn("faults", move || {
        faults.add(Fault::io().on(&[OpKind::Append]).forever());
    });
    drop(thread.unwrap());
    file.append(b"x").unwrap_err();
    assert_eq!(fs.faults().count(OpKind::Append), 1);
}

#[test]
fn a_flip_changes_one_bit_and_tells_nobody() {
    let memory = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(memory.clone());
    let path = Path::new("/a");
    let flip = Fault::io().on(&[OpKind::Append]).nth(2).flip(9);
    fs.faults().add(flip);
    let mut file = fs.create(path).unwrap();
    for _ in 0..3 {
        file.append(&[0; 4]).unwrap();
    }
    let expected = [0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0];
    assert_eq!(read_file(&memory, path).unwrap(), expected);
    assert_eq!(fs.faults().injected(), 1);
}

#[test]
fn a_disk_has_the_free_space_that_it_is_told() {
    let (_, fs) = over_memory();
    fs.create_dir_all(&path("/a")).unwrap();
    fs.create_dir_all(&path("/b")).unwrap();
    let answer = Fault::no_space().on(&[OpKind::FreeSpace]).path_with("/a");
    fs.faults().add(answer.clone().free(7));
    assert!(fs.free_space(&path("/b")).unwrap() > 7);
    assert_eq!(fs.free_space(&path("/a")).unwrap(), 7);
    assert!(fs.free_space(&path("/a")).unwrap() > 7);
    fs.faults().add(answer);
    assert!(fs.free_space(&path("/a")).is_err());
}

#[test]
fn a_slow_call_takes_its_time_and_happens() {
    let (_, fs) = over_memory();
    let clock = Arc::new(ManualClock::new());
    let mut file = fs.create(&path("/a")).unwrap();
    let slow = Fault::io().on(&[OpKind::Sync]);
    let slow = slow.slow(clock.clone(), Duration::from_millis(3));
    fs.faults().add(slow);
    file.append(b"1").unwrap();
    assert_eq!(clock.now_micros(), 0);
    file.sync().unwrap();
    file.sync().unwrap();
    assert_eq!(clock.now_micros(), 3000);
    assert_eq!(fs.faults().injected(), 0);
}

/// The names that a power cut leaves in `/d`.
fn names_after_a_cut(mem: &MemFileSystem) -> Vec<String> {
    let disk = mem.crash(PowerCut::DropUnsynced);
    disk.list(&path("/d")).unwrap()
}

/// A directory with a file `/d/old`.
fn with_a_name() -> (MemFileSystem, FaultFileSystem) {
    let (mem, fs) = over_memory();
    fs.faults().lose_names();
    fs.create_dir_all(&path("/d")).unwrap();
    write_file(&fs, &path("/d/old"), b"old").unwrap();
    mem.sync_all();
    (mem, fs)
}

fn fail_sync_of_names(fs: &FaultFileSystem) {
    fs.faults().add(Fault::io().on(&[OpKind::SyncDir]));
    fs.sync_dir(&path("/d")).unwrap_err();
}

#[test]
fn names_whose_sync_has_failed_are_not_saved_by_the_next() {
    let (mem, fs) = with_a_name();
    write_file(&fs, &path("/d/new"), b"new").unwrap();
    fs.remove_file(&path("/d/old")).unwrap();
    fail_sync_of_names(&fs);
    write_file(&fs, &path("/d/other"), b"other").unwrap();
    fs.sync_dir(&path("/d")).unwrap();
    assert_eq!(fs.list(&path("/d")).unwrap(), ["new", "other"]);
    assert_eq!(names_after_a_cut(&mem), ["old", "other"]);
    // The process dies, and the machine goes on.
    let alive = mem.crash(PowerCut::KeepAll);
    assert_eq!(alive.list(&path("/d")).unwrap(), ["new", "other"]);
    alive.sync_dir(&path("/d")).unwrap();
    assert_eq!(names_after_a_cut(&alive), ["old", "other"]);
    // What is made anew is written again.
    fs.remove_file(&path("/d/new")).unwrap();
    write_file(&fs, &path("/d/new"), b"new").unwrap();
    fs.sync_dir(&path("/d")).unwrap();
    assert_eq!(names_after_a_cut(&mem), ["new", "old", "other"]);
}

#[test]
fn names_for_which_there_was_no_space_are_saved_by_the_next_sync() {
    let (mem, fs) = with_a_name();
    write_file(&fs, &path("/d/new"), b"new").unwrap();
    fs.faults().add(Fault::no_space().on(&[OpKind::SyncDir]));
    fs.sync_dir(&path("/d")).unwrap_err();
    fs.sync_dir(&path("/d")).unwrap();
    assert_eq!(names_after_a_cut(&mem), ["new", "old"]);
}

#[test]
fn a_name_that_goes_on_from_a_lost_one_brings_it_to_the_disk() {
    let (mem, fs) = with_a_name();
    fs.rename(&path("/d/old"), &path("/d/a")).unwrap();
    fail_sync_of_names(&fs);
    fs.sync_dir(&path("/d")).unwrap();
    assert_eq!(names_after_a_cut(&mem), ["old"]);
    fs.rename(&path("/d/a"), &path("/d/b")).unwrap();
    assert_eq!(names_after_a_cut(&mem), ["old"]);
    fs.sync_dir(&path("/d")).unwrap();
    assert_eq!(
        names_after_a_cut(&mem),
        ["b"],
        "a file has one of its names"
    );
}

#[test]
fn names_that_were_saved_before_the_sync_was_said_to_fail_are_there() {
    let (mem, fs) = with_a_name();
    write_file(&fs, &path("/d/new"), b"new").unwrap();
    let fault = Fault::io().on(&[OpKind::SyncDir]);
    fs.faults().add(fault.after_effect());
    fs.sync_dir(&path("/d")).unwrap_err();
    assert_eq!(names_after_a_cut(&mem), ["new", "old"]);
}
