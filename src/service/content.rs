//! Reading, writing, truncating and publishing the content of files.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::{EngineError, Hold, Result};
use dedupfs_content::{FILE_BYTES_MAX, FileBody, StreamId, Sweep, SweepTarget};
use dedupfs_namespace::{Inode, is_frozen, version_of};
use dedupfs_service::{Caller, FileKind, Handle, Ino, OpenOptions, Opened, SeekTarget, WriteFlags, without_privileges};
use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::{Child, Root};
use dedupfs_store::{StoreError, waiting};
use dedupfs_sync::canary::{Canary, is_planted};
use dedupfs_sync::step::Step;
use dedupfs_sync::thread;

use super::open_files::{Live, OpenFile, OpenHandle};
use super::{Service, now, protection};

/// Memory that each transfer gets.
const TRANSFER_BYTES_MIN: u64 = 4 << 20;
pub(crate) const CAPABILITY_XATTR: &[u8] = b"security.capability";
// fallocate(2)
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

impl Service {
    pub(super) fn open_existing(&self, caller: Caller, ino: Ino, how: OpenOptions) -> Result<Opened> {
        let inode = self.inode(ino)?.ok_or(EngineError::NotFound)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(EngineError::IsDirectory),
            _ => return Err(EngineError::Invalid("only regular files are opened here")),
        }
        if how.write || how.truncate {
            self.check_live(ino)?;
        }
        protection::check_open(&inode, how)?;
        let _pass = (how.write || how.truncate).then(|| self.core.begin_change()).transpose()?;
        if how.truncate && caller.uid != 0 {
            self.drop_privileges(ino)?;
        }
        let frozen = is_frozen(ino).then_some(inode.root);
        let opened = self.open_handle(caller, ino, how, frozen)?;
        Ok(Opened { keep_cache: opened.keep_cache && !self.access_must_be_seen(&inode, how), ..opened })
    }

    /// Opens a file. A frozen one has its content in `frozen`.
    pub(super) fn open_handle(
        &self,
        caller: Caller,
        ino: Ino,
        how: OpenOptions,
        frozen: Option<Root>,
    ) -> Result<Opened> {
        let (handle, open) = self.files.open(ino, how, frozen);
        let admitted = match how.write || how.truncate {
            true => self.check_not_replaced(ino),
            false => Ok(()),
        };
        let truncated = admitted.and_then(|()| match how.truncate {
            true => self.truncate_open(caller, &open.file, 0),
            false => Ok(()),
        });
        if let Err(error) = truncated {
            self.close_handle(ino, handle);
            return Err(error);
        }
        // All changes pass through this kernel, so its cached pages are current. Write-only handles bypass its cache where they may:
        // one copy less (MEASURED: 2 to 3 times the rate).
        Ok(Opened { handle, keep_cache: open.keeps_cache(), direct_io: open.is_direct })
    }

    pub(super) fn read_content(&self, handle: Handle, offset: u64, len_bytes: u32, into: &mut Vec<u8>) -> Result<()> {
        let open = self.files.handle(handle)?;
        self.core.activity.note();
        let len_bytes = u64::from(len_bytes);
        let (ino, mut is_at_end) = (open.file.ino, false);
        let outcome = self.with_readable(&open, offset, len_bytes, &mut |body| {
            // Before the read, so that other threads load parts of it, too. One that fails leads nowhere.
            let reaches_end = body.read_ahead(&mut waiting::lock(&open.ahead), offset, len_bytes);
            body.read(offset, len_bytes, into)?;
            is_at_end = reaches_end;
            if is_at_end && !is_frozen(ino) {
                body.read_on();
            }
            Ok(())
        });
        if is_at_end && is_frozen(ino) && !self.read_across(ino) {
            // The read itself has its outcome.
            let _unread = self.with_readable(&open, offset, 0, &mut |body| {
                body.read_on();
                Ok(())
            });
        }
        // The read may have loaded the content.
        self.relieve_memory_unless_busy();
        match &outcome {
            Ok(()) if open.how.no_access_time => {}
            Ok(()) => self.note_file_access(&open.file),
            Err(error) => tracing::error!(ino, offset, len_bytes, %error, "read failed"),
        }
        outcome
    }

    /// Has the content of regular files read ahead, which are about to be read in this order. Files that are gone, or whose
    /// content is not published yet, are left out.
    pub(crate) fn ask_for_beginnings(&self, inos: impl IntoIterator<Item = Ino>) {
        let inodes = inos.into_iter().filter_map(|ino| self.inode(ino).ok().flatten());
        let roots: Vec<Root> = inodes.map(|inode| inode.root).collect();
        self.core.files.ask_for_beginnings(roots, 0, u64::MAX);
    }

    /// Calls `visit(offset, chunk)` for the chunks and runs of zeros of a file of a version, in order, until it returns `false`.
    ///
    /// # Errors
    /// `NotFound` if the version is gone; `Corrupt` if its tree or the file's recipe is damaged; I/O errors.
    pub(crate) fn for_each_frozen_chunk(&self, ino: Ino, visit: &mut dyn FnMut(u64, &Child) -> bool) -> Result<()> {
        let inode = self.inode(ino)?.filter(|_| is_frozen(ino)).ok_or(EngineError::NotFound)?;
        self.core.files.for_each_chunk(&inode.root, visit)
    }

    /// Takes note that a client is served, so that work in the background gives way.
    pub(crate) fn note_activity(&self) {
        self.core.activity.note();
    }

    /// Reads the chunks of many files in the order of the disk.
    pub(crate) fn sweep(&self, sweep: Sweep, target: &dyn SweepTarget) {
        self.core.files.chunks.sweep(sweep, target);
    }

    /// Takes memory for a transfer: half of what the others leave of a quarter of `--memory`, and 4 MiB at least.
    pub(crate) fn take_memory_to_transfer(&self) -> (u64, Hold) {
        // One after the other, or all would see the same room.
        let transferring = self.transferring.lock();
        let left_bytes = (self.core.memory_at_opening.total_bytes / 4).saturating_sub(transferring.bytes());
        let bytes = (left_bytes / 2).max(TRANSFER_BYTES_MIN);
        (bytes, transferring.hold(bytes, 1))
    }

    /// Calls `read` with the content, loaded and finished as far as the range needs.
    fn with_readable(
        &self,
        open: &OpenHandle,
        offset: u64,
        len_bytes: u64,
        read: &mut dyn FnMut(&FileBody) -> Result<()>,
    ) -> Result<()> {
        let file = &open.file;
        if let Some(body) = &*waiting::read(&file.body)
            && !body.read_needs_finish(offset, len_bytes)
        {
            file.note_use();
            return read(body);
        }
        let mut guard = waiting::write(&file.body);
        let body = file.load(&mut guard, &self.core.files, &self.core.namespace)?;
        if body.read_needs_finish(offset, len_bytes) {
            body.finish_for_reading()?;
        }
        let body: &FileBody = body;
        read(body)
    }

    pub(super) fn content_is_cached(&self, handle: Handle, offset: u64, len_bytes: u32) -> bool {
        let Ok(open) = self.files.handle(handle) else { return true };
        // The holder of the lock may be waiting for the disk, and everybody waits for this thread.
        let Some(is_absent) = open.file.body.try_read().map(|body| body.is_none()) else { return false };
        if is_absent {
            let Ok(Some(inode)) = self.inode(open.file.ino) else { return false };
            // Loading any other root needs no I/O.
            if matches!(inode.root, Root::Node { level: 1.., .. }) {
                return false;
            }
            if let Some(mut guard) = open.file.body.try_write()
                && open.file.load(&mut guard, &self.core.files, &self.core.namespace).is_err()
            {
                return false;
            }
        }
        let guard = open.file.body.try_read();
        guard.is_some_and(|body| {
            body.as_ref().is_some_and(|body| {
                !body.read_needs_finish(offset, u64::from(len_bytes))
                    && body.read_is_quick(offset, u64::from(len_bytes))
            })
        })
    }

    pub(super) fn write_content(
        &self,
        caller: Caller,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<u32> {
        let written = u32::try_from(data.len()).map_err(|_| EngineError::Invalid("a write of more than 4 GiB"))?;
        let _pass = self.core.begin_change()?;
        let _room = self.admit(self.core.cost.of_write(data.len() as u64))?;
        let open = self.files.handle(handle)?;
        if !open.how.write {
            return Err(EngineError::BadHandle);
        }
        let file = &open.file;
        let mode = {
            let mut guard = waiting::write(&file.body);
            let body = file.load(&mut guard, &self.core.files, &self.core.namespace)?;
            let inode = self.core.namespace.inode_shared(file.ino)?.ok_or(EngineError::NotFound)?;
            let appends = open.how.append && !flags.from_cache && !flags.at_offset;
            let at = if appends { body.size_bytes() } else { offset };
            protection::check_write(&inode, at, body.size_bytes())?;
            let stream = self.stream(file, caller);
            body.write(stream, at, data)?;
            file.note_change(body, now());
            inode.mode
        };
        self.relieve_memory();
        if flags.drop_privileges && without_privileges(mode) != mode {
            self.drop_privileges(file.ino)?;
        }
        self.drop_capability(file.ino)?;
        self.core.relieve()?;
        Ok(written)
    }

    fn drop_privileges(&self, ino: Ino) -> Result<()> {
        self.core.namespace.update(ino, &mut |inode| inode.mode = without_privileges(inode.mode)).map(drop)
    }

    pub(super) fn truncate(&self, caller: Caller, ino: Ino, size_bytes: u64) -> Result<()> {
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(EngineError::IsDirectory),
            _ => return Err(EngineError::Invalid("only regular files have a length")),
        }
        if size_bytes > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        // Readers of a file of a closed tree must not see a cut that cannot be published.
        self.check_not_replaced(ino)?;
        let _room = match size_bytes {
            0 => self.core.promise_change(),
            // A cut frees more than the parts stored anew around it take; an extension adds only zeros.
            size_bytes if size_bytes < inode.size_bytes => self.admit_freeing(self.core.cost.of_cut())?,
            _ => self.admit(self.core.cost.of_cut())?,
        };
        let file = self.files.hold(ino);
        // Published at once: open handles may never close after a write.
        let outcome = self.truncate_open(caller, &file, size_bytes).and_then(|()| self.publish(&file));
        self.files.let_go(ino, || {});
        self.collect(ino);
        outcome
    }

    fn truncate_open(&self, caller: Caller, file: &OpenFile, size_bytes: u64) -> Result<()> {
        let stream = self.stream(file, caller);
        let mut guard = waiting::write(&file.body);
        let inode = self.core.namespace.inode_shared(file.ino)?.ok_or(EngineError::NotFound)?;
        inode.check_unprotected()?;
        let body = match size_bytes {
            0 => file.load_empty(&mut guard, &self.core.files)?,
            _ => file.load(&mut guard, &self.core.files, &self.core.namespace)?,
        };
        body.truncate(stream, size_bytes)?;
        file.note_change(body, now());
        Ok(())
    }

    pub(super) fn flush_content(&self, handle: Handle) -> Result<()> {
        if is_planted(Canary::CloseDoesNotPublish) {
            return Ok(());
        }
        self.publish(&self.files.handle(handle)?.file)
    }

    pub(super) fn flushes_quickly(&self, handle: Handle) -> bool {
        let Ok(open) = self.files.handle(handle) else { return true };
        let guard = open.file.body.try_read();
        guard.is_some_and(|body| body.as_ref().is_none_or(|body| !body.is_changed() || body.publishes_quickly()))
    }

    pub(super) fn changes_quickly(&self, ino: Ino) -> bool {
        if let Some(file) = self.files.file(ino) {
            let Some(guard) = file.body.try_read() else { return false };
            if let Some(body) = &*guard {
                return body.changes_quickly();
            }
        }
        let inode = self.inode(ino);
        inode.is_ok_and(|inode| inode.is_none_or(|inode| !matches!(inode.root, Root::Node { .. })))
    }

    /// Makes the content of the open file the content of its inode, as part of the next commit.
    pub(super) fn publish(&self, file: &OpenFile) -> Result<()> {
        self.publish_locked(file, &mut waiting::write(&file.body))
    }

    pub(super) fn publish_locked(&self, file: &OpenFile, body: &mut Option<FileBody>) -> Result<()> {
        let Some(body) = body.as_mut() else { return Ok(()) };
        let _pass = body.is_changed().then(|| self.core.gate.enter_to_publish()).transpose()?;
        if body.is_changed() {
            // After a failure no commit will follow: close and sync must not report success (I-7).
            self.core.check_failure()?;
        }
        // Of a small file each look at the clock counts.
        let _timed = body.is_changed().then(|| profile::of(Component::Publishing));
        let stream = StreamId(file.last_writer.load(Ordering::Relaxed));
        body.publish(stream, &mut |published| {
            thread::linger(Step::Publish);
            let live = *file.live.lock();
            let (root, size_bytes, data_bytes) = (published.root, published.size_bytes, published.data_bytes);
            let times = &mut |inode: &Inode| live.times(inode);
            self.core.namespace.set_root(file.ino, root, size_bytes, data_bytes, times).map(drop)
        })?;
        *file.live.lock() = Live::default();
        Ok(())
    }

    /// Publishes all open files, or those with changes older than `age`; continues after errors. Waits for a file in use, at most for
    /// `patience` if given.
    ///
    /// # Errors
    /// The first error. Each file remembers its own error too.
    pub(crate) fn publish_all(&self, age: Option<Duration>, patience: Option<Duration>) -> Result<()> {
        let mut outcome = Ok(());
        for file in self.files.all() {
            let dirty_since = file.live.lock().dirty_since;
            let due = dirty_since.is_some_and(|since| age.is_none_or(|age| since.elapsed() >= age));
            if !due {
                continue;
            }
            let guard = match patience {
                None => Some(waiting::write(&file.body)),
                Some(patience) => file.body.try_write().or_else(|| {
                    waiting::announce();
                    file.body.try_write_for(patience)
                }),
            };
            let published = match guard {
                Some(mut guard) => self.publish_locked(&file, &mut guard),
                None => {
                    let (what, owner) = (format!("file {}", file.ino), "a request that takes long".to_owned());
                    Err(StoreError::Busy { what, owner }.into())
                }
            };
            if let Err(error) = published {
                if matches!(error, EngineError::Store(StoreError::Busy { .. })) {
                    // A periodic publication comes back to the file later; other callers report the error.
                    tracing::debug!(ino = file.ino, "an open file is in use and not published yet");
                } else {
                    tracing::error!(ino = file.ino, %error, "an open file could not be published");
                }
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    pub(super) fn close_handle(&self, ino: Ino, handle: Handle) {
        let Some(open) = self.files.close(handle) else { return };
        if open.how.write || open.how.truncate {
            // Flush has published already, unless the client died in between.
            if let Err(error) = self.publish(&open.file) {
                tracing::error!(ino, %error, "content was lost when its file was closed");
            }
        }
        drop(open);
        self.files.let_go(ino, || {});
        self.collect(version_of(ino));
    }

    /// fallocate(2). The allocated range stays a hole and reserves nothing: data written there later may be known already, or compress.
    /// As in other compressing filesystems, only a range that could not be stored now is refused: one larger than the available bytes
    /// of statfs.
    pub(super) fn allocate_range(&self, handle: Handle, offset: u64, len_bytes: u64, mode: i32) -> Result<()> {
        let end = offset.checked_add(len_bytes).ok_or(EngineError::FileTooLarge)?;
        if len_bytes == 0 {
            return Err(EngineError::Invalid("an empty range"));
        }
        let keep_size = mode & KEEP_SIZE != 0;
        let zeroes = match mode & !KEEP_SIZE {
            0 => false,
            PUNCH_HOLE if keep_size => true,
            ZERO_RANGE => true,
            _ => return Err(EngineError::NotSupported),
        };
        let _pass = self.core.begin_change()?;
        let open = self.files.handle(handle)?;
        if !open.how.write {
            return Err(EngineError::BadHandle);
        }
        if !keep_size && end > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        let file = &open.file;
        let inode = self.core.namespace.inode_shared(file.ino)?.ok_or(EngineError::NotFound)?;
        protection::check_allocate(&inode, !zeroes)?;
        let _room = if zeroes {
            self.admit_freeing(self.core.cost.of_cut())?
        } else {
            let data_bytes = {
                let mut guard = waiting::write(&file.body);
                file.load(&mut guard, &self.core.files, &self.core.namespace)?.data_bytes()
            };
            let missing_bytes = len_bytes.min(end.saturating_sub(data_bytes)).min(FILE_BYTES_MAX);
            self.check_available(missing_bytes)?;
            self.admit(self.core.cost.of_cut())?
        };
        {
            let stream = StreamId(file.last_writer.load(Ordering::Relaxed));
            let mut guard = waiting::write(&file.body);
            let body = file.load(&mut guard, &self.core.files, &self.core.namespace)?;
            let inode = self.core.namespace.inode_shared(file.ino)?.ok_or(EngineError::NotFound)?;
            protection::check_allocate(&inode, !zeroes)?;
            if zeroes {
                body.zero(stream, offset, end)?;
            }
            if !keep_size && end > body.size_bytes() {
                body.truncate(stream, end)?;
            }
            file.note_change(body, now());
        }
        self.relieve_memory();
        self.drop_capability(file.ino)?;
        self.core.relieve()
    }

    pub(super) fn seek_content(&self, handle: Handle, offset: u64, target: SeekTarget) -> Result<u64> {
        let open = self.files.handle(handle)?;
        let stream = StreamId(open.file.last_writer.load(Ordering::Relaxed));
        let mut guard = waiting::write(&open.file.body);
        let body = open.file.load(&mut guard, &self.core.files, &self.core.namespace)?;
        body.merge(stream)?;
        body.seek(offset, target == SeekTarget::Hole)
    }

    pub(super) fn stream(&self, file: &OpenFile, caller: Caller) -> StreamId {
        file.last_writer.store(u64::from(caller.pid), Ordering::Relaxed);
        StreamId(u64::from(caller.pid))
    }
}
