//! Reports of reclaiming: results, plans and states.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dedupfs::reclaim::{LastRun, ReclaimReport, ReclaimStatus, Stopped};

use super::{DOUBT, Lines, exact};
use crate::duration;
use crate::size::show;

fn stopped(why: Stopped) -> &'static str {
    match why {
        Stopped::Asked => "it was asked to; the next run continues",
        Stopped::Time => "its time is over; the next run continues",
        Stopped::Io => "its I/O limit is reached; the next run continues",
        Stopped::Unmounted => "the pool was unmounted; the next run continues",
    }
}

pub(crate) fn reclaim(report: &ReclaimReport) -> String {
    let mut lines = Lines(String::new());
    lines.heading(if report.dry_run { "would reclaim (nothing was changed)" } else { "reclaimed" });
    done(&mut lines, report);
    lines.line("physical before", exact(report.physical_before_bytes));
    lines.line(if report.dry_run { "expected after" } else { "physical after" }, exact(report.physical_after_bytes));
    if report.dry_run {
        let io_bytes = report.read_bytes + report.written_bytes;
        lines.line("estimated", format!("{}, to read and write {}", duration::show(report.elapsed_ms), show(io_bytes)));
    } else {
        let freed_bytes = report.physical_before_bytes.saturating_sub(report.physical_after_bytes);
        let expected = show(report.expected_bytes);
        lines.line("freed", format!("{}; emptying containers was expected to free {expected}", exact(freed_bytes)));
        let waited = match report.waited_ms {
            0 => String::new(),
            waited => format!(", {} of it waiting for clients or paused", duration::show(waited)),
        };
        lines.line("took", format!("{}{waited}", duration::show(report.elapsed_ms)));
        if let Some(why) = report.stopped {
            lines.line("ended early", stopped(why));
        }
    }
    left(&mut lines, report);
    lines.0
}

pub(crate) fn log_reclaimed(report: &ReclaimReport, message: &str) {
    tracing::info!(
        freed_bytes = report.physical_before_bytes.saturating_sub(report.physical_after_bytes),
        containers_freed = report.containers_freed,
        chunks_moved = report.chunks_moved,
        moved_bytes = report.moved_bytes,
        chunks_removed = report.chunks_removed,
        nodes_freed = report.nodes_freed,
        containers_damaged = report.containers_damaged,
        garbage_left_bytes = report.garbage_left_bytes,
        elapsed_ms = report.elapsed_ms,
        ended_early = report.stopped.map(stopped),
        "{message}"
    );
}

fn done(lines: &mut Lines, report: &ReclaimReport) {
    lines.line("recipe nodes freed", report.nodes_freed);
    lines.line("chunks removed", report.chunks_removed);
    lines.line("copied forward", format!("{} chunks, {}", report.chunks_moved, exact(report.moved_bytes)));
    if report.arranged_bytes > 0 {
        lines.line(
            "arranged",
            format!("{} among them, for the order of the newest versions", exact(report.arranged_bytes)),
        );
    }
    let dead = report.containers_dead;
    lines.line("containers freed", format!("{}, {dead} of them dead as a whole", report.containers_freed));
}

fn left(lines: &mut Lines, report: &ReclaimReport) {
    let garbage = exact(report.garbage_left_bytes);
    let live = show(report.live_bytes);
    lines
        .line("garbage left", format!("{garbage} in containers that also hold live content; {live} are in use in all"));
    if report.open_bytes > 0 {
        let open = show(report.open_bytes);
        lines.line("not looked at", format!("{open} in containers that are being filled: a later run closes them"));
    }
    if report.containers_damaged > 0 {
        let kept = report.containers_damaged;
        lines.line(
            "containers damaged",
            format!("{kept}, kept until nothing is lost any more: back the same data up again"),
        );
    }
    if report.containers_without_space > 0 {
        let kept = report.containers_without_space;
        lines.line("no space to copy", format!("{kept} containers kept: delete more, or free space on the disk"));
    }
    if report.nodes_unreadable > 0 {
        let unreadable = report.nodes_unreadable;
        let advice = "see `dedupfs scrub`; if no file needs them, `dedupfs fsck --rebuild-index` forgets them";
        lines.line("recipes unreadable", format!("{unreadable}, kept with the content they name: {advice}"));
    }
}

pub(crate) fn reclaim_status(status: &ReclaimStatus) -> String {
    let mut lines = Lines(String::new());
    lines.heading("reclaiming");
    let state = match (&status.running, status.paused) {
        (Some(_), true) => "paused between two steps, until `dedupfs-gc --resume`",
        (Some(_), false) => "under way",
        (None, true) => "paused, until `dedupfs-gc --resume`",
        (None, false) => "nothing is under way",
    };
    lines.line("state", state);
    if status.counts_in_doubt {
        lines.line("COUNTS IN DOUBT", DOUBT);
    }
    if let Some(background) = &status.background {
        lines.line("in the background", background);
    }
    if let Some(run) = &status.running {
        let left = match (run.done, run.total) {
            (0, _) | (_, 0) => String::new(),
            (done, total) => {
                let left = u128::from(run.step_ms) * u128::from(total.saturating_sub(done)) / u128::from(done);
                format!(", {} left", duration::show(u64::try_from(left).unwrap_or(u64::MAX)))
            }
        };
        let of = if run.total > 0 { format!(" of {}", run.total) } else { String::new() };
        lines.line("step", format!("{}: {}{of}{left}", run.step, run.done));
        lines.line("for", duration::show(run.elapsed_ms));
        done(&mut lines, &run.report);
    } else if let Some(last) = &status.last {
        lines.line("last run", last_run(last));
    }
    if !status.is_known {
        lines.line("in use", "not known before the first run: an earlier version wrote this pool");
        return lines.0;
    }
    let percent = status.garbage_bytes as f64 * 100.0 / status.live_bytes.max(1) as f64;
    lines.line("in use", exact(status.live_bytes));
    lines.line("known garbage", format!("{}, {percent:.1}% of the content in use", exact(status.garbage_bytes)));
    lines.line("", "content deleted since the last run counts as in use: `--dry-run` includes it");
    lines.0
}

fn ago(secs: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(secs)).unwrap_or(UNIX_EPOCH);
    let elapsed = SystemTime::now().duration_since(time).unwrap_or_default();
    format!("{} ago", duration::show(elapsed.as_secs() * 1000))
}

fn last_run(last: &LastRun) -> String {
    let done = format!("{} containers freed, {} copied forward", last.containers_freed, show(last.moved_bytes));
    match (last.ended_secs, last.is_complete) {
        (0, _) => {
            format!("began {} and was interrupted; by then {done}. The next one continues", ago(last.started_secs))
        }
        (ended, false) => format!("ended early {}: {done}. The next one continues", ago(ended)),
        (ended, true) => format!("ended {}: {}, {} freed", ago(ended), done, show(last.freed_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use dedupfs::reclaim::RunStatus;

    use super::*;

    #[test]
    fn a_plan_says_that_nothing_was_changed_and_what_it_would_cost() {
        let plan = ReclaimReport { dry_run: true, elapsed_ms: 90_000, read_bytes: 1 << 30, ..ReclaimReport::default() };
        let shown = reclaim(&plan);
        assert!(shown.contains("nothing was changed") && shown.contains("1m 30s, to read and write 1 GiB"), "{shown}");
        assert!(!reclaim(&ReclaimReport::default()).contains("nothing was changed"));
    }

    #[test]
    fn what_is_left_has_its_reason() {
        let report = ReclaimReport {
            garbage_left_bytes: 5,
            containers_damaged: 1,
            containers_without_space: 2,
            nodes_unreadable: 3,
            stopped: Some(Stopped::Time),
            ..ReclaimReport::default()
        };
        let shown = reclaim(&report);
        for said in ["garbage left", "containers damaged", "no space to copy", "recipes unreadable", "time is over"] {
            assert!(shown.contains(said), "{said}: {shown}");
        }
    }

    #[test]
    fn the_status_tells_how_long_a_step_will_take() {
        let run = RunStatus {
            step: "emptying containers, MiB".to_owned(),
            done: 25,
            total: 100,
            step_ms: 20_000,
            ..RunStatus::default()
        };
        let status = ReclaimStatus { running: Some(run), paused: true, ..ReclaimStatus::default() };
        let shown = reclaim_status(&status);
        assert!(shown.contains("25 of 100, 1m left") && shown.contains("--resume"), "{shown}");
        let last = LastRun { started_secs: 5, ..LastRun::default() };
        let shown = reclaim_status(&ReclaimStatus { last: Some(last), ..ReclaimStatus::default() });
        assert!(shown.contains("nothing is under way") && shown.contains("was interrupted"), "{shown}");
    }
}
