//! Floors: a crate imports only what stands below it.
//!
//! The table is the floor plan of ARCHITECTURE.md. Dev-dependencies are free: tests may look
//! anywhere.

use std::path::Path;

use super::{Finding, Tree};

/// One crate of the plan.
struct Place {
    name: &'static str,
    floor: u8,
    /// Crates it may import, apart from `orogen-base`.
    imports: &'static [&'static str],
}

const fn place(name: &'static str, floor: u8, imports: &'static [&'static str]) -> Place {
    Place {
        name,
        floor,
        imports,
    }
}

/// Everything a door may open: all floors below, the facade, and the workload tool that
/// `orogen bench` runs.
const ALL: &[&str] = &[
    "orogen-env",
    "orogen-cache",
    "orogen-codec",
    "orogen-trie",
    "orogen-wal",
    "orogen-memtable",
    "orogen-sst",
    "orogen-blob",
    "orogen-engine",
    "orogen-raftlog",
    "orogen-console",
    "orogen-txn",
    "orogen-compactor",
    "orogen-kv",
    "orogen",
    "orogen-bench",
];

const PLAN: [Place; 20] = [
    place("orogen-base", 0, &[]),
    place("orogen-env", 1, &[]),
    place("orogen-cache", 1, &[]),
    place("orogen-codec", 1, &[]),
    place("orogen-trie", 1, &["orogen-env"]),
    place("orogen-wal", 2, &["orogen-env"]),
    place("orogen-memtable", 2, &["orogen-env", "orogen-trie"]),
    place(
        "orogen-sst",
        2,
        &["orogen-env", "orogen-cache", "orogen-codec", "orogen-trie"],
    ),
    place(
        "orogen-blob",
        2,
        &["orogen-env", "orogen-cache", "orogen-codec"],
    ),
    place(
        "orogen-engine",
        3,
        &[
            "orogen-env",
            "orogen-cache",
            "orogen-codec",
            "orogen-trie",
            "orogen-wal",
            "orogen-memtable",
            "orogen-sst",
            "orogen-blob",
        ],
    ),
    place("orogen-raftlog", 3, &["orogen-env", "orogen-cache"]),
    place("orogen-console", 3, &["orogen-env"]),
    place(
        "orogen-txn",
        4,
        &["orogen-env", "orogen-trie", "orogen-engine"],
    ),
    place("orogen-compactor", 4, &["orogen-engine"]),
    place(
        "orogen-kv",
        5,
        &["orogen-txn", "orogen-engine", "orogen-raftlog"],
    ),
    place("orogen", 6, ALL),
    place("orogen-bench", 6, ALL),
    place("orogen-capi", 6, ALL),
    place("orogen-cli", 6, ALL),
    place("orogen-py", 6, ALL),
];

/// Crates beside the floors: they see everything, nothing on a floor sees them.
const BESIDE: [&str; 4] = ["orogen-testkit", "orogen-torture", "orogen-compat", "xtask"];

/// Floors whose outside crates need an ADR.
const LEAN_FLOORS: u8 = 3;
const ADR: &str = "docs/adr/2026-11-20-dependencies.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let adr = tree.find(Path::new(ADR)).map_or("", |f| f.text.as_str());
    for package in &tree.packages {
        let dir = package.dir.strip_prefix(&tree.root).unwrap_or(&package.dir);
        let manifest = dir.join("Cargo.toml");
        let text = tree.find(&manifest).map_or("", |f| f.text.as_str());
        let imports = package
            .dependencies
            .iter()
            .filter(|d| !d.dev)
            .map(|d| (d.name.as_str(), line_of(text, &d.name)));
        for (line, message) in judge(&package.name, imports, adr) {
            findings.push(Finding::new(&manifest, line, message));
        }
    }
    findings
}

/// The line of a manifest that names a dependency.
fn line_of(manifest: &str, name: &str) -> usize {
    manifest
        .lines()
        .position(|l| {
            l.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
        })
        .map_or(1, |at| at + 1)
}

/// The command carries the workload tool as `orogen bench`; nothing else on a floor sees what
/// stands beside.
const CARRIED: (&str, &str) = ("orogen-cli", "orogen-bench");

fn judge<'a>(
    package: &str,
    imports: impl Iterator<Item = (&'a str, usize)>,
    adr: &str,
) -> Vec<(usize, String)> {
    if BESIDE.contains(&package) {
        return Vec::new();
    }
    let Some(place) = PLAN.iter().find(|p| p.name == package) else {
        return vec![(1, format!("`{package}` has no place in the floor plan"))];
    };
    let mut wrong = Vec::new();
    for (import, line) in imports {
        let ours = import.starts_with("orogen") || import == "xtask";
        let allowed = if ours {
            import == "orogen-base"
                || place.imports.contains(&import)
                || (package, import) == CARRIED
        } else {
            place.floor > LEAN_FLOORS || adr.contains(&format!("| `{import}` |"))
        };
        if allowed {
            continue;
        }
        wrong.push((
            line,
            if ours {
                format!(
                    "`{package}` on floor {} may not import `{import}`",
                    place.floor
                )
            } else {
                format!(
                    "outside crate `{import}` on floor {} is not named in {ADR}",
                    place.floor
                )
            },
        ));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(package: &str, imports: &[&str], adr: &str) -> usize {
        judge(package, imports.iter().map(|i| (*i, 1)), adr).len()
    }

    #[test]
    fn imports_go_strictly_down() {
        assert_eq!(
            wrong(
                "orogen-sst",
                &["orogen-base", "orogen-env", "orogen-cache"],
                ""
            ),
            0
        );
        assert_eq!(wrong("orogen-sst", &["orogen-wal"], ""), 1);
        assert_eq!(wrong("orogen-env", &["orogen-cache"], ""), 1);
        assert_eq!(wrong("orogen-base", &["orogen-engine"], ""), 1);
        assert_eq!(wrong("orogen-cli", &["orogen", "orogen-engine"], ""), 0);
    }

    #[test]
    fn nothing_on_a_floor_imports_what_is_beside() {
        assert_eq!(wrong("orogen-engine", &["orogen-testkit"], ""), 1);
        assert_eq!(wrong("orogen-cli", &["orogen-torture"], ""), 1);
        assert_eq!(
            wrong("orogen-torture", &["orogen-compat", "anything"], ""),
            0
        );
    }

    #[test]
    fn outside_crates_of_the_lean_floors_need_an_adr() {
        assert_eq!(wrong("orogen-env", &["rustix"], "| `rustix` | why |"), 0);
        assert_eq!(wrong("orogen-env", &["rustix"], "refused: `rustix`"), 1);
        assert_eq!(wrong("orogen-cli", &["clap"], ""), 0);
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(wrong("orogen-misc", &[], ""), 1);
    }
}
