//! A mount under systemd: its messages to the service manager, its log in the journal, and its units.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::{DEDUPFS, Tool};
use crate::machine::is_fit;
use crate::site::{Site, is_free};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A service manager's end of the socket.
struct Manager(UnixDatagram);

impl Manager {
    /// Receives the next message.
    #[track_caller]
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let len = self.0.recv(&mut bytes).expect("the daemon says nothing");
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    /// Skips messages until one has this line.
    #[track_caller]
    fn wait_for(&self, line: &str) -> String {
        loop {
            let message = self.next();
            if message.lines().any(|told| told == line) {
                return message;
            }
        }
    }
}

/// The daemon, killed if the test ends first.
struct Service(Child);

impl Service {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(site: &Site, errors: &File, variables: &[(&str, String)]) -> Service {
    let mut command = Command::new(DEDUPFS);
    command.args(["mount", "--foreground", "--memory", "256M"]).args([&site.pool, &site.mnt]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone().unwrap());
    Service(command.spawn().unwrap())
}

#[test]
fn the_service_manager_is_told_and_the_journal_gets_levels() {
    let Some(site) = Site::if_fit() else { return };
    let path = site.base.join("notify");
    let manager = Manager(UnixDatagram::bind(&path).unwrap());
    manager.0.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut errors = tempfile::tempfile().unwrap();
    let stream = errors.metadata().unwrap();
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap().to_owned()),
        ("JOURNAL_STREAM", format!("{}:{}", stream.dev(), stream.ino())),
    ];
    let mut service = start(&site, &errors, &variables);
    assert!(manager.next().starts_with("STATUS="), "it does not say what it begins with");
    let ready = manager.wait_for("READY=1");
    assert!(ready.contains("STATUS=serving") && ready.contains(site.mnt.to_str().unwrap()), "{ready}");
    // Reported only once it serves.
    assert!(site.is_mounted());
    fs::write(site.mnt.join("file"), "not synced").unwrap();
    service.signal(Signal::TERM);
    manager.wait_for("STOPPING=1");
    assert_eq!(service.end(), Some(0));
    assert!(!site.is_mounted() && is_free(&site.pool));
    let mut said = String::new();
    errors.rewind().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.lines().any(|line| line.starts_with("<6>mounted pool=")), "{said}");
    assert!(said.lines().all(|line| line.starts_with('<')), "{said}");
    site.mount();
    assert_eq!(fs::read_to_string(site.mnt.join("file")).unwrap(), "not synced");
    site.umount();
    site.assert_clean();
}

#[test]
fn lines_for_no_journal_have_times() {
    let Some(site) = Site::if_fit() else { return };
    let mut errors = tempfile::tempfile().unwrap();
    // Of another stream than its standard error.
    let mut service = start(&site, &errors, &[("JOURNAL_STREAM", "1:2".to_owned())]);
    let deadline = Instant::now() + TIMEOUT;
    while !site.is_mounted() {
        assert!(Instant::now() < deadline, "it does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    service.signal(Signal::INT);
    assert_eq!(service.end(), Some(0));
    let mut said = String::new();
    errors.rewind().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("20") && said.contains(" INFO mounted"), "{said}");
}

/// A mount in the background notifies no service manager, and prints none of its log where it was started.
#[test]
fn regression_the_log_of_a_recovery_is_not_printed_by_mount() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fs::write(site.mnt.join("file"), "content").unwrap();
    site.sync();
    site.kill_daemon();
    let said = site.try_mount().expect(0, &["dedupfs: the "]).said();
    assert_eq!(said.lines().count(), 1, "{said}");
    let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    assert!(!log.contains('\u{1b}'), "{log}");
    site.umount();
}

#[test]
fn units_are_sound() {
    if !is_fit() {
        return;
    }
    let analyze = Path::new("/usr/bin/systemd-analyze");
    if !analyze.exists() {
        eprintln!("left out: no systemd-analyze (package systemd)");
        return;
    }
    let directory = tempfile::Builder::new().prefix("dedupfs-units-").tempdir().unwrap();
    let programs = Path::new(DEDUPFS).parent().unwrap().to_str().unwrap();
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")).unwrap() {
        let entry = entry.unwrap();
        let text = fs::read_to_string(entry.path()).unwrap().replace("@bindir@", programs);
        assert!(!text.contains("@bin"), "{}", entry.path().display());
        let name = entry.file_name().into_string().unwrap();
        fs::write(directory.path().join(&name), text).unwrap();
        // An instance of each.
        names.push(directory.path().join(name.replace('@', "@mnt-backup")));
    }
    assert_eq!(names.len(), 7);
    let said = Tool::new(analyze).args(["verify", "--man=no", "--recursive-errors=no"]).args(names).ok().said();
    assert!(!said.contains("dedupfs"), "{said}");
}
