//! Handles of files that the kernel reads without having opened them.
//!
//! With `no_open`, opening is answered with ENOSYS once. From then on the kernel asks neither to open nor to release files and
//! directories, and its reads name the inode alone. The service needs a handle all the same, with the state of reading ahead. So the first
//! read opens one here, and later reads find it.
//!
//! Nobody tells when the last reader is gone, so handles are kept by use: those of at most [`KEPT_MAX`] inodes, in two halves. When the
//! newer half is full, it becomes the older one, and the handles that were in that are released. One that is still in use then is
//! released behind its last request.

use std::collections::HashMap;
use std::sync::Arc;

use dedupfs_service::{Caller, FileService, Handle, Ino, OpenOptions, Result};
use fuser::FileHandle;
use parking_lot::Mutex;

use super::guarded;

/// Limit of inodes whose handles are kept.
const KEPT_MAX: usize = 256;

/// A handle that the adapter opened. Released when it is dropped.
struct OwnHandle {
    service: Arc<dyn FileService>,
    ino: Ino,
    handle: Handle,
}

impl Drop for OwnHandle {
    fn drop(&mut self) {
        let _ = guarded("release", || {
            self.service.release(self.ino, self.handle);
            Ok(())
        });
    }
}

/// A handle for one request.
pub(super) struct Held {
    pub(super) handle: Handle,
    /// Keeps an own handle open.
    _own: Option<Arc<OwnHandle>>,
}

impl Held {
    /// A handle that the kernel has opened.
    pub(super) fn given(handle: FileHandle) -> Self {
        Self { handle: handle.0, _own: None }
    }
}

type Half = HashMap<Ino, Arc<OwnHandle>>;

#[derive(Default)]
struct Table {
    newer: Half,
    older: Half,
}

impl Table {
    /// Notes a handle as used now. Returns handles to release, which must not happen under the lock.
    fn note(&mut self, own: &Arc<OwnHandle>) -> Half {
        self.newer.insert(own.ino, Arc::clone(own));
        if self.newer.len() < KEPT_MAX / 2 {
            return Half::new();
        }
        std::mem::replace(&mut self.older, std::mem::take(&mut self.newer))
    }
}

#[derive(Default)]
pub(super) struct Unopened(Mutex<Table>);

impl Unopened {
    /// Returns a handle to read this inode.
    ///
    /// # Errors
    /// Those of [`FileService::open`].
    pub(super) fn hold(&self, service: &Arc<dyn FileService>, caller: Caller, ino: Ino) -> Result<Held> {
        let held = |own: Arc<OwnHandle>| Held { handle: own.handle, _own: Some(own) };
        let mut table = self.0.lock();
        if let Some(own) = table.newer.get(&ino) {
            return Ok(held(Arc::clone(own)));
        }
        if let Some(own) = table.older.remove(&ino) {
            let released = table.note(&own);
            drop(table);
            drop(released);
            return Ok(held(own));
        }
        drop(table);
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let opened = guarded("open", || service.open(caller, ino, how))?;
        let own = Arc::new(OwnHandle { service: Arc::clone(service), ino, handle: opened.handle });
        let mut table = self.0.lock();
        // Another thread may have been faster. Then this handle serves this request only.
        let released = if table.newer.contains_key(&ino) { Half::new() } else { table.note(&own) };
        drop(table);
        drop(released);
        Ok(held(own))
    }
}

#[cfg(test)]
mod tests {
    use dedupfs_service::{MemoryService, NewNode, NodeContent, ROOT_INO};

    use super::*;

    #[test]
    fn handles_of_the_inodes_used_last_are_kept_and_the_others_released() {
        let memory = Arc::new(MemoryService::new());
        let service: Arc<dyn FileService> = Arc::clone(&memory) as _;
        let make = |number: usize| {
            let name = number.to_string();
            let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
            service.make(Caller::default(), node, NodeContent::Regular).unwrap().ino
        };
        let inos: Vec<Ino> = (0..KEPT_MAX * 2).map(make).collect();
        let unopened = Unopened::default();
        let hold = |ino| unopened.hold(&service, Caller::default(), ino).unwrap();
        let first = hold(inos[0]);
        assert_eq!(hold(inos[0]).handle, first.handle);
        let is_open = |ino, handle| service.flush(ino, handle).is_ok();
        for &ino in &inos {
            let kept = hold(inos[1]).handle;
            let held = hold(ino).handle;
            assert!(is_open(ino, held) && is_open(inos[1], kept), "it was used just before");
        }
        assert!(is_open(inos[0], first.handle), "it is in use still");
        let stale = first.handle;
        drop(first);
        assert!(!is_open(inos[0], stale));
        let table = unopened.0.lock();
        assert!(table.newer.len() + table.older.len() <= KEPT_MAX);
        assert!(table.newer.contains_key(&inos[1]) || table.older.contains_key(&inos[1]));
        drop(table);
        drop(unopened);
        assert!(inos.iter().all(|&ino| (1..=1000).all(|handle| !is_open(ino, handle))), "a handle is left open");
    }
}
