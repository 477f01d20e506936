//! Runs tests and worlds with a mutant, those first that reach it and are quick.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::copy::Copy;

/// Seeds that a mutant lives through at most.
pub const WORLDS: u32 = 300;
/// Seconds of the quick tests of a mutant together, which run before its worlds.
const QUICK: f64 = 4.0;
/// Seconds of the slow tests of a mutant together, which run behind its worlds.
const SLOW: f64 = 20.0;
/// A test that takes longer does not try mutants.
const TEST_MAX: f64 = 8.0;

/// One test of a suite, or all worlds.
#[derive(Clone, Debug)]
pub struct Test {
    program: PathBuf,
    arguments: Vec<String>,
    directory: PathBuf,
    seconds: f64,
    reaches: BTreeSet<u32>,
    pub name: String,
}

/// An end of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    Passed,
    Failed,
    TimedOut,
    /// Of the worlds: the program ended in another way, which tells nothing about the mutant.
    Broken(String),
}

/// The fate of a mutant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A test of the crate fails.
    Tests(String),
    /// A world fails.
    World,
    /// A test or a world does not end.
    Timeout(String),
    /// Nothing notices it.
    Survived,
    /// No test and no world reaches it.
    Unreached,
    /// No test notices it, and the program of the worlds ended in this way before it had told of all seeds.
    Broken(String),
}

/// Runs a test with a mutant; 0 is none. The numbers of the mutants that it reaches go to the file `seen`.
fn run(copy: &Copy, test: &Test, mutant: u32, seconds: f64, seen: Option<&Path>) -> End {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &format!("{:.0}", seconds.ceil())]).arg(&test.program).args(&test.arguments);
    command.current_dir(&test.directory).env("TMPDIR", &copy.scratch).env("DEDUPFS_MUTANT", mutant.to_string());
    command.env("CARGO_MANIFEST_DIR", &test.directory).env_remove("DEDUPFS_MUTANTS_SEEN").env("RUST_BACKTRACE", "0");
    seen.iter().for_each(|seen| _ = command.env("DEDUPFS_MUTANTS_SEEN", seen));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("timeout runs");
    clear(&copy.scratch);
    let program = test.program.display();
    match status.code() {
        Some(0) => End::Passed,
        _ if begun.elapsed().as_secs_f64() >= seconds => End::TimedOut,
        // No test has run, so no mutant was noticed.
        Some(code @ 125..=127) => panic!("timeout cannot start {program}: it ends with {code}"),
        _ => End::Failed,
    }
}

/// A killed test leaves its directories.
fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

impl Test {
    /// Runs it without a mutant, and notes its time and the mutants that it reaches. Returns whether it passes in time.
    fn measure(&mut self, copy: &Copy, seconds: f64) -> bool {
        let seen = copy.target.join("seen");
        let _absent = fs::remove_file(&seen);
        let begun = Instant::now();
        let end = run(copy, self, 0, seconds, Some(&seen));
        self.seconds = begun.elapsed().as_secs_f64();
        let numbers = fs::read_to_string(&seen).unwrap_or_default();
        self.reaches = numbers.lines().filter_map(|line| line.parse().ok()).collect();
        end == End::Passed
    }

    /// Seconds behind which the test does not end: a mutant makes it slower, and the machine is busy.
    fn longest(&self) -> f64 {
        20.0 + 10.0 * self.seconds
    }
}

/// Returns the tests of a suite that pass, measured.
pub fn tests_of(copy: &Copy, program: &Path, directory: &Path, prefix: &str) -> Vec<Test> {
    let output = Command::new(program).args(["--list", "--format", "terse"]).output().expect("tests are listed");
    let text = String::from_utf8(output.stdout).expect("names are text");
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let names = names.filter(|name| name.starts_with(prefix));
    let mut tests = Vec::new();
    for name in names {
        let mut test = Test {
            program: program.to_owned(),
            arguments: vec!["--exact".to_owned(), name.to_owned()],
            directory: directory.to_owned(),
            seconds: 0.0,
            reaches: BTreeSet::new(),
            name: name.to_owned(),
        };
        if test.measure(copy, TEST_MAX) {
            tests.push(test);
        } else {
            eprintln!("left out, fails or takes longer than {TEST_MAX} s: {name}");
        }
    }
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    tests
}

/// Returns all worlds, measured.
pub fn world(copy: &Copy, program: &Path) -> Test {
    let count = WORLDS.to_string();
    let mut test = Test {
        program: program.to_owned(),
        arguments: ["--from", "0", "--count", &count].map(str::to_owned).to_vec(),
        directory: copy.root.clone(),
        seconds: 0.0,
        reaches: BTreeSet::new(),
        name: "world".to_owned(),
    };
    assert!(test.measure(copy, 3600.0), "the worlds fail without a mutant");
    // Without a mutant no seed is found, which is a failure for the program.
    test.arguments.push("--until-found".to_owned());
    test
}

/// Returns how many tests begin within this time, if they run one after the other.
fn within(tests: &[&Test], seconds: f64) -> usize {
    let mut sum = 0.0;
    let begin = tests.iter().take_while(|test| {
        let is_begun = sum < seconds;
        sum += test.seconds;
        is_begun
    });
    begin.count()
}

/// Tries a mutant.
pub fn fate(copy: &Copy, mutant: u32, tests: &[Test], world: Option<&Test>, noticed: &HashMap<String, usize>) -> Fate {
    let mut reaching: Vec<&Test> = tests.iter().filter(|test| test.reaches.contains(&mutant)).collect();
    let world = world.filter(|world| world.reaches.contains(&mutant));
    if reaching.is_empty() && world.is_none() {
        return Fate::Unreached;
    }
    // Tests that noticed others of the file will notice this one, too.
    let score = |test: &Test| test.seconds / (1.0 + *noticed.get(&test.name).unwrap_or(&0) as f64);
    reaching.sort_by(|a, b| score(a).total_cmp(&score(b)));
    let (quick, slow) = reaching.split_at(within(&reaching, QUICK));
    let slow = &slow[..within(slow, SLOW)];
    let of = |tests: &[&Test]| {
        tests.iter().find_map(|test| match run(copy, test, mutant, test.longest(), None) {
            End::Failed => Some(Fate::Tests(test.name.clone())),
            End::TimedOut => Some(Fate::Timeout(test.name.clone())),
            End::Passed | End::Broken(_) => None,
        })
    };
    if let Some(fate) = of(quick) {
        return fate;
    }
    let otherwise = match world.map(|world| run_worlds(copy, world, mutant)) {
        Some(End::Failed) => return Fate::World,
        Some(End::TimedOut) => return Fate::Timeout("world".to_owned()),
        Some(End::Broken(how)) => Fate::Broken(how),
        Some(End::Passed) | None => Fate::Survived,
    };
    of(slow).unwrap_or(otherwise)
}

/// Runs the worlds with a mutant, until one fails.
fn run_worlds(copy: &Copy, world: &Test, mutant: u32) -> End {
    let seconds = 60.0 + 5.0 * world.seconds;
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &format!("{:.0}", seconds.ceil())]).arg(&world.program).args(&world.arguments);
    command.current_dir(&world.directory).env("TMPDIR", &copy.scratch).env("DEDUPFS_MUTANT", mutant.to_string());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let begun = Instant::now();
    let output = command.output().expect("timeout runs");
    let is_late = begun.elapsed().as_secs_f64() >= seconds;
    end_of_worlds(output.status.code(), &String::from_utf8_lossy(&output.stdout), is_late)
}

/// Returns the end of the worlds that the program tells. It ends well if it has found a seed, and says how many it has
/// tried; so a run that ends with 1 and has tried all passes.
fn end_of_worlds(code: Option<i32>, told: &str, is_late: bool) -> End {
    let tried = told.lines().find_map(|line| line.strip_prefix("tried ")?.parse::<u32>().ok());
    let is_stuck = told.lines().any(|line| line.starts_with("seed ") && line.ends_with(": does not end"));
    match (code, tried) {
        (Some(0), Some(1..=WORLDS)) => End::Failed,
        (Some(1), Some(WORLDS)) => End::Passed,
        (Some(3), None) if is_stuck => End::TimedOut,
        _ if is_late => End::TimedOut,
        _ => {
            // Seeds begin with 0, and each is told when it begins.
            let seed = told.lines().filter(|line| *line == "seed").count().checked_sub(1);
            let code = code.map_or("a signal".to_owned(), |code| code.to_string());
            let at = seed.map_or("before the first seed".to_owned(), |seed| format!("in seed {seed}"));
            End::Broken(format!("the worlds end with {code} {at}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_has_found_a_mutant_only_if_it_tells_the_seed() {
        assert_eq!(end_of_worlds(Some(0), "seed\nseed\ntried 2\n", false), End::Failed);
        assert_eq!(end_of_worlds(Some(1), "seed\ntried 300\n", false), End::Passed);
        assert_eq!(end_of_worlds(Some(3), "seed\nseed 0: does not end\n", false), End::TimedOut);
        assert_eq!(end_of_worlds(None, "seed\n", true), End::TimedOut);
    }

    #[test]
    fn a_broken_program_of_the_worlds_has_found_nothing() {
        let broken = |code, told| matches!(end_of_worlds(code, told, false), End::Broken(_));
        // The memory limit; a panic outside of a seed; arguments that it does not know; a missing program.
        assert!(broken(None, "seed\n"));
        assert!(broken(Some(101), "seed\nseed\n"));
        assert!(broken(Some(2), ""));
        assert!(broken(Some(127), ""));
        assert!(broken(Some(0), ""));
        assert!(broken(Some(1), "seed\ntried 7\n"));
        assert!(broken(Some(3), "seed\n"));
        let told = |told| end_of_worlds(Some(101), told, false);
        assert_eq!(told("seed\nseed\n"), End::Broken("the worlds end with 101 in seed 1".to_owned()));
        assert_eq!(told(""), End::Broken("the worlds end with 101 before the first seed".to_owned()));
    }
}
