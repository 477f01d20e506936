//! `dedupfs scrub`. Its exit codes are those of fsck.

#[cfg(feature = "remote")]
mod heal;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dedupfs::OpenOptions;
use dedupfs::scrub::{ScrubOptions, ScrubPosition, ScrubReport, ScrubStatus};
use dedupfs_store::device::{FileDevice, PoolLock};
use dedupfs_store::superblock::{Role, Superblock};

use super::trial;
use crate::access::{self, Access};
use crate::args::ScrubArgs;
use crate::control::{ControlClient, Failure};
use crate::progress::Bars;
use crate::{exit, interrupt, report, silence, target};

pub(crate) fn run(args: &ScrubArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    if args.stop {
        let client = silence::connect(&target.pool)?;
        let mut client = client.ok_or_else(|| {
            access::nothing_to_stop(&target.pool, ". It reports its progress, and the next scrub continues there")
        })?;
        let status = client.scrub_status();
        client.stop_scrub()?;
        let status = status?;
        if status.in_trial {
            client.stop_trial()?;
        }
        if !status.running && !status.in_trial {
            return Err(Failure::failed("nothing scrubs this pool"));
        }
        exit::print_done(args.json, "scrub --stop")?;
        return Ok(exit::OK);
    }
    if args.status
        && silence::connect(&target.pool)?.is_none()
        && let Some(holder) = PoolLock::holder(&target.pool)
    {
        return tell_of_another(&target.pool, &holder, args.json);
    }
    #[cfg(feature = "remote")]
    let reader = args.heal_from.as_ref().map(|store| heal::find(&target.pool, store, &args.view)).transpose()?;
    let options = ScrubOptions { rate_bytes_per_s: args.rate, restart: args.restart };
    let bars = Bars::default();
    let pool = target.pool.clone();
    let open = OpenOptions { read_only: args.status, ..access::to_write("dedupfs scrub") };
    let result = match access::reach(&target.pool, &open)? {
        Access::Daemon(mut client) if args.status => return tell(&client.scrub_status()?, args.json),
        Access::Local(pool) if args.status => {
            let status = access::with_local(&pool, |pool| Ok(pool.scrub_status()?))?;
            return tell(&status, args.json);
        }
        Access::Daemon(mut client) => {
            // In the trial the closed connection stops it; another scrub is somebody else's.
            let is_scrubbing = Arc::new(AtomicBool::new(true));
            let stops = is_scrubbing.clone();
            let stop = move |client: &mut ControlClient| match stops.load(Ordering::Relaxed) {
                true => client.stop_scrub(),
                false => Ok(()),
            };
            let what = if args.trial_recovery { "the scrub, or its trial recovery" } else { "the scrub" };
            interrupt::on_signals(target.pool, what, stop)?;
            let result = client.scrub(&options, &bars)?;
            is_scrubbing.store(false, Ordering::Relaxed);
            result
        }
        Access::Local(pool) => {
            let progress = interrupt::ended_by_signals(&bars)?;
            access::with_local(&pool, |pool| Ok(pool.scrub(&options, &progress)?))?
        }
    };
    drop(bars);
    if !args.json {
        exit::print(&report::scrub(&result))?;
    }
    let (mut trial, mut code) = (None, code(&result));
    #[cfg(feature = "remote")]
    let healed = reader.map(|reader| heal::run(&pool, reader)).transpose()?;
    #[cfg(not(feature = "remote"))]
    let healed = None::<report::Healed>;
    if let Some(healed) = &healed {
        if !args.json {
            exit::print(&report::healed(healed))?;
        }
        // Everything that was found is whole again.
        if healed.left == 0 && healed.healed > 0 && !result.is_export_bad() && !result.counts_in_doubt {
            code = code & !exit::FSCK_UNCORRECTED | exit::FSCK_CORRECTED;
        }
    }
    if args.trial_recovery {
        // A signal may have come when the scrub was done and its result was not here yet.
        if !result.finished || interrupt::exit_code().is_some() {
            eprintln!("dedupfs: the scrub was stopped, so no trial recovery is made");
            code |= exit::FSCK_ENDED_EARLY;
        } else {
            match trial::run(&pool, args.scratch.as_deref(), OpenOptions::default().memory_bytes, &Bars::default()) {
                Ok(made) => {
                    code |= trial::code(made.as_ref());
                    trial = made;
                }
                // The result of the scrub counts all the same.
                Err(failure) => {
                    eprintln!("dedupfs: the scrub is done, but no trial recovery was made: {failure}");
                    code |= exit::fsck_code(failure.kind);
                }
            }
        }
    }
    exit::print(&match (args.json, &trial) {
        (true, made) => report::scrub_json(&result, made.as_ref(), healed.as_ref())?,
        (false, made) => made.as_ref().map(report::trial).unwrap_or_default(),
    })?;
    Ok(code)
}

fn code(result: &ScrubReport) -> u8 {
    let is_renewed = result.export.as_ref().is_some_and(|export| export.renewed);
    let found = match result.is_clean() && !result.is_export_bad() && !result.counts_in_doubt {
        false => exit::FSCK_UNCORRECTED,
        true if is_renewed || result.repaired_nodes > 0 => exit::FSCK_CORRECTED,
        true => exit::OK,
    };
    if result.finished { found } else { found | exit::FSCK_ENDED_EARLY }
}

/// Shows the last durable position of a scrub, for a pool that another process has.
fn tell_of_another(pool: &Path, holder: &str, json: bool) -> Result<u8, Failure> {
    let device = FileDevice::open(pool)?;
    let superblock = Superblock::read(&device, Role::Meta)?;
    let position = ScrubPosition::read(&device, &superblock.pool)?;
    let is_scrub = holder.contains("(dedupfs scrub)");
    let running = is_scrub && position.is_none_or(|position| position.finished_secs == 0);
    if !json {
        exit::print(&format!("{holder} {} the pool\n", if is_scrub { "scrubs" } else { "works on" }))?;
    }
    tell(&ScrubStatus { running, position, ..ScrubStatus::default() }, json)
}

fn tell(status: &ScrubStatus, json: bool) -> Result<u8, Failure> {
    exit::print_message(json, "scrub_status", status, report::scrub_status)?;
    Ok(exit::OK)
}
