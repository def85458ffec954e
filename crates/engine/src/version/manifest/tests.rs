use std::path::PathBuf;
use std::process::Command;

use orogen_base::key::{ParsedInternalKey, ValueKind};
use orogen_base::{ErrorKind, UserComparator};
use orogen_env::{MemFileSystem, PosixFileSystem};

use super::*;
use crate::version::blob_meta::BlobFileAddition;
use crate::version::text::parse;
use crate::version::wal_set::WalAddition;

/// Written by RocksDB, with what it should say beside it.
const GOLDEN: [&str; 5] = [
    "rocksdb-7.8-snapshot",
    "rocksdb-7.8-wals",
    "rocksdb-9.8-blobs",
    "rocksdb-9.8-history",
    "rocksdb-9.8-snapshot",
];

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../testdata/manifest")
        .join(name)
}

fn golden(name: &str) -> Vec<u8> {
    read_file(&PosixFileSystem::new(), &golden_path(name)).unwrap()
}

fn recover_bytes(bytes: &[u8]) -> Result<RecoveredManifest> {
    let fs = MemFileSystem::new();
    let path = Path::new("/MANIFEST-000001");
    write_file(&fs, path, bytes).unwrap();
    recover(fs.open(path, Access::Sequential).unwrap())
}

/// A MANIFEST with a record for each edit.
fn manifest_of(edits: &[VersionEdit]) -> Vec<u8> {
    let fs = MemFileSystem::new();
    let path = Path::new("/MANIFEST-000001");
    let mut writer = Writer::new(fs.create(path).unwrap(), 1, false);
    for edit in edits {
        writer.add_record(&edit.encode()).unwrap();
    }
    drop(writer);
    read_file(&fs, path).unwrap()
}

fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let fs = MemFileSystem::new();
    let path = Path::new("/MANIFEST-000001");
    write_file(&fs, path, bytes).unwrap();
    let mut reader = Reader::new(fs.open(path, Access::Sequential).unwrap(), 0).unwrap();
    let mut all = Vec::new();
    let mut record = Vec::new();
    while let ReadOutcome::Record { .. } = reader.read_record(&mut record).unwrap() {
        all.push(record.clone());
    }
    all
}

/// What RocksDB writes into a new database.
fn first_edit() -> VersionEdit {
    VersionEdit {
        log_number: Some(0),
        next_file_number: Some(2),
        last_sequence: Some(0),
        ..VersionEdit::default()
    }
}

fn file(number: FileNo, from: &str, to: &str) -> Arc<FileMeta> {
    let key = |k: &str| {
        ParsedInternalKey {
            user_key: k.as_bytes(),
            seqno: 7,
            kind: ValueKind::Value,
        }
        .encode()
    };
    Arc::new(FileMeta {
        number,
        size: 100,
        smallest: key(from),
        largest: key(to),
        smallest_seqno: 7,
        largest_seqno: 7,
        epoch_number: number,
        ..FileMeta::default()
    })
}

fn added(number: FileNo, from: &str, to: &str) -> VersionEdit {
    let mut edit = VersionEdit::default();
    edit.add_file(1, file(number, from, to));
    edit
}

fn change(id: u32, change: ColumnFamilyChange) -> VersionEdit {
    VersionEdit {
        column_family_change: Some(change),
        ..VersionEdit::of_column_family(id)
    }
}

fn error_of(edits: &[VersionEdit]) -> Error {
    recover_bytes(&manifest_of(edits))
        .err()
        .expect("the edits contradict each other")
}

#[test]
fn what_rocksdb_wrote_is_understood() {
    for name in GOLDEN {
        let path = golden_path(&format!("{name}.txt"));
        let fs = PosixFileSystem::new();
        let got = recover_bytes(&golden(name)).unwrap().to_text();
        if std::env::var_os("REWRITE").is_some() {
            write_file(&fs, &path, got.as_bytes()).unwrap();
        }
        let want = read_file(&fs, &path).unwrap();
        assert_eq!(got, String::from_utf8(want).unwrap(), "{name}");
    }
}

#[test]
fn what_rocksdb_wrote_comes_out_again_byte_for_byte() {
    for name in GOLDEN {
        let mut edits = Vec::new();
        for record in records(&golden(name)) {
            let edit = VersionEdit::decode(&record).unwrap();
            assert_eq!(edit.encode(), record, "{name}: {edit:?}");
            edits.push(edit);
        }
        assert_eq!(manifest_of(&edits), golden(name), "{name}");
    }
}

#[test]
fn a_manifest_cut_anywhere_gives_the_state_of_a_prefix_or_is_incomplete() {
    for name in GOLDEN {
        let bytes = golden(name);
        let whole = recover_bytes(&bytes).unwrap();
        assert!(!whole.is_torn);
        assert_eq!(whole.valid_until, bytes.len() as u64);
        let mut edits = 0;
        for len in 0..bytes.len() {
            match recover_bytes(&bytes[..len]) {
                Ok(m) => {
                    // Zeros at the end may be reserved space.
                    let rest = &bytes[m.valid_until as usize..len];
                    assert!(m.is_torn || rest.iter().all(|&b| b == 0), "{name} {len}");
                    assert!(m.edits >= edits, "{name} {len}");
                    edits = m.edits;
                }
                Err(e) => {
                    assert_eq!(e.message(), "manifest is incomplete", "{name} {len}");
                    assert_eq!(edits, 0, "{name} {len}");
                }
            }
        }
    }
}

#[test]
fn a_damaged_byte_is_never_believed() {
    for name in GOLDEN {
        let mut bytes = golden(name);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                let is_cut_off_zero = bytes[at..].iter().all(|&b| b == 0);
                let e = match recover_bytes(&bytes) {
                    // A last byte that is now zero may as well never have been written.
                    Ok(m) if is_cut_off_zero => {
                        assert!(m.is_torn, "{name} {at}");
                        bytes[at] ^= 1 << bit;
                        continue;
                    }
                    Ok(_) => panic!("{name}: bit {bit} of byte {at} is believed"),
                    Err(e) => e,
                };
                assert_eq!(e.kind(), ErrorKind::Corruption, "{name} {at}: {e}");
                assert!(e.context("file").is_some(), "{name} {at}: {e}");
                bytes[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn an_edit_of_several_blocks_that_was_being_written_is_as_if_it_was_not() {
    const BLOCK: usize = 32 << 10;
    let mut large = VersionEdit::default();
    for number in 0..3000 {
        let name = format!("{number:040}");
        large.add_file(1, file(10 + number, &name, &format!("{name}z")));
    }
    let whole = manifest_of(&[first_edit(), large.clone()]);
    let before = manifest_of(&[first_edit()]);
    assert!(whole.len() > 4 * BLOCK);
    let blocks = whole.len().div_ceil(BLOCK);
    // Each part of it but the last is not there, or is garbage.
    for block in 0..blocks - 1 {
        for filling in [0, 0xa5] {
            let mut torn = whole.clone();
            let from = (block * BLOCK).max(before.len());
            torn[from..(block + 1) * BLOCK].fill(filling);
            let found = recover_bytes(&torn).unwrap();
            assert!(found.is_torn, "{block}");
            assert_eq!(found.valid_until, before.len() as u64);
        }
    }
    // With another one behind it, it was there.
    let mut damaged = manifest_of(&[first_edit(), large, first_edit()]);
    damaged[2 * BLOCK..3 * BLOCK].fill(0);
    let error = recover_bytes(&damaged).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}

#[test]
fn damage_in_the_middle_says_where() {
    let mut bytes = manifest_of(&[first_edit(), added(4, "a", "b"), added(5, "c", "d")]);
    let middle = records(&bytes)[0].len() + 7 + 20;
    bytes[middle] ^= 1;
    let e = recover_bytes(&bytes).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(
        e.context("file")
            .is_some_and(|f| f.ends_with("MANIFEST-000001"))
    );
    assert_eq!(
        e.context("offset"),
        Some(&*(records(&bytes)[0].len() + 7).to_string())
    );
}

fn state() -> (Version, Version, WalSet) {
    let icmp = InternalKeyComparator::default();
    let drawing = "L0\n 9: a..z size=5\n 8: b..y\nL3\n 3: a@4..c@2 marked blob=20\n 4: d..e\n";
    let mut first = parse(&icmp, 7, drawing).unwrap();
    first
        .compact_cursors
        .insert(3, file(1, "q", "q").smallest.clone());
    let addition = BlobFileAddition {
        number: 20,
        total_blob_count: 4,
        total_blob_bytes: 400,
        ..BlobFileAddition::default()
    };
    let mut edit = VersionEdit {
        blob_file_additions: vec![addition],
        ..VersionEdit::default()
    };
    edit.blob_file_garbages.push(BlobFileGarbage {
        number: 20,
        garbage_blob_count: 1,
        garbage_blob_bytes: 77,
        given_up_bytes: None,
    });
    let mut builder = VersionBuilder::new(&Arc::new(first));
    builder.apply(&edit).unwrap();
    let first = builder.build().unwrap();
    let second = parse(
        &InternalKeyComparator::new(UserComparator::REVERSE_BYTEWISE),
        4,
        "L1\n 12: z..y\n 13: x..a\n",
    )
    .unwrap();
    let mut wals = WalSet::default();
    wals.add(&WalAddition {
        number: 30,
        synced_size: Some(9),
    })
    .unwrap();
    wals.add(&WalAddition {
        number: 31,
        synced_size: None,
    })
    .unwrap();
    (first, second, wals)
}

fn snapshot<'a>(first: &'a Version, second: &'a Version, wals: &WalSet) -> Snapshot<'a> {
    let family = |id, name, log_number, version: &'a Version| FamilySnapshot {
        id,
        name,
        comparator: version.icmp().user.name(),
        log_number,
        version,
        full_history_ts_low: None,
    };
    Snapshot {
        db_id: Some("an-id"),
        next_file_number: 40,
        last_sequence: 1234,
        min_log_number_to_keep: 30,
        max_column_family: 6,
        wals: wals.clone(),
        filled_blob_files: BTreeSet::new(),
        families: vec![
            family(0, "default", 30, first),
            family(5, "other", 31, second),
        ],
    }
}

#[test]
fn a_snapshot_gives_back_the_state() {
    let (first, second, wals) = state();
    let fs = MemFileSystem::new();
    let path = Path::new("/MANIFEST-000039");
    let mut writer = Writer::new(fs.create(path).unwrap(), 39, false);
    snapshot(&first, &second, &wals).write(&mut writer).unwrap();
    drop(writer);
    let m = recover(fs.open(path, Access::Sequential).unwrap()).unwrap();
    assert_eq!(m.db_id.as_deref(), Some("an-id"));
    assert_eq!((m.next_file_number, m.last_sequence), (40, 1234));
    assert_eq!((m.min_log_number_to_keep, m.max_column_family), (30, 6));
    assert_eq!(
        m.wals.iter().collect::<Vec<_>>(),
        wals.iter().collect::<Vec<_>>()
    );
    assert_eq!(m.families.keys().copied().collect::<Vec<_>>(), [0, 5]);
    let (a, b) = (&m.families[&0], &m.families[&5]);
    assert_eq!((a.name.as_str(), a.log_number), ("default", 30));
    assert_eq!((b.name.as_str(), b.log_number), ("other", 31));
    let got = a.version(first.icmp(), 7).unwrap();
    assert_eq!(got.to_text(), first.to_text());
    assert_eq!(got.compact_cursors(), first.compact_cursors());
    assert_eq!(got.blob_files(), first.blob_files());
    assert_eq!(
        b.version(second.icmp(), 4).unwrap().to_text(),
        second.to_text()
    );

    let error = b.version(first.icmp(), 4).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidArgument,
        "another comparator"
    );
    assert_eq!(
        error.context("written_with"),
        Some("rocksdb.ReverseBytewiseComparator")
    );
    let error = a.version(first.icmp(), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "too few levels");
}

#[test]
fn an_atomic_group_is_applied_whole_or_not_at_all() {
    let grouped = |mut edit: VersionEdit, remaining| {
        edit.atomic_group_remaining = Some(remaining);
        edit
    };
    let group = [
        grouped(added(4, "a", "b"), 2),
        grouped(added(5, "c", "d"), 1),
        grouped(added(6, "e", "f"), 0),
    ];
    let mut edits = vec![first_edit()];
    for (i, edit) in group.iter().enumerate() {
        edits.push(edit.clone());
        let m = recover_bytes(&manifest_of(&edits)).unwrap();
        let is_whole = i == 2;
        assert_eq!(
            (m.edits, m.is_torn),
            (if is_whole { 4 } else { 1 }, !is_whole)
        );
        assert_eq!(m.next_file_number, if is_whole { 7 } else { 2 });
    }
    let interrupted = [first_edit(), group[0].clone(), added(9, "x", "y")];
    assert_eq!(
        error_of(&interrupted).message(),
        "atomic group is interrupted"
    );
    let wrong = [first_edit(), group[0].clone(), group[2].clone()];
    assert_eq!(
        error_of(&wrong).message(),
        "atomic group does not count down"
    );
    let hostile = [first_edit(), grouped(added(4, "a", "b"), u32::MAX)];
    assert!(recover_bytes(&manifest_of(&hostile)).unwrap().is_torn);
}

#[test]
fn column_families_come_and_go_by_id() {
    let add = |id, name: &str| change(id, ColumnFamilyChange::Add(name.to_owned()));
    let edits = [
        first_edit(),
        add(1, "a"),
        add(2, "b"),
        change(1, ColumnFamilyChange::Drop),
        add(3, "a"),
        VersionEdit {
            log_number: Some(8),
            ..VersionEdit::of_column_family(3)
        },
        VersionEdit {
            log_number: Some(6),
            ..VersionEdit::of_column_family(3)
        },
    ];
    let m = recover_bytes(&manifest_of(&edits)).unwrap();
    let names: Vec<_> = m
        .families
        .values()
        .map(|f| (f.id, f.name.as_str()))
        .collect();
    assert_eq!(names, [(0, "default"), (2, "b"), (3, "a")]);
    assert_eq!(m.families[&3].log_number, 8, "log numbers do not fall");
    assert_eq!(m.max_column_family, 3);

    let message = |edits: &[VersionEdit]| error_of(edits).message().to_owned();
    assert_eq!(
        message(&[first_edit(), add(1, "a"), add(1, "b")]),
        "column family is added twice"
    );
    assert_eq!(
        message(&[first_edit(), add(1, "a"), add(2, "a")]),
        "column family is added twice"
    );
    assert_eq!(
        message(&[first_edit(), add(0, "x")]),
        "column family is added twice"
    );
    assert_eq!(
        message(&[first_edit(), change(1, ColumnFamilyChange::Drop)]),
        "column family is dropped but not there"
    );
    assert_eq!(
        message(&[first_edit(), change(0, ColumnFamilyChange::Drop)]),
        "default column family is dropped"
    );
    assert_eq!(
        message(&[first_edit(), VersionEdit::of_column_family(4)]),
        "edit of a column family that is not there"
    );
}

#[test]
fn a_manifest_that_does_not_tell_the_whole_state_is_refused() {
    for missing in ["log number", "next file number", "last sequence"] {
        let mut edit = first_edit();
        match missing {
            "log number" => edit.log_number = None,
            "next file number" => edit.next_file_number = None,
            _ => edit.last_sequence = None,
        }
        assert_eq!(error_of(&[edit]).context("missing"), Some(missing));
    }
    let edit = VersionEdit {
        next_file_number: Some(u64::MAX),
        ..first_edit()
    };
    assert_eq!(error_of(&[edit]).message(), "file number is too large");
    let edit = VersionEdit {
        last_sequence: Some(u64::MAX),
        ..first_edit()
    };
    assert_eq!(error_of(&[edit]).message(), "sequence number is too large");
}

#[test]
fn an_epoch_number_that_none_can_follow_is_refused() {
    let mut last = file(7, "a", "b");
    Arc::get_mut(&mut last).unwrap().epoch_number = u64::MAX;
    let mut edit = VersionEdit::default();
    edit.add_file(0, last);
    let error = error_of(&[first_edit(), edit]);
    assert!(error.to_string().contains("epoch number"), "{error}");
}

#[test]
fn contradictions_say_where() {
    let e = error_of(&[first_edit(), added(4, "a", "b"), added(4, "a", "b")]);
    assert_eq!(e.message(), "file is added twice");
    for key in ["file", "level", "offset", "column_family"] {
        assert!(e.context(key).is_some(), "{key}: {e}");
    }
}

#[test]
fn files_without_epoch_numbers_get_some_in_their_order() {
    let mut edit = first_edit();
    for (level, line) in [
        (0, "5: a..z seq=5..5 epoch=0"),
        (0, "9: a..z seq=9..9 epoch=7"),
        (0, "7: a..z seq=7..7 epoch=0"),
        (2, "1: a..b epoch=3"),
        (2, "2: c..d epoch=0"),
        (6, "3: a..d epoch=1"),
    ] {
        edit.add_file(level, Arc::new(text::parse_file(line).unwrap()));
    }
    let m = recover_bytes(&manifest_of(&[edit])).unwrap();
    let v = m.families[&0]
        .version(&InternalKeyComparator::default(), 7)
        .unwrap();
    let epochs: Vec<_> = v
        .iter_files()
        .map(|(_, f)| (f.number, f.epoch_number))
        .collect();
    assert_eq!(epochs, [(9, 5), (7, 4), (5, 3), (1, 2), (2, 2), (3, 1)]);
}

#[test]
fn current_names_a_manifest_or_is_refused() {
    let fs = MemFileSystem::new();
    let dir = Path::new("/db");
    fs.create_dir_all(dir).unwrap();
    assert!(current(&fs, dir).unwrap_err().is_file_not_found());
    for number in [5, 1_234_567] {
        set_current(&fs, dir, number).unwrap();
        assert_eq!(current(&fs, dir).unwrap(), number);
    }
    assert_eq!(fs.list(dir).unwrap(), ["CURRENT"]);
    for bad in [
        "",
        "\n",
        "MANIFEST-000005",
        "MANIFEST-000005\n\n",
        "MANIFEST-5\n",
        "000005.sst\n",
    ] {
        write_file(&fs, &dir.join("CURRENT"), bad.as_bytes()).unwrap();
        assert_eq!(
            current(&fs, dir).unwrap_err().kind(),
            ErrorKind::Corruption,
            "{bad:?}"
        );
    }
    write_file(&fs, &dir.join("CURRENT"), &[b'M'; 1000]).unwrap();
    assert_eq!(current(&fs, dir).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn the_live_manifest_is_found_and_read() {
    let fs = MemFileSystem::new();
    let dir = Path::new("/db");
    fs.create_dir_all(dir).unwrap();
    write_file(
        &fs,
        &filename::manifest_path(dir, 5),
        &golden("rocksdb-9.8-history"),
    )
    .unwrap();
    set_current(&fs, dir, 5).unwrap();
    let (number, m) = recover_current(&fs, dir).unwrap();
    assert_eq!((number, m.last_sequence), (5, 822));
}

/// Where RocksDB's `ldb` is installed, it must read what we write.
#[test]
fn rocksdb_reads_a_manifest_that_we_wrote() {
    let dir = std::env::temp_dir().join(format!("orogen-manifest-{}", std::process::id()));
    let fs = PosixFileSystem::new();
    fs.create_dir_all(&dir).unwrap();
    let path = filename::manifest_path(&dir, 39);
    let (first, second, wals) = state();
    let mut writer = Writer::new(fs.create(&path).unwrap(), 39, false);
    snapshot(&first, &second, &wals).write(&mut writer).unwrap();
    let mut flush = VersionEdit {
        log_number: Some(35),
        ..VersionEdit::default()
    };
    flush.add_file(0, file(36, "f", "g"));
    flush.delete_file(3, 4);
    writer.add_record(&flush.encode()).unwrap();
    writer.sync().unwrap();
    drop(writer);
    let argument = format!("--path={}", path.display());
    let output = Command::new("ldb")
        .args(["manifest_dump", &argument])
        .output();
    fs.remove_file(&path).unwrap();
    fs.remove_dir(&dir).unwrap();
    let Ok(output) = output else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    for line in [
        "Column family \"default\"  (ID 0)",
        "Column family \"other\"  (ID 5)",
        "comparator: <rocksdb.ReverseBytewiseComparator>",
        " 36:100[7 .. 7]['f' seq:7, type:1 .. 'g' seq:7, type:1]",
        " 9:5[0 .. 0]['a' seq:0, type:1 .. 'z' seq:0, type:1]",
        "blob_file_number: 20 total_blob_count: 4 total_blob_bytes: 400",
        "last_sequence 1234",
        "max_column_family 6 min_log_number_to_keep 30",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains(" 4:1[0"), "{text}");
}
