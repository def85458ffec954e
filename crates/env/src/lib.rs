//! The only code that meets the operating system: files, clock, threads.
//!
//! Everything above asks a [`FileSystem`] and a [`Clock`], so that a test can take their place:
//! in memory with power cuts, or failing on purpose.

pub mod clock;
pub mod threads;
pub mod fs;

pub use clock::{Clock, SystemClock};
pub use fs::{Access, FileLock, FileSystem, Metadata, RandomAccessFile, WritableFile};
