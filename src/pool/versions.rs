//! Making and removing versions.

use std::time::Duration;

use dedupfs_content::StreamId;
use dedupfs_namespace::{NewVersion, VERSION_RECORD, is_frozen};
use dedupfs_service::{FileKind, Ino, Timestamp};
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Root;
use dedupfs_sync::clock::Instant;
use serde::{Deserialize, Serialize};

use super::Pool;
use crate::engine::Core;
use crate::progress::Progress;
use crate::service::now;
use crate::versions::build::Built;
use crate::versions::list::{VersionInfo, list};
use crate::versions::record::VersionRecord;
use crate::versions::snapshot::Snapshot;
use crate::versions::work::{WORK_MARK, is_work};
use dedupfs_base::{EngineError, Result};

/// Time within which a run of reclaiming must end so that a snapshot can begin.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(60);

/// The facts about a version that its maker knows.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The directory of which it is made.
    pub source: Vec<u8>,
    /// The host on which that directory lies.
    pub host: Vec<u8>,
}

/// A version that was made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionReport {
    /// Fingerprint of its top, in hexadecimal digits: equal trees have equal ones, also in other pools with the same
    /// properties.
    pub fingerprint: String,
    /// Entries, the uppermost one not included.
    pub entries: u64,
    /// Regular files.
    pub files: u64,
    /// Lengths of the files.
    pub logical_bytes: u64,
    /// Bytes of chunks that were stored for it.
    pub new_bytes: u64,
    /// Tree nodes, those that were known included.
    pub tree_nodes: u64,
    /// Files that became several, because there are too many files with several names.
    pub unlinked: u64,
    /// Time that making it took.
    pub elapsed_ms: u64,
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
        let begun = Instant::now();
        let core = &self.core;
        if is_frozen(source) {
            return Err(EngineError::HoldsVersion("the source".to_owned()));
        }
        let _pass = core.begin_change()?;
        core.namespace.allow_versions()?;
        // The kernel caches names, and is not told of the new one. It must know nothing of this directory until then.
        let has_mark = core.namespace.xattr(into, WORK_MARK)?.is_some();
        let _hidden = has_mark.then(|| self.service.hide(into)).transpose()?;
        let _reclaiming = self.reclaiming.end(RECLAIM_PATIENCE).ok_or_else(|| {
            let (what, owner) = ("the pool".to_owned(), "a run of `dedupfs-gc` that does not end".to_owned());
            StoreError::Busy { what, owner }
        })?;
        self.sync()?;
        let stored_before = core.dedup.stats().bytes_stored;
        progress.start("reading names", 0);
        let view = &core.namespace.committed()?;
        let built = Snapshot {
            core,
            view,
            stream: StreamId(1 << 32 | into),
            left_out: &|name, inode| Ok(self.service.is_hidden(inode.ino) || is_work(view, name, inode)?),
            progress,
        }
        .build(source);
        progress.finish();
        let built = built?;
        let new_bytes = core.dedup.stats().bytes_stored.saturating_sub(stored_before);
        let report = name_version(core, built, (into, name), origin, new_bytes, begun)?;
        core.relieve()?;
        Ok(report)
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

    /// Lets the next rmdir(2) of this name remove it, a version, with everything in it. The kernel knows names, so it
    /// must remove them itself. Without a call in some seconds the permission ends.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if it is no version; it is locked; `ReadOnly`.
    pub fn allow_forgetting(&self, directory: Ino, name: &[u8]) -> Result<()> {
        let _pass = self.core.begin_change()?;
        let (ino, _) = self.core.namespace.lookup(directory, name)?.ok_or(EngineError::NotFound)?;
        if !is_frozen(ino) {
            return Err(EngineError::Invalid("this is no version: `rm -r` removes a live directory"));
        }
        let record = self.core.namespace.xattr(ino, VERSION_RECORD)?;
        if let Some(Ok(record)) = record.map(|record| VersionRecord::decode(&record))
            && record.locked_until_secs > now().secs
        {
            return Err(EngineError::LockedUntil(record.locked_until_secs));
        }
        self.service.allow_forgetting(directory, name);
        Ok(())
    }
}

/// Names a finished tree.
fn name_version(
    core: &Core,
    built: Built,
    (into, name): (Ino, &[u8]),
    origin: &Origin,
    new_bytes: u64,
    begun: Instant,
) -> Result<VersionReport> {
    let Built { root, pin, entry, totals } = built;
    let completed = now();
    let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let record = VersionRecord {
        completed_secs: completed.secs,
        duration_ms: elapsed_ms,
        files: totals.files,
        entries: totals.entries,
        logical_bytes: totals.logical_bytes,
        new_bytes,
        problems: totals.unlinked,
        source: origin.source.clone(),
        host: origin.host.clone(),
        ..VersionRecord::default()
    };
    let new = NewVersion {
        kind: FileKind::Directory,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        mtime: Timestamp { secs: entry.mtime_secs, nanos: entry.mtime_nanos },
        root,
        data_bytes: totals.data_bytes,
        record: record.encode(),
    };
    core.namespace.add_version(into, name, &new, completed)?;
    // From here on the version's root holds the tree.
    drop(pin);
    let fingerprint = match root {
        Root::Tree { child, .. } => child.fingerprint.to_string(),
        _ => String::new(),
    };
    Ok(VersionReport {
        fingerprint,
        entries: totals.entries,
        files: totals.files,
        logical_bytes: totals.logical_bytes,
        new_bytes,
        tree_nodes: totals.nodes,
        unlinked: totals.unlinked,
        elapsed_ms,
    })
}
