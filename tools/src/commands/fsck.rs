//! `dedupfs fsck`; exit codes as e2fsck.

use std::sync::Arc;

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::control::{ControlClient, Failure, FailureKind};
use dedupfs::pool::{OpenOptions, Pool};

use crate::access::{self, Access};
use crate::args::FsckArgs;
use crate::progress::Bars;
use crate::target::{self, Target};
use crate::{exit, report};

/// Checks a pool.
pub fn run(args: &FsckArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let options = CheckOptions { read_data: args.read_data };
    let bars = Bars::default();
    let (result, rebuilt) = if args.rebuild_index {
        let pool = open_rebuilding(&target, args.read_data, &bars)?;
        let rebuilt = pool.rebuilt().copied();
        (check(&pool, &options, &bars)?, rebuilt)
    } else {
        let result = match access::reach(&target.pool, "dedupfs fsck", true)? {
            Access::Daemon(mut client) => client.check(&options, &bars)?,
            Access::Local(pool) => check(&pool, &options, &bars)?,
        };
        (result, None)
    };
    drop(bars);
    exit::print(&if args.json {
        report::check_json(&result, rebuilt.as_ref())?
    } else {
        report::check(&result, rebuilt.as_ref())
    })?;
    let missing = rebuilt.map_or(0, |rebuilt| rebuilt.missing);
    Ok(if result.finding_count == 0 && missing == 0 { exit::OK } else { exit::FSCK_UNCORRECTED })
}

fn check(pool: &Arc<Pool>, options: &CheckOptions, bars: &Bars) -> Result<CheckReport, Failure> {
    access::with_local(pool, |pool| Ok(pool.check(options, bars)?))
}

fn open_rebuilding(target: &Target, read_data: bool, bars: &Bars) -> Result<Arc<Pool>, Failure> {
    if ControlClient::connect(&target.pool)?.is_some() {
        return Err(Failure::new(
            FailureKind::PoolInUse,
            format!("pool {} is mounted: `dedupfs umount` it before its index is rebuilt", target.pool.display()),
        ));
    }
    let options = OpenOptions {
        rebuild_index: true,
        rebuild_reads_data: read_data,
        ..access::open_options("dedupfs fsck --rebuild-index", false)
    };
    access::open_with_progress(&target.pool, &options, bars)
}
