//! Open files and their handles.
//!
//! An [`OpenFile`] is shared by all handles of an inode. Its content is loaded when it is first used. Until it is
//! published, its length and times are newer than the inode's, and [`OpenFile::patch`] shows them to stat.
//!
//! Handles that only write go past the kernel's page cache, but never while another handle of the file goes through it, and
//! none goes through it while they are open: the kernel drops cached pages before a direct write (before 6.6 not even that),
//! so who reads meanwhile would put the old bytes back, to be served for as long as the pages stay. Pages of earlier opens go
//! when the direct handle is opened ([`OpenHandle::keeps_cache`]).
//!
//! A handle that was opened with O_DIRECT to read and write is one of those that go through the page cache, but what is written
//! through it goes past it all the same, while others read. So a file knows whether the kernel may have pages of it
//! ([`OpenFile::may_be_cached`]); if so, those that a write past them made stale are dropped before it is answered, which is the
//! business of the adapter.
//!
//! Lock order: `leaving` of one inode -> table -> (released) -> body -> namespace. The table's lock is never held across I/O: an
//! inode that is being dropped is noted in it, and whoever opens that inode waits for `leaving`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dedupfs_fuse::service::{Handle, Ino, OpenOptions, Timestamp};
use dedupfs_store::recipe::Root;
use dedupfs_store::waiting;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::now;
use super::recency::{Recency, Turn};
use crate::error::{EngineError, Result};
use crate::file::{FileBody, FileContext, ReadAhead};
use crate::namespace::{Inode, Namespace};

/// What stat shows of a file whose content is ahead of its inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    /// Length and data bytes, once the content has been changed.
    pub size: Option<(u64, u64)>,
    /// Time of the last change that is not published.
    pub changed_at: Option<Timestamp>,
    /// When the oldest change that is not published was made.
    pub dirty_since: Option<Instant>,
}

impl Live {
    /// mtime and ctime of `inode`. Its attributes may have been changed after its content was, and that is later then.
    pub fn times(&self, inode: &Inode) -> (Timestamp, Timestamp) {
        let Some(changed_at) = self.changed_at else { return (inode.mtime, inode.ctime) };
        // One in the future was no change since: the clock was wrong when it was made.
        let is_since = changed_at < inode.ctime && inode.ctime <= now();
        (changed_at, if is_since { inode.ctime } else { changed_at })
    }
}

/// An inode that is open, or being changed.
pub struct OpenFile {
    /// Its number.
    pub ino: Ino,
    /// Its content; `None` until it is used.
    pub body: RwLock<Option<FileBody>>,
    /// What stat shows.
    pub live: Mutex<Live>,
    /// The process that wrote last: whose container a publication goes to.
    pub last_writer: AtomicU64,
    /// The kernel may have pages of it.
    may_be_cached: AtomicBool,
    /// Its place among those that were written.
    pub(super) written: Turn,
    /// Its place among those whose content is loaded.
    pub(super) loaded: Turn,
    /// When it was used last, in milliseconds since the orders began.
    used_ms: AtomicU64,
    orders: Arc<Orders>,
    own: Weak<Self>,
}

/// The open files in the order of their last use.
struct Orders {
    /// Those with content that may not be stored.
    written: Recency<OpenFile>,
    /// Those whose content is loaded.
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
    /// The kernel has pages of the file, or is about to fill some.
    pub fn note_cached(&self) {
        // Looked at first, because many threads read: a line of memory that nobody changes stays with all of them.
        if !self.may_be_cached() {
            self.may_be_cached.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the kernel may have pages of the file.
    pub fn may_be_cached(&self) -> bool {
        self.may_be_cached.load(Ordering::SeqCst)
    }

    /// Its content is used now.
    pub fn note_use(&self) {
        self.used_ms.store(self.orders.now_ms(), Ordering::Relaxed);
        self.orders.loaded.note(&self.loaded, &self.own);
    }

    /// How long ago that was.
    pub fn unused_for(&self) -> Duration {
        Duration::from_millis(self.orders.now_ms().saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    /// Loads the content if it is not there yet.
    ///
    /// # Errors
    /// The inode is gone, its recipe is damaged, I/O errors.
    pub fn load<'a>(
        &self,
        body: &'a mut Option<FileBody>,
        context: &Arc<FileContext>,
        namespace: &Namespace,
    ) -> Result<&'a mut FileBody> {
        if body.is_none() {
            let root = namespace.inode(self.ino)?.ok_or(EngineError::NotFound)?.root;
            *body = Some(FileBody::open(context.clone(), &root)?);
        }
        self.note_use();
        body.as_mut().ok_or(EngineError::Internal("a body that was just loaded is missing"))
    }

    /// The content as it is once truncated to nothing: the old recipe need not be read.
    ///
    /// # Errors
    /// None in practice: an empty root has no recipe.
    pub fn load_empty<'a>(
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

    /// Notes that the content was changed just now, if it was.
    pub fn note_change(&self, body: &FileBody, now: Timestamp) {
        if !body.is_changed() {
            // Nothing will be published, so stat must not show another time until then.
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

    /// Shows what is not published yet in `inode`.
    pub fn patch(&self, inode: &mut Inode) {
        let live = *self.live.lock();
        if let Some((size_bytes, data_bytes)) = live.size {
            (inode.size_bytes, inode.data_bytes) = (size_bytes, data_bytes);
        }
        (inode.mtime, inode.ctime) = live.times(inode);
    }
}

/// One open handle.
pub struct OpenHandle {
    /// The file.
    pub file: Arc<OpenFile>,
    /// How it was opened.
    pub how: OpenOptions,
    /// Whether it goes past the kernel's page cache.
    pub is_direct: bool,
    /// For sequential readers.
    pub ahead: Mutex<ReadAhead>,
}

impl OpenHandle {
    /// Whether pages that the kernel has of the file stay right while the handle is open.
    pub fn keeps_cache(&self) -> bool {
        !(self.writes_directly() || self.how.direct && self.how.write)
    }

    fn writes_directly(&self) -> bool {
        self.is_direct && self.how.write
    }
}

/// A file and who has it.
struct Entry {
    file: Arc<OpenFile>,
    /// Handles, and operations without one.
    holds: u64,
    /// Handles through the kernel's page cache.
    cached: u64,
    /// Handles that write past it.
    direct_writers: u64,
}

#[derive(Default)]
struct Table {
    files: HashMap<Ino, Entry>,
    handles: HashMap<Handle, Arc<OpenHandle>>,
    /// Closed inodes that somebody is about to drop; locked until that is done.
    leaving: HashMap<Ino, Arc<Mutex<()>>>,
}

/// Ends what [`OpenFiles::if_closed`] has begun, also if its call panics.
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
pub struct OpenFiles {
    table: RwLock<Table>,
    next_handle: AtomicU64,
    orders: Arc<Orders>,
}

impl OpenFiles {
    /// Opens a handle.
    pub fn open(&self, ino: Ino, how: OpenOptions) -> (Handle, Arc<OpenHandle>) {
        let mut table = self.table_with(ino);
        let entry = self.hold_in(&mut table, ino);
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

    /// Holds a file without a handle, for one operation; ends with [`let_go`](Self::let_go).
    pub fn hold(&self, ino: Ino) -> Arc<OpenFile> {
        self.hold_in(&mut self.table_with(ino), ino).file.clone()
    }

    fn hold_in<'a>(&self, table: &'a mut Table, ino: Ino) -> &'a mut Entry {
        let entry = table.files.entry(ino).or_insert_with(|| {
            let file = Arc::new_cyclic(|own| OpenFile {
                ino,
                body: RwLock::new(None),
                live: Mutex::default(),
                last_writer: AtomicU64::new(0),
                may_be_cached: AtomicBool::new(false),
                written: Turn::default(),
                loaded: Turn::default(),
                used_ms: AtomicU64::new(0),
                orders: self.orders.clone(),
                own: own.clone(),
            });
            Entry { file, holds: 0, cached: 0, direct_writers: 0 }
        });
        entry.holds += 1;
        entry
    }

    /// The files with content that may not be stored.
    pub(super) fn written(&self) -> &Recency<OpenFile> {
        &self.orders.written
    }

    /// The files whose content is loaded.
    pub(super) fn loaded(&self) -> &Recency<OpenFile> {
        &self.orders.loaded
    }

    /// The table, with nobody about to drop this inode.
    fn table_with(&self, ino: Ino) -> RwLockWriteGuard<'_, Table> {
        loop {
            let table = self.table.write();
            let Some(leaving) = table.leaving.get(&ino).cloned() else { return table };
            drop(table);
            drop(waiting::lock(&leaving));
        }
    }

    /// The handle.
    ///
    /// # Errors
    /// `BadHandle`.
    pub fn handle(&self, handle: Handle) -> Result<Arc<OpenHandle>> {
        self.table.read().handles.get(&handle).cloned().ok_or(EngineError::BadHandle)
    }

    /// The file, if it is open.
    pub fn file(&self, ino: Ino) -> Option<Arc<OpenFile>> {
        self.table.read().files.get(&ino).map(|entry| entry.file.clone())
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.table.read().files.values().map(|entry| entry.file.clone()).collect()
    }

    /// Closes a handle; its file is still held: [`let_go`](Self::let_go) of it ends that.
    pub fn close(&self, handle: Handle) -> Option<Arc<OpenHandle>> {
        let mut table = self.table.write();
        let open = table.handles.remove(&handle)?;
        if let Some(entry) = table.files.get_mut(&open.file.ino) {
            entry.cached -= u64::from(!open.is_direct);
            entry.direct_writers -= u64::from(open.writes_directly());
        }
        Some(open)
    }

    /// Ends one hold. If it was the last, the file is forgotten, and `last` is called before anyone can open it anew.
    pub fn let_go(&self, ino: Ino, last: impl FnOnce()) {
        let mut table = self.table.write();
        if let Some(entry) = table.files.get_mut(&ino) {
            entry.holds -= 1;
            if entry.holds == 0 {
                table.files.remove(&ino);
                last();
            }
        }
    }

    /// Calls `closed` if nobody has the file open, before anyone can open it, or calls this for it.
    pub fn if_closed(&self, ino: Ino, closed: impl FnOnce()) {
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
        /// The handle that was opened as that.
        Close(usize),
    }
    use Step::{Both, Close, Read, Write};

    /// Takes the steps; `d` for each handle that is direct, `c` for each that is cached.
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
            let (handle, open) = files.open(7, OpenOptions { read, write, ..OpenOptions::default() });
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
            let (_, open) = files.open(7, OpenOptions { read, write: true, direct, ..OpenOptions::default() });
            (open.keeps_cache(), open.file.may_be_cached())
        };
        assert_eq!(opened(false, false), (false, false), "what is only written is not cached");
        assert_eq!(opened(true, true), (false, false), "an image of a virtual machine");
        assert_eq!(opened(true, false), (true, true), "an ordinary file");
        let files = OpenFiles::default();
        let (_, image) = files.open(7, OpenOptions { read: true, write: true, direct: true, ..OpenOptions::default() });
        let (reader, open) = files.open(7, OpenOptions { read: true, ..OpenOptions::default() });
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
        // One that only reads past it holds nobody up, and stays right whatever the others do.
        assert_eq!(directness(&[Write, Read, Close(0), Read, Write, Close(2), Close(3), Write]), "ddccd");
        // One that was opened beside it to write as well writes past it, too.
        assert_eq!(directness(&[Write, Both, Close(0), Read]), "ddd");
    }
}
