//! The engine through its public API.

mod basic;
mod families;
mod reads;
mod support;
