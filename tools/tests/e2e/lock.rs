//! One daemon for one pool, even after files are removed; and the daemon keeps no foreign descriptor.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::administration::administrate;
use crate::command::{DEDUPFS, Tool};
use crate::random::noise;
use crate::site::Site;

/// A daemon checks its lock with each commit, every 5 s at least.
const NOTICED_TIMEOUT: Duration = Duration::from_secs(20);

fn replace(path: &Path) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    fs::rename(&copy, path).unwrap();
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + NOTICED_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two daemons wrote one pool and destroyed its namespace.
#[test]
fn regression_a_removed_lock_lets_no_second_daemon_in() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let kept = noise(1, 3 << 20);
    fs::write(site.mnt.join("kept"), &kept).unwrap();
    site.sync();
    let other = site.base.join("other");
    fs::create_dir(&other).unwrap();
    let mount_again = || Tool::new(DEDUPFS).arg("mount").args([&site.pool, &other]).run();
    let note = fs::read_to_string(site.pool.join("lock")).unwrap();
    let daemon = Pid::from_raw(note.split(' ').next().unwrap().parse().unwrap()).unwrap();

    fs::remove_file(site.pool.join("lock")).unwrap();
    mount_again().expect(4, &["is in use by another process, whose file `lock` was removed"]);
    // No file remains that the daemon has locked.
    replace(&site.pool.join("dedupfs.meta"));
    replace(&site.pool.join("dedupfs.data"));
    mount_again().expect(4, &["answers at its control socket"]);
    // No other pool may be made of its data either.
    let recover = Tool::new(DEDUPFS).args(["recover", "--force", "--yes", "--data"]);
    recover.args([&site.pool, &site.base.join("recovered")]).run().expect(4, &["answers at its control socket"]);

    // The first one notices, and writes nothing more.
    let mut number = 0;
    let mut refusal = None;
    wait_until("the daemon goes on although its lock is lost", || {
        number += 1;
        let written = File::create(site.mnt.join(number.to_string())).and_then(|mut file| file.write_all(b"new"));
        refusal = written.err();
        refusal.is_some()
    });
    assert_eq!(refusal.as_ref().and_then(Errno::from_io_error), Some(Errno::ROFS), "{refusal:?}");
    assert!(fs::read(site.mnt.join("kept")).unwrap() == kept);
    let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    assert!(log.contains("was removed or replaced while the pool was in use"), "{log}");
    Tool::new(DEDUPFS).arg("sync").arg(&site.mnt).run().expect(4, &["was removed or replaced"]);
    let ended = Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).run();
    assert!(ended.code != 0 && !site.is_mounted(), "{}", ended.said());
    wait_until("the daemon does not end", || test_kill_process(daemon).is_err() || is_zombie(daemon));

    site.mount();
    assert!(fs::read(site.mnt.join("kept")).unwrap() == kept);
    site.umount();
    site.assert_clean();
}

fn is_zombie(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// A copy of the meta root names the same data root.
#[test]
fn regression_two_meta_roots_do_not_share_a_data_root_whose_lock_was_removed() {
    if !crate::machine::is_fit() {
        return;
    }
    let site = Site::with(|base| (base.join("pool"), base.join("data")));
    let copy = site.base.join("copy");
    site.mount();
    // The copy is of a pool in use: the data root would recognize an older one.
    site.sync();
    Tool::new("cp").arg("-a").args([&site.pool, &copy]).ok();
    let other = site.base.join("other");
    fs::create_dir(&other).unwrap();
    fs::remove_file(site.data.join("lock")).unwrap();
    Tool::new(DEDUPFS).arg("mount").args([&copy, &other]).run().expect(4, &["data is in use by"]);
    let ended = Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).run();
    assert!(!site.is_mounted(), "{}", ended.said());
    site.assert_clean();
}

/// `flock LOCK dedupfs mount POOL MNT` kept LOCK until the pool was unmounted.
#[test]
fn regression_the_daemon_keeps_no_descriptor_that_it_inherited() {
    let Some(site) = Site::if_fit() else { return };
    let lock = site.base.join("backup.lock");
    Tool::new("flock").arg(&lock).arg(DEDUPFS).arg("mount").args([&site.pool, &site.mnt]).ok();
    Tool::new("flock").arg("--nonblock").arg(&lock).arg("true").run().expect(0, &[]);
    assert!(site.is_mounted());
    site.umount();
}

/// The daemon waited for ever for the mount of the other namespace to end.
#[test]
fn regression_a_second_signal_ends_a_daemon_whose_mount_lives_on_elsewhere() {
    let Some(site) = Site::if_fit() else { return };
    let script = r#"
$dedupfs mount "$pool" "$mnt"
echo kept >"$mnt/kept"
daemon=$(cut -d' ' -f1 "$pool/lock")
unshare --mount --propagation private sleep 600 &
other=$!
while [ "$(readlink /proc/$other/ns/mnt)" = "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.01; done
kill "$daemon"
sleep 3
flock --nonblock "$pool/lock" true && echo "it did not wait for the other namespace"
kill "$daemon"
for try in $(seq 80); do
    flock --nonblock "$pool/lock" true && break
    sleep 0.1
done
ended=$(flock --nonblock "$pool/lock" true && echo yes || echo no)
kill "$other"
[ "$ended" = yes ] || { kill -9 "$daemon"; echo "FAILED: the daemon survives two signals"; exit 1; }
"#;
    let ran = administrate(&site, script);
    assert!(!ran.said().contains("did not wait"), "{}", ran.said());
    site.mount();
    assert_eq!(fs::read_to_string(site.mnt.join("kept")).unwrap(), "kept\n");
    site.umount();
    site.assert_clean();
    // One signal is enough in the end.
    let site = Site::new();
    let ran = administrate(
        &site,
        r#"
$dedupfs mount "$pool" "$mnt"
daemon=$(cut -d' ' -f1 "$pool/lock")
unshare --mount --propagation private sleep 600 &
other=$!
while [ "$(readlink /proc/$other/ns/mnt)" = "$(readlink /proc/$$/ns/mnt)" ]; do sleep 0.01; done
kill "$daemon"
for try in $(seq 300); do
    flock --nonblock "$pool/lock" true && break
    sleep 0.1
done
ended=$(flock --nonblock "$pool/lock" true && echo yes || echo no)
kill "$other"
[ "$ended" = yes ] || { kill -9 "$daemon"; echo "FAILED: the daemon survives a signal"; exit 1; }
"#,
    );
    ran.expect(0, &[]);
}
