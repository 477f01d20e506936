//! `dedupfs series`: the rules by which the versions of a directory are kept.

use std::path::Path;

use dedupfs::{Scope, SeriesRecord};
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
    /// The content with which that of new versions is compared; none if the directory is no series.
    scope: Option<Scope>,
}

impl Series {
    fn of(path: &Path, record: Option<SeriesRecord>) -> Self {
        let rules = record.map(|record| record.rules.to_string());
        Self { path: report::shown_path(path), rules, scope: record.map(|record| record.scope) }
    }
}

/// The options of `dedupfs series set` that give this record.
fn shown(record: SeriesRecord) -> String {
    match record.scope {
        Scope::Pool => record.rules.to_string(),
        Scope::Neighbour => format!("{} --scope neighbour", record.rules),
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
    let needs_rules = || {
        FailureKind::Usage
            .because("give rules, such as `--keep-last 3 --keep-daily 7`; `dedupfs series unset` takes them away")
    };
    let rules = args.rules.rules().map(check_rules).transpose()?;
    if rules.is_none() && args.scope.is_none() {
        return Err(needs_rules());
    }
    let directory = Directory::open(&args.directory)?;
    let mut daemon = directory.daemon()?;
    let before = match daemon.series(directory.place.ino) {
        // A record that this release cannot read is replaced.
        Err(failure) if matches!(failure.kind, FailureKind::Damaged | FailureKind::NotAPool) => None,
        before => before?,
    };
    let rules = rules.or_else(|| args.scope.and(before).map(|record| record.rules)).ok_or_else(needs_rules)?;
    let record = SeriesRecord {
        rules,
        scope: args.scope.map_or_else(|| before.map(|before| before.scope).unwrap_or_default(), Into::into),
    };
    let (before, is_upgraded) = daemon.set_series(directory.place.ino, Some(record))?;
    if is_upgraded {
        exit::tell("dedupfs: the pool may have versions from now on; releases without versions refuse it\n");
    }
    exit::print_message(args.json, "series", &Series::of(&args.directory, Some(record)), |series| {
        let before = before.map_or_else(String::new, |before| format!(", no longer {}", shown(before)));
        format!("{} is a series with the rules {}{before}\n", series.path, shown(record))
    })?;
    Ok(exit::OK)
}

fn show(path: &Path, json: bool) -> Result<u8, Failure> {
    let directory = Directory::open(path)?;
    let record = directory.daemon()?.series(directory.place.ino)?;
    exit::print_message(json, "series", &Series::of(path, record), |series| match record {
        Some(record) => format!("{}\n", shown(record)),
        None => format!("{0} is no series: `dedupfs series set {0} --keep-daily 7` gives it rules\n", series.path),
    })?;
    Ok(exit::OK)
}

fn unset(path: &Path, json: bool) -> Result<u8, Failure> {
    let directory = Directory::open(path)?;
    let (before, _) = directory.daemon()?.set_series(directory.place.ino, None)?;
    exit::print_message(json, "series", &Series::of(path, None), |series| match before {
        Some(before) => format!("{} is no series any more; its rules were {}\n", series.path, shown(before)),
        None => format!("{} was no series\n", series.path),
    })?;
    Ok(exit::OK)
}
