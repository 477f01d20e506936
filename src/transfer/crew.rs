//! The threads that copy files while the calling thread walks through the directories.

use std::num::NonZero;

use dedupfs_store::profile::{self, Component};

use super::TransferError;
use super::disk::XattrSpace;
use super::tally::{Tally, Trouble};

/// Files in one batch: enough to make handing over cheap, few enough to spread the last ones over all threads.
pub(super) const BATCH_FILES: usize = 16;
/// Content that fills a batch, where sizes are known: no thread copies all large files of a directory alone.
pub(super) const BATCH_BYTES: u64 = 4 << 20;
/// Batches that may wait. The walk runs no further ahead.
const BATCHES_WAITING: usize = 32;
/// Limit of threads. The pool's own threads cannot keep up with more.
const THREADS_MAX: usize = 8;
/// Size of a thread's buffer.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// The buffers of one thread.
pub(super) struct Space {
    /// [`BUFFER_BYTES`] long.
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

/// Runs `walk`, which hands over batches, and `work` on each batch, with the buffers of its thread. A panic of one thread ends the
/// transfer.
pub(super) fn run<B: Send>(tally: &Tally<'_>, walk: impl FnOnce(Hand<'_, B>), work: impl Fn(B, &mut Space) + Sync) {
    let threads = dedupfs_sync::thread::available_parallelism().map_or(2, NonZero::get).min(THREADS_MAX);
    let (sender, receiver) = dedupfs_sync::channel::bounded::<B>(BATCHES_WAITING);
    dedupfs_sync::thread::scope(|scope| {
        for number in 0..threads {
            let (receiver, work) = (receiver.clone(), &work);
            let run = move || {
                let mut space = Space::default();
                receiver.iter().for_each(|batch| {
                    let _timed = profile::of(Component::Transfers);
                    work(batch, &mut space);
                });
            };
            if let Err(error) =
                dedupfs_sync::thread::Builder::new().name(format!("copy-{number}")).spawn_scoped(scope, run)
            {
                tracing::warn!(%error, number, "cannot start a thread to copy files");
                let error = TransferError::Disk { what: "cannot start a thread".to_owned(), error };
                tally.note(Err(Trouble::All(error)), Default::default);
            }
        }
        // If no thread could start, no receiver is left, and sending fails instead of blocking.
        drop(receiver);
        // Sending fails only if no thread runs. That has been noted, or the scope passes on the panics.
        walk(&|batch| drop(sender.send(batch)));
        drop(sender);
    });
}
