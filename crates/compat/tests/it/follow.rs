//! Databases that are followed while they are written: RocksDB's by us, ours by RocksDB.

use std::collections::BTreeMap;
use std::path::Path;

use orogen_compat::programs::Talk;
use orogen_engine::{ColumnFamily, CompactRangeOptions, Db, Options, ReadOptions, WriteBatch};
use orogen_testkit::Rng;

use crate::scratch;
use crate::tools::ldb;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn scan(db: &Db, family: &ColumnFamily) -> Pairs {
    let mut iter = db.iter(&ReadOptions::default(), family).unwrap();
    let mut pairs = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        pairs.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    iter.status().unwrap();
    pairs
}

/// Fails with the first difference, not with all pairs.
fn same(found: &BTreeMap<String, Pairs>, wanted: &BTreeMap<String, Pairs>, when: &str) {
    let names = |all: &BTreeMap<String, Pairs>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(wanted), "{when}");
    for (name, pairs) in found {
        let wanted = &wanted[name];
        let at = pairs.iter().zip(wanted).position(|(a, b)| a != b);
        assert_eq!(at.map(|i| (&pairs[i], &wanted[i])), None, "{when}: {name}");
        assert_eq!(pairs.len(), wanted.len(), "{when}: {name}");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|d| d[0] * 16 + d[1]).collect()
}

fn read_dump(path: &Path) -> Pairs {
    let text = std::fs::read_to_string(path).unwrap();
    let pairs = text.lines().map(|line| {
        let (key, value) = line.split_once(' ').unwrap();
        (from_hex(key), from_hex(value))
    });
    pairs.collect()
}

#[test]
fn rocksdb_is_followed_while_it_writes_and_after_it_was_killed() {
    let folder = scratch("follow-rocksdb");
    let (dir, expected) = (folder.join("db"), folder.join("expected"));
    let mut follower: Option<Db> = None;
    let mut seed = 0;
    for life in 0..3 {
        let mut primary =
            Talk::start("primary.py", [dir.as_os_str(), expected.as_os_str()]).unwrap();
        for round in 0..15 {
            primary.say(&seed.to_string()).unwrap();
            seed += 1;
            let follower = match &follower {
                Some(db) => {
                    // Now and then several rounds at once.
                    if round % 4 == 3 {
                        continue;
                    }
                    db.try_catch_up_with_primary().unwrap();
                    db
                }
                None => {
                    follower.insert(Db::open_as_secondary(&dir, None, &Options::default()).unwrap())
                }
            };
            let mut wanted = BTreeMap::new();
            for entry in std::fs::read_dir(&expected).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                wanted.insert(name, read_dump(&path));
            }
            let families = follower.column_families().into_iter();
            let found: BTreeMap<String, Pairs> = families
                .map(|f| (f.name().to_owned(), scan(follower, &f)))
                .collect();
            same(&found, &wanted, &format!("life {life} round {round}"));
        }
        primary.end().unwrap();
    }
}

#[test]
fn rocksdb_follows_ours_while_it_is_written() {
    let folder = scratch("rocksdb-follows");
    let (dir, dump) = (folder.join("db"), folder.join("dump"));
    let own = folder.join("own");
    let mut options = Options::default();
    options.db.create_if_missing = true;
    // RocksDB's secondary never returns from a log that was written over, its own not either.
    options.db.max_manifest_file_size = 2 << 10;
    options.cf.write_buffer_size = 32 << 10;
    options.cf.target_file_size_base = 32 << 10;
    options.cf.level0_file_num_compaction_trigger = 2;
    let db = Db::open(&dir, &options).unwrap();
    let cf = db.default_column_family();
    db.put(b"first", b"1").unwrap();
    let args = [dir.as_os_str(), own.as_os_str(), dump.as_os_str()];
    let mut secondary = Talk::start("secondary.py", args).unwrap();
    let mut rng = Rng::new(7);
    for round in 0..20 {
        for _ in 0..rng.below(60) {
            let mut batch = WriteBatch::new();
            for _ in 0..=rng.below(20) {
                let key = format!("key{:04}", rng.below(500));
                match rng.below(5) {
                    0 => batch.delete(0, key.as_bytes()),
                    _ => {
                        let len = rng.range(0..200);
                        batch.put(0, key.as_bytes(), &rng.bytes(len));
                    }
                }
            }
            db.write(batch).unwrap();
            match rng.below(40) {
                0 => db.flush().unwrap(),
                1 => db
                    .compact_range(&CompactRangeOptions::default(), &cf, None, None)
                    .unwrap(),
                _ => {}
            }
        }
        db.wait_for_background_work().unwrap();
        // RocksDB's catch-up ends well where a log went meanwhile, and shows it the next time.
        for _ in 0..5 {
            secondary.say("catch up").unwrap();
            if read_dump(&dump) == scan(&db, &cf) {
                break;
            }
        }
        let one = |pairs| BTreeMap::from([("default".to_owned(), pairs)]);
        let (found, wanted) = (one(read_dump(&dump)), one(scan(&db, &cf)));
        same(&found, &wanted, &format!("round {round}"));
        if round % 5 == 0 {
            // RocksDB 7.8.3, while we have it open.
            let text = ldb(&[
                "scan",
                "--hex",
                &format!("--db={}", dir.display()),
                &format!("--secondary_path={}", folder.join("ldb").display()),
            ]);
            assert_eq!(
                text.lines().count(),
                scan(&db, &cf).len(),
                "ldb round {round}"
            );
        }
    }
    secondary.end().unwrap();
}
