//! Views: replicas read where their pool is not.

use std::ops::Range;
use std::sync::Arc;

use dedupfs::{NoProgress, OpenOptions as PoolOptions};
use dedupfs_service::{FileKind, FileService as _, Listing, OpenOptions, ROOT_INO};
use dedupfs_store::device::faulty::{Fault, FaultPlan, FaultyDevice};
use dedupfs_store::device::{Device, MemoryDevice, OpenMode};
use dedupfs_store::objects::faulty::{Fault as StoreFault, FaultPlan as StorePlan};
use dedupfs_store::objects::{Class, Created, Head, Key, MemoryObjects, ObjectError, Objects, Removed};

use super::site::{CALLER, NOW_SECS, Picture, Site, picture_of};
use crate::view::{View, ViewOptions};
use crate::{EncryptedObjects, Result};

const OPTIONS: ViewOptions = ViewOptions { cache_bytes: 1 << 30, connections: 4, memory_bytes: 256 << 20 };

fn view_on(site: &Site, disk: Arc<dyn Device>, options: ViewOptions) -> Result<View> {
    View::open(&Arc::new(site.faulty_replica()?), &disk, options, None, &NoProgress)
}

fn view(site: &Site, disk: &MemoryDevice) -> Result<View> {
    view_on(site, Arc::new(disk.clone()), OPTIONS)
}

/// Requests in an order that can be repeated.
pub(super) fn view_in_order(site: &Site, disk: &MemoryDevice) -> Result<View> {
    view_on(site, Arc::new(disk.clone()), ViewOptions { connections: 0, ..OPTIONS })
}

pub(super) fn picture(view: &View) -> Picture {
    let pool = view.pool(Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    let picture = picture_of(&pool);
    pool.close().expect("closes");
    picture
}

/// A pool with containers that were reclaimed, so that places in recipes are out of date.
fn site() -> Site {
    let site = Site::new();
    (0..6).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    site
}

#[test]
fn a_view_has_the_content_of_the_pool_and_a_later_one_that_of_the_next_commit() {
    let (site, disk) = (site(), MemoryDevice::new());
    let first = view(&site, &disk).expect("opens");
    assert!(first.is_new && first.findings.is_empty(), "{first:?}");
    let before = site.picture();
    assert_eq!(picture(&first), before);
    // The pool goes on, and so does the replica. The view stays as it is.
    (6..9).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    assert_eq!(picture(&first), before);
    drop(first);
    let second = view(&site, &disk).expect("opens");
    assert!(second.is_new);
    assert_eq!(picture(&second), site.picture());
}

/// A view that was made before opens with the requests that find the newest commit, and reads what it has read from its own disk.
#[test]
fn a_view_that_was_made_before_opens_and_reads_without_downloads() {
    let (site, disk) = (site(), MemoryDevice::new());
    picture(&view(&site, &disk).expect("opens"));
    let before = site.counting.requests();
    let again = view(&site, &disk).expect("opens");
    assert!(!again.is_new);
    assert_eq!(picture(&again), site.picture());
    assert_eq!(again.fetched().0, 0, "{:?}", again.fetched());
    let used = site.counting.requests().since(&before);
    // A listing, a question for the next commit, the commit, and the lease.
    assert_eq!((used.lists, used.heads, used.reads, used.creates), (1, 1, 1 + again.fetched().1, 1), "{used:?}");
    // A name that was found out a moment ago saves all but the lease. Another one is looked up.
    let (name, replica) = (again.state.clone(), Arc::new(site.faulty_replica().expect("opens")));
    drop(again);
    let shared: Arc<dyn Device> = Arc::new(disk.clone());
    for (name, expected) in [(name.as_str(), (0, 0, 0)), ("0000000000000009-00", (1, 1, 1)), ("odd", (1, 1, 1))] {
        let before = site.counting.requests();
        let told = View::open(&replica, &shared, OPTIONS, Some(name), &NoProgress).expect("opens");
        let used = site.counting.requests().since(&before);
        assert_eq!(((used.lists, used.heads, used.reads), told.is_new, told.commit), (expected, false, 1), "{name}");
    }
}

/// Whatever byte of the disk is damaged, or file lost, reads give the content of the pool.
#[test]
fn no_damage_of_the_disk_gives_wrong_bytes() {
    let (site, disk) = (site(), MemoryDevice::new());
    picture(&view(&site, &disk).expect("opens"));
    let expected = site.picture();
    let mut paths = Vec::new();
    collect(&disk, "", &mut paths);
    for (number, path) in paths.iter().enumerate() {
        let copy = MemoryDevice::new();
        for path in &paths {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            copy.create_directory(directory).expect("makes");
            let bytes = disk.read_file(path, 1 << 30).expect("reads");
            copy.open(path, OpenMode::CreateNew).expect("creates").write_at(&bytes, 0).expect("writes");
        }
        if number % 3 == 0 {
            copy.remove(path).expect("removes");
        } else {
            let file = copy.open(path, OpenMode::Write).expect("opens");
            let at = file.len().expect("has a length") * number as u64 % 7 / 7;
            file.write_at(&[0xee; 9], at).expect("writes");
        }
        let opened = view(&site, &copy).and_then(|view| {
            let pool = view.pool(Vec::new(), &PoolOptions::default(), &NoProgress)?;
            let picture = picture_of(&pool);
            pool.close().expect("closes");
            Ok(picture)
        });
        // A meta root that cannot be used is made anew by the next call.
        let is_of_the_pool = path.contains("/pool/");
        match opened {
            Ok(picture) => assert_eq!(picture, expected, "{path}"),
            Err(error) => assert!(is_of_the_pool, "{path}: {error}"),
        }
        assert_eq!(picture(&view(&site, &copy).expect("opens")), expected, "{path}");
    }
}

fn collect(disk: &MemoryDevice, directory: &str, paths: &mut Vec<String>) {
    for entry in disk.list(directory).expect("lists") {
        let path = if directory.is_empty() { entry.name } else { format!("{directory}/{}", entry.name) };
        if entry.is_directory { collect(disk, &path, paths) } else { paths.push(path) }
    }
}

/// The power fails behind the making of a view, and before it: whatever the disk has kept, reads give the content of the pool.
#[test]
fn a_view_survives_a_loss_of_power() {
    let (site, disk) = (site(), MemoryDevice::new());
    let expected = site.picture();
    for round in 0..3 {
        for seed in 0..8 {
            let crashed = disk.crash(seed);
            let view = view(&site, &crashed).unwrap_or_else(|error| panic!("round {round}, seed {seed}: {error}"));
            assert_eq!(picture(&view), expected, "round {round}, seed {seed}");
        }
        let view = view(&site, &disk).expect("opens");
        if round == 1 {
            picture(&view);
        }
    }
}

/// Every operation of the disk fails once while a view is made: the next call makes it.
#[test]
fn a_view_is_made_although_the_disk_fails() {
    let (site, mut number) = (site(), 0);
    let expected = site.picture();
    loop {
        let disk = MemoryDevice::new();
        let faulty = FaultyDevice::new(Arc::new(disk.clone()));
        faulty.add(FaultPlan::new(Fault::Io, number));
        let failed = view_on(&site, Arc::new(faulty.clone()), OPTIONS);
        let is_over = faulty.injected() == 0;
        faulty.heal();
        if let Ok(view) = failed {
            assert_eq!(picture(&view), expected, "operation {number}");
        }
        assert_eq!(picture(&view(&site, &disk).expect("opens")), expected, "operation {number}");
        if is_over {
            return;
        }
        number += 1;
    }
}

/// Every request of a view fails once: it is told, and the next call makes the view.
#[test]
fn a_view_is_made_although_the_store_fails() {
    let site = site();
    let expected = site.picture();
    let before = site.counting.requests();
    picture(&view(&site, &MemoryDevice::new()).expect("opens"));
    let requests = site.counting.requests().since(&before).count();
    for number in 0..requests {
        let disk = MemoryDevice::new();
        site.faulty.add(StorePlan::new(StoreFault::Lost, number));
        let first = view(&site, &disk);
        let is_whole = first.as_ref().is_ok_and(|view| view.findings.is_empty());
        site.faulty.heal();
        if let Ok(view) = &first
            && is_whole
        {
            assert_eq!(picture(view), expected, "request {number}");
        }
        drop(first);
        assert_eq!(picture(&view(&site, &disk).expect("opens")), expected, "request {number}");
    }
}

/// With a small cache the store is asked more often, and nothing else.
#[test]
fn a_small_or_full_cache_does() {
    let (site, disk) = (site(), MemoryDevice::new());
    let small = ViewOptions { cache_bytes: 70_000, connections: 1, ..OPTIONS };
    let small = view_on(&site, Arc::new(disk.clone()), small).expect("opens");
    assert_eq!(picture(&small), site.picture());
    let bytes: u64 = disk
        .list("objects")
        .expect("lists")
        .iter()
        .map(|folder| {
            disk.list(&format!("objects/{}", folder.name))
                .expect("lists")
                .iter()
                .map(|entry| entry.len_bytes)
                .sum::<u64>()
        })
        .sum();
    assert!(bytes <= 70_000, "{bytes}");
}

/// Reads all files; returns those that can be read, and the number of others.
fn readable(view: &View) -> (Picture, u64) {
    let pool = view.pool(Vec::new(), &PoolOptions::default(), &NoProgress).expect("opens");
    let service = pool.service();
    let (mut picture, mut broken) = (Picture::new(), 0);
    for entry in service.read_directory(ROOT_INO, 0, 10_000, Listing::Names).expect("lists") {
        let Some(found) = service.lookup(ROOT_INO, &entry.name).ok().filter(|found| found.kind == FileKind::Regular)
        else {
            continue;
        };
        let how = OpenOptions { read: true, ..OpenOptions::default() };
        let handle = service.open(CALLER, found.ino, how).expect("opens").handle;
        let mut bytes = Vec::new();
        match service.read(found.ino, handle, 0, 1 << 30, &mut bytes) {
            Ok(_) if bytes.len() as u64 == found.size_bytes => drop(picture.insert(entry.name, bytes)),
            _ => broken += 1,
        }
        service.release(found.ino, handle);
    }
    pool.close().expect("closes");
    (picture, broken)
}

/// Whatever object is gone or damaged, its loss is told, everything else is read, and the view is whole when the object is back. A container that no pack
/// has the table of made the view impossible.
#[test]
fn a_lost_object_is_told_and_everything_else_is_read() {
    for has_packs in [true, false] {
        let site = site();
        site.write("open", 99, 5000);
        site.replicate().expect("replicates");
        let (expected, disk) = (site.picture(), MemoryDevice::new());
        let keys = site.store.keys();
        if !has_packs {
            keys.iter().filter(|key| key.as_str().starts_with("t/")).for_each(|key| site.store.remove_by_hand(key));
        }
        let mut some_broken = 0;
        let content = keys.iter().filter(|key| key.as_str().starts_with("c/") || key.as_str().starts_with("r/"));
        for (number, key) in content.enumerate() {
            let mut bytes = Vec::new();
            site.store.read(key, None, &mut bytes).expect("is there");
            if number % 2 == 0 {
                site.store.remove_by_hand(key);
            } else {
                let mut damaged = bytes.clone();
                damaged.iter_mut().for_each(|byte| *byte ^= 0x55);
                site.store.replace(key, &damaged);
            }
            let disk = MemoryDevice::new();
            let view = view(&site, &disk).unwrap_or_else(|error| panic!("{key}: {error}"));
            let (found, broken) = readable(&view);
            assert!(found.iter().all(|(name, bytes)| expected.get(name) == Some(bytes)), "{key}");
            assert_eq!(found.len() as u64 + broken, expected.len() as u64, "{key}: {:?}", view.findings);
            some_broken += u64::from(broken > 0);
            site.store.replace(key, &bytes);
        }
        assert!(some_broken > 2, "objects matter");
        assert_eq!(picture(&view(&site, &disk).expect("opens")), expected);
    }
}

/// Reclaiming waits for readers.
#[test]
fn a_lease_keeps_the_content_of_its_commit() {
    let (site, disk) = (site(), MemoryDevice::new());
    // Leases live by the store's clock, against that of this machine.
    site.store.set_now(dedupfs_sync::clock::since_epoch().as_secs());
    let leased = view(&site, &disk).expect("opens");
    site.store.set_now(NOW_SECS + 1000);
    let before = site.picture();
    (6..12).for_each(|round| site.change(round));
    site.replicate().expect("replicates");
    site.store.set_now(NOW_SECS + 1_000_000);
    site.write("more", 77, 10_000);
    site.replicate().expect("replicates");
    site.store.set_now(NOW_SECS + 2_000_000);
    let kept = site.reclaim_replica(1000).expect("reclaims");
    assert_eq!((kept.retired, kept.leases), (0, 1), "{kept:?}");
    assert_eq!(picture(&leased), before);
    // The store keeps what is of its future.
    site.store.set_now(dedupfs_sync::clock::since_epoch().as_secs());
    drop(leased);
    site.store.set_now(NOW_SECS + 2_000_000);
    let left: Vec<_> = site.store.keys().into_iter().filter(|key| key.as_str().starts_with("reader/")).collect();
    assert!(left.is_empty(), "the lease is given back: {left:?}");
    let gone = site.reclaim_replica(1000).expect("reclaims");
    assert!(gone.retired > 0, "{gone:?}");
    assert_eq!(picture(&view(&site, &disk).expect("opens")), site.picture());
}

/// A store that gives no right to create objects is read all the same.
#[test]
fn a_reader_without_a_lease_reads() {
    let site = site();
    let replica = site.replica().expect("opens");
    let only_read: Arc<dyn Objects> = Arc::new(OnlyRead(site.store.clone()));
    let mut replica_only_read = replica;
    replica_only_read.objects = Arc::new(EncryptedObjects::new(only_read, super::site::secret()));
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let view = View::open(&Arc::new(replica_only_read), &disk, OPTIONS, None, &NoProgress).expect("opens");
    assert_eq!(picture(&view), site.picture());
}

/// A store whose credentials may read alone.
#[derive(Debug)]
struct OnlyRead(MemoryObjects);

impl OnlyRead {
    fn refused<T>(key: &Key) -> dedupfs_store::objects::Result<T> {
        let (key, reason) = (key.to_string(), "the credentials may read alone".to_owned());
        Err(ObjectError::Refused { operation: "change", key, reason })
    }
}

impl Objects for OnlyRead {
    fn create(&self, key: &Key, _: &[&[u8]], _: Class) -> dedupfs_store::objects::Result<Created> {
        Self::refused(key)
    }

    fn read(&self, key: &Key, range: Option<Range<u64>>, into: &mut Vec<u8>) -> dedupfs_store::objects::Result<()> {
        self.0.read(key, range, into)
    }

    fn head(&self, key: &Key) -> dedupfs_store::objects::Result<Option<Head>> {
        self.0.head(key)
    }

    fn remove(&self, key: &Key) -> dedupfs_store::objects::Result<Removed> {
        Self::refused(key)
    }

    fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        visit: &mut dyn FnMut(Key, Head) -> dedupfs_store::objects::Result<()>,
    ) -> dedupfs_store::objects::Result<()> {
        self.0.list(prefix, after, visit)
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Small reads of a container that the cache cannot keep were answered with all of it, each time.
#[test]
fn regression_small_reads_without_a_cache_fetch_ranges() {
    let site = Site::new();
    (0..12).for_each(|number| site.write(&format!("large {number}"), 100 + number, 200_000));
    site.replicate().expect("replicates");
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new());
    let view = view_on(&site, disk, ViewOptions { cache_bytes: 0, connections: 0, ..OPTIONS }).expect("opens");
    let before = (site.counting.requests().read_bytes, view.fetched());
    let device = view.data_root();
    for round in 0..40_u64 {
        let (file, at) = (1 + round % 2, (round * 7 % 8) * 65_536 + (round % 5) * 3000 + 100);
        let opened = device.open(&format!("containers/{file:06}.slots"), OpenMode::Read).expect("opens");
        opened.read_exact_at(&mut [0; 512], at).expect("reads");
    }
    let read = site.counting.requests().read_bytes - before.0;
    // Some reads go on from one container to the next.
    assert!(view.fetched().1 - before.1.1 > 10, "{read} bytes, {:?}", view.fetched());
}
