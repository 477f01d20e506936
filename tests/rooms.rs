//! The rooms of the engine: dependencies lead down, and none leads up or in a circle. Threads, locks and time come from
//! one module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms of the crate `dedupfs`, each with the floor that it stands on. A room uses rooms of lower floors only.
const ENGINE: &[(&str, u32)] = &[
    ("sync", 0),
    ("config", 0),
    ("progress", 0),
    ("durability", 1),
    ("engine", 2),
    ("upkeep", 3),
    ("service", 3),
    ("transfer", 4),
    ("pool", 5),
    ("lib", 6),
];

/// The rooms of the crate `dedupfs-content`.
const CONTENT: &[(&str, u32)] = &[
    ("sync", 0),
    ("limits", 0),
    ("free_list", 0),
    ("workers", 0),
    ("chunker", 1),
    ("fingerprint", 1),
    ("containers", 1),
    ("stores", 2),
    ("fetch", 2),
    ("dedup", 3),
    ("recipe", 4),
    ("ingest", 5),
    ("file", 6),
    ("lib", 7),
];

/// Crates whose threads, locks, time and random bytes a world decides.
const DECIDED: &[&str] = &["src", "src/base", "src/content", "src/namespace", "store/src", "index/src"];

/// The system's names of these. Of `std::sync` and `std::time` only parts are meant.
const SYSTEMS: &[&str] = &["parking_lot", "crossbeam_channel", "std::thread", "SystemTime", "getrandom"];
const PARTS_OF_STD: &[(&str, &[&str])] =
    &[("std::sync::", &["Mutex", "RwLock", "Condvar", "Barrier", "mpsc", "OnceLock"]), ("std::time::", &["Instant"])];

/// Files that may use the system's, each with its reason.
const UNDECIDED: &[(&str, &str)] = &[
    ("store/src/device/memory.rs", "disks outlive a life that is killed with a lock held"),
    ("store/src/device/faulty.rs", "as the disk below it"),
    ("store/src/waiting.rs", "the listener belongs to the process; a test waits for threads of the system"),
    ("src/base/panics.rs", "names the type of a caught panic"),
];

/// Returns the sources of a crate, without those of crates in its folder.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("lists").map(|entry| entry.expect("is an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true if path.join("Cargo.toml").exists() => Vec::new(),
            true => sources(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
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

/// Checks a crate. `known` is one of its arrows: reading none would prove nothing.
fn assert_leads_down(directory: &str, floors: &[(&str, u32)], known: (&str, &str)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let floors: BTreeMap<&str, u32> = floors.iter().copied().collect();
    let mut arrows = BTreeSet::new();
    for path in sources(&root).into_iter().filter(|path| !is_test(path)) {
        let inner = path.strip_prefix(&root).expect("lies in it");
        let room = inner.components().next().expect("has a part").as_os_str().to_string_lossy();
        let room = room.trim_end_matches(".rs").to_owned();
        for other in used(&fs::read_to_string(&path).expect("is text")) {
            arrows.insert((room.clone(), other, inner.display().to_string()));
        }
    }
    assert!(arrows.iter().any(|(room, other, _)| (room.as_str(), other.as_str()) == known), "arrows are found");
    let floor = |room: &str| *floors.get(room).unwrap_or_else(|| panic!("room {room} has no floor: give it one"));
    let wrong = arrows.iter().filter(|(room, other, _)| room != other && floor(room) <= floor(other));
    let wrong: Vec<String> =
        wrong.map(|(room, other, path)| format!("{room} -> {other} in {directory}/{path}")).collect();
    assert!(wrong.is_empty(), "arrows that do not lead down:\n{}", wrong.join("\n"));
}

#[test]
fn rooms_of_the_engine_use_only_rooms_of_lower_floors() {
    assert_leads_down("src", ENGINE, ("pool", "engine"));
}

#[test]
fn rooms_of_content_use_only_rooms_of_lower_floors() {
    assert_leads_down("src/content", CONTENT, ("file", "ingest"));
}

#[test]
fn threads_locks_and_time_of_the_engine_come_from_one_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_systems = |line: &str| {
        let mut parts = PARTS_OF_STD.iter();
        SYSTEMS.iter().any(|name| line.contains(name))
            || parts.any(|(module, names)| line.contains(module) && names.iter().any(|name| line.contains(name)))
    };
    let mut found = BTreeMap::new();
    for path in DECIDED.iter().flat_map(|directory| sources(&root.join(directory))).filter(|path| !is_test(path)) {
        let text = fs::read_to_string(&path).expect("is text");
        let code = text.lines().take_while(|line| *line != "mod tests {");
        let lines = code.filter(|line| !line.trim_start().starts_with("//") && is_systems(line));
        let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
        if !lines.is_empty() {
            found.insert(path.strip_prefix(root).expect("lies in it").display().to_string(), lines);
        }
    }
    for (path, reason) in UNDECIDED {
        assert!(found.remove(*path).is_some(), "{path} is no exception any more ({reason}): take it out of the list");
    }
    assert!(
        found.is_empty(),
        "a world does not decide these: use the module of this kind in dedupfs_sync (store/sync), or add the file to \
         UNDECIDED with a reason:\n{found:#?}"
    );
}
