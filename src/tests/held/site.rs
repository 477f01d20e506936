//! A pool whose disk can be made to hang, and a file that a request holds meanwhile.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use dedupfs::Service;
use dedupfs::check::CheckOptions;
use dedupfs::{NoProgress, OpenOptions as PoolOptions, Pool, format_on};
use dedupfs_service::{
    Caller, FilePlace, FileService, Handle, Ino, NewNode, OpenOptions, ROOT_INO, Result, SeekTarget, WriteFlags,
};
use dedupfs_store::device::observed::{Call, ObservedDevice};
use dedupfs_store::device::{Device, MemoryDevice};
use dedupfs_store::superblock::PoolProperties;
use dedupfs_store::waiting;

use crate::tests::held::gate::{Closed, Gate};

pub const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 1 };
pub const READ_WRITE: OpenOptions = OpenOptions {
    read: true,
    write: true,
    append: false,
    truncate: false,
    sync: false,
    no_access_time: false,
    direct: false,
};
/// More than is copied by reading it.
pub const SIZE_BYTES: usize = 3 << 20;
/// Time without an announcement after which a request waits in silence: much longer than any step on a slow machine.
const PATIENCE: Duration = Duration::from_secs(45);

thread_local! {
    /// Receives the announcement of this thread that it is about to wait.
    static TOLD: RefCell<Option<Sender<Met>>> = const { RefCell::new(None) };
}

fn about_to_wait() {
    TOLD.with_borrow(|told| {
        if let Some(told) = told {
            // After the end of the test nobody listens.
            let _ended = told.send(Met::Announcement);
        }
    });
}

/// Registers the listener. Call it before any service does: the first listener of a process counts.
pub fn listen() {
    waiting::listen(waiting::Listener { is_concerned: || true, about_to_wait });
}

/// The first event of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// It announced that it was about to wait.
    Announcement,
    /// It ended.
    End,
}

/// A file that is open to read and write.
#[derive(Clone, Copy)]
pub struct File {
    pub ino: Ino,
    pub handle: Handle,
}

impl File {
    pub fn open(service: &Service, name: &str) -> Self {
        let ino = service.lookup(ROOT_INO, name.as_bytes()).expect("is there").ino;
        Self { ino, handle: service.open(CALLER, ino, READ_WRITE).expect("opens").handle }
    }

    pub fn place(&self, offset: usize) -> FilePlace {
        FilePlace { ino: self.ino, handle: self.handle, offset: offset as u64 }
    }
}

pub struct Site {
    gate: Arc<Gate>,
    device: Arc<dyn Device>,
}

impl Site {
    /// Makes a pool with files `lower`, `held` and `higher`, in the order of their numbers.
    pub fn new() -> Self {
        listen();
        let gate = Arc::new(Gate::default());
        let device: Arc<dyn Device> = Arc::new(ObservedDevice::new(Arc::new(MemoryDevice::new()), gate.clone()));
        format_on(&device, &device, b".".to_vec(), &PoolProperties::default(), (0, 0)).expect("formats");
        let site = Self { gate, device };
        let pool = site.open();
        let service = pool.service();
        for (seed, name) in ["lower", "held", "higher"].into_iter().enumerate() {
            let node = NewNode { parent: ROOT_INO, name: name.as_bytes(), mode: 0o644, umask: 0 };
            let (made, opened) = service.create(CALLER, node, READ_WRITE).expect("creates");
            let data = content(seed as u64 + 1);
            service.write(CALLER, made.ino, opened.handle, 0, &data, WriteFlags::default()).expect("writes");
            service.release(made.ino, opened.handle);
        }
        site.check(pool);
        site
    }

    /// Opens the pool. Nothing of it is in any cache.
    pub fn open(&self) -> Arc<Pool> {
        let options = PoolOptions { commit_interval: Duration::from_secs(3600), ..PoolOptions::default() };
        Pool::open_on(&self.device, &self.device, Vec::new(), &options, &NoProgress).expect("opens")
    }

    /// Checks and closes the pool, and restores the content of all files.
    pub fn check(&self, pool: Arc<Pool>) {
        let report =
            pool.check(&CheckOptions { read_data: true, ..CheckOptions::default() }, &NoProgress).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.findings);
        pool.close().expect("closes");
        drop(pool);
        let pool = self.open();
        let service = pool.service();
        for (seed, name) in ["lower", "held", "higher"].into_iter().enumerate() {
            let file = File::open(&service, name);
            service
                .write(CALLER, file.ino, file.handle, 0, &content(seed as u64 + 1), WriteFlags::default())
                .expect("writes");
            service.release(file.ino, file.handle);
        }
        pool.close().expect("closes");
    }
}

fn reads_content(call: &Call<'_>) -> bool {
    call.read().is_some_and(|(path, ..)| path.starts_with("containers/"))
}

impl Site {
    /// Starts a request that hangs while it holds the lock on the content of `file`, which has unpublished changes.
    #[track_caller]
    pub fn hold<'scope>(&self, scope: &'scope Scope<'scope, '_>, service: &'scope Service, file: File) -> Held<'scope> {
        let offset = SIZE_BYTES as u64 / 2;
        service.write(CALLER, file.ino, file.handle, offset, b"over", WriteFlags::default()).expect("writes");
        let closed = self.gate.close(1, reads_content);
        // The request merges the write, and reads the old content for that.
        let merging = scope.spawn(move || service.seek(file.ino, file.handle, 0, SeekTarget::Hole));
        closed.wait();
        Held { closed, merging }
    }
}

/// A file held by a request that is at the disk.
pub struct Held<'scope> {
    pub closed: Closed,
    merging: ScopedJoinHandle<'scope, Result<u64>>,
}

impl Held<'_> {
    /// Lets the request go on, and with it all requests that wait for the file.
    pub fn let_go(self) {
        drop(self.closed);
        self.merging.join().expect("ends").expect("merges");
    }
}

/// A request that has begun.
pub struct Asked<'scope> {
    hears: Receiver<Met>,
    asked: ScopedJoinHandle<'scope, Result<()>>,
}

/// Begins a request on its own thread.
pub fn beside<'scope>(
    scope: &'scope Scope<'scope, '_>,
    request: impl FnOnce() -> Result<()> + Send + 'scope,
) -> Asked<'scope> {
    let (told, hears) = channel();
    let asked = scope.spawn(move || {
        TOLD.set(Some(told.clone()));
        let outcome = request();
        TOLD.set(None);
        let _ended = told.send(Met::End);
        outcome
    });
    Asked { hears, asked }
}

impl Asked<'_> {
    /// Returns the first event of the request. Panics if the request waits without an announcement.
    #[track_caller]
    pub fn met(&self, what: &str) -> Met {
        self.hears.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what}: waits without saying so"))
    }

    pub fn outcome(self) -> Result<()> {
        self.asked.join().expect("ends")
    }
}

/// Returns bytes that do not repeat and do not compress.
pub fn content(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(SIZE_BYTES).collect()
}
