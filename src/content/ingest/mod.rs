//! Ingest: turns a run of new file content into segments.
//!
//! 1. The writer's thread copies bytes into a batch buffer and finds the chunk boundaries (a pure function).
//! 2. A worker fingerprints a full batch (1 MiB of whole chunks); several batches of a file can be under way at once.
//! 3. The thread that finishes the next batch in file order assembles its chunks into segments and stores them.
//!
//! A file smaller than a batch never leaves the writer's thread: waking another core costs more than hashing it
//! (MEASURED). Known chunks and zeros take their place in the order without being read.
//!
//! Invariants: items are assembled in the order in which they were pushed. After an error, every later call fails with
//! the same error (I-7).
//!
//! Memory: at most [`BATCHES_IN_FLIGHT_MAX`] batches and one segment for each run; fewer batches once half of the
//! budget of all open files is in use ([`IngestContext::memory`]). A run that is finished early gives its memory back.
//! A new run that continues from there makes the same pieces ([`crate::file`]).

mod assembly;
mod buffer;

use std::collections::BTreeMap;
use std::sync::Arc;

use dedupfs_store::profile::{self, Component};
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint, waiting};
use dedupfs_sync::{Condvar, Mutex};

use assembly::Assembly;
pub use buffer::BatchPool;
pub(crate) use buffer::PooledBuffer;

use crate::chunker::Chunker;
use crate::containers::StreamId;
use crate::dedup::{BlockIndex, Deduplicator, KeptAnswers, Neighbour, Pin, Section};
use crate::limits::{BATCH_BYTES, BATCHES_IN_FLIGHT_MAX, BATCHES_IN_FLIGHT_MIN, INLINE_BATCH_BYTES};
use crate::recipe::Piece;
use crate::recipe::segmenter::SegmentRule;
use crate::recipe::tree::hole_child;
use crate::workers::WorkerPool;
use dedupfs_base::{EngineError, Result};
use dedupfs_base::{Gauge, Hold};

/// The parts that all ingests of a pool share.
#[derive(Clone)]
pub struct IngestContext {
    /// The store of segments.
    pub dedup: Arc<Deduplicator>,
    /// The pool's chunker.
    pub chunker: Arc<dyn Chunker>,
    /// The threads that fingerprint batches.
    pub workers: Arc<WorkerPool>,
    /// The batch buffers.
    pub buffers: Arc<BatchPool>,
    /// The rule for the ends of segments.
    pub rule: SegmentRule,
    /// Content that was pushed and is neither in a container nor found to be stored.
    pub held: Arc<Gauge>,
    /// Memory of all open files: of these runs, and everything else that files hold.
    pub memory: Arc<Gauge>,
    /// Its budget, in bytes. The service keeps it.
    pub memory_limit_bytes: u64,
    /// The chunks that new content is compared with, if not all of the pool's.
    pub scope: Option<Arc<Neighbour>>,
    /// Answers that were given ahead.
    pub kept: Option<Arc<KeptAnswers>>,
}

impl IngestContext {
    /// Batches of a run that may be under way now.
    fn batches_max(&self) -> u64 {
        let is_scarce = self.memory.bytes() > self.memory_limit_bytes / 2;
        (if is_scarce { BATCHES_IN_FLIGHT_MIN } else { BATCHES_IN_FLIGHT_MAX }) as u64
    }

    fn fingerprints(&self, bytes: &[u8], lengths: &[u32]) -> Vec<Fingerprint> {
        let _timed = profile::of(Component::Fingerprinting);
        let mut fingerprints = Vec::with_capacity(lengths.len());
        self.dedup.fingerprinter().batch(bytes, lengths, &mut fingerprints);
        fingerprints
    }
}

/// One item in file order.
enum Item {
    Data { buffer: PooledBuffer, lengths: Vec<u32>, fingerprints: Vec<Fingerprint> },
    Known(Vec<Child>),
    Named(Vec<Child>),
}

struct RunState {
    next: u64,
    ready: BTreeMap<u64, Item>,
    /// Absent while a thread assembles.
    assembly: Option<Assembly>,
    /// Whether the assembling thread panicked: the assembly does not come back.
    lost: bool,
    error: Option<EngineError>,
}

/// The part that workers share with the writer.
struct RunShared {
    state: Mutex<RunState>,
    changed: Condvar,
}

/// A run of new content; see the module's head.
pub(crate) struct Ingest {
    context: Arc<IngestContext>,
    core: Arc<RunShared>,
    buffer: PooledBuffer,
    /// Bytes at the start of `buffer` that are cut into chunks of `lengths`.
    cut_bytes: usize,
    lengths: Vec<u32>,
    pushed: u64,
    len_bytes: u64,
    /// Pins that protect the chunks pushed as known, until the segments with these chunks are stored.
    held: Vec<Arc<Pin>>,
    finished: bool,
    /// All content, once it is assembled.
    assembled: Option<Assembly>,
    /// Content of this run that is not stored yet; shared with the assembly.
    content: Arc<Hold>,
}

impl Ingest {
    /// Makes an empty run for the stream `stream`. `known` holds the chunks of the rewritten part of the file.
    pub(crate) fn new(context: Arc<IngestContext>, stream: StreamId, known: Option<Arc<BlockIndex>>) -> Self {
        let content = Arc::new(context.held.hold(0, 1));
        let assembly = Assembly::new(&context, stream, known, content.clone());
        let state = RunState { next: 0, ready: BTreeMap::new(), assembly: Some(assembly), lost: false, error: None };
        let core = Arc::new(RunShared { state: Mutex::new(state), changed: Condvar::new() });
        let buffer = context.buffers.take();
        Self {
            context,
            core,
            buffer,
            cut_bytes: 0,
            lengths: Vec::new(),
            pushed: 0,
            len_bytes: 0,
            held: Vec::new(),
            finished: false,
            assembled: None,
            content,
        }
    }

    /// Keeps a node alive whose chunks are pushed as known: its piece leaves the file's list, and nothing else may
    /// refer to it yet.
    pub(crate) fn hold(&mut self, pin: Option<Arc<Pin>>) {
        self.held.extend(pin);
    }

    /// Bytes pushed so far.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether all content is still in the writer's thread: finishing will be short.
    pub(crate) fn is_small(&self) -> bool {
        self.pushed == 0
    }

    /// Adds content.
    pub(crate) fn push_data(&mut self, mut data: &[u8]) -> Result<()> {
        self.len_bytes += data.len() as u64;
        self.content.add(data.len() as u64);
        let full = BATCH_BYTES + self.context.chunker.max_bytes();
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(full.saturating_sub(self.buffer.len())));
            self.buffer.extend_from_slice(now);
            data = later;
            if self.buffer.len() >= full {
                self.cut(false);
                self.hand_off()?;
            }
        }
        Ok(())
    }

    /// Adds chunks that a live recipe names. Content before them ends in a cut.
    pub(crate) fn push_known(&mut self, children: &[Child]) -> Result<()> {
        self.force_cut()?;
        self.len_bytes += children.iter().map(|child| child.len_bytes).sum::<u64>();
        self.deliver(Item::Known(children.to_vec()))
    }

    /// Adds chunks that the pool must have, by their fingerprints alone. Content before them ends in a cut.
    pub(crate) fn push_named(&mut self, children: &[Child]) -> Result<()> {
        self.force_cut()?;
        self.len_bytes += children.iter().map(|child| child.len_bytes).sum::<u64>();
        self.deliver(Item::Named(children.to_vec()))
    }

    /// Adds a chunk that is cut already. Content before it ends in a cut.
    pub(crate) fn push_chunk(&mut self, bytes: &[u8]) -> Result<()> {
        if self.buffer.len() > self.cut_bytes {
            self.force_cut()?;
        }
        self.len_bytes += bytes.len() as u64;
        self.content.add(bytes.len() as u64);
        self.buffer.extend_from_slice(bytes);
        self.lengths.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.cut_bytes += bytes.len();
        if self.cut_bytes >= BATCH_BYTES { self.hand_off() } else { Ok(()) }
    }

    /// Adds zeros without chunking them. Content before them ends in a cut.
    pub(crate) fn push_zeros(&mut self, len_bytes: u64) -> Result<()> {
        self.push_known(&[hole_child(len_bytes)])
    }

    /// Waits until everything pushed is assembled. Returns whether a segment could begin here.
    pub(crate) fn assemble_all(&mut self) -> Result<bool> {
        self.force_cut()?;
        let mut state = self.core.state.lock();
        self.core.wait_until_assembled(&mut state, self.pushed)?;
        Ok(state.assembly.as_ref().is_some_and(Assembly::is_at_boundary))
    }

    /// Assembles everything, and looks up the last segment, so that [`finish`](Self::finish) has little to do. Call it before entering a section:
    /// segments have sections of their own. Nothing is pushed behind this. `whole_file` is that of [`finish`](Self::finish).
    pub(crate) fn prepare_finish(&mut self, whole_file: bool) -> Result<()> {
        self.context.dedup.wait_for_room()?;
        self.cut(true);
        let mut assembly = {
            let core = self.core.clone();
            let mut state = core.state.lock();
            core.wait_until_assembled(&mut state, self.pushed)?;
            self.finished = true;
            state.assembly.take().ok_or(EngineError::Invalid("ingest was finished twice"))?
        };
        if !self.lengths.is_empty() {
            let fingerprints = self.context.fingerprints(&self.buffer, &self.lengths);
            let buffer = std::mem::replace(&mut self.buffer, self.context.buffers.take());
            let lengths = std::mem::take(&mut self.lengths);
            assemble(&mut assembly, Item::Data { buffer, lengths, fingerprints })?;
        }
        assembly.prepare_finish(whole_file)?;
        self.assembled = Some(assembly);
        Ok(())
    }

    /// Makes all cuts that can be decided now. Returns the number of bytes behind the last cut.
    pub(crate) fn cut_now(&mut self) -> u64 {
        self.cut(false);
        (self.buffer.len() - self.cut_bytes) as u64
    }

    /// Drops the bytes behind the last cut.
    pub(crate) fn discard_uncut(&mut self) {
        let uncut_bytes = (self.buffer.len() - self.cut_bytes) as u64;
        self.len_bytes -= uncut_bytes;
        self.content.release(uncut_bytes);
        self.buffer.truncate(self.cut_bytes);
    }

    /// Returns all content as pieces, after [`prepare_finish`](Self::prepare_finish). See [`Assembly::finish`].
    pub(crate) fn finish(mut self, section: &Section<'_>, whole_file: bool) -> Result<Vec<Piece>> {
        let assembly = self.assembled.take().ok_or(EngineError::Invalid("ingest was finished without preparation"))?;
        assembly.finish(section, whole_file)
    }

    fn cut(&mut self, at_end: bool) {
        let _timed = profile::of(Component::Chunking);
        while let Some(rest) = self.buffer.get(self.cut_bytes..)
            && let Some(len) = self.context.chunker.next_cut(rest, at_end)
        {
            self.lengths.push(u32::try_from(len).unwrap_or(u32::MAX));
            self.cut_bytes += len;
        }
    }

    fn force_cut(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.cut(true);
        self.hand_off()
    }

    /// Hands the finished chunks to a worker and keeps the rest.
    fn hand_off(&mut self) -> Result<()> {
        let mut rest = self.context.buffers.take();
        rest.extend_from_slice(self.buffer.get(self.cut_bytes..).unwrap_or_default());
        let mut buffer = std::mem::replace(&mut self.buffer, rest);
        buffer.truncate(self.cut_bytes);
        self.cut_bytes = 0;
        let lengths = std::mem::take(&mut self.lengths);
        self.submit(buffer, lengths)
    }

    fn submit(&mut self, buffer: PooledBuffer, lengths: Vec<u32>) -> Result<()> {
        self.wait_for_turn()?;
        let sequence = self.pushed;
        self.pushed += 1;
        if buffer.len() < INLINE_BATCH_BYTES {
            let fingerprints = self.context.fingerprints(&buffer, &lengths);
            self.core.deliver(sequence, Item::Data { buffer, lengths, fingerprints });
            return Ok(());
        }
        let context = self.context.clone();
        let unfinished = Unfinished { core: Some(self.core.clone()), assembling: false };
        self.context.workers.submit(Box::new(move || {
            let mut unfinished = unfinished;
            let fingerprints = context.fingerprints(&buffer, &lengths);
            if let Some(core) = &unfinished.core {
                core.deliver(sequence, Item::Data { buffer, lengths, fingerprints });
            }
            unfinished.core = None;
        }));
        Ok(())
    }

    fn deliver(&mut self, item: Item) -> Result<()> {
        self.wait_for_turn()?;
        let sequence = self.pushed;
        self.pushed += 1;
        self.core.deliver(sequence, item);
        Ok(())
    }

    /// Waits in the writer's own thread, never in a worker's: the workers make the room.
    fn wait_for_turn(&self) -> Result<()> {
        self.context.dedup.wait_for_room()?;
        let mut state = self.core.state.lock();
        let mut waits = None;
        while state.error.is_none() && self.pushed - state.next >= self.context.batches_max() {
            waiting::announce();
            waits.get_or_insert_with(|| profile::of(Component::Batches));
            self.core.changed.wait(&mut state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Ingest {
    /// Waits until the assembling thread has ended: it rests on the pins of this run.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut state = self.core.state.lock();
        state.error.get_or_insert(EngineError::Internal("a run of new content was dropped before it was finished"));
        state.ready.clear();
        self.core.changed.notify_all();
        while state.assembly.is_none() && !state.lost {
            waiting::announce();
            self.core.changed.wait(&mut state);
        }
    }
}

impl RunShared {
    /// Puts an item in its place and assembles the next ones in order, unless another thread does.
    fn deliver(self: &Arc<Self>, sequence: u64, item: Item) {
        let mut state = self.state.lock();
        if state.error.is_some() {
            return;
        }
        state.ready.insert(sequence, item);
        let Some(mut assembly) = state.assembly.take() else { return };
        // A panic below would lose the assembly, and all waiters would hang.
        let mut unfinished = Unfinished { core: Some(self.clone()), assembling: true };
        loop {
            let next = state.next;
            let Some(item) = state.ready.remove(&next) else { break };
            drop(state);
            let outcome = assemble(&mut assembly, item);
            state = self.state.lock();
            state.next += 1;
            if let Err(error) = outcome {
                state.error.get_or_insert(error);
                state.ready.clear();
            }
            self.changed.notify_all();
        }
        state.assembly = Some(assembly);
        drop(state);
        unfinished.core = None;
        self.changed.notify_all();
    }

    fn wait_until_assembled(&self, state: &mut dedupfs_sync::MutexGuard<'_, RunState>, pushed: u64) -> Result<()> {
        let mut waits = None;
        while state.error.is_none() && (state.next < pushed || state.assembly.is_none()) {
            waiting::announce();
            waits.get_or_insert_with(|| profile::of(Component::Batches));
            self.changed.wait(state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

/// Turns a worker's panic into an error of the file, so that the writer does not wait for ever.
struct Unfinished {
    core: Option<Arc<RunShared>>,
    assembling: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            let mut state = core.state.lock();
            state.lost |= self.assembling;
            state.error.get_or_insert(EngineError::Internal("a worker stopped before it had finished a batch"));
            core.changed.notify_all();
        }
    }
}

fn assemble(assembly: &mut Assembly, item: Item) -> Result<()> {
    match item {
        Item::Known(children) => children.into_iter().try_for_each(|child| assembly.push_known(child)),
        Item::Named(children) => children.into_iter().try_for_each(|child| assembly.push_named(child)),
        Item::Data { buffer, lengths, fingerprints } => {
            let buffer = Arc::new(buffer);
            let mut start = 0;
            for (&len, fingerprint) in lengths.iter().zip(fingerprints) {
                let end = start + len as usize;
                let child = Child { fingerprint, len_bytes: u64::from(len), hint: ContainerId::NONE };
                assembly.push_data(child, &buffer, start..end)?;
                start = end;
            }
            Ok(())
        }
    }
}
