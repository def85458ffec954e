use std::path::Path;

use orogen_env::{FileSystem, MemFileSystem};

use super::*;
use crate::raw::{Engine, LogBatch, Options};

// Other tests of this process have engines, too: sums are at least what these say.
#[test]
fn what_an_engine_counted_stays_when_it_is_closed() {
    let open = |name: &str| {
        let fs: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
        Engine::open(&fs, Path::new(name), Options::default()).unwrap()
    };
    let (first, second) = (open("/first"), open("/second"));
    let before = process_metrics();
    for engine in [&first, &second] {
        let mut batch = LogBatch::default();
        batch.put(1, b"key".to_vec(), vec![7; 1000]).unwrap();
        engine.write(&mut batch, true).unwrap();
    }
    let own = first.metrics();
    assert_eq!(own.write_size.count(), 1);
    let both = process_metrics();
    assert!(both.write_groups >= before.write_groups + 2);
    assert!(both.memory_usage >= own.memory_usage + second.metrics().memory_usage);
    assert!(own.memory_usage > 1000);
    drop(first);
    let one = process_metrics();
    assert!(one.write_groups >= both.write_groups);
    assert!(one.syncs.append >= both.syncs.append);
    second.close().unwrap();
    assert!(process_metrics().write_groups >= both.write_groups);
    let is_open = |engine: &Arc<Watched>| engine.meters.look().write_size == own.write_size;
    assert!(!all().open.iter().any(is_open));
}
