//! `dedupfs list`: the versions of a pool, or of one directory.

use std::collections::HashMap;
use std::path::Path;

use dedupfs::{Progress as _, VersionInfo, WouldFree, is_frozen};
use dedupfs_service::ROOT_INO;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::access::{self, Access};
use crate::args::versions::ListArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::Bars;
use crate::report::versions::{ListedVersion, Totals};
use crate::versions::Directory;
use crate::{exit, interrupt, mountinfo, report, target};

#[derive(Serialize)]
struct Listed {
    versions: Vec<ListedVersion>,
    totals: Totals,
}

type Sizes = Vec<(u64, WouldFree)>;

pub(crate) fn run(args: &ListArgs) -> Result<u8, Failure> {
    let given = match &args.target {
        Some(given) => given.clone(),
        None => mountinfo::only()?,
    };
    #[cfg(feature = "remote")]
    return crate::view::at(&given, &args.view, |path| run_at(args, path, &given));
    #[cfg(not(feature = "remote"))]
    run_at(args, &given, &given)
}

/// Lists versions of a pool or a mount, or in a directory of one; `shown` is its name in messages.
fn run_at(args: &ListArgs, given: &Path, shown: &Path) -> Result<u8, Failure> {
    let shown = shown.display();
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let ask = |daemon: &mut ControlClient, only| -> Result<(Vec<VersionInfo>, Sizes), Failure> {
        let versions = daemon.versions(only)?;
        let sizes = if args.sizes { daemon.version_sizes(only, &progress)? } else { Sizes::new() };
        Ok((versions, sizes))
    };
    let directory = Directory::if_mounted(given)?;
    let is_mounted = directory.is_some();
    let ((versions, sizes), is_whole) = match directory {
        Some(directory) if is_frozen(directory.place.ino) => {
            return Err(FailureKind::Usage.because(format!(
                "{shown} is a version, or lies in one: name the directory that holds versions, the mount or the pool"
            )));
        }
        Some(directory) => {
            let only = (directory.place.ino != ROOT_INO).then_some(directory.place.ino);
            (ask(&mut directory.daemon()?, only)?, only.is_none())
        }
        None => {
            let target = target::resolve(given)?;
            let asked = match access::reach(&target.pool, &access::to_read("dedupfs list"))? {
                Access::Daemon(mut daemon) => ask(&mut daemon, None)?,
                Access::Local(pool) => access::with_local(&pool, |pool| {
                    let versions = pool.versions(None)?;
                    let sizes = if args.sizes { pool.version_sizes(None, &progress)? } else { Sizes::new() };
                    Ok((versions, sizes))
                })?,
            };
            (asked, true)
        }
    };
    if progress.is_cancelled() {
        return Err(Failure::failed("interrupted"));
    }
    bars.finish();
    let totals = Totals::of(&versions);
    let mut sizes: HashMap<u64, WouldFree> = sizes.into_iter().collect();
    let with_size = |info: VersionInfo| ListedVersion { only_here: sizes.remove(&info.ino), info };
    let listed = Listed { totals, versions: versions.into_iter().map(with_size).collect() };
    let text = |listed: &Listed| {
        let how = (is_whole, args.sizes);
        let place = if is_mounted { shown.to_string() } else { "MNT".to_owned() };
        report::versions::list(&listed.versions, how, (&shown.to_string(), &place), &TimeZone::system())
    };
    exit::print_message(args.json, "list", &listed, text)?;
    Ok(exit::OK)
}
