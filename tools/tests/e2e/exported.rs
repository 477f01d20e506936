//! The export on the data root is read back: a check, a scrub and a mount find damage, report it, and write the export
//! anew.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::command::{DEDUPFS, Tool};
use crate::compare::{assert_same_tree, inside};
use crate::files::Plan;
use crate::machine::is_fit;
use crate::site::Site;

/// Returns the path of the base or the log of the current export.
fn part_of(site: &Site, start: &str) -> PathBuf {
    let entries = fs::read_dir(site.data.join("export")).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(start)).unwrap()
}

fn flip(path: &Path, at: u64) {
    let mut file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
    file.sync_all().unwrap();
}

fn filled() -> (Site, PathBuf) {
    let site = Site::with(|base| (base.join("ssd"), base.join("hdd")));
    let source = site.base.join("source");
    Plan::new(51, 200, 40_000).make(&source);
    site.mount();
    Tool::new("rsync").args(["-aH"]).args([inside(&source), inside(&site.mnt)]).ok();
    site.umount();
    (site, source)
}

fn tool(arguments: &[&str], site: &Site) -> Tool {
    Tool::new(DEDUPFS).args(arguments).arg(&site.pool)
}

#[test]
fn regression_a_flipped_byte_of_the_export_is_found_told_and_written_anew() {
    if !is_fit() {
        return;
    }
    let (site, source) = filled();
    tool(&["fsck", "--trial-recovery"], &site).run().expect(0, &["would come back whole"]);

    flip(&part_of(&site, "log-"), 100);
    tool(&["fsck"], &site).run().expect(4, &["export on the data root"]);
    tool(&["fsck", "--trial-recovery"], &site).run().expect(4, &["NOT come back whole"]);
    // Without the check, this would succeed and recover no file.
    let new = site.base.join("new");
    let recover = Tool::new(DEDUPFS).args(["recover", "--data"]).args([&site.data, &new]).run();
    recover.expect(6, &["nothing was changed", "dedupfs recover --force"]);
    assert!(!new.exists());
    tool(&["scrub", "--restart"], &site).run().expect(1, &["export:", "written anew"]);
    tool(&["fsck", "--read-data"], &site).run().expect(0, &["clean"]);

    // Writing the export anew begins with a base of everything.
    flip(&part_of(&site, "base-"), 100);
    tool(&["fsck", "--repair", "--yes"], &site).run().expect(1, &["write the export on the data root anew"]);
    tool(&["fsck", "--read-data"], &site).run().expect(0, &["clean"]);

    // A mount finds it by itself.
    flip(&part_of(&site, "base-"), 100);
    site.mount();
    let log = site.pool.join("dedupfs.log");
    let begun = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains("was written anew from the meta root") {
        assert!(begun.elapsed() < Duration::from_secs(120), "the mount did not find it");
        std::thread::sleep(Duration::from_millis(200));
    }
    Tool::new(DEDUPFS).args(["fsck", "--trial-recovery"]).arg(&site.mnt).run().expect(0, &["would come back whole"]);
    let scrub = ["scrub", "--restart", "--trial-recovery"];
    Tool::new(DEDUPFS).args(scrub).arg(&site.mnt).run().expect(0, &["sound", "would come back whole"]);
    let text = Tool::new(DEDUPFS).args(scrub).arg("--json").arg(&site.mnt).ok().text();
    let both: serde_json::Value = serde_json::from_str(&text).expect("is one document");
    assert!(both["finished"] == true && both["trial_recovery"]["missing"] == serde_json::json!([]), "{both}");
    site.umount();

    fs::remove_dir_all(&site.pool).unwrap();
    Tool::new(DEDUPFS).args(["recover", "--data"]).args([&site.data, &site.pool]).ok();
    site.mount();
    assert_same_tree(&source, &site.mnt);
    site.umount();
    site.assert_clean();
}
