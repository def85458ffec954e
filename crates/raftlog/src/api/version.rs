//! The number of a file's format.

use std::fmt;

use num_traits::{FromPrimitive, ToPrimitive};
use serde::de::{self, Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

use crate::format::FormatVersion;

/// The format of files. In configurations it is its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Version {
    /// Without signatures: such a file cannot be written over.
    #[default]
    V1 = 1,
    /// Records are signed with the number of their file. The default of [`Config`](crate::Config).
    V2 = 2,
}

impl Version {
    /// Whether records are signed, so that a file may be written over.
    #[must_use]
    pub fn has_log_signing(&self) -> bool {
        *self == Self::V2
    }

    pub(super) fn format(self) -> FormatVersion {
        match self {
            Self::V1 => FormatVersion::V1,
            Self::V2 => FormatVersion::V2,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", *self as u64)
    }
}

impl FromPrimitive for Version {
    fn from_u64(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }

    fn from_i64(number: i64) -> Option<Self> {
        Self::from_u64(u64::try_from(number).ok()?)
    }
}

impl ToPrimitive for Version {
    fn to_u64(&self) -> Option<u64> {
        Some(*self as u64)
    }

    fn to_i64(&self) -> Option<i64> {
        Some(*self as i64)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*self as u64)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Self::from_u64(number)
            .ok_or_else(|| de::Error::custom(format!("unknown format version {number}")))
    }
}
