//! An engine for the tests of phases.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;

/// A map that keeps no promise beyond its process.
#[derive(Default)]
pub(crate) struct Map(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Map {
    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Engine for Map {
    const NAME: &'static str = "map";
    const HAS_MULTI_GET: bool = false;

    fn open(_: &Settings) -> Result<Self> {
        Ok(Self::default())
    }

    fn put(&self, key: &Key, value: &[u8], _: bool) -> Result<()> {
        self.0.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn put_batch(&self, keys: &[Key], values: &[&[u8]]) -> Result<()> {
        keys.iter()
            .zip(values)
            .try_for_each(|(k, v)| self.put(k, v, false))
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.0.lock().unwrap().remove(&key[..]);
        Ok(())
    }

    fn get(&self, key: &Key) -> Result<Option<usize>> {
        Ok(self.0.lock().unwrap().get(&key[..]).map(Vec::len))
    }

    fn scan(&self, reverse: bool, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        let map = self.0.lock().unwrap();
        if reverse {
            map.iter().rev().for_each(|(k, v)| visit(k, v));
        } else {
            map.iter().for_each(|(k, v)| visit(k, v));
        }
        Ok(())
    }

    fn seek(&self, key: &Key, nexts: usize) -> Result<usize> {
        let map = self.0.lock().unwrap();
        Ok(map.range(key.to_vec()..).take(nexts + 1).count())
    }

    fn settle(&self) -> Result<Instant> {
        Ok(Instant::now())
    }

    fn close(self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        dir: std::env::temp_dir(),
        write_buffer_bytes: 0,
        cache_bytes: 0,
        bloom_bits: 0.0,
        rate_limit: None,
        recycled_logs: 0,
        mmap_reads: None,
        blob: None,
    }
}
