//! Reading ahead, so that the disk and the index work at the same time.

use dedupfs_base::Result;
use dedupfs_store::{ContainerId, StoreError};
use dedupfs_sync::channel::bounded;

use super::Build;

/// Number of containers whose tables, or segments, are read ahead.
const CONTAINERS_AHEAD: usize = 4;

/// Reads each container with `read` on another thread, and passes the results to `take` in the same order.
///
/// # Errors
/// The first error of `read` or `take`. If `read` fails, the progress so far is made durable: the next rebuild resumes
/// there.
pub(super) fn for_each_container<T: Send>(
    ids: &[ContainerId],
    build: &mut Build,
    read: impl Fn(ContainerId) -> Result<T> + Send,
    mut take: impl FnMut(&mut Build, ContainerId, T) -> Result<()>,
) -> Result<()> {
    dedupfs_sync::thread::scope(|scope| {
        let (sender, receiver) = bounded(CONTAINERS_AHEAD);
        let read_all = move || {
            for &id in ids {
                let found = read(id);
                let is_last = found.is_err();
                // The receiver is gone if `take` failed.
                if sender.send((id, found)).is_err() || is_last {
                    break;
                }
            }
        };
        let thread = dedupfs_sync::thread::Builder::new().name("dedupfs-rebuild".to_owned());
        thread.spawn_scoped(scope, read_all).map_err(|error| StoreError::from_io("start", "a thread", error))?;
        for (id, found) in receiver.iter() {
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    if let Err(other) = build.save() {
                        tracing::warn!(%other, "how far the rebuild came cannot be noted");
                    }
                    return Err(error);
                }
            };
            take(build, id, found)?;
            build.state.through = id.0;
            if build.chunks.wants_checkpoint() || build.nodes.wants_checkpoint() {
                build.save()?;
            }
        }
        Ok(())
    })
}
