//! What became of one path in the versions of a series.

use dedupfs_store::recipe::Root;
use dedupfs_store::tree::{Content, Directory};
use serde::{Deserialize, Serialize};

use super::list::VersionInfo;
use super::read::Found;

/// What a version has at a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", content = "of", rename_all = "snake_case")]
pub enum HistoryState {
    /// Nothing.
    Absent,
    /// The version cannot be read there, for this reason.
    Unreadable(String),
    /// An entry.
    Present {
        /// `file`, `directory`, `symlink`, `device`, `fifo` or `socket`.
        kind: String,
        /// What the content is: equal ones are equal. A fingerprint in hexadecimal digits, if there is one.
        content: String,
        /// Length of a file, or of all files below a directory, in bytes.
        len_bytes: u64,
        /// Last change of the first of the versions, in seconds since 1970.
        mtime_secs: i64,
    },
}

/// Versions one behind the other that have the same at a path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryRow {
    /// Name of the first.
    pub first: String,
    /// Its time of completion, in seconds since 1970.
    pub first_completed_secs: i64,
    /// Name of the last; of a single version the same.
    pub last: String,
    /// Number of versions.
    pub versions: u64,
    /// What they have there.
    #[serde(flatten)]
    pub state: HistoryState,
}

/// Returns what is at a path. Nothing of its content is read.
pub(crate) fn state_of(found: Found) -> HistoryState {
    let root = |root: &Root| match root.reference() {
        Some(reference) => reference.fingerprint().to_string(),
        None => format!("{} zeros", root.len_bytes()),
    };
    let below = |directory: &Directory| directory.root.map(|(_, child)| child.fingerprint.to_string());
    let (kind, content) = match &found.entry.content {
        Content::File { root: of, .. } => ("file", root(of)),
        Content::Directory(directory) => ("directory", below(directory).unwrap_or_default()),
        Content::Symlink(target) => ("symlink", dedupfs_base::shown(target)),
        Content::CharDevice(number) => ("device", format!("character {number}")),
        Content::BlockDevice(number) => ("device", format!("block {number}")),
        Content::Fifo => ("fifo", String::new()),
        Content::Socket => ("socket", String::new()),
    };
    HistoryState::Present {
        kind: kind.to_owned(),
        content,
        len_bytes: found.entry.sums().unwrap_or_default().bytes,
        mtime_secs: found.entry.mtime_secs,
    }
}

/// Adds the next version to the rows.
pub(crate) fn add(rows: &mut Vec<HistoryRow>, version: &VersionInfo, state: HistoryState) {
    let identity = |state: &HistoryState| match state {
        HistoryState::Present { kind, content, len_bytes, .. } => Some((kind.clone(), content.clone(), *len_bytes)),
        HistoryState::Absent | HistoryState::Unreadable(_) => None,
    };
    let is_same = |row: &&mut HistoryRow| match (identity(&row.state), identity(&state)) {
        (None, None) => row.state == state,
        (one, other) => one == other,
    };
    if let Some(row) = rows.last_mut().filter(is_same) {
        row.last.clone_from(&version.name);
        row.versions += 1;
        return;
    }
    rows.push(HistoryRow {
        first: version.name.clone(),
        first_completed_secs: version.completed_secs,
        last: version.name.clone(),
        versions: 1,
        state,
    });
}
