use super::*;
use crate::fs::{read_file, replace_file, write_file};

fn path(name: &str) -> PathBuf {
    PathBuf::from(name)
}

fn synced(fs: &MemFileSystem, names: &[&str]) {
    fs.create_dir_all(&path("/db")).unwrap();
    for name in names {
        write_file(fs, &path(name), name.as_bytes()).unwrap();
    }
    fs.sync_all();
}

/// The names in a directory with what the files hold.
fn found(fs: &MemFileSystem, dir: &str) -> Vec<(String, String)> {
    let names = fs.list(&path(dir)).unwrap();
    names
        .into_iter()
        .map(|name| {
            let bytes = read_file(fs, &path(dir).join(&name)).unwrap();
            (name, String::from_utf8_lossy(&bytes).into_owned())
        })
        .collect()
}

fn torn(fs: &MemFileSystem) -> impl Iterator<Item = MemFileSystem> {
    (0..100).map(|seed| fs.crash(PowerCut::Torn { seed }))
}

#[test]
fn a_sync_saves_bytes_and_a_sync_of_the_directory_saves_names() {
    let fs = MemFileSystem::new();
    synced(&fs, &[]);
    let mut file = fs.create(&path("/db/a")).unwrap();
    file.append(b"synced").unwrap();
    file.sync().unwrap();
    file.append(b" not synced").unwrap();
    assert!(found(&fs.crash(PowerCut::DropUnsynced), "/db").is_empty());
    fs.sync_dir(&path("/")).unwrap();
    assert!(found(&fs.crash(PowerCut::DropUnsynced), "/db").is_empty());
    fs.sync_dir(&path("/db")).unwrap();
    let disk = fs.crash(PowerCut::DropUnsynced);
    assert_eq!(found(&disk, "/db"), [("a".to_owned(), "synced".to_owned())]);
    // What is found is durable: another cut takes nothing.
    assert_eq!(
        found(&disk.crash(PowerCut::DropUnsynced), "/db"),
        found(&disk, "/db")
    );
    for again in torn(&disk) {
        assert_eq!(found(&again, "/db"), found(&disk, "/db"));
    }
    // A removed name comes back.
    fs.remove_file(&path("/db/a")).unwrap();
    assert_eq!(
        found(&fs.crash(PowerCut::DropUnsynced), "/db"),
        found(&disk, "/db")
    );
    fs.sync_dir(&path("/db")).unwrap();
    assert!(found(&fs.crash(PowerCut::DropUnsynced), "/db").is_empty());
}

#[test]
fn a_new_directory_is_lost_until_the_one_above_is_synced() {
    let fs = MemFileSystem::new();
    fs.create_dir_all(&path("/new/deep")).unwrap();
    write_file(&fs, &path("/new/deep/a"), b"a").unwrap();
    fs.sync_dir(&path("/new/deep")).unwrap();
    fs.sync_dir(&path("/new")).unwrap();
    assert!(
        !fs.crash(PowerCut::DropUnsynced)
            .exists(&path("/new"))
            .unwrap()
    );
    fs.sync_dir(&path("/")).unwrap();
    let disk = fs.crash(PowerCut::DropUnsynced);
    assert_eq!(
        found(&disk, "/new/deep"),
        [("a".to_owned(), "a".to_owned())]
    );
}

#[test]
fn a_dead_process_leaves_all_and_the_next_power_cut_takes_the_unsynced() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a"]);
    fs.open_append(&path("/db/a"))
        .unwrap()
        .append(b"+")
        .unwrap();
    write_file(&fs, &path("/db/b"), b"b").unwrap();
    let next = fs.crash(PowerCut::KeepAll);
    assert_eq!(found(&next, "/db"), found(&fs, "/db"));
    let cut = next.crash(PowerCut::DropUnsynced);
    assert_eq!(found(&cut, "/db"), [("a".to_owned(), "/db/a".to_owned())]);
    // The copies are apart.
    fs.remove_file(&path("/db/a")).unwrap();
    fs.create(&path("/db/b")).unwrap();
    assert_eq!(found(&next, "/db").len(), 2);
    assert_eq!(read_file(&next, &path("/db/b")).unwrap(), b"b");
    assert_eq!(next.op_count(), 0);
}

#[test]
fn a_rename_is_found_done_or_not_done() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/CURRENT"]);
    replace_file(&fs.fork(), &path("/db/CURRENT"), b"new").unwrap();
    write_file(&fs, &path("/db/CURRENT.dbtmp"), b"new").unwrap();
    fs.rename(&path("/db/CURRENT.dbtmp"), &path("/db/CURRENT"))
        .unwrap();
    let (mut old, mut new, mut both) = (0, 0, 0);
    for disk in torn(&fs) {
        match &*read_file(&disk, &path("/db/CURRENT")).unwrap() {
            b"/db/CURRENT" => {
                old += 1;
                both += usize::from(found(&disk, "/db").len() == 2);
            }
            b"new" => {
                new += 1;
                assert_eq!(found(&disk, "/db").len(), 1);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(old > 10 && new > 10 && both > 0, "{old} {new} {both}");
    fs.sync_dir(&path("/db")).unwrap();
    assert_eq!(
        read_file(&fs.crash(PowerCut::DropUnsynced), &path("/db/CURRENT")).unwrap(),
        b"new"
    );
}

#[test]
fn renames_lose_and_double_no_file() {
    for seed in 0..60 {
        let fs = MemFileSystem::new();
        let dirs = ["/db", "/db/archive", "/other"];
        for dir in dirs {
            fs.create_dir_all(&path(dir)).unwrap();
        }
        let mut places: Vec<PathBuf> = (0..6).map(|i| path("/db").join(i.to_string())).collect();
        for place in &places {
            write_file(&fs, place, place.to_str().unwrap().as_bytes()).unwrap();
        }
        fs.sync_all();
        let all: Vec<_> = places
            .iter()
            .map(|p| p.to_str().unwrap().to_owned())
            .collect();
        let mut random = random::Random::of(seed, 0);
        for step in 0..12 {
            let which = random.below(places.len());
            let to = path(dirs[random.below(3)]).join(["0", "1", "2", "x", "y"][random.below(5)]);
            if !places.contains(&to) {
                fs.rename(&places[which], &to).unwrap();
                places[which] = to;
            }
            if random.below(8) == 0 {
                fs.sync_dir(&path(dirs[random.below(3)])).unwrap();
            }
            if step % 3 > 0 {
                continue;
            }
            for disk in torn(&fs).take(10).chain([fs.crash(PowerCut::DropUnsynced)]) {
                let mut files = Vec::new();
                for dir in dirs {
                    for name in disk.list(&path(dir)).unwrap() {
                        let file = path(dir).join(name);
                        let meta = disk.metadata(&file).unwrap();
                        if !meta.is_dir {
                            assert_eq!(meta.links, 1);
                            files
                                .push(String::from_utf8(read_file(&disk, &file).unwrap()).unwrap());
                        }
                    }
                }
                files.sort();
                assert_eq!(files, all, "seed={seed} step={step}");
            }
        }
    }
}

#[test]
fn a_move_between_directories_is_durable_once_either_is_synced() {
    for synced_dir in ["/db", "/archive"] {
        let fs = MemFileSystem::new();
        fs.create_dir_all(&path("/archive")).unwrap();
        synced(&fs, &["/db/7.log"]);
        write_file(&fs, &path("/db/other"), b"").unwrap();
        fs.create(&path("/archive/other")).unwrap();
        fs.rename(&path("/db/7.log"), &path("/archive/7.log"))
            .unwrap();
        fs.sync_dir(&path(synced_dir)).unwrap();
        let disk = fs.crash(PowerCut::DropUnsynced);
        assert!(!disk.exists(&path("/db/7.log")).unwrap());
        assert_eq!(
            read_file(&disk, &path("/archive/7.log")).unwrap(),
            b"/db/7.log"
        );
        // Other names are the business of their own directory.
        assert_eq!(
            disk.exists(&path("/db/other")).unwrap(),
            synced_dir == "/db"
        );
        assert_eq!(
            disk.exists(&path("/archive/other")).unwrap(),
            synced_dir == "/archive"
        );
    }
}

#[test]
fn a_name_made_and_moved_away_unsynced_is_not_found_twice() {
    let fs = MemFileSystem::new();
    fs.create_dir_all(&path("/archive")).unwrap();
    synced(&fs, &[]);
    write_file(&fs, &path("/db/a"), b"a").unwrap();
    fs.rename(&path("/db/a"), &path("/archive/a")).unwrap();
    fs.sync_dir(&path("/archive")).unwrap();
    for disk in torn(&fs) {
        assert!(found(&disk, "/db").is_empty());
        assert_eq!(disk.metadata(&path("/archive/a")).unwrap().links, 1);
    }
}

#[test]
fn unsynced_names_are_found_in_every_combination() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a", "/db/b"]);
    fs.remove_file(&path("/db/a")).unwrap();
    fs.hard_link(&path("/db/b"), &path("/db/c")).unwrap();
    let mut seen: Vec<String> = torn(&fs)
        .map(|disk| disk.list(&path("/db")).unwrap().concat())
        .collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["ab", "abc", "b", "bc"]);
}

#[test]
fn one_seed_gives_one_disk() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a", "/db/b"]);
    for name in ["/db/a", "/db/b", "/db/c"] {
        let mut file = fs.create(&path(name)).unwrap();
        file.append(&[7; 3000]).unwrap();
    }
    let look = |fs: &MemFileSystem, seed| {
        let disk = fs.crash(PowerCut::Torn { seed });
        let names = disk.list(&path("/db")).unwrap();
        let read = |name: &String| read_file(&disk, &path("/db").join(name)).unwrap();
        let files: Vec<_> = names.iter().map(read).collect();
        (names, files)
    };
    let fork = fs.fork();
    for seed in 0..20 {
        assert_eq!(look(&fs, seed), look(&fork, seed));
    }
    assert!((1..20).any(|seed| look(&fs, seed) != look(&fs, 0)));
}

#[test]
fn the_power_goes_after_the_nth_changing_call() {
    let history = |fs: &MemFileSystem| -> Result<()> {
        fs.create_dir_all(&path("/db"))?;
        fs.sync_dir(&path("/"))?;
        let _lock = fs.lock(&path("/db/LOCK"))?;
        let mut file = fs.create(&path("/db/a"))?;
        file.append(b"1")?;
        file.start_writeback()?;
        file.preallocate(100)?;
        file.append(b"2")?;
        file.sync()?;
        fs.list(&path("/db"))?;
        fs.rename(&path("/db/a"), &path("/db/b"))?;
        fs.hard_link(&path("/db/b"), &path("/db/c"))?;
        fs.truncate(&path("/db/c"), 1)?;
        drop(fs.reuse(&path("/db/b"), &path("/db/d"))?);
        fs.remove_file(&path("/db/c"))?;
        fs.sync_dir(&path("/db"))?;
        fs.create_dir_all(&path("/db/sub"))?;
        fs.remove_dir(&path("/db/sub"))
    };
    let whole = MemFileSystem::new();
    history(&whole).unwrap();
    assert_eq!(whole.op_count(), 15);
    for n in 0..15 {
        let fs = MemFileSystem::new();
        fs.crash_after(n);
        let e = history(&fs).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
        assert_eq!(e.message(), "power is off");
        assert_eq!(fs.op_count(), n);
        assert!(fs.is_power_off());
        let disk = fs.crash(PowerCut::KeepAll);
        assert!(!disk.is_power_off());
        let names = disk.list(&path("/")).unwrap();
        assert_eq!(names.len(), usize::from(n > 0));
    }
    let fs = MemFileSystem::new();
    fs.crash_after(15);
    history(&fs).unwrap();
    assert!(fs.is_power_off());
}

#[test]
fn without_power_nothing_works_and_nothing_changes() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a"]);
    let a = path("/db/a");
    let reader = fs.open(&a, Access::Random).unwrap();
    let mut writer = fs.open_append(&a).unwrap();
    let lock = fs.lock(&path("/db/LOCK")).unwrap();
    fs.power_off();
    assert!(reader.read_at(0, &mut [0]).is_err());
    assert!(reader.size().is_err());
    assert!(writer.append(b"x").is_err());
    assert!(writer.sync().is_err());
    assert!(writer.start_writeback().is_err());
    assert!(writer.preallocate(1).is_err());
    assert!(fs.open(&a, Access::Random).is_err());
    assert!(fs.open_append(&a).is_err());
    assert!(fs.metadata(&a).is_err());
    assert!(fs.exists(&a).is_err());
    assert!(fs.list(&path("/db")).is_err());
    assert!(fs.free_space(&path("/db")).is_err());
    assert!(fs.lock(&path("/db/LOCK2")).is_err());
    assert!(fs.lock(&path("/db/LOCK")).is_err());
    let disk = fs.crash(PowerCut::DropUnsynced);
    assert_eq!(found(&disk, "/db"), [("a".to_owned(), "/db/a".to_owned())]);
    drop((lock, writer));
    // Locks do not outlive the power.
    disk.lock(&path("/db/a")).unwrap();
    let killed = fs.crash(PowerCut::KeepAll);
    drop(killed.lock(&path("/db/LOCK")).unwrap());
}

#[test]
fn a_failed_syncs_bytes_are_read_but_not_kept() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a"]);
    let a = path("/db/a");
    let mut file = fs.open_append(&a).unwrap();
    file.append(b" lost").unwrap();
    fs.unsynced_bytes(&a).unwrap().lose();
    file.sync().unwrap();
    assert_eq!(read_file(&fs, &a).unwrap(), b"/db/a lost");
    let disk = fs.crash(PowerCut::DropUnsynced);
    assert_eq!(read_file(&disk, &a).unwrap(), b"/db/a\0\0\0\0\0");
    assert!(
        fs.unsynced_bytes(&path("/db/b"))
            .err()
            .unwrap()
            .is_file_not_found()
    );
}

#[test]
fn files_are_dated_by_the_clock_given() {
    let clock = Arc::new(crate::ManualClock::new());
    let fs = MemFileSystem::with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
    synced(&fs, &["/db/a"]);
    clock.advance(std::time::Duration::from_secs(9));
    fs.open_append(&path("/db/a"))
        .unwrap()
        .append(b"x")
        .unwrap();
    let start = crate::ManualClock::START_UNIX_SECS;
    assert_eq!(
        fs.metadata(&path("/db/a")).unwrap().modified_secs,
        start + 9
    );
    assert_eq!(
        fs.fork().metadata(&path("/db/a")).unwrap().modified_secs,
        start + 9
    );
}

#[test]
fn a_path_that_climbs_is_refused() {
    let fs = MemFileSystem::new();
    assert!(fs.create(&path("/../a")).is_err());
    assert!(fs.create(&path("/")).is_err());
    assert!(fs.remove_dir(&path("/")).is_err());
    // Relative paths start at the root.
    write_file(&fs, &path("a"), b"a").unwrap();
    replace_file(&fs, &path("b"), b"b").unwrap();
    assert_eq!(fs.list(&path("")).unwrap(), ["a", "b"]);
}

#[test]
fn threads_unwind_when_the_power_goes() {
    let fs = MemFileSystem::new();
    synced(&fs, &[]);
    fs.crash_after(500);
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let fs = fs.clone();
            crate::threads::spawn("writer", move || {
                let name = path("/db").join(i.to_string());
                let Ok(mut file) = fs.create(&name) else {
                    return;
                };
                while file.append(&[i; 100]).is_ok() && file.sync().is_ok() {}
            })
            .unwrap()
        })
        .collect();
    drop(threads);
    assert!(fs.is_power_off());
    let base = fs.fork();
    assert_eq!(base.op_count(), 0);
    for disk in torn(&fs) {
        for name in disk.list(&path("/db")).unwrap() {
            let byte = name.parse::<u8>().unwrap();
            let bytes = read_file(&disk, &path("/db").join(name)).unwrap();
            // Nobody had more than one append unsynced.
            let end = bytes.len().saturating_sub(100);
            assert!(bytes[..end].iter().all(|b| *b == byte));
        }
    }
}

#[test]
fn names_come_and_go_apart_and_bytes_stay() {
    let fs = MemFileSystem::new();
    synced(&fs, &["/db/a", "/db/b"]);
    fs.remove_file(&path("/db/a")).unwrap();
    let mut file = fs.create(&path("/db/c")).unwrap();
    file.append(&[7; 3000]).unwrap();
    let mut seen = Vec::new();
    for seed in 0..100 {
        let disk = fs.crash(PowerCut::Names { seed });
        seen.push(disk.list(&path("/db")).unwrap().concat());
        if let Ok(bytes) = read_file(&disk, &path("/db/c")) {
            assert_eq!(bytes, [7; 3000]);
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["ab", "abc", "b", "bc"]);
}

#[test]
fn what_stands_in_place_of_a_tail_is_never_the_tail_but_for_one_bit() {
    let fs = MemFileSystem::new();
    let mut file = fs.create(&path("/a")).unwrap();
    fs.sync_dir(&path("/")).unwrap();
    file.append(&[0x5a, 0x11]).unwrap();
    for fill in [TailFill::Garbage, TailFill::Stale] {
        for seed in 0..2000 {
            let disk = fs.crash(PowerCut::Tail { seed, fill });
            let bytes = read_file(&disk, &path("/a")).unwrap();
            let wrong = (bytes[0] ^ 0x5a).count_ones() + (bytes[1] ^ 0x11).count_ones();
            assert_ne!(wrong, 1, "{fill:?} {seed}");
        }
    }
}

#[test]
fn a_hole_that_was_not_synced_is_there_or_not() {
    let fs = MemFileSystem::new();
    synced(&fs, &[]);
    let mut file = fs.create(&path("/db/a")).unwrap();
    file.append(&[7; 12_288]).unwrap();
    file.sync().unwrap();
    fs.sync_dir(&path("/db")).unwrap();
    fs.punch_hole(&path("/db/a"), 4096, 4096).unwrap();
    let [mut back, mut gone] = [false; 2];
    for seed in 0..200 {
        let bytes = read_file(&fs.crash(PowerCut::Torn { seed }), &path("/db/a")).unwrap();
        assert!(bytes[..4096].iter().chain(&bytes[8192..]).all(|&b| b == 7));
        let block = &bytes[4096..8192];
        assert!(block == [7; 4096] || block == [0; 4096], "{seed}");
        back |= block[0] == 7;
        gone |= block[0] == 0;
    }
    assert!(back && gone);
}

#[test]
fn a_tail_has_its_size_and_other_bytes() {
    let fs = MemFileSystem::new();
    synced(&fs, &[]);
    let mut file = fs.create(&path("/db/a")).unwrap();
    file.append(&[1; 600]).unwrap();
    file.append(&[2; 400]).unwrap();
    file.sync().unwrap();
    file.append(&[3; 2000]).unwrap();
    for fill in [TailFill::Zeros, TailFill::Garbage, TailFill::Stale] {
        let [mut whole, mut part] = [false; 2];
        for seed in 0..100 {
            let disk = fs.crash(PowerCut::Tail { seed, fill });
            let bytes = read_file(&disk, &path("/db/a")).unwrap();
            assert_eq!(bytes.len(), 3000);
            assert_eq!((bytes[0], bytes[999]), (1, 2));
            let tail = &bytes[1000..];
            let written = tail.iter().take_while(|b| **b == 3).count();
            part |= (1..2000).contains(&written);
            whole |= match fill {
                TailFill::Zeros => tail == [0; 2000],
                TailFill::Garbage => written < 10 && tail != [0; 2000],
                // The first 2,000 bytes, backwards.
                TailFill::Stale => written == 1000 && tail[1400..] == [1; 600],
            };
        }
        assert!(whole && part, "{fill:?}");
    }
}

#[test]
fn a_mapped_file_is_longer_until_it_is_closed() {
    let fs = MemFileSystem::new();
    synced(&fs, &[]);
    let log = path("/db/log");
    let mut file = fs.create_mapped(&log, LengthHint::default(), None).unwrap();
    file.append(&[5; 100]).unwrap();
    file.append(&[6; 100]).unwrap();
    assert_eq!(file.size(), 200);
    assert_eq!(fs.metadata(&log).unwrap().size, 4096);
    let died = fs.crash(PowerCut::KeepAll);
    assert_eq!(read_file(&died, &log).unwrap()[99..202], {
        let mut bytes = [6; 103];
        (bytes[0], bytes[101], bytes[102]) = (5, 0, 0);
        bytes
    });
    drop(file);
    assert_eq!(read_file(&fs, &log).unwrap().len(), 200);
}

#[test]
fn a_disk_with_a_bound_runs_full() {
    let fs = MemFileSystem::new();
    fs.create_dir_all(&path("/db")).unwrap();
    fs.set_capacity(5 << 12);
    let free = || fs.free_space(&path("/db")).unwrap() >> 12;
    let mut file = fs.create(&path("/db/a")).unwrap();
    assert_eq!(free(), 5);
    file.append(&[1; 4097]).unwrap();
    assert_eq!(free(), 3);
    let mut other = fs.create(&path("/db/b")).unwrap();
    other.preallocate(3 << 12).unwrap();
    assert_eq!(free(), 0);
    // What has its block finds space, and what is reserved.
    file.append(&[2; 4095]).unwrap();
    other.append(&[3; 3 << 12]).unwrap();
    let is_full = |result: Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NoSpace);
    };
    is_full(file.append(&[4]));
    is_full(file.preallocate(1));
    is_full(file.write_zeros(1));
    is_full(fs.write_zeros_at(&path("/db/c"), 0, 1));
    assert_eq!(file.size(), 2 << 12);
    fs.hard_link(&path("/db/b"), &path("/db/d")).unwrap();
    fs.remove_file(&path("/db/b")).unwrap();
    assert_eq!(free(), 0, "it has another name");
    fs.truncate(&path("/db/d"), 1).unwrap();
    assert_eq!(free(), 2);
    fs.remove_file(&path("/db/d")).unwrap();
    assert_eq!(free(), 3);
    file.append(&[4]).unwrap();
    assert_eq!(fs.fork().free_space(&path("/db")).unwrap(), 1 << 40);
}
