//! What names say of inodes: read once and kept in a spool by ranges of inodes, or read once for each range.

use std::ops::RangeInclusive;
use std::path::Path;

use dedupfs_base::{EngineError, Result};
use dedupfs_service::{FileKind, Ino};
use dedupfs_spool::{Spool, Spooled, take};

use super::{Check, Findings, InodeRange};
use crate::COOKIE_FIRST;
use crate::base::guarded;
use crate::inode::{Entry, kind_from_u8, kind_to_u8};
use crate::names::check_name;

/// Marks a record of [`NameFact::Lists`]; other records begin with a kind of files.
const LISTS: u8 = 0xff;
/// Bytes between two looks at the room on disk.
const LOOK_BYTES: u64 = if cfg!(test) { 64 } else { 64 << 20 };
/// Memory for the buffers of a spool at most. They are gone before inodes come into memory.
const BUFFERS_BYTES_MAX: u64 = 64 << 20;

/// A place for temporary files.
#[derive(Clone, Copy)]
pub struct Scratch<'a> {
    /// The directory.
    pub directory: &'a Path,
    /// Says why files of so many bytes more may not lie there. It is asked again while they grow.
    pub admits: &'a dyn Fn(u64) -> std::result::Result<(), String>,
}

/// What names say of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NameFact {
    /// An entry of a directory names the inode.
    Named { ino: Ino, directory: Ino, kind: FileKind },
    /// The directory has entries, some of them directories.
    Lists { directory: Ino, entries: u64, subdirectories: u32 },
}

impl NameFact {
    /// The inode that it is about.
    const fn ino(&self) -> Ino {
        match self {
            Self::Named { ino, .. } | Self::Lists { directory: ino, .. } => *ino,
        }
    }
}

impl Spooled for NameFact {
    const BYTES: usize = 21;

    fn encode(&self, into: &mut Vec<u8>) {
        let (kind, number, count) = match *self {
            Self::Named { directory, kind, .. } => (kind_to_u8(kind), directory, 0),
            Self::Lists { entries, subdirectories, .. } => (LISTS, entries, subdirectories),
        };
        into.push(kind);
        into.extend_from_slice(&self.ino().to_le_bytes());
        into.extend_from_slice(&number.to_le_bytes());
        into.extend_from_slice(&count.to_le_bytes());
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let [kind] = take(&mut from)?;
        let ino = Ino::from_le_bytes(take(&mut from)?);
        let number = u64::from_le_bytes(take(&mut from)?);
        let count = u32::from_le_bytes(take(&mut from)?);
        match kind {
            _ if !from.is_empty() => None,
            LISTS => Some(Self::Lists { directory: ino, entries: number, subdirectories: count }),
            kind => {
                let kind = kind_from_u8(kind, || "a fact of a name".to_owned()).ok()?;
                (count == 0).then_some(Self::Named { ino, directory: number, kind })
            }
        }
    }
}

/// The facts of all names, until the ranges of their inodes have had them.
pub(super) struct Names<'a> {
    ranges: &'a [RangeInclusive<Ino>],
    /// Without it names are read for each range.
    spool: Option<Spool<NameFact>>,
    /// Times that all names were read.
    pub(super) readings: u64,
    /// The reason why there is no spool, though one was wanted.
    pub(super) failure: Option<String>,
}

impl<'a> Names<'a> {
    /// Reads all names into a spool, if there are several ranges and room for it.
    pub(super) fn new(
        check: &mut Check<'_>,
        (ranges, count): (&'a [RangeInclusive<Ino>], u64),
        scratch: Option<Scratch<'_>>,
        memory_bytes: u64,
    ) -> Result<Self> {
        let mut names = Self { ranges, spool: None, readings: 0, failure: None };
        let Some(scratch) = scratch.filter(|_| ranges.len() > 1) else { return Ok(names) };
        // A fact for each entry, and one at most for each directory, which has an entry or is the root.
        let bytes = (count + 1).saturating_mul(2 * NameFact::BYTES as u64);
        if let Err(why) = (scratch.admits)(bytes) {
            names.failure = Some(why);
            return Ok(names);
        }
        let buffers_bytes = memory_bytes.min(BUFFERS_BYTES_MAX) as usize;
        let mut spool = match Spool::new(scratch.directory, ranges.len(), buffers_bytes) {
            Ok(spool) => spool,
            Err(error) => {
                names.failure = Some(error.to_string());
                return Ok(names);
            }
        };
        let told = check.findings.list.len();
        let (mut kept, mut look_at_bytes) = (Ok(()), LOOK_BYTES);
        let outcome = check.read_names(true, &mut |fact| {
            let range = ranges.partition_point(|range| *range.end() < fact.ino());
            kept = spool.push(range, &fact).map_err(|error| error.to_string());
            let written_bytes = spool.written_bytes();
            if kept.is_ok() && written_bytes >= look_at_bytes {
                look_at_bytes += LOOK_BYTES;
                kept = (scratch.admits)(bytes.saturating_sub(written_bytes));
            }
            if kept.is_ok() { Ok(()) } else { Err(EngineError::Ended("keeping facts on disk")) }
        });
        match kept.and_then(|()| spool.finish().map_err(|error| error.to_string())) {
            Ok(()) => {
                outcome?;
                (names.spool, names.readings) = (Some(spool), 1);
            }
            Err(why) => {
                names.failure = Some(why);
                check.findings.list.truncate(told);
            }
        }
        Ok(names)
    }

    /// Notes what all names say of the inodes of the range of this number.
    pub(super) fn note(&mut self, number: usize, inodes: &mut InodeRange, check: &mut Check<'_>) -> Result<()> {
        if let Some(spool) = &self.spool {
            let told = check.findings.list.len();
            let Err(error) = spool.for_each(number, |fact| inodes.note(fact, &mut check.findings)) else {
                return Ok(());
            };
            self.failure = Some(error.to_string());
            self.spool = None;
            check.findings.list.truncate(told);
            inodes.forget_names();
        }
        let is_first = self.readings == 0;
        self.readings += 1;
        let Some(range) = self.ranges.get(number) else { return Ok(()) };
        let mut findings = Findings::default();
        check.read_names(is_first, &mut |fact| {
            if range.contains(&fact.ino()) {
                inodes.note(fact, &mut findings);
            }
            Ok(())
        })?;
        findings.list.into_iter().for_each(|finding| check.findings.add(|| finding));
        Ok(())
    }
}

impl Check<'_> {
    /// Reads all names, and gives what they say of inodes to `each`. If `is_first`, tells what is wrong with names themselves.
    fn read_names(&mut self, is_first: bool, each: &mut dyn FnMut(NameFact) -> Result<()>) -> Result<()> {
        let (findings, is_ended, next_cookie) = (&mut self.findings, self.is_ended, self.base.header.next_cookie);
        let mut count = 0_u64;
        // Entries of a directory lie together.
        let mut listed: Option<(Ino, u64, u32)> = None;
        let lists = |(directory, entries, subdirectories)| NameFact::Lists { directory, entries, subdirectories };
        let mut visit = |directory: Ino, name: &[u8], entry: Entry| {
            count += 1;
            if count.is_multiple_of(1 << 16) && is_ended() {
                return Err(EngineError::Ended("the check"));
            }
            let told = || format!("entry {} of directory {directory}", name.escape_ascii());
            if let Some(error) = check_name(name).err().filter(|_| is_first) {
                findings.add(|| format!("{}: {error}", told()));
            }
            if is_first && !(COOKIE_FIRST..next_cookie).contains(&entry.cookie) {
                findings.add(|| format!("{} has cookie {}", told(), entry.cookie));
            }
            let directories = u32::from(entry.kind == FileKind::Directory);
            match &mut listed {
                Some((of, entries, subdirectories)) if *of == directory => {
                    *entries += 1;
                    *subdirectories += directories;
                }
                _ => listed.replace((directory, 1, directories)).map_or(Ok(()), |before| each(lists(before)))?,
            }
            each(NameFact::Named { ino: entry.ino, directory, kind: entry.kind })
        };
        guarded(&self.base.session, || self.base.for_each_entry(&mut visit))?;
        listed.map_or(Ok(()), |last| each(lists(last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_as_they_were_written_and_others_refused() {
        let facts = [
            NameFact::Named { ino: 7, directory: 1 << 60, kind: FileKind::Symlink },
            NameFact::Lists { directory: u64::MAX, entries: 1 << 40, subdirectories: u32::MAX },
        ];
        for fact in facts {
            let mut bytes = Vec::new();
            fact.encode(&mut bytes);
            assert_eq!((bytes.len(), NameFact::decode(&bytes)), (NameFact::BYTES, Some(fact)));
            assert_eq!(NameFact::decode(&bytes[1..]), None);
            bytes.push(0);
            assert_eq!(NameFact::decode(&bytes), None);
        }
        let mut bytes = Vec::new();
        facts[0].encode(&mut bytes);
        for (at, value) in [(0, 0), (0, 8), (20, 1)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert_eq!(NameFact::decode(&damaged), None, "byte {at}");
        }
    }
}
