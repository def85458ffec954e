//! RocksDB as the other side of an exchange of directories.
//!
//! ```text
//! exchange variants            the names of option sets, a line each
//! exchange write DIR NAME N    opens or makes DIR under an option set and changes it; N seeds
//! exchange prepare DIR         opens DIR with transactions, prepares three and commits another
//! exchange prepared DIR        the names of what is prepared, a line each
//! exchange end DIR NAME HOW    commits it (commit), or not (rollback)
//! exchange scan DIR            every pair of every family, both ways, checksums verified:
//!                              family, key and value in hex, parted by tabs
//! ```

use std::io::{BufWriter, Write, stdout};
use std::path::Path;
use std::process::ExitCode;

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, ChecksumType, ColumnFamilyDescriptor, DB,
    DBCompressionType, DataBlockIndexType, FlushOptions, IteratorMode, Options, ReadOptions,
    TransactionDB, TransactionDBOptions, WriteOptions,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Changes the options of tables and families from what is common to all.
type Change = fn(&mut BlockBasedOptions, &mut Options);

const VARIANTS: [(&str, Change); 24] = [
    ("defaults", |_, _| {}),
    ("format-2", |t, _| t.set_format_version(2)),
    ("format-3", |t, _| t.set_format_version(3)),
    ("format-4", |t, _| t.set_format_version(4)),
    ("format-5", |t, _| t.set_format_version(5)),
    ("format-6", |t, _| t.set_format_version(6)),
    ("format-7", |t, _| t.set_format_version(7)),
    ("no-checksum", |t, _| {
        t.set_checksum_type(ChecksumType::NoChecksum)
    }),
    ("crc32c", |t, _| t.set_checksum_type(ChecksumType::CRC32c)),
    ("xxh64", |t, _| t.set_checksum_type(ChecksumType::XXHash64)),
    ("lz4", |_, o| o.set_compression_type(DBCompressionType::Lz4)),
    ("lz4hc", |_, o| {
        o.set_compression_type(DBCompressionType::Lz4hc)
    }),
    ("hash-in-blocks", |t, _| {
        t.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
        t.set_data_block_hash_ratio(0.75);
    }),
    ("partitions", |t, _| {
        t.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
        t.set_partition_filters(true);
        t.set_metadata_block_size(512);
    }),
    ("ribbon", |t, _| t.set_ribbon_filter(10.0)),
    ("hybrid-ribbon", |t, _| t.set_hybrid_ribbon_filter(10.0, 1)),
    ("restarts-of-keys", |t, _| {
        t.set_block_restart_interval(1);
        t.set_index_block_restart_interval(8);
    }),
    ("small-blocks", |t, _| t.set_block_size(256)),
    ("recycled-logs", |_, o| o.set_recycle_log_file_num(2)),
    ("mapped", |_, o| {
        o.set_allow_mmap_writes(true);
        o.set_allow_mmap_reads(true);
    }),
    ("fixed-levels", |_, o| {
        o.set_level_compaction_dynamic_level_bytes(false)
    }),
    ("blobs", |_, o| {
        o.set_enable_blob_files(true);
        o.set_min_blob_size(60);
        o.set_blob_file_size(16 << 10);
        o.set_blob_compression_type(DBCompressionType::Lz4);
    }),
    ("blobs-collected", |_, o| {
        o.set_enable_blob_files(true);
        o.set_blob_file_size(8 << 10);
        o.set_enable_blob_gc(true);
        o.set_blob_gc_age_cutoff(0.8);
        o.set_blob_gc_force_threshold(0.3);
    }),
    ("many-manifests", |_, o| o.set_max_manifest_file_size(1)),
];

/// What the files of a directory need in order to be opened, and the option set.
fn options_of(change: Change) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    table.set_block_size(1024);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.create_missing_column_families(true);
    options.set_write_buffer_size(64 << 10);
    options.set_target_file_size_base(32 << 10);
    options.set_max_bytes_for_level_base(128 << 10);
    options.set_compression_type(DBCompressionType::None);
    change(&mut table, &mut options);
    options.set_block_based_table_factory(&table);
    options
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn write(dir: &Path, name: &str, seed: u64) -> Result<()> {
    let variant = VARIANTS.iter().find(|v| v.0 == name);
    let options = options_of(variant.ok_or("no option set of this name")?.1);
    let mut names = DB::list_cf(&options, dir).unwrap_or_default();
    for name in ["default", "second"] {
        if !names.iter().any(|n| n == name) {
            names.push(name.to_owned());
        }
    }
    let families = names
        .iter()
        .map(|n| ColumnFamilyDescriptor::new(n, options.clone()));
    let db = DB::open_cf_descriptors(&options, dir, families)?;
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let write = WriteOptions::default();
    for n in 0..6000u64 {
        let name = &names[rng.below(names.len() as u64) as usize];
        let family = db.cf_handle(name).ok_or("a family is gone")?;
        let key = format!("key{:05}", rng.below(4000));
        match rng.below(20) {
            0..=2 => db.delete_cf_opt(family, &key, &write)?,
            3 if n % 40 == 0 => {
                let end = format!("{key}~");
                db.delete_range_cf_opt(family, key.as_bytes(), end.as_bytes(), &write)?;
                let from = format!("key{:05}", rng.below(3900));
                let to = format!("key{:05}", rng.below(50) + 3900);
                if n % 400 == 0 {
                    db.delete_range_cf_opt(family, from.as_bytes(), to.as_bytes(), &write)?;
                }
            }
            _ => {
                let value = format!("{seed}/{n}/").repeat(1 + rng.below(20) as usize);
                db.put_cf_opt(family, &key, value, &write)?;
            }
        }
        if n % 1500 == 1499 {
            let mut flush = FlushOptions::default();
            flush.set_wait(true);
            db.flush_cf_opt(family, &flush)?;
        }
    }
    if seed % 2 == 0 {
        for name in &names {
            let family = db.cf_handle(name).ok_or("a family is gone")?;
            db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
        }
    }
    Ok(())
}

fn with_transactions(dir: &Path) -> Result<TransactionDB> {
    let mut options = Options::default();
    options.create_if_missing(true);
    let own = TransactionDBOptions::default();
    Ok(TransactionDB::open(&options, &own, dir)?)
}

fn prepare(dir: &Path) -> Result<()> {
    let db = with_transactions(dir)?;
    db.put(b"before", b"1")?;
    for name in ["a", "b", "c", "done"] {
        let txn = db.transaction();
        txn.set_name(name.as_bytes())?;
        txn.put(format!("key-{name}"), name)?;
        txn.put(format!("more-{name}"), vec![b'v'; 40_000])?;
        txn.prepare()?;
        match name {
            "done" => txn.commit()?,
            // Left as a crash would.
            _ => std::mem::forget(txn),
        }
        db.put(format!("between-{name}"), b"1")?;
    }
    std::process::exit(0);
}

fn prepared(dir: &Path) -> Result<()> {
    let db = with_transactions(dir)?;
    let mut names: Vec<Vec<u8>> = Vec::new();
    for txn in db.prepared_transactions() {
        names.push(txn.get_name().ok_or("a transaction has no name")?);
    }
    names.sort();
    for name in names {
        println!("{}", String::from_utf8(name)?);
    }
    Ok(())
}

fn end(dir: &Path, name: &str, how: &str) -> Result<()> {
    let db = with_transactions(dir)?;
    let all = db.prepared_transactions();
    let txn = all
        .into_iter()
        .find(|t| t.get_name().as_deref() == Some(name.as_bytes()));
    let txn = txn.ok_or("no such transaction")?;
    match how {
        "commit" => txn.commit()?,
        _ => txn.rollback()?,
    }
    Ok(())
}

fn scan(dir: &Path) -> Result<()> {
    let options = Options::default();
    let names = DB::list_cf(&options, dir)?;
    let db = DB::open_cf_for_read_only(&options, dir, &names, false)?;
    let mut out = BufWriter::new(stdout().lock());
    for name in &names {
        let family = db.cf_handle(name).ok_or("a family is gone")?;
        let read = || {
            let mut read = ReadOptions::default();
            read.set_verify_checksums(true);
            read
        };
        let forwards: Vec<_> = db
            .iterator_cf_opt(family, read(), IteratorMode::Start)
            .collect::<std::result::Result<_, _>>()?;
        let mut backwards: Vec<_> = db
            .iterator_cf_opt(family, read(), IteratorMode::End)
            .collect::<std::result::Result<_, _>>()?;
        backwards.reverse();
        if forwards != backwards {
            return Err(format!("{name} reads differently forwards and backwards").into());
        }
        for (key, value) in &forwards {
            if db.get_cf(family, key)?.as_deref() != Some(value) {
                return Err(format!("{name}: get and scan differ").into());
            }
            writeln!(out, "{name}\t{}\t{}", hex(key), hex(value))?;
        }
    }
    Ok(out.flush()?)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["variants"] => {
            for (name, _) in VARIANTS {
                println!("{name}");
            }
            Ok(())
        }
        ["write", dir, name, seed] => match seed.parse() {
            Ok(seed) => write(Path::new(dir), name, seed),
            Err(_) => Err("a seed is a number".into()),
        },
        ["scan", dir] => scan(Path::new(dir)),
        ["prepare", dir] => prepare(Path::new(dir)),
        ["prepared", dir] => prepared(Path::new(dir)),
        ["end", dir, name, how] => end(Path::new(dir), name, how),
        _ => Err("usage: exchange variants | write DIR NAME SEED | scan DIR | prepare DIR | prepared DIR | end DIR NAME commit|rollback".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("exchange: {e}");
            ExitCode::FAILURE
        }
    }
}
