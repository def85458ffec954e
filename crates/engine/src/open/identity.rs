//! What tells databases and opens apart: RocksDB's `IDENTITY` file, and session ids.

use std::path::Path;

use orogen_base::Result;
use orogen_env::FileSystem;
use orogen_env::fs::read_file;

use crate::filename;

/// The database's id: the MANIFEST's, else the IDENTITY file's, else a new one.
///
/// # Errors
/// `Io` if that file cannot be read.
pub(super) fn identity(
    fs: &dyn FileSystem,
    dir: &Path,
    in_manifest: Option<&str>,
) -> Result<String> {
    if let Some(id) = in_manifest.filter(|id| !id.is_empty()) {
        return Ok(id.to_owned());
    }
    let path = filename::identity_path(dir);
    if fs.exists(&path)? {
        let text = String::from_utf8_lossy(&read_file(fs, &path)?)
            .trim()
            .to_owned();
        if !text.is_empty() {
            return Ok(text);
        }
    }
    Ok(new_uuid())
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u64)
}

/// A random UUID in text, as RocksDB's IDENTITY holds it.
pub(super) fn new_uuid() -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}

/// Twenty digits of base 36, as RocksDB's session ids are.
pub(super) fn new_session_id() -> String {
    const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut id = String::with_capacity(20);
    for _ in 0..2 {
        let mut n = random();
        for _ in 0..10 {
            id.push(char::from(DIGITS[(n % 36) as usize]));
            n /= 36;
        }
    }
    id
}
