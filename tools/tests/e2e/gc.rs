//! Reclaiming as administrators see it: beside a mount that is in use, held, stopped, watched, and by the mount itself.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dedupfs::reclaim::{ReclaimStatus, Stopped};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{DEDUPFS, GC, Tool};
use crate::compare::assert_same_content;
use crate::files::Plan;
use crate::random::noise;
use crate::site::Site;

/// Time limit for events in the background.
const PATIENCE: Duration = Duration::from_secs(120);

fn status(site: &Site) -> ReclaimStatus {
    let said = Tool::new(GC).args(["--status", "--json"]).arg(&site.mnt).ok().text();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Writes 16 MiB and deletes three quarters of it.
fn make_garbage(site: &Site, seed: u64) {
    for file in 0..16_u64 {
        fs::write(site.mnt.join(format!("{seed}-{file}")), noise(seed * 100 + file, 1 << 20)).unwrap();
    }
    site.sync();
    (0..16)
        .filter(|file| file % 4 > 0)
        .for_each(|file| fs::remove_file(site.mnt.join(format!("{seed}-{file}"))).unwrap());
    site.sync();
}

#[test]
fn a_pause_lasts_until_it_is_ended() {
    let Some(site) = Site::mounted_if_fit() else { return };
    make_garbage(&site, 1);
    let gc = |option: &str| Tool::new(GC).arg(option).arg(&site.mnt).run();
    gc("--stop").expect(1, &["nothing reclaims"]);
    gc("--pause").expect(0, &[]);
    assert!(status(&site).paused);
    Tool::new(GC).arg(&site.mnt).run().expect(1, &["paused", "--resume"]);
    gc("--dry-run").expect(0, &["nothing was changed", "estimated"]);
    gc("--status").expect(0, &["paused", "known garbage"]);
    gc("--resume").expect(0, &[]);
    let report = site.gc();
    assert!(report.containers_freed > 0 && report.stopped.is_none(), "{report:?}");
    let status = status(&site);
    assert!(!status.paused && status.running.is_none(), "{status:?}");
    assert!(status.last.is_some_and(|last| last.is_complete && last.containers_freed == report.containers_freed));
    site.umount();
    Tool::new(GC).arg("--pause").arg(&site.pool).run().expect(1, &["not mounted"]);
    Tool::new(GC).arg("--status").arg(&site.pool).run().expect(0, &["last run", "freed"]);
    site.assert_clean();
}

#[test]
fn limits_end_a_run_and_the_next_goes_on() {
    let Some(site) = Site::mounted_if_fit() else { return };
    make_garbage(&site, 1);
    let first = site.gc_with(&["--max-io", "1", "--threshold", "100", "--share", "100"]);
    assert_eq!(first.stopped, Some(Stopped::Io), "{first:?}");
    let said = Tool::new(GC).args(["--max-io", "1"]).arg(&site.mnt).ok().text();
    assert!(said.contains("reclaimed"), "{said}");
    let last = site.gc_with(&["--threshold", "100", "--max-time", "1h"]);
    assert!(last.stopped.is_none() && last.garbage_left_bytes == 0, "{last:?}");
    Tool::new(GC).args(["--max-time", "5"]).arg(&site.mnt).run().expect(2, &["30m"]);
    Tool::new(GC).args(["--pause", "--dry-run"]).arg(&site.mnt).run().expect(2, &[]);
    site.umount();
    site.assert_clean();
}

/// A run that was interrupted or stopped exited as if it had succeeded.
#[test]
fn regression_a_run_that_is_ended_early_does_not_exit_as_one_that_is_done() {
    let Some(site) = Site::mounted_if_fit() else { return };
    make_garbage(&site, 1);
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    // The run gives way to writers, so it is still under way.
    let ended = |end: &dyn Fn(&Child)| {
        let mut run = Command::new(GC).args(["--share", "0"]).arg(&site.mnt).stdout(Stdio::null()).spawn().unwrap();
        while status(&site).running.is_none() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        end(&run);
        run.wait().unwrap().code()
    };
    let (interrupted, stopped) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u64.. {
                if is_over.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                    break;
                }
                fs::write(site.mnt.join("written all the time"), noise(round, 10_000)).unwrap();
            }
        });
        let interrupted = ended(&|run| kill_process(Pid::from_child(run), Signal::INT).unwrap());
        let stopped = ended(&|_| drop(Tool::new(GC).arg("--stop").arg(&site.mnt).ok()));
        is_over.store(true, Ordering::Relaxed);
        (interrupted, stopped)
    });
    assert_eq!((interrupted, stopped), (Some(128 + 2), Some(9)));
    site.gc();
    site.umount();
    site.assert_clean();
}

#[test]
fn a_mount_reclaims_by_itself() {
    let Some(site) = Site::if_fit() else { return };
    site.mount_with("gc,gc_interval=1,gc_leave=0,gc_threshold=100");
    let background = status(&site).background.expect("is on");
    assert!(background.contains("below 100%, leaving 0%"), "{background}");
    make_garbage(&site, 1);
    let begun = Instant::now();
    loop {
        let stats = site.stats();
        if stats.unreferenced_chunks == 0 && stats.recipe_nodes <= 8 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing was reclaimed: {stats:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    for file in (0..16_u64).step_by(4) {
        assert!(fs::read(site.mnt.join(format!("1-{file}"))).unwrap() == noise(100 + file, 1 << 20), "{file}");
    }
    // A background run ends with the mount, at any point.
    make_garbage(&site, 2);
    site.umount();
    site.mount();
    assert_eq!(status(&site).background, None);
    site.umount();
    site.assert_clean();
}

#[test]
fn a_mount_arranges_new_versions_by_itself() {
    let Some(site) = Site::if_fit() else { return };
    site.mount_with("arrange=on,gc_interval=1,gc_share=100");
    let source = site.base.join("source");
    fs::create_dir_all(&source).unwrap();
    let mut files: Vec<Vec<u8>> = (0..12).map(|file| noise(file, 2 << 20)).collect();
    for version in 0..6_u64 {
        for (number, content) in (0_u64..).zip(&mut files) {
            let at = (noise(version * 100 + number, 2)[0] as usize) << 12;
            content[at..at + 200_000].copy_from_slice(&noise(1_000 * version + number, 200_000));
            fs::write(source.join(number.to_string()), content).unwrap();
        }
        Tool::new(DEDUPFS).arg("put").args([&source, &site.mnt.join(format!("v{version}"))]).ok();
    }
    let begun = Instant::now();
    while status(&site).last.is_none_or(|last| last.moved_bytes == 0) {
        assert!(begun.elapsed() < PATIENCE, "nothing was arranged: {:?}", status(&site));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_same_content(&source, &site.mnt.join("v5"));
    // Garbage is left to a command, and a mount without the option does nothing.
    Tool::new(DEDUPFS).arg("forget").arg(site.mnt.join("v0")).ok();
    site.umount();
    site.mount_with("arrange=off");
    assert_same_content(&source, &site.mnt.join("v5"));
    site.gc();
    site.umount();
    site.assert_clean();
}

/// Writers bring again exactly the content that is being freed: nothing is lost, counts equal marks, and at the end
/// nothing is left.
#[test]
fn what_is_freed_is_brought_again_meanwhile() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    Plan::new(21, 300, 60_000).make(&source);
    fs::write(source.join("large"), noise(22, 12 << 20)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reclaiming = scope.spawn(|| {
            let mut freed = 0;
            while !is_over.load(Ordering::Relaxed) {
                freed += site.gc_with(&["--threshold", "100", "--share", "100"]).nodes_freed;
            }
            freed
        });
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (source, site) = (&source, &site);
                scope.spawn(move || {
                    for round in 0..6 {
                        let copy = site.mnt.join(format!("{writer}-{round}"));
                        Tool::new("cp").arg("-a").args([source, &copy]).ok();
                        assert_same_content(source, &copy);
                        // All three delete at the same time now and then: then nothing refers to the content.
                        Tool::new("rm").arg("-r").arg(&copy).ok();
                        site.sync();
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(reclaiming.join().expect("reclaiming ends") > 0, "nothing was freed meanwhile");
        outcomes.into_iter().for_each(|outcome| outcome.expect("a writer failed"));
    });
    let last = site.mnt.join("last");
    Tool::new("cp").arg("-a").args([&source, &last]).ok();
    site.gc();
    site.remount();
    assert_same_content(&source, &last);
    site.umount();
    site.assert_clean();
    site.mount();
    Tool::new("rm").arg("-r").arg(&last).ok();
    let begun = Instant::now();
    loop {
        site.gc();
        let stats = site.stats();
        if stats.unique_chunks + stats.unreferenced_chunks + stats.recipe_nodes == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "something is left: {stats:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    site.umount();
    site.assert_clean();
}
