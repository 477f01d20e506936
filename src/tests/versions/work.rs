//! The directories in which versions are made.

use dedupfs::{NoProgress, Origin};
use dedupfs_service::{Errno, FileService, Listing, ROOT_INO, XattrMode};

use super::site::*;

const MARK: &[u8] = b"user.dedupfs.put";
const NAME: &str = ".dedupfs-put-0123456789abcdef";

/// A version of a directory that holds the directory in which it is made would hold an empty one.
#[test]
fn regression_directories_in_which_versions_are_made_are_in_no_version() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    directory(&pool, live, "b");
    let before = tree(&pool, live).len();
    let work = directory(&pool, live, NAME);
    pool.service().set_xattr(CALLER, work, MARK, b"", XattrMode::Any).expect("marks");
    // A mark or a name alone proves nothing: these are the user's.
    let marked = directory(&pool, live, "marked");
    pool.service().set_xattr(CALLER, marked, MARK, b"", XattrMode::Any).expect("marks");
    directory(&pool, live, ".dedupfs-put-of-mine");
    let report = snapshot(&pool, "live", &format!("live/{NAME}"), "v");
    assert_eq!(report.entries as usize, before - 1 + 2);
    // It has no name of its own yet.
    assert!(pool.versions(None).expect("lists").is_empty());
    // The next one does not find the first, which a killed process has left.
    snapshot(&pool, "live", "", "next");
    let listed = pool.versions(None).expect("lists");
    assert_eq!(listed.iter().map(|version| version.name.as_str()).collect::<Vec<_>>(), ["next"]);
    let service = pool.service();
    service.remove_directory(work, b"v").expect("can be removed at once");
    service.remove_directory(live, NAME.as_bytes()).expect("removes");
    assert_clean(&pool);
}

/// The kernel would cache that the directory is empty, and that the name is not there.
#[test]
fn regression_the_kernel_learns_nothing_of_a_directory_while_a_version_is_made_in_it() {
    let device = formatted();
    let pool = open(&device);
    let live = directory(&pool, ROOT_INO, "live");
    file(&pool, live, "a", b"a");
    let work = directory(&pool, ROOT_INO, NAME);
    pool.service().set_xattr(CALLER, work, MARK, b"", XattrMode::Any).expect("marks");
    struct Looking<'a>(&'a (dyn Fn() + Sync));
    impl dedupfs::Progress for Looking<'_> {
        fn start(&self, _: &str, _: u64) {
            self.0();
        }
        fn advance(&self, _: u64) {}
        fn finish(&self) {
            self.0();
        }
    }
    let service = pool.service();
    let look = || {
        assert_eq!(service.lookup(work, b"v"), Err(Errno::EBUSY));
        assert_eq!(service.read_directory(work, 0, 9, Listing::Names), Err(Errno::EBUSY));
    };
    let origin = Origin::default();
    let looking = Looking(&look);
    pool.snapshot(live, (work, b"v"), &origin, &looking).expect("makes a version");
    assert!(service.lookup(work, b"v").is_ok());
    // Not empty: no second version is made there.
    pool.snapshot(live, (work, b"w"), &origin, &NoProgress).expect_err("holds a version");
}
