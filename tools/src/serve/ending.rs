//! Waits for the end of the session after a signal has caused an unmount.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use dedupfs_fuse::MountError;

use super::Event;

const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for the session's end and returns how it went. `None` if users of the mount keep it going for `patience`, or until a signal.
///
/// Once the kernel's connection has ended, no user can keep the session going. It publishes and commits all writes; without that,
/// acknowledged content would be lost. So this then waits as long as a slow disk takes, and signals change nothing.
pub(super) fn ended_within(
    patience: Duration,
    happened: &Receiver<Event>,
    is_connected: impl Fn() -> bool,
) -> Option<Result<(), MountError>> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let event = happened.recv_timeout(left.min(LOOK_INTERVAL));
        if let Ok(Event::Ended(result)) = event {
            return Some(result);
        }
        if !is_connected() {
            return shut_down(happened);
        }
        match event {
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            _ => return None,
        }
    }
}

/// Waits for the session's shutdown; `None` if the thread that reports it is gone.
fn shut_down(happened: &Receiver<Event>) -> Option<Result<(), MountError>> {
    tracing::info!("the mount has no users any more: making all writes durable");
    loop {
        match happened.recv() {
            Ok(Event::Ended(result)) => return Some(result),
            Ok(Event::Signal(signal)) => {
                tracing::warn!(signal, "still making all writes durable")
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crossbeam_channel::unbounded;
    use signal_hook::consts::SIGTERM;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(20);

    #[test]
    fn regression_a_slow_shutdown_is_waited_for_whatever_its_time_and_the_signals() {
        let (events, happened) = unbounded();
        let is_shut_down = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    std::thread::sleep(PATIENCE * 5);
                    events.send(Event::Signal(SIGTERM)).unwrap();
                }
                std::thread::sleep(PATIENCE * 5);
                is_shut_down.store(true, Ordering::SeqCst);
                events.send(Event::Ended(Ok(()))).unwrap();
            });
            assert!(matches!(ended_within(PATIENCE, &happened, || false), Some(Ok(()))));
            assert!(is_shut_down.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn regression_a_connection_that_ends_while_it_is_waited_for_is_waited_out() {
        let (events, happened) = unbounded();
        let (begun, long) = (Instant::now(), Duration::from_secs(60));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(PATIENCE * 20);
                events.send(Event::Ended(Ok(()))).unwrap();
            });
            let is_connected = || begun.elapsed() < PATIENCE * 5;
            assert!(matches!(ended_within(PATIENCE * 10, &happened, is_connected), Some(Ok(()))));
        });
        assert!(begun.elapsed() >= PATIENCE * 20 && begun.elapsed() < long);
    }

    #[test]
    fn users_of_a_mount_are_given_their_time_and_a_signal_ends_it() {
        let (events, happened) = unbounded();
        let begun = Instant::now();
        assert!(ended_within(PATIENCE, &happened, || true).is_none());
        assert!(begun.elapsed() >= PATIENCE);
        events.send(Event::Signal(SIGTERM)).unwrap();
        assert!(ended_within(Duration::from_secs(60), &happened, || true).is_none());
        assert!(begun.elapsed() < Duration::from_secs(30), "the signal was not heeded");
        events.send(Event::Ended(Ok(()))).unwrap();
        assert!(matches!(ended_within(PATIENCE, &happened, || true), Some(Ok(()))));
    }
}
