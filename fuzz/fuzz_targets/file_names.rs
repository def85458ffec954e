//! Any text as a file's name, and any bytes as `CURRENT`: what is recognised is what is printed.

#![no_main]

use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use orogen_engine::filename::{self, FileKind};
use orogen_engine::version::manifest;
use orogen_env::fs::write_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;

/// What names are made of, so that they need not be guessed.
const STARTS: [&str; 5] = ["", "MANIFEST-", "OPTIONS-", "LOG.old.", "CURRENT"];
const ENDS: [&str; 6] = ["", ".sst", ".ldb", ".log", ".blob", ".dbtmp"];

/// The names of a file of this kind; of half-written files there is no list.
fn printed(kind: FileKind) -> Option<Vec<PathBuf>> {
    let dir = Path::new("");
    Some(match kind {
        FileKind::Table(n) => vec![
            filename::table_path(dir, n),
            filename::old_table_path(dir, n),
        ],
        FileKind::Wal(n) => vec![filename::wal_path(dir, n)],
        FileKind::Blob(n) => vec![filename::blob_path(dir, n)],
        FileKind::Manifest(n) => vec![filename::manifest_path(dir, n)],
        FileKind::Options(n) => vec![filename::options_path(dir, n)],
        FileKind::Current => vec![filename::current_path(dir)],
        FileKind::Lock => vec![filename::lock_path(dir)],
        FileKind::Identity => vec![filename::identity_path(dir)],
        FileKind::InfoLog => vec![filename::info_log_path(dir)],
        FileKind::OldInfoLog(micros) => vec![filename::old_info_log_path(dir, micros)],
        FileKind::Temporary => return None,
    })
}

fn check_name(name: &str) {
    let Some(kind) = filename::parse(name) else {
        return;
    };
    assert!(!name.contains('/'), "{name} is no name of one directory");
    match printed(kind) {
        Some(names) => assert!(names.contains(&PathBuf::from(name)), "{name}: {kind:?}"),
        None => assert!(name.ends_with(".dbtmp"), "{name}"),
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(name) = std::str::from_utf8(data) {
        check_name(name);
    }
    let mut choices = Choices::new(data);
    let start = STARTS[usize::from(choices.byte()) % STARTS.len()];
    let end = ENDS[usize::from(choices.byte()) % ENDS.len()];
    let digits: String = choices
        .rest()
        .iter()
        .map(|b| char::from(b"0123456789+- ."[usize::from(*b) % 14]))
        .collect();
    check_name(&format!("{start}{digits}{end}"));
    let fs = MemFileSystem::new();
    let dir = Path::new("/db");
    fs.create_dir_all(dir).expect("memory");
    write_file(&fs, &filename::current_path(dir), data).expect("memory");
    if let Ok(number) = manifest::current(&fs, dir) {
        let want = format!("{}\n", filename::manifest_name(number));
        assert_eq!(data, want.as_bytes());
        manifest::set_current(&fs, dir, number).expect("memory");
        assert_eq!(manifest::current(&fs, dir).expect("written by us"), number);
    }
});
