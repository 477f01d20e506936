//! The engine as a [`FileService`]: answers the kernel's requests from the namespace and the content of files.
//!
//! - [`mod@errno`]: the one mapping from errors to error numbers;
//! - [`open_files`]: open files, their handles, and the unpublished changes that stat shows;
//! - [`content`]: reading, writing, truncating, publishing;
//! - [`clone`]: sharing content between files;
//! - [`attributes`]: stat, setattr, extended attributes;
//! - [`names`]: creating, linking, removing, with default ACLs and setgid directories;
//! - [`forgetting`]: which versions may be removed;
//! - [`freezing`]: a version takes the name of a live directory;
//! - [`frozen`]: versions, which never change;
//! - [`hidden`]: trees that the kernel does not see until they are whole;
//! - [`across`]: reading ahead across the files of a version;
//! - [`protection`]: flags that protect inodes from changes;
//! - [`access_times`]: updates of access times by reads.
//!
//! An inode without a name stays as an orphan while the kernel knows it or has it open.

mod access_times;
mod across;
mod attributes;
mod clone;
mod content;
mod errno;
mod forgetting;
mod freezing;
mod frozen;
mod hidden;
mod lookups;
mod memory;
mod names;
mod open_files;
mod protection;
mod recency;
mod space;

use std::sync::Arc;
use std::time::Duration;

use dedupfs_service::{
    AttributeChanges, Attributes, Caller, DirectoryEntry, Errno, FilePlace, FileService, Handle, Ino, InodeFlags,
    Listing, NewNode, NodeContent, OpenOptions, Opened, RenameFlags, SeekTarget, Statistics, Timestamp, WriteFlags,
    XattrMode, check_xattr_name,
};

pub use access_times::AccessTimes;
use attributes::attributes_of;
pub(crate) use content::CAPABILITY_XATTR;
use dedupfs_store::profile::{self, Component};
use dedupfs_sync::Mutex;
pub(crate) use errno::errno;
pub(crate) use frozen::HeldVersion;
use frozen::check_names;
use lookups::Lookups;
use open_files::OpenFiles;

use crate::engine::Core;
use dedupfs_base::{EngineError, Gauge, Result};
use dedupfs_namespace::{is_frozen, version_of};

/// How long the kernel may cache names and attributes. All changes pass through the caching kernel, so this can be long.
const CACHE_TIME: Duration = Duration::from_secs(3600);

/// The filesystem in a pool.
pub struct Service {
    core: Arc<Core>,
    files: OpenFiles,
    lookups: Lookups,
    making_room: space::MakingRoom,
    /// Held by the one thread that takes memory from files.
    relieving: Mutex<()>,
    /// Memory of the transfers that run.
    transferring: Mutex<Arc<Gauge>>,
    hidden: hidden::HiddenDirectories,
    access_times: AccessTimes,
    frozen: frozen::FoundCache,
    forgetting: forgetting::Forgetting,
    freezing: freezing::Freezing,
    readers: Arc<across::Readers>,
}

/// Returns the system time in seconds and nanoseconds.
pub(crate) fn now() -> Timestamp {
    let since = dedupfs_sync::clock::since_epoch();
    Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

impl Service {
    /// Makes the filesystem of the pool `core`.
    pub(crate) fn new(core: Arc<Core>, access_times: AccessTimes) -> Arc<Self> {
        Arc::new(Self {
            core,
            files: OpenFiles::default(),
            lookups: Lookups::default(),
            making_room: space::MakingRoom::default(),
            relieving: Mutex::default(),
            transferring: Mutex::default(),
            hidden: hidden::HiddenDirectories::default(),
            access_times,
            frozen: frozen::cache(),
            forgetting: forgetting::Forgetting::default(),
            freezing: freezing::Freezing::default(),
            readers: Arc::default(),
        })
    }

    fn find(&self, parent: Ino, name: &[u8]) -> Result<Attributes> {
        if is_frozen(parent) {
            return self.find_frozen(parent, name);
        }
        let namespace = &self.core.namespace;
        match namespace.lookup(parent, name)? {
            Some((ino, _)) => self.known_attributes(ino),
            None if namespace.inode_shared(parent)?.is_some_and(|inode| !inode.is_directory()) => {
                Err(EngineError::NotDirectory)
            }
            None => Err(EngineError::NotFound),
        }
    }

    fn known_attributes(&self, ino: Ino) -> Result<Attributes> {
        let attributes = attributes_of(&self.current(ino)?);
        self.lookups.count(version_of(ino));
        Ok(attributes)
    }

    fn list(&self, ino: Ino, after: u64, limit: usize, listing: Listing) -> Result<Vec<DirectoryEntry>> {
        if is_frozen(ino) {
            return self.list_frozen(ino, after, limit, listing);
        }
        let items = self.core.namespace.read_directory(ino, after, limit)?;
        if after == 0 {
            self.note_node_access(ino);
        }
        let mut entries = Vec::with_capacity(items.len());
        let last = items.last().map(|item| item.cookie);
        for item in items {
            let attributes = match listing {
                Listing::Attributes => match self.known_attributes(item.ino) {
                    Ok(attributes) => Some(attributes),
                    // The name was removed since the page was read.
                    Err(EngineError::NotFound) => continue,
                    Err(error) if self.lookups.count_name(version_of(item.ino)) => {
                        tracing::error!(directory = ino, ino = item.ino, %error, "listed without attributes, which cannot be read");
                        None
                    }
                    // An entry without attributes would replace those that the kernel has, even while the file is open.
                    Err(error) if entries.is_empty() => return Err(error),
                    // The next call begins with this entry and returns its error.
                    Err(_) => return Ok(entries),
                },
                Listing::Names => None,
            };
            entries.push(DirectoryEntry {
                ino: item.ino,
                kind: item.kind,
                name: item.name,
                cookie: item.cookie,
                attributes,
            });
        }
        match last {
            // An empty page would mean the end, but entries may follow those that were removed.
            Some(last) if entries.is_empty() => self.list(ino, last, limit, listing),
            _ => Ok(entries),
        }
    }
}

/// Does the work of a request. Converts errors to the error numbers of the trait.
fn answer<T>(work: impl FnOnce() -> Result<T>) -> std::result::Result<T, Errno> {
    let _timed = profile::of(Component::Requests);
    work().map_err(|error| errno(&error))
}

impl FileService for Service {
    fn cache_time(&self) -> Duration {
        CACHE_TIME
    }

    fn unreachable_names(&self, ino: Ino) -> Vec<(Ino, Vec<u8>)> {
        if is_frozen(ino) { self.names_in_removed(ino).unwrap_or_default() } else { Vec::new() }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> std::result::Result<Attributes, Errno> {
        self.hidden.check(parent)?;
        answer(|| self.find(parent, name))
    }

    fn lookup_inode(&self, ino: Ino) -> std::result::Result<Attributes, Errno> {
        answer(|| {
            self.inode(ino).and_then(|inode| match inode {
                Some(inode) if inode.nlink > 0 => self.known_attributes(ino),
                _ => Err(EngineError::NotFound),
            })
        })
        .map_err(|error| if error == Errno::ENOENT { Errno::ESTALE } else { error })
    }

    fn forget(&self, ino: Ino, count: u64) {
        if self.lookups.forget(version_of(ino), count) {
            self.collect(version_of(ino));
        }
    }

    fn attributes(&self, ino: Ino) -> std::result::Result<Attributes, Errno> {
        answer(|| self.current(ino).map(|inode| attributes_of(&inode)))
    }

    fn set_attributes(
        &self,
        caller: Caller,
        ino: Ino,
        changes: AttributeChanges,
    ) -> std::result::Result<Attributes, Errno> {
        answer(|| self.check_live(ino).and_then(|()| self.change_attributes(caller, ino, &changes)))
    }

    fn flags(&self, ino: Ino) -> std::result::Result<InodeFlags, Errno> {
        answer(|| self.inode_flags(ino))
    }

    fn set_flags(&self, caller: Caller, ino: Ino, flags: InodeFlags) -> std::result::Result<(), Errno> {
        answer(|| self.check_live(ino).and_then(|()| self.change_flags(caller, ino, flags)))
    }

    fn read_link(&self, ino: Ino) -> std::result::Result<Vec<u8>, Errno> {
        answer(|| self.link_target(ino))
    }

    fn make(
        &self,
        caller: Caller,
        node: NewNode<'_>,
        content: NodeContent<'_>,
    ) -> std::result::Result<Attributes, Errno> {
        answer(|| {
            let made = self.check_live(node.parent).and_then(|()| self.make_node(caller, node, content))?;
            self.known_attributes(made.ino)
        })
    }

    fn create(
        &self,
        caller: Caller,
        node: NewNode<'_>,
        how: OpenOptions,
    ) -> std::result::Result<(Attributes, Opened), Errno> {
        answer(|| {
            self.check_live(node.parent)?;
            let made = self.make_node(caller, node, NodeContent::Regular)?;
            let opened = self.open_handle(caller, made.ino, how, None)?;
            Ok((self.known_attributes(made.ino)?, opened))
        })
    }

    fn unlink(&self, parent: Ino, name: &[u8]) -> std::result::Result<(), Errno> {
        answer(|| self.check_live(parent).and_then(|()| self.remove_name(parent, name)))
    }

    fn remove_directory(&self, parent: Ino, name: &[u8]) -> std::result::Result<(), Errno> {
        answer(|| self.check_live(parent).and_then(|()| self.remove_empty_directory(parent, name)))
    }

    fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        to_parent: Ino,
        to_name: &[u8],
        flags: RenameFlags,
    ) -> std::result::Result<(), Errno> {
        answer(|| {
            check_names(parent, to_parent).and_then(|()| self.rename_name((parent, name), (to_parent, to_name), flags))
        })
    }

    fn link(&self, ino: Ino, to_parent: Ino, to_name: &[u8]) -> std::result::Result<Attributes, Errno> {
        answer(|| {
            check_names(ino, to_parent).and_then(|()| self.link_name(ino, to_parent, to_name))?;
            self.known_attributes(ino)
        })
    }

    fn open(&self, caller: Caller, ino: Ino, how: OpenOptions) -> std::result::Result<Opened, Errno> {
        answer(|| self.open_existing(caller, ino, how))
    }

    fn read(
        &self,
        _ino: Ino,
        handle: Handle,
        offset: u64,
        len_bytes: u32,
        into: &mut Vec<u8>,
    ) -> std::result::Result<(), Errno> {
        answer(|| self.read_content(handle, offset, len_bytes, into))
    }

    fn read_is_quick(&self, _ino: Ino, handle: Handle, offset: u64, len_bytes: u32) -> bool {
        self.content_is_cached(handle, offset, len_bytes)
    }

    fn note_cached(&self, _ino: Ino, handle: Handle) {
        if let Ok(open) = self.files.handle(handle) {
            open.file.note_cached();
        }
    }

    fn may_be_cached(&self, _ino: Ino, handle: Handle) -> bool {
        self.files.handle(handle).is_ok_and(|open| open.file.may_be_cached())
    }

    fn write(
        &self,
        caller: Caller,
        _ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> std::result::Result<u32, Errno> {
        answer(|| self.write_content(caller, handle, offset, data, flags))
    }

    fn flush(&self, _ino: Ino, handle: Handle) -> std::result::Result<(), Errno> {
        answer(|| self.flush_content(handle))
    }

    fn flush_is_quick(&self, _ino: Ino, handle: Handle) -> bool {
        self.flushes_quickly(handle)
    }

    fn fsync(&self, _ino: Ino, handle: Handle) -> std::result::Result<(), Errno> {
        answer(|| self.flush_content(handle).and_then(|()| self.core.committer.commit()))
    }

    fn is_synchronous(&self, _ino: Ino, handle: Handle) -> bool {
        self.files.handle(handle).is_ok_and(|open| open.how.sync)
    }

    fn change_is_quick(&self, ino: Ino) -> bool {
        self.changes_quickly(ino)
    }

    fn release(&self, ino: Ino, handle: Handle) {
        let _timed = profile::of(Component::Requests);
        self.close_handle(ino, handle);
    }

    fn allocate(
        &self,
        _ino: Ino,
        handle: Handle,
        offset: u64,
        len_bytes: u64,
        mode: i32,
    ) -> std::result::Result<(), Errno> {
        answer(|| self.allocate_range(handle, offset, len_bytes, mode))
    }

    fn copy_range(
        &self,
        caller: Caller,
        from: FilePlace,
        to: FilePlace,
        len_bytes: u64,
    ) -> std::result::Result<u32, Errno> {
        answer(|| self.copy_content(caller, from, to, len_bytes))
    }

    fn seek(&self, _ino: Ino, handle: Handle, offset: u64, target: SeekTarget) -> std::result::Result<u64, Errno> {
        answer(|| self.seek_content(handle, offset, target))
    }

    fn read_directory(
        &self,
        ino: Ino,
        after: u64,
        limit: usize,
        listing: Listing,
    ) -> std::result::Result<Vec<DirectoryEntry>, Errno> {
        self.hidden.check(ino)?;
        answer(|| self.list(ino, after, limit, listing))
    }

    fn directory_end(&self, ino: Ino) -> u64 {
        if is_frozen(ino) { u64::MAX } else { self.core.namespace.directory_end() }
    }

    fn parent(&self, ino: Ino) -> std::result::Result<Ino, Errno> {
        answer(|| {
            self.inode(ino).and_then(|inode| match inode {
                Some(inode) if inode.is_directory() => Ok(inode.parent),
                Some(_) => Err(EngineError::NotDirectory),
                None => Err(EngineError::NotFound),
            })
        })
    }

    fn fsync_directory(&self, _ino: Ino) -> std::result::Result<(), Errno> {
        answer(|| self.core.committer.commit())
    }

    fn statistics(&self) -> std::result::Result<Statistics, Errno> {
        answer(|| self.space())
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> std::result::Result<Vec<u8>, Errno> {
        answer(|| self.read_xattr(ino, name))
    }

    fn xattr_names(&self, ino: Ino) -> std::result::Result<Vec<Vec<u8>>, Errno> {
        answer(|| self.read_xattr_names(ino))
    }

    fn set_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> std::result::Result<(), Errno> {
        check_xattr_name(name)?;
        answer(|| self.check_live(ino).and_then(|()| self.change_xattr(caller, ino, name, value, mode)))
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> std::result::Result<(), Errno> {
        answer(|| self.check_live(ino).and_then(|()| self.drop_xattr(ino, name)))
    }

    fn shutdown(&self) {
        if let Err(error) = self.publish_all(None, None).and(self.core.committer.commit()) {
            tracing::error!(%error, "the last changes could not be made durable");
        }
    }
}
