//! `dedupfs-stats`.

use crate::control::Failure;
use dedupfs::stats::PoolStats;

use crate::access::{self, Access};
use crate::args::Stats;
use crate::{exit, report, target};

/// Shows a pool's figures.
pub fn run(args: &Stats) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let (stats, is_mounted): (PoolStats, bool) =
        match access::reach(&target.pool, &access::open_options("dedupfs-stats", true))? {
            Access::Daemon(mut client) => (client.stats()?, true),
            Access::Local(pool) => (access::with_local(&pool, |pool| Ok(pool.stats()?))?, false),
        };
    exit::print(&if args.json { report::json(&stats)? } else { report::stats(&stats, is_mounted) })?;
    Ok(exit::OK)
}
