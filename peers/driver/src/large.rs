//! Phases on large values: how each is run and measured.
//!
//! All keys are there after `load`, so that what lives is known to the byte. `--num` is the
//! number of keys, `--updates` that of updates, `--reads` that of gets; scans visit twice as many
//! entries. One thread. A process whose memory is bounded begins with cold pages.
//!
//! | phase | what |
//! |---|---|
//! | `open` | opens and closes the database: says whether the engine can do what is asked for |
//! | `load` | puts each key once, in random order |
//! | `get` | gets random keys |
//! | `scan100` `scan10000` | makes an iterator, seeks a random key, visits so many entries |
//! | `update` | puts random keys, drawn with replacement |
//! | `delete` | deletes a random half of the keys |

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::data::{KEY_LEN, POOL_LEN, Rng, Shuffle, Values, key_of, value_pool};
use crate::measure::{Meter, Watch, Work, print};
use crate::pages::{Bound, forget_all};
use crate::process::disk_bytes;
use crate::{Engine, Result, Settings};

/// Values that the buffer behind them has at least.
const VALUES_MIN: usize = 16;
/// Scans of a phase at least.
const SCANS_MIN: u64 = 20;
const LOAD_SEED: u64 = 21;
const GET_SEED: u64 = 22;
const SCAN_SEED: u64 = 23;
const UPDATE_SEED: u64 = 24;
const DELETE_SEED: u64 = 25;

/// Numbers of operations, and what they work on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    /// Bytes of a value.
    pub(crate) value_len: usize,
    /// Keys.
    pub(crate) num: u64,
    /// Gets.
    pub(crate) reads: u64,
    /// Updates.
    pub(crate) updates: u64,
    /// Bytes of the files that may be in the page cache; `None`: all.
    pub(crate) cached_pages_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Open,
    Load,
    Get,
    Scan { entries: u64 },
    Update,
    Delete,
}

const PHASES: [(&str, Kind); 7] = [
    ("open", Kind::Open),
    ("load", Kind::Load),
    ("get", Kind::Get),
    ("scan100", Kind::Scan { entries: 100 }),
    ("scan10000", Kind::Scan { entries: 10_000 }),
    ("update", Kind::Update),
    ("delete", Kind::Delete),
];

impl Kind {
    fn writes(self) -> bool {
        matches!(self, Self::Load | Self::Update | Self::Delete)
    }
}

impl Plan {
    fn pair_bytes(&self) -> u64 {
        (KEY_LEN + self.value_len) as u64
    }

    /// Bytes of pairs that there are after a phase.
    fn live_bytes(&self, kind: Kind) -> u64 {
        let deleted = if kind == Kind::Delete {
            self.num / 2
        } else {
            0
        };
        (self.num - deleted) * self.pair_bytes()
    }

    fn scans(&self, entries: u64) -> u64 {
        (self.reads * 2 / entries).max(SCANS_MIN)
    }

    fn work<E: Engine>(&self, db: &E, kind: Kind, pool: &[u8]) -> Result<Work> {
        let mut values = Values::new(pool, self.value_len);
        let mut watch = Watch::new();
        let mut wanted = 0;
        match kind {
            Kind::Open => {}
            Kind::Load => {
                let order = Shuffle::new(self.num, LOAD_SEED);
                for place in 0..self.num {
                    db.put(&key_of(order.at(place)), values.next(), false)?;
                    watch.done(1);
                }
            }
            Kind::Get => {
                let mut rng = Rng::new(GET_SEED, 0);
                for _ in 0..self.reads {
                    let len = db.get(&key_of(rng.below(self.num)))?;
                    watch.work.found += u64::from(len == Some(self.value_len));
                    watch.done(1);
                }
                wanted = self.reads;
            }
            Kind::Scan { entries } => {
                let mut rng = Rng::new(SCAN_SEED, entries);
                let entries = entries.min(self.num);
                for _ in 0..self.scans(entries) {
                    let start = key_of(rng.below(self.num - entries + 1));
                    watch.work.found += db.seek(&start, entries as usize - 1)? as u64;
                    watch.done(1);
                    wanted += entries;
                }
            }
            Kind::Update => {
                let mut rng = Rng::new(UPDATE_SEED, 0);
                for _ in 0..self.updates {
                    db.put(&key_of(rng.below(self.num)), values.next(), false)?;
                    watch.done(1);
                }
            }
            Kind::Delete => {
                let order = Shuffle::new(self.num, DELETE_SEED);
                for place in 0..self.num / 2 {
                    db.delete(&key_of(order.at(place)))?;
                    watch.done(1);
                }
            }
        }
        if watch.work.found == wanted {
            Ok(watch.work)
        } else {
            Err(format!("found {} of {wanted}", watch.work.found).into())
        }
    }

    fn measure<E: Engine>(
        &self,
        db: &E,
        dir: &Path,
        (name, kind): (&str, Kind),
        pool: &[u8],
    ) -> Result<Value> {
        let meter = Meter::start()?;
        let work = self.work(db, kind, pool)?;
        let elapsed = meter.elapsed();
        let mut document = meter.foreground(E::NAME, name, 1, &work, elapsed)?;
        let cost = meter.cost()?;
        document["value_len"] = json!(self.value_len);
        document["device_read_bytes"] = json!(cost.device_read_bytes);
        if kind.writes() {
            let live_bytes = self.live_bytes(kind) as f64;
            // For deletes, of the pairs they delete.
            let user_bytes = work.ops * self.pair_bytes();
            document["device_amplification_foreground"] =
                json!(cost.device_bytes as f64 / user_bytes as f64);
            document["space_amplification_foreground"] =
                json!(disk_bytes(dir)? as f64 / live_bytes);
            let settled = db.settle()?;
            meter.settled(&mut document, settled, user_bytes)?;
            document["space_amplification"] = json!(disk_bytes(dir)? as f64 / live_bytes);
        }
        Ok(document)
    }
}

/// Looks after the directory beside a phase, until it is told to stop: keeps its pages within
/// their bound, and gives the most that it took on the disk.
fn look_after(dir: &Path, bound: Option<u64>, stop: &AtomicBool) -> Result<u64> {
    const PAUSE: Duration = Duration::from_millis(20);
    /// Pauses between two looks at the disk.
    const LOOK_EACH: u64 = 5;
    let mut bound = bound.map(Bound::new).transpose()?;
    let mut peak = 0;
    for turn in 0.. {
        // Once more when it is over, so that the last state counts.
        let last = stop.load(Ordering::Relaxed);
        if let Some(bound) = &mut bound {
            bound.hold(dir)?;
        }
        if last || turn % LOOK_EACH == 0 {
            peak = disk_bytes(dir)?.max(peak);
        }
        if last {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(peak)
}

/// Runs phases one after another on the database of `settings`.
pub(crate) fn run<E: Engine>(settings: &Settings, names: &[String], plan: &Plan) -> Result<()> {
    let find = |name: &String| {
        let found = PHASES.iter().copied().find(|(known, _)| known == name);
        found.ok_or_else(|| format!("no phase `{name}` of large values"))
    };
    let phases: Vec<_> = names
        .iter()
        .map(find)
        .collect::<std::result::Result<_, _>>()?;
    if plan.cached_pages_bytes.is_some() {
        forget_all(&settings.dir)?;
    }
    let pool = value_pool(POOL_LEN.max(plan.value_len * VALUES_MIN));
    let db = E::open(settings)?;
    for (name, kind) in phases {
        let stop = AtomicBool::new(false);
        let (document, peak) = std::thread::scope(|scope| {
            let beside = scope.spawn(|| look_after(&settings.dir, plan.cached_pages_bytes, &stop));
            let document = plan.measure(&db, &settings.dir, (name, kind), &pool);
            stop.store(true, Ordering::Relaxed);
            (document, beside.join())
        });
        let mut document = document?;
        let peak = peak.map_err(|_| "the thread beside a phase panicked")??;
        if kind.writes() {
            // The ends lie between two looks.
            let ends = ["space_amplification_foreground", "space_amplification"];
            let ends = ends.iter().filter_map(|name| document[name].as_f64());
            let peak = ends.fold(peak as f64 / plan.live_bytes(kind) as f64, f64::max);
            document["space_amplification_peak"] = json!(peak);
        }
        print(&document)?;
    }
    db.close()
}

#[cfg(test)]
mod tests;
