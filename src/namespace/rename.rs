//! Renaming, with all of renameat2's flags.

use std::sync::Arc;

use dedupfs_base::{EngineError, ReadOnly, Result};
use dedupfs_service::{FileKind, Ino, InodeFlags, ROOT_INO, RenameFlags, Timestamp};
use dedupfs_store::StoreError;

use super::Namespace;
use super::draft::Draft;
use super::inode::{Entry, Inode};
use super::names::{NewInode, check_name, gain_subdirectory, touch};
use super::versions::is_frozen;

/// Largest depth of a directory; a longer way up is a loop.
const DEPTH_MAX: usize = 1 << 20;

/// The result of a rename.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Renamed {
    /// The inode that the rename replaced, afterwards; an orphan if it had no other name.
    pub replaced: Option<Inode>,
}

/// One side of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    directory: Ino,
    name: &'a [u8],
}

impl Namespace {
    /// Renames as renameat2 does. Renaming one name of an inode over another name of the same inode does nothing, as
    /// POSIX demands.
    ///
    /// A name that replaces another takes its place in the order of the directory. A new name takes the place of the
    /// old name if it stays in the directory. So a reader meets each entry once, regardless of the number of renames.
    /// Only an entry that comes from another directory, or leaves a whiteout in its place, gets a new place.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        to_parent: Ino,
        to_name: &[u8],
        flags: RenameFlags,
        now: Timestamp,
    ) -> Result<Renamed> {
        self.rename_if((parent, name), (to_parent, to_name), flags, now, &mut || Ok(()))
    }

    /// As [`rename`](Self::rename), if `permit` agrees, which is called under the mutation lock when nothing else prevents it.
    pub(super) fn rename_if(
        &self,
        (parent, name): (Ino, &[u8]),
        (to_parent, to_name): (Ino, &[u8]),
        flags: RenameFlags,
        now: Timestamp,
        permit: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Renamed> {
        check_name(name)?;
        check_name(to_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(EngineError::Invalid("rename flags that exclude each other"));
        }
        let (_lock, mut draft) = self.begin()?;
        draft.directory(parent)?;
        draft.directory(to_parent)?;
        let source = self.entry(parent, name)?.ok_or(EngineError::NotFound)?;
        let target = self.entry(to_parent, to_name)?;
        let (from, to) = (Place { directory: parent, name }, Place { directory: to_parent, name: to_name });
        if flags.no_replace && target.is_some() {
            return Err(EngineError::Exists);
        }
        if flags.exchange && target.is_none() {
            return Err(EngineError::NotFound);
        }
        if target.is_some_and(|target| target.ino == source.ino) {
            return Ok(Renamed::default());
        }
        draft.check_gives(parent, source.ino)?;
        match target {
            Some(target) => draft.check_gives(to_parent, target.ino)?,
            None => draft.directory(to_parent)?.check_takes_entries()?,
        }
        self.check_not_below(&source, to_parent)?;
        let renamed = match target {
            Some(target) if flags.exchange => {
                self.check_not_below(&target, parent)?;
                exchange(&mut draft, (from, source), (to, target), now)?;
                Renamed::default()
            }
            target => self.replace(&mut draft, (from, source), (to, target), flags.whiteout, now)?,
        };
        permit()?;
        draft.apply();
        Ok(renamed)
    }

    /// Checks that a directory does not move into itself or below itself.
    fn check_not_below(&self, moved: &Entry, directory: Ino) -> Result<()> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == moved.ino {
                return Err(EngineError::Invalid("a directory cannot be moved into itself"));
            }
            if at == ROOT_INO {
                return Ok(());
            }
            at = self.inode_shared(at)?.ok_or(EngineError::NotFound)?.parent;
        }
        Err(StoreError::corrupt(format!("directory {directory}"), "a way up to the root", "a loop").into())
    }

    fn replace(
        &self,
        draft: &mut Draft<'_>,
        (from, source): (Place<'_>, Entry),
        (to, target): (Place<'_>, Option<Entry>),
        whiteout: bool,
        now: Timestamp,
    ) -> Result<Renamed> {
        let is_directory = source.kind == FileKind::Directory;
        if let Some(target) = target {
            match (is_directory, target.kind == FileKind::Directory) {
                (true, false) => return Err(EngineError::NotDirectory),
                (false, true) => return Err(EngineError::IsDirectory),
                (true, true) if is_frozen(target.ino) => return Err(EngineError::NotEmpty),
                (true, true) if draft.inode(target.ino)?.size_bytes > 0 => return Err(EngineError::NotEmpty),
                (false, false) if is_frozen(target.ino) => return Err(ReadOnly::Frozen.into()),
                _ => {}
            }
        }
        let replaced = target.map(|target| draft.drop_link(target.ino, now)).transpose()?;
        let left = if whiteout { Some(self.whiteout(draft, source, now)?) } else { None };
        let directory = draft.directory(from.directory)?;
        directory.size_bytes = directory.size_bytes.saturating_sub(u64::from(left.is_none()));
        directory.nlink -= u32::from(is_directory);
        touch(directory, now);
        let directory = draft.directory(to.directory)?;
        directory.size_bytes += u64::from(target.is_none());
        directory.nlink -= u32::from(is_directory && target.is_some());
        touch(directory, now);
        move_inode(draft, source.ino, to.directory, now)?;
        let cookie = match target {
            Some(target) => target.cookie,
            None if from.directory == to.directory && left.is_none() => source.cookie,
            None => self.new_cookie(),
        };
        draft.name(from.directory, &Arc::from(from.name), Some(source), left);
        draft.name(to.directory, &Arc::from(to.name), target, Some(Entry { cookie, ..source }));
        Ok(Renamed { replaced })
    }

    /// Creates the whiteout that overlay filesystems leave behind: a character device 0:0, here with the owner of the
    /// moved inode.
    fn whiteout(&self, draft: &mut Draft<'_>, source: Entry, now: Timestamp) -> Result<Entry> {
        let Inode { uid, gid, .. } = *draft.inode(source.ino)?;
        let new = NewInode {
            kind: FileKind::CharDevice,
            mode: 0,
            uid,
            gid,
            rdev: 0,
            symlink_target: None,
            xattrs: Vec::new(),
            flags: InodeFlags::default(),
            now,
        };
        let inode = self.new_inode(&new);
        let entry = Entry { ino: inode.ino, kind: inode.kind, cookie: source.cookie };
        draft.create(inode);
        Ok(entry)
    }
}

/// Puts a moved inode under its new directory. If it replaces a directory, the caller has already subtracted the link
/// of that directory.
fn move_inode(draft: &mut Draft<'_>, ino: Ino, to: Ino, now: Timestamp) -> Result<()> {
    let inode = draft.inode(ino)?;
    inode.ctime = now;
    if inode.is_directory() {
        inode.parent = to;
        gain_subdirectory(draft.directory(to)?)?;
    }
    Ok(())
}

fn exchange(
    draft: &mut Draft<'_>,
    (from, source): (Place<'_>, Entry),
    (to, target): (Place<'_>, Entry),
    now: Timestamp,
) -> Result<()> {
    for (place, entry) in [(from, source), (to, target)] {
        let directory = draft.directory(place.directory)?;
        directory.nlink -= u32::from(entry.kind == FileKind::Directory);
        touch(directory, now);
    }
    move_inode(draft, source.ino, to.directory, now)?;
    move_inode(draft, target.ino, from.directory, now)?;
    let at_from = Entry { cookie: source.cookie, ..target };
    let at_to = Entry { cookie: target.cookie, ..source };
    draft.name(from.directory, &Arc::from(from.name), Some(source), Some(at_from));
    draft.name(to.directory, &Arc::from(to.name), Some(target), Some(at_to));
    Ok(())
}
