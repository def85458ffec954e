//! Errors under raft-engine's kinds.

use std::{error, fmt, io};

use orogen_base::ErrorKind;
use protobuf::ProtobufError;

/// A [`Result`](std::result::Result) with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug)]
pub enum Error {
    /// The call itself is wrong.
    InvalidArgument(String),
    /// Bytes on disk are not what was written.
    Corruption(String),
    /// Of the file system; the kind is that of the system.
    Io(io::Error),
    /// Is never made: records that cannot be read are [`Error::Corruption`].
    Codec(Box<dyn error::Error + Send + Sync>),
    /// A message is no message, or lacks what it must have.
    Protobuf(ProtobufError),
    /// Is never made: what finds no space in one directory is written to the other before a call returns.
    TryAgain(String),
    /// The first of the entries was compacted.
    EntryCompacted,
    /// The last of the entries is not there.
    EntryNotFound,
    /// The entries of a batch would be more than `i32::MAX` bytes.
    Full,
    /// Anything else: a configuration that cannot be, a directory that is open already, no memory, an
    /// engine that takes no writes because a sync has failed.
    Other(Box<dyn error::Error + Send + Sync>),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(why) => write!(f, "invalid argument: {why}"),
            Self::Corruption(why) => write!(f, "corruption: {why}"),
            Self::Io(e) => write!(f, "i/o error: {e}"),
            Self::Codec(e) => write!(f, "codec error: {e}"),
            Self::Protobuf(e) => write!(f, "protobuf error: {e}"),
            Self::TryAgain(why) => write!(f, "try again: {why}"),
            Self::EntryCompacted => f.write_str("entry is compacted"),
            Self::EntryNotFound => f.write_str("entry is not found"),
            Self::Full => f.write_str("batch is full"),
            Self::Other(e) => write!(f, "{e}"),
        }
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            Self::Protobuf(e) => Some(e),
            Self::Codec(e) | Self::Other(e) => Some(&**e),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<ProtobufError> for Error {
    fn from(e: ProtobufError) -> Self {
        Self::Protobuf(e)
    }
}

impl From<Box<dyn error::Error + Send + Sync>> for Error {
    fn from(e: Box<dyn error::Error + Send + Sync>) -> Self {
        Self::Other(e)
    }
}

/// What the system called it.
fn io_kind(e: &orogen_base::Error) -> io::ErrorKind {
    let mut source = error::Error::source(e);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return cause.kind();
        }
        source = cause.source();
    }
    match e.kind() {
        ErrorKind::NoSpace => io::ErrorKind::StorageFull,
        _ => io::ErrorKind::Other,
    }
}

impl From<orogen_base::Error> for Error {
    fn from(e: orogen_base::Error) -> Self {
        match e.kind() {
            ErrorKind::InvalidArgument => Self::InvalidArgument(e.to_string()),
            ErrorKind::Corruption => Self::Corruption(e.to_string()),
            ErrorKind::Io | ErrorKind::NoSpace => Self::Io(io::Error::new(io_kind(&e), e)),
            _ => Self::Other(Box::new(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_kept() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let full = Error::from(orogen_base::Error::io("cannot write", full));
        assert!(matches!(&full, Error::Io(e) if e.kind() == io::ErrorKind::StorageFull));
        assert!(full.to_string().contains("cannot write"), "{full}");
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let denied = Error::from(orogen_base::Error::io("cannot open", denied));
        assert!(matches!(&denied, Error::Io(e) if e.kind() == io::ErrorKind::PermissionDenied));
        let damaged = Error::from(orogen_base::Error::corruption("x"));
        assert!(matches!(damaged, Error::Corruption(_)));
        let wrong = Error::from(orogen_base::Error::invalid_argument("x"));
        assert!(matches!(wrong, Error::InvalidArgument(_)));
        let busy = Error::from(orogen_base::Error::busy("x"));
        assert!(matches!(busy, Error::Other(_)));
    }
}
