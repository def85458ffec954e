//! Whether the database may be written.
//!
//! A failed write or sync of the WAL or the MANIFEST leaves it unknown what is on disk: the
//! database then serves reads only, until it is opened anew. The first error is kept and every
//! later write is refused with it.

use std::sync::OnceLock;

use orogen_base::{Error, ErrorKind, Result};

/// Healthy, or read-only after an error.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failure: OnceLock<Error>,
}

impl Health {
    /// Refuses if the database has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(first) => Err(Self::refusal(first)),
        }
    }

    /// True once the database has failed.
    pub(crate) fn failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Makes the database read-only because of `error`; true if it was healthy before.
    pub(crate) fn fail(&self, error: &Error) -> bool {
        self.failure.set(error.clone()).is_ok()
    }

    #[cold]
    fn refusal(first: &Error) -> Error {
        Error::new(
            ErrorKind::ReadOnly,
            "database is read-only after an error; reopen it",
        )
        .caused_by(first.clone())
    }
}
