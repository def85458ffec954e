use std::path::Path;
use std::sync::Arc;

use orogen_base::key::append_internal_key;
use orogen_env::{Access, Fault, FaultFileSystem, MemFileSystem, OpKind};
use orogen_sst::{TableBuilder, TableBuilderOptions};

use super::*;
use crate::open::recover::{self, Mode};
use crate::options::Options;

/// A table of pointers as RocksDB writes it: without what they lead to in its properties.
fn untold(fs: &dyn FileSystem, number: FileNo) -> FileMeta {
    telling(fs, number, [])
}

/// A table of pointers with these properties.
fn telling(
    fs: &dyn FileSystem,
    number: FileNo,
    told: impl IntoIterator<Item = (String, Vec<u8>)>,
) -> FileMeta {
    let path = filename::table_path(Path::new("/db"), number);
    let file = fs.create(&path).unwrap();
    let mut builder = TableBuilder::new(file, TableBuilderOptions::default()).unwrap();
    for n in 0..100u64 {
        let pointer = BlobPointer {
            file: 7 + n % 2,
            offset: 1000 + 100 * n,
            size: 50,
            codec: orogen_sst::CompressionType::None,
        };
        let mut key = Vec::new();
        let user = format!("key{n:03}");
        append_internal_key(&mut key, user.as_bytes(), 1, ValueKind::BlobIndex);
        let mut value = Vec::new();
        pointer.encode(&mut value);
        builder.add(&key, &value).unwrap();
    }
    builder.finish(told).unwrap();
    let size = fs.open(&path, Access::Random).unwrap().size().unwrap();
    FileMeta {
        number,
        size,
        oldest_blob_file_number: 7,
        ..FileMeta::default()
    }
}

#[test]
fn a_table_that_does_not_tell_is_read_once() {
    let fs = FaultFileSystem::over_memory(MemFileSystem::new());
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.create_if_missing = true;
    let core = recover::open(Path::new("/db"), &options, Mode::ReadWrite).unwrap();
    let tables = &core.default_family.tables;
    let file = untold(&fs, 1000);
    assert_eq!(tables.told_blob_references(&file).unwrap(), None);
    let counted = tables.blob_references(&file).unwrap();
    let values: Vec<_> = counted.iter().map(|(n, count)| (n, count.values)).collect();
    assert_eq!(values, [(7, 50), (8, 50)]);
    let reads = Fault::io().on(&[OpKind::Read]).path_with("001000.sst");
    fs.faults().add(reads.forever());
    assert_eq!(tables.blob_references(&file).unwrap(), counted);
    assert_eq!(tables.told_blob_references(&file).unwrap(), Some(counted));
    assert!(tables.count_pointers(&file).is_err(), "it would be read");
}

#[test]
fn damage_in_what_a_table_says_of_its_pointers_names_the_table() {
    let fs = MemFileSystem::new();
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.create_if_missing = true;
    let core = recover::open(Path::new("/db"), &options, Mode::ReadWrite).unwrap();
    let tables = &core.default_family.tables;
    // Two files of the same number.
    let told = [(BLOB_REFERENCES.to_owned(), vec![2, 5, 1, 1, 5, 1, 1])];
    let file = telling(&fs, 1000, told);
    let path = filename::table_path(Path::new("/db"), 1000);
    for told in [
        tables.told_blob_references(&file).map(drop),
        tables.told_blob_reach(&file).map(drop),
    ] {
        let error = told.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(error.context("file"), path.to_str());
    }
}
