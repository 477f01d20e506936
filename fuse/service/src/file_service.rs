//! The trait between the kernel and a service that keeps files: plain types, no FUSE types, no engine types.
//!
//! The engine implements it, and so does the in-memory reference model, which tests mount beside it.

use std::time::Duration;

use crate::{Errno, InodeFlags};

/// An inode number. The root directory is [`ROOT_INO`].
pub type Ino = u64;
/// A handle returned by an open.
pub type Handle = u64;
/// The root directory's inode number.
pub const ROOT_INO: Ino = 1;

/// Result of a service call. The client sees the error.
pub type Result<T> = std::result::Result<T, Errno>;

/// The process on whose behalf a request is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread that made the system call, 0 if it is in another pid namespace.
    pub pid: u32,
}

/// The kinds of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "they are those of inode(7)")]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

/// Seconds and nanoseconds since 1970; seconds may be negative, nanoseconds are 0..1_000_000_000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

/// The attributes that stat shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields are those of stat(2)")]
pub struct Attributes {
    pub ino: Ino,
    /// Distinguishes uses of one inode number.
    pub generation: u64,
    pub kind: FileKind,
    /// Permission bits, setuid, setgid, sticky (0o7777).
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of device nodes, in Linux' 32-bit encoding.
    pub rdev: u32,
    pub size_bytes: u64,
    /// 512-byte blocks that are not holes.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeChange {
    /// The service's clock.
    Now,
    /// This time.
    At(Timestamp),
}

/// The changes of setattr. `None` leaves an attribute as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "the fields are those of Attributes")]
pub struct AttributeChanges {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Truncate or extend to this length.
    pub size_bytes: Option<u64>,
    pub atime: Option<TimeChange>,
    pub mtime: Option<TimeChange>,
    /// New change time; otherwise the service's clock.
    pub ctime: Option<Timestamp>,
}

impl AttributeChanges {
    /// Whether these changes take privileges from an inode of this kind ([`without_privileges`], and `security.capability`): a new owner
    /// or group always, a new length unless root sets it. No change at all takes them, too: it is a change of owner to the present one, or
    /// the kernel's way to ask for it, before a change of content by a caller without CAP_FSETID. A mode that is given stays.
    #[must_use]
    pub fn drop_privileges(&self, caller: Caller, kind: FileKind) -> bool {
        let changes_owner = self.uid.is_some() || self.gid.is_some() || *self == Self::default();
        let drops = changes_owner || self.size_bytes.is_some() && caller.uid != 0;
        drops && self.mode.is_none() && kind != FileKind::Directory
    }
}

/// A name to create: its directory, mode and umask.
#[derive(Clone, Copy, Debug)]
pub struct NewNode<'a> {
    /// Directory.
    pub parent: Ino,
    /// Name of 1 to 255 bytes, any but `/` and NUL.
    pub name: &'a [u8],
    /// Permission bits (0o7777) before `umask` and default ACL.
    pub mode: u16,
    /// The caller's umask; a default ACL of the parent replaces it.
    pub umask: u16,
}

/// The inodes that mknod, mkdir and symlink create: empty, a link to these bytes, a device of this number.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the kinds are those of FileKind")]
pub enum NodeContent<'a> {
    Regular,
    Directory,
    Symlink(&'a [u8]),
    CharDevice(u32),
    BlockDevice(u32),
    Fifo,
    Socket,
}

/// The options of opening a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Will read.
    pub read: bool,
    /// Will write.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Cut to zero length first.
    pub truncate: bool,
    /// O_SYNC or O_DSYNC: every change of content is durable when it returns. The adapter calls `fsync` after each.
    pub sync: bool,
    /// O_NOATIME: reading does not change the time of last access.
    pub no_access_time: bool,
    /// O_DIRECT: reads and writes go past the kernel's page cache.
    pub direct: bool,
}

/// The circumstances of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// Dirty pages of a shared mapping: they belong at `offset` even if the handle (which the kernel guessed) appends.
    pub from_cache: bool,
    /// The handle was opened to append, and no longer does (F_SETFL): the bytes belong at `offset`.
    pub at_offset: bool,
    /// The caller lacks CAP_FSETID: the service must clear the setuid bit, and the setgid bit of a group-executable file. The kernel leaves
    /// this to the service for direct I/O; [`without_privileges`] computes the new mode.
    pub drop_privileges: bool,
}

/// Returns the mode after a caller without CAP_FSETID has changed a file's content.
pub fn without_privileges(mode: u16) -> u16 {
    let setgid_executes = mode & 0o2010 == 0o2010;
    mode & !(if setgid_executes { 0o6000 } else { 0o4000 })
}

/// Whether reading changes the time of last access, by the rule of Linux' `relatime`: content or attributes changed since then, or it is a
/// day old. A change in the future does not count, or each read would change the time.
#[must_use]
pub fn access_is_due(atime: Timestamp, mtime: Timestamp, ctime: Timestamp, now: Timestamp) -> bool {
    const STALE_SECS: i64 = 24 * 3600;
    let changed_since = |changed: Timestamp| atime <= changed && changed <= now;
    changed_since(mtime) || changed_since(ctime) || now.secs.saturating_sub(atime.secs) >= STALE_SECS
}

/// The adapter's view of an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Passed to every further call on the file.
    pub handle: Handle,
    /// Content did not change since the kernel last cached it, so the kernel may keep its pages.
    pub keep_cache: bool,
    /// The kernel should bypass its page cache on this handle.
    pub direct_io: bool,
}

/// A place in an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilePlace {
    /// The file.
    pub ino: Ino,
    /// A handle open on it.
    pub handle: Handle,
    /// Offset in bytes.
    pub offset: u64,
}

/// One directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// Inode number.
    pub ino: Ino,
    /// The kind.
    pub kind: FileKind,
    /// Name.
    pub name: Vec<u8>,
    /// Passed as `after` to continue after this entry. Stable while the entry exists.
    pub cookie: u64,
    /// With [`Listing::Attributes`]: the attributes that stat would show; the inode counts as looked up. `None`: they cannot be read. The
    /// name is listed nevertheless, and the kernel asks again when a process wants them. Must not be `None` for an inode whose attributes
    /// the kernel knows: the kernel would take it for another inode, and return errors to processes that have it open.
    pub attributes: Option<Attributes>,
}

/// The parts of entries that a listing returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listing {
    /// Names alone.
    Names,
    /// Names and attributes; each entry counts as looked up.
    Attributes,
}

/// renameat2's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// Fail with EEXIST if the target exists.
    pub no_replace: bool,
    /// Swap both names; both must exist.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) at the source.
    pub whiteout: bool,
}

/// Checks whether an extended attribute of this name can be set: one of Linux' namespaces and a name in it, 255 bytes at most.
///
/// # Errors
/// ERANGE, EOPNOTSUPP (no such namespace, or no access list in `system.`), EINVAL (no name in the namespace).
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    const NAME_BYTES_MAX: usize = 255;
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    if crate::acl::is_list(name) {
        return Ok(());
    }
    match NAMESPACES.into_iter().find(|namespace| name.starts_with(namespace)) {
        Some(namespace) if namespace.len() == name.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
    }
}

/// How setxattr treats an existing name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// Must not exist (EEXIST).
    Create,
    /// Must exist (ENODATA).
    Replace,
}

/// The result of statfs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// Unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks that unprivileged users can still use.
    pub blocks_available: u64,
    /// Inodes in use and still possible.
    pub files: u64,
    /// Inodes still possible.
    pub files_free: u64,
    /// Longest name.
    pub name_bytes_max: u32,
}

/// A hole or data, for lseek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "SEEK_DATA and SEEK_HOLE")]
pub enum SeekTarget {
    Data,
    Hole,
}

/// The requests to a mounted filesystem. Calls come from several threads at once.
///
/// `forget` balances the references that `lookup`, `lookup_inode`, `make`, `create`, `link` and `readdir` with attributes gave to the
/// kernel.
pub trait FileService: Send + Sync + 'static {
    /// Time for which the kernel may trust names and attributes without asking.
    fn cache_time(&self) -> Duration;
    /// Looks up a name in a directory.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes>;
    /// Looks up an inode by its number alone, for file handles (ESTALE if it is gone, or about to go).
    fn lookup_inode(&self, ino: Ino) -> Result<Attributes>;
    /// Drops `count` references that the kernel had to an inode.
    fn forget(&self, ino: Ino, count: u64);
    /// stat.
    fn attributes(&self, ino: Ino) -> Result<Attributes>;
    /// chmod, chown, truncate, utimensat. Drops privileges as [`AttributeChanges::drop_privileges`] says.
    fn set_attributes(&self, caller: Caller, ino: Ino, changes: AttributeChanges) -> Result<Attributes>;
    /// Flags of a regular file or directory.
    fn flags(&self, ino: Ino) -> Result<InodeFlags>;
    /// Sets all flags of a regular file or directory. Only the superuser changes `immutable` and `append_only`, only
    /// the owner and the superuser the others (EPERM).
    fn set_flags(&self, caller: Caller, ino: Ino, flags: InodeFlags) -> Result<()>;
    /// Target of a symbolic link.
    fn read_link(&self, ino: Ino) -> Result<Vec<u8>>;
    /// mknod, mkdir, symlink.
    fn make(&self, caller: Caller, node: NewNode<'_>, content: NodeContent<'_>) -> Result<Attributes>;
    /// Creates and opens a regular file.
    fn create(&self, caller: Caller, node: NewNode<'_>, how: OpenOptions) -> Result<(Attributes, Opened)>;
    /// unlink.
    fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()>;
    /// rmdir.
    fn remove_directory(&self, parent: Ino, name: &[u8]) -> Result<()>;
    /// renameat2.
    fn rename(&self, parent: Ino, name: &[u8], to_parent: Ino, to_name: &[u8], flags: RenameFlags) -> Result<()>;
    /// Hard link.
    fn link(&self, ino: Ino, to_parent: Ino, to_name: &[u8]) -> Result<Attributes>;
    /// Opens a regular file. Truncating as a user other than root drops privileges ([`without_privileges`]): the kernel leaves that to the
    /// service too.
    fn open(&self, caller: Caller, ino: Ino, how: OpenOptions) -> Result<Opened>;
    /// Reads at most `len_bytes` from `offset`, appended to the empty `into`. Reads fewer only at the end of the file.
    fn read(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u32, into: &mut Vec<u8>) -> Result<()>;
    /// Whether that read is answered from memory. The adapter moves other reads off the thread that serves the kernel.
    fn read_is_quick(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u32) -> bool;
    /// Notes that the kernel's page cache keeps the next read or write through this handle.
    fn note_cached(&self, ino: Ino, handle: Handle);
    /// Whether the kernel may have pages of the file: true after [`note_cached`](Self::note_cached), and after an open that returned
    /// `keep_cache`, until the file is closed. Asked after a write past the cache. If true, the adapter has the pages of its range dropped
    /// before it answers.
    fn may_be_cached(&self, ino: Ino, handle: Handle) -> bool;
    /// Writes all of `data` at `offset` (at the end for append handles, except `from_cache` and `at_offset`). Removes the xattr
    /// `security.capability`, as Linux does on every write.
    fn write(
        &self,
        caller: Caller,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<u32>;
    /// Handles the closing of one descriptor: reports errors of earlier writes.
    fn flush(&self, ino: Ino, handle: Handle) -> Result<()>;
    /// Whether that flush is short enough for the thread that serves the kernel.
    fn flush_is_quick(&self, ino: Ino, handle: Handle) -> bool;
    /// Makes content and attributes durable.
    fn fsync(&self, ino: Ino, handle: Handle) -> Result<()>;
    /// Whether a handle was opened with `sync`. For writes the kernel tells it.
    fn is_synchronous(&self, ino: Ino, handle: Handle) -> bool;
    /// Whether truncating the file, allocating or seeking in it, or copying from or to it is short enough for the thread that serves the
    /// kernel.
    fn change_is_quick(&self, ino: Ino) -> bool;
    /// Handles the closing of the last descriptor of a handle.
    fn release(&self, ino: Ino, handle: Handle);
    /// Returns the path of an inode in a removed version, as pairs of directory and name, from the inode upwards; else nothing. It is
    /// asked for after each close, so that the kernel drops these names, which it would keep until it needs memory.
    fn unreachable_names(&self, _ino: Ino) -> Vec<(Ino, Vec<u8>)> {
        Vec::new()
    }
    /// Allocates space for a range, or makes a hole of it; `mode` as for fallocate(2).
    fn allocate(&self, ino: Ino, handle: Handle, offset: u64, len_bytes: u64, mode: i32) -> Result<()>;
    /// copy_file_range(2): copies at most `len_bytes` of one file's content to another file, or elsewhere in the same file. Returns the
    /// number: 0 at the end of the source, fewer than asked for only before it. EBADF unless `from` reads and `to` writes and does not
    /// append; EINVAL if ranges in one file overlap. Removes `security.capability` as [`write`](Self::write) does. The kernel takes care of
    /// privileges.
    fn copy_range(&self, caller: Caller, from: FilePlace, to: FilePlace, len_bytes: u64) -> Result<u32>;
    /// Returns the next data or hole at or after `offset`; ENXIO beyond the end.
    fn seek(&self, ino: Ino, handle: Handle, offset: u64, target: SeekTarget) -> Result<u64>;
    /// Lists at most `limit` entries after cookie `after` (0: from the start). The adapter adds `.` and `..`: real cookies begin at 3.
    fn read_directory(&self, ino: Ino, after: u64, limit: usize, listing: Listing) -> Result<Vec<DirectoryEntry>>;
    /// Returns a cookie behind those of all existing entries of the directory. Later names get it or one behind it, also those that move in from another
    /// directory. A name that is renamed within its directory keeps its place, or takes that of the name it replaces. So reading a
    /// directory up to here comes to an end, whatever is renamed meanwhile.
    fn directory_end(&self, ino: Ino) -> u64;
    /// Returns the directory's parent (the root's is itself).
    fn parent(&self, ino: Ino) -> Result<Ino>;
    /// Makes names in the directory durable.
    fn fsync_directory(&self, ino: Ino) -> Result<()>;
    /// statfs.
    fn statistics(&self) -> Result<Statistics>;
    /// Returns an extended attribute's value (ENODATA).
    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Returns the names of all extended attributes.
    fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// Sets an extended attribute ([`check_xattr_name`]).
    fn set_xattr(&self, caller: Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
    /// Removes an extended attribute (ENODATA; not for access lists, because every inode has one in effect).
    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()>;
    /// Makes everything durable, because the mount is going away.
    fn shutdown(&self);
}
