//! What nobody syncs is written out before the next file waits for it.

use std::sync::Arc;
use std::time::Duration;

use orogen_env::{Clock as _, Fault, FaultFileSystem, FileSystem, OpKind, SystemClock};
use orogen_raftlog::raw::{Engine, LogBatch, Options};
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk};

const STEP: u64 = 16 << 20;

#[test]
fn it_is_asked_for_where_nobody_syncs() {
    for (sync, fails) in [(false, false), (false, true), (true, false)] {
        let faulty = Arc::new(FaultFileSystem::over_memory(disk()));
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let options = Options {
            enable_log_digests: false,
            ..Options::default()
        };
        let engine = Engine::open(&fs, dir(), options.clone()).unwrap();
        if fails {
            let fault = Fault::io().on(&[OpKind::StartWriteback]).forever();
            faulty.faults().add(fault);
        }
        let asked = || faulty.faults().count(OpKind::StartWriteback);
        let entry = Rng::new(1).bytes(1 << 20);
        let mut index = 0;
        for steps in 1..=3 {
            while engine.metrics().appended_bytes.append < steps * STEP + (1 << 20) {
                index += 1;
                let mut batch = LogBatch::default();
                batch.add_entries(1, index, &[&entry]).unwrap();
                engine.write(&mut batch, sync).unwrap();
            }
            let expected = if sync { 0 } else { steps };
            let end = SystemClock.now_micros() + 60_000_000;
            while asked() < expected && SystemClock.now_micros() < end {
                SystemClock.sleep(Duration::from_millis(1));
            }
            assert_eq!(asked(), expected);
        }
        let expected = content(&engine);
        engine.close().unwrap();
        faulty.faults().clear();
        let again = Engine::open(&fs, dir(), options).unwrap();
        assert_eq!(content(&again), expected);
    }
}
