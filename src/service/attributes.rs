//! Attributes of inodes: stat, setattr, access lists and other extended attributes.

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{Inode, RECORD_PREFIX, is_frozen};
use dedupfs_service::{
    AttributeChanges, Attributes, Caller, FileKind, Ino, TimeChange, Timestamp, XattrMode, acl, without_privileges,
};
use dedupfs_store::waiting;

use super::{Service, now, protection};
use crate::durability::space::Demand;
use crate::versions::series::{SERIES_ATTRIBUTE, SERIES_RECORD, SeriesRecord};

fn moment(change: TimeChange) -> Timestamp {
    match change {
        TimeChange::Now => now(),
        TimeChange::At(time) => time,
    }
}

pub(super) fn attributes_of(inode: &Inode) -> Attributes {
    Attributes {
        ino: inode.ino,
        generation: u64::from(inode.generation),
        kind: inode.kind,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size_bytes: inode.size_bytes,
        blocks: inode.data_bytes.div_ceil(512),
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
    }
}

impl Service {
    /// Returns the inode with the unpublished values of its content.
    pub(super) fn current(&self, ino: Ino) -> Result<Inode> {
        let mut inode = (*self.inode(ino)?.ok_or(EngineError::NotFound)?).clone();
        if let Some(file) = self.files.file(ino) {
            file.patch(&mut inode);
        }
        Ok(inode)
    }

    pub(super) fn change_attributes(&self, caller: Caller, ino: Ino, changes: &AttributeChanges) -> Result<Attributes> {
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        protection::check_change(&inode, changes)?;
        if let Some(size_bytes) = changes.size_bytes {
            self.truncate(caller, ino, size_bytes)?;
        }
        let drops_privileges = changes.drop_privileges(caller, inode.kind);
        if drops_privileges {
            self.drop_capability(ino)?;
        }
        let inode = self.update_attributes(ino, changes, drops_privileges)?;
        self.core.relieve()?;
        Ok(attributes_of(&inode))
    }

    fn update_attributes(&self, ino: Ino, changes: &AttributeChanges, drops_privileges: bool) -> Result<Inode> {
        let file = self.files.file(ino);
        // A publication in between would overwrite the mtime set here with its own.
        let _body = file.as_ref().filter(|_| changes.mtime.is_some()).map(|file| waiting::write(&file.body));
        if changes.mtime.is_some()
            && let Some(file) = &file
        {
            file.live.lock().changed_at = None;
        }
        if let Some(mode) = changes.mode {
            self.chmod_acl(ino, mode)?;
        }
        let ctime = changes.ctime.unwrap_or_else(now);
        let mut inode = self.core.namespace.update(ino, &mut |inode| {
            let kept = if drops_privileges { without_privileges(inode.mode) } else { inode.mode };
            inode.mode = changes.mode.map_or(kept, |mode| mode & 0o7777);
            inode.uid = changes.uid.unwrap_or(inode.uid);
            inode.gid = changes.gid.unwrap_or(inode.gid);
            inode.atime = changes.atime.map_or(inode.atime, moment);
            inode.mtime = changes.mtime.map_or(inode.mtime, moment);
            inode.ctime = ctime;
        })?;
        if let Some(file) = &file {
            file.patch(&mut inode);
        }
        Ok(inode)
    }

    /// Applies chmod to the access list, if there is one.
    fn chmod_acl(&self, ino: Ino, mode: u16) -> Result<()> {
        let namespace = &self.core.namespace;
        let has_xattrs = namespace.inode(ino)?.is_some_and(|inode| inode.xattr_count > 0);
        if has_xattrs && let Some(access) = namespace.xattr(ino, acl::ACCESS_XATTR)? {
            let access = acl::chmod(&access, mode).map_err(|_| EngineError::Invalid("a damaged access list"))?;
            namespace.set_xattr(ino, acl::ACCESS_XATTR, &access, XattrMode::Any, now())?;
        }
        Ok(())
    }

    fn set_acl(&self, caller: Caller, inode: &Inode, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let invalid = |_| EngineError::Invalid("an access list of a wrong form");
        let namespace = &self.core.namespace;
        match inode.kind {
            FileKind::Symlink => return Err(EngineError::NotSupported),
            kind if kind != FileKind::Directory && name == acl::DEFAULT_XATTR => return Err(EngineError::NotAllowed),
            _ => {}
        }
        let stored = if name == acl::ACCESS_XATTR {
            let in_group = caller.uid == 0 || caller.gid == inode.gid;
            let change = acl::set_access(value, inode.mode, in_group).map_err(invalid)?;
            namespace.update(inode.ino, &mut |inode| {
                inode.mode = change.mode;
                inode.ctime = now();
            })?;
            change.stored
        } else {
            Some(acl::Acl::parse(value).map_err(invalid)?.to_bytes())
        };
        match stored {
            Some(value) => namespace.set_xattr(inode.ino, name, &value, mode, now()).map(drop),
            None => match namespace.remove_xattr(inode.ino, name, now()) {
                Ok(_) | Err(EngineError::NoAttribute) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }

    pub(super) fn change_xattr(
        &self,
        caller: Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        if name == SERIES_ATTRIBUTE {
            return Err(EngineError::NotPermitted);
        }
        let _pass = self.core.begin_change()?;
        let _room = self.admit(Demand::change(value.len() as u64))?;
        let inode = self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?;
        inode.check_unprotected()?;
        if acl::is_list(name) {
            self.set_acl(caller, &inode, name, value, mode)?;
        } else {
            self.core.namespace.set_xattr(ino, name, value, mode, now())?;
        }
        self.core.relieve()
    }

    pub(super) fn drop_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        // No request sees a record of the namespace, and the kernel asks for no more than the right to write.
        if name.starts_with(RECORD_PREFIX) {
            return Err(EngineError::NoAttribute);
        }
        if name == SERIES_ATTRIBUTE {
            return Err(EngineError::NotPermitted);
        }
        let _pass = self.core.begin_change()?;
        let _room = self.core.promise_change();
        self.core.namespace.inode_shared(ino)?.ok_or(EngineError::NotFound)?.check_unprotected()?;
        match self.core.namespace.remove_xattr(ino, name, now()) {
            // As on other filesystems, this is no error: the effective list then follows from the mode.
            Err(EngineError::NoAttribute) if acl::is_list(name) => return Ok(()),
            removed => removed.map(drop)?,
        }
        self.core.relieve()
    }

    pub(super) fn read_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        // The kernel asks for security.capability at every write; most inodes have no attributes at all.
        let inode = self.inode(ino)?.ok_or(EngineError::NotFound)?;
        if inode.xattr_count == 0 || name.starts_with(RECORD_PREFIX) {
            return Err(EngineError::NoAttribute);
        }
        if is_frozen(ino) {
            let found = self.frozen_attributes(ino)?.into_iter().find(|(own, _)| own == name);
            return found.map(|(_, value)| value).ok_or(EngineError::NoAttribute);
        }
        if name == SERIES_ATTRIBUTE {
            let record = self.core.namespace.xattr(ino, SERIES_RECORD)?.ok_or(EngineError::NoAttribute)?;
            return SeriesRecord::decode(&record).map(|record| record.rules.to_string().into_bytes());
        }
        self.core.namespace.xattr(ino, name)?.ok_or(EngineError::NoAttribute)
    }

    pub(super) fn read_xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        if is_frozen(ino) {
            return Ok(self.frozen_attributes(ino)?.into_iter().map(|(name, _)| name).collect());
        }
        let mut names = self.core.namespace.xattr_names(ino)?;
        names.retain(|name| !name.starts_with(RECORD_PREFIX));
        Ok(names)
    }
}
