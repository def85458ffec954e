mod shape;

use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_sst::CompressionType;

use super::{RangePick, RangeRequest, pick, pick_range};
use crate::compact::marks::Moment;
use crate::compact::plan::{Plan, Running};
use crate::compact::score::Scores;
use crate::options::ColumnFamilyOptions;
use crate::version::{FileMeta, Version, text};

fn version(drawing: &str) -> Version {
    text::parse(&InternalKeyComparator::default(), 7, drawing).unwrap()
}

/// Levels of 1000, 10000, ... bytes, files of 1000 bytes, compactions of 25000.
fn options() -> ColumnFamilyOptions {
    ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes: false,
        level0_file_num_compaction_trigger: 2,
        max_bytes_for_level_base: 1000,
        max_bytes_for_level_multiplier: 10.0,
        target_file_size_base: 1000,
        ..ColumnFamilyOptions::default()
    }
}

fn numbers(files: &[Arc<FileMeta>]) -> String {
    files
        .iter()
        .map(|f| f.number.to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

fn show(plan: &Plan) -> String {
    let inputs: Vec<String> = plan
        .inputs
        .iter()
        .map(|(l, files)| format!("L{l} [{}]", numbers(files)))
        .collect();
    let mut out = format!("{} -> L{}", inputs.join(" + "), plan.output_level);
    if !plan.grandparents.is_empty() {
        out += &format!(", below [{}]", numbers(&plan.grandparents));
    }
    for (word, holds) in [
        ("move", plan.trivial_move),
        ("bottommost", plan.bottommost),
        ("full", plan.is_full),
    ] {
        if holds {
            out += ", ";
            out += word;
        }
    }
    out
}

fn picked(version: &Version, options: &ColumnFamilyOptions, running: &[Running]) -> String {
    let scores = Scores::compute(version, options);
    pick(version, options, &scores, running, Moment::default())
        .map_or_else(|| "nothing".to_owned(), |p| show(&p))
}

fn pick_from(drawing: &str) -> String {
    picked(&version(drawing), &options(), &[])
}

#[test]
fn nothing_is_picked_while_levels_are_within_their_targets() {
    assert_eq!(
        pick_from("L0\n1: a..c size=10\nL1\n2: a..z size=900"),
        "nothing"
    );
    assert_eq!(pick_from(""), "nothing");
}

#[test]
fn level_0_goes_with_all_that_overlaps_and_what_it_meets_below() {
    let lsm = "L0\n9: a..c\n8: b..e\n7: x..z\nL1\n3: a..b\n4: d..f\n5: g..h\n6: y..z
        L2\n1: e..k\n2: p..q";
    assert_eq!(
        pick_from(lsm),
        "L0 [7] + L1 [6] -> L1, bottommost",
        "the oldest decides"
    );
    let lsm = "L0\n9: a..c\n8: x..z\n7: b..e\nL1\n3: a..b\n4: d..f\n5: g..h\n6: y..z
        L2\n1: e..k\n2: p..q";
    assert_eq!(pick_from(lsm), "L0 [9 7] + L1 [3 4] -> L1, below [1]");
}

#[test]
fn oldest_files_of_level_0_that_touch_nothing_are_moved() {
    let lsm = "L0\n9: a..c\n8: g..h\n7: d..e\nL1\n3: m..n";
    assert_eq!(pick_from(lsm), "L0 [9 7 8] -> L1, move, bottommost");
    let lsm = "L0\n9: a..d\n8: g..h\n7: d..e\nL1\n3: m..n";
    assert_eq!(
        pick_from(lsm),
        "L0 [7 8] -> L1, move, bottommost",
        "the newest shares a key"
    );
    // Below an empty level there is nothing to be gained by it.
    assert_eq!(
        pick_from("L0\n9: a..c\n7: b..e"),
        "L0 [9 7] -> L1, bottommost, full"
    );
    assert_eq!(
        pick_from("L0\n9: a..c\n7: d..e"),
        "L0 [7] -> L1, move, bottommost"
    );
}

#[test]
fn with_dynamic_sizes_level_0_goes_to_the_base_level() {
    let dynamic = ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes: true,
        ..options()
    };
    let v = version("L0\n9: a..c\n8: b..e\nL6\n1: a..z size=500");
    assert_eq!(
        picked(&v, &dynamic, &[]),
        "L0 [9 8] + L6 [1] -> L6, bottommost, full"
    );
    let v = version("L0\n9: a..c\n8: b..e\nL6\n1: a..z size=5000");
    assert_eq!(picked(&v, &dynamic, &[]), "L0 [9 8] -> L5, below [1]");
}

#[test]
fn the_file_with_the_least_below_it_goes_first() {
    let lsm = "L1\n1: a..c size=1000\n2: d..f size=1000\n3: g..i size=100
        L2\n4: a..b size=900\n5: d..e size=300\n6: g..h size=100";
    assert_eq!(pick_from(lsm), "L1 [2] + L2 [5] -> L2, bottommost");
    // For each byte of its own, not in all; what its tombstones delete counts as its own.
    let lsm = "L1\n1: a..c size=1000\n3: g..i size=100\nL2\n4: a..b size=900\n6: g..h size=80";
    assert_eq!(pick_from(lsm), "L1 [3] + L2 [6] -> L2, bottommost");
    let lsm = "L1\n1: a..c size=1000\n2: d..f size=1000 marked
        L2\n4: a..b size=300\n5: d..e size=900";
    assert_eq!(
        pick_from(lsm),
        "L1 [2] + L2 [5] -> L2, bottommost",
        "marked ones first"
    );
    let lsm = "L1\n1: a..c size=1000 compacting\n2: d..f size=1000\n3: g..h size=500
        L2\n4: a..b size=10\n5: d..e size=900\n6: g..h size=400";
    assert_eq!(
        pick_from(lsm),
        "L1 [3] + L2 [6] -> L2, bottommost",
        "nobody else's"
    );
}

#[test]
fn files_that_share_a_user_key_go_together() {
    let lsm = "L1\n1: a@9..c@5 size=1000\n2: c@4..f size=1000\n3: l..m size=100
        L2\n4: e@7..e@5 size=100\n5: f@8..f@5\n6: f@4..h@3 size=1\n7: h@2..k size=1";
    assert_eq!(pick_from(lsm), "L1 [1 2] + L2 [4 5 6 7] -> L2, bottommost");
    // A range tombstone's end is before its key: nothing is shared.
    let lsm = "L1\n1: a@9..c@MAX:RangeDeletion size=1000\n2: c@4..f size=1000
        L2\n4: c..d size=100";
    assert_eq!(pick_from(lsm), "L1 [1] -> L2, move, bottommost");
}

#[test]
fn more_of_the_start_level_is_taken_if_it_drags_nothing_along() {
    let lsm = "L1\n1: a..c size=1000\n2: d..f size=1000\n3: g..i size=1000
        L2\n4: b..e size=100\n5: h..k size=1000";
    assert_eq!(pick_from(lsm), "L1 [1 2] + L2 [4] -> L2, bottommost");
    // The neighbour meets another file: only those wholly inside come along.
    let lsm = "L1\n1: a..c size=1000\n2: d..e size=1000\n3: f..i size=1000
        L2\n4: b..g size=100\n5: h..k size=5000";
    assert_eq!(pick_from(lsm), "L1 [1 2] + L2 [4] -> L2, bottommost");
    // A file that shares a key with one outside is not wholly inside.
    let shared = "L1\n1: a..c size=1000\n2: d..e@5 size=10\n3: e@4..i size=1000
        L2\n4: b..e size=100\n5: h..k size=5000";
    assert_eq!(pick_from(shared), "L1 [1] + L2 [4] -> L2, bottommost");
    let too_large = ColumnFamilyOptions {
        max_compaction_bytes: 1000,
        ..options()
    };
    assert_eq!(
        picked(&version(lsm), &too_large, &[]),
        "L1 [1] + L2 [4] -> L2, bottommost"
    );
}

#[test]
fn a_file_that_meets_nothing_is_moved_with_its_neighbours() {
    let lsm = "L1\n1: a..b size=1000\n2: c..d size=10\n3: e..f size=10\n4: g..h size=10
        5: i..j size=10\n6: k..l size=10\nL2\n7: kk..m size=10";
    assert_eq!(pick_from(lsm), "L1 [1 2 3 4] -> L2, move, bottommost");
    let lsm = "L1\n1: a..b size=1000\n2: c..d@9 size=10\n3: d@8..f size=10\nL2\n7: f..m size=10";
    assert_eq!(
        pick_from(lsm),
        "L1 [1] -> L2, move, bottommost",
        "2 and 3 share a key"
    );
    let lsm = "L1\n1: a..b size=1100\nL3\n7: a..m size=24000";
    assert_eq!(
        pick_from(lsm),
        "L1 [1] -> L2, below [7]",
        "too much below to move it there"
    );
    let lsm = "L1\n1: a..b size=1100\nL3\n7: a..m size=23000";
    assert_eq!(pick_from(lsm), "L1 [1] -> L2, below [7], move");
}

#[test]
fn a_change_of_codec_is_not_a_move() {
    let v = version("L1\n1: a..b size=1100");
    let per_level = ColumnFamilyOptions {
        compression_per_level: vec![
            CompressionType::None,
            CompressionType::None,
            CompressionType::Zstd,
        ],
        ..options()
    };
    assert_eq!(
        picked(&v, &per_level, &[]),
        "L1 [1] -> L2, bottommost, full"
    );
    let last = ColumnFamilyOptions {
        bottommost_compression: Some(CompressionType::Zstd),
        ..options()
    };
    let scores = Scores::compute(&v, &last);
    let plan = pick(&v, &last, &scores, &[], Moment::default()).unwrap();
    assert_eq!(plan.compression, CompressionType::Zstd);
    let deeper = version("L1\n1: a..b size=1100\nL4\n2: x..y");
    let plan = pick(
        &deeper,
        &last,
        &Scores::compute(&deeper, &last),
        &[],
        Moment::default(),
    )
    .unwrap();
    assert_eq!(plan.compression, last.compression);
}

#[test]
fn codecs_and_file_sizes_count_from_the_base_level() {
    let dynamic = ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes: true,
        target_file_size_multiplier: 2,
        compression_per_level: vec![
            CompressionType::None,
            CompressionType::Lz4,
            CompressionType::Zstd,
        ],
        ..options()
    };
    let v = version("L0\n9: a..c\n8: b..e\nL6\n1: a..z size=50000");
    let plan = pick(
        &v,
        &dynamic,
        &Scores::compute(&v, &dynamic),
        &[],
        Moment::default(),
    )
    .unwrap();
    assert_eq!(show(&plan), "L0 [9 8] -> L4, below [1]");
    assert_eq!(
        (plan.compression, plan.target_file_size),
        (CompressionType::Lz4, 1000)
    );
    assert_eq!(
        plan.max_output_file_size, 2000,
        "a file may wait for a good end"
    );
    let v = version("L5\n9: a..c size=9000\nL6\n1: a..z size=50000");
    let plan = pick(
        &v,
        &dynamic,
        &Scores::compute(&v, &dynamic),
        &[],
        Moment::default(),
    )
    .unwrap();
    assert_eq!(
        (plan.compression, plan.target_file_size),
        (CompressionType::Zstd, 2000)
    );
    assert_eq!(
        plan.max_output_file_size, 2000,
        "nothing below gives better ends"
    );
}

#[test]
fn compactions_keep_out_of_each_others_way() {
    let v = version(
        "L0\n9: a..c\n8: b..e\nL1\n3: a..b size=2000\n4: x..z size=2000\nL2\n1: a..k\n2: p..z",
    );
    let scores = Scores::compute(&v, &options());
    let first = pick(&v, &options(), &scores, &[], Moment::default()).unwrap();
    assert_eq!(show(&first), "L1 [3] + L2 [1] -> L2, bottommost");
    first.mark_inputs(true);
    let running = [first.running(v.icmp())];
    // Level 0 waits for file 3; level 1 asks louder and goes on.
    assert_eq!(
        picked(&v, &options(), &running),
        "L1 [4] + L2 [2] -> L2, bottommost"
    );
    first.mark_inputs(false);
    assert_eq!(picked(&v, &options(), &[]), show(&first));

    // Nothing of the inputs is taken, but somebody writes there.
    let v = version("L1\n3: c..d size=2000\nL2\n1: m..n");
    let other = version("L1\n3: a..k size=2000");
    let moving = pick(
        &other,
        &options(),
        &Scores::compute(&other, &options()),
        &[],
        Moment::default(),
    )
    .unwrap();
    assert_eq!(
        picked(&v, &options(), &[moving.running(v.icmp())]),
        "nothing"
    );
}

#[test]
fn level_1_does_not_keep_a_louder_level_0_waiting() {
    let lsm = "L0\n9: a..c\n8: b..e\n7: b..e\nL1\n3: a..b size=2000 compacting
        4: x..z size=1200\nL2\n1: a..k";
    assert_eq!(pick_from(lsm), "nothing");
    let quiet = "L0\n9: a..c\nL1\n3: a..b size=2000 compacting\n4: x..z size=1200\nL2\n1: a..k";
    assert_eq!(pick_from(quiet), "L1 [4] -> L2, move, bottommost");
}

#[test]
fn one_compaction_at_a_time_takes_from_level_0() {
    let v = version("L0\n9: a..c\n8: x..z\n7: x..y\nL1\n3: a..b size=800");
    let first = pick(
        &v,
        &options(),
        &Scores::compute(&v, &options()),
        &[],
        Moment::default(),
    )
    .unwrap();
    assert_eq!(show(&first), "L0 [7] -> L1, move, bottommost");
    first.mark_inputs(true);
    assert_eq!(
        picked(&v, &options(), &[first.running(v.icmp())]),
        "nothing"
    );
    let marked = version("L0\n9: m..n marked\nL1\n3: a..b size=800");
    assert_eq!(picked(&marked, &options(), &[]), "L0 [9] -> L1, bottommost");
    assert_eq!(
        picked(&marked, &options(), &[first.running(v.icmp())]),
        "nothing"
    );
}

#[test]
fn level_0_merges_within_itself_while_it_cannot_go_down() {
    // 3 goes down already; of the newer ones those are merged that cost little for each file.
    let lsm = "L0\n9: a..c size=10\n8: b..e size=12\n7: x..z size=9\n6: a..z size=10
        5: a..z size=300\n3: a..z size=10 compacting\nL1\n1: a..z size=800 compacting";
    let v = version(lsm);
    let busy = version("L0\n3: a..z size=10\nL1\n1: a..z size=800");
    let scores = Scores::compute(&busy, &options());
    let running = pick(
        &version("L0\n3: a..z\n2: a..z\nL1\n1: a..z"),
        &options(),
        &scores,
        &[],
        Moment::default(),
    );
    assert!(
        running.is_none(),
        "two files are within the target: {running:?}"
    );
    let going_down = Running {
        start_level: 0,
        output_level: 1,
        range: crate::version::KeyRange::of(v.icmp(), v.files(1)).unwrap(),
    };
    let plan = picked(&v, &options(), std::slice::from_ref(&going_down));
    assert_eq!(plan, "L0 [9 8 7 6] -> L0, below [1]");
    // What it writes is older than nothing that stays: tombstones must stay too.
    let empty_below = version(&lsm.replace("L1\n1: a..z size=800 compacting", ""));
    let scores = Scores::compute(&empty_below, &options());
    let running = [going_down.clone()];
    let plan = pick(
        &empty_below,
        &options(),
        &scores,
        &running,
        Moment::default(),
    )
    .unwrap();
    assert!(!plan.bottommost && !plan.trivial_move && plan.target_file_size == u64::MAX);
    assert_eq!(plan.reason, crate::compact::Reason::IntraL0);
    // One at a time, and nothing else from level 0 beside it.
    let merging = plan.running(v.icmp());
    assert_eq!(
        picked(&v, &options(), &[going_down, merging.clone()]),
        "nothing"
    );
    assert_eq!(picked(&empty_below, &options(), &[merging]), "nothing");
    // Fewer than four are not worth it.
    let few = version(&lsm.replace("7: x..z size=9", "7: x..z size=9 compacting"));
    assert_eq!(picked(&few, &options(), &running), "nothing");
}

#[test]
fn marked_files_go_when_nothing_else_must() {
    let lsm = "L1\n1: a..c size=10\n2: d..f size=10 marked\nL2\n4: a..z size=10";
    assert_eq!(pick_from(lsm), "L1 [1 2] + L2 [4] -> L2, bottommost, full");
    assert_eq!(
        pick_from("L0\n1: a..c marked\nL1\n2: b..d"),
        "L0 [1] + L1 [2] -> L1, bottommost, full"
    );
    assert_eq!(
        pick_from("L2\n4: a..z size=10 marked"),
        "nothing",
        "the last level stays"
    );
}

fn range(drawing: &str, running: &[Running], request: &RangeRequest<'_>) -> String {
    match pick_range(&version(drawing), &options(), running, request) {
        RangePick::Nothing => "nothing".to_owned(),
        RangePick::Conflict => "conflict".to_owned(),
        RangePick::Damaged(number) => format!("damaged {number}"),
        RangePick::Plan(plan, rest) => {
            let rest = rest.map(|k| format!(", then from {}", k.escape_ascii()));
            format!("{}{}", show(&plan), rest.unwrap_or_default())
        }
    }
}

const ALL: RangeRequest<'_> = RangeRequest {
    level: 1,
    output_level: 2,
    begin: None,
    end: None,
    made: None,
    allow_trivial_move: true,
};

#[test]
fn a_manual_compaction_goes_level_by_level() {
    let lsm = "L0\n9: a..c\n8: b..e\n7: x..z\nL1\n3: a..b\n4: c..d\n5: y..z\nL2\n1: a..k";
    let level0 = RangeRequest {
        level: 0,
        output_level: 1,
        ..ALL
    };
    assert_eq!(
        range(lsm, &[], &level0),
        "L0 [9 8 7] + L1 [3 4 5] -> L1, below [1]"
    );
    let part = RangeRequest {
        begin: Some(b"d"),
        end: Some(b"f"),
        ..level0
    };
    assert_eq!(
        range(lsm, &[], &part),
        "L0 [9 8] + L1 [3 4] -> L1, below [1]"
    );
    let none = RangeRequest {
        begin: Some(b"m"),
        end: Some(b"n"),
        ..level0
    };
    assert_eq!(range(lsm, &[], &none), "nothing");
    assert_eq!(
        range(lsm, &[], &ALL),
        "L1 [3 4 5] + L2 [1] -> L2, bottommost"
    );
    let outside = RangeRequest {
        begin: Some(b"x"),
        ..ALL
    };
    assert_eq!(range(lsm, &[], &outside), "L1 [5] -> L2, move, bottommost");
    let filtered = RangeRequest {
        allow_trivial_move: false,
        ..outside
    };
    assert_eq!(range(lsm, &[], &filtered), "L1 [5] -> L2, bottommost");
    let rewrite = RangeRequest {
        level: 2,
        output_level: 2,
        ..ALL
    };
    assert_eq!(range(lsm, &[], &rewrite), "L2 [1] -> L2, bottommost");
}

#[test]
fn a_large_manual_compaction_takes_steps() {
    let lsm = "L1\n1: a..b size=20000\n2: c..d@9 size=2000\n3: d@8..e size=9000\n4: f..g size=9000
        5: h..i size=9000\nL2\n6: c..d size=2000";
    assert_eq!(
        range(lsm, &[], &ALL),
        "L1 [1 2 3] + L2 [6] -> L2, bottommost, then from f"
    );
    let next = RangeRequest {
        begin: Some(b"f"),
        ..ALL
    };
    assert_eq!(range(lsm, &[], &next), "L1 [4 5] -> L2, move, bottommost");
    let short = RangeRequest {
        end: Some(b"e"),
        ..ALL
    };
    assert_eq!(
        range(lsm, &[], &short),
        "L1 [1 2 3] + L2 [6] -> L2, bottommost"
    );
    // What this request rewrote already is left alone.
    let made = [4, 5, 7, 8].into();
    let rewrite = RangeRequest {
        output_level: 1,
        made: Some(&made),
        ..ALL
    };
    assert_eq!(range(lsm, &[], &rewrite), "L1 [1 2 3] -> L1, below [6]");
    let lsm = "L1\n7: a..b\n2: c..d\n8: e..f\n3: g..h";
    assert_eq!(
        range(lsm, &[], &rewrite),
        "L1 [2] -> L1, bottommost, then from g"
    );
}

#[test]
fn a_manual_compaction_waits_for_others() {
    let lsm = "L0\n9: a..c\nL1\n1: a..b compacting\n2: c..d\nL2\n6: c..d";
    assert_eq!(range(lsm, &[], &ALL), "conflict");
    let rest = RangeRequest {
        begin: Some(b"c"),
        ..ALL
    };
    assert_eq!(range(lsm, &[], &rest), "L1 [2] + L2 [6] -> L2, bottommost");
    let other = version("L0\n1: a..b\nL1\n2: a..b");
    let request = RangeRequest {
        level: 0,
        output_level: 1,
        ..ALL
    };
    let RangePick::Plan(level0, _) = pick_range(&other, &options(), &[], &request) else {
        panic!("there is something to do");
    };
    let free = "L0\n9: m..n";
    assert_eq!(
        range(free, &[], &request),
        "L0 [9] -> L1, move, bottommost, full"
    );
    assert_eq!(
        range(free, &[level0.running(other.icmp())], &request),
        "conflict"
    );
}
