//! The rooms of the engine: dependencies lead down, and none leads up or in a circle. Threads, locks and time come from
//! one module.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use paths::Sources;

#[path = "rooms/paths.rs"]
mod paths;

/// The rooms of the crate `dedupfs`, each with the floor that it stands on. A room uses rooms of lower floors only.
const ENGINE: &[(&str, u32)] = &[
    ("sync", 0),
    ("config", 0),
    ("progress", 0),
    ("durability", 1),
    ("versions", 1),
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

/// Crates whose threads, locks, time and random bytes a world decides, each with its folder of sources.
const DECIDED: &[(&str, &str)] = &[
    ("dedupfs", "src"),
    ("dedupfs-base", "src/base"),
    ("dedupfs-content", "src/content"),
    ("dedupfs-namespace", "src/namespace"),
    ("dedupfs-store", "store/src"),
    ("dedupfs-index", "index/src"),
];

/// Paths of the system (with those below them) that files may name, each with its reason.
const UNDECIDED: &[(&str, &str, &str)] = &[
    ("store/src/device/memory.rs", "parking_lot", "disks outlive a life that is killed with a lock held"),
    ("store/src/device/faulty.rs", "parking_lot", "as the disk below it"),
    ("store/src/device/lock.rs", "std::process::id", "locks and notes a pool on a real disk, for other processes"),
    ("store/src/waiting.rs", "std::sync::OnceLock", "the listener belongs to the process"),
    ("store/src/container/region.rs", "std::thread_local", "scratch: no other task goes on during its use"),
    ("src/content/fingerprint/blake3_batch.rs", "std::thread_local", "scratch, as that of regions"),
    ("src/base/panics.rs", "std::thread::Result", "names the type of a caught panic"),
    ("src/base/panics.rs", "std::thread_local", "only decides whether the hook of the process prints a panic"),
    ("src/base/allocator.rs", "libc", "settings of the allocator"),
];

/// Dependencies that crates may have, for files above.
const UNDECIDED_CRATES: &[(&str, &str)] = &[("dedupfs-store", "parking_lot")];

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

/// Whether the file has only tests: they may use any room. The path begins at the repository, which may lie anywhere.
fn is_test(path: &Path) -> bool {
    let inner = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("lies in the repository");
    inner.components().any(|part| part.as_os_str() == "tests")
        || inner.file_stem().is_some_and(|name| paths::is_name_of_tests(&name.to_string_lossy()))
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
    let mut all = Sources::default();
    for (name, directory) in DECIDED {
        let directory = root.join(directory);
        for path in sources(&directory).into_iter().filter(|path| !is_test(path)) {
            let inner = path.strip_prefix(&directory).expect("lies in it").with_extension("");
            let parts = inner.iter().map(|part| part.to_str().expect("is text"));
            let name = name.replace('-', "_");
            let module: Vec<&str> =
                [name.as_str()].into_iter().chain(parts.filter(|part| !["lib", "mod"].contains(part))).collect();
            let file = path.strip_prefix(root).expect("lies in it").display().to_string();
            all.read(&file, &module, &fs::read_to_string(&path).expect("is text"));
        }
    }
    let mut refused = all.refused();
    for (file, name, reason) in UNDECIDED {
        let before = refused.len();
        refused.retain(|(of, path)| of != file || path != name && !path.starts_with(&format!("{name}::")));
        assert!(refused.len() < before, "{file} names no {name} any more ({reason}): take it out of the list");
    }
    assert!(
        refused.is_empty(),
        "a world does not decide these: use the module of this kind in dedupfs_sync (store/sync), or add the file to \
         UNDECIDED with a reason:\n{refused:#?}"
    );
}

#[test]
fn crates_of_the_engine_depend_on_no_other_source_of_threads_locks_and_random_bytes() {
    let told = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("is JSON");
    let packages = told["packages"].as_array().expect("is a list").iter();
    let name_of = |value: &serde_json::Value| value["name"].as_str().expect("has a name").to_owned();
    let decided = packages.filter(|package| DECIDED.iter().any(|(name, _)| package["name"] == *name));
    let dependencies = decided.flat_map(|package| {
        // Those of tests and benchmarks have a kind.
        let all = package["dependencies"].as_array().expect("is a list").iter();
        let of_engine = all.filter(|dependency| dependency["kind"].is_null());
        of_engine.map(|dependency| (name_of(package), name_of(dependency)))
    });
    let refused: BTreeSet<_> = dependencies.filter(|(_, name)| paths::is_banned_crate(name)).collect();
    let allowed = UNDECIDED_CRATES.iter().map(|(of, name)| ((*of).to_owned(), (*name).to_owned())).collect();
    assert_eq!(refused, allowed, "a world does not decide these: use dedupfs_sync, or change UNDECIDED_CRATES");
}
