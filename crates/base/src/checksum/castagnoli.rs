//! CRC-32C, by the fastest way that this processor has. `Hot path`.
//!
//! On x86-64 the ways of [`x86_64`], chosen once; everywhere else, and where those would gain
//! nothing, the crate `crc32c`. All give the same number; which one ran cannot be seen.

#[cfg(target_arch = "x86_64")]
mod x86_64;

/// CRC-32C of what `crc` covers followed by `data`.
#[inline]
pub(super) fn extend(crc: u32, data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(crc) = x86_64::extend(crc, data) {
        return crc;
    }
    crc32c::crc32c_append(crc, data)
}

#[cfg(test)]
mod tests;
