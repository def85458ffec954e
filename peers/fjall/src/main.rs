//! fjall under the workloads of the peers.

use std::process::ExitCode;
use std::time::Instant;

use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode};
use peers_driver::{Engine, Key, Result, Settings, Unsupported, wait_until_idle};

struct Fjall {
    db: Database,
    keyspace: Keyspace,
}

impl Engine for Fjall {
    const NAME: &'static str = "fjall";
    const HAS_MULTI_GET: bool = false;

    fn open(settings: &Settings) -> Result<Self> {
        if settings.blob.is_some() || settings.rate_limit.is_some() {
            return Err(Unsupported("fjall is measured with values in its tree, unlimited").into());
        }
        let db = Database::builder(&settings.dir)
            .cache_size(settings.cache_bytes)
            .worker_threads(2)
            .open()?;
        let bloom = BloomConstructionPolicy::BitsPerKey(settings.bloom_bits);
        let keyspace = db.keyspace("default", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(settings.write_buffer_bytes)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
        })?;
        Ok(Self { db, keyspace })
    }

    #[inline]
    fn put(&self, key: &Key, value: &[u8], sync: bool) -> Result<()> {
        self.keyspace.insert(key.as_slice(), value)?;
        if sync {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn put_batch(&self, keys: &[Key], values: &[&[u8]]) -> Result<()> {
        // As single inserts do: to the operating system, not to the device.
        let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in keys.iter().zip(values) {
            batch.insert(&self.keyspace, key.as_slice(), *value);
        }
        Ok(batch.commit()?)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        Ok(self.keyspace.remove(key.as_slice())?)
    }

    #[inline]
    fn get(&self, key: &Key) -> Result<Option<usize>> {
        Ok(self.keyspace.get(key)?.map(|value| value.len()))
    }

    fn scan(&self, reverse: bool, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let mut visit_one = |guard: Guard| -> Result<()> {
            let (key, value) = guard.into_inner()?;
            visit(&key, &value);
            Ok(())
        };
        let mut iter = self.keyspace.iter();
        if reverse {
            iter.rev().try_for_each(&mut visit_one)
        } else {
            iter.try_for_each(&mut visit_one)
        }
    }

    fn seek(&self, key: &Key, nexts: usize) -> Result<usize> {
        let mut seen = 0;
        for guard in self.keyspace.range(key.as_slice()..).take(nexts + 1) {
            std::hint::black_box(guard.into_inner()?);
            seen += 1;
        }
        Ok(seen)
    }

    fn settle(&self) -> Result<Instant> {
        self.keyspace.rotate_memtable_and_wait()?;
        wait_until_idle(
            || Ok(self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0),
        )
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    peers_driver::main::<Fjall>()
}
