//! Every schedule with few preemptions.
//!
//! A step after which the thread could have gone on and another one does is a preemption. Where a thread
//! waits, ends or yields, who goes on is tried without a bound. Schedules with up to a number of
//! preemptions are finitely many, and most errors need one or two (Musuvathi and Qadeer, "Iterative
//! context bounding for systematic testing of multithreaded programs", 2007).

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// One step of a schedule: who could go on, and who did.
struct Step {
    /// In the order in which they are tried.
    choices: Vec<TaskId>,
    at: usize,
    /// All choices but the first are preemptions.
    preempts: bool,
}

/// Goes through all schedules, depth first.
pub(super) struct Bounded {
    preemptions_max: usize,
    /// The schedule that is run, or that was run last.
    steps: Vec<Step>,
    /// Steps of it that were taken.
    taken: usize,
    preemptions: usize,
    has_begun: bool,
}

impl Bounded {
    pub(super) fn new(preemptions_max: usize) -> Self {
        Self {
            preemptions_max,
            steps: Vec::new(),
            taken: 0,
            preemptions: 0,
            has_begun: false,
        }
    }

    /// The next schedule differs from the last one as late as it can; false if there is none.
    fn go_on(&mut self) -> bool {
        while let Some(step) = self.steps.last_mut() {
            step.at += 1;
            if step.at < step.choices.len() {
                return true;
            }
            self.steps.pop();
        }
        false
    }
}

impl Scheduler for Bounded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.has_begun && !self.go_on() {
            return None;
        }
        self.has_begun = true;
        self.taken = 0;
        self.preemptions = 0;
        Some(Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let mut choices: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        let own = choices.iter().position(|&id| Some(id) == current);
        if self.taken == self.steps.len() {
            let mut preempts = false;
            match own {
                // Whoever yields waits for others: they come first.
                Some(own) if is_yielding => choices[own..].rotate_left(1),
                Some(own) => {
                    preempts = true;
                    choices[..=own].rotate_right(1);
                    if self.preemptions == self.preemptions_max {
                        choices.truncate(1);
                    }
                }
                None => {}
            }
            let at = 0;
            self.steps.push(Step {
                choices,
                at,
                preempts,
            });
        } else {
            let known = &self.steps[self.taken].choices;
            let is_same = known.iter().all(|id| choices.contains(id));
            assert!(is_same, "the model does not do the same in the same order");
        }
        let step = &self.steps[self.taken];
        self.taken += 1;
        self.preemptions += usize::from(step.preempts && step.at > 0);
        Some(step.choices[step.at])
    }

    fn next_u64(&mut self) -> u64 {
        unreachable!("a model draws nothing at random")
    }
}
