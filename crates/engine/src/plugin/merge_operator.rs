//! Merge operators: the user's way to fold operands into a value when it is read or compacted.

use std::fmt;
use std::sync::Arc;

/// Folds merge operands, oldest first, onto a base value.
///
/// A merge operator must give the same result whenever and in whatever grouping it is called,
/// on every machine; its name stands in the MANIFEST's neighbours and in every SST.
pub trait MergeOperator: Send + Sync {
    /// The stable name that is written to disk.
    fn name(&self) -> &str;

    /// What an OPTIONS file keeps of it, for opens that are not given one: its name, unless it has settings of its own that are
    /// read back.
    fn stored(&self) -> String {
        self.name().to_owned()
    }

    /// Folds `operands` onto `existing` (`None`: the key had no value). `None` is a failure:
    /// the operands do not fit the value.
    fn full_merge(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Option<Vec<u8>>;

    /// Folds neighbouring operands into one, where that does not need the base value. `None`
    /// keeps them apart.
    fn partial_merge(&self, key: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        let _ = (key, operands);
        None
    }
}

impl fmt::Debug for dyn MergeOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Joins operands with a delimiter; RocksDB's `StringAppendOperator`.
#[derive(Clone, Debug)]
pub struct StringAppend {
    /// Stands between two operands.
    pub delimiter: Vec<u8>,
}

impl Default for StringAppend {
    fn default() -> Self {
        Self {
            delimiter: b",".to_vec(),
        }
    }
}

/// Begins the stored form of a [`StringAppend`] whose delimiter RocksDB's form cannot hold.
const DELIMITER_IN_HEX: &str = "orogen.StringAppendOperator.delimiter.";

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.as_bytes().chunks(2).map(byte).collect()
}

impl StringAppend {
    fn join<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let mut out = Vec::new();
        for (i, part) in parts.enumerate() {
            if i > 0 {
                out.extend_from_slice(&self.delimiter);
            }
            out.extend_from_slice(part);
        }
        out
    }
}

impl MergeOperator for StringAppend {
    fn name(&self) -> &str {
        "StringAppendOperator"
    }

    /// RocksDB's form where the delimiter is not the default one; a name that RocksDB does not know, so that it merges nothing, if it
    /// has characters that mean something there.
    fn stored(&self) -> String {
        let name = self.name();
        match std::str::from_utf8(&self.delimiter) {
            Ok(",") => name.to_owned(),
            Ok(text) if text.trim() == text && !text.contains(['{', '}', ';', '=', '\n', '\r']) => {
                format!("{{id={name};delimiter={text};}}")
            }
            _ => {
                let digits = self.delimiter.iter().map(|byte| format!("{byte:02x}"));
                format!("{DELIMITER_IN_HEX}{}", digits.collect::<String>())
            }
        }
    }

    fn full_merge(&self, _: &[u8], existing: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(self.join(existing.into_iter().chain(operands.iter().copied())))
    }

    fn partial_merge(&self, _: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(self.join(operands.iter().copied()))
    }
}

/// Adds little-endian 64-bit numbers, wrapping; RocksDB's `UInt64AddOperator`. Anything that is
/// not eight bytes long counts as zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct UInt64Add;

impl UInt64Add {
    fn sum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let number = |p: &[u8]| p.try_into().map_or(0, u64::from_le_bytes);
        parts
            .map(number)
            .fold(0, u64::wrapping_add)
            .to_le_bytes()
            .to_vec()
    }
}

impl MergeOperator for UInt64Add {
    fn name(&self) -> &str {
        "UInt64AddOperator"
    }

    fn full_merge(&self, _: &[u8], existing: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(Self::sum(
            existing.into_iter().chain(operands.iter().copied()),
        ))
    }

    fn partial_merge(&self, _: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        Some(Self::sum(operands.iter().copied()))
    }
}

/// The last operand wins; RocksDB's `PutOperator`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PutLast;

impl MergeOperator for PutLast {
    fn name(&self) -> &str {
        "PutOperator"
    }

    fn full_merge(&self, _: &[u8], existing: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        operands.last().copied().or(existing).map(<[u8]>::to_vec)
    }

    fn partial_merge(&self, _: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        operands.last().map(|o| o.to_vec())
    }
}

/// The bytewise largest wins; RocksDB's `MaxOperator`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Max;

impl MergeOperator for Max {
    fn name(&self) -> &str {
        "MaxOperator"
    }

    fn full_merge(&self, _: &[u8], existing: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        existing
            .into_iter()
            .chain(operands.iter().copied())
            .max()
            .map(<[u8]>::to_vec)
    }

    fn partial_merge(&self, _: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        operands.iter().max().map(|o| o.to_vec())
    }
}

/// The built-in operator with this name or one of RocksDB's aliases.
#[must_use]
pub fn by_name(name: &str) -> Option<Arc<dyn MergeOperator>> {
    Some(match name {
        "StringAppendOperator"
        | "stringappend"
        | "StringAppendTESTOperator"
        | "stringappendtest" => Arc::new(StringAppend::default()),
        "UInt64AddOperator" | "uint64add" => Arc::new(UInt64Add),
        "PutOperator" | "PutOperatorV1" | "put" => Arc::new(PutLast),
        "MaxOperator" | "max" => Arc::new(Max),
        other => {
            let delimiter = from_hex(other.strip_prefix(DELIMITER_IN_HEX)?)?;
            Arc::new(StringAppend { delimiter })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_merges_do_not_change_the_result() {
        for name in ["stringappend", "uint64add", "put", "max"] {
            let op = by_name(name).unwrap();
            let operands: Vec<Vec<u8>> = (1..6u64).map(|n| n.to_le_bytes().to_vec()).collect();
            let refs: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
            for cut in 1..4 {
                let folded = op.partial_merge(b"k", &refs[..=cut]).unwrap();
                let mut fewer: Vec<&[u8]> = vec![&folded];
                fewer.extend(&refs[cut + 1..]);
                let base = 7u64.to_le_bytes();
                assert_eq!(
                    op.full_merge(b"k", Some(&base), &refs),
                    op.full_merge(b"k", Some(&base), &fewer),
                    "{name}"
                );
            }
        }
    }
}
