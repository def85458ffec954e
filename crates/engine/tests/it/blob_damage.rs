//! Blob files that are damaged, missing, or others than they should be.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_blob::format::HEADER_LEN;
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BLOB_DAMAGES_LISTED_MAX, BlobFileCheck, CollectBlobGarbageOptions, ColumnFamily, Db,
    FlushOptions, Options, ReadOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::blob_dictionary::{profile, with_dictionary};
use crate::blob_faults::{Nosy, get, put};
use crate::blobs::{assert_exact, assert_no_strays, compact_all, key, separated, w};
use crate::support::{DIR, scan};

pub(crate) fn blob_path(number: u64) -> PathBuf {
    Path::new(DIR).join(format!("{number:06}.blob"))
}

/// Turns a bit of the value that is all `letter`, in whichever blob file has it.
fn damage(fs: &MemFileSystem, letter: u8) {
    for name in fs.list(Path::new(DIR)).expect("is there") {
        if !name.ends_with(".blob") {
            continue;
        }
        let path = Path::new(DIR).join(&name);
        let mut bytes = read_file(fs, &path).expect("reads");
        if let Some(at) = bytes
            .windows(50)
            .position(|b| b.iter().all(|&b| b == letter))
        {
            bytes[at + 20] ^= 4;
            return write_file(fs, &path, &bytes).expect("writes");
        }
    }
    panic!("no blob file has the value");
}

/// A database with a damaged value, which compactions would have to read.
pub(crate) fn damaged_value(change: impl FnOnce(&mut Options)) -> (MemFileSystem, Db) {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    change(&mut options);
    let db = Db::open(DIR, &options).expect("opens");
    (0..8).for_each(|n| put(&db, n, 500));
    db.flush().expect("the disk is well");
    db.close().expect("closes");
    drop(db);
    damage(&fs, b'b');
    let db = Db::open(DIR, &options).expect("opens");
    (fs, db)
}

pub(crate) fn assert_damaged(db: &Db) {
    let error = db.get(&key(1)).expect_err("the value is damaged");
    assert_eq!(error.kind(), ErrorKind::Corruption);
}

/// One value is lost, and nothing else: neither its neighbours, nor writes, nor compactions.
pub(crate) fn assert_lives_on(db: &Db, others: &[usize]) {
    let family = db.default_column_family();
    compact_all(db, &family);
    assert_damaged(db);
    for &n in others {
        assert_eq!(get(db, n), Some(vec![b'a' + n as u8; 500]), "{n}");
    }
    put(db, 20, 500);
    db.flush().expect("writes go on");
    compact_all(db, &family);
    assert_eq!(get(db, 20), Some(vec![b'a' + 20; 500]));
    assert_damaged(db);
    for check in db
        .check_blob_files(&family, false)
        .expect("tables are well")
    {
        assert!(check.is_exact(), "{check:?}");
    }
    // What is written over or deleted is gone, and with it the damage.
    db.delete(&key(1)).expect("writes go on");
    compact_all(db, &family);
    assert!(get(db, 1).is_none());
    assert_exact(db, &family);
    scan(db, &family);
}

#[test]
fn a_damaged_value_that_is_to_be_moved_stays_and_the_rest_goes_on() {
    let (fs, db) = damaged_value(|o| {
        o.cf.enable_blob_garbage_collection = true;
        o.cf.blob_garbage_collection_age_cutoff = 1.0;
    });
    assert_lives_on(&db, &[0, 2, 3, 4, 5, 6, 7]);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_file_with_a_damaged_value_is_not_emptied_for_ever() {
    let (_fs, db) = damaged_value(|o| {
        o.cf.enable_blob_garbage_collection = true;
        o.cf.blob_garbage_collection_age_cutoff = 1.0;
        o.cf.blob_garbage_collection_force_threshold = 0.2;
    });
    let family = db.default_column_family();
    let old = db.live_blob_files()[0].number;
    (2..6).for_each(|n| put(&db, n, 500));
    // Much of the file becomes garbage, and compactions run for that alone.
    let auto = [("disable_auto_compactions", "false")];
    db.set_options(&family, &auto).unwrap();
    db.flush().unwrap();
    compact_all(&db, &family);
    db.wait_for_background_work().unwrap();
    // One file has the value that is lost, the others were moved.
    let files = db.live_blob_files();
    assert_eq!(files[0].number, old);
    assert_eq!(files[0].total_blob_count - files[0].garbage_blob_count, 1);
    assert_lives_on(&db, &[0, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_damaged_value_under_a_merge_stays_and_the_rest_goes_on() {
    let (_fs, db) = damaged_value(|_| {});
    let family = db.default_column_family();
    db.merge_opt(&w(), &family, &key(1), b"more").unwrap();
    db.merge_opt(&w(), &family, &key(1), b"and more").unwrap();
    db.merge_opt(&w(), &family, &key(2), b"more").unwrap();
    db.flush().unwrap();
    assert_lives_on(&db, &[0, 3, 4, 5, 6, 7]);
    assert_eq!(get(&db, 2), Some([&[b'c'; 500][..], b",more"].concat()));
}

#[test]
fn a_damaged_value_that_a_filter_asks_for_stays_and_the_rest_goes_on() {
    let (_fs, db) = damaged_value(|o| o.cf.compaction_filter_factory = Some(Arc::new(Nosy)));
    assert_lives_on(&db, &[0, 5, 6, 7]);
    assert_eq!(get(&db, 2), None);
}

#[test]
fn a_missing_file_costs_its_values_and_nothing_else() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    put(&db, 0, 500);
    db.flush().unwrap();
    put(&db, 1, 500);
    db.flush().unwrap();
    let lost = db.live_blob_files()[0].number;
    db.close().unwrap();
    drop(db);
    fs.remove_file(&blob_path(lost)).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let error = db.get(&key(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains(&format!("{lost:06}.blob")));
    assert_eq!(get(&db, 1), Some(vec![b'b'; 500]));
    let scrubbed = db.scrub(&Default::default(), &mut |_, _| {}).unwrap();
    assert_eq!(scrubbed.damaged_blob_files, [lost]);
    // A copy without it would not be one.
    assert!(db.checkpoint("/copy").is_err());
    assert!(!fs.exists(Path::new("/copy")).unwrap());
    put(&db, 0, 600);
    compact_all(&db, &family);
    assert_eq!(get(&db, 0), Some(vec![b'a'; 600]));
    assert_exact(&db, &family);
    db.checkpoint("/copy").unwrap();
    db.verify_checksums().unwrap();
}

/// Two families of the same values, with several files each, and the options.
fn two_families(codec: CompressionType, is_with_dictionary: bool) -> (MemFileSystem, Options) {
    let fs = MemFileSystem::new();
    let mut options = match is_with_dictionary {
        true => with_dictionary(&fs),
        false => separated(&fs),
    };
    options.cf.blob_file_size = if is_with_dictionary {
        60 << 10
    } else {
        8 << 10
    };
    options.cf.blob_compression_type = codec;
    options.cf.disable_auto_compactions = true;
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    let db = Db::open(DIR, &options).expect("opens");
    let default = db.default_column_family();
    let other = db.create_column_family("other", options.cf.clone());
    let other = other.expect("there is none");
    let mut rng = Rng::new(2);
    for n in 0..if is_with_dictionary { 400 } else { 40 } {
        let value = match is_with_dictionary {
            true => profile(&mut rng, n),
            false => rng.bytes(500),
        };
        for family in [&default, &other] {
            db.put_opt(&w(), family, &key(n), &value)
                .expect("the disk is well");
        }
    }
    for family in [default, other] {
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
            .expect("the disk is well");
    }
    db.close().expect("closes");
    (fs, options)
}

fn numbers_of(db: &Db, family: &str) -> Vec<u64> {
    let files = db.live_blob_files().into_iter();
    let files = files.filter(|f| f.column_family == family);
    files.map(|f| f.number).collect()
}

/// Whether each value is read, which is the one that was written.
fn read_all(db: &Db, family: &ColumnFamily, written: &[Vec<u8>]) -> Vec<bool> {
    let read = written.iter().enumerate().map(|(n, value)| {
        match db.get_opt(&ReadOptions::default(), family, &key(n)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), Some(&value[..]), "{n}");
                true
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                assert!(e.to_string().contains(".blob"), "{e}");
                false
            }
        }
    });
    read.collect()
}

#[test]
fn a_flipped_bit_in_a_header_costs_the_values_of_its_file_and_nothing_else() {
    for (codec, has_dictionary) in [
        (CompressionType::None, false),
        (CompressionType::Lz4, false),
        (CompressionType::Zstd, true),
    ] {
        let (whole, options) = two_families(codec, has_dictionary);
        let open = |fs: &MemFileSystem| {
            let mut options = options.clone();
            options.db.fs = Arc::new(fs.clone());
            Db::open(DIR, &options).unwrap()
        };
        let db = open(&whole.fork());
        let written: Vec<Vec<u8>> = scan(&db, &db.default_column_family())
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        let (number, file_count) = (
            numbers_of(&db, "default")[0],
            numbers_of(&db, "default").len(),
        );
        assert!(file_count > 1);
        drop(db);
        let header = read_file(&whole, &blob_path(number)).unwrap();
        assert_eq!(header[4], 1 + u8::from(has_dictionary), "its version");
        for bit in 0..HEADER_LEN * 8 {
            // All bits of the bytes that say how to read the file, one of the others.
            let byte = bit / 8;
            let is_sampled = bit % 8 == byte % 8;
            if !(is_sampled || byte == 4 || byte == 12 || byte == 13) {
                continue;
            }
            let fs = whole.fork();
            let mut bytes = header.clone();
            bytes[byte] ^= 1 << (bit % 8);
            write_file(&fs, &blob_path(number), &bytes).unwrap();
            let db = open(&fs);
            let families = [
                db.default_column_family(),
                db.column_family("other").unwrap(),
            ];
            for family in &families {
                compact_all(&db, family);
            }
            let told: Vec<u64> = db.damaged_blob_files().iter().map(|d| d.number).collect();
            assert_eq!(told, [number], "bit {bit}");
            let read = read_all(&db, &families[0], &written);
            assert!(read.contains(&false) && read.contains(&true), "bit {bit}");
            assert!(!read_all(&db, &families[1], &written).contains(&false));
            for family in &families {
                db.put_opt(&w(), family, b"more", &[b'm'; 500]).unwrap();
                db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
                    .unwrap();
                compact_all(&db, family);
                let found = db.get_opt(&ReadOptions::default(), family, b"more");
                assert_eq!(found.unwrap().as_deref(), Some(&[b'm'; 500][..]));
            }
            assert_eq!(read_all(&db, &families[0], &written), read, "bit {bit}");
            // The others were emptied, this one never is.
            let left = numbers_of(&db, "default");
            assert!(left.contains(&number) && left[0] == number, "{left:?}");
            let scrubbed = db.scrub(&Default::default(), &mut |_, _| {}).unwrap();
            assert_eq!(scrubbed.damaged_blob_files, [number], "bit {bit}");
            db.close().unwrap();
            drop((families, db));
            // What was wrong may have been the device, and is not for ever.
            assert!(read_file(&fs, &blob_path(number)).unwrap() == bytes);
            write_file(&fs, &blob_path(number), &header).unwrap();
            let db = open(&fs);
            let family = db.default_column_family();
            assert!(!read_all(&db, &family, &written).contains(&false));
        }
    }
}

#[test]
fn values_of_a_newer_program_are_told_as_such_and_stay_as_they_are() {
    let (fs, options) = two_families(CompressionType::None, false);
    let mut newer = Vec::new();
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name.ends_with(".blob") {
            let path = Path::new(DIR).join(name);
            let mut bytes = read_file(&fs, &path).unwrap();
            bytes[4] = 9;
            write_file(&fs, &path, &bytes).unwrap();
            newer.push((path, bytes));
        }
    }
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let listed = db.live_blob_files();
    assert_eq!(listed.len(), newer.len());
    compact_all(&db, &family);
    let told = db.get(&key(1)).unwrap_err().to_string();
    let why = "not supported: blob file has a version that is not known version=9";
    assert!(told.contains(why) && told.contains(".blob"), "{told}");
    let told = &db.damaged_blob_files()[0].error;
    assert!(told.to_string().contains(why), "{told}");
    let nothing_left = CollectBlobGarbageOptions {
        discardable_ratio: 0.0,
        ..CollectBlobGarbageOptions::default()
    };
    db.collect_blob_garbage(&nothing_left, &family).unwrap();
    assert_eq!(db.live_blob_files(), listed);
    db.put(&key(1), b"new").unwrap();
    db.close().unwrap();
    for (path, bytes) in newer {
        assert!(read_file(&fs, &path).unwrap() == bytes);
    }
}

#[test]
fn a_file_in_the_place_of_another_is_refused() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    // The same key, at the same place, with a value of the same length.
    for n in 0..2 {
        db.put(&key(0), &[n; 500]).unwrap();
        db.flush().unwrap();
    }
    let numbers: Vec<u64> = db.live_blob_files().iter().map(|b| b.number).collect();
    db.close().unwrap();
    drop(db);
    let older = read_file(&fs, &blob_path(numbers[0])).unwrap();
    write_file(&fs, &blob_path(numbers[1]), &older).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let error = db.get(&key(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let name = format!("{:06}.blob", numbers[1]);
    assert!(error.to_string().contains(&name), "{error}");
}

#[test]
fn all_damaged_values_are_counted_and_the_first_are_told() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.write_buffer_size = 64 << 20;
    options.cf.blob_file_size = 64 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let many = BLOB_DAMAGES_LISTED_MAX + 3;
    let name = |n: usize| format!("{n:06}").into_bytes();
    for n in 0..=many {
        db.put(&name(n), &[b'v'; 100]).unwrap();
    }
    db.flush().unwrap();
    let number = db.live_blob_files()[0].number;
    db.close().unwrap();
    // All but the last one.
    let record = 32 + name(0).len() + 100;
    let mut bytes = read_file(&fs, &blob_path(number)).unwrap();
    for n in 0..many {
        bytes[HEADER_LEN + (n + 1) * record - 50] ^= 4;
    }
    write_file(&fs, &blob_path(number), &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let found = db.examine_blob_files(&family, true).unwrap();
    assert_eq!(found.damages.len(), BLOB_DAMAGES_LISTED_MAX);
    assert_eq!((found.damage_count, found.values_read), (many as u64, 1));
    assert_eq!(found.bytes_read, record as u64);
    assert!(found.files.iter().all(BlobFileCheck::is_exact));
    // Without looking behind the pointers nothing is wrong.
    let counted = db.examine_blob_files(&family, false).unwrap();
    assert_eq!((counted.damage_count, counted.values_read), (0, 0));
    let first = db.check_blob_files(&family, true).unwrap_err();
    assert_eq!(first.kind(), ErrorKind::Corruption);
}
