//! A database whose files were changed with a sense for their shape: records of MANIFEST and log
//! put in, taken out and changed under right checksums; OPTIONS, CURRENT and tables as bytes. It is
//! opened or refused; a reader changes no file; what a writer opened and closed opens again, and
//! holds the same then.

#![no_main]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use orogen_base::Result;
use orogen_engine::{Db, Options, ReadOptions, WriteBatch};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::{Choices, file};
use orogen_sst::BlockIndex;
use orogen_wal::{ReadOutcome, Reader, Writer};

const DIR: &str = "/db";
/// Changes to one database.
const CHANGES_MAX: usize = 6;
/// A hostile MANIFEST may name one table many times.
const MOVES_MAX: usize = 20_000;

/// A file as it is changed.
#[derive(Clone)]
enum Content {
    Bytes(Vec<u8>),
    /// Records of a log with this number.
    Records(u64, Vec<Vec<u8>>),
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.info_log = false;
    options.db.max_background_jobs = 1;
    options.cf.write_buffer_size = 64 << 10;
    options.cf.disable_auto_compactions = true;
    options.cf.table.block_size = 128;
    options.cf.table.filter_bits_per_key = 10.0;
    options
}

fn records(bytes: Vec<u8>, number: u64) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(file(bytes), number).expect("memory");
    let mut records = Vec::new();
    let mut record = Vec::new();
    while let Ok(ReadOutcome::Record { .. }) = reader.read_record(&mut record) {
        records.push(record.clone());
    }
    records
}

/// Two families, tables of both kinds of indexes, range tombstones, and a log.
fn base() -> &'static BTreeMap<PathBuf, Content> {
    static BASE: OnceLock<BTreeMap<PathBuf, Content>> = OnceLock::new();
    BASE.get_or_init(|| {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.db.create_if_missing = true;
        let db = Db::open(DIR, &options).expect("memory");
        let mut other = options.cf.clone();
        other.table.index_type = BlockIndex::TwoLevel;
        other.table.partition_filters = true;
        other.table.metadata_block_size = 64;
        let other = db.create_column_family("other", other).expect("memory");
        for round in 0..3u8 {
            let mut batch = WriteBatch::new();
            for n in 0..40u8 {
                for cf in [0, other.id()] {
                    batch.put(cf, format!("key{:03}", n * 3 + round).as_bytes(), &[n; 9]);
                }
            }
            batch.delete(0, b"key003");
            batch.delete_range(other.id(), b"key010", b"key020");
            db.write(batch).expect("memory");
            if round < 2 {
                db.flush().expect("memory");
            }
        }
        db.close().expect("memory");
        let mut files = BTreeMap::new();
        for name in fs.list(Path::new(DIR)).expect("memory") {
            let path = Path::new(DIR).join(&name);
            let bytes = read_file(&fs, &path).expect("memory");
            let number = match name.strip_suffix(".log") {
                Some(number) => number.parse().ok(),
                None => name.starts_with("MANIFEST-").then_some(0),
            };
            let content = match number {
                Some(number) => Content::Records(number, records(bytes, number)),
                None => Content::Bytes(bytes),
            };
            files.insert(path, content);
        }
        files
    })
}

fn change(files: &mut BTreeMap<PathBuf, Content>, choices: &mut Choices<'_>) {
    let at = usize::from(choices.byte()) % files.len();
    let path = files.keys().nth(at).expect("it was counted").clone();
    let what = choices.byte();
    if what % 16 == 0 && files.len() > 1 {
        files.remove(&path);
        return;
    }
    match files.get_mut(&path).expect("it is there") {
        Content::Bytes(content) => choices.change(content),
        Content::Records(_, records) => {
            let at = usize::from(choices.byte()) % (records.len() + 1);
            match what % 4 {
                0 => records.insert(at, choices.bytes()),
                1 if at < records.len() => drop(records.remove(at)),
                2 if at < records.len() => {
                    let again = records[at].clone();
                    records.push(again);
                }
                _ => {
                    let record = records.get_mut(at).into_iter();
                    record.for_each(|r| choices.change(r));
                }
            }
        }
    }
}

fn write(fs: &MemFileSystem, files: &BTreeMap<PathBuf, Content>) {
    fs.create_dir_all(Path::new(DIR)).expect("memory");
    for (path, content) in files {
        match content {
            Content::Bytes(bytes) => write_file(fs, path, bytes).expect("memory"),
            Content::Records(number, records) => {
                let file = fs.create(path).expect("memory");
                let mut writer = Writer::new(file, *number, false);
                for record in records {
                    writer.add_record(record).expect("memory");
                }
                writer.sync().expect("memory");
            }
        }
    }
}

type Pairs = Vec<(String, Vec<u8>, Vec<u8>)>;

/// Every pair of every family, forwards; all of it is read backwards and by key too.
fn scan(db: &Db) -> Result<Pairs> {
    let mut pairs = Vec::new();
    for family in db.column_families() {
        let start = pairs.len();
        let mut iter = db.iter(&ReadOptions::default(), &family)?;
        iter.seek_to_first();
        while iter.valid() && pairs.len() - start < MOVES_MAX {
            let (key, value) = (iter.key().to_vec(), iter.value().to_vec());
            pairs.push((family.name().to_owned(), key, value));
            iter.next();
        }
        iter.status()?;
        // What a MANIFEST of foreign records says of a file's place need not be so: a lookup may
        // find something else than a scan.
        for (_, key, _) in &pairs[start..] {
            db.get_opt(&ReadOptions::default(), &family, key)?;
        }
        iter.seek_to_last();
        for _ in start..pairs.len() {
            if iter.valid() {
                iter.prev();
            }
        }
        iter.status()?;
    }
    Ok(pairs)
}

fn image(fs: &MemFileSystem) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).expect("memory").into_iter();
    let read = |name: &String| read_file(fs, &Path::new(DIR).join(name)).expect("memory");
    names
        .map(|name| {
            let bytes = read(&name);
            (name, bytes)
        })
        .collect()
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let mut files = base().clone();
    for _ in 0..CHANGES_MAX {
        if choices.is_empty() {
            break;
        }
        change(&mut files, &mut choices);
    }
    let fs = MemFileSystem::new();
    write(&fs, &files);
    let options = options(&fs);
    let before = image(&fs);
    let _ = Db::load_latest_options(DIR, &options);
    if let Ok(db) = Db::open_read_only(DIR, &options) {
        let _ = scan(&db);
        let _ = db.verify_checksums();
    }
    assert!(image(&fs) == before, "a reader changed a file");
    let Ok(db) = Db::open(DIR, &options) else {
        return;
    };
    let held = scan(&db);
    if db.close().is_err() {
        return;
    }
    let db = Db::open(DIR, &options).expect("it was opened and closed before");
    if let (Ok(held), Ok(holds)) = (held, scan(&db)) {
        assert!(held == holds, "{} pairs, then {}", held.len(), holds.len());
    }
});
