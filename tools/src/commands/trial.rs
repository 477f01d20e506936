//! `--trial-recovery` of fsck and scrub.

use std::path::{Path, PathBuf};

use dedupfs::control::Failure;
use dedupfs::pool::{Progress, TrialReport};

use crate::access::{self, Access};
use crate::{exit, interrupt, report};

/// Makes a trial recovery, in the daemon if the pool is mounted, and prints the result. Returns the exit code, as for fsck.
pub fn run(pool: &Path, scratch: Option<&Path>, json: bool, progress: &dyn Progress) -> Result<u8, Failure> {
    let scratch = scratch_of(pool, scratch)?;
    let result: TrialReport = match access::reach(pool, &access::open_options("dedupfs fsck --trial-recovery", true))? {
        Access::Daemon(mut client) => client.trial_recovery(&scratch, progress)?,
        Access::Local(pool) => {
            let progress = interrupt::Interruptible { listener: progress, interrupted: interrupt::flag()? };
            access::with_local(&pool, |pool| Ok(pool.trial_recovery(&scratch, &progress)?))?
        }
    };
    exit::print(&if json { report::json(&result)? } else { report::trial(&result) })?;
    Ok(if result.is_sound() { exit::OK } else { exit::FSCK_UNCORRECTED })
}

/// The scratch space: the pool's meta root, unless the user names another place.
fn scratch_of(pool: &Path, scratch: Option<&Path>) -> Result<PathBuf, Failure> {
    let scratch = scratch.unwrap_or(pool);
    let absolute = std::path::absolute(scratch);
    absolute.map_err(|error| Failure::failed(format!("cannot resolve {}: {error}", scratch.display())))
}
