//! Filters that drop whole stretches of keys.

use std::sync::Arc;

use orogen_base::key::user_key;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{ErrorKind, ParsedInternalKey, SeqNo, UserComparator, ValueKind};
use orogen_blob::BlobPointer;
use orogen_testkit::Rng;

use super::super::{CompactionIter, CompactionIterOptions, surviving_tombstones};
use super::{
    VecIter, bottommost, format_entry, internal, options, parse_entries, parse_tombstones,
    pointer_into, run, run_all, with_blobs,
};
use crate::plugin::compaction_filter::{CompactionFilter, FilterDecision};
use crate::version::blob_counts::BlobCounts;

/// `>d`, where it is read, skips to `d`. Of values in blob files it decides unread about those of the
/// keys `p` and `q`.
struct Skips;

impl CompactionFilter for Skips {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        match value.split_first() {
            Some((b'>', until)) => FilterDecision::RemoveAndSkipUntil(until.to_vec()),
            _ => FilterDecision::Keep,
        }
    }

    fn filter_blob_by_key(&mut self, _: usize, key: &[u8], _: u64) -> Option<FilterDecision> {
        match key {
            b"p" => Some(FilterDecision::RemoveAndSkipUntil(b"r".to_vec())),
            b"q" => Some(FilterDecision::RemoveAndSkipUntil(b"q".to_vec())),
            _ => None,
        }
    }
}

fn skipping(options: CompactionIterOptions) -> CompactionIterOptions {
    CompactionIterOptions {
        filter: Some((Box::new(Skips), 3)),
        ..options
    }
}

#[test]
fn a_filter_drops_all_keys_up_to_another_without_a_trace() {
    let history = "a@5=1 b@6=>d b@4=4 c@9+x c@8- c@3=>z cc@2~ d@7=7 e@8=>e f@3=>b f@2=2";
    for counts_pointers in [true, false] {
        let asked = |options| CompactionIterOptions {
            counts_pointers,
            ..skipping(options)
        };
        assert_eq!(
            run(history, "", asked(options(&[]))),
            "a@5=1 d@7=7 e@8=>e f@3=>b",
            "a key that is not after this one keeps it"
        );
        assert_eq!(
            run(history, "", asked(bottommost(&[]))),
            "a@0=1 d@0=7 e@0=>e f@0=>b"
        );
        // Snapshots lose what they read, too.
        assert_eq!(
            run(history, "", asked(options(&[4, 5]))),
            "a@5=1 d@7=7 e@8=>e f@3=>b"
        );
        // What they read is not shown.
        assert_eq!(
            run("b@6=>d b@4=4 c@9=9", "", asked(options(&[6]))),
            "b@6=>d c@9=9"
        );
        assert_eq!(run("b@6=>z c@9=9", "", asked(options(&[]))), "");
        // What is under a range tombstone is not shown.
        assert_eq!(
            run("b@6+>d b@4=4 c@9=>d", "[c,d)@10", asked(options(&[]))),
            "b@6=4,>d"
        );
    }
}

#[test]
fn range_tombstones_of_skipped_keys_stay() {
    let all = parse_tombstones("[b,d)@9 [d,f)@3");
    let (kept, dropped) = surviving_tombstones(&all, &skipping(options(&[])));
    assert_eq!((kept.len(), dropped), (2, 0));
    assert_eq!(
        run(
            "b@10=>e c@8=8 d@2=2 e@2=2 f@1=1",
            "[b,d)@9 [d,f)@3",
            skipping(options(&[]))
        ),
        "f@1=1",
        "they go on counting behind the skipped keys"
    );
}

#[test]
fn a_skip_ends_with_the_job() {
    let bounded = || CompactionIterOptions {
        end: Some(b"c".to_vec()),
        ..skipping(options(&[]))
    };
    let history = "a@1=1 b@2=>z bb@3=3 c@4=4";
    assert_eq!(run(history, "", bounded()), "a@1=1");
    let unread = CompactionIterOptions {
        counts_pointers: false,
        ..bounded()
    };
    assert_eq!(run(history, "", unread), "a@1=1");
}

#[test]
fn skipped_pointers_are_counted_and_not_followed() {
    // Files from 100 on cannot be read.
    let history = "a@9*7 p@9*100 p@8*101 pp@7*101 pq@6=6 q@5*102 r@4*9 s@3*103";
    let rules = CompactionIterOptions {
        filter: Some((Box::new(Skips), 3)),
        ..with_blobs(options(&[]))
    };
    let entries = parse_entries(history);
    let until_s = entries[..7].to_vec();
    let input = VecIter {
        entries: until_s,
        at: 0,
    };
    let mut iter = CompactionIter::new(input, parse_tombstones(""), rules);
    let mut out = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        out.push(format_entry(iter.key(), iter.value()));
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(out.join(" "), "a@9*7 r@4*9");
    let read: Vec<_> = iter
        .pointers_read()
        .iter()
        .map(|(n, c)| (n, c.values))
        .collect();
    assert_eq!(read, [(7, 1), (9, 1), (100, 1), (101, 2), (102, 1)]);
    assert_eq!(iter.stats().dropped_user, 5);
    assert_eq!(iter.stats().input_records, 7);

    let rules = || skipping(with_blobs(options(&[])));
    assert_eq!(run("q@5*102 r@4*9", "", rules()), "q@5*102 r@4*9");
    // Damage among them is damage all the same.
    let error = run_all("p@9*100 pp@7*x r@4*9", "", rules()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let error = run_all("p@9*100 pp@7=7 pa@7=7 r@4*9", "", rules()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "out of order");
}

/// What a filter of the model says of an operand: now and then that it goes, becomes another or
/// takes the keys behind with it.
fn judged(key: &[u8], operand: &[u8]) -> FilterDecision {
    match operand {
        b"1" | b"2" => FilterDecision::Remove,
        b"3" => FilterDecision::ChangeValue(b"c".to_vec()),
        b"4" => match skips_to(key, operand) {
            Some(until) => FilterDecision::RemoveAndSkipUntil(until),
            None => FilterDecision::Keep,
        },
        _ => FilterDecision::Keep,
    }
}

/// What a filter of the model says of a value: `None` to keep it.
fn skips_to(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let sum: u32 = key.iter().chain(value).map(|&b| u32::from(b)).sum();
    // Often a key before, at times far behind.
    sum.is_multiple_of(3)
        .then(|| vec![b'a' + (sum / 3 % 14) as u8])
}

struct BySum {
    unread: bool,
}

impl BySum {
    fn decide(key: &[u8], value: &[u8]) -> FilterDecision {
        match skips_to(key, value) {
            Some(until) => FilterDecision::RemoveAndSkipUntil(until),
            None => FilterDecision::Keep,
        }
    }
}

impl CompactionFilter for BySum {
    fn filter(&mut self, _: usize, key: &[u8], value: &[u8]) -> FilterDecision {
        Self::decide(key, value)
    }

    fn filter_blob_by_key(&mut self, _: usize, key: &[u8], _: u64) -> Option<FilterDecision> {
        self.unread.then(|| Self::decide(key, b""))
    }

    fn filter_merge_operand(&mut self, _: usize, key: &[u8], operand: &[u8]) -> FilterDecision {
        judged(key, operand)
    }
}

/// What the filter would have dropped or changed, done to the input beforehand: it is told what stands
/// first of each key that is neither skipped nor hidden nor read by a snapshot, and if that is an
/// operand, those below it as well.
fn filtered_before(
    entries: &[(Vec<u8>, Vec<u8>)],
    tombstones: &[RangeTombstone],
    newest_snapshot: SeqNo,
    unread: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut left: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut until: Option<Vec<u8>> = None;
    let mut last: Option<Vec<u8>> = None;
    let mut above_are_operands = false;
    for (key, value) in entries {
        let entry = ParsedInternalKey::parse(key).unwrap();
        let user = entry.user_key;
        if until.as_deref().is_some_and(|until| user < until) {
            continue;
        }
        // Tombstones of the newest stripe alone hide what no snapshot reads.
        let is_hidden = tombstones
            .iter()
            .any(|t| t.seqno > entry.seqno && *t.start <= *user && *user < *t.end);
        let is_first = last.as_deref() != Some(user);
        if entry.seqno > newest_snapshot && is_hidden {
            above_are_operands = false;
            left.push((key.clone(), value.clone()));
            continue;
        }
        last = Some(user.to_vec());
        above_are_operands = entry.kind == ValueKind::Merge && (is_first || above_are_operands);
        if above_are_operands && entry.seqno > newest_snapshot {
            match judged(user, value) {
                FilterDecision::Remove => {
                    continue;
                }
                FilterDecision::ChangeValue(other) => {
                    left.push((key.clone(), other));
                    continue;
                }
                FilterDecision::RemoveAndSkipUntil(to) if user < to.as_slice() => {
                    left.retain(|(key, _)| user_key(key) != user);
                    until = Some(to);
                    continue;
                }
                _ => {}
            }
        }
        if is_first && entry.seqno > newest_snapshot {
            let to = match entry.kind {
                ValueKind::Value => skips_to(user, value),
                ValueKind::BlobIndex if unread => skips_to(user, b""),
                ValueKind::BlobIndex => {
                    let file = BlobPointer::decode(value).unwrap().file;
                    skips_to(user, format!("file{file}").as_bytes())
                }
                _ => None,
            };
            if let Some(to) = to.filter(|to| user < to.as_slice()) {
                until = Some(to);
                // Hidden versions before it go with it.
                continue;
            }
        }
        left.push((key.clone(), value.clone()));
    }
    left
}

fn counted(entries: &[(Vec<u8>, Vec<u8>)]) -> BlobCounts {
    let mut counts = BlobCounts::default();
    for (key, value) in entries {
        if ParsedInternalKey::parse(key).unwrap().kind == ValueKind::BlobIndex {
            counts.add(&BlobPointer::decode(value).unwrap(), user_key(key).len());
        }
    }
    counts
}

#[test]
fn a_skip_is_as_if_its_keys_had_not_been_there() {
    let mut skipped = 0;
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let mut seqno = 0;
        let mut entries = Vec::new();
        for _ in 0..5 + rng.below(30) {
            seqno += 1;
            let user = [b'a' + rng.below(12) as u8];
            let (kind, value) = match rng.below(10) {
                0 => (ValueKind::Deletion, Vec::new()),
                1 => (ValueKind::Merge, vec![b'0' + rng.below(10) as u8]),
                2..=5 => {
                    let mut pointer = Vec::new();
                    pointer_into(1 + rng.below(20)).encode(&mut pointer);
                    (ValueKind::BlobIndex, pointer)
                }
                _ => (ValueKind::Value, vec![b'0' + rng.below(10) as u8]),
            };
            entries.push((internal(&user, seqno, kind), value));
        }
        let order = orogen_base::key::InternalKeyComparator::default();
        entries.sort_by(|a, b| order.compare(&a.0, &b.0));
        let mut ranges = Vec::new();
        for _ in 0..rng.below(3) {
            let (a, b) = (rng.below(13) as u8, rng.below(13) as u8);
            if a != b {
                ranges.push(RangeTombstone {
                    start: vec![b'a' + a.min(b)],
                    end: vec![b'a' + a.max(b)],
                    // Between two operations.
                    seqno: 1 + rng.below(seqno),
                });
            }
        }
        let mut snapshots: Vec<SeqNo> = (0..rng.below(3)).map(|_| 1 + rng.below(seqno)).collect();
        snapshots.sort_unstable();
        snapshots.dedup();
        let newest_snapshot = snapshots.last().copied().unwrap_or(0);
        let is_bottommost = rng.chance(1, 2);
        let rules = || CompactionIterOptions {
            bottommost: is_bottommost,
            ..with_blobs(options(&snapshots))
        };
        let tombstones = || {
            Arc::new(FragmentedRangeTombstones::new(
                &UserComparator::BYTEWISE,
                ranges.clone(),
            ))
        };
        let go = |entries: Vec<_>, rules| {
            let input = VecIter { entries, at: 0 };
            let mut iter = CompactionIter::new(input, tombstones(), rules);
            let mut out = Vec::new();
            iter.seek_to_first();
            while iter.valid() {
                out.push(format_entry(iter.key(), iter.value()));
                iter.next();
            }
            iter.status().unwrap();
            (out.join(" "), iter.pointers_read())
        };
        let unread = rng.chance(1, 2);
        let left = filtered_before(&entries, &ranges, newest_snapshot, unread);
        skipped += entries.len() - left.len();
        let (want, _) = go(left, rules());
        for counts_pointers in [true, false] {
            let filtered = CompactionIterOptions {
                filter: Some((Box::new(BySum { unread }), 3)),
                counts_pointers,
                ..rules()
            };
            let (got, pointers) = go(entries.clone(), filtered);
            assert_eq!(got, want, "seed {seed}");
            if counts_pointers {
                assert_eq!(pointers, counted(&entries), "seed {seed}");
            }
        }
    }
    assert!(skipped > 5_000, "{skipped}");
}
