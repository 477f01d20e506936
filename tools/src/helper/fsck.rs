//! `fsck.dedupfs`: the options of fsck(8), and their meaning for a pool.

use std::io::IsTerminal as _;
use std::path::Path;

use dedupfs_store::superblock::Role;

use crate::args::FsckArgs;
use crate::args::helpers::FsckHelper;
use crate::commands::fsck;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::{exit, target};

pub(crate) fn run(args: &FsckHelper) -> Result<u8, Failure> {
    let is_preen = args.automatic || args.preen;
    let mounted = match target::mounted_at(&args.pool)? {
        Some(mount) => Some(mount.source),
        None if ControlClient::connect(&args.pool)?.is_some() => Some(args.pool.clone()),
        None => None,
    };
    if is_preen && mounted.is_some() {
        println!("{}: is mounted and left alone", args.pool.display());
        return Ok(exit::OK);
    }
    if is_preen && !args.force {
        return preen(&args.pool);
    }
    let may_ask = !args.no && !is_preen && std::io::stdin().is_terminal();
    let repair = mounted.is_none() && (args.yes || may_ask);
    if args.verbose {
        let how = if repair { "checking and repairing" } else { "checking, nothing is changed" };
        println!("{}: {how}", args.pool.display());
    }
    fsck::run(&FsckArgs {
        target: args.pool.clone(),
        read_data: args.read_data,
        repair,
        yes: args.yes,
        data: None,
        rebuild_index: false,
        give_up_unnamed: false,
        trial_recovery: false,
        scratch: None,
        memory: dedupfs::config::MEMORY_BYTES_DEFAULT,
        json: false,
    })
}

/// Checks the superblocks, which takes no time. Mounting repairs everything else that a crash left.
fn preen(path: &Path) -> Result<u8, Failure> {
    let pool = target::pool(path)?;
    let meta = target::superblock(&pool, Role::Meta)?;
    let data_root = meta.data_root_path(&pool);
    if meta.data_root != b"." && target::superblock(&data_root, Role::Data)?.pool != meta.pool {
        let message = format!("{} is the data root of another pool: is the right disk mounted?", data_root.display());
        return Err(FailureKind::NotAPool.because(message));
    }
    println!("{}: clean, {} (mounting recovers what a crash leaves; -f checks everything)", path.display(), meta.pool);
    Ok(exit::OK)
}
