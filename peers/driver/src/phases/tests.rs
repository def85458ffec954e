use std::collections::BTreeMap;
use std::sync::Mutex;

use super::*;

/// A map that keeps no promise beyond its process.
#[derive(Default)]
struct Map(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

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

#[test]
fn every_phase_does_its_operations_and_finds_what_was_written() {
    const NUM: u64 = 2000;
    const READS: u64 = 1000;
    let settings = Settings {
        dir: std::env::temp_dir(),
        write_buffer_bytes: 0,
        cache_bytes: 0,
        bloom_bits: 0.0,
    };
    let pool = value_pool();
    for phase in &PHASES {
        let db = Map::open(&settings).unwrap();
        let before = if phase.writes() { 0 } else { NUM };
        for number in 0..before {
            db.put(&key_of(number), &pool[..VALUE_LEN], false).unwrap();
        }
        let (work, _, beside) = run_threads(&db, phase, NUM, READS, &pool).unwrap();
        let (ops, found) = match phase.name {
            "readmissing" => (READS, 0),
            "readseq" | "readreverse" => (NUM, NUM),
            "seekrandom" => (READS / 4, 11 * READS / 4),
            name if name.starts_with("syncput") => (NUM / phase.threads * phase.threads, 0),
            _ if phase.writes() => (NUM, 0),
            _ => (READS, READS),
        };
        assert_eq!(work.ops, ops, "{}", phase.name);
        // The last keys of the order have fewer than ten behind them.
        let slack = if phase.kind == Kind::Seek { 55 } else { 0 };
        assert!(
            work.found <= found && work.found + slack >= found,
            "{}",
            phase.name
        );
        assert_eq!(beside > 0, phase.kind == Kind::ReadWhileWriting);
        if phase.writes() && phase.name != "overwrite" {
            let live = db.0.lock().unwrap().len() as u64;
            assert_eq!(LiveKeys::after(phase.name, NUM), live, "{}", phase.name);
        }
    }
}
