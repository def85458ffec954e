//! Pages: one `#` title each, and relative links that lead somewhere.

use std::path::{Component, Path, PathBuf};

use super::{Finding, SourceFile, Tree};

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in tree.files.iter().filter(|f| f.has_extension("md")) {
        let titles = headings(&page.text).filter(|h| h.level == 1).count();
        if titles != 1 || !page.text.starts_with("# ") {
            let message = format!("a page begins with its one `#` title; this has {titles}");
            findings.push(Finding::new(&page.path, 1, message));
        }
        for (line, target) in links(&page.text) {
            if let Some(message) = judge_link(tree, page, &target) {
                findings.push(Finding::new(&page.path, line, message));
            }
        }
    }
    findings
}

/// What is wrong with a link, if anything.
fn judge_link(tree: &Tree, page: &SourceFile, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        page.path.clone()
    } else {
        normalize(
            &page
                .path
                .parent()
                .unwrap_or_else(|| Path::new(""))
                .join(path),
        )
    };
    let is_there =
        tree.paths.iter().any(|p| p.starts_with(&path)) || tree.root.join(&path).exists();
    if !is_there {
        return Some(format!("link leads nowhere: {target}"));
    }
    if anchor.is_empty() || path.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let text = &tree.find(&path)?.text;
    let known = headings(text).any(|h| slug(h.text) == anchor);
    (!known).then(|| format!("no heading for link: {target}"))
}

fn normalize(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// The lines outside of fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((at + 1, line))
    })
}

struct Heading<'a> {
    level: usize,
    text: &'a str,
}

fn headings(text: &str) -> impl Iterator<Item = Heading<'_>> {
    prose(text).filter_map(|(_, line)| {
        let level = line.bytes().take_while(|&b| b == b'#').count();
        let text = line[level..].strip_prefix(' ')?;
        (level > 0).then(|| Heading {
            level,
            text: text.trim(),
        })
    })
}

/// The anchor that a heading gets on a rendered page.
fn slug(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

/// Targets of `[text](target)` outside of code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every second piece between backticks is code; its place is kept, not its text.
        let plain: String = line
            .split('`')
            .enumerate()
            .map(|(at, piece)| if at % 2 == 0 { piece } else { "" })
            .collect();
        for (at, _) in plain.match_indices("](") {
            let rest = &plain[at + 2..];
            if let Some(end) = rest.find(')') {
                let target = rest[..end].split_whitespace().next().unwrap_or_default();
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut files: Vec<_> = files
            .iter()
            .map(|(path, text)| SourceFile {
                path: path.into(),
                text: (*text).into(),
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let paths = files.iter().map(|f| f.path.clone()).collect();
        Tree {
            root: "no-such-folder".into(),
            packages: Vec::new(),
            paths,
            files,
        }
    }

    #[test]
    fn links_are_found_outside_of_code_only() {
        let text = "see [a](b.md) and `[c](d.md)`\n```\n[e](f.md)\n```\n[`g`](h.md#i \"t\")";
        assert_eq!(
            links(text),
            [(1, "b.md".to_owned()), (5, "h.md#i".to_owned())]
        );
    }

    #[test]
    fn a_link_must_lead_to_a_file_folder_or_heading() {
        let good = tree(&[
            (
                "docs/a.md",
                "# A\n[b](../b.md#one-two) [c](../docs) [d](#a) [e](https://x/y)",
            ),
            ("b.md", "# B\n## One, two\n"),
        ]);
        assert_eq!(check(&good), []);
        let bad = tree(&[("docs/a.md", "# A\n[b](b.md)\n[c](#no)")]);
        let lines: Vec<_> = check(&bad).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn a_page_has_one_title_at_its_start() {
        for (text, wrong) in [
            ("# A\n```\n# code\n```\n", 0),
            ("# A\n# B\n", 1),
            ("x\n# A", 1),
        ] {
            assert_eq!(check(&tree(&[("a.md", text)])).len(), wrong, "{text}");
        }
    }
}
