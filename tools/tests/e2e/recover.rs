//! A lost meta root is made anew from the data root.

use std::fs;
use std::path::Path;

use dedupfs::recover::RecoverReport;

use crate::command::{DEDUPFS, Tool};
use crate::compare::{assert_same_tree, inside};
use crate::files::Plan;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

fn split_site() -> Site {
    let site = Site::with(|base| (base.join("ssd"), base.join("hdd")));
    site.mount();
    site
}

fn fill(source: &Path) {
    Plan::new(41, 1500, 100_000).make(source);
    fs::write(source.join("large"), noise(42, 24 << 20)).unwrap();
    std::os::unix::fs::symlink("large", source.join("link")).unwrap();
    fs::hard_link(source.join("large"), source.join("second name")).unwrap();
    Tool::new("setfattr").args(["-n", "user.origin", "-v", "here"]).arg(source.join("large")).ok();
}

fn rsync(source: &Path, target: &Path) {
    Tool::new("rsync").args(["-aHAX", "--numeric-ids"]).args([inside(source), inside(target)]).ok();
}

/// Returns the work that rsync would still have to do, by content.
fn differences(source: &Path, target: &Path) -> String {
    Tool::new("rsync")
        .args(["-aHAX", "--numeric-ids", "--checksum", "--dry-run", "--itemize-changes", "--delete"])
        .args([inside(source), inside(target)])
        .ok()
        .text()
}

#[track_caller]
fn recover(site: &Site) -> RecoverReport {
    let said = Tool::new(DEDUPFS).arg("recover").arg("--json").arg("--data").args([&site.data, &site.pool]).ok().text();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn a_deleted_meta_root_comes_back_from_the_data_root() {
    if !is_fit() {
        return;
    }
    let site = split_site();
    let source = site.base.join("source");
    fill(&source);
    for copy in ["first", "gone"] {
        fs::create_dir(site.mnt.join(copy)).unwrap();
        rsync(&source, &site.mnt.join(copy));
    }
    Tool::new("rm").arg("-r").arg(site.mnt.join("gone")).ok();
    site.gc();
    site.umount();
    let before = site.stats();
    assert!(before.is_exported && before.export_recipe_bytes > 0, "{before:?}");
    let old = site.base.join("old");
    Tool::new("cp").arg("-a").args([&site.pool, &old]).ok();
    fs::remove_dir_all(&site.pool).unwrap();
    Tool::new(DEDUPFS).args([Path::new("mount"), &site.data, &site.mnt]).run().expect(3, &["dedupfs recover --data"]);

    let report = recover(&site);
    assert_eq!((report.restored.files, report.rebuilt.missing, report.restored.damage), (before.files, 0, None));
    site.mount();
    assert_eq!(differences(&source, &site.mnt.join("first")), "");
    assert_same_tree(&source, &site.mnt.join("first"));
    // The new root works as the old one did: nothing is stored again.
    fs::create_dir(site.mnt.join("again")).unwrap();
    rsync(&source, &site.mnt.join("again"));
    assert_eq!(site.stats().session.chunks_stored, 0);
    site.gc();
    site.umount();
    site.assert_clean();
    // The old root would overwrite data that the new one has written.
    Tool::new(DEDUPFS).arg("mount").args([&old, &site.mnt]).run().expect(3, &["another meta root"]);
    site.mount();
    assert_eq!(differences(&source, &site.mnt.join("again")), "");
    site.umount();
}

#[test]
fn a_killed_daemon_costs_what_came_after_the_last_export() {
    if !is_fit() {
        return;
    }
    let site = split_site();
    let source = site.base.join("source");
    fill(&source);
    fs::create_dir(site.mnt.join("first")).unwrap();
    rsync(&source, &site.mnt.join("first"));
    // Reclaiming writes checkpoints, and with them exports.
    site.gc();
    fs::write(site.mnt.join("later"), noise(43, 1 << 20)).unwrap();
    site.sync();
    site.kill_daemon();
    Tool::new("umount").arg("-l").arg(&site.mnt).ok();
    fs::remove_dir_all(&site.pool).unwrap();
    // The later writes are on the data root without names: the refusal reports that first.
    let refused = Tool::new(DEDUPFS).args(["recover", "--data"]).args([&site.data, &site.pool]).run();
    refused.expect(6, &["named by nothing", "dedupfs recover --force"]);
    assert!(!site.pool.exists(), "it changed something");
    let forced = Tool::new(DEDUPFS).args(["recover", "--force", "--yes", "--data"]).args([&site.data, &site.pool]).ok();
    assert!(forced.text().contains("LESS than expected") && forced.text().contains("--give-up-unnamed"));
    site.mount();
    assert_eq!(differences(&source, &site.mnt.join("first")), "");
    fs::write(site.mnt.join("new"), noise(44, 5 << 20)).unwrap();
    site.umount();
    site.assert_clean();
}

#[test]
fn a_pool_in_one_directory_survives_the_loss_of_its_names() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    fill(&source);
    rsync(&source, &site.mnt);
    let recover = |force: &[&str]| Tool::new(DEDUPFS).arg("recover").args(force).arg(&site.pool).run();
    recover(&[]).expect(4, &["mounted"]);
    site.umount();
    recover(&[]).expect(3, &["--force"]);
    fs::remove_file(site.pool.join("namespace.redb")).unwrap();
    recover(&[]).expect(0, &["recovered", "files"]);
    site.assert_clean();
    site.mount();
    assert_eq!(differences(&source, &site.mnt), "");
    site.umount();
}
