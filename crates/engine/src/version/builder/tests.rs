use orogen_base::ErrorKind;

use super::*;
use crate::version::blob_meta::BlobFileAddition;
use crate::version::text::{parse, parse_file};

fn base() -> Arc<Version> {
    let drawing = "L0\n 5: a..z\n 4: b..y\nL1\n 1: a..c\n 2: d..f\nL2\n 3: a..f\n";
    Arc::new(parse(&InternalKeyComparator::default(), 7, drawing).unwrap())
}

fn file(line: &str) -> Arc<FileMeta> {
    Arc::new(parse_file(line).unwrap())
}

fn apply(base: &Arc<Version>, edits: &[VersionEdit]) -> Result<Version> {
    let mut builder = VersionBuilder::new(base);
    for edit in edits {
        builder.apply(edit)?;
    }
    builder.build()
}

fn edit(deleted: &[(usize, FileNo)], added: &[(usize, &str)]) -> VersionEdit {
    VersionEdit {
        deleted_files: deleted.to_vec(),
        new_files: added
            .iter()
            .map(|(level, line)| (*level, file(line)))
            .collect(),
        ..VersionEdit::default()
    }
}

#[test]
fn files_that_stay_and_levels_that_do_not_change_keep_their_identity() {
    let base = base();
    let next = apply(&base, &[edit(&[(1, 2)], &[(1, "6: d..e")])]).unwrap();
    assert!(Arc::ptr_eq(&base.files(1)[0], &next.files(1)[0]));
    assert!(Arc::ptr_eq(&base.levels()[0], &next.levels()[0]));
    assert!(Arc::ptr_eq(&base.levels()[2], &next.levels()[2]));
    assert_eq!(next.files(1)[1].number, 6);
    assert_eq!(base.files(1)[1].number, 2, "the base is as it was");
}

#[test]
fn a_move_keeps_the_file_and_what_is_marked_on_it() {
    let base = base();
    let moved = Arc::clone(&base.files(1)[1]);
    moved.being_compacted.set(true);
    let mut e = VersionEdit::default();
    e.delete_file(1, 2);
    e.add_file(3, Arc::clone(&moved));
    let next = apply(&base, &[e]).unwrap();
    assert!(Arc::ptr_eq(&moved, &next.files(3)[0]));
    assert!(next.files(3)[0].being_compacted.get());
    assert_eq!(next.num_files(1), 1);
}

#[test]
fn edits_in_sequence_are_the_same_as_one_after_the_other() {
    let base = base();
    let edits = [
        edit(&[], &[(0, "6: a..z")]),
        edit(&[(0, 6), (0, 5), (1, 1)], &[(1, "7: a..b"), (1, "8: c..c")]),
        edit(&[(1, 8)], &[(2, "9: g..h")]),
        edit(&[(2, 9)], &[(1, "9: g..h")]),
        edit(&[(1, 9)], &[(2, "9: g..h")]),
    ];
    let at_once = apply(&base, &edits).unwrap();
    let mut stepwise = Arc::clone(&base);
    for e in &edits {
        stepwise = Arc::new(apply(&stepwise, std::slice::from_ref(e)).unwrap());
    }
    assert_eq!(at_once.to_text(), stepwise.to_text());
    let drawn: Vec<u64> = at_once.iter_files().map(|(_, f)| f.number).collect();
    assert_eq!(drawn, [4, 7, 2, 3, 9]);
}

#[test]
fn an_edit_that_contradicts_the_version_is_corruption() {
    let base = base();
    let error = |edits: &[VersionEdit]| {
        let error = apply(&base, edits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        error.to_string()
    };
    assert_eq!(
        error(&[edit(&[(1, 9)], &[])]),
        "corruption: deleted file is not on its level file=9 level=1"
    );
    assert_eq!(
        error(&[edit(&[(2, 1)], &[])]),
        "corruption: deleted file is not on its level file=1 level=2 found_on_level=1"
    );
    assert_eq!(
        error(&[edit(&[(1, 1)], &[]), edit(&[(1, 1)], &[])]),
        "corruption: deleted file is not on its level file=1 level=1"
    );
    assert_eq!(
        error(&[edit(&[], &[(3, "1: x..y")])]),
        "corruption: file is added twice file=1 level=3 found_on_level=1"
    );
    assert_eq!(
        error(&[edit(&[], &[(3, "9: a..b"), (3, "9: a..b")])]),
        "corruption: file is added twice file=9 level=3 found_on_level=3"
    );
    assert_eq!(
        error(&[edit(&[], &[(1, "9: c..d")])]),
        "corruption: files of a level overlap level=1 file=1 other_file=9"
    );
    assert_eq!(
        error(&[edit(&[], &[(4, "9: d..c")])]),
        "corruption: file ends before it starts file=9 level=4"
    );
}

#[test]
fn a_level_too_many_counts_only_if_files_stay_on_it() {
    let base = base();
    let up = edit(&[], &[(9, "9: a..b")]);
    assert_eq!(
        apply(&base, std::slice::from_ref(&up)).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    let down = edit(&[(9, 9)], &[]);
    assert_eq!(apply(&base, &[up, down]).unwrap().total_files(), 5);
}

#[test]
fn level_0_is_ordered_by_seqno_until_every_file_has_an_epoch() {
    let drawing = "L0\n 1: a..b seq=1..2 epoch=9\n 2: a..b seq=3..4 epoch=8\n";
    let icmp = InternalKeyComparator::default();
    let base = Arc::new(parse(&icmp, 7, drawing).unwrap());
    let order = |v: &Version| -> Vec<u64> { v.files(0).iter().map(|f| f.number).collect() };
    assert_eq!(order(&base), [1, 2]);
    let old = edit(&[], &[(0, "3: a..b seq=5..6 epoch=0")]);
    assert_eq!(
        order(&apply(&base, std::slice::from_ref(&old)).unwrap()),
        [3, 2, 1]
    );
    let gone = edit(&[(0, 3)], &[(0, "4: a..b seq=7..8 epoch=1")]);
    assert_eq!(order(&apply(&base, &[old, gone]).unwrap()), [1, 2, 4]);
}

#[test]
fn blob_files_leave_with_the_tables_that_point_into_them() {
    let icmp = InternalKeyComparator::default();
    let base = Arc::new(Version::empty(icmp, 7));
    let blob = |number| BlobFileAddition {
        number,
        total_blob_count: 2,
        total_blob_bytes: 100,
        ..BlobFileAddition::default()
    };
    let garbage = |number, garbage_blob_count, garbage_blob_bytes| BlobFileGarbage {
        number,
        garbage_blob_count,
        garbage_blob_bytes,
        given_up_bytes: None,
    };
    let mut e = edit(&[], &[(1, "1: a..b blob=11"), (1, "2: c..d blob=12")]);
    e.blob_file_additions = vec![blob(10), blob(11), blob(12), blob(13)];
    e.blob_file_garbages = vec![garbage(13, 2, 100), garbage(12, 1, 50)];
    let v = Arc::new(apply(&base, &[e]).unwrap());
    assert_eq!(v.blob_files().keys().copied().collect::<Vec<_>>(), [11, 12]);
    assert_eq!(v.blob_files()[&12].garbage_blob_bytes, 50);
    let v2 = apply(&v, &[edit(&[(1, 1)], &[])]).unwrap();
    assert_eq!(v2.blob_files().keys().copied().collect::<Vec<_>>(), [12]);

    let bad = |blob_file_additions: Vec<_>, blob_file_garbages: Vec<_>| {
        let e = VersionEdit {
            blob_file_additions,
            blob_file_garbages,
            ..VersionEdit::default()
        };
        assert_eq!(apply(&v, &[e]).unwrap_err().kind(), ErrorKind::Corruption);
    };
    bad(vec![blob(11)], vec![]);
    bad(vec![], vec![garbage(99, 1, 1)]);
    bad(vec![], vec![garbage(11, 3, 1)]);
    bad(vec![], vec![garbage(11, 1, u64::MAX)]);
}

#[test]
fn the_space_of_blob_files_is_what_a_count_of_them_says_and_those_that_go_are_told() {
    let mut rng = orogen_testkit::Rng::new(7);
    let mut version = Arc::new(Version::empty(InternalKeyComparator::default(), 7));
    let mut next = 10;
    for _ in 0..300 {
        let mut e = VersionEdit::default();
        for _ in 0..rng.below(3) {
            e.blob_file_additions.push(BlobFileAddition {
                number: next,
                total_blob_count: 10,
                total_blob_bytes: 1000 + rng.below(1000),
                overhead_bytes: rng.below(500),
                ..BlobFileAddition::default()
            });
            // Some have no table, or one that points to an older file first.
            let keys = format!("{}: {next:06}..{next:06}x blob={next}", next + 1);
            if rng.below(4) > 0 {
                e.add_file(1, file(&keys));
            }
            next += 2;
        }
        for (&number, blob) in version.blob_files() {
            if blob.is_live() && rng.below(4) == 0 {
                e.blob_file_garbages.push(BlobFileGarbage {
                    number,
                    garbage_blob_count: 1 + rng.below(2).min(blob.live_count() - 1),
                    garbage_blob_bytes: rng.below(blob.live_bytes().min(200) + 1),
                    given_up_bytes: (rng.below(2) == 0).then(|| rng.below(100)),
                });
            }
        }
        for (level, table) in version.iter_files() {
            if rng.below(8) == 0 {
                e.delete_file(level, table.number);
            }
        }
        let added: Vec<FileNo> = e.blob_file_additions.iter().map(|a| a.number).collect();
        let mut builder = VersionBuilder::new(&version);
        builder.apply(&e).unwrap();
        let (after, gone) = builder.build_and_tell().unwrap();
        let blobs = || after.blob_files().values();
        let counted: (u64, u64) = (
            blobs().map(|b| b.disk_bytes()).sum(),
            blobs().map(|b| b.live_bytes()).sum(),
        );
        assert_eq!(after.blob_space(), counted);
        let padding: u64 = blobs().map(|b| b.padding_bytes()).sum();
        assert_eq!(after.blob_padding(), padding);
        let before = version.blob_files().keys().chain(&added).copied();
        let lacking = before.filter(|n| !after.blob_files().contains_key(n));
        let told: Vec<FileNo> = gone.iter().map(|b| b.addition.number).collect();
        assert_eq!(told, lacking.collect::<Vec<_>>());
        version = Arc::new(after);
    }
    assert!(version.blob_files().len() > 3);
}

#[test]
fn compact_cursors_are_kept_by_level() {
    let e = VersionEdit {
        compact_cursors: vec![(1, b"12345678".to_vec()), (1, b"x12345678".to_vec())],
        ..VersionEdit::default()
    };
    let v = apply(&base(), &[e]).unwrap();
    assert_eq!(v.compact_cursor(1), Some(&b"x12345678"[..]));
    assert_eq!(v.compact_cursor(2), None);
}
