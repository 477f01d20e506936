//! Threads that copy files, while the thread that calls walks through the directories.

use std::num::NonZero;

use super::TransferError;
use super::disk::XattrSpace;
use super::tally::{Tally, Trouble};

/// Files that are handed over at once: enough that handing over costs nothing, few enough that nobody is left with the rest.
pub(super) const BATCH_FILES: usize = 16;
/// Content of files with which a batch is full, where it is known: nobody copies all large files of a directory by himself.
pub(super) const BATCH_BYTES: u64 = 4 << 20;
/// Batches that wait: the walk does not run ahead further.
const BATCHES_WAITING: usize = 32;
/// More than the pool's own threads can keep up with are of no use.
const THREADS_MAX: usize = 8;
/// Bytes of a thread's buffer.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// What a thread works in.
pub(super) struct Space {
    /// Of [`BUFFER_BYTES`].
    pub(super) content: Vec<u8>,
    pub(super) xattrs: XattrSpace,
}

impl Default for Space {
    fn default() -> Self {
        Self { content: vec![0; BUFFER_BYTES], xattrs: XattrSpace::default() }
    }
}

/// Hands a batch over.
pub(super) type Hand<'h, B> = &'h dyn Fn(B);

/// Runs `walk`, which hands batches over, and `work` on each of them, with the space of its thread. A panic of one
/// thread ends all.
pub(super) fn run<B: Send>(tally: &Tally<'_>, walk: impl FnOnce(Hand<'_, B>), work: impl Fn(B, &mut Space) + Sync) {
    let threads = std::thread::available_parallelism().map_or(2, NonZero::get).min(THREADS_MAX);
    let (sender, receiver) = crossbeam_channel::bounded::<B>(BATCHES_WAITING);
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (receiver, work) = (receiver.clone(), &work);
            let run = move || {
                let mut space = Space::default();
                receiver.iter().for_each(|batch| work(batch, &mut space));
            };
            if let Err(error) = std::thread::Builder::new().name(format!("copy-{number}")).spawn_scoped(scope, run) {
                tracing::warn!(%error, number, "cannot start a thread to copy files");
                let error = TransferError::Disk { what: "cannot start a thread".to_owned(), error };
                tally.note(Err(Trouble::All(error)), Default::default);
            }
        }
        // Without any thread nobody receives, and sending fails.
        drop(receiver);
        // Who sends fails only if all have panicked, which ends the scope.
        walk(&|batch| drop(sender.send(batch)));
        drop(sender);
    });
}
