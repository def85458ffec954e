//! What follows from want of space or memory: writers that are refused, and tries that are planned.
//!
//! Invariants, once nobody is within: (1) writers are refused and a resume is planned while health says that there is
//! no space, else neither; (2) who waits for compactions is told that it is in vain while their next try is planned.
//! Those who note a full disk, who resume and who tell of either run beside each other, and come here after they
//! have changed something, in any order: each goes by what holds under the lock and not by what it saw before. So
//! the last one leaves what all have done. Lock: before those of retries and stalls.

use orogen_base::sync::{self, Mistake, Mutex};

use crate::health::Health;
use crate::retry::Retry;
use crate::stall::StallController;

/// Keeps writers and tries in step with health.
#[derive(Default)]
pub(crate) struct Shortage {
    /// Planned while the database is out of space.
    pub(crate) resume: Retry,
    /// Planned while compactions find no space; flushes go on.
    pub(crate) compaction: Retry,
    within: Mutex<()>,
}

/// What [`Shortage::follow`] found.
#[derive(Debug)]
pub(crate) enum Followed {
    /// There is no space or memory: a resume is planned, and was not before if it `begins`.
    Full { begins: bool },
    /// Nothing is to be resumed: since when something was, and how often it was tried.
    Not(Option<(u64, u64)>),
}

impl Shortage {
    /// For whoever has changed `health`, or has seen that it was changed.
    pub(crate) fn follow(
        &self,
        health: &Health,
        stall: &StallController,
        now_micros: u64,
        interval_micros: u64,
    ) -> Followed {
        let before = sync::makes(Mistake::FollowAnOldLook).then(|| health.out_of_space());
        let _within = self.within.lock();
        let is_full = before.unwrap_or_else(|| health.out_of_space());
        stall.set_refusing(is_full);
        if is_full {
            let begins = self.resume.plan(now_micros, interval_micros);
            Followed::Full { begins }
        } else {
            Followed::Not(self.resume.end())
        }
    }

    /// A compaction has found no space.
    pub(crate) fn put_off_compactions(
        &self,
        stall: &StallController,
        now_micros: u64,
        interval_micros: u64,
    ) {
        let _within = self.within.lock();
        self.compaction.plan(now_micros, interval_micros);
        stall.set_stuck(true);
    }

    /// Compactions find space again, or none is due; true if they were put off.
    pub(crate) fn end_put_off(&self, stall: &StallController) -> bool {
        if self.compaction.due_in(0).is_none() {
            return false;
        }
        let _within = self.within.lock();
        stall.set_stuck(false);
        self.compaction.end().is_some()
    }
}

#[cfg(all(test, orogen_shuttle))]
mod model {
    use std::sync::Arc;

    use orogen_base::sync::{Mistake, explore_all, must_find_in_all, thread};
    use orogen_base::{Error, ErrorKind};

    use super::*;

    /// Two find the disk full one after the other and tell, while somebody resumes twice.
    fn tell_and_resume() {
        let all = Arc::new((
            Health::default(),
            StallController::new(1000),
            Shortage::default(),
        ));
        let theirs = all.clone();
        let tell = move || {
            let (health, stall, shortage) = &*theirs;
            for now in 0..2 {
                health.note(&Error::new(ErrorKind::NoSpace, "full"));
                let _ = shortage.follow(health, stall, now, 0);
            }
        };
        let teller = thread::Builder::new().spawn(tell).unwrap();
        let (health, stall, shortage) = &*all;
        for now in 0..2 {
            if health.clear(health.times_full()) {
                let _ = shortage.follow(health, stall, now, 0);
            }
        }
        teller.join().unwrap();
        let is_full = health.out_of_space();
        assert_eq!(stall.is_refusing(), is_full, "what writers are told");
        assert_eq!(shortage.resume.due_in(0).is_some(), is_full, "the next try");
    }

    #[test]
    fn writers_and_tries_are_in_step_with_health() {
        explore_all("shortage/all", 3, tell_and_resume);
    }

    #[test]
    fn who_goes_by_an_old_look_is_found() {
        must_find_in_all(Mistake::FollowAnOldLook, 2, tell_and_resume);
    }
}
