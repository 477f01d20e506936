//! Freezing in place: what the version has, what refuses it, and what a power loss leaves.

use std::sync::Arc;

use dedupfs::{EngineError, NoProgress, Origin, Pool, Progress, VersionReport};
use dedupfs_namespace::is_frozen;
use dedupfs_service::{
    AttributeChanges, Errno, FileService, Ino, InodeFlags, Listing, NodeContent, OpenOptions, ROOT_INO, RenameFlags,
    WriteFlags, XattrMode,
};
use dedupfs_store::device::{Device, MemoryDevice};

use super::site::*;

const WORK: &str = ".dedupfs-put-0123456789abcdef";
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, no_replace: false, whiteout: false };
const FOR_WRITING: OpenOptions = OpenOptions {
    write: true,
    read: false,
    append: false,
    truncate: false,
    sync: false,
    direct: false,
    no_access_time: false,
};

/// Makes the directory in which the tool makes its version.
fn work(pool: &Pool) -> Ino {
    let work = directory(pool, ROOT_INO, WORK);
    pool.service().set_xattr(CALLER, work, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    work
}

fn freeze(pool: &Pool, name: &str, progress: &dyn Progress) -> Result<Option<VersionReport>, EngineError> {
    pool.freeze(find(pool, name), (find(pool, WORK), name.as_bytes()), &Origin::default(), Some(1000), progress)
}

fn exchange(pool: &Pool, name: &str) -> Result<(), Errno> {
    pool.service().rename(find(pool, WORK), name.as_bytes(), ROOT_INO, name.as_bytes(), EXCHANGE)
}

/// Removes the hidden directory with what is in it, a version or a live tree.
fn remove_work(pool: &Pool, name: &str) {
    let (service, work) = (pool.service(), find(pool, WORK));
    if service.remove_directory(work, name.as_bytes()) == Err(Errno::ENOTEMPTY) {
        service.remove_tree(work, name.as_bytes()).expect("is removed");
    }
    service.remove_directory(ROOT_INO, WORK.as_bytes()).expect("is removed");
}

#[test]
fn a_version_takes_the_place_of_a_live_tree_which_is_closed_until_it_is_gone() {
    let device = formatted();
    let pool = open(&device);
    let service = pool.service();
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    let elsewhere = find(&pool, "live/named");
    service.link(elsewhere, ROOT_INO, b"elsewhere").expect("links");
    service.forget(elsewhere, 1);
    let before: Vec<_> = tree(&pool, live).into_iter().filter(|(path, _)| path != "/named").collect();
    let work = work(&pool);
    let made = freeze(&pool, "live", &NoProgress).expect("can be frozen").expect("nothing changes");
    assert_eq!(find(&pool, "live"), live, "not yet");
    let (many, small) = (find(&pool, "live/many"), find(&pool, "live/small"));
    exchange(&pool, "live").expect("takes its place");
    let version = find(&pool, "live");
    assert!(is_frozen(version) && version == made.ino);
    let frozen: Vec<_> = tree(&pool, version).into_iter().filter(|(path, _)| path != "/named").collect();
    assert_eq!(frozen, before);
    let named = service.attributes(find(&pool, "live/named")).expect("stats");
    assert_eq!(named.nlink, 1, "only names within the version count");
    // Whoever came to the live tree before the exchange is told.
    let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
    let cut = AttributeChanges { size_bytes: Some(0), ..AttributeChanges::default() };
    let truncating = OpenOptions { read: true, truncate: true, ..OpenOptions::default() };
    let flags = RenameFlags::default();
    let refused: Vec<Result<(), Errno>> = vec![
        service.create(CALLER, node(many, b"new", 0o600), FOR_WRITING).map(drop),
        service.make(CALLER, node(live, b"new", 0o700), NodeContent::Directory).map(drop),
        service.open(CALLER, small, FOR_WRITING).map(drop),
        service.open(CALLER, small, truncating).map(drop),
        service.set_attributes(CALLER, small, changes).map(drop),
        service.set_attributes(CALLER, small, cut).map(drop),
        service.set_attributes(CALLER, many, changes).map(drop),
        service.set_xattr(CALLER, small, b"user.new", b"", XattrMode::Any),
        service.remove_xattr(live, b"user.top"),
        service.set_flags(CALLER, small, InodeFlags { immutable: true, ..InodeFlags::default() }),
        service.link(small, ROOT_INO, b"new").map(drop),
        service.link(find(&pool, "elsewhere"), many, b"new").map(drop),
        service.rename(many, b"file-1", ROOT_INO, b"out", flags),
        service.rename(ROOT_INO, b"elsewhere", many, b"in", flags),
        service.rename(work, b"live", ROOT_INO, b"out", flags),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused, Err(Errno::EBUSY), "number {number}");
    }
    assert_eq!(read(&pool, small), b"a few bytes");
    // What the removal does is admitted.
    let opened = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
    service.set_attributes(CALLER, many, opened).expect("its owner may empty it");
    assert_clean(&pool);
    remove_work(&pool, "live");
    // Names elsewhere live on.
    write(&pool, find(&pool, "elsewhere"), 0, b"W");
    assert_eq!(read(&pool, find(&pool, "elsewhere")), b"With attributes");
    assert_eq!(read(&pool, find(&pool, "live/named")), b"with attributes");
    reclaim(&pool);
    assert_clean(&pool);
    let listed = pool.versions(None).expect("lists");
    assert_eq!((listed[0].name.as_str(), listed[0].completed_secs, listed[0].dated), ("live", 1000, true));
    pool.close().expect("closes");
    drop((service, pool));
    let pool = open(&device);
    assert_eq!(
        tree(&pool, find(&pool, "live")).into_iter().filter(|(path, _)| path != "/named").collect::<Vec<_>>(),
        before
    );
}

/// A change with a name.
type Change = (&'static str, fn(&Pool));

fn open_for_writing(pool: &Pool, path: &str) -> u64 {
    pool.service().open(CALLER, find(pool, path), FOR_WRITING).expect("opens").handle
}

const CHANGES: [Change; 14] = [
    ("content", |pool| write(pool, find(pool, "live/small"), 0, b"A")),
    ("content by a name elsewhere", |pool| write(pool, find(pool, "elsewhere"), 0, b"A")),
    ("a length", |pool| {
        let cut = AttributeChanges { size_bytes: Some(3), ..AttributeChanges::default() };
        pool.service().set_attributes(CALLER, find(pool, "live/small"), cut).expect("cuts");
    }),
    ("open for writing", |pool| {
        open_for_writing(pool, "live/many/file-7");
    }),
    ("written and not published", |pool| {
        let handle = open_for_writing(pool, "live/small");
        let small = find(pool, "live/small");
        pool.service().write(CALLER, small, handle, 0, b"X", WriteFlags::default()).expect("writes");
    }),
    ("a new file", |pool| {
        file(pool, find(pool, "live/many"), "new", b"");
    }),
    ("a file in a new directory", |pool| {
        let new = directory(pool, find(pool, "live/many"), "new");
        file(pool, new, "new", b"new");
    }),
    ("a removed file", |pool| pool.service().unlink(find(pool, "live/many"), b"file-9").expect("removes")),
    ("a file moved out", |pool| {
        let from = find(pool, "live/many");
        pool.service().rename(from, b"file-9", ROOT_INO, b"out", RenameFlags::default()).expect("moves");
    }),
    ("a file moved in", |pool| {
        let to = find(pool, "live/many");
        pool.service().rename(ROOT_INO, b"elsewhere", to, b"in", RenameFlags::default()).expect("moves");
    }),
    ("a mode", |pool| {
        let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
        pool.service().set_attributes(CALLER, find(pool, "live/many"), changes).expect("changes");
    }),
    ("an attribute", |pool| {
        let pipe = find(pool, "live/named");
        pool.service().set_xattr(CALLER, pipe, b"user.short", b"other", XattrMode::Any).expect("sets");
    }),
    ("a name of the directory", |pool| {
        pool.service().rename(ROOT_INO, b"live", ROOT_INO, b"other", RenameFlags::default()).expect("moves");
        directory(pool, ROOT_INO, "live");
    }),
    ("its name away and back", |pool| {
        pool.service().rename(ROOT_INO, b"live", ROOT_INO, b"other", RenameFlags::default()).expect("moves");
        pool.service().rename(ROOT_INO, b"other", ROOT_INO, b"live", RenameFlags::default()).expect("moves");
    }),
];

fn with_live_tree() -> Arc<Pool> {
    let pool = open(&formatted());
    let live = directory(&pool, ROOT_INO, "live");
    let many = directory(&pool, live, "many");
    for number in 0..20 {
        file(&pool, many, &format!("file-{number}"), b"content");
    }
    let small = file(&pool, live, "small", b"a few bytes");
    let named = file(&pool, live, "named", b"named");
    pool.service().set_xattr(CALLER, named, b"user.short", b"value", XattrMode::Any).expect("sets");
    pool.service().link(small, ROOT_INO, b"elsewhere").expect("links");
    pool.service().forget(small, 1);
    work(&pool);
    pool
}

/// Whatever a client was told is done is in the live tree then, and that stays.
#[test]
fn any_change_before_the_exchange_refuses_it() {
    for (what, change) in CHANGES {
        let pool = with_live_tree();
        freeze(&pool, "live", &NoProgress).expect("can be frozen").expect("nothing changes");
        change(&pool);
        let before = tree(&pool, find(&pool, "live"));
        assert_eq!(exchange(&pool, "live"), Err(Errno::EBUSY), "{what}");
        let live = find(&pool, "live");
        assert!(!is_frozen(live), "{what}");
        assert_eq!(tree(&pool, live), before, "{what}");
        // Not later, either.
        assert_eq!(exchange(&pool, "live"), Err(Errno::EBUSY), "{what}");
        // It is open for changes.
        file(&pool, live, "another", b"another");
        remove_work(&pool, "live");
        assert_clean(&pool);
    }
}

#[test]
fn what_changes_nothing_in_the_tree_does_not_refuse_it() {
    let pool = with_live_tree();
    freeze(&pool, "live", &NoProgress).expect("can be frozen").expect("nothing changes");
    read(&pool, find(&pool, "live/small"));
    pool.service().read_directory(find(&pool, "live/many"), 0, 99, Listing::Attributes).expect("lists");
    let other = file(&pool, ROOT_INO, "other", b"content");
    let _open = pool.service().open(CALLER, other, FOR_WRITING).expect("opens");
    pool.sync().expect("syncs");
    exchange(&pool, "live").expect("takes its place");
    remove_work(&pool, "live");
    assert_clean(&pool);
}

/// Does something when the first entries are read.
struct Meanwhile<'a>(&'a Pool, fn(&Pool), std::sync::Once);

impl Progress for Meanwhile<'_> {
    fn start(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {
        self.2.call_once(|| self.1(self.0));
    }
    fn finish(&self) {}
}

#[test]
fn any_change_while_the_tree_is_read_refuses_it() {
    for (what, change) in CHANGES {
        let pool = with_live_tree();
        let meanwhile = Meanwhile(&pool, change, std::sync::Once::new());
        let made = freeze(&pool, "live", &meanwhile).expect("can be frozen");
        assert!(meanwhile.2.is_completed());
        // What is only open is found at the exchange.
        assert!(made.is_none() || what.contains("open") || what.contains("not published"), "{what}");
        assert_eq!(exchange(&pool, "live"), Err(Errno::EBUSY), "{what}");
        assert!(!is_frozen(find(&pool, "live")), "{what}");
        remove_work(&pool, "live");
        assert_clean(&pool);
    }
}

/// The kernel tells that a file was closed when `close` has long returned. A script that writes, closes and freezes was refused.
#[test]
fn regression_a_file_whose_closing_is_told_late_refuses_no_freeze() {
    let pool = with_live_tree();
    let file = find(&pool, "live/many/file-3");
    let handle = open_for_writing(&pool, "live/many/file-3");
    let made = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            pool.service().release(file, handle);
        });
        freeze(&pool, "live", &NoProgress)
    });
    made.expect("can be frozen").expect("nothing changes");
    exchange(&pool, "live").expect("takes its place");
    remove_work(&pool, "live");
    assert_clean(&pool);
}

#[test]
fn directories_that_cannot_be_frozen_are_refused_with_the_reason() {
    let pool = with_live_tree();
    let refused = |name: &str, why: &str| {
        let error = freeze(&pool, name, &NoProgress).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    };
    let handle = open_for_writing(&pool, "live/many/file-3");
    refused("live", "many/file-3 is open for writing");
    pool.service().release(find(&pool, "live/many/file-3"), handle);
    let protect = |immutable: bool| {
        let flags = InodeFlags { immutable, ..InodeFlags::default() };
        pool.service().set_flags(CALLER, find(&pool, "live/named"), flags).expect("sets");
    };
    protect(true);
    refused("live", "named is protected by chattr");
    protect(false);
    let inner = directory(&pool, find(&pool, "live/many"), WORK);
    pool.service().set_xattr(CALLER, inner, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    refused("live", &format!("many/{WORK} is a directory in which"));
    pool.service().remove_directory(find(&pool, "live/many"), WORK.as_bytes()).expect("removes");
    snapshot(&pool, "live", "", "v");
    refused("v", "is a version");
    let holds = directory(&pool, ROOT_INO, "holds");
    snapshot(&pool, "live", "holds", "inner");
    assert!(!is_frozen(holds));
    refused("holds", "inner is a version");
    let of_root = pool.freeze(ROOT_INO, (find(&pool, WORK), b"x"), &Origin::default(), None, &NoProgress);
    assert!(of_root.expect_err("is the root").to_string().contains("the root of the mount stays live"));
    pool.freeze(find(&pool, "live"), (holds, b"x"), &Origin::default(), None, &NoProgress).expect_err("is no work");
    pool.core().namespace.force_no_versions();
    refused("live", "dedupfs series set");
    pool.core().namespace.allow_versions().expect("allows");
    // Nothing is left of all that, and it can be frozen.
    freeze(&pool, "live", &NoProgress).expect("can be frozen").expect("nothing changes");
    // Only one at a time.
    let other = directory(&pool, ROOT_INO, "other");
    let second = directory(&pool, ROOT_INO, ".dedupfs-put-fedcba9876543210");
    pool.service().set_xattr(CALLER, second, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    let at_once = pool.freeze(other, (second, b"other"), &Origin::default(), None, &NoProgress);
    assert!(at_once.expect_err("is busy").to_string().contains("another `dedupfs freeze`"));
    exchange(&pool, "live").expect("takes its place");
    remove_work(&pool, "live");
    pool.freeze(other, (second, b"other"), &Origin::default(), None, &NoProgress).expect("can be frozen");
    assert_clean(&pool);
}

/// A power loss after each step, with the step durable and without: the live directory or the version, whole.
#[test]
fn a_power_loss_leaves_the_live_directory_or_the_version_and_leftovers() {
    let device = MemoryDevice::new();
    let shared = |device: &MemoryDevice| -> Arc<dyn Device> { Arc::new(device.clone()) };
    format(&shared(&device));
    let pool = open(&shared(&device));
    let live = directory(&pool, ROOT_INO, "live");
    fill(&pool, live);
    let before = tree(&pool, live);
    pool.sync().expect("syncs");
    let mut disks = Vec::new();
    let mut step = |what: &'static str| {
        disks.push((what, device.crash(0)));
        pool.sync().expect("syncs");
        disks.push((what, device.crash(0)));
    };
    let work = work(&pool);
    step("made a directory");
    freeze(&pool, "live", &NoProgress).expect("can be frozen").expect("nothing changes");
    step("made a version");
    exchange(&pool, "live").expect("takes its place");
    step("exchanged");
    let service = pool.service();
    let replaced = service.lookup(work, b"live").expect("is there").ino;
    service.forget(replaced, 1);
    service.unlink(replaced, b"large").expect("removes");
    step("removed a file");
    service.remove_tree(replaced, b"many").expect("removes");
    step("removed a directory");
    remove_work(&pool, "live");
    step("removed it");
    let mut seen = [0; 2];
    for (what, disk) in disks {
        let pool = open(&shared(&disk));
        assert_clean(&pool);
        let top = find(&pool, "live");
        assert_eq!(tree(&pool, top), before, "{what}");
        seen[usize::from(is_frozen(top))] += 1;
        // What is left over is no version of the series, and can be removed.
        assert_eq!(pool.versions(None).expect("lists").len(), usize::from(is_frozen(top)), "{what}");
        if pool.service().lookup(ROOT_INO, WORK.as_bytes()).is_ok() {
            remove_work(&pool, "live");
        }
        reclaim(&pool);
        assert_clean(&pool);
        assert_eq!(tree(&pool, find(&pool, "live")), before, "{what}");
    }
    assert!(seen[0] >= 4 && seen[1] >= 5, "{seen:?}");
}

/// Freezes a directory as a tool of its own: each has its hidden directory. Returns the outcome of both steps.
fn freeze_beside(pool: &Pool, name: &str) -> Result<impl Fn() -> Result<(), Errno>, EngineError> {
    let work = directory(pool, ROOT_INO, &format!(".work-{name}"));
    pool.service().set_xattr(CALLER, work, b"user.dedupfs.put", b"", XattrMode::Any).expect("marks");
    let made = pool.freeze(find(pool, name), (work, name.as_bytes()), &Origin::default(), None, &NoProgress)?;
    assert!(made.is_some(), "nothing changes");
    Ok(move || pool.service().rename(work, name.as_bytes(), ROOT_INO, name.as_bytes(), EXCHANGE))
}

#[test]
fn one_directory_is_frozen_at_a_time() {
    let pool = open(&formatted());
    for name in ["one", "two"] {
        file(&pool, directory(&pool, ROOT_INO, name), "file", b"content");
    }
    let exchange = freeze_beside(&pool, "one").expect("can be frozen");
    let refused = freeze_beside(&pool, "two").err().expect("the other is under way").to_string();
    assert!(refused.contains("another `dedupfs freeze`"), "{refused}");
    // The first one is none the worse for it.
    exchange().expect("takes its place");
    pool.service().remove_tree(ROOT_INO, b".work-two").expect("is removed");
    freeze_beside(&pool, "two").expect("can be frozen")().expect("takes its place");
    assert!(["one", "two"].iter().all(|name| is_frozen(find(&pool, name))));
}

/// The seventeenth freeze made its version three times, and said that the directory had been changed.
#[test]
fn regression_replaced_trees_that_nobody_removes_are_the_reason_why_no_more_can_be_frozen() {
    let pool = open(&formatted());
    for number in 0..16 {
        let name = format!("live-{number}");
        file(&pool, directory(&pool, ROOT_INO, &name), "file", b"content");
        freeze_beside(&pool, &name).expect("can be frozen")().expect("takes its place");
    }
    file(&pool, directory(&pool, ROOT_INO, "more"), "file", b"content");
    let refused = freeze_beside(&pool, "more").err().expect("too many").to_string();
    assert!(refused.contains("not removed yet") && refused.contains("`rm -r`"), "{refused}");
    [".work-live-3", ".work-more"].into_iter().for_each(|work| {
        pool.service().remove_tree(ROOT_INO, work.as_bytes()).expect("is removed");
    });
    freeze_beside(&pool, "more").expect("can be frozen")().expect("takes its place");
}
