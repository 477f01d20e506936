//! `--trial-recovery` of fsck and scrub.

use std::path::{Path, PathBuf};

use dedupfs::config::MEMORY_BYTES_MIN;
use dedupfs::{OpenOptions, Progress, TrialReport};

use crate::access::{self, Access};
use crate::control::{Failure, FailureKind};
use crate::{exit, interrupt};

/// Makes a trial recovery, in the daemon if the pool is mounted; else in this process, where the pool and the trial have half of
/// `memory_bytes` each, and the least that a pool takes.
/// `None` if a signal, a stop or an unmount ended it.
pub(crate) fn run(
    pool: &Path,
    scratch: Option<&Path>,
    memory_bytes: u64,
    progress: &dyn Progress,
) -> Result<Option<TrialReport>, Failure> {
    let scratch = scratch_of(pool, scratch)?;
    let half_bytes = (memory_bytes / 2).max(MEMORY_BYTES_MIN);
    let options = OpenOptions { memory_bytes: half_bytes, ..access::to_read("dedupfs fsck --trial-recovery") };
    let progress = interrupt::ended_by_signals(progress)?;
    let made = match access::reach(pool, &options)? {
        Access::Daemon(mut client) => client.trial_recovery(&scratch, &progress),
        Access::Local(pool) => {
            access::with_local(&pool, |pool| Ok(pool.trial_recovery(&scratch, half_bytes, &progress)?))
        }
    };
    match made {
        Err(failure) if failure.kind == FailureKind::Ended || progress.is_cancelled() => {
            eprintln!("dedupfs: {failure}: no trial recovery was made, and nothing is said about the export");
            Ok(None)
        }
        made => made.map(Some),
    }
}

pub(crate) fn code(made: Option<&TrialReport>) -> u8 {
    match made {
        None => exit::FSCK_ENDED_EARLY,
        Some(report) if report.is_sound() => exit::OK,
        Some(_) => exit::FSCK_UNCORRECTED,
    }
}

/// The scratch space: the pool's meta root, unless the user names another place.
pub(crate) fn scratch_of(pool: &Path, scratch: Option<&Path>) -> Result<PathBuf, Failure> {
    let scratch = scratch.unwrap_or(pool);
    let absolute = std::path::absolute(scratch);
    absolute.map_err(|error| Failure::failed(format!("cannot resolve {}: {error}", scratch.display())))
}
