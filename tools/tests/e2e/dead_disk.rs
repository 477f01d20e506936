//! The filesystem under the pool is gone beneath the daemon: every access to its directory fails.

use std::fs;
use std::time::{Duration, Instant};

use crate::command::{DEDUPFS, Tool};
use crate::disk::{Disk, Filesystem};
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// The smallest disk that mkfs.xfs formats.
const DISK_BYTES: u64 = 300 << 20;
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Mounts a pool on an XFS, with a file that was synced. Also returns the daemon's process id.
fn mounted_on(disk: &Disk) -> (Site, String) {
    let site = Site::with(|_| (disk.mountpoint.join("pool"), disk.mountpoint.join("pool")));
    let log = site.base.join("log");
    Tool::new(DEDUPFS).args(["mount", "--log-file"]).args([&log, &site.pool, &site.mnt]).ok();
    fs::write(site.mnt.join("kept"), noise(1, 3 << 20)).unwrap();
    site.sync();
    let note = fs::read_to_string(site.pool.join("lock")).unwrap();
    let daemon = note.split(' ').next().unwrap().to_owned();
    assert!(is_running(&daemon));
    (site, daemon)
}

fn is_running(daemon: &str) -> bool {
    fs::read_to_string(format!("/proc/{daemon}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Checks that the daemon ends, and that synced files are there once the disk is back.
#[track_caller]
fn assert_kept(site: &Site, daemon: &str, disk: &Disk) {
    assert!(!site.is_mounted());
    let deadline = Instant::now() + END_TIMEOUT;
    while is_running(daemon) {
        assert!(Instant::now() < deadline, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    disk.mount_again();
    site.mount();
    assert!(fs::read(site.mnt.join("kept")).unwrap() == noise(1, 3 << 20));
    site.umount();
    site.assert_clean();
}

/// Tools failed with EIO at the path of the socket, and could not end the mount.
#[test]
fn regression_tools_reach_the_daemon_of_a_pool_whose_filesystem_has_shut_down() {
    if !is_fit() {
        return;
    }
    let disk = Disk::of(Filesystem::Xfs, DISK_BYTES);
    let (site, daemon) = mounted_on(&disk);
    disk.shut_down();
    // The answer must be the daemon's report about its disk, not that the daemon is out of reach.
    let _unsynced = fs::write(site.mnt.join("new"), "new");
    let synced = Tool::new(DEDUPFS).arg("sync").arg(&site.mnt).run().expect(1, &[]);
    assert!(!synced.err.contains("reach the daemon"), "{}", synced.said());
    let ended = Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).run().expect(1, &[]);
    assert!(!ended.err.contains("reach the daemon"), "{}", ended.said());
    assert_kept(&site, &daemon, &disk);
}

/// In another network namespace the abstract socket is not reachable.
#[test]
fn regression_umount_ends_the_mount_of_a_daemon_that_is_out_of_reach() {
    if !is_fit() {
        return;
    }
    let disk = Disk::of(Filesystem::Xfs, DISK_BYTES);
    let (site, daemon) = mounted_on(&disk);
    disk.shut_down();
    let ended = Tool::new("unshare").args(["--net", DEDUPFS, "umount"]).arg(&site.mnt).run();
    ended.expect(1, &["unmounting without it", "whether everything is durable is not known"]);
    assert_kept(&site, &daemon, &disk);
}

/// Any user can reach the abstract socket: by connecting repeatedly, one could lock root's tools out.
#[test]
fn regression_other_users_do_not_keep_tools_from_the_daemon() {
    const KNOCKS: &str = "
import os, socket, sys
os.setgid(65534); os.setuid(65534)
# Daemons of other tests are left alone.
names = {line.split()[-1] for line in open('/proc/net/unix') if '@dedupfs/' + sys.argv[1] + '/' in line}
assert names, 'no socket without a file'
sockets = []
for name in names:
    for _ in range(40):
        knock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        knock.settimeout(10)
        knock.connect('\\0' + name[1:])
        sockets.append(knock)
print('knocked', flush=True)
sys.stdin.read()
";
    let Some(site) = Site::if_fit() else { return };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    site.mount();
    let device = rustix::fs::stat(&site.mnt).unwrap().st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mut python = std::process::Command::new("python3")
        .args(["-c", KNOCKS, &device])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(python.stdout.take().unwrap()), &mut line).unwrap();
    assert_eq!(line.trim(), "knocked");
    for _ in 0..20 {
        site.sync();
    }
    drop(python.stdin.take());
    assert!(python.wait().unwrap().success());
    site.umount();
}
