//! A proof that cannot fail proves nothing: each kind of loss is made, and must be found.

use std::sync::Arc;

use orogen::{MemFileSystem, Options, WriteBatch, WriteOptions};

use super::*;

const INDEX: &str = "Package: a\nVersion: 1\nDepends: x\n\nPackage: b\nVersion: 1\nDepends: x, y\n\n\
    Package: c\nVersion: 1\nSection: s\n\nPackage: d\nVersion: 1\n\nPackage: e\nVersion: 1\n\n\
    Package: f\nVersion: 1\nDepends: a\n";

fn database(batches: &[&[Record<'_>]]) -> Db {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.db.create_missing_column_families = true;
    options.db.fs = Arc::new(MemFileSystem::new());
    for name in FAMILIES {
        options.families.insert(name.to_owned(), Default::default());
    }
    let db = Db::open("demo", &options).unwrap();
    let families = load::families(&db).unwrap();
    let mut batch = WriteBatch::new();
    for records in batches {
        load::fill(&mut batch, &families, records);
        db.write_opt(&WriteOptions::default(), &mut batch).unwrap();
    }
    db
}

fn outcome(db: &Db, records: &Records<'_>, acknowledged: usize) -> Result<Proof, String> {
    let (mut model, mut modelled) = (Model::default(), 0);
    prove(db, records, 2, acknowledged, (&mut model, &mut modelled))
        .map_err(|f| f.message().unwrap())
}

#[test]
fn whole_batches_are_proven_acknowledged_or_not() {
    let records = Records::parse(INDEX.as_bytes());
    let batches: Vec<&[Record<'_>]> = records.list.chunks(2).collect();
    let proof = outcome(&database(&batches[..2]), &records, 1).unwrap();
    // The first batch has two records, two sections and three dependencies.
    assert_eq!(
        (proof.batches, proof.point_reads, proof.scanned),
        (2, 7, 11)
    );
    assert_eq!(
        outcome(&database(&batches), &records, 3).unwrap().batches,
        3
    );
    assert_eq!(outcome(&database(&[]), &records, 0).unwrap().scanned, 0);
}

#[test]
fn an_acknowledged_batch_that_is_missing_fails() {
    let records = Records::parse(INDEX.as_bytes());
    let batches: Vec<&[Record<'_>]> = records.list.chunks(2).collect();
    let error = outcome(&database(&batches[..1]), &records, 2).unwrap_err();
    assert!(
        error.contains("2 batches were acknowledged, 1 are there"),
        "{error}"
    );
}

#[test]
fn a_torn_batch_and_a_hole_fail() {
    let records = Records::parse(INDEX.as_bytes());
    let batches: Vec<&[Record<'_>]> = records.list.chunks(2).collect();
    let torn = database(&[batches[0], &batches[1][..1]]);
    let error = outcome(&torn, &records, 1).unwrap_err();
    assert!(error.contains("batch 1 was torn: 1 of 2"), "{error}");
    let hole = database(&[batches[0], batches[2]]);
    let error = outcome(&hole, &records, 1).unwrap_err();
    assert!(
        error.contains("batch 2 is there, batch 1 before it is not"),
        "{error}"
    );
}

#[test]
fn any_single_change_of_any_family_fails() {
    let records = Records::parse(INDEX.as_bytes());
    let batches: Vec<&[Record<'_>]> = records.list.chunks(2).collect();
    let mut model = Model::default();
    records.list.iter().for_each(|r| model.add(r));
    let mut changes = 0;
    for (family, entries) in model.families.iter().enumerate() {
        for key in entries.keys() {
            let db = database(&batches);
            let handle = &load::families(&db).unwrap()[family];
            db.put_opt(&WriteOptions::default(), handle, key, b"other")
                .unwrap();
            assert!(
                outcome(&db, &records, 3)
                    .unwrap_err()
                    .contains("the proof failed")
            );
            // Without an acknowledgement the scans find it.
            assert!(
                compare(&db, &model)
                    .unwrap_err()
                    .message()
                    .unwrap()
                    .contains("1 different")
            );
            db.delete_opt(&WriteOptions::default(), handle, key)
                .unwrap();
            assert!(
                outcome(&db, &records, 3)
                    .unwrap_err()
                    .contains("the proof failed")
            );
            assert!(
                compare(&db, &model)
                    .unwrap_err()
                    .message()
                    .unwrap()
                    .contains("1 entries missing")
            );
            changes += 1;
        }
        let db = database(&batches);
        let handle = &load::families(&db).unwrap()[family];
        db.put_opt(&WriteOptions::default(), handle, b"zz\0stray", b"")
            .unwrap();
        assert!(
            outcome(&db, &records, 3)
                .unwrap_err()
                .contains("the proof failed")
        );
    }
    assert_eq!(changes, 6 + 6 + 4);
}
