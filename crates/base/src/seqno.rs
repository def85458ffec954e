//! Numbers that order things: writes and files.

/// A sequence number: each write gets the next one. 56 bits.
pub type SeqNo = u64;

/// The number in a file's name: `000012.sst` is file 12.
pub type FileNo = u64;

/// The largest sequence number; eight bits below are taken by the value kind.
pub const SEQNO_MAX: SeqNo = (1 << 56) - 1;
