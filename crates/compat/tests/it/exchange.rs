//! Orogen and RocksDB write one directory in turn.

use orogen_base::Error;
use orogen_compat::{Case, programs};
use orogen_engine::Db;
use orogen_testkit::Rng;

use crate::open::is_supported;
use crate::store::{Model, assert_holds, hand_over, options};
use crate::{scratch, several_at_once, written_by_rocksdb};

const ROUNDS: u64 = 2;

/// Orogen checks, writes and closes; the case then expects what Orogen wrote.
fn write_with_orogen(case: &mut Case, round: u64) {
    let context = |e: Error| -> String { format!("{} in round {round}: {e}", case.name()) };
    let db = Db::open(case.db(), &options(case))
        .map_err(context)
        .unwrap();
    assert_holds(&db, case);
    let mut rng = Rng::new(round);
    let mut written = Vec::new();
    let operator = case.merge_operator().to_owned();
    for name in case.families() {
        let pairs = case.expected(name).unwrap();
        let mut model = Model::new(&db, name, pairs, &operator);
        model.write(&db, &mut rng, 150);
        // Some of it goes to tables, some of that to the last level, the rest stays in the log.
        if rng.chance(2, 3) {
            db.flush_opt(&Default::default(), std::slice::from_ref(model.family()))
                .unwrap();
            model.write(&db, &mut rng, 50);
        }
        if rng.chance(1, 3) {
            db.compact_range(&Default::default(), model.family(), None, None)
                .unwrap();
            model.write(&db, &mut rng, 20);
        }
        written.push((model.name(), model.pairs()));
    }
    hand_over(&db, case, written);
}

#[test]
fn each_reads_what_the_other_wrote_turn_by_turn() {
    let dir = scratch("exchanged");
    let mut cases: Vec<Case> = written_by_rocksdb()
        .iter()
        .filter(|c| is_supported(c))
        .map(|c| c.copy(&dir.join(c.name())).unwrap())
        .collect();
    for round in 0..ROUNDS {
        several_at_once(cases.iter_mut(), |case| write_with_orogen(case, round));
        programs::judge_and_write(&cases).unwrap();
    }
    for case in &cases {
        let db = Db::open_read_only(case.db(), &options(case)).unwrap();
        assert_holds(&db, case);
    }
}
