//! What an opened database holds, and which files its directory has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use orogen_engine::filename::{self, FileKind};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};

use crate::engine::{Db, ReadOptions, Result};
use crate::model::{Pairs, Prints, add_prepared, print_of_pair};

/// Reads every family from front to back and gives a number for each; also looks some keys up
/// one by one.
///
/// # Errors
/// What the engine gives, or what does not fit together, in words.
pub fn prints(db: &Db) -> std::result::Result<Prints, String> {
    let mut prints = Prints::new();
    for family in db.column_families() {
        let mut iter = db
            .iter(&ReadOptions::default(), &family)
            .map_err(|e| e.to_string())?;
        let mut print = 0u64;
        let mut before: Option<Vec<u8>> = None;
        let mut n = 0u64;
        iter.seek_to_first();
        while iter.valid() {
            if before.as_deref().is_some_and(|b| b >= iter.key()) {
                return Err(format!("keys of {family:?} are out of order"));
            }
            print = print.wrapping_add(print_of_pair(iter.key(), iter.value()));
            if n.is_multiple_of(16) {
                let found = db
                    .get_opt(&ReadOptions::default(), &family, iter.key())
                    .map_err(|e| e.to_string())?;
                if found.as_deref() != Some(iter.value()) {
                    return Err(format!("get and iterator of {family:?} differ"));
                }
            }
            before = Some(iter.key().to_vec());
            n += 1;
            iter.next();
        }
        iter.status().map_err(|e| e.to_string())?;
        prints.insert(family.name().to_owned(), print);
    }
    for prepared in db.prepared_writes() {
        add_prepared(&mut prints, &prepared.name, prepared.operations as usize);
    }
    Ok(prints)
}

/// Everything that a database holds.
///
/// # Errors
/// What the engine gives.
pub fn pairs(db: &Db) -> Result<BTreeMap<String, Pairs>> {
    pairs_where(db, |_| true)
}

/// The same of the families with names that are wanted.
///
/// # Errors
/// What the engine gives.
pub fn pairs_where(db: &Db, is_wanted: impl Fn(&str) -> bool) -> Result<BTreeMap<String, Pairs>> {
    let mut all = BTreeMap::new();
    for family in db.column_families() {
        if !is_wanted(family.name()) {
            continue;
        }
        let mut iter = db.iter(&ReadOptions::default(), &family)?;
        let mut pairs = Pairs::new();
        iter.seek_to_first();
        while iter.valid() {
            pairs.insert(iter.key().to_vec(), iter.value().to_vec());
            iter.next();
        }
        iter.status()?;
        all.insert(family.name().to_owned(), pairs);
    }
    Ok(all)
}

/// Names in the directory of a quiet database that it has no use for, or that it misses, and blob
/// files of which the MANIFEST says another thing than the tables. With `follow` every pointer is
/// followed, those of hidden entries too.
///
/// # Errors
/// `Io`; `Corruption` of a value that is followed to.
pub fn strays(
    db: &Db,
    fs: &dyn FileSystem,
    dir: &Path,
    logs_max: usize,
    follow: bool,
) -> Result<Vec<String>> {
    let current = read_file(fs, &filename::current_path(dir))?;
    let current = String::from_utf8_lossy(&current).trim().to_owned();
    let mut tables: BTreeSet<u64> = db.live_files().iter().map(|f| f.number).collect();
    let mut blobs: BTreeSet<u64> = db.live_blob_files().iter().map(|f| f.number).collect();
    let mut strays = Vec::new();
    let (mut logs, mut options, mut manifests) = (0, 0, 0);
    for name in fs.list(dir)? {
        let fine = match filename::parse(&name) {
            Some(FileKind::Table(n)) => tables.remove(&n),
            Some(FileKind::Blob(n)) => blobs.remove(&n),
            Some(FileKind::Wal(_)) => {
                logs += 1;
                logs <= logs_max
            }
            Some(FileKind::Options(_)) => {
                options += 1;
                options <= 1
            }
            Some(FileKind::Manifest(_)) => {
                manifests += 1;
                name == current
            }
            Some(FileKind::Temporary) => false,
            None => name == filename::ARCHIVE,
            Some(_) => true,
        };
        if !fine {
            strays.push(name);
        }
    }
    strays.extend(tables.into_iter().map(|n| format!("missing table {n}")));
    strays.extend(blobs.into_iter().map(|n| format!("missing blob file {n}")));
    for family in db.column_families() {
        let checks = db.check_blob_files(&family, follow)?;
        let drifted = checks.iter().filter(|c| !c.is_exact());
        strays.extend(drifted.map(|c| format!("drift {c:?}")));
        let unused = checks.iter().filter(|c| c.live_blob_count == 0);
        strays.extend(unused.map(|c| format!("blob file {} without a value", c.number)));
    }
    if manifests == 0 {
        strays.push("missing MANIFEST".to_owned());
    }
    Ok(strays)
}

/// Copies an image to the machine's file system, to be looked at; what fails is left out.
pub fn keep(image: &MemFileSystem, to: &Path) {
    for dir in image.list(Path::new("/")).unwrap_or_default() {
        let from = Path::new("/").join(&dir);
        let _ = std::fs::create_dir_all(to.join(&dir));
        for name in image.list(&from).unwrap_or_default() {
            if let Ok(bytes) = read_file(image, &from.join(&name)) {
                let _ = std::fs::write(to.join(&dir).join(&name), bytes);
            }
        }
    }
}
