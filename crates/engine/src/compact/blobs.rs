//! Which blob files a compaction empties.

use std::collections::HashSet;

use orogen_base::FileNo;

use crate::options::ColumnFamilyOptions;
use crate::version::Version;

/// The oldest blob files, as many as the settings say: values in them that a compaction meets are
/// written anew.
#[must_use]
pub fn oldest(version: &Version, options: &ColumnFamilyOptions) -> HashSet<FileNo> {
    if !options.enable_blob_garbage_collection {
        return HashSet::new();
    }
    let files = version.blob_files();
    let cutoff = options.blob_garbage_collection_age_cutoff;
    let count = (cutoff * files.len() as f64) as usize;
    files.keys().copied().take(count).collect()
}
