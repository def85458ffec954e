//! The order of user keys.
//!
//! A comparator's name stands in the MANIFEST and in every SST: a directory opens only with the
//! order that wrote it. The two built-in orders are compared without a virtual call.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A total order of byte strings, the same for the whole life of a column family.
pub trait Comparator: Send + Sync {
    /// The stable name that is written to disk.
    fn name(&self) -> &str;

    /// Orders two user keys; equal only for keys that mean the same.
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering;

    /// May shorten `start` to a key in `[start, limit)`; keeps index blocks small.
    fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        let _ = (start, limit);
    }

    /// May shorten `key` to a key that is not before it.
    fn find_short_successor(&self, key: &mut Vec<u8>) {
        let _ = key;
    }
}

/// A handle on a comparator, cheap to clone and to call.
#[derive(Clone)]
pub struct UserComparator(Order);

#[derive(Clone)]
enum Order {
    Bytewise,
    ReverseBytewise,
    Custom(Arc<dyn Comparator>),
}

impl UserComparator {
    /// Byte by byte, unsigned: RocksDB's default.
    pub const BYTEWISE: Self = Self(Order::Bytewise);
    /// The reverse of [`Self::BYTEWISE`].
    pub const REVERSE_BYTEWISE: Self = Self(Order::ReverseBytewise);

    /// An order of the user's own.
    #[must_use]
    pub fn custom(order: Arc<dyn Comparator>) -> Self {
        Self(Order::Custom(order))
    }

    /// The built-in order with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::BYTEWISE, Self::REVERSE_BYTEWISE]
            .into_iter()
            .find(|c| c.name() == name)
    }

    /// The name that is written to disk.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0 {
            Order::Bytewise => "leveldb.BytewiseComparator",
            Order::ReverseBytewise => "rocksdb.ReverseBytewiseComparator",
            Order::Custom(c) => c.name(),
        }
    }

    /// True for the plain order of bytes.
    #[inline]
    #[must_use]
    pub fn is_bytewise(&self) -> bool {
        matches!(self.0, Order::Bytewise)
    }

    /// True for [`Self::REVERSE_BYTEWISE`].
    #[inline]
    #[must_use]
    pub fn is_reverse_bytewise(&self) -> bool {
        matches!(self.0, Order::ReverseBytewise)
    }

    /// Orders two user keys.
    #[inline]
    #[must_use]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match &self.0 {
            Order::Bytewise => a.cmp(b),
            Order::ReverseBytewise => b.cmp(a),
            Order::Custom(c) => c.compare(a, b),
        }
    }

    /// True if `a` is before `b`.
    #[inline]
    #[must_use]
    pub fn less(&self, a: &[u8], b: &[u8]) -> bool {
        self.compare(a, b) == Ordering::Less
    }

    /// May shorten `start` to a key in `[start, limit)`.
    pub fn find_shortest_separator(&self, start: &mut Vec<u8>, limit: &[u8]) {
        match &self.0 {
            Order::Bytewise => bytewise_separator(start, limit),
            Order::ReverseBytewise => reverse_separator(start, limit),
            Order::Custom(c) => c.find_shortest_separator(start, limit),
        }
    }

    /// May shorten `key` to a key that is not before it.
    pub fn find_short_successor(&self, key: &mut Vec<u8>) {
        match &self.0 {
            Order::Bytewise => {
                if let Some(i) = key.iter().position(|&b| b != 0xff) {
                    key[i] += 1;
                    key.truncate(i + 1);
                }
            }
            Order::ReverseBytewise => {}
            Order::Custom(c) => c.find_short_successor(key),
        }
    }
}

impl Default for UserComparator {
    fn default() -> Self {
        Self::BYTEWISE
    }
}

impl fmt::Debug for UserComparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

fn bytewise_separator(start: &mut Vec<u8>, limit: &[u8]) {
    let i = common_prefix(start, limit);
    if i >= start.len() || i >= limit.len() || start[i] >= limit[i] {
        return;
    }
    if start[i] + 1 < limit[i] || i + 1 < limit.len() {
        start[i] += 1;
        // Where the raised byte equals the limit's, the limit goes on: still before it.
        start.truncate(i + 1);
        return;
    }
    // The bytes differ by one and the limit ends here: raise a later byte of `start`.
    if let Some(j) = start[i + 1..].iter().position(|&b| b != 0xff) {
        let j = i + 1 + j;
        start[j] += 1;
        start.truncate(j + 1);
    }
}

fn reverse_separator(start: &mut Vec<u8>, limit: &[u8]) {
    // Keys go down: a prefix of `start` that is still above `limit` comes after `start`.
    let i = common_prefix(start, limit);
    if i < start.len() && i < limit.len() && start[i] > limit[i] && i + 1 < start.len() {
        start.truncate(i + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_lie_between_their_keys() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for order in [UserComparator::BYTEWISE, UserComparator::REVERSE_BYTEWISE] {
            for _ in 0..20_000 {
                let mut key = || -> Vec<u8> {
                    let n = next(5);
                    (0..n)
                        .map(|_| [0u8, 1, 2, 0x7f, 0xfe, 0xff][next(6) as usize])
                        .collect()
                };
                let (mut a, mut b) = (key(), key());
                if order.compare(&a, &b) == Ordering::Greater {
                    std::mem::swap(&mut a, &mut b);
                }
                let mut s = a.clone();
                order.find_shortest_separator(&mut s, &b);
                assert_ne!(order.compare(&s, &a), Ordering::Less, "{a:?} {b:?} {s:?}");
                if a != b {
                    assert!(order.less(&s, &b), "{a:?} {b:?} {s:?}");
                }
                let mut t = a.clone();
                order.find_short_successor(&mut t);
                assert_ne!(order.compare(&t, &a), Ordering::Less);
            }
        }
    }
}
