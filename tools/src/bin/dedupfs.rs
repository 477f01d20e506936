//! `dedupfs`: formats, mounts, unmounts, syncs, checks and recovers pools.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use dedupfs_tools::args::{Command, Dedupfs, MountArgs};
use dedupfs_tools::commands::{fsck, generate, get, mkfs, put, recover, scrub, sync, umount};
use dedupfs_tools::control::Failure;
use dedupfs_tools::helper::Helper;
use dedupfs_tools::remount::{self, Origin};
use dedupfs_tools::{exit, mount, mount_options, panics, serve};

const PROGRAM: &str = "dedupfs";

fn main() -> ExitCode {
    panics::install();
    dedupfs::allocator::set_up();
    if let Some(helper) = std::env::args_os().next().as_deref().and_then(Helper::named) {
        return helper.run();
    }
    let command = match Dedupfs::try_parse() {
        Ok(parsed) => parsed.command,
        Err(error) => return ExitCode::from(usage(&error)),
    };
    exit::conclude(
        PROGRAM,
        match command {
            Command::Mkfs(args) => mkfs::run(&args),
            Command::Mount(args) => return mount_or_serve(&args),
            Command::Umount(args) => umount::run(&args),
            Command::Sync(args) => sync::run(&args),
            Command::Put(args) => put::run(&args),
            Command::Get(args) => get::run(&args),
            Command::Recover(args) => recover::run(&args),
            Command::Generate(args) => generate::run(&args),
            Command::Scrub(args) => Ok(as_fsck(scrub::run(&args))),
            Command::Fsck(args) => Ok(as_fsck(fsck::run(&args))),
        },
    )
}

/// Mounts, remounts or serves. The process that serves reports a failure to the process that started it, which prints it.
fn mount_or_serve(args: &MountArgs) -> ExitCode {
    if args.daemon_child {
        let told = |failure: Failure| exit::code(failure.kind);
        return ExitCode::from(serve::run(args).map_or_else(told, |()| exit::OK));
    }
    let is_remount = mount_options::split(&args.options).iter().any(|option| option == "remount");
    let result = if is_remount {
        remount::run(&args.mountpoint, &args.options, Origin::CommandLine)
    } else if args.foreground {
        serve::run(args)
    } else {
        mount::start_daemon(args)
    };
    exit::conclude(PROGRAM, result.map(|()| exit::OK))
}

/// Turns failures of fsck and scrub into their own codes.
fn as_fsck(result: Result<u8, Failure>) -> u8 {
    result.unwrap_or_else(|failure| {
        exit::report(PROGRAM, &failure);
        exit::fsck_code(failure.kind)
    })
}

/// Reports a usage error. fsck and scrub have a code of their own for it.
fn usage(error: &clap::Error) -> u8 {
    let is_fsck = std::env::args_os().nth(1).is_some_and(|command| command == "fsck" || command == "scrub");
    match exit::usage(error) {
        exit::USAGE if is_fsck => exit::FSCK_USAGE,
        code => code,
    }
}
