//! Differences of versions, and the history of a path.

use std::fmt::Write as _;

use dedupfs::{Change, ChangeKind, DifferencePage, HistoryRow, HistoryState};
use jiff::tz::TimeZone;
use serde::Serialize;

use super::table::Table;
use super::versions::{local, plain};
use crate::size::show;

/// Sums over all pages.
#[derive(Serialize, Default, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sums {
    /// Entries that are new, with all below them.
    added: u64,
    removed: u64,
    added_bytes: u64,
    removed_bytes: u64,
    content: u64,
    kind: u64,
    /// Entries of which only attributes differ.
    attributes: u64,
    pub(crate) unreadable: u64,
    opened_nodes: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, page: &DifferencePage) {
        self.opened_nodes = self.opened_nodes.saturating_add(page.opened_nodes);
        for change in &page.changes {
            let (count, bytes, more) = match change.change {
                ChangeKind::Added => (&mut self.added, Some(&mut self.added_bytes), change.bytes_after),
                ChangeKind::Removed => (&mut self.removed, Some(&mut self.removed_bytes), change.bytes_before),
                ChangeKind::Content => (&mut self.content, None, 0),
                ChangeKind::Kind => (&mut self.kind, None, 0),
                ChangeKind::Attributes => (&mut self.attributes, None, 0),
                ChangeKind::Unreadable => (&mut self.unreadable, None, 0),
            };
            *count = count.saturating_add(change.entries);
            if let Some(bytes) = bytes {
                *bytes = bytes.saturating_add(more);
            }
        }
    }
}

/// A line for each change.
pub(crate) fn changes(changes: &[Change]) -> String {
    let mut text = String::new();
    for Change { change, path, is_directory, entries, bytes_before, bytes_after } in changes {
        let mark = match change {
            ChangeKind::Added => '+',
            ChangeKind::Removed => '-',
            ChangeKind::Content => 'M',
            ChangeKind::Kind => 'T',
            ChangeKind::Attributes => 'U',
            ChangeKind::Unreadable => '!',
        };
        let path = if path.is_empty() { "." } else { path };
        let slash = if *is_directory { "/" } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{mark} {}{slash}", plain(path));
        if *is_directory && matches!(change, ChangeKind::Added | ChangeKind::Removed) {
            let _ = write!(text, " ({entries} entries, {})", show(*bytes_before.max(bytes_after)));
        }
        text.push('\n');
    }
    text
}

pub(crate) fn sums(sums: &Sums, with_attributes: bool) -> String {
    let Sums { added, removed, added_bytes, removed_bytes, content, kind, attributes, .. } = *sums;
    let advice = if attributes > 0 && !with_attributes { " (--attributes lists them)" } else { "" };
    format!(
        "{added} added, {}; {removed} removed, {}; {content} with other content; {kind} of another kind; {attributes} with other attributes only{advice}\n",
        show(added_bytes),
        show(removed_bytes)
    )
}

/// A line for each content.
pub(crate) fn history(rows: &[HistoryRow], zone: &TimeZone) -> String {
    let mut table = Table::new(&["versions", "first", "last", "completed", "kind", "size", "modified"]);
    for HistoryRow { first, first_completed_secs, last, versions, state } in rows {
        let [kind, size, modified] = match state {
            HistoryState::Absent => ["absent", "", ""].map(str::to_owned),
            HistoryState::Unreadable(_) => ["unreadable", "", ""].map(str::to_owned),
            HistoryState::Present { kind, len_bytes, mtime_secs, .. } => {
                [kind.clone(), show(*len_bytes), local(*mtime_secs, zone)]
            }
        };
        let completed = local(*first_completed_secs, zone);
        table.row([versions.to_string(), plain(first), plain(last), completed, kind, size, modified]);
    }
    table.show(&[0, 5])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(change: ChangeKind, path: &str, is_directory: bool, entries: u64) -> Change {
        Change { change, path: path.to_owned(), is_directory, entries, bytes_before: 0, bytes_after: 2048 }
    }

    #[test]
    fn changes_are_lines_with_a_mark() {
        let page = DifferencePage {
            changes: vec![
                change(ChangeKind::Attributes, "", true, 1),
                change(ChangeKind::Added, "a\u{1b}", false, 1),
                change(ChangeKind::Added, "photos", true, 12),
                change(ChangeKind::Content, "z", false, 1),
            ],
            ..DifferencePage::default()
        };
        assert_eq!(changes(&page.changes), "U ./\n+ a\\u{1b}\n+ photos/ (12 entries, 2 KiB)\nM z\n");
        let mut all = Sums::default();
        all.add(&page);
        let said =
            "13 added, 4 KiB; 0 removed, 0 B; 1 with other content; 0 of another kind; 1 with other attributes only";
        assert_eq!(sums(&all, true), format!("{said}\n"));
        assert_eq!(sums(&all, false), format!("{said} (--attributes lists them)\n"));
    }

    #[test]
    fn a_history_is_a_table() {
        let state = HistoryState::Present {
            kind: "file".to_owned(),
            content: "x".to_owned(),
            len_bytes: 1024,
            mtime_secs: 1_795_400_000,
        };
        let row = |first: &str, last: &str, versions, state| HistoryRow {
            first: first.to_owned(),
            first_completed_secs: 1_795_400_000,
            last: last.to_owned(),
            versions,
            state,
        };
        let rows = [row("a", "b", 2, HistoryState::Absent), row("c", "c", 1, state)];
        let expected = "\
versions  first  last  completed                  kind     size  modified
       2  a      b     2026-11-23T02:13:20+00:00  absent
       1  c      c     2026-11-23T02:13:20+00:00  file    1 KiB  2026-11-23T02:13:20+00:00
";
        assert_eq!(history(&rows, &TimeZone::UTC), expected);
    }
}
