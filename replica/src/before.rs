//! The state that the next commit follows.
//!
//! The note is believed if the store's commit is the one that it describes. Without a note, or if the store has another one, the run *joins*: it
//! puts a fence behind the newest commit, and names again only objects of that commit that have the content of the pool's containers.

use dedupfs::export::{ExportFiles, ExportPosition};
use dedupfs_sync::clock;

use crate::chain::{Head, StoredById};
use crate::commit::{Commit, CommitHash, CommitKind, commit_key};
use crate::error::{ReplicaError, Result};
use crate::local::{Local, Locals};
use crate::note::{Done, Note, Run};
use crate::parallel::for_each;
use crate::replicate::Work;
use crate::stored::Stored;
use crate::stream::Stream;

/// Bytes at the ends of base and log that tell an export from another one of the same number.
const MARK_BYTES: u64 = 64 << 10;

/// The state that the next commit follows.
pub(crate) struct Before {
    pub(crate) done: Done,
    /// Objects that can be named again: those of the last commit, as far as the pool has their content.
    pub(crate) stored: StoredById,
    /// Objects that the last commit names and the next one cannot.
    pub(crate) retired: Vec<Stored>,
    /// Whether the next commit must have everything.
    pub(crate) is_base_due: bool,
}

impl Before {
    fn new(done: Done, stored: StoredById, is_base_due: bool) -> Self {
        Self { done, stored, retired: Vec::new(), is_base_due }
    }
}

/// Tells an export, as it was at an earlier position, from all others.
pub(crate) fn mark_of(files: &ExportFiles, position: &ExportPosition) -> Result<CommitHash> {
    let tail = |len_bytes: u64| (len_bytes.saturating_sub(MARK_BYTES), len_bytes.min(MARK_BYTES) as usize);
    let ((base, base_len), (log, log_len)) = (tail(position.base_bytes), tail(position.log_bytes));
    let mut hasher = blake3::Hasher::new();
    for number in [position.generation, position.base_bytes, position.base_row, position.log_bytes] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&files.read_base(base, base_len)?).update(&files.read_log(log, log_len)?);
    Ok(*hasher.finalize().as_bytes())
}

/// Whether an export has grown from the one that a commit had.
pub(crate) fn has_grown_from(done: &Done, files: &ExportFiles) -> Result<bool> {
    Ok(done.number > 0
        && done.position.is_continued_by(files.position())
        && mark_of(files, &done.position)? == done.mark)
}

impl Work<'_> {
    /// Finds the state that the next commit follows. `is_doubtful`: an earlier run may have made commits that are not noted.
    pub(crate) fn before(
        &self,
        note: Option<Note>,
        last_run: Option<&Run>,
        locals: &Locals,
        files: &ExportFiles,
        is_doubtful: bool,
    ) -> Result<Before> {
        let Some(note) = note else { return self.join_newest(locals, files.position()) };
        // The store may have been set back, or be a copy of an earlier state.
        let found = self.replica.commit(note.done.number)?;
        if found.is_none_or(|found| found.hash != note.done.hash) {
            return self.join_newest(locals, files.position());
        }
        let mut before = Before::new(note.done, note.stored, false);
        // Answers to own requests may have been lost: then the next commits are there, and are this pool's.
        while is_doubtful && self.replica.objects.head(&commit_key(before.done.number + 1)?)?.is_some() {
            let number = before.done.number + 1;
            let found = self.replica.commit_there(number)?;
            let commit = &found.commit;
            let is_of_run = last_run.is_some_and(|run| run.has_made(&commit.run));
            let is_ours = is_of_run && commit.previous == before.done.hash;
            match is_ours.then(|| self.is_own(commit, files)).transpose()?.flatten() {
                Some(true) if commit.kind != CommitKind::Fence => {
                    self.replica.apply(commit, &mut before.stored)?;
                    before.done = done_of(&found, mark_of(files, &commit.position)?, Some(&before.done));
                }
                // A fence of its own, or a commit of an export that another base has replaced: contents are compared.
                Some(true) => return self.join_newest(locals, files.position()),
                None if is_ours => return self.join_newest(locals, files.position()),
                _ if self.options.take_over => return self.join_newest(locals, files.position()),
                _ => return Err(ReplicaError::Fenced { place: self.replica.place.clone(), number }),
            }
        }
        // The pool may be an older state of the one that made the note.
        let noted = &before.done.position;
        let is_older = noted.generation > files.position().generation
            || noted.is_continued_by(&ExportPosition { log_bytes: u64::MAX, ..*files.position() })
                && noted.row > files.position().row;
        if is_older { self.join_newest(locals, files.position()) } else { Ok(before) }
    }

    /// Whether a commit with the number of an own run has this pool's export: a clone of the pool has the same numbers. `None` if the
    /// export has another base by now.
    fn is_own(&self, commit: &Commit, files: &ExportFiles) -> Result<Option<bool>> {
        if commit.kind == CommitKind::Fence {
            return Ok(Some(true));
        }
        let Commit { position, number, .. } = commit;
        if !position.is_continued_by(files.position()) {
            return Ok(None);
        }
        let mut is_same = true;
        let mut at = 0;
        commit.export_base.download(self.replica, *number, &mut |bytes| {
            is_same &= files.read_base(at, bytes.len())? == bytes;
            at += bytes.len() as u64;
            Ok(())
        })?;
        at = commit.log_from;
        commit.export_log.download(self.replica, *number, &mut |bytes| {
            is_same &= files.read_log(at, bytes.len())? == bytes;
            at += bytes.len() as u64;
            Ok(())
        })?;
        Ok(Some(is_same))
    }

    /// Continues behind the newest commit without a note of it: only content that is the same is named again.
    fn join_newest(&self, locals: &Locals, position: &ExportPosition) -> Result<Before> {
        let Some(newest) = self.replica.newest()? else {
            return Ok(Before::new(nothing_before(position), StoredById::new(), true));
        };
        let found = &newest.commit.position;
        let why = if found.lineage != position.lineage {
            Some("another state of this pool (the pool was recovered, or this is another machine's copy)".to_owned())
        } else if found.row > position.row {
            Some(format!(
                "a newer state of this pool: that of its commit {}, and here the last one is {}",
                found.row, position.row
            ))
        } else {
            None
        };
        if let Some(why) = why.filter(|_| !self.options.take_over) {
            return Err(ReplicaError::NotOurs { place: self.replica.place.clone(), why });
        }
        // A run that was cut off has its fence already, and uploaded for its reign.
        let is_fenced = newest.commit.kind == CommitKind::Fence && self.run.has_made(&newest.commit.run);
        let newest = if is_fenced { newest } else { self.fence(&newest, position)? };
        let done = done_of(&newest, CommitHash::default(), None);
        let mut before = Before::new(done, StoredById::new(), true);
        let rows: Vec<Stored> = self.replica.stored_at(&newest)?.into_values().collect();
        let cost = |row: &Stored| u64::from(row.used_bytes);
        self.progress.start("comparing containers with the replica", rows.iter().map(cost).sum());
        let threads = self.options.connections;
        let compared = for_each(&rows, threads, self.progress, cost, |row| {
            let is_same = |local: &Local| self.root.has_content(local, row, &self.replica.name_key);
            Ok((*row, locals.by_id.get(&row.id).map_or(Ok(false), is_same)?))
        });
        self.progress.finish();
        for (row, is_same) in compared? {
            if is_same {
                before.stored.insert(row.id, row);
            } else {
                before.retired.push(row);
            }
        }
        Ok(before)
    }

    /// Creates a fence behind the newest commit: from now on no other writer can commit.
    fn fence(&self, newest: &Head, position: &ExportPosition) -> Result<Head> {
        let number = newest.commit.number + 1;
        let commit = Commit {
            kind: CommitKind::Fence,
            number,
            previous: newest.hash,
            base: newest.commit.base,
            reign: number,
            run: self.run.id,
            position: *position,
            log_from: position.log_bytes,
            written_secs: clock::since_epoch().as_secs(),
            superblock: Vec::new(),
            export_base: Stream::default(),
            export_log: Stream::default(),
            named: Stream::default(),
            retired: Stream::default(),
        };
        let hash = self.put(&commit)?;
        Ok(Head { commit, hash, bytes: 0 })
    }
}

fn nothing_before(position: &ExportPosition) -> Done {
    let position = ExportPosition { lineage: position.lineage, ..ExportPosition::default() };
    let (hash, mark) = (CommitHash::default(), CommitHash::default());
    Done { number: 0, hash, base: 0, deltas: 0, delta_bytes: 0, reign: 0, position, mark, written_secs: 0 }
}

pub(crate) fn done_of(head: &Head, mark: CommitHash, before: Option<&Done>) -> Done {
    let Head { commit, hash, bytes } = head;
    let is_base = commit.kind == CommitKind::Base;
    let (deltas, delta_bytes) =
        before.filter(|_| !is_base).map_or((0, 0), |done| (done.deltas + 1, done.delta_bytes + bytes));
    Done {
        number: commit.number,
        hash: *hash,
        base: commit.base,
        deltas,
        delta_bytes,
        reign: commit.reign,
        position: commit.position,
        mark,
        written_secs: commit.written_secs,
    }
}
