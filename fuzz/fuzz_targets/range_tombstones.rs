//! Fragments of range tombstones cover what the tombstones cover, no more and no less.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_base::UserComparator;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_fuzz::Choices;

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let order = UserComparator::BYTEWISE;
    let mut tombstones = Vec::new();
    while !choices.is_empty() && tombstones.len() < 24 {
        let (start, end) = (choices.key(), choices.key());
        let seqno = u64::from(choices.byte());
        tombstones.push(RangeTombstone { start, end, seqno });
    }
    let fragmented = FragmentedRangeTombstones::new(&order, tombstones.clone());
    let bounds = tombstones
        .iter()
        .flat_map(|t| [t.start.clone(), t.end.clone()]);
    let mut probes: Vec<Vec<u8>> = bounds.collect();
    probes.extend(probes.clone().into_iter().map(|mut key| {
        key.push(0);
        key
    }));
    for key in probes {
        for read_seqno in [0, 1, 127, 255] {
            let want = tombstones
                .iter()
                .filter(|t| t.start <= key && key < t.end && t.seqno <= read_seqno)
                .map(|t| t.seqno)
                .max()
                .unwrap_or(0);
            let got = fragmented.max_covering_seqno(&order, &key, read_seqno);
            assert_eq!(got, want, "key {key:?} at {read_seqno} of {tombstones:?}");
        }
    }
});
