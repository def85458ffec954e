//! Lengths: the longest files, told and not judged. A file past 500 lines may be two things.

use super::Tree;

const TOLD: usize = 10;

pub(super) fn tell(tree: &Tree) {
    let mut lengths: Vec<_> = tree
        .rust_files()
        .map(|f| (f.text.lines().count(), f.path.display()))
        .collect();
    lengths.sort_by_key(|(lines, _)| std::cmp::Reverse(*lines));
    println!("longest files:");
    for (lines, path) in lengths.iter().take(TOLD) {
        println!("{lines:>6}  {path}");
    }
}
