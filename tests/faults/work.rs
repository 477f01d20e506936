//! The work during which the disk fails.

use std::sync::{Arc, OnceLock};

use dedupfs::check::CheckOptions;
use dedupfs::reclaim::ReclaimOptions;
use dedupfs::{EngineError, Result};
use dedupfs::{NoProgress, Pool, format_on};
use dedupfs_store::device::MemoryDevice;
use dedupfs_store::superblock::PoolProperties;

use crate::case::{Case, Layout};
use crate::disks::Disks;
use crate::expected::Expected;
use crate::session::Session;

/// Files that stay unchanged throughout.
pub const OLD: [&str; 3] = ["old small", "old large", "old other"];
pub const RECLAIM_ALL: ReclaimOptions = ReclaimOptions::below(100);
pub const CHECK_ALL: CheckOptions = CheckOptions { read_data: true, scratch: None };

/// Returns bytes that neither repeat nor compress.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

/// Small containers, files and tankers: little content, and still everything that happens in a large pool.
fn properties() -> PoolProperties {
    PoolProperties {
        chunk_size_bytes: 4096,
        container_bytes: 128 << 10,
        slots_per_file: 4,
        tanker_cells: 64,
        tanker_buckets: 4,
        ..PoolProperties::default()
    }
}

pub fn format(disks: &Disks) -> Result<()> {
    let data_root = if Arc::ptr_eq(disks.meta(), disks.data()) { b".".to_vec() } else { b"/data".to_vec() };
    format_on(disks.meta(), disks.data(), data_root, &properties(), (0, 0)).map(drop)
}

/// A pool that was used for a while and then lost power, so that opening it has work to do.
#[derive(Clone)]
pub struct Image {
    pub disks: Vec<MemoryDevice>,
    pub expected: Expected,
}

/// Returns the image for a layout, made once.
pub fn image(layout: Layout) -> &'static Image {
    static IMAGES: [OnceLock<Image>; 2] = [OnceLock::new(), OnceLock::new()];
    match layout {
        Layout::One => IMAGES[0].get_or_init(|| make_image(1)),
        Layout::Two => IMAGES[1].get_or_init(|| make_image(2)),
    }
}

fn make_image(count: usize) -> Image {
    let disks = Disks::empty(count);
    format(&disks).expect("formats");
    let mut expected = Expected::default();
    let pool = disks.open(false).expect("opens");
    let mut session = Session::new(pool.clone(), &mut expected);
    session.write("old small", &content(1, 3000), false);
    session.write("old large", &content(2, 300_000), false);
    session.write("garbage", &[content(3, 200_000), content(2, 50_000)].concat(), true);
    pool.close().expect("closes");
    let pool = disks.open(false).expect("opens");
    let mut session = Session::new(pool, &mut expected);
    session.write("old other", &content(4, 60_000), false);
    session.write("to unlink", &content(5, 30_000), false);
    session.write("to replace", &content(6, 20_000), false);
    session.write("to change", &content(7, 200_000), false);
    session.unlink("garbage");
    session.pool.sync().expect("syncs");
    session.expected.synced_all();
    assert_eq!(session.errors, 0);
    Image { disks: disks.power_loss(1), expected }
}

/// Checks that the error of an operation on the whole pool tells its user something.
pub fn check_message(error: &EngineError) {
    let text = error.to_string();
    assert!(!matches!(error, EngineError::Internal(_)), "a failing disk gives {text:?}");
    assert!(text.len() > 10, "{text:?} says nothing");
}

/// Counts an error, and checks its message. Returns whether the operation succeeded.
fn count(errors: &mut u64, outcome: Result<()>) -> bool {
    if let Err(error) = &outcome {
        check_message(error);
        *errors += 1;
    }
    outcome.is_ok()
}

pub fn sync(session: &mut Session<'_>) {
    let synced = session.pool.sync();
    if count(&mut session.errors, synced) {
        session.expected.synced_all();
    }
}

pub fn reclaim(session: &mut Session<'_>) {
    let reclaimed = session.pool.reclaim(&RECLAIM_ALL, &NoProgress).map(drop);
    count(&mut session.errors, reclaimed);
}

pub fn check(session: &mut Session<'_>) {
    match session.pool.check(&CHECK_ALL, &NoProgress) {
        Ok(report) => {
            // A read fault shows as a finding of one run; real damage is found again on the healed disk.
            session.errors += report.finding_count;
        }
        Err(error) => {
            count(&mut session.errors, Err(error));
        }
    }
}

/// Does everything that a client does, in the first opening.
pub fn work(session: &mut Session<'_>) {
    OLD.iter().for_each(|name| session.read(name));
    session.write("small", &content(10, 2500), false);
    session.write("large", &content(11, 1_300_000), true);
    session.append("small", &content(12, 9000));
    session.overwrite("to change", &[20_000, 120_000], &content(13, 5000), true);
    session.truncate("to change", 150_000);
    session.write("temporary", &content(14, 40_000), false);
    session.rename("temporary", "to replace");
    session.mark("small", Some(1));
    session.unlink("to unlink");
    session.fsync_directory();
    session.hold("held", &content(15, 100_000), |session| {
        session.write("known", &content(2, 300_000), false);
        session.mark("old small", Some(2));
        sync(session);
        session.write("more", &content(16, 80_000), false);
    });
    ["small", "large", "to change", "to replace", "held", "known"].iter().for_each(|name| session.read(name));
    session.unlink("large");
    reclaim(session);
    session.write("large", &content(11, 400_000), false);
    session.overwrite("large", &[390_000], &content(17, 30_000), false);
    session.mark("old small", None);
    sync(session);
    check(session);
    session.read("large");
}

/// Continues the work in the second opening.
pub fn work_again(session: &mut Session<'_>) {
    OLD.iter().for_each(|name| session.read(name));
    session.append("small", &content(18, 4000));
    session.write("last", &content(19, 50_000), true);
    session.unlink("more");
    session.read("small");
}

/// Opens the pool. A fault that is over must not prevent a second attempt.
pub fn open(case: &Case, disks: &mut Disks, rebuild_index: bool) -> Arc<Pool> {
    if case.stops_journal() && disks.injected() > 0 {
        disks.remount();
    }
    match disks.open(rebuild_index) {
        Ok(pool) => pool,
        Err(error) => {
            check_message(&error);
            assert!(disks.injected() > 0, "the pool does not open, and nothing failed: {error}");
            if case.is_lasting {
                disks.heal();
            }
            if case.stops_journal() {
                disks.remount();
            }
            disks.open(rebuild_index).unwrap_or_else(|again| panic!("opening failed ({error}), and once more: {again}"))
        }
    }
}
