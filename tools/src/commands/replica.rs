//! `dedupfs replica`: how far replicas are, reading one back, and removing objects that are needed no more.

use std::fmt::Write as _;
use std::path::Path;

use dedupfs::Progress as _;
use dedupfs_replica::{Noted, Reclaimed, VerifyReport, noted, reclaim, verify};
use dedupfs_store::device::{FileDevice, PoolLock};
use dedupfs_store::superblock::Role;
use serde::Serialize;

use super::replicate::store::Store;
use crate::args::remote::{ReplicaArgs, ReplicaCommand, ReplicaGcArgs, StatusArgs, VerifyArgs};
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::size::show;
use crate::{exit, interrupt, report, target};

/// Replicas of a pool.
#[derive(Serialize)]
struct Status {
    replicas: Vec<Noted>,
}

pub(crate) fn run(args: &ReplicaArgs) -> Result<u8, Failure> {
    match &args.command {
        ReplicaCommand::Status(args) => status(args),
        ReplicaCommand::Verify(args) => verified(args),
        ReplicaCommand::Gc(args) => gc(args),
    }
}

/// Reads the notes of a pool's replicas.
pub(crate) fn replicas_of(pool: &Path) -> Result<Vec<Noted>, Failure> {
    let superblock = target::superblock(pool, Role::Meta)?;
    Ok(noted(&FileDevice::open(pool)?, &superblock.pool)?)
}

fn status(args: &StatusArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let status = Status { replicas: replicas_of(&target.pool)? };
    exit::print_message(args.json, "replicas", &status, |status| match status.replicas.is_empty() {
        true => "the pool has no replica: `dedupfs replicate --init` makes one\n".to_owned(),
        false => report::replicas(&status.replicas),
    })?;
    // A run that goes on has its lock.
    let goes_on = |noted: &Noted| PoolLock::holder(&target.pool.join(&noted.directory)).is_some();
    let is_behind = status.replicas.iter().any(|noted| noted.is_unfinished && !goes_on(noted));
    Ok(if is_behind { exit::FAILED } else { exit::OK })
}

fn verified(args: &VerifyArgs) -> Result<u8, Failure> {
    let replica = Store::open(&args.store)?.replica(&args.key)?;
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let found = verify(&replica, args.each, args.remove_damaged, &progress)?;
    bars.finish();
    exit::print_message(args.json, "replica_verify", &found, |found| {
        let VerifyReport { place, commit, named, read, read_bytes, bad, .. } = found;
        let mut text = format!(
            "{place}: commit {commit} names {named} containers; read {read} objects with {}\n",
            show(*read_bytes)
        );
        report::list(&mut text, "BAD", &found.findings, *bad);
        if found.removed + found.retained > 0 {
            let _ =
                writeln!(text, "removed {} damaged objects; the store keeps {} for now", found.removed, found.retained);
        }
        text
    })?;
    if found.is_sound() {
        return Ok(exit::OK);
    }
    let advice = match args.remove_damaged {
        true => "`dedupfs replicate --complete` uploads them again",
        false => {
            "`dedupfs replica verify --remove-damaged` removes damaged ones, and `dedupfs replicate --complete` then uploads them again"
        }
    };
    Err(FailureKind::Damaged.because(format!("{} objects of the replica are gone or damaged: {advice}", found.bad)))
}

fn gc(args: &ReplicaGcArgs) -> Result<u8, Failure> {
    let replica = Store::open(&args.store)?.replica(&args.key)?;
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let done = reclaim(&replica, args.grace, args.dry_run, &progress)?;
    bars.finish();
    exit::print_message(args.json, "replica_gc", &done, |done| {
        let Reclaimed { place, retired, retired_bytes, commits, unnamed, unnamed_bytes, leases, retained, dry_run } =
            done;
        let verb = if *dry_run { "would remove" } else { "removed" };
        let mut text = format!(
            "{place}: {verb} {retired} containers of removed content ({}), {commits} commits below a later base, and {unnamed} objects that nothing names ({})\n",
            show(*retired_bytes),
            show(*unnamed_bytes)
        );
        if *leases > 0 {
            text.push_str(&format!("{leases} readers have leases: what their commits need stays until they end\n"));
        }
        if *retained > 0 {
            text.push_str(&format!("{retained} objects are kept by the store for now: they go with a later run\n"));
        }
        text
    })?;
    Ok(exit::OK)
}
