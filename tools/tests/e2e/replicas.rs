//! A pool is copied to a store of objects while it is used, and made anew on another machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::{DEDUPFS, STATS, Tool};
use crate::compare::assert_same_tree;
use crate::files::Plan;
use crate::machine::is_fit;
use crate::random::{Random, noise};
use crate::site::Site;

#[path = "../../../remote/tests/server/moto.rs"]
mod moto;
mod viewing;

/// A mounted pool with a replica that was just made.
struct Copied {
    site: Site,
    store: String,
    key: PathBuf,
}

fn tool(command: &[&str]) -> Tool {
    let tool = Tool::new(DEDUPFS).args(command).env("DEDUPFS_PASSPHRASE", "correct horse");
    tool.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret")
}

impl Copied {
    #[track_caller]
    fn new(store: impl FnOnce(&Path) -> String) -> Self {
        let site = Site::mounted();
        let (store, key) = (store(&site.base), site.base.join("pool.key"));
        let copied = Self { site, store, key };
        let made = copied.replicate(&["--init"]).ok();
        assert!(made.err.contains("the replica is lost"), "{}", made.err);
        copied
    }

    fn replicate(&self, more: &[&str]) -> Tool {
        tool(&["replicate"]).arg(&self.site.mnt).arg(&self.store).arg("--key").arg(&self.key).args(more)
    }

    fn of_store(&self, command: &[&str]) -> Tool {
        tool(command).arg(&self.store).arg("--key").arg(&self.key)
    }

    /// Recovers the pool and compares it with the mounted one.
    #[track_caller]
    fn assert_recovers(&self, name: &str) {
        let (pool, mnt) = (self.site.base.join(name), self.site.base.join(format!("{name}.mnt")));
        fs::create_dir(&mnt).unwrap();
        tool(&["recover"]).arg(&pool).arg("--from").arg(&self.store).arg("--key").arg(&self.key).ok();
        Tool::new(DEDUPFS).args(["fsck", "--read-data"]).arg(&pool).run().expect(0, &["clean"]);
        Tool::new(DEDUPFS).args(["mount", "--memory", "256M"]).args([&pool, &mnt]).ok();
        let compared = std::panic::catch_unwind(|| assert_same_tree(&self.site.mnt, &mnt));
        Tool::new(DEDUPFS).arg("umount").arg(&mnt).ok();
        compared.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    fn fill(&self, seed: u64) {
        let (source, name) = (self.site.base.join(format!("source {seed}")), format!("tree-{seed}"));
        Plan::new(seed, 300, 60_000).make(&source);
        fs::write(source.join("large"), noise(seed, 12 << 20)).unwrap();
        Tool::new(DEDUPFS).arg("put").arg(&source).arg(self.site.mnt.join(&name)).ok();
        let live = self.site.mnt.join(format!("live-{seed}"));
        Tool::new("cp").args(["-a"]).args([&source, &live]).ok();
    }
}

fn directory(base: &Path) -> String {
    let store = base.join("store");
    fs::create_dir(&store).unwrap();
    store.to_str().unwrap().to_owned()
}

#[test]
fn a_lost_pool_comes_back_from_a_directory() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(1);
    copied.replicate(&[]).ok();
    copied.assert_recovers("first");
    copied.fill(2);
    fs::remove_dir_all(copied.site.mnt.join("live-1")).unwrap();
    Tool::new(DEDUPFS).arg("forget").arg(copied.site.mnt.join("tree-1")).ok();
    copied.site.gc();
    let said = copied.replicate(&["--json"]).ok().text();
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((told["commit"].as_u64(), told["is_unchanged"].as_bool()), (Some(3), Some(false)), "{said}");
    copied.replicate(&[]).run().expect(0, &["has everything already"]);
    // Reading changes access times.
    copied.assert_recovers("second");
    copied.of_store(&["replica", "verify"]).run().expect(0, &["commit 3"]);
    std::thread::sleep(Duration::from_secs(2));
    copied.of_store(&["replica", "gc", "--grace", "1s"]).run().expect(0, &["removed"]);
    copied.assert_recovers("third");
    Tool::new(STATS).arg(&copied.site.mnt).run().expect(0, &["replica ", "commit 3"]);
    // The recovered pool is another one for the replica, until it is told to go on.
    let third = copied.site.base.join("third");
    let again = |more: &[&str]| {
        tool(&["replicate"]).arg(&third).arg(&copied.store).arg("--key").arg(&copied.key).args(more).run()
    };
    again(&[]).expect(1, &["--take-over"]);
    again(&["--take-over"]).expect(0, &["commit"]);
    again(&[]).expect(0, &["has everything already"]);
    // Also a pool that did not change is told.
    copied.replicate(&[]).run().expect(1, &["another writer"]);
    fs::write(copied.site.mnt.join("late"), "too late").unwrap();
    copied.replicate(&[]).run().expect(1, &["another writer"]);
    tool(&["replica", "status"]).arg(&copied.site.mnt).run().expect(1, &["another writer"]);
}

#[test]
fn a_lost_pool_comes_back_from_a_bucket() {
    let Some(moto) = is_fit().then(moto::Moto::start).flatten() else { return };
    moto.create_bucket("backups");
    let copied = Copied::new(|_| format!("s3://backups/pool?endpoint=http://127.0.0.1:{}", moto.port));
    copied.fill(3);
    copied.replicate(&[]).ok();
    copied.fill(4);
    copied.site.umount();
    copied.site.mount();
    copied.replicate(&["--connections", "3"]).ok();
    copied.assert_recovers("recovered");
    copied.of_store(&["replica", "verify"]).ok();
    drop(moto);
    fs::write(copied.site.mnt.join("more"), "more").unwrap();
    copied.replicate(&[]).run().expect(1, &["for now"]);
    assert_eq!(fs::read_to_string(copied.site.mnt.join("more")).unwrap(), "more");
}

/// Whatever moment a run is killed at, the store has a whole state, and the next run goes on.
#[test]
fn a_run_that_is_killed_is_continued() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    let mut random = Random::new(5);
    for round in 0..6 {
        copied.fill(10 + round);
        let mut command = Command::new(DEDUPFS);
        command
            .arg("replicate")
            .args([copied.site.mnt.as_os_str(), copied.store.as_ref()])
            .arg("--key")
            .arg(&copied.key);
        command
            .env("DEDUPFS_PASSPHRASE", "correct horse")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.between(100, 400)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    copied.of_store(&["replica", "verify"]).ok();
    copied.replicate(&[]).ok();
    copied.assert_recovers("recovered");
}

/// An unmount ends a hold, and no daemon waits for a store.
#[test]
fn an_unmount_ends_a_run_in_order() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    copied.fill(20);
    let mut command = Command::new(DEDUPFS);
    command.arg("replicate").args([copied.site.mnt.as_os_str(), copied.store.as_ref()]).arg("--key").arg(&copied.key);
    command.args(["--every", "1h"]).env("DEDUPFS_PASSPHRASE", "correct horse");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(150));
    // It waits for the daemon alone: a run that has not begun yet opens the unmounted pool itself.
    Tool::new(DEDUPFS).arg("umount").arg(&copied.site.mnt).ok();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    child.wait().unwrap();
    copied.site.mount();
    copied.replicate(&[]).ok();
    copied.assert_recovers("recovered");
}

#[test]
fn mistakes_are_told_with_advice() {
    if !is_fit() {
        return;
    }
    let copied = Copied::new(directory);
    let wrong = |tool: Tool| tool.env("DEDUPFS_PASSPHRASE", "wrong").run();
    wrong(copied.of_store(&["replica", "verify"])).expect(2, &["wrong passphrase"]);
    tool(&["replica", "verify", &copied.store]).run().expect(2, &["--key FILE"]);
    copied.replicate(&["--init"]).run().expect(2, &["has a replica already"]);
    tool(&["replicate"]).arg(&copied.site.mnt).arg(copied.site.base.join("absent")).run().expect(2, &["absent"]);
    let other = copied.site.base.join("other");
    fs::create_dir(&other).unwrap();
    tool(&["replicate", "--init"]).args([&copied.site.mnt, &other]).run().expect(2, &["--key FILE", "--plain"]);
    for inside in [copied.site.pool.join("sub"), copied.site.mnt.join("sub")] {
        fs::create_dir(&inside).unwrap();
        let init = tool(&["replicate", "--init", "--plain"]).args([&copied.site.mnt, &inside]);
        init.run().expect(2, &["which it is to copy"]);
        fs::remove_dir(&inside).unwrap();
    }
    let init = tool(&["replicate", "--init", "--plain"]).args([&copied.site.mnt, &copied.site.base]);
    init.run().expect(2, &["has something in it"]);
    tool(&["replicate"]).args([&copied.site.mnt, &other]).run().expect(2, &["is its disk mounted", "--init"]);
    tool(&["replicate", "--init", "--plain"]).args([&copied.site.mnt, &other]).ok();
    tool(&["replicate"])
        .args([&copied.site.mnt, &other])
        .arg("--key")
        .arg(&copied.key)
        .run()
        .expect(2, &["not encrypted"]);
    let second = copied.site.base.join("second");
    Tool::new(DEDUPFS).arg("mkfs").arg(&second).ok();
    tool(&["replicate"]).args([&second, &other]).run().expect(2, &["is of pool"]);
    // Something else lies where the pool is to be recovered.
    tool(&["recover"]).arg(&second).arg("--from").arg(&other).run().expect(2, &["empty or new directory"]);
    fs::write(copied.site.mnt.join("file"), noise(1, 100_000)).unwrap();
    tool(&["replicate"]).args([&copied.site.mnt, &other]).ok();
    // An object that was removed by hand.
    let content = Tool::new("find").arg(other.join("c")).args(["-type", "f"]).ok().text();
    fs::remove_file(content.lines().next().unwrap()).unwrap();
    tool(&["replica", "verify"]).arg(&other).run().expect(6, &["is gone", "--complete"]);
    let third = copied.site.base.join("third");
    tool(&["recover"]).arg(&third).arg("--from").arg(&other).run().expect(6, &["is gone", "--force"]);
    let forced = tool(&["recover", "--force", "--yes"]).arg(copied.site.base.join("fourth"));
    forced.arg("--from").arg(&other).run().expect(0, &["MISSING"]);
    tool(&["replicate", "--complete"]).args([&copied.site.mnt, &other]).ok();
    // What was fetched before is kept.
    tool(&["recover"]).arg(&third).arg("--from").arg(&other).run().expect(0, &["were there already"]);
    tool(&["replica", "verify"]).arg(&other).ok();
}

#[test]
fn key_files_are_made_and_changed() {
    let scratch = tempfile::tempdir().unwrap();
    let key = scratch.path().join("key");
    let line = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        fs::write(&path, format!("{text}\n")).unwrap();
        path
    };
    let (one, two, three) = (line("one", "first passphrase"), line("two", "second one"), line("three", "third one"));
    let with = |command: &[&str], present: &Path, new: &Path| {
        let tool = Tool::new(DEDUPFS).arg("key").args(command).arg(&key);
        tool.arg("--passphrase-file").arg(present).arg("--new-passphrase-file").arg(new).run()
    };
    with(&["new"], &one, &one).expect(0, &["the replica is lost"]);
    with(&["new"], &one, &one).expect(1, &["exists"]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let named = |command: &str, name: &str, present: &Path, new: &Path| {
        let tool = Tool::new(DEDUPFS).args(["key", command]).arg(&key).arg(name);
        tool.arg("--passphrase-file").arg(present).arg("--new-passphrase-file").arg(new).run()
    };
    named("add", "safe", &two, &two).expect(2, &["wrong passphrase"]);
    named("add", "safe", &one, &two).expect(0, &[]);
    with(&["list"], &one, &one).expect(0, &["first", "safe"]);
    let neighbour = line("key.new", "the key of something else");
    with(&["rotate"], &one, &three).expect(0, &["first"]);
    assert_eq!(fs::read_to_string(&neighbour).unwrap(), "the key of something else\n");
    named("remove", "safe", &one, &one).expect(2, &["wrong passphrase"]);
    named("remove", "safe", &three, &one).expect(0, &[]);
    named("remove", "first", &three, &one).expect(2, &["last wrapping"]);
    fs::write(&key, "nonsense").unwrap();
    with(&["list"], &one, &one).expect(6, &["not a key file"]);
    Tool::new(DEDUPFS).args(["key", "new"]).arg(scratch.path().join("other")).run().expect(2, &["no terminal"]);
}
