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

use dedupfs::Progress as _;
use dedupfs::transfer::Cutting;
use dedupfs_batch::cluster::ClusterPlan;
use dedupfs_detect::{Cluster, Error, Landing, MemoryPlan, Rounds, Stage, Window};

use self::disks::MachineDisks;
use self::landing::PoolLanding;
use self::report::ClusterReport;
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
    let rounds = Rounds::new(&plan.work);
    let (round_of, mut report) = (plan.round_of_disks(), ClusterReport::new(&plan, me));
    let committed = rounds.committed(&job).map_err(|error| failure(&plan, error))?;
    for damaged in &committed.damaged {
        exit::tell(&format!("dedupfs: {damaged}\n"));
    }
    let mut round = committed.next;
    if me == WITH_POOL {
        report.note_earlier(&plan, &rounds, (&job, round))?;
    }
    let joins_within = Duration::from_secs(args.join_within);
    let (mut come_until, mut attempts) = (Instant::now() + joins_within, 0);
    while round < plan.rounds as u64 {
        let left = come_until.saturating_duration_since(Instant::now());
        let mut cluster = cluster(&plan, (me, job, round), left.as_secs().max(1));
        let disks: Vec<usize> =
            (0..plan.disks.len()).filter(|disk| round_of.get(*disk) == Some(&(round as usize))).collect();
        let mine = disks::open(&plan, me, &disks)?;
        let mut machine = MachineDisks::new(&plan, &mine, &progress)?;
        // Its own chunks, or its share of all.
        cluster.memory.expected_asks = machine.expected_chunks().max(expected_asks(&plan, &round_of, round));
        let mut landing =
            (me == WITH_POOL).then(|| PoolLanding::new(&plan, &rounds, (job, round), &disks, &progress)).transpose()?;
        let reached = Cell::new(Stage::Join);
        let watch = |stage: Stage| {
            reached.set(stage);
            !progress.is_cancelled()
        };
        let pool = landing.as_mut().map(|landing| landing as &mut dyn Landing);
        match dedupfs_detect::run(&cluster, &mut machine, pool, &watch) {
            Ok(tally) => {
                report.add(&tally, landing.map(PoolLanding::into_outcomes).unwrap_or_default());
                // If the machine with the pool lost its note, a round comes twice: this one has noted it already.
                if me != WITH_POOL && rounds.names(&job, round).ok().flatten().is_none() {
                    rounds.commit(&job, round, &[]).map_err(|error| failure(&plan, error))?;
                }
                (round, attempts) = (round + 1, 0);
                come_until = Instant::now() + joins_within;
            }
            // A machine that was killed has not heard of the last commit. That of the pool knows it.
            Err(Error::OtherRound { machine, round: other, .. }) if Instant::now() < come_until => {
                if machine == WITH_POOL {
                    round = other;
                }
                std::thread::sleep(PAUSE);
            }
            // Machines that ended because of it come again.
            Err(Error::Lost { .. } | Error::Failed { .. })
                if reached.get() == Stage::Join && Instant::now() < come_until =>
            {
                std::thread::sleep(PAUSE);
            }
            Err(error @ (Error::Lost { .. } | Error::Failed { .. }))
                if reached.get() > Stage::Join && attempts < ATTEMPTS_MAX =>
            {
                let secs = args.join_within;
                exit::tell(&format!(
                    "dedupfs: {error}: round {round} begins again if all machines come within {secs} s\n"
                ));
                attempts += 1;
                come_until = Instant::now() + joins_within;
            }
            Err(error) => return Err(failure(&plan, error)),
        }
    }
    bars.finish();
    exit::print_message(args.json, "cluster", &report, report::text)?;
    Ok(if report.is_complete() { exit::OK } else { exit::PARTLY })
}

/// Says an error with the names of the plan.
fn failure(plan: &ClusterPlan, error: Error) -> Failure {
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

/// Reads a plan. Also returns its hash: machines with other plans do not fit together.
fn read_plan(path: &Path) -> Result<(ClusterPlan, [u8; 32]), Failure> {
    let text = plan_text::read(path)?;
    let plan = ClusterPlan::parse(&text).map_err(|why| plan_text::is_none(path, &why))?;
    // Only its hash is used: the plan decides how disks are cut.
    let cutter = Cutting::new("mincdc", 8192, "blake3").cutter().map_err(Failure::failed)?;
    Ok((plan, cutter.fingerprint(text.as_bytes()).0))
}

fn cluster(plan: &ClusterPlan, (me, job, round): (usize, [u8; 32], u64), join_secs: u64) -> Cluster {
    let machine_of = |name: &str| plan.machine(name).and_then(|machine| u32::try_from(machine).ok()).unwrap_or(0);
    Cluster {
        machines: plan.machines.iter().map(|machine| machine.address).collect(),
        me,
        machine_of_disk: plan.disks.iter().map(|disk| machine_of(&disk.machine)).collect(),
        job,
        round,
        window: Window::default(),
        memory: MemoryPlan { memory_bytes: MEMORY_BYTES, ..MemoryPlan::new(&plan.work, 0) },
        join_secs,
    }
}

/// Asks that one machine compares, roughly: they spread evenly.
fn expected_asks(plan: &ClusterPlan, round_of: &[usize], round: u64) -> u64 {
    let of_round = plan.disks.iter().zip(round_of).filter(|(_, of)| **of as u64 == round);
    let bytes: u64 = of_round.map(|(disk, _)| disk.assumed_bytes).sum();
    bytes / u64::from(plan.chunk_bytes.max(1)) / plan.machines.len() as u64
}
