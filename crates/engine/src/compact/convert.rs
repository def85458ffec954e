//! Which tables a conversion of values still has to rewrite.
//!
//! Pure: a version and what each table needs in; the tables in the order of the work out.
//!
//! 1. Only tables with numbers below a bound are looked at. From that number on every job writes what the conversion wants, so
//!    the set only shrinks, however much is written meanwhile.
//! 2. To bring values back, tables go first that point to the oldest blob file: files end one after the
//!    other, and their space comes back on the way. To separate them, tables go by level and key, so that
//!    neighbours come to lie side by side.
//! 3. Tables of level 0 go last, one at a time: compactions bring most of them down before, and convert them.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::{FileNo, Result};

use crate::version::{FileMeta, Version};

/// What a table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// To be rewritten, for which so many bytes are read.
    Rewrite(u64),
    /// To be read first, so many bytes, to know.
    Look(u64),
}

/// A table that may have to be rewritten.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where it is.
    pub level: usize,
    /// The table.
    pub file: Arc<FileMeta>,
    /// What it needs; never [`Need::Nothing`].
    pub need: Need,
}

impl Candidate {
    /// Bytes to read.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.need {
            Need::Nothing => 0,
            Need::Rewrite(bytes) | Need::Look(bytes) => bytes,
        }
    }
}

/// What there is to do.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Tables that nobody is at, in the order of the work.
    pub idle: Vec<Candidate>,
    /// Others have some.
    pub is_busy: bool,
    /// Tables that need something, those that others have among them.
    pub tables: u64,
    /// Bytes of these.
    pub bytes: u64,
}

/// Looks at all tables with numbers below `made_before` that are not in `but`.
///
/// # Errors
/// Those of `need`.
pub fn survey(
    version: &Version,
    made_before: FileNo,
    but: &HashSet<FileNo>,
    need: &mut dyn FnMut(usize, &FileMeta) -> Result<Need>,
) -> Result<Survey> {
    let mut survey = Survey::default();
    for (level, file) in version.iter_files() {
        // What is damaged is left alone, here as by compactions.
        if file.number >= made_before || file.damaged.get() || but.contains(&file.number) {
            continue;
        }
        let candidate = Candidate {
            level,
            file: file.clone(),
            need: need(level, file)?,
        };
        if candidate.need == Need::Nothing {
            continue;
        }
        survey.tables += 1;
        survey.bytes = survey.bytes.saturating_add(candidate.bytes());
        match file.is_busy() {
            true => survey.is_busy = true,
            false => survey.idle.push(candidate),
        }
    }
    survey.idle.sort_by(|a, b| {
        let order = version.icmp();
        let by_level = (a.level == 0).cmp(&(b.level == 0));
        let by_blob = a
            .file
            .oldest_blob_file_number
            .cmp(&b.file.oldest_blob_file_number);
        let by_key = || order.compare(&a.file.smallest, &b.file.smallest);
        by_level
            .then(by_blob)
            .then(a.level.cmp(&b.level))
            .then_with(by_key)
    });
    Ok(survey)
}
