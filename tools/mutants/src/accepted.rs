//! The list of mutants that may survive, each with its reason.

use std::collections::BTreeMap;
use std::path::Path;

/// Reads the list: a line `MUTANT # REASON` each.
pub fn read(path: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(path).expect("the list of accepted mutants is there");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &str| {
        let (mutant, reason) = line.split_once(" # ").expect("a line has a mutant, ` # ` and a reason");
        (mutant.to_owned(), reason.to_owned())
    };
    lines.map(entry).collect()
}
