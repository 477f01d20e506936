//! The daemon: opens the pool, mounts it, and makes everything durable when the mount ends.
//!
//! 1. Check pool and mountpoint; open the pool (lock, recovery); remove a dead mount of it; mount; listen on the control socket; report
//!    that the mount serves.
//! 2. Wait for the end of the session. It comes from `dedupfs umount` through the control socket, from umount(8), or from a signal, upon
//!    which the daemon itself unmounts.
//! 3. Stop listening, close the pool, answer a waiting `dedupfs umount`, end.
//!
//! Invariants:
//! - The control socket exists only while the pool's lock is held.
//! - No helper unmounts when the daemon dies: that would leave an empty directory that swallows writes.
//! - A signal never loses data. If files stay open, the mount is detached, and after [`DETACHED_TIMEOUT`] its users are cut off.
//! - Once the kernel sends nothing more, only the disk takes time. It gets as much as it needs, regardless of further signals.

mod background;
mod daemon;
mod ending;
mod served;
mod transfers;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use dedupfs::config::COMMIT_INTERVAL;
use dedupfs::{OpenOptions, Pool};
use dedupfs_fuse::{MountError, MountedSession};
use dedupfs_store::waiting;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::background::Background;
use self::daemon::{Daemon, End};
use self::ending::ended_within;
use self::served::Served;
use self::transfers::Transfers;
use crate::args::MountArgs;
use crate::control::{ControlServer, Failure, FailureKind, PoolSocket, lacks_room};
use crate::logging::{LOG_NAME, LogSink};
use crate::mount::{self, Mountpoint};
use crate::mount_options::{self, Options};
use crate::notify::Notifier;
use crate::ready::{Outcome, ReadySender};
use crate::{access, mountinfo, room, size, target};

/// How long to retry an unmount while files are open: indexers and similar programs close them soon.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_RETRY: Duration = Duration::from_millis(50);
/// Time that users of a busy mount have after a signal before they are cut off.
const DETACHED_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the connection of an aborted mount to end. After that the pool is closed below it.
const ABORTED_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

enum Event {
    Ended(Result<(), MountError>),
    Signal(i32),
}

/// Serves a mount until it ends, in the foreground or as the process started by [`mount::start_daemon`].
pub(crate) fn run(args: &MountArgs) -> Result<(), Failure> {
    if !args.daemon_child {
        let has_file = args.log_file.is_some()
            || mount_options::split(&args.options).iter().any(|option| option.starts_with("log_file="));
        return serve(args, &LogSink::install(!has_file), &Notifier::from_env(), |_| Ok(()));
    }
    let ready = ReadySender::from_stdout()
        .map_err(|error| Failure::failed(format!("this option is for dedupfs itself only: {error}")))?;
    let log = LogSink::install_held();
    let mut ready = Some(ready);
    if let Err(failure) = args.ends_with_parent.map_or(Ok(()), end_with_parent) {
        ready.take().into_iter().for_each(|ready| ready.send(&Outcome::Failed(failure.clone())));
        return Err(failure);
    }
    let result = serve(args, &log, &Notifier::default(), |notice| {
        leave_terminal(&log)?;
        if let Some(ready) = ready.take() {
            ready.send(&Outcome::Serving { notice });
        }
        Ok(())
    });
    log.release();
    match (&result, ready) {
        (Err(failure), Some(ready)) => ready.send(&Outcome::Failed(failure.clone())),
        (Err(failure), None) => tracing::error!(%failure, "the daemon failed"),
        (Ok(()), _) => {}
    }
    result
}

/// Asks for a signal when the process `parent` ends, which started this one.
fn end_with_parent(parent: i32) -> Result<(), Failure> {
    let failed =
        |error: rustix::io::Errno| Failure::failed(format!("cannot watch the process that started this one: {error}"));
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).map_err(failed)?;
    // It may have ended before.
    match rustix::process::getppid() {
        Some(found) if found.as_raw_nonzero().get() == parent => Ok(()),
        _ => Err(Failure::failed("the process that started this one has ended")),
    }
}

fn leave_terminal(log: &LogSink) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot leave the terminal: {error}"));
    // Fails for a leader of a process group, which needs no new session.
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(failed)?;
    log.take_stderr().map_err(failed)?;
    let null = File::open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdin(null).map_err(|error| failed(error.into()))
}

fn serve(
    args: &MountArgs,
    log: &LogSink,
    notifier: &Notifier,
    ready: impl FnOnce(Option<String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let served = Served::find(args)?;
    let pool_root = served.root().to_owned();
    let given = mount_options::parse(&pool_root, &args.options)?;
    served.check(&given)?;
    let options = &given.mount;
    let mountpoint = mount::examine_for(&served.directories(), &args.mountpoint)?;
    let log_file = log_file(args, &given, &pool_root, &mountpoint.path)?;
    // Register signals before anything is mounted, so that none comes too early.
    let (events, happened) = unbounded();
    watch_signals(events.clone())?;
    let filters = given.filters.as_ref().unwrap_or(&args.filters);
    let memory_bytes = given.memory_bytes.unwrap_or(args.memory);
    let warnings: Vec<String> = filters.warning().into_iter().chain(size::beyond_machine(memory_bytes)).collect();
    notifier.status("opening the pool");
    let pool = served.open(&OpenOptions {
        memory_bytes,
        read_only: options.read_only,
        note: format!("dedupfs mount on {}", mountpoint.path.display()),
        commit_interval: COMMIT_INTERVAL,
        filters: filters.clone(),
        limits: given.limits,
        access_times: given.access_times(),
        ..OpenOptions::default()
    })?;
    if let Some(path) = &log_file
        && let Err(error) = log.switch_to(path)
    {
        if !(lacks_room(&error) || options.read_only && is_unwritable(&error)) {
            access::close(&pool)?;
            return Err(Failure::failed(format!("cannot write the log {}: {error}", path.display())));
        }
        tracing::warn!(%error, "no log is kept: cannot write {}", path.display());
        log.release();
    }
    if served.is_pool()
        && let Some(seek) = pool.measure_seeks()
    {
        tracing::info!(microseconds = seek.as_micros() as u64, "a seek of the data disk");
    }
    let listening = mount_and_listen(&pool, &served, &mountpoint, &given, &events);
    let (daemon, server) = match listening {
        Ok(listening) => listening,
        Err(failure) => {
            access::close(&pool)?;
            return Err(failure);
        }
    };
    tracing::info!(
        pool = %pool_root.display(),
        mountpoint = %mountpoint.path.display(),
        version = env!("CARGO_PKG_VERSION"),
        "mounted"
    );
    let notices = [served.notice(), notice(&pool, &warnings, mountpoint.is_dead)];
    let notices: Vec<String> = notices.into_iter().flatten().collect();
    if let Err(failure) = ready((!notices.is_empty()).then(|| notices.join("; "))) {
        tracing::error!(%failure, "a step after mounting failed: the mount serves nevertheless");
    }
    // After the notice: a daemon without a log has left the terminal, which shows each warning once.
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    notifier.ready(&format!("serving {} on {}", pool_root.display(), mountpoint.path.display()));
    let background = Background::start(&pool, given.gc).unwrap_or_else(|failure| {
        tracing::error!(%failure, "nothing is reclaimed in the background");
        None
    });
    if served.is_pool()
        && let Err(error) = pool.watch_export()
    {
        tracing::error!(%error, "the export on the data root is not verified by this mount");
    }
    let session_result = wait_for_end(&daemon, &happened, notifier);
    notifier.stopping("unmounted, making everything durable");
    if let Some(background) = background {
        background.stop(&pool);
    }
    served.log_end();
    finish(&daemon, server, session_result)
}

fn notice(pool: &Pool, warnings: &[String], was_dead: bool) -> Option<String> {
    let interval_s = COMMIT_INTERVAL.as_secs();
    let nothing_to_do = || {
        format!(
            "the last daemon ended without unmounting. There was nothing to recover, but unsynced writes of its last \
             {interval_s} seconds may be missing"
        )
    };
    let recovered = pool.notice().or_else(|| was_dead.then(nothing_to_do));
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    let notices: Vec<String> = recovered.into_iter().chain(warnings).collect();
    (!notices.is_empty()).then(|| notices.join("; "))
}

fn log_file(
    args: &MountArgs,
    given: &Options,
    pool_root: &Path,
    mountpoint: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let usage = |message: String| FailureKind::Usage.because(message);
    let Some(given) = given.log_file.as_ref().or(args.log_file.as_ref()) else {
        return Ok(args.daemon_child.then(|| pool_root.join(LOG_NAME)));
    };
    let path = std::path::absolute(given).map_err(|error| usage(format!("log file {}: {error}", given.display())))?;
    if mountinfo::contains(mountpoint, &path) {
        // Writing the log would wait for the daemon, which would wait for the log.
        return Err(usage(format!("log file {} lies below the mountpoint: choose another place", given.display())));
    }
    Ok(Some(path))
}

fn watch_signals(events: Sender<Event>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    spawn("signals", move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

/// Starts a thread that nobody joins.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
}

fn mount_and_listen(
    pool: &Arc<Pool>,
    served: &Served,
    mountpoint: &Mountpoint,
    given: &Options,
    events: &Sender<Event>,
) -> Result<(Arc<Daemon>, ControlServer), Failure> {
    let (options, pool_root) = (&given.mount, served.root());
    if mountpoint.is_dead {
        tracing::warn!(mountpoint = %mountpoint.path.display(), "removing the dead mount that a killed daemon left");
        mount::detach(&mountpoint.path)?;
    }
    if let Some(warning) = mount::hidden_files(&mountpoint.path) {
        tracing::warn!("{warning}");
    }
    // The thread that receives the kernel's requests must not wait for a disk.
    waiting::listen(waiting::Listener {
        is_concerned: dedupfs_fuse::is_receiving,
        about_to_wait: dedupfs_fuse::about_to_wait,
    });
    let is_dispensable = |error: &std::io::Error| options.read_only && is_unwritable(error);
    let socket = PoolSocket::bind(pool_root, is_dispensable).map_err(|error| no_socket(pool_root, &error))?;
    let session = dedupfs_fuse::mount(pool.service(), &mountpoint.path, options)?;
    // After detaching, the mount cannot be found by its place any more.
    let device = target::mounted_at(session.mountpoint()).ok().flatten().map(|mount| mount.device);
    let daemon = Arc::new(Daemon {
        pool: pool.clone(),
        is_view: !served.is_pool(),
        session,
        device: device.clone(),
        gc: given.gc,
        transfers: Transfers::default(),
        end: End::default(),
    });
    let waiting = daemon.clone();
    let events = events.clone();
    let started = spawn("session-end", move || {
        // The main thread may have stopped listening: then it knows.
        let _ = events.send(Event::Ended(waiting.session.wait()));
    });
    let server = started.and_then(|()| {
        let started = ControlServer::start(pool_root, socket, device.as_deref(), daemon.clone());
        started.map_err(|error| no_socket(pool_root, &error))
    });
    match server {
        Ok(server) => Ok((daemon, server)),
        Err(failure) => {
            if let Err(error) = daemon.session.unmount(BUSY_PATIENCE) {
                tracing::error!(%error, "cannot unmount after a failed start");
                daemon.session.detach();
            }
            Err(failure)
        }
    }
}

fn is_unwritable(error: &io::Error) -> bool {
    lacks_room(error) || error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

fn no_socket(pool_root: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot listen on the pool's control socket: {error}");
    match error.kind() {
        io::ErrorKind::AddrInUse => FailureKind::PoolInUse.because(format!(
            "{message}: another daemon answers there; `dedupfs umount {}` ends it",
            pool_root.display()
        )),
        _ if lacks_room(error) => FailureKind::NoSpace.because(format!("{message}; {}", room::advice(pool_root))),
        _ => Failure::failed(message),
    }
}

fn wait_for_end(daemon: &Daemon, happened: &Receiver<Event>, notifier: &Notifier) -> Result<(), Failure> {
    let session = &daemon.session;
    let is_connected = || session.is_connected();
    let ended = |result: Result<(), MountError>| Ok(result?);
    match happened.recv() {
        Ok(Event::Ended(result)) => return ended(result),
        Ok(Event::Signal(signal)) => {
            tracing::info!(signal, "unmounting because of a signal");
            notifier.stopping("unmounting");
            // Users that wait for transfers have files open.
            daemon.transfers.stop_and_wait(|| !happened.is_empty());
        }
        Err(_) => return Err(Failure::failed("the daemon's threads are gone")),
    }
    match unmount_here(session) {
        // The filesystem may also be mounted in other mount namespaces, or only there.
        Ok(()) => {
            if let Some(result) = ended_within(BUSY_PATIENCE, happened, is_connected) {
                return ended(result);
            }
            tracing::warn!(
                "still mounted in another mount namespace (a container's or a service's), which may use it for another \
                 {} s",
                DETACHED_TIMEOUT.as_secs()
            );
        }
        Err(error) => {
            tracing::warn!(%error, "detaching: open files may be used for another {} s", DETACHED_TIMEOUT.as_secs());
            session.detach();
        }
    }
    // A second signal ends this wait at once.
    if let Some(result) = ended_within(DETACHED_TIMEOUT, happened, is_connected) {
        return ended(result);
    }
    tracing::warn!("files are still open, or another mount namespace has the mount: cutting its users off");
    abort_connection(daemon.device.as_deref());
    match ended_within(ABORTED_TIMEOUT, happened, is_connected) {
        Some(result) => ended(result),
        None => {
            tracing::warn!("the session goes on: closing the pool below it");
            Ok(())
        }
    }
}

/// Unmounts here, retrying for [`BUSY_PATIENCE`] while the mount is busy. Does not wait for the session's end.
fn unmount_here(session: &MountedSession) -> Result<(), MountError> {
    let deadline = Instant::now() + BUSY_PATIENCE;
    while !session.is_finished() {
        match dedupfs_fuse::unmount_path(session.mountpoint()) {
            // Another process was faster.
            Ok(()) | Err(MountError::NotMounted { .. }) => return Ok(()),
            Err(MountError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(BUSY_RETRY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Aborts a FUSE connection. Its number is the minor number of the mount's device.
fn abort_connection(device: Option<&str>) {
    let Some((_, connection)) = device.and_then(|device| device.split_once(':')) else { return };
    if let Err(error) = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1") {
        tracing::warn!(%error, "cannot abort the FUSE connection");
    }
}

fn finish(daemon: &Arc<Daemon>, mut server: ControlServer, session: Result<(), Failure>) -> Result<(), Failure> {
    server.stop_listening();
    daemon.transfers.stop_and_wait(|| false);
    let closed = access::close(&daemon.pool);
    match &closed {
        Ok(()) => tracing::info!("unmounted, everything is durable"),
        Err(failure) => tracing::error!(%failure, "not everything could be made durable"),
    }
    daemon.end.tell(closed.clone());
    if !server.finish(ANSWER_TIMEOUT) {
        tracing::warn!("ending although a tool still waits for an answer");
    }
    closed?;
    session
}
