//! Builds the tests and the world with all mutants in them. Mutants that do not build are found by the errors.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::copy::Copy;
use crate::folders::Suite;
use crate::list::Mutant;
use crate::weave::weave;

/// Mutants in one build, and one more, for no mutant. `switch.rs` has as many marks.
const MUTANTS: usize = 1 << 14;

/// The reason for which a mutant is not tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// The compiler refuses it.
    Unviable,
    /// It cannot stand beside the code that it changes.
    Apart,
}

/// What is woven, and what was built from it.
pub struct Build<'a> {
    pub copy: &'a Copy,
    /// Mutant number N is at N - 1.
    pub mutants: &'a [Mutant],
    pub left: HashMap<u32, Left>,
    constant: HashSet<String>,
    marks: HashMap<String, Vec<(Range<usize>, u32)>>,
}

/// Whether the cause of this error is the weaving, or may be: then the mutant itself might build.
fn is_of_weaving(code: &str) -> bool {
    // Functions that are not `const`; borrows; moves.
    code.starts_with("E05") || ["E0015", "E0658", "E0716", "E0382", "E0373", "E0493", "E0621"].contains(&code)
}

impl<'a> Build<'a> {
    /// Nothing is woven yet.
    pub fn new(copy: &'a Copy, mutants: &'a [Mutant]) -> Self {
        assert!(mutants.len() < MUTANTS, "a share has fewer mutants: choose a smaller one");
        Self { copy, mutants, left: HashMap::new(), constant: HashSet::new(), marks: HashMap::new() }
    }

    /// Writes the mutants that are left out to a file.
    pub fn keep(&self, path: &Path) {
        let line = |(number, left): (&u32, &Left)| format!("{number} {left:?}\n");
        std::fs::write(path, self.left.iter().map(line).collect::<String>()).expect("keeps what is left out");
    }

    /// Reads the mutants that are left out from the file of another run.
    pub fn remember(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path).expect("an earlier run kept what is left out");
        for line in text.lines() {
            let (number, left) = line.split_once(' ').expect("has two words");
            let left = if left == "Apart" { Left::Apart } else { Left::Unviable };
            self.left.insert(number.parse().expect("is a number"), left);
        }
    }

    /// Writes the copy with all mutants that are not left out.
    fn weave(&mut self) {
        let mut by_file = BTreeMap::<&str, Vec<(u32, &Mutant)>>::new();
        for (number, mutant) in (1..).zip(self.mutants) {
            if !self.left.contains_key(&number) {
                by_file.entry(&mutant.file).or_default().push((number, mutant));
            }
        }
        let (left, marks, constant) = (&mut self.left, &mut self.marks, &self.constant);
        self.copy.write(|name, mut bytes| {
            if let Some(mutants) = by_file.get(name) {
                let source = String::from_utf8(bytes).expect("sources are text");
                let prefix = if name.starts_with("store/sync/") { "crate::" } else { "::dedupfs_sync::" };
                let woven = weave(&source, prefix, mutants, constant);
                left.extend(woven.apart.into_iter().map(|number| (number, Left::Apart)));
                marks.insert(name.to_owned(), woven.marks);
                bytes = woven.text.into_bytes();
            }
            if name == "store/sync/src/lib.rs" {
                bytes.extend_from_slice(include_bytes!("switch.rs"));
            }
            bytes
        });
    }

    /// Leaves the mutants out that cause an error of the compiler. Returns the error's text if none of them does.
    fn blame(&mut self, message: &Value) -> Result<(), String> {
        let code = message["code"]["code"].as_str().unwrap_or("");
        let text = message["message"].as_str().unwrap_or("");
        let mut found = Vec::new();
        for span in message["spans"].as_array().into_iter().flatten().filter(|span| span["is_primary"] == true) {
            let byte = |name: &str| span[name].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
            let (start, end) = (byte("byte_start"), byte("byte_end"));
            let marks = self.marks.get(span["file_name"].as_str().unwrap_or("")).into_iter().flatten();
            let at: Vec<_> = marks.filter(|(range, _)| range.start < end && start < range.end).collect();
            // The smallest mark around the error, else all marks in it.
            let around = at.iter().filter(|(range, _)| range.start <= start && end <= range.end);
            match around.min_by_key(|(range, _)| range.len()) {
                Some((_, number)) => found.push(*number),
                None => found.extend(at.iter().map(|(_, number)| *number)),
            }
        }
        let is_constant = code == "E0015" && found.is_empty();
        if is_constant && let Some(name) = text.split('`').nth(1) {
            // A constant calls a function that is not `const` any more.
            let name = name.rsplit("::").next().unwrap_or(name);
            let name = name.split(['(', '<']).next().unwrap_or(name);
            self.constant.insert(name.to_owned());
            return Ok(());
        }
        let left = if is_of_weaving(code) { Left::Apart } else { Left::Unviable };
        found.iter().for_each(|number| _ = self.left.insert(*number, left));
        if found.is_empty() { Err(message["rendered"].as_str().unwrap_or(text).to_owned()) } else { Ok(()) }
    }

    /// Runs a command of Cargo, until it ends well. Returns the programs that it built.
    fn run(&mut self, command: impl Fn() -> Command) -> Vec<PathBuf> {
        loop {
            self.weave();
            let output = command().output().expect("cargo runs");
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            let values = || lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if output.status.success() {
                return values().filter_map(|value| value["executable"].as_str().map(PathBuf::from)).collect();
            }
            let before = self.left.len() + self.constant.len();
            let mut unclear = String::new();
            let messages = values().filter(|value| value["reason"] == "compiler-message");
            for message in messages.filter(|value| value["message"]["level"] == "error") {
                if let Err(text) = self.blame(&message["message"]) {
                    let _ = writeln!(unclear, "{text}");
                }
            }
            let after = self.left.len() + self.constant.len();
            eprintln!("{} mutants or functions do not build", after - before);
            assert!(after > before, "the copy does not build: {unclear}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }

    /// Returns the program of a suite.
    pub fn suite(&mut self, suite: &Suite) -> PathBuf {
        let (root, target) = (self.copy.root.clone(), self.copy.target.clone());
        let programs = self.run(|| {
            let mut cargo = Command::new("cargo");
            cargo.current_dir(&root).args(["test", "--locked", "--no-run", "--message-format=json", "--package"]);
            cargo.arg(suite.package).args(suite.target).env("CARGO_TARGET_DIR", &target);
            cargo.env("CARGO_PROFILE_DEV_DEBUG", "false").env("CARGO_PROFILE_DEV_INCREMENTAL", "true");
            cargo
        });
        programs.into_iter().next().expect("a suite is a program")
    }

    /// Returns the program of the world.
    pub fn world(&mut self) -> PathBuf {
        let (root, target) = (self.copy.root.clone(), self.copy.world_target.clone());
        let programs = self.run(|| {
            let mut cargo = Command::new("cargo");
            cargo.current_dir(&root).args(["build", "--locked", "--release", "--message-format=json"]);
            cargo.args(["--manifest-path", "tests/world/Cargo.toml"]).env("CARGO_TARGET_DIR", &target);
            cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2");
            cargo
        });
        programs.into_iter().next().expect("the world is a program")
    }
}
