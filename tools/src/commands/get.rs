//! `dedupfs get`.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use crate::control::{Failure, FailureKind, GetRequest};
use rustix::fs::OFlags;

use crate::args::GetArgs;
use crate::inside::{self, NewName};
use crate::interrupt::{self, Interruptible};
use crate::progress::Bars;
use crate::{exit, report};

/// Copies a tree out of a mounted pool.
pub fn run(args: &GetArgs) -> Result<u8, Failure> {
    let (source, destination) = (args.source.display(), args.destination.display());
    // Kept open, so that its inode stays. Nonblocking, because opening a pipe would wait.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(&args.source);
    let from = opened.map_err(|error| Failure::failed(format!("cannot open {source}: {error}")))?;
    let metadata = from.metadata().map_err(|error| Failure::failed(format!("cannot look at {source}: {error}")))?;
    let Some(place) = inside::find(&from)? else {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("{source} is in no mounted dedupfs: `dedupfs get MNT/NAME DESTINATION` copies out of one"),
        ));
    };
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(Failure::new(FailureKind::Usage, format!("{source} is neither a directory nor a regular file")));
    }
    let to = NewName::at(&args.destination)?;
    let device = to.directory.metadata().map(|metadata| metadata.dev());
    if device.is_ok_and(|device| device == place.device) {
        let advice = "`cp -a` copies within a mount, without copying content";
        return Err(Failure::new(FailureKind::Usage, format!("{destination} is in the same mount: {advice}")));
    }
    // Writes back changes in mapped files, which only the kernel knows.
    let _as_far_as_it_goes = rustix::fs::syncfs(&from);
    let request = GetRequest { ino: place.ino, name: to.name.as_bytes().to_vec() };
    let bars = Bars::default();
    let progress = Interruptible { listener: &bars, interrupted: interrupt::flag()? };
    let mut daemon = inside::daemon(&place.pool)?;
    if rustix::process::geteuid().is_root()
        && let Some(uid) = daemon.daemon_uid().filter(|uid| *uid != 0)
    {
        eprintln!(
            "dedupfs: warning: the pool was mounted by user {uid}: that user will own the copies, not the owners of the files"
        );
    }
    let report = daemon.get(request, to.directory.as_fd(), &progress).map_err(|failure| {
        let has_begun = rustix::fs::statat(&to.directory, &to.name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok();
        let left = if has_begun { format!("; everything copied so far is in {destination}") } else { String::new() };
        Failure::new(failure.kind, format!("{failure}{left}"))
    })?;
    drop(bars);
    exit::tell(&report::transfer_problems(&report));
    exit::print(&if args.json { report::json(&report)? } else { report::transfer(&report) })?;
    Ok(if report.problem_count == 0 { exit::OK } else { exit::PARTLY })
}
