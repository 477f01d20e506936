//! The same work on many things, on several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dedupfs::Progress;
use dedupfs_sync::{Mutex, thread};

use crate::error::{ReplicaError, Result};

/// Works on all `items`, in their order, on so many threads; returns the results, in no order. The first error ends it, as does the caller.
/// `cost` is the progress of one item.
pub(crate) fn for_each<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    progress: &dyn Progress,
    cost: impl Fn(&T) -> u64 + Sync,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let outcome = Mutex::new((Vec::with_capacity(items.len()), None));
    let run = || {
        while !is_over.load(Ordering::Relaxed) {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let one = if progress.is_cancelled() { Err(ReplicaError::Ended) } else { work(item) };
            progress.advance(cost(item));
            let (results, error) = &mut *outcome.lock();
            match one {
                Ok(result) => results.push(result),
                Err(failure) => {
                    is_over.store(true, Ordering::Relaxed);
                    error.get_or_insert(failure);
                }
            }
        }
    };
    thread::scope(|scope| {
        for number in 1..threads.clamp(1, 64).min(items.len()) {
            let started = thread::Builder::new().name(format!("replica-{number}")).spawn_scoped(scope, run);
            if let Err(error) = started {
                tracing::warn!(%error, "fewer requests at once than asked for: no thread could be started");
                break;
            }
        }
        run();
    });
    match outcome.into_inner() {
        (_, Some(error)) => Err(error),
        (results, None) => Ok(results),
    }
}
