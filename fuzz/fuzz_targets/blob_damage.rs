//! A blob file of ours with some bytes changed, or cut off: each value is the one that was written,
//! or an error; so is each record of a walk.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use orogen_blob::format::VERSION;
use orogen_blob::{BlobFileBuilder, BlobFileBuilderOptions, BlobFileReader, BlobFileReaderOptions};
use orogen_codec::CompressionType;
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::{Choices, file};

const CODECS: [CompressionType; 4] = [
    CompressionType::None,
    CompressionType::Snappy,
    CompressionType::Lz4,
    CompressionType::Zstd,
];

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let options = BlobFileBuilderOptions {
        file_number: 7,
        compression: CODECS[usize::from(choices.byte()) % CODECS.len()],
        alignment: [0, 64, 100][usize::from(choices.byte()) % 3],
        ..BlobFileBuilderOptions::default()
    };
    let fs = MemFileSystem::new();
    let path = Path::new("/000007.blob");
    let out = fs.create(path).expect("memory takes files");
    let mut builder = BlobFileBuilder::new(out, options).expect("sound options");
    let mut written = Vec::new();
    for _ in 0..choices.byte() % 8 {
        let key = choices.key();
        let value = choices.key().repeat(usize::from(choices.byte() % 32));
        let pointer = builder.add(&key, &value).expect("memory takes values");
        written.push((pointer, key, value));
    }
    let size = builder.finish().expect("memory takes files").file_size;
    let mut bytes = read_file(&fs, path).expect("it is there");
    assert_eq!(bytes.len() as u64, size);
    let mut is_whole = true;
    while !choices.is_empty() {
        let at = choices.short() % bytes.len().max(1);
        match choices.byte() {
            0 => bytes.truncate(at),
            change => {
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= change;
                }
            }
        }
        is_whole = false;
    }
    let len = bytes.len() as u64;
    let options = BlobFileReaderOptions {
        file_number: 7,
        column_family_id: Some(0),
        ..BlobFileReaderOptions::default()
    };
    let unfinished = BlobFileReader::open_unfinished(file(&bytes[..]), len, options.clone());
    let finished = BlobFileReader::open(file(bytes), len, options);
    assert!(finished.is_ok() || !is_whole);
    for reader in [unfinished, finished].into_iter().flatten() {
        let mut intact = 0;
        for (pointer, key, value) in &written {
            if let Ok(got) = reader.get(*pointer, key, true) {
                assert!(got == value[..]);
                intact += 1;
            }
        }
        assert!(intact == written.len() || !is_whole);
        // The header has no checksum. Pointers are what its codec is compared with, and a version
        // that asks for a dictionary finds none.
        let header = reader.header();
        let is_sound =
            header.version == VERSION && written.iter().all(|(p, ..)| p.codec == header.codec);
        if !is_sound {
            continue;
        }
        let mut cursor = reader.records();
        let mut walked = 0;
        loop {
            match cursor.next() {
                Ok(Some(record)) => {
                    let known = written.iter().find(|(p, ..)| *p == record.pointer());
                    let (_, key, value) = known.expect("a record that was written");
                    assert_eq!(record.user_key, key);
                    let got = record.value().expect("its checksum holds");
                    assert!(got.as_ref() == Some(value));
                    walked += 1;
                }
                Ok(None) => break,
                Err(_) => cursor.skip_damage().expect("memory can be read"),
            }
        }
        assert!(walked == written.len() || !is_whole);
    }
});
