//! Purges that are not asked whether they pay.

use std::sync::Arc;

use orogen_env::{FileSystem, PowerCut};
use orogen_raftlog::raw::{Engine, Options, Queue, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, options, random_batch};

#[test]
fn what_is_moved_or_deleted_on_demand_is_all_still_there() {
    let (mut emptied, mut anew) = (0, 0);
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mem = disk();
        let fs: Arc<dyn FileSystem> = Arc::new(mem.clone());
        // A purge by itself would never pay.
        let options = Options {
            purge_threshold: 1 << 30,
            ..options()
        };
        let engine = Engine::open(&fs, dir(), options.clone()).unwrap();
        let mut model = Model::new();
        for step in 0..60 {
            let mut batch = random_batch(&mut rng, &mut model, 0);
            engine.write(&mut batch, true).unwrap();
            if !rng.chance(1, 4) {
                continue;
            }
            let before = content(&engine);
            let [append, rewrite] = [Queue::Append, Queue::Rewrite].map(|q| engine.file_span(q));
            match rng.below(6) {
                0 => engine.rewrite_rewrite_queue().unwrap(),
                1 => engine.purge_all_stale().unwrap(),
                n => {
                    let (first, last) = append.unwrap();
                    let watermark = first + rng.below(last - first + 2);
                    let steps = [
                        RewriteSteps::Removals,
                        RewriteSteps::Moves,
                        RewriteSteps::All,
                    ];
                    let steps = steps[rng.range(0..3)];
                    let watermark = (n > 3).then_some(watermark);
                    engine.rewrite_append_queue(watermark, steps).unwrap();
                    if steps == RewriteSteps::All && watermark.is_none() {
                        let (first, last) = engine.file_span(Queue::Append).unwrap();
                        emptied += u32::from(first == last);
                    }
                }
            }
            anew += u32::from(engine.file_span(Queue::Rewrite) != rewrite);
            assert_eq!(content(&engine), before, "seed {seed} step {step}");
            for cut in [
                PowerCut::KeepAll,
                PowerCut::DropUnsynced,
                PowerCut::Torn { seed: step },
            ] {
                let after: Arc<dyn FileSystem> = Arc::new(mem.crash(cut));
                let again = Engine::open(&after, dir(), options.clone()).unwrap();
                assert_eq!(content(&again), before, "seed {seed} step {step} {cut:?}");
            }
        }
    }
    println!(
        "{emptied} times the append queue was emptied, {anew} times the rewrite queue changed its files"
    );
    assert!(emptied > 10 && anew > 10, "{emptied} {anew}");
}
