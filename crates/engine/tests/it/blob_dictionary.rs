//! Dictionaries of blob files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_base::sync::Mutex;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, CompactRangeOptions, ConvertTo,
    ConvertValuesOptions, Db, MemoryBudget, Options, ReadOptions, VerifyOptions, repair,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_sst::{CompressionOptions, CompressionType};
use orogen_testkit::Rng;

use crate::blobs::{assert_exact, separated, w};
use crate::option_changes::changed_while_a_job_writes;
use crate::support::{DIR, scan, scan_backward};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const DICTIONARY: CompressionOptions = CompressionOptions {
    level: 3,
    max_dict_bytes: 16 << 10,
    zstd_max_train_bytes: 400 << 10,
    max_dict_buffer_bytes: 0,
    max_compressed_bytes_per_kb: 896,
    checksum: false,
};

pub(crate) fn with_dictionary(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.write_buffer_size = 8 << 20;
    options.cf.target_file_size_base = 4 << 20;
    options.cf.blob_file_size = 200 << 10;
    options.cf.blob_compression_type = CompressionType::Zstd;
    options.cf.blob_compression_opts = DICTIONARY;
    options.cf.disable_auto_compactions = true;
    options
}

fn key(n: usize) -> Vec<u8> {
    format!("user{n:06}").into_bytes()
}

/// About 1 KiB of what services keep of their users.
pub(crate) fn profile(rng: &mut Rng, n: usize) -> Vec<u8> {
    let hex = |rng: &mut Rng, len: usize| -> String {
        rng.bytes(len).iter().map(|b| format!("{b:02x}")).collect()
    };
    let mut out = format!(
        "{{\"id\":{n},\"account_name\":\"{}\",\"email_verified\":{},\"created_at\":\"2026-{:02}-{:02}T{:02}:00:00Z\",\"roles\":[\"reader\"],\"preferences\":{{\"language\":\"en\",\"time_zone\":\"Europe/Vienna\",\"newsletter\":{}}},\"sessions\":[",
        hex(rng, 6),
        rng.chance(1, 2),
        rng.range(1..13),
        rng.range(1..29),
        rng.below(24),
        rng.chance(1, 3),
    );
    while out.len() < 900 {
        out += &format!(
            "{{\"session_id\":\"{}\",\"device\":\"{}\",\"last_seen_at\":\"2026-11-{:02}T{:02}:{:02}:00Z\"}},",
            hex(rng, 8),
            rng.pick(&["iPhone15,2", "Pixel 8", "Windows 11", "Macintosh"]),
            rng.range(1..29),
            rng.below(24),
            rng.below(60),
        );
    }
    out.pop();
    out += "]}";
    out.into_bytes()
}

fn fill(db: &Db, map: &mut Map, rng: &mut Rng, keys: std::ops::Range<usize>) {
    for n in keys {
        let value = match n % 5 {
            // Small ones stay with their keys, between the others.
            0 => vec![n as u8; n % 90],
            _ => profile(rng, n),
        };
        db.put(&key(n), &value).expect("the disk is well");
        map.insert(key(n), value);
    }
    db.flush().expect("the disk is well");
}

fn assert_holds(db: &Db, map: &Map) {
    let family = db.default_column_family();
    let pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(scan(db, &family) == pairs);
    assert!(scan_backward(db, &family) == pairs);
    let keys: Vec<&[u8]> = map.keys().map(Vec::as_slice).collect();
    let together = db.multi_get(&ReadOptions::default(), &family, &keys);
    for (found, wanted) in together.into_iter().zip(map.values()) {
        assert_eq!(found.expect("all is whole").as_deref(), Some(&wanted[..]));
    }
    assert_exact(db, &family);
    let scrubbed = db.scrub(&VerifyOptions::default(), &mut |_, _| {});
    let scrubbed = scrubbed.expect("the disk is well");
    assert!(scrubbed.damaged_blob_files.is_empty());
    db.verify_file_checksums().expect("all is whole");
}

fn blob_path(dir: &str, number: u64) -> String {
    format!("{dir}/{number:06}.blob")
}

/// Live files, and how many of them need a dictionary.
fn files(fs: &MemFileSystem, db: &Db) -> (usize, usize) {
    let numbers: Vec<u64> = db.live_blob_files().iter().map(|f| f.number).collect();
    let version = |&n: &u64| {
        let bytes = read_file(fs, Path::new(&blob_path(DIR, n))).expect("a live file is there");
        u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"))
    };
    let with = numbers.iter().filter(|n| version(n) == 2).count();
    (numbers.len(), with)
}

fn stored_bytes(db: &Db) -> u64 {
    db.live_blob_files()
        .iter()
        .map(|f| f.total_blob_bytes)
        .sum()
}

fn compact(db: &Db) {
    let options = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.compact_range(&options, &db.default_column_family(), None, None)
        .expect("the disk is well");
}

#[test]
fn small_values_that_are_alike_shrink_to_a_part() {
    let mut sizes = Vec::new();
    for dict in [0, 16 << 10] {
        let fs = MemFileSystem::new();
        let mut options = with_dictionary(&fs);
        options.cf.blob_compression_opts.max_dict_bytes = dict;
        options.db.info_log = true;
        let db = Db::open(DIR, &options).unwrap();
        let (mut map, mut rng) = (Map::new(), Rng::new(1));
        fill(&db, &mut map, &mut rng, 0..4_000);
        let (all, with) = files(&fs, &db);
        assert_eq!(with, if dict > 0 { all } else { 0 });
        assert!(all > 2, "files end, and the next have it too");
        assert_holds(&db, &map);
        sizes.push(stored_bytes(&db));
        let log = read_file(&fs, &Path::new(DIR).join("LOG")).unwrap();
        let told = String::from_utf8_lossy(&log)
            .matches("RocksDB cannot read")
            .count();
        assert_eq!(told, usize::from(dict > 0));
        drop(db);
        let db = Db::open(DIR, &options).unwrap();
        assert_holds(&db, &map);
    }
    assert!(sizes[1] * 10 < sizes[0] * 6, "{sizes:?}");
}

#[test]
fn a_dictionary_that_does_not_help_is_given_up() {
    for len in [150, 2_000] {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &with_dictionary(&fs)).unwrap();
        let (mut map, mut rng) = (Map::new(), Rng::new(2));
        for n in 0..1_000 {
            let value = rng.bytes(len);
            db.put(&key(n), &value).unwrap();
            map.insert(key(n), value);
        }
        db.flush().unwrap();
        assert_eq!(files(&fs, &db).1, 0);
        assert_holds(&db, &map);
    }
}

#[test]
fn few_values_come_through_without_one() {
    for count in [1, 2, 7, 9, 30] {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &with_dictionary(&fs)).unwrap();
        let (mut map, mut rng) = (Map::new(), Rng::new(count as u64));
        // One entry alone, behind what is held, and a tombstone of each kind.
        fill(&db, &mut map, &mut rng, 1..1 + count);
        db.delete(&key(3)).unwrap();
        map.remove(&key(3));
        let family = db.default_column_family();
        db.delete_range_opt(&w(), &family, &key(5), &key(7))
            .unwrap();
        map.retain(|k, _| !(key(5)..key(7)).contains(k));
        db.flush().unwrap();
        assert_holds(&db, &map);
        compact(&db);
        assert_holds(&db, &map);
        assert_eq!(
            files(&fs, &db).1,
            0,
            "it would be larger than what it saves"
        );
    }
}

#[test]
fn what_is_done_with_files_is_done_with_those_that_have_one() {
    let fs = MemFileSystem::new();
    let options = with_dictionary(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let (mut map, mut rng) = (Map::new(), Rng::new(3));
    fill(&db, &mut map, &mut rng, 0..3_000);
    let follower = Db::open_as_secondary(DIR, None, &options).unwrap();
    // Garbage, which is collected: values move from file to file.
    for round in 0..2 {
        for n in (round..3_000).step_by(3) {
            db.delete(&key(n)).unwrap();
            map.remove(&key(n));
        }
        db.flush().unwrap();
        compact(&db);
        let before: Vec<u64> = db.live_blob_files().iter().map(|f| f.number).collect();
        let any = CollectBlobGarbageOptions {
            discardable_ratio: 0.0,
            ..CollectBlobGarbageOptions::default()
        };
        db.collect_blob_garbage(&any, &family).unwrap();
        let after = db.live_blob_files();
        assert!(after.iter().all(|f| !before.contains(&f.number)));
        assert_holds(&db, &map);
    }
    let (all, with) = files(&fs, &db);
    assert_eq!(all, with);
    follower.try_catch_up_with_primary().unwrap();
    let seen = scan(&follower, &follower.default_column_family());
    assert!(seen.into_iter().collect::<Map>() == map);
    drop(follower);
    // Copies.
    db.checkpoint("/copy").unwrap();
    assert_holds(&Db::open("/copy", &options).unwrap(), &map);
    let backups = BackupEngine::open(
        "/backups",
        BackupOptions {
            fs: Arc::new(fs.clone()),
            ..BackupOptions::default()
        },
    )
    .unwrap();
    let id = backups.create_backup(&db).unwrap().id;
    backups.verify(id).unwrap();
    backups.restore(id, "/restored").unwrap();
    assert_holds(&Db::open("/restored", &options).unwrap(), &map);
    // Repair, without a MANIFEST.
    drop((family, db));
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
    }
    let report = repair::repair(DIR, "/new", &options, &mut |_, _| {}).unwrap();
    assert!(report.blob_files_damaged.is_empty(), "{report:?}");
    assert!(report.values_lost.is_empty());
    assert_holds(&Db::open("/new", &options).unwrap(), &map);
}

#[test]
fn values_that_are_put_in_order_have_a_dictionary_too() {
    let fs = MemFileSystem::new();
    let mut options = with_dictionary(&fs);
    options.cf.level_merge = true;
    let db = Db::open(DIR, &options).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(7));
    // Small values stand between them, and in front, and behind.
    for n in (0..3_000).step_by(7) {
        let small = [&key(n)[..], b"+"].concat();
        db.put(&small, b"small").unwrap();
        map.insert(small, b"small".to_vec());
    }
    fill(&db, &mut map, &mut rng, 0..1_500);
    fill(&db, &mut map, &mut rng, 1_500..3_000);
    fill(&db, &mut map, &mut rng, 700..2_000);
    let before: Vec<u64> = db.live_blob_files().iter().map(|f| f.number).collect();
    compact(&db);
    let after = db.live_blob_files();
    assert!(
        after.iter().all(|f| !before.contains(&f.number)),
        "{after:?}"
    );
    let (all, with) = files(&fs, &db);
    assert!(all > 0 && all == with, "{with} of {all}");
    assert_holds(&db, &map);
    let checks = db
        .check_blob_files(&db.default_column_family(), true)
        .unwrap();
    assert!(checks.iter().all(|c| c.is_exact()), "{checks:?}");
}

#[test]
fn a_damaged_dictionary_is_an_error_as_a_value() {
    let fs = MemFileSystem::new();
    let options = with_dictionary(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(4));
    fill(&db, &mut map, &mut rng, 0..2_000);
    let damaged = db.live_blob_files()[0].number;
    drop(db);
    let path = blob_path(DIR, damaged);
    let mut bytes = read_file(&fs, Path::new(&path)).unwrap();
    // Within the record right behind the header.
    bytes[30 + 32 + 200] ^= 1;
    write_file(&fs, Path::new(&path), &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let (mut whole, mut lost) = (0, 0);
    for (key, value) in &map {
        match db.get_opt(&ReadOptions::default(), &family, key) {
            Ok(found) => {
                assert_eq!(found.as_deref(), Some(&value[..]));
                whole += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                assert!(e.to_string().contains(".blob"), "{e}");
                lost += 1;
            }
        }
    }
    assert!(whole > 400 && lost > 100, "{whole} {lost}");
    let scrubbed = db.scrub(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(scrubbed.damaged_blob_files, [damaged]);
    // No compaction is stopped, and nothing that is whole is lost.
    compact(&db);
    let still = map
        .iter()
        .filter(|(k, v)| db.get(k).is_ok_and(|f| f.as_deref() == Some(&v[..])))
        .count();
    assert_eq!(still, whole);
    drop((family, db));
    let report = repair::repair(DIR, "/new", &options, &mut |_, _| {}).unwrap();
    assert_eq!(report.values_lost.len(), lost, "{report:?}");
    let db = Db::open("/new", &options).unwrap();
    assert_eq!(scan(&db, &db.default_column_family()).len(), whole);
}

/// Bytes from the locator on: with what zstd makes of nothing behind it, and the footer.
const END_LEN: usize = 32 + 10 + 32;

#[test]
fn holes_leave_the_dictionary_alone_whichever_bit_of_the_end_is_wrong() {
    let fs = MemFileSystem::new();
    let options = with_dictionary(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(8));
    fill(&db, &mut map, &mut rng, 0..600);
    // All around the dictionary, and before the records that lead to it.
    for n in (0..200).chain(500..600) {
        db.delete(&key(n)).unwrap();
        map.remove(&key(n));
    }
    db.flush().unwrap();
    compact(&db);
    assert_eq!(files(&fs, &db), (1, 1));
    let number = db.live_blob_files()[0].number;
    db.close().unwrap();
    drop(db);
    let path = blob_path(DIR, number);
    let whole = read_file(&fs, Path::new(&path)).unwrap();
    let len_at = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    let dictionary = 30..30 + 32 + len_at(30) + len_at(38);
    assert!(dictionary.len() > 4 << 10, "{dictionary:?}");
    // How many holes there were, whether damage was told, and how many values were left.
    let punch = |bad: &[u8]| {
        let fs = fs.fork();
        let mut options = options.clone();
        options.db.fs = Arc::new(fs.clone());
        write_file(&fs, Path::new(&path), bad).unwrap();
        let db = Db::open(DIR, &options).unwrap();
        let before = db.statistics().get(Ticker::BlobHoles);
        let nothing_moved = CollectBlobGarbageOptions {
            discardable_ratio: 1.0,
            ..CollectBlobGarbageOptions::default()
        };
        db.collect_blob_garbage(&nothing_moved, &db.default_column_family())
            .unwrap();
        let holes = db.statistics().get(Ticker::BlobHoles) - before;
        let told = db.damaged_blob_files();
        assert!(told.iter().all(|d| d.number == number));
        db.close().unwrap();
        drop(db);
        let after = read_file(&fs, Path::new(&path)).unwrap();
        assert!(after[dictionary.clone()] == whole[dictionary.clone()]);
        let db = Db::open(DIR, &options).unwrap();
        db.put(b"more", b"is taken").unwrap();
        let read = map.iter().filter(|(key, value)| match db.get(key) {
            Ok(found) => found.as_deref() == Some(&value[..]),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                false
            }
        });
        (holes, !told.is_empty(), read.count())
    };
    let (holes, told, read) = punch(&whole);
    assert!(holes > 1 && !told && read == map.len(), "{holes}");
    let end = whole.len() - END_LEN;
    for bit in 0..END_LEN * 8 {
        let (byte, is_magic) = (bit / 8, (20..28).contains(&(bit / 8)));
        if !is_magic && bit % 7 > 0 {
            continue;
        }
        let mut bad = whole.clone();
        bad[end + byte] ^= 1 << (bit % 8);
        let (holes, told, read) = punch(&bad);
        assert_eq!((holes, told), (0, true), "bit {bit}");
        let is_footer = byte >= 32 + 10;
        assert_eq!(
            read,
            if is_footer {
                map.keys().filter(|k| map[*k].len() < 100).count()
            } else {
                map.len()
            },
            "bit {bit}"
        );
    }
}

#[test]
fn what_is_held_stays_within_the_budget() {
    const LIMIT: u64 = 8 << 20;
    let fs = MemFileSystem::new();
    let mut options = with_dictionary(&fs);
    options.cf.blob_compression_opts.zstd_max_train_bytes = 64 << 20;
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    options.db.memory_budget = Some(budget.clone());
    let db = Db::open(DIR, &options).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(5));
    for n in 0..20_000 {
        let value = profile(&mut rng, n);
        db.put(&key(n), &value).unwrap();
        map.insert(key(n), value);
        if n % 50 == 0 {
            let usage = budget.usage();
            assert!(usage.total() <= LIMIT, "{usage:?}");
        }
    }
    db.flush().unwrap();
    let (all, with) = files(&fs, &db);
    // What is left for the last flush depends on when memtables were sealed, and a dictionary must pay for itself.
    let small = db
        .live_blob_files()
        .iter()
        .filter(|f| f.total_blob_count < 300)
        .count();
    assert!(
        with > 0 && all - with <= small,
        "{with} of {all}, {small} small"
    );
    let family = db.default_column_family();
    assert!(scan(&db, &family).into_iter().collect::<Map>() == map);
    assert_eq!(budget.usage().reserved, 0, "{:?}", budget.usage());
}

#[test]
fn without_it_compactions_bring_files_back_that_rocksdb_reads() {
    let fs = MemFileSystem::new();
    let mut options = with_dictionary(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let (mut map, mut rng) = (Map::new(), Rng::new(6));
    fill(&db, &mut map, &mut rng, 0..2_000);
    assert!(files(&fs, &db).1 > 0);
    let stored = Db::load_latest_options(DIR, &options).unwrap();
    assert_eq!(stored.family("default").blob_compression_opts, DICTIONARY);
    db.set_options(
        &family,
        &[
            ("blob_compression_opts", "{max_dict_bytes=0;}"),
            ("enable_blob_garbage_collection", "true"),
            ("blob_garbage_collection_age_cutoff", "1.0"),
        ],
    )
    .unwrap();
    compact(&db);
    let (all, with) = files(&fs, &db);
    assert!(all > 0 && with == 0, "{with} of {all}");
    assert_holds(&db, &map);
    // Only zstd has one.
    drop((family, db));
    options.cf.blob_compression_type = CompressionType::Lz4;
    let db = Db::open(DIR, &options).unwrap();
    fill(&db, &mut map, &mut rng, 0..2_000);
    compact(&db);
    assert_eq!(files(&fs, &db).1, 0);
    assert_holds(&db, &map);
}

/// What the newest OPTIONS file of a directory says of RocksDB.
fn is_marked(fs: &MemFileSystem, dir: &str) -> bool {
    let names = fs.list(Path::new(dir)).expect("the disk is well");
    let newest = names.iter().filter(|n| n.starts_with("OPTIONS")).max();
    let path = Path::new(dir).join(newest.expect("there is one"));
    let bytes = read_file(fs, &path).expect("the disk is well");
    let text = String::from_utf8(bytes).expect("it is text");
    text.contains("\n  #orogen readable_by_rocksdb=false\n")
}

#[test]
fn a_directory_is_marked_as_long_as_a_file_has_a_dictionary() {
    let fs = MemFileSystem::new();
    let mut options = with_dictionary(&fs);
    options.cf.blob_compression_opts.max_dict_bytes = 0;
    drop(Db::open(DIR, &options).unwrap());
    assert!(!is_marked(&fs, DIR));
    let db = Db::open(DIR, &with_dictionary(&fs)).unwrap();
    assert!(is_marked(&fs, DIR), "it may have one from here on");
    drop(db);
    // None came of it.
    let db = Db::open(DIR, &options).unwrap();
    assert!(!is_marked(&fs, DIR));
    let family = db.default_column_family();
    let set = |db: &Db, bytes: &str| {
        let value = format!("{{max_dict_bytes={bytes};}}");
        let family = db.default_column_family();
        db.set_options(&family, &[("blob_compression_opts", &value)])
            .unwrap();
    };
    set(&db, "16384");
    assert!(is_marked(&fs, DIR));
    let (mut map, mut rng) = (Map::new(), Rng::new(6));
    fill(&db, &mut map, &mut rng, 0..2_000);
    // No new file will have one; those that are there do.
    set(&db, "0");
    assert!(files(&fs, &db).1 > 0);
    assert!(is_marked(&fs, DIR));
    drop((family, db));
    for _ in 0..2 {
        let db = Db::open(DIR, &options).unwrap();
        assert!(files(&fs, &db).1 > 0);
        assert!(is_marked(&fs, DIR));
    }
    let reader = Db::open_read_only(DIR, &options).unwrap();
    reader.checkpoint("/read").unwrap();
    assert!(is_marked(&fs, "/read"));
    drop(reader);
    let db = Db::open(DIR, &options).unwrap();
    db.checkpoint("/copy").unwrap();
    assert!(is_marked(&fs, "/copy"));
    let family = db.default_column_family();
    db.set_options(
        &family,
        &[
            ("enable_blob_garbage_collection", "true"),
            ("blob_garbage_collection_age_cutoff", "1.0"),
        ],
    )
    .unwrap();
    compact(&db);
    let (all, with) = files(&fs, &db);
    assert!(all > 0 && with == 0, "{with} of {all}");
    assert_holds(&db, &map);
    drop((family, db));
    let db = Db::open(DIR, &options).unwrap();
    assert!(!is_marked(&fs, DIR));
    assert_holds(&db, &map);
}

#[test]
fn a_dictionary_that_was_decided_on_is_not_used_with_another_codec() {
    let fs = MemFileSystem::new();
    let mut options = with_dictionary(&fs);
    options.cf.enable_blob_files = false;
    options.cf.target_file_size_base = 1 << 20;
    options.cf.compression = CompressionType::None;
    options.cf.blob_file_size = 64 << 10;
    let written = Arc::new(Mutex::new(Map::new()));
    let filled = written.clone();
    let fill = move |db: &Db| {
        fill(db, &mut filled.lock(), &mut Rng::new(1), 0..4000);
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        db.compact_range(&all, &db.default_column_family(), None, None)
            .unwrap();
        assert!(db.live_files().len() > 2);
    };
    let convert = |db: &Db| {
        let family = db.default_column_family();
        let how = ConvertValuesOptions::default();
        db.convert_values(&family, ConvertTo::Separated, &how)
            .map(drop)
    };
    let codec = [("blob_compression_type", "kLZ4Compression")];
    let (db, converted) = changed_while_a_job_writes(options, fill, convert, &codec);
    converted.unwrap();
    db.put(b"key", b"value").unwrap();
    written.lock().insert(b"key".to_vec(), b"value".to_vec());
    assert_holds(&db, &written.lock());
}
