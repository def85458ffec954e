//! What runs, and what that may take.

use std::path::Path;
use std::process::Command;

use super::Bench;
use super::candidates::Candidate;
use super::options::Options;
use crate::step;

/// Bytes of a key.
const KEY_LEN: u64 = 16;
/// With fewer keys a phase says nothing.
pub(super) const KEYS_MIN: u64 = 100;
/// Gets of a cell, as many as there are keys within these bounds.
const READS: (u64, u64) = (20_000, 500_000);
/// The part of the data for which a cold cell has memory.
const MEMORY_PART: u64 = 4;

/// What of the machine an engine has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// In tables.
    pub(super) title: &'static str,
}

/// All settings. In the first the files fit the page cache.
pub(super) const SETTINGS: [Setting; 3] = [
    Setting {
        name: "memory",
        title: "memory-resident",
    },
    Setting {
        name: "cold",
        title: "cold cache",
    },
    Setting {
        name: "disk",
        title: "disk-bound",
    },
];

/// Processes of the bench of phases on the same database.
const BLOB_STEPS: [&[&str]; 4] = [
    &["load"],
    &["get", "scan100", "scan10000"],
    &["update"],
    &["delete"],
];
const GC_STEPS: [&[&str]; 2] = [&["load"], &["update"]];

/// Every phase of `bench blob`, in the order of the tables.
pub(super) fn blob_phases() -> Vec<&'static str> {
    BLOB_STEPS.concat()
}

/// Keys of values of a length that make so much user data.
pub(super) fn keys(gib: f64, value_len: u64) -> u64 {
    (gib * (1u64 << 30) as f64) as u64 / (KEY_LEN + value_len)
}

/// One directory of each candidate: a setting and a length of values.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) setting: &'static Setting,
    pub(super) value_len: u64,
    pub(super) num: u64,
    pub(super) reads: u64,
    updates: u64,
    /// Bytes of block cache and pages.
    memory: Option<u64>,
    /// Bytes of background writes a second.
    rate_limit: Option<u64>,
    recycled_logs: u64,
    mmap_reads: bool,
    /// Bytes of a memtable.
    write_buffer: u64,
    /// Processes and their phases.
    pub(super) steps: Vec<Vec<&'static str>>,
}

/// The cells that were asked for.
pub(super) fn cells(bench: Bench, options: &Options) -> Vec<Cell> {
    let wanted = |phase: &str| {
        // Everything else runs on what it leaves.
        phase == "load" || options.phases.is_empty() || options.phases.iter().any(|p| p == phase)
    };
    let all: &[&[&'static str]] = match bench {
        Bench::Blob => &BLOB_STEPS,
        Bench::Gc => &GC_STEPS,
    };
    let steps: Vec<Vec<&str>> = all
        .iter()
        .map(|step| step.iter().copied().filter(|p| wanted(p)).collect())
        .filter(|step: &Vec<&str>| !step.is_empty())
        .collect();
    let mut cells = Vec::new();
    for setting in &SETTINGS {
        if !options.settings.iter().any(|name| name == setting.name) {
            continue;
        }
        for value_len in options.sizes.iter().copied() {
            let num = keys(options.gib, value_len);
            let quarter = num * (KEY_LEN + value_len) / MEMORY_PART;
            let memory = options.memory_mib.map_or(quarter, |mib| mib << 20);
            cells.push(Cell {
                setting,
                value_len,
                num,
                reads: options.reads.unwrap_or_else(|| num.clamp(READS.0, READS.1)),
                updates: (num as f64 * options.update_factor) as u64,
                memory: (setting.name == "cold").then_some(memory),
                rate_limit: (setting.name == "disk").then_some(options.rate_mib << 20),
                recycled_logs: options.recycled_logs,
                mmap_reads: options.mmap_reads,
                write_buffer: options.write_buffer_mib << 20,
                steps: steps.clone(),
            });
        }
    }
    cells
}

impl Cell {
    /// Its options, for every candidate.
    pub(super) fn arguments(&self) -> Vec<String> {
        let pairs = [
            ("--value-len", Some(self.value_len)),
            ("--updates", Some(self.updates)),
            ("--memory", self.memory),
            ("--rate-limit", self.rate_limit),
            ("--recycled-logs", Some(self.recycled_logs)),
            ("--write-buffer", Some(self.write_buffer)),
        ];
        let told = pairs
            .iter()
            .filter_map(|(name, value)| Some((name, (*value)?)));
        let mut all: Vec<String> = told
            .flat_map(|(name, value)| [(*name).to_owned(), value.to_string()])
            .collect();
        if self.mmap_reads {
            all.extend(["--mmap-reads".to_owned(), "true".to_owned()]);
        }
        all
    }

    fn data_bytes(&self) -> f64 {
        (self.num * (KEY_LEN + self.value_len)) as f64
    }

    /// What a candidate may take. The rates are of a machine of two cores and need only say
    /// whether it is minutes or hours.
    pub(super) fn seconds(&self, candidate: &Candidate) -> f64 {
        const PROCESS: f64 = 0.5;
        const WRITTEN_BYTES: f64 = 200e6;
        const DELETES: f64 = 500e3;
        const ENTRIES: f64 = 700e3;
        const ENTRY_BYTES: f64 = 2e9;
        /// Reads a second that go to the device one after another.
        const COLD_READS: f64 = 15e3;
        /// Bytes of flushes and compactions for each byte of users, LZ4 taken into account.
        const BACKGROUND_INLINE: f64 = 2.0;
        const BACKGROUND_APART: f64 = 0.8;
        let data = self.data_bytes();
        let pair = data / self.num as f64;
        let background = match candidate.gc {
            None => BACKGROUND_INLINE,
            Some(_) => BACKGROUND_APART,
        };
        let write = |bytes: f64| {
            let limited = self
                .rate_limit
                .map_or(0.0, |rate| bytes * background / rate as f64);
            (bytes / WRITTEN_BYTES).max(limited)
        };
        let read = |entries: f64, one_by_one: bool| {
            let warm = entries / ENTRIES + entries * pair / ENTRY_BYTES;
            let cold = if one_by_one {
                entries / COLD_READS
            } else {
                0.0
            };
            if self.memory.is_some() {
                warm + cold
            } else {
                warm
            }
        };
        let reads = self.reads as f64;
        self.steps
            .iter()
            .flatten()
            .map(|phase| {
                PROCESS
                    + match *phase {
                        "load" => write(data),
                        "get" => read(reads, true),
                        "scan100" => read(reads * 2.0, candidate.gc.is_some()),
                        "scan10000" => read((reads * 2.0).max(200e3), candidate.gc.is_some()),
                        "update" => write(self.updates as f64 * pair),
                        _ => self.num as f64 / DELETES + write(data / 2.0),
                    }
            })
            .sum()
    }

    /// The most that a candidate may take on the disk.
    fn disk_bytes(&self, candidate: &Candidate) -> f64 {
        /// Half compressible values, keys, indexes, what falls short of LZ4's best.
        const STORED: f64 = 0.65;
        /// Logs and what a flush has not written yet.
        const LOGS: f64 = 512.0 * 1024.0 * 1024.0;
        let data = self.data_bytes();
        let versions = match candidate.gc {
            // A compaction's inputs stay until its outputs are there.
            None => 2.0,
            // Nothing may come back before it is over.
            Some(_) => 1.0 + self.updates as f64 / self.num as f64,
        };
        data * versions * STORED + LOGS
    }
}

/// What all cells may take, once each.
pub(super) fn seconds(cells: &[Cell], candidates: &[&Candidate]) -> f64 {
    let of = |cell: &Cell| candidates.iter().map(|c| cell.seconds(c)).sum::<f64>();
    cells.iter().map(of).sum()
}

/// The most that a directory may take on the disk; there is one at a time.
pub(super) fn disk_bytes(cells: &[Cell], candidates: &[&Candidate]) -> u64 {
    let all = cells
        .iter()
        .flat_map(|cell| candidates.iter().map(|c| cell.disk_bytes(c)));
    all.fold(0.0, f64::max) as u64
}

/// What the file system of a directory, or of the first above it that exists, has left.
pub(super) fn available_bytes(dir: &Path) -> Result<u64, String> {
    let exists = dir.ancestors().find(|d| d.is_dir());
    let mut df = Command::new("df");
    df.args(["--block-size=1", "--output=avail"])
        .arg(exists.unwrap_or_else(|| Path::new(".")));
    let text = step::output(&mut df)?;
    let last = text.lines().last().unwrap_or_default().trim().parse();
    last.map_err(|_| format!("df told `{}`", text.trim()))
}

pub(super) fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// A length as text.
pub(super) fn size(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

/// Seconds as text.
pub(super) fn hours(seconds: f64) -> String {
    let minutes = (seconds / 60.0).ceil();
    if minutes < 120.0 {
        format!("{minutes} min")
    } else {
        format!("{:.1} h", minutes / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::large::{candidates, options};

    fn plan(bench: Bench, line: &str) -> (Vec<Cell>, Vec<&'static Candidate>) {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = options::parse(bench, &args).unwrap();
        (cells(bench, &options), candidates::chosen(bench, &options))
    }

    #[test]
    fn each_setting_has_each_size_and_only_its_own_bounds() {
        let (cells, _) = plan(Bench::Blob, "--sizes 1,32");
        let names: Vec<_> = cells
            .iter()
            .map(|c| (c.setting.name, c.value_len >> 10))
            .collect();
        assert_eq!(
            names,
            [
                ("memory", 1),
                ("memory", 32),
                ("cold", 1),
                ("cold", 32),
                ("disk", 1),
                ("disk", 32)
            ]
        );
        assert_eq!((cells[0].num, cells[0].reads), (2_064_888, 500_000));
        assert_eq!((cells[1].num, cells[1].reads), (65_504, 65_504));
        assert_eq!(
            cells[1].arguments().join(" "),
            "--value-len 32768 --updates 196512 --recycled-logs 2 --write-buffer 67108864"
        );
        assert!(cells[3].arguments().contains(&"--memory".to_owned()));
        assert_eq!(cells[3].memory, Some(65_504 * (32_768 + 16) / 4));
        assert_eq!(cells[4].rate_limit, Some(64 << 20));
    }

    #[test]
    fn a_part_runs_on_what_load_leaves() {
        let (cells, _) = plan(Bench::Blob, "--phases scan100,delete --settings memory");
        assert_eq!(
            cells[0].steps,
            [vec!["load"], vec!["scan100"], vec!["delete"]]
        );
        let (cells, _) = plan(Bench::Gc, "");
        assert_eq!(cells[0].steps, [vec!["load"], vec!["update"]]);
        assert_eq!(cells[0].updates, cells[0].num * 4);
    }

    #[test]
    fn estimates_grow_with_what_is_asked_for() {
        let seconds_of = |line: &str| {
            let (cells, candidates) = plan(Bench::Blob, line);
            seconds(&cells, &candidates)
        };
        let one = seconds_of("--settings memory --sizes 4");
        assert!(one > 30.0 && one < 3600.0, "{one}");
        assert!(seconds_of("--settings disk --sizes 4") > one);
        assert!(seconds_of("--settings cold --sizes 4") > one);
        assert!(seconds_of("--settings memory --sizes 4 --phases load") < one);
        let disk_of = |line: &str| {
            let (cells, candidates) = plan(Bench::Gc, line);
            gib(disk_bytes(&cells, &candidates))
        };
        assert!((3.0..5.0).contains(&disk_of("")), "{}", disk_of(""));
        assert!(disk_of("--gib 4") > 12.0);
    }

    #[test]
    fn the_disk_is_asked() {
        assert!(available_bytes(Path::new("/not/there/yet")).unwrap() > 0);
        assert_eq!(
            (hours(61.0), hours(7200.0)),
            ("2 min".to_owned(), "2.0 h".to_owned())
        );
    }
}
