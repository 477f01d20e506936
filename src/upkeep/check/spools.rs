//! Facts on disk, by ranges of fingerprints.
//!
//! The cells of a large pool are compared range by range. Spools let the pool be read once for all ranges, or for those that have room
//! together; without them it is read once for each.

use std::ops::Range;
use std::path::Path;

use dedupfs_base::EngineError;
use dedupfs_index::Prefixes;
use dedupfs_spool::{Error as SpoolError, Spool, Spooled, take};
use dedupfs_store::container::TableEntry;
use dedupfs_store::{ContainerId, ContainerKind, Fingerprint};

use super::facts::{Facts, Marks, Need, Place};

/// Type of filesystem that statfs(2) tells for FUSE.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;
/// Bytes between two looks at the room on disk.
const LOOK_BYTES: u64 = if cfg!(test) { 4096 } else { 64 << 20 };

impl Spooled for Need {
    const BYTES: usize = 33;

    fn encode(&self, into: &mut Vec<u8>) {
        into.push(self.kind as u8);
        into.extend_from_slice(&self.fingerprint.0);
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let [kind] = take(&mut from)?;
        let fingerprint = Fingerprint(take(&mut from)?);
        from.is_empty().then_some(Self { kind: ContainerKind::from_u8(kind)?, fingerprint })
    }
}

impl Spooled for Place {
    const BYTES: usize = 45;

    fn encode(&self, into: &mut Vec<u8>) {
        into.push(self.kind as u8);
        into.extend_from_slice(&self.entry.fingerprint.0);
        into.extend_from_slice(&self.container.0.to_le_bytes());
        into.extend_from_slice(&self.entry.len_bytes.to_le_bytes());
    }

    fn decode(mut from: &[u8]) -> Option<Self> {
        let [kind] = take(&mut from)?;
        let fingerprint = Fingerprint(take(&mut from)?);
        let container = ContainerId(u64::from_le_bytes(take(&mut from)?));
        let entry = TableEntry { fingerprint, len_bytes: u32::from_le_bytes(take(&mut from)?) };
        from.is_empty().then_some(Self { kind: ContainerKind::from_u8(kind)?, container, entry })
    }
}

/// Facts of some neighbouring ranges, which are kept until the cells of their range are in memory. Those of others are left out.
pub(super) struct Spools<'r> {
    /// All ranges.
    ranges: &'r [Prefixes],
    /// The numbers of those whose facts are kept.
    kept: Range<usize>,
    needs: Spool<Need>,
    places: Spool<Place>,
    /// Tells whether others have so many bytes of room beside them.
    has_room: &'r dyn Fn(u64) -> bool,
    /// Length at which it is asked again.
    look_at_bytes: u64,
    failure: Option<String>,
}

/// Returns whether as many bytes are free on the disk of a directory as are taken there. Others write to it meanwhile.
pub(super) fn leaves_half(directory: &Path, taken_bytes: u64) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) > taken_bytes)
}

/// Checks that temporary files may lie in a directory.
///
/// # Errors
/// It is not there, or in a mount that may need the check to go on.
pub(super) fn check_place(directory: &Path) -> Result<(), String> {
    let filesystem = rustix::fs::statfs(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    if filesystem.f_type == FUSE_MAGIC {
        return Err(format!("{} lies in a mount of FUSE, which may be the pool itself", directory.display()));
    }
    Ok(())
}

impl<'r> Spools<'r> {
    /// Makes empty ones, which have no names in the directory, for some of the ranges. `has_room` is asked for as many bytes as they have
    /// taken, again and again.
    ///
    /// # Errors
    /// The directory takes no file.
    pub(super) fn new(
        directory: &Path,
        (ranges, kept): (&'r [Prefixes], Range<usize>),
        buffers_bytes: usize,
        has_room: &'r dyn Fn(u64) -> bool,
    ) -> Result<Self, String> {
        let told = |error: SpoolError| error.to_string();
        Ok(Self {
            ranges,
            needs: Spool::new(directory, kept.len(), buffers_bytes / 2).map_err(told)?,
            places: Spool::new(directory, kept.len(), buffers_bytes / 2).map_err(told)?,
            kept,
            has_room,
            look_at_bytes: LOOK_BYTES,
            failure: None,
        })
    }

    /// The first reason why a fact was not kept.
    pub(super) fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Writes all that is in buffers.
    ///
    /// # Errors
    /// There is no room.
    pub(super) fn finish(&mut self) -> Result<(), EngineError> {
        let outcome = self.needs.finish().and_then(|()| self.places.finish());
        self.told(outcome)
    }

    /// The numbers of the ranges whose facts are kept.
    pub(super) fn numbers(&self) -> Range<usize> {
        self.kept.clone()
    }

    /// Leaves the marks of all facts of the range of this number, which is kept.
    ///
    /// # Errors
    /// The files give other bytes than were written.
    pub(super) fn mark(&self, number: usize, marks: &mut Marks) -> Result<(), SpoolError> {
        let range = number - self.kept.start;
        self.needs.for_each(range, |need| marks.of(need.kind).need(need.fingerprint))?;
        self.places.for_each(range, |place| marks.of(place.kind).place(place.container, &place.entry))
    }

    /// The range that has the fingerprint, among those that are kept.
    fn range_of(&self, fingerprint: &Fingerprint) -> Option<usize> {
        // The bounds of ranges are rounded down, so this may be the range before it.
        let near = Prefixes::ALL.place_of(fingerprint, self.ranges.len() as u32) as usize;
        let number = near + usize::from(!self.ranges.get(near).is_some_and(|range| range.has(fingerprint)));
        self.kept.contains(&number).then(|| number - self.kept.start)
    }

    fn told(&mut self, outcome: Result<(), SpoolError>) -> Result<(), EngineError> {
        let taken_bytes = self.needs.written_bytes() + self.places.written_bytes();
        let why = match outcome {
            Ok(()) if taken_bytes < self.look_at_bytes => return Ok(()),
            Ok(()) if (self.has_room)(taken_bytes) => {
                self.look_at_bytes = taken_bytes + LOOK_BYTES;
                return Ok(());
            }
            Ok(()) => {
                format!("{taken_bytes} bytes are more than half of what its disk has free, or go to the pool's reserve")
            }
            Err(error) => error.to_string(),
        };
        self.failure.get_or_insert(why);
        Err(EngineError::Ended("keeping facts on disk"))
    }
}

impl Facts for Spools<'_> {
    fn need(&mut self, need: Need) -> Result<(), EngineError> {
        let Some(range) = self.range_of(&need.fingerprint) else { return Ok(()) };
        let outcome = self.needs.push(range, &need);
        self.told(outcome)
    }

    fn place(&mut self, place: Place) -> Result<(), EngineError> {
        let Some(range) = self.range_of(&place.entry.fingerprint) else { return Ok(()) };
        let outcome = self.places.push(range, &place);
        self.told(outcome)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn need(prefix: u64) -> Need {
        let mut fingerprint = Fingerprint([7; 32]);
        fingerprint.0[..8].copy_from_slice(&prefix.to_be_bytes());
        Need { kind: ContainerKind::Recipe, fingerprint }
    }

    #[test]
    fn a_fact_comes_to_the_range_of_its_fingerprint() {
        for count in [2, 3, 7, 50, 1000, 4093] {
            let ranges: Vec<_> = Prefixes::split(count).collect();
            let spools = |first: usize, end: usize| {
                Spools::new(&std::env::temp_dir(), (&ranges, first..end), 0, &|_| true).unwrap()
            };
            let (all, some) = (spools(0, ranges.len()), spools(count as usize / 3, count as usize / 2));
            for number in 0..u128::from(count) {
                let begin = ((number << 64) / u128::from(count)) as u64;
                for prefix in [begin, begin.wrapping_sub(1), begin + 1] {
                    let Need { fingerprint, .. } = need(prefix);
                    assert_eq!(fingerprint.prefix(), prefix);
                    let own = all.range_of(&fingerprint).unwrap();
                    assert!(ranges[own].has(&fingerprint), "{prefix} of {count}");
                    let within = some.numbers().position(|number| number == own);
                    assert_eq!(some.range_of(&fingerprint), within, "{prefix} of {count}");
                }
            }
        }
    }

    #[test]
    fn facts_are_read_as_they_were_written_and_others_refused() {
        let (mut bytes, entry) = (Vec::new(), TableEntry { fingerprint: Fingerprint([3; 32]), len_bytes: 9 });
        Place { kind: ContainerKind::Data, container: ContainerId(5), entry }.encode(&mut bytes);
        let place = Place::decode(&bytes).unwrap();
        assert_eq!((place.kind, place.container, place.entry), (ContainerKind::Data, ContainerId(5), entry));
        assert!(Need::decode(&bytes).is_none() && Place::decode(&bytes[1..]).is_none());
        bytes[0] = 9;
        assert!(Place::decode(&bytes).is_none());
        bytes.clear();
        need(1).encode(&mut bytes);
        assert!(Need::decode(&bytes).is_some_and(|read| read.fingerprint == need(1).fingerprint));
    }

    #[test]
    fn no_more_is_written_than_there_is_room() {
        let ranges: Vec<_> = Prefixes::split(3).collect();
        let mut spools = Spools::new(&std::env::temp_dir(), (&ranges, 0..3), 0, &|bytes| bytes < 20_000).unwrap();
        let kept = (0..u64::MAX).step_by(1 << 40).take_while(|prefix| spools.need(need(*prefix)).is_ok()).count();
        assert!((15_000 / Need::BYTES..25_000 / Need::BYTES).contains(&kept), "{kept}");
        assert!(spools.failure().unwrap().contains("more than half"));
        assert!(leaves_half(&std::env::temp_dir(), 0) && !leaves_half(&std::env::temp_dir(), u64::MAX));
    }
}
