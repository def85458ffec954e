//! Values of an options file: escapes, numbers, lists, nested settings.
//!
//! Readers give `None` for what they cannot read; the caller knows the key. Source: RocksDB
//! `util/string_util.cc`, `options/options_helper.cc`.

use std::fmt::Write;

/// `text` with its special characters escaped.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\\' | '#' | ':' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

/// The inverse of [`escape`].
#[must_use]
pub fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('r') => out.push('\r'),
                Some(c) => out.push(c),
                None => {}
            },
            _ => out.push(c),
        }
    }
    out
}

/// `true` or `1`, `false` or `0`.
#[must_use]
pub fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// The number before a unit `k`, `m`, `g` or `t`, and the unit.
fn split_unit(value: &str) -> (&str, u32) {
    let shift = match value.bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        Some(b't' | b'T') => 40,
        _ => return (value, 0),
    };
    (&value[..value.len() - 1], shift)
}

/// A number, with a unit of 1024 at its end or not.
#[must_use]
pub fn parse_u64(value: &str) -> Option<u64> {
    let (digits, shift) = split_unit(value);
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A number with a sign, with a unit of 1024 at its end or not.
#[must_use]
pub fn parse_i64(value: &str) -> Option<i64> {
    let (digits, shift) = split_unit(value);
    digits.parse::<i64>().ok()?.checked_mul(1 << shift)
}

/// A finite number with a fraction.
#[must_use]
pub fn parse_f64(value: &str) -> Option<f64> {
    value.parse::<f64>().ok().filter(|v| v.is_finite())
}

/// A number with a fraction as RocksDB prints it: six digits behind the point.
#[must_use]
pub fn print_f64(v: f64) -> String {
    format!("{v:.6}")
}

/// The parts of `value` between separators that are not in braces, without blanks around them.
fn split_outside_braces(value: &str, separator: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0usize, 0);
    for (i, c) in value.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.checked_sub(1)?,
            _ if c == separator && depth == 0 => {
                parts.push(value[start..i].trim());
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    if depth != 0 {
        return None;
    }
    parts.push(value[start..].trim());
    Some(parts)
}

/// What is inside the braces around `value`; `value` itself if it is not one pair of braces.
#[must_use]
pub fn strip_braces(value: &str) -> &str {
    let Some(inner) = value.strip_prefix('{').and_then(|v| v.strip_suffix('}')) else {
        return value;
    };
    let mut depth = 0usize;
    for c in inner.chars() {
        match c {
            '{' => depth += 1,
            // The first brace closes before the end: `{a}:{b}`.
            '}' if depth == 0 => return value,
            '}' => depth -= 1,
            _ => {}
        }
    }
    inner.trim()
}

/// Nested settings: `{a=1;b={c=2;};}` gives `a` with `1` and `b` with `{c=2;}`.
#[must_use]
pub fn parse_map(value: &str) -> Option<Vec<(String, String)>> {
    let parts = split_outside_braces(strip_braces(value.trim()), ';')?;
    let mut map = Vec::with_capacity(parts.len());
    for part in parts.into_iter().filter(|p| !p.is_empty()) {
        let (key, value) = part.split_once('=')?;
        let key = key.trim();
        if key.is_empty() || key.contains(['{', '}']) {
            return None;
        }
        map.push((key.to_owned(), value.trim().to_owned()));
    }
    Some(map)
}

/// The inverse of [`parse_map`].
#[must_use]
pub fn print_map<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut out = String::from("{");
    for (key, value) in entries {
        let _ = write!(out, "{key}={value};");
    }
    out.push('}');
    out
}

/// A list: `1:1:{a:b}` gives `1`, `1` and `a:b`. An empty value is an empty list.
#[must_use]
pub fn parse_list(value: &str) -> Option<Vec<String>> {
    let inner = strip_braces(value.trim());
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let parts = split_outside_braces(inner, ':')?;
    Some(
        parts
            .into_iter()
            .map(|p| strip_braces(p).to_owned())
            .collect(),
    )
}
