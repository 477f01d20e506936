//! `dedupfs history`: the contents of one path in the versions of a directory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use dedupfs::{HistoryRow, HistoryState, Progress as _};
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::args::versions::HistoryArgs;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::report::differences;
use crate::versions::Directory;
use crate::{exit, interrupt};

#[derive(Serialize)]
struct Told {
    contents: Vec<HistoryRow>,
}

pub(crate) fn run(args: &HistoryArgs) -> Result<u8, Failure> {
    #[cfg(feature = "remote")]
    return crate::view::at(&args.directory, &args.view, |path| run_at(args, path));
    #[cfg(not(feature = "remote"))]
    run_at(args, &args.directory)
}

/// Tells the history in a directory in a mount.
fn run_at(args: &HistoryArgs, directory: &Path) -> Result<u8, Failure> {
    let path = inner(&args.path)?;
    let directory = Directory::open(directory)?;
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let contents = directory.daemon()?.history(directory.place.ino, path.as_bytes(), &progress)?;
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    bars.finish();
    let (shown, of) = (args.path.display(), args.directory.display());
    if contents.is_empty() {
        return Err(Failure::failed(format!("no versions in {of}: `dedupfs list` shows where there are some")));
    }
    if contents.iter().all(|row| row.state == HistoryState::Absent) {
        return Err(Failure::failed(format!(
            "no version in {of} has {shown}: the path begins at the top of a version"
        )));
    }
    let told = Told { contents };
    exit::print_message(args.json, "history", &told, |told| differences::history(&told.contents, &TimeZone::system()))?;
    match told.contents.iter().find(|row| matches!(row.state, HistoryState::Unreadable(_))) {
        None => Ok(exit::OK),
        Some(row) => Err(FailureKind::Damaged.because(format!(
            "version {} cannot be read there: `dedupfs scrub` repairs what has a copy, and names what is lost",
            row.first
        ))),
    }
}

/// Returns a path from the top of a version without its detours.
fn inner(path: &Path) -> Result<OsString, Failure> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            _ => {
                let why = format!("{} has `..`: name a path from the top of the versions", path.display());
                return Err(FailureKind::Usage.because(why));
            }
        }
    }
    Ok(names.join(std::ffi::OsStr::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_at_the_top() {
        for (given, expected) in [("/etc/passwd", "etc/passwd"), ("./a//b/", "a/b"), (".", ""), ("/", "")] {
            assert_eq!(inner(Path::new(given)).ok(), Some(OsString::from(expected)), "{given}");
        }
        assert!(inner(Path::new("a/../b")).is_err());
    }
}
