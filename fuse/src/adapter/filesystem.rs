//! All requests of the kernel: decode, call, reply. The parent module has the parts that they share.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use dedupfs_service::{
    AttributeChanges, DirectoryEntry, FilePlace, FileService, NodeContent, SeekTarget, Statistics, WriteFlags,
    XattrMode,
};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr, ReplyBmap,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
};

use super::convert::{self, caller, errno, file_attr, open_options, permissions};
use super::ioctl::{self, FlagsRequest};
use super::replies::{Reply as _, read_and_reply, reply_empty, reply_entry, reply_written, reply_xattr};
use super::{
    Adapter, BACKGROUND_REQUESTS_MAX, CAPABILITIES, COOKIE_PARENT, Listing, REQUEST_BYTES_MAX, guarded, new_node,
    set_flags, stub,
};

/// Whether a read or write goes through the kernel's page cache. The kernel names the owner of locks only with direct ones.
fn fills_pages(lock_owner: Option<LockOwner>) -> bool {
    lock_owner.is_none()
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in CAPABILITIES {
            if config.add_capabilities(capability).is_err() {
                tracing::debug!(bit = capability.bits(), "the kernel lacks a capability");
            }
        }
        let reads_unopened = InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        if self.policy.no_open && !config.capabilities().contains(reads_unopened) {
            tracing::warn!("the kernel opens files all the same: it is too old for the mount option no_open");
            self.policy.no_open = false;
        }
        let adjusted = [
            ("requests", config.set_max_write(REQUEST_BYTES_MAX).map(drop)),
            // The kernel offers what its backing device allows; mount() raises that afterwards.
            (
                "readahead",
                config.set_max_readahead(REQUEST_BYTES_MAX).or_else(|max| config.set_max_readahead(max)).map(drop),
            ),
            ("background requests", config.set_max_background(BACKGROUND_REQUESTS_MAX).map(drop).map_err(u32::from)),
        ];
        for (what, outcome) in adjusted {
            if let Err(nearest) = outcome {
                tracing::warn!(nearest, "the kernel refused the size of {what}");
            }
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _turn = self.turn();
        // For file handles (NFS) the kernel knows only the inode number.
        let lookup = || match name.as_bytes() {
            b"." => self.service.lookup_inode(parent.0),
            b".." => self.service.parent(parent.0).and_then(|above| self.service.lookup_inode(above)),
            name => self.service.lookup(parent.0, name),
        };
        let found = guarded("lookup", lookup);
        let is_removed = found.as_ref().is_ok_and(|attributes| attributes.nlink == 0);
        reply_entry(found, self.cache_time, reply);
        if is_removed {
            self.drop_names(vec![(parent.0, name.as_bytes().to_vec())]);
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        // No turn: one request has many of these, and the thread must not sleep between them. If it had to wait, it settles after its next
        // request.
        let _ = guarded("forget", || {
            self.service.forget(ino.0, nlookup);
            Ok(())
        });
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _turn = self.turn();
        reply.with(guarded("getattr", || self.service.attributes(ino.0)), |reply, attributes| {
            reply.attr(&self.cache_time, &file_attr(&attributes));
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _turn = self.turn();
        let changes = AttributeChanges {
            mode: mode.map(permissions),
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(convert::time_change),
            mtime: mtime.map(convert::time_change),
            ctime: ctime.map(convert::timestamp),
        };
        let (caller, cache_time) = (caller(request), self.cache_time);
        let slow = size.is_some() && self.changes_slowly(ino.0);
        self.answer(slow, move |service| {
            let result = guarded("setattr", || service.set_attributes(caller, ino.0, changes));
            reply.with(result, |reply, attributes| reply.attr(&cache_time, &file_attr(&attributes)));
        });
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _turn = self.turn();
        reply.with(guarded("readlink", || self.service.read_link(ino.0)), |reply, target| reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let _turn = self.turn();
        let node = new_node(parent, name, mode, umask);
        match convert::node_content(mode, rdev) {
            Some(content) => self.make(request, node, content, reply),
            None => reply.error(fuser::Errno::EINVAL),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let _turn = self.turn();
        self.make(request, new_node(parent, name, mode, umask), NodeContent::Directory, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn();
        self.reply_changed(parent, guarded("unlink", || self.service.unlink(parent.0, name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn();
        let removed = guarded("rmdir", || self.service.remove_directory(parent.0, name.as_bytes()));
        self.reply_changed(parent, removed, reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, link_name: &OsStr, target: &Path, reply: ReplyEntry) {
        let _turn = self.turn();
        let content = NodeContent::Symlink(target.as_os_str().as_bytes());
        self.make(request, new_node(parent, link_name, 0o777, 0), content, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn();
        let Some(flags) = convert::rename_flags(flags) else { return reply.error(fuser::Errno::EINVAL) };
        let rename = || self.service.rename(parent.0, name.as_bytes(), newparent.0, newname.as_bytes(), flags);
        self.reply_changed(newparent, guarded("rename", rename), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let _turn = self.turn();
        let linked = guarded("link", || self.service.link(ino.0, newparent.0, newname.as_bytes()));
        self.reply_new(newparent, linked, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn();
        if self.policy.no_open {
            // The kernel does not ask again, nor for a release.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let how = open_options(flags.0);
        let open = || self.dropping_privileges(how.truncate, ino.0, || self.service.open(caller(request), ino.0, how));
        reply.with(guarded("open", open), |reply, opened| {
            reply.opened(FileHandle(opened.handle), self.open_flags(&opened, flags.0));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _turn = self.turn();
        let node = new_node(parent, name, mode, umask);
        let created = guarded("create", || self.service.create(caller(request), node, open_options(flags)));
        self.reply_created(parent, flags, created, reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _turn = self.turn();
        let held = match self.hold(request, ino.0, fh) {
            Ok(held) => held,
            Err(error) => return reply.error(errno(error)),
        };
        if fills_pages(lock_owner) {
            self.service.note_cached(ino.0, held.handle);
        }
        let quick = guarded("read", || Ok(self.service.read_is_quick(ino.0, held.handle, offset, size)));
        self.answer(quick == Ok(false), move |service| read_and_reply(service, ino.0, &held, offset, size, reply));
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: fuser::WriteFlags,
        open_flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn();
        let is_direct = !fills_pages(lock_owner);
        if !is_direct {
            self.service.note_cached(ino.0, fh.0);
        }
        let flags = WriteFlags {
            from_cache: write_flags.contains(fuser::WriteFlags::FUSE_WRITE_CACHE),
            at_offset: !open_options(open_flags.0).append,
            drop_privileges: write_flags.contains(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let write = || {
            self.dropping_privileges(flags.drop_privileges, ino.0, || {
                self.service.write(caller(request), ino.0, fh.0, offset, data, flags)
            })
        };
        let written = guarded("write", write);
        // The write itself is done on this thread: requests that continue one another stay in order.
        let how = open_options(open_flags.0);
        let to = if how.append { u64::MAX } else { offset.saturating_add(data.len() as u64) };
        self.answer_write((ino.0, fh.0), (offset, to), is_direct, how.sync, written, |result| {
            reply_written(result, reply)
        });
    }

    fn flush(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let _turn = self.turn();
        if self.policy.no_open {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let quick = guarded("flush", || Ok(self.service.flush_is_quick(ino.0, fh.0)));
        self.answer(quick == Ok(false), move |service| {
            reply_empty(guarded("flush", || service.flush(ino.0, fh.0)), reply);
        });
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn();
        // The kernel ignores a release's error, but the handle has to go in any case.
        let quick = !open_options(flags.0).write
            || guarded("release", || Ok(self.service.flush_is_quick(ino.0, fh.0))) == Ok(true);
        self.answer(!quick, move |service| {
            let _ = guarded("release", || {
                service.release(ino.0, fh.0);
                Ok(())
            });
            reply.ok();
        });
        self.drop_unreachable(ino.0);
    }

    fn fsync(&self, request: &Request, ino: INodeNo, fh: FileHandle, _: bool, reply: ReplyEmpty) {
        let _turn = self.turn();
        let held = self.hold(request, ino.0, fh);
        self.answer_when_durable(move |service| {
            let synced = held.and_then(|held| guarded("fsync", || service.fsync(ino.0, held.handle)));
            reply_empty(synced, reply);
        });
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _turn = self.turn();
        if self.policy.no_open {
            return reply.error(fuser::Errno::ENOSYS);
        }
        let handle = self.streams.open(self.service.directory_end(ino.0));
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let _turn = self.turn();
        let add = |entry: &DirectoryEntry| {
            let name = OsStr::from_bytes(&entry.name);
            Ok(reply.add(INodeNo(entry.ino), entry.cookie, convert::file_type(entry.kind), name))
        };
        let listed = guarded("readdir", || self.list((ino.0, fh.0), offset, Listing::Names, add));
        reply.with(listed, |reply, ()| reply.ok());
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let _turn = self.turn();
        let ttl = self.cache_time;
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        let add = |entry: &DirectoryEntry| {
            let (attributes, ttl) = match &entry.attributes {
                Some(attributes) => (*attributes, ttl),
                // One inode that cannot be read must not hide the names behind it.
                None => (stub(entry.ino, entry.kind), Duration::ZERO),
            };
            let name = OsStr::from_bytes(&entry.name);
            let generation = Generation(attributes.generation);
            let full = reply.add(INodeNo(entry.ino), entry.cookie, name, &ttl, &file_attr(&attributes), generation);
            if !full && entry.cookie > COOKIE_PARENT {
                added.push(entry.ino);
                if entry.attributes.is_some_and(|attributes| attributes.nlink == 0) {
                    removed.push((ino.0, entry.name.to_vec()));
                }
            }
            Ok(full)
        };
        match guarded("readdirplus", || self.list((ino.0, fh.0), offset, Listing::Attributes, add)) {
            Ok(()) => {
                reply.ok();
                self.drop_names(removed);
            }
            Err(error) => {
                // The kernel gets no entry at all, so it will not forget those that were added.
                added.iter().for_each(|&ino| self.service.forget(ino, 1));
                reply.error(errno(error));
            }
        }
    }

    fn releasedir(&self, _: &Request, ino: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        let _turn = self.turn();
        self.streams.close(fh.0);
        reply.ok();
        self.drop_unreachable(ino.0);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let _turn = self.turn();
        self.answer_when_durable(move |service| {
            reply_empty(guarded("fsyncdir", || service.fsync_directory(ino.0)), reply);
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _turn = self.turn();
        reply.with(guarded("statfs", || self.service.statistics()), |reply, found| {
            let Statistics { block_bytes, blocks, blocks_free, blocks_available, files, files_free, name_bytes_max } =
                found;
            reply.statfs(
                blocks,
                blocks_free,
                blocks_available,
                files,
                files_free,
                block_bytes,
                name_bytes_max,
                block_bytes,
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn();
        let mode = match flags {
            0 => XattrMode::Any,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let set = || self.service.set_xattr(caller(request), ino.0, name.as_bytes(), value, mode);
        reply_empty(guarded("setxattr", set), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _turn = self.turn();
        reply_xattr(guarded("getxattr", || self.service.xattr(ino.0, name.as_bytes())), size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _turn = self.turn();
        // As on other Linux filesystems, `trusted.` names are shown to the superuser only.
        let visible = |name: &Vec<u8>| request.uid() == 0 || !name.starts_with(b"trusted.");
        let names = guarded("listxattr", || self.service.xattr_names(ino.0)).map(|names| {
            let mut list = Vec::new();
            for name in names.into_iter().filter(visible) {
                list.extend_from_slice(&name);
                list.push(0);
            }
            list
        });
        reply_xattr(names, size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _turn = self.turn();
        reply_empty(guarded("removexattr", || self.service.remove_xattr(ino.0, name.as_bytes())), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _turn = self.turn();
        let allocate = move |service: &dyn FileService| service.allocate(ino.0, fh.0, offset, length, mode);
        self.answer_change("fallocate", (ino.0, fh.0), None, allocate, |result| reply_empty(result, reply));
    }

    fn lseek(&self, request: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let _turn = self.turn();
        let target = match whence {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        let held = self.hold(request, ino.0, fh);
        self.answer(self.changes_slowly(ino.0), move |service| {
            let found = held.and_then(|held| guarded("lseek", || service.seek(ino.0, held.handle, offset, target)));
            reply.with(found, |reply, found| reply.offset(found.cast_signed()));
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _turn = self.turn();
        if !flags.is_empty() {
            return reply.error(fuser::Errno::EINVAL);
        }
        let from = FilePlace { ino: ino_in.0, handle: fh_in.0, offset: offset_in };
        let to = FilePlace { ino: ino_out.0, handle: fh_out.0, offset: offset_out };
        let caller = caller(request);
        let copy = move |service: &dyn FileService| service.copy_range(caller, from, to, len);
        let target = (to.ino, to.handle);
        self.answer_change("copy_file_range", target, Some(from.ino), copy, |result| reply_written(result, reply));
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let _turn = self.turn();
        let request = match ioctl::flags_request(command, in_data) {
            None => return reply.error(fuser::Errno::ENOTTY),
            Some(Err(error)) => return reply.error(errno(error)),
            Some(Ok(FlagsRequest::Set(flags))) => {
                let (caller, notifier) = (caller(request), self.notifier());
                // Not on the threads of reads: this waits for reads that the kernel has begun.
                return self.answer_when_durable(move |service| {
                    let set = guarded("ioctl", || set_flags(service, &notifier, caller, ino.0, flags));
                    reply.with(set, |reply, ()| reply.ioctl(0, &[]));
                });
            }
            Some(Ok(request)) => request,
        };
        reply.with(guarded("ioctl", || self.service.flags(ino.0)), |reply, flags| {
            reply.ioctl(0, &ioctl::flags_answer(request, flags, out_size));
        });
    }

    // ENOSYS: the kernel does these itself, or goes without, and does not ask again.

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        let _turn = self.turn();
        reply.error(fuser::Errno::ENOSYS);
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        let _turn = self.turn();
        reply.error(fuser::Errno::ENOSYS);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        let _turn = self.turn();
        reply.error(fuser::Errno::ENOSYS);
    }
}
