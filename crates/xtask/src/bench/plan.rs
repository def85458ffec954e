//! What is run for each engine, in which processes, on which database.
//!
//! A chain starts from an empty directory. Its steps are processes on the same database, so that
//! readers find neither the memory nor the block cache of who wrote.

/// A process and the phases it runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) phases: Vec<&'static str>,
    /// Later steps of the chain need what it leaves.
    prepares: bool,
    /// It never ends by itself and is killed when it has told of its work.
    pub(super) killed: bool,
}

/// Steps on one database.
pub(super) type Chain = Vec<Step>;

fn prepares(phase: &'static str) -> Step {
    Step {
        phases: vec![phase],
        prepares: true,
        killed: false,
    }
}

fn measures(phases: &[&'static str]) -> Step {
    Step {
        phases: phases.to_vec(),
        prepares: false,
        killed: false,
    }
}

/// The step that leaves a full WAL behind.
const LOAD_WAL: &str = "loadwal";

fn all() -> Vec<Chain> {
    let reads = [
        "readrandom",
        "readrandom-2t",
        "readmissing",
        "multireadrandom",
        "seekrandom",
    ];
    let load_wal = Step {
        killed: true,
        ..prepares(LOAD_WAL)
    };
    vec![
        vec![prepares("fillseq"), measures(&["readseq", "readreverse"])],
        vec![
            prepares("fillrandom"),
            measures(&reads),
            prepares("overwrite"),
            measures(&["readwhilewriting"]),
        ],
        vec![measures(&["fillrandom-2t"])],
        vec![measures(&["fillbatch"])],
        vec![measures(&["syncput-1t"])],
        vec![measures(&["syncput-4t"])],
        vec![measures(&["syncput-16t"])],
        vec![load_wal, measures(&["reopen"])],
    ]
}

/// Every phase that has a result, in the order of the tables.
pub(super) fn phases() -> Vec<&'static str> {
    let steps = all().into_iter().flatten();
    steps
        .flat_map(|step| step.phases)
        .filter(|phase| *phase != LOAD_WAL)
        .collect()
}

pub(super) fn is_phase(name: &str) -> bool {
    phases().contains(&name)
}

/// True if the phase writes in its foreground: such cells are compared with Pebble's too.
pub(super) fn is_write(phase: &str) -> bool {
    phase.starts_with("fill") || phase.starts_with("sync") || phase == "overwrite"
}

/// The chains that measure the phases of `only`, all phases if it is empty.
pub(super) fn chains(only: &[String]) -> Vec<Chain> {
    let wanted = |phase: &str| only.is_empty() || only.iter().any(|o| o == phase);
    let trim = |chain: Chain| {
        let mut kept: Chain = Vec::new();
        for mut step in chain.into_iter().rev() {
            // What leaves data behind must run as a whole.
            if !step.prepares {
                step.phases.retain(|phase| wanted(phase));
            }
            let measures = step.phases.iter().any(|phase| wanted(phase)) && !step.killed;
            if measures || (step.prepares && !kept.is_empty()) {
                kept.insert(0, step);
            }
        }
        kept
    };
    all()
        .into_iter()
        .map(trim)
        .filter(|chain| !chain.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str]) -> Vec<Vec<String>> {
        let only: Vec<String> = only.iter().map(|o| (*o).to_owned()).collect();
        chains(&only)
            .iter()
            .map(|chain| chain.iter().map(|step| step.phases.join("+")).collect())
            .collect()
    }

    #[test]
    fn what_is_asked_for_runs_after_what_it_needs_and_nothing_else() {
        assert_eq!(
            names(&[]).concat().join("+").split('+').count(),
            phases().len() + 1
        );
        assert_eq!(names(&["seekrandom"]), [["fillrandom", "seekrandom"]]);
        assert_eq!(
            names(&["fillseq", "fillbatch"]),
            [["fillseq"], ["fillbatch"]]
        );
        assert_eq!(
            names(&["readwhilewriting"]),
            [["fillrandom", "overwrite", "readwhilewriting"]]
        );
        assert_eq!(names(&["overwrite"]), [["fillrandom", "overwrite"]]);
        assert_eq!(names(&["reopen"]), [["loadwal", "reopen"]]);
    }

    #[test]
    fn the_wal_loader_is_no_phase() {
        assert!(is_phase("reopen") && !is_phase(LOAD_WAL) && !is_phase("x"));
        assert!(is_write("syncput-4t") && is_write("overwrite") && !is_write("readwhilewriting"));
    }
}
