//! Versions that are forgotten: at once, as a whole, and not while somebody reads them.

use std::fs::{self, File};
use std::io::Read as _;
use std::time::{Duration, Instant};

use super::{forget, names, series, snapshot};
use crate::command::{DEDUPFS, Tool};
use crate::random::noise;
use crate::site::Site;

const LARGE_BYTES: usize = 8 << 20;

/// Found by trying: the kernel kept the names by which the file had been reached until it needed memory, and with them the
/// version.
#[test]
fn regression_a_forgotten_version_gives_its_space_back_when_its_last_file_is_closed() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let content = noise(3, LARGE_BYTES);
    fs::create_dir_all(live.join("sub/deep")).unwrap();
    fs::write(live.join("sub/deep/large"), &content).unwrap();
    std::os::unix::fs::symlink("large", live.join("sub/deep/link")).unwrap();
    let version = series.join("v");
    snapshot(&live, &version).expect(0, &[]);
    Tool::new("rm").arg("-r").arg(&live).ok();
    let mut open = File::open(version.join("sub/deep/large")).unwrap();
    let inside = [&version, &version.join("sub/deep")].map(|directory| File::open(directory).unwrap());
    forget(&[&version]).expect(0, &["removed", "1 version removed; `dedupfs-gc`"]);
    assert_eq!(names(&series), [""; 0]);
    assert_eq!(fs::symlink_metadata(&version).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    site.gc();
    assert!(site.stats().unique_chunk_bytes >= LARGE_BYTES as u64, "content that is read was freed");
    let mut read = Vec::new();
    open.read_to_end(&mut read).unwrap();
    assert!(read == content);
    assert_eq!(site.stats().removed_versions_held, 1);
    drop(open);
    // The kernel gets a name anew, and no handle of it will be closed.
    rustix::fs::statat(&inside[1], "link", rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    drop(inside);
    let deadline = Instant::now() + Duration::from_secs(30);
    while site.stats().removed_versions_held > 0 {
        assert!(Instant::now() < deadline, "the kernel keeps a version that nobody reads");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The name is free for a live directory.
    fs::create_dir(&version).unwrap();
    fs::write(version.join("file"), "live").unwrap();
    fs::remove_dir_all(&version).unwrap();
    site.gc();
    let stats = site.stats();
    assert_eq!((stats.unique_chunk_bytes, stats.recipe_nodes), (0, 0));
    site.umount();
    site.assert_clean();
}

#[test]
fn several_are_forgotten_and_what_cannot_be_is_told() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    fs::write(live.join("file"), "content").unwrap();
    let versions = ["a", "b", "c", "odd \u{1f980} name\n"].map(|name| series.join(name));
    for version in &versions {
        snapshot(&live, version).expect(0, &[]);
    }
    let gone = series.join("none");
    forget(&[&versions[0], &gone, &live, &versions[3]])
        .expect(9, &["none does not exist", "current is no version", "2 versions removed"]);
    assert_eq!(names(&series), ["b", "c", "current"]);
    assert_eq!(fs::read_to_string(live.join("file")).unwrap(), "content");
    // Removed names are durable when it returns.
    site.kill_daemon();
    site.mount();
    assert_eq!(names(&series), ["b", "c", "current"]);
    // From within the directory, and with a slash behind.
    let script = "cd \"$1\" && \"$0\" forget b c/";
    Tool::new("sh").args(["-c", script, DEDUPFS]).arg(&series).ok();
    assert_eq!(names(&series), ["current"]);
    site.umount();
    site.assert_clean();
}

/// The permission of the tool is for one name, and the kernel asks for the right to write.
#[test]
fn other_users_and_other_names_are_refused() {
    let Some(site) = Site::if_fit() else { return };
    site.mount_with("allow_other");
    let (series, live) = series(&site);
    fs::write(live.join("file"), "content").unwrap();
    let version = series.join("v");
    snapshot(&live, &version).expect(0, &[]);
    let nobody = || Tool::new("setpriv").args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // The program may lie where only root gets to.
    let program = site.base.join("dedupfs");
    fs::copy(DEDUPFS, &program).unwrap();
    fs::set_permissions(&site.base, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for words in [&["forget"][..], &["list"], &["prune", "--keep-none"], &["series", "show"]] {
        let target = if words[0] == "forget" { &version } else { &series };
        nobody().arg(&program).args(words).arg(target).run().expect(1, &["only root and the user"]);
    }
    let made = nobody().arg(&program).arg("snapshot").args([&live, &series.join("w")]).run();
    assert_eq!((made.code, names(&series).len()), (1, 2), "{}", made.said());
    nobody().arg("rmdir").arg(&version).run().expect(1, &["Permission denied"]);
    nobody().arg("cat").arg(version.join("file")).run().expect(0, &["content"]);
    site.umount();
    site.assert_clean();
}
