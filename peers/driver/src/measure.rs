//! What is measured of a phase, and how it is told.
//!
//! A [`Watch`] times operations; a [`Meter`] takes the process's counters around all of them and
//! makes the document. Phases that write have figures at two ends, see the head of the crate.

use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::device::Device;
use crate::histogram::Histogram;
use crate::process::{Cost, peak_rss, reset_peak_rss};

/// What the threads of a phase did.
pub(crate) struct Work {
    pub(crate) latencies: Histogram,
    pub(crate) ops: u64,
    pub(crate) found: u64,
}

impl Work {
    /// Adds what another thread did.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latencies.merge(&other.latencies);
        self.ops += other.ops;
        self.found += other.found;
    }
}

/// Times operations: each look at the clock ends one and starts the next.
pub(crate) struct Watch {
    last: Instant,
    pub(crate) work: Work,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            last: Instant::now(),
            work: Work {
                latencies: Histogram::new(),
                ops: 0,
                found: 0,
            },
        }
    }

    /// Nanoseconds that it took.
    #[inline]
    pub(crate) fn done(&mut self, ops: u64) -> u64 {
        let now = Instant::now();
        let took = (now - self.last).as_nanos() as u64;
        self.work.latencies.add(took);
        self.last = now;
        self.work.ops += ops;
        took
    }
}

/// Counters from the start of a phase on.
pub(crate) struct Meter {
    start: Instant,
    cost: Cost,
    /// With what it had written before.
    device: Option<(Device, u64)>,
}

impl Meter {
    /// Starts a phase.
    pub(crate) fn start() -> Result<Self> {
        reset_peak_rss()?;
        Ok(Self {
            cost: Cost::now()?,
            device: None,
            start: Instant::now(),
        })
    }

    /// Starts a phase once all that was written before to the file system of a directory is on its device, whose writes are
    /// counted from there on.
    pub(crate) fn start_on(dir: &Path) -> Result<Self> {
        let device = Device::of(dir)?;
        let device = device.map(|device| device.written().map(|bytes| (device, bytes)));
        Ok(Self {
            device: device.transpose()?,
            ..Self::start()?
        })
    }

    /// Bytes that the device has written since, with all that the file system had to write; none if it has no device.
    pub(crate) fn device_bytes(&self) -> Result<Option<u64>> {
        let written = |(device, before): &(Device, u64)| Ok(device.written()? - before);
        self.device.as_ref().map(written).transpose()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// What it took so far.
    pub(crate) fn cost(&self) -> Result<Cost> {
        Ok(Cost::now()?.since(self.cost))
    }

    /// The document of a phase whose last operation has just returned.
    pub(crate) fn foreground(
        &self,
        engine: &str,
        phase: &str,
        threads: u64,
        work: &Work,
        elapsed: Duration,
    ) -> Result<Value> {
        let cost = self.cost()?;
        let seconds = elapsed.as_secs_f64();
        Ok(json!({
            "engine": engine,
            "phase": phase,
            "threads": threads,
            "ops": work.ops,
            "found": work.found,
            "seconds": seconds,
            "ops_per_second": work.ops as f64 / seconds,
            "p50_ns": work.latencies.percentile(0.5),
            "p99_ns": work.latencies.percentile(0.99),
            "p999_ns": work.latencies.percentile(0.999),
            "p9999_ns": work.latencies.percentile(0.9999),
            "max_ns": work.latencies.max(),
            "cpu_seconds": cost.cpu_seconds,
            "other_cores": cost.other_cores(seconds),
            "cpu_seconds_settled": cost.cpu_seconds,
            "peak_rss_bytes": peak_rss()?,
        }))
    }

    /// Adds to the document what it took until the engine was settled, which it is now.
    pub(crate) fn settled(
        &self,
        document: &mut Value,
        settled: Instant,
        user_bytes: u64,
    ) -> Result<()> {
        let cost = self.cost()?;
        let figure = |name: &str| document[name].as_f64().unwrap_or_default();
        let (ops, foreground) = (figure("ops"), figure("seconds"));
        let seconds = (settled - self.start).as_secs_f64().max(foreground);
        document["cpu_seconds_settled"] = json!(cost.cpu_seconds);
        document["peak_rss_bytes"] = json!(peak_rss()?);
        document["settled_seconds"] = json!(seconds);
        document["ops_per_second_settled"] = json!(ops / seconds);
        for (name, bytes) in [
            ("write_amplification", cost.write_call_bytes),
            ("device_amplification", cost.device_bytes),
        ] {
            document[name] = json!(bytes as f64 / user_bytes as f64);
        }
        Ok(())
    }
}

/// Prints a document as one line.
pub(crate) fn print(document: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{document}")?;
    Ok(out.flush()?)
}
