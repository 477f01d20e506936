//! The rooms of the engine: dependencies lead down, and none leads up or in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the floor that it stands on. A room uses rooms of lower floors only.
const FLOORS: [(&str, u32); 16] = [
    ("error", 0),
    ("panics", 0),
    ("sync", 0),
    ("allocator", 0),
    ("config", 0),
    ("progress", 0),
    ("gauge", 1),
    ("namespace", 2),
    ("content", 3),
    ("durability", 4),
    ("engine", 5),
    ("upkeep", 6),
    ("service", 6),
    ("transfer", 7),
    ("pool", 8),
    // The façade.
    ("lib", 9),
];

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("is an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// Whether the file has only tests: they may use any room.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"))
}

/// Returns the rooms that a source names, without its comments and its tests.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().expect("has a first part");
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let uses = lines.flat_map(|line| line.split("crate::").skip(1));
    uses.map(|rest| rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()).collect()
}

#[test]
fn rooms_use_only_rooms_of_lower_floors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let floors: BTreeMap<&str, u32> = FLOORS.into();
    let mut arrows = BTreeSet::new();
    for path in sources(&root).into_iter().filter(|path| !is_test(path)) {
        let inner = path.strip_prefix(&root).expect("lies in it");
        let room = inner.components().next().expect("has a part").as_os_str().to_string_lossy();
        let room = room.trim_end_matches(".rs").to_owned();
        for other in used(&fs::read_to_string(&path).expect("is text")) {
            arrows.insert((room.clone(), other, inner.display().to_string()));
        }
    }
    assert!(arrows.iter().any(|(room, other, _)| room == "pool" && other == "engine"), "arrows are found");
    let floor = |room: &str| *floors.get(room).unwrap_or_else(|| panic!("room {room} has no floor: give it one"));
    let wrong = arrows.iter().filter(|(room, other, _)| room != other && floor(room) <= floor(other));
    let wrong: Vec<String> = wrong.map(|(room, other, path)| format!("{room} -> {other} in src/{path}")).collect();
    assert!(wrong.is_empty(), "arrows that do not lead down:\n{}", wrong.join("\n"));
}
