//! What a blob file of ours tells of itself, in records that are not the user's.
//!
//! ```text
//! meta record   a record whose expiration is META_MARK
//!               key    name (length varint32, bytes) | content
//!               value  nothing, as the file's codec stores it
//! properties    (name, value: both length-prefixed)*, sorted by name
//! tail          (name, length-prefixed | offset, size of the record: varint64)* | locator (32)
//! ```
//! RocksDB's readers, which follow pointers, never come here; its tools that go through a file from
//! front to back find sound records. Names that are not known are passed over.

use std::borrow::Cow;

use orogen_base::coding::{
    Decoder, VARINT32_LEN_MAX, VARINT64_LEN_MAX, put_length_prefixed, put_varint64,
};
use orogen_base::{Error, Result, memory};
use orogen_codec::CompressionType;

use crate::format::{
    LOCATOR_LEN, Locator, META_MARK, RECORD_HEADER_LEN, RecordHeader, empty_value,
};

/// What memory is asked for.
const META_RECORD: &str = "meta record of a blob file";

/// The name of the record of the dictionary.
pub(crate) const DICTIONARY: &str = "orogen.dictionary";
/// The name of each record of the record index.
pub(crate) const RECORDS: &str = "orogen.records";
/// The name of the record of the properties.
pub(crate) const PROPERTIES: &str = "orogen.properties";
/// The name of the record that leads to the others.
pub(crate) const TAIL: &str = "orogen.tail";

/// The head and the key of a meta record; its value is [`empty_value`].
pub(crate) fn encode_record(
    name: &str,
    content: &[u8],
    codec: CompressionType,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut key = memory::with_capacity(name.len() + 5 + content.len(), META_RECORD)?;
    put_length_prefixed(&mut key, name.as_bytes());
    key.extend_from_slice(content);
    if u32::try_from(key.len()).is_err() {
        return Err(
            Error::not_supported("meta record of a blob file is too large")
                .with("record", name.to_owned()),
        );
    }
    let value = empty_value(codec);
    memory::reserve(
        out,
        RECORD_HEADER_LEN + key.len() + value.len(),
        META_RECORD,
    )?;
    out.extend_from_slice(&RecordHeader::new(&key, value, META_MARK).encode());
    out.extend_from_slice(&key);
    out.extend_from_slice(value);
    Ok(())
}

/// The name and the content of a meta record, out of its key.
pub(crate) fn split_key(key: &[u8]) -> Result<(&[u8], &[u8])> {
    let mut from = Decoder::new(key);
    let name = from.length_prefixed("name of a meta record")?;
    Ok((name, from.rest()))
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Bytes before it.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

impl Extent {
    /// The offset behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// Where the meta records of a file stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaIndex {
    /// In the order of the file, with their names; without the tail record.
    pub(crate) entries: Vec<(Vec<u8>, Extent)>,
    pub(crate) tail: Extent,
}

impl MetaIndex {
    pub(crate) fn push(&mut self, name: &str, extent: Extent) {
        self.entries.push((name.as_bytes().to_vec(), extent));
    }

    /// Where the records with this name stand.
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Extent> + 'a {
        self.entries
            .iter()
            .filter(move |(n, _)| n == name.as_bytes())
            .map(|(_, extent)| *extent)
    }

    /// Where all records stand that are not the user's, in the order of the file. They live as
    /// long as the file.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let inner = self.entries.iter().map(|(_, extent)| *extent);
        inner.chain(std::iter::once(self.tail))
    }

    /// Appends the content of the tail record, which will stand at `offset`.
    pub(crate) fn encode(
        &self,
        offset: u64,
        codec: CompressionType,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let start = out.len();
        for (name, extent) in &self.entries {
            let len = name.len() + VARINT32_LEN_MAX + 2 * VARINT64_LEN_MAX;
            memory::reserve(out, len, META_RECORD)?;
            put_length_prefixed(out, name);
            put_varint64(out, extent.offset);
            put_varint64(out, extent.size);
        }
        let name_len = 1 + TAIL.len();
        let around = RECORD_HEADER_LEN + name_len + empty_value(codec).len();
        let size = (around + (out.len() - start) + LOCATOR_LEN) as u64;
        Locator { offset, size }.encode(out);
        Ok(())
    }

    /// Reads the content of the tail record at `tail`.
    pub(crate) fn decode(content: &[u8], tail: Extent) -> Result<Self> {
        let entries = content
            .len()
            .checked_sub(LOCATOR_LEN)
            .and_then(|n| content.get(..n))
            .ok_or_else(|| Error::corruption("tail of a blob file has no locator"))?;
        let mut from = Decoder::new(entries);
        let mut this = Self {
            entries: Vec::new(),
            tail,
        };
        let mut end = crate::format::HEADER_LEN as u64;
        while !from.is_empty() {
            let name = from.length_prefixed("name of a meta record")?.to_vec();
            let offset = from.varint64("offset of a meta record")?;
            let size = from.varint64("size of a meta record")?;
            let after = offset.checked_add(size).filter(|&e| e <= tail.offset);
            match after {
                Some(after) if offset >= end => end = after,
                _ => {
                    return Err(Error::corruption(
                        "meta record of a blob file lies outside its part",
                    )
                    .with("at", offset)
                    .with("size", size));
                }
            }
            this.entries.push((name, Extent { offset, size }));
        }
        Ok(this)
    }
}

macro_rules! properties {
    ($($(#[$doc:meta])* $field:ident: $kind:ident = $name:literal,)*) => {
        /// What a file tells of itself. Texts are bytes as they were given.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct BlobFileProperties {
            $($(#[$doc])* pub $field: properties!(@type $kind),)*
            /// Names that are not known, with their values.
            pub others: Vec<(Vec<u8>, Vec<u8>)>,
        }

        impl BlobFileProperties {
            /// The properties as bytes.
            pub(crate) fn encode(&self) -> Result<Vec<u8>> {
                let others = self.others.iter();
                let mut all: Vec<(&[u8], Cow<'_, [u8]>)> = others
                    .map(|(name, value)| (&name[..], Cow::Borrowed(&value[..])))
                    .collect();
                $(all.push(($name.as_bytes(), properties!(@put $kind self.$field)));)*
                all.sort();
                let mut out = Vec::new();
                for (name, value) in &all {
                    let len = name.len() + value.len() + 2 * VARINT32_LEN_MAX;
                    memory::reserve(&mut out, len, META_RECORD)?;
                    put_length_prefixed(&mut out, name);
                    put_length_prefixed(&mut out, value);
                }
                Ok(out)
            }

            /// Reads properties; what is not there has its default.
            pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
                let mut from = Decoder::new(bytes);
                let mut this = Self::default();
                while !from.is_empty() {
                    let name = from.length_prefixed("name of a property")?;
                    let value = from.length_prefixed("value of a property")?;
                    match name {
                        $(n if n == $name.as_bytes() => {
                            this.$field = properties!(@get $kind value);
                        })*
                        _ => this.others.push((name.to_vec(), value.to_vec())),
                    }
                }
                Ok(this)
            }

            /// Names and values as text, in the order of the fields; bytes are escaped.
            #[must_use]
            pub fn lines(&self) -> Vec<(String, String)> {
                let mut out = vec![
                    $(($name.to_owned(), properties!(@show $kind self.$field)),)*
                ];
                for (name, value) in &self.others {
                    out.push((
                        name.escape_ascii().to_string(),
                        value.escape_ascii().to_string(),
                    ));
                }
                out
            }
        }
    };
    (@type number) => { u64 };
    (@type text) => { Vec<u8> };
    (@put number $v:expr) => {{
        let mut out = Vec::new();
        put_varint64(&mut out, $v);
        Cow::Owned(out)
    }};
    (@put text $v:expr) => { Cow::Borrowed(&$v[..]) };
    (@get number $v:expr) => { Decoder::new($v).varint64("property of a blob file")? };
    (@get text $v:expr) => { memory::copied($v, META_RECORD)? };
    (@show number $v:expr) => { $v.to_string() };
    (@show text $v:expr) => { $v.escape_ascii().to_string() };
}

properties! {
    /// Records begin at multiples of so many bytes; 0 for anywhere.
    alignment: number = "orogen.blob.alignment",
    /// The family, by number.
    column_family_id: number = "orogen.blob.column.family.id",
    /// The family, by name.
    column_family_name: text = "orogen.blob.column.family.name",
    /// The name of the order of user keys.
    comparator: text = "orogen.blob.comparator",
    /// The name of the codec.
    compression: text = "orogen.blob.compression",
    /// Seconds since 1970.
    creation_time: number = "orogen.blob.creation.time",
    /// The database that wrote the file.
    db_id: text = "orogen.blob.creating.db.identity",
    /// The session that wrote the file.
    db_session_id: text = "orogen.blob.creating.session.identity",
    /// The number that the file was written under.
    file_number: number = "orogen.blob.file.number",
    /// The largest user key; empty without records.
    largest_key: text = "orogen.blob.key.largest",
    /// The smallest user key; empty without records.
    smallest_key: text = "orogen.blob.key.smallest",
    /// Bytes of all user keys.
    raw_key_size: number = "orogen.blob.raw.key.size",
    /// Bytes of all values before compression.
    raw_value_size: number = "orogen.blob.raw.value.size",
    /// Records of the user.
    record_count: number = "orogen.blob.record.count",
    /// Bytes of all records of the user, as the MANIFEST counts them.
    record_bytes: number = "orogen.blob.record.bytes",
    /// What wrote the file.
    writer: text = "orogen.blob.writer",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_round_trip_also_those_that_are_not_known() {
        let p = BlobFileProperties {
            record_count: 300,
            smallest_key: b"a\0".to_vec(),
            others: vec![(b"orogen.blob.zzz".to_vec(), b"later".to_vec())],
            ..BlobFileProperties::default()
        };
        let bytes = p.encode().unwrap();
        assert_eq!(BlobFileProperties::decode(&bytes).unwrap(), p);
        for n in 1..bytes.len() {
            if let Ok(cut) = BlobFileProperties::decode(&bytes[..n]) {
                assert_ne!(cut, p, "{n}");
            }
        }
        let lines = p.lines();
        assert!(lines.contains(&("orogen.blob.key.smallest".into(), "a\\x00".into())));
        assert!(lines.contains(&("orogen.blob.zzz".into(), "later".into())));
    }

    #[test]
    fn the_meta_index_refuses_places_outside_the_records() {
        let mut index = MetaIndex::default();
        index.push(
            RECORDS,
            Extent {
                offset: 100,
                size: 50,
            },
        );
        index.push(
            PROPERTIES,
            Extent {
                offset: 150,
                size: 9,
            },
        );
        let mut content = Vec::new();
        index
            .encode(200, CompressionType::None, &mut content)
            .unwrap();
        let tail = |offset| Extent { offset, size: 99 };
        let read = MetaIndex::decode(&content, tail(159)).unwrap();
        assert_eq!(read.entries, index.entries);
        assert_eq!(read.extents().count(), 3);
        assert!(MetaIndex::decode(&content, tail(158)).is_err());
        assert!(MetaIndex::decode(&content[..31], tail(159)).is_err());
        let mut overlapping = index.clone();
        overlapping.push(
            RECORDS,
            Extent {
                offset: 158,
                size: 1,
            },
        );
        let mut content = Vec::new();
        overlapping
            .encode(200, CompressionType::None, &mut content)
            .unwrap();
        assert!(MetaIndex::decode(&content, tail(400)).is_err());
    }
}
