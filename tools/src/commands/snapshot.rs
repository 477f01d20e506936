//! `dedupfs snapshot`: makes a version in a hidden directory, and gives it its name when it is complete.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dedupfs::{Origin, Progress, VersionReport, is_frozen};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::args::versions::SnapshotArgs;
use crate::control::{Failure, FailureKind, SnapshotRequest};
use crate::hidden::HiddenDirectory;
use crate::inside::{self, Inside, NewName};
use crate::progress::Bars;
use crate::{exit, interrupt, report};

/// Text behind messages about a daemon that cannot be asked.
const ADVICE: &str = "; `cp -a` copies without it, but what it makes is no version";

#[derive(Serialize)]
struct Made<'a> {
    path: String,
    #[serde(flatten)]
    report: &'a VersionReport,
}

pub(crate) fn run(args: &SnapshotArgs) -> Result<u8, Failure> {
    let (from, place) = source(&args.source)?;
    let to = destination(&args.destination, &place)?;
    let path = inside::name_of_source(&args.source);
    let origin = Origin {
        source: path.as_os_str().as_bytes().to_vec(),
        host: rustix::system::uname().nodename().to_bytes().to_vec(),
    };
    // Writes back changes in mapped files, which only the kernel knows.
    let _as_far_as_it_goes = rustix::fs::syncfs(&from);
    // From here on a signal ends the command in order, and the hidden directory goes.
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let hidden = HiddenDirectory::make(&to.directory, None)?;
    let name = to.name.as_bytes().to_vec();
    let request = SnapshotRequest { source: place.ino, into: hidden.ino, name, origin };
    let made = make(args, (&place, &to), &hidden, request, &progress);
    bars.finish();
    hidden.remove_or_tell(&args.destination);
    let made = made?;
    exit::tell(&report::versions::unlinked(&made));
    let path = report::shown_path(&args.destination);
    let made = Made { path, report: &made };
    exit::print_message(args.json, "snapshot", &made, |made| report::versions::made(&made.path, made.report))?;
    Ok(exit::OK)
}

fn make(
    args: &SnapshotArgs,
    (place, to): (&Inside, &NewName),
    hidden: &HiddenDirectory<'_>,
    request: SnapshotRequest,
    progress: &dyn Progress,
) -> Result<VersionReport, Failure> {
    let report = inside::daemon(&place.pool, ADVICE)?.snapshot(request, progress)?;
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    hidden.give_name(&to.name, &args.destination)?;
    to.directory.sync_all().map_err(|error| {
        let destination = args.destination.display();
        Failure::failed(format!("{destination} was made, but could not be made durable: {error}; see the pool's log"))
    })?;
    Ok(report)
}

/// Opens the source. It is kept open, so that its inode stays.
fn source(path: &Path) -> Result<(File, Inside), Failure> {
    let shown = path.display();
    let (from, metadata) = inside::open_source(path)?;
    let refused = |why: &str| Err(FailureKind::Usage.because(format!("{shown} {why}")));
    if !metadata.is_dir() {
        return refused("is no directory: a version is made of a directory, with everything in it");
    }
    let Some(place) = inside::find(&from)? else {
        return refused(
            "is in no mounted dedupfs: `dedupfs snapshot MNT/DIR MNT/NAME` makes a version of a directory that is in one, \
             `dedupfs put SOURCE MNT/NAME` copies a directory into one",
        );
    };
    if is_frozen(place.ino) {
        return refused("is a version, or lies in one, and never changes: make the new version of a live directory");
    }
    Ok((from, place))
}

pub(super) fn destination(path: &Path, source: &Inside) -> Result<NewName, Failure> {
    let to = NewName::at(path)?;
    let refused = |why: &str| Err(FailureKind::Usage.because(format!("{} {why}", path.display())));
    let metadata = to.directory.metadata();
    let metadata = metadata.map_err(|error| Failure::failed(format!("cannot look at {}: {error}", path.display())))?;
    if metadata.dev() != source.device {
        return refused(
            "is not in the mount of the source: a version shares all content with it, so it lies in the same mount",
        );
    }
    if is_frozen(metadata.ino()) {
        return refused("lies in a version, which never changes: choose a place beside versions");
    }
    if lies_in(&to.directory, source.ino).unwrap_or(false) {
        return refused("lies in the source: the next snapshot could not hold it, so choose a place beside the source");
    }
    Ok(to)
}

/// Whether a directory is, or lies in, the directory with this inode number, of the same mount.
fn lies_in(directory: &File, ino: u64) -> std::io::Result<bool> {
    let mut at = directory.try_clone()?;
    loop {
        let is = at.metadata()?;
        if is.ino() == ino {
            return Ok(true);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = File::from(rustix::fs::openat(&at, "..", flags, Mode::empty())?);
        let above_is = above.metadata()?;
        if above_is.dev() != is.dev() || above_is.ino() == is.ino() {
            return Ok(false);
        }
        at = above;
    }
}
