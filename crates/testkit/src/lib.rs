//! Models, generators and drawing for tests.
