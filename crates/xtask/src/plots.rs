//! `cargo x plots`: the measured tables of the guides as pictures.
//!
//! A comment before a table says what is drawn of it, and a picture is nothing but its table:
//! `cargo x tidy` fails where one was changed without the other.
//!
//! ```text
//! page (.md) -> comment and the table behind it (spec) -> chart -> picture (svg)
//! ```

mod chart;
mod spec;
mod svg;

use std::path::{Path, PathBuf};

use crate::workspace;

pub(crate) const HELP: &str = "
usage: cargo x plots

Draws the tables of Markdown pages that have a comment like this before them, and the picture's link
somewhere on the page:

  <!-- plot plots/updates.svg
  title: Updates, times RocksDB
  groups: 1
  series: 2
  panels: 4 5
  -->

  groups  the column with the names of what is compared; empty cells go on with the one above
  series  the column with who is compared; or `Name=3 | Name=5`, who has a column of one's own
  panels  with the former: columns that get a panel each, named by their heads
  rows    of the series' names, which are drawn, as `Name | Name`; all without it
  scale   `times`: doublings left and right of 1 (the default); `plain`: from 0 on

Of a cell that has a spread, `1.5 (1.2..1.7)`, it is drawn, too. Nothing is measured.
";

/// A picture as its page asks for it.
pub(crate) struct Plot {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    /// The line of its comment, from 1.
    pub(crate) line: usize,
    /// The link to it is on the page.
    pub(crate) is_shown: bool,
    /// What is to be in the file, or what is wrong with the comment or the table.
    pub(crate) drawing: Result<String, String>,
}

/// The plots of a page.
pub(crate) fn of_page(page: &Path, text: &str) -> Vec<Plot> {
    let dir = page.parent().unwrap_or_else(|| Path::new(""));
    spec::find(text)
        .into_iter()
        .map(|found| Plot {
            path: dir.join(&found.target),
            line: found.line,
            is_shown: text.contains(&format!("]({})", found.target)),
            drawing: found.chart.map(|chart| svg::draw(&chart)),
        })
        .collect()
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(arg) = args.first() {
        return Err(format!("unknown argument `{arg}`"));
    }
    let root = workspace::root();
    for page in workspace::files()? {
        if page.extension().is_none_or(|e| e != "md") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&page))
            .map_err(|e| format!("{}: {e}", page.display()))?;
        for plot in of_page(&page, &text) {
            let drawing = plot
                .drawing
                .map_err(|e| format!("{}:{}: {e}", page.display(), plot.line))?;
            let path = root.join(&plot.path);
            let failed = |e: std::io::Error| format!("{}: {e}", plot.path.display());
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir).map_err(failed)?;
            }
            std::fs::write(&path, drawing).map_err(failed)?;
            println!("{}", plot.path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
