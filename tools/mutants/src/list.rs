//! The mutants of a folder, in an order that stays when code changes elsewhere.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::folders::Folder;

/// A place in a source: line and column from 1 on, in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

/// One small change of the code.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// File, change and function: the name in the list of accepted mutants. Equal ones in a function are numbered.
    pub key: String,
    pub file: String,
    /// Kind of change, as cargo-mutants calls it.
    pub genre: String,
    pub replacement: String,
    pub start: Place,
    pub end: Place,
    /// Its folder, in `FOLDERS`.
    pub folder: usize,
    /// Its place in the order of the folder.
    pub position: usize,
}

/// The seed of the order. Another one is another sample.
const SEED: u64 = 1;

fn place(value: &Value) -> Option<Place> {
    let number = |name: &str| value[name].as_u64().and_then(|number| usize::try_from(number).ok());
    Some(Place { line: number("line")?, column: number("column")? })
}

fn mutant(value: &Value, folder: usize) -> Option<Mutant> {
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let (file, name) = (text("file")?, text("name")?);
    // Behind line and column, which move.
    let change = name.split_once(' ')?.1;
    Some(Mutant {
        key: format!("{file}: {change}"),
        file,
        genre: text("genre")?,
        replacement: text("replacement")?,
        start: place(&value["span"]["start"])?,
        end: place(&value["span"]["end"])?,
        folder,
        position: 0,
    })
}

/// Returns all mutants of a folder, in order.
pub fn of(folder: usize, what: &Folder, repository: &Path) -> Vec<Mutant> {
    let mut command = Command::new("cargo");
    command.current_dir(repository).args(["mutants", "--list", "--json", "--workspace", "--no-config"]);
    // Decoders for the fuzz targets are not built here.
    command.args(["--exclude", "**/fuzzing.rs"]);
    what.files.iter().for_each(|files| _ = command.args(["--file", files]));
    let output = command.output().expect("cargo-mutants runs");
    assert!(output.status.success(), "cargo mutants --list fails: {}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).expect("cargo-mutants writes JSON");
    let list = list.as_array().expect("is a list");
    let mut mutants: Vec<Mutant> =
        list.iter().map(|value| mutant(value, folder).expect("an entry of the list is read")).collect();
    mutants.sort_by(|a, b| (&a.file, a.start).cmp(&(&b.file, b.start)));
    let mut equal = HashMap::<String, usize>::new();
    for mutant in &mut mutants {
        let count = equal.entry(mutant.key.clone()).or_default();
        *count += 1;
        if *count > 1 {
            mutant.key += &format!(" ({count})");
        }
    }
    mutants.sort_by_cached_key(|mutant| XxHash3_64::oneshot_with_seed(SEED, mutant.key.as_bytes()));
    mutants.iter_mut().enumerate().for_each(|(position, mutant)| mutant.position = position);
    mutants
}
