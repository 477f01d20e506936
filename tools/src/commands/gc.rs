//! `dedupfs-gc`.

use dedupfs::control::{Failure, FailureKind};
use dedupfs::reclaim::ReclaimOptions;

use crate::access::{self, Access};
use crate::args::Gc;
use crate::progress::Bars;
use crate::{exit, report, target};

/// Reclaims space.
pub fn run(args: &Gc) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let options = ReclaimOptions { threshold_percent: args.threshold, dry_run: args.dry_run };
    let bars = Bars::default();
    // A plan changes nothing: what a crash left is recovered in memory.
    let result = match access::reach(&target.pool, "dedupfs-gc", args.dry_run)? {
        Access::Daemon(mut client) => client.reclaim(&options, &bars).map_err(of_the_pool)?,
        Access::Local(pool) => {
            if args.dry_run
                && let Some(notice) = pool.notice()
            {
                eprintln!("dedupfs-gc: {notice}");
            }
            access::with_local(&pool, |pool| Ok(pool.reclaim(&options, &bars)?))?
        }
    };
    drop(bars);
    exit::print(&if args.json { report::json(&result)? } else { report::reclaim(&result) })?;
    Ok(exit::OK)
}

/// The command line was understood: what is refused is refused by the state of the pool, such as a mount that is read-only.
fn of_the_pool(failure: Failure) -> Failure {
    match failure.kind {
        FailureKind::Usage => Failure::failed(failure.message),
        _ => failure,
    }
}
