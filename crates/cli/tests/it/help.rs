//! Every command explains itself with an example and exit codes.

use super::{json, ok, text};

const COMMANDS: [&[&str]; 38] = [
    &["db", "create"],
    &["db", "put"],
    &["db", "get"],
    &["db", "delete"],
    &["db", "scan"],
    &["db", "stats"],
    &["db", "check"],
    &["db", "compact"],
    &["db", "sizes"],
    &["db", "delete-files"],
    &["db", "updates"],
    &["db", "repair"],
    &["db", "migrate"],
    &["db", "checkpoint"],
    &["db", "prepared"],
    &["db", "locks"],
    &["db", "tree"],
    &["sst", "dump"],
    &["sst", "check"],
    &["blob", "list"],
    &["blob", "dump"],
    &["blob", "check"],
    &["wal", "dump"],
    &["raftlog", "dump"],
    &["raftlog", "check"],
    &["raftlog", "fork"],
    &["raftlog", "repair"],
    &["raftlog", "purge"],
    &["raftlog", "bench"],
    &["manifest", "dump"],
    &["backup", "create"],
    &["backup", "list"],
    &["backup", "verify"],
    &["backup", "restore"],
    &["backup", "delete"],
    &["backup", "purge"],
    &["bench"],
    &["demo", "packages"],
];

#[test]
fn every_help_has_an_example_of_the_command_and_exit_codes() {
    for command in COMMANDS {
        let mut args = command.to_vec();
        args.push("--help");
        let help = ok(&args);
        let example = format!("  orogen {} ", command.join(" "));
        assert!(
            help.contains("Example:\n") && help.contains(&example),
            "{help}"
        );
        assert!(help.contains("Exit codes: 0 done; 1 failed;"), "{help}");
        assert!(help.contains("--json"), "{help}");
    }
    for command in [
        &["db", "put"][..],
        &["db", "compact"],
        &["backup", "create"],
        &["blob", "gc"],
    ] {
        let help = ok(&[command, &["--help"]].concat());
        assert!(help.contains("Settings: those of the directory's newest OPTIONS file"));
    }
    assert!(ok(&["--help"]).contains("Exit codes:\n  0  done"));
    assert!(ok(&["--version"]).starts_with("orogen 0."));
}

#[test]
fn the_flags_of_the_bench_are_listed_with_their_defaults() {
    let listed = ok(&["bench", "--flags"]);
    let defaults = listed.lines().filter(|l| l.contains(" [default: ")).count();
    assert_eq!(defaults, listed.lines().count());
    assert!(listed.contains("Bytes of a key. [default: 16]"), "{listed}");
    let document = json(&["bench", "--flags"]);
    assert_eq!(document.as_array().map(Vec::len), Some(defaults));
    let dir = orogen_testkit::TempDir::new("cli-bench-flags");
    let db = format!("--db={}", text(&dir.path().join("db")));
    let globals = ["--no-progress", "--hex", "--drop-log-damage"];
    let told = ok(&[&["bench", "--benchmarks=", &db][..], &globals].concat());
    assert!(!told.is_empty());
    let help = ok(&["bench", "--help"]);
    for asks in ["--help", "-h"] {
        assert_eq!(ok(&["bench", "--benchmarks=", asks]), help);
    }
}
