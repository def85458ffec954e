//! What cargo knows of the workspace, and the files of the source tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A file to compile first: the root of a library, a program, a test, an example, a bench.
#[derive(Debug)]
pub(crate) struct Target {
    /// Root file, absolute.
    pub(crate) root: PathBuf,
}

/// A crate a package depends on.
#[derive(Debug)]
pub(crate) struct Dependency {
    /// Name of the package.
    pub(crate) name: String,
    /// True for `[dev-dependencies]`.
    pub(crate) dev: bool,
}

/// A crate of this workspace.
#[derive(Debug)]
pub(crate) struct Package {
    /// Name of the package.
    pub(crate) name: String,
    /// Folder of its manifest, absolute.
    pub(crate) dir: PathBuf,
    /// What it builds.
    pub(crate) targets: Vec<Target>,
    /// What it imports.
    pub(crate) dependencies: Vec<Dependency>,
}

/// The root folder of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest
        .ancestors()
        .nth(2)
        .expect("xtask lies two folders below the root");
    root.to_path_buf()
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

fn metadata(args: &[&str]) -> Result<Value, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(args)
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// The crates of the workspace, by name.
pub(crate) fn packages() -> Result<Vec<Package>, String> {
    let metadata = metadata(&["--no-deps"])?;
    let mut packages: Vec<Package> = list(&metadata, "packages")
        .iter()
        .map(|p| Package {
            name: text(p, "name"),
            dir: PathBuf::from(text(p, "manifest_path"))
                .parent()
                .expect("a manifest lies in a folder")
                .to_path_buf(),
            targets: list(p, "targets")
                .iter()
                .map(|t| Target {
                    root: PathBuf::from(text(t, "src_path")),
                })
                .collect(),
            dependencies: list(p, "dependencies")
                .iter()
                .map(|d| Dependency {
                    name: text(d, "name"),
                    dev: d["kind"] == "dev",
                })
                .collect(),
        })
        .collect();
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

/// Licence expressions of every package that the workspace builds, by `name version`.
pub(crate) fn licences() -> Result<BTreeMap<String, String>, String> {
    let metadata = metadata(&[])?;
    Ok(list(&metadata, "packages")
        .iter()
        .map(|p| {
            (
                format!("{} {}", text(p, "name"), text(p, "version")),
                text(p, "license"),
            )
        })
        .collect())
}

/// Folders that hold nothing we wrote.
const FOREIGN: [&str; 9] = [
    ".git",
    ".venv",
    "target",
    "build",
    "testdata",
    "corpus",
    "artifacts",
    "node_modules",
    "__pycache__",
];

/// Every file that we wrote, relative to the root, in order.
pub(crate) fn files() -> Result<Vec<PathBuf>, String> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{folder:?}: {e}"))?;
        for entry in entries {
            let entry = entry.map_err(|e| format!("{folder:?}: {e}"))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|e| format!("{path:?}: {e}"))?;
            if kind.is_dir() {
                if !FOREIGN.iter().any(|f| entry.file_name() == *f) {
                    folders.push(path);
                }
            } else if kind.is_file() {
                let relative = path.strip_prefix(&root).expect("found below the root");
                found.push(relative.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}
