//! Named threads that are joined.

use orogen_base::{Error, Result};

/// A running thread; dropping it waits for its end.
pub struct Thread(Option<std::thread::JoinHandle<()>>);

/// Starts a thread; `name` shows in `top` and in panics (15 bytes are kept by Linux).
///
/// # Errors
/// `Io` if the system has no thread left.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(|h| Thread(Some(h)))
        .map_err(|e| Error::io("cannot start a thread", e).with("name", name))
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.thread().id() != std::thread::current().id()
        {
            // A panic was already printed by the thread itself.
            let _ = handle.join();
        }
    }
}
