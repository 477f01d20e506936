//! `dedupfs-stats`.

use crate::access::{self, Access};
use crate::args::Stats;
use crate::control::Failure;
use crate::report::{self, Source};
use crate::{exit, target};

pub(crate) fn run(args: &Stats) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let (stats, source) = match access::reach(&target.pool, &access::to_read("dedupfs-stats"))? {
        Access::Daemon(mut client) => (client.stats()?, Source::Daemon),
        Access::Local(pool) => (access::with_local(&pool, |pool| Ok(pool.stats()?))?, Source::Files),
    };
    exit::print_as(args.json, &stats, |stats| report::stats(stats, source))?;
    Ok(exit::OK)
}
