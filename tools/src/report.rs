//! Results as text for people and as JSON for programs.

mod damage;
pub(crate) mod differences;
mod profile;
mod reclaim;
pub(crate) mod table;
mod transfer;
pub(crate) mod versions;

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use dedupfs::check::{CheckReport, RebuildReport};
use dedupfs::config::{SPACE_LOW_PERCENT, SPACE_URGENT_PERCENT};
use dedupfs::recover::RecoverReport;
use dedupfs::stats::{IndexSummary, Level, PoolStats, RootSpace, VersionTotals};
use serde::Serialize;
use serde_json::json;

pub(crate) use self::damage::{
    Healed, healed, repair_json, repair_plan, repaired, scrub, scrub_json, scrub_status, trial,
};
use self::damage::{affected, could_repair};
pub(crate) use self::profile::profile;
pub(crate) use self::reclaim::{log_reclaimed, reclaim, reclaim_status};
pub(crate) use self::transfer::{transfer, transfer_problems};
use crate::control::Failure;
#[cfg(feature = "remote")]
use crate::duration;
use crate::size::show;

const DOUBT: &str = "nothing is freed: unmount, and run `dedupfs fsck --rebuild-index POOL`";

const MIB_PER_TIB: f64 = 1024.0 * 1024.0;

/// Version of the messages that [`message`] formats. It changes with a member that is renamed or removed.
const MESSAGE_VERSION: u8 = 1;

/// Returns a path as text for a result; bytes that are no UTF-8 are escaped.
pub(crate) fn shown_path(path: &Path) -> String {
    dedupfs::shown(path.as_os_str().as_bytes())
}

/// Formats a result as one line of JSON that begins with its type and version; `docs/json.md` documents each type.
pub(crate) fn message(message_type: &str, value: &impl Serialize) -> Result<String, Failure> {
    #[derive(Serialize)]
    struct Message<'a, T> {
        r#type: &'a str,
        version: u8,
        #[serde(flatten)]
        value: &'a T,
    }
    serde_json::to_string(&Message { r#type: message_type, version: MESSAGE_VERSION, value })
        .map(|text| text + "\n")
        .map_err(|error| Failure::failed(format!("cannot print as JSON: {error}")))
}

/// Lines of a name and a text; the names are padded to one width.
struct Lines(String);

impl Lines {
    fn heading(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn line(&mut self, name: &str, text: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "  {name:<22} {text}");
    }
}

/// Adds one line for each of `lines`, and one for the others of `count` that are not among them.
pub(crate) fn list(text: &mut String, name: &str, lines: &[impl std::fmt::Display], count: u64) {
    for line in lines {
        let _ = writeln!(text, "{name}: {line}");
    }
    let untold = count.saturating_sub(lines.len() as u64);
    if untold > 0 {
        let _ = writeln!(text, "{name}: {untold} more");
    }
}

/// A size with its exact bytes, for figures that are compared.
fn exact(bytes: u64) -> String {
    if bytes < 1024 { show(bytes) } else { format!("{} ({bytes} bytes)", show(bytes)) }
}

fn ratio(value: f64) -> String {
    // Zero means that there is nothing to compare.
    if value == 0.0 { "-".to_owned() } else { format!("{value:.2}") }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Daemon,
    /// The files of a pool that is not mounted. Memory and session mean nothing there.
    Files,
}

pub(crate) fn stats(stats: &PoolStats, source: Source) -> String {
    let mut lines = Lines(String::new());
    lines.heading(&format!("pool {}", stats.uuid));
    lines.line(
        "chunks",
        format!("{} by {}, named by {}", show(stats.chunk_size_bytes), stats.chunker, stats.fingerprint),
    );
    lines.line("compression", &stats.compression);
    lines.heading("stored content");
    lines.line("files", format!("{}, directories {}, others {}", stats.files, stats.directories, stats.other_inodes));
    lines.line("logical", exact(stats.logical_bytes));
    lines.line("  without holes", exact(stats.data_bytes));
    let VersionTotals { count, files, logical_bytes, .. } = stats.versions;
    lines.line("versions", format!("{count}, files in them {files}, {}", exact(logical_bytes)));
    if stats.removed_versions_held > 0 {
        let held = stats.removed_versions_held;
        lines.line("  removed", format!("{held}, whose content stays until nobody reads them"));
    }
    lines.line("unique chunks", stats.unique_chunks);
    lines.line("unique chunk bytes", exact(stats.unique_chunk_bytes));
    lines.line(
        "to be reclaimed",
        format!("{} chunks, {}", stats.unreferenced_chunks, exact(stats.unreferenced_chunk_bytes)),
    );
    if stats.lost_chunks + stats.lost_recipe_nodes > 0 {
        let (chunks, nodes) = (stats.lost_chunks, stats.lost_recipe_nodes);
        lines.line("LOST", format!("{chunks} chunks, {nodes} recipe nodes: `dedupfs scrub` says what to do"));
    }
    if stats.counts_in_doubt {
        lines.line("COUNTS IN DOUBT", DOUBT);
    }
    lines.line("recipe nodes", format!("{}, {}", stats.recipe_nodes, show(stats.recipe_node_bytes)));
    lines.heading("space on disk");
    lines.line("content", exact(stats.data_container_bytes));
    lines.line("recipes", exact(stats.recipe_container_bytes));
    lines.line("namespace", exact(stats.namespace_bytes));
    lines.line("index", exact(stats.index_bytes));
    let exported = exact(stats.export_bytes + stats.export_recipe_bytes);
    lines.line(
        "export",
        if stats.is_exported { format!("{exported}{}", exported_ago(stats)) } else { "none yet".to_owned() },
    );
    lines.line("physical, all", exact(stats.physical_bytes));
    roots(&mut lines, stats);
    lines.heading("ratios");
    lines.line("deduplication", ratio(stats.dedup_ratio));
    lines.line("compression", ratio(stats.compression_ratio));
    lines.line(
        "total",
        format!("{} (content without holes, that of versions included, against physical)", ratio(stats.total_ratio)),
    );
    lines.heading("index");
    for (name, summary) in [("chunks", &stats.chunk_index), ("recipe nodes", &stats.recipe_index)] {
        lines.line(name, index(summary));
    }
    if source == Source::Daemon {
        memory(&mut lines, stats);
        session(&mut lines, stats);
    }
    lines.0
}

fn roots(lines: &mut Lines, stats: &PoolStats) {
    if stats.roots.is_empty() {
        return;
    }
    lines.heading("room");
    for root in &stats.roots {
        let limit = root.limit_bytes.map_or_else(String::new, |limit| format!(", limited to {}", show(limit)));
        let (usable, reserve, total) = (show(root.usable_bytes), show(root.reserve_bytes), show(root.total_bytes));
        lines.line(
            &format!("{} root", root.name),
            format!("{usable} left of {total}{limit}, {reserve} kept for deleting and reclaiming; {}", root.place),
        );
        if let Some(fullness) = fullness(root) {
            lines.line("", fullness);
        }
    }
}

fn fullness(root: &RootSpace) -> Option<String> {
    const ADVICE: &str = "delete old backups (`rm`) and run `dedupfs-gc`";
    if root.usable_bytes == 0 {
        let name = &root.name;
        return Some(match root.limit_bytes {
            Some(limit) if limit <= root.reserve_bytes => {
                let least = show(root.pool_bytes + root.reserve_bytes);
                format!("FULL, nothing can be written: raise {name}_limit to more than {least}")
            }
            Some(limit) if root.pool_bytes + root.reserve_bytes >= limit => {
                format!("FULL, nothing new can be written: raise {name}_limit, or {ADVICE}")
            }
            _ => format!("FULL, nothing new can be written: {ADVICE}, or free space on its disk"),
        });
    }
    let percent = match root.level {
        Level::Enough => return None,
        Level::Low => SPACE_LOW_PERCENT,
        Level::Urgent => SPACE_URGENT_PERCENT,
    };
    Some(format!("more than {percent}% of the writable space is used: {ADVICE}, or add space"))
}

fn index(summary: &IndexSummary) -> String {
    let IndexSummary { cells, open_cells, sealed_tankers, .. } = summary;
    let (memory, disk) = (show(summary.memory_bytes), show(summary.disk_bytes));
    format!(
        "{cells} fingerprints, {open_cells} of them open, {sealed_tankers} sealed tankers; {memory} in memory, {disk} on disk"
    )
}

fn memory(lines: &mut Lines, stats: &PoolStats) {
    let memory = &stats.memory;
    lines.heading("memory");
    lines.line("limit (--memory)", show(memory.limit_bytes));
    lines.line("resident", show(memory.process_resident_bytes));
    lines.line("index", show(memory.index_bytes));
    // Below a tebibyte most of it is caches, which do not grow with the pool.
    if stats.unique_chunk_bytes >= 1 << 40 {
        let per_tib = memory.index_bytes as f64 / stats.unique_chunk_bytes as f64 * MIB_PER_TIB;
        lines.line("index per stored TiB", format!("{per_tib:.0} MiB"));
    }
    let index = &stats.chunk_index;
    if index.sealed_tankers > 0 {
        let expected = index.false_reads_per_million as f64 / 1e6;
        let bits = index.filter_bits_per_cell;
        let guided = match index.guided_tankers {
            0 => String::new(),
            count => format!(", {} in guides to {count} tankers", index.guide_bits_per_cell),
        };
        let text = format!(
            "{}, {bits} bits for each fingerprint{guided}: {expected:.4} false reads for each new chunk",
            show(index.filter_bytes)
        );
        lines.line("chunk filters", text);
        if index.tankers_without_filter > 0 {
            let count = index.tankers_without_filter;
            lines.line("sealed tankers without filter", format!("{count}: more --memory helps"));
        }
    }
    lines.heading("memory by its parts");
    for part in &memory.parts {
        let used = part.used_bytes.map_or_else(|| "not counted".to_owned(), show);
        lines.line(&part.name, format!("{used}, at most {}", show(part.limit_bytes)));
    }
    lines.line("directories of tankers", format!("{}, besides --memory", show(memory.directory_bytes)));
    lines.line(
        "formula",
        "30% open tankers; filters 4.5 bytes for each fingerprint, at least 10% and at most 35%; the others share the rest. \
         --memory of 13 bytes for each fingerprint has room for all filters: 1.6 GiB for 1 TiB of chunks of 8 KiB"
            .to_owned(),
    );
}

fn session(lines: &mut Lines, stats: &PoolStats) {
    let session = &stats.session;
    if session.bytes_in == 0 && session.commits == 0 {
        return;
    }
    lines.heading("since the mount");
    lines.line("came in", exact(session.bytes_in));
    lines.line("new", format!("{} in {} chunks", exact(session.bytes_stored), session.chunks_stored));
    lines.line("segments known whole", session.segments_known);
    lines.line("commits", session.commits);
    for filter in stats.filters.iter().filter(|filter| filter.asked > 0) {
        let (asked, existing, new, ms, reads) =
            (filter.asked, filter.existing, filter.non_existing, filter.time_ms, filter.reads);
        let text = format!(
            "asked {asked}, existing {existing}, new {new}, {ms:.0} ms, {reads} reads of {}",
            show(filter.read_bytes)
        );
        lines.line(&format!("filter {}", filter.name), text);
    }
}

fn exported_ago(stats: &PoolStats) -> String {
    let written = UNIX_EPOCH + Duration::from_secs(stats.export_time_secs);
    written.elapsed().map_or_else(|_| String::new(), |ago| format!(", as of {} s ago", ago.as_secs()))
}

/// How far the replicas of a pool are.
#[cfg(feature = "remote")]
pub(crate) fn replicas(all: &[dedupfs_replica::Noted]) -> String {
    let mut text = String::new();
    for noted in all {
        let age = (UNIX_EPOCH + Duration::from_secs(noted.time_secs)).elapsed().ok();
        let state = match (noted.commit, age) {
            (0, _) => "no commit yet".to_owned(),
            (commit, None) => format!("commit {commit}"),
            (commit, Some(age)) => {
                format!("commit {commit}, state of {} ago", duration::show(age.as_secs().saturating_mul(1000)))
            }
        };
        let _ = writeln!(text, "replica {}: {state}", noted.place);
        if noted.is_unfinished {
            let why = if noted.error.is_empty() { "it goes on, or was killed" } else { &noted.error };
            let _ = writeln!(text, "  the last run made no commit: {why}");
        }
    }
    text
}

pub(crate) fn recovered(report: &RecoverReport, age: Option<Duration>) -> String {
    let restored = &report.restored;
    let RebuildReport { containers, chunks, nodes, missing, .. } = report.rebuilt;
    let live_bytes = restored.logical_bytes.saturating_sub(report.versions.data_bytes);
    let (files, directories, content) = (restored.files, restored.directories, show(live_bytes));
    let exported = age.map_or_else(String::new, |age| format!(", exported {} s ago", age.as_secs()));
    let versions = match report.versions {
        VersionTotals { count: 0, .. } => String::new(),
        VersionTotals { count, files, logical_bytes, .. } => {
            format!(", and {count} versions with {files} files, {}", show(logical_bytes))
        }
    };
    let (names, recipes, secs) =
        (show(restored.export_bytes), show(restored.recipe_bytes), report.elapsed_ms as f64 / 1e3);
    let mut text = format!(
        "recovered {files} live files in {directories} directories, {content} of content{versions}, as of commit {}{exported}\n\
         read {names} of names and {recipes} of recipes; index made from {containers} containers: {chunks} chunks, {nodes} recipe \
         nodes; {secs:.1} s\n",
        restored.row
    );
    if let Some(damage) = &restored.damage {
        let _ = writeln!(text, "OLDER than the last export: the export cannot be read further ({damage})");
    }
    list(&mut text, "LESS than expected", &restored.shortfall, restored.shortfall.len() as u64);
    if report.kept_slots > 0 {
        let kept = report.kept_slots;
        let advice = "are kept until `dedupfs fsck --repair --give-up-unnamed`";
        let _ = writeln!(text, "{kept} slots with unnamed content {advice}");
    }
    if missing > 0 {
        let _ = writeln!(
            text,
            "MISSING: {missing} tables, recipe nodes or chunks, and {} recipe containers are damaged: `dedupfs fsck` tells \
             more; backing the same data up again heals files",
            restored.recipes_damaged
        );
    }
    text.push_str("changes after that export, if there were any, are lost; check with `dedupfs fsck`, then mount\n");
    text
}

/// The text of `dedupfs fsck`; `plan` lists the changes of a repair, if they are known.
pub(crate) fn check(report: &CheckReport, rebuilt: Option<&RebuildReport>, plan: Option<&[String]>) -> String {
    let mut text = String::new();
    let missing = rebuilt.map_or(0, |rebuilt| rebuilt.missing);
    if let Some(&RebuildReport { containers, chunks, nodes, lost_chunks, lost_nodes, containers_before, .. }) = rebuilt
    {
        let found =
            format!("{chunks} chunks, {nodes} recipe nodes; lost {lost_chunks} chunks, {lost_nodes} recipe nodes");
        let _ = writeln!(text, "index rebuilt from {containers} containers: {found}");
        if containers_before > 0 {
            let _ =
                writeln!(text, "{containers_before} of these containers were taken over from an interrupted rebuild");
        }
    }
    if missing > 0 {
        let _ = writeln!(text, "wrong: {missing} tables, recipe nodes or chunks could not be read for the new index");
    }
    let told_before = report.told_count.saturating_sub(report.findings.len() as u64);
    list(&mut text, "wrong", &report.findings, report.finding_count.saturating_sub(told_before));
    affected(&mut text, &report.affected);
    list(&mut text, "note", &report.notes, report.notes.len() as u64);
    let CheckReport { inodes, nodes, chunks, containers, .. } = report;
    let content = match report.bytes_read {
        0 => "no content".to_owned(),
        read => format!("{} of content", show(read)),
    };
    let _ = writeln!(
        text,
        "checked {inodes} inodes outside of versions, {nodes} nodes of recipes and versions, {chunks} chunks, {containers} containers, {content}"
    );
    let _ = match report.finding_count + missing {
        0 => writeln!(text, "clean"),
        1 => writeln!(text, "1 error"),
        count => writeln!(text, "{count} errors"),
    };
    if report.finding_count + missing > 0 {
        text.push_str(match (rebuilt, plan) {
            (None, Some([])) => {
                "what to do: files that were away when the index was made: `dedupfs fsck --rebuild-index POOL`. What is lost comes back\n  \
                 when the same data is really written again (rsync: with --ignore-times, or into a new directory without --link-dest).\n  \
                 A repair would change nothing\n"
            }
            (None, _) => {
                "what to do: files that were away when the index was made: unmount, and `dedupfs fsck --rebuild-index POOL`. What is\n  \
                 lost comes back when the same data is really written again (rsync: with --ignore-times, or into a new directory\n  \
                 without --link-dest). Everything else: unmount, and let `dedupfs fsck --repair POOL` tell and do what can be done.\n  \
                 What can be read can be copied out first (`dedupfs mount -o ro`)\n"
            }
            (Some(_), _) => {
                "what to do: put back what was moved away and make the index anew again; back the same data up again so that it is\n  \
                 really written (rsync: with --ignore-times, or into a new directory without --link-dest), which makes files whole\n  \
                 whose content comes again; remove what does not come again; then `dedupfs-gc` frees what is damaged\n"
            }
        });
    }
    if let Some(plan @ [_, ..]) = plan {
        text.push_str(&could_repair(plan));
    }
    text
}

pub(crate) fn check_json(
    report: &CheckReport,
    rebuilt: Option<&RebuildReport>,
    plan: Option<&[String]>,
) -> Result<String, Failure> {
    message("fsck", &json!({ "check": report, "rebuilt": rebuilt, "repair_would": plan }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn statistics_show_exact_bytes() {
        let pool = PoolStats {
            uuid: "u-u-i-d".to_owned(),
            unique_chunk_bytes: 123_456_789,
            dedup_ratio: 12.345,
            ..PoolStats::default()
        };
        let shown = stats(&pool, Source::Daemon);
        assert!(shown.contains("pool u-u-i-d") && shown.contains("(123456789 bytes)"), "{shown}");
        assert!(shown.contains("12.35") || shown.contains("12.34"), "{shown}");
        // An empty pool has no ratio, and a pool that received nothing has no session.
        assert!(shown.contains("total                  - ") && !shown.contains("since the mount"), "{shown}");
        let mut used = pool;
        used.session.commits = 1;
        let mounted = stats(&used, Source::Daemon);
        assert!(mounted.contains("since the mount") && mounted.contains("--memory"));
        let offline = stats(&used, Source::Files);
        assert!(!offline.contains("since the mount") && !offline.contains("--memory"), "{offline}");
    }

    #[test]
    fn regression_a_root_that_takes_nothing_is_not_called_nearly_full() {
        let root =
            RootSpace { name: "data".to_owned(), reserve_bytes: 9 << 20, level: Level::Low, ..RootSpace::default() };
        let told = |root: &RootSpace| fullness(root).unwrap();
        assert!(
            told(&root).contains("nothing new can be written") && told(&root).contains("free space"),
            "{}",
            told(&root)
        );
        let limited = RootSpace { limit_bytes: Some(1 << 20), pool_bytes: 5 << 20, ..root.clone() };
        assert!(told(&limited).contains("raise data_limit to more than 14"), "{}", told(&limited));
        let reached = RootSpace { limit_bytes: Some(12 << 20), pool_bytes: 5 << 20, ..root.clone() };
        assert!(told(&reached).contains("raise data_limit, or delete"), "{}", told(&reached));
        let nearly = RootSpace { usable_bytes: 1, ..root };
        assert!(told(&nearly).contains("more than 85% of"), "{}", told(&nearly));
        assert_eq!(fullness(&RootSpace { level: Level::Enough, ..nearly }), None);
    }

    #[test]
    fn findings_that_are_not_told_are_counted() {
        let mut report = CheckReport::default();
        assert!(check(&report, None, None).ends_with("clean\n"));
        report.findings.push("inode 5 has no name".to_owned());
        report.finding_count = 3;
        let rebuilt = RebuildReport { containers: 2, chunks: 7, nodes: 1, ..RebuildReport::default() };
        let shown = check(&report, Some(&rebuilt), None);
        assert!(shown.contains("wrong: inode 5 has no name\nwrong: 2 more\n"), "{shown}");
        assert!(
            shown.starts_with("index rebuilt from 2 containers: 7 chunks")
                && shown.contains("\n3 errors\nwhat to do: "),
            "{shown}"
        );
        let shown = check(&CheckReport::default(), Some(&RebuildReport { missing: 2, ..rebuilt }), None);
        assert!(shown.contains("wrong: 2 tables") && shown.contains("\n2 errors\n"), "{shown}");
        // Advice to repair is given only where a repair would do something.
        assert!(check(&report, None, None).contains("fsck --repair"));
        assert!(!check(&report, None, Some(&[])).contains("--repair"));
        let plan = ["write it".to_owned()];
        assert!(
            check(&report, None, Some(&plan))
                .ends_with("`dedupfs fsck --repair` (with `--read-data` if it was given here) would:\n  write it\n")
        );
        let value: serde_json::Value = serde_json::from_str(&check_json(&report, None, None).unwrap()).unwrap();
        assert_eq!(value["check"]["finding_count"], 3);
        assert!(value["rebuilt"].is_null());
    }
}
