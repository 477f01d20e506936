//! Backups by several processes at once, with the same and with different data, while old ones are deleted and
//! reclaimed.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::command::Tool;
use crate::compare::{assert_same_content, inside};
use crate::files::Plan;
use crate::site::Site;

/// Number of times that each stream writes its tree.
const TURNS: u64 = 3;

#[derive(Clone, Copy)]
enum By {
    Tar,
    Rsync,
}

/// Writes a tree `TURNS` times beside the others, deletes all copies but the last, and checks that one.
fn stream(site: &Site, name: &str, by: By, source: &Path) {
    let target = |turn: u64| site.mnt.join(format!("{name}-{turn}"));
    for turn in 0..TURNS {
        let target = target(turn);
        fs::create_dir(&target).unwrap();
        match by {
            By::Tar => {
                let archive = site.base.join(format!("{name}-{turn}.tar"));
                Tool::new("tar").arg("-cf").arg(&archive).arg("-C").arg(source).arg(".").ok();
                Tool::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&target).ok();
            }
            By::Rsync => drop(Tool::new("rsync").arg("-a").args([inside(source), inside(&target)]).ok()),
        }
        assert_same_content(source, &target);
        if turn + 1 < TURNS {
            Tool::new("rm").arg("-r").arg(&target).ok();
        }
    }
}

#[test]
fn streams_deletions_and_reclaiming_do_not_disturb_each_other() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let [same, left, right, old] = ["same", "left", "right", "old"].map(|name| site.base.join(name));
    let plan = Plan::new(21, 500, 200_000);
    plan.make(&same);
    Plan::new(22, 500, 200_000).make(&left);
    plan.changed(23).make(&right);
    plan.changed(24).make(&old);
    // Copies of the streams' data are deleted while the streams write it.
    for (name, source) in [("old-0", &same), ("old-1", &left), ("old-2", &old), ("old-3", &same)] {
        Tool::new("cp").arg("-a").args([source, &site.mnt.join(name)]).ok();
    }
    site.sync();
    let (running, reclaimed) = (AtomicBool::new(true), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let streams = [
            scope.spawn(|| stream(&site, "same-tar", By::Tar, &same)),
            scope.spawn(|| stream(&site, "same-rsync", By::Rsync, &same)),
            scope.spawn(|| stream(&site, "left", By::Tar, &left)),
            scope.spawn(|| stream(&site, "right", By::Rsync, &right)),
        ];
        scope.spawn(|| {
            for number in 0..4 {
                Tool::new("rm").arg("-r").arg(site.mnt.join(format!("old-{number}"))).ok();
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
        });
        let reclaimer = scope.spawn(|| {
            while running.load(Ordering::Relaxed) {
                reclaimed.fetch_add(site.gc().containers_freed, Ordering::Relaxed);
            }
        });
        let outcomes = streams.map(|stream| stream.join());
        running.store(false, Ordering::Relaxed);
        let outcomes = outcomes.into_iter().chain([reclaimer.join()]);
        for outcome in outcomes {
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let check = |site: &Site| {
        for (name, source) in [("same-tar", &same), ("same-rsync", &same), ("left", &left), ("right", &right)] {
            assert_same_content(source, &site.mnt.join(format!("{name}-{}", TURNS - 1)));
        }
    };
    check(&site);
    site.remount();
    check(&site);
    site.umount();
    site.assert_clean();
    // Content that was claimed and needed again, or copied and deleted, leaves nothing over.
    site.gc();
    site.assert_clean();
    site.mount();
    check(&site);
}
