//! `dedupfs fsck`. Its exit codes are those of e2fsck.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedupfs::check::{CheckOptions, CheckReport};
use dedupfs::repair::{RepairOptions, RepairReport, repair_at};
use dedupfs::{OpenOptions, Pool};

use super::trial;
use crate::access::{self, Access};
use crate::args::FsckArgs;
use crate::control::{ControlClient, Failure, FailureKind};
use crate::progress::Bars;
use crate::target::{self, Target};
use crate::{confirm, exit, report};

pub(crate) fn run(args: &FsckArgs) -> Result<u8, Failure> {
    if args.repair {
        return repair(args);
    }
    let target = target::resolve(&args.target)?;
    if args.trial_recovery {
        let made = trial::run(&target.pool, args.scratch.as_deref(), args.memory, &Bars::default())?;
        match &made {
            Some(made) => exit::print_message(args.json, "trial_recovery", made, report::trial)?,
            None if args.json => exit::print_error(exit::FSCK_ENDED_EARLY, "ended early: no trial recovery was made")?,
            None => {}
        }
        return Ok(trial::code(made.as_ref()));
    }
    let options = CheckOptions { read_data: args.read_data, scratch: scratch_of(&target.pool, args)? };
    let bars = Bars::default();
    // The changes of a repair, if there are errors and no other process has the pool.
    let mut plan = None;
    let (result, rebuilt) = if args.rebuild_index {
        let pool = open_rebuilding(&target, args, &bars)?;
        let rebuilt = pool.rebuilt().copied();
        (check(&pool, &options, &bars)?, rebuilt)
    } else {
        let result = match access::reach(&target.pool, &with_memory(args, access::to_read("dedupfs fsck")))? {
            Access::Daemon(mut client) => {
                // A request is JSON, which has no place for other paths.
                let scratch = options.scratch.filter(|scratch| scratch.to_str().is_some());
                client.check(&CheckOptions { scratch, ..options }, &bars)?
            }
            Access::Local(pool) => {
                let result = check(&pool, &options, &bars)?;
                drop(pool);
                if !result.is_clean() {
                    // The check counts, also if no repair can be planned.
                    plan = planned(&target.pool, args)
                        .inspect_err(|failure| eprintln!("dedupfs: no repair can be planned: {failure}"))
                        .ok();
                }
                result
            }
        };
        (result, None)
    };
    drop(bars);
    let plan = plan.as_deref();
    exit::print(&if args.json {
        report::check_json(&result, rebuilt.as_ref(), plan)?
    } else {
        report::check(&result, rebuilt.as_ref(), plan)
    })?;
    let missing = rebuilt.map_or(0, |rebuilt| rebuilt.missing);
    Ok(if result.finding_count == 0 && missing == 0 { exit::OK } else { exit::FSCK_UNCORRECTED })
}

fn check(pool: &Arc<Pool>, options: &CheckOptions, bars: &Bars) -> Result<CheckReport, Failure> {
    access::with_local(pool, |pool| Ok(pool.check(options, bars)?))
}

fn planned(pool: &Path, args: &FsckArgs) -> Result<Vec<String>, Failure> {
    let scratch = scratch_of(pool, args)?;
    let how = RepairOptions { read_data: args.read_data, scratch, ..RepairOptions::default() };
    let open = with_memory(args, access::to_read("dedupfs fsck"));
    Ok(repair_at(pool, None, &how, &open, &Bars::default())?.plan)
}

fn repair(args: &FsckArgs) -> Result<u8, Failure> {
    // Find the pool without its superblock, which may be the damaged part.
    let pool = match target::mounted_at(&args.target)? {
        Some(mount) => mount.source,
        None => target::real_path(&args.target)
            .map_err(|error| Failure::failed(format!("cannot look at {}: {error}", args.target.display())))?,
    };
    refuse_mounted(&pool, "it is repaired")?;
    let open = with_memory(args, access::to_write("dedupfs fsck --repair"));
    let run = |how: &RepairOptions| {
        repair_at(&pool, args.data.as_deref(), how, &open, &Bars::default()).map_err(access::of_the_pool)
    };
    let plan = RepairOptions {
        apply: false,
        read_data: args.read_data,
        give_up_unnamed: args.give_up_unnamed,
        scratch: scratch_of(&pool, args)?,
    };
    let planned = run(&plan)?;
    if planned.plan.is_empty() {
        return conclude(args, &planned);
    }
    if !args.json {
        exit::print(&report::repair_plan(&planned.plan))?;
    }
    if !args.yes && !confirm::ask("Make these changes?")? {
        if args.json {
            exit::print_error(exit::FSCK_UNCORRECTED, "nothing was changed")?;
        } else {
            exit::print("nothing was changed\n")?;
        }
        return Ok(exit::FSCK_UNCORRECTED);
    }
    conclude(args, &run(&RepairOptions { apply: true, ..plan })?)
}

fn conclude(args: &FsckArgs, report: &RepairReport) -> Result<u8, Failure> {
    exit::print(&if args.json { report::repair_json(report)? } else { report::repaired(report) })?;
    Ok(match (report.is_clean(), report.plan.is_empty()) {
        (true, true) => exit::OK,
        (true, false) => exit::FSCK_CORRECTED,
        (false, _) => exit::FSCK_UNCORRECTED,
    })
}

/// The place for the files of a check. It must be there: without its files a large pool is read several times.
fn scratch_of(pool: &Path, args: &FsckArgs) -> Result<Option<PathBuf>, Failure> {
    if let Some(missing) = args.scratch.as_ref().filter(|place| !place.is_dir()) {
        return Err(FailureKind::Usage
            .because(format!("--scratch {}: no such directory: make it, or name another one", missing.display())));
    }
    trial::scratch_of(pool, args.scratch.as_deref()).map(Some)
}

fn with_memory(args: &FsckArgs, options: OpenOptions) -> OpenOptions {
    OpenOptions { memory_bytes: args.memory, ..options }
}

fn refuse_mounted(pool: &Path, before: &str) -> Result<(), Failure> {
    if ControlClient::connect(pool)?.is_some() {
        return Err(FailureKind::PoolInUse
            .because(format!("pool {} is mounted: `dedupfs umount` it before {before}", pool.display())));
    }
    Ok(())
}

fn open_rebuilding(target: &Target, args: &FsckArgs, bars: &Bars) -> Result<Arc<Pool>, Failure> {
    refuse_mounted(&target.pool, "its index is rebuilt")?;
    let options = OpenOptions {
        rebuild_index: true,
        rebuild_reads_data: args.read_data,
        ..with_memory(args, access::to_write("dedupfs fsck --rebuild-index"))
    };
    access::open(&target.pool, &options, bars)
}
