//! What a family owes, and how far writers are held back for it.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::sync::atomic::Ordering;

use super::Context;
use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compact::collect::{self, Ceiling, Lull, Rules};
use crate::compact::{self, Scores};
use crate::events::StallInfo;
use crate::options::ColumnFamilyOptions;
use crate::stall::{self, Debts};

/// Writers are slowed so far beyond `max_space_amp`.
const BLOB_SPACE_SLOWDOWN: f64 = 1.1;

impl Context {
    /// Looks at a family's debts, holds writers back as they ask, and tells of a change.
    pub(crate) fn update_stall(&self, family: &ColumnFamilyData) {
        if let Some(info) = self.judge_debts(family) {
            self.tell_stall(&info);
        }
    }

    /// Looks at a family's debts and holds writers back as they ask; returns what has changed.
    pub(crate) fn judge_debts(&self, family: &ColumnFamilyData) -> Option<StallInfo> {
        let state = family.state();
        let options = family.options();
        let scores = Scores::compute(&state.version, &options);
        family
            .pending_compaction_bytes
            .store(scores.pending_compaction_bytes, Ordering::Relaxed);
        let mut debts = Debts {
            sealed_memtables: state.imm.len(),
            level0_files: state.version.num_files(0),
            pending_compaction_bytes: scores.pending_compaction_bytes,
            blob_space: self.blob_space(&state, &options),
        };
        if self.can_compact_nothing(&state, &options, &scores) {
            (debts.level0_files, debts.pending_compaction_bytes) = (0, 0);
        }
        let verdict = (!family.is_dropped()).then(|| stall::judge(&options, debts));
        // Under the family's lock: an older look must not undo a newer one, or a writer would
        // wait for a flush that has ended.
        self.stall.set(family.id, &family.name, verdict)
    }

    /// True if damaged tables keep all others from being compacted: to hold writers back would help nobody, for ever.
    fn can_compact_nothing(
        &self,
        state: &FamilyState,
        options: &ColumnFamilyOptions,
        scores: &Scores,
    ) -> bool {
        let mut files = state.version.iter_files();
        files.any(|(_, file)| file.damaged.get()) && {
            let taken = state.taken(None);
            let moment = self.moment();
            taken.is_empty()
                && compact::pick(&state.version, options, scores, &taken, moment).is_none()
        }
    }

    /// The same of a family as it is now.
    pub(crate) fn compacts_nothing(&self, family: &ColumnFamilyData) -> bool {
        let (state, options) = (family.state(), family.options());
        let scores = Scores::compute(&state.version, &options);
        self.can_compact_nothing(&state, &options, &scores)
    }

    /// True if no compaction takes what waits in level 0: none that is tried finds space, or damaged tables are in the way of
    /// all.
    pub(crate) fn leaves_level0(&self, family: &ColumnFamilyData) -> bool {
        self.shortage.compaction.due_in(0).is_some() || self.compacts_nothing(family)
    }

    /// True if values are moved, and writers slowed, to hold the family's blob files below `max_space_amp`. Who has turned off what
    /// empties files by itself wants neither.
    pub(crate) fn holds_ceiling(&self, options: &ColumnFamilyOptions) -> bool {
        let is_off = options.disable_auto_compactions || self.db_options().max_background_gc == 0;
        options.max_space_amp > 0.0 && !is_off
    }

    /// Bytes that the blob files take, and those at which writers are slowed: a tenth beyond
    /// `max_space_amp`, and what memtables add. `None` without a bound, or with nothing to be done.
    fn blob_space(
        &self,
        state: &FamilyState,
        options: &Arc<ColumnFamilyOptions>,
    ) -> Option<(u64, u64)> {
        // Beyond the ceiling no file waits for holes, so what was found in the longest lull holds in shorter ones.
        let is_hopeless = |lull| state.can_collect_nothing(options, lull);
        if !self.holds_ceiling(options) || is_hopeless(Lull::Short) || is_hopeless(Lull::Long) {
            return None;
        }
        let ceiling = Ceiling::of(&state.version, options.max_space_amp)?;
        let most = ceiling.most_bytes * BLOB_SPACE_SLOWDOWN;
        let most = (most as u64).saturating_add(options.write_buffer_size.saturating_mul(2));
        let disk = ceiling.disk_bytes as u64;
        // Damaged files keep what is in them.
        let is_chosen = || {
            let rules = Rules::of(&state.version, options);
            collect::choose(&state.version, &rules, &HashSet::new()).is_some()
        };
        (disk > most && is_chosen()).then_some((disk, most))
    }

    pub(crate) fn tell_stall(&self, info: &StallInfo) {
        self.log.warn(format_args!(
            "[{}] writers: {:?} {}",
            info.column_family, info.condition, info.cause
        ));
        self.notify(|l| l.on_stall_conditions_changed(info));
    }
}
