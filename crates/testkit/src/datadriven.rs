//! Datadriven tests: text files that hold commands and what they print.
//!
//! ```text
//! # A comment.
//! put sync key=a
//! lines of
//! input
//! ----
//! what it prints
//! ```
//!
//! A command is a line of words; a word may be `name=value`. Its input goes to the line `----`,
//! its output to the next empty line. Output with empty lines in it stands between two more lines
//! `----`. With `REWRITE=1` in the environment (`cargo x rewrite`) the file is written anew with
//! what the commands print. The form is that of Pebble's and CockroachDB's tests.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FENCE: &str = "----";

/// A command of a datadriven file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Its first word.
    pub name: String,
    /// The words after it.
    pub args: Vec<String>,
    /// The lines below it, each with its line end.
    pub input: String,
    /// Where it stands, for messages: file and line.
    pub place: String,
}

impl Command {
    /// True if the word stands among the arguments.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        self.args.iter().any(|a| a == word)
    }

    /// The value of `name=value`, if it is there.
    ///
    /// # Panics
    /// If the value is not of the type.
    #[must_use]
    pub fn arg<T: FromStr>(&self, name: &str) -> Option<T> {
        let value = self
            .args
            .iter()
            .find_map(|a| a.strip_prefix(name)?.strip_prefix('='))?;
        match value.parse() {
            Ok(value) => Some(value),
            Err(_) => panic!("{}: bad value of {name}: {value}", self.place),
        }
    }

    /// Ends the test: the file has a command that the test does not know.
    ///
    /// # Panics
    /// Always.
    pub fn unknown(&self) -> ! {
        panic!("{}: unknown command `{}`", self.place, self.name)
    }
}

/// What stands in a file, in order.
enum Part {
    /// Lines between commands, kept as they are.
    Text(String),
    /// The head line, the command and what it should print.
    Command {
        head: String,
        command: Command,
        expected: String,
    },
}

/// Runs each command of a file and compares what it prints.
///
/// # Panics
/// At the first command that prints something else, or if the file is malformed.
pub fn run(path: &Path, mut execute: impl FnMut(&Command) -> String) {
    let shown = path.display();
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let rewrite = std::env::var_os("REWRITE").is_some_and(|v| !v.is_empty() && v != "0");
    let (rewritten, difference) = run_text(&shown.to_string(), &text, &mut execute);
    if rewrite {
        if rewritten != text {
            std::fs::write(path, rewritten).unwrap_or_else(|e| panic!("{shown}: {e}"));
        }
    } else if let Some(difference) = difference {
        panic!("{difference}\n`cargo x rewrite` takes the new output");
    }
}

/// Runs every `.txt` file of a folder, in the order of their names.
///
/// # Panics
/// As [`run`]; also if there is no file.
pub fn run_all(dir: &Path, mut execute: impl FnMut(&Path, &Command) -> String) {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.expect("the folder can be listed").path())
        .filter(|p| p.extension().is_some_and(|e| e == "txt"))
        .collect();
    files.sort();
    assert!(
        !files.is_empty(),
        "no datadriven files in {}",
        dir.display()
    );
    for file in files {
        run(&file, |command| execute(&file, command));
    }
}

/// The file with the outputs of now, and the first difference in words.
fn run_text(
    name: &str,
    text: &str,
    execute: &mut dyn FnMut(&Command) -> String,
) -> (String, Option<String>) {
    let mut out = String::new();
    let mut difference = None;
    for part in parse(name, text) {
        match part {
            Part::Text(text) => out.push_str(&text),
            Part::Command {
                head,
                command,
                expected,
            } => {
                let mut got = execute(&command);
                if !got.is_empty() && !got.ends_with('\n') {
                    got.push('\n');
                }
                if got != expected && difference.is_none() {
                    difference = Some(format!(
                        "{}: {head}\nexpected:\n{expected}\nfound:\n{got}",
                        command.place
                    ));
                }
                write!(out, "{head}\n{}{FENCE}\n", command.input).expect("a string takes it");
                if got.contains("\n\n") || got.starts_with('\n') {
                    write!(out, "{FENCE}\n{got}{FENCE}\n{FENCE}\n").expect("a string takes it");
                } else {
                    out.push_str(&got);
                }
            }
        }
    }
    (out, difference)
}

fn parse(name: &str, text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let place = format!("{name}:{}", at + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            parts.push(Part::Text(format!("{line}\n")));
            continue;
        }
        let mut input = String::new();
        loop {
            let Some((_, line)) = lines.next() else {
                panic!("{place}: no {FENCE} follows")
            };
            if line == FENCE {
                break;
            }
            input.push_str(line);
            input.push('\n');
        }
        let mut expected = String::new();
        if lines.next_if(|(_, l)| *l == FENCE).is_some() {
            loop {
                let Some((_, line)) = lines.next() else {
                    panic!("{place}: no closing {FENCE}")
                };
                if line == FENCE && lines.next_if(|(_, l)| *l == FENCE).is_some() {
                    break;
                }
                expected.push_str(line);
                expected.push('\n');
            }
        } else {
            while let Some((_, line)) = lines.next_if(|(_, l)| !l.is_empty()) {
                expected.push_str(line);
                expected.push('\n');
            }
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let name = words.next().expect("the line is not empty");
        let command = Command {
            name,
            args: words.collect(),
            input,
            place,
        };
        parts.push(Part::Command {
            head: line.to_owned(),
            command,
            expected,
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# head\n\necho x=3 loud\na\nb\n----\na\nb\n\nlines\na\n\n----\n----\nx\n\ny\n----\n----\n\nnothing\n----\n";

    fn execute(command: &Command) -> String {
        match command.name.as_str() {
            "echo" => {
                assert_eq!(command.arg("x"), Some(3));
                assert!(command.has("loud") && !command.has("x"));
                command.input.clone()
            }
            "lines" => "x\n\ny".into(),
            "nothing" => String::new(),
            _ => command.unknown(),
        }
    }

    #[test]
    fn a_file_whose_outputs_hold_is_rewritten_to_itself() {
        let (rewritten, difference) = run_text("f", FILE, &mut execute);
        assert_eq!(rewritten, FILE);
        assert_eq!(difference, None);
    }

    #[test]
    fn a_difference_names_its_place_and_is_mended_by_rewriting() {
        let file = FILE.replace("----\na\nb\n", "----\na\nc\n");
        let (rewritten, difference) = run_text("f", &file, &mut execute);
        assert_eq!(rewritten, FILE);
        assert!(difference.is_some_and(|d| d.starts_with("f:3: echo")));
    }

    #[test]
    #[should_panic(expected = "f:1: unknown command `sing`")]
    fn an_unknown_command_ends_the_test() {
        let _ = run_text("f", "sing\n----\n", &mut execute);
    }
}
