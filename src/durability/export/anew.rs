//! Restarts of an export that cannot be continued. The meta root has all of its sources, so the pool stays open.
//!
//! The export that counts on the disk stays there, *stale*, until a new base has replaced it. The slots that it names stay too: a stale
//! export is better than none. The new base copies all recipes once more, through newly opened files: it rewrites the bytes that a failed
//! sync lost (I-7).
//!
//! After several failures in a row nothing is tried until the next mount; until then removed content keeps its space.

use std::sync::atomic::Ordering;

use dedupfs_base::Result;

use super::{Exporter, Work, is_damage};
use crate::config::EXPORT_ANEW_MAX;
use crate::durability::export::mirror::Mirror;

impl Work {
    /// Returns the generation that counts on the disk.
    pub(super) fn counting(&self) -> Option<u64> {
        self.live.as_ref().map(|live| live.current.generation).or(self.stale)
    }
}

impl Exporter {
    /// Whether exporting is suspended until the next mount.
    pub(super) fn is_at_rest(&self) -> bool {
        self.working.lock().failures_anew > EXPORT_ANEW_MAX
    }

    /// Handles a failure. Failures of the export's own files end that export, and the next one begins with a base. Damage of the
    /// exported data is final. Lack of space passes.
    pub(super) fn conclude(&self, work: &mut Work, outcome: Result<()>) -> Result<()> {
        let Err(error) = outcome else { return Ok(()) };
        if error.is_no_space() || work.failed.is_some() || self.is_ended.load(Ordering::Relaxed) {
            return Err(error);
        }
        if is_damage(&error) {
            work.failed = Some(error.clone());
            return Err(error);
        }
        work.stale = work.counting();
        work.live = None;
        // Writes through its open files may be lost.
        work.mirror = Mirror::new(self.device.clone(), self.slot_bytes);
        work.failures_anew += 1;
        self.state.lock().show(None);
        if work.failures_anew > EXPORT_ANEW_MAX {
            tracing::error!(
                %error,
                "the namespace cannot be exported to the data root: until the next mount it is not tried again, a lost meta root comes \
                 back as it was at the last export, and what is removed keeps its space"
            );
        } else {
            tracing::error!(%error, "the export of the namespace cannot be gone on with: it is made anew");
            self.request();
        }
        Ok(())
    }

    /// Handles a lack of room for a new base. Removing a stale export may make room, if containers wait to be freed.
    pub(super) fn make_room(&self, work: &mut Work) -> Result<()> {
        work.failures += 1;
        if work.stale.is_some() && !self.state.lock().leaving.is_empty() {
            tracing::warn!("until there is space for an export, a lost meta root cannot be recovered");
            return self.give_up_export(work);
        }
        self.remove_files(work, work.counting());
        Ok(())
    }
}
