//! Verdicts after the fault: on the pool that met it, after a restart, and after a power loss.

use dedupfs::scrub::ScrubOptions;
use dedupfs::{EngineError, NoProgress, Pool};
use dedupfs_store::device::MemoryDevice;

use crate::case::{Aftermath, Case};
use crate::disks::Disks;
use crate::expected::Expected;
use crate::session::Session;
use crate::work::{CHECK_ALL, RECLAIM_ALL, content};

/// Checks that the pool goes on, or is read-only and says why, and that all files can be read and are right.
pub fn goes_on_or_says_why(case: &Case, disks: &Disks, session: &mut Session<'_>) {
    if case.is_lasting {
        // A disk that goes on failing must only give no wrong data.
        session.expected.names().into_iter().for_each(|name| session.read(name));
        return;
    }
    for name in session.expected.names() {
        // The fault may strike just now, but not twice.
        let seen = session.look(name).or_else(|_| session.look(name));
        let seen = seen.unwrap_or_else(|errno| panic!("{name:?} cannot be read after the fault: {errno}"));
        session.expected.see(name, &seen).unwrap_or_else(|wrong| panic!("wrong data: {wrong}"));
    }
    let (errors, injected) = (session.errors, disks.injected());
    session.write("probe", &content(90, 20_000), true);
    let mut has_failed = session.errors > errors;
    if has_failed && disks.injected() > injected {
        // The fault struck just now. Lack of space may be over.
        let errors = session.errors;
        session.write("probe", &content(90, 20_000), true);
        has_failed = session.errors > errors;
    }
    match session.pool.check_writable() {
        Ok(()) => assert!(!has_failed, "the pool takes changes, and a new file cannot be written and synced"),
        Err(EngineError::ReadOnly(why)) => {
            let why = why.to_string();
            assert!(disks.injected() > 0, "read-only, and nothing failed: {why}");
            let says_what = ["cannot ", "damaged"].iter().any(|word| why.contains(word));
            let says_where =
                ["namespace", "index/", "containers", "recipes", "export/"].iter().any(|word| why.contains(word));
            assert!(
                says_what && says_where && why.contains("mount it again"),
                "read-only for no clear reason: {why:?}"
            );
        }
        Err(error) => panic!("neither usable nor read-only: {error}"),
    }
    if disks.injected() == 0 {
        assert_eq!(session.errors, 0, "errors on a disk without a fault");
    }
}

/// Ends the pool as the case says and returns the disks afterwards.
pub fn after(case: &Case, disks: &mut Disks, pool: std::sync::Arc<Pool>, expected: &mut Expected) -> Vec<MemoryDevice> {
    match case.aftermath {
        Aftermath::PowerLoss => {
            // Half of the cases lose everything unsynced.
            let seed = if case.seed().is_multiple_of(2) { 0 } else { case.seed() };
            let left = disks.power_loss(seed);
            drop(pool);
            left
        }
        Aftermath::Restart => {
            drop(pool);
            disks.heal();
            if case.stops_journal() && disks.injected() > 0 {
                disks.remount();
            }
            // The same computer: its memory still has the pages of a failed sync.
            let pool =
                disks.open(false).unwrap_or_else(|error| panic!("the pool does not open after a restart: {error}"));
            expected.reopened();
            let mut session = Session::new(pool, expected);
            see_all(&mut session);
            session.write("restarted", &content(91, 30_000), true);
            session.pool.sync().unwrap_or_else(|error| panic!("after a restart nothing can be synced: {error}"));
            assert_eq!(session.errors, 0, "errors after a restart with a sound disk");
            session.expected.synced_all();
            disks.power_loss(0)
        }
    }
}

fn see_all(session: &mut Session<'_>) {
    for name in session.expected.names() {
        let seen = session.look(name).unwrap_or_else(|errno| {
            let findings = session.pool.check(&CHECK_ALL, &NoProgress).map(|report| report.findings);
            panic!("{name:?} cannot be read: {errno}; a check finds {findings:#?}")
        });
        session.expected.see(name, &seen).unwrap_or_else(|wrong| panic!("not as it was promised: {wrong}"));
    }
}

fn assert_clean(pool: &Pool, when: &str) {
    let report = pool.check(&CHECK_ALL, &NoProgress).unwrap_or_else(|error| panic!("{when} checking fails: {error}"));
    assert!(report.is_clean(), "{when}: {:#?}", report.findings);
}

/// A failed disk may leave an export that is not complete: unreadable recipes were not copied, and a group of the log
/// whose sync failed is lost with the power, although it could be read until then. A scrub finds that, as the
/// background of a mount does, and writes it anew.
fn read_export_back(pool: &Pool) {
    let report = pool.check(&CHECK_ALL, &NoProgress).expect("checks");
    if !report.is_clean() && report.findings.iter().all(|finding| finding.starts_with("export on the data root: ")) {
        let scrubbed = pool.scrub(&ScrubOptions { restart: true, ..ScrubOptions::default() }, &NoProgress);
        let export = scrubbed.expect("scrubs").export.expect("the export is read back");
        assert!(export.renewed, "{export:?}");
    }
}

/// Opens the disks: every promised state is there, nothing is wrong, and the pool can be used.
pub fn is_whole_and_usable(left: &[MemoryDevice], expected: &mut Expected) {
    let disks = Disks::like(left);
    let pool = disks.open(false).unwrap_or_else(|error| panic!("the pool does not open after a power loss: {error}"));
    expected.reopened();
    read_export_back(&pool);
    assert_clean(&pool, "after a power loss");
    let mut session = Session::new(pool.clone(), expected);
    see_all(&mut session);
    // The next backup of the same data builds on this state.
    session.write("again", &content(11, 300_000), false);
    session.write("small", &content(2, 300_000), true);
    pool.sync().expect("syncs");
    pool.reclaim(&RECLAIM_ALL, &NoProgress).expect("reclaims");
    see_all(&mut session);
    assert_eq!(session.errors, 0, "errors after a power loss with a sound disk");
    assert_clean(&pool, "used after a power loss");
}
