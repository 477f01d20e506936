//! An export that cannot be gone on with is made anew: the meta root has everything that it is made from, so it is no reason to end
//! the pool.
//!
//! What counts on the disk stays there until a new base has taken its place, and what it names keeps its slots: it is *stale*, and
//! better than nothing. The new base copies all recipes once more, through files that are opened anew: what a failed sync has lost is
//! written again (I-7).
//!
//! A disk that refuses again and again is left in peace until the next mount; what was removed keeps its space until then.

use std::sync::atomic::Ordering;

use super::{Exporter, Work, is_damage};
use crate::config::EXPORT_ANEW_MAX;
use crate::error::Result;
use crate::export::mirror::Mirror;

impl Work {
    /// The generation that counts on the disk.
    pub(super) fn counting(&self) -> Option<u64> {
        self.live.as_ref().map(|live| live.current.generation).or(self.stale)
    }
}

impl Exporter {
    /// Whether no export is made any more until the next mount.
    pub(super) fn is_at_rest(&self) -> bool {
        self.working.lock().failures_anew > EXPORT_ANEW_MAX
    }

    /// What becomes of a failure. One of the export's own files ends that export, and the next one begins with a base; damage of what
    /// is exported is final, and lack of space passes.
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
        // What was written through its files may be lost.
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

    /// There is no room for a new base. Beside one that is stale there may be, for what waits to be freed.
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
