//! Checksums over whole tables.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_engine::filename;
use orogen_engine::options::FileChecksumKind;
use orogen_engine::version::manifest;
use orogen_engine::{Db, Options};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};

use crate::support::{DIR, small};

fn fill(options: &Options) -> Db {
    let db = Db::open(DIR, options).expect("works");
    for n in 0..3000u32 {
        db.put(format!("key{:05}", n * 13 % 3000).as_bytes(), &[b'v'; 60])
            .expect("works");
    }
    db.flush().expect("works");
    db.wait_for_background_work().expect("works");
    db
}

#[test]
fn the_manifest_has_the_checksum_of_every_table() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = fill(&options);
    let tables = db.live_files().len() as u64;
    let mut last = (0, 0);
    let found = db
        .verify_file_checksums_with(&Default::default(), &mut |done, total| {
            assert!(done > last.0 && done <= total);
            last = (done, total);
        })
        .unwrap();
    assert_eq!((found.verified, found.without_checksum), (tables, 0));
    assert_eq!(last.0, last.1);
    db.close().unwrap();
    let (_, recovered) = manifest::recover_current(&fs, Path::new(DIR)).unwrap();
    let icmp = orogen_base::key::InternalKeyComparator::new(orogen_base::UserComparator::BYTEWISE);
    let version = recovered.families[&0].version(&icmp, 7).unwrap();
    for (_, file) in version.iter_files() {
        let bytes = read_file(&fs, &filename::table_path(Path::new(DIR), file.number)).unwrap();
        let checksum = file.file_checksum.as_ref().unwrap();
        assert_eq!(checksum.func_name, b"FileChecksumCrc32c");
        let crc = orogen_base::checksum::crc32c(&bytes);
        assert_eq!(checksum.value, crc.to_be_bytes());
    }
}

#[test]
fn a_table_that_changed_is_found() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = fill(&options);
    let victim = db.live_files()[0].number;
    let path = filename::table_path(Path::new(DIR), victim);
    let mut bytes = read_file(&fs, &path).unwrap();
    // Between two blocks' bytes and their checksums nothing is unprotected; the last byte of the
    // file, in the footer's magic number, no block checksum covers.
    *bytes.last_mut().unwrap() ^= 1;
    write_file(&fs, &path, &bytes).unwrap();
    let error = db.verify_file_checksums().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert_eq!(error.context("file"), path.to_str());
    bytes.pop();
    write_file(&fs, &path, &bytes).unwrap();
    assert!(db.verify_file_checksums().is_err());
}

#[test]
fn tables_written_without_are_counted_and_mixed_with_others() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    options.db.file_checksum = FileChecksumKind::None;
    let db = fill(&options);
    let found = db.verify_file_checksums().unwrap();
    let without = db.live_files().len() as u64;
    assert_eq!((found.verified, found.without_checksum), (0, without));
    db.close().unwrap();
    options.db.file_checksum = FileChecksumKind::Crc32c;
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"another", b"1").unwrap();
    db.flush().unwrap();
    let found = db.verify_file_checksums().unwrap();
    assert_eq!((found.verified, found.without_checksum), (1, without));
    assert!(fs.exists(Path::new(DIR)).unwrap());
}
