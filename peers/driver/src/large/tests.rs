use super::*;
use crate::tests::{Map, settings};

const PLAN: Plan = Plan {
    value_len: 3000,
    num: 1000,
    reads: 2000,
    updates: 1500,
    cached_pages_bytes: None,
};

fn loaded(pool: &[u8]) -> Map {
    let db = Map::open(&settings()).unwrap();
    PLAN.work(&db, Kind::Load, pool).unwrap();
    db
}

#[test]
fn every_phase_does_its_operations_on_keys_that_are_all_there() {
    let pool = value_pool(POOL_LEN);
    for (name, kind) in PHASES {
        let db = loaded(&pool);
        let work = PLAN.work(&db, kind, &pool).unwrap();
        let (ops, left) = match name {
            "open" => (0, 1000),
            "load" => (1000, 1000),
            "get" => (2000, 1000),
            // Of ten thousand entries there are a thousand, and at least twenty scans.
            "scan100" => (40, 1000),
            "scan10000" => (20, 1000),
            "update" => (1500, 1000),
            "delete" => (500, 500),
            _ => panic!("{name}"),
        };
        assert_eq!((work.ops, db.len()), (ops, left), "{name}");
        assert_eq!(PLAN.live_bytes(kind), left as u64 * 3016, "{name}");
    }
}

#[test]
fn a_read_that_misses_something_fails() {
    let pool = value_pool(POOL_LEN);
    for (name, kind) in [PHASES[2], PHASES[3], PHASES[4]] {
        let db = loaded(&pool);
        PLAN.work(&db, Kind::Delete, &pool).unwrap();
        assert!(PLAN.work(&db, kind, &pool).is_err(), "{name}");
    }
    let db = loaded(&pool);
    let longer = Plan {
        value_len: 3001,
        ..PLAN
    };
    assert!(longer.work(&db, Kind::Get, &pool).is_err());
}

#[test]
fn documents_of_writes_have_both_ends_and_the_space() {
    let dir = std::env::temp_dir().join(format!("peers-large-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("file"), vec![1; 10_000]).unwrap();
    let pool = value_pool(POOL_LEN);
    let db = loaded(&pool);
    let document = PLAN.measure(&db, &dir, PHASES[6], &pool).unwrap();
    let live_bytes = 500.0 * 3016.0;
    let disk = disk_bytes(&dir).unwrap() as f64;
    assert!(disk >= 10_000.0);
    for name in ["space_amplification", "space_amplification_foreground"] {
        assert_eq!(document[name].as_f64(), Some(disk / live_bytes), "{name}");
    }
    for name in [
        "ops_per_second",
        "ops_per_second_settled",
        "p9999_ns",
        "device_amplification",
        "device_amplification_foreground",
    ] {
        assert!(document[name].is_number(), "{name}: {document}");
    }
    let read = PLAN.measure(&db, &dir, PHASES[0], &pool).unwrap();
    assert!(read["space_amplification"].is_null() && read["device_read_bytes"].is_number());
    // Told to stop before it began, it still looks once.
    let peak = look_after(&dir, Some(1), &AtomicBool::new(true)).unwrap();
    assert_eq!(peak as f64, disk);
    std::fs::remove_dir_all(&dir).unwrap();
}
