//! A replica is read where its pool is not.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Copied, directory, moto, tool};
use crate::command::{DEDUPFS, STATS, Tool};
use crate::compare::{assert_same_content, assert_same_tree};
use crate::machine::is_fit;

/// A mount of the replica, unmounted when dropped.
struct Viewed<'a> {
    copied: &'a Copied,
    mnt: PathBuf,
    cache: PathBuf,
}

impl<'a> Viewed<'a> {
    fn new(copied: &'a Copied, name: &str) -> Self {
        let (mnt, cache) = (copied.site.base.join(name), copied.site.base.join(format!("{name}.cache")));
        fs::create_dir(&mnt).unwrap();
        Self { copied, mnt, cache }
    }

    fn mount(&self) -> Tool {
        self.mount_on(&self.mnt)
    }

    fn mount_on(&self, mnt: &Path) -> Tool {
        let options = format!("ro,cache={},cache_size=64M", self.cache.display());
        let mount = tool(&["mount", "--memory", "256M", "-o", &options]).arg("--key").arg(&self.copied.key);
        mount.arg(&self.copied.store).arg(mnt)
    }

    fn umount(&self) {
        Tool::new(DEDUPFS).arg("umount").arg(&self.mnt).ok();
    }

    /// A command that reads the replica by itself.
    fn read(&self, command: &[&str]) -> Tool {
        tool(command).arg("--key").arg(&self.copied.key).arg("--cache").arg(&self.cache)
    }
}

impl Drop for Viewed<'_> {
    fn drop(&mut self) {
        let _not_mounted = Command::new(DEDUPFS).arg("umount").arg(&self.mnt).stderr(Stdio::null()).status();
    }
}

/// Follows a pool: a view of each commit has what the pool had, and opens again without it.
#[track_caller]
fn follow(copied: &Copied) {
    copied.fill(1);
    copied.replicate(&[]).ok();
    let viewed = Viewed::new(copied, "view");
    assert!(viewed.mount().ok().err.contains("commit 2 of "));
    assert_same_tree(&copied.site.mnt, &viewed.mnt);
    Tool::new(DEDUPFS).arg("list").arg(&viewed.mnt).run().expect(0, &["tree-1"]);
    Tool::new(STATS).arg(&viewed.mnt).ok();
    let refused = fs::write(viewed.mnt.join("new"), "new").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    // The pool goes on, reclaims, and its replica does, while it is read.
    copied.fill(2);
    fs::remove_dir_all(copied.site.mnt.join("live-1")).unwrap();
    copied.site.gc();
    copied.replicate(&[]).ok();
    std::thread::sleep(Duration::from_secs(2));
    copied.of_store(&["replica", "gc", "--grace", "1s"]).ok();
    assert_same_content(&copied.site.mnt.join("tree-1"), &viewed.mnt.join("tree-1"));
    assert!(viewed.mnt.join("live-1").exists() && !viewed.mnt.join("tree-2").exists());
    viewed.umount();
    assert!(viewed.mount().ok().err.contains("commit 3 of "));
    assert_same_tree(&copied.site.mnt, &viewed.mnt);
    viewed.umount();
    assert_eq!(fs::metadata(&viewed.cache).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_replica_in_a_directory_is_read_as_the_pool() {
    if is_fit() {
        follow(&Copied::new(directory));
    }
}

#[test]
fn a_replica_in_a_bucket_is_read_as_the_pool() {
    let Some(moto) = is_fit().then(moto::Moto::start).flatten() else { return };
    moto.create_bucket("backups");
    let copied = Copied::new(|_| format!("s3://backups/a/pool?endpoint=http://127.0.0.1:{}", moto.port));
    follow(&copied);
    let viewed = Viewed::new(&copied, "reader");
    let at = |name: &str| copied.store.replace("/a/pool?", &format!("/a/pool/{name}?"));
    let out = copied.site.base.join("out");
    viewed.read(&["get"]).arg(at("tree-2")).arg(&out).ok();
    assert_same_content(&copied.site.mnt.join("tree-2"), &out);
    viewed.read(&["list"]).arg(&copied.store).run().expect(0, &["tree-1", "tree-2"]);
    viewed.read(&["diff"]).arg(at("tree-1")).arg(at("tree-2")).run().expect(0, &["with other content"]);
    // Without the store, what was read before is not served as if it were the newest state.
    drop(moto);
    viewed.read(&["list"]).arg(&copied.store).run().expect(1, &["for now"]);
}

/// One file, versions and differences, without a mount of one's own. Nothing is left behind, however the command ends.
#[test]
fn versions_of_a_replica_are_listed_compared_and_copied() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(1);
    copied.fill(2);
    copied.replicate(&[]).ok();
    let viewed = Viewed::new(&copied, "reader");
    let at = |name: &str| format!("file://{}/{name}", copied.store);
    let out = copied.site.base.join("out");
    viewed.read(&["get"]).arg(at("tree-2/large")).arg(&out).ok();
    assert_eq!(fs::read(&out).unwrap(), fs::read(copied.site.mnt.join("tree-2/large")).unwrap());
    viewed.read(&["list"]).arg(at("")).run().expect(0, &["tree-1", "tree-2", "2 versions"]);
    // A path into the directory does, too.
    viewed.read(&["list"]).arg(&copied.store).run().expect(0, &["2 versions"]);
    let second = copied.site.base.join("second");
    viewed.read(&["get"]).arg(format!("{}/tree-1/large", copied.store)).arg(&second).ok();
    assert_eq!(fs::read(&second).unwrap(), fs::read(copied.site.mnt.join("tree-1/large")).unwrap());
    viewed.read(&["history"]).arg(at("")).arg("large").run().expect(0, &["tree-1"]);
    // As the first process of a container.
    let first = Tool::new("unshare").args(["-pf", "--mount-proc"]).arg(DEDUPFS).args(["list", &at("")]);
    let first = first.arg("--key").arg(&copied.key).arg("--cache").arg(&viewed.cache);
    first.env("DEDUPFS_PASSPHRASE", "correct horse").run().expect(0, &["2 versions"]);
    viewed.read(&["diff"]).arg(at("tree-1")).arg(at("tree-2")).run().expect(0, &["with other content"]);
    let absent = viewed.read(&["get"]).arg(at("absent")).arg(copied.site.base.join("none")).run();
    absent.expect(1, &["No such file", &at("absent")]);
    viewed.read(&["get"]).arg(at("tree-1")).arg(&out).run().expect(2, &["is there already"]);
    let mut killed = Command::new(DEDUPFS);
    killed.args(["get", &at("tree-1")]).arg(copied.site.base.join("cut")).arg("--key").arg(&copied.key);
    killed.arg("--cache").arg(&viewed.cache).env("DEDUPFS_PASSPHRASE", "correct horse");
    let mut killed = killed.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    killed.kill().unwrap();
    killed.wait().unwrap();
    // The daemon ends with its command.
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_mounted = || mounts().contains(viewed.cache.to_str().unwrap());
    let begun = std::time::Instant::now();
    while is_mounted() && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_mounted(), "{}", mounts());
    viewed.read(&["list"]).arg(at("")).ok();
    let left = fs::read_dir(&viewed.cache)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("mnt-"));
    assert_eq!(left.count(), 0);
}

#[test]
fn mistakes_of_readers_are_told_with_advice() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(1);
    copied.replicate(&[]).ok();
    let viewed = Viewed::new(&copied, "view");
    let store = Path::new(&copied.store);
    tool(&["mount"]).arg(store).arg(&viewed.mnt).run().expect(2, &["only read", "-o ro"]);
    tool(&["mount", "-o", "ro"]).arg(store).arg(&viewed.mnt).run().expect(2, &["--key FILE"]);
    viewed.mount().env("DEDUPFS_PASSPHRASE", "wrong").run().expect(2, &["wrong passphrase"]);
    let with_cache = |target: &Path| tool(&["mount", "-o", "ro,cache=/tmp/c"]).arg(target).arg(&viewed.mnt).run();
    copied.site.umount();
    with_cache(&copied.site.pool).expect(2, &["are for replicas"]);
    copied.site.mount();
    viewed
        .read(&["get", "file:///absent/name"])
        .arg(copied.site.base.join("out"))
        .run()
        .expect(2, &["not in a replica"]);
    viewed.mount().ok();
    // The cache has one user.
    let again = Viewed::new(&copied, "again");
    let options = format!("ro,cache={}", viewed.cache.display());
    let second = tool(&["mount", "-o", &options]).arg("--key").arg(&copied.key).arg(store).arg(&again.mnt);
    second.run().expect(4, &["--cache DIR"]);
    Tool::new(DEDUPFS).arg("scrub").arg(&viewed.mnt).run().expect(16, &["replica verify"]);
    // Its daemon is killed: the same command brings the mount back.
    let daemon = Tool::new("pgrep").arg("-f").arg(format!("daemon-child.*{}$", viewed.mnt.display())).ok().text();
    let daemon = rustix::process::Pid::from_raw(daemon.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    viewed.mount().ok();
    assert!(viewed.mnt.join("tree-1").exists());
    viewed.umount();
    let root = Tool::new("find").arg(&viewed.cache).args(["-name", "dedupfs.meta"]).ok().text();
    let root = Path::new(root.trim()).parent().unwrap().to_owned();
    tool(&["mount"]).arg(&root).arg(&viewed.mnt).run().expect(3, &["view of a replica", &copied.store]);
    for inside in [store, viewed.cache.as_path()] {
        viewed.mount_on(inside).run().expect(8, &["in each other"]);
    }
    let options = format!("ro,cache={}", store.join("c").display());
    let mount = tool(&["mount", "-o", &options]).arg("--key").arg(&copied.key).arg(store).arg(&viewed.mnt);
    mount.run().expect(2, &["in each other"]);
    let options = format!("ro,cache={}", copied.site.base.join("no/such").display());
    let mount = tool(&["mount", "-o", &options]).arg("--key").arg(&copied.key).arg(store).arg(&viewed.mnt);
    mount.run().expect(2, &["make it first"]);
    // A file in the place of the cache.
    let file = copied.site.base.join("file");
    fs::write(&file, "").unwrap();
    let options = format!("ro,cache={}", file.display());
    let mount = tool(&["mount", "-o", &options]).arg("--key").arg(&copied.key).arg(store).arg(&viewed.mnt);
    mount.run().expect(1, &["cannot use the directory"]);
}

/// Content that is damaged in the cache comes from the store again; content that is gone there gives errors, and the rest is read.
#[test]
fn damage_is_met_with_the_store_and_loss_with_errors() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(1);
    copied.replicate(&[]).ok();
    let viewed = Viewed::new(&copied, "view");
    viewed.mount().ok();
    assert_same_tree(&copied.site.mnt, &viewed.mnt);
    viewed.umount();
    let files = Tool::new("find").arg(&viewed.cache).args(["-path", "*/objects/*", "-type", "f"]).ok().text();
    assert!(files.lines().count() > 2, "{files}");
    for file in files.lines() {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
    }
    viewed.mount().ok();
    assert_same_tree(&copied.site.mnt, &viewed.mnt);
    viewed.umount();
    Tool::new("find").arg(&viewed.cache).args(["-path", "*/objects/*", "-type", "f", "-delete"]).ok();
    let content =
        Tool::new("find").arg(Path::new(&copied.store).join("c")).args(["-type", "f", "-size", "+1M"]).ok().text();
    fs::remove_file(content.lines().next().unwrap()).unwrap();
    assert!(viewed.mount().ok().err.contains("is read"));
    let (whole, broken): (Vec<_>, Vec<_>) = fs::read_dir(viewed.mnt.join("tree-1"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .partition(|path| fs::read(path).is_ok());
    assert!(!broken.is_empty());
    for path in whole {
        let original = copied.site.mnt.join("tree-1").join(path.file_name().unwrap());
        assert!(fs::read(&path).unwrap() == fs::read(original).unwrap(), "{}", path.display());
    }
    viewed.umount();
}

/// Flipped bytes of the pool's own disk: what is lost here comes back from the replica, and nothing stays lost.
#[test]
fn a_scrub_heals_from_a_replica() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(1);
    copied.replicate(&[]).ok();
    let sound = copied.site.base.join("sound");
    Tool::new(DEDUPFS).arg("get").arg(copied.site.mnt.join("tree-1")).arg(&sound).ok();
    copied.site.umount();
    for entry in fs::read_dir(copied.site.pool.join("containers")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        (0..bytes.len() - 5000).step_by(1 << 20).for_each(|at| bytes[at + 5000] ^= 0x10);
        fs::write(&path, bytes).unwrap();
    }
    copied.site.mount();
    let cache = copied.site.base.join("heal.cache");
    let scrub = |store: &str| {
        let scrub = tool(&["scrub", "--restart", "--heal-from", store]).arg(&copied.site.mnt);
        scrub.arg("--key").arg(&copied.key).arg("--cache").arg(&cache)
    };
    // Another pool's replica is refused, and the scrub has its result.
    let (other, other_store) = (copied.site.base.join("other"), copied.site.base.join("other.store"));
    Tool::new(DEDUPFS).arg("mkfs").arg(&other).ok();
    fs::create_dir(&other_store).unwrap();
    tool(&["replicate", "--init", "--key"]).arg(&copied.key).args([&other, &other_store]).ok();
    scrub(other_store.to_str().unwrap()).run().expect(16, &["is a replica of pool"]);
    scrub("/absent").run().expect(16, &["/absent"]);
    scrub(&copied.store).run().expect(1, &["healed: ", "nothing is lost any more"]);
    scrub(&copied.store).run().expect(0, &["nothing is lost"]);
    assert_same_content(&sound, &copied.site.mnt.join("tree-1"));
    copied.site.umount();
    Tool::new(DEDUPFS).args(["fsck", "--read-data"]).arg(&copied.site.pool).run().expect(0, &["clean"]);
    copied.site.mount();
    assert_same_content(&sound, &copied.site.mnt.join("tree-1"));
}
