//! A directory with what is expected of it, as the scripts lay it out.
//!
//! ```text
//! db/                 the database directory
//! expected/<cf>.txt   a line for each pair, in the order of a scan: key and value in hex
//! meta.json           who wrote it, under which options, and what it needs of a reader
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A directory with what is expected of it.
#[derive(Clone, Debug)]
pub struct Case {
    dir: PathBuf,
    meta: Value,
}

impl Case {
    /// The case in `dir`.
    ///
    /// # Errors
    /// If there is no readable `meta.json`.
    pub fn load(dir: &Path) -> Result<Self, String> {
        let path = dir.join("meta.json");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let meta = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            meta,
        })
    }

    /// A new case whose database Orogen writes; its families and what they hold come with
    /// [`Case::expect`]. `ldb_reads` tells whether the older RocksDB can read the tables.
    ///
    /// # Errors
    /// If the folders cannot be made.
    pub fn create(
        dir: &Path,
        name: &str,
        comparator: &str,
        merge_operator: &str,
        ldb_reads: bool,
    ) -> Result<Self, String> {
        fs::create_dir_all(dir.join("expected")).map_err(|e| format!("{}: {e}", dir.display()))?;
        let meta = json!({
            "name": name,
            "writer": "orogen",
            "options": "",
            "comparator": comparator,
            "merge_operator": merge_operator,
            "features": [],
            "ldb_reads": ldb_reads,
            "families": [],
        });
        let case = Self {
            dir: dir.to_path_buf(),
            meta,
        };
        case.save()?;
        Ok(case)
    }

    /// Says that Orogen has opened the case for writing: its files are Orogen's to answer for,
    /// and the older RocksDB must know every option in them.
    ///
    /// # Errors
    /// If `meta.json` cannot be written.
    pub fn set_written_by_orogen(&mut self) -> Result<(), String> {
        self.meta["writer"] = "orogen".into();
        self.save()
    }

    fn save(&self) -> Result<(), String> {
        let path = self.dir.join("meta.json");
        fs::write(&path, self.meta.to_string()).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Says what a family must hold from now on.
    ///
    /// # Errors
    /// If the dump cannot be written.
    ///
    /// # Panics
    /// If `meta.json` has no list of families.
    pub fn expect(&mut self, family: &str, pairs: &[Pair]) -> Result<(), String> {
        let mut text = String::new();
        for (key, value) in pairs {
            text.push_str(&hex(key));
            text.push(' ');
            text.push_str(&hex(value));
            text.push('\n');
        }
        let path = self.dump(family);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        let families = self.meta["families"]
            .as_array_mut()
            .expect("a list of families");
        if !families.iter().any(|f| f == family) {
            families.push(family.into());
            families.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
        self.save()
    }

    /// What a family must hold, in the order of a scan.
    ///
    /// # Errors
    /// If the dump is missing or not hex.
    pub fn expected(&self, family: &str) -> Result<Vec<Pair>, String> {
        let path = self.dump(family);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        text.lines()
            .map(|line| {
                let (key, value) = line.split_once(' ')?;
                Some((unhex(key)?, unhex(value)?))
            })
            .collect::<Option<_>>()
            .ok_or_else(|| format!("{}: not a dump", path.display()))
    }

    fn dump(&self, family: &str) -> PathBuf {
        self.dir.join("expected").join(format!("{family}.txt"))
    }

    /// The folder of the case.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The database directory.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.dir.join("db")
    }

    /// The name of the case.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text("name")
    }

    /// The name of the order of its keys.
    #[must_use]
    pub fn comparator(&self) -> &str {
        self.text("comparator")
    }

    /// The name of its merge operator; empty if it has none.
    #[must_use]
    pub fn merge_operator(&self) -> &str {
        self.text("merge_operator")
    }

    /// Its column families.
    #[must_use]
    pub fn families(&self) -> Vec<&str> {
        self.list("families")
    }

    /// What it needs of a reader beyond puts, deletes, merges and range deletions in block-based
    /// tables: `blob`, `wide-columns`, `wal-compression`, `zlib`, `bz2`.
    #[must_use]
    pub fn features(&self) -> Vec<&str> {
        self.list("features")
    }

    fn text(&self, field: &str) -> &str {
        self.meta[field].as_str().unwrap_or_default()
    }

    fn list(&self, field: &str) -> Vec<&str> {
        self.meta[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    /// A copy of the whole case in `to`, which must not be there yet.
    ///
    /// The database may be open while nothing is written to it: files that it removes meanwhile
    /// are left out.
    ///
    /// # Errors
    /// If a file cannot be copied.
    pub fn copy(&self, to: &Path) -> Result<Self, String> {
        for part in ["db", "expected"] {
            copy_files(&self.dir.join(part), &to.join(part))
                .map_err(|e| format!("{}: {e}", to.display()))?;
        }
        let copy = Self {
            dir: to.to_path_buf(),
            meta: self.meta.clone(),
        };
        copy.save()?;
        Ok(copy)
    }
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_files(&entry.path(), &target)?;
        } else if let Err(e) = fs::copy(entry.path(), target)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(e);
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes every write");
            text
        })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok())
        .collect()
}
