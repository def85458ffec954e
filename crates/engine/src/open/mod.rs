//! Open, create, destroy: the directory as a whole.

pub(crate) mod identity;
pub(crate) mod families;
pub(crate) mod files;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod destroy;
