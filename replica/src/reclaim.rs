//! Removes objects that no state of the replica needs any more.
//!
//! 1. Objects that a commit retired, when that commit is older than the grace period.
//! 2. Commits below the newest base that is older than the grace period, and their pieces.
//! 3. Objects that no commit names: those of runs that were cut off. They are older than the newest commit, by the store's clock: a run begins
//!    behind the commit before it, so nothing that it uploads is.
//!
//! Nothing that the newest commit names is removed, and no later commit names an older object again (`docs/decisions/0067`). A store may
//! keep objects for a time: they are tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dedupfs::Progress;
use dedupfs_store::objects::{Class, Key, Removed};
use dedupfs_sync::clock;
use serde::{Deserialize, Serialize};

use crate::chain::{Head, Rows};
use crate::commit::{COMMITS, CommitKind, NUMBER_MAX, commit_key, number_of};
use crate::error::{ReplicaError, Result};
use crate::place::Replica;

/// The beginning of the names of notes about reclaiming: `reclaimed/N` says that the objects are gone that commits up to N retired.
const RECLAIMED: &str = "reclaimed/";
/// The beginnings of the names of containers and pieces.
const CONTENT: [&str; 3] = ["c/", "n/", "r/"];

/// The work of a reclaiming, done or to be done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Where the replica is.
    pub place: String,
    /// Objects removed that commits had retired.
    pub retired: u64,
    /// Commits removed, and their pieces.
    pub commits: u64,
    /// Objects removed that no commit named.
    pub unnamed: u64,
    /// Bytes of unnamed objects.
    pub unnamed_bytes: u64,
    /// Objects that the store keeps for now.
    pub retained: u64,
    /// Whether nothing was removed, because it was asked so.
    pub dry_run: bool,
}

/// Removes objects that are older than `grace` and needed no more.
///
/// # Errors
/// The newest state cannot be read; those of the store. The next run goes on from there.
pub fn reclaim(replica: &Replica, grace: Duration, dry_run: bool, progress: &dyn Progress) -> Result<Reclaimed> {
    let mut report = Reclaimed { place: replica.place.clone(), dry_run, ..Reclaimed::default() };
    let Some(newest) = replica.newest()? else { return Ok(report) };
    let named = replica.stored_at(&newest)?;
    let before_secs = clock::since_epoch().saturating_sub(grace).as_secs();
    let commits = commits(replica, &newest)?;
    let newest_secs = commits.get(&newest.commit.number).map_or(0, |(written_secs, _)| *written_secs);
    let mut work = Reclaiming { replica, dry_run, retained: false, report: &mut report };
    let is_due = |written_secs: u64| written_secs < before_secs;
    let marks = work.marks()?;
    let reclaimed_through = marks.last().copied().unwrap_or(0);
    let (mut done_through, mut goes_on) = (reclaimed_through, true);
    progress.start("removing retired objects", commits.len() as u64);
    for (number, (written_secs, head)) in commits.range(reclaimed_through + 1..) {
        if progress.is_cancelled() {
            return Err(ReplicaError::Ended);
        }
        if !is_due(*written_secs) {
            break;
        }
        for row in replica.rows(&head.commit, Rows::Retired)? {
            if named.get(&row.id) != Some(&row) {
                work.report.retired += u64::from(work.remove(&row.key()?)?);
            }
        }
        goes_on &= !work.retained;
        if goes_on {
            done_through = *number;
        }
        progress.advance(1);
    }
    progress.finish();
    work.mark(done_through, &marks)?;
    // Nobody reads commits below it.
    let is_base = |(_, (written_secs, head)): &(&u64, &(u64, Head))| {
        head.commit.kind == CommitKind::Base && is_due(*written_secs)
    };
    let kept_from = commits.range(..=newest.commit.base).filter(is_base).map(|(number, _)| *number).next_back();
    let kept_from = kept_from.unwrap_or(0).min(done_through + 1);
    for (number, (_, head)) in commits.range(..kept_from) {
        // Its pieces go behind it: a commit whose pieces are gone could not be read by the next run.
        if !work.remove(&commit_key(*number)?)? {
            continue;
        }
        work.report.commits += 1;
        for piece in head.commit.streams().iter().flat_map(|stream| stream.pieces()) {
            work.remove(&piece.piece_key()?)?;
        }
    }
    let mut needed: BTreeSet<Key> = named.values().map(|row| row.key()).collect::<Result<_>>()?;
    for (_, (_, head)) in commits.range(kept_from..) {
        let pieces = head.commit.streams().into_iter().flat_map(|stream| stream.pieces());
        needed.extend(pieces.map(|piece| piece.piece_key()).collect::<Result<Vec<_>>>()?);
        needed.extend(
            replica.rows(&head.commit, Rows::Retired)?.iter().map(|row| row.key()).collect::<Result<Vec<_>>>()?,
        );
    }
    work.unnamed(&needed, before_secs.min(newest_secs), progress)?;
    Ok(report)
}

/// Reads all commits up to the newest, with the times at which the store wrote them.
fn commits(replica: &Replica, newest: &Head) -> Result<BTreeMap<u64, (u64, Head)>> {
    let mut times = BTreeMap::new();
    replica.objects.list(COMMITS, None, &mut |key, head| {
        let number = number_of(&key).filter(|number| *number <= newest.commit.number);
        times.extend(number.map(|number| (number, head.written_secs)));
        Ok(())
    })?;
    let mut commits = BTreeMap::new();
    for (number, written_secs) in times {
        match replica.commit(number) {
            // A store that does not tell when it wrote an object: the writer has told.
            Ok(Some(head)) => {
                let written_secs = written_secs.unwrap_or(head.commit.written_secs);
                commits.insert(number, (written_secs, head));
            }
            // A listing may show removed objects.
            Ok(None) => {}
            Err(error @ ReplicaError::Damaged { .. }) if number < newest.commit.base => {
                tracing::warn!(%error, "an earlier commit is damaged: it stays, and its objects go as those that nothing names");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(commits)
}

struct Reclaiming<'a> {
    replica: &'a Replica,
    dry_run: bool,
    /// Whether the store kept something.
    retained: bool,
    report: &'a mut Reclaimed,
}

impl Reclaiming<'_> {
    /// Removes an object; whether it is gone.
    fn remove(&mut self, key: &Key) -> Result<bool> {
        if self.dry_run {
            return Ok(true);
        }
        match self.replica.objects.remove(key)? {
            Removed::Gone => Ok(true),
            Removed::Retained => {
                self.retained = true;
                self.report.retained += 1;
                Ok(false)
            }
        }
    }

    /// The notes of earlier runs, in order.
    fn marks(&self) -> Result<Vec<u64>> {
        let mut marks = Vec::new();
        self.replica.objects.list(RECLAIMED, None, &mut |key, _| {
            marks.extend(
                key.as_str()
                    .strip_prefix(RECLAIMED)
                    .and_then(|hex| u64::from_str_radix(hex, 16).ok().filter(|number| *number < NUMBER_MAX)),
            );
            Ok(())
        })?;
        marks.sort_unstable();
        Ok(marks)
    }

    /// Notes how far this run came, in the place of earlier notes.
    fn mark(&mut self, through: u64, earlier: &[u64]) -> Result<()> {
        if self.dry_run || earlier.last().copied().unwrap_or(0) >= through {
            return Ok(());
        }
        let key = |number: u64| Key::new(format!("{RECLAIMED}{number:016x}"));
        self.replica.objects.create(&key(through)?, &[b"reclaimed"], Class::Metadata)?;
        for number in earlier {
            self.remove(&key(*number)?)?;
        }
        Ok(())
    }

    /// Removes objects that nothing needs and that were written before a time.
    fn unnamed(&mut self, needed: &BTreeSet<Key>, before_secs: u64, progress: &dyn Progress) -> Result<()> {
        let mut found = Vec::new();
        progress.start("looking for objects that nothing names", 0);
        for prefix in CONTENT {
            self.replica.objects.list(prefix, None, &mut |key, head| {
                progress.advance(1);
                if head.written_secs.is_some_and(|written_secs| written_secs < before_secs) && !needed.contains(&key) {
                    found.push((key, head.len_bytes));
                }
                Ok(())
            })?;
        }
        progress.finish();
        for (key, len_bytes) in found {
            if self.remove(&key)? {
                self.report.unnamed += 1;
                self.report.unnamed_bytes += len_bytes;
            }
        }
        Ok(())
    }
}
