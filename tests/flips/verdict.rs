//! Opens a damaged pool, asks it for everything, and judges.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool};
use dedupfs_service::{Errno, FileService, NewNode, OpenOptions, ROOT_INO, WriteFlags};

use crate::damage::{Case, Damage, Way};
use crate::image::{CALLER, CONTAINER_BYTES, Image};
use crate::model::{Node, READ_BYTES, Tree, Unreadable};
use crate::plan::{is_derived, is_local};

/// Panics since the last case, with their places.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records the panics of all threads, including those in the background.
///
/// The embedded store asserts on pages that make no sense. That happens when checksums are doubted and the store is
/// read without them, to find out which of the two is wrong. The engine catches these panics (`src/namespace/base.rs`),
/// and any that escape are judged by their consequences. They are not printed, since a backtrace takes more memory than
/// all cases.
pub fn listen_for_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or_else(String::new, ToString::to_string);
        if !place.contains("/redb-") {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{place}: {info}"));
            others(info);
        }
    }));
}

/// How a case ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// The damage changed nothing.
    Nothing,
    /// The pool does not open, and the error gives advice.
    Refused,
    /// Every answer was right.
    Whole,
    /// Some answers were errors, the rest were right.
    Partly,
}

/// Checks that an undamaged image is whole in every way of use.
pub fn sound(image: &Image) {
    for way in [Way::Write, Way::ReadOnly, Way::Rebuild, Way::RebuildThoroughly] {
        let disks = image.disks.copy();
        let pool = disks.open(&options(way)).expect("a sound pool opens");
        let unreadable = image.tree.verify(&*pool.service()).expect("a sound pool is right");
        assert_eq!((unreadable.answers, unreadable.bytes), (0, 0));
        let report =
            pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
        pool.close().expect("closes");
    }
}

fn options(way: Way) -> PoolOptions {
    PoolOptions {
        read_only: way == Way::ReadOnly,
        rebuild_index: matches!(way, Way::Rebuild | Way::RebuildThoroughly),
        rebuild_reads_data: way == Way::RebuildThoroughly,
        commit_interval: Duration::from_secs(3600),
        ..PoolOptions::default()
    }
}

/// Runs a case.
pub fn judge(image: &Image, case: &Case) -> Result<Verdict, String> {
    let disks = image.disks.copy();
    if !case.apply(disks.root(case.root), image) {
        return Ok(Verdict::Nothing);
    }
    let verdict = match disks.open(&options(case.way)) {
        Err(error) => {
            let message = error.to_string();
            if !says_what_to_do(&message) {
                return Err(format!("no advice: {message}"));
            }
            if is_derived(case) && matches!(case.way, Way::Rebuild | Way::RebuildThoroughly) {
                return Err(format!("the index is not made anew: {message}"));
            }
            Verdict::Refused
        }
        Ok(pool) => {
            let verdict = judge_open(image, case, &pool);
            let closed = pool.close();
            drop(pool);
            let verdict = verdict?;
            if closed.is_ok() && case.way != Way::ReadOnly {
                again(image, case, &disks)?;
            }
            verdict
        }
    };
    let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
    if panics.is_empty() { Ok(verdict) } else { Err(format!("PANICS: {}", panics.join("; "))) }
}

fn judge_open(image: &Image, case: &Case, pool: &Pool) -> Result<Verdict, String> {
    let service = pool.service();
    let unreadable = image.tree.verify(&*service)?;
    // Names and attributes of a version lie in containers.
    if is_local(case) && (unreadable.answers > 0 || unreadable.bytes > cost_max()) {
        return Err(format!("{case} costs {unreadable:?}"));
    }
    if is_derived(case) && unreadable != Unreadable::default() {
        return Err(format!("an index is no content: {unreadable:?}"));
    }
    if case.way == Way::Write {
        write_beside(&*service)?;
    }
    let report = pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress);
    let is_clean = report.is_ok_and(|report| report.is_clean());
    if is_clean && unreadable != Unreadable::default() {
        // Readers had bad nodes repaired from their copies on the data root: then everything is there by now.
        let tree = Tree { nodes: without_top(image, case), ..Tree::default() };
        let now = tree.verify(&*service)?;
        if now != Unreadable::default() {
            return Err(format!("the check finds nothing, yet {unreadable:?}, and then {now:?}"));
        }
    }
    Ok(if unreadable == Unreadable::default() { Verdict::Whole } else { Verdict::Partly })
}

/// The model. One more file may be there by now.
fn without_top(image: &Image, case: &Case) -> BTreeMap<String, Node> {
    let mut nodes = image.tree.nodes.clone();
    if case.way == Way::Write {
        nodes.remove("");
    }
    nodes
}

/// Checks that the pool is still right after everything that was done to it.
fn again(image: &Image, case: &Case, disks: &crate::image::Disks) -> Result<(), String> {
    let Ok(pool) = disks.open(&options(Way::ReadOnly)) else { return Ok(()) };
    let mut tree = image.tree.clone();
    if case.way == Way::Write {
        // One more file may be there.
        tree.nodes.remove("");
    }
    let outcome = tree.verify(&*pool.service()).map_err(|error| format!("opened again: {error}"));
    let _unclean = pool.close();
    outcome.map(|_: Unreadable| ())
}

/// Limit of the cost: all regions of a slot, as often as their content is in files, and the reads that touch them.
fn cost_max() -> u64 {
    3 * 4 * (u64::from(CONTAINER_BYTES) + 2 * u64::from(READ_BYTES))
}

/// Writes something new, which either gives an error or can be read back.
fn write_beside(service: &dyn FileService) -> Result<(), String> {
    let data: Vec<u8> = (0..40_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let node = NewNode { parent: ROOT_INO, name: b"beside", mode: 0o600, umask: 0 };
    let how = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let Ok((attributes, opened)) = service.create(CALLER, node, how) else { return Ok(()) };
    let (ino, handle) = (attributes.ino, opened.handle);
    let written = service.write(CALLER, ino, handle, 0, &data, WriteFlags::default()).is_ok();
    let synced = written && service.fsync(ino, handle).is_ok();
    let mut found = Vec::new();
    let read = service.read(ino, handle, 0, 1 << 20, &mut found);
    service.release(ino, handle);
    match read {
        Ok(()) if synced && found != data => Err("what was written beside the damage reads wrongly".to_owned()),
        Ok(()) | Err(Errno::EIO) => Ok(()),
        Err(error) => Err(format!("{error} beside the damage")),
    }
}

/// Whether a message gives advice.
fn says_what_to_do(message: &str) -> bool {
    ["`", "put it back", "restore", "use ", "mounted?"].iter().any(|advice| message.contains(advice))
}

/// Counts of the cases by outcome.
#[derive(Default)]
pub struct Tally {
    counts: BTreeMap<(String, Verdict), u64>,
    slowest: (Duration, String),
    cases: u64,
}

impl Tally {
    pub fn add(&mut self, case: &Case, verdict: &Verdict, elapsed: Duration) {
        let directory = case.path.rsplit_once('/').map_or(case.path.as_str(), |(directory, _)| directory);
        let kind = match case.damage {
            Damage::Flip { .. } => "flip",
            Damage::ZeroSector { .. } => "sector of zeros",
            Damage::SwapBlocks { .. } => "swapped blocks",
            Damage::OldBlock { .. } | Damage::OldFile => "lost write",
            Damage::Truncate { .. } => "truncation",
            Damage::Extend { .. } => "extension",
            Damage::Remove => "removal",
            Damage::OtherPool => "another pool's",
        };
        *self.counts.entry((format!("{directory}: {kind}"), *verdict)).or_default() += 1;
        self.cases += 1;
        if elapsed > self.slowest.0 {
            self.slowest = (elapsed, case.to_string());
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<40} {:>8} {:>8} {:>8} {:>8}", "", "nothing", "refused", "whole", "partly")?;
        let mut rows: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
        for ((row, verdict), count) in &self.counts {
            rows.entry(row).or_default()[*verdict as usize] += count;
        }
        for (row, [nothing, refused, whole, partly]) in rows {
            writeln!(f, "{row:<40} {nothing:>8} {refused:>8} {whole:>8} {partly:>8}")?;
        }
        write!(f, "{} cases; the slowest took {} ms: {}", self.cases, self.slowest.0.as_millis(), self.slowest.1)
    }
}
