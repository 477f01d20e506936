//! `dedupfs forget`: removes versions, each as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::versions::ForgetArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::versions::Directory;
use crate::{exit, report};

/// The result.
#[derive(Serialize, Default)]
pub(crate) struct Forgotten {
    pub(crate) removed: Vec<String>,
    pub(crate) failed: Vec<Failed>,
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
    let mut result = Forgotten::default();
    for path in &args.versions {
        match forget(path, &mut directories) {
            Ok(()) => result.removed.push(path.display().to_string()),
            // The one failure has a code of its own.
            Err(failure) if args.versions.len() == 1 => return Err(failure),
            Err(failure) => {
                eprintln!("dedupfs: {failure}");
                result.failed.push(Failed { path: path.display().to_string(), message: failure.message });
            }
        }
    }
    directories.iter().try_for_each(|(path, (directory, _))| directory.sync(path))?;
    exit::print_message(args.json, "forget", &result, report::versions::forgotten)?;
    Ok(if result.failed.is_empty() { exit::OK } else { exit::PARTLY })
}

fn forget(path: &Path, directories: &mut Directories) -> Result<(), Failure> {
    let Some(name) = path.file_name() else {
        return Err(FailureKind::Usage.because(format!("{} names no version: give its name", path.display())));
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directories.contains_key(parent) {
        let directory = Directory::open(parent).map_err(|failure| match failure.kind {
            FailureKind::Usage => failure.and("; a version can only be removed as a whole"),
            _ => failure,
        })?;
        let daemon = directory.daemon()?;
        directories.insert(parent.to_owned(), (directory, daemon));
    }
    match directories.get_mut(parent) {
        Some((directory, daemon)) => directory.forget(daemon, name, None, path),
        None => Err(Failure::failed(format!("cannot open {}", parent.display()))),
    }
}
