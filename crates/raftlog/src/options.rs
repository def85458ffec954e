//! Settings of an engine.

use orogen_base::{Error, Result};

use crate::format::{FormatVersion, Lz4Policy};

/// What is done about damage that is met when a directory is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// Any damage is an error, also a record that a crash cut off.
    AbsoluteConsistency,
    /// The newest file of a queue is cut off before its first damaged record; damage in an earlier
    /// one is an error.
    #[default]
    TolerateTailCorruption,
    /// Every file is cut off before its first damaged record.
    TolerateAnyCorruption,
}

/// Settings of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is done about damage.
    pub recovery_mode: RecoveryMode,
    /// Bytes from which on a file is full; it may be longer by what is written at once.
    ///
    /// Larger: fewer syncs of new files, longer verification at open. Default 128 MiB; at least 1.
    pub target_file_size: u64,
    /// Bytes of entries from which on a batch is compressed; 0 for never. Default 8 KiB.
    pub batch_compression_threshold: usize,
    /// How much LZ4 hurries: larger is faster and compresses less. Default 1; 1 to 65537.
    pub compression_acceleration: i32,
    /// The format of new files. Default [`FormatVersion::V2`].
    pub format_version: FormatVersion,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            recovery_mode: RecoveryMode::default(),
            target_file_size: 128 << 20,
            batch_compression_threshold: 8 << 10,
            compression_acceleration: 1,
            format_version: FormatVersion::default(),
        }
    }
}

impl Options {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.target_file_size == 0 {
            return Err(Error::invalid_argument("target_file_size is 0"));
        }
        if !(1..=65537).contains(&self.compression_acceleration) {
            return Err(
                Error::invalid_argument("compression_acceleration is out of bounds")
                    .with("value", self.compression_acceleration),
            );
        }
        Ok(())
    }

    pub(crate) fn lz4(&self) -> Lz4Policy {
        Lz4Policy {
            threshold: self.batch_compression_threshold,
            acceleration: self.compression_acceleration,
        }
    }
}
