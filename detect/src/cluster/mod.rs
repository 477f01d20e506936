//! A round on several machines.
//!
//! There is one process a machine, and one worker of timely a process. Each machine owns the fingerprints of one range, and its own disks. Machine 0
//! has the pool. The stages have the paper's names:
//!
//! | stage | at each machine | to |
//! |---|---|---|
//! | 1a | reads its disks; spools the asks that arrive in `q` partitions | asks, to the owners of their fingerprints |
//! | 1b | when all have read: takes one partition after the other into memory, sorts it, asks the pool | chunks, to machine 0, and answers back |
//! | 2a | spools the verdicts that arrive by position | verdicts, to the machines of their disks |
//! | 2b | puts them in order, reads the new chunks again | records, with the bytes of new chunks, to machine 0 |
//! | 3 | machine 0 lands records; at the end it puts disks in order and commits | the end, to all |
//!
//! In the paper, further copies of a chunk that is new in this round ("dup-with-new") wait for its reference: stages 3a to 4a bring it. Here they are
//! [`Repeated`](crate::Verdict::Repeated), and these stages are not needed: all asks of a fingerprint meet at its one owner, so the first
//! place in the order of (disk, offset) is known there, and machine 0 stores disks in the order of their numbers. So the chunk is there before anything
//! else names it, unless the disk with its first place could not be put: then disks with further places cannot be, either.
//!
//! # Failures
//! A round commits once or not at all. [`Landing::finish`] may commit one whose disks were not all stored: it names those that were. Any error at any machine ends it at all of them, and each error names the machine it came from. A
//! process that is killed is noticed at once; a connection without an answer is given up after ten seconds. A machine that merely hangs is not
//! noticed: the others wait for it, and their callers' `watch` may end the round. When machine 0 has committed, the
//! others may fail to hear of it: [`Rounds`](crate::Rounds) at machine 0 tells.
//!
//! # Memory
//! Of a machine with `p` others, bytes: those of the [`MemoryPlan`]; send buffers of 1 MiB; in each lane `turns` of `turn_bytes` sent and as
//! much received from each other machine; two slabs of timely of 1 MiB for each other machine, some of them twice. Windows need no clock of the
//! whole round: each machine counts its own turns (`lane`).
//!
//! # Security
//! Traffic is not encrypted, and machines are not authenticated: run this in a private network, or through a VPN. A process that says the hello of
//! the job, whose hash is no secret in the network, is believed to be its machine. Lengths of frames and messages are checked all the same, and
//! broken ones end the round. Behind that check, timely decodes messages of those machines alone.

mod frames;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod join;
mod lane;
mod links;
mod machine;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use timely::communication::Allocator;
use timely::communication::allocator::ProcessBuilder;
use timely::communication::allocator::zero_copy::initialize::initialize_networking_from_sockets;
use timely::communication::initialize::Hooks;
use timely::worker::{Config, Worker};

use crate::{Disks, Error, MemoryPlan, Pool, Record, Result, Tally};
pub use join::part_from_all;
use links::{Link, Links};
use machine::Machine;

/// Machines of a round at most.
const MACHINES_MAX: usize = 1024;
/// Disks of a round at most.
const DISKS_MAX: usize = 1 << 20;

/// Machines, and their part of a round. All have the same, but for `me` and `memory`.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Addresses in the order of their indexes. The first one has the pool.
    pub machines: Vec<SocketAddr>,
    /// The index of this machine.
    pub me: usize,
    /// The machine of each disk.
    pub machine_of_disk: Vec<u32>,
    /// A hash of all that the machines must agree on, such as the plan.
    pub job: [u8; 32],
    /// The number of the round in its job.
    pub round: u64,
    /// The amount under way.
    pub window: Window,
    /// The memory of this machine.
    pub memory: MemoryPlan,
    /// Time for all machines to come, seconds.
    pub join_secs: u64,
}

/// The parcels of a machine that may be under way: those of the present turn and of `turns` before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Calls of [`Disks::next`] in a turn of stage 1a, 1 at least.
    pub turn_calls: u64,
    /// Bytes with which a turn ends.
    pub turn_bytes: usize,
    /// Turns that need not have arrived, the present one included; 1 at least.
    pub turns: u64,
}

impl Default for Window {
    fn default() -> Self {
        Self { turn_calls: 32, turn_bytes: 512 << 10, turns: 2 }
    }
}

/// The stages of a round, for those that watch it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Machines find each other.
    Join,
    /// 1a.
    Read,
    /// 1b, and sending of 2a.
    Compare,
    /// The rest of 2a: other machines still compare.
    Verdict,
    /// 2b.
    Store,
    /// 3.
    Finish,
}

/// Is asked now and then whether to go on.
pub type Watch<'a> = dyn Fn(Stage) -> bool + 'a;

/// A pool that takes records.
pub trait Landing: Pool {
    /// Takes a record, with the bytes of a new chunk. Records of one disk come in order; those of several disks may alternate.
    ///
    /// # Errors
    /// Any. It ends the round.
    fn land(&mut self, disk: u32, record: &Record, bytes: Option<&[u8]>) -> Result<()>;

    /// Puts the disks in the order of their numbers, and commits the round: all records have landed.
    ///
    /// # Errors
    /// Any. The round is not committed then.
    fn finish(&mut self) -> Result<()>;
}

/// The amounts of a round at one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTally {
    /// Asks of its disks; and verdicts about the fingerprints that it owns.
    pub here: Tally,
    /// Records that landed here.
    pub landed: u64,
    /// Bytes of new chunks among them.
    pub landed_bytes: u64,
    /// Parcels that it sent.
    pub parcels: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Time for all machines to come, milliseconds.
    pub join_millis: u64,
}

impl Cluster {
    fn check(&self, has_pool: bool) -> Result<()> {
        let (machines, disks) = (self.machines.len(), self.machine_of_disk.len());
        let refused = |why: String| Err(Error::Refused(why));
        if self.window.turn_calls == 0 || self.window.turns == 0 {
            return refused("a window has one call and one turn at least".into());
        }
        if self.me >= machines || machines > MACHINES_MAX || disks > DISKS_MAX {
            return refused(format!(
                "machine {} of {machines} with {disks} disks is beyond the limits of a round",
                self.me
            ));
        }
        if let Some(machine) = self.machine_of_disk.iter().find(|machine| **machine as usize >= machines) {
            return refused(format!("a disk is of machine {machine}, but there are {machines}; number them from 0"));
        }
        if has_pool != (self.me == 0) {
            return refused("machine 0, and no other, has the pool; start it there".into());
        }
        Ok(())
    }

    fn address(&self, machine: usize) -> SocketAddr {
        self.machines.get(machine).copied().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn machine_of(&self, disk: u32) -> Result<usize> {
        let machine = self.machine_of_disk.get(disk as usize).map(|machine| *machine as usize);
        machine.ok_or_else(|| Error::Disk { disk, why: "no machine has it; give all machines the same plan".into() })
    }

    fn check_disk(&self, disk: u32, machine: usize) -> Result<()> {
        let owner = self.machine_of(disk)?;
        if owner == machine {
            return Ok(());
        }
        Err(Error::Disk {
            disk,
            why: format!("it is machine {owner}'s, not machine {machine}'s; give all the same plan"),
        })
    }
}

/// Runs a round at this machine, on the calling thread. `pool` is there at machine 0 alone. Returns when the round is committed.
///
/// # Errors
/// Those of [`alone()`](crate::alone()); and [`Error::Lost`], [`Error::Failed`] and [`Error::Refused`] of other machines. Then nothing is
/// committed; but see the failures of this module for the last moment.
pub fn run(
    cluster: &Cluster,
    disks: &mut dyn Disks,
    pool: Option<&mut dyn Landing>,
    watch: &Watch<'_>,
) -> Result<RoundTally> {
    cluster.check(pool.is_some())?;
    let begin = Instant::now();
    let sockets = join::join(cluster, watch)?;
    let join_millis = begin.elapsed().as_millis() as u64;
    let (connections, sockets) = Links::new(cluster.me, sockets)?;
    // The library panics on messages that cannot be. Nothing of the worker is used afterwards.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let worker = worker(cluster.me, sockets)?;
        Machine::new(cluster, &connections, pool, watch, worker)?.round(disks)
    }));
    let result = outcome.unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<String>().map(String::as_str);
        let told = told.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        Err(Error::Broken(told.into()))
    });
    connections.end(result.as_ref().err());
    result.map(|tally| RoundTally { join_millis, ..tally })
}

/// The worker of this thread.
fn worker(me: usize, links: Vec<Option<Link>>) -> Result<Worker> {
    let allocator = if links.len() == 1 {
        Allocator::Thread(Default::default())
    } else {
        let mut hooks = Hooks::default();
        hooks.refill.limit = Some(1);
        let here = ProcessBuilder::new_typed_vector(1, hooks.refill.clone(), None);
        let made = initialize_networking_from_sockets(here, links, me, 1, hooks);
        let (builders, threads) =
            made.map_err(|error| Error::Broken(format!("no threads for connections: {error}")))?;
        // Waiting for them is the part of the links: they know which ones end without a word.
        std::mem::forget(threads);
        let builder = builders.into_iter().next();
        Allocator::Tcp(builder.ok_or_else(|| Error::Broken("there is no worker".into()))?.build())
    };
    Ok(Worker::new(Config::default(), allocator, Some(Instant::now())))
}
