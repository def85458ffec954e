//! `cargo x tidy`: rules about the source that the compiler does not know.
//!
//! A rule reads the [`Tree`] and gives [`Finding`]s; it never changes a file. Lengths are told
//! and judged by nobody.

mod source;
mod floors;
mod modules;
mod text;
mod pages;
mod plots;
mod licences;
mod lengths;

use std::path::{Path, PathBuf};

use crate::workspace::{self, Package};

pub(crate) const HELP: &str = "
usage: cargo x tidy

Fails on, with file and line:
  floors    a crate that imports one it may not; an outside crate without its ADR
  modules   in an ordered crate, a module that imports one listed below it; files that no
            `mod` line reaches
  text      a Rust file without a `//!` head; bytes that are not ASCII; a to-do without an issue
            number; paths of somebody's machine
  pages     a relative link that leads nowhere; a page without exactly one `#` title
  plots     a picture that is not what its table says: `cargo x plots` draws it
  licences  a dependency whose licence deny.toml does not allow
Tells, without failing, the longest files.
";

/// Something to mend.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    file: PathBuf,
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &Path, line: usize, message: impl Into<String>) -> Self {
        Self {
            file: file.to_path_buf(),
            line,
            message: message.into(),
        }
    }
}

/// A text file that we wrote.
pub(crate) struct SourceFile {
    /// Path relative to the root.
    path: PathBuf,
    text: String,
}

impl SourceFile {
    fn has_extension(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|e| e == extension)
    }
}

/// All that the rules read.
pub(crate) struct Tree {
    root: PathBuf,
    packages: Vec<Package>,
    /// Every path, also of what is not text.
    paths: Vec<PathBuf>,
    files: Vec<SourceFile>,
}

impl Tree {
    fn load() -> Result<Self, String> {
        let root = workspace::root();
        let paths = workspace::files()?;
        let mut files = Vec::new();
        for path in &paths {
            let bytes =
                std::fs::read(root.join(path)).map_err(|e| format!("{}: {e}", path.display()))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(SourceFile {
                    path: path.clone(),
                    text,
                });
            }
        }
        Ok(Self {
            root,
            packages: workspace::packages()?,
            paths,
            files,
        })
    }

    fn rust_files(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|f| f.has_extension("rs"))
    }

    fn find(&self, path: &Path) -> Option<&SourceFile> {
        let at = self
            .files
            .binary_search_by(|f| f.path.as_path().cmp(path))
            .ok()?;
        Some(&self.files[at])
    }
}

/// True for what only tests see: there, rules about the product do not hold.
fn is_test_path(path: &Path) -> bool {
    path.file_stem().is_some_and(|s| s == "tests")
        || path
            .iter()
            .any(|part| part == "tests" || part == "examples")
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(arg) = args.first() {
        return Err(format!("unknown argument `{arg}`"));
    }
    let tree = Tree::load()?;
    let mut findings = Vec::new();
    findings.extend(floors::check(&tree));
    findings.extend(modules::check(&tree));
    findings.extend(text::check(&tree));
    findings.extend(pages::check(&tree));
    findings.extend(plots::check(&tree));
    findings.extend(licences::check(&tree)?);
    findings.sort();
    findings.dedup();
    lengths::tell(&tree);
    for finding in &findings {
        println!(
            "{}:{}: {}",
            finding.file.display(),
            finding.line,
            finding.message
        );
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing to mend", tree.files.len());
        Ok(())
    } else {
        Err(format!("{} to mend", findings.len()))
    }
}
