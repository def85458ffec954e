//! Settings of an engine.

use std::path::PathBuf;
use std::time::Duration;

use orogen_base::{Error, Result};
use orogen_env::memory::machine_bytes;

use crate::format::{ALIGNMENTS, FileHeader, FormatVersion, Lz4Policy};

/// What is done about damage that is met when a directory is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "protobuf",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum RecoveryMode {
    /// Any damage is an error, also a record that a crash cut off. All blocks of all files are read and verified for that.
    AbsoluteConsistency,
    /// The newest file of a queue is cut off before its first damaged record; damage in an earlier
    /// one is an error. It is written under the name that raft-engine once had for it, and read
    /// under both.
    #[default]
    #[cfg_attr(
        feature = "protobuf",
        serde(
            rename(serialize = "tolerate-corrupted-tail-records"),
            alias = "tolerate-corrupted-tail-records"
        )
    )]
    TolerateTailCorruption,
    /// Every file is cut off before its first damaged record.
    TolerateAnyCorruption,
}

/// Settings of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A second directory, for new files where the first has no room for one: a file is made in the first that has
    /// `target_file_size` bytes free, or a spare file; and where an append finds no space the next file is made in the other, to which the
    /// batch is then written. The files of both are one sequence, so a directory that was used with one must not be opened
    /// without it. It is made if it is not there. Default none.
    pub spill_dir: Option<PathBuf>,
    /// From a call to write, sync or make a file in the first directory on that has taken longer than this, new files are made in
    /// `spill_dir`, and the file that is written is left for one there before the next batch. That goes on until three purges in a row have
    /// found that a small file is written and synced in the first directory within half of this;
    /// without [`Engine::purge_expired_files`] for ever. A file of the second directory is filled before the next one is
    /// made in the first again.
    ///
    /// A call that has not come back is waited for: what it writes is answered when it returns, and not written to the other
    /// directory as well. So a disk that stands still for ever holds writers for ever; one that is slow again and again holds
    /// them once, and for the sync by which the file is left. To be set to a multiple of what syncs take at worst when all is well. Needs `spill_dir`. Default none.
    ///
    /// [`Engine::purge_expired_files`]: crate::raw::Engine::purge_expired_files
    pub spill_stall_threshold: Option<Duration>,
    /// What is done about damage.
    pub recovery_mode: RecoveryMode,
    /// How many threads read the append queue when a directory is opened. Default 4; at least 1.
    pub recovery_threads: usize,
    /// Whether full files of the append queue get digests: small files beside them, which are read in their place when the
    /// directory is opened. What they take is about six bytes for each entry. They are written in the background, where
    /// other threads leave time, and not synced; one that is missing or damaged is made anew from its file at the next open. With [`RecoveryMode::AbsoluteConsistency`] none is read: the files
    /// themselves are, with all their blocks, so that all damage is seen. Default true.
    pub enable_log_digests: bool,
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
    /// Bytes of which a new file has a multiple before what is written behind a sync: the rest of the last block is filled with zeros, so that no
    /// block is written for two syncs, or read because a part of it is written over. What is written without a sync is packed. 0 for
    /// packed records throughout, the default; else a power of two, 512 to 64 KiB, best the block of the file system, which is
    /// 4 KiB most often. Needs [`FormatVersion::V2`]. Files that are there keep theirs.
    ///
    /// Larger: more zeros, half as many for each sync on the average.
    pub record_alignment: u64,
    /// Whether files of the append queue that a purge empties are kept, under names of spare files, and written over: a
    /// sync has less to write then, and pages in memory need not be given back and made anew. Together with the files of the queue they are at most one and a half times as many as `purge_threshold` has
    /// room for. Where syncs are rare this is done only if they fit into a quarter of the machine's memory; else emptied files are deleted. Only files of [`FormatVersion::V2`]; none with [`RecoveryMode::AbsoluteConsistency`], for which what a file held
    /// before would be damage after a crash. Default true.
    pub enable_log_recycle: bool,
    /// Bytes of the append queue above which [`Engine::purge_expired_files`] makes it shorter. Each
    /// file counts as a full one.
    ///
    /// Larger: less is written twice, more is read at open. Default 10 GiB; at least
    /// `target_file_size`.
    ///
    /// [`Engine::purge_expired_files`]: crate::raw::Engine::purge_expired_files
    pub purge_threshold: u64,
    /// Which part of `purge_threshold` a purge makes free in the append queue, beside what is above it. At most seven tenths of
    /// the files are emptied, which is what raft-engine always does.
    ///
    /// Larger: fewer purges have something to do, and what they move has had less time to be compacted, so they write
    /// more. Default a sixteenth; 0 to 1.
    pub purge_headroom_ratio: f64,
    /// Bytes that a purge writes to the rewrite queue in a second; who purges waits for that. 0 for no limit, the default.
    pub purge_rate_bytes_per_sec: u64,
    /// Bytes of the rewrite queue above which a purge makes it shorter, each file counted as a full one: its oldest files go in
    /// which nothing lives, and if that is not enough it is written anew; `None` for a tenth of
    /// `purge_threshold`, but at least `target_file_size`, which is the default.
    pub purge_rewrite_threshold: Option<u64>,
    /// Which part of what the rewrite queue holds must be garbage before it is written anew.
    ///
    /// Larger: less is written again, more space is taken. Default 0.6; 0 to 1.
    pub purge_rewrite_garbage_ratio: f64,
    /// Bytes of memory for blocks of entries that were read, verified and unpacked: who reads them again makes no call to the
    /// system; 0 for none. Writers and purges put nothing there, and what is only read once does not push out what is read
    /// again and again. It is taken as blocks are read, not when the directory is opened.
    ///
    /// Larger: more logs can be read again from memory. Default 128 MiB.
    pub read_cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            spill_dir: None,
            spill_stall_threshold: None,
            recovery_mode: RecoveryMode::default(),
            recovery_threads: 4,
            enable_log_digests: true,
            target_file_size: 128 << 20,
            batch_compression_threshold: 8 << 10,
            compression_acceleration: 1,
            format_version: FormatVersion::default(),
            record_alignment: 0,
            enable_log_recycle: true,
            purge_threshold: 10 << 30,
            purge_headroom_ratio: 1.0 / 16.0,
            purge_rate_bytes_per_sec: 0,
            purge_rewrite_threshold: None,
            purge_rewrite_garbage_ratio: 0.6,
            read_cache_bytes: 128 << 20,
        }
    }
}

impl Options {
    pub(crate) fn validate(&self) -> Result<()> {
        if self.target_file_size == 0 {
            return Err(Error::invalid_argument("target_file_size is 0"));
        }
        if self.spill_stall_threshold.is_some() && self.spill_dir.is_none() {
            return Err(Error::invalid_argument(
                "spill_stall_threshold needs a spill_dir",
            ));
        }
        if self.recovery_threads == 0 {
            return Err(Error::invalid_argument("recovery_threads is 0"));
        }
        if self.record_alignment > 0 {
            let is_power = self.record_alignment.is_power_of_two();
            if !is_power || !ALIGNMENTS.contains(&self.record_alignment) {
                return Err(Error::invalid_argument(
                    "record_alignment is neither 0 nor a power of two from 512 to 65536",
                )
                .with("value", self.record_alignment));
            }
            if self.format_version == FormatVersion::V1 {
                return Err(Error::invalid_argument(
                    "record_alignment needs format_version 2",
                ));
            }
        }
        if self.purge_threshold < self.target_file_size {
            return Err(
                Error::invalid_argument("purge_threshold is below target_file_size")
                    .with("purge_threshold", self.purge_threshold)
                    .with("target_file_size", self.target_file_size),
            );
        }
        for (name, ratio) in [
            (
                "purge_rewrite_garbage_ratio",
                self.purge_rewrite_garbage_ratio,
            ),
            ("purge_headroom_ratio", self.purge_headroom_ratio),
        ] {
            if !(0.0..=1.0).contains(&ratio) {
                return Err(Error::invalid_argument(format!("{name} is out of bounds"))
                    .with("value", ratio));
            }
        }
        if !(1..=65537).contains(&self.compression_acceleration) {
            return Err(
                Error::invalid_argument("compression_acceleration is out of bounds")
                    .with("value", self.compression_acceleration),
            );
        }
        Ok(())
    }

    /// What the headers of new files say.
    pub(crate) fn file_header(&self) -> FileHeader {
        FileHeader {
            version: self.format_version,
            alignment: self.record_alignment,
        }
    }

    /// Most files of the append queue and spare ones.
    pub(crate) fn files_max(&self) -> u64 {
        let recycles = self.enable_log_recycle
            && self.format_version == FormatVersion::V2
            && self.recovery_mode != RecoveryMode::AbsoluteConsistency;
        match recycles {
            true => (self.purge_threshold / self.target_file_size).saturating_mul(3) / 2,
            false => 0,
        }
    }

    /// Whether so many are few enough that their pages stay in memory: a quarter of what the machine has.
    pub(crate) fn files_are_in_memory(&self) -> bool {
        let bytes = self.files_max().saturating_mul(self.target_file_size);
        bytes <= machine_bytes() / 4
    }

    /// Whether digests may stand for their files.
    pub(crate) fn uses_digests(&self) -> bool {
        self.enable_log_digests && self.recovery_mode != RecoveryMode::AbsoluteConsistency
    }

    pub(crate) fn rewrite_threshold(&self) -> u64 {
        self.purge_rewrite_threshold
            .unwrap_or_else(|| (self.purge_threshold / 10).max(self.target_file_size))
    }

    pub(crate) fn lz4(&self) -> Lz4Policy {
        Lz4Policy {
            threshold: self.batch_compression_threshold,
            acceleration: self.compression_acceleration,
        }
    }
}
