//! Settings under raft-engine's names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Error, ReadableSize, Result, Version};
use crate::dirs::Dirs;
use crate::options::{Options, RecoveryMode};

/// Settings of an engine, as raft-engine's configuration files have them: names with hyphens, each of
/// which may be left out.
///
/// Some have no effect here. They are kept so that such files can be read, and written again; [`Self::sanitize`] warns of those that are set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Config {
    /// The directory. Default empty.
    pub dir: String,
    /// A second directory, for new files where the first has no room for one; see
    /// [`raw::Options::spill_dir`](crate::raw::Options::spill_dir). Default none.
    pub spill_dir: Option<String>,
    /// Milliseconds that a call to the first directory may take before new files are made in the second; 0 for any time; see
    /// [`raw::Options::spill_stall_threshold`](crate::raw::Options::spill_stall_threshold). Default 0, which is not written down: raft-engine has
    /// no such setting.
    #[serde(skip_serializing_if = "is_zero")]
    pub spill_stall_threshold_ms: u64,
    /// What is done about damage. Default [`RecoveryMode::TolerateTailCorruption`].
    pub recovery_mode: RecoveryMode,
    /// No effect. Default 16 KiB; at least 512 bytes.
    pub recovery_read_block_size: ReadableSize,
    /// How many threads read the append queue when a directory is opened. Default 4; at least 1.
    pub recovery_threads: usize,
    /// Bytes of entries from which on a batch is compressed; 0 for never. Default 8 KiB.
    pub batch_compression_threshold: ReadableSize,
    /// How much LZ4 hurries: larger is faster and compresses less. Default 1; 1 to 65537, to which it is
    /// cut.
    pub compression_level: Option<usize>,
    /// No effect. Default none.
    pub bytes_per_sync: Option<ReadableSize>,
    /// The format of new files. Default [`Version::V2`].
    pub format_version: Version,
    /// Where records behind a sync begin; see [`raw::Options::record_alignment`](crate::raw::Options::record_alignment). Default 0, which is
    /// not written down: raft-engine has no such setting, but reads such files.
    #[serde(skip_serializing_if = "is_no_size")]
    pub record_alignment: ReadableSize,
    /// Bytes from which on a file is full. Default 128 MiB.
    pub target_file_size: ReadableSize,
    /// Bytes of the append queue above which a purge makes it shorter. Default 10 GiB; at least
    /// `target_file_size`.
    pub purge_threshold: ReadableSize,
    /// Which part of `purge_threshold` a purge makes free, beside what is above it; see
    /// [`raw::Options::purge_headroom_ratio`](crate::raw::Options::purge_headroom_ratio). Default a sixteenth, which is not written down: raft-engine
    /// has no such setting, and does as it is done here with 1; 0 to 1, to which it is cut.
    #[serde(skip_serializing_if = "is_headroom_default")]
    pub purge_headroom_ratio: f64,
    /// Bytes that a purge writes in a second; 0 for no limit. Default 0, which is not written down: raft-engine has no such setting.
    #[serde(skip_serializing_if = "is_no_size")]
    pub purge_rate_bytes_per_sec: ReadableSize,
    /// The same as `purge_threshold` for the rewrite queue. Default none: a tenth of `purge_threshold`, but at least
    /// `target_file_size`.
    pub purge_rewrite_threshold: Option<ReadableSize>,
    /// Which part of the rewrite queue must be garbage before it is written anew. Default 0.6; 0 to 1, to
    /// which it is cut.
    pub purge_rewrite_garbage_ratio: f64,
    /// Bytes of memory for blocks of entries that were read; 0 for none. Default 128 MiB, which is not written down: raft-engine
    /// has no such setting, and passes over it.
    #[serde(skip_serializing_if = "is_read_cache_default")]
    pub read_cache_size: ReadableSize,
    /// No effect. Default none.
    pub memory_limit: Option<ReadableSize>,
    /// Whether emptied files are written over. Default true, which needs [`Version::V2`].
    pub enable_log_recycle: bool,
    /// No effect. Default false; true needs `enable_log_recycle`.
    pub prefill_for_recycle: bool,
    /// No effect. Default none.
    pub prefill_limit: Option<ReadableSize>,
}

impl Default for Config {
    fn default() -> Self {
        let raw = Options::default();
        Self {
            dir: String::new(),
            spill_dir: None,
            spill_stall_threshold_ms: 0,
            recovery_mode: raw.recovery_mode,
            recovery_read_block_size: READ_BLOCK_DEFAULT,
            recovery_threads: 4,
            batch_compression_threshold: ReadableSize(raw.batch_compression_threshold as u64),
            compression_level: None,
            bytes_per_sync: None,
            format_version: Version::V2,
            record_alignment: ReadableSize(raw.record_alignment),
            target_file_size: ReadableSize(raw.target_file_size),
            purge_threshold: ReadableSize(raw.purge_threshold),
            purge_headroom_ratio: raw.purge_headroom_ratio,
            purge_rate_bytes_per_sec: ReadableSize(raw.purge_rate_bytes_per_sec),
            purge_rewrite_threshold: None,
            purge_rewrite_garbage_ratio: raw.purge_rewrite_garbage_ratio,
            read_cache_size: ReadableSize(raw.read_cache_bytes as u64),
            memory_limit: None,
            enable_log_recycle: true,
            prefill_for_recycle: false,
            prefill_limit: None,
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_no_size(size: &ReadableSize) -> bool {
    size.0 == 0
}

fn is_read_cache_default(size: &ReadableSize) -> bool {
    *size == Config::default().read_cache_size
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
fn is_headroom_default(ratio: &f64) -> bool {
    ratio.to_bits() == Config::default().purge_headroom_ratio.to_bits()
}

const READ_BLOCK_MIN: ReadableSize = ReadableSize(512);

const READ_BLOCK_DEFAULT: ReadableSize = ReadableSize::kb(16);

fn refused(why: &str) -> Error {
    Error::Other(why.into())
}

impl Config {
    /// Mends what is too small, fills in what is left out, and refuses what cannot be.
    ///
    /// # Errors
    /// [`Error::Other`] if `purge_threshold` is below `target_file_size`, or for recycling that the
    /// format, or prefilling that recycling, does not allow; [`Error::InvalidArgument`] for a `record_alignment` that cannot be.
    pub fn sanitize(&mut self) -> Result<()> {
        if self.purge_threshold < self.target_file_size {
            return Err(refused("purge-threshold is below target-file-size"));
        }
        if self.purge_rewrite_threshold.is_none() {
            let least = (self.purge_threshold.0 / 10).max(self.target_file_size.0);
            self.purge_rewrite_threshold = Some(ReadableSize(least));
        }
        if self.enable_log_recycle && !self.format_version.has_log_signing() {
            return Err(refused("enable-log-recycle needs format-version 2"));
        }
        Options {
            record_alignment: self.record_alignment.0,
            format_version: self.format_version.format(),
            ..Options::default()
        }
        .validate()?;
        if self.prefill_for_recycle && !self.enable_log_recycle {
            return Err(refused("prefill-for-recycle needs enable-log-recycle"));
        }
        if self.recovery_read_block_size != READ_BLOCK_DEFAULT {
            tracing::warn!("recovery-read-block-size has no effect");
        }
        if self.recovery_read_block_size < READ_BLOCK_MIN {
            tracing::warn!(given = %self.recovery_read_block_size, "recovery-read-block-size is raised to 512B");
            self.recovery_read_block_size = READ_BLOCK_MIN;
        }
        if self.recovery_threads == 0 {
            tracing::warn!("recovery-threads is raised to 1");
            self.recovery_threads = 1;
        }
        if self.bytes_per_sync.is_some() {
            tracing::warn!("bytes-per-sync has no effect");
        }
        if self.memory_limit.is_some() {
            tracing::warn!("memory-limit has no effect");
        }
        if self.prefill_for_recycle {
            tracing::warn!("prefill-for-recycle has no effect");
        }
        if self.prefill_limit.is_some() {
            tracing::warn!("prefill-limit has no effect");
        }
        self.prefill_limit = match self.prefill_for_recycle {
            true => Some(self.prefill_limit.unwrap_or(self.purge_threshold)),
            false => None,
        };
        Ok(())
    }

    /// The directories.
    pub(super) fn dirs(&self) -> Result<Dirs> {
        let second = self.spill_dir.as_ref().map(Path::new);
        Ok(Dirs::new(Path::new(&self.dir), second)?)
    }

    /// The first directory and the options of the engine.
    pub(super) fn options(&self) -> (PathBuf, Options) {
        let threshold = usize::try_from(self.batch_compression_threshold.0).unwrap_or(usize::MAX);
        let hurry = self.compression_level.unwrap_or(1).clamp(1, 65537);
        let options = Options {
            spill_dir: self.spill_dir.as_ref().map(PathBuf::from),
            spill_stall_threshold: Some(self.spill_stall_threshold_ms)
                .filter(|ms| *ms > 0)
                .map(Duration::from_millis),
            recovery_mode: self.recovery_mode,
            recovery_threads: self.recovery_threads.max(1),
            enable_log_digests: true,
            target_file_size: self.target_file_size.0.max(1),
            batch_compression_threshold: threshold,
            compression_acceleration: hurry as i32,
            format_version: self.format_version.format(),
            record_alignment: self.record_alignment.0,
            enable_log_recycle: self.enable_log_recycle,
            purge_threshold: self.purge_threshold.0.max(1),
            purge_headroom_ratio: self.purge_headroom_ratio.clamp(0.0, 1.0),
            purge_rate_bytes_per_sec: self.purge_rate_bytes_per_sec.0,
            purge_rewrite_threshold: self.purge_rewrite_threshold.map(|size| size.0),
            purge_rewrite_garbage_ratio: self.purge_rewrite_garbage_ratio.clamp(0.0, 1.0),
            read_cache_bytes: usize::try_from(self.read_cache_size.0).unwrap_or(usize::MAX),
        };
        (PathBuf::from(&self.dir), options)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::with_default;
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    #[test]
    fn what_is_left_out_is_default_and_comes_back() {
        let config: Config = serde_json::from_str("{}").unwrap();
        assert_eq!(config, Config::default());
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "dir": "",
            "spill-dir": null,
            "recovery-mode": "tolerate-corrupted-tail-records",
            "recovery-read-block-size": "16KiB",
            "recovery-threads": 4,
            "batch-compression-threshold": "8KiB",
            "compression-level": null,
            "bytes-per-sync": null,
            "format-version": 2,
            "target-file-size": "128MiB",
            "purge-threshold": "10GiB",
            "purge-rewrite-threshold": null,
            "purge-rewrite-garbage-ratio": 0.6,
            "memory-limit": null,
            "enable-log-recycle": true,
            "prefill-for-recycle": false,
            "prefill-limit": null,
        });
        assert_eq!(value, expected);
    }

    /// Hears warnings.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<String>>>);

    impl Visit for Heard {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if field.name() == "message" {
                self.0.lock().unwrap().push(format!("{value:?}"));
            }
        }
    }

    impl Subscriber for Heard {
        fn enabled(&self, event: &Metadata<'_>) -> bool {
            *event.level() == Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    fn warnings(mut config: Config) -> Vec<String> {
        let heard = Heard::default();
        with_default(heard.clone(), || config.sanitize().unwrap());
        heard.0.lock().unwrap().clone()
    }

    #[test]
    fn what_is_set_without_effect_is_warned_of() {
        assert_eq!(warnings(Config::default()), Vec::<String>::new());
        let size = Some(ReadableSize::mb(1));
        for (name, config) in [
            (
                "recovery-read-block-size",
                Config {
                    recovery_read_block_size: ReadableSize::kb(64),
                    ..Config::default()
                },
            ),
            (
                "bytes-per-sync",
                Config {
                    bytes_per_sync: size,
                    ..Config::default()
                },
            ),
            (
                "memory-limit",
                Config {
                    memory_limit: size,
                    ..Config::default()
                },
            ),
            (
                "prefill-for-recycle",
                Config {
                    prefill_for_recycle: true,
                    ..Config::default()
                },
            ),
            (
                "prefill-limit",
                Config {
                    prefill_limit: size,
                    ..Config::default()
                },
            ),
        ] {
            assert_eq!(warnings(config), [format!("{name} has no effect")]);
        }
        let both = Config {
            prefill_for_recycle: true,
            prefill_limit: size,
            ..Config::default()
        };
        assert_eq!(warnings(both).len(), 2);
    }

    #[test]
    fn modes_have_their_names() {
        let read = |name: &str| serde_json::from_str::<RecoveryMode>(&format!("{name:?}"));
        let tail = RecoveryMode::TolerateTailCorruption;
        assert_eq!(read("tolerate-tail-corruption").unwrap(), tail);
        assert_eq!(read("tolerate-corrupted-tail-records").unwrap(), tail);
        let any = RecoveryMode::TolerateAnyCorruption;
        assert_eq!(read("tolerate-any-corruption").unwrap(), any);
        let absolute = RecoveryMode::AbsoluteConsistency;
        assert_eq!(read("absolute-consistency").unwrap(), absolute);
        assert!(read("TolerateTailCorruption").is_err());
    }

    #[test]
    fn what_is_set_is_read() {
        let config: Config = serde_json::from_str(
            r#"{"dir": "d", "spill-dir": "s", "target-file-size": "1MB", "purge-threshold": 3145728,
                "format-version": 1, "enable-log-recycle": false, "compression-level": 0,
                "read-cache-size": "1MB", "spill-stall-threshold-ms": 250, "record-alignment": "4KB",
                "purge-headroom-ratio": 0.5, "purge-rate-bytes-per-sec": "2MB"}"#,
        )
        .unwrap();
        assert_eq!(config.target_file_size, ReadableSize::mb(1));
        assert_eq!(config.purge_threshold, ReadableSize::mb(3));
        assert_eq!(config.format_version, Version::V1);
        let (dir, options) = config.options();
        assert_eq!(dir, PathBuf::from("d"));
        assert_eq!(options.spill_dir, Some(PathBuf::from("s")));
        assert_eq!(
            options.spill_stall_threshold,
            Some(Duration::from_millis(250))
        );
        assert_eq!(options.compression_acceleration, 1);
        assert_eq!(options.read_cache_bytes, 1 << 20);
        assert_eq!(options.record_alignment, 4096);
        assert_eq!(options.purge_headroom_ratio.to_bits(), 0.5_f64.to_bits());
        assert_eq!(options.purge_rate_bytes_per_sec, 2 << 20);
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&text).unwrap(), config);
        assert!(serde_json::from_str::<Config>(r#"{"format-version": 3}"#).is_err());
    }

    #[test]
    fn the_small_is_mended_and_the_impossible_refused() {
        let mut config = Config {
            recovery_read_block_size: ReadableSize(1),
            recovery_threads: 0,
            target_file_size: ReadableSize::mb(5000),
            prefill_for_recycle: true,
            ..Config::default()
        };
        config.sanitize().unwrap();
        assert_eq!(config.recovery_read_block_size, ReadableSize(512));
        assert_eq!(config.recovery_threads, 1);
        assert_eq!(config.purge_rewrite_threshold, Some(ReadableSize::mb(5000)));
        assert_eq!(config.prefill_limit, Some(ReadableSize::gb(10)));
        config.prefill_for_recycle = false;
        config.sanitize().unwrap();
        assert_eq!(config.prefill_limit, None);
        for impossible in [
            Config {
                purge_threshold: ReadableSize::mb(3),
                ..Config::default()
            },
            Config {
                format_version: Version::V1,
                ..Config::default()
            },
            Config {
                enable_log_recycle: false,
                prefill_for_recycle: true,
                ..Config::default()
            },
        ] {
            assert!(matches!(
                impossible.clone().sanitize(),
                Err(Error::Other(_))
            ));
        }
        for (value, format_version) in
            [(1000, Version::V2), (256, Version::V2), (4096, Version::V1)]
        {
            let mut unaligned = Config {
                record_alignment: ReadableSize(value),
                format_version,
                enable_log_recycle: false,
                ..Config::default()
            };
            assert!(matches!(
                unaligned.sanitize(),
                Err(Error::InvalidArgument(why)) if why.contains("record_alignment")
            ));
        }
    }
}
