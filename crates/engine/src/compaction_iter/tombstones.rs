//! The range tombstones that stay.

use orogen_base::range_del::{Fragment, FragmentedRangeTombstones};

use super::CompactionIterOptions;

/// The fragments that the outputs must carry: in each stripe the newest tombstone, without those
/// of the oldest stripe where nothing is below.
///
/// Neighbours that say the same are joined. Also returns how many tombstones were dropped.
#[must_use]
pub fn surviving_tombstones(
    tombstones: &FragmentedRangeTombstones,
    rules: &CompactionIterOptions,
) -> (Vec<Fragment>, u64) {
    let nothing_below = |f: &Fragment| {
        let ask = rules.range_not_exists_beyond_output_level.as_ref();
        rules.bottommost || ask.is_some_and(|ask| ask(&f.start, &f.end))
    };
    let mut kept: Vec<Fragment> = Vec::new();
    let mut dropped = 0;
    for fragment in tombstones.fragments() {
        let mut seqnos = Vec::new();
        let mut last_stripe = None;
        for &seqno in &fragment.seqnos {
            let stripe = rules.snapshots.partition_point(|&s| s < seqno);
            if last_stripe == Some(stripe) || (stripe == 0 && nothing_below(fragment)) {
                dropped += 1;
                continue;
            }
            last_stripe = Some(stripe);
            seqnos.push(seqno);
        }
        if seqnos.is_empty() {
            continue;
        }
        match kept.last_mut() {
            Some(last) if last.end == fragment.start && last.seqnos == seqnos => {
                last.end.clone_from(&fragment.end);
            }
            _ => kept.push(Fragment {
                start: fragment.start.clone(),
                end: fragment.end.clone(),
                seqnos,
            }),
        }
    }
    (kept, dropped)
}
