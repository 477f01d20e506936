//! A run of replication: from the last commit to the next.
//!
//! 1. Find the containers of the last commit: from the note, else from the store, compared with the content of all containers.
//! 2. Hold the export, list its containers, let go, and upload those that the last commit does not name. Repeat while many are missing: a
//!    store may be slow for days, and must not keep the pool from freeing space so long.
//! 3. Hold the export and upload the few that are left, the new part of the export's log, or all of it.
//! 4. Create the next commit. Everything that it names is there.
//! 5. Note it.
//!
//! A run without a note, or with one that the store does not confirm, begins a reign: it names again only objects of the newest commit, and
//! uploads the rest under names of its own.
//!
//! A crash behind any request leaves the last commit or the next one. Objects of a run that was cut off are found by their names.

use dedupfs::export::ExportFiles;
use dedupfs::{EngineError, Progress};
use dedupfs_store::StoreError;
use dedupfs_store::device::Device;
use dedupfs_store::objects::{Class, ObjectError};
use dedupfs_store::superblock::{Role, Superblock};
use dedupfs_sync::clock::{self, Instant};
use serde::{Deserialize, Serialize};

use crate::before::{Before, done_of, has_grown_from, mark_of};
use crate::chain::{Head, StoredById, hash_of};
use crate::commit::{Commit, CommitHash, CommitKind, commit_key};
use crate::error::{ReplicaError, Result};
use crate::local::{DataRoot, Local, Locals};
use crate::note::{Done, Notes, Run};
use crate::packs::Packing;
use crate::place::Replica;
use crate::source::{Held, Source};
use crate::stored::Stored;
use crate::stream::Stream;
use crate::upload::{Hold, Uploaded, Uploads};

/// Containers that may be missing when the export is held for the commit.
const MISSING_MAX: usize = 64;
/// Times that the export is looked at and let go again. After them the rest is uploaded while it is held.
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
    /// Ask the store, also if the pool did not change, whether the last commit is still the newest.
    pub looks: bool,
}

impl Default for ReplicateOptions {
    fn default() -> Self {
        Self { connections: 8, take_over: false, completes: false, looks: false }
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

/// Brings a replica up to the present state of the pool. `meta` is the pool's meta root, for notes. The caller keeps a second run of this
/// pool to this replica out.
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

/// A run.
pub(crate) struct Work<'a> {
    source: &'a dyn Source,
    pub(crate) replica: &'a Replica,
    pub(crate) root: DataRoot<'a>,
    superblock: Superblock,
    pub(crate) options: &'a ReplicateOptions,
    pub(crate) progress: &'a dyn Progress,
    notes: Notes<'a>,
    pub(crate) run: Run,
}

/// The export, held, with its files open.
struct HeldFiles<'a> {
    held: Box<dyn Held + 'a>,
    files: ExportFiles,
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

    fn hold(&self) -> Result<HeldFiles<'_>> {
        let held = self.source.hold()?;
        let files = ExportFiles::open(self.root.device, &held.position())?;
        Ok(HeldFiles { held, files })
    }

    fn run(&mut self) -> Result<ReplicateReport> {
        let last_run = self.notes.last_run();
        let asks_first = last_run.as_ref().is_some_and(|run| !run.is_ended);
        let is_doubtful = asks_first || self.options.looks || self.options.take_over;
        let mut export = self.hold()?;
        let lineage = export.files.position().lineage;
        let note = self.notes.load().filter(|note| note.done.position.lineage == lineage);
        let has_grown =
            note.as_ref().map(|note| has_grown_from(&note.done, &export.files)).transpose()?.unwrap_or(false);
        if let Some(note) = note.as_ref().filter(|note| has_grown && ends_alike(&note.done, &export.files))
            && !is_doubtful
            && !self.options.completes
        {
            return Ok(self.report(&note.done, &note.stored, true));
        }
        drop(export);
        self.run = self.notes.begin(last_run.as_ref())?;
        export = self.hold()?;
        let mut locals = match note.as_ref().filter(|_| has_grown) {
            Some(note) => Locals::of(note.locals.clone(), note.done.position),
            None => Locals::default(),
        };
        locals.advance(&self.root.pool, &export.files)?;
        // This may compare everything: the pool must not be kept from freeing space meanwhile.
        drop(export.held);
        let mut held = None;
        let mut before = self.before(note, last_run.as_ref(), &locals, &export.files, is_doubtful)?;
        let mut files = export.files;
        let packing = Packing::default();
        let uploads = Uploads {
            replica: self.replica,
            root: self.root,
            reign: before.done.reign,
            connections: self.options.connections.clamp(1, 64),
            asks_first,
            packing: &packing,
        };
        if self.options.completes {
            let gone = uploads.take_gone(&mut before.stored, self.progress)?;
            before.retired.extend(gone);
            before.is_base_due |= self.has_lost_pieces(&before.done)?;
        } else if can_be_delta(&before, &files)? && ends_alike(&before.done, &files) {
            self.save(&before.done, &before, &locals, &Uploaded::default())?;
            return Ok(self.report(&before.done, &before.stored, true));
        }
        let (mut uploaded, mut added) = (Uploaded::default(), StoredById::new());
        let mut looks = 0;
        loop {
            if held.is_none() {
                let export = self.hold()?;
                (held, files) = (Some(export.held), export.files);
                locals.advance(&self.root.pool, &files)?;
            }
            let missing: Vec<Local> =
                locals.by_id.values().filter(|local| !has(&before.stored, local)).copied().collect();
            let is_last = missing.len() <= MISSING_MAX || looks == LOOKS_MAX;
            if !is_last {
                (held, looks) = (None, looks + 1);
            }
            let hold = if is_last { Hold::Export } else { Hold::None };
            uploaded.add(self.upload(&uploads, missing, hold, &mut before, &mut added)?);
            if let Some(held) = held.as_ref().filter(|_| is_last) {
                packing.finish(self.replica)?;
                self.retire(&locals, &mut before, &mut added);
                let commit = self.commit(&before, &added, &files)?;
                held.check()?;
                let done = self.create(&before, &commit, &files)?;
                self.save(&done, &before, &locals, &uploaded)?;
                return Ok(ReplicateReport {
                    containers: uploaded.objects,
                    bytes: uploaded.bytes,
                    namespace_bytes: commit.export_base.len_bytes + commit.export_log.len_bytes,
                    retired: before.retired.len() as u64,
                    damaged: uploaded.unsound.len() as u64,
                    ..self.report(&done, &before.stored, false)
                });
            }
        }
    }

    /// Whether a commit since the last base is gone, or a piece of one: then the next commit must have everything.
    fn has_lost_pieces(&self, done: &Done) -> Result<bool> {
        for number in done.base..=done.number {
            let Some(found) = self.replica.commit(number)? else { return Ok(true) };
            for piece in found.commit.streams().into_iter().flat_map(|stream| stream.pieces()) {
                if self.replica.objects.head(&piece.piece_key()?)?.is_none() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Notes a commit. Containers that were not sound are left out, so that the next run reads them again.
    fn save(&self, done: &Done, before: &Before, locals: &Locals, uploaded: &Uploaded) -> Result<()> {
        self.notes.save(done, &before.stored, &locals.by_id, &uploaded.unsound)
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

    fn upload(
        &self,
        uploads: &Uploads<'_>,
        missing: Vec<Local>,
        hold: Hold,
        before: &mut Before,
        added: &mut StoredById,
    ) -> Result<Uploaded> {
        let earlier =
            missing.iter().filter_map(|local| before.stored.get(&local.id)).map(|row| (row.id, *row)).collect();
        let uploaded = uploads.run(missing, &earlier, hold, self.progress)?;
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
    fn commit(&self, before: &Before, added: &StoredById, files: &ExportFiles) -> Result<Commit> {
        let (done, position) = (&before.done, files.position());
        let limit_bytes = DELTA_BYTES_MIN.max(position.base_bytes);
        let is_base = !can_be_delta(before, files)? || done.deltas >= DELTAS_MAX || done.delta_bytes > limit_bytes;
        let number = done.number + 1;
        let log_from = if is_base { 0 } else { done.position.log_bytes };
        let stream = |len_bytes: u64, read: &dyn Fn(u64, usize) -> dedupfs::Result<Vec<u8>>| {
            self.progress.start("uploading names", len_bytes);
            let stream = Stream::upload(self.replica, number, len_bytes, &mut |at, len| {
                if self.progress.is_cancelled() {
                    return Err(ReplicaError::Ended);
                }
                let bytes = read(at, len)?;
                self.progress.advance(len as u64);
                Ok(bytes)
            });
            self.progress.finish();
            stream
        };
        let base_bytes = if is_base { position.base_bytes } else { 0 };
        let export_base = stream(base_bytes, &|at, len| files.read_base(at, len))?;
        let export_log = stream(position.log_bytes - log_from, &|at, len| files.read_log(log_from + at, len))?;
        let named = Stored::encode_all(if is_base { before.stored.values() } else { added.values() });
        let retired = Stored::encode_all(before.retired.iter());
        Ok(Commit {
            kind: if is_base { CommitKind::Base } else { CommitKind::Delta },
            number,
            previous: done.hash,
            base: if is_base { number } else { done.base },
            reign: done.reign,
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
    fn create(&self, before: &Before, commit: &Commit, files: &ExportFiles) -> Result<Done> {
        let hash = self.put(commit)?;
        let bytes = commit.streams().iter().map(|stream| stream.len_bytes).sum();
        let mark = mark_of(files, &commit.position)?;
        Ok(done_of(&Head { commit: commit.clone(), hash, bytes }, mark, Some(&before.done)))
    }

    pub(crate) fn put(&self, commit: &Commit) -> Result<CommitHash> {
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

/// Whether an export ends where that of a commit did.
fn ends_alike(done: &Done, files: &ExportFiles) -> bool {
    let position = files.position();
    (done.position.log_bytes, done.position.row) == (position.log_bytes, position.row)
}

/// Whether the next commit can be a delta.
fn can_be_delta(before: &Before, files: &ExportFiles) -> Result<bool> {
    Ok(!before.is_base_due && has_grown_from(&before.done, files)?)
}

/// Whether an object has all valid bytes of a container.
fn has(stored: &StoredById, local: &Local) -> bool {
    stored.get(&local.id).is_some_and(|row| (row.kind, row.used_bytes) == (local.kind, local.used_bytes))
}
