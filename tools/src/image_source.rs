//! The source of an image, as the caller may read it: a file or a block device, or an export of an NBD server. With its map of changes.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use dedupfs::transfer::{Change, Changes};
use dedupfs_nbd::{Address, Agreed, BASE_ALLOCATION, Connection};
use rustix::fs::SeekFrom;

use crate::control::{Failure, FailureKind};
use crate::staged::disk::Reader;
use crate::staged::segments::segments;
use crate::{changes, exit, inside};

/// Before the name of a context, in place of the path of a map.
const TOLD: &str = "nbd:";
/// Beginning of the names of contexts that tell changes.
const BITMAP_CONTEXT: &str = "qemu:dirty-bitmap:";

/// The image that is wanted.
pub(crate) struct Wanted<'a> {
    /// A regular file, a block device, or the address of an export.
    pub(crate) source: &'a Path,
    /// The map of its changes.
    pub(crate) changed: Option<&'a Path>,
    /// The format of the map.
    pub(crate) format: changes::Format,
}

/// Opens a regular file or a block device, and returns its size.
pub(crate) fn open_disk(path: &Path) -> Result<(File, Metadata, u64), Failure> {
    let (from, metadata) = inside::open_source(path)?;
    let shown = path.display();
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        let why = format!("{shown} is no image of a disk: it is neither a regular file nor a block device");
        return Err(FailureKind::Usage.because(why));
    }
    // Also the size of a device.
    let size_bytes = rustix::fs::seek(&from, SeekFrom::End(0));
    let size_bytes =
        size_bytes.map_err(|errno| Failure::failed(format!("cannot tell the size of {shown}: {errno}")))?;
    if size_bytes == 0 && !metadata.is_file() {
        return Err(Failure::failed(format!("{shown} has no size: is the device connected?")));
    }
    Ok((from, metadata, size_bytes))
}

/// Where the image is.
enum Medium {
    /// A regular file.
    File(File, FileState),
    Device(File),
    Export(Connection),
}

/// Changes with each change of a file.
#[derive(PartialEq, Eq)]
struct FileState {
    len_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileState {
    fn of(metadata: &Metadata) -> Self {
        Self {
            len_bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// An image, open to be read.
pub(crate) struct ImageSource {
    medium: Medium,
    pub(crate) size_bytes: u64,
    /// The device of the filesystem that a file lies on.
    pub(crate) device: Option<u64>,
    /// The address of an export.
    pub(crate) address: Option<String>,
    /// Name of the image in its version, unless the base has one.
    pub(crate) file_name: OsString,
    pub(crate) changes: Option<Changes>,
    /// Why there are no changes, although a map was asked for.
    pub(crate) without_map: Option<String>,
}

impl ImageSource {
    /// Opens an image, and reads the map of its changes.
    pub(crate) fn open(args: &Wanted<'_>) -> Result<Self, Failure> {
        let told = args.changed.and_then(Path::to_str).and_then(|map| map.strip_prefix(TOLD));
        if args.source.to_str().is_some_and(Address::is_meant) {
            return open_export(args, told);
        }
        if let Some(context) = told {
            let why = format!(
                "--changed {TOLD}{context} names a map of an NBD server: give an export as SOURCE, or a file as MAP"
            );
            return Err(FailureKind::Usage.because(why));
        }
        let (from, metadata, size_bytes) = open_disk(args.source)?;
        Ok(Self {
            medium: match metadata.is_file() {
                true => Medium::File(from, FileState::of(&metadata)),
                false => Medium::Device(from),
            },
            size_bytes,
            device: Some(metadata.dev()),
            address: None,
            file_name: args.source.file_name().unwrap_or("image".as_ref()).to_owned(),
            changes: changes_in_file(args, size_bytes)?,
            without_map: None,
        })
    }
}

impl ImageSource {
    /// Returns what of the image detection in stages reads: the changes since the base or, without a map, all but the known zeros.
    pub(crate) fn to_detect(&self) -> Vec<Change> {
        let changes = match (&self.changes, &self.medium) {
            (Some(changes), _) => return segments(changes, self.size_bytes),
            (None, Medium::File(file, _) | Medium::Device(file)) => changes::data_in(file, self.size_bytes),
            (None, Medium::Export(connection)) => changes::data_told_by(connection),
        };
        segments(&changes, self.size_bytes)
    }

    /// Reads the image.
    pub(crate) fn reader(&self) -> Reader<'_> {
        match &self.medium {
            Medium::File(file, _) | Medium::Device(file) => Box::new(|at, into| {
                file.read_exact_at(into, at).map_err(|error| format!("the image cannot be read at {at}: {error}"))
            }),
            Medium::Export(connection) => Box::new(|at, into| {
                connection.read(at, into, &|| true).map_err(|error| format!("the image cannot be read: {error}"))
            }),
        }
    }

    /// Whether the image was changed since it was opened, as far as it shows. Changes of a device or an export do not.
    pub(crate) fn has_changed(&self) -> bool {
        let Medium::File(file, before) = &self.medium else { return false };
        !file.metadata().is_ok_and(|now| FileState::of(&now) == *before)
    }

    /// Returns the descriptor for the daemon and, for an export, the agreement with its server. The daemon goes on with the connection.
    pub(crate) fn hand_over(self) -> Result<(OwnedFd, Option<Agreed>), Failure> {
        match self.medium {
            Medium::File(file, _) | Medium::Device(file) => Ok((file.into(), None)),
            Medium::Export(connection) => {
                let (descriptor, agreed) =
                    connection.into_parts().map_err(|error| Failure::failed(error.to_string()))?;
                Ok((descriptor, Some(agreed)))
            }
        }
    }
}

fn changes_in_file(args: &Wanted<'_>, size_bytes: u64) -> Result<Option<Changes>, Failure> {
    args.changed.map(|map| changes::read(map, args.format, size_bytes)).transpose()
}

/// Opens an export. `told` is the context that tells its changes.
fn open_export(args: &Wanted<'_>, told: Option<&str>) -> Result<ImageSource, Failure> {
    let address = args.source.to_str().unwrap_or_default();
    let parsed = Address::parse(address).map_err(|error| FailureKind::Usage.because(error.to_string()))?;
    let shown = |error: dedupfs_nbd::Error| Failure::failed(error.to_string());
    if let Some(context) = told.filter(|context| !context.starts_with(BITMAP_CONTEXT)) {
        let why = format!("the meaning of a map {context} is unknown: give --changed {TOLD}{BITMAP_CONTEXT}NAME");
        return Err(FailureKind::Usage.because(why));
    }
    let contexts: Vec<&str> = [BASE_ALLOCATION].into_iter().chain(told).collect();
    let connection = dedupfs_nbd::connect(&parsed, &contexts, &|| true).map_err(shown)?;
    let size_bytes = connection.agreed().size_bytes;
    if size_bytes == 0 {
        return Err(Failure::failed(format!("{address} has no size: is the disk connected?")));
    }
    let (mut without_map, mut changes) = (None, None);
    match told {
        None => changes = changes_in_file(args, size_bytes)?,
        Some(context) => match changes::told_by(&connection, context) {
            Ok(told) => changes = Some(told),
            Err(why) if connection.has_failed() => return Err(Failure::failed(why)),
            // A tracker that is gone costs time, and no backup.
            Err(why) => {
                exit::tell(&format!("dedupfs: {why}: everything is read\n"));
                without_map = Some(why);
            }
        },
    }
    let name = Path::new(parsed.export()).file_name().unwrap_or("image".as_ref()).to_owned();
    Ok(ImageSource {
        medium: Medium::Export(connection),
        size_bytes,
        device: None,
        address: Some(address.to_owned()),
        file_name: name,
        changes,
        without_map,
    })
}
