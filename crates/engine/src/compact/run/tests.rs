use orogen_base::sync::atomic::AtomicBool;
use std::sync::Arc;

use orogen_base::key::{InternalKeyComparator, append_internal_key, user_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{ErrorKind, SeqNo, UserComparator, ValueKind};
use orogen_sst::Anchor;

use super::{
    Outputs, clip_tombstones, is_deleted_whole, key_not_exists_beyond, range_not_exists_beyond,
    rules_of, run, subcompaction_bounds,
};
use crate::compact::marks::Moment;
use crate::compact::{Plan, Scores, pick};
use crate::compaction_iter::CompactionIterOptions;
use crate::compaction_iter::tests::VecIter;
use crate::compaction_iter::tests::lsm::{self, Compactor, Run};
use crate::options::ColumnFamilyOptions;
use crate::output::tests::{Points, Rng, Tables};
use crate::output::{self, OutputOptions, OutputWriter};
use crate::version::{FileMeta, Version, text};

fn icmp() -> InternalKeyComparator {
    InternalKeyComparator::default()
}

fn internal(key: &[u8], seqno: SeqNo, kind: ValueKind) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(&mut out, key, seqno, kind);
    out
}

fn tombstone(start: &str, end: &str, seqno: SeqNo) -> RangeTombstone {
    let (start, end) = (start.as_bytes().to_vec(), end.as_bytes().to_vec());
    RangeTombstone { start, end, seqno }
}

fn cut(tombstones: Vec<RangeTombstone>) -> Arc<FragmentedRangeTombstones> {
    Arc::new(FragmentedRangeTombstones::new(
        &UserComparator::BYTEWISE,
        tombstones,
    ))
}

/// Compacts into real tables of about two entries.
fn into_tables() -> Compactor {
    let tables = Tables::new();
    Box::new(move |entries, tombstones, rules| {
        let mut options = OutputOptions {
            output_level: 1,
            target_file_size: 100,
            max_file_size: 200,
            max_compaction_bytes: 1000,
            ..OutputOptions::default()
        };
        options.table.table.block_size = 16;
        let input = VecIter { entries, at: 0 };
        let written = output::write(input, tombstones, rules, options, tables.maker()).unwrap();
        let files: Vec<_> = written
            .files
            .iter()
            .map(|f| (Arc::new(f.clone()), tables.read(f)))
            .collect();
        let per_file: Vec<_> = files
            .iter()
            .map(|(f, (_, t))| (Arc::clone(f), Arc::clone(t)))
            .collect();
        let clipped = clip_tombstones(&icmp(), 1, &per_file);
        assert_eq!(
            clipped.len(),
            per_file
                .iter()
                .map(|(_, t)| t.iter().count())
                .sum::<usize>()
        );
        Run {
            points: files
                .into_iter()
                .flat_map(|(_, (points, _))| points)
                .collect(),
            tombstones: clipped,
        }
    })
}

#[test]
fn every_snapshot_reads_the_same_through_tables() {
    lsm::check_many(1000..1060, into_tables);
}

#[test]
fn tombstones_that_reach_beyond_their_tables_are_clipped_to_them() {
    let mut rng = Rng(5);
    for _ in 0..200 {
        let key = |n: usize| format!("{n:02}");
        let all: Vec<RangeTombstone> = (0..1 + rng.below(8))
            .map(|_| {
                tombstone(
                    &key(rng.below(60)),
                    &key(rng.below(60)),
                    1 + rng.below(9) as u64,
                )
            })
            .collect();
        let fragments = cut(all.clone()).fragments().to_vec();
        let tables = Tables::new();
        let options = OutputOptions {
            output_level: 1,
            target_file_size: 100 + rng.below(400) as u64,
            max_file_size: 100 + rng.below(400) as u64,
            ..OutputOptions::default()
        };
        let mut writer = OutputWriter::new(options, fragments, (None, None), tables.maker());
        for n in (0..60).filter(|_| rng.below(3) == 0).collect::<Vec<_>>() {
            writer
                .add(
                    &internal(key(n).as_bytes(), 5, ValueKind::Value),
                    &[b'v'; 30],
                )
                .unwrap();
        }
        let files = writer.finish().unwrap().files;
        // As RocksDB writes them: each table holds whole what it meets.
        let whole: Vec<_> = files
            .iter()
            .map(|f| {
                let meets = |t: &&RangeTombstone| {
                    t.start.as_slice() <= f.largest_user_key()
                        && t.end.as_slice() > f.smallest_user_key()
                };
                (
                    Arc::new(f.clone()),
                    cut(all.iter().filter(meets).cloned().collect()),
                )
            })
            .collect();
        let got = cut(clip_tombstones(&icmp(), 1, &whole));
        let want = cut(all);
        for n in 0..60 {
            for seqno in 0..10 {
                let k = key(n);
                let order = UserComparator::BYTEWISE;
                assert_eq!(
                    got.max_covering_seqno(&order, k.as_bytes(), seqno),
                    want.max_covering_seqno(&order, k.as_bytes(), seqno)
                );
            }
        }
    }
}

#[test]
fn tables_that_share_a_user_key_are_clipped_together() {
    let file = |smallest: Vec<u8>, largest: Vec<u8>| {
        Arc::new(FileMeta {
            smallest,
            largest,
            ..FileMeta::default()
        })
    };
    let point = |k: &str, seqno| internal(k.as_bytes(), seqno, ValueKind::Value);
    let end = |k: &str| internal(k.as_bytes(), SEQNO_MAX, ValueKind::RangeDeletion);
    let wide = || cut(vec![tombstone("a", "z", 7)]);
    let clip = |level, files: &[_]| -> Vec<String> {
        clip_tombstones(&icmp(), level, files)
            .iter()
            .map(|t| format!("{}-{}", t.start.escape_ascii(), t.end.escape_ascii()))
            .collect()
    };
    let shared = [
        (file(point("c", 9), point("f", 5)), wide()),
        (file(point("f", 4), end("k")), wide()),
        (file(point("k", 3), end("m")), wide()),
    ];
    assert_eq!(clip(1, &shared), ["c-k", "c-k", "k-m"]);
    let level0 = [
        (file(point("c", 9), end("f")), wide()),
        (file(point("b", 4), end("d")), wide()),
    ];
    assert_eq!(clip(0, &level0), ["c-f", "b-d"]);
}

#[test]
fn a_key_is_looked_for_in_every_level_below() {
    let drawing = "L1\n1: a..z\nL2\n2: c..e@5\n3: e@4..g\n4: k..m@MAX:RangeDeletion\nL4\n5: b..c";
    let version = Arc::new(text::parse(&icmp(), 7, drawing).unwrap());
    let absent = |level| -> String {
        let mut f = key_not_exists_beyond(&version, level);
        (b'a'..=b'z').filter(|k| f(&[*k])).map(char::from).collect()
    };
    assert_eq!(absent(1), "ahijmnopqrstuvwxyz");
    assert_eq!(absent(2), "adefghijklmnopqrstuvwxyz");
    assert_eq!(absent(6), ('a'..='z').collect::<String>());
}

#[test]
fn a_stretch_is_looked_for_in_every_level_below() {
    let drawing = "L1\n1: a..z\nL2\n2: c..e@5\n3: e@4..g\n4: k..m@MAX:RangeDeletion\nL4\n5: b..c";
    let version = Arc::new(text::parse(&icmp(), 7, drawing).unwrap());
    for level in [0, 1, 2, 4, 6] {
        let range = range_not_exists_beyond(&version, level);
        for start in b'a'..=b'o' {
            let mut key = key_not_exists_beyond(&version, level);
            let mut absent = true;
            for end in start + 1..=b'p' {
                absent &= key(&[end - 1]);
                // The keys between letters are of a file if both letters are.
                let inside_1 = level == 0;
                assert_eq!(
                    range(&[start], &[end]),
                    absent && !inside_1,
                    "{level} {start} {end}"
                );
            }
        }
    }
}

fn plan_of(drawing: &str, dynamic: bool) -> (Arc<Version>, Plan) {
    let options = ColumnFamilyOptions {
        level_compaction_dynamic_level_bytes: dynamic,
        level0_file_num_compaction_trigger: 1,
        target_file_size_base: 1000,
        ..ColumnFamilyOptions::default()
    };
    let version = Arc::new(text::parse(&icmp(), 7, drawing).unwrap());
    let scores = Scores::compute(&version, &options);
    let plan = pick(&version, &options, &scores, &[], Moment::default()).unwrap();
    (version, plan)
}

#[test]
fn stretches_are_about_equal_and_worth_a_file() {
    let (_, plan) = plan_of("L0\n1: a..z\n2: b..y", false);
    let anchors = |weights: &[(&str, u64)]| -> Vec<Anchor> {
        let anchor = |&(key, weight_bytes): &(&str, u64)| Anchor {
            user_key: key.as_bytes().to_vec(),
            weight_bytes,
        };
        weights.iter().map(anchor).collect()
    };
    let bounds = |weights: &[(&str, u64)], parts| -> String {
        let order = UserComparator::BYTEWISE;
        let keys = subcompaction_bounds(&order, &plan, anchors(weights), parts);
        String::from_utf8(keys.concat()).unwrap()
    };
    let even = [
        ("h", 1000),
        ("b", 1000),
        ("c", 1000),
        ("d", 1000),
        ("e", 1000),
        ("f", 1000),
        ("g", 1000),
    ];
    assert_eq!(bounds(&even, 1..=1), "");
    assert_eq!(bounds(&even, 1..=2), "e");
    assert_eq!(bounds(&even, 1..=3), "df");
    assert_eq!(bounds(&even, 1..=7), "bcdefg");
    assert_eq!(
        bounds(&[("b", 300), ("c", 300), ("d", 100)], 1..=4),
        "",
        "less than a file"
    );
    assert_eq!(
        bounds(&[("b", 300), ("c", 300), ("d", 100)], 2..=4),
        "c",
        "two are asked for at least"
    );
    assert_eq!(
        bounds(&[("b", 5000), ("b", 5000), ("c", 10), ("d", 10)], 1..=2),
        "b"
    );
    assert_eq!(
        bounds(&[("b", 9000)], 1..=3),
        "",
        "nothing is after the last key"
    );
    assert_eq!(bounds(&[], 1..=3), "");
    let (_, lower) = plan_of("L1\n1: a..z size=999999999\nL2\n3: a..b", false);
    let order = UserComparator::BYTEWISE;
    assert!(subcompaction_bounds(&order, &lower, anchors(&even), 2..=3).is_empty());
}

#[test]
fn a_plan_runs_to_files_that_carry_its_settings() {
    let drawing =
        "L0\n2: a@9..d@5 epoch=12\n1: b@4..c@3 epoch=11\nL1\n3: a@1..e@1 epoch=5\nL3\n4: d..d";
    let (version, plan) = plan_of(drawing, false);
    assert!(!plan.bottommost);
    let entries: Points = [
        internal(b"a", 9, ValueKind::Deletion),
        internal(b"a", 1, ValueKind::Value),
        internal(b"b", 4, ValueKind::Value),
        internal(b"c", 3, ValueKind::Deletion),
        internal(b"d", 5, ValueKind::Deletion),
        internal(b"e", 1, ValueKind::Value),
    ]
    .into_iter()
    .map(|k| (k, Vec::new()))
    .collect();
    let tables = Tables::new();
    let go = |rules: CompactionIterOptions| {
        let input = VecIter {
            entries: entries.clone(),
            at: 0,
        };
        run(
            &plan,
            input,
            Arc::default(),
            rules,
            Outputs::default(),
            tables.maker(),
        )
    };
    let written = go(rules_of(&plan, &version)).unwrap();
    assert_eq!(written.files.len(), 1);
    let (points, _) = tables.read(&written.files[0]);
    let keys: Vec<&[u8]> = points.iter().map(|(k, _)| user_key(k)).collect();
    assert_eq!(keys, [b"b", b"d", b"e"], "only d may be below");
    assert_eq!(written.files[0].epoch_number, 5);
    assert_eq!(
        (written.stats.input_records, written.stats.output_records),
        (6, 3)
    );
    assert_eq!(written.bytes, written.files[0].size);

    let failed = go(CompactionIterOptions {
        watch: Some(Arc::new(AtomicBool::new(true))),
        ..rules_of(&plan, &version)
    })
    .unwrap_err();
    assert_eq!(
        (failed.error.kind(), failed.created),
        (ErrorKind::Aborted, vec![])
    );
}

#[test]
fn a_file_is_deleted_whole_only_where_every_reader_sees_it_so() {
    let icmp = icmp();
    let file = |drawing: &str| {
        let v = text::parse(&icmp, 7, &format!("L1\n{drawing}")).unwrap();
        v.files(1)[0].clone()
    };
    let deleted = |drawing: &str, tombstones: &[(&str, &str, SeqNo)], snapshots: &[SeqNo]| {
        let all = tombstones.iter().map(|&(a, b, n)| tombstone(a, b, n));
        is_deleted_whole(&icmp.user, &cut(all.collect()), &file(drawing), snapshots)
    };
    let plain = "1: c..m seq=5..9";
    assert!(deleted(plain, &[("a", "z", 10)], &[]));
    assert!(deleted(plain, &[("c", "n", 10)], &[]));
    assert!(
        !deleted(plain, &[("c", "m", 10)], &[]),
        "its last key stays"
    );
    assert!(
        !deleted(plain, &[("d", "z", 10)], &[]),
        "its first key stays"
    );
    assert!(!deleted(plain, &[("a", "z", 9)], &[]), "as old as the file");
    assert!(!deleted(plain, &[], &[]));
    assert!(
        deleted(plain, &[("a", "e", 10), ("e", "z", 12)], &[]),
        "two side by side"
    );
    assert!(
        !deleted(plain, &[("a", "e", 10), ("f", "z", 12)], &[]),
        "a gap"
    );
    // Snapshots before the file see nothing of it, those from the tombstone on see it deleted.
    assert!(deleted(plain, &[("a", "z", 12)], &[4, 12, 15]));
    for between in [5, 9, 11] {
        assert!(
            !deleted(plain, &[("a", "z", 12)], &[4, between]),
            "{between}"
        );
    }
    assert!(
        deleted(plain, &[("a", "z", 12), ("a", "z", 10)], &[11]),
        "the older one does"
    );
    let open_end = "1: c..m@MAX:RangeDeletion seq=5..9";
    assert!(deleted(open_end, &[("c", "m", 10)], &[]));
}
