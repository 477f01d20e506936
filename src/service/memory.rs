//! The memory budget of all open files, and the order in which they give memory back.
//!
//! Open files hold runs that are being written, unmerged dirty extents, and lists of pieces. One gauge counts all of it
//! ([`IngestContext::memory`](dedupfs_content::IngestContext)). A request that adds memory checks the budget afterwards, with no file
//! locked. While the budget is exceeded:
//!
//! 1. Store the least recently written files as far as possible ([`FileBody::put_away`](dedupfs_content::FileBody::put_away)), except the
//!    newest: a single large file is never held up by its own size.
//! 2. Free the batch buffers kept for reuse.
//! 3. Publish and unload the content of files not used for [`CONTENT_KEPT_FOR`]. The next use loads it again.
//!
//! A file in use at this moment is skipped: its user checks the budget when done.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_base::allocator;
use dedupfs_content::StreamId;
use dedupfs_store::waiting;

use super::Service;
use super::open_files::OpenFile;

/// Least time that unused content stays loaded. Otherwise two readers of large files would reload their recipes in turns.
const CONTENT_KEPT_FOR: Duration = Duration::from_secs(2);

impl Service {
    /// Frees memory while the budget is exceeded; see the module. Call with no file locked.
    pub(crate) fn relieve_memory(&self) {
        if self.core.files.is_memory_exceeded() {
            // One thread at a time. Writers wait for it: otherwise they would add more than is freed.
            let _alone = waiting::lock(&self.relieving);
            self.relieve_alone();
        }
    }

    /// As [`relieve_memory`](Self::relieve_memory), but returns at once if another thread is at it: for requests that add little and
    /// must not wait.
    pub(super) fn relieve_memory_unless_busy(&self) {
        if self.core.files.is_memory_exceeded()
            && let Some(_alone) = self.relieving.try_lock()
        {
            self.relieve_alone();
        }
    }

    fn relieve_alone(&self) {
        self.store_written();
        if self.core.files.is_memory_exceeded() {
            self.core.files.ingest.buffers.trim();
            self.forget_contents();
        }
    }

    /// Frees buffers kept for reuse if they were idle lately; call this now and then.
    pub(crate) fn trim_if_idle(&self) {
        self.relieve_memory_unless_busy();
        let (data, recipes) = (&self.core.stores.data, &self.core.stores.recipes);
        let is_any = self.core.files.ingest.buffers.trim_if_idle() | data.trim_if_idle() | recipes.trim_if_idle();
        match is_any {
            true => allocator::give_back(),
            false => allocator::give_back_if_grown(),
        }
    }

    fn store_written(&self) {
        let written = self.files.written();
        let mut place = 0;
        while self.core.files.is_memory_exceeded()
            && let Some((next, file)) = written.next(place)
        {
            place = next;
            let Some(file) = file.upgrade() else { continue };
            if written.is_newest(&file.written) {
                break;
            }
            let Some(mut guard) = file.body.try_write() else { continue };
            if let Some(body) = guard.as_mut()
                && body.is_unmerged()
                && let Err(error) = body.put_away(stream_of(&file))
            {
                // The file remembers the error for the processes that have it open.
                tracing::debug!(ino = file.ino, %error, "a file could not be stored early");
            }
            // Under the lock of the body: the next write notes the file again.
            written.forget(&file.written);
        }
    }

    fn forget_contents(&self) {
        let loaded = self.files.loaded();
        let mut place = 0;
        while self.core.files.is_memory_exceeded()
            && let Some((next, file)) = loaded.next(place)
        {
            place = next;
            let Some(file) = file.upgrade() else { continue };
            if file.unused_for() < CONTENT_KEPT_FOR {
                break;
            }
            let Some(mut guard) = file.body.try_write() else { continue };
            if let Err(error) = self.publish_locked(&file, &mut guard) {
                tracing::debug!(ino = file.ino, %error, "a file could not be published early");
                continue;
            }
            if guard.as_ref().is_none_or(|body| !body.is_changed()) {
                *guard = None;
                loaded.forget(&file.loaded);
            }
        }
    }
}

fn stream_of(file: &OpenFile) -> StreamId {
    StreamId(file.last_writer.load(Ordering::Relaxed))
}
