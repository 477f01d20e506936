//! Trees go in by `dedupfs put` and out by `dedupfs get` as by cp -a: whole, or not at all.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dedupfs::transfer::TransferReport;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{DEDUPFS, Ran, Tool};
use crate::compare::{assert_same_content, assert_same_tree};
use crate::random::noise;
use crate::site::Site;
use crate::tree;

const FILES: usize = 6000;
/// Large enough that the copy takes long enough to be interrupted.
const LARGE_BYTES: usize = 600 << 20;

#[track_caller]
fn put(from: &Path, to: &Path) -> Ran {
    Tool::new(DEDUPFS).args(["put", "--live"]).args([from, to]).run()
}

#[track_caller]
fn get(from: &Path, to: &Path) -> Ran {
    Tool::new(DEDUPFS).arg("get").args([from, to]).run()
}

/// Returns the directories of unfinished puts.
fn under_way(mnt: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(mnt).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b".dedupfs-put-")).collect()
}

/// Whether the daemon is copying into the directory.
fn is_hidden(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some_and(|entry| entry.is_err()))
}

fn begin_put(from: &Path, to: &Path) -> Child {
    let mut put = Command::new(DEDUPFS);
    put.args(["put", "--live"]).args([from, to]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts a put and waits until the daemon is copying its tree.
fn put_under_way(site: &Site, from: &Path) -> Child {
    let mut put = begin_put(from, &site.mnt.join("copy"));
    while !under_way(&site.mnt).first().is_some_and(|path| is_hidden(path)) {
        assert!(put.try_wait().unwrap().is_none(), "the put has ended already");
    }
    put
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn large(site: &Site) -> PathBuf {
    let source = site.base.join("large");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), noise(1, LARGE_BYTES)).unwrap();
    source
}

#[test]
fn a_tree_of_everything_goes_in_and_comes_out_the_same() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    let made = tree::generate(&source, 5, FILES);
    // The copy must not inherit attributes of the directory above.
    Tool::new("setfacl").args(["-m", "d:u:1234:rwx"]).arg(&site.mnt).ok();
    fs::set_permissions(&site.mnt, fs::Permissions::from_mode(0o2755)).unwrap();
    let copy = site.mnt.join("copy");
    let said = put(&source, &copy).expect(0, &["copied"]).text();
    assert_same_tree(&source, &copy);
    assert!(under_way(&site.mnt).is_empty());
    let report = Tool::new(DEDUPFS).args(["put", "--json"]).args([&source, &site.mnt.join("again")]).ok().text();
    let report: TransferReport = serde_json::from_str(&report).unwrap();
    assert!(report.files >= made.files as u64 && report.problem_count == 0, "{report:?}; {said}");
    assert!(report.version.is_some(), "a version is the default");
    // Everything acknowledged is durable.
    site.kill_daemon();
    site.mount();
    assert_same_tree(&source, &copy);
    assert_same_tree(&source, &site.mnt.join("again"));
    assert!(site.stats().dedup_ratio > 1.9, "{:?}", site.stats());
    site.remount();
    let out = site.base.join("out");
    get(&copy, &out).expect(0, &["copied"]);
    assert_same_tree(&source, &out);
    let usage = |path: &Path| {
        let text = Tool::new("du").args(["--summarize", "--block-size=1M"]).arg(path).ok().text();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    // Small holes are zeros in the pool.
    assert!(usage(&out) <= usage(&copy) + 8, "holes were filled: {} MiB", usage(&out));
    assert!(usage(&copy) < usage(&source) + 32, "holes were filled: {} MiB", usage(&copy));
    // A single file: the largest one.
    let file = walk_largest(&source);
    get(&copy.join(file.strip_prefix(&source).unwrap()), &site.base.join("file")).expect(0, &["copied 1 file ("]);
    assert!(fs::read(&file).unwrap() == fs::read(site.base.join("file")).unwrap());
    // The whole content of the mount.
    get(&site.mnt, &site.base.join("all")).expect(0, &["copied"]);
    assert_same_tree(&source, &site.base.join("all/again"));
    site.umount();
    site.assert_clean();
}

fn walk_largest(root: &Path) -> PathBuf {
    let files = crate::files::walk(root).into_iter().map(|name| root.join(name));
    let plain = files.filter(|path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()));
    plain.max_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len())).unwrap()
}

#[test]
fn nobody_sees_a_tree_before_it_is_whole() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, copy) = (large(&site), site.mnt.join("copy"));
    let mut put = put_under_way(&site, &source);
    let mut looks = 0_u64;
    while put.try_wait().unwrap().is_none() {
        // The kernel must not cache anything of the hidden tree.
        for directory in under_way(&site.mnt) {
            let _ = fs::read_dir(&directory).map(Iterator::count);
            let _ = fs::metadata(directory.join("copy/file"));
        }
        if let Ok(metadata) = fs::metadata(copy.join("file")) {
            assert_eq!(metadata.len(), LARGE_BYTES as u64);
        }
        looks += 1;
    }
    assert!(put.wait().unwrap().success() && looks > 0);
    assert_same_content(&source, &copy);
    assert_same_tree(&source, &copy);
    assert!(under_way(&site.mnt).is_empty());
    site.umount();
    site.assert_clean();
}

#[test]
fn an_interrupted_put_leaves_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = large(&site);
    // When asked to end, the put tidies up.
    let mut put = put_under_way(&site, &source);
    kill_process(Pid::from_raw(i32::try_from(put.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(put.wait().unwrap().code(), Some(1));
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 0);
    assert_eq!(site.stats().files, 0);
    // When the put is killed, the daemon tidies up, except for an empty directory.
    let mut put = put_under_way(&site, &source);
    put.kill().unwrap();
    put.wait().unwrap();
    wait_until("the daemon to notice", || !under_way(&site.mnt).iter().any(|path| is_hidden(path)));
    assert_eq!(site.stats().files, 0);
    // When the daemon is killed as well, its partial copy is left, and the next put removes it.
    let mut put = put_under_way(&site, &source);
    site.sync();
    site.kill_daemon();
    assert_ne!(put.wait().unwrap().code(), Some(0));
    site.mount();
    assert!(!site.mnt.join("copy").exists());
    assert!(!under_way(&site.mnt).is_empty());
    self::put(&source, &site.mnt.join("copy")).expect(0, &["copied", "removed what an interrupted command had left"]);
    assert_same_tree(&source, &site.mnt.join("copy"));
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 1);
    site.umount();
    site.assert_clean();
    assert_eq!(site.stats().files, 1);
}

#[test]
fn two_puts_do_not_disturb_each_other() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = large(&site);
    let mut first = put_under_way(&site, &source);
    let small = site.base.join("small");
    fs::create_dir(&small).unwrap();
    fs::write(small.join("file"), noise(2, 100_000)).unwrap();
    put(&small, &site.mnt.join("small")).expect(0, &["copied 1 file ("]);
    // The name goes to the put that completes first.
    put(&small, &site.mnt.join("copy")).expect(0, &["copied 1 file ("]);
    assert_eq!(first.wait().unwrap().code(), Some(1));
    assert_same_tree(&small, &site.mnt.join("copy"));
    assert!(under_way(&site.mnt).is_empty());
    site.umount();
    site.assert_clean();
}

#[test]
fn a_mount_in_use_by_a_put_stays_and_a_full_pool_keeps_nothing() {
    let Some(site) = Site::if_fit() else { return };
    site.mount_with("data_limit=128M");
    let source = large(&site);
    let mut put = put_under_way(&site, &source);
    let umount = Tool::new(DEDUPFS).arg("umount").arg(&site.mnt).run();
    assert!(umount.code == 8 || put.try_wait().unwrap().is_some(), "{}", umount.said());
    assert_eq!(put.wait().unwrap().code(), Some(5), "no space");
    if !site.is_mounted() {
        site.mount_with("data_limit=128M");
    }
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 0);
    let small = site.base.join("small");
    fs::write(&small, noise(2, 100_000)).unwrap();
    site.gc_with(&["--threshold", "0"]);
    self::put(&small, &site.mnt.join("small")).expect(0, &["copied 1 file ("]);
    site.umount();
    site.assert_clean();
}

/// Flips a bit in the middle of all content.
fn damage(pool: &Path) {
    for entry in fs::read_dir(pool.join("containers")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_copied() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, copy) = (site.base.join("source"), site.mnt.join("copy"));
    fs::create_dir(&source).unwrap();
    for number in 0..20 {
        fs::write(source.join(format!("file {number}")), noise(number, 150_000)).unwrap();
    }
    put(&source, &copy).expect(0, &[]);
    site.umount();
    damage(&site.pool);
    site.mount();
    let check = |said: Ran, copied: &Path, top: &str| {
        let said = said.expect(9, &["cannot", "problems"]).said();
        let mut missing = 0;
        for number in 0..20 {
            let name = format!("file {number}");
            match fs::read(copied.join(&name)) {
                Ok(content) => assert!(content == noise(number, 150_000), "{name} is not as it was"),
                Err(_) => {
                    missing += 1;
                    assert!(said.contains(&format!("{top}/{name}: ")), "{name} is missing, and not told: {said}");
                }
            }
        }
        assert!((1..20).contains(&missing), "{missing} of 20: {said}");
    };
    let out = site.base.join("out");
    check(get(&copy, &out), &out, "out");
    // As a source it acts like any disk with read errors.
    let other = Site::mounted();
    check(put(&copy, &other.mnt.join("copy")), &other.mnt.join("copy"), "copy");
    other.umount();
    other.assert_clean();
}

#[test]
fn what_is_mounted_within_can_be_left_out_and_the_pool_itself_always_is() {
    let Some(site) = Site::if_fit() else { return };
    let source = site.base.join("source");
    let (inner, own) = (source.join("inner"), source.join("own"));
    fs::create_dir_all(&inner).unwrap();
    fs::create_dir(&own).unwrap();
    fs::write(source.join("file"), "outside").unwrap();
    Tool::new("mount").args(["-t", "tmpfs", "none"]).arg(&inner).ok();
    let unmount = || Tool::new("umount").arg(&inner).ok();
    fs::write(inner.join("file"), "inside").unwrap();
    Tool::new(DEDUPFS).arg("mount").args([&site.pool, &own]).ok();
    let outcome = std::panic::catch_unwind(|| {
        for options in [&["--live"][..], &[]] {
            let [all, one] = ["all", "one"].map(|name| own.join(format!("{name}-{}", options.len())));
            let put = |more: &[&str], to: &Path| {
                Tool::new(DEDUPFS).arg("put").args(options).args(more).args([&source, to]).run()
            };
            put(&[], &all).expect(0, &["copied 2 files"]);
            assert_eq!(fs::read_to_string(all.join("inner/file")).unwrap(), "inside");
            assert_eq!(fs::read_dir(all.join("own")).unwrap().count(), 0);
            put(&["-x"], &one).expect(0, &["copied 1 file ("]);
            assert_eq!(fs::read_dir(one.join("inner")).unwrap().count(), 0);
            assert_eq!(fs::metadata(one.join("inner")).unwrap().mode(), fs::metadata(&inner).unwrap().mode());
        }
    });
    unmount();
    Tool::new(DEDUPFS).arg("umount").arg(&own).ok();
    outcome.unwrap();
    site.assert_clean();
}

#[test]
fn what_makes_no_sense_is_said() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, there) = (site.base.join("source"), site.mnt.join("there"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&there).unwrap();
    let cases = [
        (put(&source, &there), 2, "is there already"),
        (put(&source, &site.mnt), 2, "is there already"),
        (put(&site.base.join("absent"), &site.mnt.join("new")), 1, "cannot open"),
        (put(&source, &site.base.join("new")), 2, "in no mounted dedupfs"),
        (put(&source, &site.mnt.join("no/such")), 1, "create the directory first"),
        (put(&there, &site.mnt.join("new")), 2, "in the same mount"),
        (put(&site.pool, &site.mnt.join("new")), 1, "the pool itself"),
        (put(Path::new("/dev/null"), &site.mnt.join("new")), 2, "neither a directory nor a regular file"),
        (get(&source, &site.base.join("new")), 2, "in no mounted dedupfs"),
        (get(&there, &source), 2, "is there already"),
        (get(&there, &site.mnt.join("new")), 2, "in the same mount"),
        (get(&site.mnt.join("absent"), &site.base.join("new")), 1, "cannot open"),
    ];
    for (ran, code, words) in cases {
        ran.expect(code, &[words]);
    }
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 1);
    // A read-only pool.
    site.umount();
    site.mount_with("ro");
    put(&source, &site.mnt.join("new"))
        .expect(1, &["cannot make a directory beside the new name", "mount it for writing"]);
    get(&there, &site.base.join("there")).expect(0, &["copied 0 files"]);
    assert!(File::open(site.base.join("there")).unwrap().metadata().unwrap().is_dir());
}

#[test]
fn regression_small_files_are_interrupted_too_and_a_daemon_that_ends_leaves_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    for directory in 0..20 {
        let directory = source.join(directory.to_string());
        fs::create_dir_all(&directory).unwrap();
        (0..1000).for_each(|number| drop(File::create(directory.join(number.to_string())).unwrap()));
    }
    let mut put = put_under_way(&site, &source);
    kill_process(Pid::from_raw(i32::try_from(put.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(put.wait().unwrap().code(), Some(1));
    assert_eq!(fs::read_dir(&site.mnt).unwrap().count(), 0);
    let mut put = put_under_way(&site, &source);
    let daemon = fs::read_to_string(site.pool.join("lock")).unwrap();
    let daemon = daemon.split(' ').next().unwrap().parse().unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::TERM).unwrap();
    assert_ne!(put.wait().unwrap().code(), Some(0));
    wait_until("the daemon to end", || !site.is_mounted() && crate::site::is_free(&site.pool));
    assert_eq!(site.stats().files, 0);
    site.assert_clean();
    // A remount to read-only is refused meanwhile.
    site.mount();
    let mut put = put_under_way(&site, &source);
    let remounted = Tool::new(DEDUPFS).args(["mount", "-o", "remount,ro"]).args([&site.pool, &site.mnt]).run();
    assert!(remounted.code == 0 || remounted.said().contains("being copied"), "{}", remounted.said());
    let is_whole = put.wait().unwrap().success();
    assert_eq!(site.mnt.join("copy").exists(), is_whole);
    assert!(is_whole || remounted.code == 0);
    site.umount();
    site.assert_clean();
}

#[test]
fn regression_a_name_alone_makes_no_directory_a_leftover() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    fs::create_dir(&source).unwrap();
    for name in [".dedupfs-put-notes", ".dedupfs-put-0123456789abcdef"] {
        fs::create_dir(site.mnt.join(name)).unwrap();
        fs::write(site.mnt.join(name).join("important"), "content").unwrap();
    }
    put(&source, &site.mnt.join("copy")).expect(0, &[]);
    for name in [".dedupfs-put-notes", ".dedupfs-put-0123456789abcdef"] {
        assert_eq!(fs::read_to_string(site.mnt.join(name).join("important")).unwrap(), "content");
    }
}

#[test]
fn regression_a_default_access_list_at_the_destination_opens_nothing() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (source, out) = (site.base.join("source"), site.base.join("out"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("private"), "content").unwrap();
    fs::set_permissions(source.join("private"), fs::Permissions::from_mode(0o660)).unwrap();
    fs::create_dir(&out).unwrap();
    Tool::new("setfacl").args(["-m", "d:u:1234:rwx,d:o::rwx"]).arg(&out).ok();
    put(&source, &site.mnt.join("copy")).expect(0, &[]);
    get(&site.mnt.join("copy"), &out.join("copy")).expect(0, &[]);
    get(&site.mnt.join("copy/private"), &out.join("private")).expect(0, &[]);
    assert_same_tree(&source, &out.join("copy"));
    for path in [out.join("copy"), out.join("copy/private"), out.join("private")] {
        let acl = Tool::new("getfacl").args(["--omit-header", "--absolute-names"]).arg(&path).ok().text();
        assert!(!acl.contains("1234") && !acl.contains("default"), "{}: {acl}", path.display());
    }
    assert_eq!(fs::metadata(out.join("private")).unwrap().mode() & 0o7777, 0o660);
}

/// ext4 has space for 4 KiB of attributes, and reports a full disk for more.
#[test]
fn regression_an_attribute_without_room_costs_no_file() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (copy, out) = (site.mnt.join("copy"), site.base.join("out"));
    fs::create_dir(&copy).unwrap();
    for number in 0..9 {
        fs::write(copy.join(number.to_string()), noise(number, 10_000)).unwrap();
    }
    let value = "x".repeat(20_000);
    Tool::new("setfattr").args(["-n", "user.big", "-v", &value]).arg(copy.join("4")).ok();
    let ran = get(&copy, &out);
    for number in 0..9 {
        assert!(fs::read(out.join(number.to_string())).unwrap() == noise(number, 10_000));
    }
    let has_it = Tool::new("getfattr").args(["-n", "user.big"]).arg(out.join("4")).run().code == 0;
    assert!(if has_it { ran.code == 0 } else { ran.code == 9 && ran.said().contains("user.big") }, "{}", ran.said());
}

#[test]
fn a_large_file_for_which_there_is_no_room_is_not_left_there() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (copy, out) = (site.mnt.join("copy"), site.base.join("out"));
    let content = noise(3, 40 << 20);
    fs::write(&copy, &content).unwrap();
    fs::create_dir(&out).unwrap();
    Tool::new("mount").args(["-t", "tmpfs", "-o", "size=24M", "none"]).arg(&out).ok();
    let outcome = std::panic::catch_unwind(|| {
        let said = get(&copy, &out.join("file")).expect(5, &["No space left"]).said();
        assert!(!said.contains("interrupted"), "{said}");
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        Tool::new("mount").args(["-o", "remount,size=64M"]).arg(&out).ok();
        get(&copy, &out.join("file")).expect(0, &["copied 1 file ("]);
        assert!(fs::read(out.join("file")).unwrap() == content);
    });
    Tool::new("umount").arg(&out).ok();
    outcome.unwrap();
}

#[test]
fn the_pool_does_not_copy_itself() {
    let Some(site) = Site::mounted_if_fit() else { return };
    fs::write(site.mnt.join("file"), noise(1, 1_000_000)).unwrap();
    site.sync();
    // The site holds only the pool and its mount.
    fs::write(site.base.join("beside"), "content").unwrap();
    put(&site.base, &site.mnt.join("copy")).expect(0, &["copied 1 file ("]);
    assert_eq!(fs::read_dir(site.mnt.join("copy/pool")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(site.mnt.join("copy/mnt")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(site.mnt.join("copy/beside")).unwrap(), "content");
}
