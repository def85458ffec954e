use std::path::Path;

use super::of_page;

const PAGE: &str = "# Page

<!-- plot plots/updates.svg
title: Updates & scans, times RocksDB
groups: 1
series: 2
panels: 3 4
-->

![Updates](plots/updates.svg)

| Value | | update | scan of 10,000 |
|---|---|---:|---:|
| 1 KiB | Orogen | 2.55 (2.40..2.61) | 1,494,359, 2.25 (2.24..2.31) |
| | BlobDB | 1.45 | 0.25 |
| 4 KiB | Orogen | 3.36 | 4.0 (RocksDB 4.1) |
| | BlobDB | 2.15 | |

| Another | table |
|---|---|
| 1 | 2 |
";

fn drawing(text: &str) -> Result<String, String> {
    let mut plots = of_page(Path::new("docs/page.md"), text);
    assert_eq!(plots.len(), 1);
    plots.remove(0).drawing
}

#[test]
fn a_table_is_drawn_with_its_numbers_and_spreads() {
    let plots = of_page(Path::new("docs/page.md"), PAGE);
    let plot = &plots[0];
    assert_eq!(plot.path, Path::new("docs/plots/updates.svg"));
    assert_eq!(plot.line, 3);
    assert!(plot.is_shown);
    let svg = drawing(PAGE).expect("is right");
    for part in [
        "Updates &amp; scans",
        ">1 KiB<",
        ">4 KiB<",
        ">BlobDB<",
        ">update<",
        ">scan of 10,000<",
        ">2.55<",
        ">0.25<",
        ">2.25<",
        ">4.00<",
    ] {
        assert!(svg.contains(part), "{part}\n{svg}");
    }
    assert_eq!(svg.matches("class=\"number\"").count(), 7);
    assert_eq!(svg.matches("class=\"spread\"").count(), 2);
    assert!(!svg.contains("Another"));
}

#[test]
fn bars_are_as_long_as_their_doublings() {
    let svg = drawing(PAGE).expect("is right");
    let width = |number: &str| -> f64 {
        let lines: Vec<&str> = svg.lines().collect();
        let at = lines
            .iter()
            .position(|line| line.contains("number") && line.contains(number))
            .expect("is drawn");
        let bar = lines[..at]
            .iter()
            .rev()
            .find(|line| line.starts_with("<rect"))
            .expect("has a bar");
        let (_, rest) = bar.split_once("width=\"").expect("is as written");
        rest.split('"')
            .next()
            .expect("ends")
            .parse()
            .expect("is a number")
    };
    // 0.25 is two doublings to the left, 4 two to the right.
    assert!((width(">0.25<") - width(">4.00<")).abs() < 0.2);
    assert!((width(">2.25<") / width(">4.00<") - 2.25_f64.log2() / 2.0).abs() < 0.01);
}

#[test]
fn an_empty_cell_needs_no_space() {
    let tight = PAGE.replace("| | BlobDB", "|| BlobDB");
    assert_ne!(tight, PAGE);
    assert_eq!(drawing(&tight), drawing(PAGE));
}

#[test]
fn columns_can_be_series() {
    let page = PAGE.replace("series: 2\npanels: 3 4", "series: Updates=3 | Scans=4");
    let svg = drawing(&page).expect("is right");
    assert!(
        svg.contains(">Updates<") && svg.contains(">Scans<"),
        "{svg}"
    );
    assert_eq!(svg.matches("class=\"number\"").count(), 7);
}

#[test]
fn rows_can_be_left_out_and_scales_begin_at_0() {
    let page = PAGE.replace("panels: 3 4", "panels: 3\nrows: BlobDB\nscale: plain");
    let svg = drawing(&page).expect("is right");
    assert!(!svg.contains(">Orogen<") && svg.contains(">1.45<"), "{svg}");
    assert!(svg.contains(">0<"), "{svg}");
}

#[test]
fn what_is_wrong_is_told() {
    for (part, by, told) in [
        ("panels: 3 4", "panels: 3 7", "no column 7"),
        ("panels: 3 4", "panels: none", "no column"),
        ("panels: 3 4", "", "is not `key: value`"),
        ("panels: 3 4\n", "", "`panels` is missing"),
        ("panels: 3 4", "panels: 3\nrows: Titan", "`Titan`"),
        ("groups: 1\n", "", "`groups` is missing"),
        ("title:", "name:", "`name`"),
        ("1.45", "many", "`many`"),
        ("1.45", "0", "above 0"),
        ("1.45", "171,520, 1.45", "two numbers"),
        ("| 4 KiB |", "| 1 KiB |", "two rows"),
        ("(2.40..2.61)", "(2.60..2.61)", "out of its spread"),
        ("panels: 3 4", "panels: 3\nscale: wide", "`wide`"),
    ] {
        assert!(PAGE.contains(part));
        let e = drawing(&PAGE.replacen(part, by, 1)).expect_err(by);
        assert!(e.contains(told), "{by}: {e}");
    }
    let (before, _) = PAGE.split_once("| Value").expect("is there");
    assert_eq!(drawing(before).unwrap_err(), "no table follows");
    let fenced = format!("```\n{PAGE}\n```\n");
    assert!(of_page(Path::new("page.md"), &fenced).is_empty());
}
