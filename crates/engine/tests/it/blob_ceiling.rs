//! What a database takes on disk while it is written to, with and without a ceiling.

use std::path::Path;

use orogen_engine::{Db, Options};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_testkit::Rng;

use crate::blobs::{assert_exact, separated};
use crate::support::{DIR, scan};

const KEYS: u64 = 1000;
const VALUE_LEN: usize = 3000;
const LIVE_BYTES: u64 = KEYS * VALUE_LEN as u64;
const WRITE_BUFFER_BYTES: u64 = 64 << 10;
const LEVEL0_FILES_MAX: u64 = 6;
const CEILING: f64 = 1.1;
/// From here on writers are slowed.
const SLOWED_FROM: f64 = 1.1 * CEILING;

fn options(fs: &MemFileSystem, ceiling: f64) -> Options {
    let mut options = separated(fs);
    options.db.delayed_write_rate = 1 << 20;
    let cf = &mut options.cf;
    cf.write_buffer_size = WRITE_BUFFER_BYTES;
    cf.level0_file_num_compaction_trigger = 2;
    cf.level0_slowdown_writes_trigger = 4;
    cf.level0_stop_writes_trigger = LEVEL0_FILES_MAX as usize;
    cf.blob_file_size = 1 << 20;
    // No other way brings space back.
    cf.blob_gc_auto = false;
    cf.blob_hole_punching = false;
    cf.max_gc_batch_size = 256 << 10;
    cf.max_space_amp = ceiling;
    options
}

fn disk_bytes(fs: &MemFileSystem) -> u64 {
    let names = fs.list(Path::new(DIR)).expect("the disk is well");
    let data = names
        .iter()
        .filter(|n| n.ends_with(".blob") || n.ends_with(".sst"));
    // One may go meanwhile.
    let sizes = data.filter_map(|n| fs.metadata(&Path::new(DIR).join(n)).ok());
    sizes.map(|m| m.size).sum()
}

/// The most bytes on disk while everything is written over five times, in no order.
fn most_while_written(ceiling: f64) -> u64 {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs, ceiling)).expect("it opens");
    let mut rng = Rng::new(5);
    let mut most = 0;
    for n in 0..6 * KEYS {
        let key = match n < KEYS {
            true => n,
            false => rng.below(KEYS),
        };
        db.put(&key.to_be_bytes(), &rng.bytes(VALUE_LEN))
            .expect("the disk is well");
        if n % 8 == 0 {
            most = most.max(disk_bytes(&fs));
        }
    }
    db.wait_for_background_work().expect("the disk is well");
    let family = db.default_column_family();
    assert_exact(&db, &family);
    assert_eq!(scan(&db, &family).len() as u64, KEYS);
    most
}

/// Level 0 hides what becomes garbage below it. Of what is seen the files take what they may, and half as much again
/// before writers have no more than a quarter of their slowed rate; what moves is there twice until its file goes, which is no more than
/// what lives.
#[test]
fn the_disk_is_bounded_while_everything_is_written_over() {
    let seen = LIVE_BYTES + LEVEL0_FILES_MAX * WRITE_BUFFER_BYTES;
    let bound = (1.5 * (SLOWED_FROM * seen as f64 + 2.0 * WRITE_BUFFER_BYTES as f64)) as u64 + seen;
    // A machine that has no time for who collects lets writers go on: they are slowed, not stopped.
    let most = (0..3).map(|_| most_while_written(CEILING)).min();
    assert!(most <= Some(bound), "{most:?} of {bound}");
    // Else it would not be.
    let without = most_while_written(0.0);
    assert!(without > bound, "{without} of {bound}");
}
