//! What a cursor must show.

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::slice_transform::SliceTransform;

/// Compares in the order of a family.
pub(super) fn compare(reverse: bool, a: &[u8], b: &[u8]) -> Ordering {
    if reverse { b.cmp(a) } else { a.cmp(b) }
}

/// A cursor over pairs that no longer change.
pub(super) struct Cursor {
    reverse: bool,
    /// In the family's order, within the bounds.
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    at: Option<usize>,
    /// In prefix mode.
    extractor: Option<Arc<dyn SliceTransform>>,
    prefix: Option<Vec<u8>>,
}

impl Cursor {
    /// Over `pairs` in bytewise order, cut to the bounds.
    pub(super) fn new<'a>(
        reverse: bool,
        pairs: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        extractor: Option<Arc<dyn SliceTransform>>,
    ) -> Self {
        let inside = |key: &[u8]| {
            lower.is_none_or(|l| compare(reverse, key, l).is_ge())
                && upper.is_none_or(|u| compare(reverse, key, u).is_lt())
        };
        let mut kept: Vec<(Vec<u8>, Vec<u8>)> = pairs
            .filter(|(key, _)| inside(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if reverse {
            kept.reverse();
        }
        Self {
            reverse,
            pairs: kept,
            at: None,
            extractor,
            prefix: None,
        }
    }

    /// What cuts the prefixes, in prefix mode.
    pub(super) fn extractor_name(&self) -> Option<&str> {
        self.extractor.as_ref().map(|e| e.name())
    }

    /// The pair here.
    pub(super) fn get(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = &self.pairs[self.at?];
        Some((key, value))
    }

    fn prefix_of(&self, key: &[u8]) -> Option<Vec<u8>> {
        let extractor = self.extractor.as_ref()?;
        extractor
            .in_domain(key)
            .then(|| extractor.transform(key).to_vec())
    }

    fn go(&mut self, to: Option<usize>) {
        self.at = to.filter(|&i| {
            i < self.pairs.len()
                && (self.prefix.is_none() || self.prefix_of(&self.pairs[i].0) == self.prefix)
        });
    }

    pub(super) fn seek(&mut self, target: &[u8]) {
        self.prefix = self.prefix_of(target);
        let reverse = self.reverse;
        self.go(Some(
            self.pairs
                .partition_point(|(k, _)| compare(reverse, k, target).is_lt()),
        ));
    }

    pub(super) fn seek_for_prev(&mut self, target: &[u8]) {
        self.prefix = self.prefix_of(target);
        let reverse = self.reverse;
        let after = self
            .pairs
            .partition_point(|(k, _)| compare(reverse, k, target).is_le());
        self.go(after.checked_sub(1));
    }

    pub(super) fn seek_to_first(&mut self) {
        self.prefix = None;
        self.go(Some(0));
        self.prefix = self.get().and_then(|(key, _)| self.prefix_of(key));
    }

    pub(super) fn seek_to_last(&mut self) {
        self.prefix = None;
        self.go(self.pairs.len().checked_sub(1));
        self.prefix = self.get().and_then(|(key, _)| self.prefix_of(key));
    }

    pub(super) fn next(&mut self) {
        self.go(self.at.map(|i| i + 1));
    }

    pub(super) fn prev(&mut self) {
        self.go(self.at.and_then(|i| i.checked_sub(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pairs;

    fn keys(cursor: &mut Cursor, step: fn(&mut Cursor)) -> Vec<String> {
        let mut keys = Vec::new();
        while let Some((key, _)) = cursor.get() {
            keys.push(String::from_utf8_lossy(key).into_owned());
            step(cursor);
        }
        keys
    }

    #[test]
    fn bounds_order_and_prefixes_are_kept() {
        let map: Pairs = ["a1", "a2", "b1", "b2", "c"]
            .map(|k| (k.into(), Vec::new()))
            .into();
        let mut reverse = Cursor::new(true, map.iter(), Some(b"b2"), Some(b"a1"), None);
        reverse.seek_to_first();
        assert_eq!(keys(&mut reverse, Cursor::next), ["b2", "b1", "a2"]);
        reverse.seek_for_prev(b"a1");
        assert_eq!(keys(&mut reverse, Cursor::prev), ["a2", "b1", "b2"]);
        let two = orogen_base::slice_transform::by_name("fixed:2").unwrap();
        let mut prefixed = Cursor::new(false, map.iter(), None, None, Some(two));
        prefixed.seek(b"a1x");
        assert!(keys(&mut prefixed, Cursor::next).is_empty());
        prefixed.seek(b"b");
        assert_eq!(keys(&mut prefixed, Cursor::next), ["b1", "b2", "c"]);
        prefixed.seek_to_first();
        assert_eq!(keys(&mut prefixed, Cursor::next), ["a1"]);
    }
}
