//! Photographs of disks in use. Before every operation that changes anything, the camera keeps the disks and their
//! caches, with the states that a power loss at that moment may show afterwards.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dedupfs_store::Result;
use dedupfs_store::device::observed::{Call, Observer};

use crate::disks::Disks;

/// All states of the work so far, in order, and the index of the last one that is certainly durable.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub states: Vec<Arc<str>>,
    pub durable: usize,
}

impl Ledger {
    /// Returns the states that a power loss now may show afterwards.
    pub fn allowed(&self) -> Vec<Arc<str>> {
        self.states[self.durable..].to_vec()
    }
}

/// Disks before one operation.
#[derive(Debug)]
pub struct Photograph {
    pub operation: u64,
    /// The operation, in words.
    pub call: String,
    /// Whether the operation makes something durable or replaces something. A power loss before it matters most.
    pub is_barrier: bool,
    pub disks: Disks,
    pub allowed: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct Roll {
    operation: u64,
    taken: Vec<Photograph>,
}

/// Puts all operations that change the disks into one order and photographs the disks before each. Both disks are
/// photographed together: no operation runs on one disk while the other is copied.
#[derive(Debug)]
pub struct Camera {
    disks: Disks,
    ledger: Mutex<Ledger>,
    roll: Mutex<Roll>,
    /// Photographs only these operations; `None`: all.
    window: Option<RangeInclusive<u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Camera {
    pub fn new(disks: &Disks, ledger: Ledger, window: Option<RangeInclusive<u64>>) -> Self {
        Self { disks: disks.clone(), ledger: Mutex::new(ledger), roll: Mutex::default(), window }
    }

    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Takes the photographs since the last call.
    pub fn develop(&self) -> Vec<Photograph> {
        std::mem::take(&mut lock(&self.roll).taken)
    }

    /// Photographs the disks once more, as they are now.
    pub fn photograph_now(&self) {
        self.take(&mut lock(&self.roll), "nothing more".to_owned(), true);
    }

    fn take(&self, roll: &mut Roll, call: String, is_barrier: bool) {
        let operation = roll.operation;
        roll.operation += 1;
        if self.window.as_ref().is_none_or(|window| window.contains(&operation)) {
            let allowed = self.ledger().allowed();
            roll.taken.push(Photograph { operation, call, is_barrier, disks: self.disks.fork(), allowed });
        }
    }
}

impl Observer for Camera {
    fn around(&self, call: &Call<'_>, perform: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        if !call.is_change() {
            return perform();
        }
        let mut roll = lock(&self.roll);
        let is_barrier = matches!(
            call,
            Call::Sync { .. }
                | Call::SyncDirectory { .. }
                | Call::Rename { .. }
                | Call::Remove { .. }
                | Call::Punch { .. }
        );
        self.take(&mut roll, format!("{call:?}"), is_barrier);
        perform()
    }
}
