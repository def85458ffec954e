//! The only code that meets the operating system: files, clock, threads.
//!
//! Everything above asks a [`FileSystem`] and a [`Clock`], so that a test can take their place:
//! in memory with power cuts ([`MemFileSystem`]), or failing on purpose
//! ([`FaultFileSystem`]).

pub mod clock;
mod perf_timer;
pub mod threads;
pub mod memory;
pub mod rate_limiter;
pub mod fs;
pub mod posix;
pub mod mem;
pub mod fault;
pub mod buffered;

pub use buffered::BufferedFile;
pub use clock::{Clock, ManualClock, SystemClock};
pub use fault::{Fault, FaultFileSystem, Faults, OpKind};
pub use fs::{Access, FileLock, FileSystem, Metadata, RandomAccessFile, WritableFile};
pub use mem::{MemFileSystem, PowerCut, TailFill};
pub use perf_timer::PerfTimer;
pub use posix::PosixFileSystem;
pub use rate_limiter::{IoPriority, RateLimiter};
