//! The budget of all open files: whose memory goes when there is too much of it.
//!
//! Open files hold runs that are being written, random writes that are not merged, and lists of pieces. All of it counts in one
//! gauge ([`IngestContext::memory`](crate::ingest::IngestContext)). Whoever brings more looks, with no file locked, whether it is
//! exceeded. Then, until it is not:
//!
//! 1. files that were written least recently are stored as far as they go ([`FileBody::put_away`](crate::file::FileBody::put_away)),
//!    all but the newest: a single large file is never held up by its own size;
//! 2. batch buffers that are kept for reuse go;
//! 3. the content of files that were not used for [`CONTENT_KEPT_FOR`] is published and forgotten. It is loaded again when it is used.
//!
//! Files that somebody uses at this moment are passed over: whoever does looks, too, when that is done.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dedupfs_store::waiting;

use super::Service;
use super::open_files::OpenFile;
use crate::allocator;
use crate::containers::StreamId;

/// So long the content of a file stays whatever there is, lest two readers of large files load their recipes in turns.
const CONTENT_KEPT_FOR: Duration = Duration::from_secs(2);

impl Service {
    /// See the module. To be called with no file locked.
    pub(super) fn relieve_memory(&self) {
        if self.core.files.is_memory_exceeded() {
            // One at a time. Who writes waits for that: more would come otherwise than goes.
            let _alone = waiting::lock(&self.relieving);
            self.relieve_alone();
        }
    }

    /// The same, unless somebody does it at this moment: for who brings little, and must not wait.
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

    /// What is kept for reuse goes if nobody used it lately; to be called now and then.
    pub(crate) fn trim_if_idle(&self) {
        self.relieve_memory_unless_busy();
        let (data, recipes) = (&self.core.data, &self.core.recipes);
        let is_any = self.core.files.ingest.buffers.trim_if_idle() | data.trim_if_idle() | recipes.trim_if_idle();
        if is_any {
            allocator::give_back();
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
                // The file remembers it, for whoever has it open.
                tracing::debug!(ino = file.ino, %error, "a file could not be stored early");
            }
            // Under the lock of its body: who writes next notes it again.
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
