//! Commits of rounds: a file for each, which is made once and never changed.
//!
//! `docs/format.md` (Beside a pool) has the bytes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::{Error, Result};
use dedupfs_spool::take;

const MAGIC: [u8; 8] = *b"ddfsrnd1";
/// Bytes of the file of a round at most.
const FILE_BYTES_MAX: u64 = 64 << 20;
const SUM_BYTES: usize = 8;

/// The rounds that are committed, in a directory of machine 0.
#[derive(Clone, Debug)]
pub struct Rounds {
    directory: PathBuf,
}

/// The state of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The first round that is not committed.
    pub next: u64,
    /// Files that are no commits, each with the reason in words. Such a file stands in the way of its round until it is removed.
    pub damaged: Vec<String>,
}

impl Rounds {
    /// Rounds in a directory, which is there.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Commits a round: it names what was stored. When this returns, the commit is durable.
    ///
    /// # Errors
    /// The round is committed already, the names are too many, or the directory cannot be written to.
    pub fn commit(&self, job: &[u8; 32], round: u64, names: &[String]) -> Result<()> {
        let bytes = encode(job, round, names);
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::Refused(format!(
                "the names of round {round} are too long for a commit; back up fewer disks"
            )));
        }
        let directory = self.of(job);
        let failed = |source| Error::Io { step: "commit a round", directory: directory.clone(), source };
        std::fs::create_dir_all(&directory).and_then(|()| File::open(&self.directory)?.sync_all()).map_err(failed)?;
        let mut file = tempfile::Builder::new().prefix(".round-").tempfile_in(&directory).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        let path = directory.join(round.to_string());
        file.persist_noclobber(&path).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => {
                let told = format!("round {round} has a commit already: {}", path.display());
                Error::Refused(format!("{told}; go on with the next round, or remove the file if it is damaged"))
            }
            _ => failed(error.error),
        })?;
        File::open(&directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// Checks the commits of a job, from round 0 on.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn committed(&self, job: &[u8; 32]) -> Result<Committed> {
        let mut state = Committed::default();
        loop {
            match self.names(job, state.next) {
                Ok(Some(_)) => state.next += 1,
                Ok(None) => return Ok(state),
                Err(Error::Refused(why)) => {
                    state.damaged.push(why);
                    return Ok(state);
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Returns the names in the commit of a round. None if it has no file.
    ///
    /// # Errors
    /// The file is no commit of this round, or cannot be read.
    pub fn names(&self, job: &[u8; 32], round: u64) -> Result<Option<Vec<String>>> {
        let directory = self.of(job);
        let path = directory.join(round.to_string());
        let mut bytes = Vec::new();
        match File::open(&path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Io { step: "read a commit", directory, source }),
        }
        let names = decode(job, round, &bytes).ok_or_else(|| damaged(&path))?;
        Ok(Some(names))
    }

    fn of(&self, job: &[u8; 32]) -> PathBuf {
        self.directory.join(job.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

fn damaged(path: &Path) -> Error {
    Error::Refused(format!("{} is damaged, or no commit of its round; remove it, and repeat the round", path.display()))
}

fn encode(job: &[u8; 32], round: u64, names: &[String]) -> Vec<u8> {
    let mut bytes = [MAGIC.as_slice(), job, &round.to_le_bytes(), &(names.len() as u32).to_le_bytes()].concat();
    for name in names {
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    let sum = XxHash3_64::oneshot(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(job: &[u8; 32], round: u64, bytes: &[u8]) -> Option<Vec<String>> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return None;
    }
    let (mut rest, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM_BYTES)?)?;
    if XxHash3_64::oneshot(rest).to_le_bytes() != *sum || take(&mut rest)? != MAGIC || take(&mut rest)? != *job {
        return None;
    }
    if u64::from_le_bytes(take(&mut rest)?) != round {
        return None;
    }
    let count = u32::from_le_bytes(take(&mut rest)?);
    let mut names = Vec::new();
    for _ in 0..count {
        let len_bytes = u32::from_le_bytes(take(&mut rest)?) as usize;
        let (name, behind) = rest.split_at_checked(len_bytes)?;
        names.push(std::str::from_utf8(name).ok()?.to_owned());
        rest = behind;
    }
    rest.is_empty().then_some(names)
}

#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_file(bytes: &[u8]) {
    let (job, round) = ([0xab; 32], 7);
    assert!(decode(&job, round, bytes).is_none_or(|names| encode(&job, round, &names) == bytes));
    let begin = [MAGIC.as_slice(), &job, &u64::to_le_bytes(round)].concat();
    let mut file = [begin.as_slice(), bytes].concat();
    file.extend(XxHash3_64::oneshot(&file).to_le_bytes());
    assert!(decode(&job, round, &file).is_none_or(|names| encode(&job, round, &names) == file));
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: [u8; 32] = [0xab; 32];

    fn names() -> Vec<String> {
        vec!["web-1/vda".into(), String::new(), "db-2/vdb".into()]
    }

    #[test]
    fn rounds_are_committed_one_after_the_other_and_never_twice() {
        let directory = tempfile::tempdir().unwrap();
        let rounds = Rounds::new(directory.path());
        assert_eq!(rounds.committed(&JOB).unwrap(), Committed::default());
        for round in 0..3 {
            rounds.commit(&JOB, round, &names()).unwrap();
            assert_eq!(rounds.committed(&JOB).unwrap().next, round + 1);
            assert_eq!(rounds.names(&JOB, round).unwrap(), Some(names()));
        }
        let told = rounds.commit(&JOB, 1, &[]).unwrap_err().to_string();
        assert!(told.contains("round 1 has a commit already"), "{told}");
        assert_eq!(rounds.names(&JOB, 1).unwrap(), Some(names()));
        assert_eq!(rounds.committed(&[0; 32]).unwrap().next, 0);
        // Nothing but commits is left.
        assert_eq!(std::fs::read_dir(rounds.of(&JOB)).unwrap().count(), 3);
    }

    #[test]
    fn a_commit_that_is_cut_or_damaged_anywhere_is_none_and_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let rounds = Rounds::new(directory.path());
        rounds.commit(&JOB, 0, &names()).unwrap();
        let path = rounds.of(&JOB).join("0");
        let whole = std::fs::read(&path).unwrap();
        let is_damaged = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let state = rounds.committed(&JOB).unwrap();
            (state.next, state.damaged.len()) == (0, 1) && state.damaged[0].contains(&path.display().to_string())
        };
        for at in 0..whole.len() {
            assert!(is_damaged(&whole[..at]), "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 16;
            assert!(is_damaged(&flipped), "flipped at {at}");
        }
        // The commit of another round is none of this one.
        assert!(is_damaged(&encode(&JOB, 1, &names())));
        std::fs::write(&path, whole).unwrap();
        assert_eq!(rounds.committed(&JOB).unwrap().next, 1);
    }
}
