//! Sizes as people write them.

use std::fmt;
use std::ops::{Div, Mul};
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

/// Units and the factor of each, the largest first.
const UNITS: [(&str, u64); 5] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
];

/// A number of bytes.
///
/// It is read from a number, or from a text like `1.5GB`: `B`, and `K`, `M`, `G`, `T`, `P`, each
/// also with `B` or `iB`, all of them by 1024. It is printed, and written, in the largest unit that makes
/// it a whole number; 0 as `0KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct ReadableSize(pub u64);

impl ReadableSize {
    /// `count` times 1024 bytes.
    #[must_use]
    pub const fn kb(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` times 1024 KiB.
    #[must_use]
    pub const fn mb(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` times 1024 MiB.
    #[must_use]
    pub const fn gb(count: u64) -> Self {
        Self(count << 30)
    }

    /// Whole MiB.
    #[must_use]
    pub const fn as_mb(self) -> u64 {
        self.0 >> 20
    }
}

impl Div<u64> for ReadableSize {
    type Output = Self;

    fn div(self, by: u64) -> Self {
        Self(self.0 / by)
    }
}

impl Div<ReadableSize> for ReadableSize {
    type Output = u64;

    fn div(self, by: Self) -> u64 {
        self.0 / by.0
    }
}

impl Mul<u64> for ReadableSize {
    type Output = Self;

    fn mul(self, by: u64) -> Self {
        Self(self.0 * by)
    }
}

/// The factor of a unit as it is read; none if there is no such unit.
fn factor(unit: &str) -> Option<u64> {
    if matches!(unit, "" | "B") {
        return Some(1);
    }
    let found = UNITS
        .iter()
        .find(|(name, _)| [&name[..1], &name[..3]].contains(&unit) || is_short(name, unit));
    found.map(|(_, factor)| *factor)
}

/// Whether it is the unit's letter and a `B`.
fn is_short(name: &str, unit: &str) -> bool {
    unit.strip_suffix('B') == Some(&name[..1])
}

impl FromStr for ReadableSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let is_of_number = |c: char| c.is_ascii_digit() || ".eE+-".contains(c);
        let end = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor = factor(unit.trim()).ok_or_else(|| {
            format!("not a unit of sizes, which are B, KB to PB, KiB to PiB: {text:?}")
        })?;
        match number.parse::<f64>() {
            Ok(number) => Ok(Self((number * factor as f64) as u64)),
            Err(_) => Err(format!("not a size: {text:?}")),
        }
    }
}

impl fmt::Display for ReadableSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0KiB");
        }
        let exact = UNITS
            .iter()
            .find(|(_, factor)| self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl Serialize for ReadableSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct Sizes;

impl Visitor<'_> for Sizes {
    type Value = ReadableSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or a size like 128MiB")
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ReadableSize, E> {
        Ok(ReadableSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ReadableSize, E> {
        u64::try_from(bytes)
            .map(ReadableSize)
            .map_err(|_| E::invalid_value(Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ReadableSize, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for ReadableSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_what_they_mean() {
        let table: [(&str, u64); 17] = [
            ("0", 0),
            ("7", 7),
            ("7B", 7),
            (" 7 B ", 7),
            ("1K", 1 << 10),
            ("1KB", 1 << 10),
            ("1KiB", 1 << 10),
            ("0.5KB", 512),
            ("1e3", 1000),
            ("2M", 2 << 20),
            ("2MB", 2 << 20),
            ("2MiB", 2 << 20),
            ("1.5GB", 3 << 29),
            ("3GiB", 3 << 30),
            ("1TB", 1 << 40),
            ("1PiB", 1 << 50),
            ("-1", 0),
        ];
        for (text, bytes) in table {
            assert_eq!(text.parse(), Ok(ReadableSize(bytes)), "{text}");
        }
        for text in [
            "",
            " ",
            "KB",
            "1kb",
            "1 k",
            "1KiBB",
            "1iB",
            "1Ki",
            "x",
            "1..2",
            "1\u{212a}",
        ] {
            assert!(text.parse::<ReadableSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn it_is_printed_in_the_largest_unit_that_is_exact() {
        let table = [
            (0, "0KiB"),
            (1, "1B"),
            (1023, "1023B"),
            (1 << 10, "1KiB"),
            (1025, "1025B"),
            (3 << 20, "3MiB"),
            (3 << 29, "1536MiB"),
            (1 << 30, "1GiB"),
            (1 << 40, "1TiB"),
            (5 << 50, "5PiB"),
        ];
        for (bytes, text) in table {
            let size = ReadableSize(bytes);
            assert_eq!(size.to_string(), text);
            assert_eq!(text.parse(), Ok(size));
            let json = serde_json::to_string(&size).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<ReadableSize>(&json).unwrap(), size);
            let number = bytes.to_string();
            assert_eq!(serde_json::from_str::<ReadableSize>(&number).unwrap(), size);
        }
        assert!(serde_json::from_str::<ReadableSize>("-1").is_err());
        assert!(serde_json::from_str::<ReadableSize>("true").is_err());
    }

    #[test]
    fn it_is_multiplied_and_divided() {
        assert_eq!(ReadableSize::kb(2) * 3, ReadableSize(6144));
        assert_eq!(ReadableSize::mb(6) / 4, ReadableSize::kb(1536));
        assert_eq!(ReadableSize::gb(1) / ReadableSize::mb(3), 341);
        assert_eq!(ReadableSize::gb(1).as_mb(), 1024);
    }
}
