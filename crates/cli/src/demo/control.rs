//! Debian's control format: records of fields, parted by empty lines.
//!
//! ```text
//! Name: value            a field; names know no case
//!  more of the value     a line that begins with a blank continues it
//!                        an empty line ends the record
//! ```
//! Relations: `a (>= 1), b:any | c [amd64] <!nocheck>`: groups between commas, alternatives
//! between bars. Source: Debian Policy 5.1 and 7.1.

use std::collections::HashMap;

/// One package in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// All of it, with the end of its last line.
    pub(super) text: &'a [u8],
    pub(super) package: &'a [u8],
    pub(super) version: &'a [u8],
    /// Empty where it has none.
    pub(super) section: &'a [u8],
    /// First line of the description.
    pub(super) summary: &'a [u8],
    /// Bytes of the package, or of what it installs.
    pub(super) size_bytes: Option<u64>,
    pub(super) relations: Vec<Relation<'a>>,
}

/// A package that another one needs or recommends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relation<'a> {
    pub(super) field: &'static str,
    pub(super) package: &'a [u8],
    /// With its version and architecture.
    pub(super) text: &'a [u8],
}

/// The records of an index.
pub(super) struct Records<'a> {
    /// Each package and version once.
    pub(super) list: Vec<Record<'a>>,
    /// Records without name or version, and those that a later one replaced.
    pub(super) left_out: u64,
}

/// Fields whose packages are dependencies.
const RELATION_FIELDS: [&str; 3] = ["Pre-Depends", "Depends", "Recommends"];

impl<'a> Records<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut list: Vec<Record<'a>> = Vec::new();
        let mut places: HashMap<(&[u8], &[u8]), usize> = HashMap::new();
        let mut left_out = 0;
        for text in paragraphs(bytes) {
            let Some(record) = Record::parse(text) else {
                left_out += 1;
                continue;
            };
            match places.entry((record.package, record.version)) {
                std::collections::hash_map::Entry::Occupied(place) => {
                    left_out += 1;
                    list[*place.get()] = record;
                }
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(list.len());
                    list.push(record);
                }
            }
        }
        Self { list, left_out }
    }

    /// Bytes of all records.
    pub(super) fn bytes(&self) -> u64 {
        self.list.iter().map(|r| r.text.len() as u64).sum()
    }
}

/// The text up to and with the end of its first line, and the rest.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|b| *b == b'\n')
        .map_or(text.len(), |n| n + 1);
    text.split_at(end)
}

fn paragraphs(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            let start = rest;
            let mut len = 0;
            while !rest.is_empty() {
                let (line, after) = split_line(rest);
                rest = after;
                if line.trim_ascii().is_empty() {
                    break;
                }
                len += line.len();
            }
            if len > 0 {
                return Some(&start[..len]);
            }
            if rest.is_empty() {
                return None;
            }
        }
    })
}

/// A field's name and its value with continuation lines.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut rest = text;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let start = rest;
            let (first, mut after) = split_line(rest);
            let mut len = first.len();
            while after.first().is_some_and(|b| *b == b' ' || *b == b'\t') {
                let (line, behind) = split_line(after);
                len += line.len();
                after = behind;
            }
            rest = after;
            if let Some(colon) = first.iter().position(|b| *b == b':') {
                return Some((&start[..colon], start[colon + 1..len].trim_ascii()));
            }
        }
        None
    })
}

impl<'a> Record<'a> {
    /// A record, if it has a name and a version.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let mut this = Self {
            text,
            package: b"",
            version: b"",
            section: b"",
            summary: b"",
            size_bytes: None,
            relations: Vec::new(),
        };
        let number = |v: &[u8]| std::str::from_utf8(v).ok()?.parse::<u64>().ok();
        let mut installed = None;
        for (name, value) in fields(text) {
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
            if is("Package") {
                this.package = value;
            } else if is("Version") {
                this.version = value;
            } else if is("Section") {
                this.section = value;
            } else if is("Description") {
                this.summary = split_line(value).0.trim_ascii();
            } else if is("Size") {
                this.size_bytes = number(value);
            } else if is("Installed-Size") {
                installed = number(value).and_then(|kib| kib.checked_mul(1024));
            } else if let Some(field) = RELATION_FIELDS.iter().find(|f| is(f)) {
                this.relations.extend(relations(field, value));
            }
        }
        this.size_bytes = this.size_bytes.or(installed);
        (!this.package.is_empty() && !this.version.is_empty()).then_some(this)
    }
}

fn relations<'a>(
    field: &'static str,
    value: &'a [u8],
) -> impl Iterator<Item = Relation<'a>> + use<'a> {
    value
        .split(|b| *b == b',' || *b == b'|')
        .filter_map(move |text| {
            let text = text.trim_ascii();
            let end = text
                .iter()
                .position(|b| b.is_ascii_whitespace() || b"([<:".contains(b));
            let package = &text[..end.unwrap_or(text.len())];
            (!package.is_empty()).then_some(Relation {
                field,
                package,
                text,
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &[u8] = b"\n\nPackage: alpha\nversion: 1.0\nSection: editors\n\
        Depends: libc6 (>= 2.34), gamma:any | delta [amd64] <!nocheck>,\n  libc6 (<< 3)\n\
        Pre-Depends: dpkg\nSuggests: nobody\nDescription: an editor\n with more text\n\
        Installed-Size: 2\n\nPackage: beta\nStatus: gone\n\nPackage: alpha\nVersion: 2\n\n\n\
        Package: alpha\nVersion: 1.0\nSize: 7";

    #[test]
    fn records_are_parsed_and_the_last_of_equals_is_kept() {
        let records = Records::parse(INDEX);
        assert_eq!(records.left_out, 2);
        let names: Vec<_> = records
            .list
            .iter()
            .map(|r| (r.package, r.version))
            .collect();
        assert_eq!(names, [(&b"alpha"[..], &b"1.0"[..]), (b"alpha", b"2")]);
        assert_eq!(records.list[0].size_bytes, Some(7));
        assert_eq!(
            records.list[0].text,
            b"Package: alpha\nVersion: 1.0\nSize: 7"
        );
    }

    #[test]
    fn fields_span_lines_and_relations_have_many_forms() {
        let first = paragraphs(INDEX).next().unwrap();
        let record = Record::parse(first).unwrap();
        assert_eq!(
            (record.section, record.summary),
            (&b"editors"[..], &b"an editor"[..])
        );
        assert_eq!(record.size_bytes, Some(2048));
        let relations: Vec<(&str, &str)> = record
            .relations
            .iter()
            .map(|r| (r.field, std::str::from_utf8(r.package).unwrap()))
            .collect();
        assert_eq!(
            relations,
            [
                ("Depends", "libc6"),
                ("Depends", "gamma"),
                ("Depends", "delta"),
                ("Depends", "libc6"),
                ("Pre-Depends", "dpkg"),
            ]
        );
        assert_eq!(record.relations[2].text, b"delta [amd64] <!nocheck>");
    }

    #[test]
    fn any_bytes_parse() {
        for bytes in [
            &b""[..],
            b"\n",
            b":",
            b" x\n:y\n\n",
            b"\xff\xfe: \xff\n\tz",
            b"Package:\n",
        ] {
            assert!(Records::parse(bytes).list.is_empty());
        }
    }
}
