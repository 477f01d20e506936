//! Open files and their handles.
//!
//! An [`OpenFile`] is shared by all handles of an inode. Its content is loaded when it is first used. Until it is
//! published, its length and times are newer than the inode's, and [`OpenFile::patch`] shows them to stat.
//!
//! Lock order: `leaving` of one inode -> table -> (released) -> body -> namespace. The table's lock is never held across I/O: an
//! inode that is being dropped is noted in it, and whoever opens that inode waits for `leaving`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dedupfs_fuse::service::{Handle, Ino, OpenOptions, Timestamp};
use dedupfs_store::recipe::Root;
use dedupfs_store::waiting;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

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
}

impl OpenFile {
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
        body.as_mut().ok_or(EngineError::Internal("a body that was just loaded is missing"))
    }

    /// Notes that the content was changed just now.
    pub fn note_change(&self, body: &FileBody, now: Timestamp) {
        let mut live = self.live.lock();
        live.size = Some((body.size_bytes(), body.data_bytes()));
        live.changed_at = Some(now);
        live.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Shows what is not published yet in `inode`.
    pub fn patch(&self, inode: &mut Inode) {
        let live = self.live.lock();
        if let Some((size_bytes, data_bytes)) = live.size {
            (inode.size_bytes, inode.data_bytes) = (size_bytes, data_bytes);
        }
        if let Some(changed_at) = live.changed_at {
            (inode.mtime, inode.ctime) = (changed_at, changed_at);
        }
    }
}

/// One open handle.
pub struct OpenHandle {
    /// The file.
    pub file: Arc<OpenFile>,
    /// How it was opened.
    pub how: OpenOptions,
    /// For sequential readers.
    pub ahead: Mutex<ReadAhead>,
}

#[derive(Default)]
struct Table {
    files: HashMap<Ino, (Arc<OpenFile>, u64)>,
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
}

impl OpenFiles {
    /// Opens a handle.
    pub fn open(&self, ino: Ino, how: OpenOptions) -> (Handle, Arc<OpenHandle>) {
        let mut table = self.table_with(ino);
        let file = hold(&mut table, ino);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed) + 1;
        let open = Arc::new(OpenHandle { file, how, ahead: Mutex::default() });
        table.handles.insert(handle, open.clone());
        (handle, open)
    }

    /// Holds a file without a handle, for one operation; ends with [`let_go`](Self::let_go).
    pub fn hold(&self, ino: Ino) -> Arc<OpenFile> {
        hold(&mut self.table_with(ino), ino)
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
        self.table.read().files.get(&ino).map(|(file, _)| file.clone())
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.table.read().files.values().map(|(file, _)| file.clone()).collect()
    }

    /// Closes a handle; its file is still held: [`let_go`](Self::let_go) of it ends that.
    pub fn close(&self, handle: Handle) -> Option<Arc<OpenHandle>> {
        self.table.write().handles.remove(&handle)
    }

    /// Ends one hold. If it was the last, the file is forgotten, and `last` is called before anyone can open it anew.
    pub fn let_go(&self, ino: Ino, last: impl FnOnce()) {
        let mut table = self.table.write();
        if let Some((_, holds)) = table.files.get_mut(&ino) {
            *holds -= 1;
            if *holds == 0 {
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

fn hold(table: &mut Table, ino: Ino) -> Arc<OpenFile> {
    let (file, holds) = table.files.entry(ino).or_insert_with(|| {
        let file = OpenFile { ino, body: RwLock::new(None), live: Mutex::default(), last_writer: AtomicU64::new(0) };
        (Arc::new(file), 0)
    });
    *holds += 1;
    file.clone()
}
