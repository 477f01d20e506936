//! Everything that a seed decides before its world begins. Each seed switches a part of all troubles on.
//!
//! Another draw changes the plans of all seeds. Kept plans stay: they are files.

use std::cmp::Ordering;
use std::time::Duration;

use dedupfs_store::container::Compression;
use dedupfs_store::device::faulty::{Fault, Operation};
use dedupfs_store::superblock::{ChunkerKind, FingerprintAlgorithm, PoolProperties};
use dedupfs_sync::step::Step;
use dedupfs_sync::world::Habits;
use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::fault::PlannedFault;
use crate::form::{HabitsForm, nanoseconds};

/// The end of a life.
///
/// A life that ends before the operation of its crash is killed behind its [idle](Life::idle) time; without one it is
/// closed. [`Habits::last_one_in`] may kill it earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Fate {
    /// The clients come to their end, and the pool is closed; perhaps the power fails then.
    Closed { power_fails: bool },
    /// The process is killed at this device operation; the disks live on.
    Killed { operation: u64 },
    /// The power fails at this device operation.
    PowerLost { operation: u64 },
}

impl Default for Fate {
    fn default() -> Self {
        Self::Closed { power_fails: false }
    }
}

impl Fate {
    pub fn is_crash(mut self) -> bool {
        self.operation_mut().is_some()
    }

    /// The device operation of a crash.
    pub fn operation(mut self) -> Option<u64> {
        self.operation_mut().copied()
    }

    pub fn operation_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::Closed { .. } => None,
            Self::Killed { operation } | Self::PowerLost { operation } => Some(operation),
        }
    }
}

/// Faults to choose from: EIO twice, as it concerns the most operations.
const FAULTS: [Fault; 6] =
    [Fault::Io, Fault::NoSpace, Fault::ShortWrite, Fault::ShortWriteNoSpace, Fault::ShortRead, Fault::Io];

/// One life of the daemon. For kept plans see [`Plan`].
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Life {
    pub fate: Fate,
    #[serde(with = "HabitsForm")]
    pub habits: Habits,
    /// Requests of each client.
    pub steps: u64,
    /// Longest time of a device operation, in nanoseconds.
    pub device_ns: u64,
    /// How often the tool that reclaims runs; 0: never.
    pub reclaims: u64,
    /// Whether these runs come with all options, and not only at full speed.
    pub with_options: bool,
    /// How often a tool stops scrubs and runs, or holds runs for a while.
    pub controls: u64,
    pub scrubs: u64,
    /// How often statistics are asked for.
    pub looks: u64,
    /// One of this many requests is behind a pause of up to this many bits of microseconds.
    pub pause_one_in: u64,
    pub pause_bits: u64,
    /// Time for which nothing happens at the end of the life, before its fate.
    #[serde(rename = "idle_ns", with = "nanoseconds")]
    pub idle: Duration,
    #[serde(rename = "commit_interval_ns", with = "nanoseconds")]
    pub commit_interval: Duration,
    /// Operations of the disks that fail: the disk (0: meta root, 1: data root), how, and when.
    pub faults: Vec<(usize, PlannedFault)>,
    /// Size of each disk; `None`: without limit.
    pub capacity_bytes: Option<u64>,
    /// Whether the disks always had this size: then the pool's reserve has never been used by anybody else.
    pub keeps_reserve: bool,
    /// Bits that flip on the disks behind this life.
    pub flips: u64,
    /// Whether bits have flipped before: then anything may fail, but no byte may be wrong.
    pub is_damaged: bool,
    /// Seconds by which the clock is wrong from the start of this life on.
    pub clock_jump_secs: i64,
    /// Whether the pool is opened for reading only.
    pub is_read_only: bool,
    /// Whether the index is rebuilt when the pool is opened.
    pub rebuilds: bool,
    /// Whether the pool is closed while clients and tools are busy.
    pub closes_early: bool,
    /// The meta root is gone behind this life, if it has a disk of its own, an export was made, and the life has no
    /// faults.
    pub loses_meta: bool,
}

/// One world.
///
/// Kept plans lack the fields that are added later. Such a field gets its default: it must switch the new trouble off.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Decides orders of tasks, the dice of clients, and the part of unsynced writes that a power loss keeps.
    pub seed: u64,
    pub two_disks: bool,
    pub clients: u64,
    /// Files of each client.
    pub files: u64,
    pub file_bytes_max: u64,
    #[serde(default = "write_bytes_max")]
    pub write_bytes_max: u64,
    /// Contents to choose from, so that whole files are equal; 0: each is made of pieces.
    pub documents: u64,
    /// Whether all clients turn to a new content at the same time, so that they store it side by side.
    pub in_fashion: bool,
    /// Pieces that contents are made of.
    pub pieces: u64,
    /// Whether clients put trees and get them.
    pub with_trees: bool,
    /// Whether clients make links and attributes, and use files that have no name any more.
    pub with_links: bool,
    /// Whether clients make versions, and forget them. Then each has its files in a directory of its own.
    pub with_versions: bool,
    /// Whether the pool has the methods that are not the default: of cutting, of hashing, and no compression.
    pub cuts_otherwise: bool,
    pub hashes_otherwise: bool,
    pub is_uncompressed: bool,
    /// Whether content that is found is compared with what lies there.
    pub compares: bool,
    pub lives: Vec<Life>,
}

/// Versions that a client has at once.
pub const VERSIONS: u64 = 2;

/// The bytes of a request that writes, at most, where a plan does not say it.
fn write_bytes_max() -> u64 {
    30_000
}

/// A kind of names that a client has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    File,
    Tree,
    Version,
}

impl Plan {
    /// What the client has in this place.
    pub fn place(&self, number: usize) -> Place {
        match (number as u64).cmp(&self.files) {
            Ordering::Less => Place::File,
            Ordering::Equal => Place::Tree,
            Ordering::Greater => Place::Version,
        }
    }

    /// Names of a client: of its files, its tree and its versions.
    pub fn places(&self) -> u64 {
        self.files + 1 + if self.with_versions { VERSIONS } else { 0 }
    }

    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let lives = 1 + dice.below(4);
        let mut plan = Self {
            seed,
            two_disks: dice.one_in(2),
            clients: 1 + dice.below(4),
            files: 1 + dice.below(5),
            file_bytes_max: 1 << (10 + dice.below(8)),
            write_bytes_max: write_bytes_max(),
            documents: if dice.one_in(2) { 1 + dice.below(4) } else { 0 },
            in_fashion: dice.one_in(2),
            pieces: 2 + dice.below(12),
            with_trees: false,
            with_links: false,
            with_versions: false,
            cuts_otherwise: false,
            hashes_otherwise: false,
            is_uncompressed: false,
            compares: false,
            lives: (0..lives).map(|_| Life::new(&mut dice)).collect(),
        };
        plan.with_trees = dice.one_in(3);
        plan.with_links = dice.one_in(3);
        plan.with_versions = dice.one_in(2);
        for other in
            [&mut plan.cuts_otherwise, &mut plan.hashes_otherwise, &mut plan.is_uncompressed, &mut plan.compares]
        {
            *other = dice.one_in(4);
        }
        match dice.below(16) {
            0 => plan.with_large_files(&mut dice),
            1 => plan.on_small_disks(&mut dice),
            2 => plan.on_bad_disks(&mut dice),
            3 | 4 => plan.losing_meta_roots(&mut dice),
            _ => plan,
        }
    }

    /// Disks whose bits flip behind a life and all later ones.
    fn on_bad_disks(mut self, dice: &mut Dice) -> Self {
        let first = dice.below(self.lives.len() as u64) as usize;
        // A flip in the only copy of all names loses as many as it hits.
        self.lives.iter_mut().for_each(|life| life.loses_meta = false);
        for (number, life) in self.lives.iter_mut().enumerate().skip(first) {
            (life.flips, life.is_damaged) = (1 + dice.of_bits(3), number > first);
        }
        self
    }

    /// Disks that only the pool fills: the room that it reserves must suffice.
    fn on_small_disks(self, dice: &mut Dice) -> Self {
        let disk_bytes = (6 << 20) + dice.below(16 << 20);
        let on_small =
            |life: Life| Life { faults: Vec::new(), capacity_bytes: Some(disk_bytes), keeps_reserve: true, ..life };
        Self {
            documents: 0,
            pieces: 1 << 20,
            file_bytes_max: disk_bytes / 4,
            write_bytes_max: 1 << 20,
            lives: self.lives.into_iter().map(on_small).collect(),
            ..self
        }
    }

    /// Lives that reclaim, and end without their meta root: the data root alone says what counts.
    fn losing_meta_roots(mut self, dice: &mut Dice) -> Self {
        self.two_disks = true;
        self.lives.extend((self.lives.len()..3).map(|_| Life::new(dice)));
        for (number, life) in self.lives.iter_mut().enumerate() {
            (life.faults, life.capacity_bytes, life.loses_meta) = (Vec::new(), None, dice.one_in(2));
            (life.reclaims, life.habits.last_one_in) = (1 + dice.of_bits(6), 0);
            let most = 64 << dice.below(5);
            let operation = 64 + dice.below(most);
            life.fate = match dice.below(8) {
                // Then there is an export.
                _ if number == 0 => Fate::Closed { power_fails: false },
                0 => Fate::Killed { operation },
                1 => Fate::PowerLost { operation },
                2 | 3 => {
                    // A kill within a step.
                    (life.habits.linger_one_in, life.habits.last_one_in) = (1 << dice.below(4), 1 << dice.below(5));
                    if dice.one_in(2) {
                        life.habits.last_step = [Step::Export, Step::ExportSync][dice.below(2) as usize];
                    }
                    Fate::Killed { operation: u64::MAX }
                }
                4 | 5 => {
                    // A kill when everything is done, and durable: no operation has this number.
                    (life.idle, life.loses_meta) = (3 * life.commit_interval + Duration::from_millis(1), false);
                    Fate::Killed { operation: u64::MAX }
                }
                _ => {
                    (life.steps, life.reclaims, life.scrubs, life.idle) = (0, 0, 0, Duration::ZERO);
                    life.loses_meta = true;
                    Fate::Closed { power_fails: true }
                }
            };
        }
        match dice.below(8) {
            0..=2 => self.losing_what_was_found(dice),
            3 | 4 => self.losing_what_was_freed(dice),
            _ => {}
        }
        self
    }

    /// A kill amid an export, or behind one whose sync failed, and a loss of power behind the next commit: it takes what that process left
    /// in memory only.
    fn losing_what_was_found(&mut self, dice: &mut Dice) {
        let [_, killed, next, ..] = self.lives.as_mut_slice() else { return };
        [&mut *killed, &mut *next].into_iter().for_each(Life::surely_writes);
        (killed.fate, killed.loses_meta) = (Fate::Killed { operation: u64::MAX }, false);
        killed.steps = killed.steps.max(1);
        if dice.one_in(2) {
            (killed.habits.linger_one_in, killed.habits.last_one_in) = (1, 1);
            killed.habits.last_step = Step::ExportSync;
        } else {
            let log = PlannedFault::new(Fault::Io, 0).on(&[Operation::Sync]).path_contains("export/log-");
            // Else a new base takes the place of that export.
            let base = PlannedFault::new(Fault::Io, 0).path_contains("export/base-").lasting();
            killed.faults = vec![(1, log), (1, base)];
            killed.habits.last_one_in = 0;
            // Long enough for an export that nobody asks for, without too many rounds.
            (killed.commit_interval, killed.idle) = (Duration::from_secs(8), Duration::from_secs(100));
        }
        (next.fate, next.loses_meta) = (Fate::PowerLost { operation: u64::MAX }, dice.one_in(2));
        (next.steps, next.reclaims) = (1 + dice.below(8), dice.below(2));
        (next.pause_bits, next.idle) = (10, 2 * next.commit_interval + Duration::from_millis(1));
        // Then the data root has to have everything again.
        let fate = Fate::Closed { power_fails: true };
        self.lives.truncate(3);
        self.lives.push(Life { fate, loses_meta: true, ..Life::untroubled(dice) });
    }

    /// A kill behind a reclaim, a life in which nothing changes, and a loss of power: what was freed may come back.
    fn losing_what_was_freed(&mut self, dice: &mut Dice) {
        let [_, killed, next, ..] = self.lives.as_mut_slice() else { return };
        (killed.fate, killed.loses_meta) = (Fate::Killed { operation: u64::MAX }, false);
        (killed.steps, killed.reclaims) = (8 + dice.below(32), 2 + dice.below(6));
        (killed.with_options, killed.idle) = (false, 3 * killed.commit_interval + Duration::from_millis(1));
        (next.steps, next.reclaims, next.scrubs, next.idle) = (0, 0, 0, Duration::ZERO);
        (next.fate, next.loses_meta) = (Fate::Closed { power_fails: true }, true);
        [killed, next].into_iter().for_each(Life::surely_writes);
    }

    /// Files whose recipes have several segments; few, because they take the world time.
    fn with_large_files(self, dice: &mut Dice) -> Self {
        Self {
            files: 1 + dice.below(3),
            file_bytes_max: 1 << (20 + dice.below(4)),
            write_bytes_max: 1 << 20,
            lives: self.lives.into_iter().map(|life| Life { steps: life.steps.min(12), ..life }).collect(),
            ..self
        }
    }
}

impl Life {
    fn new(dice: &mut Dice) -> Self {
        let fate = match dice.below(4) {
            0 => Fate::Closed { power_fails: dice.one_in(2) },
            1 => Fate::Killed { operation: 1 + dice.of_bits(12) },
            _ => Fate::PowerLost { operation: 1 + dice.of_bits(12) },
        };
        let mut faults = Vec::new();
        if dice.one_in(3) {
            for _ in 0..1 + dice.below(3) {
                let kind = FAULTS[dice.below(FAULTS.len() as u64) as usize];
                // Few operations are syncs, and most depends on them.
                let plan = if kind == Fault::Io && dice.one_in(2) {
                    let of = ["containers", "recipes/", "namespace", "export", ""][dice.below(5) as usize];
                    let syncs = [Operation::Sync, Operation::SyncDirectory];
                    PlannedFault::new(kind, dice.of_bits(4)).on(&syncs).path_contains(of)
                } else {
                    PlannedFault::new(kind, dice.of_bits(10))
                };
                // A file that stays cut off is damage, which the engine may hold for a loss.
                let is_lasting = kind != Fault::ShortRead && dice.one_in(4);
                faults.push((dice.below(2) as usize, if is_lasting { plan.lasting() } else { plan }));
            }
        }
        let life = Self::untroubled(dice);
        // A pool that is opened and closed, and nothing else, is written to all the same.
        let mut life = if dice.one_in(8) { Self { steps: 0, reclaims: 0, scrubs: 0, ..life } } else { life };
        if fate.is_crash() && dice.one_in(4) {
            life.habits.last_one_in = 1 << dice.below(5);
        }
        Self {
            fate,
            faults,
            capacity_bytes: dice.one_in(6).then(|| (1 << 20) + dice.of_bits(24)),
            clock_jump_secs: if dice.one_in(4) { dice.of_bits(30).cast_signed() - (1 << 29) } else { 0 },
            loses_meta: dice.one_in(3),
            idle: if dice.one_in(3) { Duration::from_millis(dice.of_bits(17)) } else { Duration::ZERO },
            with_options: dice.one_in(2),
            controls: if dice.one_in(4) { 1 + dice.of_bits(4) } else { 0 },
            is_read_only: dice.one_in(16),
            rebuilds: dice.one_in(16),
            closes_early: dice.one_in(8),
            ..life
        }
    }

    /// Takes back what keeps a life from going on to its end.
    fn surely_writes(&mut self) {
        (self.is_read_only, self.closes_early) = (false, false);
    }

    /// Whether requests may fail from the start.
    pub fn is_limited(&self) -> bool {
        self.capacity_bytes.is_some() || self.is_damaged
    }

    /// Whether requests may fail at some time.
    pub fn may_fail(&self) -> bool {
        !self.faults.is_empty() || self.is_limited()
    }

    /// Longest time until a closed file is durable, in this life: two intervals, some seconds, and a round on a disk as
    /// slow as this.
    pub fn durable_after(&self) -> Duration {
        2 * self.commit_interval + Duration::from_secs(10) + 2000 * Duration::from_nanos(self.device_ns)
    }

    /// Longest time of a request of a client, which consists of some dozens of requests to the service.
    pub fn request_bound(&self) -> Duration {
        self.durable_after()
    }

    /// A life with habits and work by chance, and without any trouble of the disks or of its end.
    pub fn untroubled(dice: &mut Dice) -> Self {
        let habits = Habits {
            switch_one_in: 1 << dice.below(7),
            step_ns: 1 << (8 + dice.below(8)),
            stall_one_in: if dice.one_in(2) { 1 << (6 + dice.below(8)) } else { 0 },
            rerank_one_in: if dice.one_in(2) { 1 << (3 + dice.below(8)) } else { 0 },
            linger_one_in: if dice.one_in(2) { 1 << dice.below(8) } else { 0 },
            last_one_in: 0,
            last_step: Step::ALL[dice.below(Step::ALL.len() as u64) as usize],
            processors: 1 + dice.below(4) as usize,
        };
        let device_ns = if dice.one_in(2) { 1 << (10 + dice.below(18)) } else { 0 };
        // Empty rounds cost the world time, too: not many during one operation of a slow disk.
        let interval_ns = (1 << (18 + dice.below(16))).max(device_ns);
        Self {
            fate: Fate::Closed { power_fails: false },
            habits,
            steps: 1 + dice.below(40),
            device_ns,
            reclaims: if dice.one_in(2) { 1 + dice.of_bits(6) } else { 0 },
            with_options: false,
            controls: 0,
            scrubs: if dice.one_in(4) { 1 + dice.of_bits(2) } else { 0 },
            looks: if dice.one_in(4) { 1 + dice.of_bits(4) } else { 0 },
            pause_one_in: 1 + dice.of_bits(6),
            pause_bits: dice.below(25),
            idle: Duration::ZERO,
            commit_interval: Duration::from_nanos(interval_ns),
            faults: Vec::new(),
            capacity_bytes: None,
            keeps_reserve: false,
            flips: 0,
            is_damaged: false,
            clock_jump_secs: 0,
            is_read_only: false,
            rebuilds: false,
            closes_early: false,
            loses_meta: false,
        }
    }
}

/// Limits so small that everything that happens in a large pool happens within a few operations.
pub fn properties(plan: &Plan) -> PoolProperties {
    let default = PoolProperties::default();
    PoolProperties {
        chunker: if plan.cuts_otherwise { ChunkerKind::FastCdc } else { default.chunker },
        fingerprint: if plan.hashes_otherwise { FingerprintAlgorithm::Sha1 } else { default.fingerprint },
        compression: if plan.is_uncompressed { Compression::None } else { default.compression },
        chunk_size_bytes: 4096,
        container_bytes: 64 << 10,
        slots_per_file: 3,
        tanker_cells: 64,
        tanker_buckets: 4,
    }
}
