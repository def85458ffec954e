//! Orogen under the workloads of the peers.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use orogen::{
    BlockBasedOptions, BlockCache, ColumnFamily, ColumnFamilyOptions, CompressionType, Db,
    DbIterator, DbOptions, Options, RateLimiter, ReadOptions, SystemClock, WriteBatch,
    WriteOptions,
};
use peers_driver::{Blob, BlobGc, Engine, Key, Result, Settings};

struct Orogen {
    db: Db,
    family: ColumnFamily,
    read: ReadOptions,
}

impl Orogen {
    fn iter(&self) -> Result<DbIterator> {
        Ok(self.db.iter(&self.read, &self.family)?)
    }
}

/// Lets large values go to blob files. What is not set here has its default.
fn separate_values(options: &mut ColumnFamilyOptions, blob: &Blob) {
    options.enable_blob_garbage_collection = matches!(blob.gc, BlobGc::Merge);
    if matches!(blob.gc, BlobGc::Move) {
        // Titan's default.
        options.blob_file_discardable_ratio = 0.5;
    }
    options.blob_gc_auto = matches!(blob.gc, BlobGc::Auto);
    options.blob_hole_punching = matches!(blob.gc, BlobGc::Auto | BlobGc::Punch);
    options.enable_blob_files = true;
    options.min_blob_size = blob.min_blob_size;
    options.blob_compression_type = CompressionType::Lz4;
    options.blob_garbage_collection_age_cutoff = blob.garbage_collection_age_cutoff;
    options.blob_garbage_collection_force_threshold = blob.garbage_collection_force_threshold;
    options.max_space_amp = blob.max_space_amp;
}

impl Engine for Orogen {
    const NAME: &'static str = "orogen";
    const HAS_MULTI_GET: bool = true;

    fn open(settings: &Settings) -> Result<Self> {
        let mut options = Options {
            db: DbOptions {
                create_if_missing: true,
                max_background_jobs: 2,
                // As RocksDB's, its writes outlive the process; Pebble's need not.
                allow_mmap_writes: true,
                recycle_log_file_num: settings.recycled_logs,
                allow_mmap_reads: settings.mmap_reads == Some(true),
                adaptive_mmap_reads: settings.mmap_reads.is_none(),
                rate_limiter: settings
                    .rate_limit
                    .map(|bytes| Arc::new(RateLimiter::new(bytes, Arc::new(SystemClock)))),
                ..DbOptions::default()
            },
            cf: ColumnFamilyOptions {
                write_buffer_size: settings.write_buffer_bytes,
                target_file_size_base: settings.write_buffer_bytes,
                max_bytes_for_level_base: 4 * settings.write_buffer_bytes,
                compression: CompressionType::Lz4,
                block_cache: Some(Arc::new(BlockCache::new(settings.cache_bytes as usize))),
                table: BlockBasedOptions {
                    filter_bits_per_key: f64::from(settings.bloom_bits),
                    ..BlockBasedOptions::default()
                },
                ..ColumnFamilyOptions::default()
            },
            ..Options::default()
        };
        if let Some(blob) = &settings.blob {
            separate_values(&mut options.cf, blob);
        }
        let db = Db::open(&settings.dir, &options)?;
        Ok(Self {
            family: db.default_column_family(),
            db,
            read: ReadOptions::default(),
        })
    }

    #[inline]
    fn put(&self, key: &Key, value: &[u8], sync: bool) -> Result<()> {
        if !sync {
            return Ok(self.db.put(key, value)?);
        }
        let options = WriteOptions {
            sync,
            ..WriteOptions::default()
        };
        Ok(self.db.put_opt(&options, &self.family, key, value)?)
    }

    fn put_batch(&self, keys: &[Key], values: &[&[u8]]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (key, value) in keys.iter().zip(values) {
            batch.put(0, key, value);
        }
        Ok(self.db.write(batch)?)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        Ok(self.db.delete(key)?)
    }

    #[inline]
    fn get(&self, key: &Key) -> Result<Option<usize>> {
        Ok(self.db.get(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Key]) -> Result<usize> {
        let keys: Vec<&[u8]> = keys.iter().map(|k| &k[..]).collect();
        let mut found = 0;
        for value in self.db.multi_get(&self.read, &self.family, &keys) {
            found += usize::from(value?.is_some());
        }
        Ok(found)
    }

    fn scan(&self, reverse: bool, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut iter = self.iter()?;
        if reverse {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        while iter.valid() {
            visit(iter.key(), iter.value());
            if reverse {
                iter.prev();
            } else {
                iter.next();
            }
        }
        Ok(iter.status()?)
    }

    fn seek(&self, key: &Key, nexts: usize) -> Result<usize> {
        let mut iter = self.iter()?;
        iter.seek(key);
        let mut seen = 0;
        while iter.valid() && seen <= nexts {
            std::hint::black_box((iter.key(), iter.value()));
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
        self.db.wait_for_background_work()?;
        Ok(Instant::now())
    }

    fn close(self) -> Result<()> {
        Ok(self.db.close()?)
    }
}

fn main() -> ExitCode {
    peers_driver::main::<Orogen>()
}
