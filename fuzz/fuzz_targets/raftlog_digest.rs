//! A directory of Raft logs whose digests were changed. With a wrong checksum, cut off or away it opens as without
//! digests: what is in the logs counts. With a right one a digest may say what it likes: the directory is opened or refused as
//! damaged, and what was opened can be read, written, purged and closed.

#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use orogen_base::{ErrorKind, Result};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RecoveryMode, RewriteSteps};

const DIR: &str = "/raft";
const CHANGES_MAX: usize = 4;
const CRC: usize = 4;
/// Magic bytes, number, length, version and end of the log.
const HEAD: usize = 32;

fn options(mode: RecoveryMode) -> Options {
    Options {
        recovery_mode: mode,
        target_file_size: 3000,
        batch_compression_threshold: 200,
        ..Options::default()
    }
}

/// The first and last index of a group, its entries, and its keys with values.
type Group = (Option<(u64, u64)>, Vec<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

fn content(engine: &Engine) -> Result<BTreeMap<u64, Group>> {
    let mut groups = BTreeMap::new();
    for id in engine.raft_groups() {
        let span = engine.first_index(id).zip(engine.last_index(id));
        let mut entries = Vec::new();
        if let Some((first, last)) = span {
            // A digest may tell of more entries than there are bytes.
            let end = last.saturating_add(1).min(first.saturating_add(100));
            engine.fetch_entries_to(id, first, end, None, &mut entries)?;
            engine.get_entry(id, last)?;
        }
        let mut pairs = Vec::new();
        engine.scan(id, None, None, false, |key, value| {
            pairs.push((key.to_vec(), value.to_vec()));
            true
        });
        groups.insert(id, (span, entries, pairs));
    }
    Ok(groups)
}

struct Base {
    files: BTreeMap<String, Vec<u8>>,
    digests: Vec<String>,
    content: BTreeMap<u64, Group>,
}

fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let fs = MemFileSystem::new();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let dir = Path::new(DIR);
        let engine = Engine::open(&arc, dir, options(RecoveryMode::default())).expect("memory");
        for at in 1..=60u64 {
            let mut batch = LogBatch::default();
            for group in 1..=4u64 {
                let entry = vec![at as u8; 20 + 300 * usize::from(at % 8 == group)];
                batch
                    .add_entries(group, at, &[&entry[..], b"next"])
                    .expect("fits");
            }
            let key = format!("key{}", at % 5).into_bytes();
            batch
                .put(1, key, at.to_string().into_bytes())
                .expect("fits");
            if at % 7 == 0 {
                batch.add_command(2, Command::Compact { index: at - 3 });
                batch.delete(1, b"key1".to_vec());
            }
            engine.write(&mut batch, true).expect("memory");
            if at % 20 == 0 {
                let mut batch = LogBatch::default();
                batch.add_command(at / 20, Command::Clean);
                engine.write(&mut batch, true).expect("memory");
                let mut batch = LogBatch::default();
                batch
                    .add_entries(at / 20, at + 1, &[b"again"])
                    .expect("fits");
                engine.write(&mut batch, true).expect("memory");
            }
        }
        let content = content(&engine).expect("memory");
        engine.close().expect("memory");
        let names = fs.list(dir).expect("memory").into_iter();
        let files: BTreeMap<String, Vec<u8>> = names
            .filter(|name| name != "LOCK")
            .map(|name| {
                let bytes = read_file(&fs, &dir.join(&name)).expect("memory");
                (name, bytes)
            })
            .collect();
        let digests = files.keys().filter(|name| name.ends_with(".digest"));
        let digests: Vec<String> = digests.cloned().collect();
        assert!(digests.len() > 2, "{digests:?}");
        Base {
            files,
            digests,
            content,
        }
    })
}

fuzz_target!(|data: &[u8]| {
    let base = base();
    let mut choices = Choices::new(data);
    let mode = match choices.byte() % 3 {
        0 => RecoveryMode::TolerateTailCorruption,
        1 => RecoveryMode::TolerateAnyCorruption,
        _ => RecoveryMode::AbsoluteConsistency,
    };
    let mut files = base.files.clone();
    let mut tells_lies = false;
    for _ in 0..CHANGES_MAX {
        if choices.is_empty() {
            break;
        }
        let name = &base.digests[usize::from(choices.byte()) % base.digests.len()];
        let how = choices.byte() % 8;
        if how == 0 {
            files.remove(name);
            continue;
        }
        let Some(bytes) = files.get_mut(name).filter(|bytes| bytes.len() > HEAD + CRC) else {
            continue;
        };
        if how == 1 {
            choices.change(bytes);
            continue;
        }
        bytes.truncate(bytes.len() - CRC);
        if how == 2 {
            choices.change(bytes);
        } else {
            // Its sections.
            let mut sections = bytes.split_off(HEAD);
            choices.change(&mut sections);
            bytes.extend(sections);
        }
        let sum = crc32fast::hash(bytes).to_le_bytes();
        bytes.extend(sum);
        tells_lies = true;
    }
    let fs = MemFileSystem::new();
    let dir = Path::new(DIR);
    fs.create_dir_all(dir).expect("memory");
    for (name, bytes) in &files {
        write_file(&fs, &dir.join(name), bytes).expect("memory");
    }
    let arc: Arc<dyn FileSystem> = Arc::new(fs);
    let engine = match Engine::open(&arc, dir, options(mode)) {
        Ok(engine) => engine,
        Err(e) => {
            assert!(tells_lies && e.kind() == ErrorKind::Corruption, "{e}");
            return;
        }
    };
    match content(&engine) {
        Ok(found) => assert!(tells_lies || found == base.content),
        Err(e) => assert!(tells_lies && e.kind() == ErrorKind::Corruption, "{e}"),
    }
    // It goes on.
    let mut batch = LogBatch::default();
    let next = engine.last_index(1).unwrap_or(0).saturating_add(1);
    let _ = batch.add_entries(1, next, &[[9; 300]]);
    let _ = batch.put(7, b"k".to_vec(), vec![1; 700]);
    let written = engine.write(&mut batch, true);
    assert!(tells_lies || written.is_ok());
    let purged = engine.rewrite_append_queue(None, RewriteSteps::All);
    assert!(tells_lies || purged.is_ok());
    assert!(tells_lies || engine.file_span(Queue::Rewrite).is_some());
    let closed = engine.close();
    assert!(tells_lies || closed.is_ok());
});
