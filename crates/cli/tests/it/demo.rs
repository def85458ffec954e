//! `orogen demo packages` on a small index.

use std::fmt::Write as _;

use orogen_testkit::TempDir;

use super::{fails, json, ok, text};

/// An index of `records` packages, among them one without a version and one that comes twice.
fn index(dir: &TempDir, records: usize) -> String {
    let mut out = String::from("Package: ghost\n\n");
    for n in 0..records {
        let _ = write!(
            out,
            "Package: pack{n:04}\nVersion: {}.{}-1\nSection: {}\nDepends: libc6 (>= 2.{n}),\n \
             pack{:04} | virtual{}\nDescription: package number {n}\n more about it\nSize: {n}\n\n",
            n % 7,
            n,
            ["admin", "games", "shells"][n % 3],
            n * 7 % records,
            n % 5,
        );
    }
    out.push_str("Package: pack0000\nVersion: 0.0-1\nSection: admin\nDescription: again\n");
    let path = dir.path().join("index.txt");
    std::fs::write(&path, out).expect("can be written");
    text(&path).to_owned()
}

#[test]
fn the_demo_proves_every_kill_and_can_be_run_again() {
    let dir = TempDir::new("cli-demo");
    let input = index(&dir, 1500);
    let db = text(&dir.path().join("demo")).to_owned();
    let args = [
        "demo", "packages", "--db", &db, "--input", &input, "--batch", "5",
    ];
    let facts = json(&args);
    assert_eq!(
        (&facts["data"]["records"], &facts["data"]["left_out"]),
        (&1500.into(), &2.into())
    );
    let load = &facts["load"];
    assert_eq!(load["entries_by_family"]["packages"], 1500);
    assert_eq!(load["entries_by_family"]["by-section"], 1500);
    assert_eq!(load["entries_compared"], load["entries"]);
    assert_eq!(facts["reads"]["section"]["packages"], 500);
    // The first package depends on nothing in its last form.
    assert_eq!(facts["reads"]["dependency"]["name"], "libc6");
    assert_eq!(facts["reads"]["dependency"]["packages"], 1499);
    let kills = facts["kills"].as_array().unwrap();
    assert_eq!(kills.len(), 3);
    for kill in kills {
        let number = |name: &str| kill[name].as_u64().unwrap();
        assert!(
            number("batches_acknowledged") > number("batches_before"),
            "{kill}"
        );
        assert!(
            number("batches_found") >= number("batches_acknowledged"),
            "{kill}"
        );
        assert!(number("batches_found") < 300, "{kill}");
        assert!(
            number("entries_read_by_key") >= 5 * number("records_acknowledged") - 5,
            "{kill}"
        );
        assert!(
            number("entries_scanned") >= number("entries_read_by_key"),
            "{kill}"
        );
    }

    let told = ok(&args);
    assert!(
        told.contains("1,500 package records") && told.contains("Summary\n"),
        "{told}"
    );
    assert!(
        told.contains("kill 3: ") && told.matches("proven").count() == 6,
        "{told}"
    );
    assert!(told.lines().all(|l| l.chars().count() <= 132), "{told}");
    for database in ["packages", "killed"] {
        let path = format!("{db}/{database}");
        assert!(ok(&["db", "check", &path]).contains("no damage found"));
    }
    let packages = format!("{db}/packages");
    let value = ok(&[
        "db",
        "get",
        &packages,
        "--cf",
        "packages",
        "--hex",
        "7061636b3030303100312e312d31",
    ]);
    assert!(value.starts_with("5061636b6167653a20"), "{value}");
}

#[test]
fn a_directory_that_is_not_a_demos_is_left_alone() {
    let dir = TempDir::new("cli-demo-foreign");
    let input = index(&dir, 100);
    let home = dir.path().join("home");
    std::fs::create_dir_all(home.join("packages")).unwrap();
    std::fs::write(home.join("packages/CURRENT"), "precious").unwrap();
    let run = fails(
        1,
        &["demo", "packages", "--db", text(&home), "--input", &input],
    );
    assert!(run.err.contains("left alone"), "{}", run.err);
    assert_eq!(
        std::fs::read_to_string(home.join("packages/CURRENT")).unwrap(),
        "precious"
    );
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 1);
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    fails(
        1,
        &["demo", "packages", "--db", text(&file), "--input", &input],
    );
}

#[test]
fn an_index_without_records_is_an_error() {
    let dir = TempDir::new("cli-demo-empty");
    let input = dir.path().join("index.txt");
    std::fs::write(&input, "\n\nnothing here\n").unwrap();
    let db = dir.path().join("demo");
    fails(
        1,
        &[
            "demo",
            "packages",
            "--db",
            text(&db),
            "--input",
            text(&input),
        ],
    );
    assert!(!db.exists());
    fails(
        3,
        &[
            "demo",
            "packages",
            "--db",
            text(&db),
            "--input",
            "nowhere.txt",
        ],
    );
    fails(2, &["demo", "packages", "--kills", "0"]);
    let few = index(&dir, 3);
    let run = fails(1, &["demo", "packages", "--db", text(&db), "--input", &few]);
    assert!(run.err.contains("smaller --batch"), "{}", run.err);
}
