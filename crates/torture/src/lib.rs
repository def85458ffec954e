//! Long runs: model, metamorphic, crash, fault.
