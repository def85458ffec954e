//! A log that was written, then cut off or damaged in one place: what is read is what was
//! written, in order, and complete up to the damage.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::{Choices, file};
use orogen_wal::{ReadOutcome, Reader, Writer};

const LOG_NUMBER: u64 = 7;

struct Written {
    bytes: Vec<u8>,
    /// Each record, with the file's size after it.
    records: Vec<(Vec<u8>, usize)>,
}

fn write(choices: &mut Choices<'_>) -> Written {
    let fs = MemFileSystem::new();
    let path = Path::new("/log");
    let file = fs.create(path).expect("memory has room");
    let mut writer = Writer::new(file, LOG_NUMBER, choices.byte() & 1 == 1);
    let mut records = Vec::new();
    for _ in 0..1 + choices.byte() % 12 {
        // Mostly small, at times longer than a block.
        let mut len = choices.short();
        if len & 3 != 3 {
            len >>= 6;
        }
        let record = vec![choices.byte(); len];
        writer.add_record(&record).expect("memory has room");
        records.push((record, writer.size() as usize));
    }
    let bytes = read_file(&fs, path).expect("it was just written");
    assert_eq!(bytes.len() as u64, writer.size());
    Written { bytes, records }
}

/// Every record that is read; damage between them is skipped.
fn read(bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(file(bytes), LOG_NUMBER).expect("memory can be read");
    let mut records = Vec::new();
    let mut record = Vec::new();
    loop {
        match reader
            .read_record(&mut record)
            .expect("the log is not compressed")
        {
            ReadOutcome::Record { .. } => records.push(record.clone()),
            ReadOutcome::Damage(_) => {}
            ReadOutcome::EndOfLog { .. } => return records,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let Written { mut bytes, records } = write(&mut choices);
    let all: Vec<Vec<u8>> = records.iter().map(|(record, _)| record.clone()).collect();
    assert_eq!(read(bytes.clone()), all);

    let place = (choices.short() << 8 | usize::from(choices.byte())) % bytes.len().max(1);
    let before = records.iter().filter(|(_, end)| *end <= place).count();
    let mask = choices.byte();
    if mask == 0 {
        bytes.truncate(place);
        assert_eq!(read(bytes), all[..before], "cut off at {place}");
        return;
    }
    if let Some(byte) = bytes.get_mut(place) {
        *byte ^= mask;
    }
    // The checksum covers the type and the bytes: one changed byte cannot pass.
    let got = read(bytes);
    assert_eq!(got[..before], all[..before], "damaged at {place}");
    let mut rest = all.iter();
    for (at, record) in got.iter().enumerate() {
        assert!(rest.any(|r| r == record), "record {at} was never written");
    }
});
