//! `dedupfs thaw`: makes a live tree in a hidden directory, and gives it its name when it is complete.

use std::os::unix::ffi::OsStrExt;

use dedupfs::transfer::ThawReport;
use dedupfs::{Progress as _, is_frozen};
use serde::Serialize;

use super::snapshot::destination;
use crate::args::versions::ThawArgs;
use crate::control::{Failure, FailureKind};
use crate::hidden::HiddenDirectory;
use crate::progress::Bars;
use crate::{exit, inside, interrupt, report};

/// Text behind messages about a daemon that cannot be asked.
const ADVICE: &str = "; `cp -a` copies out of a version without it";

#[derive(Serialize)]
struct Made<'a> {
    path: String,
    #[serde(flatten)]
    report: &'a ThawReport,
}

pub(crate) fn run(args: &ThawArgs) -> Result<u8, Failure> {
    let (from, metadata) = inside::open_source(&args.source)?;
    let shown = args.source.display();
    let place = inside::find(&from)?.filter(|place| metadata.is_dir() && is_frozen(place.ino)).ok_or_else(|| {
        let advice = "`dedupfs list` names versions, `cp -a` copies live trees";
        FailureKind::Usage.because(format!("{shown} is no version, and no directory of one: {advice}"))
    })?;
    let to = destination(&args.destination, &place)?;
    let hidden = HiddenDirectory::make(&to.directory, None)?;
    let made = (|| {
        let bars = Bars::default();
        let progress = interrupt::ended_by_signals(&bars)?;
        let mut daemon = inside::daemon(&place.pool, ADVICE)?;
        let report = daemon.thaw(place.ino, (hidden.ino, to.name.as_bytes()), &progress)?;
        let is_cancelled = progress.is_cancelled();
        bars.finish();
        if is_cancelled {
            return Err(Failure::failed("interrupted"));
        }
        hidden.give_name(&to.name, &args.destination)?;
        to.directory.sync_all().map_err(|error| {
            let destination = args.destination.display();
            Failure::failed(format!(
                "{destination} was made, but could not be made durable: {error}; see the pool's log"
            ))
        })?;
        Ok(report)
    })();
    hidden.remove_or_tell(&args.destination);
    let made = made?;
    let made = Made { path: report::shown_path(&args.destination), report: &made };
    exit::print_message(args.json, "thaw", &made, |made| report::versions::thawed(&made.path, made.report))?;
    Ok(exit::OK)
}
