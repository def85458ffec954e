//! Flushes and compactions of a whole tree, several at a time: whatever order they end in, the
//! levels stay sorted runs, newer data stays above older, and in the end no level asks any more.

use std::sync::Arc;

use orogen_base::key::{InternalKeyComparator, append_internal_key};
use orogen_base::{SeqNo, ValueKind};

use super::super::{files_meet, pick, pick_range};
use super::{RangePick, RangeRequest, options, show};
use crate::compact::marks::Moment;
use crate::compact::plan::{Plan, Running, ranges_meet};
use crate::compact::score::Scores;
use crate::options::ColumnFamilyOptions;
use crate::output::tests::Rng;
use crate::version::{FileMeta, Version, VersionBuilder, VersionEdit};

struct Tree {
    rng: Rng,
    options: ColumnFamilyOptions,
    version: Arc<Version>,
    running: Vec<Plan>,
    next: u64,
}

fn key(n: usize, seqno: SeqNo) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(
        &mut out,
        format!("{n:03}").as_bytes(),
        seqno,
        ValueKind::Value,
    );
    out
}

impl Tree {
    fn new(seed: u64) -> Self {
        let options = ColumnFamilyOptions {
            level_compaction_dynamic_level_bytes: seed.is_multiple_of(2),
            max_compaction_bytes: 3000 + (seed % 5) * 2000,
            max_bytes_for_level_multiplier: 3.0,
            ..options()
        };
        let icmp = InternalKeyComparator::default();
        let version = Arc::new(Version::empty(icmp, 7));
        Self {
            rng: Rng(seed),
            options,
            version,
            running: Vec::new(),
            next: 1,
        }
    }

    fn file(&mut self, smallest: Vec<u8>, largest: Vec<u8>, size: u64) -> FileMeta {
        self.next += 1;
        let (number, epoch_number) = (self.next, self.next);
        FileMeta {
            number,
            epoch_number,
            smallest,
            largest,
            smallest_seqno: number,
            largest_seqno: number,
            size,
            ..FileMeta::default()
        }
    }

    fn install(&mut self, edit: &VersionEdit) {
        let mut builder = VersionBuilder::new(&self.version);
        builder.apply(edit).unwrap();
        self.version = Arc::new(builder.build().expect("levels stay sorted runs"));
    }

    fn flush(&mut self) {
        let a = self.rng.below(400);
        let b = if self.rng.below(2) == 0 {
            a + self.rng.below(20)
        } else {
            self.rng.below(400)
        };
        let seqno = self.next + 1;
        let size = 100 + self.rng.below(400) as u64;
        let mut file = self.file(key(a.min(b), seqno), key(a.max(b), seqno), size);
        file.marked_for_compaction = self.rng.below(20) == 0;
        let mut edit = VersionEdit::default();
        edit.add_file(0, Arc::new(file));
        self.install(&edit);
    }

    fn others(&self) -> Vec<Running> {
        self.running
            .iter()
            .map(|p| p.running(self.version.icmp()))
            .collect()
    }

    fn start(&mut self) -> bool {
        let scores = Scores::compute(&self.version, &self.options);
        let others = self.others();
        let plan = if self.rng.below(6) == 0 {
            let level = self.rng.below(self.version.num_levels() - 1);
            let end = format!("{:03}", self.rng.below(400));
            let request = RangeRequest {
                level,
                output_level: level + 1,
                begin: None,
                end: Some(end.as_bytes()),
                made: None,
                allow_trivial_move: self.rng.below(2) == 0,
            };
            match pick_range(&self.version, &self.options, &others, &request) {
                RangePick::Plan(plan, _) => Some(*plan),
                RangePick::Nothing | RangePick::Conflict | RangePick::Damaged(_) => None,
            }
        } else {
            let plan = pick(
                &self.version,
                &self.options,
                &scores,
                &others,
                Moment::default(),
            );
            if plan.is_none() && others.is_empty() {
                let max = scores.levels[0].1;
                assert!(
                    max < 1.0,
                    "nothing is in the way, yet score {max}\n{}",
                    self.version
                );
            }
            plan
        };
        let Some(plan) = plan else {
            return false;
        };
        self.check(&plan);
        plan.mark_inputs(true);
        self.running.push(plan);
        true
    }

    fn check(&self, plan: &Plan) {
        let (v, icmp) = (&self.version, self.version.icmp());
        let what = || format!("{}\n{v}", show(plan));
        assert!(
            plan.input_files().all(|(_, f)| !f.being_compacted.get()),
            "{}",
            what()
        );
        let range = plan.range(icmp);
        for other in self.others() {
            let same_place = other.output_level == plan.output_level
                && ranges_meet(&icmp.user, &other.range, &range);
            assert!(!same_place, "{}", what());
        }
        let is_input = |f: &Arc<FileMeta>| plan.input_files().any(|(_, g)| g.number == f.number);
        if plan.output_level == 0 {
            // Neighbours in time, older ones beside them.
            let places: Vec<bool> = v.files(0).iter().map(is_input).collect();
            assert_eq!(places.chunk_by(|a, b| a == b).filter(|c| c[0]).count(), 1);
            assert!(!plan.bottommost && !plan.trivial_move, "{}", what());
            return;
        }
        for (level, files) in &plan.inputs {
            for f in v.files(*level).iter().filter(|f| !is_input(f)) {
                // The oldest files of level 0 may leave newer ones above.
                let stays_above = |g: &FileMeta| {
                    *level == 0 && plan.trivial_move && f.epoch_number > g.epoch_number
                };
                let meets = |g: &Arc<FileMeta>| files_meet(icmp, f, g) && !stays_above(g);
                assert!(
                    !files.iter().any(meets),
                    "{} left out\n{}",
                    f.number,
                    what()
                );
            }
        }
        // Nothing newer sinks below something older.
        for level in plan.start_level + 1..=plan.output_level {
            for f in v.files(level).iter().filter(|f| !is_input(f)) {
                let starts = &plan.inputs[0].1;
                assert!(!starts.iter().any(|g| files_meet(icmp, f, g)), "{}", what());
            }
        }
        assert_eq!(plan.bottommost, {
            let below = v.iter_files().filter(|(l, _)| *l > plan.output_level);
            let (smallest, largest) = (range.smallest, range.largest);
            let all = FileMeta {
                smallest,
                largest,
                ..FileMeta::default()
            };
            below.into_iter().all(|(_, f)| !files_meet(icmp, f, &all))
        });
    }

    fn finish(&mut self, i: usize) {
        let plan = self.running.remove(i);
        let mut edit = VersionEdit::default();
        for (level, f) in plan.input_files() {
            edit.delete_file(level, f.number);
        }
        if plan.trivial_move {
            for (_, f) in plan.input_files() {
                edit.add_file(plan.output_level, Arc::clone(f));
            }
        } else if plan.output_level == 0 {
            let range = plan.range(self.version.icmp());
            let mut file = self.file(range.smallest, range.largest, plan.input_bytes());
            file.epoch_number = plan.min_epoch_number();
            edit.add_file(0, Arc::new(file));
        } else {
            let icmp = self.version.icmp().clone();
            let mut ends: Vec<Vec<u8>> = plan
                .input_files()
                .flat_map(|(_, f)| {
                    [
                        f.smallest_user_key().to_vec(),
                        f.largest_user_key().to_vec(),
                    ]
                })
                .collect();
            ends.sort();
            ends.dedup();
            let bytes = plan.input_bytes();
            let pieces = (bytes / plan.target_file_size.max(1) + 1) as usize;
            let chunk = ends.len().div_ceil(pieces);
            let count = ends.chunks(chunk).count() as u64;
            for keys in ends.chunks(chunk) {
                let end = |k: &Vec<u8>, seqno| {
                    let mut out = Vec::new();
                    append_internal_key(&mut out, k, seqno, ValueKind::Value);
                    out
                };
                let file = self.file(
                    end(&keys[0], 1),
                    end(&keys[keys.len() - 1], 0),
                    bytes / count,
                );
                assert!(icmp.compare(&file.smallest, &file.largest).is_lt());
                edit.add_file(plan.output_level, Arc::new(file));
            }
        }
        plan.mark_inputs(false);
        self.install(&edit);
    }
}

#[test]
fn trees_keep_their_shape_and_come_to_rest() {
    for seed in 0..60 {
        let mut tree = Tree::new(seed);
        for _ in 0..250 {
            match tree.rng.below(4) {
                0 => tree.flush(),
                1 | 2 => {
                    tree.start();
                }
                _ if !tree.running.is_empty() => {
                    let i = tree.rng.below(tree.running.len());
                    tree.finish(i);
                }
                _ => {}
            }
        }
        let mut rounds = 0;
        loop {
            while !tree.running.is_empty() {
                tree.finish(0);
            }
            let scores = Scores::compute(&tree.version, &tree.options);
            let Some(plan) = pick(
                &tree.version,
                &tree.options,
                &scores,
                &[],
                Moment::default(),
            ) else {
                assert!(!scores.needs_compaction(), "seed {seed}\n{}", tree.version);
                break;
            };
            tree.check(&plan);
            plan.mark_inputs(true);
            tree.running.push(plan);
            rounds += 1;
            assert!(
                rounds < 2000,
                "seed {seed} does not come to rest\n{}",
                tree.version
            );
        }
    }
}
