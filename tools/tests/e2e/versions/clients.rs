//! Versions as rsync, cp, tar, find, diff and getfacl see them.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use super::{names, series, snapshot};
use crate::command::{DEDUPFS, Tool};
use crate::compare::{assert_same_tree, inside};
use crate::site::Site;
use crate::tree;

/// Lists a tree by find(1): kind, mode, owner, size, time of the last change, links, target and name.
#[track_caller]
fn found(root: &Path) -> Vec<u8> {
    let printed = "%y %m %U %G %s %T@ %n %l %P\\0";
    let mut entries: Vec<Vec<u8>> = Tool::new("find")
        .arg(root)
        .args(["-printf", printed])
        .ok()
        .out
        .split(|byte| *byte == 0)
        .map(<[u8]>::to_vec)
        .collect();
    entries.sort();
    entries.join(&0)
}

#[track_caller]
fn access_lists(root: &Path) -> String {
    let said = Tool::new("sh").args(["-c", "cd \"$0\" && getfacl -R -p -n . | sort"]).arg(root).ok().text();
    assert!(said.contains("user:1000:rwx"), "the tree has access lists");
    said
}

#[test]
fn a_version_is_for_all_clients_as_the_tree_was() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let source = site.base.join("source");
    tree::generate(&source, 11, 2000);
    let (series, live) = series(&site);
    Tool::new("rsync").args(["-aHAX", "--numeric-ids"]).args([inside(&source), inside(&live)]).ok();
    let version = series.join("2026-11-23");
    let said = snapshot(&live, &version).expect(0, &["entries", "fingerprint"]).text();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(names(&series), ["2026-11-23", "current"]);
    assert_same_tree(&live, &version);
    assert_same_tree(&source, &version);
    // diff calls any two devices different.
    let differences = Tool::new("diff").args(["-r", "--no-dereference"]).args([&live, &version]).run().text();
    let differences: Vec<&str> = differences.lines().filter(|line| !line.contains(" while file ")).collect();
    assert_eq!(differences, [""; 0]);
    assert_eq!(found(&live), found(&version));
    let lists = access_lists(&live);
    assert_eq!(lists, access_lists(&version));

    // Copies out of it, with and without the kernel.
    let [copied, got, unpacked] = ["copied", "got", "unpacked"].map(|name| site.base.join(name));
    Tool::new("cp").arg("-a").args([&version, &copied]).ok();
    assert_same_tree(&source, &copied);
    Tool::new(DEDUPFS).arg("get").args([&version, &got]).run().expect(0, &["copied"]);
    assert_same_tree(&source, &got);
    fs::create_dir(&unpacked).unwrap();
    let tar = "tar -C \"$0\" --xattrs --acls -cf - . | tar -C \"$1\" --xattrs --xattrs-include='*' --acls -xpf -";
    Tool::new("sh").args(["-c", tar]).args([&version, &unpacked]).ok();
    // tar leaves sockets out.
    let compared = Tool::new("rsync")
        .args(["-aHAXnc", "--numeric-ids", "--delete", "--itemize-changes"])
        .args([inside(&source), inside(&unpacked)])
        .ok()
        .text();
    let differences: Vec<&str> = compared.lines().filter(|line| !line.starts_with("cS+")).collect();
    assert_eq!(differences, [""; 0]);

    // An equal tree has an equal fingerprint, also after the live one was made anew, and takes no content.
    let fingerprint = |said: &str| said.trim_end().rsplit(' ').next().unwrap().to_owned();
    let again = snapshot(&live, &series.join("2026-11-24")).expect(0, &["new 0 B"]).text();
    assert_eq!(fingerprint(&said), fingerprint(&again));

    // The live tree goes and comes back from the version.
    Tool::new("rm").args(["-rf"]).arg(&live).ok();
    site.gc();
    assert_same_tree(&source, &version);
    Tool::new("cp").arg("-a").args([&version, &live]).ok();
    assert_same_tree(&source, &live);
    site.kill_daemon();
    site.mount();
    assert_same_tree(&source, &version);
    site.remount();
    assert_same_tree(&source, &version);
    assert_eq!(lists, access_lists(&version));
    // Everything in the mount, versions included.
    let all = site.base.join("all");
    Tool::new(DEDUPFS).arg("get").args([&site.mnt, &all]).run().expect(0, &["copied"]);
    assert_same_tree(&source, &all.join("web1/2026-11-24"));
    site.umount();
    site.assert_clean();
}

#[test]
fn a_version_holds_the_bytes_that_were_written_when_it_was_begun() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let path = live.join("mapped");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this process.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 100_000, protection, flags, file.as_raw_fd(), 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: the mapping has so many bytes, and the file is not cut.
    unsafe { mapped.cast::<u8>().add(50_000).write_volatile(b'b') };
    // Written, and neither closed nor synced.
    let mut open = fs::File::create(live.join("open")).unwrap();
    std::io::Write::write_all(&mut open, b"written").unwrap();
    snapshot(&live, &series.join("v1")).expect(0, &[]);
    std::io::Write::write_all(&mut open, b" later").unwrap();
    // SAFETY: as above.
    unsafe { mapped.cast::<u8>().add(50_000).write_volatile(b'c') };
    assert_eq!(fs::read(series.join("v1/mapped")).unwrap()[50_000], b'b');
    assert_eq!(fs::read(series.join("v1/open")).unwrap(), b"written");
    // SAFETY: nothing uses the mapping any more.
    assert_eq!(unsafe { libc::munmap(mapped, 100_000) }, 0);
    drop((file, open));
    snapshot(&live, &series.join("v2")).expect(0, &[]);
    assert_eq!(fs::read(series.join("v2/mapped")).unwrap()[50_000], b'c');
    assert_eq!(fs::read(series.join("v2/open")).unwrap(), b"written later");
    site.umount();
    site.assert_clean();
}

#[test]
fn versions_of_a_tree_that_is_being_written_are_whole() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (series, live) = series(&site);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let write = || {
            let mut number = 0_u64;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                // Each file is renamed into place, so a version has it whole or not at all.
                let directory = live.join(format!("d{}", number % 7));
                fs::create_dir_all(&directory).unwrap();
                let new = directory.join("new");
                fs::write(&new, number.to_string().repeat(3000)).unwrap();
                fs::rename(&new, directory.join(format!("f{}", number % 50))).unwrap();
                if number % 40 == 39 {
                    fs::remove_dir_all(&directory).unwrap();
                }
                number += 1;
            }
        };
        scope.spawn(write);
        for number in 0..20 {
            snapshot(&live, &series.join(format!("v{number:02}"))).expect(0, &[]);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let versions = names(&series);
    assert_eq!(versions.len(), 21);
    for version in versions.iter().filter(|name| name.starts_with('v')) {
        for path in crate::files::walk(&series.join(version)).iter().filter(|path| !path.ends_with("new")) {
            let content = fs::read_to_string(series.join(version).join(path)).unwrap();
            let number = &content[..content.len() / 3000];
            assert!(!number.is_empty() && content == number.repeat(3000), "{version}/{}", path.display());
        }
    }
    site.gc();
    site.umount();
    site.assert_clean();
}
