//! Breaks of a thread that moves values while others write.
//!
//! A writer that wakes where such a thread runs waits for the rest of its slice, milliseconds on Linux (EEVDF), and where no processor is
//! to spare the longest writes are made of that. Whoever sleeps for a moment every tenth of a millisecond is
//! waited for no longer than that.

use std::sync::Arc;
use std::time::Duration;

use orogen_env::Clock;

/// About a tenth of a millisecond of moving, in bytes as [`VALUE_BYTES`] counts them.
const BETWEEN_BYTES: u64 = 192 << 10;

/// What a value costs beside its bytes: a read, and a pointer.
const VALUE_BYTES: u64 = 4 << 10;

/// As short as it can be: Linux makes 60 microseconds of it, by the slack that it gives timers.
const BREAK: Duration = Duration::from_micros(1);

/// When the next break is due.
#[derive(Clone)]
pub struct Breaks {
    clock: Arc<dyn Clock>,
    moved: u64,
}

impl Breaks {
    /// Breaks by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, moved: 0 }
    }

    /// Counts a value of so many stored bytes that was moved, and takes a break if one is due.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.moved += bytes + VALUE_BYTES;
        if self.moved >= BETWEEN_BYTES {
            self.moved = 0;
            self.clock.sleep(BREAK);
        }
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::ManualClock;

    use super::*;

    #[test]
    fn breaks_come_behind_so_many_bytes_and_values() {
        let clock = Arc::new(ManualClock::new());
        let mut breaks = Breaks::new(clock.clone());
        let mut breaks_of = |bytes: u64, values: u64| {
            let before = clock.now_micros();
            (0..values).for_each(|_| breaks.moved(bytes));
            clock.now_micros() - before
        };
        assert_eq!(breaks_of(8 << 10, 15), 0, "a sixteenth is missing");
        assert_eq!(breaks_of(8 << 10, 1), 1);
        assert_eq!(breaks_of(8 << 10, 160), 10);
        assert_eq!(breaks_of(0, 480), 10);
        assert_eq!(breaks_of(1 << 20, 10), 10);
    }
}
