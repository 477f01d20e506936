//! Versions: one that was made, lists, and decisions of `dedupfs prune`.

use std::fmt::Write as _;

use dedupfs::retention::Decision;
use dedupfs::transfer::ThawReport;
use dedupfs::{VersionInfo, VersionReport, WouldFree};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::table::Table;
use crate::args::versions::TimeOf;
use crate::commands::forget::Forgotten;
use crate::commands::freeze::{Frozen, FrozenDirectory};
use crate::duration;
use crate::size::show;

/// Digits of a fingerprint in a table.
const FINGERPRINT_DIGITS: usize = 12;

pub(crate) fn made(path: &str, report: &VersionReport) -> String {
    let VersionReport { fingerprint, entries, logical_bytes, new_bytes, elapsed_ms, .. } = report;
    format!(
        "{path}: {entries} entries, {}, new {}, {}, fingerprint {fingerprint}\n",
        show(*logical_bytes),
        show(*new_bytes),
        duration::show(*elapsed_ms)
    )
}

pub(crate) fn thawed(path: &str, report: &ThawReport) -> String {
    let ThawReport { entries, logical_bytes, elapsed_ms, .. } = report;
    format!("{path}: {entries} entries, {}, live, {}\n", show(*logical_bytes), duration::show(*elapsed_ms))
}

/// Tells that a directory is frozen, or would be; with its time if that is of interest.
pub(crate) fn frozen(directory: &FrozenDirectory, with_time: bool, zone: &TimeZone) -> String {
    let from = match directory.time {
        TimeOf::Name => "by its name",
        TimeOf::Mtime => "by its mtime",
        TimeOf::Now => "now",
    };
    let time = format!("backup of {} ({from})", local(directory.completed_secs, zone));
    match &directory.report {
        None => format!("{}: would be frozen, {time}\n", directory.path),
        Some(report) if with_time => made(&directory.path, report).replace('\n', &format!(", {time}\n")),
        Some(report) => made(&directory.path, report),
    }
}

/// Tells how many directories were frozen.
pub(crate) fn frozen_sum(result: &Frozen) -> String {
    let directories = |count: usize| if count == 1 { "directory" } else { "directories" };
    let (done, failed) = (result.frozen.len(), result.failed.len());
    let refused = match failed {
        0 => String::new(),
        count => format!(", {count} {} not: see above", directories(count)),
    };
    match result.dry_run {
        true => format!("would freeze {done} {}{refused} (nothing was changed)\n", directories(done)),
        false => format!("{done} {} frozen{refused}\n", directories(done)),
    }
}

pub(crate) fn would_free(told: &WouldFree) -> String {
    let WouldFree { chunks, chunk_bytes, nodes, node_bytes, disk_bytes_estimate } = told;
    let exact = |bytes: u64| format!("{} ({bytes} bytes)", show(bytes));
    format!(
        "removing this frees {chunks} chunks, {}, and {nodes} nodes, {}, before compression\n\
         on the disks about {}, when `dedupfs-gc` has run\n",
        exact(*chunk_bytes),
        exact(*node_bytes),
        show(*disk_bytes_estimate)
    )
}

/// Warns of files that became several.
pub(crate) fn unlinked(report: &VersionReport) -> String {
    match report.unlinked {
        0 => String::new(),
        count => format!(
            "dedupfs: warning: {count} further names of files became files of their own: there are too many files with several names\n"
        ),
    }
}

pub(crate) fn forgotten(result: &Forgotten) -> String {
    let mut text = String::new();
    for path in &result.removed {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "removed {path}");
    }
    match result.removed.len() {
        0 => text.push_str("no version was removed\n"),
        count => {
            let _ = writeln!(text, "{count} {} removed; `dedupfs-gc` gives the space back", plural(count));
        }
    }
    text
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "version" } else { "versions" }
}

/// Sums over the listed versions.
#[derive(Serialize)]
pub(crate) struct Totals {
    count: usize,
    files: u64,
    logical_bytes: u64,
    new_bytes: u64,
}

impl Totals {
    pub(crate) fn of(versions: &[VersionInfo]) -> Self {
        let sum = |of: fn(&VersionInfo) -> u64| versions.iter().map(of).fold(0, u64::saturating_add);
        Self {
            count: versions.len(),
            files: sum(|version| version.files),
            logical_bytes: sum(|version| version.logical_bytes),
            new_bytes: sum(|version| version.new_bytes),
        }
    }
}

/// Formats seconds since 1970 as local time, such as `2026-11-23T02:30:11+01:00`.
pub(super) fn local(secs: i64, zone: &TimeZone) -> String {
    let time = Timestamp::from_second(secs).ok();
    time.map_or_else(
        || format!("{secs}s"),
        |time| time.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    )
}

/// Tells what is special about a version.
fn marks(version: &VersionInfo, zone: &TimeZone) -> String {
    let problems = match version.problems {
        0 => None,
        1 => Some("1 problem".to_owned()),
        count => Some(format!("{count} problems")),
    };
    let locked = version.locked_until_secs > 0 && version.locked_until_secs > Timestamp::now().as_second();
    let locked = locked.then(|| format!("locked until {}", local(version.locked_until_secs, zone)));
    let incomplete = version.incomplete.then(|| "incomplete".to_owned());
    let marks: Vec<String> = [incomplete, problems, locked].into_iter().flatten().collect();
    marks.join(", ")
}

/// Escapes control characters, which a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Lists versions, grouped by their directories if they are those of a whole pool.
pub(crate) fn list(versions: &[VersionInfo], is_whole: bool, target: &str, zone: &TimeZone) -> String {
    if versions.is_empty() {
        let below = if is_whole { "/DIR" } else { "" };
        return format!("no versions in {target}: `dedupfs snapshot MNT/SOURCE {target}{below}/NAME` makes one\n");
    }
    let mut directories: Vec<&str> = versions.iter().map(|version| version.directory.as_str()).collect();
    directories.sort_unstable();
    directories.dedup();
    let mut text = String::new();
    for directory in directories {
        if is_whole {
            let _ = writeln!(text, "/{}", plain(directory));
        }
        let of_directory = versions.iter().filter(|version| version.directory == directory);
        text.push_str(&table(of_directory, zone));
        text.push('\n');
    }
    let Totals { count, files, logical_bytes, new_bytes } = Totals::of(versions);
    let _ =
        writeln!(text, "{count} {}, {files} files, {}, new {}", plural(count), show(logical_bytes), show(new_bytes));
    text
}

fn table<'a>(versions: impl Iterator<Item = &'a VersionInfo>, zone: &TimeZone) -> String {
    let mut table =
        Table::new(&["name", "completed", "host", "source", "files", "size", "new", "marks", "fingerprint"]);
    for version in versions {
        let digits = version.fingerprint.get(..FINGERPRINT_DIGITS).unwrap_or(&version.fingerprint);
        table.row([
            plain(&version.name),
            local(version.completed_secs, zone),
            plain(&version.host),
            plain(&version.source),
            version.files.to_string(),
            show(version.logical_bytes),
            show(version.new_bytes),
            marks(version, zone),
            digits.to_owned(),
        ]);
    }
    table.show(&[4, 5, 6])
}

/// The result of `dedupfs prune`.
#[derive(Serialize, Default)]
pub(crate) struct Pruned {
    pub(crate) directory: String,
    /// The rules, as options of the command.
    pub(crate) rules: String,
    pub(crate) dry_run: bool,
    pub(crate) versions: Vec<PrunedVersion>,
    /// The kept versions that may go if the disk is too full, the oldest first.
    pub(crate) for_space: Vec<String>,
    /// The used share of the disk at the end, with --free-until.
    pub(crate) used_percent: Option<u64>,
    /// Whether that is `enough`, still too `full`, or too full because of `others`' files.
    pub(crate) room: Option<&'static str>,
}

/// A version and the decision on it.
#[derive(Serialize)]
pub(crate) struct PrunedVersion {
    pub(crate) name: String,
    completed_secs: i64,
    fingerprint: String,
    keep: bool,
    reasons: Vec<String>,
    pub(crate) removed: bool,
    /// The reason why it was not removed.
    pub(crate) error: Option<String>,
}

impl PrunedVersion {
    pub(crate) fn new(version: &VersionInfo, decision: &Decision) -> Self {
        Self {
            name: version.name.clone(),
            completed_secs: version.completed_secs,
            fingerprint: version.fingerprint.clone(),
            keep: decision.keep,
            reasons: decision.reasons.iter().map(ToString::to_string).collect(),
            removed: false,
            error: None,
        }
    }
}

impl Pruned {
    /// Whether all that was to be removed was removed, and the disk is as empty as was asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.versions.iter().all(|version| version.error.is_none()) && self.room.is_none_or(|room| room == "enough")
    }
}

/// Tells for each version whether it stays, and why.
pub(crate) fn decisions(result: &Pruned) -> String {
    let mut table = Table::new(&["action", "name", "reasons"]);
    for version in &result.versions {
        let keep = if version.keep { "keep" } else { "remove" };
        table.row([keep.to_owned(), plain(&version.name), version.reasons.join("; ")]);
    }
    if result.versions.is_empty() { String::new() } else { table.show(&[]) }
}

/// Tells how many versions were removed, or would be.
pub(crate) fn pruned(result: &Pruned) -> String {
    let all = result.versions.len();
    if all == 0 {
        return format!("no versions in {}\n", result.directory);
    }
    let mut text = String::new();
    if result.dry_run {
        let count = result.versions.iter().filter(|version| !version.keep).count();
        let _ = writeln!(text, "would remove {count} of {all} {} (nothing was changed)", plural(all));
        if !result.for_space.is_empty() {
            let names: Vec<String> = result.for_space.iter().map(|name| plain(name)).collect();
            let _ = writeln!(text, "if the disk is still too full, these go too, in this order: {}", names.join(", "));
        }
        return text;
    }
    for version in result.versions.iter().filter(|version| version.keep && version.removed) {
        let _ = writeln!(text, "removed for space: {}", plain(&version.name));
    }
    let count = result.versions.iter().filter(|version| version.removed).count();
    let advice = if count > 0 && result.room.is_none() { "; `dedupfs-gc` gives the space back" } else { "" };
    let _ = writeln!(text, "removed {count} of {all} {}{advice}", plural(all));
    if let (Some(percent), Some(room)) = (result.used_percent, result.room) {
        let why = match room {
            "others" => ": other files fill the disk, so removing versions does not help",
            "full" => ": no further version may go",
            _ => "",
        };
        let _ = writeln!(text, "{percent}% of the disk is used{why}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, directory: &str) -> VersionInfo {
        VersionInfo {
            name: name.to_owned(),
            directory: directory.to_owned(),
            completed_secs: 1_795_400_000,
            host: "web1".to_owned(),
            source: "/mnt/web1/current".to_owned(),
            files: 3,
            logical_bytes: 5 << 20,
            new_bytes: 1024,
            fingerprint: "0123456789abcdef".to_owned(),
            ..VersionInfo::default()
        }
    }

    #[test]
    fn a_list_of_a_pool_is_grouped_by_directory() {
        let mut versions = [version("b", "web2"), version("a", "web1"), version("c", "web2")];
        versions[2].problems = 2;
        versions[2].incomplete = true;
        let said = list(&versions, true, "/mnt", &TimeZone::UTC);
        let expected = "\
/web1
name  completed                  host  source             files   size    new  marks  fingerprint
a     2026-11-23T02:13:20+00:00  web1  /mnt/web1/current      3  5 MiB  1 KiB         0123456789ab

/web2
name  completed                  host  source             files   size    new  marks                   fingerprint
b     2026-11-23T02:13:20+00:00  web1  /mnt/web1/current      3  5 MiB  1 KiB                          0123456789ab
c     2026-11-23T02:13:20+00:00  web1  /mnt/web1/current      3  5 MiB  1 KiB  incomplete, 2 problems  0123456789ab

3 versions, 9 files, 15 MiB, new 3 KiB
";
        assert_eq!(said, expected);
        assert!(!list(&versions[..1], false, "/mnt/web2", &TimeZone::UTC).contains("/web2\n"));
    }

    #[test]
    fn an_empty_list_says_how_to_make_a_version() {
        let said = list(&[], false, "/mnt/web1", &TimeZone::UTC);
        assert_eq!(said, "no versions in /mnt/web1: `dedupfs snapshot MNT/SOURCE /mnt/web1/NAME` makes one\n");
    }

    #[test]
    fn a_terminal_obeys_no_name() {
        let mut odd = version("a\u{1b}[2J", "x");
        odd.locked_until_secs = i64::MAX;
        let said = list(&[odd], true, "/mnt", &TimeZone::UTC);
        assert!(!said.contains('\u{1b}') && said.contains("locked until"), "{said}");
    }
}
