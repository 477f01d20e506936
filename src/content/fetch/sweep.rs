//! A sweep: the chunks of many files, read in the order of the disk, each region read once, whatever the order of the files.
//!
//! 1. Chunks are gathered by the container that their recipe names ([`Sweep::add`]).
//! 2. Chunks whose container is gone are placed by forwarding notes, else by the index, thousands at a time. The copy behind a note is
//!    believed only if it fits its fingerprint: one that was found bad may have been replaced.
//! 3. The calling thread reads container after container in the order of their slots. Others decode the regions and hand their
//!    chunks over. A chunk that this does not find is fetched by itself, so that damage is told as to any reader.
//!
//! The physical phase of DedupSearch (Elias and others, FAST 2022, section 3) reads so for searching; the restore of MFDedup
//! (Zou and others, FAST 2021, section 3.4) writes chunks where they belong as its volumes are read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZero;
use std::sync::Arc;

use dedupfs_base::{EngineError, Result};
use dedupfs_store::device::AlignedBuffer;
use dedupfs_store::recipe::Child;
use dedupfs_store::{ContainerId, Fingerprint};
use dedupfs_sync::channel::{Receiver, Sender, bounded};

use super::Fetcher;
use super::ahead::look_up;
use crate::containers::{SweptContainer, Wanted};

/// Containers that are read or decoded at a time: one is read while others are decoded.
const BUFFERS: usize = 3;
/// Threads that decode at most.
const THREADS_MAX: usize = 8;
/// Regions that wait to be decoded. They lie in the buffers.
const JOBS_WAITING: usize = 32;
/// Chunks that the index is asked for at a time.
const LOOKED_UP_MAX: usize = 16 * 1024;
/// Chunks that one thread fetches one by one, or hands over from one region. A chunk may be wanted a million times; each such part of a
/// region decodes it anew.
const CHUNKS_IN_JOB: usize = 256;

/// The receiver of what a sweep reads; called by several threads.
pub trait SweepTarget: Sync {
    /// Takes chunks, each with the offset of its bytes in `bytes`, in the order of files and of offsets in them.
    fn take(&self, bytes: &[u8], chunks: &[(u32, Wanted)]);

    /// Takes note that a chunk cannot be read.
    fn lost(&self, wanted: &Wanted, error: EngineError);

    /// Whether the sweep goes on.
    fn goes_on(&self) -> bool;
}

/// Chunks to be read. Memory: 48 bytes for each, and spare capacity.
#[derive(Default)]
pub struct Sweep {
    by_container: HashMap<ContainerId, Vec<Wanted>>,
    chunks: usize,
}

impl Sweep {
    /// Adds a stored chunk of a file; `file` is a number that the target knows.
    ///
    /// # Errors
    /// `Invalid` if the chunk's length is not one of a chunk.
    pub fn add(&mut self, child: &Child, file: u32, offset_bytes: u64) -> Result<()> {
        let len_bytes = u32::try_from(child.len_bytes).map_err(|_| EngineError::Invalid("the length of a chunk"))?;
        let wanted = Wanted { fingerprint: child.fingerprint, len_bytes, file, offset_bytes };
        self.by_container.entry(child.hint).or_insert_with(|| Vec::with_capacity(1)).push(wanted);
        self.chunks += 1;
        Ok(())
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks
    }
}

/// Work for a thread that hands chunks over.
enum Job {
    /// A region, by its position, and a part of its chunks.
    Region { swept: Arc<Loan>, position: usize, first: usize },
    /// Chunks that are fetched one by one, with the container that a reader of them tries first.
    Single(ContainerId, Vec<Wanted>),
}

/// A container that was read. Its buffer goes back with its last region.
struct Loan {
    swept: SweptContainer,
    /// Notes led to some of its chunks.
    is_noted: bool,
    home: Sender<AlignedBuffer>,
}

impl Loan {
    /// The container that a reader tries first. A copy behind a note proves nothing: then the index decides.
    fn hint(&self) -> ContainerId {
        if self.is_noted { ContainerId::NONE } else { self.swept.container }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // The reader may have ended.
        let _ = self.home.send(std::mem::take(&mut self.swept.buffer));
    }
}

impl Fetcher {
    /// Reads the chunks of a sweep, and hands each to `target` or tells it why not, unless `target` ends the sweep.
    ///
    /// Threads: the caller's and as many as there are cores, 8 at most. Memory: three containers, and a region for each thread.
    pub fn sweep(&self, sweep: Sweep, target: &dyn SweepTarget) {
        let threads = dedupfs_sync::thread::available_parallelism().map_or(2, NonZero::get).min(THREADS_MAX);
        let (jobs, waiting) = bounded::<Job>(JOBS_WAITING);
        dedupfs_sync::thread::scope(|scope| {
            let mut started = 0;
            for number in 0..threads {
                let waiting = waiting.clone();
                let run = move || waiting.iter().filter(|_| target.goes_on()).for_each(|job| self.do_job(job, target));
                let thread = dedupfs_sync::thread::Builder::new().name(format!("sweep-{number}"));
                match thread.spawn_scoped(scope, run) {
                    Ok(_) => started += 1,
                    Err(error) => tracing::warn!(%error, number, "cannot start a thread to decode regions"),
                }
            }
            if started == 0 {
                // Slow, but whole.
                drop(jobs);
                for (container, wanted) in sweep.by_container {
                    self.do_job(Job::Single(container, wanted), target);
                }
                return;
            }
            drop(waiting);
            let (groups, noted) = self.placed(sweep);
            self.read((self.in_order(groups), &noted), jobs, target);
        });
    }

    /// Moves the chunks whose container is gone to the container that has them now. Returns also the containers to which notes led.
    fn placed(&self, sweep: Sweep) -> (HashMap<ContainerId, Vec<Wanted>>, HashSet<ContainerId>) {
        let (mut groups, mut noted) = (sweep.by_container, HashSet::new());
        let gone: Vec<ContainerId> = groups.keys().copied().filter(|id| !self.store.is_known(*id)).collect();
        let mut unplaced = Vec::new();
        for hint in gone {
            for wanted in groups.remove(&hint).unwrap_or_default() {
                match self.store.successor(hint, &wanted.fingerprint) {
                    Some(container) => {
                        noted.insert(container);
                        groups.entry(container).or_default().push(wanted);
                    }
                    None => unplaced.push(wanted),
                }
            }
        }
        for part in unplaced.chunks(LOOKED_UP_MAX) {
            let fingerprints: Vec<Fingerprint> = part.iter().map(|wanted| wanted.fingerprint).collect();
            // Each chunk that is not found is fetched by itself; the reason is told then.
            let found = look_up(&self.index, &fingerprints).unwrap_or_default();
            let places: HashMap<Fingerprint, ContainerId> =
                found.iter().flat_map(|(id, prints)| prints.iter().map(|print| (*print, *id))).collect();
            for wanted in part {
                let container = places.get(&wanted.fingerprint).copied().unwrap_or(ContainerId::NONE);
                groups.entry(container).or_default().push(*wanted);
            }
        }
        (groups, noted)
    }

    /// Puts containers in the order of their slots; those without one come first, for the threads that would wait otherwise.
    fn in_order(&self, groups: HashMap<ContainerId, Vec<Wanted>>) -> Vec<(ContainerId, Vec<Wanted>)> {
        let place = |id: ContainerId| self.store.place_of(id).map(|address| (address.file, address.slot));
        let ordered: BTreeMap<_, _> = groups.into_iter().map(|(id, wanted)| ((place(id), id), wanted)).collect();
        ordered.into_iter().map(|((_, id), wanted)| (id, wanted)).collect()
    }

    fn read(
        &self,
        (groups, noted): (Vec<(ContainerId, Vec<Wanted>)>, &HashSet<ContainerId>),
        jobs: Sender<Job>,
        target: &dyn SweepTarget,
    ) {
        let (home, buffers): (Sender<AlignedBuffer>, Receiver<AlignedBuffer>) = bounded(BUFFERS);
        (0..BUFFERS).for_each(|_| drop(home.send(AlignedBuffer::new())));
        for (container, wanted) in groups {
            if !target.goes_on() {
                return;
            }
            let Ok(buffer) = buffers.recv() else { return };
            let mut swept = self.store.read_for_sweep(container, wanted, buffer);
            let left = std::mem::take(&mut swept.left);
            let loan = Arc::new(Loan { swept, is_noted: noted.contains(&container), home: home.clone() });
            let regions = loan.swept.regions.iter().enumerate().flat_map(|(position, region)| {
                let swept = &loan;
                let parts = (0..region.chunks.len()).step_by(CHUNKS_IN_JOB);
                parts.map(move |first| Job::Region { swept: Arc::clone(swept), position, first })
            });
            let hint = loan.hint();
            let single = left.chunks(CHUNKS_IN_JOB).map(|part| Job::Single(hint, part.to_vec()));
            if regions.chain(single).any(|job| jobs.send(job).is_err()) {
                return;
            }
        }
    }

    fn do_job(&self, job: Job, target: &dyn SweepTarget) {
        match job {
            Job::Region { swept, position, first } => {
                let Some(region) = swept.swept.regions.get(position) else { return };
                let chunks = region.chunks.get(first..).unwrap_or_default();
                let chunks = chunks.get(..CHUNKS_IN_JOB).unwrap_or(chunks);
                match self.store.decode_swept(&swept.swept, region) {
                    Some(raw) if swept.is_noted => {
                        let fits = |(start, wanted): &(u32, Wanted)| {
                            let start = *start as usize;
                            let bytes = raw.get(start..start.saturating_add(wanted.len_bytes as usize));
                            bytes.is_some_and(|bytes| self.fits(&wanted.fingerprint, bytes))
                        };
                        let (right, wrong): (Vec<_>, Vec<_>) = chunks.iter().copied().partition(fits);
                        target.take(&raw, &right);
                        self.fetch_singly(swept.hint(), wrong.iter().map(|(_, wanted)| wanted), target);
                    }
                    Some(raw) => target.take(&raw, chunks),
                    None => self.fetch_singly(swept.hint(), chunks.iter().map(|(_, wanted)| wanted), target),
                }
            }
            Job::Single(container, wanted) => self.fetch_singly(container, wanted.iter(), target),
        }
    }

    fn fetch_singly<'w>(&self, hint: ContainerId, wanted: impl Iterator<Item = &'w Wanted>, target: &dyn SweepTarget) {
        for wanted in wanted.take_while(|_| target.goes_on()) {
            match self.fetch(&wanted.fingerprint, hint, Some(wanted.len_bytes)) {
                Ok(bytes) => target.take(&bytes, &[(0, *wanted)]),
                Err(error) => target.lost(wanted, error),
            }
        }
    }
}
