//! What RocksDB wrote, Orogen opens and reads.

use std::collections::BTreeMap;
use std::path::Path;

use orogen_base::{Error, ErrorKind};
use orogen_compat::Case;
use orogen_engine::{Db, Options, ReadOptions};

use crate::store::{assert_holds, family, options};
use crate::{scratch, several_at_once, written_by_rocksdb};

/// What Orogen refuses by name instead of reading it.
const REFUSED: [&str; 2] = ["wide-columns", "wal-compression"];

pub(crate) fn is_supported(case: &Case) -> bool {
    !case.features().iter().any(|f| REFUSED.contains(f))
}

/// Every file with its bytes.
pub(crate) fn image(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    entries
        .filter(|e| e.file_type().unwrap().is_file())
        .map(|e| {
            (
                e.file_name().into_string().unwrap(),
                std::fs::read(e.path()).unwrap(),
            )
        })
        .collect()
}

#[test]
fn read_only_open_reads_all_and_changes_no_byte() {
    for case in written_by_rocksdb().iter().filter(|c| is_supported(c)) {
        let before = image(&case.db());
        let db = Db::open_read_only(case.db(), &options(case))
            .unwrap_or_else(|e| panic!("{}: {e}", case.name()));
        assert_holds(&db, case);
        db.verify_checksums()
            .unwrap_or_else(|e| panic!("{}: {e}", case.name()));
        drop(db);
        assert!(image(&case.db()) == before, "{} was changed", case.name());
    }
}

#[test]
fn open_for_writing_keeps_all_and_compacts_it() {
    let dir = scratch("opened");
    let cases = written_by_rocksdb().iter().filter(|c| is_supported(c));
    several_at_once(cases, |original| {
        let case = original.copy(&dir.join(original.name())).unwrap();
        for _ in 0..2 {
            let db = Db::open(case.db(), &options(&case))
                .unwrap_or_else(|e| panic!("{}: {e}", case.name()));
            assert_holds(&db, &case);
            for name in case.families() {
                let handle = family(&db, name);
                db.compact_range(&Default::default(), &handle, None, None)
                    .unwrap();
            }
            assert_holds(&db, &case);
            db.close().unwrap();
        }
    });
}

#[test]
fn what_is_not_supported_is_refused_and_never_misread() {
    let refused: Vec<_> = written_by_rocksdb()
        .iter()
        .filter(|c| !is_supported(c))
        .collect();
    assert_eq!(refused.len(), 2);
    for case in refused {
        let error = read_all(case).expect_err(case.name());
        assert_eq!(
            error.kind(),
            ErrorKind::NotSupported,
            "{}: {error}",
            case.name()
        );
    }
}

#[test]
fn a_built_in_order_is_taken_from_the_directory_and_another_is_refused() {
    let reverse = crate::case("reverse");
    let db = Db::open_read_only(reverse.db(), &Options::default()).unwrap();
    assert_holds(&db, reverse);
    let error = Db::open_read_only(crate::case("codec-none").db(), &options(reverse));
    assert_eq!(
        error.map(drop).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

fn read_all(case: &Case) -> Result<(), Error> {
    let db = Db::open_read_only(case.db(), &options(case))?;
    for name in case.families() {
        let mut iter = db.iter(&ReadOptions::default(), &family(&db, name))?;
        iter.seek_to_first();
        while iter.valid() {
            iter.next();
        }
        iter.status()?;
    }
    Ok(())
}
