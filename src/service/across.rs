//! Reading ahead across the files of a version, for clients that read one after another, as `cp`, tar and rsync do.
//!
//! Within a file, [`FileBody::read_ahead`](dedupfs_content::FileBody::read_ahead) keeps a reader ahead. When a client has read a file to its
//! end, the service requests the beginnings of the files at the next places of the tree. So a small file is mostly in memory before the
//! client opens it. Files with several names have places of their own, and are left out.
//!
//! Cost: for each request up to [`REQUESTED_PLACES_MAX`] entries of the tree and the recipe nodes of their files, read on the thread that
//! serves the read.

use std::collections::VecDeque;

use dedupfs_namespace::{FIRST_LINKED_PLACE, place_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::Content;
use dedupfs_sync::Mutex;

use super::Service;

/// Readers remembered at most.
const READERS_MAX: usize = 16;
/// A reader may skip so many places between two files: directories, links, and files that it does not need.
const SKIPPED_PLACES_MAX: u64 = 64;
/// So many places are requested at once, at most.
const REQUESTED_PLACES_MAX: u64 = 256;

/// The progress of one reader.
#[derive(Clone, Copy)]
struct Reader {
    /// The file that it has read last.
    last: Ino,
    /// The first place that is not requested yet.
    requested_until: Ino,
    /// Places of the last request.
    requested_places: u64,
    /// Regions of their content.
    requested_regions: usize,
}

/// Readers that go through versions; the latest one last. A short lock, taken alone.
#[derive(Default)]
pub(super) struct Readers(Mutex<VecDeque<Reader>>);

/// A request: from this place on, for a reader with so many requested regions ahead of it.
#[derive(Debug, PartialEq, Eq)]
struct Next {
    from: Ino,
    regions_ahead: usize,
}

impl Readers {
    /// Notes that a reader has read a file to its end. Returns the next request if the same reader read a file shortly before this one, and
    /// has reached half of its last request.
    fn note(&self, ino: Ino) -> Option<Next> {
        let mut readers = self.0.lock();
        let known = readers.iter().position(|reader| (reader.last..=reader.last + SKIPPED_PLACES_MAX).contains(&ino));
        let reader = known.and_then(|at| readers.remove(at));
        if readers.len() >= READERS_MAX {
            readers.pop_front();
        }
        let Some(Reader { last, requested_until, requested_places, requested_regions }) = reader else {
            let requested_until = ino + 1;
            readers.push_back(Reader { last: ino, requested_until, requested_places: 0, requested_regions: 0 });
            return None;
        };
        readers.push_back(Reader { last: ino, requested_until, requested_places, requested_regions });
        let from = requested_until.max(ino + 1);
        let left = from - ino - 1;
        let regions_ahead = (requested_regions as u64 * left).checked_div(requested_places).unwrap_or(0) as usize;
        (ino != last && left <= requested_places / 2).then_some(Next { from, regions_ahead })
    }

    /// Notes a request of so many places, with so many regions, for the reader that has read `ino` last. One without room is made again at
    /// its next file.
    fn note_request(&self, ino: Ino, from: Ino, places: u64, regions: usize) {
        let mut readers = self.0.lock();
        if let Some(reader) = readers.iter_mut().rfind(|reader| reader.last == ino).filter(|_| places > 0) {
            reader.requested_until = from + places;
            (reader.requested_places, reader.requested_regions) = (places, regions);
        }
    }
}

impl Service {
    /// Notes that a client has read a file of a version to its end. Requests the files behind it if the client reads one after another.
    pub(super) fn read_across(&self, ino: Ino) {
        if place_of(ino) >= FIRST_LINKED_PLACE {
            return;
        }
        let Some(Next { from, regions_ahead }) = self.readers.note(ino) else { return };
        let roots = (from..from.saturating_add(REQUESTED_PLACES_MAX)).map_while(|ino| self.frozen_content(ino));
        let (places, regions) = self.core.files.ask_for_beginnings(regions_ahead, roots);
        self.readers.note_request(ino, from, places, regions);
    }

    /// Returns the content of a file of a version, empty for other inodes; `None` behind the tree, or if it cannot be read.
    fn frozen_content(&self, ino: Ino) -> Option<Root> {
        let found = self.found_frozen(ino).ok()?;
        Some(if let Content::File { root, .. } = &found.entry.content { *root } else { Root::Empty })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file. A request that comes of it reaches as far as place `until`.
    fn read(readers: &Readers, ino: Ino, until: Ino) -> Option<Next> {
        let next = readers.note(ino);
        if let Some(Next { from, .. }) = next {
            readers.note_request(ino, from, until - from, (until - from) as usize * 3);
        }
        next
    }

    #[test]
    fn behind_the_second_file_the_next_ones_are_requested_in_steps() {
        let readers = Readers::default();
        assert_eq!(read(&readers, 1000, 1101), None, "one file is no sequence");
        assert_eq!(read(&readers, 1001, 1102), Some(Next { from: 1002, regions_ahead: 0 }));
        for ino in (1002..1051).step_by(3) {
            assert_eq!(read(&readers, ino, 1201), None, "{ino}: more than half is left");
        }
        assert_eq!(read(&readers, 1051, 1201), Some(Next { from: 1102, regions_ahead: 50 * 3 }));
        assert_eq!(read(&readers, 1051, 1201), None, "read twice");
    }

    #[test]
    fn readers_are_told_apart_and_one_that_jumps_is_a_new_one() {
        let readers = Readers::default();
        read(&readers, 1000, 1101);
        read(&readers, 5000, 5101);
        assert_eq!(read(&readers, 5001, 5101), Some(Next { from: 5002, regions_ahead: 0 }));
        assert_eq!(read(&readers, 1001, 1101), Some(Next { from: 1002, regions_ahead: 0 }));
        assert_eq!(read(&readers, 900, 1101), None, "back");
        assert_eq!(read(&readers, 1002 + SKIPPED_PLACES_MAX, 1101), None, "too far");
        (0..READERS_MAX as u64).for_each(|number| assert_eq!(read(&readers, 100_000 * (number + 1), 0), None));
        assert_eq!(read(&readers, 5002, 5101), None, "forgotten");
        assert_eq!(readers.0.lock().len(), READERS_MAX);
    }

    #[test]
    fn a_request_without_room_is_made_again_at_the_next_file() {
        let readers = Readers::default();
        read(&readers, 1000, 1001);
        assert_eq!(read(&readers, 1001, 1002), Some(Next { from: 1002, regions_ahead: 0 }), "no place");
        assert_eq!(read(&readers, 1002, 1103), Some(Next { from: 1003, regions_ahead: 0 }));
        assert_eq!(read(&readers, 1052, 1103), Some(Next { from: 1103, regions_ahead: 150 }), "no place");
        assert_eq!(read(&readers, 1053, 1203), Some(Next { from: 1103, regions_ahead: 147 }));
    }
}
