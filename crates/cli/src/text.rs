//! Bytes, sizes and times as text.

use std::fmt::Write as _;

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
            let _ = write!(out, "{b:02x}");
            out
        })
}

/// Hexadecimal digits as bytes.
pub(crate) fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |d: u8| char::from(d).to_digit(16);
    let (pairs, []) = digits.as_chunks::<2>() else {
        return None;
    };
    pairs
        .iter()
        .map(|[a, b]| Some((digit(*a)? * 16 + digit(*b)?) as u8))
        .collect()
}

/// Bytes in one line: text as it is; control characters, backslashes and bytes that are no
/// UTF-8 behind a backslash.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\0' => out.push_str("\\0"),
                c if u32::from(c) < 0x80 && c.is_control() => {
                    let _ = write!(out, "\\x{:02x}", u32::from(c));
                }
                c if c.is_control() => out.extend(c.escape_unicode()),
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            let _ = write!(out, "\\x{b:02x}");
        }
    }
    out
}

/// At most `max` characters of a text, with dots where some are missing.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max.saturating_sub(2)).collect();
    format!("{kept}..")
}

/// A size in the unit in which it has one to four digits before the point.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut v = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if v < 1024.0 {
            break;
        }
        v /= 1024.0;
        unit = next;
    }
    format!("{v:.1} {unit}")
}

/// A number with a comma between thousands.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// `1 file`, `2 files`; `2 batches`, `2 entries`.
pub(crate) fn plural(n: u64, noun: &str) -> String {
    let count = count(n);
    match noun.strip_suffix("ry") {
        _ if n == 1 => format!("{count} {noun}"),
        Some(stem) => format!("{count} {stem}ries"),
        None if noun.ends_with("ch") => format!("{count} {noun}es"),
        None => format!("{count} {noun}s"),
    }
}

/// A duration in the unit that suits it.
pub(crate) fn duration(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_round_trips_and_refuses_the_rest() {
        assert_eq!(hex(b"\0\xffA"), "00ff41");
        assert_eq!(unhex(b"00fF41").unwrap(), b"\0\xffA");
        assert_eq!(unhex(b""), Some(Vec::new()));
        assert!(unhex(b"0").is_none());
        assert!(unhex(b"0g").is_none());
    }

    #[test]
    fn escaped_bytes_stay_in_one_line_and_differ() {
        assert_eq!(escape(b"plain text"), "plain text");
        assert_eq!(escape(b"a\0b\nc\\d\x1b\xff"), "a\\0b\\nc\\\\d\\x1b\\xff");
        assert_eq!(escape("\u{e9}\u{85}".as_bytes()), "\u{e9}\\u{85}");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(u64::MAX), "16.0 EiB");
        assert_eq!(
            (count(0), count(999), count(1_234_567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!(plural(1, "file"), "1 file");
        assert_eq!(plural(2000, "file"), "2,000 files");
        assert_eq!(plural(2, "batch"), "2 batches");
        assert_eq!(plural(0, "entry"), "0 entries");
        assert_eq!(plural(1, "entry"), "1 entry");
        assert_eq!(plural(3, "key"), "3 keys");
        assert_eq!(duration(999), "999 us");
        assert_eq!(duration(1_500), "1.5 ms");
        assert_eq!(shorten("abcdefgh", 5), "abc..");
        assert_eq!(shorten("abcde", 5), "abcde");
    }
}
