//! Freezing in place: a version takes the name of the live directory of which it was made.
//!
//! 1. The pool begins a watch ([`dedupfs_namespace`]'s `watch`), commits, and makes a version of that commit, as a snapshot does.
//!    A file that is open for writing by then ends this: the kernel keeps such a file open as long as it may have changed pages.
//! 2. The tool exchanges the names through the kernel, which caches them. [`Service::exchange_frozen`] does it in one step under the
//!    lock of the namespace, if nothing in the tree has changed since the watch began, and nothing in it is open for writing or
//!    has content that is not published. The same step closes the tree.
//! 3. The tool removes the live tree, which lies in its hidden directory.
//!
//! Why nothing is lost that a client was told is done: what was published before the commit is in the version. A change of names,
//! attributes or published content behind it was noted, or comes behind the exchange, and is refused then. Content that is not published yet
//! needs a handle. Whoever opens a file for writing notes the handle first and looks then whether its tree is closed
//! ([`Service::check_not_replaced`]); the exchange closes the tree first and looks for handles then. So one of both sees the other.
//! A lookup that found the live directory before the exchange leads to an inode of the closed tree, as do an open
//! directory and a working directory.
//!
//! After a crash: the names before or after the exchange, which is one change of the namespace. The other tree lies in the
//! hidden directory. Before the exchange that is the version, whose content the live directory holds; behind it the
//! live tree, all of which the version holds.

use std::sync::Arc;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_namespace::{InoSpans, is_frozen};
use dedupfs_service::Ino;
use dedupfs_store::StoreError;
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;

use super::{Service, now};
use crate::versions::work::WORK_MARK;

/// Time within which the tool must exchange the names.
const READY_FOR: Duration = Duration::from_secs(30);

/// How far the one freeze under way is.
///
/// ```text
/// None ──begin──> Reading ──ready──> Ready ──exchange, or READY_FOR──> None
///                    └──error──> None
/// ```
#[derive(Default)]
enum Phase {
    #[default]
    None,
    Reading,
    Ready {
        version: Ino,
        top: Ino,
        until: Instant,
    },
}

/// The freeze under way.
#[derive(Default)]
pub(super) struct Freezing(Mutex<Phase>);

/// A freeze whose version is being made. The watch ends with it, unless the version is ready.
pub(crate) struct Freeze<'a> {
    service: &'a Service,
    /// The live directory.
    top: Ino,
    is_ready: bool,
}

impl Drop for Freeze<'_> {
    fn drop(&mut self) {
        if !self.is_ready {
            self.service.core.namespace.unwatch();
            *self.service.freezing.0.lock() = Phase::None;
        }
    }
}

fn busy(what: &str, owner: &str) -> EngineError {
    StoreError::Busy { what: what.to_owned(), owner: owner.to_owned() }.into()
}

impl Freeze<'_> {
    /// Lets the tool exchange the names of the version and the live directory, whose tree these inodes are.
    /// Returns `false` if something in it has changed already.
    pub(crate) fn ready(mut self, version: Ino, tree: InoSpans) -> bool {
        if let Some(changed) = self.service.core.namespace.watch_tree(Arc::new(tree)) {
            tracing::info!(directory = self.top, ino = changed, "changed while it was frozen");
            return false;
        }
        let until = Instant::now() + READY_FOR;
        *self.service.freezing.0.lock() = Phase::Ready { version, top: self.top, until };
        self.is_ready = true;
        true
    }
}

impl Service {
    /// Begins to freeze a directory, and to note changes.
    ///
    /// # Errors
    /// `Busy` if another freeze is under way.
    pub(crate) fn begin_freezing(&self, top: Ino) -> Result<Freeze<'_>> {
        let mut phase = self.freezing.0.lock();
        let is_under_way = match *phase {
            Phase::None => false,
            Phase::Reading => true,
            // The tool has removed the version, and given up.
            Phase::Ready { version, .. }
                if self.core.namespace.inode_shared(version)?.is_none_or(|it| it.nlink == 0) =>
            {
                false
            }
            Phase::Ready { until, top: other, .. } => other != top && until > Instant::now(),
        };
        if is_under_way {
            return Err(busy("the pool", "another `dedupfs freeze`, which must end first"));
        }
        if !self.core.namespace.can_close_one_more() {
            return Err(EngineError::NotToFreeze(
                "16 live trees that versions replaced are not removed yet: `rm -r` removes them, each in a directory `.dedupfs-put-…`, as does \
                 the next `dedupfs freeze` beside them"
                    .to_owned(),
            ));
        }
        *phase = Phase::Reading;
        drop(phase);
        let freeze = Freeze { service: self, top, is_ready: false };
        self.core.namespace.watch();
        Ok(freeze)
    }

    /// Returns the files that are open for writing, or have content that is not published. Call it once the watch has begun.
    pub(crate) fn files_being_written(&self) -> Vec<Ino> {
        self.files.being_written()
    }

    /// Whether an exchange of names is the last step of a freeze: it takes a version out of a directory in which versions are made.
    pub(super) fn is_of_freeze(&self, (parent, name): (Ino, &[u8])) -> Result<bool> {
        let source = self.core.namespace.lookup(parent, name)?;
        Ok(source.is_some_and(|(ino, _)| is_frozen(ino)) && self.core.namespace.xattr(parent, WORK_MARK)?.is_some())
    }

    /// Exchanges the names of a version and the live directory of which it was made.
    ///
    /// # Errors
    /// `Busy` if they differ by now, or may differ; those of a rename. Nothing is changed then, and the version must be made anew.
    pub(super) fn exchange_frozen(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Result<()> {
        let named = self.core.namespace.lookup(from.0, from.1)?.map(|(ino, _)| ino);
        // Held to the end: another freeze must not watch in place of this one.
        let mut phase = self.freezing.0.lock();
        let (version, top, until) = match *phase {
            Phase::Ready { version, top, until } if named == Some(version) => (version, top, until),
            // Another freeze goes on.
            _ => return Err(busy("the version", "no `dedupfs freeze` that may exchange names now")),
        };
        *phase = Phase::None;
        if until < Instant::now() {
            self.core.namespace.unwatch();
            return Err(busy("the version", "a `dedupfs freeze` that came too late"));
        }
        self.core.namespace.exchange_watched([version, top], from, to, now(), &mut |tree| match self
            .files
            .being_written()
            .into_iter()
            .find(|ino| tree.contains(*ino))
        {
            Some(ino) => Err(busy(&format!("file {ino} of the directory"), "a process that has it open for writing")),
            None => Ok(()),
        })
    }

    /// Checks that a file just opened for writing is in no tree that a version has replaced.
    ///
    /// # Errors
    /// `Busy` if it is.
    pub(super) fn check_not_replaced(&self, ino: Ino) -> Result<()> {
        self.core.namespace.check_not_closed(ino)
    }
}
