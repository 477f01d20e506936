//! Background verification of the export after a mount: once, at the pace of a scrub. Bad parts are reported and rewritten.
//!
//! One thread, which ends with the verification or when the pool closes. It yields to new bases, and rests longer while clients are
//! active. No write waits for it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dedupfs_base::Result;
use dedupfs_sync::channel::Receiver;
use dedupfs_sync::clock::Instant;

use super::beside::{Beside, goes_on_after};
use crate::config::{EXPORT_INTERVAL, EXPORT_VERIFY_BYTES_PER_S};
use crate::durability::export::{CopyDepth, ExportCheck, is_damage};
use crate::engine::Core;

/// Attempts; a new base, or a pool that is read-only for a while, can interrupt one.
const TRIES: usize = 20;
/// Clients count as active for this time after a request.
const ACTIVE: Duration = Duration::from_secs(1);
/// Longest rest after one step.
const REST_MAX: Duration = Duration::from_secs(2);

/// Starts the thread; it begins its work `after` this time.
pub(crate) fn start(core: &Arc<Core>, after: Duration) -> Result<Beside> {
    let core = Arc::downgrade(core);
    Beside::start("export-verify", move |stopped| watch(&core, after, stopped))
}

fn watch(core: &Weak<Core>, after: Duration, stopped: &Receiver<()>) {
    let mut wait = after;
    for _ in 0..TRIES {
        if !goes_on_after(stopped, wait) {
            return;
        }
        let Some(core) = core.upgrade() else { return };
        match verify(&core, stopped) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => return tracing::warn!(%error, "the export on the data root cannot be verified"),
        }
        wait = EXPORT_INTERVAL;
    }
    tracing::warn!(
        "the export was written again and again while it was verified: the next scrub, fsck or mount verifies it"
    );
}

/// Verifies the export once; returns whether the verification came to its end.
fn verify(core: &Core, stopped: &Receiver<()>) -> Result<bool> {
    let (begun, mut read_bytes, mut since) = (Instant::now(), 0_u64, Instant::now());
    let mut check = core.exporter.verify(CopyDepth::Content, &mut |bytes| {
        read_bytes += bytes;
        let worked = since.elapsed() * if core.activity.idle_for() < ACTIVE { 3 } else { 1 };
        let due = Duration::from_secs_f64(read_bytes as f64 / EXPORT_VERIFY_BYTES_PER_S as f64);
        let rest = worked.max(due.saturating_sub(begun.elapsed())).min(REST_MAX);
        let goes_on = goes_on_after(stopped, rest);
        since = Instant::now();
        goes_on && !core.exporter.is_verification_wanted()
    })?;
    if check.stopped {
        return Ok(false);
    }
    if check.is_bad() {
        return renew(core, &mut check);
    }
    let ExportCheck { row, items, copies, bytes_read, .. } = check;
    tracing::info!(row, items, copies, bytes_read, "the export on the data root was verified");
    Ok(true)
}

fn renew(core: &Core, check: &mut ExportCheck) -> Result<bool> {
    // Closing and becoming read-only wait for this pass.
    let Ok(_pass) = core.begin_change() else { return Ok(false) };
    match core.exporter.renew(check) {
        Err(error) if is_damage(&error) => Err(error),
        // A target that cannot be written is unreliable; the next export meets the error too.
        Err(error) => {
            tracing::error!(%error, "the export on the data root cannot be written anew");
            Ok(true)
        }
        Ok(()) => Ok(check.renewed),
    }
}
