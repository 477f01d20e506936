//! Remembers panics on any thread; reports a case that does not end, and then ends the tests.

use std::collections::BTreeMap;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

/// A case that takes longer hangs, however slow the machine is.
const HANGS_AFTER: Duration = Duration::from_secs(300);
/// Name of the threads that run cases: their panics are verdicts.
pub const RUNNER: &str = "fault-runner";

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static UNDER_WAY: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// Begins to watch, once for all tests.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread without a name").to_owned();
            if name == RUNNER {
                return;
            }
            // Panics on the tests' own threads are their verdicts.
            if !info.location().is_some_and(|location| location.file().starts_with("tests/")) {
                PANICS.lock().unwrap().push(format!("{name}: {info}"));
            }
            before(info);
        }));
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch).expect("the watchdog starts");
    });
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let hanging = UNDER_WAY
            .lock()
            .unwrap()
            .iter()
            .find(|(_, since)| since.elapsed() > HANGS_AFTER)
            .map(|(case, _)| case.clone());
        if let Some(case) = hanging {
            eprintln!("hangs for {HANGS_AFTER:?}; to see it again:\n  {}", command(&case));
            std::process::abort();
        }
    }
}

/// Returns the command that runs one case.
pub fn command(case: &str) -> String {
    format!("DEDUPFS_FAULT={case} cargo test --test faults one_case -- --nocapture")
}

/// Marks a case as under way while it exists.
pub struct UnderWay(String);

impl UnderWay {
    pub fn new(case: String) -> Self {
        UNDER_WAY.lock().unwrap().insert(case.clone(), Instant::now());
        Self(case)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        UNDER_WAY.lock().unwrap().remove(&self.0);
    }
}

/// Takes the panics of background threads since the last call.
pub fn take_panics() -> Vec<String> {
    std::mem::take(&mut PANICS.lock().unwrap())
}
