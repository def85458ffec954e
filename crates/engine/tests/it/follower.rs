//! A database that is followed while somebody else writes it.

#![expect(clippy::unwrap_used, reason = "a test ends at its first error")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use orogen_base::sync::Mutex;
use orogen_base::{ErrorKind, Result};
use orogen_engine::version::VersionEdit;
use orogen_engine::{
    ColumnFamily, CompactRangeOptions, Db, Options, ReadOptions, WriteBatch, WriteOptions,
};
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem, RandomAccessFile,
};
use orogen_testkit::Rng;

use crate::blobs::{compact_all, separated};
use crate::hole_hazards::add_edit;
use crate::steer::{HookFileSystem, ends, on_thread};
use crate::support::{DIR, scan, scan_backward, small};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn follow(options: &Options) -> Db {
    Db::open_as_secondary(DIR, None, options).expect("it opens")
}

/// All families of a database by name, read both ways.
fn contents(db: &Db) -> BTreeMap<String, Pairs> {
    let each = db.column_families().into_iter().map(|family| {
        let pairs = scan(db, &family);
        assert_eq!(scan_backward(db, &family), pairs, "both ways are one");
        (family.name().to_owned(), pairs)
    });
    each.collect()
}

fn scan_at(db: &Db, family: &ColumnFamily, read: &ReadOptions) -> Pairs {
    let mut iter = db.iter(read, family).expect("it opens");
    iter.seek_to_first();
    let mut pairs = Vec::new();
    while iter.valid() {
        pairs.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().expect("the scan meets no error");
    pairs
}

fn same(primary: &Db, follower: &Db, what: &str) {
    follower
        .try_catch_up_with_primary()
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(contents(follower), contents(primary), "{what}");
    assert_eq!(
        follower.latest_sequence_number(),
        primary.latest_sequence_number(),
        "{what}"
    );
}

/// What a follower held at some time, and what it must still show of it.
struct Kept {
    read: ReadOptions,
    seen: BTreeMap<String, Pairs>,
}

/// A primary under random calls, followed by two: one that catches up often, one seldom.
fn random_calls(seed: u64, recycles: usize, steps: usize) {
    let mut rng = Rng::new(seed);
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.recycle_log_file_num = recycles;
    options.db.max_manifest_file_size = *rng.pick(&[1, 2000, 1 << 30]);
    options.db.avoid_flush_during_recovery = rng.chance(1, 2);
    options.db.create_missing_column_families = true;
    options.cf.merge_operator = orogen_engine::plugin::merge_operator::by_name("stringappend");
    let mut primary = Db::open(DIR, &options).unwrap();
    let mut refusing = options.clone();
    refusing.db.refuse_log_damage = true;
    let (quick, slow) = match seed % 2 {
        0 => (follow(&options), follow(&refusing)),
        _ => (follow(&refusing), follow(&options)),
    };
    let mut kept: Vec<Kept> = Vec::new();
    for step in 0..steps {
        let families = primary.column_families();
        let family = rng.pick(&families).clone();
        match rng.below(40) {
            0 => primary
                .flush_opt(&orogen_engine::FlushOptions::default(), &[family])
                .unwrap(),
            1 => {
                let how = CompactRangeOptions::default();
                primary.compact_range(&how, &family, None, None).unwrap();
            }
            2 if families.len() < 4 => {
                let name = format!("family{step}");
                primary
                    .create_column_family(&name, options.cf.clone())
                    .unwrap();
            }
            3 if family.id() != 0 => primary.drop_column_family(&family).unwrap(),
            4 => {
                drop(families);
                drop(family);
                primary.close().unwrap();
                primary = Db::open(DIR, &options).unwrap();
            }
            5 => primary.wait_for_background_work().unwrap(),
            6 => {
                let snapshot = quick.snapshot();
                let read = ReadOptions {
                    snapshot: Some(snapshot),
                    ..ReadOptions::default()
                };
                let each = quick.column_families().into_iter();
                let seen = each.map(|f| (f.name().to_owned(), scan_at(&quick, &f, &read)));
                let seen = seen.collect();
                kept.push(Kept { read, seen });
            }
            _ => {
                let mut batch = WriteBatch::new();
                for _ in 0..=rng.below(20) {
                    let family = rng.pick(&families).id();
                    let (a, b) = (rng.below(300), rng.below(300));
                    let (key, value) = (a.to_be_bytes(), vec![step as u8; 40]);
                    match rng.below(10) {
                        0 => batch.delete(family, &key),
                        1 => batch.merge(family, &key, &value),
                        2 if a < b => batch.delete_range(family, &key, &b.to_be_bytes()),
                        _ => batch.put(family, &key, &value),
                    }
                }
                let write = WriteOptions {
                    sync: rng.chance(1, 10),
                    ..WriteOptions::default()
                };
                primary.write_opt(&write, &mut batch).unwrap();
            }
        }
        if rng.chance(1, 5) {
            same(&primary, &quick, &format!("seed {seed} step {step}"));
        }
        if rng.chance(1, 60) {
            same(&primary, &slow, &format!("seed {seed} step {step} slow"));
        }
        if rng.chance(1, 40) && !kept.is_empty() {
            let one = kept.swap_remove(rng.below(kept.len() as u64) as usize);
            for family in quick.column_families() {
                match one.seen.get(family.name()) {
                    Some(seen) => assert_eq!(*seen, scan_at(&quick, &family, &one.read)),
                    None => {
                        let refused = quick.iter(&one.read, &family).err();
                        assert_eq!(refused.unwrap().kind(), ErrorKind::InvalidArgument);
                    }
                }
            }
        }
    }
    same(&primary, &quick, "quick");
    same(&primary, &slow, "slow");
}

#[test]
fn followers_show_what_the_primary_holds_after_each_catch_up() {
    for seed in 0..12 {
        random_calls(seed, [0, 0, 2][seed as usize % 3], 500);
    }
}

#[test]
fn nothing_in_the_directory_is_touched() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let primary = Db::open(DIR, &options).unwrap();
    let watched = Arc::new(FaultFileSystem::over_memory(fs.clone()));
    let mut of_follower = small(&fs);
    of_follower.db.fs = watched.clone();
    of_follower.db.info_log = true;
    let follower = follow(&of_follower);
    for n in 0..2000u32 {
        primary.put(&n.to_be_bytes(), &[1; 100]).unwrap();
        if n % 100 == 0 {
            same(&primary, &follower, "caught up");
        }
    }
    for kind in OpKind::CHANGING {
        assert_eq!(watched.faults().count(kind), 0, "{kind:?}");
    }
    drop(follower);
    let beside = Db::open_as_secondary(DIR, Some(Path::new("/beside")), &of_follower).unwrap();
    assert!(fs.exists(Path::new("/beside/LOG")).unwrap());
    assert_eq!(contents(&beside), contents(&primary));
    let cf = beside.default_column_family();
    let kinds = [
        beside.put(b"k", b"v").unwrap_err().kind(),
        beside.flush().unwrap_err().kind(),
        beside.set_options(&cf, &[("ttl", "1")]).unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::ReadOnly; 3]);
    let kinds = [
        beside.checkpoint("/copy").unwrap_err().kind(),
        beside.get_updates_since(0).err().unwrap().kind(),
        primary.try_catch_up_with_primary().unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::NotSupported; 3]);
    let own = Db::open_as_secondary(DIR, Some(Path::new(DIR)), &of_follower);
    assert_eq!(own.err().unwrap().kind(), ErrorKind::InvalidArgument);
    beside.close().unwrap();
    let closed = beside.try_catch_up_with_primary().unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
}

#[test]
fn views_stay_readable_when_the_primary_removes_their_files() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let primary = Db::open(DIR, &options).unwrap();
    let family = primary
        .create_column_family("goes", options.cf.clone())
        .unwrap();
    let write = WriteOptions::default();
    for n in 0..500u32 {
        primary.put(&n.to_be_bytes(), b"old").unwrap();
        primary
            .put_opt(&write, &family, &n.to_be_bytes(), b"old")
            .unwrap();
    }
    primary
        .flush_opt(
            &orogen_engine::FlushOptions::default(),
            &primary.column_families(),
        )
        .unwrap();
    let follower = follow(&options);
    let cf = follower.default_column_family();
    let goes = follower.column_family("goes").unwrap();
    let read = ReadOptions {
        snapshot: Some(follower.snapshot()),
        ..ReadOptions::default()
    };
    let mut cursor = follower.iter(&ReadOptions::default(), &cf).unwrap();
    cursor.seek_to_first();
    for n in 0..500u32 {
        primary.put(&n.to_be_bytes(), b"new").unwrap();
    }
    primary.drop_column_family(&family).unwrap();
    drop(family);
    let all = CompactRangeOptions::default();
    primary
        .compact_range(&all, &primary.default_column_family(), None, None)
        .unwrap();
    primary.wait_for_background_work().unwrap();
    let old = |pairs: &Pairs| pairs.len() == 500 && pairs.iter().all(|p| p.1 == b"old");
    assert!(old(&scan(&follower, &cf)), "before it catches up");
    same(&primary, &follower, "caught up");
    assert!(follower.column_family("goes").is_none());
    assert!(old(&scan(&follower, &goes)), "a handle of what was dropped");
    assert!(old(&scan_at(&follower, &cf, &read)), "a snapshot");
    assert!(old(&scan_at(&follower, &goes, &read)));
    let mut seen = 0;
    while cursor.valid() {
        assert_eq!(cursor.value(), b"old");
        seen += 1;
        cursor.next();
    }
    cursor.status().unwrap();
    assert_eq!(seen, 500, "a cursor");
    assert_eq!(
        follower.get(&3u32.to_be_bytes()).unwrap().unwrap().to_vec(),
        b"new"
    );
}

/// Batches put one number under all keys of two families; whatever a follower shows is of one
/// batch. One that `refuses` damage in logs takes nothing for that.
fn batches_are_seen_whole(options: &Options, dir: &Path, rounds: u64, refuses: bool) {
    const KEYS: u64 = 40;
    let primary = Db::open(dir, options).unwrap();
    let other = primary
        .create_column_family("other", options.cf.clone())
        .unwrap();
    let mut following = options.clone();
    following.db.refuse_log_damage = refuses;
    let follower = Db::open_as_secondary(dir, None, &following).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (writer, told) = (primary.clone(), stop.clone());
    let written = on_thread(move || {
        let mut n = 0u64;
        while !told.load(Ordering::Relaxed) {
            n += 1;
            let mut batch = WriteBatch::new();
            for key in 0..KEYS {
                batch.put(0, &key.to_be_bytes(), &n.to_be_bytes());
                batch.put(other.id(), &key.to_be_bytes(), &n.to_be_bytes());
            }
            writer.write(batch).expect("it is written");
            if n.is_multiple_of(500) {
                writer.flush().expect("it is flushed");
            }
        }
        n
    });
    let mut last = 0;
    let mut round = 0;
    // Where the writer has hardly begun, longer.
    while round < rounds || last < 2 {
        round += 1;
        follower
            .try_catch_up_with_primary()
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        let read = ReadOptions {
            snapshot: Some(follower.snapshot()),
            ..ReadOptions::default()
        };
        let mut values = Vec::new();
        for family in follower.column_families() {
            let pairs = scan_at(&follower, &family, &read);
            assert!(
                pairs.is_empty() || pairs.len() == KEYS as usize,
                "{}",
                pairs.len()
            );
            values.extend(pairs.into_iter().map(|p| p.1));
        }
        assert!(values.windows(2).all(|w| w[0] == w[1]), "round {round}");
        let plain: Vec<_> = scan(&follower, &follower.default_column_family());
        assert!(plain.windows(2).all(|w| w[0].1 == w[1].1), "round {round}");
        let now = values.first().map_or(0, |v| {
            u64::from_be_bytes(v.as_slice().try_into().expect("eight bytes"))
        });
        assert!(now >= last, "it goes forward");
        last = now;
    }
    stop.store(true, Ordering::Relaxed);
    let n = ends(&written);
    assert!(last > 0 && last <= n);
    same(&primary, &follower, "at the end");
}

#[test]
fn a_batch_is_seen_whole_while_it_is_written() {
    for (recycles, refuses) in [(0, false), (2, false), (0, true), (2, true)] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.db.recycle_log_file_num = recycles;
        batches_are_seen_whole(&options, Path::new(DIR), 300, refuses);
    }
}

#[test]
fn a_batch_is_seen_whole_on_a_real_disk_through_shared_memory_too() {
    for (mapped, refuses) in [(false, false), (true, false), (false, true), (true, true)] {
        let name = format!("orogen-follow-{}-{mapped}-{refuses}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let mut options = small(&MemFileSystem::new());
        options.db.fs = Arc::new(PosixFileSystem::new());
        options.db.allow_mmap_writes = mapped;
        options.db.recycle_log_file_num = 2;
        batches_are_seen_whole(&options, &dir, 200, refuses);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_primary_that_dies_and_comes_back_is_followed_on() {
    for seed in 0..20u64 {
        let mut rng = Rng::new(seed);
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.db.avoid_flush_during_recovery = seed % 2 == 0;
        options.db.recycle_log_file_num = [0, 2][seed as usize / 2 % 2];
        let follower = {
            let db = Db::open(DIR, &options).unwrap();
            db.put(b"first", b"1").unwrap();
            follow(&options)
        };
        for life in 0..4u32 {
            let faulty = Arc::new(FaultFileSystem::over_memory(fs.clone()));
            let mut mortal = options.clone();
            mortal.db.fs = faulty.clone();
            let primary = Db::open(DIR, &mortal).unwrap();
            // It dies in the middle of some call: of an append a part is there.
            let fault = Fault::io()
                .on(&OpKind::CHANGING)
                .nth(1 + rng.below(60))
                .short(rng.below(30) as usize)
                .forever();
            faulty.faults().add(fault);
            let mut n = 0u32;
            while primary
                .put(&rng.below(500).to_be_bytes(), &[life as u8; 60])
                .is_ok()
                && n < 2000
            {
                n += 1;
                if rng.chance(1, 50) {
                    follower.try_catch_up_with_primary().unwrap();
                }
            }
            follower.try_catch_up_with_primary().unwrap();
            let _ = primary.close();
            drop(primary);
            let before = contents(&follower);
            follower.try_catch_up_with_primary().unwrap();
            let reopened = Db::open(DIR, &options).unwrap();
            same(&reopened, &follower, &format!("seed {seed} life {life}"));
            assert_eq!(contents(&follower), before, "nothing was lost or came back");
            reopened.put(b"life", &life.to_be_bytes()).unwrap();
            same(&reopened, &follower, "goes on");
        }
    }
}

#[test]
fn a_write_that_the_primary_takes_back_goes() {
    let fs = MemFileSystem::new();
    let faulty = Arc::new(FaultFileSystem::over_memory(fs.clone()));
    let mut options = small(&fs);
    options.db.fs = faulty.clone();
    options.db.max_bgerror_resume_count = 0;
    let primary = Db::open(DIR, &options).unwrap();
    let follower = follow(&small(&fs));
    primary.put(b"stays", b"1").unwrap();
    same(&primary, &follower, "before");
    faulty
        .faults()
        .add(Fault::no_space().on(&[OpKind::Sync]).path_with(".log"));
    let sync = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let cf = primary.default_column_family();
    let refused = primary.put_opt(&sync, &cf, b"taken back", b"1");
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoSpace);
    follower.try_catch_up_with_primary().unwrap();
    let read = ReadOptions {
        snapshot: Some(follower.snapshot()),
        ..ReadOptions::default()
    };
    let shown = scan_at(&follower, &follower.default_column_family(), &read);
    assert_eq!(
        shown.len(),
        2,
        "what was written is seen, though nobody was promised it"
    );
    primary.resume().unwrap();
    primary.put(b"after", b"1").unwrap();
    primary.put(b"more", b"1").unwrap();
    same(&primary, &follower, "after");
    assert!(follower.get(b"taken back").unwrap().is_none());
    let again = scan_at(&follower, &follower.default_column_family(), &read);
    assert_eq!(again, shown, "what was shown once does not change");
}

#[test]
fn damage_is_told_and_what_was_shown_stays() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let primary = Db::open(DIR, &options).unwrap();
    for n in 0..50u32 {
        primary.put(&n.to_be_bytes(), &[3; 100]).unwrap();
    }
    primary.flush().unwrap();
    let follower = follow(&options);
    let before = contents(&follower);
    for n in 0..50u32 {
        primary.put(&n.to_be_bytes(), &[4; 100]).unwrap();
    }
    primary.flush().unwrap();
    let newest = primary.live_files().iter().map(|f| f.number).max().unwrap();
    drop(primary);
    let path = Path::new(DIR).join(format!("{newest:06}.sst"));
    let bytes = orogen_env::fs::read_file(&fs, &path).unwrap();
    orogen_env::fs::write_file(&fs, &path, &bytes[..bytes.len() / 2]).unwrap();
    let error = follower.try_catch_up_with_primary().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(contents(&follower), before);
    orogen_env::fs::write_file(&fs, &path, &bytes).unwrap();
    follower.try_catch_up_with_primary().unwrap();
    let now = scan(&follower, &follower.default_column_family());
    assert!(now.len() == 50 && now.iter().all(|p| p.1 == [4; 100]));
    Db::destroy(DIR, &options).unwrap();
    let other = Db::open(DIR, &options).unwrap();
    other.put(b"k", b"other").unwrap();
    let error = follower.try_catch_up_with_primary().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(scan(&follower, &follower.default_column_family()), now);
}

#[test]
fn files_that_the_primary_has_given_up_are_closed() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let opened: Arc<Mutex<Vec<Weak<dyn RandomAccessFile>>>> = Arc::default();
    let seen = opened.clone();
    let mut of_follower = options;
    of_follower.db.fs = Arc::new(HookFileSystem::read_through(&fs, move |file| {
        let extension = file.path().extension();
        if extension.is_some_and(|e| e == "blob" || e == "sst") {
            seen.lock().push(Arc::downgrade(&file));
        }
        file
    }));
    db.put(b"key", &[0; 500]).unwrap();
    db.flush().unwrap();
    let follower = follow(&of_follower);
    for n in 1..20 {
        db.put(b"key", &[n; 500]).unwrap();
        db.flush().unwrap();
        compact_all(&db, &family);
        same(&db, &follower, "the newest value");
    }
    let held = opened
        .lock()
        .iter()
        .filter(|f| f.strong_count() > 0)
        .count();
    assert_eq!(held, db.live_blob_files().len() + db.live_files().len());
}

#[test]
fn a_group_of_edits_that_contradicts_the_state_is_never_passed_over() {
    let fs = MemFileSystem::new();
    let primary = Db::open(DIR, &small(&fs)).unwrap();
    primary.put(b"a", b"1").unwrap();
    primary.flush().unwrap();
    let follower = follow(&small(&fs));
    same(&primary, &follower, "before");
    primary.close().unwrap();
    let mut first = VersionEdit::of_column_family(0);
    first.deleted_files.push((3, 999_999));
    first.atomic_group_remaining = Some(1);
    let mut second = VersionEdit::of_column_family(0);
    second.last_sequence = Some(1000);
    second.atomic_group_remaining = Some(0);
    for edit in [first, second] {
        add_edit(&fs, &edit);
    }
    for call in 0..3 {
        let told = follower.try_catch_up_with_primary().unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Corruption, "{call}: {told}");
    }
    let told = Db::open(DIR, &small(&fs)).map(drop).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Corruption);
}

#[test]
fn a_log_that_is_written_on_because_the_next_could_not_be_begun_is_read_on() {
    let fs = MemFileSystem::new();
    let faulty = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
    let mut options = small(&fs);
    options.db.fs = faulty.clone();
    let primary = Db::open(DIR, &options).unwrap();
    primary.put(b"a", b"1").unwrap();
    let follower = follow(&small(&fs));
    same(&primary, &follower, "before");
    for kind in [OpKind::Append, OpKind::Remove] {
        faulty
            .faults()
            .add(Fault::io().on(&[kind]).path_with(".log"));
    }
    primary.flush().unwrap_err();
    faulty.faults().clear();
    follower.try_catch_up_with_primary().unwrap();
    for key in [b"b", b"c"] {
        primary.put(key, b"2").unwrap();
        same(&primary, &follower, "the old log goes on");
    }
    primary.flush().unwrap();
    primary.put(b"d", b"3").unwrap();
    same(&primary, &follower, "the next log");
}

/// A file at whose end something happens.
struct AtItsEnd(Arc<dyn RandomAccessFile>, Arc<dyn Fn() + Send + Sync>);

impl RandomAccessFile for AtItsEnd {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.0.read_at(offset, buf)?;
        if offset + read as u64 == self.size()? {
            (self.1)();
        }
        Ok(read)
    }

    fn size(&self) -> Result<u64> {
        self.0.size()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn a_read_only_open_beside_a_primary_lacks_nothing_between_what_it_has() {
    for at in ["MANIFEST", ".log"] {
        let fs = MemFileSystem::new();
        let primary = Db::open(DIR, &small(&fs)).unwrap();
        primary.put(b"a", b"1").unwrap();
        let mut options = small(&fs);
        let is_first = AtomicBool::new(true);
        // The log that has the first write is given up, and the next one has the second.
        let moves_on: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if is_first.swap(false, Ordering::SeqCst) {
                primary.flush().expect("memory");
                primary.wait_for_background_work().expect("memory");
                primary.put(b"b", b"1").expect("memory");
            }
        });
        options.db.fs = Arc::new(HookFileSystem::read_through(&fs, move |file| {
            match file.path().to_string_lossy().contains(at) {
                true => Arc::new(AtItsEnd(file, moves_on.clone())),
                false => file,
            }
        }));
        let db = Db::open_read_only(DIR, &options).unwrap();
        let all = scan(&db, &db.default_column_family()).into_iter();
        let keys: Vec<_> = all.map(|(key, _)| key).collect();
        match at {
            "MANIFEST" => assert_eq!(keys, [b"a".to_vec(), b"b".to_vec()]),
            // It had the log already.
            _ => assert_eq!(keys, [b"a".to_vec()]),
        }
    }
}
