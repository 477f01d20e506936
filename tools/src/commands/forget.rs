//! `dedupfs forget`: removes versions, each as a whole.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use dedupfs::WouldFree;
use serde::Serialize;

use crate::args::versions::ForgetArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::versions::{self, Directory};
use crate::{exit, report};

/// The result.
#[derive(Serialize, Default)]
pub(crate) struct Forgotten {
    pub(crate) dry_run: bool,
    /// Versions that were removed, or would be.
    pub(crate) removed: Vec<String>,
    pub(crate) failed: Vec<Failed>,
    /// With a dry run: the bytes that their removal frees together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) would_free: Option<WouldFree>,
}

/// A version that was not removed.
#[derive(Serialize)]
pub(crate) struct Failed {
    pub(crate) path: String,
    pub(crate) message: String,
}

/// The directories that hold the versions, open, each with its daemon.
type Directories = BTreeMap<PathBuf, (Directory, ControlClient)>;

pub(crate) fn run(args: &ForgetArgs) -> Result<u8, Failure> {
    let mut directories = Directories::new();
    let mut result = Forgotten { dry_run: args.dry_run, ..Forgotten::default() };
    let mut found = Vec::new();
    for path in &args.versions {
        let outcome = held(path, &mut directories).and_then(|((directory, daemon), name)| match args.dry_run {
            true => directory.version_named(name, path).map(|ino| found.push(ino)),
            false => directory.forget(daemon, name, None, path),
        });
        match outcome {
            Ok(()) => result.removed.push(report::shown_path(path)),
            // The one failure has a code of its own.
            Err(failure) if args.versions.len() == 1 => return Err(failure),
            Err(failure) => {
                eprintln!("dedupfs: {failure}");
                result.failed.push(Failed { path: report::shown_path(path), message: failure.message });
            }
        }
    }
    let ended = match args.dry_run {
        true => would_free(found, directories).map(|told| result.would_free = told),
        false => directories.iter().try_for_each(|(path, (directory, _))| directory.sync(path)),
    };
    exit::print_message(args.json, "forget", &result, report::versions::forgotten)?;
    ended?;
    Ok(if result.failed.is_empty() { exit::OK } else { exit::PARTLY })
}

/// Returns the bytes that the removal of these versions frees together.
fn would_free(found: Vec<u64>, directories: Directories) -> Result<Option<WouldFree>, Failure> {
    let mut directories = directories.into_values();
    let Some((first, mut daemon)) = directories.next().filter(|_| !found.is_empty()) else { return Ok(None) };
    if directories.any(|(other, _)| other.place.pool != first.place.pool) {
        return Err(FailureKind::Usage.because("these versions lie in several pools: ask for those of each"));
    }
    versions::would_free(&mut daemon, found).map(Some)
}

/// Returns the directory that holds a version, with its daemon, and the version's name.
fn held<'a, 'b>(
    path: &'a Path,
    directories: &'b mut Directories,
) -> Result<(&'b mut (Directory, ControlClient), &'a OsStr), Failure> {
    let Some(name) = path.file_name() else {
        return Err(FailureKind::Usage.because(format!("{} names no version: give its name", path.display())));
    };
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(Failure::failed(format!("{} does not exist", path.display())));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directories.contains_key(parent) {
        let directory = Directory::open(parent).map_err(|failure| match failure.kind {
            FailureKind::Usage => failure.and("; a version can only be removed as a whole"),
            _ => failure,
        })?;
        let daemon = directory.daemon()?;
        directories.insert(parent.to_owned(), (directory, daemon));
    }
    let held = directories.get_mut(parent);
    Ok((held.ok_or_else(|| Failure::failed(format!("cannot open {}", parent.display())))?, name))
}
