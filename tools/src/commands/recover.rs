//! `dedupfs recover`.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dedupfs::control::{ControlClient, Failure, FailureKind};
use dedupfs::pool::{OpenOptions, recover};

use crate::args::RecoverArgs;
use crate::progress::Bars;
use crate::{access, exit, report, target};

/// Makes a lost meta root anew.
pub fn run(args: &RecoverArgs) -> Result<u8, Failure> {
    let data = args.data.as_deref().unwrap_or(&args.pool);
    for root in [args.pool.as_path(), data] {
        if let Some(mount) = target::mounted_at(root)? {
            return Err(Failure::failed(format!(
                "{} is where pool {} is mounted: name the pool's roots",
                root.display(),
                mount.source.display()
            )));
        }
    }
    let (pool, data) = (absolute(&args.pool)?, absolute(data)?);
    if pool.exists() && ControlClient::connect(&pool)?.is_some() {
        let message = format!("pool {} is mounted: what is lost can still be copied out", pool.display());
        return Err(Failure::new(FailureKind::PoolInUse, message));
    }
    let options = OpenOptions { memory_bytes: args.memory, ..access::open_options("dedupfs recover", false) };
    let bars = Bars::default();
    let outcome = recover(&pool, &data, args.force, &options, &bars);
    drop(bars);
    let recovered = outcome.map_err(|error| {
        let failure = Failure::from(error);
        // The command line was understood: it is the directories that do not fit together.
        let kind = if failure.kind == FailureKind::Usage { FailureKind::NotAPool } else { failure.kind };
        Failure::new(kind, format!("cannot recover {}: {failure}", args.pool.display()))
    })?;
    exit::print(&if args.json {
        report::json(&recovered)?
    } else {
        report::recovered(&recovered, age(recovered.time_secs))
    })?;
    Ok(exit::OK)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| Failure::failed(format!("cannot resolve {}: {error}", path.display())))
}

/// How long ago that was; `None` if it is not known, or in the future.
fn age(time_secs: u64) -> Option<Duration> {
    (UNIX_EPOCH + Duration::from_secs(time_secs)).elapsed().ok().filter(|_| time_secs > 0)
}
