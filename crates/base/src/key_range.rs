//! Ranges of keys: what is locked, or asked whether it was written.
//!
//! An end of a range lies between keys: before a key, behind it, or behind all keys that begin with
//! it. So `[a, b)` is from before `a` to before `b`, and no rule about what is included is left over.

use std::cmp::Ordering;

use crate::UserComparator;

/// One end of a range; `K` is borrowed or owned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint<K> {
    /// Before all keys.
    First,
    /// Before this key: an inclusive start, an exclusive end.
    Before(K),
    /// Behind this key: an exclusive start, an inclusive end.
    After(K),
    /// Behind this key and all that begin with it: RocksDB's `inf_suffix`. Only for orders that keep
    /// keys with a common prefix together.
    AfterPrefix(K),
    /// Behind all keys.
    Last,
}

impl<K: AsRef<[u8]>> Endpoint<K> {
    /// The same end with bytes of its own.
    fn to_owned(&self) -> Endpoint<Box<[u8]>> {
        let own = |key: &K| key.as_ref().into();
        match self {
            Self::First => Endpoint::First,
            Self::Before(key) => Endpoint::Before(own(key)),
            Self::After(key) => Endpoint::After(own(key)),
            Self::AfterPrefix(key) => Endpoint::AfterPrefix(own(key)),
            Self::Last => Endpoint::Last,
        }
    }

    /// The key, and how far behind it the end lies; or which end of all keys it is.
    fn place(&self) -> Result<(&[u8], u8), Ordering> {
        match self {
            Self::First => Err(Ordering::Less),
            Self::Before(key) => Ok((key.as_ref(), 0)),
            Self::After(key) => Ok((key.as_ref(), 1)),
            Self::AfterPrefix(key) => Ok((key.as_ref(), 2)),
            Self::Last => Err(Ordering::Greater),
        }
    }

    /// The same end of borrowed bytes.
    pub fn borrowed(&self) -> Endpoint<&[u8]> {
        match self {
            Self::First => Endpoint::First,
            Self::Before(key) => Endpoint::Before(key.as_ref()),
            Self::After(key) => Endpoint::After(key.as_ref()),
            Self::AfterPrefix(key) => Endpoint::AfterPrefix(key.as_ref()),
            Self::Last => Endpoint::Last,
        }
    }

    /// The key that it is before or behind; `None` at the ends of all keys.
    pub fn key(&self) -> Option<&[u8]> {
        self.place().ok().map(|(key, _)| key)
    }

    /// The same end as one before a key, or behind all keys, where the order has a next key: that of bytes.
    #[must_use]
    pub fn before_next(&self, order: &UserComparator) -> Endpoint<Box<[u8]>> {
        match self {
            Self::After(key) if order.is_bytewise() => {
                let mut next = key.as_ref().to_vec();
                next.push(0);
                Endpoint::Before(next.into())
            }
            Self::AfterPrefix(key) if order.is_bytewise() => {
                let key = key.as_ref();
                match key.iter().rposition(|&byte| byte != u8::MAX) {
                    Some(at) => {
                        let mut next = key[..=at].to_vec();
                        next[at] += 1;
                        Endpoint::Before(next.into())
                    }
                    None => Endpoint::Last,
                }
            }
            _ => self.to_owned(),
        }
    }

    /// How this end lies to a key; never equal.
    #[must_use]
    pub fn compare_key(&self, order: &UserComparator, key: &[u8]) -> Ordering {
        let (own, behind) = match self.place() {
            Ok(place) => place,
            Err(end) => return end,
        };
        match order.compare(own, key) {
            Ordering::Equal if behind == 0 => Ordering::Less,
            Ordering::Equal => Ordering::Greater,
            _ if behind == 2 && key.starts_with(own) => Ordering::Greater,
            different => different,
        }
    }

    /// How two ends lie to each other.
    #[must_use]
    pub fn compare<L: AsRef<[u8]>>(&self, order: &UserComparator, other: &Endpoint<L>) -> Ordering {
        let (a, b) = match (self.place(), other.place()) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(end), Ok(_)) => return end,
            (Ok(_), Err(end)) => return end.reverse(),
            (Err(a), Err(b)) => return a.cmp(&b),
        };
        match order.compare(a.0, b.0) {
            Ordering::Equal => a.1.cmp(&b.1),
            _ if a.1 == 2 && b.0.starts_with(a.0) => Ordering::Greater,
            _ if b.1 == 2 && a.0.starts_with(b.0) => Ordering::Less,
            different => different,
        }
    }
}

/// A range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<K> {
    /// Where it begins.
    pub start: Endpoint<K>,
    /// Where it ends.
    pub end: Endpoint<K>,
}

/// A range with bytes of its own.
pub type OwnedRange = KeyRange<Box<[u8]>>;

impl<K: AsRef<[u8]>> KeyRange<K> {
    /// `[start, end)`, or `[start, end]` where the end is inclusive.
    pub const fn new(start: K, end: K, end_inclusive: bool) -> Self {
        Self {
            start: Endpoint::Before(start),
            end: if end_inclusive {
                Endpoint::After(end)
            } else {
                Endpoint::Before(end)
            },
        }
    }

    fn keys(&self) -> [&[u8]; 2] {
        [&self.start, &self.end].map(|end| end.key().unwrap_or_default())
    }

    /// Bytes of both ends.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.keys().iter().map(|key| key.len()).sum()
    }

    /// Bytes of the longer end.
    #[must_use]
    pub fn key_len_max(&self) -> usize {
        self.keys().iter().map(|key| key.len()).max().unwrap_or(0)
    }

    /// The same range with bytes of its own.
    #[must_use]
    pub fn to_owned(&self) -> OwnedRange {
        KeyRange {
            start: self.start.to_owned(),
            end: self.end.to_owned(),
        }
    }

    /// True if the end is not behind the start.
    #[must_use]
    pub fn is_empty(&self, order: &UserComparator) -> bool {
        self.start.compare(order, &self.end) != Ordering::Less
    }

    /// True if the key lies in it.
    #[must_use]
    pub fn contains(&self, order: &UserComparator, key: &[u8]) -> bool {
        self.start.compare_key(order, key).is_lt() && self.end.compare_key(order, key).is_gt()
    }

    /// True if a place between or at keys lies in both. Neither may be empty.
    #[must_use]
    pub fn overlaps<L: AsRef<[u8]>>(&self, order: &UserComparator, other: &KeyRange<L>) -> bool {
        self.start.compare(order, &other.end).is_lt()
            && other.start.compare(order, &self.end).is_lt()
    }

    /// True if all of `other` lies in it.
    #[must_use]
    pub fn covers<L: AsRef<[u8]>>(&self, order: &UserComparator, other: &KeyRange<L>) -> bool {
        self.start.compare(order, &other.start).is_le()
            && self.end.compare(order, &other.end).is_ge()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type End = Endpoint<Vec<u8>>;

    fn ends() -> Vec<End> {
        let keys: Vec<Vec<u8>> = ["", "a", "aa", "ab", "aba", "b"].map(Vec::from).to_vec();
        let of = |key: &Vec<u8>| {
            let key = key.clone();
            [
                End::Before(key.clone()),
                End::After(key.clone()),
                End::AfterPrefix(key),
            ]
        };
        let mut ends: Vec<End> = keys.iter().flat_map(of).collect();
        ends.extend([End::First, End::Last]);
        ends
    }

    /// Keys dense enough to tell the ends above apart.
    fn keys() -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new()];
        for _ in 0..4 {
            let longer = keys.iter().flat_map(|key: &Vec<u8>| {
                [0, b'a', b'b', b'c'].map(|byte| {
                    let mut key = key.clone();
                    key.push(byte);
                    key
                })
            });
            keys = longer.chain(keys.iter().cloned()).collect();
        }
        keys.sort();
        keys.dedup();
        keys
    }

    #[test]
    fn ranges_relate_as_the_sets_of_their_keys_do() {
        let order = UserComparator::BYTEWISE;
        let (ends, keys) = (ends(), keys());
        let mut ranges = Vec::new();
        for start in &ends {
            for end in &ends {
                let range = KeyRange {
                    start: start.clone(),
                    end: end.clone(),
                };
                let set: Vec<bool> = keys.iter().map(|k| range.contains(&order, k)).collect();
                if range.is_empty(&order) {
                    assert!(set.iter().all(|has| !has), "{range:?}");
                } else {
                    ranges.push((range, set));
                }
            }
        }
        assert!(ranges.len() > 100);
        for (a, in_a) in &ranges {
            for (b, in_b) in &ranges {
                let common = in_a.iter().zip(in_b).any(|(a, b)| *a && *b);
                // Between two neighbours there may be a place but no key.
                assert!(!common || a.overlaps(&order, b), "{a:?} {b:?}");
                assert_eq!(a.overlaps(&order, b), b.overlaps(&order, a));
                let inside = in_a.iter().zip(in_b).all(|(a, b)| *a || !*b);
                assert!(!a.covers(&order, b) || inside, "{a:?} {b:?}");
                // A key behind one and before the other keeps them apart.
                let last = in_a.iter().rposition(|has| *has);
                let first = in_b.iter().position(|has| *has);
                if let (Some(last), Some(first)) = (last, first) {
                    assert!(first <= last + 1 || !a.overlaps(&order, b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn an_end_before_the_next_key_is_the_same_to_all_keys() {
        let order = UserComparator::BYTEWISE;
        let mut ends = ends();
        for key in [&b"\xff"[..], b"a\xff", b"a\xff\xff"] {
            ends.extend([End::After(key.to_vec()), End::AfterPrefix(key.to_vec())]);
        }
        let mut keys = keys();
        for key in [
            &b"\xff"[..],
            b"\xff\xff",
            b"a\xff",
            b"a\xff\xff\xff",
            b"\xfe",
        ] {
            keys.push(key.to_vec());
        }
        for end in &ends {
            let next = end.before_next(&order);
            assert!(!matches!(
                next,
                Endpoint::After(_) | Endpoint::AfterPrefix(_)
            ));
            for key in &keys {
                let (was, is) = (end.compare_key(&order, key), next.compare_key(&order, key));
                assert_eq!(was, is, "{end:?} {next:?} {key:?}");
            }
        }
        let reverse = UserComparator::REVERSE_BYTEWISE;
        assert_eq!(
            End::After(vec![1]).before_next(&reverse),
            Endpoint::After([1][..].into())
        );
    }

    #[test]
    fn ends_stand_in_one_order() {
        let order = UserComparator::BYTEWISE;
        let ends = ends();
        for a in &ends {
            for b in &ends {
                assert_eq!(a.compare(&order, b), b.compare(&order, a).reverse());
                for c in &ends {
                    if a.compare(&order, b).is_le() && b.compare(&order, c).is_le() {
                        assert!(a.compare(&order, c).is_le(), "{a:?} {b:?} {c:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_exclusive_end_is_not_in_the_range() {
        let order = UserComparator::BYTEWISE;
        let open = KeyRange::new("b", "d", false);
        let closed = KeyRange::new("b", "d", true);
        assert!(open.contains(&order, b"b") && open.contains(&order, b"czz"));
        assert!(!open.contains(&order, b"d") && !open.contains(&order, b"a"));
        assert!(closed.contains(&order, b"d") && !closed.contains(&order, b"d\0"));
        assert!(!open.overlaps(&order, &KeyRange::new("d", "e", false)));
        assert!(closed.overlaps(&order, &KeyRange::new("d", "e", false)));
        let reverse = UserComparator::REVERSE_BYTEWISE;
        assert!(KeyRange::new("d", "b", false).contains(&reverse, b"c"));
        assert!(open.is_empty(&reverse));
    }
}
