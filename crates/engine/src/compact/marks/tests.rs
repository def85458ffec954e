use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::seqno::SEQNO_MAX;
use orogen_sst::CompressionType;

use super::{Moment, due, next_due_secs, of_unknown_codec, waited_for_snapshot};
use crate::compact::leveled::pick;
use crate::compact::score::Scores;
use crate::options::ColumnFamilyOptions;
use crate::version::builder::VersionBuilder;
use crate::version::edit::VersionEdit;
use crate::version::{BlobFileAddition, BlobFileGarbage, FileMeta, Version, text};

/// A drawing with each file's times, and its entries and tombstones where they are known.
fn version(drawing: &str, change: impl Fn(&mut FileMeta)) -> Version {
    let icmp = InternalKeyComparator::default();
    let drawn = text::parse(&icmp, 7, drawing).unwrap();
    let mut edit = VersionEdit::of_column_family(0);
    for (level, file) in drawn.iter_files() {
        let mut file = FileMeta::clone(file);
        change(&mut file);
        edit.add_file(level, Arc::new(file));
    }
    let empty = Arc::new(Version::empty(icmp, 7));
    let mut builder = VersionBuilder::new(&empty);
    builder.apply(&edit).unwrap();
    builder.build().unwrap()
}

fn show(version: &Version, options: &ColumnFamilyOptions, moment: Moment) -> String {
    let due = due(version, options, 4, moment);
    let words = due.map(|d| {
        let (file, to) = (d.file.number, d.output_level);
        format!("{file} L{}->L{to} {}", d.level, d.reason.name())
    });
    words.collect::<Vec<_>>().join(", ")
}

fn nothing_asked() -> ColumnFamilyOptions {
    ColumnFamilyOptions::default()
}

#[test]
fn marked_files_above_the_last_level_are_due() {
    let shown = |drawing| {
        show(
            &version(drawing, |_| {}),
            &nothing_asked(),
            Moment::default(),
        )
    };
    let why = "FilesMarkedForCompaction";
    assert_eq!(
        shown("L5\n1: a..b marked\nL6\n2: a..b"),
        format!("1 L5->L6 {why}")
    );
    assert_eq!(shown("L5\n1: a..b\nL6\n2: a..b marked"), "");
    assert_eq!(shown("L5\n1: a..b marked compacting\nL6\n2: a..b"), "");
    assert_eq!(shown("L0\n1: a..b marked"), format!("1 L0->L4 {why}"));
}

#[test]
fn tombstones_at_the_bottom_are_due_once_no_snapshot_needs_them() {
    let drawing = "L5\n1: a..b seq=1..7\n2: m..n seq=1..9\nL6\n3: a..c seq=1..5\n4: d..f seq=1..6";
    let v = version(drawing, |f| match f.number {
        // Too few to be worth it.
        4 => f.counts.set((100, 9)),
        _ => f.counts.set((100, 10)),
    });
    let at = |oldest_snapshot| {
        let moment = Moment {
            oldest_snapshot,
            ..Moment::default()
        };
        show(&v, &nothing_asked(), moment)
    };
    assert_eq!(
        at(SEQNO_MAX),
        "2 L5->L5 BottommostFiles, 3 L6->L6 BottommostFiles"
    );
    assert_eq!(at(9), "3 L6->L6 BottommostFiles");
    assert_eq!(at(5), "");
    assert_eq!(waited_for_snapshot(&v), 5);
    let unknown = version(drawing, |_| {});
    assert_eq!(show(&unknown, &nothing_asked(), Moment::default()), "");
    assert_eq!(waited_for_snapshot(&unknown), SEQNO_MAX);
}

#[test]
fn old_data_goes_down_and_old_files_are_written_anew() {
    let drawing = "L0\n9: a..z\nL4\n1: a..b\n2: m..n\nL6\n3: a..c\n4: d..f";
    let v = version(drawing, |f| {
        (f.oldest_ancester_time, f.file_creation_time) = match f.number {
            1 => (100, 200),
            2 => (100, 100),
            3 => (100, 100),
            9 => (0, 100),
            _ => (0, 0),
        };
    });
    let asked = |ttl, periodic_compaction_seconds, unix_secs| {
        let options = ColumnFamilyOptions {
            ttl,
            periodic_compaction_seconds,
            ..ColumnFamilyOptions::default()
        };
        let moment = Moment {
            unix_secs,
            ..Moment::default()
        };
        (show(&v, &options, moment), next_due_secs(&v, &options))
    };
    assert_eq!(asked(0, 0, u64::MAX), (String::new(), None));
    assert_eq!(asked(50, 0, 150), (String::new(), Some(151)));
    let down = "1 L4->L5 Ttl, 2 L4->L5 Ttl";
    assert_eq!(asked(50, 0, 151).0, down);
    assert_eq!(asked(0, 50, 150), (String::new(), Some(151)));
    let why = "PeriodicCompaction";
    let anew = format!("9 L0->L4 {why}, 2 L4->L4 {why}, 3 L6->L6 {why}");
    assert_eq!(asked(0, 50, 151).0, anew);
    assert_eq!(asked(50, 50, 151).0, format!("{down}, {anew}"));
}

#[test]
fn an_old_file_is_rewritten_once_on_its_way_down() {
    let options = ColumnFamilyOptions {
        ttl: 50,
        level_compaction_dynamic_level_bytes: false,
        ..nothing_asked()
    };
    let moment = Moment {
        unix_secs: 1000,
        ..Moment::default()
    };
    let shown = |level| {
        let drawing = format!("L{level}\n1: a..c size=9\nL6\n2: x..z size=9");
        let v = version(&drawing, |f| f.oldest_ancester_time = 100);
        let plan = pick(&v, &options, &Scores::compute(&v, &options), &[], moment);
        let plan = plan.expect("it is due");
        (plan.output_level, plan.bottommost, plan.trivial_move)
    };
    for level in 1..5 {
        assert_eq!(shown(level), (level + 1, true, true));
    }
    assert_eq!(shown(5), (6, true, false));
}

#[test]
fn nobody_waits_for_files_that_are_never_due() {
    let v = version("L6\n3: a..c", |f| f.oldest_ancester_time = 100);
    let options = ColumnFamilyOptions {
        ttl: 50,
        ..ColumnFamilyOptions::default()
    };
    let moment = Moment {
        unix_secs: 1000,
        ..Moment::default()
    };
    assert_eq!(show(&v, &options, moment), "");
    assert_eq!(next_due_secs(&v, &options), None);
    let damaged = version("L4\n1: a..c\nL6\n3: d..e", |f| {
        f.oldest_ancester_time = 100;
        f.damaged.set(true);
    });
    assert_eq!(next_due_secs(&damaged, &options), None);
}

#[test]
fn files_of_the_last_level_with_another_codec_are_due_last() {
    let drawing = "L5\n1: a..b\n2: x..z\nL6\n3: a..c\n4: d..f\n5: g..h\n6: i..j compacting";
    let v = version(drawing, |f| match f.number {
        3 => f.codec.set("ZSTD".into()),
        5 => {}
        _ => f.codec.set("LZ4".into()),
    });
    let asked = |recompress_bottommost_files, bottommost: Option<CompressionType>| {
        let options = ColumnFamilyOptions {
            recompress_bottommost_files,
            bottommost_compression: bottommost,
            ..nothing_asked()
        };
        let unknown = of_unknown_codec(&v, &options).map(|f| f.number);
        (
            show(&v, &options, Moment::default()),
            unknown.collect::<Vec<_>>(),
        )
    };
    let why = "BottommostRecompression";
    let zstd = Some(CompressionType::Zstd);
    assert_eq!(asked(false, zstd), (String::new(), vec![]));
    // What lies above goes down in its time, and 5 nobody knows.
    assert_eq!(asked(true, zstd), (format!("4 L6->L6 {why}"), vec![5]));
    assert_eq!(asked(true, None).0, format!("3 L6->L6 {why}"));
    let none = Some(CompressionType::None);
    let both = format!("3 L6->L6 {why}, 4 L6->L6 {why}");
    assert_eq!(asked(true, none).0, both);
}

#[test]
fn a_file_that_was_rewritten_for_its_codec_stays_whatever_its_size_makes_of_the_levels() {
    // A smaller file may move the base level, and with it the codec of the last level.
    let per_level = [
        CompressionType::None,
        CompressionType::Lz4hc,
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ];
    let options = ColumnFamilyOptions {
        recompress_bottommost_files: true,
        compression_per_level: per_level.to_vec(),
        ..nothing_asked()
    };
    let due_at = |base: usize, codec: &'static str| {
        let v = version("L6\n1: a..c", |f| f.codec.set(codec.into()));
        due(&v, &options, base, Moment::default()).count()
    };
    for base in 1..=6 {
        for codec in ["LZ4HC", "NoCompression", "LZ4", "ZSTD"] {
            assert_eq!(due_at(base, codec), 0, "{codec} at {base}");
        }
        assert_eq!(due_at(base, "Snappy"), 1, "no level asks for it");
    }
}

#[test]
fn levels_above_the_last_go_down_while_they_hold_too_much() {
    let drawing = "L0\n9: a..z\nL5\n1: a..b\n2: m..n\n5: o..p\nL6\n3: a..c\n4: d..f";
    let sized = |in_l5: [u64; 3], in_l0: u64| {
        version(drawing, |f| {
            f.size = match f.number {
                1 => in_l5[0],
                2 => in_l5[1],
                5 => in_l5[2],
                9 => in_l0,
                _ => 500,
            };
        })
    };
    let at = |v: &Version, max_size_amplification_percent| {
        let options = ColumnFamilyOptions {
            max_size_amplification_percent,
            ..nothing_asked()
        };
        show(v, &options, Moment::default())
    };
    let v = sized([50, 90, 20], 40);
    assert_eq!(at(&v, 0), "");
    assert_eq!(at(&v, 20), "");
    assert_eq!(at(&v, 19), "2 L5->L6 SizeAmplification");
    assert_eq!(
        at(&sized([50, 90, 20], 200), 30),
        "9 L0->L4 SizeAmplification"
    );
}

#[test]
fn tables_that_point_into_an_oldest_blob_file_of_garbage_are_due() {
    let drawn = version(
        "L0\n1: a..z blob=20\nL5\n2: a..c blob=10\n3: d..f blob=11\nL6\n4: a..b blob=10\n5: c..d\n",
        |_| {},
    );
    let with = |garbage: &[(u64, u64)]| {
        let mut edit = VersionEdit::of_column_family(0);
        for number in [10, 11, 12, 20] {
            edit.blob_file_additions.push(BlobFileAddition {
                number,
                total_blob_count: 10,
                total_blob_bytes: 1000,
                ..BlobFileAddition::default()
            });
        }
        for &(number, bytes) in garbage {
            edit.blob_file_garbages.push(BlobFileGarbage {
                number,
                garbage_blob_count: 1,
                garbage_blob_bytes: bytes,
                given_up_bytes: None,
            });
        }
        let mut builder = VersionBuilder::new(&Arc::new(drawn.clone()));
        builder.apply(&edit).unwrap();
        builder.build().unwrap()
    };
    let options = |threshold, cutoff| ColumnFamilyOptions {
        enable_blob_garbage_collection: true,
        blob_garbage_collection_force_threshold: threshold,
        blob_garbage_collection_age_cutoff: cutoff,
        ..nothing_asked()
    };
    let shown = |garbage: &[(u64, u64)], options: &ColumnFamilyOptions| {
        show(&with(garbage), options, Moment::default())
    };
    let half = options(0.5, 1.0);
    let why = "2 L5->L5 ForcedBlobGC, 4 L6->L6 ForcedBlobGC";
    assert_eq!(shown(&[(10, 499)], &half), "");
    assert_eq!(shown(&[(10, 500)], &half), why);
    // Others than the oldest wait for it; 12 goes with 11.
    assert_eq!(shown(&[(11, 900), (12, 900), (20, 900)], &half), "");
    assert_eq!(shown(&[(10, 900)], &options(0.5, 0.2)), "");
    assert_eq!(shown(&[(10, 900)], &options(1.0, 1.0)), "");
    assert_eq!(shown(&[], &options(0.0, 1.0)), "");
    assert_eq!(shown(&[(10, 1)], &options(0.0, 1.0)), why);
    let off = ColumnFamilyOptions {
        enable_blob_garbage_collection: false,
        ..half
    };
    assert_eq!(shown(&[(10, 900)], &off), "");
}
