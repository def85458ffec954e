//! Modules: every file is reached by a `mod` line, and ordered crates import only upwards in
//! their list.
//!
//! In an ordered crate the `mod` lines of `lib.rs` go from what needs nothing to what needs the
//! rest; a module may import those listed above it. Tests may import anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::source::{code_only, first_names_after, mod_lines, without_inline_tests};
use super::{Finding, SourceFile, Tree, is_test_path};

/// Crates whose `lib.rs` lists its modules in the order of their imports.
const ORDERED: [&str; 1] = ["orogen-engine"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut reached = BTreeSet::new();
    for package in &tree.packages {
        for target in &package.targets {
            let root = target.root.strip_prefix(&tree.root).unwrap_or(&target.root);
            let mut files = Vec::new();
            follow(tree, root, &[], &mut files, &mut findings);
            if ORDERED.contains(&package.name.as_str()) && root.ends_with("src/lib.rs") {
                findings.extend(check_order(root, &files));
            }
            reached.extend(files.into_iter().map(|f| f.file.path.clone()));
        }
    }
    // The fuzz targets and the peers are workspaces of their own.
    for file in tree.rust_files() {
        let is_root = file.path.starts_with("fuzz/fuzz_targets")
            || file.path.ends_with("fuzz/src/lib.rs")
            || (file.path.starts_with("peers")
                && (file.path.ends_with("src/main.rs")
                    || file.path.ends_with("src/lib.rs")
                    || file.path.parent().is_some_and(|p| p.ends_with("src/bin"))));
        if is_root {
            let mut files = Vec::new();
            follow(tree, &file.path, &[], &mut files, &mut findings);
            reached.extend(files.into_iter().map(|f| f.file.path.clone()));
        }
    }
    for file in tree.rust_files() {
        if !reached.contains(&file.path) {
            findings.push(Finding::new(
                &file.path,
                1,
                "dead file: no `mod` line leads here",
            ));
        }
    }
    findings
}

/// A file and the path of its module below the crate.
struct ModuleFile<'a> {
    module: Vec<String>,
    file: &'a SourceFile,
}

/// Collects `path` and every file that its `mod` lines lead to.
fn follow<'a>(
    tree: &'a Tree,
    path: &Path,
    module: &[String],
    files: &mut Vec<ModuleFile<'a>>,
    findings: &mut Vec<Finding>,
) {
    let Some(file) = tree.find(path) else {
        findings.push(Finding::new(path, 1, "no such file"));
        return;
    };
    files.push(ModuleFile {
        module: module.to_vec(),
        file,
    });
    for line in mod_lines(&file.text) {
        let candidates = candidates(path, module.is_empty(), &line.name, line.path.as_deref());
        let Some(child) = candidates.iter().find(|c| tree.find(c).is_some()) else {
            let message = format!("`mod {}` has no file", line.name);
            findings.push(Finding::new(path, line.line, message));
            continue;
        };
        let mut child_module = module.to_vec();
        child_module.push(line.name);
        follow(tree, child, &child_module, files, findings);
    }
}

/// Where the file of a module may lie.
fn candidates(parent: &Path, is_root: bool, name: &str, path: Option<&str>) -> Vec<PathBuf> {
    let dir = parent.parent().unwrap_or_else(|| Path::new(""));
    if let Some(path) = path {
        return vec![dir.join(path)];
    }
    let below = if is_root || parent.file_stem().is_some_and(|s| s == "mod") {
        dir.to_path_buf()
    } else {
        dir.join(parent.file_stem().expect("a Rust file has a name"))
    };
    vec![
        below.join(format!("{name}.rs")),
        below.join(name).join("mod.rs"),
    ]
}

fn check_order(lib: &Path, files: &[ModuleFile<'_>]) -> Vec<Finding> {
    let Some(root) = files.first() else {
        return Vec::new();
    };
    let rank: BTreeMap<String, usize> = mod_lines(&root.file.text)
        .into_iter()
        .map(|m| (m.name, m.line))
        .collect();
    let exports = exports(&root.file.text, &rank);
    let mut findings = Vec::new();
    for file in files {
        let Some(own) = file.module.first().and_then(|m| rank.get(m)) else {
            continue;
        };
        if is_test_path(&file.file.path) {
            continue;
        }
        let code = code_only(&file.file.text);
        let code = without_inline_tests(&code);
        let mut names = first_names_after(code, "crate::");
        // From a module of depth n, n `super::` lead to the crate.
        names.extend(first_names_after(
            code,
            &"super::".repeat(file.module.len()),
        ));
        for (name, line) in names {
            let module = exports.get(&name).unwrap_or(&name);
            if rank.get(module).is_some_and(|r| r > own) {
                let message = format!(
                    "`{}` imports `{module}`, which {} lists below it",
                    file.module[0],
                    lib.display()
                );
                findings.push(Finding::new(&file.file.path, line, message));
            }
        }
    }
    findings
}

/// What `lib.rs` exports from its modules: name to module.
fn exports(text: &str, rank: &BTreeMap<String, usize>) -> BTreeMap<String, String> {
    let code = code_only(text);
    let mut found = BTreeMap::new();
    for statement in code.split(';') {
        let Some(at) = statement.find("pub use ") else {
            continue;
        };
        let path: String = statement[at + "pub use ".len()..]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let path = path.strip_prefix("crate::").unwrap_or(&path);
        let Some((module, names)) = path.split_once("::") else {
            continue;
        };
        if !rank.contains_key(module) {
            continue;
        }
        for name in names.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if name.starts_with(char::is_uppercase) {
                found.insert(name.to_owned(), module.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str, module: &[&str], text: &str) -> (Vec<String>, SourceFile) {
        let file = SourceFile {
            path: path.into(),
            text: text.into(),
        };
        (module.iter().map(|&m| m.to_owned()).collect(), file)
    }

    fn order_findings(files: &[(Vec<String>, SourceFile)]) -> Vec<usize> {
        let files: Vec<_> = files
            .iter()
            .map(|(module, file)| ModuleFile {
                module: module.clone(),
                file,
            })
            .collect();
        check_order(Path::new("src/lib.rs"), &files)
            .iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn a_module_may_import_only_those_above_it() {
        let lib = module(
            "src/lib.rs",
            &[],
            "mod low;\nmod mid;\nmod top;\npub use top::{Db, Opt};",
        );
        let good = module(
            "src/mid.rs",
            &["mid"],
            "use crate::low::X;\nuse crate::mid::Y;",
        );
        let bad = module(
            "src/mid.rs",
            &["mid"],
            "use crate::low::X;\nuse crate::{low, top::Y};",
        );
        let exported = module("src/low.rs", &["low"], "use crate::Db;");
        let relative = module(
            "src/mid/part.rs",
            &["mid", "part"],
            "\nuse super::super::top::X;",
        );
        let sibling = module("src/mid/part.rs", &["mid", "part"], "use super::top::X;");
        let test = module("src/low/tests.rs", &["low", "tests"], "use crate::top::X;");
        assert!(order_findings(&[lib, good, sibling, test]).is_empty());
        let lib = module(
            "src/lib.rs",
            &[],
            "mod low;\nmod mid;\nmod top;\npub use top::{Db, Opt};",
        );
        assert_eq!(order_findings(&[lib, bad, exported, relative]), [2, 1, 2]);
    }

    #[test]
    fn files_of_modules_are_found_where_rust_looks() {
        let at = |parent: &str, is_root, path| candidates(Path::new(parent), is_root, "x", path);
        assert_eq!(at("src/lib.rs", true, None)[0], Path::new("src/x.rs"));
        assert_eq!(at("src/a.rs", false, None)[0], Path::new("src/a/x.rs"));
        assert_eq!(at("src/a/mod.rs", false, None)[0], Path::new("src/a/x.rs"));
        assert_eq!(
            at("tests/it.rs", true, Some("y/z.rs"))[0],
            Path::new("tests/y/z.rs")
        );
    }
}
