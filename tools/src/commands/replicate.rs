//! `dedupfs replicate`.

mod hold;
pub(crate) mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dedupfs::{EngineError, OpenOptions, Pool, Progress};
use dedupfs_remote::Address;
use dedupfs_replica::{KeyFile, PoolSource, Replica, ReplicaError, ReplicateOptions, ReplicateReport, replicate};
use dedupfs_store::StoreError;
use dedupfs_store::device::{FileDevice, PoolLock};
use dedupfs_store::superblock::Role;
use serde::Serialize;

use self::hold::Mounted;
use self::store::{Store, new_passphrase, of_key, passphrase, read_key, secret, write_key};
use super::store_check;
use crate::access::{self, Access};
use crate::args::remote::ReplicateArgs;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::size::show;
use crate::target::Target;
use crate::{duration, exit, interrupt, target};

/// Time until a run is made again that the store or an unmount cut off.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Between two looks for a signal.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// The result of a run, with its requests.
#[derive(Serialize)]
struct Ran {
    #[serde(flatten)]
    report: ReplicateReport,
    requests: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

pub(crate) fn run(args: &ReplicateArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    let store = Store::open(&args.store)?;
    let secret = if args.init { None } else { secret(&args.key)? };
    let mut replica = if args.init { Some(init(args, &target, &store)?) } else { None };
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let mut options = ReplicateOptions {
        connections: usize::try_from(args.connections).unwrap_or(1),
        take_over: args.take_over,
        completes: args.complete,
        looks: true,
    };
    loop {
        let before = store.requests();
        let opened = match replica.take() {
            Some(replica) => Ok(replica),
            None => Replica::open(&store.objects, secret.as_ref()).map_err(told),
        };
        let outcome = opened.and_then(|opened| once(&target, replica.insert(opened), &options, &progress));
        bars.finish();
        let wait = match (outcome, args.every) {
            (Ok(report), every) => {
                let used = store.requests().since(&before);
                let ran = Ran {
                    report,
                    requests: used.count(),
                    sent_bytes: used.created_bytes,
                    received_bytes: used.read_bytes,
                };
                exit::print_message(args.json, "replicate", &ran, text)?;
                // The first run has done that.
                (options.take_over, options.completes, options.looks) = (false, false, false);
                match every {
                    Some(every) => every,
                    None => return Ok(exit::OK),
                }
            }
            (Err((failure, is_passing)), Some(every)) if is_passing => {
                let wait = every.min(AGAIN_AFTER);
                let (again, place) = (duration::show(wait.as_millis().try_into().unwrap_or(u64::MAX)), &store.address);
                eprintln!("dedupfs: {failure}; {place} is not up to date, and is tried again in {again}");
                wait
            }
            (Err((failure, _)), _) => return Err(failure),
        };
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if progress.is_cancelled() {
                return Ok(exit::OK);
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

/// A failure, and whether it may pass.
fn told(error: ReplicaError) -> (Failure, bool) {
    let is_passing = error.is_passing();
    (Failure::from(error), is_passing)
}

/// Makes one run. A failure comes with whether it may pass.
fn once(
    target: &Target,
    replica: &Replica,
    options: &ReplicateOptions,
    progress: &dyn Progress,
) -> Result<ReplicateReport, (Failure, bool)> {
    let of_pool = |failure: Failure| {
        let is_passing = failure.kind == FailureKind::PoolInUse;
        (failure, is_passing)
    };
    let device = |path: &Path| FileDevice::open(path).map_err(|error| of_pool(error.into()));
    let meta = device(&target.pool)?;
    let _one = lock(target, replica).map_err(of_pool)?;
    let data = target::data_root(&target.pool).unwrap_or_else(|| target.pool.clone());
    let data = device(&data)?;
    let reach = |options: &OpenOptions| access::reach(&target.pool, options).map_err(of_pool);
    // Opening for writing changes the export, and each run would make a commit.
    let mut access = reach(&access::to_read("dedupfs replicate"))?;
    if let Access::Local(pool) = &access
        && !is_complete(pool).map_err(of_pool)?
    {
        access::close(pool).map_err(of_pool)?;
        drop(access);
        access = reach(&access::to_write("dedupfs replicate"))?;
    }
    match access {
        Access::Daemon(_) => {
            let source = Mounted { pool: target.pool.clone(), data };
            replicate(&source, &meta, replica, options, progress).map_err(told)
        }
        Access::Local(pool) => {
            let source = PoolSource::new(Arc::clone(&pool), Arc::new(data));
            let outcome = replicate(&source, &meta, replica, options, progress).map_err(told);
            drop(source);
            let closed = access::close(&pool).map_err(of_pool);
            let report = outcome?;
            closed?;
            Ok(report)
        }
    }
}

/// Whether the export of a pool that was opened read-only has everything.
fn is_complete(pool: &Pool) -> Result<bool, Failure> {
    match pool.hold_export() {
        Ok(hold) => Ok(hold.is_complete()?),
        Err(EngineError::Store(StoreError::Usage(_))) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Keeps a second run to the same replica out.
fn lock(target: &Target, replica: &Replica) -> Result<PoolLock, Failure> {
    let directory = target.pool.join(replica.notes_directory());
    std::fs::create_dir_all(&directory)
        .map_err(|error| Failure::failed(format!("cannot make {}: {error}", directory.display())))?;
    PoolLock::acquire(&directory, "dedupfs replicate").map_err(|error| match error {
        StoreError::Busy { owner, .. } => {
            FailureKind::PoolInUse.because(format!("{owner} replicates to {} already: wait for it", replica.place()))
        }
        error => error.into(),
    })
}

/// Makes the replica, and its key file.
fn init(args: &ReplicateArgs, target: &Target, store: &Store) -> Result<Replica, Failure> {
    let data = target::data_root(&target.pool).unwrap_or_else(|| target.pool.clone());
    let pool = target::superblock(&data, Role::Data)?.pool;
    if let Address::Directory(directory) = &store.address {
        check_directory(directory, target, &data)?;
    }
    let file = args.key.passphrase_file.as_deref();
    let secret = match (&args.key.key, args.plain) {
        (None, true) => None,
        (None, false) => {
            let why = "a replica is encrypted: name a key file with --key FILE, which is made if it does not exist, or say --plain";
            return Err(FailureKind::Usage.because(why.to_owned()));
        }
        (Some(path), _) => {
            let is_new = !path.exists();
            let passphrase = match (file, is_new, std::env::var_os(store::PASSPHRASE)) {
                (None, true, None) => new_passphrase(None)?,
                _ => passphrase(file, "passphrase of the key file: ")?,
            };
            if is_new {
                let made = KeyFile::new("first", &passphrase).map_err(|error| of_key(path, error))?;
                write_key(path, &made)?;
                eprintln!("dedupfs: made key file {}: {}", path.display(), LOST);
            }
            Some(read_key(path)?.secret(&passphrase).map_err(|error| of_key(path, error))?)
        }
    };
    let broken = store_check::broken(&store.address)?;
    if !broken.is_empty() {
        return Err(store_check::unusable(&store.address.to_string(), &broken));
    }
    Ok(Replica::init(&store.objects, &pool, secret.as_ref())?)
}

/// Refuses a directory in the pool that is to be copied, and one that has something else.
fn check_directory(directory: &Path, target: &Target, data: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let failed = |error: std::io::Error| Failure::failed(format!("cannot look at {shown}: {error}"));
    let place = directory.canonicalize().map_err(failed)?;
    let mount = target.mount.as_ref().map(|mount| mount.mountpoint.as_path());
    if let Some(root) = [target.pool.as_path(), data].into_iter().chain(mount).find(|root| place.starts_with(root)) {
        let message =
            format!("{shown} lies in {}, which it is to copy: name a directory on another disk", root.display());
        return Err(FailureKind::Usage.because(message));
    }
    // A check that was cut off leaves its objects, and each its empty directories.
    let is_ours = |name: &str| name == "lost+found" || name == store::FORMAT || name.starts_with("store-check-");
    let entries = std::fs::read_dir(&place).map_err(failed)?.flatten();
    match entries.map(|entry| entry.file_name()).find(|name| !name.to_str().is_some_and(is_ours)) {
        Some(name) if !place.join(store::FORMAT).exists() => Err(FailureKind::Usage.because(format!(
            "{shown} has something in it ({}): name an empty directory for a new replica",
            name.display()
        ))),
        _ => Ok(()),
    }
}

/// The warning for everybody who makes a key.
pub(crate) const LOST: &str = "without this file, or without its passphrase, the replica is lost. Copy the file to another machine, and keep the passphrase elsewhere";

fn text(ran: &Ran) -> String {
    let Ran { report, requests, sent_bytes, .. } = ran;
    let ReplicateReport { place, commit, containers, bytes, namespace_bytes, named, named_bytes, elapsed_ms, .. } =
        report;
    let (has, secs) = (format!("{named} containers with {}", show(*named_bytes)), *elapsed_ms as f64 / 1e3);
    if report.is_unchanged {
        return format!("{place} has everything already, as of commit {commit}: {has}\n");
    }
    let mut text = format!(
        "{place}: commit {commit} with {containers} new containers of {} and {} of names; it has {has}\n\
         sent {} in {requests} requests; {secs:.1} s\n",
        show(*bytes),
        show(*namespace_bytes),
        show(*sent_bytes),
    );
    if report.damaged > 0 {
        text.push_str(&format!(
            "DAMAGED: {} containers are damaged in the pool, and so are their copies: `dedupfs scrub` tells more\n",
            report.damaged
        ));
    }
    text
}
