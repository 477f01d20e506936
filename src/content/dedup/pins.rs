//! Pins: holds on recipe nodes that an open file needs before a logged root refers to them.
//!
//! A node is stored and its children are counted at once, but its own reference is logged only when the file is
//! published. In between, the node's count is zero and only its pin keeps it from reclaiming. Claiming and pinning
//! exclude each other under one lock (invariant I-4: claim, recheck, free).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_store::Fingerprint;
use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};

#[derive(Debug, Default)]
struct PinState {
    pinned: HashMap<Fingerprint, u32>,
    claimed: HashSet<Fingerprint>,
    /// The claimed nodes whose freeing is logged.
    freed: HashSet<Fingerprint>,
}

/// The nodes pinned by writers and the nodes claimed by reclaiming.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    state: Mutex<PinState>,
}

/// Keeps one node from being claimed while it lives.
#[derive(Debug)]
#[must_use = "dropping it ends the pin"]
pub struct Pin {
    pins: Arc<Pins>,
    fingerprint: Fingerprint,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.pins.state.lock();
        if let Some(count) = state.pinned.get_mut(&self.fingerprint) {
            *count -= 1;
            if *count == 0 {
                state.pinned.remove(&self.fingerprint);
            }
        }
    }
}

impl Pins {
    /// Pins a node that the index has. `None` if it is claimed: the caller must store it again.
    pub(crate) fn pin_existing(self: &Arc<Self>, fingerprint: Fingerprint) -> Option<Pin> {
        let mut state = self.state.lock();
        if state.claimed.contains(&fingerprint) && !is_planted(Canary::ClaimIgnored) {
            return None;
        }
        *state.pinned.entry(fingerprint).or_insert(0) += 1;
        drop(state);
        Some(Pin { pins: self.clone(), fingerprint })
    }

    /// Pins a node that was just stored, even if an older copy is claimed.
    pub(crate) fn pin_new(self: &Arc<Self>, fingerprint: Fingerprint) -> Pin {
        *self.state.lock().pinned.entry(fingerprint).or_insert(0) += 1;
        Pin { pins: self.clone(), fingerprint }
    }

    /// Claims a node for reclaiming. Returns false if it is pinned or already claimed.
    pub(crate) fn claim(&self, fingerprint: Fingerprint) -> bool {
        let mut state = self.state.lock();
        let is_pinned = state.pinned.contains_key(&fingerprint) && !is_planted(Canary::PinIgnored);
        !is_pinned && state.claimed.insert(fingerprint)
    }

    /// Whether a writer has pinned it.
    #[must_use]
    pub(crate) fn is_pinned(&self, fingerprint: &Fingerprint) -> bool {
        self.state.lock().pinned.contains_key(fingerprint) && !is_planted(Canary::PinIgnored)
    }

    /// Notes that the freeing of a claimed node is logged: a writer that stores it again makes a new copy.
    pub(crate) fn note_freed(&self, fingerprint: Fingerprint) {
        self.state.lock().freed.insert(fingerprint);
    }

    /// Whether the freeing of a claimed node is logged.
    pub(crate) fn is_freed(&self, fingerprint: &Fingerprint) -> bool {
        self.state.lock().freed.contains(fingerprint)
    }

    pub(crate) fn end_claim(&self, fingerprint: &Fingerprint) {
        let mut state = self.state.lock();
        state.claimed.remove(fingerprint);
        state.freed.remove(fingerprint);
    }

    /// Ends all claims.
    pub(crate) fn release_claims(&self) {
        let mut state = self.state.lock();
        state.claimed.clear();
        state.freed.clear();
    }
}
