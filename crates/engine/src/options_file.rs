//! The options file: settings as text, in RocksDB's sections.
//!
//! ```text
//! [Version]
//!   rocksdb_version=9.8.4
//! [DBOptions]
//!   max_open_files=-1
//! [CFOptions "default"]
//!   compression_opts={level=32767;window_bits=-14;}
//! [TableOptions/BlockBasedTable "default"]
//!   block_size=4096
//! ```
//! `#` begins a comment; `#orogen key=value` is a setting that is ours alone, which RocksDB passes
//! over and does not write again. In names and values `\`, `#`, `:`, carriage return and newline are
//! escaped by `\`. Here a value is kept as it stands in the file, so that a file that RocksDB
//! wrote comes out again byte for byte, with keys that nobody here knows; [`value`] takes values
//! apart. Byte tables: `docs/format/options.md`. Source: RocksDB `options/options_parser.cc`.

use std::fmt::Write;

use orogen_base::{Error, Result};

pub mod value;

/// How RocksDB begins a file.
const HEADER: &str = "# This is a RocksDB option file.\n#\n\
    # For detailed file format spec, please refer to the example file\n\
    # in examples/rocksdb_option_file_example.ini\n#\n\n";

const VERSION: &str = "Version";
const DB_OPTIONS: &str = "DBOptions";
const CF_OPTIONS: &str = "CFOptions";
const TABLE_OPTIONS: &str = "TableOptions/";
const DEFAULT_COLUMN_FAMILY: &str = "default";
/// What a line with a setting of ours begins with.
const OWN: &str = "#orogen ";

/// What a section is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// Who wrote the file.
    Version,
    /// The database.
    Db,
    /// One column family.
    ColumnFamily,
    /// The tables of one column family, with the name of the table format.
    Table(String),
}

/// Settings under one title, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is about.
    pub kind: SectionKind,
    /// The column family's name; empty for the other kinds.
    pub name: String,
    /// Keys and values, the values as they stand in the file.
    pub entries: Vec<(String, String)>,
    /// The same of settings that are ours, which stand behind the others, in comments.
    pub own: Vec<(String, String)>,
}

impl Section {
    /// A section without settings.
    #[must_use]
    pub fn new(kind: SectionKind, name: &str) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            entries: Vec::new(),
            own: Vec::new(),
        }
    }

    /// The value of a key, as it stands in the file; of a repeated key the first counts.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        find_in(&self.entries, key)
    }

    /// The same of a setting of ours.
    #[must_use]
    pub fn get_own(&self, key: &str) -> Option<&str> {
        find_in(&self.own, key)
    }

    /// The value of a key without escapes.
    #[must_use]
    pub fn get_text(&self, key: &str) -> Option<String> {
        self.get(key).map(value::unescape)
    }

    /// Sets a value that needs no escapes, such as a number, or that has them.
    ///
    /// # Panics
    /// If key or value would not be read back as one line.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        set_in(&mut self.entries, key, value.into());
    }

    /// Sets one that is not set yet, as [`Section::set`].
    pub(crate) fn append(&mut self, key: &'static str, value: String) {
        check_line(key, &value);
        self.entries.push((key.to_owned(), value));
    }

    /// The same of a setting of ours.
    ///
    /// # Panics
    /// As [`Section::set`].
    pub fn set_own(&mut self, key: &str, value: impl Into<String>) {
        set_in(&mut self.own, key, value.into());
    }

    /// Sets a value with the escapes that it needs.
    ///
    /// # Panics
    /// As [`Section::set`].
    pub fn set_text(&mut self, key: &str, text: &str) {
        self.set(key, value::escape(text));
    }

    fn title(&self) -> String {
        let name = value::escape(&self.name);
        match &self.kind {
            SectionKind::Version => format!("[{VERSION}]"),
            SectionKind::Db => format!("[{DB_OPTIONS}]"),
            SectionKind::ColumnFamily => format!("[{CF_OPTIONS} \"{name}\"]"),
            SectionKind::Table(format) => format!("[{TABLE_OPTIONS}{format} \"{name}\"]"),
        }
    }
}

fn find_in<'e>(entries: &'e [(String, String)], key: &str) -> Option<&'e str> {
    let found = entries.iter().find(|(k, _)| k == key);
    found.map(|(_, v)| v.as_str())
}

fn check_line(key: &str, value: &str) {
    assert!(
        !key.is_empty() && !key.contains(['=', '\n', '#', '[']),
        "key is a plain word"
    );
    assert_eq!(strip_comment(value), value, "value is one line, escaped");
    assert!(!value.contains('\n'), "value is one line");
}

fn set_in(entries: &mut Vec<(String, String)>, key: &str, value: String) {
    check_line(key, &value);
    match entries.iter_mut().find(|(k, _)| k == key) {
        Some((_, old)) => *old = value,
        None => entries.push((key.to_owned(), value)),
    }
}

/// An options file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionsFile {
    /// Its sections, in the order of the file.
    pub sections: Vec<Section>,
}

impl OptionsFile {
    /// A file that says which version of RocksDB understands it, and nothing else yet.
    #[must_use]
    pub fn new(rocksdb_version: &str) -> Self {
        let mut version = Section::new(SectionKind::Version, "");
        version.set("rocksdb_version", rocksdb_version);
        version.set("options_file_version", "1.1");
        Self {
            sections: vec![version],
        }
    }

    /// Adds a section and gives it to be filled.
    pub fn add(&mut self, kind: SectionKind, name: &str) -> &mut Section {
        let at = self.sections.len();
        self.sections.push(Section::new(kind, name));
        &mut self.sections[at]
    }

    fn find(&self, kind: &SectionKind, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|s| s.kind == *kind && s.name == name)
    }

    /// Who wrote the file.
    #[must_use]
    pub fn version(&self) -> Option<&Section> {
        self.find(&SectionKind::Version, "")
    }

    /// Settings of the database.
    #[must_use]
    pub fn db(&self) -> Option<&Section> {
        self.find(&SectionKind::Db, "")
    }

    /// Settings of a column family.
    #[must_use]
    pub fn family(&self, name: &str) -> Option<&Section> {
        self.find(&SectionKind::ColumnFamily, name)
    }

    /// Settings of a column family's tables, of whatever format.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Section> {
        self.sections
            .iter()
            .find(|s| matches!(s.kind, SectionKind::Table(_)) && s.name == name)
    }

    /// The names of the column families, `default` first.
    pub fn family_names(&self) -> impl Iterator<Item = &str> {
        let families = self
            .sections
            .iter()
            .filter(|s| s.kind == SectionKind::ColumnFamily);
        families.map(|s| s.name.as_str())
    }

    /// The file as RocksDB would write it.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = HEADER.to_owned();
        for (i, section) in self.sections.iter().enumerate() {
            if i > 0 && !matches!(section.kind, SectionKind::Table(_)) {
                out.push('\n');
            }
            let _ = writeln!(out, "{}", section.title());
            for (key, value) in &section.entries {
                let _ = writeln!(out, "  {key}={value}");
            }
            for (key, value) in &section.own {
                let _ = writeln!(out, "  {OWN}{key}={value}");
            }
            if section.kind != SectionKind::Version {
                out.push_str("  \n");
            }
        }
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `Corruption` naming the line: a line that is neither a title nor `key=value`, an unknown
    /// title, a section twice, a column family before `default`, a table of a column family that
    /// is not there, or no settings of the database or of `default`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut file = Self::default();
        for (i, line) in text.lines().enumerate() {
            if let Some(own) = line.trim().strip_prefix(OWN) {
                file.take_own(own);
                continue;
            }
            let line = strip_comment(line);
            if !line.is_empty() {
                file.parse_line(line).map_err(|e| e.with("line", i + 1))?;
            }
        }
        if file.db().is_none() || file.family(DEFAULT_COLUMN_FAMILY).is_none() {
            return Err(Error::corruption(
                "options file has no DBOptions or no default CFOptions",
            ));
        }
        Ok(file)
    }

    /// Takes a comment that is a setting of ours; anything else is a comment like others.
    fn take_own(&mut self, line: &str) {
        let line = strip_comment(line);
        if let (Some((key, value)), Some(section)) =
            (line.split_once('='), self.sections.last_mut())
            && !key.trim().is_empty()
        {
            let setting = (key.trim().to_owned(), value.trim().to_owned());
            section.own.push(setting);
        }
    }

    fn parse_line(&mut self, line: &str) -> Result<()> {
        if let Some(title) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let section = parse_title(title)?;
            self.check_place(&section)?;
            self.sections.push(section);
            return Ok(());
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| Error::corruption("line without '='"))?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(Error::corruption("line without a key"));
        }
        let section = self
            .sections
            .last_mut()
            .ok_or_else(|| Error::corruption("setting before a title"))?;
        section.entries.push((key.to_owned(), value.to_owned()));
        Ok(())
    }

    fn check_place(&self, section: &Section) -> Result<()> {
        let name = section.name.as_str();
        let error = |what: &'static str| Err(Error::corruption(what).with("section", name));
        match section.kind {
            SectionKind::ColumnFamily => {
                let is_first = self.family_names().next().is_none();
                if is_first && name != DEFAULT_COLUMN_FAMILY {
                    return error("default column family is not the first");
                }
                if self.family(name).is_some() {
                    return error("section is there twice");
                }
            }
            SectionKind::Table(_) if self.family(name).is_none() => {
                return error("table of a column family that is not there");
            }
            SectionKind::Table(_) if self.table(name).is_some() => {
                return error("section is there twice");
            }
            SectionKind::Table(_) => {}
            SectionKind::Version | SectionKind::Db => {
                if self.sections.iter().any(|s| s.kind == section.kind) {
                    return error("section is there twice");
                }
            }
        }
        Ok(())
    }
}

/// Reads what stands between the brackets: a kind, and for some a name in quotes.
fn parse_title(title: &str) -> Result<Section> {
    let (kind, name) = match (title.find('"'), title.rfind('"')) {
        (Some(start), Some(end)) if start < end => (
            title[..start].trim(),
            value::unescape(&title[start + 1..end]),
        ),
        _ => (title.trim(), String::new()),
    };
    let (kind, has_name) = match kind {
        VERSION => (SectionKind::Version, false),
        DB_OPTIONS => (SectionKind::Db, false),
        CF_OPTIONS => (SectionKind::ColumnFamily, true),
        _ => match kind.strip_prefix(TABLE_OPTIONS) {
            Some(format) if !format.is_empty() => (SectionKind::Table(format.to_owned()), true),
            _ => return Err(Error::corruption("unknown section").with("title", title)),
        },
    };
    Ok(Section {
        kind,
        name: if has_name { name } else { String::new() },
        entries: Vec::new(),
        own: Vec::new(),
    })
}

/// The line up to a `#` that is not escaped, without blanks around it.
fn strip_comment(line: &str) -> &str {
    let comment = line
        .match_indices('#')
        .find(|(i, _)| !line[..*i].ends_with('\\'));
    comment.map_or(line, |(i, _)| &line[..i]).trim()
}

#[cfg(test)]
mod tests;
