//! The counts of a run, its table, and the fate of each mutant.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::build::Left;
use crate::folders::FOLDERS;
use crate::list::Mutant;
use crate::tries::Fate;

/// The counts of a folder.
#[derive(Default)]
pub struct Row {
    /// All its mutants.
    pub all: usize,
    /// Those of the sample or share.
    pub chosen: usize,
    run: usize,
    tests: usize,
    world: usize,
    timeouts: usize,
    unviable: usize,
    apart: usize,
    accepted: usize,
    survived: usize,
}

/// All of it.
pub struct Report {
    pub rows: Vec<Row>,
    accepted: BTreeMap<String, String>,
    survivors: String,
    log: String,
    path: PathBuf,
}

/// Returns the names of the mutants that survived the run which wrote this log.
pub fn survivors(log: &str) -> impl Iterator<Item = &str> {
    log.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, _, fate, _, key] = fields[..] else { return None };
        let is_survival = fate == "Survived" || fate == "Unreached" || fate.starts_with("Broken");
        is_survival.then_some(key)
    })
}

impl Report {
    /// Nothing was run yet. `path` is the log's.
    pub fn new(accepted: BTreeMap<String, String>, path: &Path) -> Self {
        let rows = FOLDERS.iter().map(|_| Row::default()).collect();
        Self { rows, accepted, survivors: String::new(), log: String::new(), path: path.to_owned() }
    }

    /// Notes a mutant that was not tried.
    pub fn left(&mut self, mutant: &Mutant, left: Left) {
        let row = &mut self.rows[mutant.folder];
        row.run += 1;
        match left {
            Left::Unviable => row.unviable += 1,
            Left::Apart => row.apart += 1,
        }
        self.note(mutant, &format!("{left:?}"));
    }

    /// Notes the fate of a mutant.
    pub fn fate(&mut self, mutant: &Mutant, fate: &Fate) {
        let row = &mut self.rows[mutant.folder];
        row.run += 1;
        match fate {
            Fate::Tests(_) => row.tests += 1,
            Fate::World => row.world += 1,
            Fate::Timeout(_) => row.timeouts += 1,
            _ if self.accepted.contains_key(&mutant.key) => row.accepted += 1,
            Fate::Survived | Fate::Unreached | Fate::Broken(_) => {
                row.survived += 1;
                // Lines for the list of accepted mutants, where the reason is still missing.
                let _ = writeln!(self.survivors, "# {fate:?}\n{} # ", mutant.key);
            }
        }
        self.note(mutant, &format!("{fate:?}"));
    }

    /// The log is whole however the run ends.
    fn note(&mut self, mutant: &Mutant, fate: &str) {
        let name = FOLDERS[mutant.folder].name;
        let _ = writeln!(self.log, "{name}\t{}\t{fate}\t{}\t{}", mutant.position, mutant.start.line, mutant.key);
        fs::write(&self.path, &self.log).expect("writes the log");
    }

    /// Prints the table and the survivors. Returns whether there are none.
    pub fn print(&self, seconds: f64) -> bool {
        println!(
            "| folder | mutants | chosen | run | caught by tests | by the world | timeouts | unviable | apart | accepted \
             | survived |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
        );
        for (folder, row) in FOLDERS.iter().zip(&self.rows).filter(|(_, row)| row.all > 0) {
            let caught = [row.tests, row.world, row.timeouts];
            let rest = [row.unviable, row.apart, row.accepted, row.survived];
            let counts = [row.all, row.chosen, row.run].into_iter().chain(caught).chain(rest);
            let counts: Vec<String> = counts.map(|count| count.to_string()).collect();
            println!("| {} | {} |", folder.name, counts.join(" | "));
        }
        println!("{} mutants in {seconds:.0} s", self.rows.iter().map(|row| row.run).sum::<usize>());
        if !self.survivors.is_empty() {
            print!(
                "nothing notices these, and tools/mutants/accepted.txt does not name them: they need a test, or a line there \
                 with a reason\n{}",
                self.survivors
            );
        }
        self.survivors.is_empty()
    }
}
