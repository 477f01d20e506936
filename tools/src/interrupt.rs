//! Signals for long work that can be continued later. The first signal stops it in order, a second one ends this process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use dedupfs::Progress;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::{ControlClient, Failure};
use crate::progress::Cancellable;

/// The last signal received; 0 if none.
static SEEN: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the exit code of a program whose work a signal has ended early: 128 plus the signal's number, as a shell reports for a killed
/// program. `None` if no signal came.
pub(crate) fn exit_code() -> Option<u8> {
    let signal = SEEN.load(Ordering::Relaxed);
    if signal == 0 { None } else { u8::try_from(128 + signal).ok() }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("cannot handle signals: {error}"))
}

/// Returns progress of work in this process that a signal ends. A second signal ends the process.
pub(crate) fn ended_by_signals(listener: &dyn Progress) -> Result<Cancellable<'_, impl Fn() -> bool + Sync>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // A process started with nohup must go on.
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        // The order matters: the first signal must find the flag down.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, interrupted.clone()).map_err(failed)?;
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, SEEN.clone(), number).map_err(failed)?;
        signal_hook::flag::register(signal, interrupted.clone()).map_err(failed)?;
    }
    Ok(Cancellable { listener, is_cancelled: move || interrupted.load(Ordering::Relaxed) })
}

/// Whether this process was started with a signal ignored; proc_pid_status(5).
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Handles signals for work in the daemon of `pool`. The first signal makes this process call `stop`, and the daemon's answer reports how
/// far the work came. After a second one this process ends, and the daemon notices.
pub(crate) fn on_signals(
    pool: PathBuf,
    what: &'static str,
    stop: impl Fn(&mut ControlClient) -> Result<(), Failure> + Send + 'static,
) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let wait = move || {
        for (count, signal) in signals.forever().enumerate() {
            SEEN.store(usize::try_from(signal).unwrap_or_default(), Ordering::Relaxed);
            let stopped =
                ControlClient::connect(&pool).and_then(|client| client.map_or(Ok(()), |mut client| stop(&mut client)));
            if count > 0 {
                std::process::exit(128 + signal);
            }
            // A daemon that cannot be asked is ending, and with it the work: its answer, or its end, is on the way.
            match stopped {
                Ok(()) => eprintln!("dedupfs: stopping {what}"),
                Err(failure) => eprintln!("dedupfs: cannot stop {what} ({failure}); a second signal ends this command"),
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop).map_err(failed)
}
