//! What a part shows of itself to people: names and values, nested.

/// A part of the system that can be looked at while it runs.
pub trait Inspect {
    /// Calls `visit` with each name and value, in an order that reads well.
    fn inspect(&self, visit: &mut dyn FnMut(&str, String));
}
