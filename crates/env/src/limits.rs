//! What the system allows a process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Lets this process have as many files open as it may without other rights: every table of an open database is one, and shells
/// allow 1,024. For programs, at their start; a library leaves the limits of its process alone. A refusal changes nothing.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
