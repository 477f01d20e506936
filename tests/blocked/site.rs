//! A pool on a disk that can hang, mounted.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dedupfs::{NoProgress, OpenOptions, Pool, format_on};
use dedupfs_fuse::{MountOptions, MountedSession, mount};
use dedupfs_service::FileService;
use dedupfs_store::device::observed::ObservedDevice;
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::waiting;

use crate::gate::{Closed, Gate};

/// Directories with this many small files each: their names fill many pages of the namespace.
pub const DIRECTORIES: usize = 40;
const FILES: usize = 60;
/// Bytes of a file that has a recipe and many regions.
pub const LARGE_BYTES: usize = 12 << 20;

pub struct Site {
    pub gate: Arc<Gate>,
    device: Arc<dyn Device>,
    directory: tempfile::TempDir,
    pub pool: Option<Arc<Pool>>,
    session: Option<MountedSession>,
    /// Number of the next check. Each check uses directories and files that no client and no cache has seen before.
    next: AtomicU32,
}

impl Site {
    /// Makes a pool with `large-0` to `large-9`, and directories `0`, `1`, ... of small files; nothing is in any cache.
    pub fn new() -> Self {
        let gate = Arc::new(Gate::default());
        let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(Arc::new(MemoryDevice::new()), gate.clone()));
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let directory = tempfile::tempdir().expect("a directory to mount on");
        let mut site = Self { gate, device, directory, pool: None, session: None, next: AtomicU32::new(0) };
        site.mount();
        for number in 0..DIRECTORIES {
            let directory = site.path(format!("{number}"));
            fs::create_dir(&directory).expect("makes a directory");
            for file in 0..FILES {
                fs::write(directory.join(format!("{file}")), small(number, file)).expect("writes");
            }
        }
        for number in 0..10 {
            fs::write(site.path(format!("large-{number}")), large(number)).expect("writes");
        }
        site.remount();
        site
    }

    fn mount(&mut self) {
        let options = OpenOptions { commit_interval: Duration::from_secs(3600), ..OpenOptions::default() };
        let pool = Pool::open_on(&self.device, &self.device, Vec::new(), &options, &NoProgress).expect("opens");
        let service: Arc<dyn FileService> = pool.service();
        waiting::listen(waiting::Listener {
            is_concerned: dedupfs_fuse::is_receiving,
            about_to_wait: dedupfs_fuse::about_to_wait,
        });
        let session = mount(service, self.directory.path(), &MountOptions::default())
            .unwrap_or_else(|error| panic!("these tests need a working /dev/fuse: {error}"));
        (self.pool, self.session) = (Some(pool), Some(session));
    }

    fn unmount(&mut self) {
        if let Some(session) = self.session.take() {
            session.unmount(Duration::from_secs(60)).expect("unmounts");
        }
        if let Some(pool) = self.pool.take() {
            pool.close().expect("closes");
        }
    }

    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Checks that every request of other clients completes while one waits for the disk.
    pub fn others_go_on(&self, closed: &Closed) {
        self.others_read(closed);
        self.others_change(closed);
    }

    /// Checks names, attributes and content that were not read before.
    pub fn others_read(&self, closed: &Closed) {
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let (first, second) = (2 * next % DIRECTORIES, (2 * next + 1) % DIRECTORIES);
        let in_first = |file: usize| self.path(format!("{first}/{file}"));
        closed.goes_on("a lookup", || assert!(fs::symlink_metadata(in_first(0)).expect("is there").is_file()));
        closed.goes_on("a lookup of nothing", || assert!(!in_first(FILES).exists()));
        closed.goes_on("a listing", || {
            assert_eq!(fs::read_dir(self.path(format!("{second}"))).expect("lists").count(), FILES);
        });
        closed.goes_on("a small file", || assert_eq!(fs::read(in_first(1)).expect("reads"), small(first, 1)));
        closed.goes_on("attributes", || {
            assert!(rustix::fs::llistxattr(in_first(2), &mut [0; 100][..]).is_ok());
        });
        closed.goes_on("space", || assert!(rustix::fs::statvfs(self.directory.path()).expect("tells").f_blocks > 0));
        // Reads files that no test lets hang, first past all caches, then from them.
        let number = 5 + next % 5;
        for _ in 0..2 {
            closed.goes_on("a large file", || {
                let file = fs::File::open(self.path(format!("large-{number}"))).expect("opens");
                let mut read = vec![0; LARGE_BYTES];
                file.read_exact_at(&mut read, 0).expect("reads");
                assert!(read == large(number));
            });
        }
    }

    /// Checks new names and content, closed but not synced.
    pub fn others_change(&self, closed: &Closed) {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = self.path(format!("new-{next}"));
        closed.goes_on("mkdir", || fs::create_dir(&directory).expect("makes a directory"));
        let file = directory.join("c");
        closed.goes_on("a new small file", || fs::write(&file, b"some bytes").expect("writes"));
        closed.goes_on("a new large file", || {
            let mut new = fs::File::create(directory.join("d")).expect("creates");
            new.write_all(&content(u64::from(next) + 1000, 3 << 20)).expect("writes");
        });
        closed.goes_on("a change in place", || {
            let file = fs::OpenOptions::new().write(true).open(&file).expect("opens");
            file.write_all_at(b"more", 5).expect("writes");
        });
        closed.goes_on("a rename", || fs::rename(&file, directory.join("e")).expect("renames"));
        closed.goes_on("what was written", || {
            assert_eq!(fs::read(directory.join("e")).expect("reads"), b"some mores");
        });
        closed.goes_on("an unlink", || fs::remove_file(directory.join("e")).expect("unlinks"));
    }

    /// Remounts, and checks that everything reads as it was written.
    pub fn check(mut self) {
        self.remount();
        for number in 0..DIRECTORIES {
            assert_eq!(fs::read(self.path(format!("{number}/7"))).expect("reads"), small(number, 7));
        }
        let pool = self.pool.as_ref().expect("is open");
        let report =
            pool.check(&dedupfs::check::CheckOptions { read_data: true, scratch: None }, &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
        self.unmount();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The session first: the test closes the pool under it, or lets it crash.
        self.session = None;
    }
}

/// Returns bytes that do not repeat and do not compress.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(len).collect()
}

fn small(directory: usize, file: usize) -> Vec<u8> {
    format!("file {file} of directory {directory}").into_bytes()
}

pub fn large(number: usize) -> Vec<u8> {
    content(number as u64 + 1, LARGE_BYTES)
}
