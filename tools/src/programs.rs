//! The entry points of the programs: parse the command line, run the command, and end with its code.

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Command, Dedupfs, Gc, MountArgs, Stats};
use crate::commands::{
    batch, cluster, diff, forget, freeze, fsck, gc, generate, get, history, list, mkfs, prune, put, recover, scrub,
    series, snapshot, stats, sync, thaw, umount,
};
use crate::control::{Failure, FailureKind};
use crate::helper::Helper;
use crate::remount::{self, Origin};
use crate::{exit, mount, mount_options, serve};

/// Runs `dedupfs`, which formats, mounts, unmounts, syncs, checks and recovers pools, or one of its helpers.
#[must_use]
pub fn dedupfs() -> ExitCode {
    prepare();
    if let Some(helper) = std::env::args_os().next().as_deref().and_then(Helper::named) {
        return helper.run();
    }
    // fsck and scrub have codes of their own.
    let is_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck" || command == "scrub");
    let code = if is_fsck { exit::fsck_code } else { exit::code };
    run("dedupfs", |args: &Dedupfs| exit::also_as_json(args.command.wants_json(), code, perform(&args.command)), code)
}

fn perform(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(args) => mount_or_serve(args),
        Command::Umount(args) => umount::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Put(args) => put::run(args),
        Command::Get(args) => get::run(args),
        Command::Batch(args) => batch::run(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Thaw(args) => thaw::run(args),
        Command::Snapshot(args) => snapshot::run(args),
        Command::Freeze(args) => freeze::run(args),
        Command::Diff(args) => diff::run(args),
        Command::History(args) => history::run(args),
        Command::List(args) => list::run(args),
        Command::Forget(args) => forget::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Series(args) => series::run(args),
        Command::Recover(args) => recover::run(args),
        #[cfg(feature = "remote")]
        Command::Replicate(args) => crate::commands::replicate::run(args),
        #[cfg(feature = "remote")]
        Command::Replica(args) => crate::commands::replica::run(args),
        #[cfg(feature = "remote")]
        Command::Key(args) => crate::commands::key::run(args),
        #[cfg(feature = "remote")]
        Command::StoreCheck(args) => crate::commands::store_check::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Fsck(args) => fsck::run(args),
    }
}

/// Runs `dedupfs-gc`, which gives back the space of deleted data.
#[must_use]
pub fn dedupfs_gc() -> ExitCode {
    prepare();
    run("dedupfs-gc", |args: &Gc| exit::also_as_json(args.json, exit::code, gc::run(args)), exit::code)
}

/// Runs `dedupfs-stats`, which shows the content and the savings of a pool.
#[must_use]
pub fn dedupfs_stats() -> ExitCode {
    prepare();
    run("dedupfs-stats", |args: &Stats| exit::also_as_json(args.json, exit::code, stats::run(args)), exit::code)
}

/// Runs a program. `code` gives the exit code of a failure, and of a command line that makes no sense.
pub(crate) fn run<Args: Parser>(
    program: &str,
    work: impl FnOnce(&Args) -> Result<u8, Failure>,
    code: impl Fn(FailureKind) -> u8,
) -> ExitCode {
    ExitCode::from(match Args::try_parse() {
        Ok(args) => conclude(program, work(&args), code),
        Err(error) => usage(&error, code),
    })
}

fn conclude(program: &str, result: Result<u8, Failure>, code: impl Fn(FailureKind) -> u8) -> u8 {
    result.unwrap_or_else(|failure| {
        eprintln!("{program}: {failure}");
        code(failure.kind)
    })
}

/// Prints clap's message, which may be the help or the version.
fn usage(error: &clap::Error, code: impl Fn(FailureKind) -> u8) -> u8 {
    // If even this cannot be printed, nothing is left to do.
    let _ = error.print();
    if error.use_stderr() { code(FailureKind::Usage) } else { exit::OK }
}

/// Sets up the allocator and the panic hook. Panics that the store catches and returns as errors are only logged; all others are printed as
/// usual.
fn prepare() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if dedupfs::panics::is_caught() {
            tracing::debug!(%panic, "caught");
        } else {
            loud(panic);
        }
    }));
    dedupfs::allocator::set_up();
}

/// Mounts, remounts or serves. The process that serves reports a failure to the process that started it, which prints it.
fn mount_or_serve(args: &MountArgs) -> Result<u8, Failure> {
    if args.daemon_child {
        return Ok(serve::run(args).map_or_else(|failure| exit::code(failure.kind), |()| exit::OK));
    }
    let is_remount = mount_options::split(&args.options).iter().any(|option| option == "remount");
    if is_remount {
        remount::run(&args.mountpoint, &args.options, Origin::CommandLine)?;
    } else if args.foreground {
        serve::run(args)?;
    } else {
        mount::run(args)?;
    }
    exit::print_done(args.json, "mount")?;
    Ok(exit::OK)
}
