//! Whether two trees or files are the same, by the tools that users trust.

use std::path::Path;

use crate::command::Tool;

/// `path/`: for rsync the content of a directory, not the directory.
pub fn inside(path: &Path) -> std::ffi::OsString {
    let mut inside = path.as_os_str().to_owned();
    inside.push("/");
    inside
}

/// Two trees are the same in everything that rsync sees, content included.
#[track_caller]
pub fn assert_same_tree(left: &Path, right: &Path) {
    let ran = Tool::new("rsync")
        .args(["-aHAXnc", "--numeric-ids", "--delete", "--itemize-changes"])
        .args([inside(left), inside(right)])
        .ok();
    let differences: Vec<_> = ran.text().lines().take(20).map(str::to_owned).collect();
    assert!(differences.is_empty(), "{} and {} differ: {differences:#?}", left.display(), right.display());
}

/// Two trees have the same names and content.
#[track_caller]
pub fn assert_same_content(left: &Path, right: &Path) {
    Tool::new("diff").args(["-r", "--no-dereference"]).args([left, right]).ok();
}

/// Two files have the same content.
#[track_caller]
pub fn assert_same_file(left: &Path, right: &Path) {
    Tool::new("cmp").args([left, right]).ok();
}

/// The same, but for times: for trees that were made one after the other.
#[track_caller]
pub fn assert_same_tree_but_times(left: &Path, right: &Path) {
    let ran = Tool::new("rsync")
        .args(["-aHAXnc", "--no-times", "--omit-link-times", "--numeric-ids", "--delete", "--itemize-changes"])
        .args([inside(left), inside(right)])
        .ok();
    // An unchanged file may be named because of its time alone.
    let text = ran.text();
    let differences: Vec<_> = text.lines().filter(|line| !line.starts_with(".f..t......")).take(20).collect();
    assert!(differences.is_empty(), "{} and {} differ: {differences:#?}", left.display(), right.display());
}
