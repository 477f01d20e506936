//! copy_file_range(2): shares content through its recipe; only short ranges are read and written.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{FILE_BYTES_MAX, FileBody, StreamId};
use dedupfs_namespace::version_of;
use dedupfs_service::{Caller, FilePlace, Ino};
use dedupfs_store::waiting;
use dedupfs_sync::RwLockWriteGuard;

use super::open_files::OpenFile;
use super::{Service, now, protection};
use crate::config::{CLONE_BYTES_MAX, CLONE_BYTES_MIN};

/// A file's content, locked.
type Locked<'a> = RwLockWriteGuard<'a, Option<FileBody>>;

impl Service {
    /// Copies up to `len_bytes` from `from` to `to`; returns the number of bytes copied. It is smaller at the end of the source, and
    /// where a very long range is best split.
    pub(super) fn copy_content(&self, caller: Caller, from: FilePlace, to: FilePlace, len_bytes: u64) -> Result<u32> {
        let _pass = self.core.begin_change()?;
        // Use the actual size, not the requested one: cp asks for 2 GiB of any file.
        let source_bytes = self.current(from.ino)?.size_bytes;
        let len_bytes = len_bytes.min(CLONE_BYTES_MAX).min(source_bytes.saturating_sub(from.offset));
        let _room = self.admit(self.core.cost.of_clone(len_bytes, CLONE_BYTES_MIN))?;
        let copied = {
            // Until it is published, the clone may rest on the source's root: neither inode may be dropped.
            let _held = [Held::new(self, from.ino), Held::new(self, to.ino)];
            self.copy_held(caller, from, to, len_bytes)?
        };
        self.relieve_memory();
        if copied > 0 {
            self.drop_capability(to.ino)?;
        }
        self.core.relieve()?;
        u32::try_from(copied).map_err(|_| EngineError::Internal("a clone of more than its limit"))
    }

    fn copy_held(&self, caller: Caller, from: FilePlace, to: FilePlace, len_bytes: u64) -> Result<u64> {
        let (source, target) = (self.files.handle(from.handle)?, self.files.handle(to.handle)?);
        let are_these = source.file.ino == from.ino && target.file.ino == to.ino;
        if !are_these || !source.how.read || !target.how.write || target.how.append {
            return Err(EngineError::BadHandle);
        }
        let stream = self.stream(&target.file, caller);
        let (source_guard, mut target_guard) = lock(&source.file, &target.file);
        let (files, namespace) = (&self.core.files, &self.core.namespace);
        let target_body = target.file.load(&mut target_guard, files, namespace)?;
        let inode = namespace.inode_shared(to.ino)?.ok_or(EngineError::NotFound)?;
        protection::check_write(&inode, to.offset, target_body.size_bytes())?;
        let Some(mut source_guard) = source_guard else {
            let len_bytes = in_limits(target_body, from.offset, to.offset, len_bytes)?;
            if from.offset.abs_diff(to.offset) < len_bytes {
                return Err(EngineError::Invalid("the ranges overlap"));
            }
            let copied = copy(stream, None, from.offset, target_body, to.offset, len_bytes)?;
            return self.copied(&target.file, &mut target_guard, copied);
        };
        let source_body = source.file.load(&mut source_guard, files, namespace)?;
        let len_bytes = in_limits(source_body, from.offset, to.offset, len_bytes)?;
        let source_stream = StreamId(source.file.last_writer.load(Ordering::Relaxed));
        let source_body = Some((source_body, source_stream));
        let copied = copy(stream, source_body, from.offset, target_body, to.offset, len_bytes)?;
        // The source stays locked until here.
        self.copied(&target.file, &mut target_guard, copied)
    }

    fn copied(&self, target: &OpenFile, guard: &mut Locked<'_>, copied: u64) -> Result<u64> {
        if copied > 0
            && let Some(body) = &**guard
        {
            target.note_change(body, now());
            if body.is_one_chunk() {
                self.publish_locked(target, guard)?;
            }
        }
        Ok(copied)
    }

    /// Removes the file's capabilities, as Linux does at every change of content.
    pub(super) fn drop_capability(&self, ino: Ino) -> Result<()> {
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        if inode.xattr_count == 0 {
            return Ok(());
        }
        match self.core.namespace.remove_xattr(ino, super::content::CAPABILITY_XATTR, now()) {
            Ok(_) | Err(EngineError::NoAttribute) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A hold that keeps an inode from being dropped, even without names.
pub(super) struct Held<'a> {
    service: &'a Service,
    ino: Ino,
}

impl<'a> Held<'a> {
    pub(super) fn new(service: &'a Service, ino: Ino) -> Self {
        drop(service.files.hold(ino));
        Self { service, ino }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.service.files.let_go(self.ino, || {});
        self.service.collect(version_of(self.ino));
    }
}

/// Locks the contents of both files in the order of inode numbers. The source is locked only if it is another file.
fn lock<'a>(source: &'a Arc<OpenFile>, target: &'a Arc<OpenFile>) -> (Option<Locked<'a>>, Locked<'a>) {
    match source.ino.cmp(&target.ino) {
        std::cmp::Ordering::Less => {
            let source = waiting::write(&source.body);
            (Some(source), waiting::write(&target.body))
        }
        std::cmp::Ordering::Equal => (None, waiting::write(&target.body)),
        std::cmp::Ordering::Greater => {
            let target = waiting::write(&target.body);
            (Some(waiting::write(&source.body)), target)
        }
    }
}

/// Limits `len_bytes` to the end of the source and the largest file size.
fn in_limits(source: &FileBody, from: u64, at: u64, len_bytes: u64) -> Result<u64> {
    let len_bytes = len_bytes.min(source.size_bytes().saturating_sub(from));
    match FILE_BYTES_MAX.saturating_sub(at) {
        0 if len_bytes > 0 => Err(EngineError::FileTooLarge),
        room_bytes => Ok(len_bytes.min(room_bytes)),
    }
}

/// Copies a range; `source` is `None` for a range of the target itself.
fn copy(
    stream: StreamId,
    source: Option<(&mut FileBody, StreamId)>,
    from: u64,
    target: &mut FileBody,
    at: u64,
    len_bytes: u64,
) -> Result<u64> {
    if len_bytes == 0 {
        return Ok(0);
    }
    let source_bytes = source.as_ref().map(|(body, _)| body.size_bytes());
    let is_all = from == 0 && at == 0 && source_bytes == Some(len_bytes) && target.size_bytes() <= len_bytes;
    if !is_all && len_bytes < CLONE_BYTES_MIN {
        let mut bytes = Vec::new();
        {
            let body = source.map_or(&mut *target, |(body, _)| body);
            if body.read_needs_finish(from, len_bytes) {
                body.finish_for_reading()?;
            }
            body.read(from, len_bytes, &mut bytes)?;
        }
        target.write(stream, at, &bytes)?;
        return Ok(len_bytes);
    }
    target.merge(stream)?;
    let end = |body: &FileBody| match len_bytes {
        CLONE_BYTES_MAX => body.clone_end(from, len_bytes),
        _ => from + len_bytes,
    };
    match source {
        Some((body, source_stream)) => {
            body.merge(source_stream)?;
            let len_bytes = end(body) - from;
            target.clone_range(stream, Some(&*body), from, len_bytes, at)?;
            Ok(len_bytes)
        }
        None => {
            let len_bytes = end(target) - from;
            target.clone_range(stream, None, from, len_bytes, at)?;
            Ok(len_bytes)
        }
    }
}
