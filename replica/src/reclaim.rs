//! Removes objects that no state of the replica needs any more.
//!
//! 1. Objects that a commit retired, when that commit is older than the grace period, and no reader has a lease of an earlier one.
//! 2. Commits below the newest base that is older than the grace period, and their pieces.
//! 3. Packs of tables that have none of the newest commit.
//! 4. Objects that no commit names: those of runs that were cut off. They are older than the newest commit, by the store's clock: a run begins
//!    behind the commit before it, so nothing that it uploads is.
//!
//! Nothing that the newest commit names is removed, and no later commit names an older object again (`docs/decisions/0067`). A store may
//! keep objects for a time: they are tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dedupfs::Progress;
use dedupfs_store::StoreError;
use dedupfs_store::objects::{Class, Key, ObjectError, Removed};
use dedupfs_sync::clock;
use serde::{Deserialize, Serialize};

use crate::chain::{Head, Rows, StoredById};
use crate::commit::{COMMITS, CommitKind, NUMBER_MAX, commit_key, number_of};
use crate::error::{ReplicaError, Result};
use crate::lease;
use crate::packs::{PACKS, ROWS_WITHIN_BYTES, rows_of};
use crate::place::Replica;
use crate::stored::Stored;

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
    /// Bytes of the objects in `retired`.
    pub retired_bytes: u64,
    /// Commits removed, with their pieces.
    pub commits: u64,
    /// Objects removed that no commit named.
    pub unnamed: u64,
    /// Bytes of the objects in `unnamed`.
    pub unnamed_bytes: u64,
    /// Leases of readers, for whom content stays.
    pub leases: u64,
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
    let commits = Commits::read(replica, &newest)?;
    let leases = lease::leases(replica, newest.commit.number, dry_run)?;
    report.leases = leases.count;
    let read_from = leases.oldest.unwrap_or(u64::MAX);
    let mut work = Reclaiming { replica, dry_run, has_retained: false, seen: BTreeSet::new(), report: &mut report };
    let marks = work.marks()?;
    let reclaimed_through = marks.last().copied().unwrap_or(0);
    let (mut done_through, mut goes_on) = (reclaimed_through, true);
    progress.start("removing retired objects", commits.by_number.len() as u64);
    let is_due = |(number, one): &(&u64, &One)| one.secs < before_secs && **number <= read_from;
    for (number, _) in commits.by_number.range(reclaimed_through + 1..).take_while(is_due) {
        if progress.is_cancelled() {
            return Err(ReplicaError::Ended);
        }
        for row in retired_by(replica, *number)? {
            if named.get(&row.id) != Some(&row) && work.remove(&row.key()?)? {
                work.report.retired += 1;
                work.report.retired_bytes += u64::from(row.used_bytes);
            }
        }
        goes_on &= !work.has_retained;
        if goes_on {
            done_through = *number;
        }
        progress.advance(1);
    }
    progress.finish();
    work.mark(done_through, &marks)?;
    // Nobody reads commits below it.
    let is_base = |(_, one): &(&u64, &One)| one.is_base && one.secs < before_secs;
    let kept_from =
        commits.by_number.range(..=newest.commit.base).filter(is_base).map(|(number, _)| *number).next_back();
    // A reader may still download the commits of its state.
    let read_base = commits
        .by_number
        .range(..=read_from)
        .rev()
        .find(|(_, one)| one.is_base)
        .map_or(u64::MAX, |(number, _)| *number);
    let kept_from = kept_from.unwrap_or(0).min(done_through + 1).min(read_base);
    for (number, one) in commits.by_number.range(..kept_from) {
        // Its pieces go behind it: a commit whose pieces are gone could not be read by the next run.
        if !work.remove(&commit_key(*number)?)? {
            continue;
        }
        work.report.commits += 1;
        for piece in &one.pieces {
            work.remove(piece)?;
        }
    }
    let mut needed: BTreeSet<Key> = named.values().map(|row| row.key()).collect::<Result<_>>()?;
    for (number, one) in commits.by_number.range(kept_from..) {
        needed.extend(one.pieces.iter().cloned());
        // The others of these are gone.
        if *number > done_through {
            needed.extend(retired_by(replica, *number)?.iter().map(|row| row.key()).collect::<Result<Vec<_>>>()?);
        }
    }
    let unnamed_before_secs = before_secs.min(commits.newest_secs);
    work.unnamed(&needed, unnamed_before_secs, progress)?;
    work.packs(&named, unnamed_before_secs)?;
    Ok(report)
}

/// The objects that a commit retired; none if it is gone.
fn retired_by(replica: &Replica, number: u64) -> Result<Vec<Stored>> {
    replica.commit(number)?.map_or(Ok(Vec::new()), |head| replica.rows(&head.commit, Rows::Retired))
}

/// A commit, without its streams.
struct One {
    /// When it was written, in seconds since 1970: by the store's clock, else by the writer's.
    secs: u64,
    is_base: bool,
    pieces: Vec<Key>,
}

/// All commits of a replica.
struct Commits {
    by_number: BTreeMap<u64, One>,
    /// When the newest one was written, by the store's clock; 0 if the store does not tell.
    newest_secs: u64,
}

impl Commits {
    /// Reads all commits up to the newest. A listing may be late: it only tells times, and where to begin.
    fn read(replica: &Replica, newest: &Head) -> Result<Self> {
        let mut times = BTreeMap::new();
        replica.objects.list(COMMITS, None, &mut |key, head| {
            times.extend(number_of(&key).map(|number| (number, head.written_secs)));
            Ok(())
        })?;
        let last = newest.commit.number;
        let mut first = times.keys().next().copied().unwrap_or(last).min(newest.commit.base);
        while first > 1 && replica.objects.head(&commit_key(first - 1)?)?.is_some() {
            first -= 1;
        }
        let mut by_number = BTreeMap::new();
        for number in first..=last {
            match replica.commit(number) {
                Ok(Some(Head { commit, .. })) => {
                    let secs = times.get(&number).copied().flatten().unwrap_or(commit.written_secs);
                    let pieces = commit.streams().into_iter().flat_map(|stream| stream.pieces());
                    let pieces = pieces.map(|piece| piece.piece_key()).collect::<Result<_>>()?;
                    by_number.insert(number, One { secs, is_base: commit.kind == CommitKind::Base, pieces });
                }
                // It was removed, and the listing did not know.
                Ok(None) if number < newest.commit.base => {}
                Ok(None) => return Err(ReplicaError::damaged(format!("commit {number}"), "an object", "nothing")),
                Err(error @ ReplicaError::Damaged { .. }) if number < newest.commit.base => {
                    tracing::warn!(%error, "an earlier commit is damaged: it stays, and its objects go as those that nothing names");
                }
                Err(error) => return Err(error),
            }
        }
        // The writer's clock may be ahead, and would make objects of a run under way older than this commit.
        let newest_secs = times.get(&last).copied().flatten().unwrap_or(0);
        Ok(Self { by_number, newest_secs })
    }
}

struct Reclaiming<'a> {
    replica: &'a Replica,
    dry_run: bool,
    /// Whether the store kept something.
    has_retained: bool,
    /// Objects that were removed, or would be, or are retained.
    seen: BTreeSet<Key>,
    report: &'a mut Reclaimed,
}

impl Reclaiming<'_> {
    /// Removes an object; whether it is gone.
    fn remove(&mut self, key: &Key) -> Result<bool> {
        self.seen.insert(key.clone());
        if self.dry_run {
            return Ok(true);
        }
        match self.replica.objects.remove(key)? {
            Removed::Gone => Ok(true),
            Removed::Retained => {
                self.has_retained = true;
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

    /// Removes packs that were written before a time and have no table of a named container.
    fn packs(&mut self, named: &StoredById, before_secs: u64) -> Result<()> {
        let mut old = Vec::new();
        self.replica.objects.list(PACKS, None, &mut |key, head| {
            if head.written_secs.is_some_and(|written_secs| written_secs < before_secs) {
                old.push((key, head.len_bytes));
            }
            Ok(())
        })?;
        for (key, len_bytes) in old {
            let mut head = Vec::new();
            match self.replica.objects.read(&key, Some(0..ROWS_WITHIN_BYTES), &mut head) {
                Ok(()) | Err(ObjectError::Absent { .. } | ObjectError::Damaged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let rows = match rows_of(&self.replica.format.pool, &head) {
                Ok((rows, _)) => rows,
                Err(StoreError::Unsupported { .. }) => continue,
                // A pack is a hint: one that cannot be read is of no use.
                Err(_) => Vec::new(),
            };
            let is_needed = rows.iter().any(|row| named.get(&row.stored.id) == Some(&row.stored));
            if !is_needed && self.remove(&key)? {
                self.report.unnamed += 1;
                self.report.unnamed_bytes += len_bytes;
            }
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
                if head.written_secs.is_some_and(|written_secs| written_secs < before_secs)
                    && !needed.contains(&key)
                    && !self.seen.contains(&key)
                {
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
