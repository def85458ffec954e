//! One error type for the whole system: a kind, what was done, where, and the cause.
//!
//! A kind tells the caller what to do; the text tells a person what happened. Nobody matches on
//! text. An error is one pointer wide, and cloning it is cheap: a background failure is
//! reported to every later writer.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller should do about an error. The numbers are stable: they cross the C ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorKind {
    /// The call itself is wrong: mend the arguments or the options.
    InvalidArgument = 1,
    /// Bytes on disk are not what was written: restore or repair.
    Corruption = 2,
    /// The operating system refused an operation.
    Io = 3,
    /// The disk or a quota is full: free space; the engine resumes by itself.
    NoSpace = 4,
    /// Somebody else holds the resource, or waiting was not allowed: retry.
    Busy = 5,
    /// Nothing gives it today: a transaction that meets a newer write gets [`Self::Busy`].
    Conflict = 6,
    /// A lock was not granted in time.
    LockTimeout = 7,
    /// Waiting would have closed a cycle.
    Deadlock = 8,
    /// The operation was given up on request.
    Aborted = 9,
    /// The database takes no writes: it was opened so, or a sync failed.
    ReadOnly = 10,
    /// The database is closed.
    Closed = 11,
    /// The bytes or the call ask for something that this version does not do.
    NotSupported = 12,
    /// What was asked for was there once and is gone, such as an old update: start over.
    NotFound = 13,
    /// The allocator has no memory for a buffer: free some and call again; the engine resumes by
    /// itself.
    NoMemory = 14,
    /// Transactions hold more locks, or locks take more memory, than they may: end some, or raise the
    /// limit.
    LockLimit = 15,
    /// The time of a transaction is over, and others may have its locks: begin it anew.
    Expired = 16,
    /// A batch, or what a transaction writes, has more bytes or operations than are taken at once: write it in parts, or raise
    /// the limit. Its context has `bytes` and `bytes_max`.
    TooLarge = 17,
}

impl ErrorKind {
    /// True for what was lacking and comes back: what failed for it is tried again by itself.
    #[must_use]
    pub fn is_shortage(self) -> bool {
        matches!(self, Self::NoSpace | Self::NoMemory)
    }

    /// The kind's name as it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid argument",
            Self::Corruption => "corruption",
            Self::Io => "i/o error",
            Self::NoSpace => "no space",
            Self::Busy => "busy",
            Self::Conflict => "conflict",
            Self::LockTimeout => "lock timeout",
            Self::Deadlock => "deadlock",
            Self::Aborted => "aborted",
            Self::ReadOnly => "read only",
            Self::Closed => "closed",
            Self::NotSupported => "not supported",
            Self::NotFound => "not found",
            Self::NoMemory => "no memory",
            Self::LockLimit => "lock limit",
            Self::Expired => "expired",
            Self::TooLarge => "too large",
        }
    }
}

/// An error with its context.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        #[cold]
        pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
            Self::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of `kind`; `message` is lower case without a full stop.
    #[must_use]
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    constructors! {
        /// The call is wrong.
        invalid_argument => InvalidArgument;
        /// Bytes are damaged.
        corruption => Corruption;
        /// The resource is held, or waiting was not allowed.
        busy => Busy;
        /// Given up on request.
        aborted => Aborted;
        /// No writes are taken.
        read_only => ReadOnly;
        /// The database is closed.
        closed => Closed;
        /// Not done by this version.
        not_supported => NotSupported;
        /// It is gone.
        not_found => NotFound;
        /// The allocator has nothing.
        no_memory => NoMemory;
        /// More than is taken at once.
        too_large => TooLarge;
    }

    /// An operating system error met while doing `message`.
    ///
    /// "No space" and "quota exceeded" become [`ErrorKind::NoSpace`].
    #[must_use]
    #[cold]
    pub fn io(message: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match source.kind() {
            K::StorageFull | K::QuotaExceeded => ErrorKind::NoSpace,
            _ => ErrorKind::Io,
        };
        let mut error = Self::new(kind, message);
        error.0.source = Some(Arc::new(source));
        error
    }

    /// Adds a context pair, printed as `key=value`.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message without context and cause.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The value of a context pair, if it is there.
    #[must_use]
    pub fn context(&self, key: &str) -> Option<&str> {
        self.0
            .context
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, v)| v.as_str())
    }

    /// True where the operating system said that the file does not exist.
    #[must_use]
    pub fn is_file_not_found(&self) -> bool {
        self.io_kind() == Some(std::io::ErrorKind::NotFound)
    }

    /// True where the operating system said that the file system is mounted for reading only.
    #[must_use]
    pub fn is_read_only_file_system(&self) -> bool {
        self.io_kind() == Some(std::io::ErrorKind::ReadOnlyFilesystem)
    }

    fn io_kind(&self) -> Option<std::io::ErrorKind> {
        let source = self.0.source.as_ref()?;
        let error = source.downcast_ref::<std::io::Error>()?;
        Some(error.kind())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.name(), self.0.message)?;
        for (key, value) in &self.0.context {
            write!(f, " {key}={value}")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|s| s.as_ref() as &(dyn std::error::Error + 'static))
    }
}

/// Adds context to the error of a result, computed only if there is one.
pub trait ResultExt<T> {
    /// Adds a context pair.
    ///
    /// # Errors
    /// The error of `self` with the pair.
    fn context<V: fmt::Display>(self, key: &'static str, value: impl FnOnce() -> V) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T> {
    fn context<V: fmt::Display>(self, key: &'static str, value: impl FnOnce() -> V) -> Result<T> {
        self.map_err(|e| e.with(key, value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_kind_message_context_and_cause_in_order() {
        let error = Error::io("cannot read", std::io::Error::from_raw_os_error(2))
            .with("file", "000007.sst")
            .with("offset", 12);
        let text = error.to_string();
        assert!(
            text.starts_with("i/o error: cannot read file=000007.sst offset=12: "),
            "{text}"
        );
        assert!(error.is_file_not_found());
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }

    #[test]
    fn a_full_disk_is_its_own_kind() {
        let error = Error::io("cannot write", std::io::Error::from_raw_os_error(28));
        assert_eq!(error.kind(), ErrorKind::NoSpace);
    }
}
