//! What the command line says.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Bench, candidates, plan};
use crate::bench::{list, number};

/// The command line, and what holds where it is silent.
#[derive(Debug)]
pub(super) struct Options {
    /// User data of a cell.
    pub(super) gib: f64,
    /// Bytes of values.
    pub(super) sizes: Vec<u64>,
    pub(super) settings: Vec<String>,
    /// Names of candidates; empty: all.
    pub(super) engines: Vec<String>,
    /// Phases to measure; empty: all.
    pub(super) phases: Vec<String>,
    pub(super) pairs: usize,
    /// Gets of a cell; `None`: by the number of keys.
    pub(super) reads: Option<u64>,
    /// Updates for each key.
    pub(super) update_factor: f64,
    /// Block cache and pages of a cold cell; `None`: a quarter of the data.
    pub(super) memory_mib: Option<u64>,
    /// Background writes of a disk-bound cell, each second.
    pub(super) rate_mib: u64,
    /// Logs that every engine keeps to write over.
    pub(super) recycled_logs: u64,
    /// Every engine reads its files out of mappings.
    pub(super) mmap_reads: bool,
    /// A memtable, a table file and a quarter of level 1 of every engine.
    pub(super) write_buffer_mib: u64,
    pub(super) min_blob_size: u64,
    pub(super) force_threshold: f64,
    /// 0: no bound.
    pub(super) max_space_amp: f64,
    pub(super) dir: PathBuf,
    pub(super) json: Option<PathBuf>,
    pub(super) markdown: Option<PathBuf>,
}

impl Options {
    fn of(bench: Bench) -> Self {
        let (gib, kib, update_factor): (f64, &[u64], f64) = match bench {
            // By then files that a first round of updates left have been compacted.
            Bench::Blob => (2.0, &[1, 2, 4, 8, 16, 32], 3.0),
            Bench::Gc => (1.0, &[1, 4, 16, 64, 256, 512], 4.0),
        };
        let settings: Vec<String> = match bench {
            Bench::Blob => plan::SETTINGS.iter().map(|s| s.name.to_owned()).collect(),
            Bench::Gc => vec![plan::SETTINGS[0].name.to_owned()],
        };
        Self {
            gib,
            sizes: kib.iter().map(|kib| kib << 10).collect(),
            settings,
            engines: Vec::new(),
            phases: Vec::new(),
            pairs: 3,
            reads: None,
            update_factor,
            memory_mib: None,
            rate_mib: 64,
            recycled_logs: 2,
            mmap_reads: false,
            write_buffer_mib: 64,
            min_blob_size: 512,
            force_threshold: 1.0,
            max_space_amp: 0.0,
            dir: crate::workspace::root().join("target/bench-peers"),
            json: None,
            markdown: None,
        }
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "gib": self.gib,
            "sizes": self.sizes,
            "settings": self.settings,
            "engines": self.engines,
            "phases": self.phases,
            "pairs": self.pairs,
            "reads": self.reads,
            "update_factor": self.update_factor,
            "memory_mib": self.memory_mib,
            "rate_mib": self.rate_mib,
            "recycle_log_file_num": self.recycled_logs,
            "allow_mmap_reads": self.mmap_reads,
            "write_buffer_mib": self.write_buffer_mib,
            "min_blob_size": self.min_blob_size,
            "blob_garbage_collection_force_threshold": self.force_threshold,
            "max_space_amp": self.max_space_amp,
        })
    }
}

pub(super) fn parse(bench: Bench, args: &[String]) -> Result<Options, String> {
    let mut options = Options::of(bench);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--gib" => options.gib = fraction(value()?)?,
            "--sizes" => {
                let kib: Result<Vec<u64>, String> = value()?.split(',').map(number).collect();
                options.sizes = kib?.into_iter().map(|kib| kib << 10).collect();
            }
            "--settings" => options.settings = list(value()?),
            "--engines" => options.engines = list(value()?),
            "--phases" if bench == Bench::Blob => options.phases = list(value()?),
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--reads" if bench == Bench::Blob => options.reads = Some(number(value()?)?),
            "--update-factor" => options.update_factor = fraction(value()?)?,
            "--memory-mib" => options.memory_mib = Some(number(value()?)?),
            "--rate-mib" => options.rate_mib = number(value()?)?,
            "--mmap-reads" => options.mmap_reads = true,
            "--recycled-logs" => options.recycled_logs = number(value()?)?,
            "--write-buffer-mib" => options.write_buffer_mib = number(value()?)?,
            "--min-blob-size" => options.min_blob_size = number(value()?)?,
            "--max-space-amp" => options.max_space_amp = fraction(value()?)?,
            "--force-threshold" => options.force_threshold = fraction(value()?)?,
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            "--markdown" => options.markdown = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    check(bench, &options)?;
    Ok(options)
}

fn check(bench: Bench, options: &Options) -> Result<(), String> {
    let unknown = |asked: &[String], known: &[&str], what: &str| {
        let name = asked.iter().find(|a| !known.contains(&a.as_str()));
        name.map_or(Ok(()), |name| {
            Err(format!("no {what} `{name}`: {}", known.join(", ")))
        })
    };
    let settings: Vec<&str> = plan::SETTINGS.iter().map(|s| s.name).collect();
    unknown(&options.settings, &settings, "setting")?;
    unknown(&options.engines, &candidates::names(bench), "candidate")?;
    unknown(&options.phases, &plan::blob_phases(), "phase")?;
    let nothing = options.pairs == 0
        || options.gib == 0.0
        || options.sizes.contains(&0)
        || options.reads == Some(0)
        || options.rate_mib == 0
        || options.memory_mib == Some(0);
    if nothing {
        return Err("there is nothing to measure".to_owned());
    }
    let len_max = options.sizes.iter().copied().max().unwrap_or(0);
    if plan::keys(options.gib, len_max) < plan::KEYS_MIN {
        return Err(format!(
            "{} GiB are less than {} values of {}",
            options.gib,
            plan::KEYS_MIN,
            plan::size(len_max)
        ));
    }
    if options.force_threshold > 1.0 {
        return Err("--force-threshold is a share, from 0 to 1".to_owned());
    }
    Ok(())
}

fn fraction(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|v| v.is_finite() && *v >= 0.0)
        .ok_or_else(|| format!("`{text}` is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(bench: Bench, line: &str) -> Result<Options, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(bench, &args)
    }

    #[test]
    fn a_silent_line_measures_everything() {
        let blob = parse_line(Bench::Blob, "").unwrap();
        assert_eq!((blob.gib, blob.update_factor, blob.pairs), (2.0, 3.0, 3));
        assert_eq!((blob.sizes[0], blob.sizes[5]), (1024, 32 << 10));
        assert_eq!(blob.settings, ["memory", "cold", "disk"]);
        let gc = parse_line(Bench::Gc, "").unwrap();
        assert_eq!((gc.update_factor, gc.sizes[5]), (4.0, 512 << 10));
        assert_eq!(gc.settings, ["memory"]);
    }

    #[test]
    fn parts_can_be_asked_for() {
        let line = "--gib 0.5 --sizes 1,4 --settings cold --engines rocksdb --phases get,update \
                    --pairs 1 --update-factor 0.5 --rate-mib 32 --force-threshold 0.5";
        let options = parse_line(Bench::Blob, line).unwrap();
        assert_eq!((options.gib, options.update_factor), (0.5, 0.5));
        assert_eq!(options.sizes, [1024, 4096]);
        assert_eq!(options.phases, ["get", "update"]);
        assert_eq!(options.as_json()["rate_mib"], 32);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (bench, line, word) in [
            (Bench::Blob, "--settings warm", "memory, cold, disk"),
            (Bench::Blob, "--engines pebble", "orogen-blob"),
            (Bench::Blob, "--engines orogen-punch", "orogen-punch"),
            (Bench::Blob, "--phases fillseq", "scan100"),
            (Bench::Gc, "--phases update", "--phases"),
            (Bench::Gc, "--reads 7", "--reads"),
            (Bench::Gc, "--pairs 0", "nothing"),
            (Bench::Gc, "--sizes 0", "nothing"),
            (Bench::Gc, "--gib 0.001", "512 KiB"),
            (Bench::Blob, "--gib x", "number"),
            (Bench::Blob, "--gib nan", "number"),
            (Bench::Blob, "--force-threshold 2", "share"),
            (Bench::Blob, "--json", "value"),
        ] {
            let error = parse_line(bench, line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
