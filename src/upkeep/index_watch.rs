//! Work on the indexes that nobody waits for: listing lost fingerprints, and guides to old tankers (see `dedupfs_index`).
//!
//! One thread. It works half of the time while clients are active.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::profile::{self, Component};
use dedupfs_sync::channel::Receiver;
use dedupfs_sync::clock::Instant;

use super::beside::{Beside, goes_on_after};
use crate::engine::Core;

/// Time until the next try after an error.
const AFTER_ERROR: Duration = Duration::from_secs(600);
/// Clients count as active for this time after a request.
const ACTIVE: Duration = Duration::from_secs(1);
/// Longest rest after one step.
const REST_MAX: Duration = Duration::from_secs(1);

/// Starts the thread for a pool that is open for writing. It looks at each `interval`.
pub(crate) fn start(core: &Arc<Core>, interval: Duration) -> Result<Beside> {
    let core = Arc::downgrade(core);
    Beside::start("index-upkeep", move |stopped| watch(&core, interval, stopped))
}

fn watch(core: &Weak<Core>, interval: Duration, stopped: &Receiver<()>) {
    if let Some(core) = core.upgrade() {
        let mut go_on = || goes_on_after(stopped, Duration::ZERO);
        core.indexes.gather_lost(&mut go_on);
        core.indexes.chunks.load_guides(&mut go_on);
        core.indexes.nodes.load_guides(&mut go_on);
    }
    let mut wait = interval;
    while goes_on_after(stopped, wait) {
        let Some(core) = core.upgrade() else { return };
        wait = interval.max(tend(&core, stopped));
    }
}

/// Tends both indexes; returns a least time until the next look.
fn tend(core: &Core, stopped: &Receiver<()>) -> Duration {
    let mut wait = Duration::ZERO;
    for index in [&core.indexes.chunks, &core.indexes.nodes] {
        let mut since = Instant::now();
        // Becoming read-only, closing and a failure end the work: nothing is written without a pass.
        let mut pass = None;
        let mut go_on = || {
            pass = None;
            let rest = if core.activity.idle_for() < ACTIVE { since.elapsed().min(REST_MAX) } else { Duration::ZERO };
            // Guides take room, and are not needed.
            let rests = (!rest.is_zero()).then(|| profile::of(Component::Rest));
            let goes_on = goes_on_after(stopped, rest);
            drop(rests);
            let goes_on = goes_on && !core.space.is_tight();
            let is_sound = goes_on && !core.opened_read_only && core.check_failure().is_ok();
            pass = if is_sound { core.gate.enter().ok() } else { None };
            since = Instant::now();
            pass.is_some()
        };
        index.load_guides(&mut || goes_on_after(stopped, Duration::ZERO));
        match index.tend_guides(&mut go_on) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("a guide to old tankers of the index was made; the next checkpoint publishes it")
            }
            Err(error) => {
                tracing::warn!(%error, "no guide to old tankers of the index can be made");
                wait = AFTER_ERROR;
            }
        }
    }
    wait
}
