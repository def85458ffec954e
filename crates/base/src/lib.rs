//! The words of the engine: keys, sequence numbers, orders, coding, checksums, errors.
//!
//! Floor 0: no I/O, no threads of its own, no `unsafe` but for the instructions of CRC-32C. Every
//! other crate imports this one.

pub mod sync;
pub mod error;
pub mod memory;
pub mod limits;
pub mod coding;
pub mod checksum;
pub mod comparator;
pub mod seqno;
pub mod key;
pub mod key_range;
pub mod pinned;
pub mod iter;
pub mod range_del;
pub mod metrics;
pub mod perf;
pub mod inspect;
pub mod protection;
pub mod slice_transform;
pub mod search;

pub use comparator::{Comparator, UserComparator};
pub use error::{Error, ErrorKind, Result};
pub use iter::InternalIterator;
pub use key::{ParsedInternalKey, ValueKind};
pub use key_range::KeyRange;
pub use pinned::PinnedValue;
pub use seqno::{FileNo, SeqNo};
pub use slice_transform::SliceTransform;
