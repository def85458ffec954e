use orogen_base::key::InternalKeyComparator;
use orogen_testkit::Rng;

use super::*;
use crate::compact::leveled::{RangePick, RangeRequest, pick_range};
use crate::options::BlobRunMode;
use crate::version::blob_reach::{FileReach, Stretch};
use crate::version::builder::VersionBuilder;
use crate::version::edit::VersionEdit;
use crate::version::{BlobFileAddition, text};

/// How far a table reaches whose pointers lead to these files, in key order; each value has as many bytes as is said.
fn reach_with(pointers: &[FileNo], bytes: u64) -> BlobReach {
    let mut files: BTreeMap<FileNo, FileReach> = BTreeMap::new();
    for (at, &file) in pointers.iter().enumerate() {
        let at = at as u64;
        let stretch = Stretch {
            first: at,
            last: at,
        };
        let reach = files.entry(file).or_insert(FileReach {
            file,
            bytes: 0,
            stretch,
        });
        reach.stretch.last = at;
        reach.bytes += bytes;
    }
    BlobReach {
        pointers: pointers.len() as u64,
        files: files.into_values().collect(),
    }
}

fn reach(pointers: &[FileNo]) -> BlobReach {
    reach_with(pointers, 100)
}

fn run(tables: &[&[FileNo]]) -> Run {
    let mut run = Run::default();
    for table in tables {
        run.add(&reach(table));
    }
    run
}

fn sorted(files: HashSet<FileNo>) -> Vec<FileNo> {
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_unstable();
    files
}

fn moved(runs: &[Run], max: u64) -> Vec<FileNo> {
    sorted(over_limit(runs, max, &|_| false, false))
}

#[test]
fn files_with_the_least_of_their_stretch_leave_it() {
    // Two runs, one of two files.
    let base: &[FileNo] = &[3, 3, 9, 3, 3, 3, 12, 3, 12, 3];
    assert_eq!(moved(&[run(&[base])], 2), []);
    assert_eq!(moved(&[run(&[base])], 1), [3, 9, 12]);
    // A third one of single values.
    let base: &[FileNo] = &[3, 20, 9, 3, 9, 3, 3, 12, 20, 12, 3];
    assert_eq!(moved(&[run(&[base])], 3), []);
    assert_eq!(moved(&[run(&[base])], 2), [9, 12, 20]);
    // Those that follow one another count together.
    let base: &[FileNo] = &[3, 20, 9, 9, 3, 9, 12, 20, 12, 3];
    assert_eq!(moved(&[run(&[base])], 2), [3, 20]);
    // Over the ends of tables files are one stretch: 9 lies below 20 there.
    let tables: &[&[FileNo]] = &[&[3, 9, 20], &[20, 9, 3], &[3, 20]];
    assert_eq!(moved(&[run(tables)], 3), []);
    assert_eq!(moved(&[run(tables)], 2), [9, 20]);
}

#[test]
fn runs_that_meet_are_added_and_what_goes_anyway_makes_a_file() {
    let base: &[FileNo] = &[3; 40];
    let above: &[FileNo] = &[30, 31, 30, 31];
    let both = || [run(&[above]), run(&[base])];
    assert_eq!(moved(&both(), 3), []);
    // Little of each stretch is theirs.
    assert_eq!(moved(&both(), 2), [30, 31]);
    assert_eq!(moved(&both(), 1), [3, 30, 31]);
    let gone = |files: &'static [FileNo]| move |n: FileNo| files.contains(&n);
    let over = |files, max| sorted(over_limit(&both(), max, &gone(files), false));
    assert_eq!(over(&[30, 31], 2), []);
    assert_eq!(over(&[30], 3), []);
    assert_eq!(over(&[30], 2), [31]);
    // As does what a filter may make.
    assert_eq!(sorted(over_limit(&both(), 3, &|_| false, true)), [31]);
}

/// Whatever is chosen, what the runs merge to is no deeper than the limit: wherever their keys lie among one
/// another, and wherever tables are cut.
#[test]
fn no_output_is_deeper_than_the_limit() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut next_file = 1;
        // Pointers with their run, in key order.
        let mut keys: Vec<(usize, FileNo)> = Vec::new();
        let count = 1 + rng.below(3) as usize;
        for at in 0..count {
            let files = 1 + rng.below(12);
            let first = next_file;
            next_file += if rng.chance(1, 3) { files / 2 } else { files };
            let len = 1 + rng.below(60);
            let is_in_order = rng.chance(1, 2);
            for i in 0..len {
                let file = match is_in_order {
                    true => i * files / len,
                    false => rng.below(files),
                };
                keys.push((at, first + file));
            }
        }
        // Runs meet anywhere, and each keeps its order.
        let mut order: Vec<usize> = keys.iter().map(|k| k.0).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let of_run = |at: usize| keys.iter().filter(move |k| k.0 == at).map(|k| k.1);
        let mut cursors: Vec<_> = (0..count).map(of_run).collect();
        let merged: Vec<FileNo> = order
            .iter()
            .map(|&at| cursors[at].next().unwrap())
            .collect();
        let runs: Vec<Run> = (0..count)
            .map(|at| {
                let pointers: Vec<FileNo> = of_run(at).collect();
                let len = 1 + rng.below(20) as usize;
                run(&pointers.chunks(len).collect::<Vec<_>>())
            })
            .collect();
        let max = 1 + rng.below(6);
        let gone: Vec<FileNo> = (1..next_file).filter(|_| rng.chance(1, 8)).collect();
        let over = over_limit(&runs, max, &|n| gone.contains(&n), false);
        assert!(gone.iter().all(|n| !over.contains(n)));
        let (mut new, mut written) = (1 << 20, 0);
        let output: Vec<FileNo> = merged
            .iter()
            .map(|n| {
                if !over.contains(n) && !gone.contains(n) {
                    return *n;
                }
                written += 1;
                new += u64::from(written % 7 == 0);
                new
            })
            .collect();
        let len = 1 + rng.below(output.len() as u64) as usize;
        for table in output.chunks(len) {
            assert!(reach(table).depth() <= max, "{seed}: {table:?}");
        }
    }
}

/// The cost of the module's head: uniform updates that come down in disorder.
#[test]
fn values_rewritten_for_each_byte_put_are_as_few_as_the_head_says() {
    const KEYS: usize = 4400;
    for (max, told) in [
        (1, 11.0),
        (2, 5.8),
        (3, 4.0),
        (5, 2.6),
        (10, 1.6),
        (20, 1.2),
    ] {
        let mut rng = Rng::new(max);
        let mut files: Vec<FileNo> = vec![1; KEYS];
        let mut new: FileNo = 1 << 20;
        let (mut put, mut written) = (0, 0);
        for round in 0..120 {
            let mut above = Vec::new();
            // One of eleven that it meets.
            for at in 0..KEYS {
                if rng.chance(1, 11) {
                    above.push((at, new + 1 + rng.below(40)));
                }
            }
            new += 40;
            let pointers: Vec<FileNo> = above.iter().map(|(_, n)| *n).collect();
            let runs = [run(&[&pointers]), run(&[&files])];
            let over = over_limit(&runs, max, &|_| false, false);
            for &(at, n) in &above {
                files[at] = n;
            }
            new += 1;
            let moved = files.iter_mut().filter(|n| over.contains(n));
            let moved = moved.map(|n| *n = new).count();
            assert!(reach(&files).depth() <= max);
            // Once it has settled.
            if round >= 40 {
                put += above.len();
                written += moved;
            }
        }
        let cost = written as f64 / put as f64;
        assert!((cost / told - 1.0).abs() < 0.1, "{max}: {cost}, not {told}");
    }
}

/// A drawing with blob files of these numbers.
fn version(drawing: &str, blobs: &[FileNo]) -> Version {
    let icmp = InternalKeyComparator::default();
    let drawn = text::parse(&icmp, 7, drawing).unwrap();
    let mut edit = VersionEdit::of_column_family(0);
    for (level, file) in drawn.iter_files() {
        let mut file = FileMeta::clone(file);
        file.size = 1000;
        edit.add_file(level, Arc::new(file));
    }
    for &number in blobs {
        edit.blob_file_additions.push(BlobFileAddition {
            number,
            total_blob_count: 1000,
            total_blob_bytes: 100_000,
            ..BlobFileAddition::default()
        });
    }
    let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp, 7)));
    builder.apply(&edit).unwrap();
    builder.build().unwrap()
}

fn options(level_merge: bool, max: u64) -> ColumnFamilyOptions {
    ColumnFamilyOptions {
        enable_blob_files: true,
        level_merge,
        range_merge: max > 0,
        max_sorted_runs: max,
        ..ColumnFamilyOptions::default()
    }
}

fn table_reach(file: &FileMeta) -> Result<BlobReach> {
    Ok(match file.number {
        1 => reach(&[10]),
        2 => reach(&[11, 12]),
        3 => reach(&[13, 12, 13, 12]),
        4 => reach(&[15; 40]),
        5 => reach(&[14; 40]),
        _ => BlobReach::default(),
    })
}

/// What a compaction of all of a level into another moves.
fn by_compaction(
    version: &Version,
    options: &ColumnFamilyOptions,
    (level, output_level): (usize, usize),
    emptied: &[FileNo],
) -> Vec<FileNo> {
    let request = RangeRequest {
        level,
        output_level,
        begin: None,
        end: None,
        made: None,
        allow_trivial_move: false,
    };
    let RangePick::Plan(plan, _) = pick_range(version, options, &[], &request) else {
        panic!("nothing is in the way");
    };
    let emptied = emptied.iter().copied().collect();
    let inputs = plan.inputs.clone();
    sorted(
        moved_by_compaction(version, options, &plan, &inputs, &emptied, &mut table_reach).unwrap(),
    )
}

const TREE: &str = "L0\n1: a..z blob=10\nL4\n2: a..z blob=11\nL5\n3: a..z blob=12\nL6\n4: a..m blob=15\n5: n..z blob=14\n";
const BLOBS: [FileNo; 6] = [10, 11, 12, 13, 14, 15];

#[test]
fn level_merge_moves_what_comes_down_into_the_last_two_levels() {
    let v = version(TREE, &BLOBS);
    let on = options(true, 0);
    let at = |levels| by_compaction(&v, &on, levels, &[]);
    assert_eq!(at((0, 4)), []);
    assert_eq!(at((4, 5)), [11, 12]);
    assert_eq!(at((5, 6)), [12, 13]);
    // A level within itself: all of it.
    assert_eq!(at((6, 6)), [14, 15]);
    assert_eq!(at((4, 4)), []);
    // What goes for its garbage is no matter of order.
    assert_eq!(by_compaction(&v, &on, (5, 6), &[13]), [12]);
    v.blob_files()[&12].file.damaged.set(true);
    assert_eq!(by_compaction(&v, &on, (5, 6), &[]), [13]);
    let mut off = on;
    // Where they would come back into tables they are left where they are.
    off.blob_file_starting_level = 6;
    assert_eq!(by_compaction(&v, &off, (5, 6), &[]), [13]);
    assert_eq!(by_compaction(&v, &off, (4, 5), &[]), []);
    off.blob_file_starting_level = 0;
    off.enable_blob_files = false;
    assert_eq!(by_compaction(&v, &off, (5, 6), &[]), []);
    // What is apart stays apart, or comes back: that is no matter of order.
    off.blob_run_mode = BlobRunMode::ReadOnly;
    assert_eq!(by_compaction(&v, &off, (5, 6), &[]), [13]);
    off.enable_blob_files = true;
    off.blob_run_mode = BlobRunMode::Fallback;
    assert_eq!(by_compaction(&v, &off, (5, 6), &[]), []);
    // There is but one level.
    let v = version("L0\n1: a..z blob=10\n2: a..z blob=11\n", &BLOBS);
    let on = options(true, 1);
    assert_eq!(by_compaction(&v, &on, (0, 0), &[]), []);
    assert_eq!(by_compaction(&v, &on, (0, 6), &[]), [10, 11, 12]);
}

#[test]
fn range_merge_keeps_the_last_level_below_the_limit() {
    let v = version(TREE, &BLOBS);
    let at = |max, levels| by_compaction(&v, &options(false, max), levels, &[]);
    // 12 and 13 by turns over 14 and 15 in a row.
    assert_eq!(at(3, (5, 6)), []);
    assert_eq!(at(2, (5, 6)), [12, 13]);
    assert_eq!(at(1, (5, 6)), [12, 13, 14, 15]);
    assert_eq!(at(0, (5, 6)), []);
    // Not above.
    assert_eq!(at(1, (4, 5)), []);
    let mut deeper = options(false, 2);
    deeper.blob_file_starting_level = 6;
    assert_eq!(by_compaction(&v, &deeper, (5, 6), &[]), [12, 13]);
    deeper.blob_file_starting_level = 7;
    assert_eq!(by_compaction(&v, &deeper, (5, 6), &[]), []);
    assert_eq!(at(1, (6, 6)), []);
    let with = |max, emptied: &[FileNo]| by_compaction(&v, &options(false, max), (5, 6), emptied);
    assert_eq!(with(3, &[13]), []);
    assert_eq!(with(2, &[13]), [12]);
    // Both: what level merge moves is one file.
    let both = by_compaction(&v, &options(true, 2), (5, 6), &[]);
    assert_eq!(both, [12, 13]);
    assert_eq!(
        by_compaction(&v, &options(true, 1), (5, 6), &[]),
        [12, 13, 14, 15]
    );
    // What is damaged neither moves nor counts.
    v.blob_files()[&13].file.damaged.set(true);
    assert_eq!(at(2, (5, 6)), []);
    assert_eq!(at(1, (5, 6)), [12, 14, 15]);
}

fn selected(version: &Version, options: &ColumnFamilyOptions, bytes: u64) -> String {
    let limit = in_place(version, options, Lull::Long).expect("it is on");
    let turns: Vec<FileNo> = (0..40).map(|i| 10 + i % 4).collect();
    let mut reach = |_: &FileMeta| Ok(reach_with(&turns, bytes));
    match select(version, options, limit, &mut reach).unwrap() {
        Selected::Nothing => "nothing".to_owned(),
        Selected::Busy => "busy".to_owned(),
        Selected::Step(step) => {
            let tables: Vec<_> = step.tables.iter().map(|(_, f)| f.number).collect();
            let moved = step.moved_bytes;
            format!("{tables:?} leave {:?} move {moved}", sorted(step.victims))
        }
    }
}

#[test]
fn tables_of_the_last_level_are_put_in_order_in_place_once() {
    let drawing =
        "L5\n3: a..z blob=10\nL6\n4: a..c blob=10\n5: d..m blob=10\n6: n..z blob=10\n7: zz..zzz\n";
    let v = version(drawing, &BLOBS);
    let mut on = options(false, 3);
    let table = |n: FileNo| v.files(6).iter().find(|f| f.number == n).unwrap();
    assert!(may_be_due(&v, asked_for(3)));
    assert_eq!(of_unknown_depth(&v).count(), 3);
    // Nobody knows yet.
    assert_eq!(selected(&v, &on, 100), "nothing");
    for n in [4, 5, 6] {
        table(n).blob_depth.set(4);
    }
    assert_eq!(of_unknown_depth(&v).count(), 0);
    assert!(!may_be_due(&v, asked_for(4)));
    assert_eq!(selected(&v, &on, 100), "[4, 5, 6] leave [12, 13] move 6000");
    on.max_sorted_runs = 2;
    assert_eq!(
        selected(&v, &on, 100),
        "[4, 5, 6] leave [11, 12, 13] move 9000"
    );
    on.max_sorted_runs = 3;
    on.blob_file_size = 2000;
    assert_eq!(selected(&v, &on, 100), "[4] leave [12, 13] move 2000");
    on.blob_file_size = 2001;
    assert_eq!(selected(&v, &on, 100), "[4, 5] leave [12, 13] move 4000");
    on.max_compaction_bytes = 1000;
    assert_eq!(selected(&v, &on, 100), "[4] leave [12, 13] move 2000");
    table(4).being_compacted.set(true);
    assert_eq!(selected(&v, &on, 100), "[5] leave [12, 13] move 2000");
    table(5).damaged.set(true);
    table(6).blob_depth.note_tried(4);
    assert_eq!(selected(&v, &on, 100), "[6] leave [12, 13] move 2000");
    // 250 bytes of values for 1000 of the table are enough, less are not, and are not looked at again.
    assert_eq!(selected(&v, &on, 13), "[6] leave [12, 13] move 260");
    assert_eq!(selected(&v, &on, 12), "nothing");
    assert_eq!(selected(&v, &on, 100), "nothing");
    assert!(!may_be_due(&v, asked_for(3)));
    // A lower limit is another matter.
    assert!(may_be_due(&v, asked_for(2)));
    v.blob_files()
        .values()
        .for_each(|b| b.file.damaged.set(true));
    on.max_sorted_runs = 2;
    assert_eq!(selected(&v, &on, 100), "nothing");
}

#[test]
fn without_being_asked_only_short_values_are_put_in_order_and_only_in_a_long_lull() {
    let on = ColumnFamilyOptions {
        enable_blob_files: true,
        ..ColumnFamilyOptions::default()
    };
    let v = version("L6\n4: a..c blob=10\n5: d..m blob=10\n", &BLOBS);
    let auto = in_place(&v, &on, Lull::Long).expect("it is on");
    assert!(!auto.is_asked());
    assert_eq!(auto.depth_max, 8);
    for lull in [Lull::None, Lull::Short] {
        assert_eq!(in_place(&v, &on, lull), None);
    }
    let changes: [fn(&mut ColumnFamilyOptions); 9] = [
        |o| o.enable_blob_files = false,
        |o| o.blob_run_mode = BlobRunMode::Fallback,
        |o| o.blob_gc_auto = false,
        |o| o.blob_file_discardable_ratio = 0.5,
        |o| o.enable_blob_garbage_collection = true,
        |o| o.level_merge = true,
        |o| o.max_space_amp = 1.5,
        |o| o.max_sorted_runs = 0,
        |o| o.blob_file_starting_level = 7,
    ];
    for (n, change) in changes.iter().enumerate() {
        let mut options = on.clone();
        change(&mut options);
        assert_eq!(in_place(&v, &options, Lull::Long), None, "{n}");
    }
    let mut asked = on.clone();
    asked.range_merge = true;
    for lull in [Lull::None, Lull::Short, Lull::Long] {
        let limit = in_place(&v, &asked, lull).expect("it is on");
        assert!(limit.is_asked());
        assert_eq!(limit.depth_max, 20);
    }
    asked.blob_file_starting_level = 6;
    assert!(in_place(&v, &asked, Lull::None).is_some());
    asked.blob_file_starting_level = 7;
    assert_eq!(in_place(&v, &asked, Lull::None), None);
    v.files(6).iter().for_each(|f| f.blob_depth.set(9));
    let mut few = on;
    few.max_sorted_runs = 3;
    // Those that are long enough are looked at once.
    for (bytes, told) in [
        (8191, "[4, 5] leave [12, 13] move 327640"),
        (8192, "nothing"),
        (8191, "nothing"),
    ] {
        assert_eq!(selected(&v, &few, bytes), told, "{bytes}");
    }
    let limit = in_place(&v, &few, Lull::Long).expect("it is on");
    assert!(!may_be_due(&v, limit));
    // Who asks for order asks for that of long values, too, and of a greater depth.
    assert!(may_be_due(&v, asked_for(limit.depth_max + 1)));
}

fn asked_for(depth_max: u64) -> InPlace {
    InPlace {
        depth_max,
        value_bytes: u64::MAX,
    }
}
