//! Reading ahead across the files of a version, for clients that read one after another, as `cp`, tar and rsync do.
//!
//! Within a file, [`FileBody::read_ahead`](dedupfs_content::FileBody::read_ahead) keeps a reader ahead. When a client has read two files one
//! after the other, a worker requests the beginnings of the files at the next places of the tree: of few at first, of twice as many each
//! time. So a small file is mostly in memory before the client opens it. A client that leaves files out gets nothing, since it would mostly
//! read in vain.
//!
//! Cost: for each request up to [`PLACES`] entries of the tree and the recipe nodes of their files, read by a worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dedupfs_base::{EngineError, Result};
use dedupfs_content::FileContext;
use dedupfs_namespace::{FIRST_LINKED_PLACE, place_of, version_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::Content;
use dedupfs_sync::Mutex;
use dedupfs_sync::clock::Instant;

use super::Service;
use crate::versions::read::FrozenTree;

/// Readers remembered at most.
const READERS_MAX: usize = 16;
/// A reader may skip so many places between two files: directories, links, and files with several names.
const SKIPPED_PLACES_MAX: u64 = 64;
/// Places of the first request, and of the largest one.
const PLACES: [u64; 2] = [16, 256];
/// Bytes of each file at most. More is requested when a client reads the file.
const BEGINNING_BYTES: u64 = 1 << 20;
/// A reader without a file for so long has no regions ahead of it any more.
const PATIENCE: Duration = Duration::from_secs(2);

/// The progress of one reader.
#[derive(Clone, Copy)]
struct Reader {
    number: u64,
    /// The file that it has read last, and when.
    last: Ino,
    last_at: Instant,
    /// The first place that is not requested yet.
    requested_until: Ino,
    /// Places that were ahead of it behind the last request.
    lead_places: u64,
    /// Regions of these.
    lead_regions: usize,
    /// Places of the next request.
    next_places: u64,
}

impl Reader {
    fn new(number: u64, ino: Ino) -> Self {
        let [next_places, _] = PLACES;
        let (requested_until, last_at) = (ino + 1, Instant::now());
        Self { number, last: ino, last_at, requested_until, lead_places: 0, lead_regions: 0, next_places }
    }

    /// Places that are requested and not reached.
    fn places_ahead(&self) -> u64 {
        self.requested_until.saturating_sub(self.last + 1)
    }

    fn regions_ahead(&self) -> usize {
        let regions = (self.lead_regions as u64).saturating_mul(self.places_ahead());
        usize::try_from(regions.checked_div(self.lead_places).unwrap_or(0)).unwrap_or(usize::MAX)
    }
}

/// Readers that go through versions. A short lock, taken alone.
#[derive(Default)]
pub(super) struct Readers(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The one that read last comes last.
    readers: VecDeque<Reader>,
    next_number: u64,
}

/// A request for the content at some places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    reader: u64,
    from: Ino,
    places: u64,
    /// Regions ahead of this reader, and of all.
    regions_ahead: [usize; 2],
}

impl Known {
    /// Removes the reader that read `ino` last, or else the one that read the nearest file before it.
    fn take(&mut self, ino: Ino) -> Option<Reader> {
        let near = ino.saturating_sub(SKIPPED_PLACES_MAX)..=ino;
        let readers = self.readers.iter().enumerate().filter(|(_, reader)| near.contains(&reader.last));
        let at = readers.max_by_key(|(_, reader)| reader.last).map(|(at, _)| at)?;
        self.readers.remove(at)
    }

    fn put(&mut self, reader: Reader) {
        if self.readers.len() >= READERS_MAX {
            self.readers.pop_front();
        }
        self.readers.push_back(reader);
    }
}

impl Readers {
    /// Returns the file that was read last by the reader that may have come from there to `ino`.
    fn last_before(&self, ino: Ino) -> Option<Ino> {
        let mut known = self.0.lock();
        let reader = known.take(ino)?;
        known.put(reader);
        Some(reader.last)
    }

    /// Notes that a reader has read a file to its end. `goes_on`: there is no other file between this one and the file before it. Returns
    /// whether the reader goes on, and its next request if it has reached half of what is requested.
    fn note(&self, ino: Ino, goes_on: bool) -> (bool, Option<Next>) {
        let mut known = self.0.lock();
        let overtaken = ino + 1..=ino + SKIPPED_PLACES_MAX;
        let number = known.next_number;
        let Some(mut reader) = known.take(ino) else {
            // Clients with several threads end files a little out of order.
            if known.readers.iter().any(|reader| reader.places_ahead() > 0 && overtaken.contains(&reader.last)) {
                return (true, None);
            }
            known.next_number += 1;
            known.put(Reader::new(number, ino));
            return (false, None);
        };
        if reader.last == ino || !goes_on {
            let is_again = reader.last == ino;
            // A new number: the outcome of an earlier request is none of this one's.
            known.next_number += u64::from(!is_again);
            known.put(if is_again { reader } else { Reader::new(number, ino) });
            return (is_again, None);
        }
        (reader.last, reader.last_at) = (ino, Instant::now());
        reader.requested_until = reader.requested_until.max(ino + 1);
        let next = (reader.places_ahead() <= reader.lead_places / 2).then(|| {
            let others = known.readers.iter().filter(|other| other.last_at.elapsed() < PATIENCE);
            let own = reader.regions_ahead();
            let all = others.map(Reader::regions_ahead).fold(own, usize::saturating_add);
            let (from, places) = (reader.requested_until, reader.next_places);
            // So that nobody requests it meanwhile.
            reader.requested_until = from + places;
            reader.lead_places = reader.places_ahead();
            Next { reader: reader.number, from, places, regions_ahead: [own, all] }
        });
        known.put(reader);
        (true, next)
    }

    /// Notes how many places of a request there was room for, and their regions. What was refused is requested again later.
    fn note_request(&self, next: &Next, places: u64, regions: usize) {
        let mut known = self.0.lock();
        let Some(reader) = known.readers.iter_mut().find(|reader| reader.number == next.reader) else { return };
        reader.requested_until = (next.from + places).max(reader.last + 1);
        reader.lead_places = reader.lead_places.saturating_sub(next.places - places);
        reader.lead_regions = next.regions_ahead[0] + regions;
        let [least, most] = PLACES;
        reader.next_places = if places == next.places { (2 * places).min(most) } else { least };
    }
}

impl Service {
    /// Notes that a client has read a file of a version to its end. Requests the files behind it if the client reads one after another.
    /// Returns whether it does.
    pub(super) fn read_across(&self, ino: Ino) -> bool {
        if place_of(ino) >= FIRST_LINKED_PLACE {
            return false;
        }
        let last = self.readers.last_before(ino);
        let goes_on = last.is_some_and(|last| (last + 1..ino).all(|between| !self.is_file(between)));
        let (goes_on, next) = self.readers.note(ino, goes_on);
        // A client reads by itself whatever is not requested.
        if let Some(next) = next
            && !self.request_across(next).unwrap_or(false)
        {
            self.readers.note_request(&next, 0, 0);
        }
        goes_on
    }

    /// Whether a place of a version is that of a file with one name.
    fn is_file(&self, ino: Ino) -> bool {
        self.found_frozen(ino).is_ok_and(|found| matches!(found.entry.content, Content::File { .. }))
    }

    /// Has a worker make the request; `false` if too many jobs wait.
    fn request_across(&self, next: Next) -> Result<bool> {
        let version = self.core.namespace.inode_shared(version_of(next.from))?.ok_or(EngineError::NotFound)?;
        // A waiting job does not keep a closed pool alive.
        let (files, readers) = (Arc::downgrade(&self.core.files), Arc::clone(&self.readers));
        Ok(self.core.files.work_ahead(Box::new(move || {
            let Some(files) = files.upgrade() else { return };
            let (places, regions) = request(&files, &next, version.ino, &version.root).unwrap_or((0, 0));
            readers.note_request(&next, places, regions);
        })))
    }
}

/// Requests the content at these places. Returns how many there was room for, and their regions.
fn request(files: &FileContext, next: &Next, version: Ino, root: &Root) -> Result<(u64, usize)> {
    let tree = FrozenTree::open(files.dedup().nodes(), version, root)?;
    let entries = tree.uppermost()?.entry.sums().map_or(0, |sums| sums.entries);
    let end = version.saturating_add(entries).min(next.from + next.places);
    let roots = (next.from..end).map_while(|ino| match tree.find(ino) {
        Ok(found) => Some(if let Content::File { root, .. } = found.entry.content { root } else { Root::Empty }),
        // A file with several names has a number of its own.
        Err(EngineError::NotFound) => Some(Root::Empty),
        Err(_) => None,
    });
    Ok(files.ask_for_beginnings(roots, next.regions_ahead[1], BEGINNING_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file behind the one before it. There is room for so many places of the request that comes of it, with three regions each.
    fn read(readers: &Readers, ino: Ino, room: u64) -> Option<(Ino, u64, [usize; 2])> {
        let (_, next) = readers.note(ino, true);
        let next = next?;
        let places = room.min(next.places);
        readers.note_request(&next, places, 3 * places as usize);
        Some((next.from, next.places, next.regions_ahead))
    }

    #[test]
    fn behind_the_second_file_the_next_ones_are_requested_in_growing_steps() {
        let readers = Readers::default();
        assert_eq!(readers.note(1000, false), (false, None), "one file is no sequence");
        assert_eq!(read(&readers, 1001, 300), Some((1002, 16, [0, 0])));
        assert!((1002..1009).all(|ino| read(&readers, ino, 300).is_none()), "more than half is left");
        assert_eq!(read(&readers, 1009, 300), Some((1018, 32, [24, 24])));
        assert_eq!(readers.note(1009, true), (true, None), "read twice");
        let requests: Vec<_> =
            (1010..3000).filter_map(|ino| read(&readers, ino, 300)).map(|(_, places, _)| places).collect();
        assert_eq!(requests[..4], [64, 128, 256, 256]);
        assert_eq!(readers.0.lock().readers.len(), 1);
    }

    #[test]
    fn a_reader_that_leaves_files_out_gets_nothing() {
        let readers = Readers::default();
        for ino in (1000..2000).step_by(20) {
            assert_eq!(readers.note(ino, false), (false, None), "{ino}");
        }
        assert_eq!(read(&readers, 1981, 300), Some((1982, 16, [0, 0])), "until it reads two in a row");
        assert_eq!(readers.note(2020, false), (false, None));
        assert_eq!(read(&readers, 2021, 300), Some((2022, 16, [0, 0])), "few at first");
    }

    #[test]
    fn readers_are_told_apart_and_share_the_room() {
        let readers = Readers::default();
        readers.note(1000, false);
        readers.note(5000, false);
        assert_eq!(read(&readers, 5001, 300), Some((5002, 16, [0, 0])));
        assert_eq!(read(&readers, 1001, 300), Some((1002, 16, [0, 48])));
        assert_eq!(readers.note(900, false), (false, None), "back");
        assert_eq!(readers.note(1002 + SKIPPED_PLACES_MAX, false), (false, None), "too far");
        (1..=READERS_MAX as u64).for_each(|number| assert_eq!(readers.note(100_000 * number, false), (false, None)));
        assert_eq!(readers.note(5002, false), (false, None), "forgotten");
        assert_eq!(readers.0.lock().readers.len(), READERS_MAX);
    }

    #[test]
    fn files_that_end_out_of_order_are_of_one_reader() {
        let readers = Readers::default();
        readers.note(1000, false);
        let mut requests = 0;
        for ino in (1001..1101).step_by(2) {
            for ino in [ino + 1, ino] {
                requests += u64::from(read(&readers, ino, 300).is_some());
            }
        }
        assert_eq!((requests, readers.0.lock().readers.len()), (4, 1), "16, 32, 64, 128");
    }

    #[test]
    fn a_request_is_made_once_though_its_outcome_comes_late() {
        let readers = Readers::default();
        readers.note(1000, false);
        let (_, next) = readers.note(1001, true);
        assert!((1002..1009).all(|ino| readers.note(ino, true) == (true, None)));
        readers.note_request(&next.expect("is made"), 16, 48);
        assert_eq!(read(&readers, 1009, 300), Some((1018, 32, [24, 24])));
    }

    #[test]
    fn a_request_without_room_is_made_again() {
        let readers = Readers::default();
        readers.note(1000, false);
        assert_eq!(read(&readers, 1001, 0), Some((1002, 16, [0, 0])));
        assert_eq!(read(&readers, 1002, 16), Some((1003, 16, [0, 0])), "at the next file, as nothing is ahead");
        assert_eq!(read(&readers, 1010, 0), Some((1019, 32, [24, 24])));
        assert!((1011..1014).all(|ino| read(&readers, ino, 300).is_none()));
        assert_eq!(read(&readers, 1014, 300), Some((1019, 16, [12, 12])), "when half of the rest is read");
    }
}
