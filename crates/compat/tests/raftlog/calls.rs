//! The same program, once with each crate: only the name of the crate differs.

use std::fmt::Write as _;

use orogen_testkit::TempDir;

/// A program against raft-engine's API, with that crate or another one. It tells what it was answered.
macro_rules! program {
    ($name:ident, $log:ident) => {
        mod $name {
            use std::path::Path;
            use std::str::FromStr as _;
            use std::sync::Arc;
            use std::sync::atomic::{AtomicUsize, Ordering};

            use orogen_testkit::rng::Rng;
            use protobuf::well_known_types::{Any, UInt64Value};
            use $log::env::DefaultFileSystem;
            use $log::internals::{EventListener, FileBlockHandle, FileId, FileSeq, LogQueue};
            use $log::{
                Command, Config, Engine, Error, LogBatch, MessageExt, PerfContext, ReadableSize,
                RecoveryMode, Version, get_perf_context, set_perf_context, take_perf_context,
            };

            #[derive(Clone)]
            struct Entries;

            impl MessageExt for Entries {
                type Entry = Any;

                fn index(entry: &Any) -> u64 {
                    entry.get_type_url().parse().expect("an index stands there")
                }
            }

            fn entries(first: u64, count: u64, len: usize) -> Vec<Any> {
                let entry = |index: u64| {
                    let mut any = Any::new();
                    any.set_type_url(index.to_string());
                    any.set_value(vec![index as u8; len]);
                    any
                };
                (first..first + count).map(entry).collect()
            }

            fn kind(e: &Error) -> &'static str {
                match e {
                    Error::InvalidArgument(_) => "invalid argument",
                    Error::Corruption(_) => "corruption",
                    Error::Io(_) => "io",
                    Error::Codec(_) => "codec",
                    Error::Protobuf(_) => "protobuf",
                    Error::TryAgain(_) => "try again",
                    Error::EntryCompacted => "compacted",
                    Error::EntryNotFound => "not found",
                    Error::Full => "full",
                    Error::Other(_) => "other",
                }
            }

            fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
                match result {
                    Ok(value) => format!("{value:?}"),
                    Err(e) => kind(&e).to_owned(),
                }
            }

            #[derive(Default)]
            struct Bytes {
                appended: AtomicUsize,
                applied: AtomicUsize,
            }

            impl EventListener for Bytes {
                fn post_new_log_file(&self, _: FileId) {}

                fn on_append_log_file(&self, handle: FileBlockHandle) {
                    if handle.id.queue == LogQueue::Append {
                        self.appended.fetch_add(handle.len, Ordering::Relaxed);
                    }
                }

                fn post_apply_memtables(&self, file_id: FileId) {
                    if file_id.queue == LogQueue::Append {
                        self.applied.fetch_add(1, Ordering::Relaxed);
                    }
                }

                fn first_file_not_ready_for_purge(&self, _: LogQueue) -> Option<FileSeq> {
                    None
                }

                fn post_purge(&self, _: FileId) {}
            }

            fn see(log: &Engine, answers: &mut Vec<String>) {
                let mut groups = log.raft_groups();
                groups.sort_unstable();
                answers.push(format!("groups {groups:?} empty {}", log.is_empty()));
                for group in groups {
                    see_group(log, group, answers);
                }
            }

            fn see_group(log: &Engine, group: u64, answers: &mut Vec<String>) {
                let span = (log.first_index(group), log.last_index(group));
                let mut keys = Vec::new();
                let each = |key: &[u8], value: &[u8]| {
                    keys.push((key.to_vec(), value.to_vec()));
                    true
                };
                told(log.scan_raw_messages(group, None, None, true, each));
                let mut all = Vec::new();
                let (begin, end) = (span.0.unwrap_or(1), span.1.unwrap_or(0) + 1);
                let n = log.fetch_entries_to::<Entries>(group, begin, end, None, &mut all);
                answers.push(format!("{group} {span:?} {keys:?} {} {all:?}", told(n)));
            }

            fn configs(answers: &mut Vec<String>) {
                let show = |config: &Config| serde_json::to_string(config).expect("it is plain");
                let mut config = Config::default();
                answers.push(show(&config));
                answers.push(told(config.sanitize()));
                answers.push(show(&config));
                for text in [
                    r#"{"recovery-mode":"tolerate-tail-corruption","format-version":1}"#,
                    r#"{"recovery-mode":"absolute-consistency","format-version":3}"#,
                    r#"{"target-file-size":"20GB"}"#,
                    r#"{"recovery-read-block-size":1,"recovery-threads":0,"prefill-limit":"1GB"}"#,
                    r#"{"prefill-for-recycle":true,"bytes-per-sync":"1KiB","memory-limit":7}"#,
                    r#"{"prefill-for-recycle":true,"enable-log-recycle":false}"#,
                    r#"{"purge-threshold":"x"}"#,
                    r#"{"purge-threshold":-1}"#,
                ] {
                    let config = serde_json::from_str::<Config>(text);
                    answers.push(match config {
                        Ok(mut config) => format!("{} {}", told(config.sanitize()), show(&config)),
                        Err(_) => "unread".to_owned(),
                    });
                }
                for text in [
                    "", "1", "1.5K", "3 MiB", "1e2KB", "k", "7kb", "9B", "1P", "-3", "0x1",
                ] {
                    let size = ReadableSize::from_str(text).map(|size| size.to_string());
                    answers.push(format!("{text} {:?}", size.ok()));
                }
                let modes = [
                    RecoveryMode::AbsoluteConsistency,
                    RecoveryMode::TolerateTailCorruption,
                    RecoveryMode::TolerateAnyCorruption,
                ];
                answers.push(format!(
                    "{modes:?} {}",
                    serde_json::to_string(&modes).expect("plain")
                ));
                answers.push(format!("{} {:?}", Version::V2, Version::default()));
            }

            fn edges(log: &Engine, answers: &mut Vec<String>) {
                let mut batch = LogBatch::with_capacity(3);
                answers.push(format!("{} {}", batch.is_empty(), batch.approximate_size()));
                answers.push(told(log.write(&mut batch, true)));
                answers.push(told(log.sync()));
                answers.push(told(batch.put(1, b"__\x01".to_vec(), vec![1])));
                answers.push(told(batch.put(1, b"__".to_vec(), vec![1])));
                answers.push(told(batch.add_entries::<Entries>(1, &[])));
                let mut value = UInt64Value::new();
                value.set_value(7);
                answers.push(told(batch.put_message(1, b"m".to_vec(), &value)));
                answers.push(told(batch.add_entries::<Entries>(1, &entries(10, 5, 30))));
                let mut more = LogBatch::default();
                more.add_command(3, Command::Compact { index: 4 });
                more.delete(4, b"none".to_vec());
                answers.push(told(batch.merge(&mut more)));
                answers.push(format!("{} {}", more.is_empty(), batch.is_empty()));
                answers.push(told(log.write(&mut batch, false)));
                answers.push(format!("{}", batch.is_empty()));
                see(log, answers);
                for (group, begin, end, max) in [
                    (1, 10, 15, None),
                    (1, 10, 15, Some(0)),
                    (1, 10, 15, Some(70)),
                    (1, 12, 12, None),
                    (1, 9, 12, None),
                    (1, 9, 20, None),
                    (1, 14, 16, None),
                    (1, 15, 16, None),
                    (1, 16, 17, None),
                    (3, 1, 2, None),
                    (3, 1, 1, None),
                    (5, 1, 2, None),
                ] {
                    let mut out = Vec::new();
                    let n = log.fetch_entries_to::<Entries>(group, begin, end, max, &mut out);
                    answers.push(format!("{group} {begin} {end} {max:?} {} {out:?}", told(n)));
                }
                for index in [9, 10, 14, 15] {
                    answers.push(told(log.get_entry::<Entries>(1, index)));
                }
                answers.push(told(log.get_message::<UInt64Value>(1, b"m")));
                answers.push(told(log.get_message::<UInt64Value>(1, b"__")));
                answers.push(told(log.get_message::<UInt64Value>(1, b"absent")));
                answers.push(format!("{:?} {:?}", log.get(1, b"__"), log.get(9, b"__")));
                let mut seen = Vec::new();
                let each = |key: &[u8], value: UInt64Value| {
                    seen.push((key.to_vec(), value.get_value()));
                    true
                };
                answers.push(told(log.scan_messages(1, None, None, false, each)));
                answers.push(format!("{seen:?}"));
                // Behind the end it tells more than there were, and where nothing is dropped it writes all the same.
                for index in [12, 15, 99] {
                    answers.push(format!("compacts {}", log.compact_to(1, index)));
                }
                answers.push(format!("compacts {}", log.compact_to(77, 5)));
                see(log, answers);
                batch.add_command(1, Command::Clean);
                batch.add_command(3, Command::Clean);
                answers.push(told(log.write(&mut batch, true)));
                see(log, answers);
            }

            fn random(log: &Engine, answers: &mut Vec<String>) {
                let mut rng = Rng::new(7);
                for _ in 0..400 {
                    let mut batch = LogBatch::default();
                    let group = 1 + rng.below(5);
                    let next = log.last_index(group).map_or(1, |last| last + 1);
                    let first = log.first_index(group).unwrap_or(next);
                    match rng.below(10) {
                        0 => batch.add_command(
                            group,
                            Command::Compact {
                                index: rng.below(next + 2),
                            },
                        ),
                        1 if rng.below(5) == 0 => batch.add_command(group, Command::Clean),
                        1 => batch.delete(group, vec![rng.below(4) as u8]),
                        2 => {
                            let (key, value) =
                                (vec![rng.below(4) as u8], vec![rng.below(9) as u8; 9]);
                            answers.push(told(batch.put(group, key, value)));
                        }
                        _ => {
                            let back = rng.below((next - first).min(3) + 1);
                            let list =
                                entries(next - back, 1 + rng.below(4), rng.below(300) as usize);
                            answers.push(told(batch.add_entries::<Entries>(group, &list)));
                        }
                    }
                    answers.push(told(log.write(&mut batch, rng.below(9) == 0)));
                }
                see(log, answers);
            }

            /// The answers; where they may differ is left out.
            pub(crate) fn run(dir: &Path) -> Vec<String> {
                let mut answers = Vec::new();
                configs(&mut answers);
                let config = Config {
                    dir: dir.to_str().expect("ours are").to_owned(),
                    target_file_size: ReadableSize::kb(8),
                    purge_threshold: ReadableSize::kb(32),
                    enable_log_recycle: false,
                    recovery_threads: 1,
                    ..Config::default()
                };
                let impossible = Config {
                    purge_threshold: ReadableSize::kb(1),
                    ..config.clone()
                };
                answers.push(told(Engine::open(impossible).map(|_| ())));
                let bytes = Arc::new(Bytes::default());
                let listeners = vec![bytes.clone() as Arc<dyn EventListener>];
                let log =
                    Engine::open_with_listeners(config.clone(), listeners).expect("it is new");
                answers.push(format!("{}", log.path() == config.dir));
                answers.push(format!("{:?}", log.file_span(LogQueue::Append)));
                answers.push(format!("{}", log.get_used_size()));
                answers.push(told(Engine::open(config.clone()).map(|_| ())));
                set_perf_context(PerfContext::default());
                edges(&log, &mut answers);
                random(&log, &mut answers);
                let spent = get_perf_context();
                let is_taken = [
                    spent.log_populating_duration,
                    spent.log_write_duration,
                    spent.log_sync_duration,
                    spent.apply_duration,
                ];
                answers.push(format!("{:?}", is_taken.map(|time| time.is_zero())));
                take_perf_context();
                answers.push(format!("{:?}", get_perf_context().log_write_duration));
                let applied = bytes.applied.load(Ordering::Relaxed);
                answers.push(format!(
                    "{} {applied}",
                    bytes.appended.load(Ordering::Relaxed)
                ));
                answers.push(format!("{:?}", log.file_span(LogQueue::Append)));
                let mut asked = log.purge_expired_files().expect("the disk is well");
                asked.sort_unstable();
                answers.push(format!("{asked:?} {:?}", log.file_span(LogQueue::Append)));
                // There a group that was cleaned may be back then, empty.
                let group = |group: &u64| log.last_index(*group).is_some();
                let mut groups = log.raft_groups();
                groups.sort_unstable();
                for group in groups.into_iter().filter(group) {
                    see_group(&log, group, &mut answers);
                }
                drop(log);
                answers.push(told(Engine::consistency_check(&dir.join("absent"))));
                answers.push(told(Engine::consistency_check(dir)));
                let fs = Arc::new(DefaultFileSystem);
                let dumped = Engine::dump_with_file_system(dir, fs)
                    .map(|items| items.filter(|item| item.is_err()).count());
                answers.push(told(dumped));
                answers
            }
        }
    };
}

program!(ours, orogen_raftlog);
program!(theirs, raft_engine);

#[test]
fn a_program_is_answered_the_same_with_either_crate() {
    let temp = TempDir::new("raftlog-calls");
    let own = ours::run(&temp.path().join("ours"));
    let other = theirs::run(&temp.path().join("theirs"));
    let mut differences = String::new();
    for (at, (own, other)) in own.iter().zip(&other).enumerate() {
        if own != other {
            writeln!(differences, "{at}:\n  {own}\n  {other}").expect("it is memory");
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert_eq!(own.len(), other.len());
}

#[test]
fn settings_that_only_we_have_do_not_stop_the_other() {
    let config = orogen_raftlog::Config {
        read_cache_size: orogen_raftlog::ReadableSize::mb(1),
        record_alignment: orogen_raftlog::ReadableSize::kb(4),
        ..Default::default()
    };
    let text = serde_json::to_string(&config).expect("it is plain");
    assert!(text.contains("read-cache-size"), "{text}");
    assert!(text.contains("\"record-alignment\":\"4KiB\""), "{text}");
    let read = serde_json::from_str::<raft_engine::Config>(&text);
    assert_eq!(read.expect("it is passed over").dir, config.dir);
}
