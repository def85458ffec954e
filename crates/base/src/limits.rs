//! Every bound of the engine in one place.

/// Largest user key in bytes (the internal key's length must fit 32 bits).
pub const KEY_SIZE_MAX: usize = (u32::MAX - 64) as usize;

/// Largest value in bytes.
pub const VALUE_SIZE_MAX: usize = u32::MAX as usize;

/// Levels of a column family at most.
pub const NUM_LEVELS_MAX: usize = 64;

/// Bytes of a block, decompressed: places in it have 32 bits.
pub const BLOCK_SIZE_MAX: usize = u32::MAX as usize;

/// Bytes of a batch. What a batch holds fits into a block, which takes a few bytes more for it.
pub const BATCH_SIZE_MAX: usize = (u32::MAX - 64) as usize;

/// Bytes that one WAL or MANIFEST record may hold.
pub const RECORD_SIZE_MAX: usize = u32::MAX as usize;
