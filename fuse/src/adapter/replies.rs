//! Replies: translates results of the service for the library. If the mount asks for durable names, replies after they are durable.

use std::cell::Cell;
use std::time::Duration;

use fuser::{
    FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite,
    ReplyXattr,
};

use super::convert::{errno, file_attr};
use super::{Adapter, guarded};
use dedupfs_service::{Attributes, FileService, Handle, Ino, Opened, Result};

thread_local! {
    /// A read's bytes. Kept, because fresh memory costs more than the copy.
    static READ_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Adapter {
    /// Calls `reply` after a change of names. If it succeeded and the mount asks for durable names, syncs the directory first.
    fn settle<T: Copy + Send + 'static>(
        &self,
        directory: Ino,
        result: Result<T>,
        undo: impl FnOnce(&dyn FileService, T) + Send + 'static,
        reply: impl FnOnce(Result<T>) + Send + 'static,
    ) {
        if !self.policy.durable_names || result.is_err() {
            return reply(result);
        }
        self.answer_when_durable(move |service| {
            let settled = guarded("sync", || service.fsync_directory(directory));
            if let (Ok(value), Err(_)) = (result, settled) {
                // The kernel does not learn of the change.
                undo(service, value);
            }
            reply(settled.and(result));
        });
    }

    pub(super) fn reply_changed(&self, directory: INodeNo, result: Result<()>, reply: ReplyEmpty) {
        self.settle(directory.0, result, |_, ()| (), |result| reply_empty(result, reply));
    }

    pub(super) fn reply_new(&self, directory: INodeNo, result: Result<Attributes>, reply: ReplyEntry) {
        let cache_time = self.cache_time;
        let forget = |service: &dyn FileService, made: Attributes| service.forget(made.ino, 1);
        self.settle(directory.0, result, forget, move |result| reply_entry(result, cache_time, reply));
    }

    pub(super) fn reply_created(
        &self,
        directory: INodeNo,
        flags: i32,
        result: Result<(Attributes, Opened)>,
        reply: ReplyCreate,
    ) {
        let cache_time = self.cache_time;
        let flags = result.map(|(_, opened)| self.open_flags(&opened, flags)).unwrap_or_else(|_| FopenFlags::empty());
        let forget = |service: &dyn FileService, (made, opened): (Attributes, Opened)| {
            service.release(made.ino, opened.handle);
            service.forget(made.ino, 1);
        };
        self.settle(directory.0, result, forget, move |result| match result {
            Ok((made, opened)) => {
                let handle = FileHandle(opened.handle);
                reply.created(&cache_time, &file_attr(&made), Generation(made.generation), handle, flags);
            }
            Err(error) => reply.error(errno(error)),
        });
    }
}

pub(super) fn reply_entry(result: Result<Attributes>, cache_time: Duration, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&cache_time, &file_attr(&attributes), Generation(attributes.generation)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_empty(result: Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_attributes(result: Result<Attributes>, cache_time: Duration, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&cache_time, &file_attr(&attributes)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_written(result: Result<u32>, reply: ReplyWrite) {
    match result {
        Ok(written) => reply.written(written),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn reply_xattr(result: Result<Vec<u8>>, room_bytes: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if room_bytes == 0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        Ok(value) if value.len() > room_bytes as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn read_and_reply(
    service: &dyn FileService,
    ino: Ino,
    handle: Handle,
    offset: u64,
    len_bytes: u32,
    reply: ReplyData,
) {
    let mut buffer = READ_BUFFER.take();
    buffer.clear();
    match guarded("read", || service.read(ino, handle, offset, len_bytes, &mut buffer)) {
        Ok(()) => reply.data(&buffer),
        Err(error) => reply.error(errno(error)),
    }
    READ_BUFFER.set(buffer);
}
