//! The distribution of latencies: each power of two is cut into 64 buckets, so a percentile is
//! off by less than 2 %.

const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
const BUCKETS: usize = ((64 - SUB_BITS as usize) + 1) * SUB as usize;

/// Counts of nanoseconds by bucket.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max: u64,
}

/// Below [`SUB`] each number has its bucket; above, the leading bits say which.
#[inline]
fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let shift = 63 - nanos.leading_zeros() - SUB_BITS;
    ((u64::from(shift) << SUB_BITS) + (nanos >> shift)) as usize
}

/// The largest number of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let leading = u128::from((bucket & (SUB - 1)) + SUB + 1);
    u64::try_from((leading << shift) - 1).unwrap_or(u64::MAX)
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            count: 0,
            max: 0,
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// How many were added.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// The latency that a share of the operations stays within; 0 without any.
    pub(crate) fn percentile(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_ordered_and_close() {
        let mut last = 0;
        for nanos in (0..5000)
            .chain((1..50).map(|b| (1 << b) + 12_345))
            .chain([u64::MAX])
        {
            let top = upper(bucket(nanos));
            assert!(top >= nanos, "{nanos} {top}");
            assert!((top - nanos) as f64 <= nanos as f64 / 64.0, "{nanos} {top}");
            if nanos < 5000 {
                assert!(bucket(nanos) >= last);
                last = bucket(nanos);
            }
        }
    }

    #[test]
    fn percentiles_are_found_across_threads() {
        let (mut a, mut b) = (Histogram::new(), Histogram::new());
        (1..=500).for_each(|n| a.add(n * 1000));
        (501..=1000).for_each(|n| b.add(n * 1000));
        a.merge(&b);
        let close = |got: u64, want: f64| (got as f64 / want - 1.0).abs() < 0.02;
        assert!(close(a.percentile(0.5), 500e3) && close(a.percentile(0.99), 990e3));
        assert_eq!((a.percentile(1.0), a.max()), (1_000_000, 1_000_000));
        assert_eq!(Histogram::new().percentile(0.5), 0);
    }
}
