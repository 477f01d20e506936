//! Freezing a live directory in place; see `service::freezing` for the steps and what holds after each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{InoSpans, Inode};
use dedupfs_service::{Ino, ROOT_INO};
use dedupfs_sync::clock::Instant;

use super::Pool;
use super::versions::Make;
use crate::progress::Progress;
use crate::versions::name::{Origin, VersionReport};
use crate::versions::snapshot::Met;
use crate::versions::work::WORK_MARK;

/// How long a freeze waits, in all, for files that are open for writing. The kernel may tell the daemon of a close only after `close` has
/// returned to its user, who may freeze the directory at once.
const WAIT_FOR_CLOSE: Duration = Duration::from_secs(1);

impl Pool {
    /// Makes a version of the directory `source`, named `name` in the directory `into`, in which versions are made. For half a
    /// minute from the return on, exchanging the names of both puts the version in its place; that is refused (EBUSY) if
    /// anything in the directory has changed since. `dated_secs` is the time of the backup, if it is not now. Returns `None` if
    /// something has changed meanwhile already: remove the version then.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot); `NotToFreeze` with the reason; `Busy` if another directory is being frozen.
    pub fn freeze(
        &self,
        source: Ino,
        (into, name): (Ino, &[u8]),
        origin: &Origin,
        dated_secs: Option<i64>,
        progress: &dyn Progress,
    ) -> Result<Option<VersionReport>> {
        let namespace = &self.core.namespace;
        if source == ROOT_INO {
            return Err(EngineError::NotToFreeze(
                "the root of the mount stays live: freeze directories in it".to_owned(),
            ));
        }
        if self.service.is_hidden(source) || namespace.xattr(into, WORK_MARK)?.is_none() {
            return Err(EngineError::NotToFreeze(
                "versions are made in this directory, or not in the other one".to_owned(),
            ));
        }
        let top = namespace.inode_shared(source)?.ok_or(EngineError::NotFound)?;
        check_protection(&top, || "the directory".to_owned())?;
        let (freeze, written) = (RefCell::new(None), RefCell::new(BTreeSet::new()));
        let mut tree = InoSpans::default();
        tree.add(source);
        let tree = RefCell::new(tree);
        let wait_left = Cell::new(WAIT_FOR_CLOSE);
        let make = Make {
            source,
            to: (into, name),
            origin,
            dated_secs,
            // Each entry must be looked at.
            takes_over: false,
            before_commit: &|| {
                *freeze.borrow_mut() = Some(self.service.begin_freezing(source)?);
                *written.borrow_mut() = self.service.files_being_written().into_iter().collect();
                self.core.committer.commit()
            },
        };
        let look = |met: &Met<'_>, is_work: bool| {
            if is_work {
                let why = "a directory in which `dedupfs put`, `snapshot` or `freeze` works: wait for it, or `rm -r` removes what a killed \
                           one has left";
                return Err(EngineError::NotToFreeze(format!("{} is {why}", met.path())));
            }
            check_protection(met.inode, || met.path())?;
            // If a file is closed while this waits, the watch has noted its changes.
            let is_written = || self.service.files_being_written().contains(&met.inode.ino);
            if written.borrow().contains(&met.inode.ino) && !ends_within(&wait_left, || !is_written()) {
                let why = "is open for writing: end what writes there. `dedupfs snapshot` makes a version beside it meanwhile";
                return Err(EngineError::NotToFreeze(format!("{} {why}", met.path())));
            }
            tree.borrow_mut().add(met.inode.ino);
            Ok(false)
        };
        let made = self.make_version(&make, &look, progress)?;
        let mut tree = tree.into_inner();
        tree.finish();
        let freeze = freeze.into_inner().ok_or(EngineError::Internal("a freeze that did not begin"))?;
        Ok(freeze.ready(made.ino, tree).then_some(made))
    }
}

/// Waits until `is_over`, and takes the time from `wait_left`. Returns `false` once nothing is left of it.
fn ends_within(wait_left: &Cell<Duration>, is_over: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !is_over() {
        if since.elapsed() >= wait_left.get() {
            wait_left.set(Duration::ZERO);
            return false;
        }
        dedupfs_sync::thread::sleep(Duration::from_millis(25));
    }
    wait_left.set(wait_left.get().saturating_sub(since.elapsed()));
    true
}

/// A protected directory could not be removed.
fn check_protection(inode: &Inode, path: impl Fn() -> String) -> Result<()> {
    inode.check_unprotected().map_err(|_| {
        let why =
            "is protected by chattr +i or +a, so the live tree could not be removed: `chattr -R -ia` takes that away";
        EngineError::NotToFreeze(format!("{} {why}", path()))
    })
}
