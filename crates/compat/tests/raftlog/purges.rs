//! The same history with purges in both: which groups are to be compacted, and what is there after it.

use std::collections::BTreeMap;

use orogen_raftlog::raw::Queue;
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::histories::{self, Batch, Op, Seen};
use crate::theirs::Theirs;
use crate::{ours, seeds};

/// First and next index of each group.
#[derive(Default)]
struct Spans(BTreeMap<u64, (u64, u64)>);

impl Spans {
    /// Entries most often, so that groups have many old ones; some are cleaned, and some keys are deleted.
    fn batch(&mut self, rng: &mut Rng) -> Batch {
        let group = 1 + rng.below(8);
        let (first, next) = self.0.get(&group).copied().unwrap_or((1, 1));
        let key = || vec![b'a' + (next % 5) as u8];
        let op = match rng.below(40) {
            0 => {
                self.0.remove(&group);
                Op::Clean
            }
            1..4 => Op::Put(key(), rng.bytes(20)),
            4 => Op::Delete(key()),
            // Those of high numbers are seldom compacted.
            5..12 if rng.below(8) >= group && first < next => {
                let index = first + rng.below(next - first);
                self.0.insert(group, (index, next));
                Op::Compact(index)
            }
            _ => {
                let begin = match first < next && rng.chance(1, 6) {
                    true => next - 1 - rng.below((next - first).min(4)),
                    false => next,
                };
                let payloads: Vec<_> = (0..rng.range(1..6)).map(|n| rng.bytes(20 + n)).collect();
                self.0.insert(group, (first, begin + payloads.len() as u64));
                Op::Entries(begin, payloads)
            }
        };
        Batch(vec![(group, op)])
    }

    fn compacted(&mut self, group: u64) -> Option<Batch> {
        let (_, next) = *self.0.get(&group)?;
        self.0.insert(group, (next - 1, next));
        Some(Batch(vec![(group, Op::Compact(next - 1))]))
    }
}

#[test]
fn purges_ask_for_the_same_groups_and_leave_the_same() {
    let (mut asked, mut purged, mut rewritten) = (0, 0, 0);
    for seed in seeds(8) {
        let temp = TempDir::new("raftlog-original");
        let mut rng = Rng::new(seed);
        let mut options = histories::options(&mut rng);
        // What it compresses it stores so, even if that is longer, and it aligns nothing: other records begin other files.
        options.batch_compression_threshold = 0;
        options.record_alignment = 0;
        options.enable_log_recycle = false;
        options.purge_threshold = options.target_file_size * 4;
        // When the rewrite queue is written anew, which brings up groups as well, hangs on how long it is; ours has
        // records of what is gone there, which the original has not, so that it comes sooner or later. What is there is the same all the while.
        let is_written_anew = seed % 3 == 0;
        options.purge_rewrite_threshold = match is_written_anew {
            true => Some(options.target_file_size),
            false => Some(u64::MAX),
        };
        options.purge_rewrite_garbage_ratio = 0.3;
        // As the original empties files. Else each of ours empties fewer, so that other groups come to have many old entries.
        if !is_written_anew {
            options.purge_headroom_ratio = 1.0;
        }
        let dirs = ["ours", "theirs"].map(|name| temp.path().join(name));
        let (own, other) = (ours(&dirs[0], &options), Theirs::open(&dirs[1], &options));
        let mut spans = Spans::default();
        let write = |batch: &Batch| {
            own.write(&mut batch.for_ours(), false).unwrap();
            other.write(batch, false);
        };
        for n in 0..600 {
            let what = format!("seed {seed}, batch {n}");
            write(&spans.batch(&mut rng));
            if n % 15 != 14 {
                continue;
            }
            let before = own.file_span(Queue::Append);
            let groups = own.purge_expired_files().unwrap();
            let after = own.file_span(Queue::Append);
            let theirs = (Some(other.append_files()), other.purge());
            if !is_written_anew {
                assert_eq!(
                    (before, groups.clone()),
                    theirs,
                    "{what}: groups to compact"
                );
                assert_eq!(after, Some(other.append_files()), "{what}: files after");
                asked += groups.len();
            }
            // There a group that was cleaned may be back, empty.
            let (own, other) = (Seen::of_ours(&own), Seen::of_theirs(&other));
            own.living().assert_same(&other.living(), &what);
            purged += usize::from(after != before);
            // Not all that are asked for are compacted: those that are not are moved after some more purges.
            for group in groups {
                if rng.chance(1, 4)
                    && let Some(batch) = spans.compacted(group)
                {
                    write(&batch);
                }
            }
        }
        rewritten += own
            .file_span(Queue::Rewrite)
            .map_or(0, |(first, _)| first - 1);
    }
    println!(
        "{asked} groups asked for, {purged} purges that deleted files, {rewritten} files written anew"
    );
    assert!(asked > 100 && purged > 50 && rewritten > 50);
}
