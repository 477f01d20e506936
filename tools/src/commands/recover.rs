//! `dedupfs recover`.

#[cfg(feature = "remote")]
mod from;

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dedupfs::OpenOptions;
use dedupfs::recover::recover;
use dedupfs_store::superblock::Role;

use crate::args::RecoverArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::Bars;
use crate::{access, confirm, exit, report, target};

pub(crate) fn run(args: &RecoverArgs) -> Result<u8, Failure> {
    #[cfg(feature = "remote")]
    if let Some(from) = &args.from {
        return from::run(args, from);
    }
    let data = match &args.data {
        Some(data) => data.clone(),
        None => data_root_of(&args.pool)?,
    };
    refuse_mounted(&[args.pool.as_path(), &data])?;
    let (pool, data) = (target::absolute(&args.pool)?, target::absolute(&data)?);
    if pool.exists() && ControlClient::connect(&pool)?.is_some() {
        let message = format!("pool {} is mounted: copy out the readable files first", pool.display());
        return Err(FailureKind::PoolInUse.because(message));
    }
    if args.force && !args.yes && !confirm::ask_at_terminal(&question(&pool, &data))? {
        if args.json {
            return Err(Failure::failed("nothing was changed"));
        }
        exit::print("nothing was changed\n")?;
        return Ok(exit::FAILED);
    }
    let options = OpenOptions { memory_bytes: args.memory, ..access::to_write("dedupfs recover") };
    let bars = Bars::default();
    let outcome = recover(&pool, &data, args.force, &options, &bars);
    drop(bars);
    let recovered = outcome.map_err(|error| {
        // The command line was valid: a usage error means that the directories do not match.
        let failure = Failure::from(error).usage_as(FailureKind::NotAPool);
        failure.while_trying(&format!("cannot recover {}", args.pool.display()))
    })?;
    exit::print_message(args.json, "recover", &recovered, |recovered| {
        report::recovered(recovered, age(recovered.restored.time_secs))
    })?;
    Ok(exit::OK)
}

/// Refuses directories where a pool is mounted.
fn refuse_mounted(roots: &[&Path]) -> Result<(), Failure> {
    for root in roots {
        if let Some(mount) = target::mounted_at(root)? {
            return Err(Failure::failed(format!(
                "{} is where pool {} is mounted: name the pool's roots",
                root.display(),
                mount.source.display()
            )));
        }
    }
    Ok(())
}

fn question(pool: &Path, data: &Path) -> String {
    format!(
        "Replace the names of all files, the recipes and the index in {} by the last export in {}? All changes after that \
         export are lost.",
        pool.display(),
        data.display()
    )
}

/// Finds the data root if the user does not name it: by the meta superblock if it can be read, else in the same directory.
fn data_root_of(pool: &Path) -> Result<PathBuf, Failure> {
    let data = target::data_root(pool).unwrap_or_else(|| pool.to_owned());
    if data.join(Role::Data.file_name()).exists() {
        return Ok(data);
    }
    Err(FailureKind::NotAPool.because(format!(
            "cannot recover {0}: no data root (no {1}) in {2}: if the pool's content is elsewhere, or the data root moved, say \
             where it is: `dedupfs recover --data DIR {0}`",
            pool.display(),
            Role::Data.file_name(),
            data.display()
        ),
    ))
}

/// Returns the time since then; `None` if it is unknown or in the future.
fn age(time_secs: u64) -> Option<Duration> {
    (UNIX_EPOCH + Duration::from_secs(time_secs)).elapsed().ok().filter(|_| time_secs > 0)
}
