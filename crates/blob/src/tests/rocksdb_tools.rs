//! RocksDB's own `ldb` goes through what this crate writes, and this crate through what it writes.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use orogen_env::PosixFileSystem;
use orogen_testkit::TempDir;

use super::*;

/// The output of `ldb`, or nothing if it is not installed.
fn ldb<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>, input: &str) -> Option<String> {
    let started = Command::new("ldb")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            println!("ldb is not installed: not checked");
            return None;
        }
        Err(e) => panic!("cannot run ldb: {e}"),
    };
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, b| {
        let _ = write!(out, "{b:02X}");
        out
    })
}

#[test]
fn ldb_goes_through_our_files_from_front_to_back() {
    let dir = TempDir::new("orogen-blob");
    let mut rng = Rng::new(31);
    for codec in WRITABLE {
        let mut records = records(&mut rng, 40, 400);
        records.push((b"empty".to_vec(), Vec::new()));
        let (bytes, _, summary) = build(options(codec), &records);
        let path = dir.path().join("000007.blob");
        std::fs::write(&path, &bytes).unwrap();
        let path = format!("--path={}", path.display());
        let (flag, blob) = match codec {
            CompressionType::None => ("--hex", "\n  blob       : "),
            _ => ("--dump_uncompressed_blobs", "\n  raw blob   : "),
        };
        let Some(text) = ldb(["dump", &path, "--hex", flag], "") else {
            return;
        };
        for (key, value) in &records {
            let key = format!("key        : {}\n", hex(key));
            let at = text
                .find(&key)
                .unwrap_or_else(|| panic!("{codec:?}: {key}"));
            let rest = &text[at..];
            let value_at = rest.find(blob).unwrap() + blob.len();
            let line = rest[value_at..].lines().next().unwrap();
            assert_eq!(line, hex(value), "{codec:?}");
        }
        assert!(text.contains(&format!("Blob count       : {}\n", records.len())));
        // The records that are not the user's are gone through as well: that of the index, the
        // properties, the tail.
        let all = format!("total records: {}\n", records.len() + 3);
        assert!(text.contains(&all), "{codec:?}\n{text}");
        assert!(!text.to_lowercase().contains("corruption"), "{text}");
        assert_eq!(summary.total_blob_count, records.len() as u64);
    }
}

#[test]
fn ldb_refuses_a_file_with_a_dictionary_by_its_version() {
    let dir = TempDir::new("orogen-blob");
    let mut options = options(CompressionType::Zstd);
    options.dictionary = Some(b"the quick brown fox jumps over the lazy dog"[..].into());
    let (bytes, ..) = build(
        options,
        &vec![(b"k".to_vec(), b"the quick brown fox".to_vec())],
    );
    let path = dir.path().join("000007.blob");
    std::fs::write(&path, &bytes).unwrap();
    let Some(text) = ldb(["dump", &format!("--path={}", path.display())], "") else {
        return;
    };
    assert!(text.contains("Unknown header version"), "{text}");
}

#[test]
fn files_of_rocksdb_are_read_record_by_record() {
    let mut rng = Rng::new(32);
    for (name, codec) in [
        ("no", CompressionType::None),
        ("snappy", CompressionType::Snappy),
        ("lz4", CompressionType::Lz4),
        ("lz4hc", CompressionType::Lz4hc),
        ("zstd", CompressionType::Zstd),
    ] {
        let dir = TempDir::new("orogen-blob");
        let db = format!("--db={}", dir.path().join("db").display());
        let compression = format!("--blob_compression_type={name}");
        let common = [
            &db,
            "--hex",
            "--enable_blob_files",
            "--min_blob_size=1",
            &compression,
        ];
        let mut want = records(&mut rng, 100, 5000);
        want.retain(|(_, value)| !value.is_empty());
        let mut lines = String::new();
        for (key, value) in &want {
            let _ = writeln!(lines, "0x{} ==> 0x{}", hex(key), hex(value));
        }
        let load = ["load", "--create_if_missing", "--bulk_load"];
        if ldb(load.iter().copied().chain(common), &lines).is_none() {
            return;
        }
        ldb(["compact"].into_iter().chain(common), "").unwrap();
        let fs = PosixFileSystem::new();
        let mut seen = Vec::new();
        for entry in std::fs::read_dir(dir.path().join("db")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "blob") {
                continue;
            }
            let file = fs.open(&path, Access::Random).unwrap();
            let size = file.size().unwrap();
            let options = BlobFileReaderOptions {
                file_number: 9,
                column_family_id: Some(0),
                ..BlobFileReaderOptions::default()
            };
            let reader = BlobFileReader::open(file, size, options).unwrap();
            assert_eq!(reader.header().codec, codec);
            assert!(reader.meta_index().unwrap().is_none());
            let before = seen.len() as u64;
            let mut cursor = reader.records();
            while let Some(record) = cursor.next().unwrap() {
                let value = record.value().unwrap().unwrap();
                let got = reader.get(record.pointer(), record.user_key, true).unwrap();
                assert!(got == value[..]);
                seen.push((record.user_key.to_vec(), value));
            }
            assert_eq!(reader.record_count(), Some(seen.len() as u64 - before));
            assert_eq!(cursor.position(), size - 32);
            assert_eq!(cursor.zeros(), 0);
        }
        seen.sort();
        assert!(seen == want, "{name}: {} of {}", seen.len(), want.len());
    }
}
