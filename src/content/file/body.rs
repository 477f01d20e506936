//! Writing, truncating and publishing a file's content. See the head of [`crate::file`] for the picture.

use std::sync::Arc;

use dedupfs_base::{EngineError, Gauge, Hold, Result};
use dedupfs_store::recipe::{Child, Root};

use super::dirty::DirtyExtents;
use super::former::Former;
use crate::containers::StreamId;
use crate::dedup::{Deduplicator, KeptAnswers, Neighbour};
use crate::fetch::Fetcher;
use crate::ingest::{Ingest, IngestContext};
use crate::limits::{BATCH_BYTES, FILE_BYTES_MAX, FINER, GAP_AS_ZEROS_BYTES, PIECE_BYTES, SEGMENT_TARGET_BYTES};
use crate::recipe::{PieceKind, PieceList, tree};

/// The parts that all files of a pool share.
pub struct FileContext {
    /// The context of new content.
    pub ingest: Arc<IngestContext>,
    /// The reader of old content.
    pub chunks: Fetcher,
    /// The gauge of the dirty extents of all files.
    pub dirty: Arc<Gauge>,
    /// Memory of one file's dirty extents at most.
    pub dirty_file_limit_bytes: u64,
}

impl FileContext {
    /// Where content is stored once.
    #[must_use]
    pub fn dedup(&self) -> &Arc<Deduplicator> {
        &self.ingest.dedup
    }

    /// The same, for new content that is compared with the chunks of `scope` alone.
    #[must_use]
    pub fn within(&self, scope: Neighbour) -> Self {
        self.with(IngestContext { scope: Some(Arc::new(scope)), ..(*self.ingest).clone() })
    }

    /// The same, for content of whose chunks answers were given ahead. All of the pool is its scope.
    #[must_use]
    pub fn with_kept(&self, kept: Arc<KeptAnswers>) -> Self {
        self.with(IngestContext { scope: None, kept: Some(kept), ..(*self.ingest).clone() })
    }

    /// The same, for an image of this length, in which small changes lie anywhere: its segments are shorter, if its list of pieces then takes
    /// at most a quarter of the budget of open files.
    #[must_use]
    pub fn finer(&self, size_bytes: u64) -> Self {
        let pieces = size_bytes / (SEGMENT_TARGET_BYTES / FINER);
        let rule = match pieces * PIECE_BYTES <= self.ingest.memory_limit_bytes / 4 {
            true => self.ingest.rule.finer(),
            false => self.ingest.rule,
        };
        self.with(IngestContext { rule, ..(*self.ingest).clone() })
    }

    fn with(&self, ingest: IngestContext) -> Self {
        let Self { chunks, dirty, dirty_file_limit_bytes, .. } = self;
        let (chunks, dirty) = (chunks.clone(), dirty.clone());
        Self { ingest: Arc::new(ingest), chunks, dirty, dirty_file_limit_bytes: *dirty_file_limit_bytes }
    }

    /// Whether open files exceed their memory budget.
    #[must_use]
    pub fn is_memory_exceeded(&self) -> bool {
        self.ingest.memory.bytes() > self.ingest.memory_limit_bytes
    }
}

/// The values that a publication puts into the inode.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// The new root.
    pub root: Root,
    /// Length.
    pub size_bytes: u64,
    /// Length without holes.
    pub data_bytes: u64,
}

/// The content of one inode as clients see it now.
pub struct FileBody {
    pub(super) context: Arc<FileContext>,
    pub(super) pieces: PieceList,
    former: Option<Former>,
    stream: Option<Ingest>,
    pub(super) dirty: DirtyExtents,
    dirty_hold: Option<Hold>,
    /// Memory of the pieces and of the dirty extents.
    memory: Hold,
    pub(super) changed: bool,
    /// The error of a write that lost acknowledged content; every later use returns it (I-7).
    failed: Option<EngineError>,
}

impl FileBody {
    /// Opens the content that `root` names.
    ///
    /// # Errors
    /// `Corrupt` if the recipe is damaged; I/O errors.
    pub fn open(context: Arc<FileContext>, root: &Root) -> Result<Self> {
        let pieces = tree::flatten(context.dedup().nodes(), root)?;
        let memory = context.ingest.memory.hold(size_of::<Self>() as u64 + pieces.memory_bytes(), 0);
        Ok(Self {
            context,
            memory,
            pieces,
            former: None,
            stream: None,
            dirty: DirtyExtents::default(),
            dirty_hold: None,
            changed: false,
            failed: None,
        })
    }

    /// Returns the number of segments and holes.
    #[must_use]
    pub fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// Makes content that is likely to have chunks of `former`. That root must stay referred to as long as this lives.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn anew(context: Arc<FileContext>, former: &Root) -> Result<Self> {
        let former = Former::open(context.dedup().nodes(), former)?;
        let mut body = Self::open(context, &Root::Empty)?;
        body.former = Some(former);
        body.count_memory();
        Ok(body)
    }

    /// Length in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.pieces.len_bytes() + self.stream.as_ref().map_or(0, Ingest::len_bytes)
    }

    /// Bytes that are not holes, as far as known before the run is finished.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.pieces.data_bytes() + self.stream.as_ref().map_or(0, Ingest::len_bytes)
    }

    /// Whether the content differs from the published root.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Whether publishing is short enough for the thread that serves the kernel.
    #[must_use]
    pub fn publishes_quickly(&self) -> bool {
        self.dirty.is_empty() && self.stream.as_ref().is_none_or(Ingest::is_small)
    }

    /// Whether cutting, cloning or merging is short enough for that thread.
    #[must_use]
    pub fn changes_quickly(&self) -> bool {
        let size_bytes = self.size_bytes();
        self.publishes_quickly() && size_bytes <= BATCH_BYTES as u64 && self.read_is_quick(0, size_bytes)
    }

    /// Returns the error of an earlier write.
    pub(crate) fn check_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Writes `data` at `offset`; a gap behind the end reads as zeros.
    ///
    /// # Errors
    /// `FileTooLarge`; the pool's write errors, which are remembered.
    pub fn write(&mut self, stream: StreamId, offset: u64, data: &[u8]) -> Result<()> {
        self.check_failed()?;
        let end = offset.checked_add(data.len() as u64).ok_or(EngineError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        if data.is_empty() {
            return Ok(());
        }
        self.remembering(|body| {
            if offset > body.size_bytes() {
                body.append_zeros(stream, offset - body.size_bytes())?;
            }
            let overlap = (body.size_bytes() - offset).min(data.len() as u64) as usize;
            let (over, behind) = data.split_at(overlap);
            body.overwrite(stream, offset, over)?;
            body.append(stream, behind)
        })
    }

    /// Cuts or extends to `size_bytes`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn truncate(&mut self, stream: StreamId, size_bytes: u64) -> Result<()> {
        if size_bytes == 0 {
            // No old content is needed, not even a failed part of it.
            self.set_dirty(DirtyExtents::clear);
            // Drop the run first: its pending work may rest on the pieces.
            self.stream = None;
            (self.pieces, self.failed) = (PieceList::default(), None);
            self.changed = true;
            self.count_memory();
            return Ok(());
        }
        self.check_failed()?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(EngineError::FileTooLarge);
        }
        match size_bytes.cmp(&self.size_bytes()) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => {
                self.remembering(|body| body.append_zeros(stream, size_bytes - body.size_bytes()))
            }
            std::cmp::Ordering::Less => self.remembering(|body| body.cut_to(stream, size_bytes)),
        }
    }

    /// Replaces `from..to` by zeros, as far as it lies within the file.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn zero(&mut self, stream: StreamId, from: u64, to: u64) -> Result<()> {
        self.check_failed()?;
        let to = to.min(self.size_bytes());
        if from >= to {
            return Ok(());
        }
        self.remembering(|body| {
            body.finish_stream()?;
            body.apply_dirty(stream)?;
            body.zero_range(stream, from, to)
        })
    }

    /// Merges and stores all content, and hands the new root to `log` within the section that protects it.
    ///
    /// # Errors
    /// The pool's write errors, which are remembered; those of `log`.
    pub fn publish(&mut self, stream: StreamId, log: &mut dyn FnMut(Published) -> Result<()>) -> Result<()> {
        self.check_failed()?;
        if !self.changed {
            return Ok(());
        }
        self.remembering(|body| {
            body.apply_dirty(stream)?;
            let (mut run, whole_file) = (body.stream.take(), body.pieces.is_empty());
            if let Some(run) = &mut run {
                run.prepare_finish(whole_file)?;
            }
            let dedup = body.context.dedup().clone();
            let section = dedup.enter();
            if let Some(run) = run {
                run.finish(&section, whole_file)?.into_iter().for_each(|piece| body.pieces.push(piece));
            }
            let root = tree::build(&dedup, &section, stream, &body.pieces)?;
            log(Published { root, size_bytes: body.pieces.len_bytes(), data_bytes: body.pieces.data_bytes() })?;
            drop(section);
            match root {
                // From here on the pieces rest on the root, so they must be those that it names: not the segment around
                // a single chunk.
                Root::Node { .. } => body.pieces.unpin(),
                root => body.pieces = tree::flatten(dedup.nodes(), &root)?,
            }
            body.changed = false;
            Ok(())
        })
    }

    /// Whether a read of this range must finish the run first.
    #[must_use]
    pub fn read_needs_finish(&self, offset: u64, len_bytes: u64) -> bool {
        self.stream.is_some() && offset.saturating_add(len_bytes) > self.pieces.len_bytes()
    }

    /// Turns the run into pieces, so that they can be read.
    ///
    /// # Errors
    /// The pool's write errors, which are remembered.
    pub fn finish_for_reading(&mut self) -> Result<()> {
        self.check_failed()?;
        self.remembering(Self::finish_stream)
    }

    /// Merges the run and all dirty extents into the pieces, so that their shape can be seen.
    ///
    /// # Errors
    /// The pool's write errors, which are remembered.
    pub fn merge(&mut self, stream: StreamId) -> Result<()> {
        self.check_failed()?;
        if !self.is_unmerged() {
            return Ok(());
        }
        self.remembering(|body| {
            body.finish_stream()?;
            body.apply_dirty(stream)
        })
    }

    pub(super) fn remembering(&mut self, action: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.changed = true;
        // Stays if the action panics: content that was taken out of its place is then lost.
        self.failed = Some(EngineError::Internal("a change of this file was interrupted: its new content is lost"));
        let outcome = action(self);
        self.failed = outcome.as_ref().err().cloned();
        self.count_memory();
        outcome
    }

    pub(super) fn count_memory(&self) {
        let former_bytes = self.former.as_ref().map_or(0, Former::memory_bytes);
        let pieces_bytes = self.pieces.memory_bytes() + former_bytes;
        self.memory.set(size_of::<Self>() as u64 + pieces_bytes + self.dirty.memory_bytes());
    }

    /// Whether it holds content that [`merge`](Self::merge) would store.
    #[must_use]
    pub fn is_unmerged(&self) -> bool {
        self.stream.is_some() || !self.dirty.is_empty()
    }

    /// Puts away the unfinished content: stores it, as for a reader, and gives back its memory. A later write continues
    /// from there and makes the same pieces. After a failed write the unfinished content is dropped, and the file
    /// reports the failure until it is truncated.
    ///
    /// # Errors
    /// As [`merge`](Self::merge).
    pub fn put_away(&mut self, stream: StreamId) -> Result<()> {
        let outcome = self.merge(stream);
        if self.failed.is_some() {
            // Drop the run first: its pending work may rest on the pieces.
            self.stream = None;
            self.set_dirty(DirtyExtents::clear);
            self.count_memory();
        }
        outcome
    }

    fn overwrite(&mut self, stream: StreamId, offset: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if offset + data.len() as u64 > self.pieces.len_bytes() {
            self.finish_stream()?;
        }
        self.set_dirty(|dirty| dirty.insert(offset, data));
        if self.dirty.memory_bytes() >= self.context.dirty_file_limit_bytes {
            self.apply_dirty(stream)?;
        }
        Ok(())
    }

    pub(super) fn append(&mut self, stream: StreamId, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = self.size_bytes() + data.len() as u64;
        if let Some(former) = &mut self.former
            && former.learn(self.context.dedup().nodes(), end).is_err()
        {
            // What is known of it stays right; the index knows the rest.
            self.former = None;
        }
        self.stream(stream)?.push_data(data)
    }

    pub(super) fn append_zeros(&mut self, stream: StreamId, len_bytes: u64) -> Result<()> {
        push_gap(self.stream(stream)?, len_bytes)
    }

    /// Appends zeros as such, however few they are.
    pub(super) fn append_exact_zeros(&mut self, stream: StreamId, len_bytes: u64) -> Result<()> {
        self.stream(stream)?.push_zeros(len_bytes)
    }

    /// Appends chunks that the pool must have.
    pub(super) fn append_named(&mut self, stream: StreamId, children: &[Child]) -> Result<()> {
        self.stream(stream)?.push_named(children)
    }

    /// Appends a chunk that is cut already.
    pub(super) fn append_chunk(&mut self, stream: StreamId, bytes: &[u8]) -> Result<()> {
        self.stream(stream)?.push_chunk(bytes)
    }

    /// Returns the run behind the pieces. A new run takes the last pieces back.
    fn stream(&mut self, stream: StreamId) -> Result<&mut Ingest> {
        if self.stream.is_none() {
            let size_bytes = self.pieces.len_bytes();
            let max_bytes = self.context.ingest.chunker.max_bytes() as u64;
            let first = self.pieces.position_at(size_bytes.saturating_sub(max_bytes));
            let start = self.pieces.get(first.min(self.pieces.len().wrapping_sub(1))).map_or(0, |(start, _)| start);
            if self.dirty.end() > start {
                self.apply_dirty(stream)?;
            }
            self.restart_at(stream, size_bytes)?;
        }
        self.stream.as_mut().ok_or(EngineError::Internal("no stream after starting one"))
    }

    /// Cuts the pieces at `size_bytes` and pushes the last ones into a new run, up to that offset. All pieces that
    /// reach within `max_bytes` of the offset go back: the end of the file may have cut their last chunks. A chunker
    /// needs `max_bytes` from the start of a chunk to decide where it ends.
    fn restart_at(&mut self, stream: StreamId, size_bytes: u64) -> Result<()> {
        let known = self.former.as_ref().map(|former| former.known.clone());
        let mut run = Ingest::new(self.context.ingest.clone(), stream, known);
        let max_bytes = self.context.ingest.chunker.max_bytes() as u64;
        let mut back = Vec::new();
        while back.is_empty() || self.pieces.len_bytes() + max_bytes > size_bytes {
            let Some(piece) = self.pieces.pop() else { break };
            let start = self.pieces.len_bytes();
            if start < size_bytes || start == 0 {
                back.push((start, piece));
            }
        }
        for (start, piece) in back.into_iter().rev() {
            run.hold(piece.pin);
            match piece.kind {
                PieceKind::Hole => run.push_zeros(piece.child.len_bytes.min(size_bytes - start))?,
                PieceKind::Chunk => self.restart_chunks(&mut run, &[piece.child], start, size_bytes)?,
                PieceKind::Segment => {
                    let view = self.context.dedup().nodes().node(0, &piece.child)?;
                    self.restart_chunks(&mut run, view.children(), start, size_bytes)?;
                }
            }
        }
        self.stream = Some(run);
        Ok(())
    }

    /// Pushes these chunks, which begin at `start`, up to `end`. Chunks that the end of the file may have cut are
    /// pushed as data, so that they can grow.
    fn restart_chunks(&self, run: &mut Ingest, chunks: &[Child], start: u64, end: u64) -> Result<()> {
        let max_bytes = self.context.ingest.chunker.max_bytes() as u64;
        let mut at = start;
        let mut known = 0;
        while let Some(child) = chunks.get(known)
            && at + max_bytes.max(child.len_bytes) <= end
        {
            at += child.len_bytes;
            known += 1;
        }
        if known > 0 {
            // Without known chunks there must be no call: it would force a cut where only the end of the file had made
            // one.
            run.push_known(chunks.get(..known).unwrap_or_default())?;
        }
        for child in chunks.get(known..).unwrap_or_default() {
            let keep = child.len_bytes.min(end.saturating_sub(at));
            at += child.len_bytes;
            if keep == 0 {
                break;
            }
            if child.fingerprint.is_zero() {
                run.push_zeros(keep)?;
                continue;
            }
            let data = self.context.chunks.chunk(child)?;
            run.push_data(data.get(..keep as usize).unwrap_or(&data))?;
        }
        Ok(())
    }

    pub(super) fn cut_to(&mut self, stream: StreamId, size_bytes: u64) -> Result<()> {
        self.finish_stream()?;
        self.apply_dirty(stream)?;
        self.restart_at(stream, size_bytes)
    }

    pub(super) fn finish_stream(&mut self) -> Result<()> {
        let Some(mut run) = self.stream.take() else { return Ok(()) };
        run.prepare_finish(false)?;
        let section = self.context.ingest.dedup.enter();
        run.finish(&section, false)?.into_iter().for_each(|piece| self.pieces.push(piece));
        Ok(())
    }

    /// Changes the dirty extents, and with them the gauge of all files.
    pub(super) fn set_dirty(&mut self, change: impl FnOnce(&mut DirtyExtents)) {
        change(&mut self.dirty);
        // The new hold exists before the old one is dropped.
        self.dirty_hold =
            (!self.dirty.is_empty()).then(|| self.context.dirty.hold(self.dirty.bytes(), self.dirty.len()));
    }

    /// Takes the dirty extents out, with their hold. The caller keeps the hold until their bytes are in runs.
    pub(super) fn take_dirty(&mut self) -> (DirtyExtents, Option<Hold>) {
        (std::mem::take(&mut self.dirty), self.dirty_hold.take())
    }
}

impl Drop for FileBody {
    fn drop(&mut self) {
        self.set_dirty(DirtyExtents::clear);
    }
}

/// Pushes zeros between content: a short gap is chunked with its neighbours.
pub(super) fn push_gap(run: &mut Ingest, len_bytes: u64) -> Result<()> {
    static ZEROS: [u8; GAP_AS_ZEROS_BYTES as usize] = [0; GAP_AS_ZEROS_BYTES as usize];
    match ZEROS.get(..usize::try_from(len_bytes).unwrap_or(usize::MAX)) {
        Some(zeros) => run.push_data(zeros),
        None => run.push_zeros(len_bytes),
    }
}
