//! The command line: `--name=value` in db_bench's spelling, with db_bench's defaults.

use std::fmt::Write as _;
use std::path::PathBuf;

/// One flag's value, as it is read and shown.
trait FlagValue: Sized {
    fn from_flag(text: &str) -> Option<Self>;

    fn to_flag(&self) -> String;
}

macro_rules! numbers {
    ($($t:ty),*) => {
        $(impl FlagValue for $t {
            fn from_flag(text: &str) -> Option<Self> {
                text.parse().ok()
            }

            fn to_flag(&self) -> String {
                self.to_string()
            }
        })*
    };
}
numbers!(u64, i64, usize, f64);

impl FlagValue for bool {
    fn from_flag(text: &str) -> Option<Self> {
        match text {
            "true" | "1" | "t" | "yes" => Some(true),
            "false" | "0" | "f" | "no" => Some(false),
            _ => None,
        }
    }

    fn to_flag(&self) -> String {
        self.to_string()
    }
}

impl FlagValue for String {
    fn from_flag(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn to_flag(&self) -> String {
        self.clone()
    }
}

impl FlagValue for PathBuf {
    fn from_flag(text: &str) -> Option<Self> {
        // An empty one would be the working directory.
        (!text.is_empty()).then(|| text.into())
    }

    fn to_flag(&self) -> String {
        self.display().to_string()
    }
}

macro_rules! flags {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:expr,)*) => {
        /// Every flag.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Flags { $($(#[doc = $doc])* pub $name: $type,)* }

        impl Default for Flags {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Flags {
            /// Names, meanings and values of the flags.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, &'static str, String)> {
                let meaning = |text: &'static str| text.trim();
                vec![$((stringify!($name), meaning(concat!($($doc),*)), self.$name.to_flag()),)*]
            }

            /// True if the flag is a switch, which may stand without a value.
            fn is_switch(name: &str) -> bool {
                match name {
                    $(stringify!($name) => stringify!($type) == "bool",)*
                    _ => false,
                }
            }

            fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
                let bad = || format!("illegal value '{text}' of flag --{name}");
                match name {
                    $(stringify!($name) => {
                        self.$name = <$type as FlagValue>::from_flag(text).ok_or_else(bad)?;
                    })*
                    _ => return Err(format!("unknown command line flag '{name}'")),
                }
                Ok(())
            }
        }
    };
}

flags! {
    /// Workloads, separated by commas, in the order in which they run.
    benchmarks: String = "fillseq,readrandom,readseq".to_owned(),
    /// Directory of the database; its database files are deleted unless --use_existing_db.
    db: PathBuf = std::env::temp_dir().join("orogen-bench"),
    /// Keys of the key space, and writes of each thread.
    num: u64 = 1_000_000,
    /// Reads of each thread; negative: as --num.
    reads: i64 = -1,
    /// Seconds that random workloads run; 0: until --num or --reads are done.
    duration: u64 = 0,
    /// Threads of a workload.
    threads: usize = 1,
    /// Bytes of a value.
    value_size: usize = 100,
    /// Bytes of a key.
    key_size: usize = 16,
    /// Entries of a write batch, and keys of a multi-get.
    batch_size: usize = 1,
    /// Sync the WAL with each write.
    sync: bool = false,
    /// Write no WAL.
    disable_wal: bool = false,
    /// Keep what is in --db.
    use_existing_db: bool = false,
    /// none, snappy, lz4, lz4hc or zstd.
    compression_type: String = "snappy".to_owned(),
    /// Values shrink to this fraction of their size.
    compression_ratio: f64 = 0.5,
    /// Bytes of the block cache.
    cache_size: u64 = 8 << 20,
    /// Write logs through shared memory.
    mmap_write: bool = false,
    /// Read tables and blob files out of mappings.
    mmap_read: bool = false,
    /// Bytes of a memtable.
    write_buffer_size: u64 = 64 << 20,
    /// Memtables of a family.
    max_write_buffer_number: usize = 2,
    /// Bits of Bloom filter per key; 0 and less: no filter.
    bloom_bits: f64 = -1.0,
    /// Bytes of a data block.
    block_size: usize = 4096,
    /// Put index and filter blocks into the block cache.
    cache_index_and_filter_blocks: bool = false,
    /// Write index and filters in partitions.
    partition_index_and_filters: bool = false,
    /// Bytes of a partition.
    metadata_block_size: usize = 4096,
    /// Verify checksums of blocks that are read.
    verify_checksum: bool = true,
    /// Moves after each seek of seekrandom.
    seek_nexts: u64 = 0,
    /// Move backward after seeks.
    reverse_iterator: bool = false,
    /// Print the distribution of each operation's time.
    histogram: bool = false,
    /// Print the database's counters at the end.
    statistics: bool = false,
    /// Start of the random numbers; 0: taken from the clock.
    seed: u64 = 0,
    /// Bytes of a table of level 1.
    target_file_size_base: u64 = 64 << 20,
    /// Bytes of level 1.
    max_bytes_for_level_base: u64 = 256 << 20,
    /// Tables of level 0 that start a compaction.
    level0_file_num_compaction_trigger: usize = 4,
    /// Threads for flush and compaction.
    max_background_jobs: usize = 2,
    /// Threads of one compaction.
    subcompactions: usize = 1,
    /// No compaction but on request.
    disable_auto_compactions: bool = false,
    /// Writes a second of readwhilewriting's writer, in bytes; 0: no limit.
    benchmark_write_rate_limit: u64 = 0,
    /// Seconds between lines about progress; 0: none.
    stats_interval_seconds: u64 = 0,
    /// Print one JSON document instead of lines.
    json: bool = false,
}

impl Flags {
    /// Reads `--name=value`, `--name value` and, for switches, `--name`; one dash is as good as
    /// two.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut flags = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
                return Err(format!("'{arg}' is not a flag"));
            };
            match body.split_once('=') {
                Some((name, value)) => flags.set(name, value)?,
                None if Self::is_switch(body) => flags.set(body, "true")?,
                None => {
                    let missing = || format!("flag '{body}' is missing its value or is unknown");
                    flags.set(body, args.next().ok_or_else(missing)?)?;
                }
            }
        }
        flags.check()?;
        Ok(flags)
    }

    fn check(&self) -> Result<(), String> {
        let bounds = [
            ("num", self.num >= 1),
            ("threads", (1..=1024).contains(&self.threads)),
            ("batch_size", (1..=1 << 20).contains(&self.batch_size)),
            ("key_size", (1..=1 << 16).contains(&self.key_size)),
            ("value_size", self.value_size <= 1 << 30),
            (
                "compression_ratio",
                (0.0..=1.0).contains(&self.compression_ratio),
            ),
        ];
        match bounds.iter().find(|(_, holds)| !holds) {
            Some((name, _)) => Err(format!("flag --{name} is out of bounds")),
            None => Ok(()),
        }
    }

    /// Reads of each thread.
    #[must_use]
    pub fn reads(&self) -> u64 {
        u64::try_from(self.reads).unwrap_or(self.num)
    }

    /// All flags with their meanings and defaults, a line each.
    #[must_use]
    pub fn help() -> String {
        let mut out = String::new();
        for (name, meaning, default) in Self::default().list() {
            let _ = writeln!(out, "  --{name:<36}{meaning} [default: {default}]");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Flags, String> {
        Flags::parse(&args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_in_every_spelling() {
        let flags = parse(&[
            "--num=10",
            "-threads",
            "3",
            "--sync",
            "--histogram=1",
            "--reads=-1",
        ])
        .unwrap();
        assert_eq!((flags.num, flags.threads), (10, 3));
        assert!(flags.sync && flags.histogram && !flags.json);
        assert_eq!(flags.reads(), 10);
        assert_eq!(parse(&["--reads=7"]).unwrap().reads(), 7);
    }

    #[test]
    fn wrong_flags_are_named() {
        assert!(parse(&["--nope=1"]).unwrap_err().contains("nope"));
        assert!(parse(&["--num=x"]).unwrap_err().contains("num"));
        assert!(parse(&["--num"]).unwrap_err().contains("num"));
        assert!(parse(&["--threads=0"]).unwrap_err().contains("threads"));
        assert!(parse(&["num=1"]).is_err());
    }
}
