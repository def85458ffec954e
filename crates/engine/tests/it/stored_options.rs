//! Directories whose OPTIONS files say more than they used to, or something that is not so.

use std::path::Path;
use std::sync::Arc;

use orogen_base::slice_transform::SliceTransform;
use orogen_base::{ErrorKind, Result};
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{ColumnFamilyOptions, Db, WriteOptions, check_logs_are_here, repair};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};

use crate::support::{DIR, scan, small};

fn names(fs: &MemFileSystem) -> Vec<String> {
    let mut names = fs.list(Path::new(DIR)).expect("it is there");
    names.sort();
    names
}

/// Changes the newest OPTIONS file.
fn edit(fs: &MemFileSystem, change: impl Fn(&str) -> String) {
    let mut names = names(fs);
    names.retain(|name| name.starts_with("OPTIONS-"));
    let path = Path::new(DIR).join(names.last().expect("there is one"));
    let text = String::from_utf8(read_file(fs, &path).expect("it is there")).expect("it is text");
    write_file(fs, &path, change(&text).as_bytes()).expect("memory");
}

#[test]
fn a_directory_whose_logs_are_elsewhere_is_refused() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    for n in 0..20u8 {
        db.put(&[n], b"1").unwrap();
    }
    let want = scan(&db, &db.default_column_family());
    let fs = fs.crash(PowerCut::KeepAll);
    drop(db);
    let wal = Path::new("/wal");
    fs.create_dir_all(wal).unwrap();
    let logs: Vec<_> = names(&fs);
    let logs: Vec<_> = logs.iter().filter(|n| n.ends_with(".log")).collect();
    for log in &logs {
        let path = Path::new(DIR).join(log);
        fs.rename(&path, &wal.join(log)).unwrap();
    }
    edit(&fs, |text| {
        text.replace("[DBOptions]", "[DBOptions]\n  wal_dir=/wal")
    });
    let before = names(&fs);
    let options = small(&fs);
    let refused = |result: Result<()>, what: &str| {
        let e = result.expect_err(what);
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{what}: {e}");
        assert_eq!(e.context("wal_dir"), Some("/wal"), "{what}");
    };
    refused(Db::open(DIR, &options).map(drop), "open");
    refused(Db::open_read_only(DIR, &options).map(drop), "read only");
    refused(
        Db::open_as_secondary(DIR, None, &options).map(drop),
        "secondary",
    );
    // Nor is it taken for another by an open that fails to read what says so.
    let faulty = FaultFileSystem::over_memory(fs.clone());
    let options_file = Fault::io().on(&[OpKind::Open]).path_with("OPTIONS-");
    for read_only in [false, true] {
        faulty.faults().add(options_file.clone());
        let mut options = small(&fs);
        options.db.fs = Arc::new(faulty.clone());
        let e = match read_only {
            false => Db::open(DIR, &options),
            true => Db::open_read_only(DIR, &options),
        };
        assert_eq!(e.map(drop).unwrap_err().kind(), ErrorKind::Io);
    }
    let examined = repair::examine(DIR, &options, &mut |_, _| {});
    refused(examined.map(drop), "repair");
    refused(
        check_logs_are_here(&fs, Path::new(DIR), &before, 0),
        "check",
    );
    let mut after = names(&fs);
    after.retain(|name| name != "LOCK" && !name.starts_with("LOG"));
    let mut before = before;
    before.retain(|name| name != "LOCK" && !name.starts_with("LOG"));
    assert_eq!(after, before);
    // A copy of a database whose OPTIONS name the place where it was made.
    let copied = fs.fork();
    write_file(&copied, &wal.join("CURRENT"), b"MANIFEST-000001\n").unwrap();
    drop(Db::open_read_only(DIR, &small(&copied)).unwrap());
    for log in logs {
        fs.rename(&wal.join(log), &Path::new(DIR).join(log))
            .unwrap();
    }
    let db = Db::open(DIR, &options).unwrap();
    assert_eq!(scan(&db, &db.default_column_family()), want);
}

#[test]
fn an_operator_keeps_its_delimiter_over_opens_that_are_not_told_of_it() {
    let delimiters: [&[u8]; 8] = [b"|", b",", b";", b"=", b"}", b"\n", b"\xff\0", b""];
    for delimiter in delimiters {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.cf.merge_operator = Some(Arc::new(StringAppend {
            delimiter: delimiter.to_vec(),
        }));
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        for operand in [b"a", b"b", b"c"] {
            db.merge_opt(&WriteOptions::default(), &family, b"k", operand)
                .unwrap();
            db.flush().unwrap();
        }
        drop((family, db));
        let expected = [&b"a"[..], b"b", b"c"].join(delimiter);
        for _ in 0..3 {
            let db = Db::open(DIR, &small(&fs)).unwrap();
            assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&expected[..]));
        }
    }
}

/// A prefix extractor by its name.
struct Named(&'static str);

impl SliceTransform for Named {
    fn name(&self) -> &str {
        self.0
    }
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key
    }
    fn in_domain(&self, _: &[u8]) -> bool {
        true
    }
}

#[test]
fn names_that_an_options_file_cannot_hold_are_refused() {
    for (name, is_good) in [
        (" a", false),
        ("a ", false),
        ("a\u{a0}", false),
        ("", true),
        ("a b#c=[\nd", true),
        ("a\n", false),
    ] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.cf.prefix_extractor = Some(Arc::new(Named(name)));
        for _ in 0..2 {
            let opened = Db::open(DIR, &options);
            assert_eq!(opened.is_ok(), is_good, "{name:?}");
            if let Err(e) = opened {
                assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                assert_eq!(e.context("option"), Some("prefix_extractor"));
            }
        }
    }
}

#[test]
fn formats_that_are_only_read_are_raised_where_a_file_asks_for_them() {
    let fs = MemFileSystem::new();
    drop(Db::open(DIR, &small(&fs)).unwrap());
    for format in ["0", "1", "7"] {
        edit(&fs, |text| {
            let lines = text.lines().map(|line| {
                let line = line.trim();
                match line.split_once('=') {
                    Some(("format_version", _)) => format!("  format_version={format}"),
                    Some(("metadata_block_size", _)) => "  metadata_block_size=0".to_owned(),
                    _ => line.to_owned(),
                }
            });
            lines.collect::<Vec<_>>().join("\n")
        });
        let loaded = Db::load_latest_options(DIR, &small(&fs)).unwrap();
        let table = &loaded.families["default"].table;
        assert!((2..=6).contains(&table.format_version) && table.metadata_block_size > 0);
        let db = Db::open(DIR, &loaded).unwrap();
        db.put(b"k", format.as_bytes()).unwrap();
        db.flush().unwrap();
        assert_eq!(db.get(b"k").unwrap().as_deref(), Some(format.as_bytes()));
    }
}

#[test]
fn levels_without_number_are_refused_before_they_are_made() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    for num_levels in [usize::MAX, 1 << 32] {
        let cf = ColumnFamilyOptions {
            num_levels,
            ..ColumnFamilyOptions::default()
        };
        let e = db
            .create_column_family("x", cf.clone())
            .map(drop)
            .unwrap_err();
        assert_eq!(e.context("option"), Some("num_levels"), "{e}");
        let mut options = small(&MemFileSystem::new());
        options.families.insert("default".to_owned(), cf.clone());
        let e = Db::open(DIR, &options).map(drop).unwrap_err();
        assert_eq!(e.context("option"), Some("num_levels"), "{e}");
        let mut options = small(&fs.crash(PowerCut::KeepAll));
        options.families.insert("default".to_owned(), cf);
        let e = Db::open(DIR, &options).map(drop).unwrap_err();
        assert_eq!(e.context("option"), Some("num_levels"), "{e}");
    }
    db.put(b"a", b"1").unwrap();
}

#[test]
fn a_family_that_was_dropped_is_none_of_the_stored_options() {
    let fs = MemFileSystem::new();
    let failing = Arc::new(FaultFileSystem::new(Arc::new(fs.clone())));
    let mut options = small(&fs);
    options.db.fs = failing.clone();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.create_column_family("x", options.cf.clone()).unwrap();
    let fault = Fault::io().on(&[OpKind::Rename]).path_with("OPTIONS");
    failing.faults().add(fault.forever());
    db.drop_column_family(&family).unwrap();
    drop((family, db));
    failing.faults().clear();
    let loaded = Db::load_latest_options(DIR, &small(&fs)).unwrap();
    assert!(!loaded.families.contains_key("x"));
    drop(Db::open(DIR, &loaded).unwrap());
    // One that is asked for and is not there changes nothing.
    let mut asks = loaded;
    asks.families.insert("x".to_owned(), options.cf);
    let before = names(&fs);
    for _ in 0..3 {
        let e = Db::open(DIR, &asks).map(drop).unwrap_err();
        assert_eq!(e.context("column_family"), Some("x"), "{e}");
    }
    assert_eq!(names(&fs), before);
}

#[test]
fn backups_that_are_looked_at_stay_as_they_are() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let options = || BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    // Whatever it is, it is not of a backup that anybody knows of.
    let theirs = [
        "/backups/private/7/x",
        "/backups/shared/x",
        "/backups/shared_checksum/x",
    ];
    for path in theirs {
        let path = Path::new(path);
        fs.create_dir_all(path.parent().unwrap()).unwrap();
        write_file(&fs, path, b"1").unwrap();
    }
    let e = BackupEngine::open_read_only("/backups", options())
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    drop(BackupEngine::open("/backups", options()).unwrap());
    let are_there = || {
        theirs
            .iter()
            .all(|path| fs.exists(Path::new(path)).unwrap())
    };
    assert!(are_there(), "a directory without a list holds no backup");
    let backups = BackupEngine::open("/backups", options()).unwrap();
    backups.create_backup(&db).unwrap();
    let being_made = "/backups/private/8/x";
    fs.create_dir_all(Path::new("/backups/private/8")).unwrap();
    write_file(&fs, Path::new(being_made), b"1").unwrap();
    // Beside the one that holds them.
    let looks = BackupEngine::open_read_only("/backups", options()).unwrap();
    assert_eq!(looks.list().unwrap().len(), 1);
    looks.verify(1).unwrap();
    looks.restore(1, "/restored").unwrap();
    assert!(fs.exists(Path::new(being_made)).unwrap());
    for refused in [
        looks.create_backup(&db).map(drop),
        looks.delete(1),
        looks.purge_old(0).map(drop),
        looks.collect_garbage().map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert!(backups.collect_garbage().unwrap() > 0);
    assert!(!fs.exists(Path::new(being_made)).unwrap());
}
