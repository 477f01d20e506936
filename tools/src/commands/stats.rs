//! `dedupfs-stats`.

use dedupfs::control::Failure;
use dedupfs::pool::PoolStats;

use crate::access::{self, Access};
use crate::args::Stats;
use crate::{exit, report, target};

/// Shows a pool's figures.
pub fn run(args: &Stats) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let stats: PoolStats = match access::reach(&target.pool, "dedupfs-stats", true)? {
        Access::Daemon(mut client) => client.stats()?,
        Access::Local(pool) => access::with_local(&pool, |pool| Ok(pool.stats()?))?,
    };
    exit::print(&if args.json { report::json(&stats)? } else { report::stats(&stats) })?;
    Ok(exit::OK)
}
