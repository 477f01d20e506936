//! The programs of the suites, and their tests, measured once.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::build::Build;
use crate::copy::Copy;
use crate::folders::{Folder, Suite};
use crate::tries::{Test, tests_of};

/// Programs of tests, each with its package and target.
pub struct Programs(Vec<(Suite, PathBuf)>);

/// Tests that were measured, by their suite and the beginning of their names.
#[derive(Default)]
pub struct Measured(HashMap<String, Vec<Test>>);

fn is_same(a: &Suite, b: &Suite) -> bool {
    (a.package, a.target) == (b.package, b.target)
}

impl Programs {
    /// Builds those of these folders. With `built` the last run has done so.
    pub fn new(folders: &[&Folder], build: &mut Build<'_>, work: &Path, built: bool) -> Self {
        let mut programs = Vec::<(Suite, PathBuf)>::new();
        for suite in folders.iter().flat_map(|folder| folder.suites) {
            if programs.iter().any(|(present, _)| is_same(present, suite)) {
                continue;
            }
            let kept = work.join(format!("suite-{}", programs.len()));
            if !built {
                eprintln!("building the tests of {} {}", suite.package, suite.target.join(" "));
                // The next build may write another program to its path.
                fs::copy(build.suite(suite), &kept).expect("keeps the program");
            }
            programs.push((*suite, kept));
        }
        Self(programs)
    }
}

impl Measured {
    /// Returns the tests of a folder.
    pub fn tests(&mut self, folder: &Folder, programs: &Programs, copy: &Copy) -> Vec<Test> {
        let of = |suite: &Suite| {
            let (_, program) = programs.0.iter().find(|(built, _)| is_same(built, suite)).expect("the suite is built");
            let directory = match suite.package {
                "dedupfs-index" => "index",
                "dedupfs-store" => "store",
                "dedupfs-content" => "src/content",
                _ => ".",
            };
            let mut tests = Vec::new();
            for prefix in suite.prefixes {
                let name = format!("{} {} {prefix}", suite.package, suite.target.join(" "));
                let some = self.0.entry(name.clone()).or_insert_with(|| {
                    eprintln!("measuring the tests of {name}");
                    tests_of(copy, program, &copy.root.join(directory), prefix)
                });
                tests.extend(some.iter().cloned());
            }
            tests
        };
        folder.suites.iter().flat_map(of).collect()
    }
}
