//! The distribution of times in RocksDB's buckets and words.
//!
//! Limits grow by half and are cut to two digits: 1, 2, 3, 4, 6, 10, 15, 22, ... Source: the
//! lines that `db_bench --histogram` prints.

use std::fmt::Write as _;

/// Counts by bucket; bucket `i` holds what is above limit `i - 1` and up to limit `i`.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    limits: Vec<u64>,
    counts: Vec<u64>,
    count: u64,
    sum: f64,
    sum_squares: f64,
    min: u64,
    max: u64,
}

fn two_digits(v: f64) -> u64 {
    let mut scale = 1.0;
    while v / scale >= 100.0 {
        scale *= 10.0;
    }
    ((v / scale).floor() * scale) as u64
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyHistogram {
    /// An empty distribution.
    #[must_use]
    pub fn new() -> Self {
        let mut limits = vec![1, 2];
        let mut v = 3.0;
        while v < 1e18 {
            limits.push(two_digits(v));
            v *= 1.5;
        }
        limits.push(u64::MAX);
        let counts = vec![0; limits.len()];
        Self {
            limits,
            counts,
            count: 0,
            sum: 0.0,
            sum_squares: 0.0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Adds a measurement.
    #[inline]
    pub fn add(&mut self, v: u64) {
        let bucket = self.limits.partition_point(|limit| *limit < v);
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum += v as f64;
        self.sum_squares += (v as f64) * (v as f64);
        self.min = self.min.min(v);
        self.max = self.max.max(v);
    }

    /// Adds all measurements of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Measurements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 without any.
    #[must_use]
    pub fn average(&self) -> f64 {
        if self.count == 0 {
            0.0
        } else {
            self.sum / self.count as f64
        }
    }

    /// The largest; 0 without any.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    fn deviation(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        let n = self.count as f64;
        ((self.sum_squares * n - self.sum * self.sum) / (n * n))
            .max(0.0)
            .sqrt()
    }

    /// The value below which `p` percent lie, interpolated within its bucket.
    #[must_use]
    pub fn percentile(&self, p: f64) -> f64 {
        let threshold = self.count as f64 * (p / 100.0);
        let mut before = 0;
        for (i, &n) in self.counts.iter().enumerate() {
            if n > 0 && (before + n) as f64 >= threshold {
                let left = if i == 0 { 0 } else { self.limits[i - 1] };
                let part = (threshold - before as f64) / n as f64;
                let right = self.limits[i].min(self.max.max(left));
                let v = left as f64 + (right - left) as f64 * part;
                return v.clamp(self.min as f64, self.max as f64);
            }
            before += n;
        }
        self.max as f64
    }

    /// The lines that db_bench prints.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(
            out,
            "Count: {} Average: {:.4}  StdDev: {:.2}",
            self.count,
            self.average(),
            self.deviation()
        );
        let _ = writeln!(
            out,
            "Min: {}  Median: {:.4}  Max: {}",
            if self.count == 0 { 0 } else { self.min },
            self.percentile(50.0),
            self.max
        );
        let _ = writeln!(
            out,
            "Percentiles: P50: {:.2} P75: {:.2} P99: {:.2} P99.9: {:.2} P99.99: {:.2}",
            self.percentile(50.0),
            self.percentile(75.0),
            self.percentile(99.0),
            self.percentile(99.9),
            self.percentile(99.99)
        );
        let _ = writeln!(
            out,
            "------------------------------------------------------"
        );
        let mut cumulative = 0;
        for (i, &n) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            cumulative += n;
            let percent = |n: u64| 100.0 * n as f64 / self.count as f64;
            let _ = writeln!(
                out,
                "{} {:>7}, {:>7} ] {:>8} {:>7.3}% {:>7.3}% {}",
                if i == 0 { '[' } else { '(' },
                if i == 0 { 0 } else { self.limits[i - 1] },
                self.limits[i],
                n,
                percent(n),
                percent(cumulative),
                "#".repeat((percent(n) / 5.0 + 0.5) as usize)
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_that_db_bench_prints() {
        let h = LatencyHistogram::new();
        assert_eq!(
            h.limits[..24],
            [
                1, 2, 3, 4, 6, 10, 15, 22, 34, 51, 76, 110, 170, 250, 380, 580, 870, 1300, 1900,
                2900, 4400, 6600, 9900, 14000
            ]
        );
        assert!(h.limits.is_sorted());
    }

    #[test]
    fn percentiles_of_known_numbers() {
        let mut h = LatencyHistogram::new();
        let mut half = LatencyHistogram::new();
        (1..=500).for_each(|v| h.add(v));
        (501..=1000).for_each(|v| half.add(v));
        h.merge(&half);
        assert_eq!((h.count(), h.max(), h.average()), (1000, 1000, 500.5));
        for p in [10.0, 50.0, 90.0, 99.0] {
            let got = h.percentile(p);
            assert!((got - p * 10.0).abs() < p, "{p} {got}");
        }
        assert_eq!(h.percentile(100.0), 1000.0);
        assert!(
            h.to_text()
                .contains("(     870,    1300 ]      130  13.000% 100.000% ###\n")
        );
    }

    #[test]
    fn an_empty_one_prints() {
        assert!(
            LatencyHistogram::new()
                .to_text()
                .starts_with("Count: 0 Average: 0.0000")
        );
    }
}
