//! Uploads containers, several at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use dedupfs::Progress;
use dedupfs_store::objects::Class;
use dedupfs_store::{ContainerId, ContainerKind};

use crate::chain::StoredById;
use crate::error::{ReplicaError, Result};
use crate::local::{DataRoot, Local, Read};
use crate::packs::Packing;
use crate::parallel::for_each;
use crate::place::Replica;
use crate::stored::{ContentHash, Stored};
use crate::stream::damaged_in_store;

/// Containers that a disk may refuse to return in one run.
const UNREADABLE_MAX: usize = 16;

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
    pub(crate) packing: &'a Packing,
}

/// The result of some uploads.
#[derive(Debug, Default)]
pub(crate) struct Uploaded {
    pub(crate) stored: Vec<Stored>,
    /// Objects created now, and their bytes.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Containers that are damaged in the pool, or that the disk did not return. The next run reads them again.
    pub(crate) unsound: BTreeSet<ContainerId>,
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
    /// `earlier` has the objects of shorter states of some of them.
    pub(crate) fn run(
        &self,
        mut locals: Vec<Local>,
        earlier: &StoredById,
        hold: Hold,
        progress: &dyn Progress,
    ) -> Result<Uploaded> {
        locals.sort_unstable_by_key(|local| (local.kind != ContainerKind::Recipe, local.address));
        let cost = |local: &Local| u64::from(local.used_bytes);
        progress.start("uploading containers", locals.iter().map(cost).sum());
        let unreadable = AtomicUsize::new(0);
        let all = for_each(&locals, self.connections, progress, cost, |local| {
            self.upload(local, earlier.get(&local.id), hold, &unreadable)
        });
        progress.finish();
        let mut uploaded = Uploaded::default();
        all?.into_iter().for_each(|one| uploaded.add(one));
        Ok(uploaded)
    }

    fn upload(
        &self,
        local: &Local,
        earlier: Option<&Stored>,
        hold: Hold,
        unreadable: &AtomicUsize,
    ) -> Result<Uploaded> {
        let Read { mut bytes, mut error } = match self.root.read(local) {
            // Only a container that is still there has to be readable.
            Err(ReplicaError::Pool(_)) if hold == Hold::None => return Ok(Uploaded::default()),
            read => read?,
        };
        let mut is_sound = error.is_none() && self.root.is_sound(local, &bytes);
        if !is_sound && let Some(mended) = self.mended(local, earlier, &bytes)? {
            tracing::error!(container = %local.id, "a container is damaged in the pool; its copy is sound, because it had been copied before: `dedupfs scrub --heal-from` mends the pool");
            (bytes, error, is_sound) = (mended, None, true);
        }
        if !is_sound && hold == Hold::None {
            return Ok(Uploaded::default());
        }
        if let Some(error) = error
            && unreadable.fetch_add(1, Ordering::Relaxed) >= UNREADABLE_MAX
        {
            // A disk that is gone must not become a replica of zeros.
            return Err(error.into());
        }
        if !is_sound {
            tracing::error!(container = %local.id, "a container is damaged in the pool, and so is its copy: `dedupfs scrub` tells more");
        }
        let (id, kind, used_bytes, reign) = (local.id, local.kind, local.used_bytes, self.reign);
        let hash = ContentHash::of(&self.replica.name_key, reign, &bytes);
        let stored = Stored { id, kind, used_bytes, reign, hash };
        let key = stored.key()?;
        let there = if self.asks_first { self.replica.objects.head(&key)? } else { None };
        let is_there = there.is_some_and(|head| head.len_bytes == bytes.len() as u64);
        if !is_there {
            // Recipes are read to find content, so they are never kept cold.
            let class = if local.kind == ContainerKind::Recipe { Class::Metadata } else { Class::Content };
            self.replica.objects.create(&key, &[&bytes], class).map_err(damaged_in_store)?;
        }
        self.packing.add(self.replica, local, stored, &bytes)?;
        Ok(Uploaded {
            stored: vec![stored],
            objects: u64::from(!is_there),
            bytes: if is_there { 0 } else { bytes.len() as u64 },
            unsound: (!is_sound).then_some(local.id).into_iter().collect(),
        })
    }

    /// Lays the object of a shorter state over the bytes of a container: it only grew since then. `None` if that does not make it sound, or the object
    /// may be of another pool's state.
    fn mended(&self, local: &Local, earlier: Option<&Stored>, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(earlier) = earlier.filter(|earlier| earlier.reign == self.reign && earlier.kind == local.kind) else {
            return Ok(None);
        };
        let read = match self.replica.read(&earlier.key()?) {
            Err(error) if error.is_damage() => None,
            read => read?,
        };
        let sound = read.filter(|read| earlier.has_content(&self.replica.name_key, read) && read.len() <= bytes.len());
        Ok(sound.and_then(|mut mended| {
            mended.extend_from_slice(bytes.get(mended.len()..).unwrap_or_default());
            self.root.is_sound(local, &mended).then_some(mended)
        }))
    }

    /// Takes objects out of `stored` that the store does not have; returns them.
    pub(crate) fn take_gone(&self, stored: &mut StoredById, progress: &dyn Progress) -> Result<Vec<Stored>> {
        progress.start("asking the store for all objects", stored.len() as u64);
        let rows: Vec<Stored> = stored.values().copied().collect();
        let gone = for_each(
            &rows,
            self.connections,
            progress,
            |_| 1,
            |row| {
                let head = self.replica.objects.head(&row.key()?)?;
                let is_there = head.is_some_and(|head| head.len_bytes == u64::from(row.used_bytes));
                Ok((!is_there).then_some(*row))
            },
        );
        progress.finish();
        let gone: Vec<Stored> = gone?.into_iter().flatten().collect();
        for row in &gone {
            tracing::warn!(container = %row.id, "the replica has lost an object: it is uploaded again");
            stored.remove(&row.id);
        }
        Ok(gone)
    }
}

impl Uploaded {
    pub(crate) fn add(&mut self, other: Self) {
        self.stored.extend(other.stored);
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.unsound.extend(other.unsound);
    }
}
