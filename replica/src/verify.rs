//! Reads a replica back.

use dedupfs::Progress;
use dedupfs_store::objects::{ObjectError, Removed};
use serde::{Deserialize, Serialize};

use crate::chain::StoredById;
use crate::error::{ReplicaError, Result};
use crate::place::{Replica, random};
use crate::stored::Stored;

/// Findings that are told one by one.
const TOLD_MAX: usize = 1000;

/// The findings of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VerifyReport {
    /// Where the replica is.
    pub place: String,
    /// The newest commit.
    pub commit: u64,
    /// Containers that it names.
    pub named: u64,
    /// Objects read.
    pub read: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Containers that are gone or damaged.
    pub bad: u64,
    /// Some of these, in words.
    pub findings: Vec<String>,
    /// Damaged objects that were removed, so that `dedupfs replicate --complete` uploads them again.
    pub removed: u64,
    /// Damaged objects that the store keeps for now.
    pub retained: u64,
}

impl VerifyReport {
    /// Whether everything that was read is as it was stored.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.bad == 0
    }
}

/// Reads the newest state back: the commits since its base and their pieces, and of the containers one in `each`, from a random one on. `removes_bad`: removes
/// damaged objects.
///
/// # Errors
/// Commits cannot be read; those of the store.
pub fn verify(replica: &Replica, each: u64, removes_bad: bool, progress: &dyn Progress) -> Result<VerifyReport> {
    let newest = replica.newest_there()?;
    let mut report =
        VerifyReport { place: replica.place.clone(), commit: newest.commit.number, ..VerifyReport::default() };
    let mut stored = StoredById::new();
    replica.walk(&newest, &mut |commit| {
        for stream in commit.streams() {
            stream.download(replica, commit.number, &mut |bytes| {
                report.read_bytes += bytes.len() as u64;
                Ok(())
            })?;
            report.read += stream.pieces().len() as u64;
        }
        report.read += 1;
        replica.apply(commit, &mut stored)
    })?;
    report.named = stored.len() as u64;
    let first = random()?;
    let each = each.max(1);
    let chosen = |position: usize| (position as u64).wrapping_add(u64::from_le_bytes(first)).is_multiple_of(each);
    let rows: Vec<&Stored> =
        stored.values().enumerate().filter(|(position, _)| chosen(*position)).map(|(_, row)| row).collect();
    progress.start("reading containers back", rows.iter().map(|row| u64::from(row.used_bytes)).sum());
    for row in rows {
        if progress.is_cancelled() {
            return Err(ReplicaError::Ended);
        }
        let key = row.key()?;
        let mut found = judge(replica, row, &mut report)?;
        if found.is_some() {
            // The way back may have damaged it.
            found = judge(replica, row, &mut report)?;
        }
        if let Some((is_there, found)) = found {
            report.bad += 1;
            if report.findings.len() < TOLD_MAX {
                report.findings.push(format!("object {key} {found}"));
            }
            if is_there && removes_bad {
                match replica.objects.remove(&key)? {
                    Removed::Gone => report.removed += 1,
                    Removed::Retained => report.retained += 1,
                }
            }
        }
        progress.advance(row.used_bytes.into());
    }
    progress.finish();
    Ok(report)
}

/// Reads an object; returns whether it is there and how it is bad, if it is.
fn judge(replica: &Replica, row: &Stored, report: &mut VerifyReport) -> Result<Option<(bool, String)>> {
    match replica.read(&row.key()?) {
        Ok(Some(bytes)) => {
            (report.read, report.read_bytes) = (report.read + 1, report.read_bytes + bytes.len() as u64);
            let is_bad = !row.has_content(&replica.name_key, &bytes);
            Ok(is_bad.then(|| (true, "has other content than it is named after".to_owned())))
        }
        Ok(None) => Ok(Some((false, "is gone".to_owned()))),
        Err(ReplicaError::Object(error @ ObjectError::Damaged { .. })) => Ok(Some((true, error.to_string()))),
        Err(error) => Err(error),
    }
}
