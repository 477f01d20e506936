//! Claims on containers and sections against reclaiming (invariant I-4), for chunks, which have no pins.
//!
//! One unreferenced chunk lies in container 1, which is being emptied. Writers refer to it there while the container is
//! not claimed, or store it anew. Reclaiming removes it, or copies it forward if it is referenced by then. In every
//! order a referenced chunk has a copy. Each step repeats the method of `Deduplicator` or `Reclaimer` with the same
//! name.

use std::collections::BTreeSet;
use std::sync::Arc;

use shuttle::thread;

use crate::sections::Sections;
use crate::sync::Mutex;
use crate::{explore, must_fail};

/// The step that a canary leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    Claim,
    Wait,
}

#[derive(Clone, Copy)]
enum Op {
    NodeStored,
    ChunkRemoved { container: u32 },
}

#[derive(Default)]
struct Index {
    place: Option<u32>,
    references: u32,
    log: Vec<Op>,
    copies: BTreeSet<u32>,
}

struct Pool {
    without: Without,
    sections: Sections,
    store_lock: Mutex<()>,
    claimed: Mutex<Option<u32>>,
    index: Mutex<Index>,
}

impl Pool {
    fn locate_usable(&self) -> bool {
        let place = self.index.lock().place;
        let claimed = *self.claimed.lock();
        place.is_some() && (claimed != place || self.without == Without::Claim)
    }

    fn place_chunk(&self, container: u32) {
        let _section = self.sections.enter(|| ());
        if !self.locate_usable() {
            let _exclusive = self.store_lock.lock();
            if !self.locate_usable() {
                let mut index = self.index.lock();
                index.copies.insert(container);
                index.place = Some(container);
            }
        }
        self.index.lock().log.push(Op::NodeStored);
    }

    fn settle(&self) {
        let take = || std::mem::take(&mut self.index.lock().log);
        let log = if self.without == Without::Wait { take() } else { self.sections.between(take) };
        let mut index = self.index.lock();
        for op in log {
            match op {
                Op::NodeStored => index.references += 1,
                Op::ChunkRemoved { container } if index.place == Some(container) => index.place = None,
                Op::ChunkRemoved { .. } => {}
            }
        }
    }

    fn copy_forward(&self, from: u32, to: u32) {
        let _section = self.sections.enter(|| ());
        let _exclusive = self.store_lock.lock();
        let mut index = self.index.lock();
        if index.place == Some(from) {
            index.copies.insert(to);
            index.place = Some(to);
        }
    }

    fn empty(&self, container: u32) {
        *self.claimed.lock() = Some(container);
        if self.without != Without::Wait {
            self.sections.barrier();
        }
        self.settle();
        let (place, references) = {
            let index = self.index.lock();
            (index.place, index.references)
        };
        if place == Some(container) && references == 0 {
            self.index.lock().log.push(Op::ChunkRemoved { container });
        } else if place == Some(container) {
            self.copy_forward(container, 9);
        }
        self.settle();
        // The namespace forgets the container in a round of its own.
        self.settle();
        self.index.lock().copies.remove(&container);
        if self.without != Without::Wait {
            self.sections.barrier();
        }
        *self.claimed.lock() = None;
    }
}

fn empty_beside_writers(without: Without) {
    let index = Index { place: Some(1), copies: BTreeSet::from([1]), ..Index::default() };
    let (sections, store_lock, claimed) = (Sections::default(), Mutex::new(()), Mutex::new(None));
    let pool = Arc::new(Pool { without, sections, store_lock, claimed, index: Mutex::new(index) });
    let emptying = pool.clone();
    let mut threads = vec![thread::spawn(move || emptying.empty(1))];
    for container in [2, 3] {
        let pool = pool.clone();
        threads.push(thread::spawn(move || pool.place_chunk(container)));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
    pool.settle();
    let index = pool.index.lock();
    assert_eq!(index.references, 2);
    let place = index.place.expect("a chunk that is referred to is known");
    assert!(index.copies.contains(&place), "the copy that files need was freed");
}

#[test]
fn what_files_refer_to_is_copied_or_stored_anew() {
    explore(|| empty_beside_writers(Without::Nothing));
}

#[test]
fn canary_referring_to_what_is_claimed_is_found() {
    must_fail("no look at claims", || empty_beside_writers(Without::Claim));
}

#[test]
fn canary_not_waiting_for_sections_is_found() {
    must_fail("no waiting for sections", || empty_beside_writers(Without::Wait));
}
