use super::*;
use crate::tests::{Map, settings};

#[test]
fn every_phase_does_its_operations_and_finds_what_was_written() {
    const NUM: u64 = 2000;
    const READS: u64 = 1000;
    let pool = value_pool(POOL_LEN);
    for phase in &PHASES {
        let db = Map::open(&settings()).unwrap();
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
            let live = db.len() as u64;
            assert_eq!(LiveKeys::after(phase.name, NUM), live, "{}", phase.name);
        }
    }
}
