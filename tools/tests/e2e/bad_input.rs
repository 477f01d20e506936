//! Pools and places that cannot be mounted are refused: with the documented exit code, a message with advice, and no
//! change.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use dedupfs_store::codec::checksum;
use dedupfs_store::frame::{Expect, FrameKind, decode_frame, encode_frame};

use crate::command::{DEDUPFS, GC, Ran, STATS, Tool, in_namespace};
use crate::files::walk;
use crate::machine::is_fit;
use crate::random::noise;
use crate::site::Site;

/// Exit codes of a mount and of fsck.
const NOT_A_POOL: (i32, i32) = (3, 8);
const DAMAGED: (i32, i32) = (6, 4);
const IN_USE: (i32, i32) = (4, 8);
const USAGE: i32 = 2;
const FUSE_UNAVAILABLE: i32 = 7;
const MOUNTPOINT: i32 = 8;

const CONTENT_BYTES: usize = 300_000;

/// Makes an unmounted pool with a file in it, and a data root of its own.
fn filled() -> Site {
    let site = Site::with(|base| (base.join("pool"), base.join("data")));
    site.mount();
    fs::write(site.mnt.join("file"), noise(1, CONTENT_BYTES)).unwrap();
    site.umount();
    site
}

/// Returns everything in the pool except the files that a process may write that only reads.
fn snapshot(site: &Site) -> BTreeMap<PathBuf, (usize, u64)> {
    let roots = [&site.pool, &site.data].into_iter().filter(|root| root.exists());
    roots
        .flat_map(|root| walk(root).into_iter().map(move |path| root.join(path)))
        .filter(|path| !path.ends_with("lock") && !path.ends_with("dedupfs.log"))
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path, (bytes.len(), checksum(&bytes)))
        })
        .collect()
}

/// Checks that the pool still has its content.
#[track_caller]
fn assert_unharmed(site: &Site) {
    site.mount();
    assert!(fs::read(site.mnt.join("file")).unwrap() == noise(1, CONTENT_BYTES));
    site.umount();
    site.assert_clean();
}

/// Checks that every command refuses the pool and changes nothing.
#[track_caller]
fn assert_refused(site: &Site, (code, fsck_code): (i32, i32), words: &[&str]) {
    let before = snapshot(site);
    let on_pool = |tool: &str| Tool::new(tool).arg(&site.pool).run();
    site.try_mount().expect(code, words);
    on_pool(STATS).expect(code, words);
    on_pool(GC).expect(code, words);
    Tool::new(DEDUPFS).arg("fsck").arg(&site.pool).run().expect(fsck_code, words);
    Tool::new(DEDUPFS).args(["fsck", "--rebuild-index"]).arg(&site.pool).run().expect(fsck_code, words);
    assert!(!site.is_mounted());
    assert!(snapshot(site) == before, "a command that was refused has changed the pool");
}

/// Returns a superblock with a changed body and right checksums.
fn with_other_body(superblock: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let expect = Expect { kind: FrameKind::Superblock, pool: None, owner: Some(0) };
    let frame = decode_frame("superblock", superblock, &expect, superblock.len()).unwrap();
    let mut body = frame.meta.to_vec();
    change(&mut body);
    let mut file = encode_frame(FrameKind::Superblock, &frame.header.pool, 0, &body, frame.payload);
    file.resize(superblock.len(), 0);
    file
}

#[test]
fn superblocks_that_cannot_be_believed_are_refused() {
    if !is_fit() {
        return;
    }
    let site = filled();
    let other = filled();
    for path in [site.pool.join("dedupfs.meta"), site.data.join("dedupfs.data")] {
        let sound = fs::read(&path).unwrap();
        let check = |spoilt: &[u8], codes: (i32, i32), words: &[&str]| {
            fs::write(&path, spoilt).unwrap();
            assert_refused(&site, codes, words);
        };
        // The version is the body's first field, the flags of required features the second.
        let version = with_other_body(&sound, |body| body[0] = 9);
        check(&version, NOT_A_POOL, &["format version 9", "use the dedupfs version that formatted"]);
        let features = with_other_body(&sound, |body| body[5] = 1);
        check(&features, NOT_A_POOL, &["feature flags", "use the dedupfs version that formatted"]);
        for len in [0, 1, 63, 100, sound.len() / 2, sound.len() - 1] {
            check(&sound[..len], DAMAGED, &["superblock", "cut off"]);
        }
        for at in [0, 5, 40, 70, 90, sound.len() - 1] {
            let mut flipped = sound.clone();
            flipped[at] ^= 0x20;
            check(&flipped, DAMAGED, &["superblock", "damaged"]);
        }
        fs::remove_file(&path).unwrap();
        assert_refused(&site, NOT_A_POOL, &[path.file_name().unwrap().to_str().unwrap()]);
        fs::write(&path, &sound).unwrap();
    }
    let path = site.data.join("dedupfs.data");
    let sound = fs::read(&path).unwrap();
    fs::copy(other.data.join("dedupfs.data"), &path).unwrap();
    assert_refused(&site, NOT_A_POOL, &["another pool", "is the right disk mounted?"]);
    fs::write(&path, sound).unwrap();
    assert_unharmed(&site);
}

#[test]
fn a_data_root_that_is_not_there_is_missed() {
    if !is_fit() {
        return;
    }
    let site = filled();
    let away = site.base.join("away");
    fs::rename(&site.data, &away).unwrap();
    assert_refused(&site, NOT_A_POOL, &["data root", "mount the disk"]);
    // The directory on which the disk should be mounted.
    fs::create_dir(&site.data).unwrap();
    assert_refused(&site, NOT_A_POOL, &["data root", "is it mounted?"]);
    assert_eq!(fs::read_dir(&site.data).unwrap().count(), 0, "something was written below the data root's mountpoint");
    fs::remove_dir(&site.data).unwrap();
    fs::rename(&away, &site.data).unwrap();
    assert_unharmed(&site);
}

#[test]
fn who_has_the_pool_is_told() {
    if !is_fit() {
        return;
    }
    let site = filled();
    let path = site.pool.join("lock");
    let mut lock = File::create(&path).unwrap();
    lock.lock().unwrap();
    // Not a process of dedupfs: no tool should ask it anything.
    let own = std::process::id();
    writeln!(lock, "{own} some tool").unwrap();
    assert_refused(&site, IN_USE, &[&format!("process {own} (some tool)"), "wait until it is done"]);
    drop(lock);

    // A mounted pool goes on serving while others try to take it.
    site.mount();
    let daemon = fs::read_to_string(&path).unwrap();
    let daemon = format!("process {} (", daemon.split(' ').next().unwrap());
    let elsewhere = site.base.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    Tool::new(DEDUPFS).arg("mount").args([&site.pool, &elsewhere]).run().expect(IN_USE.0, &[&daemon, "umount"]);
    site.try_mount().expect(MOUNTPOINT, &["is mounted on", "umount"]);
    Tool::new(DEDUPFS).args(["fsck", "--rebuild-index"]).arg(&site.pool).run().expect(IN_USE.1, &["umount"]);
    Tool::new(DEDUPFS).arg("fsck").arg(&site.pool).run().expect(0, &["clean"]);
    assert!(fs::read(site.mnt.join("file")).unwrap() == noise(1, CONTENT_BYTES));
    site.umount();
    assert_unharmed(&site);
}

#[test]
fn mountpoints_and_options_are_checked_before_the_pool_is_touched() {
    if !is_fit() {
        return;
    }
    let site = filled();
    let before = snapshot(&site);
    let mount = |mountpoint: &Path, options: &[&str]| -> Ran {
        Tool::new(DEDUPFS).arg("mount").args([&site.pool, mountpoint]).args(options).run()
    };
    let file = site.base.join("a file");
    fs::write(&file, "").unwrap();
    mount(&site.base.join("absent"), &[]).expect(MOUNTPOINT, &["does not exist", "create the directory"]);
    mount(&file, &[]).expect(MOUNTPOINT, &["not a directory"]);
    for option in ["fast", "threads=0", "ro,auto_unmount"] {
        mount(&site.mnt, &["-o", option])
            .expect(USAGE, &["is not known", "known are"].as_slice()[..usize::from(option == "fast")]);
    }
    mount(&site.mnt, &["--memory", "12"]).expect(USAGE, &["--memory"]);
    mount(&site.mnt, &["--dance"]).expect(USAGE, &["--help"]);
    assert!(snapshot(&site) == before && !site.is_mounted());

    // The mountpoint's own content is hidden meanwhile, and the log says so.
    fs::write(site.mnt.join("hidden"), "still here").unwrap();
    site.mount();
    assert!(!site.mnt.join("hidden").exists() && site.mnt.join("file").exists());
    site.umount();
    assert_eq!(fs::read_to_string(site.mnt.join("hidden")).unwrap(), "still here");
    let log = fs::read_to_string(site.pool.join("dedupfs.log")).unwrap();
    assert!(log.contains("is not empty"), "the log does not warn of what is hidden: {log}");
    assert_unharmed(&site);
}

#[test]
fn without_fuse_a_mount_says_what_is_missing() {
    if !is_fit() {
        return;
    }
    let site = filled();
    let mount_where = |preparation: &str| -> Ran {
        let script = format!("{preparation} && exec \"$0\" mount \"$1\" \"$2\"");
        in_namespace(&script).arg(DEDUPFS).args([&site.pool, &site.mnt]).run()
    };
    // In a mount namespace of its own, where /dev has nothing but null.
    mount_where("mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3")
        .expect(FUSE_UNAVAILABLE, &["/dev/fuse", "modprobe fuse"]);
    // Something else is in its place.
    mount_where("mount --bind /dev/null /dev/fuse").expect(FUSE_UNAVAILABLE, &[]);
    assert_unharmed(&site);
}
