//! `dedupfs freeze`: puts a version in the place of a live directory.
//!
//! 1. The daemon makes a version in a hidden directory, and notes changes of the live one from then on.
//! 2. The kernel exchanges the names. The daemon refuses that if anything has changed, and everything begins again, at most
//!    [`ATTEMPTS`] times.
//! 3. The exchange is made durable. Then the live tree, which the hidden directory holds by now, is removed.

mod date;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dedupfs::{Origin, Progress, VersionReport, is_frozen};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;
use serde::Serialize;

use super::forget::Failed;
use crate::args::versions::{FreezeArgs, TimeOf};
use crate::control::{Failure, FailureKind, FreezeRequest};
use crate::hidden::{HiddenDirectory, is_hidden, open_directory};
use crate::inside::{self, Inside};
use crate::progress::Bars;
use crate::{exit, interrupt, mountinfo, report};

/// Text behind messages about a daemon that cannot be asked.
const ADVICE: &str = "; nothing was frozen";
/// Versions made of a directory that changes meanwhile.
const ATTEMPTS: u32 = 3;
/// By so much may the time of a backup lie in the future: it was made in another time zone, or by another clock.
const CLOCKS_DIFFER_SECS: i64 = 24 * 3600;
/// Inode number of a mount's root.
const ROOT_INO: u64 = 1;

/// The result.
#[derive(Serialize, Default)]
pub(crate) struct Frozen {
    pub(crate) dry_run: bool,
    pub(crate) frozen: Vec<FrozenDirectory>,
    pub(crate) failed: Vec<Failed>,
}

/// A directory that became a version, or would become one.
#[derive(Serialize)]
pub(crate) struct FrozenDirectory {
    pub(crate) path: String,
    /// Time of the backup, in seconds since 1970.
    pub(crate) completed_secs: i64,
    pub(crate) time: TimeOf,
    /// None if nothing was done.
    #[serde(flatten)]
    pub(crate) report: Option<VersionReport>,
}

/// A directory to be frozen.
struct Target {
    path: PathBuf,
    secs: i64,
    time: TimeOf,
}

pub(crate) fn run(args: &FreezeArgs) -> Result<u8, Failure> {
    let mut result = Frozen { dry_run: args.dry_run, ..Frozen::default() };
    let mut targets = Vec::new();
    for path in &args.directories {
        let found = match args.all {
            true => children(path, args.time),
            false => target(path, args.time.unwrap_or(TimeOf::Now)).map(|target| vec![Ok(target)]),
        };
        match found {
            Ok(found) => found.into_iter().for_each(|found| match found {
                Ok(target) => targets.push(target),
                Err((path, failure)) => note(&mut result, &path, failure),
            }),
            // The one failure has a code of its own.
            Err(failure) if args.directories.len() == 1 => return Err(failure),
            Err(failure) => note(&mut result, path, failure),
        }
    }
    targets.sort_by(|a, b| (a.secs, &a.path).cmp(&(b.secs, &b.path)));
    // From here on a signal ends the command in order, and the hidden directory goes.
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let is_only_one = targets.len() == 1 && !args.all && result.failed.is_empty();
    let mut has_leftovers = false;
    for target in targets {
        let frozen = match args.dry_run {
            true => check(&target.path).map(|_| None),
            false if progress.is_cancelled() => break,
            false => freeze(&target, &progress).map(|(report, left)| {
                if let Some(left) = left {
                    has_leftovers = true;
                    bars.finish();
                    exit::tell(&format!("dedupfs: {} is frozen, but {left}\n", target.path.display()));
                }
                Some(report)
            }),
        };
        bars.finish();
        let path = report::shown_path(&target.path);
        match frozen {
            Ok(report) => {
                let directory = FrozenDirectory { path, completed_secs: target.secs, time: target.time, report };
                if !args.json {
                    exit::print(&report::versions::frozen(
                        &directory,
                        args.all || args.time.is_some(),
                        &TimeZone::system(),
                    ))?;
                }
                result.frozen.push(directory);
            }
            Err(failure) if is_only_one => return Err(failure),
            Err(failure) => note(&mut result, &target.path, failure),
        }
    }
    match args.json {
        true => exit::print(&report::message("freeze", &result)?)?,
        false if args.all || args.directories.len() > 1 => exit::print(&report::versions::frozen_sum(&result))?,
        false => {}
    }
    if progress.is_cancelled() {
        // The result is told already.
        exit::tell("dedupfs: interrupted: what was frozen by then stays so, and the next run goes on\n");
        return Ok(exit::PARTLY);
    }
    Ok(if result.failed.is_empty() && !has_leftovers { exit::OK } else { exit::PARTLY })
}

fn note(result: &mut Frozen, path: &Path, failure: Failure) {
    exit::tell(&format!("dedupfs: {failure}\n"));
    result.failed.push(Failed { path: report::shown_path(path), message: failure.message });
}

fn unusable(path: &Path, why: &str) -> Failure {
    FailureKind::Usage.because(format!("{} {why}", path.display()))
}

/// Gives a directory its time.
fn target(path: &Path, time: TimeOf) -> Result<Target, Failure> {
    let metadata = std::fs::symlink_metadata(path)
        .map_err(|error| Failure::failed(format!("cannot look at {}: {error}", path.display())))?;
    let name = path.file_name().unwrap_or_default();
    let now = Timestamp::now().as_second();
    let secs = match time {
        TimeOf::Now => Some(now),
        TimeOf::Mtime => Some(metadata.mtime()),
        TimeOf::Name => date::date_in(name.as_bytes(), &TimeZone::system()),
    };
    let secs = secs.ok_or_else(|| {
        unusable(path, "has no date such as 2026-11-23 in its name: `--time mtime` takes the time of its last change, `--time now` the present")
    })?;
    if secs > now + CLOCKS_DIFFER_SECS {
        return Err(unusable(
            path,
            "is of the future by its name or mtime: `--time now` takes the present; or rename it, or `touch` it",
        ));
    }
    Ok(Target { path: path.to_owned(), secs: secs.min(now), time })
}

/// Live directories of which some have no time.
type Children = Vec<Result<Target, (PathBuf, Failure)>>;

/// Finds the live directories in a directory.
fn children(path: &Path, time: Option<TimeOf>) -> Result<Children, Failure> {
    let directory = crate::versions::Directory::open(path)?;
    let failed = |errno: Errno| Failure::failed(format!("cannot list {}: {errno}", path.display()));
    let mut names: Vec<OsString> = Vec::new();
    for entry in Dir::read_from(&directory.file).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
        // Among them are those of rsync and of put.
        if !name.starts_with(b".") {
            names.push(OsStr::from_bytes(&name).to_owned());
        }
    }
    let has_date = |name: &OsStr| date::date_in(name.as_bytes(), &TimeZone::system()).is_some();
    // Also those of versions: the next run must decide as this one.
    let is_dated = time.is_none() && names.iter().any(|name| has_date(name));
    let mut children = Vec::new();
    for name in names {
        let Ok(stat) = statat(&directory.file, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_live = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && !is_frozen(stat.st_ino);
        if !is_live || is_work(&directory.file, &name) {
            continue;
        }
        let shown = path.join(&name);
        if is_dated && !has_date(&name) {
            // It would count as a backup that is newer than all others.
            let shown = shown.display();
            exit::tell(&format!(
                "dedupfs: {shown} stays live: no date in its name, and others have one (`dedupfs freeze {shown}` freezes it)\n"
            ));
            continue;
        }
        children.push((shown, name));
    }
    if time.is_none() && !is_dated && !children.is_empty() {
        return Err(unusable(
            path,
            "has directories, and none with a date such as 2026-11-23 in its name: `--time mtime` freezes all, each as of its last change, `--time \
             now` as of the present",
        ));
    }
    let target =
        |(path, _): (PathBuf, OsString)| target(&path, time.unwrap_or(TimeOf::Name)).map_err(|failure| (path, failure));
    Ok(children.into_iter().map(target).collect())
}

/// Whether a name is of a hidden directory, in use or left over.
fn is_work(parent: &File, name: &OsStr) -> bool {
    match open_directory(parent, name.as_bytes()) {
        Ok(directory) => is_hidden(&directory),
        // The daemon works in it.
        Err(errno) => errno == Errno::BUSY,
    }
}

/// A directory that can be frozen as far as this process can tell. Both are kept open, so that their inodes stay.
struct Checked {
    parent: File,
    directory: File,
    name: OsString,
    place: Inside,
    /// Without symbolic links.
    path: PathBuf,
}

fn check(path: &Path) -> Result<Checked, Failure> {
    let metadata = std::fs::symlink_metadata(path)
        .map_err(|error| Failure::failed(format!("cannot look at {}: {error}", path.display())))?;
    if metadata.is_symlink() {
        return Err(unusable(path, "is a symbolic link: name the directory itself"));
    }
    if !metadata.is_dir() {
        return Err(unusable(path, "is no directory"));
    }
    let failed = |error: std::io::Error| Failure::failed(format!("cannot open {}: {error}", path.display()));
    let whole = path.canonicalize().map_err(failed)?;
    let (Some(above), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(unusable(path, "is the root of the system"));
    };
    let (directory, parent) = (File::open(&whole).map_err(failed)?, File::open(above).map_err(failed)?);
    let Some(place) = inside::find(&directory)? else {
        return Err(unusable(path, "is in no mounted dedupfs: `dedupfs put` copies a directory into one"));
    };
    if is_frozen(place.ino) {
        return Err(unusable(path, "is a version already, or lies in one"));
    }
    if place.ino == ROOT_INO {
        return Err(unusable(path, "is the root of the mount, which stays live: freeze directories in it"));
    }
    if is_hidden(&directory) || is_hidden(&parent) {
        return Err(unusable(
            path,
            "belongs to `dedupfs put`, `snapshot` or `freeze`, which works in it or was killed there",
        ));
    }
    let mounts = mountinfo::read()?;
    if let Some(mount) = mounts.iter().find(|mount| mount.mountpoint.starts_with(&whole)) {
        return Err(unusable(
            path,
            &format!("has something mounted on {}: unmount that first", mount.mountpoint.display()),
        ));
    }
    let name = name.to_owned();
    Ok(Checked { parent, directory, name, place, path: whole })
}

/// Freezes a directory. Returns also what is left over, in words.
fn freeze(target: &Target, progress: &dyn Progress) -> Result<(VersionReport, Option<String>), Failure> {
    let checked = check(&target.path)?;
    let shown = target.path.display();
    let origin = Origin {
        source: checked.path.as_os_str().as_bytes().to_vec(),
        host: rustix::system::uname().nodename().to_bytes().to_vec(),
    };
    let mut daemon = inside::daemon(&checked.place.pool, ADVICE)?;
    for _ in 0..ATTEMPTS {
        // Writes back changes in mapped files, which only the kernel knows.
        let _as_far_as_it_goes = rustix::fs::syncfs(&checked.directory);
        let hidden = HiddenDirectory::make(&checked.parent, None)?;
        let request = FreezeRequest {
            source: checked.place.ino,
            into: hidden.ino,
            name: checked.name.as_bytes().to_vec(),
            origin: origin.clone(),
            dated_secs: (target.time != TimeOf::Now).then_some(target.secs),
        };
        let exchanged = daemon.freeze(request, progress).and_then(|made| match made {
            Some(_) if progress.is_cancelled() => Err(FailureKind::Ended.because("interrupted")),
            Some(report) => exchange(&hidden, &checked.name, &target.path).map(|is_done| is_done.then_some(report)),
            None => Ok(None),
        });
        let Ok(Some(report)) = exchanged else {
            hidden.remove_or_tell(&target.path);
            exchanged.map_err(|failure| failure.while_trying(&format!("cannot freeze {shown}")))?;
            continue;
        };
        checked.parent.sync_all().map_err(|error| {
            Failure::failed(format!(
                "{shown} is frozen, but that could not be made durable: {error}; see the pool's log. The live tree stays beside it"
            ))
        })?;
        progress.start("removing the live tree", report.entries);
        let removed = hidden.remove_live(&target.path, &|| {
            progress.advance(1);
            !progress.is_cancelled()
        });
        progress.finish();
        return Ok((report, removed.err()));
    }
    Err(Failure::failed(format!(
        "cannot freeze {shown}: it was changed, or a file in it was open for writing, in {ATTEMPTS} tries. End what writes there, or make a version beside it with \
         `dedupfs snapshot`"
    )))
}

/// Returns `false` if the directory was changed, or is open for writing.
fn exchange(hidden: &HiddenDirectory<'_>, name: &OsStr, path: &Path) -> Result<bool, Failure> {
    match hidden.exchange(name) {
        Ok(()) => Ok(true),
        Err(Errno::BUSY) => Ok(false),
        Err(errno) => {
            let advice = match errno {
                Errno::ACCESS | Errno::PERM => {
                    ": this takes the right to write to the directory, and to the one that holds it"
                }
                _ => "",
            };
            Err(Failure::failed(format!("the version cannot take the place of {}: {errno}{advice}", path.display())))
        }
    }
}
