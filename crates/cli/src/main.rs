//! The orogen command.
fn main() {}
