//! `dedupfs get`.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dedupfs::Progress as _;
use dedupfs::transfer::Patterns;

use crate::args::copies::GetArgs;
use crate::control::{Failure, FailureKind, GetRequest};
use crate::inside::{self, NewName};
use crate::interrupt;
use crate::progress::Bars;

/// Most bytes of all patterns: a request is bounded.
const PATTERNS_BYTES_MAX: usize = 16 * 1024;

pub(crate) fn run(args: &GetArgs) -> Result<u8, Failure> {
    #[cfg(feature = "remote")]
    return crate::view::at(&args.source, &args.view, |path| run_at(args, path));
    #[cfg(not(feature = "remote"))]
    run_at(args, &args.source)
}

/// Copies from a path in a mount.
fn run_at(args: &GetArgs, path: &Path) -> Result<u8, Failure> {
    let (source, destination) = (args.source.display(), args.destination.display());
    let (from, metadata) = inside::open_source(path)?;
    let Some(place) = inside::find(&from)? else {
        return Err(FailureKind::Usage.because(format!(
            "{source} is in no mounted dedupfs: `dedupfs get MNT/NAME DESTINATION` copies out of one"
        )));
    };
    inside::check_kind(&args.source, &metadata)?;
    let to = NewName::at(&args.destination)?;
    let device = to.directory.metadata().map(|metadata| metadata.dev());
    if device.is_ok_and(|device| device == place.device) {
        return Err(inside::in_same_mount(&args.destination));
    }
    // Writes back changes in mapped files, which only the kernel knows.
    let _as_far_as_it_goes = rustix::fs::syncfs(&from);
    let patterns = Patterns { include: args.include.clone(), exclude: args.exclude.clone() };
    let pattern_bytes: usize = patterns.include.iter().chain(&patterns.exclude).map(String::len).sum();
    if pattern_bytes > PATTERNS_BYTES_MAX {
        return Err(FailureKind::Usage.because(format!("more than {PATTERNS_BYTES_MAX} bytes of patterns")));
    }
    if pattern_bytes > 0 && !metadata.is_dir() {
        let why = format!("{source} is a file: --include and --exclude choose parts of a directory");
        return Err(FailureKind::Usage.because(why));
    }
    let request = GetRequest { ino: place.ino, name: to.name.as_bytes().to_vec(), patterns };
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let mut daemon = inside::daemon(&place.pool, inside::COPIES_NEED_NO_DAEMON)?;
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
        failure.and(&left)
    })?;
    bars.finish();
    inside::conclude("get", &report, args.json)
}
