//! Replicas as sources of a mount, and of commands that read: the newest state, on any machine.
//!
//! `dedupfs mount` opens the view of a replica in the place of a pool ([`opened`]). Other commands mount it for themselves, read there, and
//! unmount it ([`located`]).

mod located;
mod opened;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use dedupfs_store::frame::{FRAME_HEADER_BYTES, FrameHeader, FrameKind};

pub(crate) use self::located::{Located, at};
pub(crate) use self::opened::{Opened, Reader, prepare};
use crate::args::MountArgs;
use crate::commands::replicate::store::FORMAT;
use crate::control::{Failure, FailureKind};
use crate::mount_options;
use crate::target::SUPERBLOCK_NAME;

/// Whether the argument of a mount is a replica, and not a pool.
pub(crate) fn is_replica(place: &Path) -> bool {
    is_address(place) || is_format(&place.join(FORMAT)) && !place.join(SUPERBLOCK_NAME).exists()
}

/// Whether a file is the object that every replica has.
fn is_format(path: &Path) -> bool {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.is_ok() && FrameHeader::decode(FORMAT, &bytes).is_ok_and(|header| header.kind == FrameKind::ReplicaFormat)
}

/// Whether a path is the address of a store.
fn is_address(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text.contains("://"))
}

/// Takes the options `-o` of a replica among the arguments of a mount, where they count more.
///
/// # Errors
/// Options that are unknown, or make no sense, such as a mount for writing.
pub(crate) fn with_options(args: &MountArgs) -> Result<MountArgs, Failure> {
    let given = mount_options::parse(&args.pool, &args.options)?;
    if !given.mount.read_only {
        let shown = args.pool.display();
        let advice =
            "a replica is only read: add `-o ro`. `dedupfs recover --from` makes a pool of it that can be written";
        return Err(FailureKind::Usage.because(format!("{shown}: {advice}")));
    }
    let (mut args, options) = (args.clone(), given.replica);
    let view = &mut args.view;
    view.key.key = options.key.or(view.key.key.take());
    view.key.passphrase_file = options.passphrase_file.or(view.key.passphrase_file.take());
    view.cache = options.cache.or(view.cache.take());
    view.cache_size = options.cache_bytes.or(view.cache_size);
    args.memory = given.memory_bytes.unwrap_or(args.memory);
    Ok(args)
}
