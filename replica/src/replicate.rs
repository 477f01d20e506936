//! A run of replication: from the last commit to the next.
//!
//! 1. Find the containers of the last commit: from the note, else from the store, compared with the content of all containers.
//! 2. Hold the export, list its containers, let go, and upload those that the last commit does not name. Repeat while many are missing: a
//!    store may be slow for days, and must not keep the pool from freeing space so long.
//! 3. Hold the export and upload the few that are left, the new part of the export's log, or all of it.
//! 4. Create the next commit. Everything that it names is there.
//! 5. Note it.
//!
//! Without a note a run begins a reign: it names again only objects of the newest commit, and uploads the rest under names of its own.
//!
//! A crash behind any request leaves the last commit or the next one. Objects of a run that was cut off are found by their names.

use dedupfs::export::ExportPosition;
use dedupfs::{EngineError, Progress};
use dedupfs_store::StoreError;
use dedupfs_store::device::{Device, OpenMode};
use dedupfs_store::objects::{Class, ObjectError};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::clock::{self, Instant};
use serde::{Deserialize, Serialize};

use crate::chain::{Head, StoredById, hash_of};
use crate::commit::{Commit, CommitKind, commit_key};
use crate::error::{ReplicaError, Result};
use crate::local::{DataRoot, Local, Locals};
use crate::note::{Done, Note, Notes, Run};
use crate::place::Replica;
use crate::source::Source;
use crate::stored::Stored;
use crate::stream::{PIECE_BYTES, Stream};
use crate::upload::{Hold, Uploaded, Uploads};

/// Containers that may be missing when the export is held for the commit.
const MISSING_MAX: usize = 64;
/// Looks without a hold that begin an upload; behind them the rest is uploaded with the export held.
const LOOKS_MAX: usize = 8;
/// Times that a run is begun anew.
const ATTEMPTS: usize = 3;
/// Deltas behind a base.
const DELTAS_MAX: u32 = 256;
/// Bytes of deltas behind a base, if the base is smaller.
const DELTA_BYTES_MIN: u64 = 64 << 20;

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct ReplicateOptions {
    /// Requests at the same time, 1 to 64. Each takes three times the bytes of a container in memory.
    pub connections: usize,
    /// Continue a replica that another state of the pool made.
    pub take_over: bool,
    /// Ask the store for all objects of the replica, and upload those that are gone.
    pub completes: bool,
}

impl Default for ReplicateOptions {
    fn default() -> Self {
        Self { connections: 8, take_over: false, completes: false }
    }
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplicateReport {
    /// Where the replica is.
    pub place: String,
    /// The newest commit.
    pub commit: u64,
    /// The commit of the namespace that it holds.
    pub row: u64,
    /// When that was exported, in seconds since 1970.
    pub time_secs: u64,
    /// Whether nothing had changed: no commit was made.
    pub is_unchanged: bool,
    /// Containers uploaded.
    pub containers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of names and attributes in this commit.
    pub namespace_bytes: u64,
    /// Objects that this commit names no more. `dedupfs replica gc` removes them.
    pub retired: u64,
    /// Containers that are damaged in the pool, and copied so.
    pub damaged: u64,
    /// Objects that the replica's newest state names.
    pub named: u64,
    /// Their bytes.
    pub named_bytes: u64,
    /// Duration in milliseconds.
    pub elapsed_ms: u64,
}

/// Brings a replica up to the present state of the pool. `meta` is the pool's meta root, for notes; nobody else replicates to the same place meanwhile.
///
/// # Errors
/// `OtherPool`, `Fenced`, `NotOurs`, `Damaged`, `Ended`, `HoldLost`; those of the store and of the pool. Nothing is committed then, and the
/// next run goes on from there.
pub fn replicate(
    source: &dyn Source,
    meta: &dyn Device,
    replica: &Replica,
    options: &ReplicateOptions,
    progress: &dyn Progress,
) -> Result<ReplicateReport> {
    let started = Instant::now();
    let superblock = Superblock::read(source.data(), Role::Data)?;
    if superblock.pool != replica.format.pool {
        let (found, expected) = (replica.format.pool.to_string(), superblock.pool.to_string());
        return Err(ReplicaError::OtherPool { place: replica.place.clone(), found, expected });
    }
    let root =
        DataRoot { device: source.data(), pool: superblock.pool, slot_bytes: superblock.properties.container_bytes };
    let notes = Notes::of(meta, replica);
    let run = Run { is_ended: true, ..Run::default() };
    let mut work = Work { source, replica, root, superblock, options, progress, notes, run };
    let mut outcome = work.run();
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if work.can_try_again(error) => outcome = work.run(),
            _ => break,
        }
    }
    if !work.run.is_ended {
        let error = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        work.notes.end(&work.run, outcome.is_ok(), &error);
    }
    let mut report = outcome?;
    report.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

struct Work<'a> {
    source: &'a dyn Source,
    replica: &'a Replica,
    root: DataRoot<'a>,
    superblock: Superblock,
    options: &'a ReplicateOptions,
    progress: &'a dyn Progress,
    notes: Notes<'a>,
    run: Run,
}

/// The state that the next commit follows.
struct Before {
    done: Done,
    /// Objects that can be named again: those of the last commit, as far as the pool has their content.
    stored: StoredById,
    /// Objects that the last commit names and the next one cannot.
    retired: Vec<Stored>,
    /// Whether the next commit must have everything.
    is_base_due: bool,
}

impl Work<'_> {
    /// Whether the error comes of something that a new look finds: the export got another base, or the answer to the creation of a commit
    /// was lost.
    fn can_try_again(&self, error: &ReplicaError) -> bool {
        matches!(
            error,
            ReplicaError::Pool(EngineError::Store(StoreError::NotFound { .. })) | ReplicaError::Fenced { .. }
        )
    }

    fn run(&mut self) -> Result<ReplicateReport> {
        let (last_run, note) = (self.notes.last_run(), self.notes.load());
        let asks_first = self.options.completes || last_run.as_ref().is_some_and(|run| !run.is_ended);
        let mut locals = match &note {
            Some(note) => Locals::of(note.locals.clone(), note.done.position),
            None => Locals::default(),
        };
        let mut held = self.source.hold()?;
        let mut position = held.position();
        let is_same = |done: &Done| ends(&done.position) == ends(&position);
        if let Some(note) = note.as_ref().filter(|note| is_same(&note.done) && !asks_first) {
            return Ok(self.report(&note.done, &note.stored, true));
        }
        self.run = self.notes.begin(last_run.as_ref())?;
        locals.advance(self.root.device, &self.root.pool, &position)?;
        let mut before = self.before(note, last_run.as_ref(), &locals, &position)?;
        if is_same(&before.done) && !before.is_base_due && !self.options.completes {
            self.notes.save(&before.done, &before.stored, &locals.by_id)?;
            return Ok(self.report(&before.done, &before.stored, true));
        }
        let uploads = Uploads {
            replica: self.replica,
            root: self.root,
            reign: before.done.reign,
            connections: self.options.connections.clamp(1, 64),
            asks_first,
        };
        let (mut uploaded, mut added) = (Uploaded::default(), StoredById::new());
        if self.options.completes {
            uploads.find_gone(&mut before.stored, self.progress)?;
        }
        let mut looks = 0;
        loop {
            let missing: Vec<Local> =
                locals.by_id.values().filter(|local| !has(&before.stored, local)).copied().collect();
            let is_last = missing.len() <= MISSING_MAX || looks == LOOKS_MAX;
            if !is_last {
                drop(held);
            } else {
                uploaded.add(self.upload(&uploads, missing, Hold::Export, &mut before, &mut added)?);
                self.retire(&locals, &mut before, &mut added);
                let commit = self.commit(&before, &added, &position)?;
                held.check()?;
                let done = self.create(&before, &commit)?;
                drop(held);
                self.notes.save(&done, &before.stored, &locals.by_id)?;
                return Ok(ReplicateReport {
                    containers: uploaded.objects,
                    bytes: uploaded.bytes,
                    namespace_bytes: commit.export_base.len_bytes + commit.export_log.len_bytes,
                    retired: before.retired.len() as u64,
                    damaged: uploaded.damaged,
                    ..self.report(&done, &before.stored, false)
                });
            }
            uploaded.add(self.upload(&uploads, missing, Hold::None, &mut before, &mut added)?);
            held = self.source.hold()?;
            position = held.position();
            locals.advance(self.root.device, &self.root.pool, &position)?;
            looks += 1;
        }
    }

    fn report(&self, done: &Done, stored: &StoredById, is_unchanged: bool) -> ReplicateReport {
        ReplicateReport {
            place: self.replica.place.clone(),
            commit: done.number,
            row: done.position.row,
            time_secs: done.position.time_secs,
            is_unchanged,
            named: stored.len() as u64,
            named_bytes: stored.values().map(|stored| u64::from(stored.used_bytes)).sum(),
            ..ReplicateReport::default()
        }
    }

    /// Finds the state that the next commit follows.
    fn before(
        &self,
        note: Option<Note>,
        last_run: Option<&Run>,
        locals: &Locals,
        position: &ExportPosition,
    ) -> Result<Before> {
        let place = || self.replica.place.clone();
        let Some(note) = note.filter(|note| note.done.position.lineage == position.lineage) else {
            return match self.replica.newest()? {
                None => Ok(Before {
                    done: nothing_before(position),
                    stored: StoredById::new(),
                    retired: Vec::new(),
                    is_base_due: true,
                }),
                Some(newest) => self.join(newest, locals, position),
            };
        };
        let mut before = Before { done: note.done, stored: note.stored, retired: Vec::new(), is_base_due: false };
        // Answers to own requests may have been lost: then the next commits are there, and are this pool's.
        loop {
            let next = before.done.number + 1;
            if self.replica.objects.head(&commit_key(next)?)?.is_none() {
                break;
            }
            let missing = || ReplicaError::damaged(format!("commit {next}"), "an object", "nothing");
            let found = self.replica.commit(next)?.ok_or_else(missing)?;
            let is_ours = last_run.is_some_and(|run| run.has_made(&found.commit.run))
                && found.commit.previous == before.done.hash;
            if is_ours && found.commit.kind != CommitKind::Fence {
                self.replica.apply(&found.commit, &mut before.stored)?;
                before.done = done_of(&found, Some(&before.done));
            } else if self.options.take_over || is_ours {
                return self.join_newest(locals, position);
            } else {
                return Err(ReplicaError::Fenced { place: place(), number: next });
            }
        }
        // The pool may be an older state of the one that made the note.
        let noted = &before.done.position;
        let is_behind = noted.generation > position.generation
            || noted.generation == position.generation && ends(noted) > ends(position);
        if is_behind { self.join_newest(locals, position) } else { Ok(before) }
    }

    fn join_newest(&self, locals: &Locals, position: &ExportPosition) -> Result<Before> {
        let newest = self.replica.newest()?;
        let newest = newest.ok_or_else(|| ReplicaError::damaged("the newest commit", "an object", "nothing"))?;
        self.join(newest, locals, position)
    }

    /// Continues behind a commit of which there is no note: only content that is the same is named again.
    fn join(&self, newest: Head, locals: &Locals, position: &ExportPosition) -> Result<Before> {
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
        let newest = self.fence(&newest, position)?;
        let mut done = done_of(&newest, None);
        // Where it ended says nothing about this pool's export.
        done.position.generation = 0;
        let mut before = Before { done, stored: StoredById::new(), retired: Vec::new(), is_base_due: true };
        let named = self.replica.stored_at(&newest)?;
        self.progress
            .start("comparing containers with the replica", named.values().map(|row| u64::from(row.used_bytes)).sum());
        let uploads =
            Uploads { replica: self.replica, root: self.root, reign: done.reign, connections: 1, asks_first: false };
        for (id, row) in named {
            if self.progress.is_cancelled() {
                return Err(ReplicaError::Ended);
            }
            let local = locals.by_id.get(&id);
            if local.map_or(Ok(false), |local| uploads.is_same(local, &row))? {
                before.stored.insert(id, row);
            } else {
                before.retired.push(row);
            }
            self.progress.advance(row.used_bytes.into());
        }
        self.progress.finish();
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

    fn upload(
        &self,
        uploads: &Uploads<'_>,
        missing: Vec<Local>,
        hold: Hold,
        before: &mut Before,
        added: &mut StoredById,
    ) -> Result<Uploaded> {
        let uploaded = uploads.run(missing, hold, self.progress)?;
        for row in &uploaded.stored {
            added.insert(row.id, *row);
            let replaced = before.stored.insert(row.id, *row).filter(|replaced| replaced != row);
            before.retired.extend(replaced);
        }
        Ok(uploaded)
    }

    /// Lets go of containers that the export no longer names.
    fn retire(&self, locals: &Locals, before: &mut Before, added: &mut StoredById) {
        let Before { stored, retired, .. } = before;
        stored.retain(|id, row| {
            let is_named = locals.by_id.contains_key(id);
            if !is_named {
                retired.push(*row);
                added.remove(id);
            }
            is_named
        });
        // A retired object that is named again stays.
        retired.retain(|row| stored.get(&row.id) != Some(row));
        retired.sort_unstable();
        retired.dedup();
    }

    /// Uploads the names and attributes of the next commit.
    fn commit(&self, before: &Before, added: &StoredById, position: &ExportPosition) -> Result<Commit> {
        let done = &before.done;
        let is_new_export =
            (done.position.lineage, done.position.generation) != (position.lineage, position.generation);
        let limit_bytes = DELTA_BYTES_MIN.max(position.base_bytes);
        let is_base =
            before.is_base_due || is_new_export || done.deltas >= DELTAS_MAX || done.delta_bytes > limit_bytes;
        let (number, reign) = (done.number + 1, done.reign);
        let log_from = if is_base { 0 } else { done.position.log_bytes };
        let file = |path: String, from: u64, len_bytes: u64| -> Result<Stream> {
            if len_bytes == 0 {
                return Ok(Stream::default());
            }
            let file = self.root.device.open(&path, OpenMode::Read)?;
            self.progress.start("uploading names", len_bytes);
            let stream = Stream::upload(self.replica, number, len_bytes, &mut |at, len| {
                if self.progress.is_cancelled() {
                    return Err(ReplicaError::Ended);
                }
                let mut bytes = vec![0; len.min(PIECE_BYTES as usize)];
                file.read_exact_at(&mut bytes, from + at)?;
                self.progress.advance(len as u64);
                Ok(bytes)
            });
            self.progress.finish();
            stream
        };
        let export_base = if is_base { file(position.base_path(), 0, position.base_bytes)? } else { Stream::default() };
        let export_log = file(position.log_path(), log_from, position.log_bytes - log_from)?;
        let named = Stored::encode_all(if is_base { before.stored.values() } else { added.values() });
        let retired = Stored::encode_all(before.retired.iter());
        Ok(Commit {
            kind: if is_base { CommitKind::Base } else { CommitKind::Delta },
            number,
            previous: done.hash,
            base: if is_base { number } else { done.base },
            reign,
            run: self.run.id,
            position: *position,
            log_from,
            written_secs: clock::since_epoch().as_secs(),
            superblock: if is_base { self.superblock.encode() } else { Vec::new() },
            export_base,
            export_log,
            named: Stream::upload_bytes(self.replica, number, &named)?,
            retired: Stream::upload_bytes(self.replica, number, &retired)?,
        })
    }

    /// Creates the next commit.
    fn create(&self, before: &Before, commit: &Commit) -> Result<Done> {
        let hash = self.put(commit)?;
        let bytes = commit.streams().iter().map(|stream| stream.len_bytes).sum();
        Ok(done_of(&Head { commit: commit.clone(), hash, bytes }, Some(&before.done)))
    }

    fn put(&self, commit: &Commit) -> Result<[u8; 32]> {
        let bytes = commit.encode(&self.root.pool);
        match self.replica.objects.create(&commit_key(commit.number)?, &[&bytes], Class::Metadata) {
            Ok(_) => Ok(hash_of(&bytes)),
            Err(ObjectError::Foreign { .. }) => {
                Err(ReplicaError::Fenced { place: self.replica.place.clone(), number: commit.number })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Where an export ends. It grows as this does while it has one base.
fn ends(position: &ExportPosition) -> (u64, u64, u64) {
    (position.generation, position.log_bytes, position.row)
}

/// Whether an object has all valid bytes of a container.
fn has(stored: &StoredById, local: &Local) -> bool {
    stored.get(&local.id).is_some_and(|row| (row.kind, row.used_bytes) == (local.kind, local.used_bytes))
}

fn nothing_before(position: &ExportPosition) -> Done {
    let position = ExportPosition { lineage: position.lineage, ..ExportPosition::default() };
    Done { number: 0, hash: [0; 32], base: 0, deltas: 0, delta_bytes: 0, reign: 0, position, written_secs: 0 }
}

fn done_of(head: &Head, before: Option<&Done>) -> Done {
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
        written_secs: commit.written_secs,
    }
}
