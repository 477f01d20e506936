//! Making, listing, comparing and removing versions, and counting what they hold.

use std::time::Duration;

use dedupfs_content::StreamId;
use dedupfs_namespace::{VERSION_RECORD, is_frozen, version_of};
use dedupfs_service::Ino;
use dedupfs_store::StoreError;
use dedupfs_sync::clock::Instant;

use super::Pool;
use crate::progress::Progress;
use crate::service::{HeldVersion, now};
use crate::transfer::{ThawReport, thaw};
use crate::upkeep::tree_stats::{TreeStats, tree_stats};
use crate::upkeep::would_free::{WouldFree, would_free};
use crate::versions::history::{HistoryRow, HistoryState, add, state_of};
use crate::versions::list::{VersionInfo, list};
use crate::versions::name::{Making, Origin, VersionReport, name_version};
use crate::versions::read::FrozenTree;
use crate::versions::read::difference::{CHANGES_AT_ONCE, DifferencePage, difference};
use crate::versions::record::VersionRecord;
use crate::versions::snapshot::{Earlier, Met, Snapshot, SnapshotMade};
use crate::versions::work::{WORK_MARK, is_work};
use dedupfs_base::{EngineError, Result};

/// Time within which a run of reclaiming must end so that a snapshot can begin.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(60);

/// A version to be made.
pub(super) struct Make<'a> {
    /// The live directory.
    pub(super) source: Ino,
    /// Directory and name.
    pub(super) to: (Ino, &'a [u8]),
    pub(super) origin: &'a Origin,
    /// Time of the backup, if it is not now; seconds since 1970.
    pub(super) dated_secs: Option<i64>,
    /// Whether directories that did not change may be taken over from an earlier snapshot. They are not looked at then.
    pub(super) takes_over: bool,
    /// Called when everything so far is durable, and before the commit that the version shows.
    pub(super) before_commit: &'a dyn Fn() -> Result<()>,
}

impl Pool {
    /// Makes a version of the directory `source`, as of this moment, and names it `name` in the directory `into`.
    /// Content of open files counts as of their last publication, which this call does first. Reclaiming ends, and
    /// begins again afterwards.
    ///
    /// # Errors
    /// `ReadOnly`; `NoSpace`; the directory holds a version; reclaiming does not end; those of reading and storing.
    pub fn snapshot(
        &self,
        source: Ino,
        (into, name): (Ino, &[u8]),
        origin: &Origin,
        progress: &dyn Progress,
    ) -> Result<VersionReport> {
        let make =
            Make { source, to: (into, name), origin, dated_secs: None, takes_over: true, before_commit: &|| Ok(()) };
        self.make_version(&make, &|_, is_work| Ok(is_work), progress)
    }

    /// Makes a version. `left_out` looks at each entry, is told whether it is a directory in which versions are made, and tells whether it
    /// is left out.
    pub(super) fn make_version(
        &self,
        make: &Make<'_>,
        left_out: &dyn Fn(&Met<'_>, bool) -> Result<bool>,
        progress: &dyn Progress,
    ) -> Result<VersionReport> {
        let begun = Instant::now();
        let core = &self.core;
        let Make { source, to: (into, name), origin, dated_secs, takes_over, before_commit } = *make;
        if is_frozen(source) {
            return Err(EngineError::HoldsVersion("the source".to_owned()));
        }
        let _pass = core.begin_change()?;
        core.namespace.check_versions()?;
        // The kernel caches names, and is not told of the new one. It must know nothing of this directory until then.
        let has_mark = core.namespace.xattr(into, WORK_MARK)?.is_some();
        let _hidden = has_mark.then(|| self.service.hide(into)).transpose()?;
        let _reclaiming = self.reclaiming.end(RECLAIM_PATIENCE).ok_or_else(|| {
            let (what, owner) = (
                "the pool".to_owned(),
                "a run of `dedupfs-gc`, or another snapshot or freeze, that does not end".to_owned(),
            );
            StoreError::Busy { what, owner }
        })?;
        core.namespace.record_changes();
        self.sync()?;
        before_commit()?;
        let stored_before = core.dedup.stats().bytes_stored;
        progress.start("reading names", 0);
        let view = &core.namespace.committed()?;
        let made = takes_over.then(|| self.snapshots_made.lock().of(source)).flatten();
        // A version that is forgotten meanwhile stays until the new one holds what it took over.
        let _earlier = made.map(|made| self.service.hold_version(made.version));
        let earlier = made.and_then(|made| self.earlier(made));
        let snapshot = Snapshot {
            core,
            view,
            stream: StreamId(1 << 32 | into),
            left_out: &|met| {
                let is_work = met.inode.is_directory()
                    && (self.service.is_hidden(met.inode.ino) || is_work(view, met.name, met.inode)?);
                left_out(met, is_work)
            },
            earlier,
            progress,
        };
        let built = snapshot.build(source).or_else(|error| match (snapshot.earlier.is_some(), error) {
            (true, error)
                if !matches!(error, EngineError::Ended(_) | EngineError::NoSpace | EngineError::HoldsVersion(_)) =>
            {
                tracing::warn!(%error, "the earlier snapshot cannot be used: everything is read");
                Snapshot { earlier: None, ..snapshot }.build(source)
            }
            (_, error) => Err(error),
        });
        progress.finish();
        let (built, taken_over) = built?;
        let totals = built.totals;
        let new_bytes = core.dedup.stats().bytes_stored.saturating_sub(stored_before);
        let (elapsed, completed) = (begun.elapsed(), now());
        let making = Making { origin, new_bytes, problems: 0, elapsed, is_incomplete: false, completed, dated_secs };
        let report = name_version(core, built, (into, name), &making)?;
        self.snapshots_made.lock().remember(SnapshotMade { source, version: report.ino, row: view.row(), totals });
        core.relieve()?;
        let base = made.filter(|_| taken_over > 0).map(|made| made.version);
        Ok(VersionReport { base, taken_over, ..report })
    }

    /// Opens an earlier snapshot, which must be held, if all that changed since is known.
    fn earlier(&self, made: SnapshotMade) -> Option<Earlier<'_>> {
        let namespace = &self.core.namespace;
        if namespace.has_losses() {
            // Its nodes, or attributes, may be lost. Storing them again heals every version that has them.
            return None;
        }
        let changed = namespace.changed_behind(made.row)?;
        let version = namespace.inode_shared(made.version).ok()??;
        let tree = FrozenTree::open(self.core.dedup.nodes(), version.ino, &version.root).ok()?;
        Some(Earlier { made, tree, changed })
    }
}

impl Pool {
    /// Returns the versions in a directory, or all of the pool, in the order of their completion.
    ///
    /// # Errors
    /// The last changes cannot be made durable; damage; I/O errors.
    pub fn versions(&self, directory: Option<Ino>) -> Result<Vec<VersionInfo>> {
        self.core.committer.commit()?;
        list(&self.core.namespace.committed()?, directory)
    }

    /// Returns the bytes that removing these inodes, with everything below them, adds to those that the next `dedupfs-gc` frees.
    ///
    /// # Errors
    /// `NotFound`; else as `would_free` says.
    pub fn would_free(&self, inos: &[Ino], progress: &dyn Progress) -> Result<WouldFree> {
        self.core.committer.settle()?;
        progress.start("counting down", 0);
        let told = would_free(&self.core, &self.reclaiming, &[inos], progress);
        progress.finish();
        told?.pop().flatten().ok_or(EngineError::NotFound)
    }

    /// Returns for each version in a directory, or of the pool, what its removal alone would free. One that is removed
    /// meanwhile is left out. Nothing of this is kept: any change of the pool may change it, and finding out takes the
    /// time of what is unique.
    ///
    /// # Errors
    /// As [`versions`](Self::versions) and [`would_free`](Self::would_free).
    pub fn version_sizes(&self, directory: Option<Ino>, progress: &dyn Progress) -> Result<Vec<(Ino, WouldFree)>> {
        let versions: Vec<Ino> = self.versions(directory)?.iter().map(|version| version.ino).collect();
        self.core.committer.settle()?;
        progress.start("sizes of versions", versions.len() as u64);
        let sets: Vec<&[Ino]> = versions.chunks(1).collect();
        let told = would_free(&self.core, &self.reclaiming, &sets, progress);
        progress.finish();
        let told = versions.iter().copied().zip(told?);
        Ok(told.filter_map(|(ino, told)| Some((ino, told?))).collect())
    }

    /// Returns what a directory holds, live or in a version.
    ///
    /// # Errors
    /// As `tree_stats` says.
    pub fn tree_stats(&self, directory: Ino, progress: &dyn Progress) -> Result<TreeStats> {
        let _held = is_frozen(directory).then(|| self.service.hold_version(directory));
        self.core.committer.settle()?;
        tree_stats(&self.core, &self.reclaiming, directory, progress)
    }

    /// Returns a page of the difference of two frozen directories. `resume` is empty, or the `next` of the page before.
    ///
    /// # Errors
    /// Not both are directories in versions; `resume` is no place in them; the work was ended; damage above them.
    pub fn difference(&self, directories: [Ino; 2], resume: &[u8], progress: &dyn Progress) -> Result<DifferencePage> {
        let [(tree, _held), (other, _held_too)] =
            [self.frozen_tree(directories[0])?, self.frozen_tree(directories[1])?];
        let [before, after] = [tree.find(directories[0])?.entry, other.find(directories[1])?.entry];
        difference(self.core.dedup.nodes(), [&before, &after], resume, CHANGES_AT_ONCE, &|| progress.is_cancelled())
    }

    /// Returns what became of a path in the versions of a directory, in the order of their completion. Versions with the
    /// same content there share a row. `path` leads from the top of each version; symbolic links are not followed.
    ///
    /// # Errors
    /// As [`versions`](Self::versions); the work was ended.
    pub fn history(&self, directory: Ino, path: &[u8], progress: &dyn Progress) -> Result<Vec<HistoryRow>> {
        let mut rows = Vec::new();
        for version in self.versions(Some(directory))?.iter().filter(|version| !version.incomplete) {
            if progress.is_cancelled() {
                return Err(EngineError::Ended("the history"));
            }
            let state = match self.frozen_tree(version.ino).and_then(|(tree, _held)| Ok(state_of(tree.walk(path)?))) {
                Ok(state) => state,
                Err(EngineError::NotFound | EngineError::NotDirectory) => HistoryState::Absent,
                Err(error) => HistoryState::Unreadable(error.to_string()),
            };
            add(&mut rows, version, state);
        }
        Ok(rows)
    }

    /// Returns the inode numbers of removed versions whose content stays because they are read.
    ///
    /// # Errors
    /// The table of removed inodes cannot be read.
    pub fn held_versions(&self) -> Result<Vec<Ino>> {
        super::stats::held_versions(&self.core)
    }

    /// Opens the tree in which an inode lies.
    fn frozen_tree(&self, ino: Ino) -> Result<(FrozenTree<'_>, HeldVersion<'_>)> {
        if !is_frozen(ino) {
            return Err(EngineError::Invalid("this is no version"));
        }
        let held = self.service.hold_version(ino);
        let version = self.core.namespace.inode_shared(version_of(ino))?.ok_or(EngineError::NotFound)?;
        Ok((FrozenTree::open(self.core.dedup.nodes(), version.ino, &version.root)?, held))
    }

    /// Makes a live tree of a version, or of a directory in one; see `transfer::thaw`.
    ///
    /// # Errors
    /// As `transfer::thaw` says.
    pub fn thaw(&self, from: Ino, to: (Ino, &[u8]), progress: &dyn Progress) -> Result<ThawReport> {
        thaw(&self.core, &self.service, from, to, progress)
    }

    /// Lets the next rmdir(2) of this name remove it, a version, with everything in it. The kernel knows names, so it
    /// must remove them itself. Without a call in some seconds the permission ends. `expected` is the inode number of the
    /// version, if it is known.
    ///
    /// # Errors
    /// `NotFound`, also if another inode has the name; `Invalid` if it is no version; it is locked; `ReadOnly`.
    pub fn allow_forgetting(&self, directory: Ino, name: &[u8], expected: Option<Ino>) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let found = self.core.namespace.lookup(directory, name)?.map(|(ino, _)| ino);
        let ino = found.filter(|ino| expected.is_none_or(|expected| expected == *ino)).ok_or(EngineError::NotFound)?;
        if !is_frozen(ino) {
            return Err(EngineError::Invalid("this is no version: `rm -r` removes a live directory"));
        }
        let record = self.core.namespace.xattr(ino, VERSION_RECORD)?;
        if let Some(Ok(record)) = record.map(|record| VersionRecord::decode(&record))
            && record.locked_until_secs > now().secs
        {
            return Err(EngineError::LockedUntil(record.locked_until_secs));
        }
        self.service.allow_forgetting(directory, name, ino);
        Ok(())
    }
}
