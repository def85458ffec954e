//! Any edits as a MANIFEST: replayed without a panic, to a state that can be drawn.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_engine::version::manifest;
use orogen_env::MemFileSystem;
use orogen_env::fs::{Access, FileSystem};
use orogen_fuzz::{Choices, file};
use orogen_wal::Writer;
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    // The bytes as they are, for the golden files; then as edits in a sound log.
    if let Ok(recovered) = manifest::recover(file(data)) {
        assert!(!recovered.to_text().is_empty());
    }
    let fs = MemFileSystem::new();
    let path = Path::new("/MANIFEST");
    let mut writer = Writer::new(fs.create(path).expect("memory"), 0, false);
    let mut choices = Choices::new(data);
    while !choices.is_empty() {
        let len = choices.short();
        let rest = choices.rest();
        let (record, rest) = rest.split_at(len.min(rest.len()));
        writer.add_record(record).expect("memory");
        choices = Choices::new(rest);
    }
    drop(writer);
    let log = fs.open(path, Access::Sequential).expect("memory");
    if let Ok(recovered) = manifest::recover(log) {
        assert!(!recovered.to_text().is_empty());
    }
});
