//! How much others have to do: what blob files need waits for them.
//!
//! Of the database: flushes that wait for a limiter, or came a while ago. Of a family: whether flushes come to its level 0, and with
//! them compactions that take garbage along. Whoever waits for all that there is to do makes it the longest lull.

use orogen_base::sync::atomic::Ordering;
use orogen_env::IoPriority;

use super::Context;
use crate::column_family::ColumnFamilyData;
use crate::compact::collect::{self, Lull};

/// After so long without a flush there is time for what makes nothing but reads faster.
const LONG_LULL_MICROS: u64 = 2_000_000;

/// Somebody waits for all that there is to do, until it is dropped.
pub(crate) struct WaitingForAll<'a>(&'a Context);

impl Drop for WaitingForAll<'_> {
    fn drop(&mut self) {
        self.0.waiting_for_all.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Context {
    /// How much there is to do but for blob files.
    pub(crate) fn lull(&self) -> Lull {
        match self.micros_to_long_lull() {
            _ if self.is_waited_for() => Lull::Long,
            _ if self.is_short() => Lull::None,
            0 => Lull::Long,
            _ => Lull::Short,
        }
    }

    /// True if flushes wait for what a limiter lets through, or did within the last second.
    fn is_short(&self) -> bool {
        let limiter = self.options.rate_limiter.as_ref();
        limiter.is_some_and(|limiter| limiter.is_short_above(IoPriority::Low))
    }

    /// Microseconds until nothing was flushed for [`LONG_LULL_MICROS`] if nothing will be; 0 if that is so, or
    /// somebody waits for all that there is to do.
    pub(crate) fn micros_to_long_lull(&self) -> u64 {
        if self.is_waited_for() {
            return 0;
        }
        let now = self.clock.now_micros();
        let families = self.set.families();
        let ends = families.iter().map(|f| f.flush_progress.last_end(now));
        let last = ends.fold(self.opened_micros, u64::max);
        LONG_LULL_MICROS.saturating_sub(now.saturating_sub(last))
    }

    /// Microseconds until nothing was flushed in this family for [`LONG_LULL_MICROS`], if nothing will be.
    pub(crate) fn micros_to_quiet(&self, family: &ColumnFamilyData) -> u64 {
        let now = self.clock.now_micros();
        let ended = family.flush_progress.last_end(now);
        match ended {
            // There was none.
            0 => 0,
            ended => LONG_LULL_MICROS.saturating_sub(now.saturating_sub(ended)),
        }
    }

    /// True if something is flushed, or was after that moment and within [`LONG_LULL_MICROS`].
    pub(crate) fn has_flushed_since(&self, micros: u64) -> bool {
        let now = self.clock.now_micros();
        let since = micros.max(now.saturating_sub(LONG_LULL_MICROS));
        let families = self.set.families();
        families
            .iter()
            .any(|f| f.flush_progress.last_end(now) > since)
    }

    /// True if flushes come to the level 0 of this family, and compactions from there.
    pub(crate) fn is_fed(&self, family: &ColumnFamilyData, lull: Lull) -> bool {
        if lull == Lull::Long || self.is_waited_for() || self.micros_to_quiet(family) == 0 {
            return false;
        }
        let (version, options) = (family.version(), family.options());
        if version.blob_files().is_empty() {
            return false;
        }
        !(collect::level0_waits(&version, &options) && self.leaves_level0(family))
    }

    /// True if somebody waits for all that there is to do.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting_for_all.load(Ordering::Acquire) > 0
    }

    /// Notes that somebody waits for all that there is to do, until that is dropped.
    pub(crate) fn wait_for_all(&self) -> WaitingForAll<'_> {
        self.waiting_for_all.fetch_add(1, Ordering::AcqRel);
        WaitingForAll(self)
    }
}
