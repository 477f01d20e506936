//! Pins: holds on nodes and chunks that somebody needs before a logged root or node refers to them.
//!
//! A node is stored and its children are counted at once, but its own reference is logged only when the file is
//! published. In between, the node's count is zero and only its pin keeps it from reclaiming. Claiming and pinning
//! exclude each other under one lock (invariant I-4: claim, recheck, free).
//!
//! A chunk that is a whole file is pinned within the section in which it was found or stored. Reclaiming claims a
//! container, waits for all sections, notes which chunks are pinned, and waits until everything logged is counted. A
//! chunk that was pinned then is moved as those that have references: its pin may end before its reference is counted.
//! Any other has been counted if it is referred to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use dedupfs_store::Fingerprint;
use dedupfs_store::recipe::{Reference, Root};
use dedupfs_sync::Mutex;
use dedupfs_sync::canary::{Canary, is_planted};

#[derive(Debug, Default)]
struct PinState {
    pinned: HashMap<Fingerprint, u32>,
    claimed: HashSet<Fingerprint>,
    /// The claimed nodes whose freeing is logged.
    freed: HashSet<Fingerprint>,
    /// Pinned chunks.
    chunks: HashMap<Fingerprint, u32>,
}

/// Takes one from a count, and removes it at zero.
fn count_down<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
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
        count_down(&mut self.pins.state.lock().pinned, &self.fingerprint);
    }
}

/// Keeps the content that a root names from being reclaimed while it lives.
#[derive(Debug)]
#[must_use = "dropping it ends the pin"]
pub struct RootPin {
    pins: Arc<Pins>,
    reference: Reference,
}

impl Drop for RootPin {
    fn drop(&mut self) {
        let state = &mut *self.pins.state.lock();
        match &self.reference {
            Reference::Node { child, .. } => count_down(&mut state.pinned, &child.fingerprint),
            Reference::Chunk(child) => count_down(&mut state.chunks, &child.fingerprint),
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

    /// Pins what a root names. Call it within the section in which the root was built. `None` if the root names nothing.
    pub(crate) fn pin_root(self: &Arc<Self>, root: &Root) -> Option<RootPin> {
        let reference = root.reference()?;
        let state = &mut *self.state.lock();
        match &reference {
            Reference::Node { child, .. } => *state.pinned.entry(child.fingerprint).or_insert(0) += 1,
            Reference::Chunk(child) => *state.chunks.entry(child.fingerprint).or_insert(0) += 1,
        }
        Some(RootPin { pins: self.clone(), reference })
    }

    /// Returns the chunks that are pinned now.
    pub(crate) fn pinned_chunks(&self) -> HashSet<Fingerprint> {
        if is_planted(Canary::PinIgnored) {
            return HashSet::new();
        }
        self.state.lock().chunks.keys().copied().collect()
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
