//! `dedupfs diff`: the daemon compares, and the tool prints page by page.

use std::path::Path;

use dedupfs::{ChangeKind, DifferencePage, Progress as _, is_frozen};

use crate::args::versions::DiffArgs;
use crate::control::{Failure, FailureKind};
use crate::progress::Bars;
use crate::report::differences::{self, Sums};
use crate::versions::Directory;
use crate::{exit, interrupt};

pub(crate) fn run(args: &DiffArgs) -> Result<u8, Failure> {
    #[cfg(feature = "remote")]
    {
        let located = crate::view::Located::find(&[&args.before, &args.after], &args.view)?;
        let [before, after] = located.paths.as_slice() else { return Err(Failure::failed("two paths are needed")) };
        let renamed = |failure: Failure| failure.renamed(before, &args.before).renamed(after, &args.after);
        run_at(args, before, after).map_err(renamed)
    }
    #[cfg(not(feature = "remote"))]
    run_at(args, &args.before, &args.after)
}

/// Compares two paths in a mount.
fn run_at(args: &DiffArgs, before: &Path, after: &Path) -> Result<u8, Failure> {
    let [before, after] = [open(before, &args.before)?, open(after, &args.after)?];
    if before.place.device != after.place.device {
        let (one, other) = (args.before.display(), args.after.display());
        return Err(FailureKind::Usage.because(format!("{one} is in another mount than {other}: `diff -r` reads both")));
    }
    let bars = Bars::default();
    let progress = interrupt::ended_by_signals(&bars)?;
    let mut daemon = before.daemon()?;
    let directories = [before.place.ino, after.place.ino];
    let (mut sums, mut resume) = (Sums::default(), Vec::new());
    loop {
        let mut page: DifferencePage = daemon.difference(directories, resume, &progress)?;
        if progress.is_cancelled() {
            return Err(Failure::failed("interrupted"));
        }
        sums.add(&page);
        page.changes.retain(|change| args.attributes || change.change != ChangeKind::Attributes);
        if !page.changes.is_empty() {
            let changes = serde_json::json!({ "changes": page.changes });
            exit::print_message(args.json, "diff", &changes, |_| differences::changes(&page.changes))?;
        }
        match page.next {
            Some(next) => resume = next,
            None => break,
        }
    }
    bars.finish();
    exit::print_message(args.json, "diff_sums", &sums, |sums| differences::sums(sums, args.attributes))?;
    match sums.unreadable {
        0 => Ok(exit::OK),
        count => Err(FailureKind::Damaged.because(format!(
            "{count} directories cannot be read: `dedupfs scrub` repairs what has a copy, and names what is lost"
        ))),
    }
}

fn open(path: &Path, shown: &Path) -> Result<Directory, Failure> {
    Directory::if_mounted(path)?.filter(|directory| is_frozen(directory.place.ino)).ok_or_else(|| {
        FailureKind::Usage.because(format!(
            "{} is no version, and no directory of one: `dedupfs list` names versions, `dedupfs snapshot` makes one of a live directory",
            shown.display()
        ))
    })
}
