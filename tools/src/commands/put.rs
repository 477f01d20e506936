//! `dedupfs put`: copies a tree into a hidden directory, and gives it its name when it is complete. [`image`] does so with the image of a
//! disk.

mod image;

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dedupfs::transfer::{BaseChoice, Owner, PutOptions, TransferReport, VersionOptions};
use dedupfs::{Origin, Progress, is_frozen};
use rustix::fs::{AtFlags, Mode};

use crate::args::copies::{PutArgs, VERIFY_ALL};
use crate::control::{Failure, FailureKind, PutRequest};
use crate::hidden::HiddenDirectory;
use crate::inside::{self, Inside, NewName};
use crate::progress::Bars;
use crate::{exit, hidden, interrupt};

/// The line by which a put tells a batch that its source was read.
pub(crate) const READ: &str = "read";
/// The answer by which a batch lets the version have its name.
pub(crate) const LEAVE: &[u8] = b"name\n";

/// Asks the batch that has started this command whether the source stood still until now.
fn ask_before_naming() -> Result<(), Failure> {
    exit::print(&format!("{READ}\n"))?;
    let mut answer = Vec::new();
    let read = std::io::stdin().read_to_end(&mut answer);
    match read.is_ok() && answer == LEAVE {
        true => Ok(()),
        false => Err(Failure::failed("the batch does not let the version have its name")),
    }
}

pub(crate) fn run(args: &PutArgs) -> Result<u8, Failure> {
    if args.is_image() {
        return image::run(args);
    }
    let (from, metadata) = inside::open_source(&args.source)?;
    inside::check_kind(&args.source, &metadata)?;
    if args.file_name.is_some() {
        return Err(FailureKind::Usage.because("--as names the image in a version of one: give --image as well"));
    }
    let (to, place) = destination(args, Some(metadata.dev()))?;
    // From here on a signal ends the command in order, and the hidden directory goes.
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let version = version_options(args, &metadata, &place)?;
    let origin = version.as_ref().map(|version| version.origin.clone());
    let hidden = HiddenDirectory::make(&to.directory, origin.as_ref())?;
    let copied = copy(args, (&from, &metadata), (&to, &place), (&hidden, version), &progress);
    bars.finish();
    match (&copied, &origin) {
        (Err(_), _) => hidden.keep_incomplete(&args.destination),
        (Ok(_), origin) => {
            hidden.remove_or_tell(&args.destination);
            origin.iter().for_each(|origin| hidden::remove_superseded(&to.directory, origin));
        }
    }
    inside::conclude("put", &copied?, args.json)
}

/// Opens the place of the new name. The source lies on this device.
fn destination(args: &PutArgs, source_device: Option<u64>) -> Result<(NewName, Inside), Failure> {
    let to = NewName::at(&args.destination)?;
    let Some(place) = inside::find(&to.directory)? else {
        return Err(FailureKind::Usage.because(format!(
                "{} is in no mounted dedupfs: `dedupfs put SOURCE MNT/NAME` copies into one, `dedupfs mount POOL MNT` mounts it",
                args.destination.display()
            ),
        ));
    };
    if source_device == Some(place.device) {
        return Err(inside::in_same_mount(&args.source));
    }
    Ok((to, place))
}

/// Returns source and host, for the record of a version.
fn origin_of(source: &Path) -> Origin {
    Origin {
        source: inside::name_of_source(source).as_os_str().as_bytes().to_vec(),
        host: rustix::system::uname().nodename().to_bytes().to_vec(),
    }
}

/// Returns how to make a version; `None` if a live tree is to be made. A file alone is always live.
fn version_options(args: &PutArgs, source: &Metadata, place: &Inside) -> Result<Option<VersionOptions>, Failure> {
    if args.live {
        return Ok(None);
    }
    if !source.is_dir() {
        let shown = args.destination.display();
        exit::tell(&format!(
            "dedupfs: {shown} becomes a live file, which can be changed: only directories become versions (--live leaves this note out)\n"
        ));
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() && !is_open_to_its_owner(source) {
        exit::tell(&format!(
            "dedupfs: {} becomes a live tree: its owner may not write to the source, and only root can give a version of it its name\n",
            args.destination.display()
        ));
        return Ok(None);
    }
    let base = match &args.base {
        _ if args.reread => BaseChoice::None,
        Some(base) => base_at(base, place)?,
        None => BaseChoice::LastIn(place.ino),
    };
    Ok(Some(VersionOptions {
        origin: origin_of(&args.source),
        base,
        // A part of a percent of the files is at least one in a hundred.
        verify_percent: u8::try_from(args.verify.unwrap_or(0).div_ceil(VERIFY_ALL / 100)).unwrap_or(100),
        resume_in: (!args.reread).then_some(place.ino),
        incomplete_every_ms: args.incomplete_every.saturating_mul(1000),
        ..VersionOptions::default()
    }))
}

/// Whether the kernel lets the owner rename a directory with this mode.
fn is_open_to_its_owner(source: &Metadata) -> bool {
    source.mode() & 0o700 == 0o700
}

/// Returns the version at a path as a base. One that is gone costs a full read, and no backup.
fn base_at(path: &Path, place: &Inside) -> Result<BaseChoice, Failure> {
    Ok(frozen_at(path, place)?.map_or(BaseChoice::Gone, BaseChoice::Version))
}

/// Returns the inode number of something in a version; `None` if it is gone.
fn frozen_at(path: &Path, place: &Inside) -> Result<Option<u64>, Failure> {
    let shown = path.display();
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            exit::tell(&format!("dedupfs: there is no base {shown}: everything is read\n"));
            return Ok(None);
        }
        Err(error) => return Err(FailureKind::Usage.because(format!("cannot look at the base {shown}: {error}"))),
    };
    if metadata.dev() != place.device || !is_frozen(metadata.ino()) {
        let why = format!("{shown} is no version in the mount of the new one: `dedupfs list` names versions");
        return Err(FailureKind::Usage.because(why));
    }
    Ok(Some(metadata.ino()))
}

/// Returns the user to whom the copy belongs, if it is not the superuser.
fn owner() -> Result<Option<Owner>, Failure> {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return Ok(None);
    }
    let groups = rustix::process::getgroups()
        .map_err(|errno| Failure::failed(format!("cannot read the groups of this user: {errno}")))?;
    let (uid, gid) = (uid.as_raw(), rustix::process::getegid().as_raw());
    Ok(Some(Owner { uid, gid, groups: groups.into_iter().map(|group| group.as_raw()).collect() }))
}

fn copy(
    args: &PutArgs,
    (from, metadata): (&File, &Metadata),
    (to, place): (&NewName, &Inside),
    (hidden, version): (&HiddenDirectory<'_>, Option<VersionOptions>),
    progress: &dyn Progress,
) -> Result<TransferReport, Failure> {
    let options = PutOptions {
        one_file_system: args.one_file_system,
        leaves_out_device: Some(place.device),
        leaves_out_directories: inside::roots(&place.pool),
        owner: owner()?,
        bytes_per_sec: args.rate,
        version,
    };
    let asks_for_version = options.version.is_some();
    let owner = options.owner.clone();
    let request = PutRequest { into: hidden.ino, name: to.name.as_bytes().to_vec(), options };
    let report = inside::daemon(&place.pool, inside::COPIES_NEED_NO_DAEMON)?.put(request, from.as_fd(), progress)?;
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    let destination = args.destination.display();
    if asks_for_version && report.version.is_none() {
        exit::tell(&format!(
            "dedupfs: {destination} is a live tree: an earlier release made this pool. `dedupfs series set` lets it have versions; \
             that release refuses it then\n"
        ));
    }
    hidden.give_name(&to.name, &args.destination)?;
    // A directory that its owner may not write to cannot be renamed, so put has made it writable until now.
    if let Some(owner) =
        owner.filter(|_| report.version.is_none() && metadata.is_dir() && !is_open_to_its_owner(metadata))
    {
        let (_, _, mode) = owner.of_copy(metadata.uid(), metadata.gid(), (metadata.mode() & 0o7777) as u16);
        let mode = Mode::from_raw_mode(mode.into());
        let changed = rustix::fs::chmodat(&to.directory, &to.name, mode, AtFlags::empty());
        changed.map_err(|errno| {
            Failure::failed(format!("{destination} was copied, but its mode could not be set: {errno}"))
        })?;
    }
    to.directory.sync_all().map_err(|error| {
        Failure::failed(format!("{destination} was copied, but could not be made durable: {error}; see the pool's log"))
    })?;
    Ok(report)
}
