//! Uses of files other than reading and writing them from end to end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use crate::command::Tool;
use crate::compare::assert_same_file;
use crate::random::{Random, noise};
use crate::site::Site;

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&noise(1, 500_000)).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"changed", 100_000).unwrap();
    file.write_all_at(b"longer", 500_000).unwrap();
    file.sync_all().unwrap();
    // Another file takes the name meanwhile.
    fs::write(&path, "another").unwrap();
    let mut expected = noise(1, 500_000);
    expected[100_000..100_007].copy_from_slice(b"changed");
    expected.extend_from_slice(b"longer");
    let mut found = vec![0; expected.len()];
    file.read_exact_at(&mut found, 0).unwrap();
    assert!(found == expected);
    file.set_len(10).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    drop(file);
    assert_eq!(fs::read_to_string(&path).unwrap(), "another");
    site.umount();
    site.assert_clean();
    let stats = site.stats();
    assert_eq!((stats.files, stats.logical_bytes), (1, 7));
}

#[test]
fn a_nameless_file_goes_with_a_killed_daemon() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&noise(2, 300_000)).unwrap();
    fs::remove_file(&path).unwrap();
    file.sync_all().unwrap();
    site.kill_daemon();
    drop(file);
    site.mount();
    assert!(!path.exists());
    assert_eq!(site.stats().files, 0);
    site.umount();
    site.assert_clean();
}

#[test]
fn a_file_that_is_renamed_over_stays_for_who_has_it_open() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (old, new) = (site.mnt.join("old"), site.mnt.join("new"));
    fs::write(&old, noise(3, 400_000)).unwrap();
    let mut reader = File::open(&old).unwrap();
    let mut head = vec![0; 1000];
    reader.read_exact(&mut head).unwrap();
    fs::write(&new, noise(4, 300_000)).unwrap();
    fs::rename(&new, &old).unwrap();
    let mut found = head;
    reader.read_to_end(&mut found).unwrap();
    assert!(found == noise(3, 400_000), "the open file changed below its reader");
    assert!(fs::read(&old).unwrap() == noise(4, 300_000));
    assert!(!new.exists());
    drop(reader);
    site.remount();
    assert!(fs::read(&old).unwrap() == noise(4, 300_000));
    site.umount();
    site.assert_clean();
}

#[test]
fn a_directory_can_be_emptied_while_it_is_read() {
    const ENTRIES: u32 = 5000;
    let Some(site) = Site::mounted_if_fit() else { return };
    let directory = site.mnt.join("directory");
    let fill = || {
        fs::create_dir(&directory).unwrap();
        (0..ENTRIES).for_each(|number| drop(File::create(directory.join(format!("entry-{number}"))).unwrap()));
    };
    // Removes each entry when it is seen: all must be seen.
    fill();
    let mut seen = 0;
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, ENTRIES);
    fs::remove_dir(&directory).unwrap();

    // Other entries are removed and created meanwhile: those that stay are seen once.
    fill();
    let mut random = Random::new(5);
    let mut seen = BTreeMap::new();
    for (turn, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        *seen.entry(name).or_insert(0) += 1;
        if turn < ENTRIES as usize / 2 {
            let odd = random.below(u64::from(ENTRIES) / 2) * 2 + 1;
            let _ = fs::remove_file(directory.join(format!("entry-{odd}")));
            File::create(directory.join(format!("new-{turn}"))).unwrap();
        }
    }
    for number in (0..ENTRIES).step_by(2) {
        assert_eq!(seen.get(&format!("entry-{number}")), Some(&1), "entry-{number} stayed all the time");
    }
    assert!(seen.values().all(|times| *times == 1), "an entry was seen twice");
    Tool::new("rm").arg("-r").arg(&directory).ok();
    site.umount();
    site.assert_clean();
}

#[test]
fn what_is_written_to_memory_is_in_the_file() {
    const LEN: usize = 1 << 20;
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    fs::write(&path, noise(6, LEN)).unwrap();
    let mut expected = noise(6, LEN);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert!(start != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    {
        // SAFETY: the mapping has LEN bytes, nobody else refers to it, and the file is not cut meanwhile.
        let mapped = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), LEN) };
        assert!(mapped == expected.as_slice(), "the mapping shows other bytes");
        for at in (0..LEN - 100).step_by(77_777) {
            mapped[at..at + 100].fill(at as u8);
            expected[at..at + 100].fill(at as u8);
        }
    }
    // SAFETY: the range is that of the mapping.
    assert_eq!(unsafe { libc::msync(start, LEN, libc::MS_SYNC) }, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the range is that of the mapping, which is not used from here on.
    assert_eq!(unsafe { libc::munmap(start, LEN) }, 0);
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(&path).unwrap() == expected);
    site.remount();
    assert!(fs::read(&path).unwrap() == expected);
    site.umount();
    site.assert_clean();
}

#[test]
fn two_writers_that_append_lose_nothing() {
    const RECORDS: usize = 400;
    const RECORD_BYTES: usize = 100;
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("log");
    let append = |writer: u8| {
        let mut file = File::options().append(true).create(true).open(&path).unwrap();
        for number in 0..RECORDS {
            let mut record = format!("{} {number:06} ", char::from(writer)).into_bytes();
            record.resize(RECORD_BYTES - 1, writer);
            record.push(b'\n');
            file.write_all(&record).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| append(b'a'));
        scope.spawn(|| append(b'b'));
    });
    let check = || {
        let found = fs::read(&path).unwrap();
        assert_eq!(found.len(), 2 * RECORDS * RECORD_BYTES);
        let mut next = BTreeMap::from([(b'a', 0), (b'b', 0)]);
        for record in found.chunks(RECORD_BYTES) {
            let text = std::str::from_utf8(record).unwrap();
            let number = next.get_mut(&record[0]).unwrap_or_else(|| panic!("a torn record: {text}"));
            assert!(text.starts_with(&format!("{} {number:06} ", char::from(record[0]))), "expected {number}: {text}");
            *number += 1;
        }
    };
    check();
    site.remount();
    check();
    site.umount();
    site.assert_clean();
}

#[test]
fn statfs_tells_of_the_disk_below() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (below, shown) = (rustix::fs::statvfs(&site.pool).unwrap(), rustix::fs::statvfs(&site.mnt).unwrap());
    let bytes = |blocks: u64, unit: u64| blocks * unit;
    let used = bytes(shown.f_blocks - shown.f_bfree, shown.f_frsize);
    assert!(used < 1 << 20, "an empty pool uses {used} bytes of a disk that others use, too");
    assert!(bytes(shown.f_blocks, shown.f_frsize) <= bytes(below.f_blocks, below.f_frsize));
    assert!(shown.f_bavail <= shown.f_bfree && shown.f_bfree <= shown.f_blocks);
    let (available, below_available) = (bytes(shown.f_bavail, shown.f_frsize), bytes(below.f_bavail, below.f_frsize));
    // Other programs use the disk at the same time; and a reserve is kept.
    let slack = 1 << 30;
    let reserve = bytes(below.f_blocks, below.f_frsize) / 10;
    assert!(available <= below_available + slack && available + slack + reserve >= below_available);
    assert_eq!(shown.f_namemax, 255);
    assert!(shown.f_ffree > 1_000_000 && shown.f_files >= shown.f_ffree);
}

/// Checks that two files or directories have the same access list and mode.
#[track_caller]
fn assert_same_access(plain: &Path, mounted: &Path, step: &str) {
    let list = |path: &Path| {
        Tool::new("getfacl").args(["--numeric", "--omit-header", "--absolute-names"]).arg(path).ok().text()
    };
    assert_eq!(list(mounted), list(plain), "access list of {} after {step}", mounted.display());
    let mode = |path: &Path| format!("{:o}", fs::symlink_metadata(path).unwrap().mode());
    assert_eq!(mode(mounted), mode(plain), "mode of {} after {step}", mounted.display());
}

#[test]
fn access_lists_follow_modes_as_on_any_filesystem() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (plain, mounted) = (site.base.join("plain"), site.mnt.join("mounted"));
    let script_steps = [
        "umask 022; mkdir .; touch file",
        "setfacl -m u:1234:rwx,g:7:r-x file",
        "chmod 640 file",
        "chmod 4777 file",
        "setfacl -m m::r-- file",
        "chmod g+w file",
        "setfacl -x u:1234 file",
        "setfacl -b file",
        "chmod 600 file",
        "setfacl -d -m u:1000:rwx,g::r-x,o::--- dir",
        "umask 027; touch dir/inherits; mkdir dir/below; mknod dir/fifo p; ln -s nowhere dir/link",
        "umask 077; touch dir/below/deep; install -m 755 /dev/null dir/below/installed",
        "chmod 2775 dir; touch dir/of-group; mkdir dir/group-below",
        "setfacl -k dir; touch dir/without",
        "cp -p dir/inherits dir/kept; cp -a dir/below dir/copied",
    ];
    for directory in [&plain, &mounted] {
        fs::create_dir_all(directory.join("dir")).unwrap();
    }
    for step in script_steps {
        for directory in [&plain, &mounted] {
            let script = format!("cd \"$0\" && {}", step.replace("mkdir .; ", ""));
            Tool::new("sh").arg("-c").arg(script).arg(directory).ok();
        }
        for name in ["file", "dir", "dir/inherits", "dir/below", "dir/fifo", "dir/below/deep", "dir/below/installed"]
            .into_iter()
            .chain(["dir/of-group", "dir/group-below", "dir/without", "dir/kept", "dir/copied", "dir/copied/deep"])
        {
            assert_eq!(mounted.join(name).exists(), plain.join(name).exists(), "{name} after {step}");
            if plain.join(name).exists() {
                assert_same_access(&plain.join(name), &mounted.join(name), step);
            }
        }
    }
    crate::compare::assert_same_tree_but_times(&plain, &mounted);
    site.remount();
    crate::compare::assert_same_tree_but_times(&plain, &mounted);
    site.umount();
    site.assert_clean();
}

#[test]
fn truncations_that_were_synced_survive() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let path = site.mnt.join("file");
    let mut expected = noise(9, 1 << 20);
    fs::write(&path, &expected).unwrap();
    for (turn, len) in [300_000, 299_999, 4_000_000, 4096, 0, 70_000].into_iter().enumerate() {
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(len).unwrap();
        expected.resize(len as usize, 0);
        if turn % 2 == 1 {
            file.write_all_at(b"end", len).unwrap();
            expected.extend_from_slice(b"end");
        }
        file.sync_all().unwrap();
        site.kill_daemon();
        drop(file);
        site.mount();
        assert_eq!(fs::metadata(&path).unwrap().len(), expected.len() as u64, "after cutting to {len}");
        assert!(fs::read(&path).unwrap() == expected, "after cutting to {len}");
    }
    site.umount();
    site.assert_clean();
}

#[test]
fn holes_are_holes() {
    let Some(site) = Site::mounted_if_fit() else { return };
    let (plain, sparse) = (site.base.join("plain"), site.mnt.join("sparse"));
    for path in [&plain, &sparse] {
        let file = File::create(path).unwrap();
        file.set_len(256 << 20).unwrap();
        file.write_all_at(&noise(10, 100_000), 64 << 20).unwrap();
    }
    assert_same_file(&plain, &sparse);
    site.remount();
    let blocks = fs::metadata(&sparse).unwrap().blocks();
    assert!(blocks * 512 < 4 << 20, "{blocks} blocks for 100,000 bytes and holes");
    let file = File::open(&sparse).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert!((60 << 20..=64 << 20).contains(&data), "data begins at {data}");
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert!(((64 << 20) + 100_000..68 << 20).contains(&hole), "the hole behind it begins at {hole}");
    drop(file);
    // A copy that asks for the holes has them too.
    let copy = site.mnt.join("copy");
    Tool::new("cp").arg("--sparse=always").args([&sparse, &copy]).ok();
    assert_same_file(&plain, &copy);
    assert!(site.stats().unique_chunk_bytes < 1 << 20);
    site.umount();
    site.assert_clean();
}
