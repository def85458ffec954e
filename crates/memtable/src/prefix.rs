//! The first bytes of keys as numbers, so that most comparisons touch no key.

/// A number that orders as bytewise keys do, as far as it differs; 0 for keys in another order.
#[inline]
pub(crate) fn prefix(bytewise: bool, user_key: &[u8]) -> u64 {
    if !bytewise {
        return 0;
    }
    if let Some(chunk) = user_key.first_chunk() {
        return u64::from_be_bytes(*chunk);
    }
    let mut bytes = [0; 8];
    bytes[..user_key.len()].copy_from_slice(user_key);
    u64::from_be_bytes(bytes)
}
