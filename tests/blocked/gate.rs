//! A disk that can be made to hang, and a check that other threads do not hang with it.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, Observer};
use dedupfs_store::waiting;
use parking_lot::{Condvar, Mutex};

/// Time without an answer after which a request hangs: much longer than any step on a slow machine, and shorter than
/// the export's interval, so that the export does not hang in the gate.
const PATIENCE: Duration = Duration::from_secs(45);

type Matches = fn(&Call<'_>) -> bool;

#[derive(Default)]
struct State {
    /// The operations that hang, and how many more of them may.
    closed: Option<(Matches, usize)>,
    hanging: usize,
}

/// Holds back operations of a device.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Observer for Gate {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        if let Some((matches, left)) = &mut state.closed
            && *left > 0
            && matches(call)
        {
            *left -= 1;
            state.hanging += 1;
            self.changed.notify_all();
            // The real device announces its waits in the same way.
            waiting::announce();
            while state.closed.is_some() {
                self.changed.wait(&mut state);
            }
            state.hanging -= 1;
        }
        drop(state);
        perform()
    }
}

impl Gate {
    /// Makes the next `count` matching operations hang.
    pub fn close(self: &Arc<Self>, count: usize, matches: Matches) -> Closed {
        self.state.lock().closed = Some((matches, count));
        Closed(self.clone())
    }
}

/// Keeps the gate closed until it is dropped.
pub struct Closed(Arc<Gate>);

impl Closed {
    /// Waits until an operation hangs.
    #[track_caller]
    pub fn wait(&self) {
        let mut state = self.0.state.lock();
        while state.hanging == 0 {
            let timed_out = self.0.changed.wait_for(&mut state, PATIENCE).timed_out();
            assert!(!timed_out || state.hanging > 0, "nothing came to hang: this test proves nothing");
        }
    }

    /// Runs `action`, which must not wait for the hanging operations.
    #[track_caller]
    pub fn goes_on<T: Send>(&self, what: &str, action: impl FnOnce() -> T + Send) -> T {
        let (send, receive) = channel();
        let (outcome, hung) = std::thread::scope(|scope| {
            scope.spawn(move || send.send(action()).expect("somebody listens"));
            let outcome = receive.recv_timeout(PATIENCE);
            let hung = self.0.state.lock().hanging;
            if outcome.is_err() {
                // Without this the threads would never end.
                self.0.open();
            }
            (outcome, hung)
        });
        assert!(hung > 0, "{what}: nothing hangs any more");
        outcome.unwrap_or_else(|_| panic!("{what}: waits for somebody else's disk"))
    }
}

impl Gate {
    fn open(&self) {
        self.state.lock().closed = None;
        self.changed.notify_all();
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.open();
    }
}
