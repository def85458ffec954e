//! A directory of Raft logs whose files were changed with a sense for their shape: records put in,
//! taken out and changed under right checksums and signatures, files cut off, taken away and
//! made spare. It is opened or refused, in any recovery mode; what was opened can be read, written,
//! purged and closed; and what was closed opens again, from digests, and holds the same.

#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use orogen_base::Result;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RecoveryMode};

const DIR: &str = "/raft";
const CHANGES_MAX: usize = 6;
/// Magic, version, alignment.
const HEADER: usize = 69;
/// Length and place of the footer.
const RECORD_HEADER: usize = 16;

/// A record without its checksums.
#[derive(Clone)]
struct Record {
    is_lz4: bool,
    block: Vec<u8>,
    footer: Vec<u8>,
}

#[derive(Clone)]
struct File {
    header: Vec<u8>,
    records: Vec<Record>,
    /// What is behind the records.
    tail: Vec<u8>,
}

fn options(mode: RecoveryMode) -> Options {
    Options {
        recovery_mode: mode,
        target_file_size: 900,
        batch_compression_threshold: 200,
        purge_threshold: 2700,
        purge_rewrite_threshold: Some(900),
        purge_rewrite_garbage_ratio: 0.3,
        ..Options::default()
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b))
}

fn parse(bytes: &[u8]) -> File {
    let mut at = HEADER.min(bytes.len());
    let header = bytes[..at].to_vec();
    let mut records = Vec::new();
    while at + RECORD_HEADER <= bytes.len() {
        let len = number(&bytes[at..at + 8]);
        let footer_at = number(&bytes[at + 8..at + 16]);
        let (is_lz4, len) = (len & 0xff == 1, len >> 8);
        let record = &bytes[at..at + len];
        let block = &record[RECORD_HEADER..footer_at];
        records.push(Record {
            is_lz4,
            block: block[..block.len().saturating_sub(4)].to_vec(),
            footer: record[footer_at..len - 4].to_vec(),
        });
        at += len;
    }
    File {
        header,
        records,
        tail: Vec::new(),
    }
}

fn encode(file: &File, seq: u64) -> Vec<u8> {
    let mut out = file.header.clone();
    for record in &file.records {
        let block = match record.block.is_empty() {
            true => Vec::new(),
            false => {
                let sum = crc32fast::hash(&record.block).to_le_bytes();
                [&record.block[..], &sum].concat()
            }
        };
        let sum = crc32fast::hash(&record.footer) ^ seq as u32;
        let footer_at = RECORD_HEADER + block.len();
        let len = footer_at + record.footer.len() + 4;
        out.extend(((len as u64) << 8 | u64::from(record.is_lz4)).to_be_bytes());
        out.extend((footer_at as u64).to_be_bytes());
        out.extend(block);
        out.extend(&record.footer);
        out.extend(sum.to_le_bytes());
    }
    out.extend(&file.tail);
    out
}

/// Both queues, spare files, and what is left in them.
fn base() -> &'static BTreeMap<String, File> {
    static BASE: OnceLock<BTreeMap<String, File>> = OnceLock::new();
    BASE.get_or_init(|| {
        let fs = MemFileSystem::new();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let mode = RecoveryMode::default();
        let options = Options {
            enable_log_digests: false,
            ..options(mode)
        };
        let engine = Engine::open(&arc, Path::new(DIR), options).expect("memory");
        for at in 1..=40u64 {
            let mut batch = LogBatch::default();
            for group in 1..=3u64 {
                let entry = vec![at as u8; 20 + 90 * usize::from(at % 8 == group)];
                batch.add_entries(group, at, &[entry]).expect("fits");
            }
            let key = format!("key{}", at % 5).into_bytes();
            batch
                .put(1, key, at.to_string().into_bytes())
                .expect("fits");
            if at % 7 == 0 {
                batch.add_command(2, Command::Compact { index: at - 3 });
                batch.delete(1, b"key1".to_vec());
            }
            if at == 20 {
                batch.add_command(3, Command::Clean);
            }
            engine.write(&mut batch, true).expect("memory");
            engine.purge_expired_files().expect("memory");
        }
        assert!(engine.file_span(Queue::Rewrite).is_some());
        engine.close().expect("memory");
        let names = fs.list(Path::new(DIR)).expect("memory").into_iter();
        let files = names.filter(|name| name != "LOCK").map(|name| {
            let bytes = read_file(&fs, &Path::new(DIR).join(&name)).expect("memory");
            let file = match name.ends_with(".reserved") {
                true => File {
                    header: Vec::new(),
                    records: Vec::new(),
                    tail: bytes,
                },
                false => parse(&bytes),
            };
            (name, file)
        });
        files.collect()
    })
}

fn change(files: &mut BTreeMap<String, File>, choices: &mut Choices<'_>) {
    let at = usize::from(choices.byte()) % files.len();
    let name = files.keys().nth(at).expect("it was counted").clone();
    let what = choices.byte();
    if what == 0 && files.len() > 1 {
        files.remove(&name);
        return;
    }
    let file = files.get_mut(&name).expect("it is there");
    let at = usize::from(choices.byte()) % (file.records.len() + 1);
    match what % 8 {
        0 => choices.change(&mut file.header),
        1 => choices.change(&mut file.tail),
        2 => file.records.insert(
            at,
            Record {
                is_lz4: choices.byte() & 1 == 1,
                block: choices.bytes(),
                footer: choices.bytes(),
            },
        ),
        3 if at < file.records.len() => drop(file.records.remove(at)),
        4 if at < file.records.len() => {
            let again = file.records[at].clone();
            file.records.push(again);
        }
        5 => {
            if let Some(record) = file.records.get_mut(at) {
                choices.change(&mut record.block);
            }
        }
        _ => {
            if let Some(record) = file.records.get_mut(at) {
                choices.change(&mut record.footer);
            }
        }
    }
}

/// Indexes, where entries are missing before, entries, and keys with values.
type Group = (
    Option<(u64, u64)>,
    Option<u64>,
    Vec<Vec<u8>>,
    Vec<(Vec<u8>, Vec<u8>)>,
);

/// All that is there, but for the entries of groups that are fenced. Where entries are told to be there in numbers that no file has room for, the last ones.
fn content(engine: &Engine) -> Result<BTreeMap<u64, Group>> {
    let mut groups = BTreeMap::new();
    let fenced = engine.fenced_groups();
    for id in engine.raft_groups() {
        let span = engine.first_index(id).zip(engine.last_index(id));
        let missing = fenced.iter().find(|fenced| fenced.group == id);
        let mut entries = Vec::new();
        if let Some((first, last)) = span
            && missing.is_none()
        {
            engine.fetch_entries_to(id, first, last.saturating_add(1), None, &mut entries)?;
            engine.get_entry(id, last)?;
        }
        let mut pairs = Vec::new();
        engine.scan(id, None, None, false, |key, value| {
            pairs.push((key.to_vec(), value.to_vec()));
            true
        });
        let missing = missing.map(|fenced| fenced.missing_before);
        groups.insert(id, (span, missing, entries, pairs));
    }
    Ok(groups)
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let mode = match choices.byte() % 3 {
        0 => RecoveryMode::TolerateTailCorruption,
        1 => RecoveryMode::TolerateAnyCorruption,
        _ => RecoveryMode::AbsoluteConsistency,
    };
    let mut files = base().clone();
    for _ in 0..CHANGES_MAX {
        if choices.is_empty() {
            break;
        }
        change(&mut files, &mut choices);
    }
    let fs = MemFileSystem::new();
    let dir = Path::new(DIR);
    fs.create_dir_all(dir).expect("memory");
    for (name, file) in &files {
        let seq = name[..16].parse().unwrap_or(0);
        write_file(&fs, &dir.join(name), &encode(file, seq)).expect("memory");
    }
    let arc: Arc<dyn FileSystem> = Arc::new(fs);
    let Ok(engine) = Engine::open(&arc, dir, options(mode)) else {
        return;
    };
    let before = content(&engine);
    if engine.close().is_err() {
        return;
    }
    let engine = Engine::open(&arc, dir, options(mode)).expect("it was opened and closed");
    if let (Ok(before), Ok(after)) = (&before, content(&engine)) {
        assert!(*before == after, "opened twice");
    }
    // It goes on.
    let mut batch = LogBatch::default();
    let next = engine.last_index(1).unwrap_or(0).saturating_add(1);
    let _ = batch.add_entries(1, next, &[[9; 300]]);
    let _ = batch.put(7, b"k".to_vec(), vec![1; 700]);
    let _ = engine.write(&mut batch, true);
    let written = content(&engine);
    let purged = engine.purge_expired_files();
    assert!(purged.is_err() || engine.fenced_groups().is_empty());
    if let (Ok(written), Ok(after)) = (&written, content(&engine)) {
        assert!(*written == after, "a purge changed something");
    }
    if purged.is_err() || engine.close().is_err() {
        return;
    }
    let engine = Engine::open(&arc, dir, options(mode)).expect("it was opened and closed");
    if let (Ok(written), Ok(after)) = (&written, content(&engine)) {
        assert!(*written == after, "written, purged and opened");
    }
});
