//! RocksDB under the workloads of the peers.

use std::process::ExitCode;
use std::time::Instant;

use peers_driver::{Blob, BlobGc, Engine, Key, Result, Settings, Unsupported};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DB, DBCompressionType,
    DEFAULT_COLUMN_FAMILY_NAME, Options, WaitForCompactOptions, WriteBatch, WriteOptions,
};

struct RocksDb {
    db: DB,
    unsynced: WriteOptions,
    synced: WriteOptions,
}

/// Refills of the rate limiter a second, and of how many one goes to low priority first: what
/// RocksDB takes by default.
const REFILL_PERIOD_MICROS: i64 = 100_000;
const FAIRNESS: i32 = 10;

/// Lets large values go to blob files. What is not set here has RocksDB's default; there is no
/// blob cache.
fn separate_values(options: &mut Options, blob: &Blob) -> Result<()> {
    let collects = match blob.gc {
        BlobGc::Off => false,
        BlobGc::Auto => true,
        _ => return Err(Unsupported("RocksDB has one way of collecting: `auto`").into()),
    };
    options.set_enable_blob_files(true);
    options.set_min_blob_size(blob.min_blob_size);
    options.set_blob_compression_type(DBCompressionType::Lz4);
    options.set_enable_blob_gc(collects);
    options.set_blob_gc_age_cutoff(blob.garbage_collection_age_cutoff);
    options.set_blob_gc_force_threshold(blob.garbage_collection_force_threshold);
    Ok(())
}

impl Engine for RocksDb {
    const NAME: &'static str = "rocksdb";
    const HAS_MULTI_GET: bool = true;

    fn open(settings: &Settings) -> Result<Self> {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&Cache::new_lru_cache(settings.cache_bytes as usize));
        table.set_bloom_filter(f64::from(settings.bloom_bits), false);
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_max_background_jobs(2);
        options.set_write_buffer_size(settings.write_buffer_bytes as usize);
        options.set_target_file_size_base(settings.write_buffer_bytes);
        options.set_max_bytes_for_level_base(4 * settings.write_buffer_bytes);
        options.set_compression_type(DBCompressionType::Lz4);
        options.set_recycle_log_file_num(settings.recycled_logs);
        options.set_allow_mmap_reads(settings.mmap_reads == Some(true));
        options.set_block_based_table_factory(&table);
        if let Some(bytes) = settings.rate_limit {
            options.set_ratelimiter(i64::try_from(bytes)?, REFILL_PERIOD_MICROS, FAIRNESS);
        }
        if let Some(blob) = &settings.blob {
            separate_values(&mut options, blob)?;
        }
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options.clone());
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        Ok(Self {
            db: DB::open_cf_descriptors(&options, &settings.dir, [family])?,
            unsynced: WriteOptions::default(),
            synced,
        })
    }

    #[inline]
    fn put(&self, key: &Key, value: &[u8], sync: bool) -> Result<()> {
        let options = if sync { &self.synced } else { &self.unsynced };
        Ok(self.db.put_opt(key, value, options)?)
    }

    fn put_batch(&self, keys: &[Key], values: &[&[u8]]) -> Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in keys.iter().zip(values) {
            batch.put(key, value);
        }
        Ok(self.db.write_opt(batch, &self.unsynced)?)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        Ok(self.db.delete_opt(key, &self.unsynced)?)
    }

    #[inline]
    fn get(&self, key: &Key) -> Result<Option<usize>> {
        Ok(self.db.get_pinned(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Key]) -> Result<usize> {
        let family = self
            .db
            .cf_handle(DEFAULT_COLUMN_FAMILY_NAME)
            .ok_or("no default column family")?;
        let mut found = 0;
        for value in self.db.batched_multi_get_cf(family, keys, false) {
            found += usize::from(value?.is_some());
        }
        Ok(found)
    }

    fn scan(&self, reverse: bool, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut iter = self.db.raw_iterator();
        if reverse {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        while let Some((key, value)) = iter.item() {
            visit(key, value);
            if reverse {
                iter.prev();
            } else {
                iter.next();
            }
        }
        Ok(iter.status()?)
    }

    fn seek(&self, key: &Key, nexts: usize) -> Result<usize> {
        let mut iter = self.db.raw_iterator();
        iter.seek(key);
        let mut seen = 0;
        while seen <= nexts {
            let Some(pair) = iter.item() else { break };
            std::hint::black_box(pair);
            seen += 1;
            if seen <= nexts {
                iter.next();
            }
        }
        iter.status()?;
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        self.db.flush()?;
        self.db
            .wait_for_compact(&WaitForCompactOptions::default())?;
        Ok(Instant::now())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    peers_driver::main::<RocksDb>()
}
