//! A fence that one thread makes for all.
//!
//! Where one side of a handshake is rare and the other is hot, the rare one can pay for both: Linux has every
//! thread of the process that runs at that moment pass a full fence (`membarrier`, since 4.14), and one that does not run
//! passes one when it is switched in. The hot side then needs to keep the compiler from reordering, and no more: Linux, "membarrier(2)".
//!
//! Only where the processor's own order of stores is total (x86-64): what is written for this is argued there.

use std::sync::OnceLock;

use rustix::thread::{MembarrierCommand, membarrier};

/// That the system fences all threads of this process when it is asked to.
#[derive(Clone, Copy, Debug)]
pub struct Barrier(());

impl Barrier {
    /// `None` where the system or the processor cannot, or a filter of system calls forbids it. The first call of a process asks the
    /// system, which takes microseconds, and up to tens of milliseconds where many threads run already.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let is_known = cfg!(all(
            target_os = "linux",
            target_arch = "x86_64",
            not(orogen_shuttle),
            not(orogen_loom)
        ));
        let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        (is_known && *REGISTERED.get_or_init(register)).then_some(Self(()))
    }

    /// Fences all threads of the process; false if the system refuses, and then nothing is known. Takes half a microsecond and more: each processor that runs
    /// a thread of the process is interrupted, which on a virtual one was measured to take 30 to 40.
    ///
    /// What a thread did before the place where it was fenced, this thread sees when the call returns; what this thread had seen before the call,
    /// a thread sees behind that place.
    #[must_use]
    pub fn fence(self) -> bool {
        membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

    use super::*;

    #[test]
    fn linux_on_this_processor_fences() {
        let known = rustix::thread::membarrier_query();
        let has_it = known.contains_command(MembarrierCommand::PrivateExpedited);
        let barrier = Barrier::of_process();
        assert_eq!(barrier.is_some(), has_it && cfg!(target_arch = "x86_64"));
        assert!(barrier.is_none_or(Barrier::fence));
    }

    /// Each of two says that it is there and looks for the other: one of them at least must see it. Without the fence a
    /// processor that reads before its store has left its buffer lets both miss.
    #[test]
    fn one_of_two_sees_the_other_though_one_has_no_fence() {
        let Some(barrier) = Barrier::of_process() else {
            return;
        };
        let (rounds, mut missed) = (20_000, 0);
        let (light, heavy) = (AtomicU32::new(0), AtomicU32::new(0));
        let (seen_by_light, at) = (AtomicU32::new(0), [AtomicU32::new(0), AtomicU32::new(0)]);
        let meet = |mine: usize, round: u32| {
            at[mine].store(round, Ordering::SeqCst);
            while at[1 - mine].load(Ordering::SeqCst) < round {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    meet(0, 2 * round - 1);
                    light.store(round, Ordering::Release);
                    compiler_fence(Ordering::SeqCst);
                    seen_by_light.store(heavy.load(Ordering::Acquire), Ordering::Release);
                    meet(0, 2 * round);
                }
            });
            for round in 1..=rounds {
                meet(1, 2 * round - 1);
                heavy.store(round, Ordering::Release);
                let is_fenced = barrier.fence();
                let seen = light.load(Ordering::Acquire);
                meet(1, 2 * round);
                let seen_by_light = seen_by_light.load(Ordering::Acquire);
                missed += u32::from(!is_fenced || seen != round && seen_by_light != round);
            }
        });
        assert_eq!(missed, 0, "rounds in which both missed");
    }
}
