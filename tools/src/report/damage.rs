//! Reports of damage: results of scrubs, repairs and trial recoveries.

use std::fmt::Write as _;

use dedupfs::TrialReport;
use dedupfs::check::AffectedFiles;
use dedupfs::export::ExportCheck;
use dedupfs::repair::RepairReport;
use dedupfs::scrub::{ScrubReport, ScrubStatus};
use serde::Serialize;

use super::{DOUBT, check, json, list, message};
use crate::control::Failure;
use crate::size::show;
use crate::time;

pub(crate) fn repair_plan(plan: &[String]) -> String {
    let mut text = String::new();
    list(&mut text, "to do", plan, plan.len() as u64);
    text
}

/// Tells the plan of a repair. A plan was made with the options of this `fsck`.
pub(super) fn could_repair(plan: &[String]) -> String {
    let head = "`dedupfs fsck --repair` (with `--read-data` if it was given here) would:\n".to_owned();
    plan.iter().fold(head, |text, line| text + "  " + line + "\n")
}

pub(crate) fn repaired(report: &RepairReport) -> String {
    let mut text = String::new();
    list(&mut text, "done", &report.plan, report.plan.len() as u64);
    if let Some(found) = &report.check {
        text.push_str(&check(found, report.rebuilt.as_ref(), Some(&[])));
    }
    text
}

pub(crate) fn repair_json(report: &RepairReport) -> Result<String, Failure> {
    message("repair", &json!({ "repaired": report.plan, "check": report.check, "rebuilt": report.rebuilt }))
}

/// The result of `dedupfs scrub --heal-from`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Healed {
    /// Lost chunks and recipe nodes that were stored again.
    pub(crate) healed: u64,
    /// Those that are lost still.
    pub(crate) left: u64,
    /// The commit of the replica.
    pub(crate) commit: u64,
}

pub(crate) fn healed(healed: &Healed) -> String {
    let Healed { healed, left, commit } = healed;
    match (healed, left) {
        (0, 0) => "nothing is lost: the replica was not needed\n".to_owned(),
        (healed, 0) => format!(
            "healed: {healed} lost chunks and recipe nodes were stored again from commit {commit} of the replica; nothing is lost any more\n"
        ),
        (healed, left) => format!(
            "healed: {healed} lost chunks and recipe nodes were stored again from commit {commit} of the replica; {left} are lost still, because that state \
             has no sound copy of them: the next backup of the same data heals what it has\n"
        ),
    }
}

/// The result of `dedupfs scrub --json`: the scrub, its trial recovery if one was made, and what was healed.
pub(crate) fn scrub_json(
    report: &ScrubReport,
    trial: Option<&TrialReport>,
    healed: Option<&Healed>,
) -> Result<String, Failure> {
    let mut both =
        serde_json::to_value(report).map_err(|error| Failure::failed(format!("cannot encode the result: {error}")))?;
    if let Some(trial) = trial {
        both["trial_recovery"] = json!(trial);
    }
    if let Some(healed) = healed {
        both["healed"] = json!(healed);
    }
    message("scrub", &both)
}

pub(crate) fn trial(report: &TrialReport) -> String {
    let mut text = String::new();
    list(&mut text, "missing", &report.missing, report.missing.len() as u64);
    let TrialReport { row, files, directories, compared, containers, elapsed_ms, .. } = report;
    let _ = writeln!(
        text,
        "trial recovery of {files} files in {directories} directories, and of all versions, as of commit {row}: {compared} records compared, index made from \
         {containers} containers; {:.1} s",
        *elapsed_ms as f64 / 1e3
    );
    text.push_str(if report.is_sound() {
        "sound: a lost meta root would come back whole\n"
    } else {
        "a lost meta root would NOT come back whole: `dedupfs scrub` writes a bad export anew from this one; put missing files back\n"
    });
    text
}

/// Limit of files named in the text. `--json` has all.
const FILES_TOLD_MAX: usize = 50;

pub(crate) fn scrub(report: &ScrubReport) -> String {
    let mut text = String::new();
    list(&mut text, "damage", &report.damage, report.damage_count);
    if let Some(export) = &report.export {
        text.push_str(&export_check(export));
    }
    affected(&mut text, &report.affected);
    let amount = |bytes: u64, of: &str| {
        let rate = bytes as f64 / 1e6 / (report.elapsed_ms.max(1) as f64 / 1e3);
        format!("{} {of} ({rate:.0} MB/s)", show(bytes))
    };
    let (disk, content) = (amount(report.disk_bytes, "from disk"), amount(report.content_bytes, "of content"));
    let _ = writeln!(text, "read {} containers, {disk}, {content}", report.containers);
    if report.containers_before > 0 {
        let _ = writeln!(text, "{} containers had been read before this scrub was stopped", report.containers_before);
    }
    if report.containers_with_garbage > 0 {
        let containers = report.containers_with_garbage;
        let _ = writeln!(
            text,
            "{containers} damaged containers hold no further damage to quarantine: dedupfs-gc frees them once nothing is lost"
        );
    }
    if report.bad_chunks + report.bad_nodes > 0 {
        let (chunks, nodes) = (report.bad_chunks, report.bad_nodes);
        let _ = writeln!(text, "found bad and quarantined: {chunks} chunks, {nodes} recipe nodes");
    }
    if report.repaired_nodes > 0 {
        let nodes = report.repaired_nodes;
        let _ = writeln!(
            text,
            "repaired: {nodes} recipe nodes were bad, and were stored again from their copies on the data root"
        );
    }
    if !report.finished {
        let by = if report.unmounted { " by the unmount" } else { "" };
        let _ = writeln!(text, "stopped{by}: the next scrub goes on here");
    }
    if report.counts_in_doubt {
        let _ = writeln!(text, "COUNTS IN DOUBT: {DOUBT}");
    }
    text.push_str(&if report.is_clean() && report.is_export_bad() {
        "every file is sound; the export is not\n".to_owned()
    } else if report.is_clean() {
        if report.finished { "sound\n".to_owned() } else { "sound so far\n".to_owned() }
    } else {
        let needed_by = match report.unmounted {
            true => String::new(),
            false => format!(", needed by {} files", report.affected.file_count),
        };
        format!(
            "lost: {} chunks, {} recipe nodes{needed_by}\n{}",
            report.lost_chunks,
            report.lost_nodes,
            losses_advice(report)
        )
    });
    text
}

/// The part of a scrub's text about the export on the data root; empty if the export is sound.
fn export_check(export: &ExportCheck) -> String {
    let mut text = String::new();
    list(&mut text, "export", &export.findings, export.finding_count);
    if export.stopped {
        text.push_str("export: it was written again and again meanwhile, and was NOT verified: the next scrub, fsck or mount verifies it\n");
    } else if export.renewed {
        text.push_str(
            "export: it was written anew from the meta root; a disk that changes bytes should not be trusted for long\n",
        );
    } else if export.is_bad() {
        text.push_str(
            "export: it is STILL BAD: a lost meta root could not be recovered. The log says why it was not written anew (room on the \
             data root, a damaged meta root, a mount for reading only)\n",
        );
    }
    text
}

/// Advice to write data again. rsync skips files with the same size and time.
pub(super) const AGAIN: &str = "back the same data up again so that it is really written (rsync: with --ignore-times, or into a new \
                                directory without --link-dest), or take it from a replica of the pool with `dedupfs scrub --heal-from STORE`";

fn losses_advice(report: &ScrubReport) -> String {
    let readable = report.lost_and_readable;
    let from_disk = match readable {
        0 => String::new(),
        _ => format!(
            "{readable} of these were read in containers that the index was made without: unmount, and\n  `dedupfs fsck \
             --rebuild-index POOL` takes them in again; then scrub again. For the rest: "
        ),
    };
    // The export has copies of all recipe nodes.
    let from_export = match report.lost_nodes {
        0 => "",
        _ => {
            "remove no files yet: the data root has copies of recipe nodes. Unmount; if `dedupfs fsck --trial-recovery POOL`\n  \
             says \"sound\", `dedupfs recover --force POOL` brings these nodes back. For the rest: "
        }
    };
    format!(
        "what to do: {from_disk}{from_export}{AGAIN},\n  which makes the files whole; remove those whose data does not come again{}\n",
        if readable > 0 || report.lost_nodes > 0 { ", but only then" } else { "" }
    )
}

pub(super) fn affected(text: &mut String, affected: &AffectedFiles) {
    for file in affected.files.iter().take(FILES_TOLD_MAX) {
        let name = match file.paths.first() {
            Some(path) => format!("{path:?}"),
            None => format!("inode {} (unlinked, still open)", file.ino),
        };
        let links = match file.paths.len() {
            0 | 1 => String::new(),
            names => format!(" and {} more names", names - 1),
        };
        let ranges: Vec<String> = file.ranges.iter().map(|(from, len)| format!("{from}+{len}")).collect();
        let _ = match (file.lost_entries, file.lost_bytes) {
            (0, 0) => writeln!(text, "affected: {name}{links}: its extended attributes are lost"),
            (0, lost) => writeln!(text, "affected: {name}{links}: {lost} bytes at {}", ranges.join(" ")),
            (u64::MAX, _) => writeln!(text, "affected: all entries of {name} are lost"),
            (1, _) => writeln!(text, "affected: 1 entry of {name} is lost"),
            (lost, _) => writeln!(text, "affected: {lost} entries of {name} are lost"),
        };
    }
    let untold = affected.file_count.saturating_sub(FILES_TOLD_MAX as u64);
    if untold > 0 {
        let _ = writeln!(text, "affected: {untold} more files (--json names them)");
    }
}

pub(crate) fn scrub_status(status: &ScrubStatus) -> String {
    let lost = lost_now(status);
    let trial = if status.in_trial { "; a trial recovery is running" } else { "" };
    let Some(position) = status.position else { return format!("never scrubbed{lost}{trial}\n") };
    let (read, total) = (show(position.disk_bytes), show(status.total_bytes));
    let state = match (status.running, position.finished_secs) {
        (true, _) => format!("running, begun {}", time::show(position.started_secs)),
        (false, 0) => {
            format!("begun {} and stopped: the next scrub continues there", time::show(position.started_secs))
        }
        (false, at) => format!("finished {}", time::show(at)),
    };
    // While another process works on a pool, its size is not known.
    let of = if status.total_bytes == 0 { String::new() } else { format!(" of {total}") };
    format!(
        "{state}; {} containers, {read}{of} read, {} newly found bad{lost}{trial}\n",
        position.containers, position.bad
    )
}

/// Describes all present losses, also those that the last scrub did not find.
fn lost_now(status: &ScrubStatus) -> String {
    match (status.lost_chunks, status.lost_nodes) {
        (None, _) | (_, None) | (Some(0), Some(0)) => String::new(),
        (Some(chunks), Some(nodes)) => {
            format!(
                "; lost as of now: {chunks} chunks, {nodes} recipe nodes (`dedupfs scrub` names the files that need them; `dedupfs-gc` forgets those that no file needs)"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use dedupfs::scrub::ScrubPosition;

    use super::*;

    #[test]
    fn regression_times_of_scrubs_can_be_read() {
        let position =
            ScrubPosition { started_secs: 1_700_000_000, finished_secs: 1_700_003_600, ..ScrubPosition::default() };
        let mut status = ScrubStatus { position: Some(position), ..ScrubStatus::default() };
        assert!(scrub_status(&status).starts_with("finished 2023-11-14 23:13:20 UTC; "), "{}", scrub_status(&status));
        status.running = true;
        assert!(scrub_status(&status).starts_with("running, begun 2023-11-14 22:13:20 UTC; "));
        assert_eq!(scrub_status(&ScrubStatus::default()), "never scrubbed\n");
    }

    #[test]
    fn regression_what_readers_found_lost_before_the_scrub_is_told_of_by_its_status() {
        let mut status = ScrubStatus { lost_chunks: Some(0), lost_nodes: Some(0), ..ScrubStatus::default() };
        assert_eq!(scrub_status(&status), "never scrubbed\n");
        status.lost_chunks = Some(3);
        assert!(scrub_status(&status).starts_with("never scrubbed; lost as of now: 3 chunks, 0 recipe nodes"));
        status.position = Some(ScrubPosition::default());
        assert!(
            scrub_status(&status).contains(" 0 newly found bad; lost as of now: 3 chunks"),
            "{}",
            scrub_status(&status)
        );
    }

    #[test]
    fn lost_entries_of_versions_are_told_in_words() {
        let affected_of = |lost_entries, lost_bytes, ranges: &[(u64, u64)]| {
            let paths = vec!["web1/2026-11-01/etc".to_owned()];
            let ranges = ranges.to_vec();
            let file = dedupfs::check::AffectedFile { ino: 5, paths, ranges, lost_bytes, lost_entries };
            let mut text = String::new();
            affected(&mut text, &AffectedFiles { files: vec![file], file_count: 1 });
            text
        };
        let path = "\"web1/2026-11-01/etc\"";
        assert_eq!(affected_of(12, 0, &[]), format!("affected: 12 entries of {path} are lost\n"));
        assert_eq!(affected_of(1, 0, &[]), format!("affected: 1 entry of {path} is lost\n"));
        assert_eq!(affected_of(u64::MAX, 0, &[]), format!("affected: all entries of {path} are lost\n"));
        assert_eq!(affected_of(0, 0, &[]), format!("affected: {path}: its extended attributes are lost\n"));
        assert_eq!(affected_of(0, 9, &[(4, 9)]), format!("affected: {path}: 9 bytes at 4+9\n"));
    }

    #[test]
    fn repaired_nodes_are_told_and_are_no_loss() {
        let report = ScrubReport { finished: true, repaired_nodes: 3, ..ScrubReport::default() };
        let text = scrub(&report);
        assert!(text.contains("repaired: 3 recipe nodes were bad") && text.ends_with("sound\n"), "{text}");
        assert!(scrub_json(&report, None, None).unwrap().contains("\"repaired_nodes\":3"));
    }

    #[test]
    fn a_check_says_what_a_repair_would_do() {
        assert_eq!(
            could_repair(&["a".to_owned()]),
            "`dedupfs fsck --repair` (with `--read-data` if it was given here) would:\n  a\n"
        );
    }
}
