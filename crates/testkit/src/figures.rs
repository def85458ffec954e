//! Figures that a test tells: how much it tried and found.
//!
//! The harness keeps what a passing test prints to itself. What goes to standard output without the
//! macros passes it by, so that every run shows how much of each thing it did.

use std::fmt::Display;
use std::io::Write;

/// Prints a line whether the test passes or not, and without `--nocapture`.
///
/// # Panics
/// If standard output takes nothing.
pub fn tell(figure: impl Display) {
    // One call, so that the harness's own lines do not come between.
    let line = format!("{figure}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .expect("standard output takes a line");
}
