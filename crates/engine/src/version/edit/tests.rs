use orogen_base::ErrorKind;
use orogen_base::coding::put_fixed64;
use orogen_base::key::{ParsedInternalKey, ValueKind};

use super::*;
use crate::version::file_meta::{FileChecksum, Temperature};

struct Random(u64);

impl Random {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % n
    }

    fn chance(&mut self) -> bool {
        self.next(2) == 0
    }

    fn number(&mut self) -> u64 {
        let bits = self.next(64);
        (self.0 ^ (self.0 >> 29)) >> bits
    }

    fn bytes(&mut self, n: u64) -> Vec<u8> {
        (0..self.next(n)).map(|_| self.next(256) as u8).collect()
    }

    fn key(&mut self) -> Vec<u8> {
        let kinds = [
            ValueKind::Value,
            ValueKind::Deletion,
            ValueKind::RangeDeletion,
        ];
        let kind = kinds[self.next(3) as usize];
        ParsedInternalKey {
            user_key: &self.bytes(20),
            seqno: self.number() >> 8,
            kind,
        }
        .encode()
    }

    fn file(&mut self) -> FileMeta {
        let checksum = FileChecksum {
            func_name: b"crc".to_vec(),
            value: self.bytes(9),
        };
        FileMeta {
            number: self.number() >> 2,
            path_id: self.next(4) as u32,
            size: self.number(),
            smallest: self.key(),
            largest: self.key(),
            smallest_seqno: self.number() >> 8,
            largest_seqno: self.number() >> 8,
            marked_for_compaction: self.chance(),
            oldest_ancester_time: self.number(),
            file_creation_time: self.number(),
            epoch_number: self.next(3),
            file_checksum: self.chance().then_some(checksum),
            unique_id: [self.next(2), self.number()],
            temperature: Temperature(self.next(17) as u8),
            tail_size: self.next(3),
            compensated_range_deletion_size: self.next(3),
            oldest_blob_file_number: self.next(3),
            user_defined_timestamps_persisted: self.chance(),
            min_timestamp: self.bytes(3),
            max_timestamp: self.bytes(3),
            file_open_metadata: self.bytes(3),
            ..FileMeta::default()
        }
    }

    fn maybe(&mut self) -> Option<u64> {
        self.chance().then(|| self.number())
    }

    fn edit(&mut self) -> VersionEdit {
        let mut edit = VersionEdit {
            db_id: self.chance().then(|| "id".to_owned()),
            comparator: self.chance().then(|| "order".to_owned()),
            log_number: self.maybe(),
            prev_log_number: self.maybe(),
            next_file_number: self.maybe(),
            max_column_family: self.maybe().map(|n| n as u32),
            min_log_number_to_keep: self.maybe(),
            last_sequence: self.maybe(),
            wal_deletion: self.maybe(),
            column_family: self.next(3) as u32,
            column_family_change: match self.next(3) {
                0 => Some(ColumnFamilyChange::Add("name".to_owned())),
                1 => Some(ColumnFamilyChange::Drop),
                _ => None,
            },
            atomic_group_remaining: self.maybe().map(|n| n as u32),
            full_history_ts_low: self.chance().then(|| vec![7; 8]),
            persist_user_defined_timestamps: self.maybe().map(|n| n % 2 == 0),
            last_compacted_manifest_file_size: self.maybe(),
            ..VersionEdit::default()
        };
        for _ in 0..self.next(3) {
            let level = self.next(64) as usize;
            edit.compact_cursors.push((level, self.key()));
            edit.deleted_files.push((level, self.number()));
            edit.new_files.push((level, Arc::new(self.file())));
            edit.blob_file_additions.push(BlobFileAddition {
                number: self.number(),
                total_blob_count: self.number(),
                total_blob_bytes: self.number(),
                overhead_bytes: self.maybe().unwrap_or(0) >> 1,
                checksum_method: self.bytes(4),
                checksum_value: self.bytes(4),
                ..BlobFileAddition::default()
            });
            edit.blob_file_garbages.push(BlobFileGarbage {
                number: self.number(),
                garbage_blob_count: self.number(),
                garbage_blob_bytes: self.number(),
                given_up_bytes: None,
            });
            let (number, synced_size) = (self.number(), self.maybe());
            edit.wal_additions.push(WalAddition {
                number,
                synced_size,
            });
        }
        edit
    }
}

#[test]
fn a_record_gives_back_the_edit_it_was_made_from() {
    let mut random = Random(1);
    for _ in 0..2000 {
        let edit = random.edit();
        assert_eq!(VersionEdit::decode(&edit.encode()).unwrap(), edit);
    }
    assert_eq!(VersionEdit::decode(&[]).unwrap(), VersionEdit::default());
}

#[test]
fn damaged_records_are_errors_or_other_edits_but_never_panic() {
    let mut random = Random(2);
    for _ in 0..300 {
        let mut record = random.edit().encode();
        for len in 0..record.len() {
            let _ = VersionEdit::decode(&record[..len]);
        }
        for at in 0..record.len() {
            let bit = 1 << random.next(8);
            record[at] ^= bit;
            let _ = VersionEdit::decode(&record);
            record[at] ^= bit;
        }
    }
}

#[test]
fn unknown_tags_are_skipped_only_where_the_format_allows_it() {
    let mut record = Vec::new();
    put_number(&mut record, LOG_NUMBER, Some(5));
    put_string(&mut record, SKIPPABLE + 500, Some("from the future"));
    put_number(&mut record, NEXT_FILE_NUMBER, Some(6));
    let edit = VersionEdit::decode(&record).unwrap();
    assert_eq!((edit.log_number, edit.next_file_number), (Some(5), Some(6)));

    let mut record = Vec::new();
    put_number(&mut record, LOG_NUMBER, Some(5));
    put_string(&mut record, 500, Some("from the future"));
    let error = VersionEdit::decode(&record).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(
        (error.context("tag"), error.context("byte")),
        (Some("500"), Some("2"))
    );
}

fn new_file_4(custom: &[(u32, &[u8])]) -> Vec<u8> {
    let key = ParsedInternalKey {
        user_key: b"k",
        seqno: 3,
        kind: ValueKind::Value,
    }
    .encode();
    let mut record = Vec::new();
    put_varint32(&mut record, NEW_FILE_4);
    for v in [2, 9, 100] {
        put_varint64(&mut record, v);
    }
    put_length_prefixed(&mut record, &key);
    put_length_prefixed(&mut record, &key);
    put_varint64(&mut record, 3);
    put_varint64(&mut record, 3);
    for (tag, bytes) in custom {
        put_varint32(&mut record, *tag);
        put_length_prefixed(&mut record, bytes);
    }
    put_varint32(&mut record, 1);
    record
}

#[test]
fn unknown_custom_fields_are_skipped_only_where_the_format_allows_it() {
    let record = new_file_4(&[(63, b"from the future"), (13, &[8]), (9, &[200])]);
    let edit = VersionEdit::decode(&record).unwrap();
    let (level, file) = &edit.new_files[0];
    assert_eq!(
        (*level, file.number, file.size, file.epoch_number),
        (2, 9, 100, 8)
    );
    assert_eq!(
        file.temperature,
        Temperature::UNKNOWN,
        "a temperature that is not known"
    );

    let error = VersionEdit::decode(&new_file_4(&[(66, b"")])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(error.context("file_number"), Some("9"));
    assert!(
        VersionEdit::decode(&new_file_4(&[(65, &[4])])).is_err(),
        "path id too large"
    );
    assert!(
        VersionEdit::decode(&new_file_4(&[(2, b"ab")])).is_err(),
        "flag too long"
    );
}

#[test]
fn older_records_of_files_are_read() {
    let key = ParsedInternalKey {
        user_key: b"k",
        seqno: 3,
        kind: ValueKind::Value,
    }
    .encode();
    for (tag, path, seqnos) in [
        (NEW_FILE, None, false),
        (NEW_FILE_2, None, true),
        (NEW_FILE_3, Some(2), true),
    ] {
        let mut record = Vec::new();
        put_varint32(&mut record, tag);
        put_varint64(&mut record, 1);
        put_varint64(&mut record, 9);
        if let Some(path) = path {
            put_varint32(&mut record, path);
        }
        put_varint64(&mut record, 100);
        put_length_prefixed(&mut record, &key);
        put_length_prefixed(&mut record, &key);
        if seqnos {
            put_varint64(&mut record, 3);
            put_varint64(&mut record, 4);
        }
        put_number(&mut record, LOG_NUMBER, Some(5));
        let edit = VersionEdit::decode(&record).unwrap();
        let f = &edit.new_files[0].1;
        assert_eq!(
            (edit.new_files[0].0, f.number, f.size, f.path_id),
            (1, 9, 100, path.unwrap_or(0))
        );
        assert_eq!(
            (f.smallest_seqno, f.largest_seqno),
            if seqnos { (3, 4) } else { (0, 0) }
        );
        assert_eq!(edit.log_number, Some(5));
    }
}

#[test]
fn records_that_came_without_a_length_are_read() {
    let mut record = Vec::new();
    put_varint32(&mut record, WAL_ADDITION_DEPRECATED);
    WalAddition {
        number: 4,
        synced_size: Some(10),
    }
    .encode(&mut record);
    put_number(&mut record, WAL_DELETION_DEPRECATED, Some(4));
    put_varint32(&mut record, BLOB_FILE_ADDITION_DEPRECATED);
    BlobFileAddition {
        number: 8,
        ..Default::default()
    }
    .encode(&mut record);
    put_varint32(&mut record, BLOB_FILE_GARBAGE_DEPRECATED);
    BlobFileGarbage {
        number: 8,
        ..Default::default()
    }
    .encode(&mut record);
    let edit = VersionEdit::decode(&record).unwrap();
    assert_eq!(edit.wal_additions[0].synced_size, Some(10));
    assert_eq!(edit.wal_deletion, Some(4));
    assert_eq!(
        (
            edit.blob_file_additions[0].number,
            edit.blob_file_garbages[0].number
        ),
        (8, 8)
    );
}

#[test]
fn the_log_number_to_keep_is_repeated_in_the_first_file() {
    let mut log_number = Vec::new();
    put_fixed64(&mut log_number, 77);
    let record = new_file_4(&[(3, &log_number)]);
    let edit = VersionEdit::decode(&record).unwrap();
    assert_eq!(edit.min_log_number_to_keep, Some(77));
    let twice = VersionEdit {
        min_log_number_to_keep: Some(77),
        new_files: vec![edit.new_files[0].clone(), edit.new_files[0].clone()],
        ..VersionEdit::default()
    };
    let bytes = twice.encode();
    let count = bytes.windows(8).filter(|w| *w == log_number).count();
    assert_eq!(count, 1);
}

#[test]
fn bounds_may_have_kinds_that_no_entry_has() {
    // Where RocksDB cuts a range tombstone it writes a kind above all others: 0x18 in 7.8, 0x1a
    // in 9.8.
    let file = |kind: u64| {
        let mut key = b"k".to_vec();
        put_fixed64(&mut key, (9 << 8) | kind);
        let mut edit = VersionEdit::default();
        edit.add_file(
            0,
            Arc::new(FileMeta {
                smallest: key.clone(),
                largest: key,
                ..FileMeta::default()
            }),
        );
        edit
    };
    for kind in [0x16, 0x18, 0x1a, 0x7f] {
        let edit = file(kind);
        assert_eq!(VersionEdit::decode(&edit.encode()).unwrap(), edit);
    }
    let error = VersionEdit::decode(&file(0x80).encode()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
}

#[test]
fn what_is_ours_in_a_blob_file_is_a_dead_record_to_rocksdb() {
    let addition = BlobFileAddition {
        number: 8,
        total_blob_count: 10,
        total_blob_bytes: 1000,
        overhead_bytes: 77,
        ..BlobFileAddition::default()
    };
    let mut edit = VersionEdit::default();
    edit.blob_file_additions.push(addition.clone());
    let record = edit.encode();
    assert_eq!(VersionEdit::decode(&record).unwrap(), edit);
    // As one reads it that knows neither tag.
    let mut input = Decoder::new(&record);
    let mut numbers =
        |n: usize| -> Vec<u64> { (0..n).map(|_| input.varint64("number").unwrap()).collect() };
    // The tag; number, count, bytes; two empty checksums; a field of ours; its end.
    let tag = u64::from(BLOB_FILE_ADDITION);
    assert_eq!(numbers(9), [tag, 8, 11, 1077, 0, 0, 33, 1, 77]);
    assert_eq!(numbers(1), [0]);
    let tag = u64::from(BLOB_FILE_GARBAGE);
    assert_eq!(numbers(7), [tag, 8, 1, 77, 34, 0, 0]);
    // And as it would write it anew.
    let known = BlobFileAddition {
        total_blob_count: 11,
        total_blob_bytes: 1077,
        overhead_bytes: 0,
        ..addition.clone()
    };
    let size = 30 + 1077 + 32;
    for told in [&addition, &known] {
        assert!(told.tells_of(10, None, size) && told.tells_of(10, Some(1000), size));
        assert!(!told.tells_of(10, None, size + 1) || told.total_blob_count == 10);
        assert!(!told.tells_of(9, None, size) && !told.tells_of(12, None, size));
        assert!(!told.tells_of(10, Some(999), size) || told.total_blob_count == 11);
    }
}
