//! Freezing in place: a version takes the name of a live directory, which goes.

use dedupfs::{EngineError, NoProgress, Origin};
use dedupfs_service::{
    Errno, FileKind, FileService, Ino, Listing, NewNode, NodeContent, ROOT_INO, RenameFlags, XattrMode,
};

use super::side_by_side::{CALLER, SideBySide};
use super::versions::{FrozenTree, find, holds_version, name_of};

/// The directory in which the version is made.
const WORK: &[u8] = b".dedupfs-put-0123456789abcdef";
const MARK: &[u8] = b"user.dedupfs.put";

impl SideBySide {
    /// Gives a directory the name of a version in the root, and freezes it there, step by step as the tool does. A change in the last step
    /// refuses it, and the directory stays live under its own name.
    pub fn freeze(&mut self, source: u8, name: u8, changes: bool) {
        self.close_all();
        let of = |side: &super::side_by_side::Side| {
            Some((side.place_of_directory(source.checked_sub(1)?)?, side.directory(source)?))
        };
        let (Some(((parent, own), ino)), Some(((reference_parent, _), reference_ino))) =
            (of(&self.engine), of(&self.reference))
        else {
            return;
        };
        if find(&self.reference, 0, name).is_some() {
            return;
        }
        let frozen = name_of(name);
        let rename = |side: &dyn FileService, from: (Ino, &[u8]), to: (Ino, &[u8])| {
            side.rename(from.0, from.1, to.0, to.1, RenameFlags::default()).expect("renames");
        };
        rename(&*self.engine.service, (parent, &own), (ROOT_INO, &frozen));
        // A stand-in does not look like its version.
        let is_refused = holds_version(&self.reference.service, reference_ino);
        let tree = if is_refused { FrozenTree::new() } else { self.tree_of(reference_ino, ino) };
        let service = self.engine.service.clone();
        let node = NewNode { parent: ROOT_INO, name: WORK, mode: 0o700, umask: 0 };
        let work = service.make(CALLER, node, NodeContent::Directory).expect("makes").ino;
        service.forget(work, 1);
        service.set_xattr(CALLER, work, MARK, b"", XattrMode::Any).expect("marks");
        let origin = Origin { source: b"here".to_vec(), host: b"model".to_vec() };
        let made = self.pool().freeze(ino, (work, &frozen), &origin, None, &NoProgress);
        let is_frozen = match made {
            Ok(made) => {
                assert!(!is_refused);
                assert_eq!(made.expect("nothing has changed").entries, tree.len() as u64 - 1);
                if changes {
                    service.set_xattr(CALLER, ino, b"user.late", b"", XattrMode::Any).expect("changes");
                    service.remove_xattr(ino, b"user.late").expect("changes");
                }
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                let exchanged = service.rename(work, &frozen, ROOT_INO, &frozen, flags);
                assert_eq!(exchanged, if changes { Err(Errno::EBUSY) } else { Ok(()) });
                !changes
            }
            Err(EngineError::HoldsVersion(_)) => {
                assert!(is_refused);
                false
            }
            Err(error) => panic!("the freeze fails: {error}"),
        };
        empty(&*service, work);
        service.remove_directory(ROOT_INO, WORK).expect("removes");
        if is_frozen {
            empty(&*self.reference.service, reference_ino);
            self.reference.service.remove_directory(reference_parent, &own).expect("removes");
            self.stand(0, name, tree);
        } else {
            rename(&*service, (ROOT_INO, &frozen), (parent, &own));
        }
    }
}

/// Removes everything in a directory.
fn empty(service: &dyn FileService, directory: Ino) {
    for entry in service.read_directory(directory, 0, 1000, Listing::Names).expect("lists") {
        if entry.kind != FileKind::Directory {
            service.unlink(directory, &entry.name).expect("unlinks");
            continue;
        }
        // A version in a directory of this mark goes at once.
        if service.remove_directory(directory, &entry.name).is_err() {
            empty(service, entry.ino);
            service.remove_directory(directory, &entry.name).expect("removes");
        }
    }
}
