//! The table of canaries: after how many seeds each mistake is found.

use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use dedupfs_sync::canary::Canary;

use crate::attempt::this_program;

/// Searches for each canary, each among other seeds. The table has the median of the numbers of seeds that they take.
const SEARCHES: u64 = 5;

/// Longest time of a world of a search in seconds: some mistakes make it hang.
const SEARCH_SECS: u64 = 20;

/// One search for a canary.
enum Found {
    /// After this many seeds.
    After(u64),
    /// Not among these seeds.
    Not,
}

/// Searches for a canary in a process of its own, from this seed on.
fn search(canary: Canary, from: u64, count: u64) -> Found {
    let mut command = this_program(Some(canary));
    command.args(["--until-found", "--patience", &SEARCH_SECS.to_string()]);
    command.args(["--from", &from.to_string(), "--count", &count.to_string()]);
    let output = command.stderr(Stdio::null()).output().expect("starts a process");
    let text = String::from_utf8_lossy(&output.stdout);
    let tried = text.lines().rev().find_map(|line| line.strip_prefix("tried ")?.parse().ok());
    match tried {
        // A world that kills its process has noticed, too: nothing bounds the memory of these processes, unlike those of mutants.
        None => match text.lines().filter(|line| *line == "seed").count() as u64 {
            0 => Found::Not,
            begun => Found::After(begun),
        },
        Some(tried) if output.status.success() => Found::After(tried),
        Some(_) => Found::Not,
    }
}

/// Prints the table, or the line of `only` one. Fails if most searches for a canary do not find it.
pub fn table(only: Option<Canary>, from: u64, count: u64, jobs: u64) -> ExitCode {
    let canaries = only.map_or_else(|| Canary::ALL.to_vec(), |canary| vec![canary]);
    let next = AtomicUsize::new(0);
    let lines = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(&canary) = canaries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut found: Vec<u64> = (0..SEARCHES)
                        .filter_map(|number| match search(canary, from + number * count, count) {
                            Found::After(tried) => Some(tried),
                            Found::Not => None,
                        })
                        .collect();
                    found.sort_unstable();
                    let line = match found.get(SEARCHES as usize / 2) {
                        Some(median) => format!("{median}"),
                        None => format!("not in {count} ({} of {SEARCHES} searches)", found.len()),
                    };
                    println!("| {} | {line} |", canary.words());
                    lines.lock().expect("no search panics").push(found.len() as u64 > SEARCHES / 2);
                }
            });
        }
    });
    let lines = lines.into_inner().expect("no search panics");
    let found = lines.iter().filter(|found| **found).count();
    println!("{found} of {} are found", lines.len());
    if found == lines.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
