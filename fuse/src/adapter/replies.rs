//! Replies: translates results of the service for the library. If the mount asks for durable names, replies after they are durable.

use std::cell::Cell;
use std::time::Duration;

use dedupfs_service::{Attributes, FileService, Ino, Opened, Result};
use fuser::{
    FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

use super::convert::{errno, file_attr};
use super::unopened::Held;
use super::{Adapter, guarded};

thread_local! {
    /// A read's bytes. Kept, because fresh memory costs more than the copy.
    static READ_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Adapter {
    /// Calls `reply` after a change of names. If it succeeded and the mount asks for durable names, syncs the directory first.
    fn answer_names<T: Copy + Send + 'static>(
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
        self.answer_names(directory.0, result, |_, ()| (), |result| reply_empty(result, reply));
    }

    pub(super) fn reply_new(&self, directory: INodeNo, result: Result<Attributes>, reply: ReplyEntry) {
        let cache_time = self.cache_time;
        let forget = |service: &dyn FileService, made: Attributes| service.forget(made.ino, 1);
        self.answer_names(directory.0, result, forget, move |result| reply_entry(result, cache_time, reply));
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
        self.answer_names(directory.0, result, forget, move |result| {
            reply.with(result, |reply, (made, opened)| {
                let handle = FileHandle(opened.handle);
                reply.created(&cache_time, &file_attr(&made), Generation(made.generation), handle, flags);
            });
        });
    }
}

/// A reply that can be an error.
pub(super) trait Reply: Sized {
    fn fail(self, error: fuser::Errno);

    /// Replies with the value of `result` as `succeed` does, or with its error.
    fn with<T>(self, result: Result<T>, succeed: impl FnOnce(Self, T)) {
        match result {
            Ok(value) => succeed(self, value),
            Err(error) => self.fail(errno(error)),
        }
    }
}

macro_rules! can_fail {
    ($($reply:ty)*) => {
        $(impl Reply for $reply {
            fn fail(self, error: fuser::Errno) {
                self.error(error);
            }
        })*
    };
}

can_fail! {
    ReplyAttr ReplyCreate ReplyData ReplyDirectory ReplyEmpty ReplyEntry ReplyIoctl ReplyLseek ReplyOpen ReplyStatfs ReplyWrite ReplyXattr
}

pub(super) fn reply_entry(result: Result<Attributes>, cache_time: Duration, reply: ReplyEntry) {
    reply.with(result, |reply, attributes| {
        reply.entry(&cache_time, &file_attr(&attributes), Generation(attributes.generation));
    });
}

pub(super) fn reply_empty(result: Result<()>, reply: ReplyEmpty) {
    reply.with(result, |reply, ()| reply.ok());
}

pub(super) fn reply_written(result: Result<u32>, reply: ReplyWrite) {
    reply.with(result, |reply, written| reply.written(written));
}

pub(super) fn reply_xattr(result: Result<Vec<u8>>, room_bytes: u32, reply: ReplyXattr) {
    reply.with(result, |reply, value| match value.len() {
        len if room_bytes == 0 => reply.size(u32::try_from(len).unwrap_or(u32::MAX)),
        len if len > room_bytes as usize => reply.error(fuser::Errno::ERANGE),
        _ => reply.data(&value),
    });
}

pub(super) fn read_and_reply(
    service: &dyn FileService,
    ino: Ino,
    held: &Held,
    offset: u64,
    len_bytes: u32,
    reply: ReplyData,
) {
    let mut buffer = READ_BUFFER.take();
    buffer.clear();
    let read = guarded("read", || service.read(ino, held.handle, offset, len_bytes, &mut buffer));
    reply.with(read, |reply, ()| reply.data(&buffer));
    READ_BUFFER.set(buffer);
}
