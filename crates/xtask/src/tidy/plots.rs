//! Pictures: each is what its table says, and is shown.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{Finding, Tree};
use crate::plots;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut drawn: BTreeSet<PathBuf> = BTreeSet::new();
    for page in tree.files.iter().filter(|f| f.has_extension("md")) {
        for plot in plots::of_page(&page.path, &page.text) {
            let mut found =
                |message: String| findings.push(Finding::new(&page.path, plot.line, message));
            if !plot.is_shown {
                found("the page does not show this picture".to_owned());
            }
            match plot.drawing {
                Ok(drawing) if tree.find(&plot.path).is_none_or(|f| f.text != drawing) => {
                    found("the picture is not that of the table: run `cargo x plots`".to_owned());
                }
                Ok(_) => {}
                Err(e) => found(e),
            }
            drawn.insert(plot.path);
        }
    }
    for path in &tree.paths {
        let is_plot = path.iter().any(|part| part == "plots");
        if is_plot && path.extension().is_some_and(|e| e == "svg") && !drawn.contains(path) {
            findings.push(Finding::new(path, 1, "no table is drawn here any more"));
        }
    }
    findings
}
