//! Any bytes as the list of a backup: it is listed, verified and restored, or refused.

#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_env::fs::write_file;
use orogen_env::{FileSystem, MemFileSystem};

fuzz_target!(|data: &[u8]| {
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new("/b/meta")).expect("memory");
    fs.create_dir_all(Path::new("/b/private/1"))
        .expect("memory");
    write_file(&fs, Path::new("/b/meta/1"), data).expect("memory");
    write_file(&fs, Path::new("/b/private/1/CURRENT"), b"MANIFEST-000001\n").expect("memory");
    let options = BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    let engine = BackupEngine::open("/b", options).expect("memory");
    let listed = engine.list().expect("memory");
    let damaged = engine.damaged().expect("memory");
    assert_eq!(listed.len() + damaged.len(), 1);
    if engine.verify(1).is_ok() && engine.restore(1, "/restored").is_ok() {
        assert!(fs.exists(Path::new("/restored")).expect("memory"));
    }
    // What it names lies in the directory of backups: nothing else was touched.
    for name in fs.list(Path::new("/")).expect("memory") {
        assert!(name == "b" || name.starts_with("restored"), "{name}");
    }
});
