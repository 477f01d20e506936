//! A pool in use by a client that keeps to its contract: it believes success and doubts the effect of failures.

use std::sync::Arc;

use dedupfs::Pool;
use dedupfs::Service;
use dedupfs_service::{
    AttributeChanges, Caller, Errno, FileService, Handle, Ino, NewNode, OpenOptions, ROOT_INO, RenameFlags, WriteFlags,
    XattrMode,
};

use crate::expected::{Expected, Seen, State};
use crate::versions;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
const MARK: &[u8] = b"user.mark";
/// Bytes of one write.
const PIECE_BYTES: usize = 128 << 10;

/// A client of a pool, with its expectations.
pub struct Session<'a> {
    pub pool: Arc<Pool>,
    pub expected: &'a mut Expected,
    /// Operations that failed.
    pub errors: u64,
}

/// Checks that a client's error is one that a failing disk may cause.
pub fn check_errno(errno: Errno) {
    assert!(matches!(errno, Errno::EIO | Errno::ENOSPC | Errno::EROFS), "a client gets {errno}");
}

impl<'a> Session<'a> {
    pub fn new(pool: Arc<Pool>, expected: &'a mut Expected) -> Self {
        Self { pool, expected, errors: 0 }
    }

    fn service(&self) -> Arc<Service> {
        self.pool.service()
    }

    /// Returns the value, or counts the error.
    fn try_to<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        result.inspect_err(|&errno| check_errno(errno)).map_err(|_| self.errors += 1).ok()
    }

    /// Returns the inode of a name. [`Self::forget`] forgets it.
    fn find(&mut self, name: &str) -> Option<Option<Ino>> {
        match self.service().lookup(ROOT_INO, name.as_bytes()) {
            Ok(found) => Some(Some(found.ino)),
            Err(Errno::ENOENT) => Some(None),
            Err(errno) => self.try_to(Err(errno)),
        }
    }

    /// Whether the file's state is known. After a failure a reader has to look first.
    pub fn is_certain(&mut self, name: &'static str) -> bool {
        if !self.expected.is_certain(name) {
            self.read(name);
        }
        self.expected.is_certain(name)
    }

    fn close(&mut self, name: &'static str, ino: Ino, handle: Handle) {
        let flushed = self.service().flush(ino, handle);
        match self.try_to(flushed) {
            Some(()) => self.expected.closed(name),
            None => self.expected.lost(name),
        }
        self.service().release(ino, handle);
        self.service().forget(ino, 1);
    }

    fn fsync(&mut self, name: &'static str, ino: Ino, handle: Handle) -> bool {
        let synced = self.service().fsync(ino, handle);
        match self.try_to(synced) {
            Some(()) => {
                self.expected.closed(name);
                self.expected.synced(name);
                true
            }
            None => {
                self.expected.lost(name);
                false
            }
        }
    }

    /// Opens for writing; creates a missing file.
    fn open(&mut self, name: &'static str, truncate: bool, append: bool) -> Option<(Ino, Handle)> {
        let how = OpenOptions { write: true, truncate, append, ..OpenOptions::default() };
        if !self.is_certain(name) {
            return None;
        }
        let found = self.find(name)?;
        let Some(ino) = found else {
            let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
            let created = self.service().create(CALLER, node, how);
            return match self.try_to(created) {
                Some((attributes, opened)) => {
                    self.expected.changed(name, Some(Seen::default()));
                    Some((attributes.ino, opened.handle))
                }
                None => {
                    self.expected.in_doubt(name, Some(Seen::default()));
                    None
                }
            };
        };
        let emptied = Seen { content: Arc::default(), ..self.expected.live(name).unwrap_or_default() };
        let opened = self.service().open(CALLER, ino, how);
        match self.try_to(opened) {
            Some(opened) => {
                if truncate {
                    self.expected.written(name, emptied);
                }
                Some((ino, opened.handle))
            }
            None => {
                self.service().forget(ino, 1);
                if truncate {
                    self.expected.in_doubt(name, Some(emptied));
                }
                None
            }
        }
    }

    /// Writes at an offset in pieces. Returns whether all were taken.
    fn write_at(&mut self, name: &'static str, ino: Ino, handle: Handle, offset: usize, bytes: &[u8]) -> bool {
        let mut at = offset;
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut next = self.expected.live(name).unwrap_or_default();
            let mut content = next.content.to_vec();
            content.resize(content.len().max(at + piece.len()), 0);
            content[at..at + piece.len()].copy_from_slice(piece);
            next.content = Arc::new(content);
            let written = self.service().write(CALLER, ino, handle, at as u64, piece, WriteFlags::default());
            match self.try_to(written) {
                Some(count) => assert_eq!(count as usize, piece.len(), "a write is done in part"),
                None => {
                    self.expected.in_doubt(name, Some(next));
                    return false;
                }
            }
            self.expected.written(name, next);
            at += piece.len();
        }
        true
    }

    /// Writes the whole file anew.
    pub fn write(&mut self, name: &'static str, bytes: &[u8], syncs: bool) {
        let Some((ino, handle)) = self.open(name, true, false) else { return };
        if self.write_at(name, ino, handle, 0, bytes) && syncs {
            self.fsync(name, ino, handle);
        }
        self.close(name, ino, handle);
    }

    pub fn append(&mut self, name: &'static str, bytes: &[u8]) {
        let Some((ino, handle)) = self.open(name, false, true) else { return };
        let end = self.expected.live(name).unwrap_or_default().content.len();
        self.write_at(name, ino, handle, end, bytes);
        self.close(name, ino, handle);
    }

    /// Changes the file at several offsets, and syncs each change if `syncs`.
    pub fn overwrite(&mut self, name: &'static str, offsets: &[usize], bytes: &[u8], syncs: bool) {
        let Some((ino, handle)) = self.open(name, false, false) else { return };
        for &offset in offsets {
            // A client stops after a failure, because the file's state is unknown by then.
            if !self.write_at(name, ino, handle, offset, bytes) || (syncs && !self.fsync(name, ino, handle)) {
                break;
            }
        }
        self.close(name, ino, handle);
    }

    /// Keeps a file open while others are worked on. Acknowledged writes are read through the same handle, and are
    /// durable once they are synced.
    pub fn hold<T>(&mut self, name: &'static str, bytes: &[u8], meanwhile: impl FnOnce(&mut Self) -> T) {
        let Some((ino, handle)) = self.open(name, true, false) else {
            meanwhile(self);
            return;
        };
        let is_whole = self.write_at(name, ino, handle, 0, bytes);
        meanwhile(self);
        if is_whole {
            self.fsync(name, ino, handle);
        }
        self.close(name, ino, handle);
    }

    pub fn truncate(&mut self, name: &'static str, size_bytes: usize) {
        if !self.is_certain(name) {
            return;
        }
        let Some(Some(ino)) = self.find(name) else { return };
        let mut next = self.expected.live(name).unwrap_or_default();
        let mut content = next.content.to_vec();
        content.resize(size_bytes, 0);
        next.content = Arc::new(content);
        let changes = AttributeChanges { size_bytes: Some(size_bytes as u64), ..AttributeChanges::default() };
        let changed = self.service().set_attributes(CALLER, ino, changes);
        match self.try_to(changed) {
            Some(_) => self.expected.changed(name, Some(next)),
            None => self.expected.in_doubt(name, Some(next)),
        }
        self.service().forget(ino, 1);
    }

    pub fn mark(&mut self, name: &'static str, mark: Option<u8>) {
        if !self.is_certain(name) {
            return;
        }
        let Some(Some(ino)) = self.find(name) else { return };
        let next = Seen { mark, ..self.expected.live(name).unwrap_or_default() };
        let changed = match mark {
            Some(mark) => self.service().set_xattr(CALLER, ino, MARK, &[mark], XattrMode::Any),
            None => match self.service().remove_xattr(ino, MARK) {
                // The mark may never have been set.
                Err(Errno::ENODATA) => Ok(()),
                other => other,
            },
        };
        match self.try_to(changed) {
            Some(()) => self.expected.changed(name, Some(next)),
            None => self.expected.in_doubt(name, Some(next)),
        }
        self.service().forget(ino, 1);
    }

    pub fn rename(&mut self, from: &'static str, to: &'static str) {
        if !self.is_certain(from) || self.expected.live(from).is_none() {
            return;
        }
        let moved = self.expected.live(from);
        let renamed = self.service().rename(ROOT_INO, from.as_bytes(), ROOT_INO, to.as_bytes(), RenameFlags::default());
        if self.try_to(renamed).is_some() {
            self.expected.changed(to, moved);
            self.expected.changed(from, None);
        } else {
            self.expected.in_doubt(to, moved);
            self.expected.in_doubt(from, None);
        }
    }

    pub fn unlink(&mut self, name: &'static str) {
        let unlinked = match self.service().unlink(ROOT_INO, name.as_bytes()) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        };
        match self.try_to(unlinked) {
            Some(()) => self.expected.changed(name, None),
            None => self.expected.in_doubt(name, None),
        }
    }

    pub fn fsync_directory(&mut self) {
        let synced = self.service().fsync_directory(ROOT_INO);
        if self.try_to(synced).is_some() {
            self.expected.synced_all();
        }
    }

    /// Returns the state of the file as a reader sees it.
    pub fn look(&mut self, name: &'static str) -> Result<State, Errno> {
        let service = self.service();
        let ino = match service.lookup(ROOT_INO, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        if dedupfs::is_frozen(ino) {
            service.forget(ino, 1);
            return versions::look(&self.pool, name);
        }
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let seen = service.open(CALLER, ino, how).and_then(|opened| {
            let mut content = Vec::new();
            let read = service.read(ino, opened.handle, 0, 1 << 30, &mut content);
            service.release(ino, opened.handle);
            read?;
            let size_bytes = service.attributes(ino)?.size_bytes;
            assert_eq!(content.len() as u64, size_bytes, "{name:?} has another length than stat says");
            let mark = match service.xattr(ino, MARK) {
                Ok(mark) => mark.first().copied(),
                Err(Errno::ENODATA) => None,
                Err(errno) => return Err(errno),
            };
            Ok(Some(Seen { content: Arc::new(content), mark }))
        });
        service.forget(ino, 1);
        seen
    }

    /// Reads a file: the result is right, or an error.
    pub fn read(&mut self, name: &'static str) {
        let seen = self.look(name);
        if let Some(state) = self.try_to(seen) {
            self.expected.see(name, &state).unwrap_or_else(|wrong| panic!("wrong data: {wrong}"));
        }
    }
}
