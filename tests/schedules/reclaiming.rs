//! Pins, claims and sections against reclaiming: claim, wait, recheck, free (invariant I-4).
//!
//! One unreferenced node lies in container 1. Writers find it, or store it anew in a container of their own, and log a
//! reference, all in one section; reclaiming frees the copy that it claimed. In every order a referenced node has a
//! copy. After a power loss at any moment, the node's children are counted once if the node is known, and not at all
//! otherwise. Each step below repeats the method of `Deduplicator` with the same name, on an index of one cell.

use std::collections::BTreeSet;
use std::sync::Arc;

use dedupfs_store::Fingerprint;
use shuttle::thread;

use crate::pins::{Pin, Pins};
use crate::sections::{Section, Sections};
use crate::sync::Mutex;
use crate::{explore, must_fail};

const NODE: Fingerprint = Fingerprint([7; 32]);

/// The step that a canary leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    Claim,
    Recheck,
    LastWait,
    Pin,
    /// A node stored again beside a claim is counted again, whether or not the claimed copy is freed by then.
    Moving,
    /// A node stored again beside a claim is never counted again.
    Freed,
}

#[derive(Clone, Copy)]
enum Op {
    RootAdded,
    NodeStored { container: u32 },
    NodeMoved { container: u32 },
    NodeFreed { container: u32 },
}

#[derive(Default)]
struct Index {
    /// The node's container, staged or counted; `None`: the index does not know the node.
    place: Option<u32>,
    /// The same, without staged entries.
    counted: Option<u32>,
    references: u32,
    children: i32,
    log: Vec<Op>,
    copies: BTreeSet<u32>,
}

struct Pool {
    without: Without,
    sections: Sections,
    pins: Arc<Pins>,
    store_lock: Mutex<()>,
    index: Mutex<Index>,
}

impl Pool {
    fn known_node(&self) -> Option<Pin> {
        self.index.lock().place?;
        match self.without {
            Without::Claim => Some(self.pins.pin_new(NODE)),
            _ => self.pins.pin_existing(NODE),
        }
    }

    fn store_node(&self, _section: &Section<'_>, container: u32) -> Pin {
        if let Some(pin) = self.known_node() {
            return pin;
        }
        let _exclusive = self.store_lock.lock();
        if let Some(pin) = self.known_node() {
            return pin;
        }
        self.index.lock().copies.insert(container);
        let pin = self.pins.pin_new(NODE);
        let is_freed = self.pins.is_freed(&NODE) && self.without != Without::Freed;
        let is_counted = self.index.lock().place.is_some() && !is_freed && self.without != Without::Moving;
        let op = if is_counted { Op::NodeMoved { container } } else { Op::NodeStored { container } };
        self.index.lock().log.push(op);
        self.index.lock().place = Some(container);
        self.pins.end_claim(&NODE);
        pin
    }

    /// Stores the node, and publishes a file of it in the same section or in a later one.
    fn write(&self, container: u32, at_once: bool) {
        let mut section = self.sections.enter(|| ());
        let pin = self.store_node(&section, container);
        let pin = (self.without != Without::Pin).then_some(pin);
        if !at_once {
            drop(section);
            section = self.sections.enter(|| ());
        }
        self.index.lock().log.push(Op::RootAdded);
        drop(section);
        drop(pin);
    }

    /// Counts everything logged so far.
    fn settle(&self) {
        let take = || std::mem::take(&mut self.index.lock().log);
        let log = self.sections.between(take);
        self.sections.barrier();
        let mut index = self.index.lock();
        for op in log {
            match op {
                Op::RootAdded => index.references += 1,
                Op::NodeStored { container } => {
                    index.children += 1;
                    index.counted = Some(container);
                }
                Op::NodeMoved { container } => index.counted = Some(container),
                Op::NodeFreed { container } => {
                    index.children -= 1;
                    index.copies.remove(&container);
                    if index.counted == Some(container) {
                        index.counted = None;
                    }
                    if index.place == Some(container) {
                        index.place = None;
                    }
                }
            }
        }
        assert_eq!(
            index.children,
            i32::from(index.counted.is_some()),
            "what is durable now has its children counted once"
        );
    }

    fn claim_node(&self, container: u32) -> bool {
        if self.pins.is_pinned(&NODE) {
            return false;
        }
        let _exclusive = self.store_lock.lock();
        let index = self.index.lock();
        index.references == 0 && index.place == Some(container) && self.pins.claim(NODE)
    }

    fn free_node(&self, container: u32) {
        let _exclusive = self.store_lock.lock();
        let mut index = self.index.lock();
        let is_garbage = match self.without {
            Without::Recheck => true,
            Without::Moving => index.references == 0 || index.place != Some(container),
            _ => index.references == 0 && index.place == Some(container),
        };
        if is_garbage {
            index.log.push(Op::NodeFreed { container });
            drop(index);
            self.pins.note_freed(NODE);
        } else {
            drop(index);
            self.pins.end_claim(&NODE);
        }
    }

    fn reclaim(&self, container: u32) {
        if self.claim_node(container) {
            self.sections.barrier();
            self.settle();
            self.free_node(container);
            self.settle();
            if self.without != Without::LastWait {
                self.sections.barrier();
            }
            self.pins.release_claims();
        }
    }
}

/// Containers of the writers, and whether each publishes in the section in which it stores.
type Writers = &'static [(u32, bool)];
const TWO: Writers = &[(2, true), (3, false)];
const ONE: Writers = &[(2, true)];
const SLOW: Writers = &[(3, false)];

fn reclaim_beside(writers: Writers, without: Without) {
    let index =
        Index { place: Some(1), counted: Some(1), children: 1, copies: BTreeSet::from([1]), ..Index::default() };
    let pool = Arc::new(Pool {
        without,
        sections: Sections::default(),
        pins: Arc::default(),
        store_lock: Mutex::new(()),
        index: Mutex::new(index),
    });
    let write = |&(container, at_once): &(u32, bool)| {
        let pool = pool.clone();
        thread::spawn(move || pool.write(container, at_once))
    };
    let mut threads: Vec<_> = writers.iter().map(write).collect();
    let reclaiming = pool.clone();
    threads.push(thread::spawn(move || reclaiming.reclaim(1)));
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
    pool.settle();
    let index = pool.index.lock();
    assert_eq!(index.references as usize, writers.len());
    let place = index.place.expect("a node that is referred to is known");
    assert!(index.copies.contains(&place), "the copy that files need was freed");
    assert_eq!(index.counted, Some(place));
}

#[test]
fn what_files_refer_to_is_never_freed() {
    for writers in [ONE, SLOW, TWO] {
        explore(move || reclaim_beside(writers, Without::Nothing));
    }
}

/// A node was stored and counted again beside its claim, and the claimed copy's counts were taken away later: a power
/// loss in between left both for ever.
#[test]
fn regression_what_is_stored_beside_a_claim_is_counted_once_at_any_moment() {
    must_fail("counted again", || reclaim_beside(ONE, Without::Moving));
}

#[test]
fn canary_a_copy_that_is_freed_counts_nothing_for_the_next_is_found() {
    must_fail("not counted", || reclaim_beside(ONE, Without::Freed));
}

#[test]
fn canary_pinning_what_is_claimed_is_found() {
    must_fail("no look at claims", || reclaim_beside(ONE, Without::Claim));
}

#[test]
fn canary_freeing_without_a_second_look_is_found() {
    must_fail("no recheck", || reclaim_beside(ONE, Without::Recheck));
}

/// Claims were released as soon as the freeing was counted. A writer that had found the node before, and looked for the
/// claim after that, took it for known.
#[test]
fn regression_claims_end_behind_whoever_found_what_is_freed() {
    must_fail("no waiting before claims are released", || reclaim_beside(ONE, Without::LastWait));
}

#[test]
fn canary_no_pin_until_the_root_is_logged_is_found() {
    must_fail("no pin", || reclaim_beside(SLOW, Without::Pin));
}
