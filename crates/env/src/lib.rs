//! The only code that meets the operating system: files, clock, threads.
//!
//! Everything above asks a [`FileSystem`] and a [`Clock`], so that a test can take their place:
//! in memory with power cuts ([`MemFileSystem`]), failing on purpose ([`FaultFileSystem`]), or on
//! disk by system calls that do a part of their work ([`ShortCallsFileSystem`]).

pub mod clock;
mod perf_timer;
pub mod threads;
pub mod rooms;
pub mod barrier;
pub mod ahead;
pub mod memory;
pub mod limits;
mod mapping;
mod residency;
pub mod rate_limiter;
pub mod fs;
pub mod posix;
pub mod mem;
pub mod fault;
pub mod buffered;
pub mod positional;

pub use ahead::Ahead;
pub use buffered::BufferedFile;
pub use clock::{Clock, ManualClock, SystemClock};
pub use fault::{Fault, FaultFileSystem, Faults, OpKind};
pub use fs::{Access, FileLock, FileSystem, LengthHint, Metadata, RandomAccessFile, WritableFile};
pub use mem::{MemFileSystem, PowerCut, TailFill, UnsyncedBytes};
pub use perf_timer::{PerfTimer, Stopwatch};
pub use positional::PositionalFile;
pub use posix::{PosixFileSystem, ShortCalls, ShortCallsFileSystem};
pub use rate_limiter::{IoPriority, RateLimiter};
pub use rooms::Room;
