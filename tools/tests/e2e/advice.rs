//! Advice of the tools to administrators: the plan of a repair, the place of a moved data root, the progress of a
//! scrub, limits that are too small.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dedupfs::reclaim::ReclaimReport;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{DEDUPFS, STATS, Tool};
use crate::disk::Disk;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

fn filled(site: &Site, len: usize) {
    site.mount();
    fs::write(site.mnt.join("file"), noise(1, len)).unwrap();
    site.umount();
}

/// `--data` was ignored for a pool whose superblock can be read.
#[test]
fn regression_a_data_root_that_moved_is_found_again() {
    if !is_fit() {
        return;
    }
    let site = Site::with(|base| (base.join("pool"), base.join("data")));
    filled(&site, 3 << 20);
    let moved = site.base.join("elsewhere");
    let repair = |data: &std::path::Path| {
        Tool::new(DEDUPFS).args(["fsck", "--repair", "--yes", "--data"]).args([data, &site.pool]).run()
    };
    // At its place the data root is used, and a copy of it is refused.
    repair(&site.data).expect(0, &["clean"]);
    Tool::new("cp").args(["-a"]).args([&site.data, &moved]).ok();
    repair(&moved).expect(8, &["another copy"]);
    fs::remove_dir_all(&moved).unwrap();
    fs::rename(&site.data, &moved).unwrap();
    site.try_mount().expect(3, &["data root", "fsck --repair --data"]);
    Tool::new(DEDUPFS).args(["fsck", "--repair"]).arg(&site.pool).run().expect(8, &["--data DIR"]);
    let other = Site::with(|base| (base.join("pool"), base.join("data")));
    let before = fs::read(site.pool.join("dedupfs.meta")).unwrap();
    let refused = repair(&other.data);
    assert!(refused.code >= 4 && refused.said().contains("another pool"), "{}", refused.said());
    assert_eq!(fs::read(site.pool.join("dedupfs.meta")).unwrap(), before);
    repair(&moved).expect(1, &["done: note that the data root is", "elsewhere", "clean"]);
    repair(&moved).expect(0, &["clean"]);
    site.mount();
    assert!(fs::read(site.mnt.join("file")).unwrap() == noise(1, 3 << 20));
    site.umount();
    site.assert_clean();
}

/// An empty directory below a mountpoint was taken for a data root that had lost everything.
#[test]
fn regression_a_repair_does_not_begin_where_the_disk_is_only_not_mounted() {
    if !is_fit() {
        return;
    }
    let site = Site::with(|base| (base.join("pool"), base.join("data")));
    filled(&site, 3 << 20);
    let away = site.base.join("away");
    fs::rename(&site.data, &away).unwrap();
    fs::create_dir(&site.data).unwrap();
    let fsck = |options: &[&str]| Tool::new(DEDUPFS).arg("fsck").args(options).arg(&site.pool).run();
    fsck(&["--repair", "--yes"]).expect(8, &["is its disk mounted?", "--data DIR"]);
    assert_eq!(fs::read_dir(&site.data).unwrap().count(), 0, "something was written there");
    fs::remove_dir(&site.data).unwrap();
    fs::rename(&away, &site.data).unwrap();
    fsck(&["--repair", "--yes"]).expect(0, &["clean"]);
    // The plan also names the parts that cannot be read without the superblock, and the content to be given up.
    let (superblock, slots) = (site.data.join("dedupfs.data"), site.data.join("containers/000001.slots"));
    fs::remove_file(&superblock).unwrap();
    fs::rename(&slots, site.base.join("000001.slots")).unwrap();
    fsck(&["--repair"])
        .expect(4, &["to do: write the superblock", "to do: give up the content", "to do: make the indexes anew"]);
    assert!(!superblock.exists(), "nobody answered");
    fs::rename(site.base.join("000001.slots"), &slots).unwrap();
    fsck(&["--repair", "--yes"]).expect(1, &["done: write the superblock", "clean"]);
    site.mount();
    assert!(fs::read(site.mnt.join("file")).unwrap() == noise(1, 3 << 20));
    site.umount();
    site.assert_clean();
}

#[test]
fn a_check_says_what_a_repair_would_change_and_changes_nothing() {
    let Some(site) = Site::if_fit() else { return };
    filled(&site, 1 << 20);
    let manifest = site.pool.join("index/chunks/manifest");
    let sound = fs::read(&manifest).unwrap();
    fs::write(&manifest, &sound[..sound.len() / 2]).unwrap();
    let damaged = Tool::new("tar").args(["-C"]).arg(&site.pool).args(["-cf", "-", "index", "namespace.redb"]).ok().out;
    let fsck = |arguments: &[&str]| Tool::new(DEDUPFS).arg("fsck").arg(&site.pool).args(arguments).run();
    fsck(&[]).expect(
        4,
        &["`dedupfs fsck --repair` (with `--read-data` if it was given here) would:", "make the indexes anew"],
    );
    let said = fsck(&["--json"]).expect(4, &[]).text();
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(told["repair_would"][0].as_str().unwrap().contains("make the indexes anew"), "{said}");
    let after = Tool::new("tar").args(["-C"]).arg(&site.pool).args(["-cf", "-", "index", "namespace.redb"]).ok().out;
    assert!(damaged == after, "a check changed the pool");
    fsck(&["--repair", "--yes"]).expect(1, &["done: make the indexes anew"]);
    let said = fsck(&[]).expect(0, &["clean"]).said();
    assert!(!said.contains("--repair"), "{said}");
}

/// Returns checksums of all files of a pool except `lock`, which only names the holder of the pool.
fn sums(site: &Site) -> String {
    let script = "cd \"$1\" && find . -type f ! -name lock -print0 | sort -z | xargs -0 sha256sum";
    Tool::new("sh").args(["-c", script, "sh"]).arg(&site.pool).ok().text()
}

#[test]
fn regression_a_plan_of_what_is_reclaimed_changes_nothing() {
    for crashes in [false, true] {
        let Some(site) = Site::mounted_if_fit() else { return };
        for number in 0..3 {
            fs::write(site.mnt.join(format!("file {number}")), noise(number, 20 << 20)).unwrap();
        }
        site.sync();
        fs::remove_file(site.mnt.join("file 1")).unwrap();
        site.sync();
        if crashes {
            site.kill_daemon();
            Tool::new("umount").args(["-l"]).arg(&site.mnt).ok();
        } else {
            site.umount();
        }
        let before = sums(&site);
        let plan = || site.gc_with(&["--dry-run"]);
        let planned = plan();
        assert!(sums(&site) == before, "a plan changed the pool, after a crash: {crashes}");
        assert_eq!(plan(), planned);
        let done = site.gc();
        assert!(planned.dry_run && done.nodes_freed > 0 && done.containers_freed > 0, "{done:?}");
        let figures = |report: &ReclaimReport| {
            (
                report.nodes_freed,
                report.chunks_removed,
                report.chunks_moved,
                report.moved_bytes,
                report.containers_freed,
            )
        };
        assert_eq!(figures(&planned), figures(&done), "after a crash: {crashes}");
        assert!(sums(&site) != before, "the run changed nothing");
        site.assert_clean();
    }
}

#[test]
fn regression_statistics_of_a_pool_that_is_not_mounted_have_no_session() {
    let Some(site) = Site::if_fit() else { return };
    filled(&site, 1 << 20);
    let said = Tool::new(STATS).arg(&site.pool).ok().text();
    assert!(!said.contains("--memory") && !said.contains("since the mount"), "{said}");
    site.mount();
    Tool::new(STATS).arg(&site.pool).run().expect(0, &["limit (--memory)"]);
    site.umount();
}

/// Ctrl-C ended the tool without a message.
#[test]
fn regression_a_scrub_that_is_interrupted_says_how_far_it_came() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fs::write(site.mnt.join("file"), noise(1, 48 << 20)).unwrap();
    site.sync();
    let status = || Tool::new(DEDUPFS).args(["scrub", "--status"]).arg(&site.mnt).ok().text();
    assert_eq!(status(), "never scrubbed\n");
    let scrub = Command::new(DEDUPFS)
        .args(["scrub", "--rate", "4M"])
        .arg(&site.mnt)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !status().starts_with("running, begun 20") {
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not begin: {}", status());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&scrub), Signal::INT).unwrap();
    let ended = scrub.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(32), "{said}");
    for words in ["stopping the scrub", "stopped: the next scrub goes on here", "sound so far"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "it went on");
    assert!(status().contains("UTC and stopped"), "{}", status());
    Tool::new(DEDUPFS).arg("scrub").arg(&site.mnt).run().expect(0, &["sound"]);
    assert!(status().starts_with("finished 20") && status().contains(" UTC"), "{}", status());
    site.umount();
}

#[test]
fn regression_a_disk_that_is_too_small_is_told_when_it_is_formatted() {
    if !is_fit() {
        return;
    }
    let small = Disk::new(24 << 20);
    let mkfs = |disk: &Disk| Tool::new(DEDUPFS).arg("mkfs").arg(disk.mountpoint.join("pool")).ok().err;
    let said = mkfs(&small);
    assert!(said.contains("nothing can be written") && said.contains("larger disk"), "{said}");
    assert_eq!(mkfs(&Disk::new(400 << 20)), "");
}

/// Scrub advised to remove files whose recipe nodes were damaged, though the data root has copies of them.
#[test]
fn regression_damaged_recipe_nodes_are_brought_back_by_scrub() {
    if !is_fit() {
        return;
    }
    for roots in [["pool", "pool"], ["pool", "data"]] {
        let site = Site::with(|base| (base.join(roots[0]), base.join(roots[1])));
        site.mount();
        for number in 0..20 {
            fs::write(site.mnt.join(format!("{number}")), noise(number, 200_000)).unwrap();
        }
        site.umount();
        let slots = site.pool.join("recipes/000001.slots");
        let mut bytes = fs::read(&slots).unwrap();
        bytes[100..4096].iter_mut().for_each(|byte| *byte ^= 0x55);
        fs::write(&slots, bytes).unwrap();
        let run = |arguments: &[&str]| Tool::new(DEDUPFS).args(arguments).arg(&site.pool).run();
        run(&["scrub"]).expect(1, &["repaired: 20 recipe nodes", "sound"]);
        run(&["scrub"]).expect(0, &["sound"]);
        run(&["fsck", "--trial-recovery"]).expect(0, &["sound: a lost meta root would come back whole"]);
        let recover = Tool::new(DEDUPFS).args(["recover", "--force", "--yes"]).arg(&site.pool);
        let recover = if roots[0] == roots[1] { recover } else { recover.arg("--data").arg(&site.data) };
        recover.run().expect(0, &["recovered 20 live files"]);
        site.assert_clean();
        site.mount();
        for number in 0..20 {
            assert!(fs::read(site.mnt.join(format!("{number}"))).unwrap() == noise(number, 200_000), "{number}");
        }
        assert_eq!(site.stats().lost_recipe_nodes, 0);
        site.umount();
    }
}
