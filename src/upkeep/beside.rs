//! A thread of upkeep beside the clients' work.

use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::StoreError;
use dedupfs_sync::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use dedupfs_sync::thread::JoinHandle;

/// A thread; dropping this ends it after its current step, and waits for that.
pub(crate) struct Beside {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Beside {
    /// Starts the thread. Its `work` ends when the channel is closed.
    pub(crate) fn start(name: &str, work: impl FnOnce(&Receiver<()>) + Send + 'static) -> Result<Self> {
        let (stop, stopped) = bounded(1);
        let thread = dedupfs_sync::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&stopped))
            .map_err(|error| StoreError::from_io("start", format!("thread {name}"), error))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Tells the thread to end, and does not wait for that.
    pub(crate) fn hurry(&mut self) {
        self.stop = None;
    }

    /// Ends the thread; returns whether it was still running.
    pub(crate) fn end(self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != dedupfs_sync::thread::current().id()
        {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a thread panicked");
            }
        }
    }
}

/// Waits; returns `false` if the thread is to end.
pub(crate) fn goes_on_after(stopped: &Receiver<()>, wait: Duration) -> bool {
    stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
}
