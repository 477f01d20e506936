//! The end of a session: closing, and becoming read-only for a while.

use dedupfs_base::{ReadOnly, Result};

use super::{Pool, busy};
use crate::config::CLOSE_PATIENCE;
use crate::upkeep::beside::Beside;

impl Pool {
    /// Closes the pool: makes everything durable, seals the containers and writes checkpoints of the indexes. Calls of the service fail
    /// from then on.
    ///
    /// # Errors
    /// An error that prevented durability. The pool is closed all the same, as after a crash.
    pub fn close(&self) -> Result<()> {
        if self.commit_thread.lock().is_none() {
            return Ok(());
        }
        self.scrub.stop();
        self.reclaiming.close();
        self.core.exporter.hurry(true);
        drop(self.export_watch.lock().take());
        drop(self.suspects.lock().take());
        if let Some(watch) = &mut *self.index_watch.lock() {
            watch.hurry();
        }
        if *self.is_settled.lock() {
            // All changes are durable already, or were only made in memory.
            self.core.gate.close(CLOSE_PATIENCE);
            self.stop();
            return Ok(());
        }
        // From here on, new changes are refused, because they could not become durable. Accepted changes are published.
        let drained = self.core.gate.drain(CLOSE_PATIENCE);
        if !drained {
            tracing::error!("a request hangs: the pool is closed without its changes");
        }
        // Log rows of a reclaim behind the last checkpoint would need a recovery.
        let ended = self.reclaiming.end(CLOSE_PATIENCE);
        if ended.is_none() {
            tracing::error!("a reclaim hangs: the pool is closed meanwhile, and the next mount recovers its changes");
        }
        let published = self.service.publish_all(None, (!drained).then_some(CLOSE_PATIENCE));
        self.core.gate.close(CLOSE_PATIENCE);
        let outcome = self.put_in_order();
        self.stop();
        // A running check reads the namespace, so the namespace is then not compacted.
        if outcome.is_ok()
            && let Some(_one) = self.exclusive.try_lock()
            && let Err(error) = self.core.exporter.while_quiet(|| self.core.namespace.compact_small())
        {
            tracing::warn!(%error, "the namespace was not made smaller");
        }
        outcome.and(published)
    }

    /// Seals the containers and makes everything durable, so the next open has nothing to recover.
    fn put_in_order(&self) -> Result<()> {
        let (core, committer) = (&self.core, &self.core.committer);
        core.stores.data.seal_all();
        core.stores.recipes.seal_all();
        let outcome = match committer.checkpoint() {
            // This last round trims the log.
            Ok(_) => committer
                .settle()
                .and_then(|()| committer.export())
                .and_then(|()| committer.settle())
                .and_then(|()| core.exporter.sync_note()),
            Err(error) => {
                committer.commit()?;
                if !error.is_no_space() {
                    return Err(error);
                }
                tracing::warn!(
                    "no room to close the pool in order: all written data is durable, and the next mount counts the end of the \
                     log anew, once there is room for that"
                );
                Ok(())
            }
        };
        outcome.inspect(|()| core.stores.data.sync_given_back())
    }

    /// Makes the pool read-only for a while. On return everything is durable, and nothing is written until
    /// [`set_writable`](Self::set_writable). Stops a running scrub or reclaim.
    ///
    /// # Errors
    /// `Busy` if a check is running, or if a scrub, reclaim or request does not end; an error that prevented durability. After an error
    /// the pool stays writable.
    pub fn set_read_only(&self) -> Result<()> {
        let mut is_settled = self.is_settled.lock();
        if *is_settled {
            return Ok(());
        }
        let _no_reclaim = self.reclaiming.end(CLOSE_PATIENCE).ok_or_else(|| busy("a reclaim that does not end"))?;
        let _one = self.exclusively()?;
        self.scrub.stop();
        self.core.exporter.hurry(true);
        *self.watch_ended.lock() |= self.export_watch.lock().take().is_some_and(Beside::end);
        let no_scrub = self.scrub.running.try_lock_for(CLOSE_PATIENCE);
        self.core.exporter.hurry(false);
        let outcome = match no_scrub {
            Some(_no_scrub) => self.pause_and_sync(),
            None => Err(busy("a scrub that does not end")),
        };
        *is_settled = outcome.is_ok();
        if outcome.is_err() {
            self.resume_watch();
        }
        outcome
    }

    /// Pauses changes and makes everything durable. After an error the pool stays writable.
    fn pause_and_sync(&self) -> Result<()> {
        if !self.core.gate.pause(CLOSE_PATIENCE) {
            return Err(busy("a request that does not end"));
        }
        let outcome = self.service.publish_all(None, Some(CLOSE_PATIENCE)).and_then(|()| self.put_in_order());
        if outcome.is_err() {
            self.core.gate.resume();
        }
        outcome
    }

    /// Ends the read-only state that [`set_read_only`](Self::set_read_only) began.
    ///
    /// # Errors
    /// `ReadOnly` for a pool that was opened read-only, or that a failure made read-only.
    pub fn set_writable(&self) -> Result<()> {
        let mut is_settled = self.is_settled.lock();
        if self.core.opened_read_only {
            return Err(ReadOnly::RecoveredInMemory.into());
        }
        self.core.check_failure()?;
        self.core.gate.resume();
        *is_settled = false;
        self.resume_watch();
        // Inodes that were closed meanwhile could not be dropped. If they cannot be listed, the next mount drops them.
        match self.core.namespace.orphans() {
            Ok(orphans) => orphans.into_iter().for_each(|ino| self.service.collect(ino)),
            Err(error) => tracing::warn!(%error, "removed inodes stay until the next mount"),
        }
        Ok(())
    }

    /// Restarts the verification of the export if becoming read-only ended it.
    fn resume_watch(&self) {
        if std::mem::take(&mut *self.watch_ended.lock())
            && let Err(error) = self.watch_export()
        {
            tracing::warn!(%error, "the export is not verified in the background");
        }
    }
}
