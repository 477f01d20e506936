//! Clients that read the files of a version one after another, as `cp`, tar and rsync do.
//!
//! [`FileBody::read_ahead`](dedupfs_content::FileBody::read_ahead) keeps a reader ahead within a file. Behind its end come the files
//! with the next places in the tree, and the chunks of those are requested. So a small file is in memory when it is opened.

use std::collections::VecDeque;

use dedupfs_namespace::{FIRST_LINKED_PLACE, place_of};
use dedupfs_service::Ino;
use dedupfs_store::recipe::Root;
use dedupfs_store::tree::Content;
use dedupfs_sync::Mutex;

use super::Service;

/// Clients remembered at most.
const CLIENTS: usize = 16;
/// Places between two files that one client reads, at most: of directories and links, and of files that the client has.
const SKIPPED_PLACES: u64 = 64;
/// Places behind a file whose content is requested, at most.
const PLACES: u64 = 256;

/// The way of one client through a tree.
#[derive(Clone, Copy)]
struct Client {
    /// The file that it has read last.
    last: Ino,
    /// Files before this one have been requested.
    asked_until: Ino,
    /// Places of the last request, and regions of their content.
    asked: (u64, usize),
}

/// Clients that pass through versions; the latest one last. A short lock, taken alone.
#[derive(Default)]
pub(super) struct Passing(Mutex<VecDeque<Client>>);

/// Files to be requested: from this one on, with so many regions of earlier requests ahead of the client.
#[derive(Debug, PartialEq, Eq)]
struct Next {
    from: Ino,
    regions_ahead: usize,
}

impl Passing {
    /// Notes that a file was read to its end. Returns the files to be requested, if a client came here from a file shortly before, and half
    /// of what was requested for it is read.
    fn note(&self, ino: Ino) -> Option<Next> {
        let mut clients = self.0.lock();
        let known = clients.iter().position(|client| (client.last..=client.last + SKIPPED_PLACES).contains(&ino));
        let client = known.and_then(|at| clients.remove(at));
        if clients.len() >= CLIENTS {
            clients.pop_front();
        }
        let Some(Client { last, asked_until, asked }) = client else {
            clients.push_back(Client { last: ino, asked_until: ino + 1, asked: (0, 0) });
            return None;
        };
        clients.push_back(Client { last: ino, asked_until, asked });
        let from = asked_until.max(ino + 1);
        let left = from - ino - 1;
        let regions_ahead = (asked.1 as u64 * left).checked_div(asked.0).unwrap_or(0) as usize;
        (ino != last && left <= asked.0 / 2).then_some(Next { from, regions_ahead })
    }

    /// Notes that files in front of `until`, with so many regions, were requested for the client that has read `ino` last.
    fn asked(&self, ino: Ino, from: Ino, until: Ino, regions: usize) {
        let mut clients = self.0.lock();
        if let Some(client) = clients.iter_mut().rfind(|client| client.last == ino) {
            (client.asked_until, client.asked) = (until, (until - from, regions));
        }
    }
}

impl Service {
    /// Notes that a file of a version was read to its end. Has the files behind it read ahead if a client reads one after the other.
    pub(super) fn pass(&self, ino: Ino) {
        if place_of(ino) >= FIRST_LINKED_PLACE {
            return;
        }
        let Some(Next { from, regions_ahead }) = self.passing.note(ino) else { return };
        let roots = (from..from.saturating_add(PLACES)).map_while(|ino| self.frozen_content(ino));
        let (files, regions) = self.core.files.ask_for_beginnings(regions_ahead, roots);
        self.passing.asked(ino, from, from + files, regions);
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

    /// Reads a file; what is wanted is requested, as far as place `until`.
    fn read(passing: &Passing, ino: Ino, until: Ino) -> Option<Next> {
        let next = passing.note(ino);
        if let Some(Next { from, .. }) = next {
            passing.asked(ino, from, until, (until - from) as usize * 3);
        }
        next
    }

    #[test]
    fn behind_the_second_file_the_next_ones_are_requested_in_steps() {
        let passing = Passing::default();
        assert_eq!(read(&passing, 1000, 1101), None, "one file shows no way");
        assert_eq!(read(&passing, 1001, 1101), Some(Next { from: 1002, regions_ahead: 0 }));
        for ino in (1002..1051).step_by(3) {
            assert_eq!(read(&passing, ino, 1201), None, "{ino}: more than half is left");
        }
        assert_eq!(read(&passing, 1051, 1201), Some(Next { from: 1101, regions_ahead: 49 * 3 }));
        assert_eq!(read(&passing, 1051, 1201), None, "read twice");
    }

    #[test]
    fn clients_are_told_apart_and_one_that_jumps_is_a_new_one() {
        let passing = Passing::default();
        read(&passing, 1000, 1101);
        read(&passing, 5000, 5101);
        assert_eq!(read(&passing, 5001, 5101), Some(Next { from: 5002, regions_ahead: 0 }));
        assert_eq!(read(&passing, 1001, 1101), Some(Next { from: 1002, regions_ahead: 0 }));
        assert_eq!(read(&passing, 900, 1101), None, "back");
        assert_eq!(read(&passing, 1002 + SKIPPED_PLACES, 1101), None, "too far");
        (0..CLIENTS as u64).for_each(|number| assert_eq!(read(&passing, 100_000 * (number + 1), 0), None));
        assert_eq!(read(&passing, 5002, 5101), None, "forgotten");
        assert_eq!(passing.0.lock().len(), CLIENTS);
    }

    #[test]
    fn a_request_without_room_is_made_again_at_the_next_file() {
        let passing = Passing::default();
        read(&passing, 1000, 1001);
        assert_eq!(read(&passing, 1001, 1002), Some(Next { from: 1002, regions_ahead: 0 }));
        assert_eq!(read(&passing, 1002, 1003), Some(Next { from: 1003, regions_ahead: 0 }));
    }
}
