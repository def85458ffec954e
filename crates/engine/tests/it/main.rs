//! The engine through its public API.

mod basic;
mod families;
mod support;
