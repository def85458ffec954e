//! Reading Rust without a parser: code apart from comments and strings, `mod` lines, paths.

/// The code with comments, strings and characters blanked out; lines stay where they are.
pub(super) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !is_word(bytes, at.wrapping_sub(1)) || follows_byte_prefix(bytes, at) => {
                raw_string_end(bytes, at).unwrap_or(at)
            }
            b'\'' => char_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    bytes
        .get(at)
        .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// The `r` of `br"..."`.
fn follows_byte_prefix(bytes: &[u8], at: usize) -> bool {
    at > 0 && bytes[at - 1] == b'b' && !is_word(bytes, at.wrapping_sub(2))
}

fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..]
        .iter()
        .position(|&b| b == b'\n')
        .map_or(bytes.len(), |n| from + n)
}

fn block_comment_end(bytes: &[u8], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."` or `r#"..."#`, if one starts here.
fn raw_string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let hashes = bytes[from + 1..].iter().take_while(|&&b| b == b'#').count();
    let open = from + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let found = bytes[open + 1..]
        .windows(close.len())
        .position(|w| w == close);
    Some(found.map_or(bytes.len(), |n| open + 1 + n + close.len()))
}

/// The end of a character, if it is one and not a lifetime.
fn char_end(bytes: &[u8], from: usize) -> Option<usize> {
    if bytes.get(from + 1) == Some(&b'\\') {
        let close = bytes.get(from + 3..)?.iter().position(|&b| b == b'\'')?;
        return Some(from + 3 + close + 1);
    }
    let rest = bytes.get(from + 1..)?;
    let width = std::str::from_utf8(&rest[..rest.len().min(4)])
        .map_or_else(
            |e| {
                std::str::from_utf8(&rest[..e.valid_up_to()])
                    .ok()?
                    .chars()
                    .next()
            },
            |s| s.chars().next(),
        )?
        .len_utf8();
    (rest.get(width) == Some(&b'\'')).then_some(from + 1 + width + 1)
}

/// A `mod name;` line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModLine {
    pub(super) name: String,
    /// What `#[path = "..."]` above it says.
    pub(super) path: Option<String>,
    /// Counted from 1.
    pub(super) line: usize,
}

/// The `mod name;` lines, in order. Modules with a body are not files and not among them.
pub(super) fn mod_lines(text: &str) -> Vec<ModLine> {
    let code = code_only(text);
    let mut found = Vec::new();
    let mut path = None;
    for (at, (code_line, line)) in code.lines().zip(text.lines()).enumerate() {
        let trimmed = line.trim();
        if let Some(rest) = trimmed.strip_prefix("#[path = \"") {
            path = rest.strip_suffix("\"]").map(str::to_owned);
            continue;
        }
        let declaration = code_line.trim();
        let declaration = match declaration.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest
                .split_once(')')
                .map_or("", |(_, rest)| rest)
                .trim_start(),
            Some(rest) => rest.trim_start(),
            None => declaration,
        };
        if let Some(name) = declaration
            .strip_prefix("mod ")
            .and_then(|r| r.strip_suffix(';'))
        {
            found.push(ModLine {
                name: name.trim().to_owned(),
                path: path.take(),
                line: at + 1,
            });
        } else if !declaration.is_empty() && !declaration.starts_with('#') {
            path = None;
        }
    }
    found
}

/// The code before a trailing `#[cfg(test)] mod name {`.
pub(super) fn without_inline_tests(code: &str) -> &str {
    let mut from = 0;
    while let Some(n) = code[from..].find("#[cfg(test)]") {
        let start = from + n;
        let rest = code[start + "#[cfg(test)]".len()..].trim_start();
        if rest.starts_with("mod ")
            && rest
                .split_once(['{', ';'])
                .is_some_and(|(head, _)| rest.as_bytes().get(head.len()) == Some(&b'{'))
        {
            return &code[..start];
        }
        from = start + 1;
    }
    code
}

/// What follows `prefix` (such as `crate::`) wherever it stands as a word: each first name, with
/// its line. Groups `prefix{a::b, c}` are taken apart.
pub(super) fn first_names_after(code: &str, prefix: &str) -> Vec<(String, usize)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(n) = code[from..].find(prefix) {
        let start = from + n;
        let after = start + prefix.len();
        from = after;
        if start > 0
            && (is_word(bytes, start - 1) || bytes[start - 1] == b':' || bytes[start - 1] == b'$')
        {
            continue;
        }
        let line = 1 + bytes[..start].iter().filter(|&&b| b == b'\n').count();
        if bytes.get(after) == Some(&b'{') {
            for name in group_heads(&code[after..]) {
                found.push((name, line));
            }
        } else {
            found.push((leading_word(&code[after..]), line));
        }
    }
    found.retain(|(name, _)| !name.is_empty());
    found
}

fn leading_word(code: &str) -> String {
    code.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// The first name of each member of the group `{...}` that `code` starts with.
fn group_heads(code: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut at_head = false;
    for (at, c) in code.char_indices() {
        match c {
            '{' => {
                depth += 1;
                at_head = depth == 1;
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ',' => at_head = depth == 1,
            c if at_head && !c.is_whitespace() => {
                heads.push(leading_word(&code[at..]));
                at_head = false;
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_blanked_and_lines_kept() {
        let text =
            "a // x\nb /* y /* z */\n*/ c \"mod q;\\\"\" d r#\"mod \"r\"# 'e' '\\'' '\"' f<'g>";
        let code = code_only(text);
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "c", "d", "f<'g>"]);
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn mod_lines_have_names_paths_and_lines() {
        let text =
            "//! mod no;\npub mod a;\nmod b { }\n#[path = \"x/c.rs\"]\npub(crate) mod c;\nmod d;\n";
        let found = mod_lines(text);
        let names: Vec<_> = found
            .iter()
            .map(|m| (m.name.as_str(), m.path.as_deref(), m.line))
            .collect();
        assert_eq!(
            names,
            [("a", None, 2), ("c", Some("x/c.rs"), 5), ("d", None, 6)]
        );
    }

    #[test]
    fn names_after_crate_are_found_in_paths_and_groups() {
        let code = "use crate::a::B;\nuse crate::{c::{D, e}, f, g::*};\nfn x(y: crate::h::I) {} $crate::j!() my_crate::k";
        let found = first_names_after(code, "crate::");
        let names: Vec<_> = found.iter().map(|(n, l)| (n.as_str(), *l)).collect();
        assert_eq!(names, [("a", 1), ("c", 2), ("f", 2), ("g", 2), ("h", 3)]);
    }

    #[test]
    fn only_an_inline_test_module_is_cut_off() {
        assert_eq!(
            without_inline_tests("a\n#[cfg(test)]\nmod tests;\nb"),
            "a\n#[cfg(test)]\nmod tests;\nb"
        );
        assert_eq!(
            without_inline_tests("a\n#[cfg(test)]\nmod tests { b }"),
            "a\n"
        );
    }
}
