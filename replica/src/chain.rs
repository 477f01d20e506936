//! Reading commits: the newest one, and the state that it stands for.

use std::collections::BTreeMap;

use dedupfs::export::ExportPosition;
use dedupfs_store::ContainerId;
use dedupfs_store::objects::ObjectError;

use crate::commit::{COMMITS, Commit, CommitHash, CommitKind, NUMBER_MAX, commit_key, number_of};
use crate::error::{ReplicaError, Result};
use crate::place::Replica;
use crate::stored::Stored;

/// A commit as it lies in the store.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) commit: Commit,
    pub(crate) hash: CommitHash,
    /// Bytes of its streams and its own.
    pub(crate) bytes: u64,
}

/// The hash that the next commit refers to.
pub(crate) fn hash_of(bytes: &[u8]) -> CommitHash {
    *blake3::hash(bytes).as_bytes()
}

/// Containers by their number.
pub(crate) type StoredById = BTreeMap<ContainerId, Stored>;

impl Replica {
    /// Reads a commit; `None` if it does not exist.
    pub(crate) fn commit(&self, number: u64) -> Result<Option<Head>> {
        let bytes = match self.read(&commit_key(number)?) {
            Err(ReplicaError::Object(ObjectError::Damaged { key, .. })) => {
                let advice = "other bytes: bring the object back if the store keeps earlier versions of it. If it is the newest commit and \
                              nothing else helps, remove it by hand: then the state of the commit before is the newest";
                return Err(ReplicaError::damaged(format!("object {key}"), format!("commit {number}"), advice));
            }
            read => read?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let commit = Commit::decode(&self.format.pool, number, &bytes).map_err(ReplicaError::of_bytes)?;
        let streams: u64 = commit.streams().iter().map(|stream| stream.len_bytes).sum();
        Ok(Some(Head { hash: hash_of(&bytes), bytes: streams + bytes.len() as u64, commit }))
    }

    /// Reads a commit that must exist.
    pub(crate) fn commit_there(&self, number: u64) -> Result<Head> {
        let missing = || ReplicaError::damaged(format!("commit {number}"), "an object", "nothing");
        self.commit(number)?.ok_or_else(missing)
    }

    /// Finds the newest commit. A listing may be late, so later ones are looked for by name.
    pub(crate) fn newest(&self) -> Result<Option<Head>> {
        let mut newest = 0;
        self.objects.list(COMMITS, None, &mut |key, _| {
            newest = newest.max(number_of(&key).unwrap_or(0));
            Ok(())
        })?;
        while newest < NUMBER_MAX && self.objects.head(&commit_key(newest + 1)?)?.is_some() {
            newest += 1;
        }
        if newest == 0 { Ok(None) } else { self.commit_there(newest).map(Some) }
    }

    /// Finds the newest commit, of a replica that must have one.
    pub(crate) fn newest_there(&self) -> Result<Head> {
        self.newest()?.ok_or_else(|| ReplicaError::Usage(format!("{} has no commit yet", self.place)))
    }

    /// Visits the base and the deltas that make the state of a commit, in order.
    pub(crate) fn walk(&self, newest: &Head, visit: &mut dyn FnMut(&Commit) -> Result<()>) -> Result<()> {
        let base = newest.commit.base;
        let mut before: Option<CommitHash> = None;
        let mut position: Option<ExportPosition> = None;
        for number in base..=newest.commit.number {
            let read;
            let head = if number == newest.commit.number {
                newest
            } else {
                read = self.commit_there(number)?;
                &read
            };
            let commit = &head.commit;
            // Each commit refers to the bytes of the one before.
            let follows = match before {
                None => commit.kind == CommitKind::Base,
                Some(hash) => commit.previous == hash && commit.base == base && commit.kind != CommitKind::Base,
            };
            if !follows {
                let what = format!("commit {number}");
                return Err(ReplicaError::damaged(what, "the successor of the one before", "another commit"));
            }
            before = Some(head.hash);
            if commit.kind != CommitKind::Fence {
                let earlier = position.replace(commit.position);
                if earlier.is_some_and(|earlier| {
                    !earlier.is_continued_by(&commit.position) || earlier.log_bytes != commit.log_from
                }) {
                    let what = format!("commit {number}");
                    return Err(ReplicaError::damaged(what, "the export of the commit before", "another one"));
                }
                visit(commit)?;
            }
        }
        Ok(())
    }

    /// The containers that a commit's state names.
    pub(crate) fn stored_at(&self, newest: &Head) -> Result<StoredById> {
        let mut stored = StoredById::new();
        self.walk(newest, &mut |commit| self.apply(commit, &mut stored))?;
        Ok(stored)
    }

    /// Lays what a commit names and retires over the state before it.
    pub(crate) fn apply(&self, commit: &Commit, stored: &mut StoredById) -> Result<()> {
        for row in self.rows(commit, Rows::Retired)? {
            if stored.get(&row.id) == Some(&row) {
                stored.remove(&row.id);
            }
        }
        stored.extend(self.rows(commit, Rows::Named)?.into_iter().map(|row| (row.id, row)));
        Ok(())
    }

    /// Reads the rows of one of a commit's two lists of objects.
    pub(crate) fn rows(&self, commit: &Commit, which: Rows) -> Result<Vec<Stored>> {
        let stream = match which {
            Rows::Named => &commit.named,
            Rows::Retired => &commit.retired,
        };
        let bytes = stream.download_bytes(self, commit.number)?;
        Stored::decode_all(&format!("commit {}", commit.number), &bytes).map_err(ReplicaError::of_bytes)
    }
}

/// A list of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    Named,
    Retired,
}
