//! Work on the indexes that nobody waits for: listing lost fingerprints, guides to old tankers (see `dedupfs_index`), memory of filters by
//! the pool's growth, and checkpoints while nothing happens.
//!
//! One thread. It makes guides half of the time while clients are active.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_store::profile::{self, Component};
use dedupfs_sync::channel::Receiver;
use dedupfs_sync::clock::Instant;

use super::beside::{Beside, goes_on_after};
use super::growth;
use super::quiet::{Limits, Quiet};
use crate::engine::Core;

/// Time until guides are made again after an error.
const AFTER_ERROR: Duration = Duration::from_secs(600);
/// Clients count as active for this time after a request.
const ACTIVE: Duration = Duration::from_secs(1);
/// Longest rest after one step.
const REST_MAX: Duration = Duration::from_secs(1);

/// Starts the thread. It looks at each `interval`, and ends behind loading if the pool was opened read-only.
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
        if core.opened_read_only {
            return;
        }
    }
    let (mut quiet, mut failed) = (Quiet::new(Limits::default()), None::<Instant>);
    while goes_on_after(stopped, interval) {
        let Some(core) = core.upgrade() else { return };
        growth::follow(&core);
        quiet.look(&core);
        if failed.is_none_or(|failed| failed.elapsed() >= AFTER_ERROR) {
            failed = (!tend(&core, stopped)).then(Instant::now);
        }
    }
}

/// Tends the guides of both indexes; returns whether there was no error.
fn tend(core: &Core, stopped: &Receiver<()>) -> bool {
    let mut is_well = true;
    for index in [&core.indexes.chunks, &core.indexes.nodes] {
        let mut since = Instant::now();
        // Becoming read-only, closing and a failure end the work: nothing is written without a pass.
        let mut pass = None;
        let mut go_on = || {
            pass = None;
            // A guide may take hours, and meanwhile the pool grows.
            growth::follow(core);
            let rest = if core.activity.idle_for() < ACTIVE { since.elapsed().min(REST_MAX) } else { Duration::ZERO };
            // Guides take room, and are not needed.
            let rests = (!rest.is_zero()).then(|| profile::of(Component::Rest));
            let goes_on = goes_on_after(stopped, rest);
            drop(rests);
            let goes_on = goes_on && !core.space.is_tight();
            let is_sound = goes_on && core.check_failure().is_ok();
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
                is_well = false;
            }
        }
    }
    is_well
}
