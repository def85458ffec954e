//! The part of a user key that filters may know: its prefix.
//!
//! A transform's name stands in every table whose filter holds prefixes; a reader trusts such a
//! filter only for the transform of that name. Source: RocksDB `util/slice.cc`.

use std::fmt;
use std::sync::Arc;

/// Cuts the prefix out of a user key.
///
/// A transform is pure, and its prefixes are contiguous in the key order: keys of one prefix
/// stand together.
pub trait SliceTransform: Send + Sync {
    /// The stable name that is written to disk.
    fn name(&self) -> &str;
    /// The prefix of `key`, which is in the domain.
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8];
    /// True if `key` has a prefix.
    fn in_domain(&self, key: &[u8]) -> bool;
}

impl fmt::Debug for dyn SliceTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first `n` bytes of keys that have as many.
#[derive(Debug)]
pub struct FixedPrefix {
    n: usize,
    name: String,
}

impl FixedPrefix {
    /// Prefixes of `n` bytes.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self {
            n,
            name: format!("rocksdb.FixedPrefix.{n}"),
        }
    }
}

impl SliceTransform for FixedPrefix {
    fn name(&self) -> &str {
        &self.name
    }
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        &key[..self.n.min(key.len())]
    }
    fn in_domain(&self, key: &[u8]) -> bool {
        key.len() >= self.n
    }
}

/// The first `n` bytes, or all of a shorter key.
#[derive(Debug)]
pub struct CappedPrefix {
    n: usize,
    name: String,
}

impl CappedPrefix {
    /// Prefixes of at most `n` bytes.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self {
            n,
            name: format!("rocksdb.CappedPrefix.{n}"),
        }
    }
}

impl SliceTransform for CappedPrefix {
    fn name(&self) -> &str {
        &self.name
    }
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        &key[..self.n.min(key.len())]
    }
    fn in_domain(&self, _key: &[u8]) -> bool {
        true
    }
}

/// The whole key.
#[derive(Clone, Copy, Debug)]
pub struct Noop;

impl SliceTransform for Noop {
    fn name(&self) -> &str {
        "rocksdb.Noop"
    }
    fn transform<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key
    }
    fn in_domain(&self, _key: &[u8]) -> bool {
        true
    }
}

/// The built-in transform with this name, as it stands in tables (`rocksdb.FixedPrefix.8`) or,
/// in short, in option files (`fixed:8`, `capped:8`, `noop`).
#[must_use]
pub fn by_name(name: &str) -> Option<Arc<dyn SliceTransform>> {
    let number = |long: &str, short: &str| -> Option<usize> {
        if let Some(digits) = name.strip_prefix(long) {
            // A name that is not written so is another transform's.
            let n: usize = digits.parse().ok()?;
            return (n.to_string() == digits).then_some(n);
        }
        name.strip_prefix(short)?.parse().ok()
    };
    if let Some(n) = number("rocksdb.FixedPrefix.", "fixed:") {
        return Some(Arc::new(FixedPrefix::new(n)));
    }
    if let Some(n) = number("rocksdb.CappedPrefix.", "capped:") {
        return Some(Arc::new(CappedPrefix::new(n)));
    }
    matches!(name, "rocksdb.Noop" | "noop").then(|| Arc::new(Noop) as Arc<dyn SliceTransform>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_are_rocksdbs() {
        let fixed = by_name("rocksdb.FixedPrefix.3").unwrap();
        assert_eq!(fixed.name(), "rocksdb.FixedPrefix.3");
        assert!(!fixed.in_domain(b"ab"));
        assert_eq!(fixed.transform(b"abcd"), b"abc");
        let capped = by_name("capped:3").unwrap();
        assert_eq!(capped.name(), "rocksdb.CappedPrefix.3");
        assert!(capped.in_domain(b"ab"));
        assert_eq!(capped.transform(b"ab"), b"ab");
        assert_eq!(capped.transform(b"abcd"), b"abc");
        assert_eq!(by_name("rocksdb.Noop").unwrap().transform(b"xyz"), b"xyz");
        assert!(by_name("nullptr").is_none());
        assert!(by_name("rocksdb.FixedPrefix.x").is_none());
        for other in ["rocksdb.FixedPrefix.+8", "rocksdb.CappedPrefix.08"] {
            assert!(
                by_name(other).is_none(),
                "{other} is not how the name is written"
            );
        }
        assert_eq!(by_name("fixed:08").unwrap().name(), "rocksdb.FixedPrefix.8");
    }
}
