//! Tries mutants: small changes of the code that the tests should notice. `tools/mutants.sh` runs it.

mod accepted;
mod build;
mod copy;
mod folders;
mod list;
mod places;
mod tries;
mod weave;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::build::{Build, Left};
use crate::copy::Copy;
use crate::folders::{FOLDERS, Suite};
use crate::list::Mutant;
use crate::tries::{Fate, Test};

/// Mutants of a folder in the sample.
const SAMPLE: usize = 300;
/// Mutants of a folder with `--small`.
const SMALL: usize = 5;

/// Tries whether the tests of dedupfs notice small changes of its code.
#[derive(Parser)]
struct Arguments {
    /// Folders; all of them by default.
    folders: Vec<String>,
    /// The K-th of N shares of all mutants, instead of the sample.
    #[arg(long, value_parser = share)]
    share: Option<(usize, usize)>,
    /// A few mutants of each folder.
    #[arg(long)]
    small: bool,
    /// Only mutants whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// Only mutants that survived the last run.
    #[arg(long)]
    again: bool,
    /// Use the programs of the last run, which had the same mutants.
    #[arg(long, hide = true)]
    built: bool,
    /// Begin no mutant after this time.
    #[arg(long)]
    minutes: Option<u64>,
    /// No worlds.
    #[arg(long)]
    without_world: bool,
    /// Print the mutants, and try none.
    #[arg(long)]
    list: bool,
}

fn share(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let numbers = numbers.filter(|(k, n)| (1..=*n).contains(k));
    numbers.ok_or_else(|| "a share is K/N, with K from 1 to N".to_owned())
}

/// The counts of a folder.
#[derive(Default)]
struct Row {
    all: usize,
    chosen: usize,
    run: usize,
    tests: usize,
    world: usize,
    timeouts: usize,
    unviable: usize,
    apart: usize,
    accepted: usize,
    survived: usize,
}

/// Returns the name of the mutant of a line of the log, if it survived.
fn survivor(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [_, _, "Survived" | "Unreached", _, key] = fields[..] else { return None };
    Some(key)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("is there");
    let work = repository.join("target/mutants");
    if let Some(unknown) = arguments.folders.iter().find(|name| FOLDERS.iter().all(|folder| folder.name != **name)) {
        eprintln!("no folder {unknown}: there are {}", FOLDERS.map(|folder| folder.name).join(", "));
        return ExitCode::from(2);
    }
    let accepted = accepted::read(&repository.join("tools/mutants/accepted.txt"));

    let last = fs::read_to_string(work.join("log.tsv")).unwrap_or_default();
    let survived: HashSet<&str> = last.lines().filter_map(survivor).collect();

    let mut rows: Vec<Row> = FOLDERS.iter().map(|_| Row::default()).collect();
    let mut mutants = Vec::<Mutant>::new();
    for (index, folder) in FOLDERS.iter().enumerate() {
        if !arguments.folders.is_empty() && !arguments.folders.iter().any(|name| name == folder.name) {
            continue;
        }
        let mut all = list::of(index, folder, &repository);
        rows[index].all = all.len();
        match arguments.share {
            Some((k, n)) => all.retain(|mutant| mutant.position % n == k - 1),
            None => all.truncate(SAMPLE),
        }
        all.retain(|mutant| arguments.only.as_ref().is_none_or(|text| mutant.key.contains(text)));
        all.retain(|mutant| !arguments.again || survived.contains(mutant.key.as_str()));
        if arguments.small {
            all.truncate(SMALL);
        }
        rows[index].chosen = all.len();
        mutants.extend(all);
    }
    // In turns: so a run that ends early has tried as many of each folder.
    mutants.sort_by_key(|mutant| (mutant.position, mutant.folder));
    if arguments.list {
        mutants.iter().for_each(|mutant| println!("{}", mutant.key));
        return ExitCode::SUCCESS;
    }

    let copy = Copy::new(&repository, &work);
    let mut build = Build::new(&copy, &mutants);
    let chosen = |index: usize| rows[index].chosen > 0;
    let mut programs = Vec::<(Suite, PathBuf)>::new();
    for suite in FOLDERS.iter().enumerate().filter(|(index, _)| chosen(*index)).flat_map(|(_, folder)| folder.suites) {
        if !programs.iter().any(|(built, _)| (built.package, built.target) == (suite.package, suite.target)) {
            let kept = work.join(format!("suite-{}", programs.len()));
            if !arguments.built {
                eprintln!("building the tests of {}", suite.package);
                // The next build may write another program to its path.
                fs::copy(build.suite(suite), &kept).expect("keeps the program");
            }
            programs.push((*suite, kept));
        }
    }
    let kept = work.join("suite-world");
    if !arguments.without_world && !arguments.built {
        eprintln!("building the world");
        fs::copy(build.world(), &kept).expect("keeps the program");
    }
    let world = (!arguments.without_world).then_some(kept);
    if arguments.built {
        build.remember(&work.join("left.tsv"));
    } else {
        build.keep(&work.join("left.tsv"));
    }
    let left = build.left;

    // Suites of several folders are measured once.
    let mut measured = HashMap::<String, Vec<Test>>::new();
    let mut tests_of = |suite: &Suite| -> Vec<Test> {
        let prefixes: Vec<&str> = suite.prefixes.to_vec();
        let (_, program) = programs
            .iter()
            .find(|(built, _)| (built.package, built.target) == (suite.package, suite.target))
            .expect("the suite is built");
        let directory = match suite.package {
            "dedupfs-index" => "index",
            "dedupfs-store" => "store",
            "dedupfs-content" => "src/content",
            _ => ".",
        };
        let mut tests = Vec::new();
        for prefix in prefixes {
            let name = format!("{} {} {prefix}", suite.package, suite.target.join(" "));
            let some = measured.entry(name.clone()).or_insert_with(|| {
                eprintln!("measuring the tests of {name}");
                tries::tests_of(&copy, program, &copy.root.join(directory), &[prefix])
            });
            tests.extend(some.iter().cloned());
        }
        tests
    };
    let tests: Vec<Vec<Test>> = FOLDERS
        .iter()
        .enumerate()
        .map(
            |(index, folder)| {
                if chosen(index) { folder.suites.iter().flat_map(&mut tests_of).collect() } else { Vec::new() }
            },
        )
        .collect();
    let world = world.map(|program| {
        eprintln!("measuring {} worlds", tries::WORLDS);
        tries::world(&copy, &program)
    });

    let begun = Instant::now();
    let mut likely = HashMap::<String, HashMap<&str, usize>>::new();
    let mut survivors = String::new();
    let mut log = String::new();
    for (number, mutant) in (1..).zip(&mutants) {
        if arguments.minutes.is_some_and(|minutes| begun.elapsed().as_secs() >= minutes * 60) {
            break;
        }
        let row = &mut rows[mutant.folder];
        let name = FOLDERS[mutant.folder].name;
        row.run += 1;
        let fate = match left.get(&number) {
            Some(Left::Unviable) => {
                row.unviable += 1;
                "unviable".to_owned()
            }
            Some(Left::Apart) => {
                row.apart += 1;
                "apart".to_owned()
            }
            None => {
                let likely = likely.entry(mutant.file.clone()).or_default();
                let of_folder: Vec<&Test> = tests[mutant.folder].iter().collect();
                let fate = tries::fate(&copy, number, &of_folder, world.as_ref(), likely);
                match &fate {
                    Fate::Tests(test) => {
                        row.tests += 1;
                        if let Some(test) = of_folder.iter().find(|known| known.name == *test) {
                            *likely.entry(test.name.as_str()).or_default() += 1;
                        }
                    }
                    Fate::World => row.world += 1,
                    Fate::Timeout(_) => row.timeouts += 1,
                    Fate::Survived | Fate::Unreached if accepted.contains_key(&mutant.key) => row.accepted += 1,
                    Fate::Survived | Fate::Unreached => {
                        row.survived += 1;
                        let _ = writeln!(survivors, "{} ({fate:?})", mutant.key);
                    }
                }
                format!("{fate:?}")
            }
        };
        let _ = writeln!(log, "{name}\t{}\t{fate}\t{}\t{}", mutant.position, mutant.start.line, mutant.key);
        fs::write(work.join("log.tsv"), &log).expect("writes the log");
    }
    let seconds = begun.elapsed().as_secs_f64();

    println!(
        "| folder | mutants | chosen | run | caught by tests | by the world | timeouts | unviable | apart | accepted | survived |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (folder, row) in FOLDERS.iter().zip(&rows).filter(|(_, row)| row.all > 0) {
        let counts = [row.chosen, row.run, row.tests, row.world, row.timeouts, row.unviable, row.apart, row.accepted];
        let counts = counts.map(|count| count.to_string()).join(" | ");
        println!("| {} | {} | {counts} | {} |", folder.name, row.all, row.survived);
    }
    let run: usize = rows.iter().map(|row| row.run).sum();
    println!("{run} mutants in {seconds:.0} s");
    if survivors.is_empty() {
        return ExitCode::SUCCESS;
    }
    print!("nothing notices these, and tools/mutants/accepted.txt does not name them:\n{survivors}");
    ExitCode::FAILURE
}
