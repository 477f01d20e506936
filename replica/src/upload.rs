//! Uploads containers, several at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dedupfs::Progress;
use dedupfs_store::objects::Class;
use dedupfs_store::{ContainerKind, StoreError};
use dedupfs_sync::{Mutex, thread};

use crate::chain::StoredById;
use crate::error::{ReplicaError, Result};
use crate::local::{DataRoot, Local};
use crate::place::Replica;
use crate::stored::{ContentHash, Stored};
use crate::stream::damaged_in_store;

/// How containers are uploaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uploads<'a> {
    pub(crate) replica: &'a Replica,
    pub(crate) root: DataRoot<'a>,
    pub(crate) reign: u64,
    /// Uploads at the same time. Each has a container in memory, three times while it is encrypted and sent.
    pub(crate) connections: usize,
    /// Another run may have uploaded some: the store is asked first.
    pub(crate) asks_first: bool,
}

/// The result of some uploads.
#[derive(Debug, Default)]
pub(crate) struct Uploaded {
    pub(crate) stored: Vec<Stored>,
    /// Objects created now, and their bytes.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Containers that are damaged in the pool.
    pub(crate) damaged: u64,
}

/// Whether the export is held while containers are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// A container that is not sound may have been removed: it is left for the next look.
    None,
    /// It is as it is, and is copied so.
    Export,
}

impl Uploads<'_> {
    /// Uploads these containers, in the order of the disk.
    pub(crate) fn run(&self, mut locals: Vec<Local>, hold: Hold, progress: &dyn Progress) -> Result<Uploaded> {
        locals.sort_unstable_by_key(|local| (local.kind != ContainerKind::Recipe, local.address));
        progress.start("uploading containers", locals.iter().map(|local| u64::from(local.used_bytes)).sum());
        let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let outcome = Mutex::new((Uploaded::default(), None));
        let work = || {
            while !is_over.load(Ordering::Relaxed) {
                let Some(local) = locals.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                let one = if progress.is_cancelled() { Err(ReplicaError::Ended) } else { self.upload(local, hold) };
                progress.advance(local.used_bytes.into());
                let (uploaded, error) = &mut *outcome.lock();
                match one {
                    Ok(one) => uploaded.add(one),
                    Err(failure) => {
                        is_over.store(true, Ordering::Relaxed);
                        error.get_or_insert(failure);
                    }
                }
            }
        };
        thread::scope(|scope| {
            let others = (1..self.connections.min(locals.len()))
                .map(|number| thread::Builder::new().name(format!("upload-{number}")).spawn_scoped(scope, work))
                .collect::<std::io::Result<Vec<_>>>();
            if let Err(error) = &others {
                tracing::warn!(%error, "fewer uploads at once than asked for: no thread could be started");
            }
            work();
        });
        progress.finish();
        match outcome.into_inner() {
            (_, Some(error)) => Err(error),
            (uploaded, None) => Ok(uploaded),
        }
    }

    fn upload(&self, local: &Local, hold: Hold) -> Result<Uploaded> {
        let bytes = match self.root.read(local) {
            // Only a container that is still there has to be readable.
            Err(ReplicaError::Pool(_)) if hold == Hold::None => return Ok(Uploaded::default()),
            bytes => bytes?,
        };
        let is_sound = self.root.is_sound(local, &bytes);
        if !is_sound && hold == Hold::None {
            return Ok(Uploaded::default());
        }
        if !is_sound {
            tracing::error!(container = %local.id, "a container is damaged in the pool, and so is its copy: `dedupfs scrub` tells more");
        }
        let stored = self.name(local, self.reign, &bytes);
        let key = stored.key()?;
        let there = if self.asks_first { self.replica.objects.head(&key)? } else { None };
        let is_there = there.is_some_and(|head| head.len_bytes == bytes.len() as u64);
        if !is_there {
            // Recipes are read to find content, so they are never kept cold.
            let class = if local.kind == ContainerKind::Recipe { Class::Metadata } else { Class::Content };
            self.replica.objects.create(&key, &[&bytes], class).map_err(damaged_in_store)?;
        }
        Ok(Uploaded {
            stored: vec![stored],
            objects: u64::from(!is_there),
            bytes: if is_there { 0 } else { bytes.len() as u64 },
            damaged: u64::from(!is_sound),
        })
    }

    /// Takes objects out of `stored` that the store does not have.
    pub(crate) fn find_gone(&self, stored: &mut StoredById, progress: &dyn Progress) -> Result<()> {
        progress.start("asking the store for all objects", stored.len() as u64);
        let mut gone = BTreeSet::new();
        for row in stored.values() {
            if progress.is_cancelled() {
                return Err(ReplicaError::Ended);
            }
            let head = self.replica.objects.head(&row.key()?)?;
            if head.is_none_or(|head| head.len_bytes != u64::from(row.used_bytes)) {
                tracing::warn!(container = %row.id, "the replica has lost an object: it is uploaded again");
                gone.insert(row.id);
            }
            progress.advance(1);
        }
        stored.retain(|id, _| !gone.contains(id));
        progress.finish();
        Ok(())
    }

    fn name(&self, local: &Local, reign: u64, bytes: &[u8]) -> Stored {
        let hash = ContentHash::of(&self.replica.name_key, reign, bytes);
        Stored { id: local.id, kind: local.kind, used_bytes: local.used_bytes, reign, hash }
    }

    /// Whether a container has the content of this object.
    pub(crate) fn is_same(&self, local: &Local, stored: &Stored) -> Result<bool> {
        if (local.kind, local.used_bytes) != (stored.kind, stored.used_bytes) {
            return Ok(false);
        }
        match self.root.read(local) {
            Ok(bytes) => Ok(self.name(local, stored.reign, &bytes) == *stored),
            Err(ReplicaError::Pool(dedupfs::EngineError::Store(StoreError::Io { .. }))) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Uploaded {
    pub(crate) fn add(&mut self, other: Self) {
        self.stored.extend(other.stored);
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.damaged += other.damaged;
    }
}
