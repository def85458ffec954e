//! Repairs of a directory of Raft logs by scripts, put together of pieces that scripts are made of, or of any bytes. A script is
//! refused when it is read, or it ends; what it decides about something twice is the same. A repair that fails leaves the
//! directory as it was; one that ends leaves one that opens, in which no group lacks entries.

#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use orogen_base::ErrorKind;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;
use orogen_raftlog::raw::{
    Command, Engine, LogBatch, Options, Queue, RecoveryMode, RepairScript, RewriteSteps, repair,
};

const DIR: &str = "/raft";
const PIECES_MAX: usize = 200;
/// What may be asked about: more would cost time and show nothing else.
const ASKED_MAX: usize = 40;

const PIECES: [&str; 64] = [
    "fn ",
    "filter_append",
    "filter_compact",
    "filter_clean",
    "helper",
    "(id, first, count, rewrite_count, queue, ifirst, ilast)",
    "(id, first, count, rewrite_count, queue, compact_to)",
    "(id, first, count, rewrite_count, queue)",
    "(a)",
    "{",
    "}",
    "(",
    ")",
    ";",
    ",",
    "let x = ",
    "x",
    " = ",
    "x += ",
    "x -= ",
    "if ",
    " else ",
    "while ",
    "loop ",
    "break;",
    "continue;",
    "return ",
    "id",
    "first",
    "count",
    "rewrite_count",
    "queue",
    "ifirst",
    "ilast",
    "compact_to",
    "0",
    "1",
    "2",
    "3",
    "-1",
    "9223372036854775807",
    "0x7f",
    "true",
    "false",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " == ",
    " != ",
    " < ",
    " >= ",
    " && ",
    " || ",
    "!",
    " & ",
    " << ",
    " >> ",
    " ** ",
    "helper(",
    "/* c */",
    "// c\n",
    "\n",
];

/// Whole functions, so that many scripts are ones.
const FUNCTIONS: [&str; 4] = [
    "fn filter_append(id, first, count, rewrite_count, queue, ifirst, ilast) { ",
    "fn filter_compact(id, first, count, rewrite_count, queue, compact_to) { ",
    "fn filter_clean(id, first, count, rewrite_count, queue) { ",
    "fn helper(a) { ",
];

fn script(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    let mut is_inside = false;
    for _ in 0..PIECES_MAX {
        if choices.is_empty() {
            break;
        }
        match usize::from(choices.byte()) {
            at @ 0..64 => text.push_str(PIECES[at]),
            at @ 64..80 => {
                if std::mem::replace(&mut is_inside, true) {
                    text.push_str(" }\n");
                }
                text.push_str(FUNCTIONS[at % FUNCTIONS.len()]);
            }
            80 => text.push_str(&String::from_utf8_lossy(&choices.bytes())),
            at => text.push_str(PIECES[at % PIECES.len()]),
        }
    }
    if is_inside {
        text.push_str(" }");
    }
    text
}

fn options() -> Options {
    Options {
        recovery_mode: RecoveryMode::AbsoluteConsistency,
        target_file_size: 1000,
        ..Options::default()
    }
}

/// Files of both queues.
fn base() -> &'static BTreeMap<String, Vec<u8>> {
    static BASE: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    BASE.get_or_init(|| {
        let fs = MemFileSystem::new();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let engine = Engine::open(&arc, Path::new(DIR), options()).expect("memory");
        for at in 1..=6u64 {
            let mut batch = LogBatch::default();
            for group in 1..=2u64 {
                let entries = [vec![at as u8; 100], vec![1; 30]];
                batch
                    .add_entries(group, 2 * at - 1, &entries)
                    .expect("fits");
            }
            if at == 4 {
                batch.add_command(2, Command::Compact { index: 5 });
                batch.add_command(3, Command::Clean);
            }
            engine.write(&mut batch, true).expect("memory");
            if at == 3 {
                engine
                    .rewrite_append_queue(None, RewriteSteps::All)
                    .expect("memory");
            }
        }
        assert!(engine.file_span(Queue::Rewrite).is_some());
        engine.close().expect("memory");
        files(&fs)
    })
}

fn files(fs: &MemFileSystem) -> BTreeMap<String, Vec<u8>> {
    let names = fs.list(Path::new(DIR)).expect("memory").into_iter();
    let names = names.filter(|name| name != "LOCK");
    let read = |name: String| {
        let bytes = read_file(fs, &Path::new(DIR).join(&name)).expect("memory");
        (name, bytes)
    };
    names.map(read).collect()
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let queue = match choices.byte() % 3 {
        0 => None,
        1 => Some(Queue::Append),
        _ => Some(Queue::Rewrite),
    };
    let script = match RepairScript::compile(&script(&mut choices)) {
        Ok(script) => script,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            return;
        }
    };
    let (fs, dir) = (MemFileSystem::new(), Path::new(DIR));
    fs.create_dir_all(dir).expect("memory");
    for (name, bytes) in base() {
        write_file(&fs, &dir.join(name), bytes).expect("memory");
    }
    let mut asked = 0;
    let repaired = repair(&fs, dir, None, queue, |incoming| {
        asked += 1;
        assert!(asked <= ASKED_MAX, "more than there is");
        let verdict = script.decide(incoming);
        if asked == 1 {
            let again = script.decide(incoming);
            assert_eq!(verdict.as_ref().ok(), again.as_ref().ok());
        }
        verdict
    });
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    if let Err(e) = repaired {
        let kinds = [ErrorKind::InvalidArgument, ErrorKind::Corruption];
        assert!(kinds.contains(&e.kind()), "{e}");
        assert!(
            files(&fs) == *base(),
            "a repair that failed changed something"
        );
        return;
    }
    let engine = Engine::open(&arc, dir, options()).expect("it was repaired");
    assert!(engine.fenced_groups().is_empty());
    for group in engine.raft_groups() {
        let span = engine.first_index(group).zip(engine.last_index(group));
        if let Some((first, last)) = span {
            let mut entries = Vec::new();
            engine
                .fetch_entries_to(group, first, last + 1, None, &mut entries)
                .expect("it was repaired");
            assert_eq!(entries.len() as u64, last - first + 1);
        }
    }
    engine.close().expect("memory");
});
