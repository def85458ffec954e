//! Runs of the workload tool as a program sees them: flags in, lines out.

use orogen_bench::{BenchError, run};
use orogen_testkit::TempDir;

fn bench(dir: &TempDir, args: &[&str]) -> Result<String, BenchError> {
    let mut all = vec![
        format!("--db={}", dir.path().join("db").display()),
        "--seed=7".to_owned(),
    ];
    all.extend(args.iter().map(|a| (*a).to_owned()));
    let (mut out, mut talk) = (Vec::new(), Vec::new());
    run(&all, &mut out, &mut talk)?;
    Ok(String::from_utf8(out).expect("the tool prints text"))
}

/// The line of a workload in the output.
fn line<'a>(out: &'a str, name: &str) -> &'a str {
    let is_its = |l: &&str| l.split(':').next().is_some_and(|n| n.trim() == name);
    out.lines()
        .find(is_its)
        .unwrap_or_else(|| panic!("no line of {name} in:\n{out}"))
}

#[test]
fn every_workload_runs_and_finds_what_was_written() {
    let dir = TempDir::new("bench");
    let out = bench(
        &dir,
        &[
            "--benchmarks=fillseq,readrandom,readmissing,readseq,readreverse,seekrandom,\
             multireadrandom,readwhilewriting,overwrite,flush,compact,levelstats,stats,\
             waitforcompaction,resetstats,deleteseq,readseq,fillrandom,deleterandom",
            "--num=500",
            "--threads=2",
            "--batch_size=3",
            "--seek_nexts=4",
            "--bloom_bits=10",
        ],
    )
    .unwrap();
    assert!(
        line(&out, "fillseq").contains(" 1002 operations; "),
        "{out}"
    );
    assert!(line(&out, "fillseq").ends_with(" MB/s"));
    assert!(
        line(&out, "readrandom").ends_with(" MB/s (1000 of 1000 found)"),
        "{out}"
    );
    assert!(
        line(&out, "readmissing").ends_with(" 1000 operations; (0 of 1000 found)"),
        "{out}"
    );
    assert!(
        line(&out, "readreverse").contains(" 1000 operations; "),
        "{out}"
    );
    assert!(
        line(&out, "seekrandom").ends_with("(1000 of 1000 found)"),
        "{out}"
    );
    assert!(
        line(&out, "multireadrandom").ends_with("(1002 of 1002 found)"),
        "{out}"
    );
    // The writer beside the two readers is not counted.
    assert!(
        line(&out, "readwhilewriting").contains(" 1000 operations; "),
        "{out}"
    );
    assert!(line(&out, "compact").contains(" 1 operations;"), "{out}");
    assert!(out.contains("\nflush memtable\n"));
    assert!(out.contains("entries_per_batch = 3\n"));
    assert!(out.contains("\nLevel Files Size(MB)\n"));
    let scans: Vec<&str> = out.lines().filter(|l| l.starts_with("readseq ")).collect();
    assert!(scans[0].contains(" 1000 operations; "), "{scans:?}");
    // All was deleted in between: nothing is read, and a line shows at least one operation.
    assert!(scans[1].contains(" 1 operations;"), "{scans:?}");
}

#[test]
fn an_existing_database_is_kept_on_request_only() {
    let dir = TempDir::new("bench-existing");
    bench(&dir, &["--benchmarks=fillrandom", "--num=1000"]).unwrap();
    // Nor does it go for a bench that cannot be.
    let e = bench(&dir, &["--benchmarks=fillseq", "--write_buffer_size=0"]).unwrap_err();
    assert!(matches!(e, BenchError::Usage(_)), "{e}");
    let e = bench(&dir, &["--benchmarks=fillseq", "--block_size=0"]).unwrap_err();
    assert!(matches!(e, BenchError::Usage(_)), "{e}");
    let out = bench(
        &dir,
        &[
            "--benchmarks=fillseq,readrandom",
            "--num=1000",
            "--use_existing_db=true",
        ],
    )
    .unwrap();
    assert!(
        line(&out, "fillseq").ends_with("skipped (--use_existing_db is true)"),
        "{out}"
    );
    let found = line(&out, "readrandom")
        .split(['(', ' '])
        .rev()
        .nth(3)
        .unwrap();
    // 1000 draws of 1000 keys hit about 632 of them.
    let found: u64 = found.parse().unwrap();
    assert!((560..700).contains(&found), "{out}");
    let out = bench(&dir, &["--benchmarks=readrandom", "--num=1000"]).unwrap();
    assert!(
        line(&out, "readrandom").ends_with("(0 of 1000 found)"),
        "{out}"
    );
}

#[test]
fn workloads_of_a_run_draw_different_keys() {
    let dir = TempDir::new("bench-seeds");
    let flags = [
        "--benchmarks=fillrandom,overwrite,readrandom",
        "--num=10000",
        "--threads=1",
    ];
    let document = bench(&dir, &[&flags[..], &["--json"]].concat()).unwrap();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    // Two rounds of n draws of n keys leave out a share of exp(-2).
    let found = document["results"][2]["found"].as_u64().unwrap();
    assert!((8450..8850).contains(&found), "{found}");
}

#[test]
fn json_is_one_document_with_every_result() {
    let dir = TempDir::new("bench-json");
    let out = bench(
        &dir,
        &[
            "--benchmarks=fillseq,readrandom,stats",
            "--num=200",
            "--json",
            "--histogram",
        ],
    )
    .unwrap();
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    let results = document["results"].as_array().unwrap();
    assert_eq!(results[0]["name"], "fillseq");
    assert_eq!(results[0]["operations"], 200);
    assert_eq!(
        (&results[1]["found"], &results[1]["looked_for"]),
        (&200.into(), &200.into())
    );
    assert!(results[1]["micros_p99"].as_f64().is_some());
    assert!(
        document["texts"]["stats"]
            .as_str()
            .unwrap()
            .contains("DB Stats")
    );
}

#[test]
fn histograms_and_counters_are_printed_in_db_benchs_words() {
    let dir = TempDir::new("bench-histogram");
    let out = bench(
        &dir,
        &[
            "--benchmarks=fillseq",
            "--num=100",
            "--histogram",
            "--statistics",
            "--duration=0",
        ],
    )
    .unwrap();
    assert!(
        out.contains("Microseconds per write:\nCount: 100 Average: "),
        "{out}"
    );
    assert!(out.contains("\nPercentiles: P50: "));
    assert!(out.contains("STATISTICS:\n"));
    assert!(
        out.contains("rocksdb.number.keys.written COUNT : 100\n"),
        "{out}"
    );
}

#[test]
fn wrong_command_lines_touch_nothing() {
    let dir = TempDir::new("bench-usage");
    bench(&dir, &["--benchmarks=fillseq", "--num=10"]).unwrap();
    for args in [
        &["--benchmarks=fillseq,nonsense"][..],
        &["--compression_type=nonsense"],
        &["--nonsense=1"],
    ] {
        assert!(
            matches!(bench(&dir, args), Err(BenchError::Usage(_))),
            "{args:?}"
        );
    }
    let out = bench(
        &dir,
        &["--benchmarks=readrandom", "--num=10", "--use_existing_db=1"],
    )
    .unwrap();
    assert!(
        line(&out, "readrandom").ends_with("(10 of 10 found)"),
        "{out}"
    );
}

#[test]
fn an_empty_directory_is_not_the_working_directory() {
    for flag in ["--db=", "--db"] {
        let all = [flag.to_owned(), String::new()];
        let all = &all[..if flag.ends_with('=') { 1 } else { 2 }];
        let told = run(all, &mut Vec::new(), &mut Vec::new());
        assert!(matches!(told, Err(BenchError::Usage(_))), "{told:?}");
    }
}

#[test]
fn a_run_goes_on_where_nobody_hears_what_it_tells() {
    struct Gone;
    impl std::io::Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }
    let dir = TempDir::new("bench-deaf");
    let db = format!("--db={}", dir.path().join("db").display());
    let args = [&*db, "--benchmarks=fillseq", "--num=10", "--json"];
    let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
    let mut out = Vec::new();
    run(&args, &mut out, &mut Gone).unwrap();
    assert!(String::from_utf8_lossy(&out).contains("\"fillseq\""));
}
