//! The list of mutants that may survive, each with its reason.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use crate::list::Mutant;

/// Beginnings of reasons; the head of the list explains them.
const KINDS: [&str; 10] = [
    "equivalent: ",
    "equivalent in its result: ",
    "not reached: ",
    "only ",
    "a second defence ",
    "the same as the canary ",
    "a canary's switch",
    "tested elsewhere: ",
    "no test yet: ",
    "no test: ",
];

/// Reads the list: a line `MUTANT # REASON` each.
///
/// # Errors
/// The line that is wrong: without a reason of one of the kinds, with a name that another line has, or with one that no mutant of its file
/// has. The files are those of `all`, which has all mutants of some folders.
pub fn read(path: &Path, all: &[Mutant]) -> Result<BTreeMap<String, String>, String> {
    parse(&std::fs::read_to_string(path).map_err(|error| error.to_string())?, all)
}

fn parse(text: &str, all: &[Mutant]) -> Result<BTreeMap<String, String>, String> {
    let names: HashSet<&str> = all.iter().map(|mutant| mutant.key.as_str()).collect();
    let directory = |file: &str| file.rsplit_once('/').map_or(String::new(), |(directory, _)| directory.to_owned());
    let directories: HashSet<String> = all.iter().map(|mutant| directory(&mutant.file)).collect();
    let mut accepted = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let entry = line.split_once(" # ");
        let (mutant, reason) = entry.ok_or_else(|| format!("a line is `MUTANT # REASON`, not `{line}`"))?;
        if !KINDS.iter().any(|kind| reason.starts_with(kind)) {
            return Err(format!("a reason begins as the head of the list says, and not with `{reason}`: {mutant}"));
        }
        let file = mutant.split_once(": ").map_or("", |(file, _)| file);
        if directories.contains(&directory(file)) && !names.contains(mutant) {
            return Err(format!("no mutant has this name any more; remove or rename it: {mutant}"));
        }
        if accepted.insert(mutant.to_owned(), reason.to_owned()).is_some() {
            return Err(format!("named twice: {mutant}"));
        }
    }
    Ok(accepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Place;

    #[test]
    fn lines_without_a_reason_or_a_mutant_and_names_twice_are_refused() {
        let place = Place { line: 1, column: 1 };
        let mutant = Mutant {
            key: "src/a/x.rs: delete ! in f".to_owned(),
            file: "src/a/x.rs".to_owned(),
            genre: String::new(),
            replacement: String::new(),
            start: place,
            end: place,
            folder: 0,
            position: 0,
        };
        let read = |text: &str| parse(text, std::slice::from_ref(&mutant));
        let known = "src/a/x.rs: delete ! in f # only a figure\n";
        // Folders that are not listed are not judged.
        assert_eq!(
            read(&format!("# Head\n\n{known}src/b/z.rs: delete ! in h # only a figure\n")).map(|all| all.len()),
            Ok(2)
        );
        assert!(read(&known.repeat(2)).unwrap_err().contains("twice"));
        assert!(read("src/a/x.rs: delete ! in f\n").unwrap_err().contains("REASON"));
        assert!(read("src/a/x.rs: delete ! in f # nobody cares\n").unwrap_err().contains("head of the list"));
        for gone in ["src/a/x.rs: delete ! in g # only a figure", "src/a/gone.rs: delete ! in f # only a figure"] {
            assert!(read(gone).unwrap_err().contains("any more"), "{gone}");
        }
    }
}
