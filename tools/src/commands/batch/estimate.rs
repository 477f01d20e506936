//! Estimates of the bytes that are read of a disk, without asking its source.

use dedupfs_batch::plan::{Disk, Plan};
use dedupfs_batch::source::Kind;

use super::disk::State;
use crate::image_source::open_disk;

/// Bytes that a disk is taken to have if neither its file nor a version tells.
const UNKNOWN_BYTES: u64 = 40_000_000_000;
/// Part of a disk that is taken to have changed, if its source tells changes.
const CHANGED_PERCENT: u64 = 5;

/// What is to be read of a disk.
pub(super) struct Estimate {
    /// None, if the disk would not be begun.
    pub(super) bytes: u64,
    /// Whether the size of the disk is known.
    pub(super) is_size_known: bool,
    /// Why the disk would not be begun, as far as that is known.
    pub(super) problem: Option<String>,
}

pub(super) fn estimate(plan: &Plan, state: &State, disk: &Disk) -> Estimate {
    let of_source = match &disk.source {
        Kind::File { path } => Some(open_disk(path).map(|(_, _, size_bytes)| size_bytes)),
        _ => None,
    };
    let (of_source, why) = match of_source {
        Some(Err(failure)) => (None, Some(failure.message)),
        Some(Ok(size_bytes)) => (Some(size_bytes), None),
        None => (None, None),
    };
    let problem = state.problem.clone().or(why);
    let known_bytes = of_source.or(state.newest.as_ref().map(|newest| newest.image.size_bytes));
    let size_bytes = known_bytes.unwrap_or(UNKNOWN_BYTES);
    // Changes count from the checkpoint of the newest version.
    let has_token = state.newest.as_ref().is_some_and(|newest| newest.image.token.is_some());
    let reads_part = disk.source.tells_changes() && has_token && !state.needs_full_verify(plan);
    let bytes = match (&problem, reads_part) {
        (Some(_), _) => 0,
        (None, true) => size_bytes / 100 * CHANGED_PERCENT,
        (None, false) => size_bytes,
    };
    Estimate { bytes, is_size_known: known_bytes.is_some(), problem }
}
