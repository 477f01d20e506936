//! Lanes: streams of parcels between all machines, each a dataflow of timely that exchanges them.
//!
//! A parcel is the content of one send buffer. (The paper's option 2: a machine has a buffer for each other machine, not one for each
//! partition of each.) A machine numbers its parcels by *turns*, and waits when those of some turns ago have not all arrived: so little is
//! under way. Turns of different machines are not compared: a slow machine does not hold the others up.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::core::unordered_input::{UnorderedHandle, UnorderedInput};
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{ActivateCapability, Probe};
use timely::dataflow::{ProbeHandle, Scope};
use timely::order::PartialOrder;
use timely::progress::timestamp::{PathSummary, Refines, Timestamp};
use timely::worker::Worker;
use twox_hash::XxHash3_64;

/// A turn of a machine, as a timestamp.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Index of the machine, plus 1. 0 is before all turns.
    machine: u32,
    number: u64,
}

impl PartialOrder for Turn {
    fn less_equal(&self, other: &Self) -> bool {
        self.machine == 0 || (self.machine == other.machine && self.number <= other.number)
    }
}

/// The way of a timestamp through a lane: it stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unchanged;

impl PartialOrder for Unchanged {
    fn less_equal(&self, _: &Self) -> bool {
        true
    }
}

impl PathSummary<Turn> for Unchanged {
    fn results_in(&self, turn: &Turn) -> Option<Turn> {
        Some(turn.clone())
    }

    fn followed_by(&self, _: &Self) -> Option<Self> {
        Some(Self)
    }
}

impl Timestamp for Turn {
    type Summary = Unchanged;

    fn minimum() -> Self {
        Self::default()
    }
}

impl Refines<()> for Turn {
    fn to_inner(_: ()) -> Self {
        Self::default()
    }

    fn to_outer(self) {}

    fn summarize(_: Unchanged) {}
}

/// Bytes from one machine to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Parcel {
    to: u32,
    pub(super) from: u32,
    #[serde(serialize_with = "put_bytes", deserialize_with = "take_bytes")]
    pub(super) bytes: Vec<u8>,
    /// XXH3 of the bytes: the network's own sum has 16 bits.
    sum: u64,
}

impl Parcel {
    /// Returns it, if its bytes came as they were sent.
    pub(super) fn whole(self) -> crate::Result<Self> {
        match XxHash3_64::oneshot(&self.bytes) == self.sum {
            true => Ok(self),
            false => Err(crate::Error::Lost { machine: self.from as usize, why: "bytes came damaged from it".into() }),
        }
    }
}

fn put_bytes<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

/// Reads all bytes at once, not each as a number.
fn take_bytes<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<u8>, D::Error> {
    struct Bytes;
    impl serde::de::Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, into: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            into.write_str("bytes")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }

        fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
    }
    from.deserialize_bytes(Bytes)
}

/// This machine's end of a lane.
pub(super) struct Lane {
    me: u32,
    input: UnorderedHandle<Turn, CapacityContainerBuilder<Vec<Parcel>>>,
    /// The right to send. None when this machine has sent all.
    right: Option<ActivateCapability<Turn>>,
    probe: ProbeHandle<Turn>,
    inbox: Rc<RefCell<VecDeque<Parcel>>>,
    /// The turn, the bytes of it, and its limits.
    number: u64,
    turn_bytes: usize,
    turn_bytes_max: usize,
    turns: u64,
    /// Parcels and bytes sent.
    pub(super) parcels: u64,
    pub(super) bytes: u64,
}

impl Lane {
    /// Opens a lane. All machines open the same ones, in the same order. `turns` of `turn_bytes_max` may be under way.
    pub(super) fn open(worker: &mut Worker, turn_bytes_max: usize, turns: u64) -> Self {
        let me = worker.index() as u32;
        let inbox = Rc::new(RefCell::new(VecDeque::new()));
        let probe = ProbeHandle::new();
        let arrived = Rc::clone(&inbox);
        let (input, first) = worker.dataflow(|scope: Scope<'_, Turn>| {
            let (input, stream) = scope.new_unordered_input::<CapacityContainerBuilder<Vec<Parcel>>>();
            stream
                .unary::<CapacityContainerBuilder<Vec<()>>, _, _, _>(
                    Exchange::new(|parcel: &Parcel| u64::from(parcel.to)),
                    "lane",
                    |_, _| {
                        move |parcels, _| parcels.for_each(|_, parcels| arrived.borrow_mut().extend(parcels.drain(..)))
                    },
                )
                .probe_with(&probe);
            input
        });
        let right = Some(first.delayed(&Turn { machine: me + 1, number: 0 }));
        Self { me, input, right, probe, inbox, number: 0, turn_bytes: 0, turn_bytes_max, turns, parcels: 0, bytes: 0 }
    }

    /// Whether a parcel may be sent now.
    pub(super) fn is_free(&self) -> bool {
        let Some(number) = self.number.checked_sub(self.turns) else { return true };
        !self.probe.less_equal(&Turn { machine: self.me + 1, number })
    }

    /// Sends a parcel. One to this machine itself is not copied.
    pub(super) fn send(&mut self, to: usize, bytes: Vec<u8>) {
        let Some(right) = &mut self.right else { return };
        self.parcels += 1;
        self.bytes += bytes.len() as u64;
        self.turn_bytes += bytes.len();
        let sum = XxHash3_64::oneshot(&bytes);
        self.input.activate().session(&*right).give(Parcel { to: to as u32, from: self.me, bytes, sum });
        if self.turn_bytes >= self.turn_bytes_max {
            self.end_turn();
        }
    }

    /// Ends a turn, if anything was sent in it.
    pub(super) fn end_turn(&mut self) {
        let Some(right) = self.right.as_mut().filter(|_| self.turn_bytes > 0) else { return };
        self.number += 1;
        self.turn_bytes = 0;
        right.downgrade(&Turn { machine: self.me + 1, number: self.number });
    }

    /// Says that this machine sends no more.
    pub(super) fn close(&mut self) {
        self.right = None;
    }

    /// Whether no machine sends any more, and all parcels have arrived.
    pub(super) fn is_done(&self) -> bool {
        self.right.is_none() && self.probe.done() && self.inbox.borrow().is_empty()
    }

    /// Takes the next parcel that has arrived. Those of one machine come in their order.
    pub(super) fn take(&self) -> Option<Parcel> {
        self.inbox.borrow_mut().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_whose_bytes_changed_is_refused() {
        let bytes = vec![7; 1000];
        let parcel =
            |bytes: &[u8]| Parcel { to: 0, from: 3, bytes: bytes.to_vec(), sum: XxHash3_64::oneshot(&[7; 1000]) };
        assert_eq!(parcel(&bytes).whole().unwrap().bytes, bytes);
        for at in [0, 500, 999] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(matches!(parcel(&damaged).whole(), Err(crate::Error::Lost { machine: 3, .. })));
        }
    }
}
