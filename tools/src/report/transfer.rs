//! The result of copying into a pool, or out of it.

use std::fmt::Write as _;

use dedupfs::transfer::{ImageReport, TransferReport};
use dedupfs::{Resumed, VersionReport};
use jiff::tz::TimeZone;

use super::versions::local;
use crate::duration;
use crate::size::show;

fn shown(text: &str) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Lists the problems of `dedupfs put` and `dedupfs get`, one a line. Control characters are escaped, because a terminal would obey them.
pub(crate) fn transfer_problems(report: &TransferReport) -> String {
    let mut text = String::new();
    for problem in &report.problems {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}: {}", shown(&problem.path), shown(&problem.what));
    }
    let untold = report.problem_count.saturating_sub(report.problems.len() as u64);
    if untold > 0 {
        let _ = writeln!(text, "and {untold} problems more");
    }
    text
}

pub(crate) fn transfer(report: &TransferReport) -> String {
    let mut text = match (&report.version, &report.image) {
        (Some(version), Some(image)) => of_image(version, image, report.elapsed_ms),
        _ => of_tree(report),
    };
    if report.problem_count > 0 {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "not all of it: {} problems", report.problem_count);
    }
    text
}

fn of_tree(report: &TransferReport) -> String {
    let mut text = String::new();
    let files = if report.files == 1 { "file" } else { "files" };
    let mut counts = vec![format!("{} {files} ({})", report.files, show(report.content_bytes))];
    let further = [
        (report.directories, "directories"),
        (report.others, "links, devices and the like"),
        (report.hard_links, "further names of files"),
    ];
    counts.extend(further.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    let rate = report.content_bytes.saturating_mul(1000).checked_div(report.elapsed_ms).unwrap_or(0);
    let took = duration::show(report.elapsed_ms);
    let _ = writeln!(text, "copied {} in {took}, {}/s", counts.join(", "), show(rate));
    if let Some(searched) = report.searched_directories {
        let _ = writeln!(text, "searched {searched} directories");
    }
    report.version.iter().for_each(|version| text.push_str(&of_version(version)));
    text
}

/// What is new with the version of an image, and what was read of it.
fn of_image(version: &VersionReport, image: &ImageReport, elapsed_ms: u64) -> String {
    let ImageReport { size_bytes, read_bytes, verified_bytes, .. } = image;
    let mut text = format!(
        "version with the image {} ({}) in {}, new {}, fingerprint {}\n",
        shown(&image.file_name),
        show(*size_bytes),
        duration::show(elapsed_ms),
        show(version.new_bytes),
        version.fingerprint
    );
    let _ = match &image.full_because {
        Some(why) if image.named_bytes.is_some() => writeln!(text, "everything counts as changed: {}", shown(why)),
        Some(why) => writeln!(text, "read everything: {}", shown(why)),
        None => {
            let (read, compared) = (show(*read_bytes), show(*verified_bytes));
            let rest = show(size_bytes.saturating_sub(*read_bytes));
            writeln!(text, "read {read} in and around changes, compared {compared} of the other {rest}")
        }
    };
    if let Some(named_bytes) = image.named_bytes {
        let (known, new) = (show(named_bytes), show(*read_bytes));
        let _ =
            writeln!(text, "duplicates were detected in stages: {known} were known or zeros, {new} were read again");
    }
    text
}

/// What is new with a version, and what was taken over.
fn of_version(version: &VersionReport) -> String {
    let VersionReport { fingerprint, entries, new_bytes, taken_over, .. } = version;
    let mut text = format!("version of {entries} entries, new {}, fingerprint {fingerprint}\n", show(*new_bytes));
    let resumed = version.resumed.map_or(0, |resumed| resumed.entries);
    if let Some(Resumed { entries, from_secs }) = version.resumed {
        let date = local(from_secs, &TimeZone::system());
        let _ = match entries {
            0 => writeln!(
                text,
                "nothing could be taken over from an incomplete put of {date}: files that changed in the minute before it are read again"
            ),
            _ => writeln!(text, "resumed: {entries} files taken over from an incomplete put of {date}"),
        };
    }
    match (&version.without_base, version.base) {
        (None, Some(_)) => {
            let since = taken_over.saturating_sub(resumed);
            let why =
                if since == 0 { " (files that changed in the minute before it was made are read again)" } else { "" };
            let _ = writeln!(text, "{since} unchanged since the version before: not read{why}");
        }
        (Some(why), _) => {
            let what = if resumed > 0 { "everything else" } else { "everything" };
            let _ = writeln!(text, "read {what}: {why}");
        }
        (None, None) => {}
    }
    if version.verified > 0 {
        let _ = writeln!(text, "verified {} unchanged files: {} differ", version.verified, version.lied);
    }
    text
}

#[cfg(test)]
mod tests {
    use dedupfs::transfer::Problem;

    use super::*;

    #[test]
    fn what_could_not_be_copied_is_told() {
        let whole = TransferReport { files: 3, content_bytes: 5 << 20, elapsed_ms: 1000, ..TransferReport::default() };
        assert_eq!(transfer(&whole), format!("copied 3 files (5 MiB) in {}, 5 MiB/s\n", duration::show(1000)));
        let problems = vec![Problem { path: "a\nb".to_owned(), what: "cannot open it".to_owned() }];
        let partly = TransferReport { directories: 2, hard_links: 1, problem_count: 4, problems, ..whole };
        assert_eq!(transfer_problems(&partly), "a\\nb: cannot open it\nand 3 problems more\n");
        let text = transfer(&partly);
        assert!(
            text.contains(", 2 directories, 1 further names of files in ") && text.contains("4 problems"),
            "{text}"
        );
        let base = Some(5);
        let resumed = Some(Resumed { entries: 30, from_secs: 1_795_400_000 });
        let version = VersionReport { taken_over: 40, base, resumed, ..VersionReport::default() };
        let text = of_version(&version);
        assert!(text.contains("resumed: 30 files taken over from an incomplete put of 2026-11-"), "{text}");
        assert!(text.contains("\n10 unchanged since the version before"), "{text}");
        let text = of_version(&VersionReport { base: None, without_base: Some("no".to_owned()), ..version });
        assert!(text.contains("\nread everything else: no\n"), "{text}");
        let nothing = transfer(&TransferReport::default());
        assert!(nothing.contains("0 files"), "{nothing}");
    }
}
