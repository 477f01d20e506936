//! `dedupfs scrub`; exit codes as fsck's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use dedupfs::control::{ControlClient, Failure};
use dedupfs::pool::Progress;
use dedupfs::scrub::{ScrubOptions, ScrubPosition, ScrubStatus};
use dedupfs_store::device::{FileDevice, PoolLock};
use dedupfs_store::superblock::{Role, Superblock};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::access::{self, Access};
use crate::args::ScrubArgs;
use crate::progress::Bars;
use crate::{exit, report, silence, target};

/// Bars that signals end.
struct Interruptible<'a> {
    bars: &'a Bars,
    interrupted: Arc<AtomicBool>,
}

impl Progress for Interruptible<'_> {
    fn start(&self, what: &str, total: u64) {
        self.bars.start(what, total);
    }

    fn advance(&self, by: u64) {
        self.bars.advance(by);
    }

    fn finish(&self) {
        self.bars.finish();
    }

    fn say(&self, line: &str) {
        self.bars.say(line);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupted.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Scrubs a pool.
pub fn run(args: &ScrubArgs) -> Result<u8, Failure> {
    let target = target::resolve(&args.target)?;
    if args.stop {
        let client = silence::connect(&target.pool)?;
        let mut client = client.ok_or_else(|| Failure::failed(nothing_to_stop(&target.pool)))?;
        client.stop_scrub()?;
        return Ok(exit::OK);
    }
    if args.status
        && ControlClient::connect(&target.pool)?.is_none()
        && let Some(holder) = PoolLock::holder(&target.pool)
    {
        return tell_of_another(&target.pool, &holder, args.json);
    }
    let options = ScrubOptions { rate_bytes_per_s: args.rate, restart: args.restart };
    let bars = Bars::default();
    let result = match access::reach(&target.pool, "dedupfs scrub", args.status)? {
        Access::Daemon(mut client) if args.status => return tell(&client.scrub_status()?, args.json),
        Access::Local(pool) if args.status => {
            let status = access::with_local(&pool, |pool| Ok(pool.scrub_status()?))?;
            return tell(&status, args.json);
        }
        Access::Daemon(mut client) => {
            stop_on_signals(target.pool)?;
            client.scrub(&options, &bars)?
        }
        Access::Local(pool) => {
            let interrupted = Arc::new(AtomicBool::new(false));
            for signal in [SIGINT, SIGTERM] {
                signal_hook::flag::register(signal, interrupted.clone())
                    .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
            }
            let progress = Interruptible { bars: &bars, interrupted };
            access::with_local(&pool, |pool| Ok(pool.scrub(&options, &progress)?))?
        }
    };
    drop(bars);
    exit::print(&if args.json { report::json(&result)? } else { report::scrub(&result) })?;
    Ok(if result.is_clean() { exit::OK } else { exit::FSCK_UNCORRECTED })
}

/// Why there is nothing that this command could stop, and what can.
fn nothing_to_stop(pool: &Path) -> String {
    match PoolLock::holder(pool) {
        Some(holder) => format!(
            "the pool is not mounted, and {holder} works on it: interrupt that process (Ctrl-C, or `kill` with its number), and a \
             scrub says how far it came; the next one goes on there"
        ),
        None => "the pool is not mounted: nothing runs there".to_owned(),
    }
}

/// How far the last position is that was made durable, of a pool that another process has.
fn tell_of_another(pool: &Path, holder: &str, json: bool) -> Result<u8, Failure> {
    let device = FileDevice::open(pool)?;
    let superblock = Superblock::read(&device, Role::Meta)?;
    let position = ScrubPosition::read(&device, &superblock.pool)?;
    let is_scrub = holder.contains("(dedupfs scrub)");
    let running = is_scrub && position.is_none_or(|position| position.finished_secs == 0);
    if !json {
        exit::print(&format!("{holder} {} the pool\n", if is_scrub { "scrubs" } else { "works on" }))?;
    }
    tell(&ScrubStatus { running, position, total_bytes: 0 }, json)
}

/// The first signal stops the scrub in the daemon, which then answers how far it came; a second one ends this process, and the
/// daemon notices.
fn stop_on_signals(pool: PathBuf) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot handle signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        for (count, signal) in signals.forever().enumerate() {
            let stopped =
                ControlClient::connect(&pool).and_then(|client| client.map_or(Ok(()), |mut it| it.stop_scrub()));
            if count > 0 || stopped.is_err() {
                std::process::exit(128 + signal);
            }
            eprintln!("dedupfs: stopping the scrub");
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop).map_err(failed)
}

fn tell(status: &ScrubStatus, json: bool) -> Result<u8, Failure> {
    exit::print(&if json { report::json(status)? } else { report::scrub_status(status) })?;
    Ok(exit::OK)
}
