//! What one thread counts while it works, and all threads together afterwards.
//!
//! `Hot path`: [`Stats::finished`] is called per operation and reads a clock only for
//! `--histogram`.

use std::fmt::Write as _;

use orogen_env::{Clock, SystemClock};

use crate::histogram::LatencyHistogram;

/// Operations between looks at the clock for progress lines.
const OPS_BETWEEN_LOOKS: u64 = 64;

/// The counts of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    pub(crate) start_micros: u64,
    pub(crate) finish_micros: u64,
    /// Micros of all merged threads added.
    pub(crate) busy_micros: u64,
    pub(crate) done: u64,
    pub(crate) bytes: u64,
    /// Keys found, of keys looked for.
    pub(crate) found: Option<(u64, u64)>,
    /// Counted for nothing: a writer beside the readers that are measured.
    pub(crate) excluded: bool,
    /// What an operation is called in front of its distribution.
    pub(crate) verb: &'static str,
    pub(crate) histogram: Option<Box<LatencyHistogram>>,
    last_op_micros: u64,
    next_look: u64,
    progress: Progress,
}

#[derive(Clone, Debug, Default)]
struct Progress {
    thread: usize,
    interval_micros: u64,
    last_micros: u64,
    last_done: u64,
}

impl Stats {
    pub(crate) fn new(thread: usize, histogram: bool, interval_seconds: u64) -> Self {
        let now = SystemClock.now_micros();
        Self {
            start_micros: now,
            finish_micros: now,
            busy_micros: 0,
            done: 0,
            bytes: 0,
            found: None,
            excluded: false,
            verb: "op",
            histogram: histogram.then(Box::default),
            last_op_micros: now,
            next_look: if interval_seconds == 0 {
                u64::MAX
            } else {
                OPS_BETWEEN_LOOKS
            },
            progress: Progress {
                thread,
                interval_micros: interval_seconds.saturating_mul(1_000_000),
                last_micros: now,
                last_done: 0,
            },
        }
    }

    pub(crate) fn stop(&mut self) {
        self.finish_micros = SystemClock.now_micros();
        self.busy_micros = self.finish_micros - self.start_micros;
    }

    /// Notes `n` operations that were done together.
    #[inline]
    pub(crate) fn finished(&mut self, n: u64) {
        self.done += n;
        if let Some(histogram) = &mut self.histogram {
            let now = SystemClock.now_micros();
            histogram.add(now - self.last_op_micros);
            self.last_op_micros = now;
        }
        if self.done >= self.next_look {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        self.next_look = self.done + OPS_BETWEEN_LOOKS;
        let now = SystemClock.now_micros();
        let p = &mut self.progress;
        let micros = now - p.last_micros;
        if micros < p.interval_micros {
            return;
        }
        let seconds = (micros as f64 / 1e6, (now - self.start_micros) as f64 / 1e6);
        let ops = (self.done - p.last_done, self.done);
        // If stderr is gone there is nobody to tell.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!(
                "... thread {}: ({},{}) ops and ({:.1},{:.1}) ops/second in ({:.6},{:.6}) seconds\n",
                p.thread,
                ops.0,
                ops.1,
                ops.0 as f64 / seconds.0,
                ops.1 as f64 / seconds.1,
                seconds.0,
                seconds.1
            ),
        );
        (p.last_micros, p.last_done) = (now, self.done);
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.excluded {
            return;
        }
        self.start_micros = self.start_micros.min(other.start_micros);
        self.finish_micros = self.finish_micros.max(other.finish_micros);
        self.busy_micros += other.busy_micros;
        self.done += other.done;
        self.bytes += other.bytes;
        self.found = match (self.found, other.found) {
            (Some(a), Some(b)) => Some((a.0 + b.0, a.1 + b.1)),
            (a, b) => a.or(b),
        };
        if let (Some(mine), Some(theirs)) = (&mut self.histogram, &other.histogram) {
            mine.merge(theirs);
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        ((self.finish_micros - self.start_micros).max(1)) as f64 / 1e6
    }

    pub(crate) fn micros_per_op(&self) -> f64 {
        self.busy_micros as f64 / self.done.max(1) as f64
    }

    pub(crate) fn ops_per_sec(&self) -> f64 {
        self.done.max(1) as f64 / self.seconds()
    }

    pub(crate) fn mb_per_sec(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.bytes as f64 / 1_048_576.0 / self.seconds())
    }

    /// The line that db_bench prints, and the distribution if there is one.
    pub(crate) fn to_text(&self, name: &str, found_ends_line: bool) -> String {
        let mut line = format!(
            "{name:<12} : {:11.3} micros/op {} ops/sec {:.3} seconds {} operations;",
            self.micros_per_op(),
            self.ops_per_sec() as u64,
            self.seconds(),
            self.done.max(1)
        );
        if let Some(rate) = self.mb_per_sec() {
            let _ = write!(line, " {rate:6.1} MB/s");
        }
        if let Some((found, of)) = self.found {
            let _ = write!(line, " ({found} of {of} found)");
            if found_ends_line {
                line.push('\n');
            }
        }
        line.push('\n');
        if let Some(histogram) = &self.histogram {
            let _ = write!(
                line,
                "Microseconds per {}:\n{}\n",
                self.verb,
                histogram.to_text()
            );
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> Stats {
        let mut stats = Stats::new(0, false, 0);
        stats.start_micros = 1_000_000;
        stats.finish_micros = 2_234_000;
        stats.busy_micros = 1_234_000;
        stats.done = 1_000_000;
        stats
    }

    #[test]
    fn a_line_has_db_benchs_columns() {
        let mut s = stats();
        s.bytes = 116_000_000;
        assert_eq!(
            s.to_text("fillseq", true),
            "fillseq      :       1.234 micros/op 810372 ops/sec 1.234 seconds 1000000 \
             operations;   89.6 MB/s\n"
        );
        s.found = Some((865, 1000));
        assert!(
            s.to_text("readrandom", true)
                .ends_with(" MB/s (865 of 1000 found)\n\n")
        );
        s.bytes = 0;
        assert!(
            s.to_text("multireadrandom", false)
                .ends_with("operations; (865 of 1000 found)\n")
        );
    }

    #[test]
    fn threads_add_up_but_for_the_excluded() {
        let mut all = stats();
        let mut other = stats();
        other.finish_micros = 3_000_000;
        other.found = Some((1, 2));
        all.merge(&other);
        other.excluded = true;
        all.merge(&other);
        assert_eq!(
            (all.done, all.found, all.busy_micros),
            (2_000_000, Some((1, 2)), 2_468_000)
        );
        assert_eq!(all.seconds(), 2.0);
    }
}
