//! Titan's blob files as one stretch of a merge reads them.
//!
//! Keys rise, and so do the places of their records within each file: files are kept open with a
//! window each, the longest unused going first.

use std::collections::HashMap;

use orogen_base::{Error, FileNo, Result};
use orogen_blob::titan::{TitanFile, TitanPointer, TitanWindow};
use orogen_env::{Access, FileSystem};

use super::source::LiveFile;

/// Files that all threads together keep open.
const OPEN_MAX: usize = 256;
/// Bytes that a window may have.
const WINDOW_LEN: u64 = 128 << 10;

struct Open {
    file: TitanFile,
    window: TitanWindow,
    used: u64,
}

/// The live files of a family.
pub(super) struct Blobs<'a> {
    fs: &'a dyn FileSystem,
    live: &'a HashMap<FileNo, LiveFile>,
    open: HashMap<FileNo, Open>,
    open_max: usize,
    uses: u64,
}

impl<'a> Blobs<'a> {
    pub(super) fn new(
        fs: &'a dyn FileSystem,
        live: &'a HashMap<FileNo, LiveFile>,
        threads: usize,
    ) -> Self {
        Self {
            fs,
            live,
            open: HashMap::new(),
            open_max: (OPEN_MAX / threads.max(1)).max(8),
            uses: 0,
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// `Corruption` if it is damaged or its file is not there; `NotSupported` for a codec that is
    /// not built in; `Io`, `NoMemory`.
    pub(super) fn read(&mut self, pointer: &TitanPointer, user_key: &[u8]) -> Result<&[u8]> {
        let number = pointer.file;
        self.uses += 1;
        if !self.open.contains_key(&number) {
            self.make_room();
            let file = self.open_file(number)?;
            let window = TitanWindow::new(WINDOW_LEN);
            let used = self.uses;
            self.open.insert(number, Open { file, window, used });
        }
        let Some(open) = self.open.get_mut(&number) else {
            return Err(not_live(number));
        };
        open.used = self.uses;
        open.file.read(&mut open.window, pointer, user_key)
    }

    fn make_room(&mut self) {
        if self.open.len() < self.open_max {
            return;
        }
        let oldest = self.open.iter().min_by_key(|(_, open)| open.used);
        if let Some(number) = oldest.map(|(&number, _)| number) {
            self.open.remove(&number);
        }
    }

    fn open_file(&self, number: FileNo) -> Result<TitanFile> {
        let live = self.live.get(&number).ok_or_else(|| not_live(number))?;
        match &live.error {
            Some(e) => Err(e.clone()),
            None => TitanFile::open(self.fs.open(&live.path, Access::Random)?, number),
        }
    }
}

fn not_live(number: FileNo) -> Error {
    Error::corruption("pointer leads to a blob file that Titan's MANIFEST does not list")
        .with("blob_file", number)
}
