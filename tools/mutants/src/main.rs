//! Tries mutants: small changes of the code that the tests should notice. `tools/mutants.sh` runs it.

mod accepted;
mod build;
mod copy;
mod folders;
mod list;
mod measured;
mod places;
mod report;
mod tries;
mod weave;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::build::Build;
use crate::copy::Copy;
use crate::folders::{FOLDERS, Folder};
use crate::list::Mutant;
use crate::measured::{Measured, Programs};
use crate::report::{Report, Row};
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
    /// Leave out so many of each folder, the first ones.
    #[arg(long, default_value_t = 0)]
    skip: usize,
    /// Only mutants whose names contain this: of all, not of the sample.
    #[arg(long)]
    only: Option<String>,
    /// Only mutants that survived the last run.
    #[arg(long)]
    again: bool,
    /// Use the programs of the last run, which had the same mutants.
    #[arg(long, hide = true)]
    built: bool,
    /// Mutants tried at a time.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Begin no mutant after this time.
    #[arg(long)]
    minutes: Option<u64>,
    /// No worlds.
    #[arg(long)]
    without_world: bool,
    /// No tests: only worlds.
    #[arg(long, conflicts_with = "without_world")]
    without_tests: bool,
    /// Print the mutants, and try none.
    #[arg(long)]
    list: bool,
}

fn share(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    let numbers = numbers.filter(|(k, n)| (1..=*n).contains(k));
    numbers.ok_or_else(|| "a share is K/N, with K from 1 to N".to_owned())
}

/// Returns all mutants of the folders that the arguments name.
fn all(arguments: &Arguments, repository: &Path) -> Vec<Mutant> {
    let is_named =
        |folder: &Folder| arguments.folders.is_empty() || arguments.folders.iter().any(|name| name == folder.name);
    let folders = FOLDERS.iter().enumerate().filter(|(_, folder)| is_named(folder));
    folders.flat_map(|(index, folder)| list::of(index, folder, repository)).collect()
}

/// Returns the chosen mutants, in turns: so a run that ends early has tried as many of each folder.
fn choose(arguments: &Arguments, all: &[Mutant], log: &str, rows: &mut [Row]) -> Vec<Mutant> {
    let survived: HashSet<&str> = report::survivors(log).collect();
    let mut mutants = Vec::<Mutant>::new();
    for (index, row) in rows.iter_mut().enumerate() {
        let mut all: Vec<Mutant> = all.iter().filter(|mutant| mutant.folder == index).cloned().collect();
        row.all = all.len();
        match arguments.share {
            Some((k, n)) => all.retain(|mutant| mutant.position % n == k - 1),
            // These are searched for among all mutants.
            None if arguments.only.is_some() || arguments.again => {}
            None => all.truncate(SAMPLE),
        }
        all.drain(..arguments.skip.min(all.len()));
        all.retain(|mutant| arguments.only.as_ref().is_none_or(|text| mutant.key.contains(text)));
        all.retain(|mutant| !arguments.again || survived.contains(mutant.key.as_str()));
        if arguments.small {
            all.truncate(SMALL);
        }
        row.chosen = all.len();
        mutants.extend(all);
    }
    mutants.sort_by_key(|mutant| (mutant.position, mutant.folder));
    mutants
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("is there");
    let work = repository.join("target/mutants");
    if let Some(unknown) = arguments.folders.iter().find(|name| FOLDERS.iter().all(|folder| folder.name != **name)) {
        eprintln!("no folder {unknown}: there are {}", FOLDERS.map(|folder| folder.name).join(", "));
        return ExitCode::from(2);
    }
    let log = work.join("log.tsv");
    let all = all(&arguments, &repository);
    let accepted = match accepted::read(&repository.join("tools/mutants/accepted.txt"), &all) {
        Ok(accepted) => accepted,
        Err(wrong) => {
            eprintln!("tools/mutants/accepted.txt: {wrong}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::new(accepted, &log);
    let last = fs::read_to_string(&log).unwrap_or_default();
    let mutants = choose(&arguments, &all, &last, &mut report.rows);
    if mutants.is_empty() {
        eprintln!("no mutant is chosen by these arguments: --list tells the names");
        return ExitCode::from(2);
    }
    if arguments.list {
        mutants.iter().for_each(|mutant| println!("{}", mutant.key));
        return ExitCode::SUCCESS;
    }

    let copy = Copy::new(&repository, &work);
    let mut build = Build::new(&copy, &mutants);
    let is_chosen = |index: &usize| report.rows[*index].chosen > 0;
    let folders: Vec<&Folder> = (0..FOLDERS.len()).filter(is_chosen).map(|index| &FOLDERS[index]).collect();
    let of_tests = if arguments.without_tests { &[] } else { &*folders };
    let programs = Programs::new(of_tests, &mut build, &work, arguments.built);
    let world = work.join("suite-world");
    if !arguments.without_world && !arguments.built {
        eprintln!("building the world");
        fs::copy(build.world(), &world).expect("keeps the program");
    }
    let left = work.join("left.tsv");
    if arguments.built {
        build.remember(&left)
    } else {
        build.keep(&left)
    }

    let mut measured = Measured::default();
    let tests: HashMap<&str, Vec<Test>> =
        of_tests.iter().map(|folder| (folder.name, measured.tests(folder, &programs, &copy))).collect();
    let world = (!arguments.without_world).then(|| {
        eprintln!("measuring {} worlds", tries::WORLDS);
        tries::world(&copy, &world)
    });

    let begun = Instant::now();
    let until = arguments.minutes.map(|minutes| begun + Duration::from_secs(minutes * 60));
    let (next, report) = (AtomicUsize::new(0), Mutex::new(report));
    // How many mutants of a file each test has noticed.
    let noticed = Mutex::new(HashMap::<&str, HashMap<String, usize>>::new());
    let go_through = |copy: &Copy| {
        while until.is_none_or(|until| Instant::now() < until) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutant) = mutants.get(index) else { break };
            let number = index as u32 + 1;
            if let Some(left) = build.left.get(&number) {
                report.lock().expect("is sound").left(mutant, *left);
                continue;
            }
            let before = noticed.lock().expect("is sound").entry(&mutant.file).or_default().clone();
            let tests = tests.get(FOLDERS[mutant.folder].name).map_or(&[][..], Vec::as_slice);
            let fate = tries::fate(copy, number, tests, world.as_ref(), &before);
            if let Fate::Tests(test) = &fate {
                let mut noticed = noticed.lock().expect("is sound");
                *noticed.entry(&mutant.file).or_default().entry(test.clone()).or_default() += 1;
            }
            report.lock().expect("is sound").fate(mutant, &fate);
        }
    };
    std::thread::scope(|scope| {
        for job in 0..arguments.jobs.max(1) {
            let (copy, go_through) = (copy.with_scratch(&work.join(format!("scratch-{job}"))), &go_through);
            scope.spawn(move || go_through(&copy));
        }
    });
    let report = report.into_inner().expect("is sound");
    if report.print(begun.elapsed().as_secs_f64()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
