//! Versions: one that was made, lists, and decisions of `dedupfs prune`.

use std::fmt::Write as _;

use dedupfs::retention::Decision;
use dedupfs::transfer::ThawReport;
use dedupfs::{TreeStats, VersionInfo, VersionReport, WouldFree};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::table::Table;
use super::{Lines, exact, ratio};
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
    let WouldFree { chunks, chunk_bytes, nodes, node_bytes, disk_bytes_estimate, .. } = told;
    format!(
        "removing this frees {chunks} chunks, {}, and {nodes} nodes, {}, before compression\n\
         on the disks about {}, when `dedupfs-gc` has run\n{}",
        exact(*chunk_bytes),
        exact(*node_bytes),
        show(*disk_bytes_estimate),
        reclaiming_note(told)
    )
}

fn together(told: &WouldFree) -> String {
    let WouldFree { chunk_bytes, node_bytes, disk_bytes_estimate, .. } = told;
    let (exact, on_disk) = (show(chunk_bytes.saturating_add(*node_bytes)), show(*disk_bytes_estimate));
    let when = "on the disks, when `dedupfs-gc` has run";
    format!("together that frees {exact} before compression, about {on_disk} {when}\n{}", reclaiming_note(told))
}

/// Says that figures may be too low.
fn reclaiming_note(told: &WouldFree) -> &'static str {
    match told.is_reclaiming {
        true => {
            "`dedupfs-gc` is running: garbage that it is about to free still counts as in use, so more may be freed\n"
        }
        false => "",
    }
}

/// Tells what a tree holds.
pub(crate) fn tree(path: &str, stats: &TreeStats) -> String {
    let TreeStats { frozen, fingerprint, files, directories, others, further_names, .. } = stats;
    let TreeStats { logical_bytes, data_bytes, stored, only_here, .. } = stats;
    let kind = if *frozen { "frozen" } else { "live" };
    let mut lines = Lines(String::new());
    lines.heading(&format!("{} ({kind})", plain(path)));
    let further = format!("others {others}, further names of files {further_names}");
    lines.line("files", format!("{files}, directories {directories}, {further}"));
    lines.line("logical", exact(*logical_bytes));
    lines.line("  without holes", exact(*data_bytes));
    let of = |told: &WouldFree| {
        let WouldFree { chunks, chunk_bytes, nodes, node_bytes, disk_bytes_estimate, .. } = told;
        let disk = show(*disk_bytes_estimate);
        format!(
            "{chunks} chunks, {}, and {nodes} nodes, {}; about {disk} on the disks",
            exact(*chunk_bytes),
            exact(*node_bytes)
        )
    };
    lines.line("stored", of(stored));
    lines.line("  only here", of(only_here));
    let shared = WouldFree {
        chunks: stored.chunks.saturating_sub(only_here.chunks),
        chunk_bytes: stored.chunk_bytes.saturating_sub(only_here.chunk_bytes),
        nodes: stored.nodes.saturating_sub(only_here.nodes),
        node_bytes: stored.node_bytes.saturating_sub(only_here.node_bytes),
        disk_bytes_estimate: stored.disk_bytes_estimate.saturating_sub(only_here.disk_bytes_estimate),
        is_reclaiming: false,
    };
    lines.line("  shared", of(&shared));
    let within = if stored.chunk_bytes == 0 { 0.0 } else { *data_bytes as f64 / stored.chunk_bytes as f64 };
    lines.line("deduplication within", ratio(within));
    if let Some(fingerprint) = fingerprint {
        lines.line("fingerprint", fingerprint);
    }
    lines.0.push_str(reclaiming_note(only_here));
    lines.0
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
    let done = if result.dry_run { "would remove" } else { "removed" };
    for path in &result.removed {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{done} {path}");
    }
    if let Some(told) = &result.would_free {
        text.push_str(&together(told));
    }
    if result.dry_run {
        text.push_str("nothing was changed; a removal cannot be undone\n");
        return text;
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

/// A version, with what its removal alone would free, if that was asked for.
#[derive(Serialize)]
pub(crate) struct ListedVersion {
    #[serde(flatten)]
    pub(crate) info: VersionInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) only_here: Option<WouldFree>,
}

impl ListedVersion {
    /// Bytes of chunks and nodes that only it holds.
    fn only_here(&self) -> Option<u64> {
        self.only_here.as_ref().map(|told| told.chunk_bytes.saturating_add(told.node_bytes))
    }
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
    pub(crate) fn of<'a>(versions: impl IntoIterator<Item = &'a VersionInfo>) -> Self {
        let versions: Vec<&VersionInfo> = versions.into_iter().collect();
        let sum = |of: fn(&VersionInfo) -> u64| versions.iter().map(|version| of(version)).fold(0, u64::saturating_add);
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
    let damaged = version.damaged.as_ref().map(|why| format!("damaged: {}", plain(why)));
    let marks: Vec<String> = [damaged, incomplete, problems, locked].into_iter().flatten().collect();
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

/// Lists versions, grouped by their directories if they are those of a whole pool. `parent_of_new`
/// is the directory of new versions in advice.
pub(crate) fn list(
    versions: &[ListedVersion],
    (is_whole, has_sizes): (bool, bool),
    (target, parent_of_new): (&str, &str),
    zone: &TimeZone,
) -> String {
    if versions.is_empty() {
        let below = if is_whole { "/DIR" } else { "" };
        return format!("no versions in {target}: `dedupfs put SOURCE {parent_of_new}{below}/NAME` makes one\n");
    }
    let mut directories: Vec<&str> = versions.iter().map(|version| version.info.directory.as_str()).collect();
    directories.sort_unstable();
    directories.dedup();
    let mut text = String::new();
    for directory in directories {
        if is_whole {
            let _ = writeln!(text, "/{}", plain(directory));
        }
        let of_directory = versions.iter().filter(|version| version.info.directory == directory);
        text.push_str(&table(of_directory, has_sizes, zone));
        text.push('\n');
    }
    let Totals { count, files, logical_bytes, new_bytes } = Totals::of(versions.iter().map(|version| &version.info));
    let _ =
        writeln!(text, "{count} {}, {files} files, {}, new {}", plural(count), show(logical_bytes), show(new_bytes));
    if has_sizes {
        text.push_str("only here: what removing this version alone frees, before compression; of several together: `dedupfs-stats --would-free`\n");
        let mut told = versions.iter().filter_map(|version| version.only_here.as_ref());
        text.push_str(told.find(|told| told.is_reclaiming).map_or("", reclaiming_note));
    }
    text
}

fn table<'a>(versions: impl Iterator<Item = &'a ListedVersion>, has_sizes: bool, zone: &TimeZone) -> String {
    let mut heads = vec!["name", "completed", "host", "source", "files", "size", "new"];
    let sizes = if has_sizes { &["only here"][..] } else { &[] };
    heads.extend(sizes);
    heads.extend(["marks", "fingerprint"]);
    let mut table = Table::new(&heads);
    for listed in versions {
        let version = &listed.info;
        let digits = version.fingerprint.get(..FINGERPRINT_DIGITS).unwrap_or(&version.fingerprint);
        let mut row = vec![
            plain(&version.name),
            local(version.completed_secs, zone),
            plain(&version.host),
            plain(&version.source),
            version.files.to_string(),
            show(version.logical_bytes),
            show(version.new_bytes),
        ];
        row.extend(has_sizes.then(|| listed.only_here().map_or_else(|| "-".to_owned(), show)));
        row.extend([marks(version, zone), digits.to_owned()]);
        table.row(row);
    }
    table.show(if has_sizes { &[4, 5, 6, 7] } else { &[4, 5, 6] })
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
    /// What the removed versions would free together, of a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) would_free: Option<WouldFree>,
    /// The used share of the disk at the end, with --free-until.
    pub(crate) used_percent: Option<u64>,
    /// Whether that is `enough`, still too `full`, too full because of `others`' files, or because a removed version is
    /// `read`.
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
    /// It is kept because it is damaged.
    #[serde(skip)]
    is_unknown: bool,
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
            is_unknown: version.is_unknown,
            removed: false,
            error: None,
        }
    }
}

impl Pruned {
    /// Whether every version could be decided on, all that was to be removed was removed, and the disk is as empty as was asked
    /// for.
    pub(crate) fn is_whole(&self) -> bool {
        let is_sound = |version: &PrunedVersion| version.error.is_none() && !version.is_unknown;
        self.versions.iter().all(is_sound) && self.room.is_none_or(|room| room == "enough")
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
        if let Some(told) = &result.would_free {
            text.push_str(&together(told));
        }
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
            "read" => {
                ": somebody reads a version that was removed, and its space comes back when that ends: run this again then"
            }
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

    fn version(name: &str, directory: &str) -> ListedVersion {
        let info = VersionInfo {
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
        };
        ListedVersion { info, only_here: None }
    }

    #[test]
    fn a_list_of_a_pool_is_grouped_by_directory() {
        let mut versions = [version("b", "web2"), version("a", "web1"), version("c", "web2")];
        versions[2].info.problems = 2;
        versions[2].info.incomplete = true;
        let said = list(&versions, (true, false), ("/mnt", "/mnt"), &TimeZone::UTC);
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
        assert!(!list(&versions[..1], (false, false), ("/mnt/web2", "/mnt/web2"), &TimeZone::UTC).contains("/web2\n"));
    }

    #[test]
    fn a_damaged_version_says_what_is_damaged() {
        let mut damaged = version("a", "web1");
        damaged.info.damaged = Some("its name is missing".to_owned());
        let said = list(&[damaged], (false, false), ("/mnt/web1", "/mnt/web1"), &TimeZone::UTC);
        assert!(said.contains("damaged: its name is missing"), "{said}");
    }

    #[test]
    fn sizes_have_a_column_that_says_what_it_is() {
        let mut versions = [version("a", "web1"), version("b", "web1")];
        versions[0].only_here = Some(WouldFree { chunk_bytes: 1024, node_bytes: 1024, ..WouldFree::default() });
        let said = list(&versions, (false, true), ("/mnt/web1", "/mnt/web1"), &TimeZone::UTC);
        let mut lines = said.lines();
        assert!(lines.next().is_some_and(|head| head.contains("    new  only here  marks")), "{said}");
        assert!(lines.next().is_some_and(|line| line.contains("1 KiB      2 KiB")), "{said}");
        assert!(lines.next().is_some_and(|line| line.contains("1 KiB          -")), "{said}");
        assert!(said.contains("only here: what removing"), "{said}");
    }

    #[test]
    fn a_tree_says_what_is_shared_and_how_well_it_deduplicates() {
        let of = |chunk_bytes| WouldFree { chunks: 2, chunk_bytes, ..WouldFree::default() };
        let stats = TreeStats {
            frozen: true,
            fingerprint: Some("abc".to_owned()),
            files: 3,
            data_bytes: 3000,
            stored: of(2000),
            only_here: of(500),
            ..TreeStats::default()
        };
        let said = tree("/m/\u{1b}v", &stats);
        assert!(
            said.starts_with("/m/\\u{1b}v (frozen)\n  files                  3, directories 0, others 0,"),
            "{said}"
        );
        assert!(said.contains("  shared               0 chunks, 1.46 KiB (1500 bytes)"), "{said}");
        assert!(said.contains("deduplication within   1.50\n  fingerprint            abc\n"), "{said}");
        assert!(!tree("/m", &TreeStats::default()).contains("fingerprint"));
    }

    #[test]
    fn an_empty_list_says_how_to_make_a_version() {
        let said = list(&[], (false, false), ("/mnt/web1", "/mnt/web1"), &TimeZone::UTC);
        assert_eq!(said, "no versions in /mnt/web1: `dedupfs put SOURCE /mnt/web1/NAME` makes one\n");
    }

    #[test]
    fn a_terminal_obeys_no_name() {
        let mut odd = version("a\u{1b}[2J", "x");
        odd.info.locked_until_secs = i64::MAX;
        let said = list(&[odd], (true, false), ("/mnt", "/mnt"), &TimeZone::UTC);
        assert!(!said.contains('\u{1b}') && said.contains("locked until"), "{said}");
    }
}
