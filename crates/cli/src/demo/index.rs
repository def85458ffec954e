//! What a record becomes: entries of three families, which belong together.
//!
//! ```text
//! packages               package \0 version             -> the record's text
//! by-section             section \0 package \0 version  -> nothing
//! by-reverse-dependency  dependency \0 package          -> how it is depended on
//! ```

use std::collections::BTreeMap;

use super::control::Record;

/// The families.
pub(super) const FAMILIES: [&str; 3] = ["packages", "by-section", "by-reverse-dependency"];
/// Place of the records in [`FAMILIES`].
pub(super) const PACKAGES: usize = 0;
/// Place of the index by section.
pub(super) const BY_SECTION: usize = 1;
/// Place of the index by dependency.
pub(super) const BY_REVERSE_DEPENDENCY: usize = 2;

/// Words with a zero byte between them.
pub(super) fn key(words: &[&[u8]]) -> Vec<u8> {
    words.join(&0)
}

/// The key of a record.
pub(super) fn package_key(record: &Record<'_>) -> Vec<u8> {
    key(&[record.package, record.version])
}

fn section<'a>(record: &Record<'a>) -> &'a [u8] {
    if record.section.is_empty() {
        b"none"
    } else {
        record.section
    }
}

/// Gives every entry of a record: place of the family, key, value.
pub(super) fn entries(record: &Record<'_>, mut put: impl FnMut(usize, &[u8], &[u8])) {
    put(PACKAGES, &package_key(record), record.text);
    put(
        BY_SECTION,
        &key(&[section(record), record.package, record.version]),
        b"",
    );
    // A package may name another one several times.
    let mut dependencies: BTreeMap<&[u8], Vec<u8>> = BTreeMap::new();
    for relation in &record.relations {
        let value = dependencies.entry(relation.package).or_default();
        if !value.is_empty() {
            value.extend_from_slice(b"; ");
        }
        value.extend_from_slice(relation.field.as_bytes());
        value.extend_from_slice(b": ");
        value.extend_from_slice(relation.text);
    }
    for (dependency, value) in &dependencies {
        put(
            BY_REVERSE_DEPENDENCY,
            &key(&[dependency, record.package]),
            value,
        );
    }
}

/// What the families must hold after some records were written in order.
#[derive(Default)]
pub(super) struct Model {
    pub(super) families: [BTreeMap<Vec<u8>, Vec<u8>>; 3],
}

impl Model {
    pub(super) fn add(&mut self, record: &Record<'_>) {
        entries(record, |family, key, value| {
            self.families[family].insert(key.to_vec(), value.to_vec());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::Records;
    use super::*;

    #[test]
    fn a_record_has_an_entry_in_each_index() {
        let records = Records::parse(
            b"Package: a\nVersion: 1\nDepends: c, b (>= 2), c (<< 9)\nRecommends: b | d\n",
        );
        let mut model = Model::default();
        model.add(&records.list[0]);
        assert_eq!(model.families.iter().map(|f| f.len()).sum::<usize>(), 5);
        assert_eq!(
            model.families[PACKAGES][&b"a\x001"[..]],
            records.list[0].text
        );
        assert!(model.families[BY_SECTION].contains_key(&b"none\0a\x001"[..]));
        let reverse = &model.families[BY_REVERSE_DEPENDENCY];
        assert_eq!(reverse[&b"b\0a"[..]], b"Depends: b (>= 2); Recommends: b");
        assert_eq!(reverse[&b"c\0a"[..]], b"Depends: c; Depends: c (<< 9)");
    }
}
