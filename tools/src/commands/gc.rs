//! `dedupfs-gc`.

use std::path::Path;
use std::time::Duration;

use dedupfs::reclaim::{ReclaimOptions, ReclaimStatus, Stopped};
use dedupfs::{OpenOptions, Progress};

use crate::access::{self, Access};
use crate::args::Gc;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::{Bars, JsonLines};
use crate::{exit, interrupt, report, silence, target};

const STOP_NAP: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Gc) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    if args.pause || args.resume || args.stop {
        return order(args, &target.pool);
    }
    if args.status {
        return status(args, &target.pool);
    }
    let options = options(args);
    let (bars, lines) = (Bars::default(), JsonLines::default());
    let progress: &dyn Progress = if args.json { &lines } else { &bars };
    // A plan changes nothing: a crash is recovered in memory only.
    let result = match access::reach(
        &target.pool,
        &OpenOptions { read_only: args.dry_run, ..access::to_write("dedupfs-gc") },
    )? {
        Access::Daemon(mut client) => {
            if !args.dry_run {
                interrupt::on_signals(target.pool, "reclaiming", ControlClient::stop_reclaim)?;
            }
            // The command line was valid, so a usage error comes from the state of the pool, such as a read-only mount.
            client.reclaim(&options, progress).map_err(|failure| failure.usage_as(FailureKind::Failed))?
        }
        Access::Local(pool) => {
            if args.dry_run
                && let Some(notice) = pool.notice()
            {
                eprintln!("dedupfs-gc: {notice}");
            }
            let progress = interrupt::ended_by_signals(progress)?;
            let options = ReclaimOptions { without_clients: true, ..options };
            access::with_local(&pool, |pool| Ok(pool.reclaim(&options, &progress)?))?
        }
    };
    drop(bars);
    exit::print_message(args.json, "gc", &result, report::reclaim)?;
    Ok(code(result.stopped, interrupt::exit_code()))
}

/// Returns the exit code of a run. A limit given on the command line is no failure. Any other early end must show that the run is not done.
fn code(stopped: Option<Stopped>, interrupted: Option<u8>) -> u8 {
    match stopped {
        None | Some(Stopped::Time | Stopped::Io) => exit::OK,
        Some(Stopped::Asked | Stopped::Unmounted) => interrupted.unwrap_or(exit::PARTLY),
    }
}

fn options(args: &Gc) -> ReclaimOptions {
    let default = ReclaimOptions::default();
    // A user that gives a threshold wants everything below it emptied.
    let leave_percent = if args.threshold.is_some() { 0 } else { default.leave_percent };
    ReclaimOptions {
        threshold_percent: args.threshold.unwrap_or(default.threshold_percent),
        leave_percent: args.leave.unwrap_or(leave_percent),
        dry_run: args.dry_run,
        share_percent: args.share,
        max_time_ms: args.max_time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        max_io_bytes: args.max_io.unwrap_or(0),
        arranging: args.arrange.into(),
        ..default
    }
}

fn order(args: &Gc, pool: &Path) -> Result<u8, Failure> {
    let Some(mut client) = silence::connect(pool)? else {
        return Err(access::nothing_to_stop(pool, "; the next run continues there"));
    };
    if args.stop {
        if client.reclaim_status()?.running.is_none() {
            return Err(Failure::failed("nothing reclaims in this pool"));
        }
        client.stop_reclaim()?;
        // Wait, so that the next run can begin when this returns.
        while client.reclaim_status()?.running.is_some() {
            std::thread::sleep(STOP_NAP);
        }
    } else {
        client.pause_reclaim(args.pause)?;
    }
    exit::print_done(
        args.json,
        if args.stop {
            "gc --stop"
        } else if args.pause {
            "gc --pause"
        } else {
            "gc --resume"
        },
    )?;
    Ok(exit::OK)
}

fn status(args: &Gc, pool: &Path) -> Result<u8, Failure> {
    let status: ReclaimStatus = match access::reach(pool, &access::to_read("dedupfs-gc"))? {
        Access::Daemon(mut client) => client.reclaim_status()?,
        Access::Local(pool) => access::with_local(&pool, |pool| Ok(pool.reclaim_status()))?,
    };
    exit::print_message(args.json, "gc_status", &status, report::reclaim_status)?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_run_that_was_interrupted_does_not_exit_as_one_that_is_done() {
        assert_eq!(code(None, None), exit::OK);
        assert_eq!(code(Some(Stopped::Time), None), exit::OK, "as it was told");
        assert_eq!(code(Some(Stopped::Asked), Some(130)), 130, "as shells say");
        assert_eq!(code(Some(Stopped::Asked), None), exit::PARTLY, "by --stop");
        assert_eq!(code(Some(Stopped::Unmounted), None), exit::PARTLY);
        assert_eq!(code(None, Some(143)), exit::OK, "it was done when the signal came");
    }
}
