//! Open files and their handles.
//!
//! All handles of an inode share one [`OpenFile`]. Its content is loaded at the first use. Until it is published, its length and times
//! are newer than the inode's; [`OpenFile::patch`] shows them to stat.
//!
//! **Direct handles.** Write-only handles bypass the kernel's page cache, except while another handle of the file uses the cache. While
//! a direct writer is open, new handles bypass it too. Reason: the kernel drops cached pages only before a direct write (before 6.6 not
//! even that). A concurrent reader would bring the old bytes back, and they would be served as long as the pages stay. Pages of earlier
//! opens are dropped when the direct handle is opened ([`OpenHandle::keeps_cache`]).
//!
//! A handle opened with O_DIRECT for reading and writing counts as a cached handle, but its writes bypass the cache all the same, while
//! others read. So a file records whether the kernel may have pages of it ([`OpenFile::may_be_cached`]). If so, the adapter drops the
//! pages made stale by a write before it answers the write.
//!
//! Lock order: `leaving` of one inode -> table -> (released) -> body -> namespace. The table's lock is never held across I/O: the table
//! notes an inode that is being dropped, and an open of that inode waits for `leaving`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::{FileBody, FileContext, ReadAhead};
use dedupfs_namespace::{Inode, Namespace};
use dedupfs_service::{Handle, Ino, OpenOptions, Timestamp};
use dedupfs_store::recipe::Root;
use dedupfs_store::waiting;
use dedupfs_sync::clock::Instant;
use dedupfs_sync::{Mutex, RwLock, RwLockWriteGuard};

use super::now;
use super::recency::{Place, Recency};

/// The unpublished values that stat shows for a file whose content is ahead of its inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Live {
    /// Length and data bytes, once the content was changed.
    pub size: Option<(u64, u64)>,
    /// Time of the last unpublished change.
    pub changed_at: Option<Timestamp>,
    /// Time of the oldest unpublished change.
    pub dirty_since: Option<Instant>,
}

impl Live {
    /// Returns mtime and ctime of `inode`. Attributes that were changed after the content give a later ctime.
    pub(super) fn times(&self, inode: &Inode) -> (Timestamp, Timestamp) {
        let Some(changed_at) = self.changed_at else { return (inode.mtime, inode.ctime) };
        // A ctime in the future is no later change: the clock was wrong when it was set.
        let is_since = changed_at < inode.ctime && inode.ctime <= now();
        (changed_at, if is_since { inode.ctime } else { changed_at })
    }
}

/// A file that is open, or being changed.
pub(super) struct OpenFile {
    /// Inode number.
    pub ino: Ino,
    /// Content of a frozen file.
    frozen: Option<Root>,
    /// Content; `None` until the first use.
    pub body: RwLock<Option<FileBody>>,
    /// Unpublished values for stat.
    pub live: Mutex<Live>,
    /// The process that wrote last. A publication goes to the container of its stream.
    pub last_writer: AtomicU64,
    /// Whether the kernel may have pages of the file.
    may_be_cached: AtomicBool,
    /// Place in the order of written files.
    pub(super) written: Place,
    /// Place in the order of files with loaded content.
    pub(super) loaded: Place,
    /// Time of the last use, in milliseconds since `Orders::began`.
    used_ms: AtomicU64,
    orders: Arc<Orders>,
    own: Weak<Self>,
}

/// Open files in the order of their last use.
struct Orders {
    /// Files with content that may not be stored yet.
    written: Recency<OpenFile>,
    /// Files with loaded content.
    loaded: Recency<OpenFile>,
    began: Instant,
}

impl Default for Orders {
    fn default() -> Self {
        Self { written: Recency::default(), loaded: Recency::default(), began: Instant::now() }
    }
}

impl Orders {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.orders.written.forget(&self.written);
        self.orders.loaded.forget(&self.loaded);
    }
}

impl OpenFile {
    /// Notes that the kernel has pages of the file, or is about to fill some.
    pub(super) fn note_cached(&self) {
        // Check before storing: many threads read, and an unmodified cache line stays shared between them.
        if !self.may_be_cached() {
            self.may_be_cached.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have pages of the file.
    pub(super) fn may_be_cached(&self) -> bool {
        self.may_be_cached.load(Ordering::SeqCst)
    }

    /// Notes that the content is used now.
    pub(super) fn note_use(&self) {
        self.used_ms.store(self.orders.now_ms(), Ordering::Relaxed);
        self.orders.loaded.note(&self.loaded, &self.own);
    }

    /// Returns the time since the last use.
    pub(super) fn unused_for(&self) -> Duration {
        Duration::from_millis(self.orders.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    /// Loads the content if it is not loaded yet.
    ///
    /// # Errors
    /// The inode is gone, its recipe is damaged, I/O errors.
    pub(super) fn load<'a>(
        &self,
        body: &'a mut Option<FileBody>,
        context: &Arc<FileContext>,
        namespace: &Namespace,
    ) -> Result<&'a mut FileBody> {
        if body.is_none() {
            let root = match self.frozen {
                Some(root) => root,
                None => namespace.inode_shared(self.ino)?.ok_or(EngineError::NotFound)?.root,
            };
            *body = Some(FileBody::open(context.clone(), &root)?);
        }
        self.note_use();
        body.as_mut().ok_or(EngineError::Internal("a body that was just loaded is missing"))
    }

    /// Returns the content truncated to nothing, without reading the old recipe.
    pub(super) fn load_empty<'a>(
        &self,
        body: &'a mut Option<FileBody>,
        context: &Arc<FileContext>,
    ) -> Result<&'a mut FileBody> {
        if body.is_none() {
            *body = Some(FileBody::open(context.clone(), &Root::Empty)?);
        }
        self.note_use();
        body.as_mut().ok_or(EngineError::Internal("a body that was just loaded is missing"))
    }

    /// Notes a change of the content, if there was one.
    pub(super) fn note_change(&self, body: &FileBody, now: Timestamp) {
        if !body.is_changed() {
            // Nothing will be published, so stat must not show a new time.
            return;
        }
        if body.is_unmerged() {
            self.orders.written.note(&self.written, &self.own);
        }
        let mut live = self.live.lock();
        live.size = Some((body.size_bytes(), body.data_bytes()));
        live.changed_at = Some(now);
        live.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Applies the unpublished values to `inode`.
    pub(super) fn patch(&self, inode: &mut Inode) {
        let live = *self.live.lock();
        if let Some((size_bytes, data_bytes)) = live.size {
            (inode.size_bytes, inode.data_bytes) = (size_bytes, data_bytes);
        }
        (inode.mtime, inode.ctime) = live.times(inode);
    }
}

pub(super) struct OpenHandle {
    pub file: Arc<OpenFile>,
    /// Options of the open call.
    pub how: OpenOptions,
    /// Whether the handle bypasses the kernel's page cache.
    pub is_direct: bool,
    /// Read-ahead state for sequential reads.
    pub ahead: Mutex<ReadAhead>,
}

impl OpenHandle {
    /// Whether the kernel's pages of the file stay valid while the handle is open.
    pub(super) fn keeps_cache(&self) -> bool {
        !(self.writes_directly() || self.how.direct && self.how.write)
    }

    fn writes_directly(&self) -> bool {
        self.is_direct && self.how.write
    }
}

/// A file with the counts of its users.
struct Entry {
    file: Arc<OpenFile>,
    /// Handles, and operations without a handle.
    holds: u64,
    /// Handles that use the kernel's page cache.
    cached: u64,
    /// Handles that bypass it and write.
    direct_writers: u64,
}

#[derive(Default)]
struct Table {
    files: HashMap<Ino, Entry>,
    handles: HashMap<Handle, Arc<OpenHandle>>,
    /// Closed inodes that are about to be dropped; each is locked until that is done.
    leaving: HashMap<Ino, Arc<Mutex<()>>>,
}

/// Ends the drop that [`OpenFiles::if_closed`] has begun, even on a panic.
struct Leaving<'a> {
    files: &'a OpenFiles,
    ino: Ino,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.files.table.write().leaving.remove(&self.ino);
    }
}

/// All open files.
#[derive(Default)]
pub(super) struct OpenFiles {
    table: RwLock<Table>,
    next_handle: AtomicU64,
    orders: Arc<Orders>,
}

impl OpenFiles {
    /// Opens a file. A frozen one has its content in `frozen`.
    pub(super) fn open(&self, ino: Ino, how: OpenOptions, frozen: Option<Root>) -> (Handle, Arc<OpenHandle>) {
        let mut table = self.table_with(ino);
        let entry = self.hold_in(&mut table, ino, frozen);
        let is_direct = entry.direct_writers > 0 || (how.write && !how.read && entry.cached == 0);
        let open = Arc::new(OpenHandle { file: entry.file.clone(), how, is_direct, ahead: Mutex::default() });
        entry.cached += u64::from(!is_direct);
        entry.direct_writers += u64::from(open.writes_directly());
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed) + 1;
        if open.keeps_cache() {
            open.file.note_cached();
        }
        table.handles.insert(handle, open.clone());
        (handle, open)
    }

    /// Holds a file without a handle for one operation, until [`let_go`](Self::let_go).
    pub(super) fn hold(&self, ino: Ino) -> Arc<OpenFile> {
        self.hold_in(&mut self.table_with(ino), ino, None).file.clone()
    }

    fn hold_in<'a>(&self, table: &'a mut Table, ino: Ino, frozen: Option<Root>) -> &'a mut Entry {
        let entry = table.files.entry(ino).or_insert_with(|| {
            let file = Arc::new_cyclic(|own| OpenFile {
                ino,
                frozen,
                body: RwLock::new(None),
                live: Mutex::default(),
                last_writer: AtomicU64::new(0),
                may_be_cached: AtomicBool::new(false),
                written: Place::default(),
                loaded: Place::default(),
                used_ms: AtomicU64::new(0),
                orders: self.orders.clone(),
                own: own.clone(),
            });
            Entry { file, holds: 0, cached: 0, direct_writers: 0 }
        });
        entry.holds += 1;
        entry
    }

    /// Returns the files with content that may not be stored yet.
    pub(super) fn written(&self) -> &Recency<OpenFile> {
        &self.orders.written
    }

    /// Returns the files with loaded content.
    pub(super) fn loaded(&self) -> &Recency<OpenFile> {
        &self.orders.loaded
    }

    /// Locks the table once no drop of this inode is under way.
    fn table_with(&self, ino: Ino) -> RwLockWriteGuard<'_, Table> {
        loop {
            let table = self.table.write();
            let Some(leaving) = table.leaving.get(&ino).cloned() else { return table };
            drop(table);
            drop(waiting::lock(&leaving));
        }
    }

    /// Finds a handle.
    ///
    /// # Errors
    /// `BadHandle` if it is not open.
    pub(super) fn handle(&self, handle: Handle) -> Result<Arc<OpenHandle>> {
        self.table.read().handles.get(&handle).cloned().ok_or(EngineError::BadHandle)
    }

    /// Returns the file if it is open.
    pub(super) fn file(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.table.read().files.get(&ino).map(|entry| entry.file.clone())
    }

    /// Returns all open files.
    pub(super) fn all(&self) -> Vec<Arc<OpenFile>> {
        self.table.read().files.values().map(|entry| entry.file.clone()).collect()
    }

    /// Returns the files that are open for writing, or have content that is not published.
    pub(super) fn being_written(&self) -> Vec<Ino> {
        let table = self.table.read();
        let open = table.handles.values().filter(|open| open.how.write || open.how.truncate).map(|open| open.file.ino);
        let changed = table.files.values().filter(|entry| entry.file.live.lock().dirty_since.is_some());
        open.chain(changed.map(|entry| entry.file.ino)).collect()
    }

    /// Closes a handle. The file stays held until [`let_go`](Self::let_go).
    pub(super) fn close(&self, handle: Handle) -> Option<Arc<OpenHandle>> {
        let mut table = self.table.write();
        let open = table.handles.remove(&handle)?;
        if let Some(entry) = table.files.get_mut(&open.file.ino) {
            entry.cached -= u64::from(!open.is_direct);
            entry.direct_writers -= u64::from(open.writes_directly());
        }
        Some(open)
    }

    /// Ends one hold. After the last one the file is forgotten; `last` runs before anyone can open it again.
    pub(super) fn let_go(&self, ino: Ino, last: impl FnOnce()) {
        let mut table = self.table.write();
        if let Some(entry) = table.files.get_mut(&ino) {
            entry.holds -= 1;
            if entry.holds == 0 {
                table.files.remove(&ino);
                last();
            }
        }
    }

    /// Calls `closed` if the file is not open, before anyone can open it or call this for the same inode.
    pub(super) fn if_closed(&self, ino: Ino, closed: impl FnOnce()) {
        let leaving = Arc::new(Mutex::new(()));
        let _until_done = leaving.lock();
        let mut table = self.table_with(ino);
        if table.files.contains_key(&ino) {
            return;
        }
        table.leaving.insert(ino, leaving.clone());
        drop(table);
        let _leaving = Leaving { files: self, ino };
        closed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Step {
        Read,
        Write,
        Both,
        /// Closes the handle that was opened at this index.
        Close(usize),
    }
    use Step::{Both, Close, Read, Write};

    /// Takes the steps; returns `d` for each direct handle and `c` for each cached one.
    fn directness(steps: &[Step]) -> String {
        let files = OpenFiles::default();
        let mut opened = Vec::new();
        let mut letters = String::new();
        for &step in steps {
            if let Close(number) = step {
                assert!(files.close(opened[number]).is_some());
                files.let_go(7, || {});
                continue;
            }
            let (read, write) = (!matches!(step, Write), !matches!(step, Read));
            let (handle, open) = files.open(7, OpenOptions { read, write, ..OpenOptions::default() }, None);
            letters.push(if open.is_direct { 'd' } else { 'c' });
            assert_eq!(open.keeps_cache(), !(open.is_direct && write), "{letters}");
            opened.push(handle);
        }
        letters
    }

    #[test]
    fn a_file_may_be_cached_once_pages_are_kept_or_filled_and_not_by_direct_handles() {
        let opened = |read, direct| {
            let files = OpenFiles::default();
            let (_, open) = files.open(7, OpenOptions { read, write: true, direct, ..OpenOptions::default() }, None);
            (open.keeps_cache(), open.file.may_be_cached())
        };
        assert_eq!(opened(false, false), (false, false), "what is only written is not cached");
        assert_eq!(opened(true, true), (false, false), "an image of a virtual machine");
        assert_eq!(opened(true, false), (true, true), "an ordinary file");
        let files = OpenFiles::default();
        let (_, image) =
            files.open(7, OpenOptions { read: true, write: true, direct: true, ..OpenOptions::default() }, None);
        let (reader, open) = files.open(7, OpenOptions { read: true, ..OpenOptions::default() }, None);
        assert!(open.keeps_cache() && image.file.may_be_cached());
        files.close(reader);
        files.let_go(7, || {});
        assert!(image.file.may_be_cached(), "its pages stay");
    }

    #[test]
    fn regression_pages_are_never_cached_beside_a_handle_that_writes_past_them() {
        assert_eq!(directness(&[Write, Write, Read, Both]), "dddd");
        assert_eq!(directness(&[Read, Write, Both]), "ccc");
        assert_eq!(directness(&[Both, Write, Close(0), Write]), "ccc");
        assert_eq!(directness(&[Read, Close(0), Write, Close(1), Read]), "cdc");
        // A handle that only reads directly blocks nobody, and stays valid beside any others.
        assert_eq!(directness(&[Write, Read, Close(0), Read, Write, Close(2), Close(3), Write]), "ddccd");
        // A handle opened beside it for writing as well writes directly, too.
        assert_eq!(directness(&[Write, Both, Close(0), Read]), "ddd");
    }
}
