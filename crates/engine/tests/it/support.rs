//! Databases in memory.

use std::sync::Arc;

use orogen_engine::{ColumnFamily, ColumnFamilyOptions, Db, DbOptions, Options, ReadOptions};
use orogen_env::MemFileSystem;

/// Where the databases of these tests are.
pub(crate) const DIR: &str = "/db";

/// Options on a file system in memory, with everything small so that little data goes far.
pub(crate) fn small(fs: &MemFileSystem) -> Options {
    let mut cf = ColumnFamilyOptions {
        write_buffer_size: 16 << 10,
        target_file_size_base: 16 << 10,
        max_bytes_for_level_base: 64 << 10,
        ..ColumnFamilyOptions::default()
    };
    cf.table.block_size = 512;
    cf.table.filter_bits_per_key = 10.0;
    Options {
        db: DbOptions {
            create_if_missing: true,
            fs: Arc::new(fs.clone()),
            info_log: false,
            ..DbOptions::default()
        },
        cf,
        ..Options::default()
    }
}

/// All pairs of a family, in order.
pub(crate) fn scan(db: &Db, family: &ColumnFamily) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iter = db
        .iter(&ReadOptions::default(), family)
        .expect("tables open");
    iter.seek_to_first();
    let mut out = Vec::new();
    while iter.valid() {
        out.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().expect("the scan meets no error");
    out
}

/// The same from the end, turned round.
pub(crate) fn scan_backward(db: &Db, family: &ColumnFamily) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut iter = db
        .iter(&ReadOptions::default(), family)
        .expect("tables open");
    iter.seek_to_last();
    let mut out = Vec::new();
    while iter.valid() {
        out.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.prev();
    }
    iter.status().expect("the scan meets no error");
    out.reverse();
    out
}
