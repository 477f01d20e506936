//! A server and its clients over a real socket.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dedupfs::NoProgress;
use dedupfs::reclaim::{ReclaimOptions, ReclaimStatus};
use dedupfs::socket::SOCKET_NAME;
use dedupfs::transfer::{Patterns, PutOptions, TransferReport};

use super::super::protocol::{Envelope, PROTOCOL_VERSION};
use super::super::{ControlClient, FailureKind, GetRequest, PutRequest};
use super::*;

/// Answers at once; counts the requests.
#[derive(Default)]
struct Target {
    reclaims: AtomicU64,
    unmounts: AtomicU64,
    gets_cancelled: AtomicU64,
    is_paused: AtomicBool,
}

impl ControlTarget for Target {
    fn perform(
        &self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        progress: &dyn Progress,
    ) -> Result<serde_json::Value, Failure> {
        // Until the client goes away.
        let goes_on = |what: &str, total| {
            while !progress.is_cancelled() {
                progress.start(what, total);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        match request {
            Request::Stats => panic!("a request that panics"),
            Request::Sync | Request::SetReadOnly(true) => to_value(()),
            Request::Reclaim(options) => {
                assert_eq!(options.threshold_percent, 42);
                progress.start("containers", 5);
                for _ in 0..5 {
                    progress.advance(1);
                }
                progress.finish();
                self.reclaims.fetch_add(1, Ordering::Relaxed);
                Err(FailureKind::NoSpace.because("full"))
            }
            Request::ReclaimStatus => {
                let paused = self.is_paused.load(Ordering::Relaxed);
                to_value(ReclaimStatus { paused, ..ReclaimStatus::default() })
            }
            Request::StopReclaim => Err(Failure::failed("nothing runs")),
            Request::PauseReclaim(paused) => {
                self.is_paused.store(paused, Ordering::Relaxed);
                to_value(())
            }
            Request::Put(request) => {
                let (mut content, from) =
                    (String::new(), descriptors.into_iter().next().ok_or_else(without_descriptor)?);
                std::fs::File::from(from).read_to_string(&mut content).unwrap();
                let content_bytes = content.len() as u64;
                to_value(TransferReport { files: request.into, content_bytes, ..TransferReport::default() })
            }
            Request::Get(request) => {
                goes_on("copying", request.ino);
                self.gets_cancelled.fetch_add(1, Ordering::Relaxed);
                Err(Failure::failed("interrupted"))
            }
            Request::Unmount { lazy } => {
                assert!(lazy);
                self.unmounts.fetch_add(1, Ordering::Relaxed);
                to_value(())
            }
            Request::AwaitEnd => Err(FailureKind::NoSpace.because("not all is durable")),
            Request::PrepareReadOnly => Err(FailureKind::MountpointUnusable.because("a tree is being copied")),
            Request::SetReadOnly(false) => Err(Failure::failed("it stays read-only")),
            other => panic!("no test makes this request: {other:?}"),
        }
    }
}

/// Records all progress.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn start(&self, what: &str, total: u64) {
        self.0.lock().push(format!("start {what} {total}"));
    }
    fn advance(&self, by: u64) {
        self.0.lock().push(format!("advance {by}"));
    }
    fn finish(&self) {
        self.0.lock().push("finish".to_owned());
    }
}

fn start(root: &Path, target: Arc<Target>) -> io::Result<ControlServer> {
    ControlServer::start(root, PoolSocket::bind(root, |_| false)?, None, target)
}

fn serve(root: &Path) -> (ControlServer, Arc<Target>) {
    let target = Arc::new(Target::default());
    (start(root, target.clone()).unwrap(), target)
}

fn reclaim_options() -> ReclaimOptions {
    ReclaimOptions::below(42)
}

#[test]
fn requests_are_answered_with_progress_and_typed_failures() {
    let root = tempfile::tempdir().unwrap();
    let (server, target) = serve(root.path());
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    assert_eq!(client.daemon, Some(rustix::process::getpid()));
    client.sync().unwrap();
    let told = Told::default();
    let failure = client.reclaim(&reclaim_options(), &told).unwrap_err();
    assert_eq!(failure, FailureKind::NoSpace.because("full"));
    let told = told.0.into_inner();
    assert_eq!(told.first().unwrap(), "start containers 5");
    assert_eq!(told.last().unwrap(), "finish");
    let steps: u64 = told.iter().filter_map(|line| line.strip_prefix("advance ")?.parse::<u64>().ok()).sum();
    assert_eq!(steps, 5);
    client.request(&Request::Unmount { lazy: true }).unwrap();
    assert_eq!(target.unmounts.load(Ordering::Relaxed), 1);
    assert!(server.finish(Duration::from_secs(5)));
    assert!(!root.path().join(SOCKET_NAME).exists());
    assert!(ControlClient::connect(root.path()).unwrap().is_none());
}

#[test]
fn reclaiming_is_paused_stopped_and_asked() {
    let root = tempfile::tempdir().unwrap();
    let (_server, _target) = serve(root.path());
    let client = || ControlClient::connect(root.path()).unwrap().unwrap();
    for paused in [true, false] {
        client().pause_reclaim(paused).unwrap();
        assert_eq!(client().reclaim_status().unwrap().paused, paused);
    }
    assert!(client().stop_reclaim().unwrap_err().message.contains("nothing runs"));
}

#[test]
fn tools_learn_how_closing_went_and_switch_a_pool() {
    let root = tempfile::tempdir().unwrap();
    let (_server, _target) = serve(root.path());
    let client = || ControlClient::connect(root.path()).unwrap().unwrap();
    assert!(client().is_allowed());
    let told = client().await_end().unwrap().unwrap_err();
    assert_eq!((told.kind, told.message.as_str()), (FailureKind::NoSpace, "not all is durable"));
    client().make_read_only().unwrap();
    assert!(client().make_writable().unwrap_err().message.contains("stays read-only"));
}

#[test]
fn a_daemon_that_is_killed_says_nothing_of_its_end() {
    let root = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(root.path().join(SOCKET_NAME)).unwrap();
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(client.await_end(), None);
}

#[test]
fn a_panic_is_one_clients_error() {
    let root = tempfile::tempdir().unwrap();
    let (_server, _target) = serve(root.path());
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    assert!(client.stats().unwrap_err().message.contains("internally"));
    client.sync().unwrap();
}

#[test]
fn garbage_from_a_client_is_answered_and_the_server_lives() {
    let root = tempfile::tempdir().unwrap();
    let (_server, _target) = serve(root.path());
    let long = vec![b'['; 2 * usize::try_from(REQUEST_BYTES_MAX).unwrap()];
    for garbage in [&b"\n"[..], b"\0\xff\n", b"{\"protocol\":9,\"request\":1}\n", b"no end of line", &long] {
        let mut stream = address::connect(root.path()).unwrap();
        // The server may close while a line that is too long is still being sent.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        if garbage.len() < 100 {
            assert!(reply.starts_with(b"{\"failed\":"), "{}", String::from_utf8_lossy(&reply));
        }
    }
    drop(address::connect(root.path()).unwrap());
    ControlClient::connect(root.path()).unwrap().unwrap().sync().unwrap();
}

#[test]
fn garbage_from_a_server_is_a_failure() {
    for garbage in [&b""[..], b"\n", b"{}\n", b"\xff\n", b"{\"done\":", b"{\"done\":17}\n"] {
        let root = tempfile::tempdir().unwrap();
        let listener = address::bind(root.path()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(garbage).unwrap();
        });
        let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
        assert!(client.stats().is_err(), "{garbage:?}");
        server.join().unwrap();
    }
}

#[test]
fn work_goes_on_when_its_client_leaves() {
    let root = tempfile::tempdir().unwrap();
    let (server, target) = serve(root.path());
    let mut stream = address::connect(root.path()).unwrap();
    let request = serde_json::to_value(Request::Reclaim(reclaim_options())).unwrap();
    stream.write_all(&encode(&Envelope { protocol: PROTOCOL_VERSION, request }).unwrap()).unwrap();
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(10);
    while target.reclaims.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "the request was dropped with its client");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(server.finish(Duration::from_secs(5)));
}

#[test]
fn a_socket_left_by_a_killed_daemon_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    drop(address::bind(root.path()).unwrap());
    assert!(root.path().join(SOCKET_NAME).exists());
    assert!(ControlClient::connect(root.path()).unwrap().is_none());
    let (_server, _target) = serve(root.path());
    ControlClient::connect(root.path()).unwrap().unwrap().sync().unwrap();
}

/// Two daemons wrote one pool when the lock of the first had been removed.
#[test]
fn regression_a_living_socket_is_not_replaced() {
    let root = tempfile::tempdir().unwrap();
    let (_server, target) = serve(root.path());
    let refused = start(root.path(), target).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
    ControlClient::connect(root.path()).unwrap().unwrap().sync().unwrap();
    assert!(dedupfs::socket::is_living(root.path()));
    // The lock itself was free.
    let opened = dedupfs::socket::claim(root.path(), "a test").unwrap_err();
    assert!(opened.to_string().contains("is in use by a daemon that answers"), "{opened}");
}

/// Tools failed with an I/O error after the disk under the pool had failed.
#[test]
fn regression_a_daemon_is_found_without_its_socket_in_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let gone = directory.path().join("gone");
    // Not a real device number: tests run beside mounts.
    let device = format!("test:{}", std::process::id());
    let target = Arc::new(Target::default());
    assert_eq!(PoolSocket::bind(&gone, |_| false).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let socket = PoolSocket::bind(&gone, |_| true).unwrap();
    let mut server = ControlServer::start(&gone, socket, Some(&device), target.clone()).unwrap();
    let own = rustix::process::geteuid().as_raw();
    let mut client = ControlClient::connect_beside(&gone, &device, own).unwrap();
    // Each request opens its own connection.
    client.sync().unwrap();
    assert!(client.prepare_read_only().unwrap_err().message.contains("being copied"));
    assert!(client.is_allowed() && client.watch_daemon().is_ok());
    assert!(ControlClient::connect_beside(directory.path(), &device, own).is_none(), "another pool");
    server.stop_listening();
    drop(server);
    assert!(ControlClient::connect_beside(&gone, &device, own).is_none());
}

#[test]
fn long_paths_work() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("d".repeat(200)).join("e".repeat(200));
    std::fs::create_dir_all(&deep).unwrap();
    let (_server, _target) = serve(&deep);
    ControlClient::connect(&deep).unwrap().unwrap().sync().unwrap();
}

#[test]
fn more_connections_than_allowed_are_refused_with_a_reason() {
    let root = tempfile::tempdir().unwrap();
    let (_server, _target) = serve(root.path());
    let idle: Vec<_> = (0..CONNECTIONS_MAX).map(|_| address::connect(root.path()).unwrap()).collect();
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    assert!(client.sync().unwrap_err().message.contains("too many"), "not refused");
    drop(idle);
}

#[test]
fn a_descriptor_travels_with_what_is_put() {
    let root = tempfile::tempdir().unwrap();
    let target = Arc::new(Target::default());
    let _server = start(root.path(), target.clone()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"content").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let request = PutRequest { into: 5, name: b"name".to_vec(), options: PutOptions::default() };
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    let report = client.put(request.clone(), file.as_fd(), &NoProgress).unwrap();
    assert_eq!((report.files, report.content_bytes), (5, 7));
    // A put request without a descriptor is refused.
    let mut stream = UnixStream::connect(root.path().join(SOCKET_NAME)).unwrap();
    let request = serde_json::to_value(Request::Put(request)).unwrap();
    let envelope = Envelope { protocol: PROTOCOL_VERSION, request };
    stream.write_all(&encode(&envelope).unwrap()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("no descriptor"), "{answer}");
}

/// Cancels at the first progress.
#[derive(Default)]
struct Impatient(AtomicBool);

impl Progress for Impatient {
    fn start(&self, _what: &str, _total: u64) {
        self.0.store(true, Ordering::Relaxed);
    }
    fn advance(&self, _by: u64) {}
    fn finish(&self) {}
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn who_wants_no_more_ends_what_is_copied() {
    let root = tempfile::tempdir().unwrap();
    let target = Arc::new(Target::default());
    let server = start(root.path(), target.clone()).unwrap();
    let directory = std::fs::File::open(root.path()).unwrap();
    let mut client = ControlClient::connect(root.path()).unwrap().unwrap();
    let request = GetRequest { ino: 1, name: b"name".to_vec(), patterns: Patterns::default() };
    let failure = client.get(request, directory.as_fd(), &Impatient::default()).unwrap_err();
    assert_eq!(failure.message, "interrupted");
    assert_eq!(target.gets_cancelled.load(Ordering::Relaxed), 1, "the client waits until nothing more is copied");
    assert!(server.finish(Duration::from_secs(10)));
}

/// Found by an attack: a put whose client was stopped lost its answer, and the client then removed the copy.
#[test]
fn regression_an_answer_waits_for_a_client_that_is_stopped() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    // More than any buffer of the socket takes.
    let long = "x".repeat(8 << 20);
    let sink = ReplySink::new(&ours);
    std::thread::scope(|scope| {
        scope.spawn(|| sink.send_last(&Reply::Done(serde_json::json!(long))));
        std::thread::sleep(Duration::from_millis(300));
        let mut line = Vec::new();
        theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        BufReader::new(&theirs).read_until(b'\n', &mut line).unwrap();
        assert_eq!(serde_json::from_slice::<Reply>(&line).unwrap(), Reply::Done(serde_json::json!(long)));
    });
    // The server does not wait for a client that has gone.
    drop(theirs);
    sink.send_last(&Reply::Done(serde_json::json!(long)));
    assert!(sink.is_cancelled());
}

/// A mount whose socket could not be bound was seen for a moment, and files were written below it.
#[test]
fn regression_a_socket_is_bound_before_it_is_served_and_goes_if_it_never_is() {
    let root = tempfile::tempdir().unwrap();
    let socket = PoolSocket::bind(root.path(), |_| false).unwrap();
    let mut early = ControlClient::connect(root.path()).unwrap().expect("waits");
    let server = ControlServer::start(root.path(), socket, None, Arc::new(Target::default())).unwrap();
    early.sync().unwrap();
    drop(server);
    drop(PoolSocket::bind(root.path(), |_| false).unwrap());
    assert!(!root.path().join(SOCKET_NAME).exists());
}
