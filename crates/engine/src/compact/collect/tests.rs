use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_blob::BlobPointer;
use orogen_sst::CompressionType;

use super::*;
use crate::version::blob_counts::BlobCount;
use crate::version::builder::VersionBuilder;
use crate::version::edit::VersionEdit;
use crate::version::{BlobFileAddition, BlobFileGarbage, text};

/// Blob files as number, bytes and garbage, over tables of 1000 bytes in a drawing.
fn version(drawing: &str, blobs: &[(FileNo, u64, u64)]) -> Version {
    padded_version(drawing, blobs, 0)
}

/// The same with so many bytes of padding in each.
fn padded_version(drawing: &str, blobs: &[(FileNo, u64, u64)], overhead_bytes: u64) -> Version {
    let icmp = InternalKeyComparator::default();
    let drawn = text::parse(&icmp, 7, drawing).unwrap();
    let mut edit = VersionEdit::of_column_family(0);
    for (level, file) in drawn.iter_files() {
        let mut file = FileMeta::clone(file);
        file.size = 1000;
        edit.add_file(level, Arc::new(file));
    }
    for &(number, bytes, garbage) in blobs {
        edit.blob_file_additions.push(BlobFileAddition {
            number,
            total_blob_count: 1000,
            total_blob_bytes: bytes,
            overhead_bytes,
            ..BlobFileAddition::default()
        });
        edit.blob_file_garbages.push(BlobFileGarbage {
            number,
            garbage_blob_count: u64::from(garbage > 0),
            garbage_blob_bytes: garbage,
            ..BlobFileGarbage::default()
        });
    }
    let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp, 7)));
    builder.apply(&edit).unwrap();
    builder.build().unwrap()
}

/// Small enough that sizes in the tests are those that the rules speak of.
fn half() -> Rules {
    Rules {
        discardable_ratio: 0.5,
        garbage_share_max: 1.0,
        min_batch_bytes: 0,
        max_batch_bytes: u64::MAX,
        small_file_bytes: 0,
        small_files_max: 0,
        padding_max: 0,
        output_bytes: 1 << 30,
        table_bytes_max: 1 << 30,
        at_any_cost: false,
        by_cost: false,
        made_before: FileNo::MAX,
        after_holes: false,
        flushes_come: true,
        spared_level: None,
    }
}

fn chosen(version: &Version, rules: &Rules) -> Vec<FileNo> {
    let victims = choose(version, rules, &HashSet::new()).unwrap_or_default();
    victims.0.keys().copied().collect()
}

/// The tables of the step, where each table points to so many bytes of files.
fn selected(version: &Version, rules: &Rules, points: &[(FileNo, &[(FileNo, u64)])]) -> String {
    if chosen(version, rules).is_empty() {
        return "none chosen".to_owned();
    }
    let mut references = |file: &FileMeta| {
        let mut counts = BlobCounts::default();
        let of = points.iter().find(|(number, _)| *number == file.number);
        for &(file, bytes) in of.map_or(&[][..], |(_, of)| of) {
            let pointer = BlobPointer {
                file,
                offset: 100,
                size: bytes - 32,
                codec: CompressionType::None,
            };
            counts.add(&pointer, 0);
        }
        Ok(counts)
    };
    match select(version, rules, &mut references).unwrap() {
        Selected::Nothing => "nothing".to_owned(),
        Selected::Busy => "busy".to_owned(),
        Selected::Step(step) => {
            let mut victims: Vec<_> = step.victims.into_iter().collect();
            victims.sort_unstable();
            let tables: Vec<_> = step.tables.iter().map(|(_, f)| f.number).collect();
            format!("{tables:?} empty {victims:?} move {}", step.moved_bytes)
        }
    }
}

const TABLES: &str = "L0\n1: a..z blob=10\nL5\n2: a..c blob=10\n3: d..f blob=11\nL6\n4: a..b blob=10\n5: c..d blob=12\n";

#[test]
fn files_are_chosen_by_their_garbage_the_worst_first_up_to_a_batch() {
    let files = [
        (10, 1000, 499),
        (11, 1000, 500),
        (12, 1000, 900),
        (13, 1000, 0),
    ];
    let v = version(TABLES, &files);
    assert_eq!(chosen(&v, &half()), [11, 12]);
    let with = |change: &dyn Fn(&mut Rules)| {
        let mut rules = half();
        change(&mut rules);
        chosen(&v, &rules)
    };
    assert_eq!(with(&|r| r.discardable_ratio = 0.0), [10, 11, 12]);
    assert!(with(&|r| r.discardable_ratio = 1.0).is_empty());
    assert_eq!(with(&|r| r.max_batch_bytes = 1000), [12]);
    assert_eq!(with(&|r| r.min_batch_bytes = 2000), [11, 12]);
    assert!(with(&|r| r.min_batch_bytes = 2001).is_empty());
    // What lives in them fills a new file all the same.
    let fills = |r: &mut Rules| (r.min_batch_bytes, r.output_bytes) = (2001, 600);
    assert_eq!(with(&fills), [11, 12]);
    assert_eq!(with(&|r| r.made_before = 12), [11]);
    // What came free as holes does not count.
    let mut holes = VersionEdit::of_column_family(0);
    holes.blob_file_garbages.push(BlobFileGarbage {
        number: 12,
        given_up_bytes: Some(850),
        ..BlobFileGarbage::default()
    });
    let mut builder = VersionBuilder::new(&Arc::new(v.clone()));
    builder.apply(&holes).unwrap();
    assert_eq!(chosen(&builder.build().unwrap(), &half()), [11]);
    v.blob_files()[&12].file.damaged.set(true);
    assert_eq!(chosen(&v, &half()), [11]);
    assert_eq!(discardable(&v, &half()).len(), 1);
}

#[test]
fn small_files_are_merged_if_there_are_several() {
    let small = Rules {
        small_file_bytes: 200,
        ..half()
    };
    let one = version(TABLES, &[(10, 1000, 0), (11, 199, 0)]);
    assert!(chosen(&one, &small).is_empty());
    let two = version(TABLES, &[(10, 1000, 0), (11, 199, 0), (12, 50, 0)]);
    assert_eq!(chosen(&two, &small), [11, 12]);
    let few = Rules {
        small_files_max: 2,
        ..small
    };
    assert!(chosen(&two, &few).is_empty(), "they are no harm yet");
    let more = version(TABLES, &[(10, 100, 0), (11, 199, 0), (12, 50, 0)]);
    assert_eq!(chosen(&more, &few), [10, 11, 12]);
    assert!(discardable(&two, &small).is_empty());
    let both: &[(FileNo, &[(FileNo, u64)])] = &[(3, &[(11, 199)]), (5, &[(12, 50)])];
    // 2000 bytes of tables for 249 of values are too many.
    assert_eq!(selected(&two, &small, both), "nothing");
    let any = Rules {
        at_any_cost: true,
        ..small
    };
    let step = "[3, 5] empty [11, 12] move 249";
    assert_eq!(selected(&two, &any, both), step);
    // One that a step does not empty is left out, and alone the other is.
    let part: &[(FileNo, &[(FileNo, u64)])] = &[(3, &[(11, 150)]), (5, &[(12, 50)])];
    assert_eq!(selected(&two, &any, part), "nothing");
    let narrow = Rules {
        table_bytes_max: 1,
        ..any
    };
    assert_eq!(selected(&two, &narrow, both), "nothing");
    // With a file of garbage that no table of the step points to it would be alone, too.
    let three = version(TABLES, &[(10, 1000, 900), (11, 199, 0)]);
    let of: &[(FileNo, &[(FileNo, u64)])] = &[(1, &[(10, 100)]), (3, &[(11, 199)])];
    assert_eq!(selected(&three, &any, of), "nothing");
}

#[test]
fn what_counts_as_small_is_half_of_a_new_file_at_most() {
    let mut options = ColumnFamilyOptions {
        blob_file_size: 100,
        ..ColumnFamilyOptions::default()
    };
    let v = version(TABLES, &[(10, 1000, 1000)]);
    assert_eq!(Rules::of(&v, &options).small_file_bytes, 50);
    options.blob_file_size = 1 << 30;
    assert_eq!(Rules::of(&v, &options).small_file_bytes, 8 << 20);
}

#[test]
fn by_default_what_holes_leave_is_emptied_from_half_of_it_on() {
    const MIB: u64 = 1 << 20;
    let options = ColumnFamilyOptions {
        merge_small_file_threshold: 0,
        ..ColumnFamilyOptions::default()
    };
    let files = [
        (10, 100 * MIB, 60 * MIB),
        (11, 100 * MIB, 40 * MIB),
        (12, 200 * MIB, 0),
    ];
    let v = version(TABLES, &files);
    let chosen_by = |options: &ColumnFamilyOptions| chosen(&v, &Rules::of(&v, options));
    // Nobody has looked for holes yet.
    assert!(chosen_by(&options).is_empty());
    let without_holes = ColumnFamilyOptions {
        blob_hole_punching: false,
        ..options.clone()
    };
    assert_eq!(chosen_by(&without_holes), [10]);
    // Who asks for another way, or for none, gets that.
    for told in [
        ColumnFamilyOptions {
            blob_gc_auto: false,
            ..without_holes.clone()
        },
        ColumnFamilyOptions {
            enable_blob_garbage_collection: true,
            ..without_holes.clone()
        },
        ColumnFamilyOptions {
            blob_file_discardable_ratio: 0.7,
            ..without_holes
        },
    ] {
        assert!(chosen_by(&told).is_empty());
    }
    let seen = |number: FileNo, bytes| v.blob_files()[&number].file.note_seen(bytes);
    seen(10, 52 * MIB);
    assert!(chosen_by(&options).is_empty(), "much is new");
    seen(10, 53 * MIB);
    assert_eq!(chosen_by(&options), [10]);
    // Left alone by holes for whatever reason.
    let v = version(TABLES, &files);
    v.blob_files()[&10].file.leave_holes.set(true);
    assert_eq!(chosen(&v, &Rules::of(&v, &options)), [10]);
    // Left alone while flushes come.
    let v = version(TABLES, &files);
    v.blob_files()[&10].file.holes_wait_for_quiet.set(true);
    let in_lull = |lull| chosen(&v, &Rules::of(&v, &options).in_lull(lull));
    assert_eq!(in_lull(Lull::Short), [10]);
    assert!(in_lull(Lull::Long).is_empty());
    // Where nobody looks nothing waits.
    let manual = ColumnFamilyOptions {
        disable_auto_compactions: true,
        ..options
    };
    let v = version(TABLES, &files);
    assert_eq!(chosen(&v, &Rules::of(&v, &manual)), [10]);
}

#[test]
fn holes_are_not_waited_for_where_records_are_shorter_than_a_block() {
    let options = ColumnFamilyOptions {
        merge_small_file_threshold: 0,
        min_gc_batch_size: 0,
        ..ColumnFamilyOptions::default()
    };
    for (record, padding, told) in [
        (4095, 0, &[10][..]),
        (4096, 0, &[]),
        // One that has a block for itself gives it back.
        (3000, 1096, &[]),
        (3000, 1095, &[10]),
    ] {
        let half = [(10, 1000 * record, 500 * record)];
        let v = padded_version(TABLES, &half, 1000 * padding);
        assert_eq!(chosen(&v, &Rules::of(&v, &options)), told, "{record}");
        // Moving them frees nothing while a checkpoint has the file.
        v.blob_files()[&10].file.note_other_names(0, 1);
        assert!(chosen(&v, &Rules::of(&v, &options)).is_empty());
    }
}

#[test]
fn where_much_of_all_is_garbage_the_worst_files_go_before_they_are_half_empty() {
    let options = ColumnFamilyOptions {
        blob_hole_punching: false,
        merge_small_file_threshold: 0,
        min_gc_batch_size: 0,
        ..ColumnFamilyOptions::default()
    };
    let chosen_of = |files: &[(FileNo, u64, u64)]| {
        let v = version(TABLES, files);
        chosen(&v, &Rules::of(&v, &options))
    };
    // A quarter of all, and a little more.
    let quarter = [(10, 1000, 400), (11, 1000, 300), (12, 1000, 50)];
    assert!(chosen_of(&quarter).is_empty());
    let more = [(10, 1000, 400), (11, 1000, 310), (12, 1000, 50)];
    assert_eq!(chosen_of(&more), [10], "which leaves 360 of 2600");
    // As after a load, of which as much has died everywhere: no more than brings it down.
    let alike: Vec<_> = (10..20).map(|n| (n, 1000, 300 + n)).collect();
    assert_eq!(chosen_of(&alike), [17, 18, 19]);
    // Those at half go anyway, and count.
    let worst = [(10, 1000, 900), (11, 1000, 300), (12, 1000, 210)];
    assert_eq!(chosen_of(&worst), [10]);
    // What cannot go has the others go no further than to a quarter.
    let stays = [(10, 10_000, 9000), (11, 1000, 249), (12, 1000, 251)];
    let v = version(TABLES, &stays);
    v.blob_files()[&10].file.damaged.set(true);
    assert_eq!(chosen(&v, &Rules::of(&v, &options)), [12]);
    // Where the worst cannot be emptied, those behind them have their turn.
    let v = version(TABLES, &alike);
    let of: &[(FileNo, &[(FileNo, u64)])] = &[(2, &[(10, 684), (11, 683)]), (4, &[(12, 682)])];
    let reached = Rules {
        at_any_cost: true,
        ..Rules::of(&v, &options)
    };
    assert_eq!(
        selected(&v, &reached, of),
        "[2, 4] empty [10, 11, 12] move 2049"
    );
    // Who says a ratio gets that.
    let told = ColumnFamilyOptions {
        blob_file_discardable_ratio: 0.5,
        ..options
    };
    let v = version(TABLES, &alike);
    assert!(chosen(&v, &Rules::of(&v, &told)).is_empty());
}

#[test]
fn a_compaction_moves_no_more_than_so_many_bytes_but_one_file() {
    let files = [(10, 1000, 900), (11, 1000, 800), (12, 1000, 500)];
    let v = version(TABLES, &files);
    let count = |bytes| BlobCount { values: 1, bytes };
    // Not all that lives in the files is in the tables that it reads.
    let inputs: BlobCounts = [(10, count(100)), (11, count(150)), (12, count(30))]
        .into_iter()
        .collect();
    let within = |bytes| {
        let chosen = discardable_within(&v, &half(), &inputs, bytes);
        let mut chosen: Vec<_> = chosen.into_iter().collect();
        chosen.sort_unstable();
        chosen
    };
    assert_eq!(within(0), [10]);
    assert_eq!(within(129), [10]);
    assert_eq!(within(130), [10, 12]);
    assert_eq!(within(250), [10, 11]);
    assert_eq!(within(280), [10, 11, 12]);
    // A file that it does not meet is no file.
    let inputs: BlobCounts = [(11, count(150)), (12, count(30))].into_iter().collect();
    let chosen = discardable_within(&v, &half(), &inputs, 0);
    assert_eq!(chosen.into_iter().collect::<Vec<_>>(), [11]);
}

#[test]
fn beside_flushes_the_level_below_them_is_left_to_compactions() {
    let v = version(TABLES, &[(10, 1000, 900), (11, 1000, 900)]);
    let of: &[(FileNo, &[(FileNo, u64)])] =
        &[(2, &[(10, 50)]), (3, &[(11, 100)]), (4, &[(10, 50)])];
    let cheap = Rules {
        at_any_cost: true,
        ..half()
    };
    assert_eq!(
        selected(&v, &cheap, of),
        "[2, 3, 4] empty [10, 11] move 200"
    );
    let beside = Rules {
        spared_level: Some(5),
        ..cheap
    };
    assert_eq!(selected(&v, &beside, of), "[4] empty [10] move 50");
    assert!(may_rewrite(&v, &beside));
    let one = version(
        "L0\n1: a..z blob=10\nL5\n2: a..c blob=10\nL6\n4: a..b\n",
        &[(10, 1000, 900)],
    );
    assert!(!may_rewrite(&one, &beside));
    assert!(may_rewrite(&one, &cheap));
    // Beyond a ceiling nothing waits.
    let two = version(TABLES, &[(10, 1000, 900), (11, 1000, 100)]);
    assert_eq!(cheap.beside_flushes(&two, 5).spared_level, None);
    assert_eq!(half().beside_flushes(&two, 5).spared_level, Some(5));
    // Where there is as much garbage as that compactions do not come by it.
    assert_eq!(half().beside_flushes(&v, 5).spared_level, None);
    // No compaction merges small files.
    let small = Rules {
        small_file_bytes: 2000,
        ..half()
    };
    let many = |n: u64| (10..10 + n).map(|n| (n, 1000, 0)).collect::<Vec<_>>();
    let (few, many) = (version(TABLES, &many(1024)), version(TABLES, &many(1025)));
    assert_eq!(small.beside_flushes(&few, 5).spared_level, Some(5));
    assert_eq!(small.beside_flushes(&many, 5).spared_level, None);
}

#[test]
fn while_flushes_wait_only_what_is_nearly_all_garbage_is_emptied() {
    let options = ColumnFamilyOptions {
        blob_hole_punching: false,
        merge_small_file_threshold: 0,
        ..ColumnFamilyOptions::default()
    };
    let files = [(10, 10_000, 6000), (11, 10_000, 8000)];
    let v = version(TABLES, &files);
    let beside =
        |options: &ColumnFamilyOptions| chosen(&v, &Rules::of(&v, options).in_lull(Lull::None));
    let options = ColumnFamilyOptions {
        min_gc_batch_size: 0,
        ..options
    };
    let rules = Rules::of(&v, &options);
    assert_eq!(chosen(&v, &rules), [10, 11]);
    assert_eq!(chosen(&v, &rules.in_lull(Lull::Short)), [10, 11]);
    assert_eq!(beside(&options), [11]);
    // Who has said a ratio, or a ceiling that is passed, gets that.
    let told = ColumnFamilyOptions {
        blob_file_discardable_ratio: 0.55,
        ..options.clone()
    };
    assert_eq!(beside(&told), [10, 11]);
    let ceiling = ColumnFamilyOptions {
        max_space_amp: 1.5,
        ..options
    };
    assert_eq!(beside(&ceiling), [10, 11]);
}

#[test]
fn beyond_the_ceiling_the_files_with_most_garbage_go_first_at_any_cost() {
    let options = |max_space_amp| ColumnFamilyOptions {
        blob_gc_auto: false,
        max_space_amp,
        merge_small_file_threshold: 0,
        ..ColumnFamilyOptions::default()
    };
    // 3000 bytes for 2000 live ones.
    let v = version(TABLES, &[(10, 1000, 450), (11, 1000, 550), (12, 1000, 0)]);
    assert_eq!(v.blob_space(), (3000, 2000));
    assert!(chosen(&v, &Rules::of(&v, &options(1.5))).is_empty());
    let rules = Rules {
        max_batch_bytes: 1000,
        ..Rules::of(&v, &options(1.4))
    };
    assert!(rules.at_any_cost && !rules.after_holes);
    assert_eq!(chosen(&v, &rules), [11]);
    assert_eq!(chosen(&v, &Rules::of(&v, &options(1.4))), [10, 11]);
    // However even the garbage is, there is a file to begin with.
    let even = version(TABLES, &[(10, 1000, 300), (11, 1000, 300)]);
    assert_eq!(chosen(&even, &Rules::of(&even, &options(1.42))), [10, 11]);
}

#[test]
fn padding_counts_below_the_ceiling_and_leaves_garbage_half_of_what_it_says() {
    let padded = |overhead_bytes, garbage: u64, holes: u64| {
        let icmp = InternalKeyComparator::default();
        let mut edit = VersionEdit::of_column_family(0);
        let drawn = text::parse(&icmp, 7, TABLES).unwrap();
        for (level, file) in drawn.iter_files() {
            edit.add_file(level, file.clone());
        }
        edit.blob_file_additions.push(BlobFileAddition {
            number: 10,
            total_blob_count: 1000,
            total_blob_bytes: 1000,
            overhead_bytes,
            ..BlobFileAddition::default()
        });
        edit.blob_file_garbages.push(BlobFileGarbage {
            number: 10,
            garbage_blob_count: 1,
            garbage_blob_bytes: garbage,
            given_up_bytes: (holes > 0).then_some(holes),
        });
        let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp, 7)));
        builder.apply(&edit).unwrap();
        builder.build().unwrap()
    };
    let told = |v: &Version, amp| {
        let c = Ceiling::of(v, amp).unwrap();
        let share = (c.garbage_share * 1000.0).round() as u64;
        (c.disk_bytes as u64, c.most_bytes.round() as u64, share)
    };
    assert_eq!(Ceiling::of(&padded(0, 0, 0), 0.0), None);
    assert_eq!(told(&padded(0, 200, 0), 1.5), (1000, 1200, 333));
    // A tenth of padding is part of what is allowed.
    assert_eq!(told(&padded(100, 200, 0), 1.5), (1100, 1200, 267));
    // Holes took theirs along.
    assert_eq!(told(&padded(100, 200, 100), 1.5), (990, 1200, 267));
    // As much padding as records: 1.5 cannot be had, 2.5 leaves garbage a fifth.
    assert_eq!(told(&padded(1000, 200, 0), 1.5), (2000, 2000, 200));
    let options = |max_space_amp| ColumnFamilyOptions {
        blob_gc_auto: false,
        max_space_amp,
        merge_small_file_threshold: 0,
        ..ColumnFamilyOptions::default()
    };
    let is_chosen = |v: &Version, amp| !chosen(v, &Rules::of(v, &options(amp))).is_empty();
    assert!(!is_chosen(&padded(0, 250, 0), 1.4));
    assert!(is_chosen(&padded(100, 250, 0), 1.4));
    assert!(!is_chosen(&padded(1000, 0, 0), 1.1), "for nothing");
    assert!(!is_chosen(&padded(1000, 190, 0), 1.5));
    assert!(is_chosen(&padded(1000, 210, 0), 1.5));
}

#[test]
fn the_tables_that_bring_most_along_are_rewritten_first_but_none_of_level_0() {
    let v = version(TABLES, &[(10, 10_000, 6000), (12, 10_000, 9000)]);
    let points: &[(FileNo, &[(FileNo, u64)])] = &[
        (1, &[(10, 1000)]),
        (2, &[(10, 900)]),
        (3, &[(11, 5000)]),
        (4, &[(10, 2100)]),
        (5, &[(12, 1000)]),
    ];
    let all = "[2, 4, 5] empty [10, 12] move 4000";
    assert_eq!(selected(&v, &half(), points), all);
    let full = Rules {
        output_bytes: 3000,
        ..half()
    };
    let most = "[4, 5] empty [10, 12] move 3100";
    assert_eq!(selected(&v, &full, points), most);
    let narrow = Rules {
        table_bytes_max: 1000,
        ..half()
    };
    let densest = "[4] empty [10, 12] move 2100";
    assert_eq!(selected(&v, &narrow, points), densest);
    // What others have waits for them.
    for file in v.files(6) {
        file.being_compacted.set(true);
    }
    assert_eq!(selected(&v, &half(), points), "[2] empty [10, 12] move 900");
    v.files(5)[0].being_compacted.set(true);
    assert_eq!(selected(&v, &half(), points), "busy");
    for (_, file) in v.iter_files() {
        file.being_compacted.set(false);
        file.damaged.set(true);
    }
    assert_eq!(selected(&v, &half(), points), "nothing");
}

#[test]
fn behind_files_that_cannot_be_emptied_others_have_their_turn() {
    let files = [
        (10, 1000, 900),
        (11, 1000, 800),
        (12, 1000, 700),
        (13, 1000, 600),
    ];
    let v = version(TABLES, &files);
    let one_each = Rules {
        max_batch_bytes: 1,
        ..half()
    };
    // Nobody tells of 10, and of 11 level 0 only; 12 is not worth the tables that hold on to it.
    let points: &[(FileNo, &[(FileNo, u64)])] = &[
        (1, &[(10, 100), (11, 200)]),
        (2, &[(12, 100)]),
        (3, &[(12, 100)]),
        (4, &[(12, 100)]),
        (5, &[(13, 400)]),
    ];
    assert_eq!(chosen(&v, &one_each), [10]);
    let step = "[5] empty [13] move 400";
    assert_eq!(selected(&v, &one_each, points), step);
    // Somebody has the table: who looks again finds it.
    v.files(6)[1].being_compacted.set(true);
    assert_eq!(selected(&v, &one_each, points), "busy");
}

#[test]
fn tables_are_rewritten_for_what_comes_free_only() {
    let at = |garbage: u64, rules: &Rules| {
        let v = version(TABLES, &[(10, 1000, garbage)]);
        let live = 1000 - garbage;
        let points: &[(FileNo, &[(FileNo, u64)])] =
            &[(2, &[(10, live / 2)]), (4, &[(10, live / 2)])];
        selected(&v, rules, points)
    };
    // 2000 bytes of tables for 500.
    assert_eq!(at(500, &half()), "[2, 4] empty [10] move 500");
    let low = Rules {
        discardable_ratio: 0.4,
        ..half()
    };
    assert_eq!(at(498, &low), "nothing");
    let any = Rules {
        at_any_cost: true,
        ..low
    };
    assert_eq!(at(498, &any), "[2, 4] empty [10] move 502");
}

#[test]
fn a_step_is_as_large_as_a_limiter_lets_it_write_in_two_seconds() {
    let files = [(10, 100, 60), (11, 100, 59), (12, 100, 58), (13, 100, 57)];
    let v = version(TABLES, &files);
    assert_eq!(chosen(&v, &half().paced(u64::MAX)), [10, 11, 12, 13]);
    assert_eq!(chosen(&v, &half().paced(75)), [10, 11]);
    assert_eq!(chosen(&v, &half().paced(0)), [10], "one at least");
    let large = Rules {
        min_batch_bytes: 250,
        ..half()
    };
    assert_eq!(
        chosen(&v, &large.paced(75)),
        [10, 11, 12],
        "else none is ever"
    );
}

#[test]
fn level_0_comes_first_where_it_waits() {
    let options = |trigger| ColumnFamilyOptions {
        level0_file_num_compaction_trigger: trigger,
        ..ColumnFamilyOptions::default()
    };
    let v = version("L0\n1: a..c\n2: a..d\nL1\n3: a..z\n", &[]);
    assert!(!level0_waits(&v, &options(3)));
    assert!(level0_waits(&v, &options(2)));
    v.files(0)[0].being_compacted.set(true);
    assert!(!level0_waits(&v, &options(2)), "a compaction has it");
}

#[test]
fn bytes_that_tables_tell_wrongly_are_no_overflow() {
    let v = version(TABLES, &[(10, 1000, 900), (11, 1000, 900)]);
    let half_of_all = u64::MAX / 2 + 64;
    let points: [(FileNo, &[(FileNo, u64)]); 3] = [
        (1, &[(10, half_of_all), (11, half_of_all)]),
        (2, &[(10, half_of_all)]),
        (4, &[(10, half_of_all)]),
    ];
    let any = Rules {
        at_any_cost: true,
        output_bytes: u64::MAX,
        table_bytes_max: u64::MAX,
        ..half()
    };
    assert!(selected(&v, &any, &points).contains("empty [10"));
}
