//! `umount.fuse.dedupfs`.

use super::namespace;
use crate::args::helpers::UmountHelper;
use crate::commands::umount::{How, unmount};
use crate::control::{Failure, FailureKind};
use crate::exit;
use crate::remount::{self, Origin};

pub(crate) fn run(args: &UmountHelper) -> Result<u8, Failure> {
    if let Some(which) = &args.namespace {
        namespace::enter(which)?;
    }
    let tell = |what: &str| {
        if args.verbose {
            println!("umount.fuse.dedupfs: {}: {what}", args.mountpoint.display());
        }
    };
    let how = match (args.force, args.lazy) {
        (true, _) => How::Force,
        (_, true) => How::Lazy,
        _ => How::InOrder,
    };
    match unmount(&args.mountpoint, how) {
        Ok(()) => tell("unmounted"),
        Err(failure) if args.read_only && failure.kind == FailureKind::MountpointUnusable => {
            remount::run(&args.mountpoint, &["ro".to_owned()], Origin::Mount)?;
            eprintln!("umount.fuse.dedupfs: {failure}: it is read-only now");
        }
        Err(failure) => return Err(failure),
    }
    Ok(exit::OK)
}
