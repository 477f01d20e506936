//! Comparisons of trees and files, by the tools that users trust.

use std::path::Path;

use crate::command::Tool;

/// Returns `path/`, which rsync reads as the content of the directory.
pub fn inside(path: &Path) -> std::ffi::OsString {
    let mut inside = path.as_os_str().to_owned();
    inside.push("/");
    inside
}

/// Checks that two trees are the same in everything that rsync sees, content included.
#[track_caller]
pub fn assert_same_tree(left: &Path, right: &Path) {
    let ran = Tool::new("rsync")
        .args(["-aHAXnc", "--numeric-ids", "--delete", "--itemize-changes"])
        .args([inside(left), inside(right)])
        .ok();
    let differences: Vec<_> = ran.text().lines().take(20).map(str::to_owned).collect();
    assert!(differences.is_empty(), "{} and {} differ: {differences:#?}", left.display(), right.display());
}

/// Checks that two trees have the same names and content.
#[track_caller]
pub fn assert_same_content(left: &Path, right: &Path) {
    Tool::new("diff").args(["-r", "--no-dereference"]).args([left, right]).ok();
}

/// Checks that two files have the same content.
#[track_caller]
pub fn assert_same_file(left: &Path, right: &Path) {
    Tool::new("cmp").args([left, right]).ok();
}

/// Compares two trees without their times, because they were made one after the other.
#[track_caller]
pub fn assert_same_tree_but_times(left: &Path, right: &Path) {
    let ran = Tool::new("rsync")
        .args(["-aHAXnc", "--no-times", "--omit-link-times", "--numeric-ids", "--delete", "--itemize-changes"])
        .args([inside(left), inside(right)])
        .ok();
    // rsync may list an unchanged file because of its time alone.
    let text = ran.text();
    let differences: Vec<_> = text.lines().filter(|line| !line.starts_with(".f..t......")).take(20).collect();
    assert!(differences.is_empty(), "{} and {} differ: {differences:#?}", left.display(), right.display());
}
