//! Text: file heads, ASCII, to-dos, paths of somebody's machine.

use super::{Finding, SourceFile, Tree, is_test_path};

/// Files that people read and write.
const SOURCES: [&str; 13] = [
    "rs", "toml", "md", "py", "sh", "c", "h", "go", "js", "html", "css", "yml", "txt",
];

/// Folders of one machine; the first is fine where tests and pages show an example.
const MACHINE_PATHS: [&str; 4] = ["/tmp/", "/home/", "/root/", "/Users/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files
        .iter()
        .filter(|f| SOURCES.iter().any(|e| f.has_extension(e)))
        .flat_map(judge)
        .collect()
}

fn judge(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line, message: String| findings.push(Finding::new(&file.path, line, message));
    // What `x/tests.rs` is, the head of `x.rs` says.
    let is_unit_test = file.path.ends_with("tests.rs") && file.path.iter().any(|p| p == "src");
    if file.has_extension("rs") && !is_unit_test && !file.text.starts_with("//! ") {
        add(
            1,
            "no file head: begin with `//! ` and what this file is".into(),
        );
    }
    let is_page = file.has_extension("md");
    for (at, line) in file.text.lines().enumerate() {
        let number = at + 1;
        if let Some(c) = line.chars().find(|c| !c.is_ascii()) {
            add(number, format!("not ASCII: U+{:04X}", u32::from(c)));
        }
        if !is_page && has_open_to_do(line) {
            add(number, "to-do without an issue number".into());
        }
        for (which, path) in MACHINE_PATHS.iter().enumerate() {
            let is_example = which == 0 && (is_page || is_test_path(&file.path));
            if !is_example && !defines_paths(file) && has_path(line, path) {
                add(number, format!("path of somebody's machine: {path}"));
            }
        }
    }
    findings
}

/// This file itself, where the paths are data.
fn defines_paths(file: &SourceFile) -> bool {
    file.path.ends_with("xtask/src/tidy/text.rs")
}

/// One of the words for unfinished work, without `(#number)` behind it.
fn has_open_to_do(line: &str) -> bool {
    const WORDS: [&str; 3] = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
    ];
    WORDS.iter().any(|word| {
        line.match_indices(word).any(|(at, _)| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let starts = !line[..at].chars().next_back().is_some_and(is_word);
            let rest = &line[at + word.len()..];
            let ends = !rest.chars().next().is_some_and(is_word);
            starts && ends && !rest.starts_with("(#")
        })
    })
}

/// The folder at the start of a path, not amid one.
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(|c| {
            c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '}' | ')' | '~' | '/')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let file = SourceFile {
            path: path.into(),
            text: text.into(),
        };
        judge(&file).iter().map(|f| f.line).collect()
    }

    #[test]
    fn a_rust_file_needs_a_head() {
        assert_eq!(lines("src/a.rs", "use x;"), [1]);
        assert!(lines("src/a.rs", "//! What it is.\nuse x;").is_empty());
        assert!(lines("src/a/tests.rs", "use x;").is_empty());
        assert_eq!(lines("tests/a.rs", "use x;"), [1]);
    }

    #[test]
    fn bytes_beyond_ascii_are_found() {
        assert_eq!(lines("a.md", "# a\n\u{e9}\n"), [2]);
    }

    #[test]
    fn a_to_do_needs_an_issue() {
        let word = concat!("TO", "DO");
        assert_eq!(
            lines("a.py", &format!("# {word}: x\n# {word}(#12): y\n# {word}S")),
            [1]
        );
    }

    #[test]
    fn machine_paths_are_found_at_the_start_of_a_path_only() {
        assert_eq!(
            lines(
                "a.rs",
                "//! x\n\"/home/me/db\"\n\"net/root/x\"\n\"https://x/home/y\""
            ),
            [2]
        );
        assert_eq!(lines("a.rs", "//! x\n\"/tmp/db\""), [2]);
        assert!(lines("tests/a.rs", "//! x\n\"/tmp/db\"").is_empty());
    }
}
