//! Many groups that append, compact themselves now and then, and make room: what a store of a Raft
//! cluster does to its log.
//!
//! `cargo run --release -p orogen-raftlog --example append_compact_purge [seconds]`, 5 by default. It
//! leaves nothing behind.

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use orogen_env::Stopwatch;
use orogen_raftlog::internals::LogQueue;
use orogen_raftlog::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;
use protobuf::well_known_types::{Any, UInt64Value};

const GROUPS: u64 = 256;
/// Entries that a group keeps when it compacts itself.
const KEPT: u64 = 32;
const APPLIED: &[u8] = b"applied";

/// Any message can be an entry as long as it tells its index.
struct Entries;

impl MessageExt for Entries {
    type Entry = Any;

    fn index(e: &Any) -> u64 {
        e.get_type_url().parse().unwrap_or(0)
    }
}

fn entry(index: u64, len: usize) -> Any {
    let mut entry = Any::new();
    entry.set_type_url(index.to_string());
    entry.set_value(vec![b'x'; len]);
    entry
}

/// Appends an entry to a group, with a key that says so, and drops what is old.
fn append(
    log: &Engine,
    batch: &mut LogBatch,
    rng: &mut Rng,
    group: u64,
) -> Result<(), Box<dyn Error>> {
    let index = log.last_index(group).map_or(1, |last| last + 1);
    batch.add_entries::<Entries>(group, &[entry(index, 16 << 10)])?;
    let mut applied = UInt64Value::new();
    applied.set_value(index);
    batch.put_message(group, APPLIED.to_vec(), &applied)?;
    if index.is_multiple_of(2 * KEPT) && rng.below(4) > 0 {
        let index = index - KEPT;
        batch.add_command(group, Command::Compact { index });
    }
    log.write(batch, false)?;
    Ok(())
}

/// What a store does, for so long, in a directory of its own; what there is to be told about it.
fn run(time: Duration) -> Result<String, Box<dyn Error>> {
    let dir = TempDir::new("append-compact-purge");
    let config = Config {
        dir: dir.path().display().to_string(),
        target_file_size: ReadableSize::mb(16),
        purge_threshold: ReadableSize::mb(256),
        batch_compression_threshold: ReadableSize(0),
        ..Config::default()
    };
    let log = Engine::open(config)?;
    let mut rng = Rng::new(1);
    let mut batch = LogBatch::default();
    let (mut appended, mut forced) = (0u64, 0u64);
    let watch = Stopwatch::start();
    while watch.elapsed() < time {
        for _ in 0..1024 {
            // Some groups are much busier than others.
            let group = rng.below(GROUPS).min(rng.below(GROUPS));
            append(&log, &mut batch, &mut rng, group)?;
            appended += 1;
        }
        // Groups whose old entries hold old files: drop those, so that they need not be moved.
        for group in log.purge_expired_files()? {
            let last = log.get_message::<UInt64Value>(group, APPLIED)?;
            let last = last.map_or(0, |last| last.get_value());
            forced += log.compact_to(group, last.saturating_sub(KEPT / 4));
        }
    }
    log.sync()?;
    let metrics = log.metrics();
    Ok(format!(
        "{appended} entries appended, {forced} dropped on request, {} in use, files {:?} and {:?}\n\
         {} bytes appended, {} of them moved by {} purges, {} groups returned by them\n",
        ReadableSize::mb(ReadableSize(log.get_used_size() as u64).as_mb()),
        log.file_span(LogQueue::Append),
        log.file_span(LogQueue::Rewrite),
        metrics.appended_bytes.append + metrics.appended_bytes.rewrite,
        metrics.appended_bytes.rewrite,
        metrics.purge_duration.count(),
        metrics.purge_groups_returned,
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |n| n.parse())?;
    let told = run(Duration::from_secs(seconds))?;
    std::io::stdout().write_all(told.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_appends_and_purges() {
        let told = run(Duration::from_millis(500)).unwrap();
        assert!(told.contains(" entries appended, "), "{told}");
        assert!(!told.contains(" by 0 purges"), "{told}");
    }
}
