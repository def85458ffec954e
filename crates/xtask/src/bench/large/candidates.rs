//! What is compared: a program and where it puts values.

use super::options::Options;
use super::{Bench, programs};
use programs::{Engine, OROGEN, ROCKSDB};

/// An engine under settings of its own.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) engine: &'static Engine,
    /// How space comes back in files of values; `None`: values lie with their keys.
    pub(super) gc: Option<&'static str>,
    /// The candidate that is the same but for collecting nothing.
    pub(super) without_gc: Option<&'static str>,
    /// It reads nothing out of mappings. Only run if it is asked for.
    pub(super) by_calls: bool,
}

const fn inline(name: &'static str, engine: &'static Engine) -> Candidate {
    Candidate {
        name,
        engine,
        gc: None,
        without_gc: None,
        by_calls: false,
    }
}

const fn apart(
    name: &'static str,
    engine: &'static Engine,
    gc: &'static str,
    without_gc: Option<&'static str>,
) -> Candidate {
    Candidate {
        name,
        engine,
        gc: Some(gc),
        without_gc,
        by_calls: false,
    }
}

/// What others are told in times of, in each bench.
pub(super) const BASES: [&str; 2] = ["rocksdb", "rocksdb-blob"];

const BLOB: [Candidate; 5] = [
    apart("orogen-blob", &OROGEN, "auto", None),
    Candidate {
        by_calls: true,
        ..apart("orogen-calls", &OROGEN, "auto", None)
    },
    inline("orogen", &OROGEN),
    inline("rocksdb", &ROCKSDB),
    apart("rocksdb-blob", &ROCKSDB, "auto", None),
];

/// Those that collect nothing are no rivals: they say what collecting costs the foreground.
const GC: [Candidate; 6] = [
    apart("orogen-auto", &OROGEN, "auto", Some("orogen-off")),
    apart("orogen-move", &OROGEN, "move", Some("orogen-off")),
    apart("orogen-punch", &OROGEN, "punch", Some("orogen-off")),
    apart("rocksdb-blob", &ROCKSDB, "auto", Some("rocksdb-off")),
    apart("orogen-off", &OROGEN, "off", None),
    apart("rocksdb-off", &ROCKSDB, "off", None),
];

fn all(bench: Bench) -> &'static [Candidate] {
    match bench {
        Bench::Blob => &BLOB,
        Bench::Gc => &GC,
    }
}

/// Names that may be asked for.
pub(super) fn names(bench: Bench) -> Vec<&'static str> {
    all(bench).iter().map(|c| c.name).collect()
}

/// The candidate that collects nothing, for one of the bench of collecting.
pub(super) fn without_gc(name: &str) -> Option<&'static str> {
    GC.iter().find(|c| c.name == name)?.without_gc
}

/// The candidates that were asked for, and what they are measured against.
pub(super) fn chosen(bench: Bench, options: &Options) -> Vec<&'static Candidate> {
    let asked = |c: &&Candidate| match options.engines.is_empty() {
        true => !c.by_calls,
        false => options.engines.iter().any(|asked| asked == c.name),
    };
    let needed = |name: &str| {
        let mut asked = all(bench).iter().filter(asked);
        asked.any(|c| c.without_gc == Some(name))
    };
    all(bench)
        .iter()
        .filter(|c| asked(c) || needed(c.name))
        .collect()
}

impl Candidate {
    /// Its options beyond those of the cell.
    pub(super) fn arguments(&self, options: &Options) -> Vec<String> {
        let Some(gc) = self.gc else {
            return Vec::new();
        };
        let pairs = [
            ("--min-blob-size", options.min_blob_size.to_string()),
            ("--blob-gc", gc.to_owned()),
            (
                "--blob-gc-force-threshold",
                options.force_threshold.to_string(),
            ),
            ("--max-space-amp", options.max_space_amp.to_string()),
        ];
        let by_calls = self.by_calls.then(|| ("--mmap-reads", "false".to_owned()));
        pairs
            .into_iter()
            .chain(by_calls)
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::large::options;

    fn names_of(bench: Bench, line: &str) -> Vec<&'static str> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let options = options::parse(bench, &args).unwrap();
        chosen(bench, &options).iter().map(|c| c.name).collect()
    }

    #[test]
    fn who_collects_brings_the_one_that_does_not() {
        assert_eq!(names_of(Bench::Gc, "").len(), 6);
        assert_eq!(
            names_of(Bench::Gc, "--engines rocksdb-blob"),
            ["rocksdb-blob", "rocksdb-off"]
        );
        assert_eq!(names_of(Bench::Blob, "--engines rocksdb"), ["rocksdb"]);
        assert_eq!(names_of(Bench::Blob, "").len(), 4);
        assert_eq!(
            names_of(Bench::Blob, "--engines orogen-calls"),
            ["orogen-calls"]
        );
        assert!(names(Bench::Blob).contains(&BASES[0]) && names(Bench::Gc).contains(&BASES[1]));
        assert_eq!(without_gc("orogen-punch"), Some("orogen-off"));
    }

    #[test]
    fn values_in_the_tree_need_no_options() {
        let options = options::parse(Bench::Blob, &[]).unwrap();
        assert!(BLOB[2].arguments(&options).is_empty());
        let apart =
            "--min-blob-size 512 --blob-gc auto --blob-gc-force-threshold 1 --max-space-amp 0";
        assert_eq!(BLOB[4].arguments(&options).join(" "), apart);
        assert_eq!(
            BLOB[1].arguments(&options).join(" "),
            format!("{apart} --mmap-reads false")
        );
    }
}
