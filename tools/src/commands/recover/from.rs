//! `dedupfs recover --from`: a pool from its replica alone.

use std::path::Path;

use dedupfs::recover::{RecoverReport, recover};
use dedupfs::{OpenOptions, Progress as _};
use dedupfs_replica::{ReplicaError, RestoreOptions, Restored, restore_data_root};
use dedupfs_store::device::{FileDevice, PoolLock};
use serde::Serialize;

use super::{age, refuse_mounted};
use crate::args::RecoverArgs;
use crate::args::remote::KeyOptions;
use crate::commands::replicate::store::Store;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::size::show;
use crate::{access, exit, interrupt, report, target};

/// Requests at the same time.
const CONNECTIONS: usize = 16;

/// A recovered pool, and the part of the replica.
#[derive(Serialize)]
struct Recovered {
    #[serde(flatten)]
    recovered: RecoverReport,
    replica: Restored,
}

pub(super) fn run(args: &RecoverArgs, from: &str) -> Result<u8, Failure> {
    let data = args.data.clone().unwrap_or_else(|| args.pool.clone());
    refuse_mounted(&[args.pool.as_path(), &data])?;
    check_place(&args.pool, &data)?;
    let replica = Store::open(from)?.replica(&args.key)?;
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    access::raise_descriptor_limit();
    let device = FileDevice::create(&data)?;
    let lock = PoolLock::acquire(&data, "dedupfs recover")?;
    let restoring = RestoreOptions { connections: CONNECTIONS, accepts_less: args.force };
    let restored = restore_data_root(&replica, &device, restoring, &progress).map_err(|error| {
        let is_less = matches!(error, ReplicaError::Damaged { .. });
        let failure =
            Failure::from(error).while_trying(&format!("cannot bring {} back from the replica", data.display()));
        match is_less {
            true => failure.and(
                ". The same command fetches the rest if the objects come back; with --force it goes on without them",
            ),
            false => failure,
        }
    })?;
    drop(lock);
    tell(&restored);
    let (pool, data) = (target::absolute(&args.pool)?, target::absolute(&data)?);
    let options = OpenOptions { memory_bytes: args.memory, ..access::to_write("dedupfs recover") };
    let outcome = recover(&pool, &data, args.force, &options, &bars);
    bars.finish();
    let recovered = outcome.map_err(|error| {
        let failure = Failure::from(error).usage_as(FailureKind::NotAPool);
        let failure =
            failure.while_trying(&format!("the content is back in {}, but its names are not", data.display()));
        failure.and(&format!(
            ". `dedupfs recover {}` with `--data {}`, and without --from, goes on from there",
            pool.display(),
            data.display()
        ))
    })?;
    let recovered = Recovered { recovered, replica: restored };
    exit::print_message(args.json, "recover", &recovered, |Recovered { recovered, .. }| {
        report::recovered(recovered, age(recovered.restored.time_secs))
    })?;
    next_step(&pool, from, &args.key);
    Ok(exit::OK)
}

fn tell(restored: &Restored) {
    let Restored { place, commit, fetched, fetched_bytes, there, missing, .. } = restored;
    let already = if *there > 0 { format!(", {there} were there already") } else { String::new() };
    eprintln!("dedupfs: {place}: commit {commit}; fetched {fetched} containers with {}{already}", show(*fetched_bytes));
    for finding in &restored.findings {
        eprintln!("dedupfs: MISSING: {finding}");
    }
    if *missing > 0 {
        eprintln!("dedupfs: {missing} containers are missing: files that need them give errors");
    }
}

/// Refuses a meta root of its own that has something in it, before anything is fetched.
fn check_place(pool: &Path, data: &Path) -> Result<(), Failure> {
    if pool == data || !pool.exists() {
        return Ok(());
    }
    let entries =
        std::fs::read_dir(pool).map_err(|error| Failure::failed(format!("cannot read {}: {error}", pool.display())))?;
    match entries.flatten().map(|entry| entry.file_name()).find(|name| name != "lock" && name != "lost+found") {
        Some(name) => Err(FailureKind::Usage.because(format!(
            "{} has something in it ({}): name an empty or new directory, or the same --data as before",
            pool.display(),
            name.display()
        ))),
        None => Ok(()),
    }
}

fn next_step(pool: &Path, from: &str, key: &KeyOptions) {
    let key = key.key.as_ref().map(|key| format!(" --key {}", key.display())).unwrap_or_default();
    eprintln!(
        "dedupfs: to replicate the recovered pool to the same place: `dedupfs replicate {} '{from}'{key} --take-over`; the former machine is \
         refused from then on",
        pool.display()
    );
}
