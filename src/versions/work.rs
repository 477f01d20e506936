//! The directories in which `put` and `snapshot` work. A version in one has no name of its own yet, so nothing lists it.
//!
//! A long put names an *incomplete version* in its hidden directory now and then. If the put does not come to its end, the
//! directory stays, and the next put of the same source beside it takes over what is in there.

use dedupfs_base::Result;
use dedupfs_namespace::{CommittedView, Inode, VERSION_RECORD, is_frozen};
use dedupfs_service::{FileKind, Ino};

use super::name::Origin;
use super::record::VersionRecord;

/// Extended attribute of these directories.
pub(crate) const WORK_MARK: &[u8] = b"user.dedupfs.put";
/// Beginning of their names.
const WORK_PREFIX: &[u8] = b".dedupfs-put-";
/// Beginning of the names of incomplete versions in them.
pub const INCOMPLETE_PREFIX: &str = ".incomplete-";
/// Incomplete versions from which a put takes over: the newest ones. A put that dies early leaves less than the one
/// before it, which is therefore still of use.
const INCOMPLETE_MAX: usize = 3;
/// Names read at once.
const NAMES_AT_ONCE: usize = 64;

/// An incomplete version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IncompleteVersion {
    pub(crate) ino: Ino,
    /// Time of its naming, in seconds since 1970.
    pub(crate) named_secs: i64,
}

/// Whether a directory of this name is one in which `put` or `snapshot` works, or worked when it was killed. A name or a
/// mark alone proves nothing.
pub(crate) fn is_work(view: &CommittedView, name: &[u8], directory: &Inode) -> Result<bool> {
    let has_name = name.starts_with(WORK_PREFIX) && directory.xattr_count > 0;
    Ok(has_name && view.record(directory.ino, WORK_MARK)?.is_some())
}

/// Returns the incomplete versions of a source that puts into `directory` left, the newest first. One that cannot be read
/// is left out.
///
/// # Errors
/// The names cannot be read.
pub(crate) fn incomplete_in(view: &CommittedView, directory: Ino, origin: &Origin) -> Result<Vec<IncompleteVersion>> {
    let mut found = Vec::new();
    for_each_name(view, directory, WORK_PREFIX, &mut |name, ino, kind| {
        let work = if kind == FileKind::Directory { view.inode(ino)? } else { None };
        match work {
            Some(work) if !is_frozen(ino) && is_work(view, name, &work)? => {
                for_each_name(view, ino, INCOMPLETE_PREFIX.as_bytes(), &mut |_, ino, _| {
                    found.extend(incomplete(view, ino, origin));
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    })?;
    found.sort_unstable_by_key(|version: &IncompleteVersion| std::cmp::Reverse(version.ino));
    found.truncate(INCOMPLETE_MAX);
    Ok(found)
}

fn incomplete(view: &CommittedView, ino: Ino, origin: &Origin) -> Option<IncompleteVersion> {
    let record = view.record(ino, VERSION_RECORD).ok().flatten().filter(|_| is_frozen(ino))?;
    let record = VersionRecord::decode(&record).ok()?;
    let is_of_it = record.is_incomplete && (&record.source, &record.host) == (&origin.source, &origin.host);
    is_of_it.then_some(IncompleteVersion { ino, named_secs: record.completed_secs })
}

/// Takes a name, with its inode number and kind.
type Visit<'a> = dyn FnMut(&[u8], Ino, FileKind) -> Result<()> + 'a;

/// Visits the names in a directory that begin with `prefix`, which no name is alone.
fn for_each_name(view: &CommittedView, directory: Ino, prefix: &[u8], visit: &mut Visit<'_>) -> Result<()> {
    let mut after = prefix.to_vec();
    loop {
        let page = view.names(directory, &after, NAMES_AT_ONCE)?;
        let Some((last, ..)) = page.last() else { return Ok(()) };
        after.clone_from(last);
        for (name, ino, kind) in page {
            if !name.starts_with(prefix) {
                return Ok(());
            }
            visit(&name, ino, kind)?;
        }
    }
}
