//! `dedupfs series`: the rules by which the versions of a directory are kept.

use std::path::Path;

use dedupfs::retention::Rules;
use serde::Serialize;

use crate::args::versions::{SeriesArgs, SeriesCommand, SeriesSetArgs};
use crate::control::{Failure, FailureKind};
use crate::versions::{Directory, check_rules};
use crate::{exit, report};

#[derive(Serialize)]
struct Series {
    path: String,
    /// The rules as options of `dedupfs prune`; none if the directory is no series.
    rules: Option<String>,
}

impl Series {
    fn of(path: &Path, rules: Option<Rules>) -> Self {
        Self { path: report::shown_path(path), rules: rules.map(|rules| rules.to_string()) }
    }
}

pub(crate) fn run(args: &SeriesArgs) -> Result<u8, Failure> {
    match &args.command {
        SeriesCommand::Set(args) => set(args),
        SeriesCommand::Show(args) => show(&args.directory, args.json),
        SeriesCommand::Unset(args) => unset(&args.directory, args.json),
    }
}

fn set(args: &SeriesSetArgs) -> Result<u8, Failure> {
    let rules = args.rules.rules().ok_or_else(|| {
        FailureKind::Usage
            .because("give rules, such as `--keep-last 3 --keep-daily 7`; `dedupfs series unset` takes them away")
    })?;
    let rules = check_rules(rules)?;
    let directory = Directory::open(&args.directory)?;
    let (before, is_upgraded) = directory.daemon()?.set_series(directory.place.ino, Some(rules))?;
    if is_upgraded {
        exit::tell("dedupfs: the pool may have versions from now on; releases without versions refuse it\n");
    }
    exit::print_message(args.json, "series", &Series::of(&args.directory, Some(rules)), |series| {
        let before = before.map_or_else(String::new, |before| format!(", no longer {before}"));
        format!("{} is a series with the rules {rules}{before}\n", series.path)
    })?;
    Ok(exit::OK)
}

fn show(path: &Path, json: bool) -> Result<u8, Failure> {
    let directory = Directory::open(path)?;
    let rules = directory.daemon()?.series(directory.place.ino)?;
    exit::print_message(json, "series", &Series::of(path, rules), |series| match rules {
        Some(rules) => format!("{rules}\n"),
        None => format!("{0} is no series: `dedupfs series set {0} --keep-daily 7` gives it rules\n", series.path),
    })?;
    Ok(exit::OK)
}

fn unset(path: &Path, json: bool) -> Result<u8, Failure> {
    let directory = Directory::open(path)?;
    let (before, _) = directory.daemon()?.set_series(directory.place.ino, None)?;
    exit::print_message(json, "series", &Series::of(path, None), |series| match before {
        Some(before) => format!("{} is no series any more; its rules were {before}\n", series.path),
        None => format!("{} was no series\n", series.path),
    })?;
    Ok(exit::OK)
}
