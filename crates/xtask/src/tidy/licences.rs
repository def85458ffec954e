//! Licences: every dependency's expression must be satisfied by the list in `deny.toml`.
//!
//! The file is cargo-deny's, so that the tool itself can be run on it; the rule needs no
//! installed tool and no network.

use std::path::Path;

use super::{Finding, Tree};
use crate::workspace;

const LIST: &str = "deny.toml";

pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>, String> {
    let list = Path::new(LIST);
    let text = &tree.find(list).ok_or("deny.toml is missing")?.text;
    let allowed = allowed(text);
    Ok(workspace::licences()?
        .iter()
        .filter(|(_, expression)| !Expression::new(expression).satisfied_by(&allowed))
        .map(|(package, expression)| {
            Finding::new(
                list,
                1,
                format!("`{package}` has the licence \"{expression}\""),
            )
        })
        .collect())
}

/// The strings of `allow = [...]`.
fn allowed(text: &str) -> Vec<String> {
    let Some((_, rest)) = text.split_once("\nallow = [") else {
        return Vec::new();
    };
    let list = rest.split(']').next().unwrap_or_default();
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// An SPDX expression, read from left to right. `AND` binds tighter than `OR`; the old `/`
/// means `OR`.
struct Expression<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Expression<'a> {
    fn new(text: &'a str) -> Self {
        let mut tokens = Vec::new();
        for word in text.split_whitespace() {
            let mut from = 0;
            for (at, c) in word
                .char_indices()
                .filter(|(_, c)| matches!(c, '(' | ')' | '/'))
            {
                tokens.push(&word[from..at]);
                tokens.push(if c == '/' { "OR" } else { &word[at..=at] });
                from = at + 1;
            }
            tokens.push(&word[from..]);
        }
        tokens.retain(|t| !t.is_empty());
        Self { tokens, at: 0 }
    }

    fn satisfied_by(mut self, allowed: &[String]) -> bool {
        self.either(allowed) && self.at == self.tokens.len()
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.tokens.get(self.at) == Some(&token);
        self.at += usize::from(found);
        found
    }

    fn either(&mut self, allowed: &[String]) -> bool {
        let mut holds = self.both(allowed);
        while self.takes("OR") {
            holds |= self.both(allowed);
        }
        holds
    }

    fn both(&mut self, allowed: &[String]) -> bool {
        let mut holds = self.one(allowed);
        while self.takes("AND") {
            holds &= self.one(allowed);
        }
        holds
    }

    fn one(&mut self, allowed: &[String]) -> bool {
        if self.takes("(") {
            let holds = self.either(allowed);
            return self.takes(")") && holds;
        }
        let Some(name) = self.tokens.get(self.at) else {
            return false;
        };
        let mut name = (*name).to_owned();
        self.at += 1;
        if self.takes("WITH") {
            name = format!("{name} WITH {}", self.tokens.get(self.at).unwrap_or(&""));
            self.at += 1;
        }
        allowed.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_judged_as_spdx_says() {
        let allowed = ["MIT".to_owned(), "Unicode-3.0".to_owned()];
        for (expression, holds) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT WITH some-exception", false),
            ("", false),
            ("(MIT", false),
        ] {
            let got = Expression::new(expression).satisfied_by(&allowed);
            assert_eq!(got, holds, "{expression}");
        }
    }

    #[test]
    fn the_list_is_read_from_the_file() {
        let text = "[licenses]\nallow = [\n    \"MIT\",\n    \"Zlib\",\n]\nother = [\"X\"]";
        assert_eq!(allowed(text), ["MIT", "Zlib"]);
    }
}
