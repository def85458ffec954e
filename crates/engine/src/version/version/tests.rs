use orogen_base::key::InternalKeyComparator;

use super::*;
use crate::version::text::parse;

/// Each case is a command and its answer around `----`; `version` sets what the others ask.
#[test]
fn overlapping_inputs_follow_the_cases() {
    let icmp = InternalKeyComparator::default();
    let mut version = Version::empty(icmp.clone(), 7);
    let cases = include_str!("../../../tests/data/version.txt");
    let blocks = cases.split("\n\n").map(str::trim).filter(|b| !b.is_empty());
    let mut count = 0;
    for block in blocks {
        let block: String = block
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| format!("{l}\n"))
            .collect();
        let Some((input, want)) = block.split_once("----\n") else {
            continue;
        };
        let (command, body) = input.split_once('\n').unwrap();
        let mut words = command.split_whitespace();
        let name = words.next().unwrap();
        let args: Vec<(&str, &str)> = words.map(|w| w.split_once('=').unwrap()).collect();
        let arg = |key: &str| args.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        let level = arg("level").map_or(0, |l| l.parse().unwrap());
        let (begin, end) = (
            arg("begin").map(str::as_bytes),
            arg("end").map(str::as_bytes),
        );
        let got = match name {
            "version" => match parse(&icmp, 7, body) {
                Ok(v) => {
                    version = v;
                    version.to_text()
                }
                Err(e) => e.to_string(),
            },
            "overlap" => numbers(&version.overlapping_inputs(level, begin, end)),
            "clean_cut" => {
                let wanted: Vec<u64> = arg("files")
                    .unwrap()
                    .split(',')
                    .map(|n| n.parse().unwrap())
                    .collect();
                let files = version
                    .files(level)
                    .iter()
                    .filter(|f| wanted.contains(&f.number));
                let files: Vec<_> = files.cloned().collect();
                numbers(&version.clean_cut(level, &files))
            }
            "range" => {
                let range = KeyRange::of(&icmp, version.files(level)).unwrap();
                let next: usize = arg("in").unwrap().parse().unwrap();
                numbers(version.overlapping_range(next, &range))
            }
            "below" => version.has_overlap_below(level, begin, end).to_string(),
            _ => panic!("unknown command {name}"),
        };
        assert_eq!(got.trim(), want.trim(), "after: {input}");
        count += 1;
    }
    assert!(count >= 20, "only {count} cases were found");
}

fn numbers(files: &[Arc<FileMeta>]) -> String {
    files
        .iter()
        .map(|f| f.number.to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn a_version_sums_up_its_files() {
    let icmp = InternalKeyComparator::default();
    let drawing = "L0\n 3: b..d size=10\nL2\n 1: a..c size=5\n 2: e..g size=7\n";
    let v = parse(&icmp, 7, drawing).unwrap();
    assert_eq!(
        (v.num_levels(), v.num_non_empty_levels(), v.total_files()),
        (7, 3, 3)
    );
    assert_eq!(
        (v.level_bytes(0), v.level_bytes(2), v.total_bytes()),
        (10, 12, 22)
    );
    assert_eq!(v.max_epoch_number(), 3);
    let range = v.key_range().unwrap();
    assert_eq!(
        (range.smallest_user_key(), range.largest_user_key()),
        (&b"a"[..], &b"g"[..])
    );
    assert_eq!(v.find(2).map(|(level, f)| (level, f.size)), Some((2, 7)));
    assert!(v.find(9).is_none());
    assert!(Version::empty(icmp, 7).key_range().is_none());
}
