//! `dedupfs list`: the versions of a pool, or of one directory.

use dedupfs::{VersionInfo, is_frozen};
use dedupfs_service::ROOT_INO;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::access::{self, Access};
use crate::args::versions::ListArgs;
use crate::control::{Failure, FailureKind};
use crate::report::versions::Totals;
use crate::versions::Directory;
use crate::{exit, report, target};

#[derive(Serialize)]
struct Listed {
    versions: Vec<VersionInfo>,
    totals: Totals,
}

pub(crate) fn run(args: &ListArgs) -> Result<u8, Failure> {
    let shown = args.target.display();
    let (versions, is_whole) = match Directory::if_mounted(&args.target)? {
        Some(directory) if is_frozen(directory.place.ino) => {
            return Err(FailureKind::Usage.because(format!(
                "{shown} is a version, or lies in one: name the directory that holds versions, the mount or the pool"
            )));
        }
        Some(directory) => {
            let only = (directory.place.ino != ROOT_INO).then_some(directory.place.ino);
            (directory.daemon()?.versions(only)?, only.is_none())
        }
        None => {
            let target = target::resolve(&args.target)?;
            let versions = match access::reach(&target.pool, &access::to_read("dedupfs list"))? {
                Access::Daemon(mut daemon) => daemon.versions(None)?,
                Access::Local(pool) => access::with_local(&pool, |pool| Ok(pool.versions(None)?))?,
            };
            (versions, true)
        }
    };
    let listed = Listed { totals: Totals::of(&versions), versions };
    let text =
        |listed: &Listed| report::versions::list(&listed.versions, is_whole, &shown.to_string(), &TimeZone::system());
    exit::print_message(args.json, "list", &listed, text)?;
    Ok(exit::OK)
}
