//! `dedupfs batch`: the disks of a plan, one version of each.
//!
//! 1. [`disk`] looks up the newest version of each disk: its token, and when all of it was compared last. The pool has the only state.
//! 2. [`mod@estimate`] tells how much is to be read of each, and [`order`] when. [`dry_run`] and [`mod@simulate`] end here.
//! 3. [`night`] lets each host's readers take units one by one: a disk, or a group of disks that are one point in time.
//! 4. [`mod@unit`] runs one: [`hold`] brings its disks to a point in time, [`child`] puts each, and the drivers let go.
//!
//! A disk that fails does not stop the others.

mod child;
mod disk;
mod dry_run;
mod estimate;
mod hold;
mod night;
mod order;
mod report;
mod simulate;
mod unit;

use std::time::Instant;

use dedupfs::Progress as _;
use dedupfs_batch::plan::Plan;
use globset::{Glob, GlobSetBuilder};

use self::disk::State;
use self::dry_run::Planned;
use self::report::BatchReport;
use self::simulate::Simulation;
use crate::args::batch::BatchArgs;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::staged::rule::{Choice, Facts};
use crate::versions::Directory;
use crate::{exit, interrupt, plan_text};

pub(crate) fn run(args: &BatchArgs) -> Result<u8, Failure> {
    let text = plan_text::read(&args.plan)?;
    let plan = Plan::parse(&text).map_err(|why| plan_text::is_none(&args.plan, &why))?;
    let pool = Directory::open(&plan.pool).map_err(|failure| {
        let (shown, why) = (plan.pool.display(), &failure.message);
        FailureKind::Usage.because(format!("the pool of the plan, {shown}: is it mounted? {why}"))
    })?;
    let disks = chosen(&plan, &args.only)?;
    let states: Vec<State> = disks.iter().map(|number| State::of(&plan, *number, &pool)).collect::<Result<_, _>>()?;
    let order = order::of(&plan, &states, args.now);
    // Without statistics nothing is detected in stages, and all disks are put.
    let stats = pool.daemon().and_then(|mut daemon| daemon.stats());
    let facts = stats.map_or_else(|_| Facts::default(), |stats| Facts::of(&stats, &pool.place.pool));
    let staged = Choice { wish: plan.staged, facts };
    if args.simulate {
        let simulation = Simulation::new(&plan, &states, (&order, &staged), args.now);
        exit::print_message(args.json, "batch_simulation", &simulation, simulate::show)?;
        return Ok(if simulation.is_complete() { exit::OK } else { exit::PARTLY });
    }
    if args.dry_run {
        let planned = Planned::new(&plan, &states, (&order, &staged), args.now);
        exit::print_message(args.json, "batch_plan", &planned, dry_run::show)?;
        return Ok(if planned.is_complete() { exit::OK } else { exit::PARTLY });
    }
    // From here on a signal ends the disks that are read, and no other is begun.
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let begun = Instant::now();
    let disks = night::run(&plan, &pool, &states, &order, (args.now, staged), &progress);
    bars.finish();
    let report = BatchReport::new(disks, begun.elapsed());
    exit::print_message(args.json, "batch", &report, report::batch)?;
    Ok(if report.is_complete() { exit::OK } else { exit::PARTLY })
}

/// Returns the numbers of the disks whose names a pattern has; of all, without patterns.
fn chosen(plan: &Plan, only: &[String]) -> Result<Vec<usize>, Failure> {
    let mut patterns = GlobSetBuilder::new();
    for pattern in only {
        let glob = Glob::new(pattern);
        patterns.add(glob.map_err(|error| FailureKind::Usage.because(format!("--only {pattern}: {error}")))?);
    }
    let patterns = patterns.build().map_err(|error| FailureKind::Usage.because(format!("--only: {error}")))?;
    let is_chosen = |name: &str| only.is_empty() || patterns.is_match(name);
    let chosen: Vec<usize> = (0..plan.disks.len())
        .filter(|number| plan.disks.get(*number).is_some_and(|disk| is_chosen(&disk.name)))
        .collect();
    match chosen.is_empty() {
        true => {
            Err(FailureKind::Usage.because(format!("no disk of the plan is named as --only {} says", only.join(" "))))
        }
        false => Ok(chosen),
    }
}
