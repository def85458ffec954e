use std::fmt::Write;

use orogen_base::key::InternalKeyComparator;

use super::{LevelTargets, Scores};
use crate::options::ColumnFamilyOptions;
use crate::version::{Version, text};

/// Files as (level, smallest, largest, size).
fn version(num_levels: usize, files: &[(usize, &str, &str, u64)]) -> Version {
    let mut drawing = String::new();
    for (number, (level, smallest, largest, size)) in files.iter().enumerate() {
        let _ = writeln!(
            drawing,
            "L{level}\n{}: {smallest}..{largest} size={size}",
            number + 1
        );
    }
    text::parse(&InternalKeyComparator::default(), num_levels, &drawing).unwrap()
}

fn options(base: u64, multiplier: f64, trigger: usize) -> ColumnFamilyOptions {
    ColumnFamilyOptions {
        max_bytes_for_level_base: base,
        max_bytes_for_level_multiplier: multiplier,
        level0_file_num_compaction_trigger: trigger,
        ..ColumnFamilyOptions::default()
    }
}

fn fixed(base: u64, multiplier: f64, trigger: usize) -> ColumnFamilyOptions {
    let level_compaction_dynamic_level_bytes = false;
    ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes,
        ..options(base, multiplier, trigger)
    }
}

fn targets(files: &[(usize, &str, &str, u64)], o: &ColumnFamilyOptions) -> LevelTargets {
    LevelTargets::compute(&version(6, files), o)
}

#[test]
fn fixed_targets_grow_by_the_multiplier() {
    let t = targets(
        &[(4, "1", "2", 100), (5, "1", "2", 100)],
        &fixed(10, 5.0, 4),
    );
    assert_eq!(t.max_bytes, [10, 10, 50, 250, 1250, 6250]);
    assert_eq!((t.base_level, t.lowest_unnecessary_level), (1, None));
}

// The figures are those of RocksDB's tests of the same rules.
#[test]
fn dynamic_targets_follow_the_largest_level() {
    let o = options(1000, 5.0, 4);
    assert_eq!(
        targets(&[], &o).base_level,
        5,
        "level 0 goes to the last level"
    );
    assert_eq!(targets(&[(5, "1", "2", 500)], &o).base_level, 5);

    let mut files = vec![(5, "1", "2", 500), (5, "3", "4", 550)];
    let t = targets(&files, &o);
    assert_eq!((t.base_level, t.max_bytes[4]), (4, 1000));
    assert_eq!(
        t.max_bytes[3],
        u64::MAX,
        "levels above the base take nothing"
    );

    files.push((4, "3", "4", 550));
    let t = targets(&files, &o);
    assert_eq!((t.base_level, t.max_bytes[4]), (4, 1000));

    files.extend([(3, "3", "4", 250), (3, "5", "7", 300)]);
    let t = targets(&files, &o);
    assert_eq!(
        (t.base_level, t.max_bytes[3], t.max_bytes[4]),
        (3, 1000, 1005)
    );

    files.extend([(1, "3", "4", 5), (1, "8", "9", 5)]);
    let t = targets(&files, &o);
    assert_eq!(
        (t.base_level, t.max_bytes[1], t.max_bytes[2]),
        (1, 1000, 1005)
    );
    assert_eq!(t.max_bytes[3], 5025);

    let much = [
        (0, "1", "2", 50),
        (1, "1", "2", 50),
        (2, "1", "2", 500),
        (3, "1", "2", 500),
        (4, "1", "2", 1700),
        (5, "1", "2", 500),
    ];
    let t = targets(&much, &options(100, 2.0, 4));
    assert_eq!(
        (t.base_level, &t.max_bytes[1..5]),
        (1, [100, 200, 400, 800].as_slice())
    );

    let gb = 1_000_000_000;
    let large = [
        (0, "1", "2", 50),
        (3, "1", "2", 32 * gb),
        (4, "1", "2", 500 * gb),
        (5, "1", "2", 3000 * gb),
    ];
    let t = targets(&large, &options(10 * gb, 10.0, 4));
    assert_eq!(t.base_level, 2);
    assert_eq!(t.max_bytes[2..], [10 * gb, 30 * gb, 300 * gb, 3000 * gb]);
}

fn order(files: &[(usize, &str, &str, u64)], o: &ColumnFamilyOptions) -> Vec<usize> {
    let scores = Scores::compute(&version(6, files), o);
    scores
        .levels
        .iter()
        .filter(|(_, s)| *s >= 1.0)
        .map(|&(l, _)| l)
        .collect()
}

#[test]
fn what_comes_from_above_makes_a_level_less_urgent() {
    let deep = [
        (5, "1", "2", 1_286_250),
        (4, "1", "2", 200_000),
        (3, "1", "2", 40_000),
        (2, "1", "2", 8000),
        (0, "1", "2", 10_000),
        (0, "1", "2", 10_000),
        (0, "1", "2", 10_000),
    ];
    let o = options(40_000, 5.0, 2);
    let t = targets(&deep, &o);
    assert_eq!(
        (t.base_level, &t.max_bytes[2..5]),
        (2, [40_000, 51_450, 257_250].as_slice())
    );
    assert_eq!(order(&deep, &o), [0]);

    let o = options(10_000, 5.0, 4);
    let deep = [
        (5, "1", "2", 1_286_250),
        (4, "1", "2", 258_000),
        (3, "1", "2", 53_000),
        (2, "1", "2", 20_000),
        (0, "1", "2", 10_000),
        (0, "1", "2", 10_000),
        (0, "1", "2", 10_000),
    ];
    let t = targets(&deep, &o);
    assert_eq!(
        (t.base_level, &t.max_bytes[1..5]),
        (1, [10_000, 10_290, 51_450, 257_250].as_slice())
    );
    assert_eq!(
        order(&deep, &o)[..2],
        [0, 4],
        "level 0 is too large, then the least disturbed"
    );

    let o = options(20_000, 5.0, 5);
    let deep = [
        (5, "1", "2", 1_286_250),
        (4, "1", "2", 260_000),
        (3, "1", "2", 85_000),
        (2, "1", "2", 30_000),
        (0, "1", "2", 2500),
        (0, "1", "2", 2500),
        (0, "1", "2", 2500),
        (0, "1", "2", 2500),
    ];
    assert_eq!(targets(&deep, &o).base_level, 2);
    assert_eq!(order(&deep, &o), [3, 2, 4]);
}

#[test]
fn levels_that_are_not_needed_are_emptied() {
    let files = [
        (5, "1", "2", 2000),
        (4, "1", "2", 200),
        (3, "1", "2", 100),
        (1, "1", "2", 10),
    ];
    let o = options(1000, 10.0, 4);
    let t = targets(&files, &o);
    assert_eq!(
        (t.base_level, t.max_bytes[1], t.max_bytes[3]),
        (1, 1000, 10_100)
    );
    let scores = Scores::compute(&version(6, &files), &o);
    assert_eq!(scores.levels[0].0, 1);
    assert_eq!(scores.levels[1].0, 3);
    assert!(scores.levels[1].1 > 10.0 && scores.needs_compaction());
}

#[test]
fn files_that_are_being_compacted_do_not_count() {
    let files = [
        (0, "1", "2", 10),
        (0, "1", "2", 10),
        (1, "1", "2", 600),
        (1, "3", "4", 600),
    ];
    let v = version(7, &files);
    let o = fixed(1000, 10.0, 2);
    let score = |v: &Version, level| {
        Scores::compute(v, &o)
            .levels
            .iter()
            .find(|(l, _)| *l == level)
            .unwrap()
            .1
    };
    assert_eq!((score(&v, 0), score(&v, 1)), (1.0, 1.2));
    v.files(0)[0].being_compacted.set(true);
    v.files(1)[1].being_compacted.set(true);
    assert_eq!((score(&v, 0), score(&v, 1)), (0.5, 0.6));
    assert!(!Scores::compute(&v, &o).needs_compaction());
}

#[test]
fn a_single_level_never_asks() {
    let scores = Scores::compute(
        &version(1, &[(0, "1", "2", 1 << 40)]),
        &options(10, 10.0, 1),
    );
    assert!(!scores.needs_compaction());
    assert_eq!(scores.pending_compaction_bytes, 0);
}

// The figures are those of RocksDB's tests of the same rule.
#[test]
fn the_debt_is_what_all_levels_must_still_rewrite() {
    let debt = |files: &[(usize, &str, &str, u64)], o: &ColumnFamilyOptions| {
        Scores::compute(&version(7, files), o).pending_compaction_bytes
    };
    let files = [
        (0, "150", "200", 200),
        (0, "150", "200", 200),
        (0, "150", "200", 200),
        (1, "400", "500", 600),
        (1, "600", "700", 600),
        (2, "150", "200", 2500),
        (2, "201", "210", 2000),
        (2, "300", "310", 2600),
        (2, "400", "500", 2500),
        (3, "400", "500", 101_000),
        (4, "400", "500", 999_900),
        (5, "400", "500", 8_007_200),
    ];
    assert_eq!(
        debt(&files, &fixed(1000, 10.0, 4)),
        200 * 9 + 10_900 + 900 * 9
    );

    let level0 = (0, "150", "200", 200);
    let mut files = vec![level0; 5];
    files.extend([(1, "400", "500", 200), (1, "600", "700", 200)]);
    files.extend([(2, "150", "200", 9100), (3, "400", "500", 101_000)]);
    assert_eq!(debt(&files, &fixed(1000, 10.0, 3)), 1400 + 3000);

    let mut files = vec![level0; 5];
    files.extend([
        (6, "400", "500", 50_000),
        (4, "400", "500", 550),
        (4, "600", "700", 550),
    ]);
    files.push((5, "150", "200", 5200));
    assert_eq!(debt(&files, &options(1000, 10.0, 3)), 2100 + 3823 + 11_617);
}
