//! What tests and benches share: random numbers of a seed, keys and values, datadriven files,
//! folders that vanish, figures that are shown.
//!
//! Imports nothing of the project, so that the tests of every crate can use it. Whatever goes
//! wrong here panics: a test ends at its first error.

pub mod rng;
pub mod data;
pub mod datadriven;
pub mod figures;
pub mod temp_dir;
pub mod titan;

pub use data::{KeyOrder, Keys, compressible};
pub use figures::tell;
pub use rng::Rng;
pub use temp_dir::TempDir;
