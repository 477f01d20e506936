//! Kept plans: small plans in files, each of which notices a canary, or failed before a bug was mended.

use std::fs;
use std::path::{Path, PathBuf};

use dedupfs_sync::canary::Canary;
use serde::{Deserialize, Serialize};

use crate::attempt::{ATTEMPT_SECS, PASSING_SECS, attempt};
use crate::name::Name;
use crate::plan::Plan;

/// The content of a file in `kept`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The canary that it must notice; `None`: it must pass, since its bug is mended.
    pub finds: Option<Name<Canary>>,
    pub plan: Plan,
}

/// Seeds behind a plan's own under which it may notice its canary, too: a change of the engine changes all orders.
const LATER_SEEDS: u64 = 50;

/// The directory of kept plans.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kept")
}

impl Kept {
    /// Reads a plan.
    ///
    /// # Errors
    /// The file, and why it cannot be read or is no plan.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| format!("{} is no plan as --shrink writes it: {error}", path.display()))
    }

    /// The plan as JSON.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("plans can be written") + "\n"
    }

    /// Runs the plan without its canary, then with it. Returns what it shows, in words.
    ///
    /// # Errors
    /// What is not as the file says, and the next step.
    fn check(&self) -> Result<String, String> {
        let Some(Name(canary)) = self.finds else {
            return attempt(&self.plan, None, PASSING_SECS).map(|()| "passes".to_owned());
        };
        let mut plan = self.plan.clone();
        for later in 0..=LATER_SEEDS {
            plan.seed = self.plan.seed.wrapping_add(later);
            attempt(&plan, None, PASSING_SECS)
                .map_err(|failure| format!("fails without the canary {canary:?}: {failure}"))?;
            if attempt(&plan, Some(canary), ATTEMPT_SECS).is_err() {
                let seed = if later == 0 { String::new() } else { format!(", now under seed {}", plan.seed) };
                return Ok(format!("notices {canary:?}{seed}"));
            }
        }
        Err(format!(
            "does not notice the canary {canary:?} any more, under {} seeds. If the engine is right, keep another plan: \
             --shrink SEED --canary {canary:?} --keep NAME",
            LATER_SEEDS + 1
        ))
    }
}

/// The file of a plan that is to be kept under this name.
///
/// # Errors
/// The name cannot be one, or is taken.
pub fn new_file(name: &str) -> Result<PathBuf, String> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_') {
        return Err(format!("{name:?} is no name of a plan: letters, digits, - and _ make one"));
    }
    let path = directory().join(name).with_extension("json");
    if path.exists() {
        return Err(format!("{} exists: remove it, or choose another name", path.display()));
    }
    Ok(path)
}

/// Writes a kept plan to its file.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, kept: &Kept) -> Result<(), String> {
    let written = fs::create_dir_all(directory()).and_then(|()| fs::write(path, kept.text()));
    written.map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

/// Runs all kept plans, and prints what each shows.
///
/// # Errors
/// A plan does not show what its file says, or cannot be read; or there is none.
pub fn run_all() -> Result<(), String> {
    let entries = fs::read_dir(directory()).map_err(|error| format!("{}: {error}", directory().display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut wrong = 0;
    for path in &paths {
        let shown =
            Kept::read(path).and_then(|kept| kept.check().map_err(|error| format!("{}: it {error}", path.display())));
        match shown {
            Ok(shown) => println!("{}: {shown}", path.file_stem().unwrap_or_default().display()),
            Err(error) => {
                println!("{error}");
                wrong += 1;
            }
        }
    }
    match (paths.len(), wrong) {
        (0, _) => Err(format!("{} has no plans", directory().display())),
        (_, 0) => Ok(()),
        (all, wrong) => Err(format!("{wrong} of {all} kept plans do not show what their files say")),
    }
}
