//! Decodes the kernel's requests, calls the service, and replies. Contains no logic of the filesystem.
//!
//! - A request is answered on the thread that received it, unless the service says that it takes long. Then the reply moves to a thread of
//!   [`offload`].
//! - If a receiving thread must wait nevertheless, it first lets another one receive ([`relay`]).
//! - After an answer the thread polls for the next request for a moment before it sleeps ([`watch`]). While many requests come, the cores
//!   of a virtual machine are kept awake ([`awake`]).
//! - A panic of the service becomes EIO for that request. The session goes on, so the mount does not hang.
//! - `release` and `forget` never fail.
//! - Files that the kernel reads without having opened them get a handle here ([`unopened`]).
//! - A write past the page cache leaves no stale page there ([`pages`]). Reading a directory comes to an end ([`streams`]).
//! - Before a file refuses changes (chattr), dirty pages of its mappings are written back.
//! - When the service itself drops setuid bits (direct writes, truncating opens), the kernel is told that its cached attributes are stale.
//!   Otherwise it would execute the file with the old bits.

mod awake;
mod convert;
mod filesystem;
mod ioctl;
mod offload;
#[cfg(test)]
mod offload_tests;
mod pages;
mod relay;
mod replies;
mod seat;
mod streams;
mod unopened;
mod watch;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{FileHandle, FopenFlags, INodeNo, InitFlags, Notifier, ReplyEntry, Request};

pub(crate) use awake::Awake;
pub use awake::KeepAwake;
use convert::{caller, open_options, permissions};
use dedupfs_service::{
    Attributes, Caller, DirectoryEntry, Errno, FileKind, FileService, Handle, Ino, InodeFlags, Listing, NewNode,
    NodeContent, Opened, Result,
};

use offload::Offload;
use pages::{Pages, Range};
use relay::Relay;
use seat::Turn;
pub use seat::{about_to_wait, is_receiving};
use streams::Streams;
use unopened::{Held, Unopened};
use watch::Watch;

/// Largest write request, and so the largest read request too.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests the kernel may keep waiting in the background (readahead, release).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// Names requested from the service at once.
const NAMES_BATCH: usize = 64;
/// The same with attributes: as many as a reply of one page holds, because an entry that does not fit was looked up in vain.
const ENTRIES_BATCH: usize = 24;
/// Cookies of the two entries every directory has; the service's own begin at 3.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

/// Capabilities requested from the kernel. Those that an older kernel lacks are left out.
const CAPABILITIES: [InitFlags; 13] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_BIG_WRITES,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_EXPORT_SUPPORT,
    // Else the kernel asks for the attributes before each change of an owner, to clear set-id bits by itself.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
];

/// Threads for calls that take long. Calls that wait for a commit have their own threads, so that any number of them does not stop the
/// others. So do writes that drop stale pages, which waits for reads.
#[derive(Clone, Default)]
pub(crate) struct SlowCalls {
    others: Arc<Offload>,
    commits: Arc<Offload>,
    pages: Pages,
    /// Drop names. Each of these jobs waits while another request holds the lock of the name's directory.
    names: Arc<Offload>,
}

impl SlowCalls {
    /// Waits until no call is left. No more may come. Names may be dropped still: nobody waits for that, and it may wait for a
    /// request that is never answered.
    pub(crate) fn drain(&self) {
        // When their pages are dropped, some continue on the other threads.
        self.pages.drain();
        self.others.drain();
        self.commits.drain();
    }
}

/// The rules of a mount for all its requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    /// Write handles bypass the page cache when the service asks for it.
    pub(crate) direct_io_writes: bool,
    /// Changes of content are durable when they are answered (`sync`). The kernel syncs writes.
    pub(crate) durable_content: bool,
    /// Changes of names are durable when they are answered (`dirsync`). The kernel does nothing for that.
    pub(crate) durable_names: bool,
    /// The kernel is to read files and directories without opening them, if it can. Only for mounts on which nothing changes.
    pub(crate) no_open: bool,
}

/// The FUSE side of a service.
pub(crate) struct Adapter {
    service: Arc<dyn FileService>,
    slow: SlowCalls,
    relay: Arc<Relay>,
    watch: Arc<Watch>,
    cache_time: Duration,
    policy: Policy,
    streams: Streams,
    unopened: Unopened,
    /// Set before the first request.
    notifier: Arc<OnceLock<Notifier>>,
}

/// Setuid and setgid.
const PRIVILEGES: u16 = 0o6000;

/// Calls the service. A panic of it becomes an error of this request only.
fn guarded<T>(what: &'static str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result,
        Err(_) => {
            tracing::error!(operation = what, "the service panicked");
            Err(Errno::EIO)
        }
    }
}

impl Adapter {
    /// Makes an adapter with `receivers_max` threads that receive at the same time. The session may have more threads, for while these
    /// wait.
    pub(crate) fn new(service: Arc<dyn FileService>, slow: SlowCalls, receivers_max: usize, policy: Policy) -> Self {
        let cache_time = service.cache_time();
        let relay = Arc::new(Relay::new(receivers_max));
        let (watch, streams, unopened, notifier) = Default::default();
        Self { service, slow, relay, watch, cache_time, policy, streams, unopened, notifier }
    }

    /// Begins a turn. Each request holds it until after its answer.
    fn turn(&self) -> Turn {
        Turn::begin(&self.relay, &self.watch)
    }

    /// The watch, which needs the session's device.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// The slot for the session's notifier.
    pub(crate) fn notifier(&self) -> Arc<OnceLock<Notifier>> {
        Arc::clone(&self.notifier)
    }

    /// Returns the handle for a request that reads: that of the kernel, or one of the adapter.
    fn hold(&self, request: &Request, ino: Ino, handle: FileHandle) -> Result<Held> {
        match self.policy.no_open {
            true => self.unopened.hold(&self.service, caller(request), ino),
            false => Ok(Held::given(handle)),
        }
    }

    /// Runs a call that may drop privileges of a file. If the file had some, the kernel then asks for its attributes anew.
    fn dropping_privileges<T>(&self, may_drop: bool, ino: Ino, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let had_some = may_drop && self.service.attributes(ino)?.mode & PRIVILEGES != 0;
        let result = call();
        if let (true, Some(notifier)) = (had_some, self.notifier.get()) {
            // Before the reply, so that no process sees the write together with the old mode.
            forget_attributes(notifier, ino);
        }
        result
    }

    /// Makes the kernel drop the names by which it reached an inode in a removed version, now that a handle of it is closed.
    fn drop_unreachable(&self, ino: Ino) {
        self.drop_names(guarded("release", || Ok(self.service.unreachable_names(ino))).unwrap_or_default());
    }

    /// Makes the kernel drop names in a removed version when they are not used any more. It would keep them until it needs memory,
    /// and with them the version. Waits for nothing.
    fn drop_names(&self, names: Vec<(Ino, Vec<u8>)>) {
        if names.is_empty() {
            return;
        }
        let notifier = self.notifier();
        self.slow.names.submit_if_room(move || {
            for (directory, name) in names {
                if let Some(notifier) = notifier.get()
                    && let Err(error) = notifier.inval_entry(INodeNo(directory), OsStr::from_bytes(&name))
                    && error.raw_os_error() != Some(libc::ENOENT)
                {
                    tracing::debug!(directory, %error, "the kernel does not drop a name in a removed version");
                }
            }
        });
    }

    /// Runs `answer` here or, if `slow`, on another thread.
    fn answer(&self, slow: bool, answer: impl FnOnce(&dyn FileService) + Send + 'static) {
        if slow {
            let service = Arc::clone(&self.service);
            self.slow.others.submit(move || answer(&*service));
        } else {
            answer(&*self.service);
        }
    }

    /// Runs `answer`, which waits for a commit, on another thread.
    fn answer_when_durable(&self, answer: impl FnOnce(&dyn FileService) + Send + 'static) {
        let service = Arc::clone(&self.service);
        self.slow.commits.submit(move || answer(&*service));
    }

    /// Answers a write with its result. `range` of the file has new bytes, which went past the kernel's page cache if `is_direct`. With
    /// `sync` they are durable before the answer.
    fn answer_write(
        &self,
        (ino, handle): (Ino, Handle),
        range: Range,
        is_direct: bool,
        sync: bool,
        written: Result<u32>,
        reply: impl FnOnce(Result<u32>) + Send + 'static,
    ) {
        let (service, slow) = (Arc::clone(&self.service), self.slow.clone());
        let sync = sync && written.is_ok();
        let answer = move || match sync {
            true => slow.commits.submit(move || reply(guarded("sync", || service.fsync(ino, handle)).and(written))),
            false => reply(written),
        };
        // Asked after the write: a read that filled pages with the old bytes was noted before it read them.
        if is_direct && guarded("write", || Ok(self.service.may_be_cached(ino, handle))) == Ok(true) {
            let notifier = self.notifier();
            return self.slow.pages.drop_then(ino, range, move |ino, range| drop_pages(&notifier, ino, range), answer);
        }
        answer();
    }

    /// Runs `change` of a file's content, made through a handle of it and perhaps from another file, here or on another thread. With
    /// O_SYNC, or if the mount asks for it, the change is durable when `reply` is called.
    fn answer_change<T>(
        &self,
        what: &'static str,
        (ino, handle): (Ino, Handle),
        source: Option<Ino>,
        change: impl FnOnce(&dyn FileService) -> Result<T> + Send + 'static,
        reply: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        let is_synchronous = || Ok(self.service.is_synchronous(ino, handle));
        if self.policy.durable_content || guarded(what, is_synchronous) == Ok(true) {
            return self.answer_when_durable(move |service| {
                let changed = guarded(what, || change(service));
                let sync = |changed| guarded("sync", || service.fsync(ino, handle)).map(|()| changed);
                reply(changed.and_then(sync));
            });
        }
        let slow = self.changes_slowly(ino) || source.is_some_and(|source| self.changes_slowly(source));
        self.answer(slow, move |service| reply(guarded(what, || change(service))));
    }

    /// Whether a change of a file's content takes long, so that another thread must answer.
    fn changes_slowly(&self, ino: Ino) -> bool {
        guarded("change", || Ok(self.service.change_is_quick(ino))) == Ok(false)
    }

    fn open_flags(&self, opened: &Opened, flags: i32) -> FopenFlags {
        let how = open_options(flags);
        let mut fopen = FopenFlags::empty();
        fopen.set(FopenFlags::FOPEN_KEEP_CACHE, opened.keep_cache);
        fopen.set(FopenFlags::FOPEN_DIRECT_IO, opened.direct_io && (self.policy.direct_io_writes || !how.write));
        // Nothing was written: closing has nothing to report, and restores close many files.
        fopen.set(FopenFlags::FOPEN_NOFLUSH, !how.write);
        fopen
    }

    fn make(&self, request: &Request, node: NewNode<'_>, content: NodeContent<'_>, reply: ReplyEntry) {
        let made = guarded("make", || self.service.make(caller(request), node, content));
        self.reply_new(INodeNo(node.parent), made, reply);
    }

    /// Passes entries of an open directory to `add`, first `.` and `..`, until `add` returns that the reply is full.
    fn list(
        &self,
        (ino, handle): (Ino, u64),
        offset: u64,
        listing: Listing,
        mut add: impl FnMut(&DirectoryEntry) -> Result<bool>,
    ) -> Result<()> {
        let with_attributes = listing == Listing::Attributes;
        for (name, cookie) in [(".", COOKIE_SELF), ("..", COOKIE_PARENT)] {
            if offset < cookie {
                let target = if cookie == COOKIE_SELF { ino } else { self.service.parent(ino)? };
                let kind = FileKind::Directory;
                let attributes = Some(stub(target, kind)).filter(|_| with_attributes);
                let entry = DirectoryEntry { ino: target, kind, name: name.into(), cookie, attributes };
                if add(&entry)? {
                    return Ok(());
                }
            }
        }
        let end = self.streams.end(handle, offset, || self.service.directory_end(ino));
        let limit = if with_attributes { ENTRIES_BATCH } else { NAMES_BATCH };
        let mut after = if offset <= COOKIE_PARENT { 0 } else { offset };
        loop {
            let batch = self.service.read_directory(ino, after, limit, listing)?;
            let Some(last) = batch.last() else { return Ok(()) };
            after = last.cookie;
            for (at, entry) in batch.iter().enumerate() {
                let is_behind = entry.cookie >= end;
                let full = if is_behind { Ok(true) } else { add(entry) };
                if full != Ok(false) {
                    if with_attributes {
                        // These were counted as looked up, but the kernel does not get them.
                        batch[at..].iter().for_each(|unused| self.service.forget(unused.ino, 1));
                    }
                    return full.map(drop);
                }
            }
        }
    }
}

/// Attributes as far as a name alone tells them. Of `.` and `..` the kernel uses only the inode number and the type.
fn stub(ino: Ino, kind: FileKind) -> Attributes {
    Attributes {
        ino,
        generation: 0,
        kind,
        mode: if kind == FileKind::Directory { 0o755 } else { 0 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size_bytes: 0,
        blocks: 0,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
    }
}

/// Drops the kernel's cached pages of this range of a file. Waits for requests that fill or write these pages.
fn drop_pages(notifier: &OnceLock<Notifier>, ino: Ino, (from, to): Range) {
    let Some(notifier) = notifier.get() else { return };
    // A length of 0 stands for the rest of the file.
    let (from, to) = (i64::try_from(from).unwrap_or(i64::MAX), i64::try_from(to).unwrap_or(i64::MAX));
    if let Err(error) = notifier.inval_inode(INodeNo(ino), from, if to == i64::MAX { 0 } else { to - from })
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        tracing::error!(ino, %error, "pages that are stale now could not be dropped from the kernel's cache");
    }
}

/// Sets an inode's flags. Must not run on a thread that serves the kernel, which has to write its cached pages meanwhile.
fn set_flags(
    service: &dyn FileService,
    notifier: &OnceLock<Notifier>,
    caller: Caller,
    ino: Ino,
    flags: InodeFlags,
) -> Result<()> {
    if flags.protect()
        && !service.flags(ino)?.protect()
        && let Some(notifier) = notifier.get()
        && let Err(error) = notifier.inval_inode(INodeNo(ino), 0, 0)
        && error.raw_os_error() != Some(libc::ENOENT)
    {
        // Afterwards they could not be written any more.
        tracing::warn!(ino, %error, "cached pages could not be written before the file was to become protected");
        return Err(Errno::EBUSY);
    }
    service.set_flags(caller, ino, flags)?;
    // The kernel does not know that ctime changed.
    if let Some(notifier) = notifier.get() {
        forget_attributes(notifier, ino);
    }
    Ok(())
}

/// Makes the kernel ask for the attributes of an inode anew, if it knows the inode.
fn forget_attributes(notifier: &Notifier, ino: Ino) {
    // A negative offset invalidates attributes only.
    if let Err(error) = notifier.inval_inode(INodeNo(ino), -1, 0) {
        tracing::debug!(ino, %error, "the kernel does not know the inode whose attributes changed");
    }
}

fn new_node(parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> NewNode<'_> {
    NewNode { parent: parent.0, name: name.as_bytes(), mode: permissions(mode), umask: permissions(umask) }
}
