//! The versions of a pool or of one directory, as of one commit.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use dedupfs_base::{Result, shown};
use dedupfs_namespace::{CommittedView, Inode, VERSION_RECORD, is_frozen};
use dedupfs_service::{Ino, ROOT_INO};
use dedupfs_store::StoreError;
use dedupfs_store::recipe::Root;
use serde::{Deserialize, Serialize};

use super::name::Origin;
use super::record::VersionRecord;
use super::work::is_work;

/// Rows read at once.
const ROWS_AT_ONCE: usize = 512;
/// Directories followed above a version.
const DEPTH_MAX: usize = 4096;

/// A version.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionInfo {
    /// Path of the directory that holds it, from the root of the pool; empty for the root itself. Bytes that are no
    /// UTF-8 are escaped.
    pub directory: String,
    /// Its name; bytes that are no UTF-8 are escaped.
    pub name: String,
    /// Inode number.
    pub ino: Ino,
    /// Time of completion, in seconds since 1970.
    pub completed_secs: i64,
    /// The directory that it was made of.
    pub source: String,
    /// The host on which it was made.
    pub host: String,
    /// Time that making it took.
    pub duration_ms: u64,
    /// Regular files.
    pub files: u64,
    /// Entries, the uppermost one not included.
    pub entries: u64,
    /// Lengths of its files.
    pub logical_bytes: u64,
    /// Bytes of chunks that were stored for it.
    pub new_bytes: u64,
    /// Problems that were told while it was made.
    pub problems: u64,
    /// Whether it lacks files.
    pub incomplete: bool,
    /// It cannot be removed before this time, in seconds since 1970; 0: it is not locked.
    pub locked_until_secs: i64,
    /// Fingerprint of its top, in hexadecimal digits.
    pub fingerprint: String,
    /// Whether the time of completion was given, as that of the backup that became this version.
    #[serde(default)]
    pub dated: bool,
    /// The damage because of which some of these facts are missing. It says nothing about the tree.
    #[serde(default)]
    pub damaged: Option<String>,
    /// Whether its row or its record cannot be read, so that it may be locked, incomplete or of another time.
    #[serde(default)]
    pub is_unknown: bool,
}

/// Sums over the versions of a pool, without those that are incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VersionTotals {
    /// Versions.
    pub count: u64,
    /// Their regular files.
    pub files: u64,
    /// Lengths of these files.
    pub logical_bytes: u64,
    /// The same without holes.
    pub data_bytes: u64,
}

impl VersionInfo {
    /// Whether it is of this source and host.
    pub(crate) fn is_of(&self, origin: &Origin) -> bool {
        self.source == shown(&origin.source) && self.host == shown(&origin.host)
    }
}

/// Returns the versions in `directory`, or all, in the order of their completion, or of the backups that became them. One that has no name of its own yet is
/// left out. Damage of one hides no other, and not the version itself: it is listed without the facts that cannot be
/// read. Whose directory cannot be read is listed with each directory.
///
/// # Errors
/// I/O errors; the tables cannot be read.
pub(crate) fn list(view: &CommittedView, directory: Option<Ino>) -> Result<Vec<VersionInfo>> {
    let mut by_directory: BTreeMap<Ino, Vec<Inode>> = BTreeMap::new();
    let mut listed = Vec::new();
    for_each(view, &mut |ino, version| match version {
        Ok(version) if directory.is_none_or(|directory| directory == version.parent) => {
            by_directory.entry(version.parent).or_default().push(version);
        }
        Ok(_) => {}
        Err(error) => listed.push(VersionInfo {
            name: unnamed(ino),
            ino,
            damaged: Some(error.to_string()),
            is_unknown: true,
            ..VersionInfo::default()
        }),
    })?;
    for (directory, versions) in by_directory {
        let (path, no_path) = told(path_of(view, directory));
        let is_work = |name: &Vec<u8>| match view.inode(directory)? {
            Some(inode) => is_work(view, name, &inode),
            None => Ok(false),
        };
        if path.last().is_some_and(|name| is_work(name).unwrap_or(false)) {
            continue;
        }
        let path = shown(&path.join(&b'/'));
        let (names, no_names) = told(names_of(view, directory, &|ino| is_frozen(ino)));
        for version in versions {
            let name = names.get(&version.ino).map_or_else(|| unnamed(version.ino), |name| shown(name));
            let mut info = info(view, &version, &path, name);
            let no_name = || (!names.contains_key(&version.ino)).then(|| "its name is missing".to_owned());
            info.damaged = info.damaged.or_else(|| no_path.clone()).or_else(|| no_names.clone()).or_else(no_name);
            listed.push(info);
        }
    }
    Ok(in_order(listed))
}

/// Visits each version that is not forgotten.
fn for_each(view: &CommittedView, visit: &mut dyn FnMut(Ino, Result<Inode>)) -> Result<()> {
    let mut after = 0;
    loop {
        let versions = view.versions(after, ROWS_AT_ONCE)?;
        let Some((last, _)) = versions.last() else { return Ok(()) };
        after = *last;
        for (ino, version) in versions {
            // A forgotten version, which somebody still reads, has no name.
            if version.as_ref().map_or(true, |version| version.nlink > 0) {
                visit(ino, version);
            }
        }
    }
}

/// Sums up the versions of a pool. A version with an unreadable record counts without files and bytes.
///
/// # Errors
/// I/O errors; the tables cannot be read.
pub(crate) fn totals(view: &CommittedView) -> Result<VersionTotals> {
    let mut totals = VersionTotals::default();
    for_each(view, &mut |ino, version| {
        let record = record(view, ino).unwrap_or_default();
        if !record.is_incomplete {
            totals.data_bytes = totals.data_bytes.saturating_add(version.map_or(0, |version| version.data_bytes));
            totals.count += 1;
            totals.files = totals.files.saturating_add(record.files);
            totals.logical_bytes = totals.logical_bytes.saturating_add(record.logical_bytes);
        }
    })?;
    Ok(totals)
}

/// Returns the versions that have `kept` newer complete ones of the same source and host in the same directory.
///
/// # Errors
/// I/O errors; the tables cannot be read.
pub(crate) fn superseded(view: &CommittedView, kept: usize) -> Result<HashSet<Ino>> {
    let mut complete: HashMap<(Ino, Origin), VecDeque<Ino>> = HashMap::new();
    let mut superseded = HashSet::new();
    // In the order of completion.
    for_each(view, &mut |ino, version| {
        let (Ok(version), Ok(record)) = (version, record(view, ino)) else { return };
        if !record.is_incomplete {
            let origin = Origin { source: record.source, host: record.host };
            let last = complete.entry((version.parent, origin)).or_default();
            last.push_back(ino);
            superseded.extend((last.len() > kept).then(|| last.pop_front()).flatten());
        }
    })?;
    Ok(superseded)
}

fn record(view: &CommittedView, version: Ino) -> Result<VersionRecord> {
    let missing = || StoreError::corrupt(format!("version {version}"), "a record", "none");
    VersionRecord::decode(&view.record(version, VERSION_RECORD)?.ok_or_else(missing)?)
}

/// Sorts versions by their numbers, which rise with completion. One whose time was given stands in front of the first that was
/// completed later.
fn in_order(mut listed: Vec<VersionInfo>) -> Vec<VersionInfo> {
    listed.sort_by_key(|version| version.ino);
    let (mut dated, numbered): (Vec<_>, Vec<_>) = listed.into_iter().partition(|version| version.dated);
    dated.sort_by_key(|version| (version.completed_secs, version.ino));
    let mut ordered = Vec::with_capacity(dated.len() + numbered.len());
    let mut dated = dated.into_iter().peekable();
    for version in numbered {
        while let Some(earlier) = dated.next_if(|dated| dated.completed_secs < version.completed_secs) {
            ordered.push(earlier);
        }
        ordered.push(version);
    }
    ordered.extend(dated);
    ordered
}

/// Splits an outcome into its value, or none, and the error in words.
fn told<T: Default>(outcome: Result<T>) -> (T, Option<String>) {
    match outcome {
        Ok(value) => (value, None),
        Err(error) => (T::default(), Some(error.to_string())),
    }
}

fn unnamed(ino: Ino) -> String {
    format!("(inode {ino})")
}

fn info(view: &CommittedView, version: &Inode, directory: &str, name: String) -> VersionInfo {
    let (record, damaged) = told(record(view, version.ino));
    let fingerprint = match version.root {
        Root::Tree { child, .. } => child.fingerprint.to_string(),
        _ => String::new(),
    };
    VersionInfo {
        directory: directory.to_owned(),
        name,
        ino: version.ino,
        completed_secs: record.completed_secs,
        source: shown(&record.source),
        host: shown(&record.host),
        duration_ms: record.duration_ms,
        files: record.files,
        entries: record.entries,
        logical_bytes: record.logical_bytes,
        new_bytes: record.new_bytes,
        problems: record.problems,
        incomplete: record.is_incomplete,
        locked_until_secs: record.locked_until_secs,
        fingerprint,
        dated: record.is_dated,
        is_unknown: damaged.is_some(),
        damaged,
    }
}

/// Returns the names of those inodes of a directory that are wanted.
fn names_of(view: &CommittedView, directory: Ino, is_wanted: &dyn Fn(Ino) -> bool) -> Result<BTreeMap<Ino, Vec<u8>>> {
    let (mut names, mut after) = (BTreeMap::new(), Vec::new());
    loop {
        let page = view.names(directory, &after, ROWS_AT_ONCE)?;
        let Some((last, ..)) = page.last() else { return Ok(names) };
        after.clone_from(last);
        names.extend(page.into_iter().filter(|(_, ino, _)| is_wanted(*ino)).map(|(name, ino, _)| (ino, name)));
    }
}

/// Returns the names on the way from the root of the pool.
fn path_of(view: &CommittedView, directory: Ino) -> Result<Vec<Vec<u8>>> {
    let (mut parts, mut at) = (Vec::new(), directory);
    while at != ROOT_INO && parts.len() < DEPTH_MAX {
        let Some(inode) = view.inode(at)? else { break };
        let Some(name) = names_of(view, inode.parent, &|ino| ino == at)?.remove(&at) else { break };
        parts.push(name);
        at = inode.parent;
    }
    parts.reverse();
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_a_given_time_stand_among_the_others_by_it() {
        // Numbers, times, and whether they were given. The clock of the third went back.
        let all = [
            (1, 100, false),
            (2, 300, false),
            (3, 200, false),
            (4, 50, true),
            (5, 250, true),
            (6, 40, true),
            (7, 900, true),
        ];
        let listed =
            all.map(|(ino, completed_secs, dated)| VersionInfo { ino, completed_secs, dated, ..Default::default() });
        let order: Vec<Ino> = in_order(listed.to_vec()).iter().map(|version| version.ino).collect();
        assert_eq!(order, [6, 4, 1, 5, 2, 3, 7]);
    }
}
