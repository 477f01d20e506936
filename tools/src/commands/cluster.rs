//! `dedupfs cluster`: one machine's part in putting disks of several machines into one pool.
//!
//! 1. [`disks`] opens the disks that this machine has in a round, and cuts their changed segments.
//! 2. `dedupfs-detect` detects duplicates with the other machines.
//! 3. [`landing`], at the first machine alone, takes what is new, puts each disk, and commits the round.

mod disks;
mod landing;
mod report;

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use dedupfs::Progress;
use dedupfs::transfer::Cutting;
use dedupfs_batch::cluster::{ClusterPlan, Machine};
use dedupfs_detect::{Cluster, Error, Landing, MemoryPlan, RoundTally, Rounds, Stage, Window, part_from_all};

use self::disks::MachineDisks;
use self::landing::PoolLanding;
use self::report::{ClusterReport, DiskOutcome};
use crate::args::cluster::ClusterArgs;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::{access, exit, interrupt, plan_text};

/// Memory for spools and a partition: with up to four machines the process takes at most 35 MB ("Memory" of `dedupfs-detect`).
const MEMORY_BYTES: u64 = 10 << 20;
/// Time between two attempts to meet.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a round begins again when a machine was lost.
const ATTEMPTS_MAX: u32 = 3;
/// The machine that has the pool.
const WITH_POOL: usize = 0;

/// The part of a machine.
struct Part<'a> {
    plan: ClusterPlan,
    job: [u8; 32],
    me: usize,
    round_of: Vec<usize>,
    joins_within: Duration,
    progress: &'a dyn Progress,
}

/// The end of an attempt at a round.
enum Met {
    Done(RoundTally, Vec<DiskOutcome>),
    /// The machine with the pool is at another round.
    Other(u64),
    /// No rounds are left, and so many disks of this machine are not stored.
    Over(u32),
}

pub(crate) fn run(args: &ClusterArgs) -> Result<u8, Failure> {
    let (mut plan, job) = read_plan(&args.plan)?;
    let me = plan.machine(&args.machine).ok_or_else(|| {
        let names: Vec<&str> = plan.machines.iter().map(|machine| machine.name.as_str()).collect();
        FailureKind::Usage.because(format!("the plan has no machine {}: it has {}", args.machine, names.join(", ")))
    })?;
    // Whoever names a chunk gets its bytes.
    if !rustix::process::geteuid().is_root() {
        return Err(FailureKind::Usage.because("only the superuser may put disks by the fingerprints of their chunks"));
    }
    // Of a round the machine with the pool has two for each disk.
    access::raise_descriptor_limit();
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    // Machines may share a filesystem.
    plan.work.push(&args.machine);
    std::fs::create_dir_all(&plan.work)
        .map_err(|error| Failure::failed(format!("cannot make the directory {}: {error}", plan.work.display())))?;
    let joins_within = Duration::from_secs(args.join_within);
    let part = Part { round_of: plan.round_of_disks(), plan, job, me, joins_within, progress: &progress };
    let report = if me == WITH_POOL { part.lead()? } else { part.follow()? };
    bars.finish();
    exit::print_message(args.json, "cluster", &report, report::text)?;
    Ok(if report.is_complete() { exit::OK } else { exit::PARTLY })
}

impl Part<'_> {
    /// Goes through the rounds at the machine with the pool: a pass over all of them, and with each start another one while disks are not
    /// stored. Rounds are numbered through all passes.
    fn lead(&self) -> Result<ClusterReport, Failure> {
        let mut report = ClusterReport::new(&self.plan, self.me);
        let rounds = Rounds::new(&self.plan.work);
        let committed = rounds.committed(&self.job).map_err(|error| self.failure(error))?;
        for damaged in &committed.damaged {
            exit::tell(&format!("dedupfs: {damaged}\n"));
        }
        landing::check_pool(&self.plan)?;
        let of_pass = self.plan.rounds as u64;
        let mut round = committed.next;
        let is_between = round > 0 && round.is_multiple_of(of_pass);
        let end =
            if is_between && self.missing(None).is_empty() { round } else { (round + 1).next_multiple_of(of_pass) };
        while round < end {
            // Nothing of a round is read again whose versions are all there.
            if self.missing(Some(round)).is_empty() {
                rounds.commit(&self.job, round, &[]).map_err(|error| self.failure(error))?;
                round += 1;
                continue;
            }
            if let Met::Done(tally, outcomes) = self.meet(round, Some(&rounds))? {
                report.add(&tally, outcomes);
                round += 1;
            }
        }
        let missing = self.missing(None);
        let of_machine = |machine: &Machine| {
            let is_of = |disk: &&usize| self.plan.disks.get(**disk).is_some_and(|disk| disk.machine == machine.name);
            missing.iter().filter(is_of).count() as u32
        };
        let failed: Vec<u32> = self.plan.machines.iter().map(of_machine).collect();
        report.not_stored = failed.iter().map(|count| u64::from(*count)).sum();
        let cluster = self.cluster(round, self.joins_within);
        let silent = part_from_all(&cluster, &failed, &|_| !self.progress.is_cancelled());
        for machine in silent.map_err(|error| self.failure(error))? {
            let name = self.plan.machines.get(machine).map_or("?", |machine| machine.name.as_str());
            exit::tell(&format!(
                "dedupfs: machine {name} has not heard of the end: start it once more with this one\n"
            ));
        }
        Ok(report)
    }

    /// Takes part in the rounds of the machine with the pool until it says that they are over.
    fn follow(&self) -> Result<ClusterReport, Failure> {
        let mut report = ClusterReport::new(&self.plan, self.me);
        let mut round = 0;
        loop {
            match self.meet(round, None)? {
                Met::Done(tally, outcomes) => {
                    report.add(&tally, outcomes);
                    round += 1;
                }
                Met::Other(other) => round = other,
                Met::Over(failed) => {
                    report.not_stored = failed.into();
                    return Ok(report);
                }
            }
        }
    }

    /// The disks of a round, or of all, of which there is no version.
    fn missing(&self, round: Option<u64>) -> Vec<usize> {
        let disks = match round {
            Some(round) => self.disks_of(round),
            None => (0..self.plan.disks.len()).collect(),
        };
        let is_stored = |disk: &usize| {
            let disk = self.plan.disks.get(*disk);
            disk.is_some_and(|disk| landing::is_stored(&self.plan, &self.job, disk) == Some(true))
        };
        disks.into_iter().filter(|disk| !is_stored(disk)).collect()
    }

    fn disks_of(&self, round: u64) -> Vec<usize> {
        let wanted = (round % self.plan.rounds as u64) as usize;
        let of_round = self.round_of.iter().enumerate().filter(|(_, round)| **round == wanted);
        of_round.map(|(disk, _)| disk).collect()
    }

    /// Carries a round out with the other machines. Begins again, some times, if one is lost and comes back.
    fn meet(&self, round: u64, rounds: Option<&Rounds>) -> Result<Met, Failure> {
        let (mut come_until, mut attempts) = (Instant::now() + self.joins_within, 0);
        loop {
            let disks = self.disks_of(round);
            let mine = disks::open(&self.plan, self.me, &disks)?;
            let mut machine = MachineDisks::new(&self.plan, &mine, self.progress)?;
            let mut cluster = self.cluster(round, come_until.saturating_duration_since(Instant::now()));
            // Its own chunks, or its share of all.
            cluster.memory.expected_asks = machine.expected_chunks().max(self.expected_asks(&disks));
            let landing = |rounds| PoolLanding::new(&self.plan, rounds, (self.job, round), &disks, self.progress);
            let mut landing = rounds.map(landing).transpose()?;
            let reached = Cell::new(Stage::Join);
            let watch = |stage: Stage| {
                reached.set(stage);
                !self.progress.is_cancelled()
            };
            let pool = landing.as_mut().map(|landing| landing as &mut dyn Landing);
            let error = match dedupfs_detect::run(&cluster, &mut machine, pool, &watch) {
                Ok(tally) => {
                    return Ok(Met::Done(tally, landing.map(PoolLanding::into_outcomes).unwrap_or_default()));
                }
                Err(Error::Over { failed }) => return Ok(Met::Over(failed)),
                Err(Error::OtherRound { machine: WITH_POOL, round, .. }) => return Ok(Met::Other(round)),
                Err(error) => error,
            };
            let is_loss = matches!(error, Error::Lost { .. } | Error::Failed { .. });
            match reached.get() {
                // Machines that ended because of another round, or were killed, come again.
                Stage::Join
                    if Instant::now() < come_until && (is_loss || matches!(error, Error::OtherRound { .. })) =>
                {
                    std::thread::sleep(PAUSE);
                }
                Stage::Join => return Err(self.failure(error)),
                _ if is_loss && attempts < ATTEMPTS_MAX => {
                    let (error, secs) = (self.failure(error).message, self.joins_within.as_secs());
                    exit::tell(&format!(
                        "dedupfs: {error}: the round begins again if all machines come within {secs} s\n"
                    ));
                    attempts += 1;
                    come_until = Instant::now() + self.joins_within;
                }
                _ => return Err(self.failure(error)),
            }
        }
    }

    fn cluster(&self, round: u64, joins_within: Duration) -> Cluster {
        let plan = &self.plan;
        let machine_of = |name: &str| plan.machine(name).and_then(|machine| u32::try_from(machine).ok()).unwrap_or(0);
        Cluster {
            machines: plan.machines.iter().map(|machine| machine.address).collect(),
            me: self.me,
            machine_of_disk: plan.disks.iter().map(|disk| machine_of(&disk.machine)).collect(),
            job: self.job,
            round,
            window: Window::default(),
            memory: MemoryPlan { memory_bytes: MEMORY_BYTES, ..MemoryPlan::new(&plan.work, 0) },
            join_secs: joins_within.as_secs().max(1),
        }
    }

    /// Asks that one machine compares, roughly: they spread evenly.
    fn expected_asks(&self, disks: &[usize]) -> u64 {
        let bytes: u64 =
            disks.iter().filter_map(|disk| self.plan.disks.get(*disk)).map(|disk| disk.assumed_bytes).sum();
        bytes / u64::from(self.plan.chunk_bytes.max(1)) / self.plan.machines.len() as u64
    }

    /// Says an error with the names of the plan.
    fn failure(&self, error: Error) -> Failure {
        let plan = &self.plan;
        let machine = |index: usize| plan.machines.get(index).map_or("?", |machine| machine.name.as_str());
        let disk = |number: u32| plan.disks.get(number as usize).map_or("?", |disk| disk.name.as_str());
        Failure::failed(match error {
            Error::Ended => "interrupted".to_owned(),
            Error::Disk { disk: number, why } => format!("disk {} cannot be backed up: {why}", disk(number)),
            Error::Lost { machine: index, why } => {
                format!("machine {} is lost: {why}; see that it and the network are up", machine(index))
            }
            Error::Failed { machine: index, why } => format!("machine {} ended the round: {why}", machine(index)),
            Error::OtherRound { machine: index, round, here } => {
                format!("machine {} is at round {round}, not {here}; start all machines anew", machine(index))
            }
            error => error.to_string(),
        })
    }
}

/// Reads a plan. Also returns its hash: machines with other plans do not fit together.
fn read_plan(path: &Path) -> Result<(ClusterPlan, [u8; 32]), Failure> {
    let text = plan_text::read(path)?;
    let plan = ClusterPlan::parse(&text).map_err(|why| plan_text::is_none(path, &why))?;
    // Only its hash is used: the plan decides how disks are cut.
    let cutter = Cutting::new("mincdc", 8192, "blake3").cutter().map_err(Failure::failed)?;
    Ok((plan, cutter.fingerprint(text.as_bytes()).0))
}
